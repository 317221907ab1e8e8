/* One step's kernels, in order, on the compute stream. Its arguments are the same whatever the
 * batch holds (that lies in device memory), so a step of a given shape can be captured. */
#include "worker/gpu/gpu_model_int.h"

#include <errno.h>

int gpu_product(struct gpu_model *gm, gpu_ptr x, const struct gpu_matrix *w, gpu_ptr y,
                uint32_t rows, struct err *e)
{
    struct gemm_args a = {.a = GPU_AS(const uint16_t, x),
                          .b = GPU_AS(const uint16_t, w->at),
                          .c = GPU_AS(float, y),
                          .m = rows,
                          .n = w->rows,
                          .k = w->cols};
    return gpu_gemm(gm->g, &a, e);
}

int gpu_sum(struct gpu_model *gm, gpu_ptr y, uint64_t n, struct err *e)
{
    return gm->tensor && n ? gpu_link_sum(gm->tensor, y, n, e) : 0;
}

/* A product whose columns are cut: of this rank's columns, which may be none, then the sum. */
static int product_sum(struct gpu_model *gm, gpu_ptr x, const struct gpu_matrix *w, uint32_t rows,
                       struct err *e)
{
    uint64_t n = (uint64_t)rows * gm->c.d_model;
    int rc = w->at ? gpu_product(gm, x, w, gm->w.out, rows, e)
                   : gm->g->ops->zero(gm->g, GPU_COMPUTE, gm->w.out, n * 4, e);
    return rc == 0 ? gpu_sum(gm, gm->w.out, n, e) : rc;
}

/* h += [post-norm of] y; x = norm of h, ready for the next product. y and w may be 0. */
static int norm(struct gpu_model *gm, gpu_ptr y, gpu_ptr post, gpu_ptr w, uint32_t rows,
                struct err *e)
{
    struct add_norm_args a = {.h = GPU_AS(float, gm->w.h),
                              .y = GPU_AS(const float, y),
                              .post = GPU_AS(const float, post),
                              .w = GPU_AS(const float, w),
                              .x = w ? GPU_AS(uint16_t, gm->w.x) : NULL,
                              .d = gm->c.d_model,
                              .eps = gm->c.norm_eps};
    return gpu_add_norm(gm->g, &a, rows, e);
}

static struct kv_view view(const struct gpu_model *gm, uint32_t layer)
{
    return (struct kv_view){.pool = GPU_AS(uint8_t, gm->pool),
                            .tables = GPU_AS(const uint32_t, gm->w.tables),
                            .table_ld = gm->table_ld,
                            .block_tokens = gm->kv.block_tokens,
                            .block_bytes = gm->kv.block_bytes,
                            .layer_at = (uint64_t)(layer - gm->part.layer0) * gm->kv.piece_bytes,
                            .half_bytes = gm->kv.half_bytes,
                            .head_bytes = gm->kv.head_bytes,
                            .form = gm->kv.dtype};
}

static int rotate(struct gpu_model *gm, const struct gpu_plan *p, uint32_t layer, struct err *e)
{
    const struct gpu_layer *l = &gm->layers[layer];
    gpu_ptr cs = model_layer_is_local(&gm->c, layer) ? gm->cs_local : gm->cs_global;
    struct rope_args a = {.qkv = GPU_AS(const float, gm->w.qkv),
                          .bias = GPU_AS(const float, l->bias),
                          .q_norm = GPU_AS(const float, l->q_norm),
                          .k_norm = GPU_AS(const float, l->k_norm),
                          .cs = GPU_AS(const float, cs),
                          .positions = GPU_AS(const uint32_t, gm->w.positions),
                          .sequences = GPU_AS(const uint32_t, gm->w.sequences),
                          .q = GPU_AS(uint16_t, gm->w.q),
                          .kv = view(gm, layer),
                          .heads = gm->heads,
                          .kv_heads = gm->kv_heads,
                          .dim = gm->c.head_dim,
                          .dims = gm->c.rope_dims,
                          .eps = gm->c.norm_eps,
                          .scale = gm->c.attn_scale,
                          .neox = gm->c.rope_neox};
    return gpu_rope_store(gm->g, &a, p->rows, e);
}

