#include "lib/xfer/conn.h"

#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/base/metrics.h"
#include "lib/base/rng.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <unistd.h>
#include <utlist.h>

#define EVENTS       64
#define UNPROVEN_MAX 64u /* strangers at the door; more are turned away */

/* ---- what the state machines ask for ---- */

static void op_send(void *ctx, struct hand_link *l, const struct control_msg *m)
{
    (void)ctx;
    conn_send(hand_link_user(l), m);
}

static void count(struct xfer *x, const struct xfer_event *e)
{
    if (e->kind == XFER_DONE) {
        metric_add(x->metrics.bytes[e->path], (double)e->bytes);
        metric_observe(x->metrics.seconds, e->seconds);
    } else if (e->kind == XFER_FAILED) {
        metric_add(x->metrics.failures[e->reason], 1);
    }
}

static void op_event(void *ctx, const struct xfer_event *e)
{
    struct xfer *x = ctx;
    size_t list = e->blocks ? 4 * (size_t)e->n_blocks : 0;
    struct happening *h = xmalloc(sizeof *h + list + e->payload_len);
    h->event = *e;
    if (list)
        h->event.blocks = memcpy(h->data, e->blocks, list);
    if (e->payload_len)
        h->event.payload = memcpy(h->data + list, e->payload, e->payload_len);
    count(x, e);
    post_send(&x->events, &h->letter);
    if (x->cfg.wake)
        x->cfg.wake(x->cfg.wake_arg);
}

static void op_push(void *ctx, struct hand_link *l, const struct hand_push *p)
{
    (void)ctx;
    push_add(hand_link_user(l), p);
}

static uint32_t op_cancel(void *ctx, struct hand_link *l, uint64_t p_id)
{
    (void)ctx;
    return push_cancel(hand_link_user(l), p_id);
}

static void op_drop(void *ctx, struct hand_link *l)
{
    (void)ctx;
    conn_die(hand_link_user(l), XFER_LEASE_LOST, "the peer fell silent");
}

const struct hand_ops loop_ops = {op_send, op_event, op_push, op_cancel, op_drop};

/* ---- connections ---- */

