/* simd_attention.h: attention over paged KV. For each window of 32 positions K is turned into
 * [dim][position] and V into f32 once, then all queries of the unit pass over them. Bits are those
 * of scalar_attention.c. Compiled once a backend, after its v16_*.h. */
#include "kernels/cpu/simd_exp.h"

#include <math.h>
#include <string.h>

#define Q                                                                                          \
    SCORE_QUERIES /* queries at once in scores; a v16_*.h says how many its registers hold         \
                   */
#define V 4u      /* and over values */

struct query {
    float max, sum;
    uint32_t lo, hi; /* positions seen */
};

/* Scratch of one unit. */
struct unit {
    const struct attn *a;
    uint32_t v_dim;
    float *k, *v;  /* [head_dim][32], [32][v_dim] */
    float *p;      /* [queries][32] scores, then probabilities */
    float *factor; /* [queries] */
    struct query *queries;
    uint32_t n;
};
_Static_assert(sizeof(struct query) == 16, "attn_scratch_floats counts four words a query");

/* A head's rows of a block, from the window's first position on. */
struct kv_rows {
    const uint8_t *codes;
    const float *scales; /* [token][groups] */
    uint32_t dim, groups;
};

static struct kv_rows rows_at(const struct attn *a, const uint8_t *head, uint32_t token)
{
    struct kv_rows r = {.dim = a->head_dim, .groups = (a->head_dim + KV_GROUP - 1) / KV_GROUP};
    r.codes = head + (size_t)token * r.dim * kv_elt_bytes(a->kv);
    r.scales = (const float *)(const void *)(head + (size_t)a->block_tokens * r.dim) +
               (size_t)token * r.groups;
    return r;
}

INLINE v16 row_load(const struct kv_rows *r, enum kv_type type, uint32_t t, uint32_t d)
{
    size_t i = (size_t)t * r->dim + d;
    if (type == KV_F32)
        return v_load((const float *)(const void *)r->codes + i);
    if (type == KV_F16)
        return v_load_f16((const uint16_t *)(const void *)r->codes + i);
    if (type == KV_BF16)
        return v_load_bf16((const uint16_t *)(const void *)r->codes + i);
    float scale = r->scales[(size_t)t * r->groups + d / KV_GROUP];
    if (type == KV_I8)
        return v_mul(v_load_i8((const int8_t *)r->codes + i), v_set1(scale));
    return v_mul(v_load_f8(r->codes + i), v_set1(scale * 256.0f));
}

INLINE void load_keys_of(const struct unit *u, const struct kv_rows *k, enum kv_type type,
                         uint32_t n)
{
    for (uint32_t t = 0; t < ATTN_WINDOW; t += 16)
        for (uint32_t d = 0; d < k->dim; d += 16) {
            v16 r[16];
            UNROLL
            for (uint32_t i = 0; i < 16; i++)
                r[i] = t + i < n ? row_load(k, type, t + i, d) : v_set1(0);
            v_transpose(r);
            UNROLL
            for (uint32_t i = 0; i < 16; i++)
                v_store(u->k + (size_t)(d + i) * ATTN_WINDOW + t, r[i]);
        }
}

INLINE void load_values_of(const struct unit *u, const struct kv_rows *v, enum kv_type type,
                           uint32_t n)
{
    for (uint32_t t = 0; t < n; t++)
        for (uint32_t d = 0; d < u->v_dim; d += 16)
            v_store(u->v + (size_t)t * u->v_dim + d, row_load(v, type, t, d));
}

INLINE void load_window(const struct unit *u, const struct kv_rows *k, const struct kv_rows *v,
                        enum kv_type type, uint32_t n)
{
    load_keys_of(u, k, type, n);
    load_values_of(u, v, type, n);
}

static void load_window_any(const struct unit *u, const struct kv_rows *k, const struct kv_rows *v,
                            uint32_t n)
{
    switch (u->a->kv) {
    case KV_F16: load_window(u, k, v, KV_F16, n); break;
    case KV_F32: load_window(u, k, v, KV_F32, n); break;
    case KV_BF16: load_window(u, k, v, KV_BF16, n); break;
    case KV_I8: load_window(u, k, v, KV_I8, n); break;
    case KV_F8: load_window(u, k, v, KV_F8, n); break;
    }
}

static uint32_t row_at(const struct unit *u, uint32_t i)
{
    uint32_t r = i / u->a->group;
    return u->a->each ? u->a->each[r].row : r;
}

static const float *query_at(const struct unit *u, uint32_t i)
{
    const struct attn *a = u->a;
    return a->q + row_at(u, i) * a->ldq + (size_t)(i % a->group) * a->head_dim;
}

