/* Matrix products in the tile registers of AMX. A tile is 16 tokens by 16 rows of weights over one
 * block of columns; its integer sums come out exactly, so that bits are those of scalar_matmul.c:
 *
 * - Codes of up to 6 bits go through bfloat16, which holds every whole number of up to 8 bits, and
 *   so both parts of an activation, 128 h and l. All sums of a block are whole numbers below 2^24
 *   (32 columns of at most 31 x 16,256, or 16 of 32 x 16,256), which f32 adds without rounding.
 * - Codes of 8 bits are tiles as they lie in memory; h and l each have a tile of sums.
 *
 * Activations of up to 128 tokens by up to 20 blocks are turned into tiles once, for all groups,
 * and stay in the second-level cache; a group's weights are turned into tiles when their turn comes
 * and stay in the first-level one while the tokens pass. Between spans of columns the sums wait in
 * y. */
#include "kernels/cpu/amx.h"
#include "kernels/cpu/avx512_matmul.h"

#include <assert.h>

#define TOKENS       16u
#define TILE_BYTES   1024u
#define FEW_TOKENS   8u  /* below them vectors are faster */
#define SIX_BITS     32u /* the same where halves of blocks have scales */
#define TILES        4u  /* of tokens at once */
#define BLOCKS       20u /* of columns at once, more with fewer tokens */
#define GROUPS       4u  /* of weights at once */
#define ACTS         (TILES * BLOCKS)
#define WEIGHT_BYTES (20u << 10)                     /* of tiles: a stretch of columns of a group */
#define STRETCH      (2 * WEIGHT_BYTES / TILE_BYTES) /* blocks, at most */

/* How a form's blocks become tiles. */
enum kind {
    PLAIN,  /* one of 32 columns; two of activations: 128 h, l */
    MINIMA, /* the same */
    HALVES, /* two of 16 columns, each twice: for 128 h and for l */
    BYTES,  /* one of 32 columns of bytes, in place; two of activations */
};

/* A block of 16 tokens. */
struct acts16 {
    _Alignas(64) uint8_t codes[2][TILE_BYTES];
    float scales[TOKENS];
    union {
        float sums[TOKENS];          /* scaled; MINIMA */
        int32_t corrections[TOKENS]; /* for codes whose zero is 128; BYTES */
    };
};

struct product {
    const struct mat *m;
    const struct mat_shape *shape;
    float *y;
    size_t ldy;
    uint32_t t0, n;                /* tokens in x */
    uint32_t from, blocks;         /* columns in x */
    struct acts16 x[ACTS];         /* [n / 16][blocks] */
    uint32_t g0, g1, b0, n_blocks; /* groups and columns in codes: [groups][n_blocks] */
    _Alignas(64) uint8_t codes[WEIGHT_BYTES];
    __m512 scales[STRETCH]; /* HALVES has two a block */
    __m512 mins[STRETCH];
};

/* What a tile reads and writes. */
struct tile {
    const struct acts16 *x;
    const uint8_t *codes;
    const __m512 *scales, *mins;
    const uint8_t *next; /* codes to fetch meanwhile, `next_bytes` a block */
    uint32_t next_bytes;
    uint32_t blocks, n; /* tokens */
    bool first;         /* columns: y is written, else added to */
    float *y;
    size_t ldy;
    __mmask16 rows;
};

/* ---- registers ---- */

struct tile_config { /* as LDTILECFG reads it */
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};
static_assert(sizeof(struct tile_config) == 64, "64 bytes");

/* What block_sums() uses: 4 and 7 hold weights; 2, 3, 5 and 6 activations, and 0 and 1 sums; of
 * BYTES 5 and 6 hold sums, too. */
