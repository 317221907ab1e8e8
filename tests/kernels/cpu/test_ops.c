/* Every backend that this machine has gives the bits of the scalar one, for every operation, form
 * and odd size; and a row's bits do not depend on what is computed with it. */
#include "kernels/cpu/cpu.h"
#include "lib/base/rng.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static struct rng rng;
static const struct kernel_ops *scalar;

static float normal(void)
{
    float s = -6;
    for (int i = 0; i < 12; i++)
        s += (float)rng_unit(&rng);
    return s;
}

static float *floats(size_t n, float scale)
{
    float *p = aligned_alloc(64, (n * sizeof(float) + 63) / 64 * 64);
    for (size_t i = 0; i < n; i++)
        p[i] = normal() * scale * (rng_below(&rng, 50) == 0 ? 30.0f : 1.0f);
    return p;
}

static void assert_bits(const char *isa, const char *what, const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(&a[i], &b[i], sizeof *a) != 0)
            fail_msg("%s %s: element %zu is %.9g, the scalar one %.9g", isa, what, i, (double)b[i],
                     (double)a[i]);
}

/* ---- rows ---- */

typedef void (*two_in)(const float *, const float *, uint32_t, float *);

static void check_two(const struct kernel_ops *ops, const char *what, two_in want, two_in got,
                      uint32_t n)
{
    float *a = floats(n, 2), *b = floats(n, 2), *x = floats(n, 0), *y = floats(n, 0);
    want(a, b, n, x);
    got(a, b, n, y);
    assert_bits(ops->name, what, x, y, n);
    free(a);
    free(b);
    free(x);
    free(y);
}

static void check_rows(const struct kernel_ops *ops, uint32_t n)
{
    float *x = floats(n, 3), *w = floats(n, 1), *a = floats(n, 0), *b = floats(n, 0);
    check_two(ops, "swiglu", scalar->swiglu, ops->swiglu, n);
    check_two(ops, "geglu", scalar->geglu, ops->geglu, n);
    scalar->rms_norm(x, w, 1e-6f, n, a);
    ops->rms_norm(x, w, 1e-6f, n, b);
    assert_bits(ops->name, "rms_norm", a, b, n);
    scalar->add(a, x, n);
    ops->add(b, x, n);
    assert_bits(ops->name, "add", a, b, n);
    scalar->scale(a, 0.37f, n);
    ops->scale(b, 0.37f, n);
    assert_bits(ops->name, "scale", a, b, n);
    uint16_t *h = calloc(n, 2), *g = calloc(n, 2);
    scalar->to_f16(x, h, n);
    ops->to_f16(x, g, n);
    assert_memory_equal(h, g, n * 2);
    assert_true(scalar->max(x, n) == ops->max(x, n));
    assert_true(scalar->sum_exp(x, scalar->max(x, n), n) == ops->sum_exp(x, scalar->max(x, n), n));
    free(x);
    free(w);
    free(a);
    free(b);
    free(h);
    free(g);
}

static void backends_agree_on_rows(void **state)
{
    (void)state;
    for (const char *const *isa = cpu_isas(); *isa; isa++) {
        const struct kernel_ops *ops;
        assert_int_equal(cpu_ops(*isa, &ops, NULL), 0);
        for (int i = 0; i < 40; i++)
            check_rows(ops, 1 + (uint32_t)rng_below(&rng, 300));
    }
}

static void f16_rounds_to_nearest_even_and_back(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        float f = f16_to_f32((uint16_t)h);
        if (isnan(f))
            continue;
        assert_int_equal(f32_to_f16(f), h);
        float up = f16_to_f32((uint16_t)(h + 1));
        if ((h & 0x7fff) < 0x7bff) { /* halfway goes to the even one */
            assert_int_equal(f32_to_f16((f + up) / 2), h % 2 ? h + 1 : h);
            assert_int_equal(f32_to_f16(nextafterf((f + up) / 2, up)), h + 1);
        }
    }
    assert_int_equal(f32_to_f16(65520.0f), 0x7c00);
    assert_int_equal(f32_to_f16(1e-9f), 0);
}

