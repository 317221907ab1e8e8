#include "worker/model/work.h"
#include "worker/model/balance.h"
#include "worker/model/ep.h"
#include "worker/model/mla.h"
#include "worker/model/moe.h"
#include "worker/model/rope.h"
#include "worker/model/slots.h"
#include "worker/model/stage.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#define THREADS_MAX 64u
#define ROWS_MAX    65536u

_Static_assert((int)MODEL_KV_F16 == KV_F16 && (int)MODEL_KV_F32 == KV_F32 &&
                   (int)MODEL_KV_BF16 == KV_BF16 && (int)MODEL_KV_I8 == KV_I8 &&
                   (int)MODEL_KV_F8 == KV_F8,
               "a dtype is the kernels' type");

int model_kv_init(struct model_kv *kv, const struct model_config *c, enum model_kv_dtype dtype,
                  uint32_t block_tokens, struct err *e)
{
    if (block_tokens < ATTN_WINDOW || block_tokens > 256 || block_tokens % ATTN_WINDOW)
        return err_set(e, EINVAL, "a KV block of %u tokens: use a multiple of %u up to 256",
                       block_tokens, ATTN_WINDOW);
    struct model_kv k = {.n_layers = c->n_layers,
                         .n_kv_heads = c->n_kv_heads,
                         .head_dim = c->head_dim,
                         .block_tokens = block_tokens,
                         .elt_bytes = kv_elt_bytes((enum kv_type)dtype),
                         .dtype = dtype,
                         .halves = c->mla.rank ? 1 : 2};
    k.head_bytes = kv_head_bytes((enum kv_type)dtype, k.head_dim, block_tokens);
    k.half_bytes = k.n_kv_heads * k.head_bytes;
    k.piece_bytes = k.halves * k.half_bytes;
    k.block_bytes = k.n_layers * k.piece_bytes;
    *kv = k;
    return 0;
}

/* ---- memory ---- */

