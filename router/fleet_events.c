/* The event streams of the workers: heartbeats in, roles, load and block names out. */
#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "router/fleet_int.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define RETRY_MIN_MS 20u
#define RETRY_MAX_MS 1000u

_Static_assert(sizeof(struct block_name) == sizeof(struct block_name_bytes), "one name, two types");

static const enum route_role role_of[] = {
    [WIRE_ROLE_NONE] = ROUTE_NONE,       [WIRE_ROLE_PREFILL] = ROUTE_PREFILL,
    [WIRE_ROLE_DECODE] = ROUTE_DECODE,   [WIRE_ROLE_UNIFIED] = ROUTE_UNIFIED,
    [WIRE_ROLE_STANDBY] = ROUTE_STANDBY,
};

void worker_update_state(struct worker *w)
{
    struct route_worker *s = &w->d->state[w->slot];
    const struct wire_load *l = &w->last.load;
    s->role = role_of[w->last.role];
    s->ready = w->last.flags & WIRE_HB_READY;
    s->draining = w->leaving || w->last.flags & WIRE_HB_DRAINING;
    s->running = l->running;
    s->waiting = l->waiting;
    s->waiting_tokens = l->waiting_tokens;
    s->resident_tokens = l->resident_tokens;
    s->kv_blocks = l->kv_blocks;
    s->kv_blocks_used = l->kv_blocks_used;
    s->block_tokens = l->block_tokens;
}

static void forget(struct worker *w)
{
    struct route_worker *s = &w->d->state[w->slot];
    uint64_t incarnation = s->incarnation;
    struct fleet *f = w->d->fleet;
    s->incarnation = 0;
    s->ready = false;
    w->complete = false;
    index_clear(w->d->index, w->slot);
    ledger_clear(w);
    if (incarnation && f->c.on_down)
        f->c.on_down(w->d, incarnation, f->c.ctx);
}

static void lost(struct worker *w, const char *why)
{
    struct route_worker *s = &w->d->state[w->slot];
    if (s->incarnation)
        log_info("worker lost", LS("worker", w->name), LS("why", why));
    snprintf(w->last_error, sizeof w->last_error, "%s", why);
    unsigned ms = RETRY_MIN_MS << (w->failures < 6 ? w->failures : 6);
    w->failures++;
    w->next_try_ns = clock_mono_ns() + (ms < RETRY_MAX_MS ? ms : RETRY_MAX_MS) * NS_PER_MS;
    forget(w);
}

void worker_disconnect(struct worker *w, const char *why)
{
    if (w->events) {
        conn_cancel(w->events);
        w->events = NULL;
    }
    lost(w, why);
}

/* What the other workers of the deployment teach about prefill and steps; false when nothing. */
static bool peers_mean(const struct worker *w, bool prefill, double *out)
{
    double sum = 0;
    size_t n = 0;
    for (size_t i = 0; i < w->d->n_workers; i++) {
        const struct cost_worker *c = &w->d->state[i].cost;
        const struct cost_fix *f = prefill ? &c->prefill : &c->step;
        if (i == w->slot || !w->d->worker[i] || f->n == 0)
            continue;
        sum += f->log_ratio;
        n++;
    }
    if (n)
        *out = sum / (double)n;
    return n > 0;
}

/* The worker's own measurements correct its prices, when it did that kind of work since the last
 * heartbeat; else they fade towards its peers'. */
static void learn(struct worker *w, const struct wire_heartbeat *h, double seconds)
{
    struct cost_worker *c = &w->d->state[w->slot].cost;
    double mean;
    if (h->load.prompt_tokens_total > w->last_prompt_tokens)
        cost_report_prefill(c, (double)h->load.prefill_tokens_per_s);
    else if (peers_mean(w, true, &mean))
        cost_fade(&c->prefill, mean, seconds);
    if (h->load.generated_tokens_total > w->last_generated_tokens)
        cost_report_step(c, h->load.running, (double)h->load.resident_tokens,
                         (double)h->load.decode_step_s);
    else if (peers_mean(w, false, &mean))
        cost_fade(&c->step, mean, seconds);
    w->last_prompt_tokens = h->load.prompt_tokens_total;
    w->last_generated_tokens = h->load.generated_tokens_total;
}