static void tune(int fd)
{
    int on = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

static bool same_peer(const struct conn *c, const struct command *m)
{
    return c->kind == CONN_OUT && !c->dead && c->hello.to == m->peer &&
           c->addr_len == m->addr_len && memcmp(&c->addr, &m->addr, m->addr_len) == 0;
}

static struct conn *link_to(struct xfer *x, const struct command *m, uint64_t now_ns)
{
    struct conn *c;
    DL_FOREACH (x->conns, c) {
        if (same_peer(c, m))
            return c;
    }
    int fd = socket(m->addr.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return NULL;
    tune(fd);
    c = conn_new(x, CONN_OUT, fd, now_ns);
    c->addr = m->addr;
    c->addr_len = m->addr_len;
    c->hello.from = x->cfg.incarnation;
    c->hello.to = m->peer;
    c->hello.session = rng_secret_u64();
    c->link = hand_d_link(x->d, m->peer, c->hello.session, c, now_ns);
    int rc = greet_connect(c);
    if (rc)
        conn_die(c, XFER_PEER_LOST, strerror(-rc));
    return c;
}

static void accept_all(struct xfer *x, int listener, enum conn_kind kind, uint64_t now_ns)
{
    for (;;) {
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0)
            return;
        if (x->n_unproven >= UNPROVEN_MAX) {
            close(fd);
            continue;
        }
        if (kind == CONN_IN)
            tune(fd);
        x->n_unproven++;
        conn_new(x, kind, fd, now_ns)->state = CONN_HELLO;
    }
}

/* ---- the engine's commands ---- */

static void order(struct xfer *x, const struct command *m, uint64_t now_ns)
{
    struct conn *c = link_to(x, m, now_ns);
    if (c) {
        hand_d_order(x->d, c->link, m->id, m->data, m->data_bytes, now_ns);
        return;
    }
    struct xfer_event e = {
        .kind = XFER_FAILED, .id = m->id, .peer = m->peer, .reason = XFER_PEER_LOST};
    snprintf(e.text, sizeof e.text, "no socket: %s", strerror(errno));
    op_event(x, &e);
    e.kind = XFER_QUIESCED;
    op_event(x, &e);
}

static void obey(struct xfer *x, const struct command *m, uint64_t now_ns)
{
    const void *data = m->data;
    switch (m->kind) {
    case COMMAND_ORDER: order(x, m, now_ns); break;
    case COMMAND_GRANT: hand_d_grant(x->d, m->id, data, m->n, now_ns); break;
    case COMMAND_REJECT: hand_d_reject(x->d, m->id, data, now_ns); break;
    case COMMAND_ABORT: hand_d_abort(x->d, m->id, data, now_ns); break;
    case COMMAND_ASK: hand_p_ask(x->p, m->id, m->n, now_ns); break;
    case COMMAND_PUSH: hand_p_push(x->p, m->id, m->layer, data, m->n, now_ns); break;
    case COMMAND_DONE: hand_p_done(x->p, m->id, data, m->data_bytes, now_ns); break;
    case COMMAND_FAIL: hand_p_fail(x->p, m->id, XFER_PEER_FAILED, data, now_ns); break;
    }
}

static void commands(struct xfer *x, uint64_t now_ns)
{
    struct post_letter *l = post_take(&x->commands), *next;
    for (; l; l = next) {
        next = l->next;
        obey(x, (const struct command *)l, now_ns);
        free(l);
    }
}

/* ---- the loop ---- */

static void wait_for(struct xfer *x, uint64_t wait_ns)
{
    struct epoll_event ev[EVENTS];
    uint64_t ms = (wait_ns + NS_PER_MS - 1) / NS_PER_MS;
    int n = epoll_wait(x->epoll, ev, EVENTS, ms > 1000 ? 1000 : (int)ms);
    uint64_t now_ns = clock_mono_ns();
    for (int i = 0; i < n; i++) {
        void *who = ev[i].data.ptr;
        if (who == &x->commands) {
            continue; /* taken every round */
        } else if (who == &x->listener) {
            accept_all(x, x->listener, CONN_IN, now_ns);
        } else if (who == &x->shm_listener) {
            accept_all(x, x->shm_listener, CONN_SHM_IN, now_ns);
        } else {
            struct conn *c = who;
            if (ev[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR) && c->state != CONN_CONNECTING)
                conn_readable(c, now_ns);
            if (!c->dead && ev[i].events & (EPOLLOUT | EPOLLERR | EPOLLHUP))
                conn_writable(c, now_ns);
        }
    }
}

static uint64_t deadlines(struct xfer *x, uint64_t now_ns)
{
    uint64_t next = UINT64_MAX;
    struct conn *c;
    DL_FOREACH (x->conns, c) {
        if (c->dead || !c->deadline_ns)
            continue;
        if (now_ns >= c->deadline_ns)
            conn_die(c, XFER_LEASE_LOST, "the peer did not answer the handshake");
        else if (c->deadline_ns < next)
            next = c->deadline_ns;
    }
    return next;
}

/* Copies and sends what can go; true when copying should go on at once. */
static bool serve(struct xfer *x, uint64_t now_ns)
{
    bool more = false;
    struct conn *c;
    DL_FOREACH (x->conns, c) {
        if (c->dead)
            continue;
        if (c->kind == CONN_IN && push_shm(c, now_ns))
            more = true;
        if (c->state != CONN_CONNECTING)
            conn_writable(c, now_ns);
    }
    return more;
}

static void gauges(struct xfer *x)
{
    uint32_t links = 0;
    struct conn *c;
    DL_FOREACH (x->conns, c) {
        if (c->fd >= 0 && !c->dead)
            conn_arm(c);
        links += c->link && !c->dead;
    }
    x->n_links = links;
    x->n_d = hand_d_transfers(x->d);
    x->n_p = hand_p_transfers(x->p);
    x->n_quarantined = hand_d_quarantined(x->d);
    metric_set(x->metrics.links, x->n_links);
    metric_set(x->metrics.quarantined, x->n_quarantined);
}

void *loop_main(void *arg)
{
    struct xfer *x = arg;
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    prctl(PR_SET_NAME, "xfer");
    uint64_t wait_ns = 0, before_ns = clock_mono_ns();
    while (!x->stop) {
        wait_for(x, wait_ns);
        uint64_t now_ns = clock_mono_ns(), next = now_ns;
        commands(x, now_ns);
        /* A thread that was itself held up listens once more before it judges others. */
        if (now_ns - before_ns < (uint64_t)x->cfg.lease_ms * NS_PER_MS / 2 + NS_PER_S) {
            next = hand_d_tick(x->d, now_ns);
            uint64_t t = hand_p_tick(x->p, now_ns);
            next = t < next ? t : next;
            t = deadlines(x, now_ns);
            next = t < next ? t : next;
        }
        before_ns = now_ns;
        if (serve(x, now_ns))
            next = now_ns;
        reap(x, now_ns);
        gauges(x);
        wait_ns = next > now_ns ? next - now_ns : 0;
    }
    reap_all(x, clock_mono_ns());
    return NULL;
}
