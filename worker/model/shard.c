#include "worker/model/shard.h"
#include "worker/model/slots.h"

#include <errno.h>
#include <stdio.h>

static uint32_t parts(uint32_t n)
{
    return n ? n : 1;
}

static uint32_t at(uint32_t n, uint32_t n_parts, uint32_t i)
{
    return (uint32_t)((uint64_t)n * i / n_parts);
}

/* Bounds of part i of n things that are handed out `unit` at a time. */
static void cut(uint32_t n, uint32_t unit, uint32_t n_parts, uint32_t i, uint32_t *from,
                uint32_t *to)
{
    uint32_t units = (n + unit - 1) / unit;
    uint32_t a = at(units, n_parts, i) * unit, b = at(units, n_parts, i + 1) * unit;
    *from = a < n ? a : n;
    *to = b < n ? b : n;
}

int model_shard_check(const struct model_config *c, const struct model_shard *s, struct err *e)
{
    uint32_t t = parts(s->tensor), p = parts(s->pipeline), x = parts(s->expert);
    if (t > MODEL_RANKS_MAX || p > MODEL_RANKS_MAX || x > MODEL_RANKS_MAX || s->tensor_rank >= t ||
        s->stage >= p || s->expert_rank >= x)
        return err_set(e, EINVAL, "no rank tp%uof%u pp%uof%u ep%uof%u", s->tensor_rank, t, s->stage,
                       p, s->expert_rank, x);
    if (p > c->n_layers)
        return err_set(e, EINVAL, "%u pipeline stages: the model has %u layers", p, c->n_layers);
    return 0;
}

/* The head is priced as the layers that it weighs as much as, at most half of a stage's: a stage
 * that decodes reads it for every step, one that takes a prompt in hardly at all. */
static void stage_layers(const struct model_config *c, uint32_t p, uint32_t stage, uint32_t *from,
                         uint32_t *to)
{
    uint32_t share = c->n_layers / p;
    uint64_t head = (uint64_t)c->vocab * c->d_model;
    uint64_t layer = ((uint64_t)c->d_model * c->d_ff * 3) +
                     2ull * c->d_model * c->head_dim * (c->n_heads + c->n_kv_heads);
    uint32_t weight =
        p > 1 && layer ? (uint32_t)(head / layer < share / 2 ? head / layer : share / 2) : 0;
    uint32_t total = c->n_layers + weight, a = at(total, p, stage), b = at(total, p, stage + 1);
    *from = a > weight ? a - weight : 0;
    *to = b > weight ? b - weight : 0;
}

void model_part_of(const struct model_config *c, const struct model_shard *s,
                   struct model_part *out)
{
    uint32_t t = parts(s->tensor), r = s->tensor_rank, group = c->n_heads / c->n_kv_heads;
    struct model_part p = {.first = s->stage == 0};
    cut(c->n_heads, slots_o_dim(c) % BLOCK_COLS ? 2 : 1, t, r, &p.q0, &p.q1);
    p.kv0 = p.q0 / group;
    p.kv1 = p.q1 > p.q0 ? (p.q1 - 1) / group + 1 : p.kv0;
    cut(c->d_ff, BLOCK_COLS, t, r, &p.ff0, &p.ff1);
    cut(c->vocab, GROUP_ROWS, t, r, &p.vocab0, &p.vocab1);
    cut(c->moe.d_shared, BLOCK_COLS, t, r, &p.shared0, &p.shared1);
    p.expert_ff1 = c->moe.d_expert;
    if (parts(s->expert) > 1)
        cut(c->moe.experts, 1, s->expert, s->expert_rank, &p.expert0, &p.expert1);
    else
        p.expert1 = c->moe.experts;
    if (parts(s->expert) == 1)
        cut(c->moe.d_expert, BLOCK_COLS, t, r, &p.expert_ff0, &p.expert_ff1);
    stage_layers(c, parts(s->pipeline), s->stage, &p.layer0, &p.layer1);
    *out = p;
}

bool model_shard_wastes(const struct model_config *c, const struct model_shard *s, char *out,
                        size_t n)
{
    uint32_t t = parts(s->tensor), idle = 0, kv = 0;
    for (uint32_t r = 0; r < t; r++) {
        struct model_shard other = {.tensor = t, .tensor_rank = r};
        struct model_part p;
        model_part_of(c, &other, &p);
        idle += p.q0 == p.q1;
        kv += p.kv1 - p.kv0;
    }
    if (idle)
        snprintf(out, n, "%u of %u ranks have no attention head: the model has %u", idle, t,
                 c->n_heads);
    else if (kv > c->n_kv_heads)
        snprintf(out, n,
                 "%u KV heads are kept for the model's %u: each at every rank that reads it", kv,
                 c->n_kv_heads);
    else
        return false;
    return true;
}