/* ---- products ---- */

static uint8_t *random_matrix(struct mat *m, enum mat_form form, uint32_t rows, uint32_t cols)
{
    struct mat_shape s;
    mat_shape(form, rows, cols, &s);
    uint8_t *p = aligned_alloc(64, s.groups * s.group_bytes);
    for (size_t i = 0; i < s.groups * s.group_bytes; i++)
        p[i] = (uint8_t)(form == MAT_I8M || form == MAT_I8MF ? rng_below(&rng, 32)
                         : form == MAT_I8B16                 ? 96 + rng_below(&rng, 64)
                                                             : rng_below(&rng, 256));
    for (uint32_t g = 0; g < s.groups; g++) { /* scales and floats must be numbers */
        uint8_t *rec = p + g * s.group_bytes;
        size_t from = mat_form_is_float(form) ? 0 : s.scales_at;
        bool f32 = form == MAT_F32 || s.scale_bytes >= 64;
        for (size_t at = from; at + 4 <= s.group_bytes; at += f32 ? 4 : 2) {
            float v = normal() * 0.01f;
            uint16_t h =
                form == MAT_BF16 ? (uint16_t)(0x3c00 + rng_below(&rng, 256)) : f32_to_f16(v);
            if (f32)
                memcpy(rec + at, &v, 4);
            else
                memcpy(rec + at, &h, 2);
        }
        if (!f32 && s.group_bytes >= 2)
            memset(rec + s.group_bytes - 2, 0, 2);
    }
    *m = (struct mat){form, rows, cols, p};
    return p;
}

struct inputs {
    struct acts acts;
    float *x;
    int8_t *codes;
    struct act_block *blocks;
};

static void inputs_init(struct inputs *in, const struct kernel_ops *ops, const float *x, uint32_t n,
                        uint32_t cols)
{
    uint32_t blocks = (cols + 31) / 32;
    in->acts = (struct acts){.x = x, .ldx = cols, .n_blocks = blocks};
    in->acts.codes = in->codes = aligned_alloc(64, (size_t)n * blocks * ACT_BLOCK_BYTES);
    in->acts.blocks = in->blocks =
        aligned_alloc(64, ((size_t)n * blocks * sizeof(struct act_block) + 63) / 64 * 64);
    for (uint32_t t = 0; t < n; t++)
        ops->quantize(x + (size_t)t * cols, cols, in->codes + (size_t)t * blocks * ACT_BLOCK_BYTES,
                      in->blocks + (size_t)t * blocks);
}

static void inputs_fini(struct inputs *in)
{
    free(in->codes);
    free(in->blocks);
}

static void check_matmul(const struct kernel_ops *ops, enum mat_form form)
{
    uint32_t cols = mat_form_is_float(form) ? 1 + (uint32_t)rng_below(&rng, 150)
                                            : 32 * (1 + (uint32_t)rng_below(&rng, 40));
    uint32_t rows = 1 + (uint32_t)rng_below(&rng, 150), n = 1 + (uint32_t)rng_below(&rng, 20);
    if (rng_below(&rng, 4) == 0) /* more than a kernel takes at once */
        n += 80 + (uint32_t)rng_below(&rng, 140);
    struct mat m;
    uint8_t *data = random_matrix(&m, form, rows, cols);
    float *x = floats((size_t)n * cols, 1), *want = floats((size_t)n * rows, 0),
          *got = floats((size_t)n * rows, 0);
    struct inputs a, b;
    inputs_init(&a, scalar, x, n, cols);
    inputs_init(&b, ops, x, n, cols);
    uint32_t groups = (rows + 15) / 16;
    size_t blocks = (size_t)n * a.acts.n_blocks;
    assert_memory_equal(a.codes, b.codes, blocks * ACT_BLOCK_BYTES);
    assert_memory_equal(a.blocks, b.blocks, blocks * sizeof(struct act_block));
    scalar->matmul(&m, 0, groups, &a.acts, n, want, rows);
    uint32_t cut = (uint32_t)rng_below(&rng, groups + 1); /* as two threads would */
    ops->matmul(&m, 0, cut, &b.acts, n, got, rows);
    ops->matmul(&m, cut, groups, &b.acts, n, got, rows);
    assert_bits(ops->name, "matmul", want, got, (size_t)n * rows);
    inputs_fini(&a);
    inputs_fini(&b);
    free(data);
    free(x);
    free(want);
    free(got);
}

