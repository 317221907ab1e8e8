/* ops.h: the narrow table of operations that a model is written over, the form of weights that
 * kernels read, and the arithmetic that every backend of the CPU follows.
 *
 * Arithmetic. Every operation has one order of floating-point operations, the same in scalar, AVX2
 * and AVX-512 code, so that results are equal bit for bit whatever the ISA, the batch or the
 * thread: lanes    a reduction over a row keeps 16 partial results (element i goes to lane i % 16,
 * in order, by fma), then adds lane i and i+8, i and i+4, i and i+2, i and i+1. matmul   quantised:
 * for each block of 32 columns (16 for MAT_I8B16) in order, the integer dot product (exact), times
 *            (weight scale x activation scale) by fma, then the minimum times the activations'
 * scaled sum by fma. float: fma over the columns in order; MAT_F8: 128 columns so, then times their
 * scale by fma. attention: windows of 32 positions aligned to position 0, online softmax; scores
 * are fma over dims in order. Files are compiled with -ffp-contract=off: an fma happens where the
 * text says so.
 *
 * Activations are quantised to 15 bits a value with one f32 scale for 32 columns: q = 128 h + l, h
 * and l int8, so that a dot product is two byte dot products. The error is 1/128 of that of the
 * usual 8 bits (measured on real models: logits within 0.003 of an f64 reference, where 8-bit
 * activations are off by 0.1), for about a third more time in prefill.
 *
 * Threads: operations are pure functions of their arguments; callers split rows or groups. Pointers
 * are 64-byte aligned unless said otherwise. Shapes: [rows, cols], row-major.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GROUP_ROWS      16u /* rows interleaved in one vector: "R16" */
#define BLOCK_COLS      32u
#define ATTN_WINDOW     32u
#define HEAD_DIM_MAX    1024u
#define ACT_STEPS       16256.0f /* 127 x 128: the largest quantised activation */
#define ACT_BLOCK_BYTES 64u      /* codes of one block: 32 h, then 32 l */

/* How a matrix lies in memory. A group of 16 rows is one record: codes, then scales, then minima,
 * each part padded to 64 bytes. Codes: for each block of 32 columns, 4 columns of 16 rows are one
 * 64-byte vector [row][4 columns]; 8 vectors a block. In N4 forms a vector's low nibbles are
 * columns 4v.. and its high nibbles columns 16+4v.. (v = 0..3). Scales and minima: [block][row]. w
 * = scale x (code - zero) + min. */
enum mat_form {
    MAT_N4 = 1, /* 4-bit codes, zero 8, f16 scales:         Q4_0 */
    MAT_N4M,    /* 4-bit codes, f16 scales and minima:      Q4_1 */
    MAT_N4MF,   /* 4-bit codes, f32 scales and minima:      Q4_K */
    MAT_I8,     /* 8-bit codes, zero 128, f16 scales:       Q8_0, Q5_0 */
    MAT_I8M,    /* bytes of 0..31, f16 scales and minima:   Q5_1 */
    MAT_I8MF,   /* bytes of 0..31, f32 scales and minima:   Q5_K */
    MAT_I8B16,  /* bytes of 96..159, zero 128, f32 scales of 16: Q6_K */
    MAT_F32,    /* [column][row] floats */
    MAT_F16,
    MAT_BF16,
    MAT_F8, /* [column][row] E4M3, then f32 scales [128 columns][row]: DeepSeek's FP8 */
};
#define F8_COLS 128u /* that share a scale */

struct mat {
    enum mat_form form;
    uint32_t rows, cols;
    const uint8_t *data;
};

struct mat_shape {
    uint32_t groups, blocks;   /* of 16 rows, of 32 columns (both rounded up) */
    uint32_t code_bytes;       /* of one block's codes in a group */
    uint32_t scale_bytes;      /* of one block's scales in a group */
    size_t scales_at, mins_at; /* in a group's record; mins_at 0: none */
    size_t group_bytes;
};

bool mat_form_ok(uint32_t form);
bool mat_form_is_float(enum mat_form form);
void mat_shape(enum mat_form form, uint32_t rows, uint32_t cols, struct mat_shape *out);
size_t mat_bytes(enum mat_form form, uint32_t rows, uint32_t cols);

/* Quantised activations: one block of 32 columns, beside its codes. */
struct act_block {
    float scale;
    float scaled_sum; /* scale x the sum of the codes */
    int32_t neg_sum;  /* minus the sum of the codes */
    int32_t neg_low;  /* the same for the first 16 */
};

/* Rows of activations: f32, and (unless every matrix is float) quantised. */
struct acts {
    const float *x;
    size_t ldx;                     /* floats between rows */
    const int8_t *codes;            /* [rows, blocks, ACT_BLOCK_BYTES] */
    const struct act_block *blocks; /* [rows, blocks] */
    uint32_t n_blocks;
};

