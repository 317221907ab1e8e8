/* Going on without a rank that has died (comm.h). Only rank 0 decides, and only of ranks of its own
 * host. It first makes sure that the process has ended: it kills it, which does nothing to one that
 * is dead, and waits for the kernel's word (a pidfd). So nobody is masked who could still write, be
 * it that a rank was only slow. Then the others find the latest generation moved, and each moves
 * its communicators to that one's part of the shared memory, which is zero. */
#include "worker/comm/comm_int.h"

#include "lib/base/clock.h"
#include "lib/base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#define END_MS    1000u /* in which a killed process ends, or the group fails */
#define NAMED_MAX 8u    /* things that a reason names */

struct mask_rules {
    uint64_t *sets;
    uint32_t n, kinds;
    char what[32];
    int wake_fd, pidfds[COMM_RANKS_MAX];
};

static void rules_free(struct mask_rules *m)
{
    if (!m)
        return;
    for (uint32_t r = 0; r < COMM_RANKS_MAX; r++)
        close_fdp(&m->pidfds[r]);
    close_fdp(&m->wake_fd);
    free(m->sets);
    free(m);
}

void mask_free(struct world *w)
{
    rules_free(atomic_exchange(&w->mask_to, NULL));
}

static int open_processes(const struct world *w, struct mask_rules *m, struct err *e)
{
    for (uint32_t r = 1; r < w->cfg.ranks; r++) {
        m->pidfds[r] = (int)syscall(SYS_pidfd_open, atomic_load(&w->seg.head->pids[r]), 0);
        if (m->pidfds[r] < 0)
            return err_set(e, ENOTSUP, "rank %u's process can't be watched: %s", r,
                           strerror(errno));
    }
    return 0;
}

int comm_allow_masks(struct comm *world, const uint64_t *sets, uint32_t n, uint32_t kinds,
                     const char *what, int wake_fd, struct err *e)
{
    struct world *w = world->w;
    ASSERT(w->cfg.rank == 0 && !atomic_load(&w->mask_to));
    if (w->cfg.ranks != w->cfg.ranks_per_host)
        return err_set(e, ENOTSUP, "ranks on several hosts are not masked");
    struct mask_rules *m = xcalloc(1, sizeof *m);
    for (uint32_t r = 0; r < COMM_RANKS_MAX; r++)
        m->pidfds[r] = -1;
    m->n = n;
    m->kinds = kinds;
    m->sets = xcalloc(n + 1, sizeof *m->sets);
    if (n)
        memcpy(m->sets, sets, n * sizeof *sets);
    snprintf(m->what, sizeof m->what, "%s", what);
    m->wake_fd = wake_fd < 0 ? -1 : fcntl(wake_fd, F_DUPFD_CLOEXEC, 0);
    int rc = wake_fd >= 0 && m->wake_fd < 0 ? err_set(e, errno, "no descriptor") : 0;
    rc = rc ? rc : open_processes(w, m, e);
    if (rc) {
        rules_free(m);
        return rc;
    }
    atomic_store(&w->mask_to, m);
    return 0;
}

/* ---- rank 0 decides, on the watch's thread ---- */

static void add(char why[REASON_MAX], const char *text)
{
    size_t n = strlen(why);
    snprintf(why + n, REASON_MAX - n, "%s", text);
}

/* Names what would have no rank left; false: everything has one. */
static bool misses(const struct mask_rules *m, uint64_t lost, char why[REASON_MAX])
{
    char text[32];
    uint32_t n = 0;
    for (uint32_t i = 0; i < m->n; i++) {
        if (m->sets[i] & ~lost)
            continue;
        if (n == 0) {
            add(why, "; not masked: no rank is left that has ");
            add(why, m->what);
        }
        snprintf(text, sizeof text, n ? ", %u" : " %u", i % m->kinds);
        if (n < NAMED_MAX)
            add(why, text);
        n++;
    }
    snprintf(text, sizeof text, " and %u more", n - NAMED_MAX);
    if (n > NAMED_MAX)
        add(why, text);
    return n > 0;
}

/* False: it could not be seen to end. */
static bool end_process(int pidfd)
{
    uint64_t until_ns = clock_mono_ns() + END_MS * NS_PER_MS;
    (void)syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, NULL, 0);
    for (;;) {
        uint64_t now_ns = clock_mono_ns();
        struct pollfd p = {.fd = pidfd, .events = POLLIN};
        if (now_ns >= until_ns)
            return false;
        if (poll(&p, 1, (int)((until_ns - now_ns) / NS_PER_MS) + 1) > 0)
            return true;
    }
}

bool mask_rank(struct world *w, uint32_t rank, char why[REASON_MAX])
{
    struct segment_head *h = w->seg.head;
    const struct mask_rules *m = atomic_load(&w->mask_to);
    uint32_t now = atomic_load(&h->generation);
    uint64_t lost = h->lost[now] | 1ull << rank, one = 1;
    if (!m || watch_failed(w) || misses(m, lost, why))
        return false;
    if (now + 1 == GENERATIONS) {
        add(why, "; not masked: too many ranks have died");
        return false;
    }
    if (!end_process(m->pidfds[rank])) {
        add(why, "; not masked: its process does not end");
        return false;
    }
    h->lost[now + 1] = lost;
    atomic_store_explicit(&h->generation, now + 1, memory_order_release);
    segment_wake_all(w);
    if (m->wake_fd >= 0 && write(m->wake_fd, &one, sizeof one) < 0)
        ASSERT(errno == EAGAIN);
    log_warn("a rank is masked: the others go on without it", LI("rank", rank), LS("why", why),
             LI("live", w->cfg.ranks - (uint32_t)__builtin_popcountll(lost)),
             LI("ranks", w->cfg.ranks));
    return true;
}

/* ---- every rank follows, on its engine's thread ---- */

static void adopt(struct world *w)
{
    const struct segment_head *h = w->seg.head;
    w->seg.now = atomic_load_explicit(&h->generation, memory_order_acquire);
    w->lost = h->lost[w->seg.now];
    w->n_flight = 0;
    for (uint32_t i = 0; i < w->n_comms; i++) {
        struct comm *c = w->comms[i];
        c->turn = 0;
        c->live = 0;
        for (uint32_t k = 0; k < c->n; k++)
            c->live += world_is_here(w, c->ranks[k]) && !world_is_lost(w, c->ranks[k]);
    }
}

bool comm_must_regroup(const struct comm *world)
{
    return atomic_load_explicit(&world->w->seg.head->generation, memory_order_acquire) !=
           world->w->seg.now;
}

int comm_regroup(struct comm *world, struct err *e)
{
    int rc;
    do {
        adopt(world->w);
        rc = comm_barrier(world, e);
    } while (rc == -ECANCELED); /* another one has died */
    if (!rc && world->rank == 0)
        segment_forget(&world->w->seg); /* nobody is there any more */
    return rc;
}

uint64_t comm_masked(const struct comm *world)
{
    return world->w->lost;
}

bool comm_is_masked(const struct comm *c, uint32_t rank)
{
    return world_is_lost(c->w, c->ranks[rank]);
}