uint32_t model_layout_ranks(const struct model_layout *l)
{
    return parts(l->tensor) * parts(l->pipeline) * parts(l->data);
}

int model_layout_check(const struct model_config *c, const struct model_layout *l, struct err *e)
{
    uint32_t x = parts(l->expert), places = parts(l->tensor) * parts(l->data);
    if (parts(l->data) == 1)
        return 0;
    if (parts(l->pipeline) > 1)
        return err_set(e, ENOTSUP,
                       "data-parallel attention in a pipeline of %u stages: one stage is served",
                       l->pipeline);
    if (x > 1 && places % x)
        return err_set(e, EINVAL, "experts over %u of %u ranks: not evenly", x, places);
    if (x > 1 && x > c->moe.experts)
        return err_set(e, EINVAL, "experts over %u ranks: the model has %u", x, c->moe.experts);
    return 0;
}

struct model_shard model_layout_shard(const struct model_layout *l, uint32_t rank)
{
    uint32_t t = parts(l->tensor), p = parts(l->pipeline), x = parts(l->expert);
    uint32_t data = rank / (t * p);
    return (struct model_shard){.tensor = t,
                                .tensor_rank = rank % t,
                                .pipeline = p,
                                .stage = rank / t % p,
                                .expert = x,
                                .expert_rank = (data * t + rank % t) % x};
}

int model_kv_part(struct model_kv *kv, const struct model_config *c, const struct model_part *p,
                  enum model_kv_dtype dtype, uint32_t block_tokens, struct err *e)
{
    struct model_kv k;
    int rc = model_kv_init(&k, c, dtype, block_tokens, e);
    if (rc < 0)
        return rc;
    k.n_layers = p->layer1 - p->layer0;
    k.n_kv_heads = p->kv1 - p->kv0;
    k.half_bytes = k.n_kv_heads * k.head_bytes;
    k.piece_bytes = k.halves * k.half_bytes;
    k.block_bytes = k.n_layers * k.piece_bytes;
    *kv = k;
    return 0;
}

/* ---- of a tensor ---- */

static void rows(struct slot_spec *s, uint32_t from, uint32_t to)
{
    s->row0 = from;
    s->rows = to - from;
}

static void cols(struct slot_spec *s, uint32_t from, uint32_t to)
{
    s->col0 = from;
    s->cols = to - from;
}

static void stack(struct slot_spec *s, uint32_t from, uint32_t to)
{
    s->part0 = from;
    s->parts = to - from;
}

void shard_spec(const struct model_config *c, const struct model_part *p, uint32_t i,
                struct slot_spec *s)
{
    slots_spec(c, i, s);
    bool global = i < IMAGE_GLOBAL_SLOTS;
    uint32_t layer = global ? 0 : (i - IMAGE_GLOBAL_SLOTS) / IMAGE_LAYER_SLOTS;
    s->rows_all = s->rows;
    s->parts_all = s->parts;
    s->cols_all = s->cols;
    if (global ? s->ends && !p->first : layer < p->layer0 || layer >= p->layer1)
        s->wanted = false;
    switch (s->cut) {
    case CUT_NONE: break;
    case CUT_Q_ROWS: rows(s, p->q0 * slots_q_dim(c), p->q1 * slots_q_dim(c)); break;
    case CUT_KV_ROWS: rows(s, p->kv0 * c->head_dim, p->kv1 * c->head_dim); break;
    case CUT_Q_COLS: cols(s, p->q0 * slots_o_dim(c), p->q1 * slots_o_dim(c)); break;
    case CUT_KV_COLS: cols(s, p->kv0 * c->head_dim, p->kv1 * c->head_dim); break;
    case CUT_FF_ROWS: rows(s, p->ff0, p->ff1); break;
    case CUT_FF_COLS: cols(s, p->ff0, p->ff1); break;
    case CUT_VOCAB_ROWS: rows(s, p->vocab0, p->vocab1); break;
    case CUT_SHARED_ROWS: rows(s, p->shared0, p->shared1); break;
    case CUT_SHARED_COLS: cols(s, p->shared0, p->shared1); break;
    case CUT_HEAD_PARTS: stack(s, p->q0, p->q1); break;
    case CUT_EXPERT_ROWS:
        stack(s, p->expert0, p->expert1);
        rows(s, p->expert_ff0, p->expert_ff1);
        break;
    case CUT_EXPERT_COLS:
        stack(s, p->expert0, p->expert1);
        cols(s, p->expert_ff0, p->expert_ff1);
        break;
    }
    if (!s->rows || !s->cols || !s->parts)
        s->wanted = false;
}