static void backends_agree_on_products_of_every_form(void **state)
{
    (void)state;
    for (const char *const *isa = cpu_isas(); *isa; isa++) {
        const struct kernel_ops *ops;
        assert_int_equal(cpu_ops(*isa, &ops, NULL), 0);
        for (enum mat_form form = MAT_N4; form <= MAT_BF16; form++)
            for (int i = 0; i < 12; i++)
                check_matmul(ops, form);
    }
}

static void a_product_is_that_of_the_matrix_rows(void **state)
{
    (void)state;
    for (enum mat_form form = MAT_N4; form <= MAT_BF16; form++) {
        uint32_t rows = 37, cols = 512;
        struct mat m;
        uint8_t *data = random_matrix(&m, form, rows, cols);
        float *x = floats(cols, 1), *w = floats(cols, 0), y[37];
        struct inputs in;
        inputs_init(&in, scalar, x, 1, cols);
        scalar->matmul(&m, 0, 3, &in.acts, 1, y, rows);
        for (uint32_t r = 0; r < rows; r++) {
            double sum = 0, size = 0;
            mat_row(&m, r, w);
            for (uint32_t c = 0; c < cols; c++) {
                sum += (double)w[c] * (double)x[c];
                size += fabs((double)w[c] * (double)x[c]);
            }
            assert_true(fabs(sum - (double)y[r]) < 3e-4 * size + 1e-6);
        }
        inputs_fini(&in);
        free(data);
        free(x);
        free(w);
    }
}

/* ---- attention ---- */

struct kv_case {
    struct attn a;
    float *q, *want, *got, *scratch;
    uint8_t *pool;
    uint32_t *blocks;
};

static void kv_case_init(struct kv_case *c)
{
    static const uint32_t dims[] = {16, 48, 64, 128, 256};
    uint32_t dim = dims[rng_below(&rng, 5)], rows = 1 + (uint32_t)rng_below(&rng, 16),
             group = 1 + (uint32_t)rng_below(&rng, 4);
    uint32_t start = (uint32_t)rng_below(&rng, 200), bt = rng_below(&rng, 2) ? 32 : 64,
             n = (start + rows + bt - 1) / bt;
    bool f32 = rng_below(&rng, 2);
    uint64_t half = (uint64_t)bt * dim * (f32 ? 4 : 2);
    c->blocks = calloc(n, sizeof *c->blocks);
    for (uint32_t i = 0; i < n; i++)
        c->blocks[i] = n - 1 - i;
    c->pool = aligned_alloc(64, 2 * half * n);
    memset(c->pool, 0xff, 2 * half * n); /* NaN where nothing was written */
    for (uint32_t pos = 0; pos < start + rows; pos++)
        for (uint32_t i = 0; i < 2 * dim; i++) {
            uint8_t *at = c->pool + c->blocks[pos / bt] * 2 * half + (i / dim) * half;
            float v = normal();
            size_t k = (size_t)(pos % bt) * dim + i % dim;
            if (f32)
                ((float *)(void *)at)[k] = v;
            else
                ((uint16_t *)(void *)at)[k] = f32_to_f16(v);
        }
    size_t n_q = (size_t)rows * group * dim;
    c->q = floats(n_q, 0.5f);
    c->want = floats(n_q, 0);
    c->got = floats(n_q, 0);
    c->scratch = floats(attn_scratch_floats(rows, group, dim), 0);
    c->a = (struct attn){.q = c->q,
                         .out = c->want,
                         .ldq = (size_t)group * dim,
                         .ldo = (size_t)group * dim,
                         .rows = rows,
                         .group = group,
                         .head_dim = dim,
                         .start = start,
                         .pool = c->pool,
                         .blocks = c->blocks,
                         .window = rng_below(&rng, 2) ? 0 : 1 + (uint32_t)rng_below(&rng, 100),
                         .block_bytes = 2 * half,
                         .v_at = half,
                         .block_tokens = bt,
                         .kv = f32 ? KV_F32 : KV_F16,
                         .scratch = c->scratch};
}

