#include "worker/gpu/ep.h"

#include <errno.h>
#include <stdlib.h>

#define LATENCY_ROWS 64u /* of all ranks together */
#define PIECES       4u  /* of a row on its way: channels, scales, choices, their weights */

struct gpu_ep {
    uint32_t ranks, rank, first; /* first: place of rank 0, data rank x tensor + tensor rank */
    uint32_t data, tensor, used, d;
    bool fp8, latency; /* of the step */
    enum model_dispatch dispatch;
    uint32_t data_rows[MODEL_RANKS_MAX];
    gpu_ptr bounds, counts, all_counts, take, place;
    gpu_ptr out_x, out_scales, out_ids, out_weights; /* packed: bf16 or codes */
    gpu_ptr in_x, in_codes, in_scales, in_ids, in_weights;
    gpu_ptr y, back; /* what the experts here gave, and those elsewhere */
    uint32_t *host_counts, *host_place;
    struct nccl_flow flows[2 * PIECES * MODEL_RANKS_MAX];
};

/* Rows to and from each rank, and where they lie. */
struct traffic {
    uint32_t out[MODEL_RANKS_MAX], out_at[MODEL_RANKS_MAX];
    uint32_t in[MODEL_RANKS_MAX], in_at[MODEL_RANKS_MAX];
    uint32_t n_out, n_in;
};

struct piece {
    gpu_ptr out, in;
    uint64_t bytes; /* of a row */
};

static uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* ---- making one ---- */

static int check(const struct gpu_model *gm, struct err *e)
{
    const struct model_config *c = &gm->c;
    if (gpu_link_ranks(gm->expert) > c->moe.experts)
        return err_set(e, EINVAL, "experts over %u ranks: the model has %u",
                       gpu_link_ranks(gm->expert), c->moe.experts);
    return 0;
}

static uint64_t scale_bytes(const struct gpu_ep *ep) /* of a row */
{
    return (ep->d + FP8_GROUP - 1) / FP8_GROUP * 4ull;
}

static int alloc(struct gpu_model *gm, struct gpu_ep *ep, struct err *e)
{
    uint64_t n = gm->o.max_rows, d = ep->d, k = ep->used, r = ep->ranks;
    uint64_t few = smaller(gm->o.max_rows, LATENCY_ROWS), most = n * smaller(ep->ranks, ep->used);
    uint64_t scales = scale_bytes(ep), back = most > r * few ? most : r * few;
    const struct {
        gpu_ptr *at;
        uint64_t bytes;
    } all[] = {
        {&ep->bounds, (r + 1) * 4},
        {&ep->counts, 2 * r * 4},
        {&ep->all_counts, 2 * r * r * 4},
        {&ep->take, most * 4},
        {&ep->place, n * r * 4},
        {&ep->out_x, most * d * (ep->fp8 ? 1 : 2)},
        {&ep->out_scales, ep->fp8 ? most * scales : 0},
        {&ep->out_ids, most * k * 4},
        {&ep->out_weights, most * k * 4},
        {&ep->in_x, n * d * 2},
        {&ep->in_codes, ep->fp8 ? n * d : 0},
        {&ep->in_scales, ep->fp8 ? n * scales : 0},
        {&ep->in_ids, n * k * 4},
        {&ep->in_weights, n * k * 4},
        {&ep->y, n * d * 4},
        {&ep->back, back * d * 4},
    };
    int rc = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all && rc == 0; i++) {
        rc = gpu_alloc(gm, all[i].bytes, false, all[i].at, e);
        gm->stats.work_bytes += all[i].bytes;
    }
    ep->host_counts = xcalloc(2 * r * r, sizeof *ep->host_counts);
    ep->host_place = xcalloc(few * r, sizeof *ep->host_place);
    return rc;
}

int gpu_ep_new(struct gpu_model *gm, struct gpu_ep **out, struct err *e)
{
    const struct model_group *by = &gm->o.group;
    *out = NULL;
    if (!gm->expert || !gm->c.moe.experts || gm->shard.expert <= 1)
        return 0;
    int rc = check(gm, e);
    if (rc)
        return rc;
    struct gpu_ep *ep = xcalloc(1, sizeof *ep);
    *ep = (struct gpu_ep){.ranks = gpu_link_ranks(gm->expert),
                          .rank = gpu_link_rank(gm->expert),
                          .first = by->expert_first,
                          .data = by->data ? by->data : 1,
                          .tensor = gpu_link_ranks(gm->tensor),
                          .used = gm->c.moe.used,
                          .d = gm->c.d_model,
                          .fp8 = by->dispatch_fp8,
                          .dispatch = by->dispatch};
    *out = ep;
    return alloc(gm, ep, e);
}

