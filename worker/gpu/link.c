#include "worker/gpu/link.h"

#include <errno.h>
#include <stdlib.h>

struct gpu_link {
    struct gpu *g;
    struct comm *comm;
    struct nccl *nccl; /* NULL: through the host */
    uint8_t *host[2];  /* what goes, what comes */
    size_t room[2];
};

int gpu_link_new(struct gpu *g, struct comm *c, bool host, struct gpu_link **out, struct err *e)
{
    *out = NULL;
    if (!c || comm_ranks(c) < 2)
        return 0;
    struct gpu_link *l = xcalloc(1, sizeof *l);
    l->g = g;
    l->comm = c;
    int rc = host ? 0 : nccl_new(c, &l->nccl, e);
    if (rc) {
        free(l);
        return rc;
    }
    *out = l;
    return 0;
}

void gpu_link_free(struct gpu_link *l)
{
    if (!l)
        return;
    nccl_free(l->nccl);
    free(l->host[0]);
    free(l->host[1]);
    free(l);
}

uint32_t gpu_link_ranks(const struct gpu_link *l)
{
    return l ? comm_ranks(l->comm) : 1;
}

uint32_t gpu_link_rank(const struct gpu_link *l)
{
    return l ? comm_rank(l->comm) : 0;
}

struct nccl *gpu_link_nccl(const struct gpu_link *l)
{
    return l ? l->nccl : NULL;
}

static void *stream(const struct gpu_link *l)
{
    return l->g->ops->stream(l->g, GPU_COMPUTE);
}

/* ---- through the host ---- */

static int make_room(struct gpu_link *l, size_t out, size_t in, struct err *e)
{
    const size_t want[2] = {out, in};
    for (int i = 0; i < 2; i++) {
        if (want[i] <= l->room[i])
            continue;
        uint8_t *p = realloc(l->host[i], want[i]);
        if (!p)
            return err_set(e, ENOMEM, "no memory for %zu bytes between ranks", want[i]);
        l->host[i] = p;
        l->room[i] = want[i];
    }
    return 0;
}

static int to_host(struct gpu_link *l, gpu_ptr from, void *to, size_t bytes, struct err *e)
{
    return bytes ? l->g->ops->to_host(l->g, GPU_COMPUTE, to, from, bytes, e) : 0;
}

static int to_device(struct gpu_link *l, const void *from, gpu_ptr to, size_t bytes, struct err *e)
{
    return bytes ? l->g->ops->to_device(l->g, GPU_COMPUTE, to, from, bytes, e) : 0;
}

/* Flows of one direction, by peer and in their order, one after another in host memory. */
static int carry(struct gpu_link *l, const struct nccl_flow *flows, uint32_t n, bool out,
                 struct err *e)
{
    size_t at = 0;
    int rc = 0;
    for (uint32_t peer = 0; peer < comm_ranks(l->comm); peer++)
        for (uint32_t i = 0; i < n && rc == 0; i++) {
            const struct nccl_flow *f = &flows[i];
            if (f->peer != peer || f->out != out)
                continue;
            rc = out ? to_host(l, f->data, l->host[0] + at, f->bytes, e)
                     : to_device(l, l->host[1] + at, f->data, f->bytes, e);
            at += f->bytes;
        }
    return rc == 0 ? l->g->ops->sync(l->g, GPU_COMPUTE, e) : rc;
}

static int pass(struct gpu_link *l, const size_t bytes[2][COMM_RANKS_MAX], bool all, struct err *e)
{
    size_t out = 0, in = 0;
    int rc = 0;
    if (all)
        return comm_all_to_all(l->comm, l->host[0], bytes[0], l->host[1], bytes[1], e);
    for (uint32_t r = 0; r < comm_ranks(l->comm) && rc == 0; r++) {
        if (bytes[0][r])
            rc = comm_send(l->comm, r, l->host[0] + out, bytes[0][r], e);
        if (rc == 0 && bytes[1][r])
            rc = comm_recv(l->comm, r, l->host[1] + in, bytes[1][r], e);
        out += bytes[0][r];
        in += bytes[1][r];
    }
    return rc;
}

static int host_exchange(struct gpu_link *l, const struct nccl_flow *flows, uint32_t n, bool all,
                         struct err *e)
{
    size_t bytes[2][COMM_RANKS_MAX] = {{0}}, sum[2] = {0};
    for (uint32_t i = 0; i < n; i++) {
        bytes[!flows[i].out][flows[i].peer] += flows[i].bytes;
        sum[!flows[i].out] += flows[i].bytes;
    }
    int rc = make_room(l, sum[0] + 1, sum[1] + 1, e);
    rc = rc ? rc : carry(l, flows, n, true, e);
    rc = rc ? rc : pass(l, bytes, all, e);
    return rc ? rc : carry(l, flows, n, false, e);
}

static int host_sum(struct gpu_link *l, gpu_ptr x, uint64_t floats, struct err *e)
{
    size_t n = floats * sizeof(float);
    int rc = make_room(l, n, 0, e);
    rc = rc ? rc : to_host(l, x, l->host[0], n, e);
    rc = rc ? rc : l->g->ops->sync(l->g, GPU_COMPUTE, e);
    rc = rc ? rc : comm_all_reduce(l->comm, (float *)(void *)l->host[0], floats, e);
    rc = rc ? rc : to_device(l, l->host[0], x, n, e);
    return rc ? rc : l->g->ops->sync(l->g, GPU_COMPUTE, e);
}

static int host_gather(struct gpu_link *l, gpu_ptr mine, uint64_t bytes, gpu_ptr all, struct err *e)
{
    size_t n = comm_ranks(l->comm) * (size_t)bytes;
    int rc = make_room(l, bytes, n, e);
    rc = rc ? rc : to_host(l, mine, l->host[0], bytes, e);
    rc = rc ? rc : l->g->ops->sync(l->g, GPU_COMPUTE, e);
    rc = rc ? rc : comm_all_gather(l->comm, l->host[0], bytes, l->host[1], e);
    rc = rc ? rc : to_device(l, l->host[1], all, n, e);
    return rc ? rc : l->g->ops->sync(l->g, GPU_COMPUTE, e);
}

/* ---- either ---- */

int gpu_link_sum(struct gpu_link *l, gpu_ptr x, uint64_t floats, struct err *e)
{
    return l->nccl ? nccl_all_reduce(l->nccl, x, floats, stream(l), e) : host_sum(l, x, floats, e);
}

int gpu_link_gather(struct gpu_link *l, gpu_ptr mine, uint64_t bytes, gpu_ptr all, struct err *e)
{
    return l->nccl ? nccl_all_gather(l->nccl, mine, bytes, all, stream(l), e)
                   : host_gather(l, mine, bytes, all, e);
}

int gpu_link_exchange(struct gpu_link *l, const struct nccl_flow *flows, uint32_t n, bool all,
                      struct err *e)
{
    return l->nccl ? nccl_exchange(l->nccl, flows, n, all, stream(l), e)
                   : host_exchange(l, flows, n, all, e);
}
