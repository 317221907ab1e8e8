/* kernels.h: arguments of the CUDA kernels, one structure a kernel, plain C: filled by the host
 * code (launch.c), copied as they are by the driver, read by the kernels. All pointers are device
 * pointers, 16-byte aligned; the caller owns what they point to. Shapes are row-major. f16 and bf16
 * values are uint16_t, FP8 (E4M3) values uint8_t. Sizes were checked by launch.c: kernels trust
 * them.
 *
 * Arithmetic: sums in f32, in an order that depends neither on other rows nor on the grid, except
 * where a comment says otherwise (split decode attention: on the number of splits). */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GEMM_TILE 64u /* rows and columns of a block's tile in gemm and grouped_gemm */
#define GEMM_SHARED                                                                                \
    (4 * GEMM_TILE * (32 + 8) * 2) /* bytes: two matrices, two steps of 32 columns */
#define ATTN_ROWS   64u            /* query rows of a tile in prefill attention */
#define ATTN_TOKENS 32u  /* cached tokens a step of the attention kernels; divides block_tokens */
#define KV_GROUP    64u  /* as kernels/ops.h */
#define MLA_HEADS   16u  /* query heads of a block in mla_decode */
#define FP8_GROUP   128u /* channels that share a scale */
#define EXPERTS_MAX 512u
#define TOP_K_MAX   16u
#define TOP_N_MAX   64u

/* What the cache holds, by the numbers of kernels/ops.h's enum kv_type, with its layout: codes of a
 * head, then an f32 scale for each KV_GROUP of them. "Half" below is the 16-bit type that queries
 * have: bf16 with KV_FORM_BF16, else f16. */
#define KV_FORM_F16  0u
#define KV_FORM_BF16 2u
#define KV_FORM_I8   3u
#define KV_FORM_F8   4u

/* The paged KV cache: (block, layer, K/V, head, token, dim), or with MLA (block, layer, token,
 * latent). */
struct kv_view {
    uint8_t *pool;
    const uint32_t *tables; /* [sequences, table_ld]: block i of a sequence holds its tokens from
                               i * block_tokens */
    uint32_t table_ld, block_tokens;
    uint64_t block_bytes, layer_at; /* of a block; of this layer inside it */
    uint64_t half_bytes, head_bytes;
    uint32_t form, reserved;
};

/* h [rows, d] f32 = table[tokens[row] - first] x scale, zeros for a token that the table [n, d]
 * bf16 does not have. grid rows, block 128. */
struct embed_args {
    float *h;
    const uint16_t *table;
    const uint32_t *tokens;
    uint32_t d, first, n;
    float scale;
};

/* h [*, d] f32 += y (may be NULL; normed by `post` [d] first unless that is NULL); x [rows, d] bf16
 * = rms norm of h by w [d] (x NULL: none). With `take` row i reads h row take[i] and leaves h as it
 * is. grid rows, block 256, shared (d + 32) x 4. */
struct add_norm_args {
    float *h;
    const float *y, *post, *w;
    uint16_t *x;
    const uint32_t *take;
    uint32_t d;
    float eps;
};

/* qkv [rows, (heads + 2 kv_heads) dim] f32: bias added (may be NULL), heads normed (q_norm, k_norm
 * [dim], may be NULL), rotated; q [rows, heads, dim] half = scaled queries; keys and values go
 * to the cache. cs [positions, dims / 2] pairs of cosine and sine. neox: pairs (i, i + dims / 2),
 * else (2i, 2i + 1). grid rows, block 256, shared 8 x dim x 4. */
struct rope_args {
    const float *qkv, *bias, *q_norm, *k_norm, *cs;
    const uint32_t *positions, *sequences; /* [rows] */
    uint16_t *q;
    struct kv_view kv;
    uint32_t heads, kv_heads, dim, dims;
    float eps, scale;
    uint32_t neox;
};

/* Attention of one query row a sequence over the cache. q [rows, heads, dim] half, scaled; row r
 * sees positions 0..positions[r], at most `window` of them (0: all). With splits > 1 partial
 * results go to part [rows, heads, splits, dim] f32 and part_ml [.., 2] (maximum, sum), and
 * decode_merge joins them; else out [rows, heads, dim] bf16. Head h reads KV head (first + h) /
 * group: a tensor rank may begin inside a group. grid (splits, kv_heads x chunks, rows), block 128;
 * chunks of G query heads share the loads. */
struct decode_attention_args {
    const uint16_t *q;
    const uint32_t *positions, *sequences;
    uint16_t *out;
    float *part, *part_ml;
    struct kv_view kv;
    uint32_t heads, kv_heads, window, first, group;
};
/* grid rows x heads, block dim. */
struct decode_merge_args {
    const float *part, *part_ml;
    uint16_t *out;
    uint32_t splits, dim;
};

/* Attention of chunks of prompts. q, out as above. A tile is up to 64 consecutive rows of one
 * sequence; tiles [n] of {first row, rows, position of the first, sequence}. grid (tiles, heads),
 * block 128. */
