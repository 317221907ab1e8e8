#include "kernels/cuda/launch_int.h"
#include "kernels/ops.h"

_Static_assert(KV_FORM_F16 == KV_F16 && KV_FORM_BF16 == KV_BF16 && KV_FORM_I8 == KV_I8 &&
                   KV_FORM_F8 == KV_F8,
               "the cache's forms are those of the CPU");

bool gpu_kv_has(uint32_t form)
{
    return form == KV_FORM_F16 || form == KV_FORM_BF16 || form == KV_FORM_I8 || form == KV_FORM_F8;
}

static bool coded(const struct kv_view *kv)
{
    return kv->form == KV_FORM_I8 || kv->form == KV_FORM_F8;
}

static int check_cache(const struct kv_view *kv, struct err *e)
{
    CHECK(gpu_kv_has(kv->form), "a KV cache of form %u", kv->form);
    CHECK(kv->block_tokens && kv->block_tokens % ATTN_TOKENS == 0, "blocks of %u tokens",
          kv->block_tokens);
    return 0;
}

static int check_heads(const struct kv_view *kv, uint32_t dim, uint32_t heads, uint32_t kv_heads,
                       uint32_t first, uint32_t group, struct err *e)
{
    CHECK(gpu_attention_has(dim), "attention heads of %u channels", dim);
    CHECK(group && kv_heads && first < group && (first + heads + group - 1) / group == kv_heads,
          "%u query heads over %u KV heads in groups of %u", heads, kv_heads, group);
    return check_cache(kv, e);
}

/* What the kernels of tensor cores are called by; of those that take both halves, only _coded. */
static const char *suffix(const struct kv_view *kv)
{
    return coded(kv) ? "_coded" : kv->form == KV_FORM_BF16 ? "_bf16" : "";
}

/* Shared memory of `n` rows of keys or values of `dim` channels, 32 tokens each, two in flight
 * (kernels/cuda/kv.h). */
static uint32_t stages_bytes(const struct kv_view *kv, uint32_t n, uint32_t dim)
{
    uint32_t halves = n * ATTN_TOKENS * (dim + 8) * 2,
             codes = n * ATTN_TOKENS * (dim + (dim + KV_GROUP - 1) / KV_GROUP * 4);
    return coded(kv) ? halves + 2 * codes : 2 * halves;
}

int gpu_rope_store(struct gpu *g, const struct rope_args *a, uint32_t rows, struct err *e)
{
    CHECK(a->dim % 2 == 0 && a->dims <= a->dim && a->dims % 2 == 0, "rotation of %u of %u channels",
          a->dims, a->dim);
    CHECK(a->kv_heads, "rotation without heads");
    int rc = check_cache(&a->kv, e);
    return rc < 0 ? rc : PUT("rope_store_k", rows, 1, 1, 256, 8 * a->dim * 4);
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
    int rc = check_heads(&a->kv, dim, a->heads, a->kv_heads, a->first, a->group, e);
    if (rc < 0)
        return rc;
    CHECK(splits >= 1 && (splits == 1 || (a->part && a->part_ml)), "no room for partial results");
    uint32_t group = a->group, chunk = dim < 64 ? 4 : 1;
    while (dim >= 64 && chunk < group && chunk < 8)
        chunk *= 2;
    char name[64];
    snprintf(name, sizeof name, "decode_attention_%u_%u%s_k", dim, chunk,
             coded(&a->kv) ? "_coded" : "");
    uint32_t slots = 4 * 256 / dim, shared = slots * chunk * (dim + 2) * 4;
    rc = PUT(name, splits, a->kv_heads * ceil_div(group, chunk), rows, 128, shared);
    if (rc < 0)
        return rc;
    return merge(g, a->part, a->part_ml, a->out, rows * a->heads, dim, splits, e);
}

int gpu_prefill_attention(struct gpu *g, const struct prefill_attention_args *a, uint32_t tiles,
                          uint32_t dim, struct err *e)
{
    int rc = check_heads(&a->kv, dim, a->heads, a->kv_heads, a->first, a->group, e);
    char name[64];
    snprintf(name, sizeof name, "prefill_attention_%u%s_k", dim, suffix(&a->kv));
    uint32_t shared = ATTN_ROWS * (dim + 8) * 2 + stages_bytes(&a->kv, 2, dim);
    return rc < 0 ? rc : PUT(name, tiles, a->heads, 1, 128, shared);
}