static int attention(struct gpu_model *gm, const struct gpu_plan *p, uint32_t layer, struct err *e)
{
    const struct model_config *c = &gm->c;
    uint32_t window = model_layer_is_local(c, layer) ? c->sliding_window : 0;
    uint32_t group = c->n_heads / c->n_kv_heads;
    int rc = 0;
    if (p->decode_rows) {
        struct decode_attention_args a = {.q = GPU_AS(const uint16_t, gm->w.q),
                                          .positions = GPU_AS(const uint32_t, gm->w.positions),
                                          .sequences = GPU_AS(const uint32_t, gm->w.sequences),
                                          .out = GPU_AS(uint16_t, gm->w.att),
                                          .part = GPU_AS(float, gm->w.part),
                                          .part_ml = GPU_AS(float, gm->w.part_ml),
                                          .kv = view(gm, layer),
                                          .heads = gm->heads,
                                          .kv_heads = gm->kv_heads,
                                          .first = gm->part.q0 % group,
                                          .group = group,
                                          .window = window};
        uint32_t splits = gpu_decode_splits(gm->g, p->decode_rows, gm->kv_heads, p->max_tokens);
        rc = gpu_decode_attention(gm->g, &a, p->decode_rows, c->head_dim, splits, e);
    }
    if (rc == 0 && p->tiles) {
        struct prefill_attention_args a = {.q = GPU_AS(const uint16_t, gm->w.q),
                                           .out = GPU_AS(uint16_t, gm->w.att),
                                           .tiles = GPU_AS(const struct attn_tile, gm->w.tiles),
                                           .kv = view(gm, layer),
                                           .heads = gm->heads,
                                           .kv_heads = gm->kv_heads,
                                           .first = gm->part.q0 % group,
                                           .group = group,
                                           .window = window};
        rc = gpu_prefill_attention(gm->g, &a, p->tiles, c->head_dim, e);
    }
    return rc;
}

/* ---- latent attention ---- */

/* Queries (by way of their own latent where the model has one) and the rows' latents. */
static int latent_project(struct gpu_model *gm, const struct gpu_layer *l, uint32_t rows,
                          struct err *e)
{
    int rc = gpu_product(gm, gm->w.x, &l->kv_a, gm->w.kv_a, rows, e);
    if (rc == 0 && !l->q_a.at)
        return gpu_product(gm, gm->w.x, &l->q_b, gm->w.qkv, rows, e);
    if (rc == 0)
        rc = gpu_product(gm, gm->w.x, &l->q_a, gm->w.q_a, rows, e);
    struct add_norm_args a = {.h = GPU_AS(float, gm->w.q_a),
                              .w = GPU_AS(const float, l->q_a_norm),
                              .x = GPU_AS(uint16_t, gm->w.x),
                              .d = gm->c.mla.q_rank,
                              .eps = gm->c.norm_eps};
    if (rc == 0)
        rc = gpu_add_norm(gm->g, &a, rows, e);
    return rc == 0 ? gpu_product(gm, gm->w.x, &l->q_b, gm->w.qkv, rows, e) : rc;
}

