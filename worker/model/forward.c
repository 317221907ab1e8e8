/* The forward pass of one stage. Every thread runs forward_thread(); products split the rows of the
 * weights, everything between them splits the rows of the batch, or (few rows) is done by each
 * thread on its own copy. Five barriers a layer then. A rank does its own query heads with the KV
 * heads that they read, which may be shared unevenly: of 9 query and 3 KV heads on two ranks, the
 * first has 4 queries that read KV heads 0 and 1. */
#include "worker/model/mla.h"
#include "worker/model/moe.h"
#include "worker/model/stage.h"

#include <errno.h>

void forward_open(struct step *s)
{
    const struct model_config *c = s->c;
    uint32_t from, to;
    layer_split(s->w->n_rows, s->threads, s->thread, &from, &to);
    for (uint32_t r = from; r < to; r++) {
        uint32_t pos = s->w->rows[r].pos;
        size_t at = (size_t)r * c->rope_dims;
        rope_table(s->w->cs_global + at, pos, c->rope_dims, s->w->freqs_global);
        if (c->sliding_window)
            rope_table(s->w->cs_local + at, pos, c->rope_dims, s->w->freqs_local);
        if (c->rope.magnitude != 1.0f)
            s->ops->scale(s->w->cs_global + at, c->rope.magnitude, c->rope_dims);
    }
}

/* h += [post-norm of] the last product, then the norm before the next one. `post` and `out` may be
 * NULL. */
static void residual_norm(struct step *s, const float *out, const float *post, const float *norm)
{
    uint32_t d = s->c->d_model;
    for (uint32_t r = s->r0; r < s->r1; r++) {
        float *h = layer_row_h(s, r), *x = layer_row_norm(s, r);
        const float *y = out ? out + (size_t)r * d : NULL;
        if (y && post) {
            s->ops->rms_norm(y, post, s->c->norm_eps, d, x);
            y = x;
        }
        if (y)
            s->ops->add(h, y, d);
        if (norm) {
            s->ops->rms_norm(h, norm, s->c->norm_eps, d, x);
            layer_row_quantize(s, r, x, d);
        }
    }
    layer_rows_done(s);
}

static void attention_to_acts(struct step *s)
{
    uint32_t n = (s->p->q1 - s->p->q0) * s->c->head_dim;
    for (uint32_t r = s->r0; r < s->r1; r++) {
        memcpy(layer_row_norm(s, r), s->w->att + (size_t)r * n, n * sizeof(float));
        layer_row_quantize(s, r, layer_row_norm(s, r), n);
    }
    layer_rows_done(s);
}

static void gated_to_acts(struct step *s)
{
    uint32_t n = s->p->ff1 - s->p->ff0;
    for (uint32_t r = s->r0; r < s->r1; r++) {
        const float *gate = s->w->gate + (size_t)r * n, *up = s->w->up + (size_t)r * n;
        float *x = layer_row_norm(s, r);
        if (s->c->gelu)
            s->ops->geglu(gate, up, n, x);
        else
            s->ops->swiglu(gate, up, n, x);
        layer_row_quantize(s, r, x, n);
    }
    layer_rows_done(s);
}

/* ---- products ---- */

static uint32_t product_groups(const struct layer_product *p)
{
    return (p->weights->rows + GROUP_ROWS - 1) / GROUP_ROWS;
}

void layer_products(struct step *s, const struct layer_product *p, uint32_t n, const struct acts *x,
                    uint32_t rows)
{
    uint32_t total = 0, from, to, at = 0;
    for (uint32_t i = 0; i < n; i++)
        total += product_groups(&p[i]);
    layer_split(total, s->threads, s->thread, &from, &to);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t groups = product_groups(&p[i]);
        uint32_t g0 = from > at ? from - at : 0, g1 = to > at ? to - at : 0;
        if (g1 > groups)
            g1 = groups;
        if (g0 < g1) {
            struct mat m = image_mat(s->m, p[i].weights);
            s->ops->matmul(&m, g0, g1, x, rows, p[i].y, p[i].ldy);
        }
        at += groups;
    }
    pool_barrier(s->w->pool);
}

void layer_sum(struct step *s, float *y, size_t n)
{
    if (!layer_shared(s))
        return;
    if (s->thread == 0 && s->w->rc == 0)
        s->w->rc = comm_all_reduce(s->w->o.group.tensor, y, n, &s->w->err);
    pool_barrier(s->w->pool);
}

