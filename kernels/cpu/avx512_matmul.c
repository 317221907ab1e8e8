/* Matrix products for few tokens, AVX-512 with VNNI. A tile is `ng` groups of 16 rows by `nt`
 * tokens; whatever its size, an element's operations and their order are those of scalar_matmul.c.
 * Tiles are instantiated for constant form, ng and nt. */
#include "kernels/cpu/avx512_matmul.h"

#define PANEL_BYTES                                                                                \
    (256u << 10) /* weights that stay in the second-level cache while tokens pass                  \
                  */
#define TILE_TOKENS 8
#define AHEAD       8 /* blocks: what memory takes to answer */

/* What a tile reads and writes. */
struct tile {
    const uint8_t *rec; /* of the first group */
    size_t group_bytes;
    const struct mat_shape *shape;
    const int8_t *codes; /* of the first token */
    const struct act_block *blocks;
    uint32_t n_blocks; /* also the distance of tokens */
    float *y;
    size_t ldy;
    __mmask16 last; /* rows of the last group */
};

INLINE __m512i four_codes(const int8_t *p)
{
    int32_t v;
    memcpy(&v, p, 4);
    return _mm512_set1_epi32(v);
}

/* Sums of products with the h and the l of the activations. */
struct sums {
    __m512i h, l;
};

INLINE void dot(struct sums *s, __m512i w, const int8_t *x)
{
    s->h = _mm512_dpbusd_epi32(s->h, w, four_codes(x));
    s->l = _mm512_dpbusd_epi32(s->l, w, four_codes(x + BLOCK_COLS));
}

/* Adds products of quads [v0, v1) (4 columns each) of one block to acc[g][t]. */
INLINE void dot_bytes(const struct tile *k, int ng, int nt, uint32_t b, int v0, int v1,
                      struct sums acc[][TILE_TOKENS])
{
    UNROLL
    for (int v = v0; v < v1; v++) {
        UNROLL
        for (int g = 0; g < ng; g++) {
            __m512i w = _mm512_load_si512(k->rec + (size_t)g * k->group_bytes + (size_t)b * 512 +
                                          (size_t)v * 64);
            UNROLL
            for (int t = 0; t < nt; t++)
                dot(&acc[g][t], w,
                    k->codes + ((size_t)t * k->n_blocks + b) * ACT_BLOCK_BYTES + (size_t)v * 4);
        }
    }
}

INLINE void dot_nibbles(const struct tile *k, int ng, int nt, uint32_t b,
                        struct sums acc[][TILE_TOKENS])
{
    const __m512i low = _mm512_set1_epi8(15);
    UNROLL
    for (int v = 0; v < 4; v++) {
        UNROLL
        for (int g = 0; g < ng; g++) {
            __m512i w = _mm512_load_si512(k->rec + (size_t)g * k->group_bytes + (size_t)b * 256 +
                                          (size_t)v * 64);
            __m512i hi = _mm512_and_si512(_mm512_srli_epi16(w, 4), low);
            w = _mm512_and_si512(w, low);
            UNROLL
            for (int t = 0; t < nt; t++) {
                const int8_t *x =
                    k->codes + ((size_t)t * k->n_blocks + b) * ACT_BLOCK_BYTES + (size_t)v * 4;
                dot(&acc[g][t], w, x);
                dot(&acc[g][t], hi, x + 16);
            }
        }
    }
}

/* Starts acc at -zero x sum of the activations. half: -1 the whole block, 0 and 1 its halves. */
INLINE void start(const struct tile *k, int ng, int nt, uint32_t b, int zero_bits, int half,
                  struct sums acc[][TILE_TOKENS])
{
    UNROLL
    for (int t = 0; t < nt; t++) {
        const struct act_block *x = k->blocks + (size_t)t * k->n_blocks + b;
        __m512i a = _mm512_setzero_si512();
        if (zero_bits) {
            int32_t sum = half < 0 ? x->neg_sum : half == 0 ? x->neg_low : x->neg_sum - x->neg_low;
            a = _mm512_slli_epi32(_mm512_set1_epi32(sum), (unsigned)zero_bits);
        }
        UNROLL
        for (int g = 0; g < ng; g++)
            acc[g][t] = (struct sums){_mm512_setzero_si512(), a};
    }
}

