#include "worker/events.h"

#include "lib/base/log.h"

#include <stdlib.h>
#include <uthash.h>

#define QUEUED_MAX (8u << 20) /* a router that falls so far behind has to start again */

/* A cached name: `present` now, `told` when the routers know it. Dropped when both are false. */
struct name {
    struct block_name_bytes name;
    bool present, told, listed;
    struct name *next_changed;
    UT_hash_handle hh;
};

struct subscriber {
    struct subscriber *prev, *next;
    struct events *events;
    struct httpd_req *req;
    uint64_t seq;
};

struct events {
    struct name *names, *changed;
    struct subscriber *subscribers;
    uint32_t n;
    struct buf frame;
    struct block_name_bytes *added, *removed;
};

struct events *events_new(void)
{
    struct events *v = xcalloc(1, sizeof *v);
    buf_init(&v->frame, WIRE_HEARTBEAT_MAX_BYTES + 4096);
    v->added = xcalloc(WIRE_HEARTBEAT_MAX_NAMES, sizeof *v->added);
    v->removed = xcalloc(WIRE_HEARTBEAT_MAX_NAMES, sizeof *v->removed);
    return v;
}

void events_free(struct events *v)
{
    struct name *x, *tmp;
    if (!v)
        return;
    HASH_ITER (hh, v->names, x, tmp) {
        HASH_DEL(v->names, x);
        free(x);
    }
    while (v->subscribers) {
        struct subscriber *next = v->subscribers->next;
        free(v->subscribers);
        v->subscribers = next;
    }
    buf_fini(&v->frame);
    free(v->added);
    free(v->removed);
    free(v);
}

void events_names(struct events *v, const struct kv_event *e, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct name *x = NULL;
        HASH_FIND(hh, v->names, &e[i].name, sizeof x->name, x);
        if (!x) {
            x = xcalloc(1, sizeof *x);
            memcpy(&x->name, &e[i].name, sizeof x->name);
            HASH_ADD(hh, v->names, name, sizeof x->name, x);
        }
        x->present = e[i].added;
        if (x->listed)
            continue;
        x->listed = true;
        x->next_changed = v->changed;
        v->changed = x;
    }
}

static void unsubscribe(struct events *v, struct subscriber *s)
{
    *(s->prev ? &s->prev->next : &v->subscribers) = s->next;
    if (s->next)
        s->next->prev = s->prev;
    v->n--;
    free(s);
}

static void on_close(struct httpd_req *req, bool gone, void *ctx)
{
    struct subscriber *s = ctx;
    (void)req;
    (void)gone;
    unsubscribe(s->events, s);
}

/* Writes one frame to one router; a router that can't take it is cut off (and will start again). */
static void send_frame(struct events *v, struct subscriber *s, const struct events_state *st,
                       uint32_t flags, uint32_t n_added, uint32_t n_removed)
{
    struct wire_heartbeat h = {.incarnation = st->incarnation,
                               .seq = s->seq++,
                               .flags = flags | (st->ready ? WIRE_HB_READY : 0u) |
                                        (st->draining ? WIRE_HB_DRAINING : 0u) |
                                        (st->warmup ? WIRE_HB_WARMUP : 0u),
                               .role = (uint8_t)st->role,
                               .xfer_port = st->xfer_port,
                               .load = st->load,
                               .n_added = n_added,
                               .n_removed = n_removed,
                               .added = v->added,
                               .removed = v->removed};
    buf_reset(&v->frame);
    int rc = wire_heartbeat_encode(&h, &v->frame);
    ASSERT(rc == 0);
    rc = httpd_stream_write(s->req, buf_view(&v->frame));
    if (rc == 0 || rc == -EPIPE)
        return;
    log_warn("a router does not read its heartbeats: cut off", LS("peer", httpd_peer(s->req)));
    httpd_abort(s->req);
}

static void broadcast(struct events *v, const struct events_state *st, uint32_t n_added,
                      uint32_t n_removed)
{
    for (struct subscriber *s = v->subscribers, *next; s; s = next) {
        next = s->next;
        send_frame(v, s, st, 0, n_added, n_removed);
    }
}

/* One frame, or several when many names changed. */
void events_beat(struct events *v, const struct events_state *st)
{
    uint32_t added = 0, removed = 0;
    for (struct name *x; (x = v->changed);) {
        v->changed = x->next_changed;
        x->listed = false;
        if (x->present && !x->told)
            v->added[added++] = x->name;
        else if (!x->present && x->told)
            v->removed[removed++] = x->name;
        x->told = x->present;
        if (!x->present) {
            HASH_DEL(v->names, x);
            free(x);
        }
        if (added == WIRE_HEARTBEAT_MAX_NAMES || removed == WIRE_HEARTBEAT_MAX_NAMES) {
            broadcast(v, st, added, removed);
            added = removed = 0;
        }
    }
    broadcast(v, st, added, removed);
}

static void send_all(struct events *v, struct subscriber *s, const struct events_state *st)
{
    struct name *x, *tmp;
    uint32_t n = 0;
    HASH_ITER (hh, v->names, x, tmp) {
        if (n == WIRE_HEARTBEAT_MAX_NAMES) {
            send_frame(v, s, st, s->seq ? 0 : WIRE_HB_RESET, n, 0);
            n = 0;
        }
        v->added[n++] = x->name;
    }
    send_frame(v, s, st, (s->seq ? 0u : WIRE_HB_RESET) | WIRE_HB_COMPLETE, n, 0);
}

void events_subscribe(struct events *v, struct httpd_req *req, const struct events_state *now)
{
    events_beat(v, now); /* from here on the new one and the others are told the same changes */
    struct subscriber *s = xcalloc(1, sizeof *s);
    s->events = v;
    s->req = req;
    httpd_on_close(req, on_close, s);
    httpd_stream_start(req, 200, "application/octet-stream", QUEUED_MAX);
    s->next = v->subscribers;
    if (s->next)
        s->next->prev = s;
    v->subscribers = s;
    v->n++;
    send_all(v, s, now);
}

void events_end(struct events *v)
{
    for (struct subscriber *s = v->subscribers, *next; s; s = next) {
        next = s->next;
        httpd_stream_end(s->req);
    }
}

uint32_t events_count(const struct events *v)
{
    return v->n;
}