static int latent_prepare(struct gpu_model *gm, const struct gpu_plan *p, uint32_t layer,
                          struct err *e)
{
    const struct model_config *c = &gm->c;
    const struct gpu_layer *l = &gm->layers[layer];
    struct mla_prepare_args a = {.q = GPU_AS(const float, gm->w.qkv),
                                 .kv_a = GPU_AS(const float, gm->w.kv_a),
                                 .norm = GPU_AS(const float, l->kv_a_norm),
                                 .cs = GPU_AS(const float, gm->cs_global),
                                 .positions = GPU_AS(const uint32_t, gm->w.positions),
                                 .sequences = GPU_AS(const uint32_t, gm->w.sequences),
                                 .q_nope = GPU_AS(uint16_t, gm->w.q_nope),
                                 .q_out = GPU_AS(uint16_t, gm->w.q),
                                 .kv = view(gm, layer),
                                 .heads = gm->heads,
                                 .nope = c->mla.nope,
                                 .latent = c->mla.rank,
                                 .rope = c->rope_dims,
                                 .neox = c->rope_neox,
                                 .eps = c->norm_eps,
                                 .scale = c->attn_scale};
    struct head_gemm_args up = {.a = GPU_AS(const uint16_t, gm->w.q_nope),
                                .b = GPU_AS(const uint16_t, l->k_up.at),
                                .out = GPU_AS(uint16_t, gm->w.q),
                                .m = p->flat_rows,
                                .n = c->mla.rank,
                                .k = c->mla.nope,
                                .lda = gm->heads * c->mla.nope,
                                .a_head = c->mla.nope,
                                .ldo = gm->heads * c->head_dim,
                                .o_head = c->head_dim,
                                .f16 = gm->kv.dtype != MODEL_KV_BF16,
                                .scale = c->attn_scale};
    int rc = gpu_mla_prepare(gm->g, &a, p->flat_rows, e);
    if (rc == 0 && p->expands)
        rc = gpu_expand_prepare(gm, p, &a, e);
    return rc == 0 ? gpu_head_gemm(gm->g, &up, gm->heads, e) : rc;
}

/* Single tokens split over the context; rows of short chunks through the same kernel, one split
 * each; long chunks by themselves. */
static int latent_attend(struct gpu_model *gm, const struct gpu_plan *p, uint32_t layer,
                         struct err *e)
{
    const struct model_config *c = &gm->c;
    uint32_t blocks = (gm->heads + MLA_HEADS - 1) / MLA_HEADS, done = p->decode_rows;
    uint32_t splits = done ? gpu_decode_splits(gm->g, done, blocks, p->max_tokens) : 1;
    struct mla_decode_args a = {.q = GPU_AS(const uint16_t, gm->w.q),
                                .positions = GPU_AS(const uint32_t, gm->w.positions),
                                .sequences = GPU_AS(const uint32_t, gm->w.sequences),
                                .out = GPU_AS(uint16_t, gm->w.att),
                                .part = GPU_AS(float, gm->w.part),
                                .part_ml = GPU_AS(float, gm->w.part_ml),
                                .kv = view(gm, layer),
                                .heads = gm->heads};
    int rc = 0;
    if (done)
        rc = gpu_mla_decode(gm->g, &a, done, c->mla.rank, c->rope_dims, splits, e);
    if (rc == 0)
        rc = gpu_expand_attend(gm, p, &gm->layers[layer], &a.kv, e);
    if (rc < 0 || done == p->flat_rows)
        return rc;
    a.q += (size_t)done * gm->heads * c->head_dim;
    a.out += (size_t)done * gm->heads * c->mla.rank;
    a.positions += done;
    a.sequences += done;
    return gpu_mla_decode(gm->g, &a, p->flat_rows - done, c->mla.rank, c->rope_dims, 1, e);
}

static int latent_values(struct gpu_model *gm, const struct gpu_layer *l, uint32_t rows,
                         struct err *e)
{
    const struct model_mla *m = &gm->c.mla;
    struct head_gemm_args a = {.a = GPU_AS(const uint16_t, gm->w.att),
                               .b = GPU_AS(const uint16_t, l->v_up.at),
                               .out = GPU_AS(uint16_t, gm->w.values),
                               .m = rows,
                               .n = m->v,
                               .k = m->rank,
                               .lda = gm->heads * m->rank,
                               .a_head = m->rank,
                               .ldo = gm->heads * m->v,
                               .o_head = m->v,
                               .scale = 1};
    return gpu_head_gemm(gm->g, &a, gm->heads, e);
}

/* ---- feed-forward ---- */

int gpu_gate(struct gpu_model *gm, gpu_ptr wide, gpu_ptr act, uint32_t rows, uint32_t n,
             struct err *e)
{
    struct gated_args a = {.gate_up = GPU_AS(const float, wide),
                           .x = GPU_AS(uint16_t, act),
                           .n = n,
                           .gelu = gm->c.gelu};
    return gpu_gated(gm->g, &a, rows, e);
}