static void configure(enum kind kind, uint32_t tokens)
{
    struct tile_config c = {.palette = 1};
    bool bytes = kind == BYTES;
    for (uint32_t i = 0; i < 8; i++) {
        bool weights = i == 4 || i == 7, acts = i == 2 || i == 3 || (!bytes && (i == 5 || i == 6));
        c.rows[i] = (uint8_t)(!weights ? tokens : bytes ? 8 : 16);
        c.row_bytes[i] = acts && bytes ? 32 : 64;
    }
    _tile_loadconfig(&c);
}

/* ---- weights ---- */

static uint16_t bf16_of(int i)
{
    float f = (float)i;
    uint32_t bits;
    memcpy(&bits, &f, 4);
    return (uint16_t)(bits >> 16);
}

/* Entry i of 32 is the number that codes with these low bits stand for. */
static __m512i number_table(int bits, int zero, int from)
{
    uint16_t t[32];
    for (int i = 0; i < 32; i++)
        t[i] = bf16_of(((i + from) & ((1 << bits) - 1)) - zero);
    return _mm512_loadu_si512(t);
}

/* Nibbles of a block: rows of the tile are pairs of columns 0 and 2, 1 and 3, 4 and 6, ... */
INLINE void take_nibbles(const uint8_t *codes, __m512i numbers, __m512i *out)
{
    UNROLL
    for (int v = 0; v < 4; v++) {
        __m512i w = _mm512_load_si512(codes + (size_t)v * 64);
        out[v * 2] = _mm512_permutexvar_epi16(w, numbers);
        out[v * 2 + 1] = _mm512_permutexvar_epi16(_mm512_srli_epi16(w, 8), numbers);
        out[8 + v * 2] = _mm512_permutexvar_epi16(_mm512_srli_epi16(w, 4), numbers);
        out[8 + v * 2 + 1] = _mm512_permutexvar_epi16(_mm512_srli_epi16(w, 12), numbers);
    }
}

INLINE void take_five_bits(const uint8_t *codes, __m512i numbers, __m512i *out)
{
    UNROLL
    for (int v = 0; v < 8; v++) {
        __m512i w = _mm512_load_si512(codes + (size_t)v * 64);
        out[v * 2] = _mm512_permutexvar_epi16(w, numbers);
        out[v * 2 + 1] = _mm512_permutexvar_epi16(_mm512_srli_epi16(w, 8), numbers);
    }
}

/* Each half's eight rows twice: they meet 128 h, then l. */
INLINE void take_six_bits(const uint8_t *codes, __m512i low, __m512i high, __m512i *out)
{
    UNROLL
    for (int v = 0; v < 8; v++) {
        __m512i w = _mm512_load_si512(codes + (size_t)v * 64), *to = out + v / 4 * 16 + v % 4 * 2;
        to[0] = to[8] = _mm512_permutex2var_epi16(low, w, high);
        to[1] = to[9] = _mm512_permutex2var_epi16(low, _mm512_srli_epi16(w, 8), high);
    }
}

INLINE uint32_t block_tiles_bytes(enum mat_form form)
{
    return form == MAT_I8 ? TILE_BYTES / 2 : form == MAT_I8B16 ? 2 * TILE_BYTES : TILE_BYTES;
}

/* n_blocks of group g from b0 on. */
INLINE void take_group(struct product *p, enum mat_form form, uint32_t g)
{
    const uint8_t *rec = p->m->data + g * p->shape->group_bytes;
    const uint32_t at = (g - p->g0) * p->n_blocks;
    const uint32_t code_bytes = form_nibbles(form) ? 256 : 512, tiles = block_tiles_bytes(form);
    const __m512i numbers = form_nibbles(form)  ? number_table(4, form_zero(form), 0)
                            : form == MAT_I8B16 ? number_table(6, 0, 0)
                                                : number_table(5, 0, 0);
    const __m512i high = number_table(6, 64, 32);
    for (uint32_t b = 0; form != MAT_I8 && b < p->n_blocks; b++) {
        const uint8_t *codes = rec + (size_t)(p->b0 + b) * code_bytes;
        __m512i *out = (__m512i *)(void *)(p->codes + (size_t)(at + b) * tiles);
        if (form_nibbles(form))
            take_nibbles(codes, numbers, out);
        else if (form == MAT_I8B16)
            take_six_bits(codes, numbers, high, out);
        else
            take_five_bits(codes, numbers, out);
    }
    const uint32_t per_block = form == MAT_I8B16 ? 2 : 1;
    for (uint32_t i = 0; i < p->n_blocks * per_block; i++)
        p->scales[at * per_block + i] =
            scales_at(rec + p->shape->scales_at, form_f32(form), p->b0 * per_block + i);
    for (uint32_t b = 0; form_minima(form) && b < p->n_blocks; b++)
        p->mins[at + b] = scales_at(rec + p->shape->mins_at, form_f32(form), p->b0 + b);
}