bool gpu_mla_has(uint32_t latent, uint32_t rope)
{
    return (latent == 512 && rope == 64) || (latent == 64 && rope == 16);
}

int gpu_mla_prepare(struct gpu *g, const struct mla_prepare_args *a, uint32_t rows, struct err *e)
{
    CHECK(a->rope % 2 == 0 && a->latent % 2 == 0, "a latent of %u and %u channels", a->latent,
          a->rope);
    int rc = check_cache(&a->kv, e);
    return rc < 0 ? rc : PUT("mla_prepare_k", rows, 1, 1, 256, (a->latent + a->rope) * 4);
}

int gpu_mla_decode(struct gpu *g, const struct mla_decode_args *a, uint32_t rows, uint32_t latent,
                   uint32_t rope, uint32_t splits, struct err *e)
{
    CHECK(gpu_mla_has(latent, rope), "a latent of %u and %u channels", latent, rope);
    CHECK(splits >= 1 && (splits == 1 || (a->part && a->part_ml)), "no room for partial results");
    int rc = check_cache(&a->kv, e);
    if (rc < 0)
        return rc;
    char name[64];
    snprintf(name, sizeof name, "mla_decode_%u_%u%s_k", latent, rope, suffix(&a->kv));
    uint32_t shared = MLA_HEADS * (latent + rope + 8) * 2 + MLA_HEADS * (ATTN_TOKENS + 8) * 2 +
                      8 * MLA_HEADS * 4 + stages_bytes(&a->kv, 1, latent + rope);
    rc = PUT(name, splits, ceil_div(a->heads, MLA_HEADS), rows, 128, shared);
    if (rc < 0)
        return rc;
    return merge(g, a->part, a->part_ml, a->out, rows * a->heads, latent, splits, e);
}

bool gpu_mla_expands(uint32_t nope, uint32_t rope, uint32_t v)
{
    return (nope == 128 && rope == 64 && v == 128) || (nope == 24 && rope == 16 && v == 32);
}

int gpu_mla_gather(struct gpu *g, const struct mla_gather_args *a, struct err *e)
{
    CHECK(a->latent % 8 == 0 && a->rope % 8 == 0, "a latent of %u and %u channels", a->latent,
          a->rope);
    int rc = check_cache(&a->kv, e);
    uint32_t blocks = ceil_div(a->tokens * ((a->latent + a->rope) / 8), 256);
    return rc < 0 ? rc : PUT("mla_gather_k", blocks, 1, 1, 256, 0);
}

int gpu_mla_prefill(struct gpu *g, const struct mla_prefill_args *a, uint32_t tiles, uint32_t nope,
                    uint32_t rope, uint32_t v, bool bf16, struct err *e)
{
    CHECK(gpu_mla_expands(nope, rope, v), "latent heads of %u, %u and %u channels", nope, rope, v);
    CHECK(a->first % ATTN_TOKENS == 0 && (a->state || (!a->resume && a->last)),
          "a piece of a context from %u on without room for its sums", a->first);
    char name[64];
    snprintf(name, sizeof name, "mla_prefill_%u_%u_%u%s_k", nope, rope, v, bf16 ? "_bf16" : "");
    uint32_t wide = ceil_div(nope + rope, 16) * 16 + 8;
    uint32_t shared = ((ATTN_ROWS + 2 * ATTN_TOKENS) * wide + 2 * ATTN_TOKENS * (v + 8)) * 2;
    return PUT(name, tiles, a->heads, 1, 128, shared);
}

int gpu_head_gemm(struct gpu *g, const struct head_gemm_args *a, uint32_t heads, struct err *e)
{
    CHECK(a->k && a->k % 8 == 0 && a->lda % 8 == 0 && a->a_head % 8 == 0,
          "a product of %u columns a head", a->k);
    CHECK(!a->turned || a->n % 8 == 0, "a product of %u rows a head", a->n);
    return PUT(a->turned ? "head_gemm_turned_k" : "head_gemm_k", ceil_div(a->n, GEMM_TILE),
               ceil_div(a->m, GEMM_TILE), heads, 128, GEMM_SHARED);
}