void gpu_ep_release(struct gpu_model *gm)
{
    struct gpu_ep *ep = gm->ep;
    if (!ep)
        return;
    const gpu_ptr all[] = {ep->bounds,      ep->counts,     ep->all_counts, ep->take,
                           ep->place,       ep->out_x,      ep->out_scales, ep->out_ids,
                           ep->out_weights, ep->in_x,       ep->in_codes,   ep->in_scales,
                           ep->in_ids,      ep->in_weights, ep->y,          ep->back};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i])
            gm->g->ops->release(gm->g, all[i]);
}

void gpu_ep_free(struct gpu_ep *ep)
{
    if (!ep)
        return;
    free(ep->host_counts);
    free(ep->host_place);
    free(ep);
}

/* ---- a step ---- */

void gpu_ep_data_rows(struct gpu_ep *ep, const uint32_t *rows)
{
    memcpy(ep->data_rows, rows, ep->data * sizeof *rows);
}

/* Rows of its data rank that an expert rank sends: [from, to), as on CPUs. */
static void share_of(const struct gpu_ep *ep, uint32_t rank, uint32_t *from, uint32_t *to)
{
    uint32_t place = ep->first + rank, n = ep->data_rows[place / ep->tensor];
    uint32_t part = place % ep->tensor;
    *from = (uint32_t)((uint64_t)n * part / ep->tensor);
    *to = (uint32_t)((uint64_t)n * (part + 1) / ep->tensor);
}

static uint32_t share_rows(const struct gpu_ep *ep, uint32_t rank)
{
    uint32_t from, to;
    share_of(ep, rank, &from, &to);
    return to - from;
}

static bool is_latency(const struct gpu_ep *ep)
{
    uint32_t all = 0;
    for (uint32_t i = 0; i < ep->data; i++)
        all += ep->data_rows[i];
    return all <= LATENCY_ROWS && ep->dispatch != MODEL_DISPATCH_THROUGHPUT;
}

static int tell_bounds(struct gpu_model *gm, struct err *e)
{
    uint32_t bounds[MODEL_RANKS_MAX + 1] = {0};
    struct gpu_ep *ep = gm->ep;
    for (uint32_t r = 0; r < ep->ranks; r++) {
        struct model_shard s = {.expert = ep->ranks, .expert_rank = r};
        struct model_part p;
        model_part_of(&gm->c, &s, &p);
        bounds[r + 1] = p.expert1;
    }
    return gm->g->ops->to_device(gm->g, GPU_COMPUTE, ep->bounds, bounds, (ep->ranks + 1) * 4ull, e);
}

/* In the latency way all have every row, so an answer's place follows from its row. */
int gpu_ep_begin(struct gpu_model *gm, struct err *e)
{
    struct gpu_ep *ep = gm->ep;
    uint32_t n = share_rows(ep, ep->rank);
    ep->latency = is_latency(ep);
    int rc = tell_bounds(gm, e);
    if (rc || !ep->latency || !n)
        return rc;
    for (uint32_t row = 0; row < n; row++)
        for (uint32_t r = 0; r < ep->ranks; r++)
            ep->host_place[row * ep->ranks + r] = r * n + row;
    return gm->g->ops->to_device(gm->g, GPU_COMPUTE, ep->place, ep->host_place,
                                 (uint64_t)n * ep->ranks * 4, e);
}

/* ---- moving rows ---- */

static int swap(struct gpu_model *gm, const struct traffic *t, const struct piece *pieces,
                uint32_t n, struct err *e)
{
    struct gpu_ep *ep = gm->ep;
    uint32_t n_flows = 0, me = ep->rank;
    int rc = 0;
    for (uint32_t i = 0; i < n && t->out[me] && rc == 0; i++) /* its own */
        rc = gm->g->ops->copy(gm->g, GPU_COMPUTE, pieces[i].in + t->in_at[me] * pieces[i].bytes,
                              pieces[i].out + t->out_at[me] * pieces[i].bytes,
                              t->out[me] * pieces[i].bytes, e);
    for (uint32_t r = 0; r < ep->ranks; r++)
        for (uint32_t i = 0; i < n && r != me; i++) {
            const struct piece *p = &pieces[i];
            if (t->out[r])
                ep->flows[n_flows++] = (struct nccl_flow){r, true, p->out + t->out_at[r] * p->bytes,
                                                          t->out[r] * p->bytes};
            if (t->in[r])
                ep->flows[n_flows++] = (struct nccl_flow){r, false, p->in + t->in_at[r] * p->bytes,
                                                          t->in[r] * p->bytes};
        }
    return rc ? rc : gpu_link_exchange(gm->expert, ep->flows, n_flows, true, e);
}