void layer_product_sum(struct step *s, const struct layer_product *p, const struct acts *x,
                       uint32_t rows)
{
    if (p->weights->bytes) {
        layer_products(s, p, 1, x, rows);
    } else { /* this rank has no head, or no width, here */
        if (s->thread == 0)
            memset(p->y, 0, rows * p->ldy * sizeof *p->y);
        pool_barrier(s->w->pool);
    }
    layer_sum(s, p->y, rows * p->ldy);
}

/* ---- attention ---- */

void forward_store_kv(struct step *s, const float *x, uint32_t row, uint32_t layer, bool v,
                      uint32_t head)
{
    const struct model_kv *kv = &s->w->kv;
    const struct row *r = &s->w->rows[row];
    uint32_t block = s->w->batch->segments[r->segment].blocks[r->pos / kv->block_tokens];
    uint32_t token = r->pos % kv->block_tokens;
    uint8_t *to = s->w->kv_pool + model_kv_piece_offset(kv, block, layer - s->p->layer0) +
                  (v ? kv->half_bytes : 0) + head * kv->head_bytes;
    if (kv->dtype == MODEL_KV_F16)
        s->ops->to_f16(x, (uint16_t *)(void *)to + (size_t)token * kv->head_dim, kv->head_dim);
    else
        kv_store((enum kv_type)kv->dtype, x, kv->head_dim, kv->block_tokens, token, to);
}

static void add_bias(struct step *s, float *x, uint32_t layer, uint32_t head)
{
    uint32_t q = s->p->q1 - s->p->q0, kv = s->p->kv1 - s->p->kv0, dim = s->c->head_dim;
    if (head < q)
        s->ops->add(x, layer_vec(s, layer, SLOT_Q_BIAS) + (size_t)head * dim, dim);
    else
        s->ops->add(x,
                    layer_vec(s, layer, head < q + kv ? SLOT_K_BIAS : SLOT_V_BIAS) +
                        (size_t)((head - q) % kv) * dim,
                    dim);
}

/* One head of one row: bias, norm, rotation, scale (q), store (k, v). Heads: queries, keys, values.
 */
static void head_done(struct step *s, uint32_t layer, uint32_t row, uint32_t head)
{
    const struct model_config *c = s->c;
    uint32_t queries = s->p->q1 - s->p->q0, kvs = s->p->kv1 - s->p->kv0;
    float *x = s->w->qkv + (size_t)row * s->w->qkv_cols + (size_t)head * c->head_dim;
    bool q = head < queries, v = head >= queries + kvs;
    if (c->qkv_bias)
        add_bias(s, x, layer, head);
    if (!v) {
        if (c->qk_norm) {
            const float *norm =
                image_vec(s->m, image_layer(s->m, layer, q ? SLOT_Q_NORM : SLOT_K_NORM));
            s->ops->rms_norm(x, norm, c->norm_eps, c->head_dim, x);
        }
        const float *cs = model_layer_is_local(c, layer) ? s->w->cs_local : s->w->cs_global;
        rope_apply(x, cs + (size_t)row * c->rope_dims, c->rope_dims, c->rope_neox);
    }
    if (q)
        s->ops->scale(x, c->attn_scale, c->head_dim);
    else
        forward_store_kv(s, x, row, layer, v, (head - queries) % kvs);
}

/* The layer's KV of these rows is in the pool of every rank of the stage. */
static void announce(struct step *s, uint32_t layer)
{
    const struct model_batch *b = s->w->batch;
    if (s->thread == 0 && b->layer_done && s->w->rc == 0)
        b->layer_done(b->ctx, layer);
}

static void heads_done(struct step *s, uint32_t layer)
{
    uint32_t heads = s->p->q1 - s->p->q0 + 2 * (s->p->kv1 - s->p->kv0), from, to;
    layer_split(s->w->n_rows * heads, s->threads, s->thread, &from, &to);
    for (uint32_t u = from; u < to; u++)
        head_done(s, layer, u / heads, u % heads);
    pool_barrier(s->w->pool);
    if (!layer_shared(s))
        announce(s, layer);
}