static void take_any(struct product *p, uint32_t g)
{
    switch (p->m->form) {
    case MAT_N4: take_group(p, MAT_N4, g); break;
    case MAT_N4M: take_group(p, MAT_N4M, g); break;
    case MAT_N4MF: take_group(p, MAT_N4MF, g); break;
    case MAT_I8: take_group(p, MAT_I8, g); break;
    case MAT_I8M: take_group(p, MAT_I8M, g); break;
    case MAT_I8MF: take_group(p, MAT_I8MF, g); break;
    default: take_group(p, MAT_I8B16, g);
    }
}

/* ---- activations ---- */

/* 32 bytes as bfloat16, times 2^shift. */
INLINE __m512i numbers_of(__m256i v, unsigned shift)
{
    __m512i a = _mm512_cvtepi8_epi32(_mm256_castsi256_si128(v)),
            b = _mm512_cvtepi8_epi32(_mm256_extracti128_si256(v, 1));
    return (__m512i)_mm512_cvtne2ps_pbh(_mm512_cvtepi32_ps(_mm512_slli_epi32(b, shift)),
                                        _mm512_cvtepi32_ps(_mm512_slli_epi32(a, shift)));
}

INLINE void take_token(struct acts16 *x, enum kind kind, uint32_t t, const int8_t *codes)
{
    const __m256i pairs = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15));
    const __m256i *from = (const __m256i *)(const void *)codes;
    __m256i h = _mm256_load_si256(from), l = _mm256_load_si256(from + 1);
    if (kind == BYTES) {
        _mm256_store_si256((__m256i *)(void *)(x->codes[0] + t * 32), h);
        _mm256_store_si256((__m256i *)(void *)(x->codes[1] + t * 32), l);
        return;
    }
    __m512i big = numbers_of(_mm256_shuffle_epi8(h, pairs), 7),
            small = numbers_of(_mm256_shuffle_epi8(l, pairs), 0), first = big, second = small;
    if (kind == HALVES) {
        first = _mm512_shuffle_i64x2(big, small, 0x44);
        second = _mm512_shuffle_i64x2(big, small, 0xee);
    }
    _mm512_store_si512(x->codes[0] + t * 64, first);
    _mm512_store_si512(x->codes[1] + t * 64, second);
}

INLINE void take_tokens(struct product *p, enum kind kind, const struct acts *acts)
{
    struct acts16 *last = p->x + (size_t)(p->n / TOKENS) * p->blocks;
    for (uint32_t b = 0; p->n % TOKENS && b < p->blocks; b++) /* numbers, if nobody's */
        memset(last[b].scales, 0, sizeof *last - sizeof last->codes);
    for (uint32_t t = 0; t < p->n; t++) {
        size_t at = (size_t)(p->t0 + t) * acts->n_blocks + p->from;
        struct acts16 *x = p->x + (size_t)(t / TOKENS) * p->blocks;
        for (uint32_t b = 0; b < p->blocks; b++) {
            take_token(&x[b], kind, t % TOKENS, acts->codes + (at + b) * ACT_BLOCK_BYTES);
            x[b].scales[t % TOKENS] = acts->blocks[at + b].scale;
            if (kind == BYTES)
                x[b].corrections[t % TOKENS] = 128 * acts->blocks[at + b].neg_sum;
            else
                x[b].sums[t % TOKENS] = acts->blocks[at + b].scaled_sum;
        }
    }
}

