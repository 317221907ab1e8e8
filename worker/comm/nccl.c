#include "worker/comm/nccl.h"
#include "worker/comm/comm_int.h"
#include "worker/comm/nccl_abi.h"

#include "lib/base/clock.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct {
    void *library;
    char why[256]; /* there is none */
#define DECLARE(name, symbol, args) int(*name) args;
    NCCL_FUNCTIONS(DECLARE)
#undef DECLARE
} lib;

struct nccl {
    struct nccl *next;
    struct comm *comm;
    _Atomic(nccl_comm) handle; /* NULL once it was aborted */
    struct nccl_stats stats;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the list */
static struct nccl *alive;

static void load_library(void)
{
    const char *named = getenv("BATON_NCCL");
    const char *file = named && *named ? named : "libnccl.so.2";
    lib.library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (!lib.library) {
        snprintf(lib.why, sizeof lib.why,
                 "several GPUs need NCCL, which this machine does not have (%.100s was not found)",
                 file);
        return;
    }
#define LOAD(name, symbol, args)                                                                   \
    *(void **)(void *)&lib.name = dlsym(lib.library, #symbol);                                     \
    if (!lib.name)                                                                                 \
        snprintf(lib.why, sizeof lib.why, "%.100s is too old: it has no %s", file, #symbol);
    NCCL_FUNCTIONS(LOAD)
#undef LOAD
}

static int ready(struct err *e)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, load_library);
    return lib.why[0] ? err_set(e, ENOTSUP, "%s", lib.why) : 0;
}

static int result(struct nccl *n, int r, const char *what, struct err *e)
{
    if (watch_failed(n->comm->w))
        return watch_error(n->comm->w, e);
    return r == NCCL_SUCCESS ? 0 : err_set(e, EIO, "NCCL: %s failed with result %d", what, r);
}

static void list(struct nccl *n, bool add)
{
    struct nccl **p = &alive;
    pthread_mutex_lock(&lock);
    while (!add && *p != n)
        p = &(*p)->next;
    if (add)
        n->next = alive;
    *p = add ? n : n->next;
    pthread_mutex_unlock(&lock);
}

void nccl_abort_all(const struct world *w)
{
    pthread_mutex_lock(&lock);
    for (struct nccl *n = alive; n; n = n->next) {
        nccl_comm handle = n->comm->w == w ? atomic_exchange(&n->handle, NULL) : NULL;
        if (handle)
            (void)lib.abort(handle);
    }
    pthread_mutex_unlock(&lock);
}

/* All ranks or none: one that lacks the library would leave the others waiting. */
static int agree(struct comm *c, int rc, struct err *e)
{
    int32_t mine = rc, all[COMM_RANKS_MAX];
    int failed = comm_all_gather(c, &mine, sizeof mine, all, e);
    for (uint32_t r = 0; failed == 0 && rc == 0 && r < comm_ranks(c); r++)
        if (all[r])
            rc = err_set(e, ENOTSUP, "rank %u has no NCCL", r);
    return failed ? failed : rc;
}

int nccl_new(struct comm *c, struct nccl **out, struct err *e)
{
    struct nccl_id id = {{0}};
    nccl_comm handle = NULL;
    int rc = ready(e);
    struct nccl *n = xcalloc(1, sizeof *n);
    n->comm = c;
    if (rc == 0 && comm_rank(c) == 0)
        rc = result(n, lib.get_id(&id), "making an id", e);
    rc = agree(c, rc, e);
    rc = rc ? rc : comm_broadcast(c, 0, &id, sizeof id, e);
    if (rc == 0)
        rc = result(n, lib.init_rank(&handle, (int)comm_ranks(c), id, (int)comm_rank(c)), "joining",
                    e);
    if (rc) {
        free(n);
        return rc;
    }
    n->handle = handle;
    list(n, true);
    *out = n;
    return 0;
}

void nccl_free(struct nccl *n)
{
    if (!n)
        return;
    list(n, false);
    nccl_comm handle = atomic_exchange(&n->handle, NULL);
    if (handle)
        (void)lib.destroy(handle);
    free(n);
}

int nccl_all_reduce(struct nccl *n, uint64_t x, size_t floats, void *stream, struct err *e)
{
    void *p = (void *)(uintptr_t)x;
    nccl_comm handle = n->handle;
    if (!handle)
        return watch_error(n->comm->w, e);
    n->stats.all_reduces++;
    n->stats.bytes += floats * sizeof(float);
    n->comm->stats.all_reduces++; /* of the same ranks, though by another way */
    n->comm->stats.bytes += floats * sizeof(float);
    return result(n, lib.all_reduce(p, p, floats, NCCL_FLOAT32, NCCL_SUM, handle, stream),
                  "all-reduce", e);
}

int nccl_all_gather(struct nccl *n, uint64_t mine, size_t bytes, uint64_t all, void *stream,
                    struct err *e)
{
    nccl_comm handle = n->handle;
    if (!handle)
        return watch_error(n->comm->w, e);
    n->stats.all_gathers++;
    n->stats.bytes += bytes;
    return result(n,
                  lib.all_gather((const void *)(uintptr_t)mine, (void *)(uintptr_t)all, bytes,
                                 NCCL_UINT8, handle, stream),
                  "all-gather", e);
}

static int flow(struct nccl *n, nccl_comm handle, const struct nccl_flow *f, void *stream)
{
    void *p = (void *)(uintptr_t)f->data;
    n->stats.bytes += f->bytes;
    *(f->out ? &n->stats.sends : &n->stats.recvs) += 1;
    return f->out ? lib.send(p, f->bytes, NCCL_UINT8, (int)f->peer, handle, stream)
                  : lib.recv(p, f->bytes, NCCL_UINT8, (int)f->peer, handle, stream);
}

int nccl_exchange(struct nccl *n, const struct nccl_flow *flows, uint32_t n_flows, void *stream,
                  struct err *e)
{
    nccl_comm handle = n->handle;
    if (!handle)
        return watch_error(n->comm->w, e);
    int r = lib.group_start();
    for (uint32_t i = 0; i < n_flows && r == NCCL_SUCCESS; i++)
        if (flows[i].bytes)
            r = flow(n, handle, &flows[i], stream);
    int end = lib.group_end();
    return result(n, r ? r : end, "an exchange", e);
}

void nccl_stats(const struct nccl *n, struct nccl_stats *out)
{
    *out = n->stats;
}

void nccl_waiting(struct nccl *n, bool on)
{
    struct world *w = n->comm->w;
    atomic_store_explicit(&w->since_ns, clock_mono_ns(), memory_order_relaxed);
    if (on)
        atomic_fetch_add_explicit(&w->seq, 1, memory_order_relaxed);
    atomic_store_explicit(&w->op, on ? OP_ALL_REDUCE : OP_NONE, memory_order_release);
}

int nccl_failed(struct nccl *n, struct err *e)
{
    return watch_failed(n->comm->w) ? watch_error(n->comm->w, e) : 0;
}