static void attention_unit(struct step *s, uint32_t layer, const struct attn_unit *u)
{
    const struct model_config *c = s->c;
    const struct model_kv *kv = &s->w->kv;
    uint32_t kv_head = (s->p->q0 + u->head) / (c->n_heads / c->n_kv_heads) - s->p->kv0;
    uint32_t v_dim = c->mla.rank ? c->mla.rank : c->head_dim;
    size_t heads = (size_t)(s->p->q1 - s->p->q0) * v_dim;
    uint64_t piece_at = (layer - s->p->layer0) * kv->piece_bytes;
    uint32_t row = u->shared ? 0 : u->row; /* rows of a group may lie anywhere in the batch */
    struct attn a = {
        .q = s->w->qkv + (size_t)row * s->w->qkv_cols + (size_t)u->head * c->head_dim,
        .out = s->w->att + row * heads + (size_t)u->head * v_dim,
        .ldq = s->w->qkv_cols,
        .ldo = heads,
        .rows = u->n,
        .group = u->heads,
        .head_dim = c->head_dim,
        .v_dim = c->mla.rank,
        .start = s->w->rows[row].pos,
        .each = u->shared ? s->w->together + u->row : NULL,
        .shared = u->shared,
        .window = model_layer_is_local(c, layer) ? c->sliding_window : 0,
        .pool = s->w->kv_pool,
        .blocks = s->w->batch->segments[u->segment].blocks,
        .block_bytes = kv->block_bytes,
        .k_at = piece_at + kv_head * kv->head_bytes,
        .v_at = piece_at + (kv->halves - 1) * kv->half_bytes + kv_head * kv->head_bytes,
        .block_tokens = kv->block_tokens,
        .kv = (enum kv_type)kv->dtype,
        .scratch = s->w->scratch[s->thread],
    };
    s->ops->attention(&a);
}

/* Later tiles see more positions: they are taken first, by whichever thread is free. */
static void attention(struct step *s, uint32_t layer)
{
    for (;;) {
        uint32_t u = atomic_fetch_add_explicit(&s->w->next_unit[layer], 1, memory_order_relaxed);
        if (u >= s->w->n_units)
            break;
        attention_unit(s, layer, &s->w->units[s->w->n_units - 1 - u]);
    }
    pool_barrier(s->w->pool);
}

/* ---- layers ---- */

static void latent_attention_part(struct step *s, uint32_t layer)
{
    struct layer_product o = {image_layer(s->m, layer, SLOT_O), s->w->out, s->c->d_model};
    mla_queries(s, layer);
    if (!layer_shared(s))
        announce(s, layer);
    attention(s, layer);
    mla_values(s, layer);
    struct acts x = layer_acts_of(s, (s->p->q1 - s->p->q0) * s->c->mla.v);
    layer_product_sum(s, &o, &x, s->w->n_rows);
    if (layer_shared(s))
        announce(s, layer);
}

static void attention_part(struct step *s, uint32_t layer)
{
    const struct model_config *c = s->c;
    struct model_work *w = s->w;
    uint32_t q = (s->p->q1 - s->p->q0) * c->head_dim, kv = (s->p->kv1 - s->p->kv0) * c->head_dim;
    struct layer_product qkv[] = {
        {image_layer(s->m, layer, SLOT_Q), w->qkv, w->qkv_cols},
        {image_layer(s->m, layer, SLOT_K), w->qkv + q, w->qkv_cols},
        {image_layer(s->m, layer, SLOT_V), w->qkv + q + kv, w->qkv_cols},
    };
    struct layer_product o = {image_layer(s->m, layer, SLOT_O), w->out, c->d_model};
    struct acts x = layer_acts_of(s, c->d_model);
    layer_products(s, qkv, 3, &x, w->n_rows);
    heads_done(s, layer);
    attention(s, layer);
    attention_to_acts(s);
    x = layer_acts_of(s, q);
    layer_product_sum(s, &o, &x, w->n_rows);
    if (layer_shared(s))
        announce(s, layer); /* their sum is here: they have come that far */
}

static void ffn_part(struct step *s, uint32_t layer)
{
    const struct model_config *c = s->c;
    struct model_work *w = s->w;
    uint32_t ff = s->p->ff1 - s->p->ff0;
    struct layer_product gate_up[] = {
        {image_layer(s->m, layer, SLOT_GATE), w->gate, ff},
        {image_layer(s->m, layer, SLOT_UP), w->up, ff},
    };
    struct layer_product down = {image_layer(s->m, layer, SLOT_DOWN), w->out, c->d_model};
    struct acts x = layer_acts_of(s, c->d_model);
    layer_products(s, gate_up, 2, &x, w->n_rows);
    gated_to_acts(s);
    x = layer_acts_of(s, ff);
    layer_product_sum(s, &down, &x, w->n_rows);
}

