#include "worker/backend.h"

#include "lib/base/log.h"
#include "worker/comm/nccl.h"
#include "worker/gpu/gpu_model.h"

#include <errno.h>
#include <stdlib.h>

#define RESERVE_PERCENT 8u /* of what is free stays free: cuBLASLt, NCCL, graphs */

struct backend {
    struct group_device device;
    struct gpu *gpu;
    struct gpu_model *model;
    uint8_t *host;
    uint64_t host_bytes;
    bool pinned;
};

/* ---- the device of the group ---- */

/* Opened on one thread, used on the engine's. */
static int enter(struct backend *b, struct err *e)
{
    return b->gpu->ops->here(b->gpu, e);
}

static int forward(void *self, const struct model_batch *batch, struct err *e)
{
    struct backend *b = self;
    int rc = enter(b, e);
    return rc ? rc : gpu_model_forward(b->model, batch, e);
}

static void data_rows(void *self, const uint32_t *rows)
{
    struct backend *b = self;
    gpu_model_data_rows(b->model, rows);
}

static void stats(void *self, struct model_work_stats *out)
{
    struct backend *b = self;
    struct gpu_model_stats s = gpu_model_stats(b->model);
    out->steps = s.steps;
    out->micro_batches = s.micro_batches;
    out->dispatches = s.dispatches;
    out->dispatches_latency = s.dispatches_latency;
    out->expert_slots = s.expert_slots;
    out->expert_max = s.expert_max;
    out->expert_ranks = s.expert_ranks;
}

static int copy(void *self, uint32_t from, uint32_t to, struct err *e)
{
    struct backend *b = self;
    int rc = enter(b, e);
    return rc ? rc : gpu_model_copy_block(b->model, from, to, e);
}

static int fetch(void *self, const uint32_t *blocks, uint32_t n, uint32_t from, uint32_t to,
                 struct err *e)
{
    struct backend *b = self;
    int rc = enter(b, e);
    return rc ? rc : gpu_model_fetch(b->model, blocks, n, from, to, b->host, e);
}

static int store(void *self, const uint32_t *blocks, uint32_t n, struct err *e)
{
    struct backend *b = self;
    int rc = enter(b, e);
    return rc ? rc : gpu_model_store(b->model, blocks, n, b->host, e);
}

static void unpin(struct backend *b)
{
    if (b->pinned)
        b->gpu->ops->unpin(b->gpu, b->host);
    b->pinned = false;
}

/* Copies are asynchronous and quick out of pinned memory; without it they are neither, and right.
 */
static void pin(struct backend *b)
{
    struct err e = {0};
    if (!b->host || b->pinned)
        return;
    b->pinned = b->gpu->ops->pin(b->gpu, b->host, b->host_bytes, &e) == 0;
    if (!b->pinned)
        log_warn("the KV pool's host memory can't be pinned; transfers are slower", LERR(&e));
}

static int rest(void *self, bool asleep, struct err *e)
{
    struct backend *b = self;
    uint64_t freed = 0;
    int rc = enter(b, e);
    if (rc == 0 && !asleep) {
        rc = b->gpu->ops->wake(b->gpu, e);
        if (rc == 0)
            pin(b);
        return rc;
    }
    rc = rc ? rc : b->gpu->ops->sleep(b->gpu, &freed, e);
    if (rc < 0)
        return rc;
    unpin(b);
    log_info("the GPU's memory is given back", LI("bytes", freed));
    return 0;
}

/* ---- opening ---- */

/* What this rank alone can say: whether it has a device, and a way to the others'. */
static int open_device(const struct backend_config *c, struct backend *b, struct err *e)
{
    if (c->halves == GROUP_HALVES)
        return err_set(e, ENOTSUP,
                       "the GPU backend does not overlap two batches (--two-batch auto or off)");
    return gpu_open(c->index, &b->gpu, e);
}

