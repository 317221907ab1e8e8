/* Matrix products for many tokens, AVX-512 with VNNI. Codes of weights and activations are taken
 * apart into 16-bit numbers, once for up to 96 tokens and all rows: one vpdpwssd does what two byte
 * products do, without putting their sums together, and without a zero to correct for. Two groups
 * of rows by 384 columns stay in the first-level cache while the tokens pass, six at a time;
 * between stretches of columns the sums wait in y. An element's operations and their order are
 * those of scalar_matmul.c. */
#include "kernels/cpu/avx512_matmul.h"

#define BLOCKS 12 /* of 32 columns, in a stretch */
#define TOKENS 96
#define PAIRS  16 /* of columns in a block: 0 and 2, 1 and 3, 4 and 6, ... */
#define TILE_G 2
#define TILE_T 6

struct weights {
    __m512i codes[BLOCKS][PAIRS][TILE_G];
    __m512 scales[BLOCKS][2][TILE_G]; /* MAT_I8B16 has two a block */
    __m512 mins[BLOCKS][TILE_G];
};

struct activations {
    __m512i codes[TOKENS][BLOCKS];
    float scales[TOKENS][BLOCKS], sums[TOKENS][BLOCKS];
};

/* A stretch of columns. */
struct stretch {
    const struct mat *m;
    const struct mat_shape *shape;
    uint32_t b0, n; /* blocks */
    struct weights w;
    struct activations x;
};

/* What a tile reads and writes. */
struct tile {
    const struct stretch *s;
    uint32_t t0; /* first token of the tile, in the stretch */
    float *y;
    size_t ldy;
    __mmask16 last; /* rows of the last group */
};

/* ---- taking apart ---- */

static void take_activations(struct stretch *s, const struct acts *x, uint32_t t0, uint32_t n)
{
    const __m512i pairs =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15));
    for (uint32_t t = 0; t < n; t++) {
        size_t at = (size_t)(t0 + t) * s->shape->blocks + s->b0;
        for (uint32_t b = 0; b < s->n; b++) {
            const __m256i *q =
                (const __m256i *)(const void *)(x->codes + (at + b) * ACT_BLOCK_BYTES);
            __m512i h = _mm512_cvtepi8_epi16(_mm256_load_si256(q));
            __m512i l = _mm512_cvtepi8_epi16(_mm256_load_si256(q + 1));
            __m512i v = _mm512_add_epi16(_mm512_slli_epi16(h, 7), l);
            s->x.codes[t][b] = _mm512_shuffle_epi8(v, pairs);
            s->x.scales[t][b] = x->blocks[at + b].scale;
            s->x.sums[t][b] = x->blocks[at + b].scaled_sum;
        }
    }
}

INLINE void take_nibbles(struct stretch *s, const uint8_t *codes, uint32_t b, int g, __m512i zero)
{
    const __m512i low = _mm512_set1_epi16(15);
    for (int v = 0; v < 4; v++) {
        __m512i w = _mm512_load_si512(codes + (size_t)v * 64);
        __m512i part[4] = {_mm512_and_si512(w, low), _mm512_and_si512(_mm512_srli_epi16(w, 8), low),
                           _mm512_and_si512(_mm512_srli_epi16(w, 4), low),
                           _mm512_srli_epi16(w, 12)};
        for (int i = 0; i < 4; i++)
            s->w.codes[b][i / 2 * 8 + v * 2 + i % 2][g] = _mm512_sub_epi16(part[i], zero);
    }
}

INLINE void take_bytes(struct stretch *s, const uint8_t *codes, uint32_t b, int g, __m512i zero)
{
    for (int v = 0; v < 8; v++) {
        __m512i w = _mm512_load_si512(codes + (size_t)v * 64);
        __m512i even = _mm512_and_si512(w, _mm512_set1_epi16(255)), odd = _mm512_srli_epi16(w, 8);
        s->w.codes[b][v * 2][g] = _mm512_sub_epi16(even, zero);
        s->w.codes[b][v * 2 + 1][g] = _mm512_sub_epi16(odd, zero);
    }
}

INLINE void fetch(const uint8_t *p, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 64)
        _mm_prefetch((const char *)p + i, _MM_HINT_T1);
}

