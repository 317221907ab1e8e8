/* cache.h: a paged KV cache for tests of kernels, written and read as the CPU does (kernels/ops.h),
 * and attention over it by its definition. */
#pragma once
#include "kernels/ops.h"
#include "tests/kernels/cuda/bench.h"

static const uint32_t forms[] = {KV_FORM_F16, KV_FORM_BF16, KV_FORM_I8, KV_FORM_F8};
#define FORMS (sizeof forms / sizeof *forms)

struct cache {
    struct kv_view view;
    uint32_t blocks, layers, layer, heads, dim;
};

/* `mla`: one part, no heads. Tables are shuffled, so that blocks lie anywhere. What lies past a
 * sequence's end is NaN, as it may be. */
static inline struct cache cache_new(uint32_t sequences, uint32_t max_tokens, uint32_t heads,
                                     uint32_t dim, bool mla, uint32_t form)
{
    struct cache c = {.layers = 2, .layer = 1, .heads = heads, .dim = dim};
    uint32_t bt = 32, per = (max_tokens + bt - 1) / bt;
    c.blocks = sequences * per;
    uint64_t head = kv_head_bytes((enum kv_type)form, dim, bt), half = heads * head;
    uint64_t piece = mla ? head : 2 * half;
    uint64_t block = c.layers * piece;
    uint8_t *pool = room(c.blocks * block);
    memset(pool, 0xff, c.blocks * block);
    uint32_t *tables = room(c.blocks * 4);
    for (uint32_t i = 0; i < c.blocks; i++)
        tables[i] = i;
    for (uint32_t i = c.blocks - 1; i > 0; i--) {
        uint32_t j = (uint32_t)rng_below(&rng, i + 1), t = tables[i];
        tables[i] = tables[j];
        tables[j] = t;
    }
    c.view = (struct kv_view){.pool = pool,
                              .tables = tables,
                              .table_ld = per,
                              .block_tokens = bt,
                              .block_bytes = block,
                              .layer_at = c.layer * piece,
                              .half_bytes = half,
                              .head_bytes = head,
                              .form = form};
    return c;
}

/* A head's part of the block that holds token t. */
static inline uint8_t *part_of(const struct cache *c, uint32_t sequence, uint32_t t, bool v,
                               uint32_t head)
{
    const struct kv_view *w = &c->view;
    uint32_t block = w->tables[sequence * w->table_ld + t / w->block_tokens];
    return w->pool + block * w->block_bytes + w->layer_at + (v ? w->half_bytes : 0) +
           head * w->head_bytes;
}

static inline float cell(const struct cache *c, uint32_t sequence, uint32_t t, bool v,
                         uint32_t head, uint32_t i)
{
    return kv_load((enum kv_type)c->view.form, part_of(c, sequence, t, v, head), c->dim,
                   c->view.block_tokens, t % c->view.block_tokens, i);
}

static inline void cache_fill(const struct cache *c, uint32_t sequence, uint32_t tokens, bool mla)
{
    float row[1024];
    for (uint32_t t = 0; t < tokens; t++)
        for (uint32_t h = 0; h < c->heads; h++)
            for (int v = 0; v < (mla ? 1 : 2); v++) {
                for (uint32_t i = 0; i < c->dim; i++)
                    row[i] = normal();
                kv_store((enum kv_type)c->view.form, row, c->dim, c->view.block_tokens,
                         t % c->view.block_tokens, part_of(c, sequence, t, v, h));
            }
}

static inline float half(const struct cache *c, uint16_t v)
{
    return c->view.form == KV_FORM_BF16 ? bf16(v) : f16(v);
}

static inline uint16_t *queries(const struct cache *c, size_t n, float scale)
{
    return halves(n, scale, c->view.form == KV_FORM_BF16 ? to_bf16 : to_f16);
}

static inline void cache_free(struct cache *c)
{
    give(c->view.pool);
    give((void *)(uintptr_t)c->view.tables);
}

/* out of one query head at `position`; V is the first `latent` channels of K, unless that is 0. */
static inline void attend(const struct cache *c, uint32_t sequence, uint32_t position,
                          uint32_t window, const uint16_t *q, uint32_t kv_head, uint32_t latent,
                          double *out)
{
    uint32_t from = window && position + 1 > window ? position + 1 - window : 0,
             v_dim = latent ? latent : c->dim;
    double *s = calloc(position + 1, sizeof *s), most = -1e300, sum = 0;
    for (uint32_t t = from; t <= position; t++) {
        for (uint32_t i = 0; i < c->dim; i++)
            s[t] += (double)half(c, q[i]) * (double)cell(c, sequence, t, false, kv_head, i);
        most = fmax(most, s[t]);
    }
    memset(out, 0, v_dim * sizeof *out);
    for (uint32_t t = from; t <= position; t++) {
        double p = exp(s[t] - most);
        sum += p;
        for (uint32_t i = 0; i < v_dim; i++)
            out[i] += p * (double)cell(c, sequence, t, !latent, kv_head, i);
    }
    for (uint32_t i = 0; i < v_dim; i++)
        out[i] /= sum;
    free(s);
}