static uint32_t max_u32(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

void *work_carve(struct carve *c, uint64_t n, uint64_t size)
{
    void *p = c->base ? c->base + c->used : NULL;
    c->used += (n * size + 63) & ~(uint64_t)63;
    return p;
}

static void carve_rows(struct carve *c, const struct model_work *w, struct rows *r, uint64_t n)
{
    uint64_t blocks = (w->norm_cols + BLOCK_COLS - 1) / BLOCK_COLS;
    r->h = work_carve(c, n * w->m->config.d_model, sizeof *r->h);
    r->norm = work_carve(c, n * w->norm_cols, sizeof *r->norm);
    r->codes = work_carve(c, n * blocks, ACT_BLOCK_BYTES);
    r->blocks = work_carve(c, n * blocks, sizeof *r->blocks);
}

static void carve_all(struct carve *c, struct model_work *w)
{
    const struct model_config *mc = &w->m->config;
    const struct model_part *p = &w->m->part;
    uint64_t n = w->o.max_rows, heads = (uint64_t)(p->q1 - p->q0) * mc->head_dim;
    bool stages = w->o.group.pipeline && comm_ranks(w->o.group.pipeline) > 1;
    bool cut = stages || (w->o.group.halves && ep_active(w));
    bool parts = w->o.group.tensor && comm_ranks(w->o.group.tensor) > 1;
    uint32_t group = mc->n_heads / mc->n_kv_heads;
    w->own = work_carve(c, w->o.threads, sizeof *w->own);
    w->scratch = work_carve(c, w->o.threads, sizeof *w->scratch);
    struct rows none;
    float *nothing;
    for (uint32_t t = 0; t < w->o.threads; t++) {
        carve_rows(c, w, c->base ? &w->own[t] : &none, REPLICATE_ROWS);
        *(c->base ? &w->scratch[t] : &nothing) =
            work_carve(c, attn_scratch_floats(ATTN_TILE, group, mc->head_dim), sizeof(float));
    }
    carve_rows(c, w, &w->shared, n);
    uint64_t ff = max_u32(p->ff1 - p->ff0, p->shared1 - p->shared0);
    w->qkv = work_carve(c, n * w->qkv_cols, sizeof(float));
    w->att = work_carve(c, n * heads, sizeof(float));
    w->gate = work_carve(c, n * ff, sizeof(float));
    w->up = work_carve(c, n * ff, sizeof(float));
    w->out = work_carve(c, (ep_behind(w) ? 2 : 1) * n * mc->d_model, sizeof(float));
    w->cs_global = work_carve(c, n * mc->rope_dims, sizeof(float));
    w->cs_local = work_carve(c, n * mc->rope_dims, sizeof(float));
    w->freqs_global = work_carve(c, mc->rope_dims / 2, sizeof(double));
    w->freqs_local = work_carve(c, mc->rope_dims / 2, sizeof(double));
    moe_carve(c, w);
    ep_carve(c, w);
    mla_carve(c, w);
    w->rows = work_carve(c, n, sizeof *w->rows);
    w->out_rows = work_carve(c, n, sizeof *w->out_rows);
    w->part_logits =
        work_carve(c, parts ? (uint64_t)LOGIT_ROWS * (p->vocab1 - p->vocab0) : 0, sizeof(float));
    w->finals = work_carve(c, stages ? n * mc->d_model : 0, sizeof(float));
    w->segments = work_carve(c, cut ? n : 0, sizeof *w->segments);
    w->units = work_carve(c, n * mc->n_heads, sizeof *w->units);
    w->together = work_carve(c, n, sizeof *w->together);
    w->grouped = work_carve(c, n, sizeof *w->grouped);
}

int work_memory(struct model_work *w, struct err *e)
{
    struct carve c = {0};
    carve_all(&c, w);
    w->memory_bytes = c.used;
    void *p = mmap(NULL, c.used, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return err_set(e, ENOMEM, "no memory for steps of %u tokens (%llu MiB)", w->o.max_rows,
                       (unsigned long long)c.used >> 20);
    (void)madvise(p, c.used, MADV_HUGEPAGE);
    w->memory = p;
    c = (struct carve){.base = p};
    carve_all(&c, w);
    return 0;
}

static int work_init(struct model_work *w, struct err *e)
{
    const struct model_config *c = &w->m->config;
    const struct model_part *p = &w->m->part;
    uint32_t queries = p->q1 - p->q0, heads = queries * c->head_dim;
    uint32_t wide = max_u32(p->ff1 - p->ff0, p->shared1 - p->shared0);
    wide = max_u32(max_u32(c->d_model, wide), max_u32(queries * slots_o_dim(c), c->mla.q_rank));
    w->norm_cols = (wide + 31) & ~31u;
    w->qkv_cols = heads + (c->mla.rank ? 0 : 2 * (p->kv1 - p->kv0) * c->head_dim);
    int rc = model_kv_part(&w->kv, c, p, w->o.kv_dtype, w->o.block_tokens, e);
    if (rc < 0 || (rc = ep_init(w, e)) < 0 || (rc = work_memory(w, e)) < 0)
        return rc;
    const float *factors = image_vec(w->m, image_global(w->m, SLOT_ROPE_FACTORS));
    rope_global_freqs(c, factors, w->freqs_global);
    rope_freqs(w->freqs_local, c->rope_dims, c->rope_base_local, 1.0f, factors);
    rc = pool_new(w->o.threads, &w->pool, e);
    return rc || !w->o.group.halves || !ep_active(w) ? rc : halves_new(w, e);
}

int model_work_new(const struct model *m, const struct model_work_options *o,
                   struct model_work **out, struct err *e)
{
    if (o->threads < 1 || o->threads > THREADS_MAX)
        return err_set(e, EINVAL, "%u compute threads: 1 to %u", o->threads, THREADS_MAX);
    if (o->max_rows < 1 || o->max_rows > ROWS_MAX)
        return err_set(e, EINVAL, "steps of %u tokens: 1 to %u", o->max_rows, ROWS_MAX);
    struct model_work *w = xcalloc(1, sizeof *w);
    w->m = m;
    w->o = *o;
    if (w->o.block_tokens == 0)
        w->o.block_tokens = MODEL_BLOCK_TOKENS;
    int rc = work_init(w, e);
    if (rc < 0) {
        model_work_free(w);
        return rc;
    }
    *out = w;
    return 0;
}

void model_work_free(struct model_work *w)
{
    if (!w)
        return;
    pool_free(w->pool);
    halves_free(w);
    balance_free(w->ep.balance);
    if (w->memory)
        munmap(w->memory, w->memory_bytes);
    free(w);
}

const struct model_kv *model_work_kv(const struct model_work *w)
{
    return &w->kv;
}

uint64_t model_work_bytes(const struct model_work *w)
{
    return w->memory_bytes + (w->half ? w->half->memory_bytes : 0);
}

/* ---- the plan of a step ---- */

static int check_segment(const struct model_work *w, const struct model_segment *s, uint32_t i,
                         struct err *e)
{
    const struct model_config *c = &w->m->config;
    if (s->n_tokens < 1 || s->n_tokens > w->o.max_rows || s->logits_from > s->n_tokens)
        return err_set(e, EINVAL, "segment %u has %u tokens, logits from %u", i, s->n_tokens,
                       s->logits_from);
    uint64_t end = (uint64_t)s->start + s->n_tokens;
    if (end > c->context_tokens)
        return err_set(e, EINVAL, "segment %u ends at position %llu, the context is %u tokens", i,
                       (unsigned long long)end, c->context_tokens);
    if (end > (uint64_t)s->n_blocks * w->kv.block_tokens)
        return err_set(e, EINVAL, "segment %u ends at position %llu, its blocks hold %llu", i,
                       (unsigned long long)end,
                       (unsigned long long)s->n_blocks * w->kv.block_tokens);
    for (uint64_t b = 0; b * w->kv.block_tokens < end; b++)
        if (s->blocks[b] >= w->o.pool_blocks)
            return err_set(e, EINVAL, "segment %u names block %u of a pool of %u", i, s->blocks[b],
                           w->o.pool_blocks);
    for (uint32_t t = 0; t < s->n_tokens; t++)
        if (s->tokens[t] >= c->vocab)
            return err_set(e, EINVAL, "token %u is not in the vocabulary of %u", s->tokens[t],
                           c->vocab);
    return 0;
}

static void plan_rows(struct model_work *w, const struct model_batch *b)
{
    w->n_rows = w->n_out = 0;
    for (uint32_t i = 0; i < b->n_segments; i++) {
        const struct model_segment *s = &b->segments[i];
        for (uint32_t t = 0; t < s->n_tokens; t++, w->n_rows++) {
            w->rows[w->n_rows] = (struct row){s->tokens[t], s->start + t, i};
            if (t >= s->logits_from)
                w->out_rows[w->n_out++] = w->n_rows;
        }
    }
}

/* Query heads of this rank that share the KV head which `head` reads, from `head` on. */
static uint32_t sharing(const struct model_work *w, uint32_t head)
{
    const struct model_part *p = &w->m->part;
    uint32_t group = w->m->config.n_heads / w->m->config.n_kv_heads, q = p->q0 + head;
    uint32_t end = (q / group + 1) * group;
    return (end < p->q1 ? end : p->q1) - q;
}

/* A tile of rows as units: one a KV head, or one a query head. */
static void add_tile(struct model_work *w, struct attn_unit u, bool single)
{
    uint32_t queries = w->m->part.q1 - w->m->part.q0;
    for (u.head = 0; u.head < queries; u.head += u.heads) {
        u.heads = single ? 1 : sharing(w, u.head);
        w->units[w->n_units++] = u;
    }
}

/* How many decodes may be one tile, so that there is work for all threads. */
static uint32_t most_together(const struct model_work *w, const struct model_batch *b)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < b->n_segments; i++)
        n += b->segments[i].n_tokens == 1;
    if (w->o.threads > 1)
        n = n * (w->m->part.kv1 - w->m->part.kv0) / (2 * w->o.threads);
    return n < ATTN_TILE ? n : ATTN_TILE;
}

