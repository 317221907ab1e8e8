#include "kernels/cuda/launch.h"

#include <errno.h>
#include <stdio.h>

#define CHECK(cond, ...)                                                                           \
    do {                                                                                           \
        if (!(cond))                                                                               \
            return err_set(e, EINVAL, "GPU operation: " __VA_ARGS__);                              \
    } while (0)

static int put(struct gpu *g, enum gpu_stream s, const char *kernel, const uint32_t grid[3],
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

#define PUT(kernel, x, y, z, block, shared)                                                        \
    put(g, GPU_COMPUTE, kernel, (const uint32_t[]){x, y, z}, block, shared, a, sizeof *a, e)

static uint32_t ceil_div(uint32_t a, uint32_t b)
{
    return (a + b - 1) / b;
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

int gpu_rope_store(struct gpu *g, const struct rope_args *a, uint32_t rows, struct err *e)
{
    CHECK(a->dim % 2 == 0 && a->dims <= a->dim && a->dims % 2 == 0, "rotation of %u of %u channels",
          a->dims, a->dim);
    CHECK(a->kv_heads && a->kv.block_tokens, "rotation without heads or blocks");
    return PUT("rope_store_k", rows, 1, 1, 256, 0);
}

int gpu_gated(struct gpu *g, const struct gated_args *a, uint32_t rows, struct err *e)
{
    return PUT("gated_k", ceil_div(a->n, 1024), rows, 1, 256, 0);
}

/* ---- attention ---- */

bool gpu_attention_has(uint32_t dim)
{
    return dim == 16 || dim == 32 || dim == 64 || dim == 128 || dim == 256;
}

uint32_t gpu_decode_splits(const struct gpu *g, uint32_t rows, uint32_t blocks_a_row,
                           uint32_t tokens)
{
    uint32_t blocks = rows * blocks_a_row, want = 2 * g->info.sm_count;
    uint32_t splits = blocks ? ceil_div(want, blocks) : 1, most = ceil_div(tokens, 256);
    splits = splits < most ? splits : most;
    return splits < 1 ? 1 : splits > 32 ? 32 : splits;
}

static int merge(struct gpu *g, const float *part, const float *part_ml, uint16_t *out,
                 uint32_t rows, uint32_t dim, uint32_t splits, struct err *e)
{
    struct decode_merge_args m = {
        .part = part, .part_ml = part_ml, .out = out, .splits = splits, .dim = dim};
    const struct decode_merge_args *a = &m;
    return splits > 1 ? PUT("decode_merge_k", rows, 1, 1, dim, 0) : 0;
}

int gpu_decode_attention(struct gpu *g, const struct decode_attention_args *a, uint32_t rows,
                         uint32_t dim, uint32_t splits, struct err *e)
{
    CHECK(gpu_attention_has(dim), "attention heads of %u channels", dim);
    CHECK(a->group && a->kv_heads && a->first < a->group &&
              (a->first + a->heads + a->group - 1) / a->group == a->kv_heads,
          "%u query heads over %u KV heads in groups of %u", a->heads, a->kv_heads, a->group);
    CHECK(splits >= 1 && (splits == 1 || (a->part && a->part_ml)), "no room for partial results");
    uint32_t group = a->group, chunk = dim < 64 ? 4 : 1;
    while (dim >= 64 && chunk < group && chunk < 8)
        chunk *= 2;
    char name[64];
    snprintf(name, sizeof name, "decode_attention_%u_%u_k", dim, chunk);
    uint32_t slots = 4 * 256 / dim, shared = slots * chunk * (dim + 2) * 4;
    int rc = PUT(name, splits, a->kv_heads * ceil_div(group, chunk), rows, 128, shared);
    if (rc < 0)
        return rc;
    return merge(g, a->part, a->part_ml, a->out, rows * a->heads, dim, splits, e);
}

int gpu_prefill_attention(struct gpu *g, const struct prefill_attention_args *a, uint32_t tiles,
                          uint32_t dim, struct err *e)
{
    CHECK(gpu_attention_has(dim), "attention heads of %u channels", dim);
    CHECK(a->group && a->kv_heads && a->first < a->group &&
              (a->first + a->heads + a->group - 1) / a->group == a->kv_heads,
          "%u query heads over %u KV heads in groups of %u", a->heads, a->kv_heads, a->group);
    CHECK(a->kv.block_tokens % ATTN_TOKENS == 0 && a->kv.block_tokens, "blocks of %u tokens",
          a->kv.block_tokens);
    char name[64];
    snprintf(name, sizeof name, "prefill_attention_%u_k", dim);
    return PUT(name, tiles, a->heads, 1, 128, (ATTN_ROWS + 4 * ATTN_TOKENS) * (dim + 8) * 2);
}

bool gpu_mla_has(uint32_t latent, uint32_t rope)
{
    return (latent == 512 && rope == 64) || (latent == 64 && rope == 16);
}

int gpu_mla_prepare(struct gpu *g, const struct mla_prepare_args *a, uint32_t rows, struct err *e)
{
    CHECK(a->rope % 2 == 0 && a->kv.block_tokens, "a latent of %u and %u channels", a->latent,
          a->rope);
    return PUT("mla_prepare_k", rows, 1, 1, 256, 0);
}

int gpu_mla_decode(struct gpu *g, const struct mla_decode_args *a, uint32_t rows, uint32_t latent,
                   uint32_t rope, uint32_t splits, struct err *e)
{
    CHECK(gpu_mla_has(latent, rope), "a latent of %u and %u channels", latent, rope);
    CHECK(splits >= 1 && (splits == 1 || (a->part && a->part_ml)), "no room for partial results");
    char name[64];
    snprintf(name, sizeof name, "mla_decode_%u_%u_k", latent, rope);
    uint32_t shared = (MLA_HEADS + 2 * ATTN_TOKENS) * (latent + rope + 8) * 2 +
                      MLA_HEADS * (ATTN_TOKENS + 8) * 2 + 8 * MLA_HEADS * 4;
    int rc = PUT(name, splits, ceil_div(a->heads, MLA_HEADS), rows, 128, shared);
    if (rc < 0)
        return rc;
    return merge(g, a->part, a->part_ml, a->out, rows * a->heads, latent, splits, e);
}

int gpu_head_gemm(struct gpu *g, const struct head_gemm_args *a, uint32_t heads, struct err *e)
{
    CHECK(a->k && a->k % 8 == 0 && a->lda % 8 == 0 && a->a_head % 8 == 0,
          "a product of %u columns a head", a->k);
    return PUT("head_gemm_k", ceil_div(a->n, GEMM_TILE), ceil_div(a->m, GEMM_TILE), heads, 128,
               GEMM_SHARED);
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
    rc = put(g, GPU_COMPUTE, "moe_count_k", (const uint32_t[]){blocks < 64 ? blocks : 64, 1, 1},
             256, 0, &c, sizeof c, e);
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
    return put(g, s, "relayout_k", (const uint32_t[]){runs, 1, 1}, 128, 0, a, sizeof *a, e);
}

int gpu_bias(struct gpu *g, const struct bias_args *a, struct err *e)
{
    return PUT("bias_k", ceil_div(a->n, 256), 1, 1, 256, 0);
}

int gpu_sample(struct gpu *g, const struct sample_args *a, uint32_t rows, struct err *e)
{
    CHECK(a->vocab >= 1, "a choice among no tokens");
    return PUT("sample_k", rows, 1, 1, 1024, 256);
}

int gpu_top_n(struct gpu *g, const struct top_n_args *a, uint32_t rows, struct err *e)
{
    CHECK(a->n >= 1 && a->n <= TOP_N_MAX && a->n <= a->vocab, "the %u greatest of %u", a->n,
          a->vocab);
    return PUT("top_n_k", rows, 1, 1, 1024, 256);
}