/* ---- products ---- */

#define PRODUCT_NUMBERS(c, a0, a1, w, acts, weights, sums)                                         \
    do {                                                                                           \
        _tile_zero(c);                                                                             \
        _tile_loadd(w, weights, 64);                                                               \
        _tile_loadd(a0, acts, 64);                                                                 \
        _tile_dpbf16ps(c, a0, w);                                                                  \
        _tile_loadd(a1, (acts) + TILE_BYTES, 64);                                                  \
        _tile_dpbf16ps(c, a1, w);                                                                  \
        _tile_stored(c, sums, 64);                                                                 \
    } while (0)

#define PRODUCT_HALF(c, a, w, acts, weights, sums)                                                 \
    do {                                                                                           \
        _tile_zero(c);                                                                             \
        _tile_loadd(w, weights, 64);                                                               \
        _tile_loadd(a, acts, 64);                                                                  \
        _tile_dpbf16ps(c, a, w);                                                                   \
        _tile_stored(c, sums, 64);                                                                 \
    } while (0)

#define PRODUCT_BYTES(c0, c1, w, acts, weights, sums)                                              \
    do {                                                                                           \
        _tile_zero(c0);                                                                            \
        _tile_zero(c1);                                                                            \
        _tile_loadd(w, weights, 64);                                                               \
        _tile_loadd(2, acts, 32);                                                                  \
        _tile_loadd(3, (acts) + TILE_BYTES, 32);                                                   \
        _tile_dpbsud(c0, 2, w);                                                                    \
        _tile_dpbsud(c1, 3, w);                                                                    \
        _tile_stored(c0, sums, 64);                                                                \
        _tile_stored(c1, (sums) + TILE_BYTES, 64);                                                 \
    } while (0)

/* Orders the sums of block b: BYTES and HALVES have two tiles. */
INLINE void block_sums(const struct tile *k, enum kind kind, uint32_t b, uint8_t *sums)
{
    const uint8_t *x = k->x[b].codes[0], *w = k->codes;
    if (kind == BYTES && b % 2)
        PRODUCT_BYTES(5, 6, 7, x, w + (size_t)b * TILE_BYTES / 2, sums);
    else if (kind == BYTES)
        PRODUCT_BYTES(0, 1, 4, x, w + (size_t)b * TILE_BYTES / 2, sums);
    else if (kind == HALVES) {
        w += (size_t)b * TILE_BYTES * 2;
        PRODUCT_HALF(0, 2, 4, x, w, sums);
        PRODUCT_HALF(1, 5, 7, x + TILE_BYTES, w + TILE_BYTES, sums + TILE_BYTES);
    } else if (b % 2)
        PRODUCT_NUMBERS(1, 5, 6, 7, x, w + (size_t)b * TILE_BYTES, sums);
    else
        PRODUCT_NUMBERS(0, 2, 3, 4, x, w + (size_t)b * TILE_BYTES, sums);
}

/* out += sums x (weight scale x activation scale). */
INLINE void add_sums(enum kind kind, uint32_t tokens, const uint8_t *sums, __m512 scale,
                     const struct acts16 *x, __m512 *out)
{
    UNROLL
    for (uint32_t t = 0; t < tokens; t++) {
        __m512 d = _mm512_mul_ps(scale, _mm512_set1_ps(x->scales[t]));
        __m512 sum = _mm512_load_ps(sums + t * 64);
        if (kind == BYTES) {
            __m512i h = _mm512_slli_epi32(_mm512_castps_si512(sum), 7),
                    l = _mm512_load_si512(sums + TILE_BYTES + t * 64);
            l = _mm512_add_epi32(l, _mm512_set1_epi32(x->corrections[t]));
            sum = _mm512_cvtepi32_ps(_mm512_add_epi32(h, l));
        }
        out[t] = _mm512_fmadd_ps(sum, d, out[t]);
    }
}

