#include "worker/model/pool.h"

#include "lib/base/clock.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SPINS       16 /* pauses between two looks at the clock: about 1 us at most */
#define SPIN_NS_MIN 1000u
#define SPIN_NS_MAX 50000u /* about what a sleep and its end cost */

#define CALM        32u /* short waits in a row: nobody else wants the processor */

/* A counter that threads wait on until it moves. A wait spins before it sleeps: twice as long as
 * waits have been; after one that was longer than spinning may be, for others want the processor,
 * as short as can be until CALM shorter ones have followed. */
struct gate {
    _Alignas(64) _Atomic uint32_t value;
    _Atomic uint32_t sleepers, spin_ns, calm;
};

struct pool {
    uint32_t threads;
    struct gate job;     /* moves when a job (or the end) is posted */
    struct gate barrier; /* moves when all have arrived */
    _Alignas(64) _Atomic uint32_t arrived;
    _Atomic bool stop;
    pool_fn fn;
    void *arg;
    struct helper {
        pthread_t thread;
        struct pool *pool;
        uint32_t number;
    } * helpers;
};

static void futex(_Atomic uint32_t *word, int op, uint32_t value)
{
    syscall(SYS_futex, word, op | FUTEX_PRIVATE_FLAG, value, NULL, NULL, 0);
}

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static void learn(struct gate *g, uint64_t spin_ns, uint64_t waited_ns, bool slept)
{
    uint32_t calm = atomic_load_explicit(&g->calm, memory_order_relaxed);
    bool crowded = slept && waited_ns > SPIN_NS_MAX;
    atomic_store_explicit(&g->calm,
                          crowded       ? 0
                          : calm < CALM ? calm + 1
                                        : calm,
                          memory_order_relaxed);
    if (crowded || calm < CALM)
        spin_ns = SPIN_NS_MIN;
    else if (slept)
        spin_ns = 2 * waited_ns;
    else
        spin_ns = (7 * spin_ns + 2 * waited_ns) / 8;
    spin_ns = spin_ns < SPIN_NS_MIN ? SPIN_NS_MIN : spin_ns > SPIN_NS_MAX ? SPIN_NS_MAX : spin_ns;
    atomic_store_explicit(&g->spin_ns, (uint32_t)spin_ns, memory_order_relaxed);
}

static void gate_wait(struct gate *g, uint32_t seen)
{
    uint32_t spin_ns = atomic_load_explicit(&g->spin_ns, memory_order_relaxed);
    uint64_t from = 0, waited = 0;
    do {
        for (int i = 0; i < SPINS; i++) {
            if (atomic_load_explicit(&g->value, memory_order_acquire) != seen) {
                if (from)
                    learn(g, spin_ns, clock_mono_ns() - from, false);
                return;
            }
            relax();
        }
        uint64_t now = clock_mono_ns();
        from = from ? from : now;
        waited = now - from;
    } while (waited < spin_ns);
    atomic_fetch_add(&g->sleepers, 1);
    while (atomic_load(&g->value) == seen)
        futex(&g->value, FUTEX_WAIT, seen);
    atomic_fetch_sub(&g->sleepers, 1);
    learn(g, spin_ns, clock_mono_ns() - from, true);
}

static void gate_move(struct gate *g)
{
    atomic_fetch_add(&g->value, 1);
    if (atomic_load(&g->sleepers))
        futex(&g->value, FUTEX_WAKE, INT32_MAX);
}

void pool_barrier(struct pool *p)
{
    if (p->threads == 1)
        return;
    uint32_t seen = atomic_load(&p->barrier.value);
    if (atomic_fetch_add(&p->arrived, 1) + 1 == p->threads) {
        atomic_store(&p->arrived, 0);
        gate_move(&p->barrier);
    } else {
        gate_wait(&p->barrier, seen);
    }
}

static void *helper_main(void *arg)
{
    struct helper *h = arg;
    struct pool *p = h->pool;
    for (uint32_t seen = 0;; seen++) {
        gate_wait(&p->job, seen);
        if (atomic_load(&p->stop))
            return NULL;
        p->fn(p->arg, h->number);
        pool_barrier(p);
    }
}

void pool_run(struct pool *p, pool_fn fn, void *arg)
{
    p->fn = fn;
    p->arg = arg;
    if (p->threads > 1)
        gate_move(&p->job);
    fn(arg, 0);
    pool_barrier(p);
}

int pool_new(uint32_t threads, struct pool **out, struct err *e)
{
    void *mem = aligned_alloc(64, sizeof(struct pool));
    if (!mem)
        return err_set(e, ENOMEM, "no memory for threads");
    struct pool *p = mem;
    memset(p, 0, sizeof *p);
    p->threads = 1;
    p->job.spin_ns = p->barrier.spin_ns = SPIN_NS_MIN;
    p->helpers = xcalloc(threads, sizeof *p->helpers);
    for (uint32_t i = 1; i < threads; i++) {
        struct helper *h = &p->helpers[i];
        *h = (struct helper){.pool = p, .number = i};
        int rc = pthread_create(&h->thread, NULL, helper_main, h);
        if (rc) {
            pool_free(p);
            return err_set(e, rc, "can't start compute thread %u: %s", i, strerror(rc));
        }
        p->threads++;
    }
    *out = p;
    return 0;
}

void pool_free(struct pool *p)
{
    if (!p)
        return;
    atomic_store(&p->stop, true);
    gate_move(&p->job);
    for (uint32_t i = 1; i < p->threads; i++)
        pthread_join(p->helpers[i].thread, NULL);
    free(p->helpers);
    free(p);
}

uint32_t pool_threads(const struct pool *p)
{
    return p->threads;
}