static void attention_stage(struct step *s, uint32_t layer)
{
    residual_norm(s, s->out, s->post, layer_vec(s, layer, SLOT_ATTN_NORM));
    if (s->c->mla.rank)
        latent_attention_part(s, layer);
    else
        attention_part(s, layer);
    residual_norm(s, s->w->out, layer_vec(s, layer, SLOT_POST_ATTN_NORM),
                  layer_vec(s, layer, SLOT_FFN_NORM));
    s->out = s->w->out;
    s->post = layer_vec(s, layer, SLOT_POST_FFN_NORM);
}

static const forward_stage dense[] = {attention_stage, ffn_part, NULL};
static const forward_stage experts[] = {attention_stage, moe_send,   moe_receive, moe_experts,
                                        moe_answer,      moe_finish, NULL};

const forward_stage *forward_stages(const struct step *s, uint32_t layer)
{
    return model_layer_has_experts(s->c, layer) ? experts : dense;
}

void forward_close(struct step *s)
{
    residual_norm(s, s->out, s->post, NULL);
}

static void layers(struct step *s)
{
    forward_open(s);
    for (uint32_t l = s->p->layer0; l < s->p->layer1 && !s->w->rc; l++)
        for (const forward_stage *run = forward_stages(s, l); *run; run++)
            (*run)(s, l);
    forward_close(s);
}

struct step forward_step(struct model_work *w, uint32_t thread)
{
    struct step s = {.w = w,
                     .m = w->m,
                     .c = &w->m->config,
                     .p = &w->m->part,
                     .ops = w->m->ops,
                     .thread = thread,
                     .threads = pool_threads(w->pool)};
    uint32_t rows = w->jobs & JOB_LAYERS ? w->n_rows : w->n_out;
    s.replicate = rows <= REPLICATE_ROWS;
    s.rows = s.replicate ? w->own[thread] : w->shared;
    s.r1 = rows;
    if (!s.replicate)
        layer_split(rows, s.threads, thread, &s.r0, &s.r1);
    return s;
}

void forward_thread(void *arg, uint32_t thread)
{
    struct model_work *w = arg;
    struct step s = forward_step(w, thread);
    if (w->jobs & JOB_EMBED)
        stage_embed(&s);
    else if (w->jobs & JOB_LAYERS)
        stage_take_in(&s);
    if (w->jobs & JOB_LAYERS)
        layers(&s);
    if (w->jobs & JOB_HEAD && !w->rc)
        stage_head(&s, !(w->jobs & JOB_LAYERS));
}

static int prepare(const struct model *m, struct model_work *w, void *kv_pool,
                   const struct model_batch *b, struct err *e)
{
    if (w->m != m || (uintptr_t)kv_pool % 64)
        return err_set(e, EINVAL,
                       "the work belongs to another model, or the KV pool is not aligned");
    w->kv_pool = kv_pool;
    return model_batch_check(w, b, e);
}

int model_forward(const struct model *m, struct model_work *w, void *kv_pool,
                  const struct model_batch *b, struct err *e)
{
    int rc = prepare(m, w, kv_pool, b, e);
    if (rc < 0)
        return rc;
    rc = stage_run(w, b, e);
    w->batch = NULL;
    return rc;
}

int model_begin(const struct model *m, struct model_work *w, void *kv_pool,
                const struct model_batch *b, struct err *e)
{
    int rc = prepare(m, w, kv_pool, b, e);
    ASSERT(stage_first_of_many(w));
    if (rc < 0)
        return rc;
    rc = stage_begin(w, b, e);
    w->batch = NULL;
    return rc;
}

int model_end(struct model_work *w, const struct model_batch *b, struct err *e)
{
    int rc = stage_end(w, b, e);
    w->batch = NULL;
    return rc;
}

uint32_t model_room_in_air(const struct model_work *w)
{
    return COMM_PIPE_BYTES / 2 / (uint32_t)(w->m->config.d_model * sizeof(float));
}