int gpu_dense(struct gpu_model *gm, const struct gpu_layer *l, uint32_t rows, struct err *e)
{
    if (!l->gate_up.at)
        return 0;
    int rc = gpu_product(gm, gm->w.x, &l->gate_up, gm->w.wide, rows, e);
    return rc == 0 ? gpu_gate(gm, gm->w.wide, gm->w.act, rows, l->gate_up.rows / 2, e) : rc;
}

/* ---- layers ---- */

/* Up to what the output product takes. A rank without heads has nothing to do. */
static int attend(struct gpu_model *gm, const struct gpu_plan *p, uint32_t i, struct err *e)
{
    const struct gpu_layer *l = &gm->layers[i];
    int rc = 0;
    if (gm->heads && gm->c.mla.rank) {
        rc = latent_project(gm, l, p->rows, e);
        rc = rc ? rc : latent_prepare(gm, p, i, e);
    } else if (gm->heads) {
        rc = gpu_product(gm, gm->w.x, &l->qkv, gm->w.qkv, p->rows, e);
        rc = rc ? rc : rotate(gm, p, i, e);
    }
    if (rc == 0 && p->record)
        rc = gm->g->ops->event_record(gm->g, gm->written[i - gm->part.layer0], GPU_COMPUTE, e);
    if (rc < 0 || !gm->heads)
        return rc;
    if (!gm->c.mla.rank)
        return attention(gm, p, i, e);
    rc = latent_attend(gm, p, i, e);
    return rc == 0 ? latent_values(gm, l, p->flat_rows, e) : rc;
}

/* A dummy batch has no rows: others' may come to the experts here. */
static int layer(struct gpu_model *gm, const struct gpu_plan *p, uint32_t i, struct err *e)
{
    const struct gpu_layer *l = &gm->layers[i];
    bool first = i == gm->part.layer0, moe = model_layer_has_experts(&gm->c, i);
    if (!p->rows)
        return moe ? gpu_experts(gm, l, 0, e) : 0;
    int rc = norm(gm, first ? 0 : gm->w.out, first ? 0 : gm->layers[i - 1].post_ffn, l->attn_norm,
                  p->rows, e);
    if (rc == 0)
        rc = attend(gm, p, i, e);
    if (rc == 0)
        rc = product_sum(gm, gm->c.mla.rank ? gm->w.values : gm->w.att, &l->o, p->rows, e);
    if (rc == 0)
        rc = norm(gm, gm->w.out, l->post_attn, l->ffn_norm, p->rows, e);
    if (rc < 0)
        return rc;
    if (moe)
        return gpu_experts(gm, l, p->rows, e);
    rc = gpu_dense(gm, l, p->rows, e);
    return rc == 0 ? product_sum(gm, gm->w.act, &l->down, p->rows, e) : rc;
}

/* ---- ends of a stage ---- */

struct model_part gpu_part_of(const struct gpu_model *gm, uint32_t tensor_rank)
{
    struct model_shard s = gm->shard;
    struct model_part p;
    s.tensor_rank = tensor_rank;
    model_part_of(&gm->c, &s, &p);
    return p;
}

/* Every rank's part of the logits to the first one. */
static int gather(struct gpu_model *gm, uint32_t rows, struct err *e)
{
    struct nccl_flow flows[MODEL_RANKS_MAX];
    uint64_t at = 0, mine = (uint64_t)rows * gm->vocab * 4;
    uint32_t n = 0;
    if (!gm->tensor)
        return 0;
    if (gm->shard.tensor_rank) {
        flows[n++] = (struct nccl_flow){0, true, gm->w.logits, mine};
        return gpu_link_exchange(gm->tensor, flows, n, false, e);
    }
    for (uint32_t r = 0; r < gm->shard.tensor; r++) {
        struct model_part p = gpu_part_of(gm, r);
        uint64_t bytes = (uint64_t)rows * (p.vocab1 - p.vocab0) * 4;
        if (r)
            flows[n++] = (struct nccl_flow){r, false, gm->w.gathered + at, bytes};
        at += bytes;
    }
    int rc = mine ? gm->g->ops->copy(gm->g, GPU_COMPUTE, gm->w.gathered, gm->w.logits, mine, e) : 0;
    return rc == 0 ? gpu_link_exchange(gm->tensor, flows, n, false, e) : rc;
}