/* out += acc x (weight scale x activation scale). */
INLINE void finish(const struct tile *k, int ng, int nt, uint32_t b, bool f32, uint32_t scale,
                   struct sums acc[][TILE_TOKENS], __m512 out[][TILE_TOKENS])
{
    UNROLL
    for (int g = 0; g < ng; g++) {
        __m512 w = scales_at(k->rec + (size_t)g * k->group_bytes + k->shape->scales_at, f32, scale);
        UNROLL
        for (int t = 0; t < nt; t++) {
            __m512 d =
                _mm512_mul_ps(w, _mm512_set1_ps(k->blocks[(size_t)t * k->n_blocks + b].scale));
            __m512i i = _mm512_add_epi32(_mm512_slli_epi32(acc[g][t].h, 7), acc[g][t].l);
            out[g][t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(i), d, out[g][t]);
        }
    }
}

INLINE void add_minima(const struct tile *k, int ng, int nt, uint32_t b, bool f32,
                       __m512 out[][TILE_TOKENS])
{
    UNROLL
    for (int g = 0; g < ng; g++) {
        __m512 w = scales_at(k->rec + (size_t)g * k->group_bytes + k->shape->mins_at, f32, b);
        UNROLL
        for (int t = 0; t < nt; t++)
            out[g][t] = _mm512_fmadd_ps(
                w, _mm512_set1_ps(k->blocks[(size_t)t * k->n_blocks + b].scaled_sum), out[g][t]);
    }
}

INLINE void store(const struct tile *k, int ng, int nt, __m512 out[][TILE_TOKENS])
{
    UNROLL
    for (int g = 0; g < ng; g++) {
        UNROLL
        for (int t = 0; t < nt; t++)
            _mm512_mask_storeu_ps(k->y + (size_t)t * k->ldy + (size_t)g * 16,
                                  g == ng - 1 ? k->last : (__mmask16)0xffff, out[g][t]);
    }
}

INLINE void prefetch(const struct tile *k, int ng, uint32_t b, size_t code_bytes)
{
    UNROLL
    for (int g = 0; g < ng; g++)
        for (size_t i = 0; i < code_bytes; i += 64)
            _mm_prefetch((const char *)k->rec + (size_t)g * k->group_bytes +
                             (b + AHEAD) * code_bytes + i,
                         _MM_HINT_T0);
}

INLINE void tile_run(const struct tile *k, enum mat_form form, int ng, int nt)
{
    const bool f32 = form_f32(form), nibbles = form_nibbles(form), minima = form_minima(form);
    const int zero_bits = form_zero(form) == 8 ? 3 : form_zero(form) ? 7 : 0;
    __m512 out[4][TILE_TOKENS];
    struct sums acc[4][TILE_TOKENS];
    UNROLL
    for (int g = 0; g < ng; g++) {
        UNROLL
        for (int t = 0; t < nt; t++)
            out[g][t] = _mm512_setzero_ps();
    }
    for (uint32_t b = 0; b < k->n_blocks; b++) {
        prefetch(k, ng, b, nibbles ? 256 : 512);
        if (form == MAT_I8B16) {
            UNROLL
            for (int half = 0; half < 2; half++) {
                start(k, ng, nt, b, zero_bits, half, acc);
                dot_bytes(k, ng, nt, b, half * 4, half * 4 + 4, acc);
                finish(k, ng, nt, b, f32, b * 2 + (uint32_t)half, acc, out);
            }
            continue;
        }
        start(k, ng, nt, b, zero_bits, -1, acc);
        if (nibbles)
            dot_nibbles(k, ng, nt, b, acc);
        else
            dot_bytes(k, ng, nt, b, 0, 8, acc);
        finish(k, ng, nt, b, f32, b, acc, out);
        if (minima)
            add_minima(k, ng, nt, b, f32, out);
    }
    store(k, ng, nt, out);
}

