/* Shared memory of the ranks of one host: barriers, windows of collectives, pipes. */
#include "worker/comm/comm_int.h"

#include "lib/base/log.h"

#include <errno.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SPINS 32 /* a pause is 40 to 140 cycles: about 2 us at most */

static size_t pipe_bytes(void)
{
    return sizeof(struct pipe_head) + COMM_PIPE_BYTES;
}

/* Windows, then pipes; one after the other for each generation. It is a sparse file: those that
 * nobody comes to use take no memory. */
static size_t pipes_at(uint32_t n)
{
    return (size_t)COMM_SPLITS_MAX * n * 2 * WINDOW_BYTES;
}

static size_t generation_bytes(uint32_t n)
{
    return (pipes_at(n) + (size_t)n * n * pipe_bytes() + 4095) & ~(size_t)4095;
}

static size_t generation_at(uint32_t n, uint32_t generation)
{
    size_t head = (sizeof(struct segment_head) + 4095) & ~(size_t)4095;
    return head + generation * generation_bytes(n);
}

static size_t segment_bytes(uint32_t n)
{
    return generation_at(n, GENERATIONS);
}

int comm_segment_new(uint32_t n, int *out, struct err *e)
{
    if (n < 1 || n > COMM_RANKS_MAX)
        return err_set(e, EINVAL, "%u ranks on a host: 1 to %u", n, COMM_RANKS_MAX);
    int fd = memfd_create("baton-comm", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)segment_bytes(n))) {
        int code = errno;
        close_fdp(&fd);
        return err_set(e, code, "shared memory for %u ranks: %s", n, strerror(code));
    }
    *out = fd;
    return 0;
}

int segment_map(struct segment *s, int fd, uint32_t n, struct err *e)
{
    struct stat st;
    *s = (struct segment){.n = n, .bytes = segment_bytes(n)};
    if (n == 1) {
        s->head = aligned_alloc(64, sizeof *s->head);
        if (!s->head)
            return err_set(e, ENOMEM, "no memory for a rank");
        memset(s->head, 0, sizeof *s->head);
        return 0;
    }
    /* Who makes it need not know its size: the ranks agree on that. */
    if (fd >= 0 && fstat(fd, &st) == 0 && (uint64_t)st.st_size < s->bytes &&
        ftruncate(fd, (off_t)s->bytes))
        return err_set(e, errno, "shared memory for %u ranks: %s", n, strerror(errno));
    if (fd < 0 || fstat(fd, &st) || (uint64_t)st.st_size < s->bytes)
        return err_set(e, EINVAL, "the ranks of this host have no shared memory");
    void *p = mmap(NULL, s->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (p == MAP_FAILED)
        return err_set(e, errno, "can't map the ranks' shared memory: %s", strerror(errno));
    s->base = p;
    s->head = p;
    return 0;
}

void segment_unmap(struct segment *s)
{
    if (s->base)
        munmap(s->base, s->bytes);
    else
        free(s->head);
    *s = (struct segment){0};
}

void segment_forget(struct segment *s)
{
    size_t from = generation_at(s->n, 0);
    if (s->base && madvise(s->base + from, generation_at(s->n, s->now) - from, MADV_REMOVE))
        log_warn("memory of a masked rank is kept", LS("why", strerror(errno)));
}

void *segment_window(const struct comm *c, uint32_t member, uint32_t turn)
{
    const struct segment *s = &c->w->seg;
    uint32_t place = c->ranks[member] - c->w->host0;
    return s->base + generation_at(s->n, s->now) +
           (((size_t)c->index * s->n + place) * 2 + turn % 2) * WINDOW_BYTES;
}

/* ---- waiting ---- */

int segment_stopped(const struct world *w, struct err *e)
{
    if (watch_failed(w))
        return watch_error(w, e);
    if (atomic_load_explicit(&w->seg.head->generation, memory_order_acquire) == w->seg.now)
        return 0;
    return err_set(e, ECANCELED, "a rank was masked meanwhile");
}

static long futex(_Atomic uint32_t *word, int op, uint32_t value, const struct timespec *t)
{
    return syscall(SYS_futex, word, op, value, t, NULL, 0); /* shared between processes */
}

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static void gate_move(struct gate *g)
{
    atomic_fetch_add(&g->value, 1);
    if (atomic_load(&g->sleepers))
        futex(&g->value, FUTEX_WAKE, INT32_MAX, NULL);
}

static int gate_wait(struct world *w, struct gate *g, uint32_t seen, struct err *e)
{
    const struct timespec limit = {.tv_nsec = WAIT_CHECK_MS * 1000000l};
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load_explicit(&g->value, memory_order_acquire) != seen)
            return 0;
        relax();
    }
    int rc = 0;
    atomic_fetch_add(&g->sleepers, 1);
    while (atomic_load(&g->value) == seen && !rc) {
        rc = segment_stopped(w, e);
        if (!rc)
            futex(&g->value, FUTEX_WAIT, seen, &limit);
    }
    atomic_fetch_sub(&g->sleepers, 1);
    return rc;
}