static float *out_at(const struct unit *u, uint32_t i)
{
    const struct attn *a = u->a;
    return a->out + row_at(u, i) * a->ldo + (size_t)(i % a->group) * u->v_dim;
}

INLINE void scores(const struct unit *u, uint32_t first, uint32_t n)
{
    const float *q[Q];
    v16 lo[Q], hi[Q];
    UNROLL
    for (uint32_t i = 0; i < n; i++) {
        q[i] = query_at(u, first + i);
        lo[i] = hi[i] = v_set1(0);
    }
    for (uint32_t d = 0; d < u->a->head_dim; d++) {
        v16 k0 = v_load(u->k + (size_t)d * ATTN_WINDOW);
        v16 k1 = v_load(u->k + (size_t)d * ATTN_WINDOW + 16);
        UNROLL
        for (uint32_t i = 0; i < n; i++) {
            v16 x = v_set1(q[i][d]);
            lo[i] = v_fma(x, k0, lo[i]);
            hi[i] = v_fma(x, k1, hi[i]);
        }
    }
    UNROLL
    for (uint32_t i = 0; i < n; i++) {
        v_store(u->p + (size_t)(first + i) * ATTN_WINDOW, lo[i]);
        v_store(u->p + (size_t)(first + i) * ATTN_WINDOW + 16, hi[i]);
    }
}

/* Scores of one query to probabilities, its running maximum and sum. */
static void softmax(const struct unit *u, uint32_t i, uint32_t base)
{
    struct query *s = &u->queries[i];
    float *p = u->p + (size_t)i * ATTN_WINDOW;
    uint32_t t0 = s->lo > base ? s->lo - base : 0,
             t1 = s->hi - base < ATTN_WINDOW ? s->hi - base : ATTN_WINDOW;
    uint32_t seen = (t1 == 32 ? ~0u : (1u << t1) - 1) & ~((1u << t0) - 1);
    const v16 none = v_set1(-INFINITY);
    v16 lo = v_choose(seen & 0xffff, v_load(p), none),
        hi = v_choose(seen >> 16, v_load(p + 16), none);
    float max = v_max_of(v_max(lo, hi));
    max = max > s->max ? max : s->max;
    lo = v_exp(v_sub(lo, v_set1(max)));
    hi = v_exp(v_sub(hi, v_set1(max)));
    v_store(p, lo);
    v_store(p + 16, hi);
    u->factor[i] = max == s->max ? 1.0f : v_first(v_exp(v_set1(s->max - max))); /* exp(0) is 1 */
    s->sum = fmaf(s->sum, u->factor[i], v_sum(v_add(lo, hi)));
    s->max = max;
}

/* out = out x factor + p V for n queries and `w` vectors of dims from d; positions [t0, t1) of the
 * window. */
INLINE void weighted(const struct unit *u, uint32_t first, uint32_t n, uint32_t d, uint32_t w,
                     uint32_t t0, uint32_t t1)
{
    v16 acc[V][4];
    UNROLL
    for (uint32_t i = 0; i < n; i++) {
        UNROLL
        for (uint32_t j = 0; j < w; j++)
            acc[i][j] =
                v_mul(v_load(out_at(u, first + i) + d + j * 16), v_set1(u->factor[first + i]));
    }
    for (uint32_t t = t0; t < t1; t++) {
        const float *v = u->v + (size_t)t * u->v_dim + d;
        UNROLL
        for (uint32_t i = 0; i < n; i++) {
            v16 p = v_set1(u->p[(size_t)(first + i) * ATTN_WINDOW + t]);
            UNROLL
            for (uint32_t j = 0; j < w; j++)
                acc[i][j] = v_fma(p, v_load(v + j * 16), acc[i][j]);
        }
    }
    UNROLL
    for (uint32_t i = 0; i < n; i++) {
        UNROLL
        for (uint32_t j = 0; j < w; j++)
            v_store(out_at(u, first + i) + d + j * 16, acc[i][j]);
    }
}

INLINE void weighted_all(const struct unit *u, uint32_t first, uint32_t n, uint32_t t0, uint32_t t1)
{
    uint32_t d = 0;
    for (; d + 64 <= u->v_dim; d += 64)
        weighted(u, first, n, d, 4, t0, t1);
    for (; d < u->v_dim; d += 16)
        weighted(u, first, n, d, 1, t0, t1);
}

