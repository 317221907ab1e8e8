/* One step's kernels, in order, on the compute stream. Its arguments are the same whatever the
 * batch holds (that lies in device memory), so a step of a given shape can be captured. */
#include "worker/gpu/gpu_model_int.h"

#include <errno.h>

static int product(struct gpu_model *gm, gpu_ptr x, const struct gpu_matrix *w, gpu_ptr y,
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
                            .layer_at = (uint64_t)layer * gm->kv.piece_bytes,
                            .half_bytes = gm->kv.half_bytes,
                            .head_bytes = gm->kv.head_bytes};
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
                          .heads = gm->c.n_heads,
                          .kv_heads = gm->c.n_kv_heads,
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
    int rc = 0;
    if (p->decode_rows) {
        struct decode_attention_args a = {.q = GPU_AS(const uint16_t, gm->w.q),
                                          .positions = GPU_AS(const uint32_t, gm->w.positions),
                                          .sequences = GPU_AS(const uint32_t, gm->w.sequences),
                                          .out = GPU_AS(uint16_t, gm->w.att),
                                          .part = GPU_AS(float, gm->w.part),
                                          .part_ml = GPU_AS(float, gm->w.part_ml),
                                          .kv = view(gm, layer),
                                          .heads = c->n_heads,
                                          .kv_heads = c->n_kv_heads,
                                          .window = window};
        uint32_t splits = gpu_decode_splits(gm->g, p->decode_rows, c->n_kv_heads, p->max_tokens);
        rc = gpu_decode_attention(gm->g, &a, p->decode_rows, c->head_dim, splits, e);
    }
    if (rc == 0 && p->tiles) {
        struct prefill_attention_args a = {.q = GPU_AS(const uint16_t, gm->w.q),
                                           .out = GPU_AS(uint16_t, gm->w.att),
                                           .tiles = GPU_AS(const struct attn_tile, gm->w.tiles),
                                           .kv = view(gm, layer),
                                           .heads = c->n_heads,
                                           .kv_heads = c->n_kv_heads,
                                           .window = window};
        rc = gpu_prefill_attention(gm->g, &a, p->tiles, c->head_dim, e);
    }
    return rc;
}

static int gate(struct gpu_model *gm, gpu_ptr wide, gpu_ptr act, uint32_t rows, uint32_t n,
                struct err *e)
{
    struct gated_args a = {.gate_up = GPU_AS(const float, wide),
                           .x = GPU_AS(uint16_t, act),
                           .n = n,
                           .gelu = gm->c.gelu};
    return gpu_gated(gm->g, &a, rows, e);
}

/* The dense part, or the shared experts: into `out`. */
static int dense(struct gpu_model *gm, const struct gpu_layer *l, uint32_t rows, struct err *e)
{
    int rc = product(gm, gm->w.x, &l->gate_up, gm->w.wide, rows, e);
    if (rc == 0)
        rc = gate(gm, gm->w.wide, gm->w.act, rows, l->gate_up.rows / 2, e);
    return rc == 0 ? product(gm, gm->w.act, &l->down, gm->w.out, rows, e) : rc;
}

static int choose(struct gpu_model *gm, const struct gpu_layer *l, uint32_t rows, struct err *e)
{
    const struct model_moe *m = &gm->c.moe;
    struct moe_gate_args a = {.logits = GPU_AS(const float, gm->w.scores),
                              .bias = GPU_AS(const float, l->router_bias),
                              .ids = GPU_AS(uint32_t, gm->w.ids),
                              .weights = GPU_AS(float, gm->w.weights),
                              .experts = m->experts,
                              .top_k = m->used,
                              .score = m->sigmoid,
                              .groups = m->groups ? m->groups : 1,
                              .groups_used = m->groups_used ? m->groups_used : 1,
                              .group_top = m->top2 ? 2 : 1,
                              .normalize = m->normalise,
                              .scale = m->scale};
    struct moe_place_args s = {.ids = a.ids,
                               .counts = GPU_AS(const uint32_t, gm->w.counts),
                               .place = GPU_AS(uint32_t, gm->w.place),
                               .row_of = GPU_AS(uint32_t, gm->w.row_of),
                               .expert_of = GPU_AS(uint32_t, gm->w.expert_of),
                               .n = rows * m->used,
                               .top_k = m->used,
                               .experts = m->experts,
                               .places = gpu_moe_places(rows * m->used, m->experts)};
    int rc = product(gm, gm->w.x, &l->router, gm->w.scores, rows, e);
    if (rc == 0)
        rc = gpu_moe_gate(gm->g, &a, rows, e);
    return rc == 0 ? gpu_moe_sort(gm->g, &s, GPU_AS(uint32_t, gm->w.counts), e) : rc;
}

