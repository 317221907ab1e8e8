#include "worker/comm/nccl.h"
#include "worker/comm/comm_int.h"
#include "worker/comm/nccl_abi.h"

#include "lib/base/clock.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

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
    nccl_comm handle; /* NULL once it was aborted */
};

/* Guards the list and the handles: an abort comes between two calls of the library, which don't
 * wait, never into one. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
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

int nccl_ready(struct err *e)
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
    while (!add && *p != n)
        p = &(*p)->next;
    if (add)
        n->next = alive;
    *p = add ? n : n->next;
}

void nccl_abort_all(const struct world *w)
{
    pthread_mutex_lock(&lock);
    for (struct nccl *n = alive; n; n = n->next) {
        if (n->comm->w != w || !n->handle)
            continue;
        (void)lib.abort(n->handle);
        n->handle = NULL;
    }
    pthread_mutex_unlock(&lock);
}

/* ---- calls ---- */

/* Begins a call: the handle with the lock held, or NULL without. */
static nccl_comm enter(struct nccl *n)
{
    pthread_mutex_lock(&lock);
    if (n->handle)
        return n->handle;
    pthread_mutex_unlock(&lock);
    return NULL;
}

/* Ends it: the library may still be at what it was asked for, meeting its peers for instance. */
static int leave(struct nccl *n, int r, const char *what, struct err *e)
{
    const struct timespec nap = {0, 20000};
    pthread_mutex_unlock(&lock);
    while (r == NCCL_IN_PROGRESS && !watch_failed(n->comm->w)) {
        nccl_comm handle = enter(n);
        if (!handle)
            break;
        int failed = lib.async_error(handle, &r);
        pthread_mutex_unlock(&lock);
        r = failed ? failed : r;
        if (r == NCCL_IN_PROGRESS)
            nanosleep(&nap, NULL);
    }
    return result(n, r, what, e);
}

/* ---- making one ---- */

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

static int join(struct nccl *n, struct nccl_id id, struct err *e)
{
    struct nccl_config config = {.size = sizeof config,
                                 .magic = NCCL_CONFIG_MAGIC,
                                 .version = NCCL_CONFIG_VERSION,
                                 .cluster = NCCL_CONFIG_NONE};
    pthread_mutex_lock(&lock);
    list(n, true);
    int r =
        lib.init_rank(&n->handle, (int)comm_ranks(n->comm), id, (int)comm_rank(n->comm), &config);
    return leave(n, r, "joining", e);
}

int nccl_new(struct comm *c, struct nccl **out, struct err *e)
{
    struct nccl_id id = {{0}};
    int rc = nccl_ready(e);
    struct nccl *n = xcalloc(1, sizeof *n);
    n->comm = c;
    if (rc == 0 && comm_rank(c) == 0)
        rc = result(n, lib.get_id(&id), "making an id", e);
    rc = agree(c, rc, e);
    rc = rc ? rc : comm_broadcast(c, 0, &id, sizeof id, e);
    if (rc) {
        free(n);
        return rc;
    }
    rc = join(n, id, e);
    if (rc) {
        nccl_free(n);
        return rc;
    }
    *out = n;
    return 0;
}

void nccl_free(struct nccl *n)
{
    if (!n)
        return;
    pthread_mutex_lock(&lock);
    list(n, false);
    nccl_comm handle = n->handle;
    pthread_mutex_unlock(&lock);
    if (handle) /* from a group that failed nobody says goodbye */
        (void)(watch_failed(n->comm->w) ? lib.abort(handle) : lib.destroy(handle));
    free(n);
}

/* ---- collectives ---- */

int nccl_all_reduce(struct nccl *n, uint64_t x, size_t floats, void *stream, struct err *e)
{
    void *p = (void *)(uintptr_t)x;
    nccl_comm handle = enter(n);
    if (!handle)
        return watch_error(n->comm->w, e);
    n->comm->stats.all_reduces++; /* of the same ranks, though by another way */
    n->comm->stats.bytes += floats * sizeof(float);
    int r = lib.all_reduce(p, p, floats, NCCL_FLOAT32, NCCL_SUM, handle, stream);
    return leave(n, r, "all-reduce", e);
}

int nccl_all_gather(struct nccl *n, uint64_t mine, size_t bytes, uint64_t all, void *stream,
                    struct err *e)
{
    nccl_comm handle = enter(n);
    if (!handle)
        return watch_error(n->comm->w, e);
    n->comm->stats.all_gathers++;
    n->comm->stats.bytes += bytes;
    int r = lib.all_gather((const void *)(uintptr_t)mine, (void *)(uintptr_t)all, bytes, NCCL_UINT8,
                           handle, stream);
    return leave(n, r, "all-gather", e);
}

/* Within a group nothing begins before its end. */
static int flow(struct nccl *n, nccl_comm handle, const struct nccl_flow *f, bool all, void *stream)
{
    void *p = (void *)(uintptr_t)f->data;
    struct comm_stats *st = &n->comm->stats;
    st->bytes += f->out ? f->bytes : 0;
    st->sends += f->out && !all;
    st->recvs += !f->out && !all;
    return f->out ? lib.send(p, f->bytes, NCCL_UINT8, (int)f->peer, handle, stream)
                  : lib.recv(p, f->bytes, NCCL_UINT8, (int)f->peer, handle, stream);
}

int nccl_exchange(struct nccl *n, const struct nccl_flow *flows, uint32_t n_flows, bool all,
                  void *stream, struct err *e)
{
    nccl_comm handle = enter(n);
    if (!handle)
        return watch_error(n->comm->w, e);
    n->comm->stats.all_to_alls += all;
    int r = lib.group_start();
    for (uint32_t i = 0; i < n_flows && (r == NCCL_SUCCESS || r == NCCL_IN_PROGRESS); i++)
        if (flows[i].bytes)
            r = flow(n, handle, &flows[i], all, stream);
    int end = lib.group_end();
    return leave(n, r == NCCL_SUCCESS || r == NCCL_IN_PROGRESS ? end : r, "an exchange", e);
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