static void line_up(const struct gpu_ep *ep, struct traffic *t)
{
    t->n_out = t->n_in = 0;
    for (uint32_t r = 0; r < ep->ranks; r++) {
        t->out_at[r] = t->n_out;
        t->in_at[r] = t->n_in;
        t->n_out += t->out[r];
        t->n_in += t->in[r];
    }
}

/* Codes and scales of rows of w.x: `take` 0 is the n rows from `from` on. */
static int to_fp8(struct gpu_model *gm, uint32_t from, gpu_ptr take, uint32_t n, struct err *e)
{
    struct fp8_pack_args a = {.x = GPU_AS(const uint16_t, gm->w.x + from * 2ull * gm->ep->d),
                              .take = GPU_AS(const uint32_t, take),
                              .codes = GPU_AS(uint8_t, gm->ep->out_x),
                              .scales = GPU_AS(float, gm->ep->out_scales),
                              .d = gm->ep->d};
    return gpu_fp8_pack(gm->g, &a, n, e);
}

static int from_fp8(struct gpu_model *gm, uint32_t n, struct err *e)
{
    struct fp8_unpack_args a = {.codes = GPU_AS(const uint8_t, gm->ep->in_codes),
                                .scales = GPU_AS(const float, gm->ep->in_scales),
                                .x = GPU_AS(uint16_t, gm->ep->in_x),
                                .d = gm->ep->d};
    return gm->ep->fp8 ? gpu_fp8_unpack(gm->g, &a, n, e) : 0;
}

static int send_rows(struct gpu_model *gm, const struct traffic *t, gpu_ptr x, gpu_ptr ids,
                     gpu_ptr weights, struct err *e)
{
    struct gpu_ep *ep = gm->ep;
    uint64_t k = ep->used * 4ull;
    struct piece pieces[PIECES] = {{ids, ep->in_ids, k}, {weights, ep->in_weights, k}};
    uint32_t n = 2;
    if (ep->fp8) {
        pieces[n++] = (struct piece){ep->out_x, ep->in_codes, ep->d};
        pieces[n++] = (struct piece){ep->out_scales, ep->in_scales, scale_bytes(ep)};
    } else {
        pieces[n++] = (struct piece){x, ep->in_x, ep->d * 2ull};
    }
    int rc = swap(gm, t, pieces, n, e);
    return rc ? rc : from_fp8(gm, t->n_in, e);
}

/* ---- the two ways ---- */

/* All of the share to everybody, from where it lies. */
static int dispatch_latency(struct gpu_model *gm, struct traffic *t, struct err *e)
{
    struct gpu_ep *ep = gm->ep;
    uint32_t from, to;
    share_of(ep, ep->rank, &from, &to);
    for (uint32_t r = 0; r < ep->ranks; r++) {
        t->out[r] = to - from;
        t->in[r] = share_rows(ep, r);
    }
    line_up(ep, t);
    memset(t->out_at, 0, sizeof t->out_at);
    int rc = ep->fp8 ? to_fp8(gm, from, 0, to - from, e) : 0;
    uint64_t choice = (uint64_t)from * ep->used * 4;
    gm->stats.dispatches_latency++;
    return rc ? rc
              : send_rows(gm, t, gm->w.x + from * 2ull * ep->d, gm->w.ids + choice,
                          gm->w.weights + choice, e);
}

/* What each rank sends to each, and how many choices that is. */
static int swap_counts(struct gpu_model *gm, struct traffic *t, struct err *e)
{
    struct gpu_ep *ep = gm->ep;
    uint32_t load[MODEL_RANKS_MAX] = {0}, ranks = ep->ranks, most = 0;
    int rc = gpu_link_gather(gm->expert, ep->counts, 2ull * ranks * 4, ep->all_counts, e);
    if (rc == 0)
        rc = gm->g->ops->to_host(gm->g, GPU_COMPUTE, ep->host_counts, ep->all_counts,
                                 2ull * ranks * ranks * 4, e);
    rc = rc ? rc : gpu_await(gm, e);
    if (rc)
        return rc;
    for (uint32_t r = 0; r < ranks; r++) {
        const uint32_t *of = ep->host_counts + (size_t)r * 2 * ranks;
        t->in[r] = of[ep->rank];
        t->out[r] = ep->host_counts[(size_t)ep->rank * 2 * ranks + r];
        if (t->in[r] > share_rows(ep, r))
            return err_set(e, EPROTO, "rank %u sends more rows than it has", r);
        for (uint32_t to = 0; to < ranks; to++)
            load[to] += of[ranks + to];
    }
    for (uint32_t r = 0; r < ranks; r++) {
        most = load[r] > most ? load[r] : most;
        gm->stats.expert_slots += load[r];
    }
    gm->stats.expert_max += most;
    line_up(ep, t);
    return 0;
}