struct attn_tile {
    uint32_t row, rows, position, sequence;
};
struct prefill_attention_args {
    const uint16_t *q;
    uint16_t *out;
    const struct attn_tile *tiles;
    struct kv_view kv;
    uint32_t heads, kv_heads, window, first, group;
};

/* MLA's rows before attention. Of q [rows, heads, nope + rope] f32 the first part goes to q_nope
 * [rows, heads, nope] bf16, the rotated and scaled second one to q_out [rows, heads, latent + rope]
 * half behind the latent's place. kv_a [rows, latent + rope] f32 becomes the token's entry in the
 * cache: its latent normed by `norm` [latent], the rest rotated. cs, neox as above. `expanded`: all
 * of a head's query, scaled, goes to q_out [rows, heads, nope + rope] half, and q_nope is NULL.
 * grid rows, block 256, shared (latent + rope) x 4. */
struct mla_prepare_args {
    const float *q, *kv_a, *norm, *cs;
    const uint32_t *positions, *sequences;
    uint16_t *q_nope, *q_out;
    struct kv_view kv;
    uint32_t heads, nope, latent, rope, neox, expanded;
    float eps, scale;
};

/* A product of each head's own matrix: out[row * ldo + head * o_head + i] = scale x sum over j of
 * a[row * lda + head * a_head + j] b[head][i][j]; a, b [heads, n, k] bf16, out f16 or bf16. k, lda,
 * a_head multiples of 8. `turned`: b [heads, k, n], n a multiple of 8 too. grid (ceil(n / 64),
 * ceil(m / 64), heads), block 128. */
struct head_gemm_args {
    const uint16_t *a, *b;
    uint16_t *out;
    uint32_t m, n, k, lda, a_head, ldo, o_head, f16, turned;
    float scale;
};

/* MLA, absorbed: queries q [rows, heads, latent + rope] f16, scaled; the cache holds latent + rope
 * f16 a token; out: the weighted sum of latents, [rows, heads, latent] bf16, or partial results as
 * above (dim latent). grid (splits, ceil(heads / 16), rows), block 128. */
struct mla_decode_args {
    const uint16_t *q;
    const uint32_t *positions, *sequences;
    uint16_t *out;
    float *part, *part_ml;
    struct kv_view kv;
    uint32_t heads;
};

/* MLA, expanded: what a chunk of a prompt attends to, made keys and values of every head again.
 * Tokens [first, first + tokens) of a sequence's cache to to_latent [tokens, latent] bf16 and
 * to_rope [tokens, rope] half; latent and rope multiples of 8. grid ceil(tokens x (latent + rope) /
 * 8 / 256), block 256. */
struct mla_gather_args {
    struct kv_view kv;
    uint16_t *to_latent, *to_rope;
    uint32_t sequence, first, tokens, latent, rope;
};
/* Attention over such a piece of the context, first a multiple of 32: k [tokens, heads, nope], v
 * [tokens, heads, v] (two products of the latents), rope, q [rows, heads, nope + rope] half, q's
 * row 0 being the tiles' row first_row. out [*, heads, v] bf16 by the tiles' rows. `resume`, but
 * for the first piece: from state [rows, heads, v + 2] f32; to it, but for the `last`. grid (tiles,
 * heads), block 128. */
struct mla_prefill_args {
    const uint16_t *q, *k, *rope, *v;
    uint16_t *out;
    float *state;
    const struct attn_tile *tiles;
    uint32_t heads, first_row, first, tokens, resume, last;
};

/* x [rows, n] bf16 = act(gate) x up, gate_up [rows, 2 n] f32 (gate first). grid (ceil(n / 1024),
 * rows), block 256. */
struct gated_args {
    const float *gate_up;
    uint16_t *x;
    uint32_t n, gelu;
};

/* c [m, n] f32 = a [m, k] b [n, k]^T, bf16, k a multiple of 8. grid (ceil(n / 64), ceil(m / 64)),
 * block 128. */
struct gemm_args {
    const uint16_t *a, *b;
    float *c;
    uint32_t m, n, k;
};

/* Expert choice. logits [rows, experts] f32; bias [experts] (added for the choice only; may be
 * NULL). score: 0 softmax, 1 sigmoid. groups > 1: experts lie in groups of equal size, the best
 * `groups_used` of them by the sum of their `group_top` (1 or 2) best are eligible. ids, weights
 * [rows, top_k]; weights divided by their sum when `normalize`, times `scale`. Ties: the lower
 * expert. grid rows, block 32, shared experts x 8 + 256. */
struct moe_gate_args {
    const float *logits, *bias;
    uint32_t *ids;
    float *weights;
    uint32_t experts, top_k, score, groups, groups_used, group_top, normalize;
    float scale;
};

/* Sorting rows by expert: counts [experts] (zeroed by the caller) += choices. grid any, block 256.
 */