int gate_pass(struct comm *c, struct err *e)
{
    const struct segment *s = &c->w->seg;
    int rc = segment_stopped(c->w, e);
    if (rc || c->live < 2)
        return rc;
    struct gate *g = &s->head->generations[s->now].gates[c->index][c->gate];
    uint32_t seen = atomic_load(&g->value);
    if (atomic_fetch_add(&g->arrived, 1) + 1 < c->live)
        return gate_wait(c->w, g, seen, e);
    atomic_store(&g->arrived, 0);
    gate_move(g);
    return 0;
}

void segment_wake_all(struct world *w)
{
    uint32_t latest = atomic_load(&w->seg.head->generation);
    for (uint32_t g = 0; g <= latest && g < GENERATIONS; g++) {
        struct generation *x = &w->seg.head->generations[g];
        for (uint32_t i = 0; i < COMM_SPLITS_MAX; i++)
            for (uint32_t k = 0; k < w->seg.n; k++)
                futex(&x->gates[i][k].value, FUTEX_WAKE, INT32_MAX, NULL);
        for (uint32_t k = 0; k < w->seg.n; k++)
            futex(&x->bells[k].value, FUTEX_WAKE, INT32_MAX, NULL);
    }
}

/* ---- pipes ---- */

static struct pipe_head *pipe_of(const struct world *w, uint32_t from, uint32_t to)
{
    const struct segment *s = &w->seg;
    size_t i = (size_t)(from - w->host0) * s->n + (to - w->host0);
    return (struct pipe_head *)(void *)(s->base + generation_at(s->n, s->now) + pipes_at(s->n) +
                                        i * pipe_bytes());
}

/* Copies between the ring at `count` and memory; the ring may wrap. */
static void ring_copy(struct pipe_head *p, uint32_t count, uint8_t *data, size_t n, bool out)
{
    uint8_t *ring = (uint8_t *)(p + 1);
    size_t at = count % COMM_PIPE_BYTES;
    size_t first = n < COMM_PIPE_BYTES - at ? n : COMM_PIPE_BYTES - at;
    if (out) {
        memcpy(ring + at, data, first);
        memcpy(ring, data + first, n - first);
    } else {
        memcpy(data, ring + at, first);
        memcpy(data + first, ring, n - first);
    }
}

static struct gate *bell_of(const struct world *w, uint32_t rank)
{
    return &w->seg.head->generations[w->seg.now].bells[rank - w->host0];
}

static size_t pipe_move(struct world *w, struct comm_flow *f)
{
    uint32_t me = w->cfg.rank;
    struct pipe_head *p = f->out ? pipe_of(w, me, f->peer) : pipe_of(w, f->peer, me);
    uint32_t written = atomic_load(&p->written), taken = atomic_load(&p->taken);
    size_t n = f->out ? COMM_PIPE_BYTES - (written - taken) : written - taken;
    n = n < f->bytes ? n : f->bytes;
    if (!n)
        return 0;
    ring_copy(p, f->out ? written : taken, f->data, n, f->out);
    atomic_fetch_add(f->out ? &p->written : &p->taken, (uint32_t)n);
    gate_move(bell_of(w, f->peer));
    f->data = (uint8_t *)f->data + n;
    f->bytes -= n;
    return n;
}

void pipes_try(struct world *w, struct comm_flow *f, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (f[i].bytes && world_is_here(w, f[i].peer))
            (void)pipe_move(w, &f[i]);
}

int pipes_run(struct world *w, struct comm_flow *f, uint32_t n, struct err *e)
{
    struct gate *bell = bell_of(w, w->cfg.rank);
    for (;;) {
        uint32_t seen = atomic_load(&bell->value);
        bool moved = false, left = false;
        for (uint32_t i = 0; i < n; i++) {
            if (!f[i].bytes || !world_is_here(w, f[i].peer))
                continue;
            moved |= pipe_move(w, &f[i]) > 0;
            left |= f[i].bytes > 0;
        }
        if (!left)
            return 0;
        int rc = segment_stopped(w, e);
        rc = rc || moved ? rc : gate_wait(w, bell, seen, e);
        if (rc)
            return rc;
    }
}