/* Units are (tile of rows, KV head); with fewer of them than threads, single query heads. A tile's
 * rows are one segment's, or decodes that begin alike. */
static void plan_units(struct model_work *w, const struct model_batch *b)
{
    uint32_t tiles = 0, row = 0, grouped = 0, kv_heads = w->m->part.kv1 - w->m->part.kv0;
    for (uint32_t i = 0; i < b->n_segments; i++)
        tiles += (b->segments[i].n_tokens + ATTN_TILE - 1) / ATTN_TILE;
    bool single = tiles * kv_heads < 2 * w->o.threads && w->o.threads > 1;
    uint32_t most = single ? 0 : most_together(w, b);
    memset(w->grouped, 0, b->n_segments);
    w->n_units = 0;
    for (uint32_t i = 0; i < b->n_segments; row += b->segments[i++].n_tokens) {
        uint32_t n = b->segments[i].n_tokens, shared;
        if (w->grouped[i])
            continue;
        if (n == 1 && most > 1) {
            uint32_t k = together_of(w, b, i, row, most, w->together + grouped, &shared);
            if (k > 1) {
                add_tile(w, (struct attn_unit){.row = grouped, .n = k, .shared = shared}, single);
                grouped += k;
                continue;
            }
        }
        for (uint32_t t = 0; t < n; t += ATTN_TILE)
            add_tile(w,
                     (struct attn_unit){
                         .row = row + t, .n = n - t < ATTN_TILE ? n - t : ATTN_TILE, .segment = i},
                     single);
    }
    for (uint32_t l = 0; l < w->m->config.n_layers; l++)
        atomic_store_explicit(&w->next_unit[l], 0, memory_order_relaxed);
}

uint32_t model_batch_outputs(const struct model_batch *b)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < b->n_segments; i++)
        n += b->segments[i].n_tokens - b->segments[i].logits_from;
    return n;
}

int model_batch_check(const struct model_work *w, const struct model_batch *b, struct err *e)
{
    uint64_t rows = 0;
    for (uint32_t i = 0; i < b->n_segments; i++) {
        int rc = check_segment(w, &b->segments[i], i, e);
        if (rc < 0)
            return rc;
        rows += b->segments[i].n_tokens;
        if (rows > w->o.max_rows)
            return err_set(e, EINVAL, "a batch of more than %u tokens", w->o.max_rows);
    }
    if (rows == 0 && !ep_active(w)) /* an idle data rank computes none */
        return err_set(e, EINVAL, "an empty batch");
    if (model_batch_outputs(b) > b->logits_rows)
        return err_set(e, EINVAL, "%u rows of logits wanted, room for %u", model_batch_outputs(b),
                       b->logits_rows);
    return 0;
}

void work_lay_out(struct model_work *w, const struct model_batch *b)
{
    plan_rows(w, b);
    plan_units(w, b);
    w->batch = b;
}

void model_work_data_rows(struct model_work *w, const uint32_t *rows)
{
    memcpy(w->ep.data_rows, rows, w->ep.data * sizeof *rows);
}

bool model_work_halve(struct model_work *w, bool halve)
{
    w->halve = halve && w->half;
    return w->halve;
}

void model_work_stats(const struct model_work *w, struct model_work_stats *out)
{
    *out = w->stats;
}
