/* Who lives. Every rank keeps one connection to rank 0, on which both beat; its end is a death, its
 * silence a stop. Rank 0 also watches its own engine: when a collective takes it longer than
 * stuck_ms, the rank that has not come is named. What rank 0 decides it tells all. */
#include "worker/comm/comm_int.h"
#include "worker/comm/nccl.h"

#include "lib/base/clock.h"
#include "lib/base/log.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#define BEAT_MS 200u
#define LEFT_MS 500u /* a rank that has left is missed after that */

enum frame_kind { FRAME_BEAT = 1, FRAME_FAIL, FRAME_BYE };

struct frame { /* fixed size, little-endian */
    uint32_t kind, rank, op, seq;
    uint64_t since_ms;
    char text[REASON_MAX];
};
_Static_assert(sizeof(struct frame) == 264, "no padding on the wire");

bool watch_failed(const struct world *w)
{
    return atomic_load_explicit(&w->seg.head->failed, memory_order_acquire) != 0;
}

int watch_error(const struct world *w, struct err *e)
{
    const struct segment_head *h = w->seg.head;
    for (int i = 0; i < 200 && !watch_failed(w); i++) /* claimed, being written */
        usleep(1000);
    return err_set(e, EPIPE, "the group has failed: %s",
                   watch_failed(w) ? h->reason : "a rank is gone");
}

static void ring(int fd)
{
    uint64_t one = 1;
    if (fd >= 0 && write(fd, &one, sizeof one) < 0)
        ASSERT(errno == EAGAIN);
}

void watch_fail(struct world *w, uint32_t rank, const char *why)
{
    struct segment_head *h = w->seg.head;
    uint32_t none = 0;
    if (atomic_compare_exchange_strong(&h->claimed, &none, 1)) {
        snprintf(h->reason, sizeof h->reason, "%s", why);
        atomic_store_explicit(&h->failed, rank + 1, memory_order_release);
    }
    segment_wake_all(w);
    ring(w->wake_fd);
    ring(w->fail_fd);
}

/* ---- frames ---- */

