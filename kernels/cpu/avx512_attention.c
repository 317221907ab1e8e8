/* Attention over paged KV, AVX-512. For each window of 32 positions K is turned into [dim][position] and V into f32 once,
 * then all queries of the unit pass over them. Bits are those of scalar_attention.c. */
#include "kernels/cpu/avx512.h"

#include <math.h>
#include <string.h>

#define Q 4u /* queries at once */

struct query {
    float max, sum;
    uint32_t lo, hi; /* positions seen */
};

/* Scratch of one unit. */
struct unit {
    const struct attn *a;
    float *k, *v;  /* [head_dim][32], [32][head_dim] */
    float *p;      /* [queries][32] scores, then probabilities */
    float *factor; /* [queries] */
    struct query *queries;
    uint32_t n;
};
_Static_assert(sizeof(struct query) == 16, "attn_scratch_floats counts four words a query");

INLINE __m512 kv_load(const uint8_t *p, bool f32, size_t i)
{
    if (f32)
        return _mm512_loadu_ps((const float *)(const void *)p + i);
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)((const uint16_t *)(const void *)p + i)));
}

/* Rows r[0..15] of 16 floats become columns. */
INLINE void transpose(__m512 r[16])
{
    __m512 t[16];
    UNROLL
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
    UNROLL
    for (int i = 0; i < 16; i += 4)
        UNROLL
        for (int j = 0; j < 2; j++) {
            __m512d a = _mm512_castps_pd(t[i + j]), b = _mm512_castps_pd(t[i + j + 2]);
            r[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
            r[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
        }
    UNROLL
    for (int i = 0; i < 4; i++) { /* r[4q + i]: column 4l + i of rows 4q..4q+3 in 128-bit lane l */
        t[i] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0xdd);
    }
    UNROLL
    for (int i = 0; i < 4; i++) {
        r[i] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88);
        r[i + 8] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0xdd);
        r[i + 4] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0x88);
        r[i + 12] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0xdd);
    }
}

static void load_keys(const struct unit *u, const uint8_t *k, uint32_t n)
{
    uint32_t dim = u->a->head_dim;
    for (uint32_t t = 0; t < ATTN_WINDOW; t += 16)
        for (uint32_t d = 0; d < dim; d += 16) {
            __m512 r[16];
            UNROLL
            for (uint32_t i = 0; i < 16; i++)
                r[i] = t + i < n ? kv_load(k, u->a->kv_f32, (size_t)(t + i) * dim + d) : _mm512_setzero_ps();
            transpose(r);
            UNROLL
            for (uint32_t i = 0; i < 16; i++)
                _mm512_store_ps(u->k + (size_t)(d + i) * ATTN_WINDOW + t, r[i]);
        }
}

static void load_values(const struct unit *u, const uint8_t *v, uint32_t n)
{
    uint32_t dim = u->a->head_dim;
    for (size_t i = 0; i < (size_t)n * dim; i += 16)
        _mm512_store_ps(u->v + i, kv_load(v, u->a->kv_f32, i));
}

static const float *query_at(const struct unit *u, uint32_t i)
{
    const struct attn *a = u->a;
    return a->q + i / a->group * a->ldq + (size_t)(i % a->group) * a->head_dim;
}

static float *out_at(const struct unit *u, uint32_t i)
{
    const struct attn *a = u->a;
    return a->out + i / a->group * a->ldo + (size_t)(i % a->group) * a->head_dim;
}

INLINE void scores(const struct unit *u, uint32_t first, uint32_t n)
{
    const float *q[Q];
    __m512 lo[Q], hi[Q];
    UNROLL
    for (uint32_t i = 0; i < n; i++) {
        q[i] = query_at(u, first + i);
        lo[i] = hi[i] = _mm512_setzero_ps();
    }
    for (uint32_t d = 0; d < u->a->head_dim; d++) {
        __m512 k0 = _mm512_load_ps(u->k + (size_t)d * ATTN_WINDOW);
        __m512 k1 = _mm512_load_ps(u->k + (size_t)d * ATTN_WINDOW + 16);
        UNROLL
        for (uint32_t i = 0; i < n; i++) {
            __m512 x = _mm512_set1_ps(q[i][d]);
            lo[i] = _mm512_fmadd_ps(x, k0, lo[i]);
            hi[i] = _mm512_fmadd_ps(x, k1, hi[i]);
        }
    }
    UNROLL
    for (uint32_t i = 0; i < n; i++) {
        _mm512_store_ps(u->p + (size_t)(first + i) * ATTN_WINDOW, lo[i]);
        _mm512_store_ps(u->p + (size_t)(first + i) * ATTN_WINDOW + 16, hi[i]);
    }
}

