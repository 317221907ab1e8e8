/* Collectives. Data of ranks of this host goes through windows of the segment, of which each
 * communicator has two a rank: a part is written to one half while the other may still be read; a
 * barrier lies between. Data of other hosts goes over TCP into `stage`. Bigger data goes a window
 * at a time.
 *
 * A masked member gives nothing: its windows are those of a generation that it never wrote to,
 * which are zero; nothing flows to it or from it. */
#include "worker/comm/comm_int.h"

#include "lib/base/clock.h"

#include <errno.h>
#include <stdlib.h>

/* ---- what the watch sees, and counts ---- */

static uint64_t enter(struct comm *c, enum comm_op op)
{
    uint64_t now = clock_mono_ns();
    atomic_store_explicit(&c->w->since_ns, now, memory_order_relaxed);
    atomic_fetch_add_explicit(&c->w->seq, 1, memory_order_relaxed);
    atomic_store_explicit(&c->w->op, op, memory_order_release);
    return now;
}

static int leave(struct comm *c, uint64_t from, size_t bytes, int rc, struct err *e)
{
    uint64_t now = clock_mono_ns();
    c->stats.bytes += bytes;
    c->stats.wait_ns += now - from;
    atomic_store_explicit(&c->w->since_ns, now, memory_order_relaxed);
    atomic_store_explicit(&c->w->op, OP_NONE, memory_order_release);
    if (rc == -EIO) /* a link broke: the watch knows better why, soon */
        return watch_error(c->w, e);
    return rc;
}

/* ---- parts ---- */

static bool here(const struct comm *c, uint32_t member)
{
    return world_is_here(c->w, c->ranks[member]);
}

static uint8_t *stage(const struct comm *c, uint32_t member)
{
    return (uint8_t *)c->stage + (size_t)member * WINDOW_BYTES;
}

static void *window(const struct comm *c, uint32_t member)
{
    return segment_window(c, member, c->turn);
}

struct range {
    size_t at, n;
};

/* What member i adds up of n floats, in lines of 16. */
static struct range slice(const struct comm *c, size_t n, uint32_t i)
{
    size_t lines = (n + 15) / 16, a = lines * i / c->n * 16, b = lines * (i + 1) / c->n * 16;
    a = a < n ? a : n;
    b = b < n ? b : n;
    return (struct range){a, b - a};
}

/* ---- between two ranks ---- */

/* What a begun all-to-all has left to move: before anything else uses the same ways. */
static int land(struct comm *c, struct err *e)
{
    struct world *w = c->w;
    uint32_t n = w->n_flight;
    w->n_flight = 0;
    int rc = n ? mesh_run(w, w->flight, n, e) : 0;
    return rc || !n || w->seg.n < 2 ? rc : pipes_run(w, w->flight, n, e);
}

static int over_mesh(struct comm *c, struct comm_flow *f, uint32_t n, struct err *e)
{
    int rc = land(c, e);
    return rc ? rc : mesh_run(c->w, f, n, e);
}

/* ---- all-reduce ---- */

/* sum = a + b; sum may be a. The same additions whatever the width of registers. */
static void add_plain(float *sum, const float *a, const float *restrict b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        sum[i] = a[i] + b[i];
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static void add_avx2(float *sum, const float *a,
                                                     const float *restrict b, size_t n)
{
#pragma GCC ivdep
    for (size_t i = 0; i < n; i++)
        sum[i] = a[i] + b[i];
}
#endif

static void add(float *sum, const float *a, const float *b, size_t n)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) {
        add_avx2(sum, a, b, n);
        return;
    }
#endif
    add_plain(sum, a, b, n);
}

static const float *part(struct comm *c, uint32_t member, struct range r)
{
    bool whole = member == c->rank && c->local == 1; /* kept as it was, not only the slice */
    if (here(c, member) && !whole)
        return (const float *)window(c, member) + r.at;
    return (const float *)(const void *)stage(c, member) + (whole ? r.at : 0);
}

/* sum = part 0 + part 1 + … of [r.at, r.at + r.n). Parts of this host lie in windows, those of
 * others at the start of their stage; `sum` is this rank's own. */
