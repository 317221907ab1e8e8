#include "worker/team.h"

#include "lib/base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- joining ---- */

static void group_failed(void *ctx, uint32_t rank, const char *why)
{
    (void)ctx;
    (void)rank;
    fprintf(stderr, "baton-worker: the group has failed: %s\n", why);
    _exit(1);
}

int team_join(struct team *t, const struct launcher_start *s, const struct options *o,
              const char *secret, struct err *e)
{
    const char *hosts[MODEL_RANKS_MAX];
    *t = (struct team){.layout = options_layout(o), .rank = s->rank, .ranks = s->ranks};
    t->per_pod = s->ranks_per_pod;
    if (t->ranks == 1)
        return 0;
    if (t->ranks != model_layout_ranks(&t->layout) || !t->per_pod || t->ranks % t->per_pod ||
        s->n_peers < t->ranks / t->per_pod)
        return err_set(e, EINVAL, "%u ranks, %u a pod, %u pods: not this layout", t->ranks,
                       t->per_pod, s->n_peers);
    for (uint32_t i = 0; i < t->ranks / t->per_pod; i++)
        hosts[i] = s->peers[i];
    struct comm_config c = {.rank = t->rank,
                            .ranks = t->ranks,
                            .ranks_per_host = t->per_pod,
                            .hosts = hosts,
                            .port = (uint16_t)o->comm_port,
                            .listen_fd = -1,
                            .segment_fd = o->comm_fd ? (int)o->comm_fd : -1,
                            .session = s->epoch + 1,
                            .secret = secret,
                            .secret_len = strlen(secret),
                            .stuck_ms = (uint32_t)o->stuck_ms,
                            .failed = group_failed};
    int rc = comm_join(&c, &t->world, e);
    if (!rc)
        log_info("joined the group", LI("rank", t->rank), LI("ranks", t->ranks),
                 LI("tensor", t->layout.tensor), LI("pipeline", t->layout.pipeline),
                 LI("epoch", s->epoch));
    return rc;
}

int team_agree(struct team *t, uint32_t *n_blocks, struct err *e)
{
    uint32_t all[MODEL_RANKS_MAX];
    if (t->ranks == 1)
        return 0;
    int rc = comm_all_gather(t->world, n_blocks, sizeof *n_blocks, all, e);
    for (uint32_t r = 0; !rc && r < t->ranks; r++)
        *n_blocks = all[r] < *n_blocks ? all[r] : *n_blocks;
    return rc;
}

/* ---- pools ---- */

struct card { /* what a rank tells of its pool */
    int64_t pid;
    int32_t fd;
    uint32_t reserved;
    uint64_t len, fd_off;
};

/* The pool of a process of this pod, by its descriptor. */
static int map_peer(const struct card *c, struct xfer_pool *out)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%lld/fd/%d", (long long)c->pid, c->fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    void *p = fd < 0 ? MAP_FAILED
                     : mmap(NULL, c->len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)c->fd_off);
    if (p == MAP_FAILED) {
        int code = errno;
        close_fdp(&fd);
        return -code;
    }
    *out = (struct xfer_pool){.base = p, .len = c->len, .fd = fd, .fd_off = c->fd_off};
    return 0;
}

/* A copy takes memory only where blocks pass through it. */
static int make_copy(struct xfer_pool *out, uint64_t len, struct err *e)
{
    int fd = memfd_create("baton-kv-copy", MFD_CLOEXEC);
    void *p = MAP_FAILED;
    if (fd >= 0 && ftruncate(fd, (off_t)len) == 0)
        p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) {
        int code = errno;
        close_fdp(&fd);
        return err_set(e, code, "no copy of another rank's KV: %s", strerror(code));
    }
    *out = (struct xfer_pool){.base = p, .len = len, .fd = fd};
    return 0;
}

static int see_rank(struct team *t, uint32_t r, const struct card *card, struct err *e)
{
    int rc = -ENOENT;
    if (r / t->per_pod == 0)
        rc = map_peer(card, &t->pools[r]);
    if (rc && r / t->per_pod == 0)
        log_warn("another rank's KV pool can't be mapped; its blocks are copied", LI("rank", r),
                 LS("why", strerror(-rc)));
    t->apart[r] = rc != 0;
    if (!rc)
        return 0;
    rc = make_copy(&t->pools[r], card->len, e);
    t->copies[r] = t->pools[r].base;
    return rc;
}