/* Few tokens take four groups at once, to have enough chains in flight and streams from memory. */
#define GROUPS_FOR(nt) ((nt) == 1 ? 4 : (nt) <= 4 ? 2 : 1)
typedef void (*tile_fn)(const struct tile *k);
#define TILE(form, nt)                                                                             \
    static void tile_##form##_##nt(const struct tile *k)                                           \
    {                                                                                              \
        tile_run(k, form, GROUPS_FOR(nt), nt);                                                     \
    }                                                                                              \
    static void tile1_##form##_##nt(const struct tile *k)                                          \
    {                                                                                              \
        tile_run(k, form, 1, nt);                                                                  \
    }
#define TILES(form)                                                                                \
    TILE(form, 1)                                                                                  \
    TILE(form, 2)                                                                                  \
    TILE(form, 3) TILE(form, 4) TILE(form, 5) TILE(form, 6) TILE(form, 7) TILE(form, 8)
#define ROW(form, p)                                                                               \
    [form] = {p##form##_1, p##form##_2, p##form##_3, p##form##_4,                                  \
              p##form##_5, p##form##_6, p##form##_7, p##form##_8}
#define TABLE(p)                                                                                   \
    {                                                                                              \
        ROW(MAT_N4, p), ROW(MAT_N4M, p), ROW(MAT_N4MF, p), ROW(MAT_I8, p), ROW(MAT_I8M, p),        \
            ROW(MAT_I8MF, p), ROW(MAT_I8B16, p),                                                   \
    }
TILES(MAT_N4)
TILES(MAT_N4M)
TILES(MAT_N4MF)
TILES(MAT_I8)
TILES(MAT_I8M)
TILES(MAT_I8MF)
TILES(MAT_I8B16)
static const tile_fn wide[MAT_F32][TILE_TOKENS] = TABLE(tile_);
static const tile_fn single[MAT_F32][TILE_TOKENS] = TABLE(tile1_);

/* Groups [g0, g1) for up to TILE_TOKENS tokens from t0. */
static void panel(const struct mat *m, const struct mat_shape *s, uint32_t g0, uint32_t g1,
                  const struct acts *x, uint32_t t0, uint32_t nt, float *y, size_t ldy)
{
    struct tile k = {.group_bytes = s->group_bytes,
                     .shape = s,
                     .codes = x->codes + (size_t)t0 * s->blocks * ACT_BLOCK_BYTES,
                     .blocks = x->blocks + (size_t)t0 * s->blocks,
                     .n_blocks = s->blocks,
                     .ldy = ldy};
    uint32_t together = GROUPS_FOR(nt);
    for (uint32_t g = g0; g < g1;) {
        uint32_t ng = g1 - g >= together ? together : 1, end = (g + ng) * GROUP_ROWS;
        k.rec = m->data + g * s->group_bytes;
        k.y = y + (size_t)t0 * ldy + (size_t)g * GROUP_ROWS;
        k.last = end <= m->rows ? (__mmask16)0xffff : first_n(m->rows - (end - GROUP_ROWS));
        (ng == 1 ? single : wide)[m->form][nt - 1](&k);
        g += ng;
    }
}

void avx512_matmul(const struct mat *m, uint32_t g0, uint32_t g1, const struct acts *x, uint32_t n,
                   float *y, size_t ldy)
{
    if (mat_form_is_float(m->form)) {
        avx512_matmul_float(m, g0, g1, x, n, y, ldy);
        return;
    }
    if (n >= MANY_TOKENS) {
        avx512_matmul_many(m, g0, g1, x, n, y, ldy);
        return;
    }
    struct mat_shape s;
    mat_shape(m->form, m->rows, m->cols, &s);
    uint32_t step = (uint32_t)(PANEL_BYTES / s.group_bytes);
    step = n <= TILE_TOKENS ? g1 - g0 : step < 4 ? 4 : step;
    for (uint32_t g = g0; g < g1; g += step)
        for (uint32_t t = 0; t < n; t += TILE_TOKENS)
            panel(m, &s, g, g1 - g < step ? g1 : g + step, x, t,
                  n - t < TILE_TOKENS ? n - t : TILE_TOKENS, y, ldy);
}