static void add_up(struct comm *c, float *sum, struct range r)
{
    uint32_t next = 2;
    if (c->rank == 0)
        add(sum, sum, part(c, 1, r), r.n);
    else if (c->rank == 1)
        add(sum, sum, part(c, 0, r), r.n);
    else
        add(sum, part(c, 0, r), part(c, 1, r), r.n);
    for (; next < c->n; next++)
        add(sum, sum, part(c, next, r), r.n);
}

/* Sends `mine` to every rank of another host and takes theirs to their stages. */
static int swap_all(struct comm *c, void *mine, size_t bytes, struct err *e)
{
    struct comm_flow f[2 * COMM_RANKS_MAX];
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->n; i++) {
        if (here(c, i))
            continue;
        f[n++] = (struct comm_flow){c->ranks[i], true, mine, bytes};
        f[n++] = (struct comm_flow){c->ranks[i], false, stage(c, i), bytes};
    }
    return n ? over_mesh(c, f, n, e) : 0;
}

/* This rank's part, where others of its host read it, and where it stays while x becomes the sum. A
 * rank alone on its host has no window. */
static void keep_own(struct comm *c, const float *x, size_t n)
{
    memcpy(c->local > 1 ? window(c, c->rank) : (void *)stage(c, c->rank), x, n * sizeof *x);
}

/* Everybody adds up everything. */
static int reduce_one_shot(struct comm *c, float *x, size_t n, struct err *e)
{
    struct range all = {0, n};
    keep_own(c, x, n);
    int rc = swap_all(c, x, n * sizeof *x, e);
    rc = rc ? rc : gate_pass(c, e);
    if (rc)
        return rc;
    add_up(c, x, all);
    return 0;
}

/* Slices of x to the members of other hosts that add them up, theirs of my slice to stages; then
 * (back) my sum to them, their sums to x. */
static int swap_slices(struct comm *c, float *x, size_t n, float *sum, bool back, struct err *e)
{
    struct comm_flow f[2 * COMM_RANKS_MAX];
    struct range mine = slice(c, n, c->rank);
    uint32_t k = 0;
    for (uint32_t i = 0; i < c->n; i++) {
        struct range r = slice(c, n, i);
        if (here(c, i))
            continue;
        f[k++] = back ? (struct comm_flow){c->ranks[i], true, sum, mine.n * sizeof *x}
                      : (struct comm_flow){c->ranks[i], true, x + r.at, r.n * sizeof *x};
        f[k++] = back ? (struct comm_flow){c->ranks[i], false, x + r.at, r.n * sizeof *x}
                      : (struct comm_flow){c->ranks[i], false, stage(c, i), mine.n * sizeof *x};
    }
    return k ? over_mesh(c, f, k, e) : 0;
}

/* Everybody adds up a slice, in its own window, and takes the others'. */
static int reduce_two_shot(struct comm *c, float *x, size_t n, struct err *e)
{
    struct range r = slice(c, n, c->rank);
    float *sum = x + r.at;
    keep_own(c, x, n);
    int rc = swap_slices(c, x, n, sum, false, e);
    rc = rc ? rc : gate_pass(c, e);
    if (rc)
        return rc;
    add_up(c, sum, r);
    if (c->local > 1)
        memcpy((float *)window(c, c->rank) + r.at, sum, r.n * sizeof *x);
    rc = swap_slices(c, x, n, sum, true, e);
    rc = rc ? rc : gate_pass(c, e);
    for (uint32_t i = 0; !rc && i < c->n; i++) {
        struct range o = slice(c, n, i);
        if (i != c->rank && here(c, i))
            memcpy(x + o.at, (const float *)window(c, i) + o.at, o.n * sizeof *x);
    }
    return rc;
}

