#include "worker/model/pool.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SPINS 32 /* a pause is 40 to 140 cycles: about 2 us at most */

/* A counter that threads wait on until it moves. */
struct gate {
    _Alignas(64) _Atomic uint32_t value;
    _Atomic uint32_t sleepers;
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

static void gate_wait(struct gate *g, uint32_t seen)
{
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load_explicit(&g->value, memory_order_acquire) != seen)
            return;
        relax();
    }
    atomic_fetch_add(&g->sleepers, 1);
    while (atomic_load(&g->value) == seen)
        futex(&g->value, FUTEX_WAIT, seen);
    atomic_fetch_sub(&g->sleepers, 1);
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