/* Rows to those that have their experts, packed. */
static int dispatch_throughput(struct gpu_model *gm, struct traffic *t, struct err *e)
{
    struct gpu_ep *ep = gm->ep;
    uint32_t from, to;
    share_of(ep, ep->rank, &from, &to);
    gpu_ptr ids = gm->w.ids + (uint64_t)from * ep->used * 4,
            weights = gm->w.weights + (uint64_t)from * ep->used * 4;
    struct ep_list_args list = {.ids = GPU_AS(const uint32_t, ids),
                                .bounds = GPU_AS(const uint32_t, ep->bounds),
                                .counts = GPU_AS(uint32_t, ep->counts),
                                .take = GPU_AS(uint32_t, ep->take),
                                .place = GPU_AS(uint32_t, ep->place),
                                .rows = to - from,
                                .top_k = ep->used,
                                .ranks = ep->ranks};
    struct ep_pack_args pack = {
        .x = ep->fp8 ? NULL : GPU_AS(const uint16_t, gm->w.x + from * 2ull * ep->d),
        .take = list.take,
        .ids = list.ids,
        .weights = GPU_AS(const float, weights),
        .to_x = GPU_AS(uint16_t, ep->out_x),
        .to_ids = GPU_AS(uint32_t, ep->out_ids),
        .to_weights = GPU_AS(float, ep->out_weights),
        .d = ep->d,
        .top_k = ep->used};
    int rc = gpu_ep_list(gm->g, &list, e);
    rc = rc ? rc : swap_counts(gm, t, e);
    rc = rc ? rc : gpu_ep_pack(gm->g, &pack, t->n_out, e);
    if (rc == 0 && ep->fp8)
        rc = to_fp8(gm, from, ep->take, t->n_out, e);
    return rc ? rc : send_rows(gm, t, ep->out_x, ep->out_ids, ep->out_weights, e);
}

/* ---- answers ---- */

/* The same traffic the other way; in the latency way a row has one from everybody. */
static int answer(struct gpu_model *gm, const struct traffic *t, struct err *e)
{
    struct gpu_ep *ep = gm->ep;
    struct traffic back = {.n_out = t->n_in, .n_in = t->n_out};
    struct piece rows = {ep->y, ep->back, ep->d * 4ull};
    uint32_t at = 0;
    for (uint32_t r = 0; r < ep->ranks; r++) {
        back.out[r] = t->in[r];
        back.out_at[r] = t->in_at[r];
        back.in[r] = t->out[r];
        back.in_at[r] = at;
        at += t->out[r];
    }
    return swap(gm, &back, &rows, 1, e);
}

static int join(struct gpu_model *gm, struct err *e)
{
    struct gpu_ep *ep = gm->ep;
    uint32_t from, to;
    share_of(ep, ep->rank, &from, &to);
    struct ep_join_args a = {.back = GPU_AS(const float, ep->back),
                             .place = GPU_AS(const uint32_t, ep->place),
                             .y = GPU_AS(float, gm->w.out + (uint64_t)from * ep->d * 4),
                             .d = ep->d,
                             .ranks = ep->ranks};
    return gpu_ep_join(gm->g, &a, to - from, e);
}

int gpu_ep_layer(struct gpu_model *gm, const struct gpu_layer *l, uint32_t rows, struct err *e)
{
    struct gpu_ep *ep = gm->ep;
    struct traffic t = {0};
    gm->stats.dispatches++;
    gm->stats.expert_ranks = ep->ranks;
    int rc = rows ? gpu_choose(gm, l, rows, e) : 0;
    if (rc == 0)
        rc = ep->latency ? dispatch_latency(gm, &t, e) : dispatch_throughput(gm, &t, e);
    if (rc == 0 && rows)
        rc = gpu_shared(gm, l, rows, e);
    if (rc == 0 && t.n_in)
        rc = gpu_routed(gm, l, ep->in_x, ep->in_ids, ep->in_weights, 0, ep->y, t.n_in, e);
    rc = rc ? rc : answer(gm, &t, e);
    return rc ? rc : join(gm, e);
}