/* Logits of rows `take` of h (0: the first ones). */
static int head(struct gpu_model *gm, gpu_ptr h, gpu_ptr take, uint32_t outputs, struct err *e)
{
    struct add_norm_args a = {.h = GPU_AS(float, h),
                              .w = GPU_AS(const float, gm->out_norm),
                              .x = GPU_AS(uint16_t, gm->w.x),
                              .take = GPU_AS(const uint32_t, take),
                              .d = gm->c.d_model,
                              .eps = gm->c.norm_eps};
    int rc = gpu_add_norm(gm->g, &a, outputs, e);
    if (rc == 0 && gm->vocab)
        rc = gpu_product(gm, gm->w.x, &gm->head, gm->w.logits, outputs, e);
    return rc == 0 ? gather(gm, outputs, e) : rc;
}

static int move_rows(struct gpu_model *gm, uint32_t peer, bool out, gpu_ptr h, uint32_t rows,
                     struct err *e)
{
    uint64_t bytes = rows ? (uint64_t)rows * gm->c.d_model * 4 : 16; /* a word that it is done */
    struct nccl_flow f = {peer, out, h, bytes};
    return gpu_link_exchange(gm->pipeline, &f, 1, false, e);
}

static int come_in(struct gpu_model *gm, const struct gpu_plan *p, struct err *e)
{
    struct embed_args a = {.h = GPU_AS(float, gm->w.h),
                           .table = GPU_AS(const uint16_t, gm->embed.at),
                           .tokens = GPU_AS(const uint32_t, gm->w.tokens),
                           .d = gm->c.d_model,
                           .first = gm->part.vocab0,
                           .n = gm->vocab,
                           .scale = gm->c.embed_scale};
    if (!gm->part.first)
        return move_rows(gm, gpu_link_rank(gm->pipeline) - 1, false, gm->w.h, p->rows, e);
    int rc = gpu_embed(gm->g, &a, p->rows, e);
    return rc == 0 ? gpu_sum(gm, gm->w.h, (uint64_t)p->rows * gm->c.d_model, e) : rc;
}

/* h is whole then; the last of several stages keeps the rows that give logits. */
static int go_out(struct gpu_model *gm, const struct gpu_plan *p, struct err *e)
{
    int rc = norm(gm, gm->w.out, gm->layers[gm->part.layer1 - 1].post_ffn, 0, p->rows, e);
    if (rc < 0 || !gm->pipeline)
        return rc;
    if (!gpu_is_last(gm))
        return move_rows(gm, gpu_link_rank(gm->pipeline) + 1, true, gm->w.h, p->rows, e);
    struct relayout_args a = {.from = GPU_AS(const uint8_t, gm->w.h),
                              .to = GPU_AS(uint8_t, gm->w.finals),
                              .runs = GPU_AS(const struct run, gm->w.runs)};
    return gpu_relayout(gm->g, GPU_COMPUTE, &a, p->outputs, e);
}

int gpu_step(struct gpu_model *gm, const struct gpu_plan *p, struct err *e)
{
    int rc = p->rows ? come_in(gm, p, e) : 0;
    for (uint32_t i = gm->part.layer0; i < gm->part.layer1 && rc == 0; i++)
        rc = layer(gm, p, i, e);
    return rc == 0 && p->rows ? go_out(gm, p, e) : rc;
}

int gpu_step_end(struct gpu_model *gm, uint32_t outputs, struct err *e)
{
    if (!gm->pipeline)
        return outputs ? head(gm, gm->w.h, gm->w.take, outputs, e) : 0;
    if (gpu_is_last(gm))
        return move_rows(gm, 0, true, gm->w.finals, outputs, e);
    if (!gm->part.first)
        return 0;
    int rc = move_rows(gm, gpu_link_ranks(gm->pipeline) - 1, false, gm->w.finals, outputs, e);
    return rc == 0 && outputs ? head(gm, gm->w.finals, 0, outputs, e) : rc;
}