static void kv_case_fini(struct kv_case *c)
{
    free(c->q);
    free(c->want);
    free(c->got);
    free(c->scratch);
    free(c->pool);
    free(c->blocks);
}

/* Softmax attention of one query in f64. */
static double plain(const struct kv_case *c, uint32_t row, uint32_t head, uint32_t d)
{
    const struct attn *a = &c->a;
    uint32_t hi = a->start + row + 1, lo = a->window && hi > a->window ? hi - a->window : 0;
    double num = 0, den = 0;
    for (uint32_t pos = lo; pos < hi; pos++) {
        const uint8_t *b = a->pool + a->blocks[pos / a->block_tokens] * a->block_bytes;
        size_t at = (size_t)(pos % a->block_tokens) * a->head_dim;
        double s = 0, v = 0;
        for (uint32_t i = 0; i < a->head_dim; i++) {
            const float *k = (const float *)(const void *)b;
            const uint16_t *h = (const uint16_t *)(const void *)b;
            double key = a->kv == KV_F32 ? (double)k[at + i] : (double)f16_to_f32(h[at + i]);
            s += key * (double)c->q[row * a->ldq + (size_t)head * a->head_dim + i];
        }
        v = a->kv == KV_F32
                ? (double)((const float *)(const void *)(b + a->v_at))[at + d]
                : (double)f16_to_f32(((const uint16_t *)(const void *)(b + a->v_at))[at + d]);
        num += exp(s) * v;
        den += exp(s);
    }
    return num / den;
}

static void attention_is_softmax_attention_in_every_backend(void **state)
{
    (void)state;
    for (const char *const *isa = cpu_isas(); *isa; isa++) {
        const struct kernel_ops *ops;
        assert_int_equal(cpu_ops(*isa, &ops, NULL), 0);
        for (int i = 0; i < 40; i++) {
            struct kv_case c;
            kv_case_init(&c);
            size_t n = (size_t)c.a.rows * c.a.group * c.a.head_dim;
            scalar->attention(&c.a);
            for (uint32_t d = 0; d < c.a.head_dim; d += 7)
                assert_true(fabs(plain(&c, c.a.rows - 1, 0, d) -
                                 (double)c.want[(c.a.rows - 1) * c.a.ldo + d]) < 1e-4);
            c.a.out = c.got;
            ops->attention(&c.a);
            assert_bits(*isa, "attention", c.want, c.got, n);
            struct attn one = c.a; /* the last row alone, as in decode, one head */
            float alone[256];
            one.rows = one.group = 1;
            one.start += c.a.rows - 1;
            one.q += (c.a.rows - 1) * c.a.ldq;
            one.out = alone;
            ops->attention(&one);
            assert_bits(*isa, "attention of one row", c.want + (c.a.rows - 1) * c.a.ldo, alone,
                        c.a.head_dim);
            kv_case_fini(&c);
        }
    }
}

/* Sequences that begin with the same blocks, their rows anywhere in q and out. */
#define TOGETHER 16u
struct together_case {
    struct attn a;
    struct attn_row each[TOGETHER];
    uint32_t blocks[TOGETHER][8];
    float *q, *scratch, *got;
    uint16_t *pool;
};