/* Scores of one query to probabilities, its running maximum and sum. */
static void softmax(const struct unit *u, uint32_t i, uint32_t base)
{
    struct query *s = &u->queries[i];
    float *p = u->p + (size_t)i * ATTN_WINDOW;
    uint32_t t0 = s->lo > base ? s->lo - base : 0, t1 = s->hi - base < ATTN_WINDOW ? s->hi - base : ATTN_WINDOW;
    uint32_t seen = (t1 == 32 ? ~0u : (1u << t1) - 1) & ~((1u << t0) - 1);
    const __m512 none = _mm512_set1_ps(-INFINITY);
    __m512 lo = _mm512_mask_mov_ps(none, (__mmask16)(seen & 0xffff), _mm512_load_ps(p));
    __m512 hi = _mm512_mask_mov_ps(none, (__mmask16)(seen >> 16), _mm512_load_ps(p + 16));
    float max = _mm512_reduce_max_ps(_mm512_max_ps(lo, hi));
    max = max > s->max ? max : s->max;
    lo = exp512(_mm512_sub_ps(lo, _mm512_set1_ps(max)));
    hi = exp512(_mm512_sub_ps(hi, _mm512_set1_ps(max)));
    _mm512_store_ps(p, lo);
    _mm512_store_ps(p + 16, hi);
    u->factor[i] = _mm512_cvtss_f32(exp512(_mm512_set1_ps(s->max - max)));
    s->sum = _mm_cvtss_f32(_mm_fmadd_ss(_mm_set_ss(s->sum), _mm_set_ss(u->factor[i]),
                                        _mm_set_ss(lanes512(_mm512_add_ps(lo, hi)))));
    s->max = max;
}

/* out = out x factor + p V for n queries and `w` vectors of dims from d; positions [t0, t1) of the window. */
INLINE void weighted(const struct unit *u, uint32_t first, uint32_t n, uint32_t d, uint32_t w, uint32_t t0, uint32_t t1)
{
    __m512 acc[Q][4];
    UNROLL
    for (uint32_t i = 0; i < n; i++)
        UNROLL
        for (uint32_t j = 0; j < w; j++)
            acc[i][j] = _mm512_mul_ps(_mm512_loadu_ps(out_at(u, first + i) + d + j * 16),
                                      _mm512_set1_ps(u->factor[first + i]));
    for (uint32_t t = t0; t < t1; t++) {
        const float *v = u->v + (size_t)t * u->a->head_dim + d;
        UNROLL
        for (uint32_t i = 0; i < n; i++) {
            __m512 p = _mm512_set1_ps(u->p[(size_t)(first + i) * ATTN_WINDOW + t]);
            UNROLL
            for (uint32_t j = 0; j < w; j++)
                acc[i][j] = _mm512_fmadd_ps(p, _mm512_load_ps(v + j * 16), acc[i][j]);
        }
    }
    UNROLL
    for (uint32_t i = 0; i < n; i++)
        UNROLL
        for (uint32_t j = 0; j < w; j++)
            _mm512_storeu_ps(out_at(u, first + i) + d + j * 16, acc[i][j]);
}

INLINE void window_queries(const struct unit *u, uint32_t first, uint32_t n, uint32_t base)
{
    uint32_t t0 = ATTN_WINDOW, t1 = 0, d = 0;
    scores(u, first, n);
    for (uint32_t i = first; i < first + n; i++) {
        const struct query *s = &u->queries[i];
        uint32_t from = s->lo > base ? s->lo - base : 0, to = s->hi - base < 32 ? s->hi - base : 32;
        t0 = from < t0 ? from : t0;
        t1 = to > t1 ? to : t1;
        softmax(u, i, base);
    }
    for (; d + 64 <= u->a->head_dim; d += 64)
        weighted(u, first, n, d, 4, t0, t1);
    for (; d < u->a->head_dim; d += 16)
        weighted(u, first, n, d, 1, t0, t1);
}

/* Queries are ordered by row, so those that see a window are consecutive. */
static void window(const struct unit *u, uint32_t base)
{
    const struct attn *a = u->a;
    const uint8_t *block = a->pool + a->blocks[base / a->block_tokens] * a->block_bytes;
    size_t at = (size_t)(base % a->block_tokens) * a->head_dim * (a->kv_f32 ? 4 : 2);
    uint32_t end = a->start + a->rows - base, i = 0, n = u->n;
    load_keys(u, block + a->k_at + at, end < ATTN_WINDOW ? end : ATTN_WINDOW);
    load_values(u, block + a->v_at + at, end < ATTN_WINDOW ? end : ATTN_WINDOW);
    while (i < n && u->queries[i].hi <= base)
        i++;
    while (n > i && u->queries[n - 1].lo >= base + ATTN_WINDOW)
        n--;
    for (; i + Q <= n; i += Q)
        window_queries(u, i, Q, base);
    if (n - i == 3)
        window_queries(u, i, 3, base);
    else if (n - i == 2)
        window_queries(u, i, 2, base);
    else if (n - i == 1)
        window_queries(u, i, 1, base);
}

void avx512_attention(const struct attn *a)
{
    struct unit u = {.a = a, .n = a->rows * a->group};
    u.k = a->scratch;
    u.v = u.k + (size_t)a->head_dim * ATTN_WINDOW;
    u.p = u.v + (size_t)a->head_dim * ATTN_WINDOW;
    u.queries = (struct query *)(void *)(u.p + (size_t)u.n * ATTN_WINDOW);
    u.factor = (float *)(void *)(u.queries + u.n);
    for (uint32_t i = 0; i < u.n; i++) {
        uint32_t hi = a->start + i / a->group + 1;
        u.queries[i] = (struct query){-INFINITY, 0, a->window && hi > a->window ? hi - a->window : 0, hi};
        memset(out_at(&u, i), 0, a->head_dim * sizeof(float));
    }
    uint32_t end = a->start + a->rows;
    for (uint32_t base = u.queries[0].lo / ATTN_WINDOW * ATTN_WINDOW; base < end; base += ATTN_WINDOW)
        window(&u, base);
    for (uint32_t i = 0; i < u.n; i++)
        avx512_scale(out_at(&u, i), 1.0f / u.queries[i].sum, a->head_dim);
}