static void new_incarnation(struct worker *w, const struct wire_heartbeat *h)
{
    struct route_worker *s = &w->d->state[w->slot];
    s->incarnation = h->incarnation;
    snprintf(w->label, sizeof w->label, "%.128s:%016llx", w->name,
             (unsigned long long)h->incarnation);
    snprintf(w->incarnation_line, sizeof w->incarnation_line, "x-baton-incarnation: %016llx\r\n",
             (unsigned long long)h->incarnation);
    snprintf(w->address, sizeof w->address, "%.64s:%u", w->host, w->port);
    w->failures = 0;
    w->last_error[0] = 0;
    w->last_prompt_tokens = w->last_generated_tokens = 0;
    log_info("worker found", LS("worker", w->name), LS("infd", w->d->infd),
             LS("role", wire_role_name(h->role)));
}

static int accept_heartbeat(struct worker *w, const struct wire_heartbeat *h, uint64_t now_ns)
{
    struct route_worker *s = &w->d->state[w->slot];
    bool first = !s->incarnation;
    if (first && !(h->flags & WIRE_HB_RESET))
        return -EBADMSG;
    if (first)
        new_incarnation(w, h);
    else if (h->incarnation != s->incarnation || h->seq != w->seq + 1)
        return -ESTALE;
    w->seq = h->seq;
    if (h->flags & WIRE_HB_RESET && !w->complete && h->flags & WIRE_HB_COMPLETE)
        w->complete = true;
    if (!w->d->model && h->flags & WIRE_HB_RESET)
        w->d->load_again_ns = 0; /* it can tell its tokenizer */
    index_remove(w->d->index, w->slot, (const struct block_name *)h->removed, h->n_removed);
    index_add(w->d->index, w->slot, (const struct block_name *)h->added, h->n_added);
    learn(w, h, s->heard_ns && now_ns > s->heard_ns ? (double)(now_ns - s->heard_ns) / 1e9 : 0);
    w->last = *h;
    s->heard_ns = now_ns;
    ledger_reported(w, now_ns);
    worker_update_state(w);
    return 0;
}

static int on_headers(struct conn_call *c, int status, void *ctx)
{
    (void)c;
    struct worker *w = ctx;
    if (status == 200)
        return 0;
    snprintf(w->last_error, sizeof w->last_error, "its event stream answers HTTP %d%s", status,
             status == 401 ? " (peer secret)" : "");
    log_warn("no event stream", LS("worker", w->name), LI("status", status));
    return -EACCES;
}

static int on_data(struct conn_call *c, struct str piece, void *ctx)
{
    (void)c;
    struct worker *w = ctx;
    if (buf_append(&w->in, piece.p, piece.n))
        return -EMSGSIZE;
    uint64_t now_ns = clock_mono_ns();
    struct str rest = buf_view(&w->in);
    for (;;) {
        struct wire_heartbeat h;
        int n = wire_heartbeat_decode(rest, &h);
        int rc = n > 0 ? accept_heartbeat(w, &h, now_ns) : n;
        if (rc < 0) {
            log_warn("bad heartbeat", LS("worker", w->name), LI("code", rc));
            return rc;
        }
        if (n == 0)
            break;
        rest.p += n;
        rest.n -= (size_t)n;
    }
    buf_consume(&w->in, w->in.n - rest.n);
    return 0;
}

static void on_done(struct conn_call *c, int status, int code, bool stale, void *ctx)
{
    (void)c;
    (void)stale;
    struct worker *w = ctx;
    w->events = NULL;
    char why[128];
    if (status == 200 || !*w->last_error || code != -ECANCELED)
        snprintf(why, sizeof why, "%s", code ? uv_strerror(code) : "it ended its event stream");
    else
        snprintf(why, sizeof why, "%s", w->last_error);
    lost(w, why);
}

void worker_connect(struct worker *w, struct conn_pool *pool, uint64_t now_ns)
{
    struct buf head;
    buf_init(&head, 4096);
    buf_reset(&w->in);
    w->seq = 0;
    struct err e = {0};
    if (codec_write_head(&head, "GET", "/v1/internal/events", w->host, w->d->secret, NULL, NULL,
                         0)) {
        buf_fini(&head);
        lost(w, "its secret is too long");
        return;
    }
    struct conn_request r = {.host = w->host,
                             .port = w->port,
                             .head = buf_view(&head),
                             .fresh = true,
                             .silence_timeout_ms = FLEET_DEAD_MS,
                             .on_headers = on_headers,
                             .on_data = on_data,
                             .on_done = on_done,
                             .ctx = w};
    w->events = conn_start(pool, &r, &e);
    buf_fini(&head);
    if (!w->events)
        lost(w, e.msg);
    (void)now_ns;
}