struct moe_count_args {
    const uint32_t *ids;
    uint32_t *counts;
    uint32_t n, experts, first;
};
/* Places: choice i (row i / top_k) goes to place[i], in the order of i within its expert; experts
 * follow each other, each starting at a multiple of 64; row_of [places] (row or UINT32_MAX:
 * padding), expert_of [places / 64]. Experts are those from `first` on; choices of others (another
 * rank's, masked ones) are given no place (UINT32_MAX). grid experts, block 32. */
struct moe_place_args {
    const uint32_t *ids, *counts;
    uint32_t *place, *row_of, *expert_of;
    uint32_t n, top_k, experts, first, places; /* places: room in row_of, a multiple of 64 */
};
/* c [places, n] f32 = a[row_of] b[expert]^T; b [experts, n, k]; row_of NULL: a [places, k] is
 * sorted. Tiles whose expert_of is UINT32_MAX do nothing. grid (ceil(n / 64), places / 64), block
 * 128. */
struct grouped_gemm_args {
    const uint16_t *a, *b;
    const uint32_t *row_of, *expert_of;
    float *c;
    uint32_t n, k;
};
/* y [rows, d] f32 = sum over a row's choices, in their order, of weight x c[place]; + shared [rows,
 * d] when not NULL. grid rows, block 256. */
struct combine_args {
    const float *c, *weights, *shared;
    const uint32_t *place;
    float *y;
    uint32_t d, top_k;
};

/* Dispatch in FP8: rows take[i] of x [*, d] bf16 to codes [n, d] and scales [n, ceil(d / 128)].
 * grid n, block 128, d a multiple of 8. And back to bf16. */
struct fp8_pack_args {
    const uint16_t *x;
    const uint32_t *take; /* NULL: row i */
    uint8_t *codes;
    float *scales;
    uint32_t d;
};
struct fp8_unpack_args {
    const uint8_t *codes;
    const float *scales;
    uint16_t *x;
    uint32_t d;
};

/* Rows for the ranks that have their experts: rank r has those in [bounds[r], bounds[r + 1]); ids
 * [rows, top_k]. ep_count: counts [2, ranks], rows and choices of each rank. ep_list, after it:
 * take [items] rows rank by rank, in order; place [rows, ranks] the item of a row at a rank, or
 * UINT32_MAX. grid ranks, block 32. */
struct ep_list_args {
    const uint32_t *ids, *bounds;
    uint32_t *counts, *take, *place;
    uint32_t rows, top_k, ranks;
};
/* Item i is row take[i]: of x [*, d] bf16 (NULL: not moved), ids and weights [*, top_k]. d a
 * multiple of 8. grid items, block 128. */
struct ep_pack_args {
    const uint16_t *x;
    const uint32_t *take, *ids;
    const float *weights;
    uint16_t *to_x;
    uint32_t *to_ids;
    float *to_weights;
    uint32_t d, top_k;
};
/* y [rows, d] f32 += back[place[row, r]] of each rank r in order; back [items, d] f32. grid rows,
 * block 256. */
struct ep_join_args {
    const float *back;
    const uint32_t *place;
    float *y;
    uint32_t d, ranks;
};

/* Runs of bytes, each a multiple of 16 and aligned to 16, from `from` to `to`: KV between layouts
 * (slices of heads, of layers). grid runs, block 128. */
struct run {
    uint64_t from, to, bytes;
};
struct relayout_args {
    const uint8_t *from;
    uint8_t *to;
    const struct run *runs;
};

/* logits[row * vocab + token] += delta, [n] of them: penalties, biases. grid ceil(n / 256), block
 * 256. No two name the same place. */
struct logit_delta {
    uint32_t row, token;
    float delta;
};
struct bias_args {
    float *logits;
    const struct logit_delta *deltas;
    uint32_t n, vocab;
};
/* One token a row: the greatest (the lowest of equals), or at temperature > 0 the first in the
 * order of the vocabulary whose cumulated probability is above u, of those of at least min_p of the
 * best one's. UINT32_MAX: the row has no finite maximum. The logits may come in parts, as tensor
 * ranks have them: one part after another, each [rows, cut[p + 1] - cut[p]]. logprob (of the raw
 * distribution) may be NULL. grid rows, block 1024. */
#define SAMPLE_PARTS_MAX 16
struct sample_row {
    double u; /* in [0, 1) */
    float temperature, min_p;
};
struct sample_args {
    const float *logits;
    const struct sample_row *rows;
    uint32_t *token;
    float *logprob;
    uint32_t parts, cut[SAMPLE_PARTS_MAX + 1]; /* cut[0] is 0, cut[parts] the vocabulary */
};
/* The n greatest logits of each row, in order, with their tokens: for top-k, top-p and logprobs on
 * the host. grid rows, block 1024. */
struct top_n_args {
    const float *logits;
    uint32_t *tokens; /* [rows, n] */
    float *values;
    uint32_t vocab, n;
};