/* The sums of block b, scaled, to out. */
INLINE void block_add(const struct tile *k, enum kind kind, uint32_t tokens, uint32_t b,
                      const uint8_t *sums, __m512 *out)
{
    const struct acts16 *x = &k->x[b];
    if (kind == HALVES) {
        add_sums(kind, tokens, sums, k->scales[b * 2], x, out);
        add_sums(kind, tokens, sums + TILE_BYTES, k->scales[b * 2 + 1], x, out);
    } else {
        add_sums(kind, tokens, sums, k->scales[b], x, out);
    }
    UNROLL
    for (uint32_t t = 0; kind == MINIMA && t < tokens; t++)
        out[t] = _mm512_fmadd_ps(k->mins[b], _mm512_set1_ps(x->sums[t]), out[t]);
}

/* Sums are read two blocks after they were ordered: a tile takes long to come out. */
INLINE void tile_run(const struct tile *k, enum kind kind, uint32_t tokens)
{
    const uint32_t sum_bytes = kind == PLAIN || kind == MINIMA ? TILE_BYTES : 2 * TILE_BYTES;
    _Alignas(64) uint8_t sums[4 * 2 * TILE_BYTES];
    __m512 out[TOKENS];
    UNROLL
    for (uint32_t t = 0; t < tokens; t++)
        out[t] = !k->first && t < k->n ? _mm512_maskz_loadu_ps(k->rows, k->y + t * k->ldy)
                                       : _mm512_setzero_ps();
    for (uint32_t b = 0; b < k->blocks + 2; b++) {
        if (b < k->blocks) {
            for (uint32_t i = 0; i < k->next_bytes; i += 64)
                _mm_prefetch((const char *)k->next + b * k->next_bytes + i, _MM_HINT_T0);
            block_sums(k, kind, b, sums + b % 4 * sum_bytes);
        }
        if (b >= 2)
            block_add(k, kind, tokens, b - 2, sums + (b - 2) % 4 * sum_bytes, out);
    }
    UNROLL
    for (uint32_t t = 0; t < tokens; t++)
        if (t < k->n)
            _mm512_mask_storeu_ps(k->y + t * k->ldy, k->rows, out[t]);
}

/* ---- groups ---- */

/* Group g of those in hand by the tokens from t on. */
INLINE void group_run(const struct product *p, enum kind kind, uint32_t tokens, uint32_t t,
                      uint32_t g, bool fetch)
{
    const uint32_t end = (g + 1) * GROUP_ROWS, at = (g - p->g0) * p->n_blocks;
    const uint8_t *codes = p->m->data + g * p->shape->group_bytes;
    struct tile k = {.x = p->x + (size_t)(t / TOKENS) * p->blocks + (p->b0 - p->from),
                     .scales = p->scales + at * (kind == HALVES ? 2 : 1),
                     .mins = p->mins + at,
                     .blocks = p->n_blocks,
                     .n = p->n - t < TOKENS ? p->n - t : TOKENS,
                     .first = p->b0 == 0,
                     .y = p->y + (p->t0 + t) * p->ldy + (size_t)g * GROUP_ROWS,
                     .ldy = p->ldy};
    k.rows = end <= p->m->rows ? (__mmask16)0xffff : first_n(p->m->rows + GROUP_ROWS - end);
    codes += (size_t)p->b0 * p->shape->code_bytes;
    k.codes = kind == BYTES ? codes : p->codes + (size_t)at * block_tiles_bytes(p->m->form);
    k.next = codes + (size_t)(p->g1 - p->g0) * p->shape->group_bytes;
    k.next_bytes = fetch ? p->shape->code_bytes : 0;
    tile_run(&k, kind, tokens);
}