INLINE void take_group(struct stretch *s, enum mat_form form, uint32_t group, int g)
{
    const uint8_t *rec = s->m->data + group * s->shape->group_bytes;
    const uint32_t per_block = form == MAT_I8B16 ? 2 : 1;
    const __m512i zero = _mm512_set1_epi16((int16_t)form_zero(form));
    const uint8_t *next = rec + TILE_G * s->shape->group_bytes; /* taken when tokens have passed */
    for (uint32_t b = 0; b < s->n; b++) {
        const uint8_t *codes = rec + (size_t)(s->b0 + b) * s->shape->code_bytes;
        fetch(next + (size_t)(s->b0 + b) * s->shape->code_bytes, s->shape->code_bytes);
        fetch(next + s->shape->scales_at + (size_t)(s->b0 + b) * s->shape->scale_bytes,
              s->shape->scale_bytes);
        if (form_nibbles(form))
            take_nibbles(s, codes, b, g, zero);
        else
            take_bytes(s, codes, b, g, zero);
        for (uint32_t i = 0; i < per_block; i++)
            s->w.scales[b][i][g] =
                scales_at(rec + s->shape->scales_at, form_f32(form), (s->b0 + b) * per_block + i);
        if (form_minima(form))
            s->w.mins[b][g] = scales_at(rec + s->shape->mins_at, form_f32(form), s->b0 + b);
    }
}

/* ---- products ---- */

INLINE __m512i pair_of(const __m512i *codes, int p)
{
    int32_t v;
    memcpy(&v, (const uint8_t *)(const void *)codes + (size_t)p * 4, 4);
    return _mm512_set1_epi32(v);
}

/* Pairs [p0, p1) of block b, times their scale, added to out. */
INLINE void add_products(const struct tile *k, int ng, int nt, uint32_t b, int half, int p0, int p1,
                         __m512 out[][TILE_T])
{
    __m512i acc[TILE_G][TILE_T];
    UNROLL
    for (int g = 0; g < ng; g++) {
        UNROLL
        for (int t = 0; t < nt; t++)
            acc[g][t] = _mm512_setzero_si512();
    }
    UNROLL
    for (int p = p0; p < p1; p++) {
        UNROLL
        for (int t = 0; t < nt; t++) {
            __m512i x = pair_of(&k->s->x.codes[k->t0 + (uint32_t)t][b], p);
            UNROLL
            for (int g = 0; g < ng; g++)
                acc[g][t] = _mm512_dpwssd_epi32(acc[g][t], k->s->w.codes[b][p][g], x);
        }
    }
    UNROLL
    for (int t = 0; t < nt; t++) {
        __m512 scale = _mm512_set1_ps(k->s->x.scales[k->t0 + (uint32_t)t][b]);
        UNROLL
        for (int g = 0; g < ng; g++)
            out[g][t] =
                _mm512_fmadd_ps(_mm512_cvtepi32_ps(acc[g][t]),
                                _mm512_mul_ps(k->s->w.scales[b][half][g], scale), out[g][t]);
    }
}

INLINE void add_minima(const struct tile *k, int ng, int nt, uint32_t b, __m512 out[][TILE_T])
{
    UNROLL
    for (int t = 0; t < nt; t++) {
        __m512 sum = _mm512_set1_ps(k->s->x.sums[k->t0 + (uint32_t)t][b]);
        UNROLL
        for (int g = 0; g < ng; g++)
            out[g][t] = _mm512_fmadd_ps(k->s->w.mins[b][g], sum, out[g][t]);
    }
}

INLINE void tile_run(const struct tile *k, enum mat_form form, int ng, int nt)
{
    __m512 out[TILE_G][TILE_T];
    UNROLL
    for (int g = 0; g < ng; g++) {
        __mmask16 rows = g == ng - 1 ? k->last : (__mmask16)0xffff;
        UNROLL
        for (int t = 0; t < nt; t++)
            out[g][t] = k->s->b0 ? _mm512_maskz_loadu_ps(rows, k->y + (size_t)t * k->ldy + g * 16)
                                 : _mm512_setzero_ps();
    }
    for (uint32_t b = 0; b < k->s->n; b++) {
        add_products(k, ng, nt, b, 0, 0, form == MAT_I8B16 ? PAIRS / 2 : PAIRS, out);
        if (form == MAT_I8B16)
            add_products(k, ng, nt, b, 1, PAIRS / 2, PAIRS, out);
        if (form_minima(form))
            add_minima(k, ng, nt, b, out);
    }
    UNROLL
    for (int g = 0; g < ng; g++) {
        UNROLL
        for (int t = 0; t < nt; t++)
            _mm512_mask_storeu_ps(k->y + (size_t)t * k->ldy + g * 16,
                                  g == ng - 1 ? k->last : (__mmask16)0xffff, out[g][t]);
    }
}