static void say(const struct world *w, int fd, const struct frame *f)
{
    (void)w;
    if (fd >= 0 && send(fd, f, sizeof *f, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
        return; /* its end will be noticed where it is read */
}

static void say_all(const struct world *w, const struct frame *f)
{
    for (uint32_t r = 0; r < w->cfg.ranks; r++)
        say(w, w->peers[r].life, f);
}

static void beat(const struct world *w, uint64_t now_ns)
{
    struct frame f = {.kind = FRAME_BEAT,
                      .rank = w->cfg.rank,
                      .op = atomic_load(&w->op),
                      .seq = atomic_load(&w->seq),
                      .since_ms = (now_ns - atomic_load(&w->since_ns)) / NS_PER_MS};
    say_all(w, &f);
}

static void tell_failure(struct world *w)
{
    struct frame f = {.kind = FRAME_FAIL};
    if (w->told || !watch_failed(w))
        return;
    w->told = true;
    f.rank = atomic_load(&w->seg.head->failed) - 1;
    snprintf(f.text, sizeof f.text, "%s", w->seg.head->reason);
    say_all(w, &f);
    nccl_abort_all(w);
    if (!w->leaving)
        log_error("the group has failed", LI("rank", f.rank), LS("reason", f.text));
    if (w->cfg.failed)
        w->cfg.failed(w->cfg.ctx, f.rank, f.text);
}

static void take(struct world *w, uint32_t from, struct frame *f, uint64_t now_ns)
{
    struct peer *p = &w->peers[from];
    f->text[sizeof f->text - 1] = 0;
    p->heard_ns = now_ns;
    if (f->kind == FRAME_BEAT) {
        p->op = f->op;
        p->seq = f->seq;
        p->since_ns = now_ns - f->since_ms * NS_PER_MS;
    } else if (f->kind == FRAME_FAIL) {
        watch_fail(w, f->rank < w->cfg.ranks ? f->rank : from, f->text);
    } else if (f->kind == FRAME_BYE) {
        p->left = true;
        p->since_ns = now_ns;
    }
}

static void dead(struct world *w, uint32_t r, const char *how)
{
    char why[REASON_MAX];
    close_fdp(&w->peers[r].life);
    if (w->peers[r].left || w->leaving)
        return;
    snprintf(why, sizeof why, "rank %u (%s) %s", r, mesh_host(w, r), how);
    if (!mask_rank(w, r, why))
        watch_fail(w, r, why);
}

static void hear(struct world *w, uint32_t r, uint64_t now_ns)
{
    struct peer *p = &w->peers[r];
    for (;;) {
        ssize_t n = recv(p->life, p->in + p->in_n, sizeof p->in - p->in_n, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n <= 0) {
            dead(w, r, "died: its connection ended");
            return;
        }
        p->in_n += (size_t)n;
        while (p->in_n >= sizeof(struct frame)) {
            struct frame f;
            memcpy(&f, p->in, sizeof f);
            p->in_n -= sizeof f;
            memmove(p->in, p->in + sizeof f, p->in_n);
            take(w, r, &f, now_ns);
        }
    }
}

/* ---- judging ---- */

static void judge_silence(struct world *w, uint64_t now_ns)
{
    char how[64];
    for (uint32_t r = 0; r < w->cfg.ranks; r++) {
        struct peer *p = &w->peers[r];
        if (p->life < 0 || p->left || now_ns < p->heard_ns + w->cfg.silent_ms * NS_PER_MS)
            continue;
        snprintf(how, sizeof how, "has been silent for %u ms: is it stopped?", w->cfg.silent_ms);
        dead(w, r, how);
    }
}

static bool is_masked(const struct world *w, uint32_t r)
{
    const struct segment_head *h = w->seg.head;
    return h->lost[atomic_load(&h->generation)] >> r & 1;
}

/* Of the ranks that others wait for: who computes, else who has entered the fewest collectives. */
static uint32_t laggard(const struct world *w)
{
    uint32_t worst = 0;
    for (uint32_t r = 1; r < w->cfg.ranks; r++) {
        const struct peer *p = &w->peers[r], *q = &w->peers[worst];
        if (is_masked(w, r))
            continue;
        if (worst == 0 || (p->op == OP_NONE) > (q->op == OP_NONE) ||
            ((p->op == OP_NONE) == (q->op == OP_NONE) && p->seq < q->seq))
            worst = r;
    }
    return worst;
}

static void judge_engine(struct world *w, uint64_t now_ns)
{
    uint32_t op = atomic_load(&w->op);
    uint64_t since = atomic_load(&w->since_ns);
    char why[REASON_MAX];
    if (op == OP_NONE)
        return;
    for (uint32_t r = 0; r < w->cfg.ranks; r++)
        if (w->peers[r].left && now_ns > w->peers[r].since_ns + LEFT_MS * NS_PER_MS &&
            now_ns > since + LEFT_MS * NS_PER_MS) {
            snprintf(why, sizeof why, "rank %u (%s) left while others went on", r, mesh_host(w, r));
            watch_fail(w, r, why);
        }
    if (w->cfg.rank || now_ns < since + w->cfg.stuck_ms * NS_PER_MS)
        return;
    uint32_t r = laggard(w);
    const struct peer *p = &w->peers[r];
    snprintf(why, sizeof why, "rank %u (%s) is stuck: %s for %llu ms while rank 0 waits in %s", r,
             mesh_host(w, r), comm_op_name(p->op),
             (unsigned long long)((now_ns - p->since_ns) / NS_PER_MS), comm_op_name(op));
    watch_fail(w, r, why);
}

static void *watch_main(void *arg)
{
    struct world *w = arg;
    struct pollfd p[COMM_RANKS_MAX + 1];
    uint64_t before_ns = clock_mono_ns(), beat_ns = 0;
    prctl(PR_SET_NAME, "comm-watch");
    while (!w->leaving) {
        uint32_t who[COMM_RANKS_MAX], n = 0;
        for (uint32_t r = 0; r < w->cfg.ranks; r++)
            if (w->peers[r].life >= 0) {
                who[n] = r;
                p[n++] = (struct pollfd){.fd = w->peers[r].life, .events = POLLIN};
            }
        p[n] = (struct pollfd){.fd = w->wake_fd, .events = POLLIN};
        poll(p, n + 1, BEAT_MS);
        uint64_t now_ns = clock_mono_ns(), count;
        if ((p[n].revents & POLLIN) && read(w->wake_fd, &count, sizeof count) < 0)
            ASSERT(errno == EAGAIN);
        for (uint32_t i = 0; i < n; i++)
            if (p[i].revents)
                hear(w, who[i], now_ns);
        /* A thread that was itself held up listens once more before it judges others. */
        if (now_ns - before_ns < (BEAT_MS + w->cfg.silent_ms / 4) * NS_PER_MS) {
            judge_silence(w, now_ns);
            judge_engine(w, now_ns);
        }
        before_ns = now_ns;
        tell_failure(w);
        if (now_ns >= beat_ns) {
            beat(w, now_ns);
            beat_ns = now_ns + BEAT_MS * NS_PER_MS;
        }
    }
    tell_failure(w); /* what this rank itself has to say is said */
    if (!watch_failed(w))
        say_all(w, &(struct frame){.kind = FRAME_BYE, .rank = w->cfg.rank});
    return NULL;
}

int watch_start(struct world *w, struct err *e)
{
    uint64_t now = clock_mono_ns();
    for (uint32_t r = 0; r < w->cfg.ranks; r++)
        w->peers[r].heard_ns = w->peers[r].since_ns = now;
    w->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    w->fail_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (w->wake_fd < 0 || w->fail_fd < 0)
        return err_set(e, errno, "no eventfd: %s", strerror(errno));
    int rc = pthread_create(&w->watch, NULL, watch_main, w);
    w->watching = rc == 0;
    return rc ? err_set(e, rc, "no thread to watch the group: %s", strerror(rc)) : 0;
}

void watch_stop(struct world *w)
{
    if (!w->watching)
        return;
    w->leaving = true;
    ring(w->wake_fd);
    pthread_join(w->watch, NULL);
    w->watching = false;
}