/* How K and V of a head lie in a block: [token][dim] elements; those of KV_I8 and KV_F8 are codes,
 * with one f32 scale for KV_GROUP dims (the last group may be short), [token][group], after the
 * block's codes. */
enum kv_type { KV_F16, KV_F32, KV_BF16, KV_I8, KV_F8 };
#define KV_GROUP 64u
bool kv_is_coded(enum kv_type t);
uint32_t kv_elt_bytes(enum kv_type t);
size_t kv_head_bytes(enum kv_type t, uint32_t head_dim, uint32_t block_tokens);
/* One token's row into its head's part of a block, and one element of it. */
void kv_store(enum kv_type t, const float *x, uint32_t head_dim, uint32_t block_tokens,
              uint32_t token, uint8_t *head);
float kv_load(enum kv_type t, const uint8_t *head, uint32_t head_dim, uint32_t block_tokens,
              uint32_t token, uint32_t dim);

/* A row of a sequence of its own, of several that begin with the same blocks. */
struct attn_row {
    uint32_t row, pos; /* row: of q and out */
    const uint32_t *blocks;
};

/* Attention of consecutive rows of one sequence over one KV head: `group` query heads share it. Or,
 * with `each`, of one row of each of several sequences: what they have in common is read once. A
 * row's bits are the same either way. */
struct attn {
    const float *q; /* row r, head h at q + r * ldq + h * head_dim; already scaled */
    float *out;     /* likewise, v_dim a head */
    size_t ldq, ldo;
    uint32_t rows, group, head_dim;
    uint32_t v_dim;  /* V is the first v_dim of head_dim elements (0: all), as of a latent */
    uint32_t start;  /* position of row 0 */
    uint32_t window; /* positions seen by a row, itself included; 0: all */
    const uint8_t *pool;
    const uint32_t *blocks;           /* of the sequence */
    uint64_t block_bytes, k_at, v_at; /* this layer's and head's K and V inside a block */
    uint32_t block_tokens;
    enum kv_type kv;
    const struct attn_row *each; /* [rows] by ascending pos, instead of start and blocks; or NULL */
    uint32_t shared; /* positions that all have in common, whole blocks, none after any pos */
    float *scratch;  /* attn_scratch_floats() */
};
size_t attn_scratch_floats(uint32_t rows, uint32_t group, uint32_t head_dim);

struct kernel_ops {
    const char *name; /* "scalar", "avx2", "avx512", "amx" */
    /* y[i] = x[i] * (1 / sqrt(mean(x^2) + eps)) * w[i]; y may be x. No alignment needed. */
    void (*rms_norm)(const float *x, const float *w, float eps, uint32_t n, float *y);
    /* One row; columns past n up to a whole block are zero. x needs no alignment. */
    void (*quantize)(const float *x, uint32_t n, int8_t *codes, struct act_block *blocks);
    /* y[t * ldy + row] for rows of groups [g0, g1) and tokens [0, n). */
    void (*matmul)(const struct mat *m, uint32_t g0, uint32_t g1, const struct acts *x, uint32_t n,
                   float *y, size_t ldy);
    void (*swiglu)(const float *gate, const float *up, uint32_t n,
                   float *out); /* silu(gate) * up */
    void (*geglu)(const float *gate, const float *up, uint32_t n,
                  float *out);                         /* gelu_tanh(gate) * up */
    void (*add)(float *x, const float *y, uint32_t n); /* x += y */
    void (*scale)(float *x, float s, uint32_t n);      /* x *= s */
    void (*attention)(const struct attn *a);
    void (*to_f16)(const float *x, uint16_t *out, uint32_t n); /* nearest even */
    /* The greatest of n, and the sum of exp(x[i] - max) in f64: lanes as above, of 8-byte floats.
     */
    float (*max)(const float *x, uint32_t n);
    double (*sum_exp)(const float *x, float max, uint32_t n);
};

/* Rotary embedding of one head in place. `cs`: cos, sin pairs [dims / 2][2]. Pairs are (2i, 2i+1),
 * or with `neox` (i, i + dims / 2). Small enough to be the same code for every ISA. */
void rope_apply(float *x, const float *cs, uint32_t dims, bool neox);
/* freqs [dims / 2]: base^(-2i/dims) / scale / factors[i] (factors may be NULL); cs: cosine and sine
 * of pos x freqs, in f64. */
void rope_freqs(double *freqs, uint32_t dims, float base, float scale, const float *factors);
void rope_table(float *cs, uint32_t pos, uint32_t dims, const double *freqs);

/* Row `row` of a matrix as floats (an embedding). */
void mat_row(const struct mat *m, uint32_t row, float *out);

float f16_to_f32(uint16_t h);
/* E4M3 (OCP: bias 7, no infinities, 0x7f is NaN): nearest even, saturating at 448. */
float f8_to_f32(uint8_t b);
uint8_t f32_to_f8(float f);
uint16_t f32_to_f16(float f);
uint16_t f32_to_bf16(float f);