/* What a tile's code depends on: whether there are minima, and two scales a block. */
enum kind { PLAIN = MAT_N4, MINIMA = MAT_N4M, HALVES = MAT_I8B16 };
typedef void (*tile_fn)(const struct tile *k);
#define TILE(kind, ng, nt)                                                                         \
    static void tile_##kind##_##ng##_##nt(const struct tile *k)                                    \
    {                                                                                              \
        tile_run(k, (enum mat_form)kind, ng, nt);                                                  \
    }
#define TILES_OF(kind, ng)                                                                         \
    TILE(kind, ng, 1)                                                                              \
    TILE(kind, ng, 2) TILE(kind, ng, 3) TILE(kind, ng, 4) TILE(kind, ng, 5) TILE(kind, ng, 6)
#define ROW(kind, ng)                                                                              \
    {                                                                                              \
        tile_##kind##_##ng##_1, tile_##kind##_##ng##_2, tile_##kind##_##ng##_3,                    \
            tile_##kind##_##ng##_4, tile_##kind##_##ng##_5, tile_##kind##_##ng##_6                 \
    }
TILES_OF(PLAIN, 1)
TILES_OF(PLAIN, 2)
TILES_OF(MINIMA, 1)
TILES_OF(MINIMA, 2)
TILES_OF(HALVES, 1)
TILES_OF(HALVES, 2)
typedef tile_fn tile_row[TILE_T];
static const tile_row plain[TILE_G] = {ROW(PLAIN, 1), ROW(PLAIN, 2)},
                      minima[TILE_G] = {ROW(MINIMA, 1), ROW(MINIMA, 2)},
                      halves[TILE_G] = {ROW(HALVES, 1), ROW(HALVES, 2)};

static void take_any(struct stretch *s, uint32_t group, int g)
{
    switch (s->m->form) {
    case MAT_N4: take_group(s, MAT_N4, group, g); break;
    case MAT_N4M: take_group(s, MAT_N4M, group, g); break;
    case MAT_N4MF: take_group(s, MAT_N4MF, group, g); break;
    case MAT_I8: take_group(s, MAT_I8, group, g); break;
    case MAT_I8M: take_group(s, MAT_I8M, group, g); break;
    case MAT_I8MF: take_group(s, MAT_I8MF, group, g); break;
    default: take_group(s, MAT_I8B16, group, g);
    }
}

/* Groups [g0, g1) by n tokens over the stretch. */
static void stretch_run(struct stretch *s, uint32_t g0, uint32_t g1, uint32_t n, float *y,
                        size_t ldy)
{
    const struct mat *m = s->m;
    const tile_row *tiles = form_minima(m->form) ? minima : m->form == MAT_I8B16 ? halves : plain;
    for (uint32_t g = g0, ng; g < g1; g += ng) {
        ng = g1 - g < TILE_G ? g1 - g : TILE_G;
        uint32_t end = (g + ng) * GROUP_ROWS;
        struct tile k = {.s = s, .ldy = ldy};
        k.last = end <= m->rows ? (__mmask16)0xffff : first_n(m->rows - (end - GROUP_ROWS));
        for (uint32_t i = 0; i < ng; i++)
            take_any(s, g + i, (int)i);
        for (uint32_t t = 0, nt; t < n; t += nt) {
            nt = n - t < TILE_T ? n - t : TILE_T;
            k.t0 = t;
            k.y = y + (size_t)t * ldy + (size_t)g * GROUP_ROWS;
            tiles[ng - 1][nt - 1](&k);
        }
    }
}

void avx512_matmul_many(const struct mat *m, uint32_t g0, uint32_t g1, const struct acts *x,
                        uint32_t n, float *y, size_t ldy)
{
    struct mat_shape shape;
    mat_shape(m->form, m->rows, m->cols, &shape);
    uint32_t stretches = (shape.blocks + BLOCKS - 1) / BLOCKS;
    struct stretch s;
    s.m = m;
    s.shape = &shape;
    for (uint32_t t = 0; t < n; t += TOKENS) {
        uint32_t some = n - t < TOKENS ? n - t : TOKENS;
        for (uint32_t i = 0; i < stretches; i++) {
            s.b0 = shape.blocks * i / stretches;
            s.n = shape.blocks * (i + 1) / stretches - s.b0;
            take_activations(&s, x, t, some);
            stretch_run(&s, g0, g1, some, y + (size_t)t * ldy, ldy);
        }
    }
}