static int grouped(struct gpu_model *gm, gpu_ptr x, gpu_ptr row_of, const struct gpu_matrix *w,
                   gpu_ptr y, uint32_t places, struct err *e)
{
    struct grouped_gemm_args a = {.a = GPU_AS(const uint16_t, x),
                                  .b = GPU_AS(const uint16_t, w->at),
                                  .row_of = GPU_AS(const uint32_t, row_of),
                                  .expert_of = GPU_AS(const uint32_t, gm->w.expert_of),
                                  .c = GPU_AS(float, y),
                                  .n = w->rows,
                                  .k = w->cols};
    return gpu_grouped_gemm(gm->g, &a, places, e);
}

static int experts(struct gpu_model *gm, const struct gpu_layer *l, uint32_t rows, struct err *e)
{
    const struct model_moe *m = &gm->c.moe;
    uint32_t places = gpu_moe_places(rows * m->used, m->experts);
    bool shared = l->gate_up.at != 0;
    int rc = choose(gm, l, rows, e);
    if (rc == 0 && shared)
        rc = dense(gm, l, rows, e);
    if (rc == 0)
        rc = grouped(gm, gm->w.x, gm->w.row_of, &l->expert_gate_up, gm->w.places_wide, places, e);
    if (rc == 0)
        rc = gate(gm, gm->w.places_wide, gm->w.places_act, places, m->d_expert, e);
    if (rc == 0)
        rc = grouped(gm, gm->w.places_act, 0, &l->expert_down, gm->w.places_out, places, e);
    struct combine_args a = {.c = GPU_AS(const float, gm->w.places_out),
                             .weights = GPU_AS(const float, gm->w.weights),
                             .shared = shared ? GPU_AS(const float, gm->w.out) : NULL,
                             .place = GPU_AS(const uint32_t, gm->w.place),
                             .y = GPU_AS(float, gm->w.out),
                             .d = gm->c.d_model,
                             .top_k = m->used};
    return rc == 0 ? gpu_combine(gm->g, &a, rows, e) : rc;
}

static int layer(struct gpu_model *gm, const struct gpu_plan *p, uint32_t i, bool record,
                 struct err *e)
{
    const struct gpu_layer *l = &gm->layers[i];
    gpu_ptr post = i ? gm->layers[i - 1].post_ffn : 0;
    int rc = norm(gm, i ? gm->w.out : 0, post, l->attn_norm, p->rows, e);
    if (rc == 0)
        rc = product(gm, gm->w.x, &l->qkv, gm->w.qkv, p->rows, e);
    if (rc == 0)
        rc = rotate(gm, p, i, e);
    if (rc == 0 && record)
        rc = gm->g->ops->event_record(gm->g, gm->written[i], GPU_COMPUTE, e);
    if (rc == 0)
        rc = attention(gm, p, i, e);
    if (rc == 0)
        rc = product(gm, gm->w.att, &l->o, gm->w.out, p->rows, e);
    if (rc == 0)
        rc = norm(gm, gm->w.out, l->post_attn, l->ffn_norm, p->rows, e);
    if (rc < 0)
        return rc;
    return model_layer_has_experts(&gm->c, i) ? experts(gm, l, p->rows, e)
                                              : dense(gm, l, p->rows, e);
}

static int outputs(struct gpu_model *gm, const struct gpu_plan *p, struct err *e)
{
    int rc = norm(gm, gm->w.out, gm->layers[gm->c.n_layers - 1].post_ffn, 0, p->rows, e);
    if (rc < 0 || !p->outputs)
        return rc;
    struct add_norm_args a = {.h = GPU_AS(float, gm->w.h),
                              .w = GPU_AS(const float, gm->out_norm),
                              .x = GPU_AS(uint16_t, gm->w.x),
                              .take = GPU_AS(const uint32_t, gm->w.take),
                              .d = gm->c.d_model,
                              .eps = gm->c.norm_eps};
    rc = gpu_add_norm(gm->g, &a, p->outputs, e);
    return rc == 0 ? product(gm, gm->w.x, &gm->head, gm->w.logits, p->outputs, e) : rc;
}

int gpu_step(struct gpu_model *gm, const struct gpu_plan *p, bool record, struct err *e)
{
    struct embed_args a = {.h = GPU_AS(float, gm->w.h),
                           .table = GPU_AS(const uint16_t, gm->embed.at),
                           .tokens = GPU_AS(const uint32_t, gm->w.tokens),
                           .d = gm->c.d_model,
                           .scale = gm->c.embed_scale};
    int rc = gpu_embed(gm->g, &a, p->rows, e);
    for (uint32_t i = 0; i < gm->c.n_layers && rc == 0; i++)
        rc = layer(gm, p, i, record, e);
    return rc == 0 ? outputs(gm, p, e) : rc;
}