/* Groups [g0, g1) over the span of columns in x, some at a time. Meanwhile the same columns of the
 * next ones are fetched. */
INLINE void span_run(struct product *p, enum kind kind, uint32_t tokens, uint32_t g0, uint32_t g1)
{
    const uint32_t together = p->n <= TOKENS ? 1 : kind == HALVES ? GROUPS / 2 : GROUPS;
    const uint32_t most = WEIGHT_BYTES / block_tiles_bytes(p->m->form) / together;
    const uint32_t stretches = (p->blocks + most - 1) / most;
    configure(kind, tokens);
    for (p->g0 = g0; p->g0 < g1; p->g0 = p->g1) {
        p->g1 = g1 - p->g0 < together ? g1 : p->g0 + together;
        for (uint32_t i = 0; i < stretches; i++) {
            p->b0 = p->from + p->blocks * i / stretches;
            p->n_blocks = p->from + p->blocks * (i + 1) / stretches - p->b0;
            for (uint32_t g = p->g0; g < p->g1; g++)
                take_any(p, g);
            __asm__ volatile("" ::: "memory"); /* tile loads don't say that they read memory */
            for (uint32_t t = 0; t < p->n; t += TOKENS)
                for (uint32_t g = p->g0; g < p->g1; g++)
                    group_run(p, kind, tokens, t, g, !t && g + together < g1);
        }
    }
    _tile_release();
}

#define SPAN(kind)                                                                                 \
    static void span_##kind(struct product *p, const struct acts *x, uint32_t g0, uint32_t g1)     \
    {                                                                                              \
        take_tokens(p, kind, x);                                                                   \
        if (kind == BYTES && p->n <= 8)                                                            \
            span_run(p, kind, 8, g0, g1);                                                          \
        else                                                                                       \
            span_run(p, kind, TOKENS, g0, g1);                                                     \
    }
SPAN(PLAIN)
SPAN(MINIMA)
SPAN(HALVES)
SPAN(BYTES)

static void span_any(struct product *p, const struct acts *x, uint32_t g0, uint32_t g1)
{
    if (p->m->form == MAT_I8)
        span_BYTES(p, x, g0, g1);
    else if (p->m->form == MAT_I8B16)
        span_HALVES(p, x, g0, g1);
    else if (form_minima(p->m->form))
        span_MINIMA(p, x, g0, g1);
    else
        span_PLAIN(p, x, g0, g1);
}

static void in_tiles(const struct mat *m, uint32_t g0, uint32_t g1, const struct acts *x,
                     uint32_t n, float *y, size_t ldy)
{
    struct mat_shape shape;
    struct product p;
    mat_shape(m->form, m->rows, m->cols, &shape);
    p.m = m;
    p.shape = &shape;
    p.y = y;
    p.ldy = ldy;
    uint32_t least = shape.blocks < BLOCKS ? shape.blocks : BLOCKS, most = ACTS / least * TOKENS;
    for (p.t0 = 0; p.t0 < n; p.t0 += p.n) {
        p.n = n - p.t0 < most ? n - p.t0 : most;
        uint32_t span = ACTS / ((p.n + TOKENS - 1) / TOKENS);
        for (p.from = 0; p.from < shape.blocks; p.from += p.blocks) {
            p.blocks = shape.blocks - p.from < span ? shape.blocks - p.from : span;
            span_any(&p, x, g0, g1);
        }
    }
}

void amx_matmul(const struct mat *m, uint32_t g0, uint32_t g1, const struct acts *x, uint32_t n,
                float *y, size_t ldy)
{
    if (mat_form_is_float(m->form) || n < FEW_TOKENS || (m->form != MAT_I8 && n < TOKENS) ||
        (m->form == MAT_I8B16 && n < SIX_BITS))
        avx512_matmul(m, g0, g1, x, n, y, ldy);
    else
        in_tiles(m, g0, g1, x, n, y, ldy);
}