/* All ranks over NCCL, or none. */
static int choose_links(const struct backend_config *c, bool *host, struct err *e)
{
    struct err why = {0};
    int32_t mine = nccl_ready(&why), all[COMM_RANKS_MAX];
    int rc = comm_all_gather(c->world, &mine, sizeof mine, all, e);
    *host = false;
    for (uint32_t r = 0; rc == 0 && r < comm_ranks(c->world); r++)
        *host |= all[r] < 0;
    if (rc == 0 && *host && c->rank == 0)
        log_warn("a rank has no NCCL: data between GPUs goes through host memory, which is slow",
                 LS("here", mine ? why.msg : "it has one"));
    return rc;
}

static int open_model(const struct backend_config *c, struct backend *b, struct err *e)
{
    struct gpu_model_options o = {.max_rows = c->max_rows,
                                  .max_sequences = c->max_sequences,
                                  .max_outputs = c->max_outputs,
                                  .max_context = c->max_context,
                                  .block_tokens = c->block_tokens,
                                  .kv_dtype = c->kv_dtype,
                                  .group = c->group};
    int rc = c->world ? group_split(&c->layout, c->rank, c->world, &o.group, e) : 0;
    if (rc == 0 && c->world)
        rc = choose_links(c, &o.host_links, e);
    return rc ? rc : gpu_model_new(b->gpu, c->model, &o, &b->model, e);
}

/* Every rank the same: the first failure of any is that of all. */
static int agree(const struct backend_config *c, int rc, struct err *e)
{
    int32_t mine = rc, all[COMM_RANKS_MAX];
    if (!c->world)
        return rc;
    struct err group = {0};
    int failed = comm_all_gather(c->world, &mine, sizeof mine, all, &group);
    if (failed)
        *e = group;
    for (uint32_t r = 0; failed == 0 && rc == 0 && r < comm_ranks(c->world); r++)
        if (all[r])
            rc = err_set(e, ENODEV, "rank %u has no GPU that can run its part", r);
    return failed ? failed : rc;
}

int backend_open(const struct backend_config *c, struct backend **out, struct err *e)
{
    bool only = strcmp(c->name, "cuda") == 0;
    *out = NULL;
    if (strcmp(c->name, "cpu") == 0)
        return 0;
    if (!only && strcmp(c->name, "auto") != 0)
        return err_set(e, EINVAL, "--backend \"%s\": cpu, cuda or auto", c->name);
    struct backend *b = xcalloc(1, sizeof *b);
    struct err why = {0};
    int rc = agree(c, open_device(c, b, &why), &why); /* before they meet on their devices */
    rc = rc ? rc : agree(c, open_model(c, b, &why), &why);
    if (rc == 0) {
        b->device = (struct group_device){b, data_rows, forward, copy, fetch, store, rest, stats};
        *out = b;
        return 0;
    }
    backend_free(b);
    if (only || rc == -EPIPE) {
        *e = why;
        return rc;
    }
    log_info("the CPU computes", LS("why", why.msg));
    return 0;
}

uint32_t backend_room(const struct backend *b)
{
    uint64_t room = b->gpu->ops->room(b->gpu) / 100 * (100 - RESERVE_PERCENT);
    uint64_t block = gpu_model_kv(b->model)->block_bytes, n = block ? room / block : 1u << 24;
    return n < 1u << 24 ? (uint32_t)n : 1u << 24;
}

int backend_pool(struct backend *b, uint32_t blocks, void *host, uint64_t host_bytes, struct err *e)
{
    b->host = host;
    b->host_bytes = host_bytes;
    int rc = gpu_model_pool(b->model, blocks, e);
    if (rc == 0)
        pin(b);
    return rc;
}

const struct group_device *backend_device(const struct backend *b)
{
    return b ? &b->device : NULL;
}

const char *backend_name(const struct backend *b)
{
    return b ? b->gpu->info.name : "cpu";
}

void backend_free(struct backend *b)
{
    if (!b)
        return;
    struct err e = {0};
    if (b->gpu && enter(b, &e) == 0)
        unpin(b);
    gpu_model_free(b->model);
    gpu_close(b->gpu);
    free(b);
}