INLINE void window_queries(const struct unit *u, uint32_t first, uint32_t n, uint32_t base)
{
    uint32_t t0 = ATTN_WINDOW, t1 = 0;
    scores(u, first, n);
    for (uint32_t i = first; i < first + n; i++) {
        const struct query *s = &u->queries[i];
        uint32_t from = s->lo > base ? s->lo - base : 0, to = s->hi - base < 32 ? s->hi - base : 32;
        t0 = from < t0 ? from : t0;
        t1 = to > t1 ? to : t1;
        softmax(u, i, base);
    }
    UNROLL
    for (uint32_t i = 0; i < n; i += V)
        weighted_all(u, first + i, n - i < V ? n - i : V, t0, t1);
}

/* Queries [i, n) over the window at base of a sequence that ends before `end`. They are ordered by
 * position, so those that see it are consecutive. */
static void window(const struct unit *u, const uint32_t *blocks, uint32_t base, uint32_t end,
                   uint32_t i, uint32_t n)
{
    const struct attn *a = u->a;
    const uint8_t *block = a->pool + blocks[base / a->block_tokens] * a->block_bytes;
    struct kv_rows k = rows_at(a, block + a->k_at, base % a->block_tokens);
    struct kv_rows v = rows_at(a, block + a->v_at, base % a->block_tokens);
    load_window_any(u, &k, &v, end - base < ATTN_WINDOW ? end - base : ATTN_WINDOW);
    while (i < n && u->queries[i].hi <= base)
        i++;
    while (n > i && u->queries[n - 1].lo >= base + ATTN_WINDOW)
        n--;
    for (; i + Q <= n; i += Q)
        window_queries(u, i, Q, base);
    if (Q > 4 && n - i >= 4) {
        window_queries(u, i, 4, base);
        i += 4;
    }
    if (n - i == 3)
        window_queries(u, i, 3, base);
    else if (n - i == 2)
        window_queries(u, i, 2, base);
    else if (n - i == 1)
        window_queries(u, i, 1, base);
}

/* K and V of the window after this one: another block lies anywhere, and nothing else asks memory
 * for it in time. */
static void fetch_window(const struct unit *u, const uint32_t *blocks, uint32_t base)
{
    const struct attn *a = u->a;
    const uint8_t *block = a->pool + blocks[base / a->block_tokens] * a->block_bytes;
    size_t row = (size_t)a->head_dim * kv_elt_bytes(a->kv), at = base % a->block_tokens * row;
    for (size_t i = at; i < at + ATTN_WINDOW * row; i += 64) {
        __builtin_prefetch(block + a->k_at + i);
        if (a->v_at != a->k_at)
            __builtin_prefetch(block + a->v_at + i);
    }
}

/* Windows from the first that query i sees, or from `begin`, to `end`. */
static void windows(const struct unit *u, const uint32_t *blocks, uint32_t begin, uint32_t end,
                    uint32_t i, uint32_t n)
{
    uint32_t seen = u->queries[i].lo / ATTN_WINDOW * ATTN_WINDOW;
    for (uint32_t base = seen > begin ? seen : begin; base < end; base += ATTN_WINDOW) {
        if (base + ATTN_WINDOW < end)
            fetch_window(u, blocks, base + ATTN_WINDOW);
        window(u, blocks, base, end, i, n);
    }
}

void ISA(attention)(const struct attn *a)
{
    struct unit u = {.a = a, .n = a->rows * a->group, .v_dim = a->v_dim ? a->v_dim : a->head_dim};
    u.k = a->scratch;
    u.v = u.k + (size_t)a->head_dim * ATTN_WINDOW;
    u.p = u.v + (size_t)u.v_dim * ATTN_WINDOW;
    u.queries = (struct query *)(void *)(u.p + (size_t)u.n * ATTN_WINDOW);
    u.factor = (float *)(void *)(u.queries + u.n);
    for (uint32_t i = 0; i < u.n; i++) {
        uint32_t r = i / a->group, hi = (a->each ? a->each[r].pos : a->start + r) + 1;
        u.queries[i] =
            (struct query){-INFINITY, 0, a->window && hi > a->window ? hi - a->window : 0, hi};
        memset(out_at(&u, i), 0, u.v_dim * sizeof(float));
    }
    if (!a->each)
        windows(&u, a->blocks, 0, a->start + a->rows, 0, u.n);
    else
        windows(&u, a->each[0].blocks, 0, a->shared, 0, u.n);
    for (uint32_t r = 0; a->each && r < a->rows; r++)
        windows(&u, a->each[r].blocks, a->shared, a->each[r].pos + 1, r * a->group,
                (r + 1) * a->group);
    for (uint32_t i = 0; i < u.n; i++)
        ISA(scale)(out_at(&u, i), 1.0f / u.queries[i].sum, u.v_dim);
}
