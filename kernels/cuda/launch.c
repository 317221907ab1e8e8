#include "kernels/cuda/launch_int.h"

int launch_put(struct gpu *g, enum gpu_stream s, const char *kernel, const uint32_t grid[3],
               uint32_t block, uint32_t shared, const void *args, size_t bytes, struct err *e)
{
    struct gpu_launch l = {.kernel = kernel,
                           .grid = {grid[0], grid[1], grid[2]},
                           .block = {block, 1, 1},
                           .shared_bytes = shared,
                           .args = args,
                           .args_bytes = bytes};
    if (!grid[0] || !grid[1] || !grid[2])
        return 0;
    if (grid[1] > 65535 || grid[2] > 65535)
        return err_set(e, EINVAL, "GPU operation: %s has a grid of %u x %u x %u", kernel, grid[0],
                       grid[1], grid[2]);
    if (shared > g->info.shared_block_bytes)
        return err_set(e, EINVAL,
                       "GPU operation: %s needs %u bytes of shared memory, the device has %llu",
                       kernel, shared, (unsigned long long)g->info.shared_block_bytes);
    return g->ops->launch(g, s, &l, e);
}

int gpu_embed(struct gpu *g, const struct embed_args *a, uint32_t rows, struct err *e)
{
    return PUT("embed_k", rows, 1, 1, 128, 0);
}

int gpu_add_norm(struct gpu *g, const struct add_norm_args *a, uint32_t rows, struct err *e)
{
    CHECK(a->d >= 1 && a->d <= 32768, "a norm over %u values", a->d);
    CHECK(!a->x || a->w, "a norm without weights");
    return PUT("add_norm_k", rows, 1, 1, 256, (a->d + 32) * 4);
}

int gpu_gated(struct gpu *g, const struct gated_args *a, uint32_t rows, struct err *e)
{
    return PUT("gated_k", ceil_div(a->n, 1024), rows, 1, 256, 0);
}

/* ---- mixture of experts ---- */

int gpu_moe_gate(struct gpu *g, const struct moe_gate_args *a, uint32_t rows, struct err *e)
{
    CHECK(a->experts >= 1 && a->experts <= EXPERTS_MAX && a->top_k >= 1 && a->top_k <= TOP_K_MAX &&
              a->top_k <= a->experts,
          "%u of %u experts", a->top_k, a->experts);
    CHECK(a->groups <= 1 || (a->groups <= 32 && a->experts % a->groups == 0 &&
                             a->groups_used >= 1 && a->groups_used <= a->groups &&
                             a->top_k <= a->groups_used * (a->experts / a->groups)),
          "%u of %u expert groups", a->groups_used, a->groups);
    return PUT("moe_gate_k", rows, 1, 1, 32, a->experts * 8 + 256);
}

uint32_t gpu_moe_places(uint32_t n, uint32_t experts)
{
    uint32_t used = experts < n ? experts : n; /* each of them wastes less than a tile */
    return ceil_div(n + used * (GEMM_TILE - 1), GEMM_TILE) * GEMM_TILE;
}

int gpu_moe_sort(struct gpu *g, const struct moe_place_args *a, uint32_t *counts, struct err *e)
{
    CHECK(a->places % GEMM_TILE == 0 && a->places >= gpu_moe_places(a->n, a->experts),
          "%u places for %u choices", a->places, a->n);
    int rc = g->ops->zero(g, GPU_COMPUTE, (uintptr_t)counts, a->experts * sizeof *counts, e);
    if (rc < 0)
        return rc;
    struct moe_count_args c = {
        .ids = a->ids, .counts = counts, .n = a->n, .experts = a->experts, .first = a->first};
    uint32_t blocks = ceil_div(a->n, 256);
    rc = launch_put(g, GPU_COMPUTE, "moe_count_k",
                    (const uint32_t[]){blocks < 64 ? blocks : 64, 1, 1}, 256, 0, &c, sizeof c, e);
    return rc < 0 ? rc : PUT("moe_place_k", a->experts, 1, 1, 32, 0);
}

int gpu_grouped_gemm(struct gpu *g, const struct grouped_gemm_args *a, uint32_t places,
                     struct err *e)
{
    CHECK(a->k % 8 == 0 && places % GEMM_TILE == 0, "a grouped product of %u columns, %u places",
          a->k, places);
    return PUT("grouped_gemm_k", ceil_div(a->n, GEMM_TILE), places / GEMM_TILE, 1, 128,
               GEMM_SHARED);
}

int gpu_combine(struct gpu *g, const struct combine_args *a, uint32_t rows, struct err *e)
{
    return PUT("combine_k", rows, 1, 1, 256, 0);
}

/* ---- moving and choosing ---- */

int gpu_fp8_pack(struct gpu *g, const struct fp8_pack_args *a, uint32_t rows, struct err *e)
{
    CHECK(a->d % 8 == 0, "FP8 rows of %u channels", a->d);
    return PUT("fp8_pack_k", rows, 1, 1, 128, 0);
}

int gpu_fp8_unpack(struct gpu *g, const struct fp8_unpack_args *a, uint32_t rows, struct err *e)
{
    CHECK(a->d % 8 == 0, "FP8 rows of %u channels", a->d);
    return PUT("fp8_unpack_k", rows, 1, 1, 128, 0);
}

int gpu_ep_list(struct gpu *g, const struct ep_list_args *a, struct err *e)
{
    CHECK(a->top_k >= 1 && a->top_k <= TOP_K_MAX, "%u experts a row", a->top_k);
    int rc = PUT("ep_count_k", a->ranks, 1, 1, 32, 0);
    return rc < 0 ? rc : PUT("ep_list_k", a->ranks, 1, 1, 32, 0);
}

int gpu_ep_pack(struct gpu *g, const struct ep_pack_args *a, uint32_t items, struct err *e)
{
    CHECK(a->d % 8 == 0, "rows of %u channels", a->d);
    return PUT("ep_pack_k", items, 1, 1, 128, 0);
}

int gpu_ep_join(struct gpu *g, const struct ep_join_args *a, uint32_t rows, struct err *e)
{
    return PUT("ep_join_k", rows, 1, 1, 256, 0);
}

int gpu_relayout(struct gpu *g, enum gpu_stream s, const struct relayout_args *a, uint32_t runs,
                 struct err *e)
{
    return launch_put(g, s, "relayout_k", (const uint32_t[]){runs, 1, 1}, 128, 0, a, sizeof *a, e);
}

int gpu_bias(struct gpu *g, const struct bias_args *a, struct err *e)
{
    return PUT("bias_k", ceil_div(a->n, 256), 1, 1, 256, 0);
}

int gpu_sample(struct gpu *g, const struct sample_args *a, uint32_t rows, struct err *e)
{
    CHECK(a->parts >= 1 && a->parts <= SAMPLE_PARTS_MAX && !a->cut[0] && a->cut[a->parts],
          "a choice among no tokens, or logits in %u parts", a->parts);
    return PUT("sample_k", rows, 1, 1, 1024, (1024 + 32) * 8 + 256);
}

int gpu_top_n(struct gpu *g, const struct top_n_args *a, uint32_t rows, struct err *e)
{
    CHECK(a->n >= 1 && a->n <= TOP_N_MAX && a->n <= a->vocab, "the %u greatest of %u", a->n,
          a->vocab);
    return PUT("top_n_k", rows, 1, 1, 1024, 256);
}
