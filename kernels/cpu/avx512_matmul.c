/* Matrix products for few tokens, AVX-512 with VNNI. A tile is a group of 16 rows by `nt` tokens;
 * whatever its size, an element's operations and their order are those of scalar_matmul.c. Tiles
 * are instantiated for constant form and nt.
 *
 * Weights mostly come out of memory, and one group after another is one stream in order, fetched
 * AHEAD bytes before it is needed: into the next groups, and the next matrix, which usually
 * follows. */
#include "kernels/cpu/avx512_matmul.h"

#define PANEL_BYTES                                                                                \
    (256u << 10) /* weights that stay in the second-level cache while tokens pass                  \
                  */
#define TILE_TOKENS 8
#define AHEAD       32768

/* What a tile reads and writes. */
struct tile {
    const uint8_t *rec; /* of the group */
    const struct mat_shape *shape;
    uint32_t lines;      /* of the record, for each block */
    const int8_t *codes; /* of the first token */
    const struct act_block *blocks;
    uint32_t n_blocks; /* also the distance of tokens */
    float *y;
    size_t ldy;
    __mmask16 last; /* rows of the group */
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

/* One token alone has two sums of each kind, for enough chains in flight: they are integers, so it
 * is the same whichever takes a product. */
INLINE struct sums *chain(struct sums acc[TILE_TOKENS + 1], int nt, int t, int which)
{
    return &acc[nt == 1 && which % 2 ? 1 : t];
}

/* Adds products of quads [v0, v1) (4 columns each) of one block to acc[t]. */
INLINE void dot_bytes(const struct tile *k, int nt, uint32_t b, int v0, int v1,
                      struct sums acc[TILE_TOKENS + 1])
{
    UNROLL
    for (int v = v0; v < v1; v++) {
        __m512i w = _mm512_load_si512(k->rec + (size_t)b * 512 + (size_t)v * 64);
        UNROLL
        for (int t = 0; t < nt; t++)
            dot(chain(acc, nt, t, v), w,
                k->codes + ((size_t)t * k->n_blocks + b) * ACT_BLOCK_BYTES + (size_t)v * 4);
    }
}

INLINE void dot_nibbles(const struct tile *k, int nt, uint32_t b, struct sums acc[TILE_TOKENS + 1])
{
    const __m512i low = _mm512_set1_epi8(15);
    UNROLL
    for (int v = 0; v < 4; v++) {
        __m512i w = _mm512_load_si512(k->rec + (size_t)b * 256 + (size_t)v * 64);
        __m512i hi = _mm512_and_si512(_mm512_srli_epi16(w, 4), low);
        w = _mm512_and_si512(w, low);
        UNROLL
        for (int t = 0; t < nt; t++) {
            const int8_t *x =
                k->codes + ((size_t)t * k->n_blocks + b) * ACT_BLOCK_BYTES + (size_t)v * 4;
            dot(chain(acc, nt, t, 0), w, x);
            dot(chain(acc, nt, t, 1), hi, x + 16);
        }
    }
}

/* Starts acc at -zero x sum of the activations. half: -1 the whole block, 0 and 1 its halves. */
INLINE void start(const struct tile *k, int nt, uint32_t b, int zero_bits, int half,
                  struct sums acc[TILE_TOKENS + 1])
{
    acc[1] = (struct sums){_mm512_setzero_si512(), _mm512_setzero_si512()};
    UNROLL
    for (int t = 0; t < nt; t++) {
        const struct act_block *x = k->blocks + (size_t)t * k->n_blocks + b;
        __m512i a = _mm512_setzero_si512();
        if (zero_bits) {
            int32_t sum = half < 0 ? x->neg_sum : half == 0 ? x->neg_low : x->neg_sum - x->neg_low;
            a = _mm512_slli_epi32(_mm512_set1_epi32(sum), (unsigned)zero_bits);
        }
        acc[t] = (struct sums){_mm512_setzero_si512(), a};
    }
}

/* out += acc x (weight scale x activation scale). */
INLINE void finish(const struct tile *k, int nt, uint32_t b, bool f32, uint32_t scale,
                   struct sums acc[TILE_TOKENS + 1], __m512 out[TILE_TOKENS])
{
    __m512 w = scales_at(k->rec + k->shape->scales_at, f32, scale);
    if (nt == 1)
        acc[0] = (struct sums){_mm512_add_epi32(acc[0].h, acc[1].h),
                               _mm512_add_epi32(acc[0].l, acc[1].l)};
    UNROLL
    for (int t = 0; t < nt; t++) {
        __m512 d = _mm512_mul_ps(w, _mm512_set1_ps(k->blocks[(size_t)t * k->n_blocks + b].scale));
        __m512i i = _mm512_add_epi32(_mm512_slli_epi32(acc[t].h, 7), acc[t].l);
        out[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(i), d, out[t]);
    }
}

INLINE void add_minima(const struct tile *k, int nt, uint32_t b, bool f32, __m512 out[TILE_TOKENS])
{
    __m512 w = scales_at(k->rec + k->shape->mins_at, f32, b);
    UNROLL
    for (int t = 0; t < nt; t++)
        out[t] = _mm512_fmadd_ps(
            w, _mm512_set1_ps(k->blocks[(size_t)t * k->n_blocks + b].scaled_sum), out[t]);
}

/* A block's share of the record, codes and scales alike. */
INLINE void fetch_ahead(const struct tile *k, uint32_t b)
{
    const uint8_t *p = k->rec + AHEAD + (size_t)b * k->lines * 64;
    for (uint32_t i = 0; i < k->lines; i++)
        _mm_prefetch((const char *)p + (size_t)i * 64, _MM_HINT_T0);
}

INLINE void tile_run(const struct tile *k, enum mat_form form, int nt)
{
    const bool f32 = form_f32(form), nibbles = form_nibbles(form), minima = form_minima(form);
    const int zero_bits = form_zero(form) == 8 ? 3 : form_zero(form) ? 7 : 0;
    __m512 out[TILE_TOKENS];
    struct sums acc[TILE_TOKENS + 1];
    UNROLL
    for (int t = 0; t < nt; t++)
        out[t] = _mm512_setzero_ps();
    for (uint32_t b = 0; b < k->n_blocks; b++) {
        fetch_ahead(k, b);
        if (form == MAT_I8B16) {
            UNROLL
            for (int half = 0; half < 2; half++) {
                start(k, nt, b, zero_bits, half, acc);
                dot_bytes(k, nt, b, half * 4, half * 4 + 4, acc);
                finish(k, nt, b, f32, b * 2 + (uint32_t)half, acc, out);
            }
            continue;
        }
        start(k, nt, b, zero_bits, -1, acc);
        if (nibbles)
            dot_nibbles(k, nt, b, acc);
        else
            dot_bytes(k, nt, b, 0, 8, acc);
        finish(k, nt, b, f32, b, acc, out);
        if (minima)
            add_minima(k, nt, b, f32, out);
    }
    UNROLL
    for (int t = 0; t < nt; t++)
        _mm512_mask_storeu_ps(k->y + (size_t)t * k->ldy, k->last, out[t]);
}

typedef void (*tile_fn)(const struct tile *k);
#define TILE(form, nt)                                                                             \
    static void tile_##form##_##nt(const struct tile *k)                                           \
    {                                                                                              \
        tile_run(k, form, nt);                                                                     \
    }
#define TILES(form)                                                                                \
    TILE(form, 1)                                                                                  \
    TILE(form, 2)                                                                                  \
    TILE(form, 3) TILE(form, 4) TILE(form, 5) TILE(form, 6) TILE(form, 7) TILE(form, 8)
#define ROW(form)                                                                                  \
    [form] = {tile_##form##_1, tile_##form##_2, tile_##form##_3, tile_##form##_4,                  \
              tile_##form##_5, tile_##form##_6, tile_##form##_7, tile_##form##_8}
TILES(MAT_N4)
TILES(MAT_N4M)
TILES(MAT_N4MF)
TILES(MAT_I8)
TILES(MAT_I8M)
TILES(MAT_I8MF)
TILES(MAT_I8B16)
static const tile_fn tiles[MAT_F32][TILE_TOKENS] = {
    ROW(MAT_N4),  ROW(MAT_N4M),  ROW(MAT_N4MF),  ROW(MAT_I8),
    ROW(MAT_I8M), ROW(MAT_I8MF), ROW(MAT_I8B16),
};

/* Groups [g0, g1) for up to TILE_TOKENS tokens from t0. */
static void panel(const struct mat *m, const struct mat_shape *s, uint32_t g0, uint32_t g1,
                  const struct acts *x, uint32_t t0, uint32_t nt, float *y, size_t ldy)
{
    size_t line = (size_t)s->blocks * 64;
    struct tile k = {.shape = s,
                     .lines = (uint32_t)((s->group_bytes + line - 1) / line),
                     .codes = x->codes + (size_t)t0 * s->blocks * ACT_BLOCK_BYTES,
                     .blocks = x->blocks + (size_t)t0 * s->blocks,
                     .n_blocks = s->blocks,
                     .ldy = ldy};
    for (uint32_t g = g0; g < g1; g++) {
        uint32_t end = (g + 1) * GROUP_ROWS;
        k.rec = m->data + g * s->group_bytes;
        k.y = y + (size_t)t0 * ldy + (size_t)g * GROUP_ROWS;
        k.last = end <= m->rows ? (__mmask16)0xffff : first_n(m->rows - (end - GROUP_ROWS));
        tiles[m->form][nt - 1](&k);
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