int comm_all_reduce(struct comm *c, float *x, size_t n, struct err *e)
{
    const size_t most = WINDOW_BYTES / sizeof *x;
    uint64_t from = enter(c, OP_ALL_REDUCE);
    int rc = 0;
    c->stats.all_reduces++;
    for (size_t at = 0; c->n > 1 && at < n && !rc; at += most, c->turn++) {
        size_t k = n - at < most ? n - at : most;
        bool two = c->n > 2 && k * sizeof *x > ONE_SHOT_MAX && c->live == c->local;
        rc = two ? reduce_two_shot(c, x + at, k, e) : reduce_one_shot(c, x + at, k, e);
    }
    return leave(c, from, n * sizeof *x, rc, e);
}

/* ---- the others ---- */

static int gather_part(struct comm *c, const uint8_t *mine, size_t bytes, uint8_t *all,
                       size_t stride, struct err *e)
{
    if (c->local > 1)
        memcpy(window(c, c->rank), mine, bytes);
    int rc = swap_all(c, (void *)(uintptr_t)mine, bytes, e);
    rc = rc ? rc : gate_pass(c, e);
    for (uint32_t i = 0; !rc && i < c->n; i++) {
        const void *part = i == c->rank ? (const void *)mine
                           : here(c, i) ? window(c, i)
                                        : (const void *)stage(c, i);
        memmove(all + i * stride, part, bytes);
    }
    return rc;
}

int comm_all_gather(struct comm *c, const void *mine, size_t bytes, void *all, struct err *e)
{
    uint64_t from = enter(c, OP_ALL_GATHER);
    int rc = 0;
    c->stats.all_gathers++;
    for (size_t at = 0; at < bytes && !rc; at += WINDOW_BYTES, c->turn++) {
        size_t k = bytes - at < WINDOW_BYTES ? bytes - at : WINDOW_BYTES;
        rc = gather_part(c, (const uint8_t *)mine + at, k, (uint8_t *)all + at, bytes, e);
    }
    return leave(c, from, bytes, rc, e);
}

static int broadcast_part(struct comm *c, uint32_t root, uint8_t *data, size_t bytes, struct err *e)
{
    struct comm_flow f[COMM_RANKS_MAX];
    bool mine = c->rank == root;
    uint32_t n = 0;
    if (mine && c->local > 1)
        memcpy(window(c, root), data, bytes);
    for (uint32_t i = 0; mine && i < c->n; i++)
        if (!here(c, i))
            f[n++] = (struct comm_flow){c->ranks[i], true, data, bytes};
    if (!mine && !here(c, root))
        f[n++] = (struct comm_flow){c->ranks[root], false, data, bytes};
    int rc = n ? over_mesh(c, f, n, e) : 0;
    rc = rc ? rc : gate_pass(c, e);
    if (!rc && !mine && here(c, root))
        memcpy(data, window(c, root), bytes);
    return rc;
}

int comm_broadcast(struct comm *c, uint32_t root, void *data, size_t bytes, struct err *e)
{
    uint64_t from = enter(c, OP_BROADCAST);
    int rc = 0;
    ASSERT(root < c->n);
    c->stats.broadcasts++;
    for (size_t at = 0; c->n > 1 && at < bytes && !rc; at += WINDOW_BYTES, c->turn++) {
        size_t k = bytes - at < WINDOW_BYTES ? bytes - at : WINDOW_BYTES;
        rc = broadcast_part(c, root, (uint8_t *)data + at, k, e);
    }
    return leave(c, from, bytes, rc, e);
}

int comm_barrier(struct comm *c, struct err *e)
{
    uint64_t from = enter(c, OP_BARRIER);
    uint8_t nothing = 0;
    c->stats.barriers++;
    /* The first pass brings this host together before it speaks, the second after it was answered:
     * members of a host leave only when all of them have heard from every other host. */
    int rc = gate_pass(c, e);
    rc = rc ? rc : swap_all(c, &nothing, 1, e);
    if (!rc && c->n > c->local)
        rc = gate_pass(c, e);
    return leave(c, from, 0, rc, e);
}