static int add_slice(struct team *t, uint32_t r, const struct xfer_pool *pool,
                     const struct model_config *c, const struct budget *b, struct err *e)
{
    struct model_shard s = model_layout_shard(&t->layout, r);
    struct model_part p;
    struct model_kv kv;
    uint32_t data = r / (t->layout.tensor * t->layout.pipeline);
    model_part_of(c, &s, &p);
    int rc = model_kv_part(&kv, c, &p, b->dtype, b->kv.block_tokens, e);
    if (rc || !kv.block_bytes)
        return rc;
    t->slices[t->n_slices++] = (struct xfer_slice){.pool = *pool,
                                                   .block_bytes = kv.block_bytes,
                                                   .layer0 = p.layer0,
                                                   .layers = p.layer1 - p.layer0,
                                                   .head0 = p.kv0,
                                                   .heads = p.kv1 - p.kv0,
                                                   .block0 = data * b->n_blocks,
                                                   .blocks = b->n_blocks};
    return 0;
}

int team_share(struct team *t, const struct xfer_pool *mine, const struct model_config *c,
               const struct budget *b, uint32_t n_blocks, struct err *e)
{
    struct card card = {getpid(), mine->fd, n_blocks, mine->len, mine->fd_off};
    struct card all[MODEL_RANKS_MAX];
    if (t->ranks == 1)
        return 0;
    int rc = comm_all_gather(t->world, &card, sizeof card, all, e);
    for (uint32_t r = 0; !rc && t->rank == 0 && r < t->ranks; r++) {
        if (r > 0)
            rc = see_rank(t, r, &all[r], e);
        rc = rc ? rc : add_slice(t, r, r ? &t->pools[r] : mine, c, b, e);
    }
    /* Until then every rank keeps its process, and with it /proc, as it is. */
    return rc ? rc : comm_broadcast(t->world, 0, t->apart, sizeof t->apart, e);
}

void team_leave(struct team *t)
{
    for (uint32_t r = 0; r < MODEL_RANKS_MAX; r++)
        if (t->pools[r].base)
            xfer_pool_free(&t->pools[r]);
    comm_leave(t->world);
    t->world = NULL;
}

uint32_t team_threads(const struct team *t, const struct options *o)
{
    uint32_t n = options_threads(o) / (t->per_pod ? t->per_pod : 1);
    return n ? n : 1;
}

/* ---- following ---- */

struct follower {
    struct xfer_pool *pool;
    void *weights;
    size_t weights_bytes;
};

static int follower_sleep(void *ctx, bool asleep, struct err *e)
{
    struct follower *f = ctx;
    int rc = asleep ? xfer_pool_release(f->pool, e) : xfer_pool_refill(f->pool, e);
    if (!rc && asleep && f->weights)
        (void)madvise(f->weights, f->weights_bytes, MADV_DONTNEED);
    return rc;
}

int team_follow(struct team *t, const struct model *m, struct xfer_pool *pool,
                const struct group_device *device, const struct options *o, const struct budget *b,
                void *weights, size_t weights_bytes, struct err *e)
{
    struct follower f = {pool, weights, weights_bytes};
    struct group *g;
    struct group_config c = {.model = m,
                             .layout = t->layout,
                             .rank = t->rank,
                             .world = t->world,
                             .pool = pool->base,
                             .device = device,
                             .sleep = follower_sleep,
                             .ctx = &f,
                             .work = {.threads = team_threads(t, o),
                                      .max_rows = (uint32_t)o->max_rows,
                                      .block_tokens = b->kv.block_tokens,
                                      .kv_dtype = b->dtype,
                                      .pool_blocks = b->n_blocks}};
    memcpy(c.apart, t->apart, sizeof c.apart);
    int rc = options_dispatch(o, &c.work.group, e);
    rc = rc ? rc : options_halves(o, &c.halves, e);
    rc = rc ? rc : group_new(&c, &g, e);
    if (rc) {
        comm_fail(t->world, e->msg);
        return rc;
    }
    rc = group_follow(g, e);
    group_free(g);
    return rc;
}
