/* Sleep and wake of a standby worker: the rung `warm` (DESIGN §8). Asleep, it holds neither weights
 * nor KV memory; process, addresses, sockets and layouts stay, so waking takes one pass over the
 * weights (they stay in the node's memory, with the agent) and the allocation of the pool. On the
 * engine's thread, between steps: no request, order or transfer is alive then. */
#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "worker/engine_int.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#define RETRY_NS (NS_PER_S / 2)

/* Cached blocks lose their names: their bytes go. */
static void forget(struct engine *g)
{
    uint32_t n = 0, *blocks = xcalloc(kv_counts(g->kv).total, sizeof *blocks), b;
    for (uint32_t r = 0; r < kv_ranks(g->kv); r++)
        while ((b = kv_alloc(g->kv, r)) != KV_NONE)
            blocks[n++] = b;
    kv_release(g->kv, blocks, n);
    free(blocks);
}

static void go_to_sleep(struct engine *g)
{
    struct err e;
    uint64_t begin = clock_mono_ns();
    forget(g);
    int rc = group_sleep(g->group, true, &e);
    if (!rc && (rc = xfer_pool_release(&g->c.pool, &e)) && group_sleep(g->group, false, NULL))
        log_warn("the other ranks could not be told to wake");
    if (rc) {
        log_warn("memory could not be given back; staying awake", LERR(&e));
        g->sleep_wanted = false;
        return;
    }
    if (g->c.weights)
        (void)madvise(g->c.weights, g->c.weights_bytes, MADV_DONTNEED);
    g->asleep = true;
    log_info("asleep: weights and KV memory are given back", LI("kv_bytes", g->c.pool.len),
             LI("weights_bytes", g->c.weights_bytes),
             LI("after_us", (clock_mono_ns() - begin) / NS_PER_US));
}

static void wake(struct engine *g)
{
    struct err e;
    uint64_t begin = clock_mono_ns();
    if (begin < g->wake_retry_ns)
        return;
    if (xfer_pool_refill(&g->c.pool, &e)) {
        log_error("no memory to wake up with; trying again", LERR(&e));
        g->wake_retry_ns = begin + RETRY_NS;
        return;
    }
    if (group_sleep(g->group, false, &e)) {
        log_error("the device or another rank does not wake; trying again", LERR(&e));
        g->wake_retry_ns = begin + RETRY_NS;
        return;
    }
#ifdef MADV_POPULATE_READ
    if (g->c.weights)
        (void)madvise(g->c.weights, g->c.weights_bytes, MADV_POPULATE_READ);
#endif
    g->asleep = false;
    log_info("awake", LI("kv_bytes", g->c.pool.len), LI("weights_bytes", g->c.weights_bytes),
             LI("after_us", (clock_mono_ns() - begin) / NS_PER_US));
}

void engine_rung(struct engine *g)
{
    bool idle = g->role == WIRE_ROLE_STANDBY && !g->requests && !g->inbounds && !g->draining;
    if (g->sleep_wanted && !g->asleep && idle)
        go_to_sleep(g);
    else if (g->asleep && (!g->sleep_wanted || g->role != WIRE_ROLE_STANDBY))
        wake(g);
}