static int run(struct comm *c, struct comm_flow *f, uint32_t n, struct err *e)
{
    bool pipes = false, mesh = false;
    for (uint32_t i = 0; i < n; i++) {
        ASSERT(f[i].peer < c->n && f[i].peer != c->rank);
        f[i].peer = c->ranks[f[i].peer];
        if (world_is_lost(c->w, f[i].peer))
            f[i].bytes = 0;
        pipes |= world_is_here(c->w, f[i].peer);
        mesh |= !world_is_here(c->w, f[i].peer);
    }
    int rc = segment_stopped(c->w, e);
    rc = rc ? rc : land(c, e);
    rc = rc || !mesh ? rc : over_mesh(c, f, n, e);
    return rc || !pipes ? rc : pipes_run(c->w, f, n, e);
}

int comm_exchange(struct comm *c, struct comm_flow *f, uint32_t n, struct err *e)
{
    uint64_t from = enter(c, OP_EXCHANGE);
    size_t bytes = 0;
    for (uint32_t i = 0; i < n; i++)
        bytes += f[i].out ? f[i].bytes : 0;
    return leave(c, from, bytes, run(c, f, n, e), e);
}

int comm_send(struct comm *c, uint32_t to, const void *data, size_t bytes, struct err *e)
{
    uint64_t from = enter(c, OP_SEND);
    struct comm_flow f = {to, true, (void *)(uintptr_t)data, bytes};
    c->stats.sends++;
    return leave(c, from, bytes, run(c, &f, 1, e), e);
}

int comm_recv(struct comm *c, uint32_t peer, void *data, size_t bytes, struct err *e)
{
    uint64_t from = enter(c, OP_RECV);
    struct comm_flow f = {peer, false, data, bytes};
    c->stats.recvs++;
    return leave(c, from, 0, run(c, &f, 1, e), e);
}

/* Flows of an all-to-all between the other ranks; this one's own piece is copied. */
static uint32_t all_to_all(struct comm *c, const void *out, const size_t *out_bytes, void *in,
                           const size_t *in_bytes, struct comm_flow f[2 * COMM_RANKS_MAX])
{
    const uint8_t *from = out;
    uint8_t *to = in;
    uint32_t n = 0;
    c->stats.all_to_alls++;
    for (uint32_t i = 0; i < c->n; i++) {
        if (i == c->rank) {
            ASSERT(out_bytes[i] == in_bytes[i]);
            memcpy(to, from, out_bytes[i]);
        } else if (!world_is_lost(c->w, c->ranks[i])) {
            f[n++] = (struct comm_flow){i, true, (void *)(uintptr_t)from, out_bytes[i]};
            f[n++] = (struct comm_flow){i, false, to, in_bytes[i]};
        }
        from += out_bytes[i];
        to += in_bytes[i];
    }
    return n;
}

int comm_all_to_all(struct comm *c, const void *out, const size_t *out_bytes, void *in,
                    const size_t *in_bytes, struct err *e)
{
    struct comm_flow f[2 * COMM_RANKS_MAX];
    uint32_t n = all_to_all(c, out, out_bytes, in, in_bytes, f);
    return n ? comm_exchange(c, f, n, e) : 0;
}

int comm_all_to_all_begin(struct comm *c, const void *out, const size_t *out_bytes, void *in,
                          const size_t *in_bytes, struct err *e)
{
    struct world *w = c->w;
    uint64_t from = enter(c, OP_EXCHANGE);
    size_t bytes = 0;
    int rc = segment_stopped(w, e);
    rc = rc ? rc : land(c, e);
    if (rc)
        return leave(c, from, 0, rc, e);
    uint32_t n = all_to_all(c, out, out_bytes, in, in_bytes, w->flight);
    for (uint32_t i = 0; i < n; i++) {
        w->flight[i].peer = c->ranks[w->flight[i].peer];
        bytes += w->flight[i].out ? w->flight[i].bytes : 0;
    }
    w->n_flight = n;
    rc = mesh_try(w, w->flight, n, e);
    if (!rc && w->seg.n > 1)
        pipes_try(w, w->flight, n);
    return leave(c, from, bytes, rc, e);
}

int comm_all_to_all_end(struct comm *c, struct err *e)
{
    uint64_t from = enter(c, OP_EXCHANGE);
    return leave(c, from, 0, land(c, e), e);
}
