/* A layer with experts: the choice, rows sorted by expert, products grouped by expert, their sum.
 */
#include "worker/gpu/ep.h"
#include "worker/gpu/gpu_model_int.h"

int gpu_choose(struct gpu_model *gm, const struct gpu_layer *l, uint32_t rows, struct err *e)
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
    int rc = gpu_product(gm, gm->w.x, &l->router, gm->w.scores, rows, e);
    return rc == 0 ? gpu_moe_gate(gm->g, &a, rows, e) : rc;
}

int gpu_shared(struct gpu_model *gm, const struct gpu_layer *l, uint32_t rows, struct err *e)
{
    if (!l->down.at)
        return gm->g->ops->zero(gm->g, GPU_COMPUTE, gm->w.out, (uint64_t)rows * gm->c.d_model * 4,
                                e);
    int rc = gpu_dense(gm, l, rows, e);
    return rc == 0 ? gpu_product(gm, gm->w.act, &l->down, gm->w.out, rows, e) : rc;
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

int gpu_routed(struct gpu_model *gm, const struct gpu_layer *l, gpu_ptr x, gpu_ptr ids,
               gpu_ptr weights, gpu_ptr shared, gpu_ptr y, uint32_t rows, struct err *e)
{
    uint32_t choices = rows * gm->c.moe.used, places = gpu_moe_places(choices, gm->experts);
    struct moe_place_args s = {.ids = GPU_AS(const uint32_t, ids),
                               .counts = GPU_AS(const uint32_t, gm->w.counts),
                               .place = GPU_AS(uint32_t, gm->w.place),
                               .row_of = GPU_AS(uint32_t, gm->w.row_of),
                               .expert_of = GPU_AS(uint32_t, gm->w.expert_of),
                               .n = choices,
                               .top_k = gm->c.moe.used,
                               .experts = gm->experts,
                               .first = gm->part.expert0,
                               .places = places};
    struct combine_args a = {.c = GPU_AS(const float, gm->w.places_out),
                             .weights = GPU_AS(const float, weights),
                             .shared = GPU_AS(const float, shared),
                             .place = GPU_AS(const uint32_t, gm->w.place),
                             .y = GPU_AS(float, y),
                             .d = gm->c.d_model,
                             .top_k = gm->c.moe.used};
    int rc = gpu_moe_sort(gm->g, &s, GPU_AS(uint32_t, gm->w.counts), e);
    if (rc == 0)
        rc = grouped(gm, x, gm->w.row_of, &l->expert_gate_up, gm->w.places_wide, places, e);
    if (rc == 0)
        rc = gpu_gate(gm, gm->w.places_wide, gm->w.places_act, places, gm->d_expert, e);
    if (rc == 0)
        rc = grouped(gm, gm->w.places_act, 0, &l->expert_down, gm->w.places_out, places, e);
    return rc == 0 ? gpu_combine(gm->g, &a, rows, e) : rc;
}

int gpu_experts(struct gpu_model *gm, const struct gpu_layer *l, uint32_t rows, struct err *e)
{
    bool any = gm->experts && gm->d_expert;
    int rc;
    if (gm->ep) {
        rc = gpu_ep_layer(gm, l, rows, e);
    } else if (!rows) {
        return 0;
    } else {
        bool shared = l->down.at != 0;
        rc = any ? gpu_choose(gm, l, rows, e) : 0;
        if (rc == 0 && (shared || !any))
            rc = gpu_shared(gm, l, rows, e);
        if (rc == 0 && any)
            rc = gpu_routed(gm, l, gm->w.x, gm->w.ids, gm->w.weights, shared ? gm->w.out : 0,
                            gm->w.out, rows, e);
    }
    return rc == 0 ? gpu_sum(gm, gm->w.out, (uint64_t)rows * gm->c.d_model, e) : rc;
}
