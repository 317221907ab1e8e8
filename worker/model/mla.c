#include "worker/model/mla.h"
#include "worker/model/slots.h"

static uint32_t heads_here(const struct model_work *w)
{
    return w->m->part.q1 - w->m->part.q0;
}

static uint32_t blocks_of(uint32_t n)
{
    return (n + BLOCK_COLS - 1) / BLOCK_COLS;
}

void mla_carve(struct carve *c, struct model_work *w)
{
    const struct model_config *mc = &w->m->config;
    struct mla_rows *r = &w->mla, none;
    if (!mc->mla.rank)
        return;
    if (!c->base)
        r = &none;
    uint64_t n = w->o.max_rows, heads = heads_here(w);
    uint32_t wide = mc->mla.rank > mc->mla.nope ? mc->mla.rank : mc->mla.nope;
    r->q = work_carve(c, n * heads * slots_q_dim(mc), sizeof *r->q);
    r->kv = work_carve(c, n * mc->head_dim, sizeof *r->kv);
    r->q_a = work_carve(c, n * mc->mla.q_rank, sizeof *r->q_a);
    r->values = work_carve(c, n * heads * mc->mla.v, sizeof *r->values);
    r->codes = work_carve(c, w->o.threads * n * blocks_of(wide), ACT_BLOCK_BYTES);
    r->blocks = work_carve(c, w->o.threads * n * blocks_of(wide), sizeof *r->blocks);
}

/* One head's matrix of a stack by `n` columns of every row, x + row * ldx. */
static void head_product(struct step *s, const struct image_entry *stack, uint32_t head,
                         uint32_t rows, const float *x, size_t ldx, float *y, size_t ldy)
{
    const struct model_work *w = s->w;
    const struct mla_rows *r = &w->mla;
    struct mat m = image_mat(s->m, stack);
    uint32_t blocks = blocks_of(m.cols);
    m.rows = rows;
    m.data += head * mat_bytes(m.form, rows, m.cols);
    struct acts a = {.x = x, .ldx = ldx, .n_blocks = blocks};
    if (!mat_form_is_float(m.form)) {
        size_t at = (size_t)s->thread * w->o.max_rows *
                    blocks_of(s->c->mla.rank > s->c->mla.nope ? s->c->mla.rank : s->c->mla.nope);
        a.codes = r->codes + at * ACT_BLOCK_BYTES;
        a.blocks = r->blocks + at;
        for (uint32_t i = 0; i < w->n_rows; i++)
            s->ops->quantize(x + i * ldx, m.cols,
                             r->codes + (at + (size_t)i * blocks) * ACT_BLOCK_BYTES,
                             r->blocks + at + (size_t)i * blocks);
    }
    s->ops->matmul(&m, 0, (rows + GROUP_ROWS - 1) / GROUP_ROWS, &a, w->n_rows, y, ldy);
}

/* ---- queries and latents ---- */

static void project(struct step *s, uint32_t layer)
{
    const struct model_config *c = s->c;
    struct mla_rows *r = &s->w->mla;
    size_t q_cols = (size_t)heads_here(s->w) * slots_q_dim(c);
    uint32_t q_rank = c->mla.q_rank;
    struct layer_product first[] = {
        q_rank ? (struct layer_product){image_layer(s->m, layer, SLOT_Q_A), r->q_a, q_rank}
               : (struct layer_product){image_layer(s->m, layer, SLOT_Q), r->q, q_cols},
        {image_layer(s->m, layer, SLOT_KV_A), r->kv, c->head_dim},
    };
    struct acts x = layer_acts_of(s, c->d_model);
    layer_products(s, first, 2, &x, s->w->n_rows);
    if (!q_rank)
        return;
    const float *norm = layer_vec(s, layer, SLOT_Q_A_NORM);
    for (uint32_t i = s->r0; i < s->r1; i++) {
        float *to = layer_row_norm(s, i);
        s->ops->rms_norm(r->q_a + (size_t)i * q_rank, norm, c->norm_eps, q_rank, to);
        layer_row_quantize(s, i, to, q_rank);
    }
    layer_rows_done(s);
    struct layer_product second = {image_layer(s->m, layer, SLOT_Q), r->q, q_cols};
    x = layer_acts_of(s, q_rank);
    layer_products(s, &second, 1, &x, s->w->n_rows);
}

/* A row's latent: norm, rotation, into the pool. */
static void latent_done(struct step *s, uint32_t layer, uint32_t row)
{
    const struct model_config *c = s->c;
    float *x = s->w->mla.kv + (size_t)row * c->head_dim;
    s->ops->rms_norm(x, layer_vec(s, layer, SLOT_KV_A_NORM), c->norm_eps, c->mla.rank, x);
    rope_apply(x + c->mla.rank, s->w->cs_global + (size_t)row * c->rope_dims, c->rope_dims,
               c->rope_neox);
    forward_store_kv(s, x, row, layer, false, 0);
}

/* A head's queries of all rows into the latent space. */
static void absorb(struct step *s, uint32_t layer, uint32_t head)
{
    const struct model_config *c = s->c;
    struct model_work *w = s->w;
    uint32_t q_dim = slots_q_dim(c);
    size_t ldq = (size_t)heads_here(w) * q_dim;
    const float *q = w->mla.q + (size_t)head * q_dim;
    float *to = w->qkv + (size_t)head * c->head_dim;
    head_product(s, image_layer(s->m, layer, SLOT_K_UP), head, c->mla.rank, q, ldq, to,
                 w->qkv_cols);
    for (uint32_t i = 0; i < w->n_rows; i++) {
        float *row = to + i * w->qkv_cols, *turned = row + c->mla.rank;
        memcpy(turned, q + i * ldq + c->mla.nope, c->rope_dims * sizeof *turned);
        rope_apply(turned, w->cs_global + (size_t)i * c->rope_dims, c->rope_dims, c->rope_neox);
        s->ops->scale(row, c->attn_scale, c->head_dim);
    }
}

void mla_queries(struct step *s, uint32_t layer)
{
    uint32_t from, to;
    project(s, layer);
    layer_split(s->w->n_rows, s->threads, s->thread, &from, &to);
    for (uint32_t i = from; i < to && s->p->kv1 > s->p->kv0; i++) /* no head: no KV here */
        latent_done(s, layer, i);
    layer_split(heads_here(s->w), s->threads, s->thread, &from, &to);
    for (uint32_t h = from; h < to; h++)
        absorb(s, layer, h);
    pool_barrier(s->w->pool);
}

/* ---- values ---- */

void mla_values(struct step *s, uint32_t layer)
{
    const struct model_config *c = s->c;
    struct model_work *w = s->w;
    uint32_t heads = heads_here(w), from, to, n = heads * c->mla.v;
    layer_split(heads, s->threads, s->thread, &from, &to);
    for (uint32_t h = from; h < to; h++)
        head_product(s, image_layer(s->m, layer, SLOT_V_UP), h, c->mla.v,
                     w->att + (size_t)h * c->mla.rank, (size_t)heads * c->mla.rank,
                     w->mla.values + (size_t)h * c->mla.v, n);
    pool_barrier(w->pool);
    for (uint32_t i = s->r0; i < s->r1; i++) {
        memcpy(layer_row_norm(s, i), w->mla.values + (size_t)i * n, n * sizeof(float));
        layer_row_quantize(s, i, layer_row_norm(s, i), n);
    }
    layer_rows_done(s);
}