static void together_init(struct together_case *c)
{
    uint32_t dim = 16 * (1 + (uint32_t)rng_below(&rng, 8)),
             group = 1 + (uint32_t)rng_below(&rng, 4),
             n = 2 + (uint32_t)rng_below(&rng, TOGETHER - 1),
             common = 1 + (uint32_t)rng_below(&rng, 5), bt = rng_below(&rng, 2) ? 32 : 64,
             pos = common * bt;
    size_t half = (size_t)bt * dim, n_pool = 2 * half * (8 + 3 * TOGETHER);
    c->pool = aligned_alloc(64, n_pool * 2);
    for (size_t i = 0; i < n_pool; i++)
        c->pool[i] = f32_to_f16(normal());
    for (uint32_t r = 0; r < n; r++) {
        for (uint32_t b = 0; b < 8; b++)
            c->blocks[r][b] = b < common ? b : 8 + r * 3 + b - common;
        c->each[r] = (struct attn_row){n - 1 - r, pos, c->blocks[r]};
        pos += (uint32_t)rng_below(&rng, 3 * bt / n);
    }
    c->q = floats((size_t)n * group * dim, 0.5f);
    c->got = floats((size_t)n * group * dim, 0);
    c->scratch = floats(attn_scratch_floats(n, group, dim), 0);
    c->a = (struct attn){.q = c->q,
                         .out = c->got,
                         .ldq = (size_t)group * dim,
                         .ldo = (size_t)group * dim,
                         .rows = n,
                         .group = group,
                         .head_dim = dim,
                         .pool = (uint8_t *)c->pool,
                         .each = c->each,
                         .shared = (1 + (uint32_t)rng_below(&rng, common)) * bt,
                         .window = rng_below(&rng, 2) ? 0 : 1 + (uint32_t)rng_below(&rng, 200),
                         .block_bytes = 4 * half,
                         .v_at = 2 * half,
                         .block_tokens = bt,
                         .kv = KV_F16,
                         .scratch = c->scratch};
}

static void sequences_that_begin_alike_have_the_bits_of_each_alone(void **state)
{
    (void)state;
    for (const char *const *isa = cpu_isas(); *isa; isa++) {
        const struct kernel_ops *ops;
        assert_int_equal(cpu_ops(*isa, &ops, NULL), 0);
        for (int i = 0; i < 40; i++) {
            struct together_case c;
            float alone[4 * 128];
            together_init(&c);
            ops->attention(&c.a);
            for (uint32_t r = 0; r < c.a.rows; r++) {
                struct attn one = c.a;
                one.each = NULL;
                one.rows = 1;
                one.start = c.each[r].pos;
                one.blocks = c.each[r].blocks;
                one.q += c.each[r].row * one.ldq;
                one.out = alone;
                scalar->attention(&one);
                assert_bits(*isa, "attention together", alone, c.got + c.each[r].row * c.a.ldo,
                            c.a.ldo);
            }
            free(c.q);
            free(c.got);
            free(c.scratch);
            free(c.pool);
        }
    }
}

static void an_unknown_isa_is_an_error(void **state)
{
    (void)state;
    const struct kernel_ops *ops = NULL;
    struct err e = {0};
    assert_true(cpu_ops("sse9", &ops, &e) < 0);
    assert_null(ops);
    assert_non_null(strstr(e.msg, "sse9"));
}

int main(void)
{
    const char *s = getenv("SEED");
    rng.state = s ? strtoull(s, NULL, 10) : rng_secret_u64() % 1000000;
    printf("SEED=%llu\n", (unsigned long long)rng.state);
    struct err e;
    if (cpu_ops("scalar", &scalar, &e) < 0)
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(backends_agree_on_rows),
        cmocka_unit_test(f16_rounds_to_nearest_even_and_back),
        cmocka_unit_test(backends_agree_on_products_of_every_form),
        cmocka_unit_test(a_product_is_that_of_the_matrix_rows),
        cmocka_unit_test(attention_is_softmax_attention_in_every_backend),
        cmocka_unit_test(sequences_that_begin_alike_have_the_bits_of_each_alone),
        cmocka_unit_test(an_unknown_isa_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
