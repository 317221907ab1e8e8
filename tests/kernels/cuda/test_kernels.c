/* Every CUDA kernel, executed on the CPU, gives what a plain double-precision computation of the
 * same thing gives, in several orders of threads; what a kernel must not depend on (other rows, the
 * order of threads) is compared bit for bit. $EMU_ORDER is set by the tests. */
#include "kernels/cuda/launch.h"
#include "lib/base/rng.h"
#include "tests/kernels/cuda/emu_device.h"

#include <errno.h>
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
static struct gpu *gpu;
static struct err err;

static const char *const orders[] = {"forward", "reverse", "random:1", "random:2"};
#define ORDERS (sizeof orders / sizeof *orders)

static float normal(void)
{
    float s = -6;
    for (int i = 0; i < 12; i++)
        s += (float)rng_unit(&rng);
    return s;
}

static float bf16(uint16_t v)
{
    uint32_t u = (uint32_t)v << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

static uint16_t to_bf16(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static float f16(uint16_t v)
{
    _Float16 h;
    memcpy(&h, &v, 2);
    return (float)h;
}

static uint16_t to_f16(float f)
{
    _Float16 h = (_Float16)f;
    uint16_t v;
    memcpy(&v, &h, 2);
    return v;
}

#define OK(call)                                                                                   \
    do {                                                                                           \
        if ((call) < 0)                                                                            \
            fail_msg("%s", err.msg);                                                               \
    } while (0)

/* The emulated device's memory is the program's: tests fill and read it directly, between syncs. */
static void *room(size_t bytes)
{
    gpu_ptr p;
    OK(gpu->ops->alloc(gpu, bytes, false, &p, &err));
    return (void *)(uintptr_t)p;
}

static void give(void *p)
{
    gpu->ops->release(gpu, (uintptr_t)p);
}

static void finish(void)
{
    OK(gpu->ops->sync(gpu, GPU_COMPUTE, &err));
}

static float *floats(size_t n, float scale)
{
    float *p = room(n * 4);
    for (size_t i = 0; i < n; i++)
        p[i] = normal() * scale;
    return p;
}

static uint16_t *halves(size_t n, float scale, uint16_t (*to)(float))
{
    uint16_t *p = room(n * 2);
    for (size_t i = 0; i < n; i++)
        p[i] = to(normal() * scale);
    return p;
}

static void near(double got, double want, double tolerance, const char *what, size_t i)
{
    if (!(fabs(got - want) <= tolerance * (fabs(want) + 1)))
        fail_msg("%s: element %zu is %.9g, not %.9g", what, i, got, want);
}

static int set_up(void **state)
{
    (void)state;
    rng = (struct rng){20261130};
    gpu = emu_device_new(4);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    gpu_close(gpu);
    return 0;
}

static void each_order(void (*test)(void))
{
    size_t n = getenv("EMU_QUICK") ? 1 : ORDERS; /* race.cc needs no other order */
    for (size_t i = ORDERS - n; i < ORDERS; i++) {
        setenv("EMU_ORDER", orders[i], 1);
        test();
    }
    unsetenv("EMU_ORDER");
}

/* ---- rows ---- */

static void norm_once(void)
{
    enum { ROWS = 3, D = 520 };
    float *h = floats(ROWS * D, 2), *y = floats(ROWS * D, 1), *post = floats(D, 1),
          *w = floats(D, 1), before[ROWS * D];
    uint16_t *x = room(ROWS * D * 2);
    memcpy(before, h, sizeof before);
    struct add_norm_args a = {.h = h, .y = y, .post = post, .w = w, .x = x, .d = D, .eps = 1e-6f};
    OK(gpu_add_norm(gpu, &a, ROWS, &err));
    finish();
    for (int r = 0; r < ROWS; r++) {
        double sy = 0, sh = 0, now[D];
        for (int i = 0; i < D; i++)
            sy += (double)y[r * D + i] * y[r * D + i];
        for (int i = 0; i < D; i++) {
            now[i] = before[r * D + i] + y[r * D + i] / sqrt(sy / D + 1e-6) * post[i];
            sh += now[i] * now[i];
        }
        for (int i = 0; i < D; i++) {
            near(h[r * D + i], now[i], 1e-5, "the residual", (size_t)i);
            near(bf16(x[r * D + i]), now[i] / sqrt(sh / D + 1e-6) * w[i], 5e-3, "the norm",
                 (size_t)i);
        }
    }
    uint32_t *take = room(4);
    *take = 2;
    memcpy(before, h, sizeof before);
    a = (struct add_norm_args){.h = h, .w = w, .x = x, .take = take, .d = D, .eps = 1e-6f};
    OK(gpu_add_norm(gpu, &a, 1, &err));
    finish();
    assert_memory_equal(before, h, sizeof before);
    double s = 0;
    for (int i = 0; i < D; i++)
        s += (double)h[2 * D + i] * h[2 * D + i];
    near(bf16(x[7]), h[2 * D + 7] / sqrt(s / D + 1e-6) * w[7], 5e-3, "the norm of a row taken", 7);
    give(h), give(y), give(post), give(w), give(x), give(take);
}

static void residual_and_norm_follow_their_definition(void **state)
{
    (void)state;
    each_order(norm_once);
}

static void embedding_takes_rows_of_the_table(void **state)
{
    (void)state;
    enum { D = 72, VOCAB = 9 };
    uint16_t *table = halves(VOCAB * D, 1, to_bf16);
    uint32_t *tokens = room(8);
    float *h = room(2 * D * 4);
    tokens[0] = 8;
    tokens[1] = 0;
    struct embed_args a = {
        .h = h, .table = table, .tokens = tokens, .d = D, .n = VOCAB, .scale = 3};
    OK(gpu_embed(gpu, &a, 2, &err));
    finish();
    for (size_t i = 0; i < D; i++) {
        assert_true(h[i] == bf16(table[8 * D + i]) * 3);
        assert_true(h[D + i] == bf16(table[i]) * 3);
    }
    give(table), give(tokens), give(h);
}

static void gates_are_silu_and_gelu(void **state)
{
    (void)state;
    enum { N = 1100, ROWS = 2 };
    float *gu = floats(ROWS * 2 * N, 2);
    uint16_t *x = room(ROWS * N * 2);
    for (uint32_t gelu = 0; gelu < 2; gelu++) {
        struct gated_args a = {.gate_up = gu, .x = x, .n = N, .gelu = gelu};
        OK(gpu_gated(gpu, &a, ROWS, &err));
        finish();
        for (size_t r = 0; r < ROWS; r++)
            for (size_t i = 0; i < N; i++) {
                double g = gu[r * 2 * N + i], u = gu[r * 2 * N + N + i];
                double act =
                    gelu ? 0.5 * g * (1 + tanh(0.7978845608028654 * (g + 0.044715 * g * g * g)))
                         : g / (1 + exp(-g));
                near(bf16(x[r * N + i]), act * u, 5e-3, "a gate", i);
            }
    }
    give(gu), give(x);
}

static void fp8_rows_come_back_within_a_sixteenth(void **state)
{
    (void)state;
    enum { ROWS = 3, D = 384 };
    uint16_t *x = halves(5 * D, 4, to_bf16), *back = room(ROWS * D * 2);
    uint8_t *codes = room(ROWS * D);
    float *scales = room(ROWS * D / FP8_GROUP * 4);
    uint32_t *take = room(ROWS * 4);
    take[0] = 4, take[1] = 0, take[2] = 2;
    for (size_t i = 0; i < FP8_GROUP; i++)
        x[i] = 0; /* a group of zeros */
    struct fp8_pack_args p = {.x = x, .take = take, .codes = codes, .scales = scales, .d = D};
    struct fp8_unpack_args u = {.codes = codes, .scales = scales, .x = back, .d = D};
    OK(gpu_fp8_pack(gpu, &p, ROWS, &err));
    OK(gpu_fp8_unpack(gpu, &u, ROWS, &err));
    finish();
    for (size_t r = 0; r < ROWS; r++)
        for (size_t i = 0; i < D; i++) {
            double want = bf16(x[take[r] * D + i]), got = bf16(back[r * D + i]),
                   scale = scales[r * 3 + i / FP8_GROUP];
            if (fabs(got - want) > fabs(want) / 15 + scale * 0x1p-9)
                fail_msg("row %zu channel %zu: %g came back as %g", r, i, want, got);
        }
    give(x), give(back), give(codes), give(scales), give(take);
}

/* ---- attention ---- */

struct cache {
    struct kv_view view;
    uint32_t blocks, layers, layer, heads, dim;
};

/* `mla`: one part, no heads. Tables are shuffled, so that blocks lie anywhere. What lies past a
 * sequence's end is NaN, as it may be. */
static struct cache cache_new(uint32_t sequences, uint32_t max_tokens, uint32_t heads, uint32_t dim,
                              bool mla)
{
    struct cache c = {.layers = 2, .layer = 1, .heads = heads, .dim = dim};
    uint32_t bt = 32, per = (max_tokens + bt - 1) / bt;
    c.blocks = sequences * per;
    uint64_t head = (uint64_t)bt * dim * 2, half = heads * head, piece = mla ? head : 2 * half;
    uint64_t block = c.layers * piece;
    uint8_t *pool = room(c.blocks * block);
    memset(pool, 0xff, c.blocks * block);
    uint32_t *tables = room(c.blocks * 4);
    for (uint32_t i = 0; i < c.blocks; i++)
        tables[i] = i;
    for (uint32_t i = c.blocks - 1; i > 0; i--) {
        uint32_t j = (uint32_t)rng_below(&rng, i + 1), t = tables[i];
        tables[i] = tables[j];
        tables[j] = t;
    }
    c.view = (struct kv_view){.pool = pool,
                              .tables = tables,
                              .table_ld = per,
                              .block_tokens = bt,
                              .block_bytes = block,
                              .layer_at = c.layer * piece,
                              .half_bytes = half,
                              .head_bytes = head};
    return c;
}

static uint16_t *cell(const struct cache *c, uint32_t sequence, uint32_t t, bool v, uint32_t head)
{
    const struct kv_view *w = &c->view;
    uint32_t block = w->tables[sequence * w->table_ld + t / w->block_tokens];
    uint8_t *at = w->pool + block * w->block_bytes + w->layer_at + (v ? w->half_bytes : 0) +
                  head * w->head_bytes;
    return (uint16_t *)(void *)at + (size_t)(t % w->block_tokens) * c->dim;
}

static void cache_fill(const struct cache *c, uint32_t sequence, uint32_t tokens, bool mla)
{
    for (uint32_t t = 0; t < tokens; t++)
        for (uint32_t h = 0; h < c->heads; h++)
            for (int v = 0; v < (mla ? 1 : 2); v++)
                for (uint32_t i = 0; i < c->dim; i++)
                    cell(c, sequence, t, v, h)[i] = to_f16(normal());
}

static void cache_free(struct cache *c)
{
    give(c->view.pool);
    give((void *)(uintptr_t)c->view.tables);
}

/* out of one query head at `position`; V is the first `latent` channels of K, unless that is 0. */
static void attend(const struct cache *c, uint32_t sequence, uint32_t position, uint32_t window,
                   const uint16_t *q, uint32_t kv_head, uint32_t latent, double *out)
{
    uint32_t from = window && position + 1 > window ? position + 1 - window : 0,
             v_dim = latent ? latent : c->dim;
    double *s = calloc(position + 1, sizeof *s), most = -1e300, sum = 0;
    for (uint32_t t = from; t <= position; t++) {
        for (uint32_t i = 0; i < c->dim; i++)
            s[t] += (double)f16(q[i]) * f16(cell(c, sequence, t, false, kv_head)[i]);
        most = fmax(most, s[t]);
    }
    memset(out, 0, v_dim * sizeof *out);
    for (uint32_t t = from; t <= position; t++) {
        double p = exp(s[t] - most);
        sum += p;
        for (uint32_t i = 0; i < v_dim; i++)
            out[i] += p * f16(cell(c, sequence, t, !latent, kv_head)[i]);
    }
    for (uint32_t i = 0; i < v_dim; i++)
        out[i] /= sum;
    free(s);
}

/* Conversions of device.h, through a kernel that stores f16 (rope): every value of f16 and the
 * middle of every step. */
static void conversions_round_as_the_hardware_does(void **state)
{
    (void)state;
    enum { D = 128, ROWS = 512 };
    struct cache c = cache_new(ROWS / 32, 32, 1, D, false);
    float *qkv = room((size_t)ROWS * 3 * D * 4), *cs = room(32 * D * 4);
    uint32_t *positions = room(ROWS * 4), *sequences = room(ROWS * 4);
    uint16_t *q = room(ROWS * D * 2);
    for (uint32_t r = 0; r < ROWS; r++) {
        positions[r] = r % 32;
        sequences[r] = r / 32;
    }
    for (uint32_t i = 0; i < ROWS * D;
         i++) { /* each f16 value, and the middle between it and the next */
        float a = f16((uint16_t)(i / 2 & 0x7fff)), b = f16((uint16_t)((i / 2 & 0x7fff) + 1));
        qkv[i / D * 3 * D + i % D] = i % 2 && b < 7e4f ? (a + b) / 2 : a;
    }
    struct rope_args r = {.qkv = qkv,
                          .cs = cs,
                          .positions = positions,
                          .sequences = sequences,
                          .q = q,
                          .kv = c.view,
                          .heads = 1,
                          .kv_heads = 1,
                          .dim = D,
                          .scale = 1};
    OK(gpu_rope_store(gpu, &r, ROWS, &err));
    finish();
    for (uint32_t i = 0; i < ROWS * D; i++) {
        float x = qkv[i / D * 3 * D + i % D];
        if (isfinite(x) && q[i] != to_f16(x))
            fail_msg("%.9g became f16 %04x, not %04x", (double)x, q[i], to_f16(x));
    }
    give(qkv), give(cs), give(positions), give(sequences), give(q);
    cache_free(&c);
}

/* Head h reads KV head (first + h) / group. */
static void decode_case(uint32_t dim, uint32_t heads, uint32_t kv_heads, uint32_t first,
                        uint32_t window, uint32_t splits)
{
    enum { ROWS = 3 };
    static const uint32_t lengths[ROWS] = {150, 1, 64};
    struct cache c = cache_new(ROWS, 150, kv_heads, dim, false);
    uint32_t *positions = room(ROWS * 4), *sequences = room(ROWS * 4);
    uint16_t *q = halves(ROWS * heads * dim, 2 / sqrtf((float)dim), to_f16),
             *out = room(ROWS * heads * dim * 2);
    float *part = room((size_t)ROWS * heads * splits * dim * 4),
          *ml = room((size_t)ROWS * heads * splits * 8);
    for (uint32_t r = 0; r < ROWS; r++) {
        sequences[r] = ROWS - 1 - r;
        positions[r] = lengths[r] - 1;
        cache_fill(&c, sequences[r], lengths[r], false);
    }
    struct decode_attention_args a = {.q = q,
                                      .positions = positions,
                                      .sequences = sequences,
                                      .out = out,
                                      .part = part,
                                      .part_ml = ml,
                                      .kv = c.view,
                                      .heads = heads,
                                      .kv_heads = kv_heads,
                                      .first = first,
                                      .group = (first + heads) / kv_heads,
                                      .window = window};
    OK(gpu_decode_attention(gpu, &a, ROWS, dim, splits, &err));
    finish();
    double want[512];
    for (uint32_t r = 0; r < ROWS; r++)
        for (uint32_t h = 0; h < heads; h++) {
            size_t at = ((size_t)r * heads + h) * dim;
            attend(&c, sequences[r], positions[r], window, q + at, (first + h) / a.group, 0, want);
            for (uint32_t i = 0; i < dim; i++)
                near(bf16(out[at + i]), want[i], 5e-3, "decode attention", at + i);
        }
    give(positions), give(sequences), give(q), give(out), give(part), give(ml);
    cache_free(&c);
}

static void decode_once(void)
{
    decode_case(64, 9, 3, 0, 0, 1);
    decode_case(64, 2, 2, 0, 40, 2);
    decode_case(128, 8, 1, 0, 0, 3);
    decode_case(256, 4, 1, 0, 64, 2);
}

static void decode_attention_follows_its_definition(void **state)
{
    (void)state;
    each_order(decode_once);
    decode_case(64, 14, 2, 0, 0, 4);  /* groups of 7 */
    decode_case(128, 24, 2, 0, 0, 1); /* groups of 12: two chunks */
    decode_case(128, 2, 1, 0, 0, 5);
    decode_case(256, 2, 1, 0, 0, 1);
    decode_case(64, 5, 2, 1, 0, 2); /* a tensor rank that begins inside a group */
}

static void prefill_case(uint32_t dim, uint32_t heads, uint32_t kv_heads, uint32_t first,
                         uint32_t window)
{
    /* A chunk of 70 rows that starts at position 50 (two tiles), and a prompt of 5. */
    enum { CHUNK = 70, START = 50, SHORT = 5, ROWS = CHUNK + SHORT };
    struct cache c = cache_new(2, CHUNK + START, kv_heads, dim, false);
    cache_fill(&c, 0, CHUNK + START, false);
    cache_fill(&c, 1, SHORT, false);
    uint16_t *q = halves((size_t)ROWS * heads * dim, 2 / sqrtf((float)dim), to_f16),
             *out = room((size_t)ROWS * heads * dim * 2);
    struct attn_tile *tiles = room(3 * sizeof *tiles);
    tiles[0] = (struct attn_tile){0, 64, START, 0};
    tiles[1] = (struct attn_tile){64, CHUNK - 64, START + 64, 0};
    tiles[2] = (struct attn_tile){CHUNK, SHORT, 0, 1};
    struct prefill_attention_args a = {.q = q,
                                       .out = out,
                                       .tiles = tiles,
                                       .kv = c.view,
                                       .heads = heads,
                                       .kv_heads = kv_heads,
                                       .first = first,
                                       .group = (first + heads) / kv_heads,
                                       .window = window};
    OK(gpu_prefill_attention(gpu, &a, 3, dim, &err));
    finish();
    double want[512];
    for (uint32_t r = 0; r < ROWS; r++)
        for (uint32_t h = 0; h < heads; h++) {
            size_t at = ((size_t)r * heads + h) * dim;
            attend(&c, r < CHUNK ? 0 : 1, r < CHUNK ? START + r : r - CHUNK, window, q + at,
                   (first + h) / a.group, 0, want);
            for (uint32_t i = 0; i < dim; i++)
                near(bf16(out[at + i]), want[i], 5e-3, "prefill attention", at + i);
        }
    give(q), give(out), give(tiles);
    cache_free(&c);
}

static void prefill_once(void)
{
    prefill_case(64, 3, 1, 0, 0);
    prefill_case(128, 2, 1, 0, 33);
}

static void prefill_attention_follows_its_definition(void **state)
{
    (void)state;
    each_order(prefill_once);
    prefill_case(256, 2, 2, 0, 0);
    prefill_case(64, 5, 2, 1, 0);
}

static void mla_case(uint32_t latent, uint32_t rope, uint32_t heads, uint32_t splits)
{
    enum { ROWS = 2 };
    static const uint32_t lengths[ROWS] = {75, 2};
    uint32_t width = latent + rope;
    struct cache c = cache_new(ROWS, 75, 1, width, true);
    uint32_t *positions = room(ROWS * 4), *sequences = room(ROWS * 4);
    uint16_t *q = halves((size_t)ROWS * heads * width, 0.06f, to_f16),
             *out = room((size_t)ROWS * heads * latent * 2);
    float *part = room((size_t)ROWS * heads * splits * latent * 4),
          *ml = room((size_t)ROWS * heads * splits * 8);
    for (uint32_t r = 0; r < ROWS; r++) {
        sequences[r] = r;
        positions[r] = lengths[r] - 1;
        cache_fill(&c, r, lengths[r], true);
    }
    struct mla_decode_args a = {.q = q,
                                .positions = positions,
                                .sequences = sequences,
                                .out = out,
                                .part = part,
                                .part_ml = ml,
                                .kv = c.view,
                                .heads = heads};
    OK(gpu_mla_decode(gpu, &a, ROWS, latent, rope, splits, &err));
    finish();
    double want[512];
    for (uint32_t r = 0; r < ROWS; r++)
        for (uint32_t h = 0; h<heads; h += heads> 16 ? 5 : 1) {
            size_t at = (size_t)r * heads + h;
            attend(&c, r, positions[r], 0, q + at * width, 0, latent, want);
            for (uint32_t i = 0; i < latent; i++)
                near(bf16(out[at * latent + i]), want[i], 5e-3, "MLA", i);
        }
    give(positions), give(sequences), give(q), give(out), give(part), give(ml);
    cache_free(&c);
}

static void mla_once(void)
{
    mla_case(512, 64, 32, 1);
    mla_case(512, 64, 20, 3); /* more splits than some rows have steps; heads that fill no tile */
    mla_case(64, 16, 4, 1);
}

static void mla_decode_follows_its_definition(void **state)
{
    (void)state;
    each_order(mla_once);
}

static void rope_case(bool neox, bool norm, uint32_t dims)
{
    enum { ROWS = 2, HEADS = 3, KV = 1, D = 64, ALL = HEADS + 2 * KV, POSITIONS = 40 };
    struct cache c = cache_new(2, POSITIONS, KV, D, false);
    float *qkv = floats(ROWS * ALL * D, 1), *bias = floats(ALL * D, 1),
          *cs = room(POSITIONS * dims * 4);
    float *qn = floats(D, 1), *kn = floats(D, 1);
    uint32_t *positions = room(ROWS * 4), *sequences = room(ROWS * 4);
    uint16_t *q = room(ROWS * HEADS * D * 2);
    for (uint32_t p = 0; p < POSITIONS; p++)
        for (uint32_t i = 0; i < dims / 2; i++) {
            cs[p * dims + 2 * i] = (float)cos(p * pow(1e4, -2.0 * i / dims));
            cs[p * dims + 2 * i + 1] = (float)sin(p * pow(1e4, -2.0 * i / dims));
        }
    positions[0] = 37, positions[1] = 3;
    sequences[0] = 1, sequences[1] = 0;
    struct rope_args a = {.qkv = qkv,
                          .bias = bias,
                          .q_norm = norm ? qn : NULL,
                          .k_norm = norm ? kn : NULL,
                          .cs = cs,
                          .positions = positions,
                          .sequences = sequences,
                          .q = q,
                          .kv = c.view,
                          .heads = HEADS,
                          .kv_heads = KV,
                          .dim = D,
                          .dims = dims,
                          .eps = 1e-6f,
                          .scale = 0.125f,
                          .neox = neox};
    OK(gpu_rope_store(gpu, &a, ROWS, &err));
    finish();
    for (uint32_t r = 0; r < ROWS; r++)
        for (uint32_t h = 0; h < ALL; h++) {
            double x[D], s = 0, y[D];
            bool is_v = h >= HEADS + KV;
            const float *w = is_v || !norm ? NULL : h < HEADS ? qn : kn;
            for (uint32_t i = 0; i < D; i++) {
                x[i] = qkv[(r * ALL + h) * D + i] + bias[h * D + i];
                s += x[i] * x[i];
            }
            for (uint32_t i = 0; w && i < D; i++)
                x[i] *= w[i] / sqrt(s / D + 1e-6);
            memcpy(y, x, sizeof y);
            for (uint32_t p = 0; !is_v && p < dims / 2; p++) {
                uint32_t i = neox ? p : 2 * p, j = neox ? p + dims / 2 : 2 * p + 1;
                double co = cs[positions[r] * dims + 2 * p],
                       si = cs[positions[r] * dims + 2 * p + 1];
                y[i] = x[i] * co - x[j] * si;
                y[j] = x[i] * si + x[j] * co;
            }
            const uint16_t *got =
                h < HEADS ? q + (r * HEADS + h) * D : cell(&c, sequences[r], positions[r], is_v, 0);
            for (uint32_t i = 0; i < D; i++)
                near(f16(got[i]), y[i] * (h < HEADS ? 0.125 : 1), 2e-3, "a rotated head", i);
        }
    give(qkv), give(bias), give(cs), give(qn), give(kn), give(positions), give(sequences), give(q);
    cache_free(&c);
}

static void heads_are_normed_rotated_and_stored(void **state)
{
    (void)state;
    rope_case(true, true, 64);
    rope_case(false, false, 64);
    rope_case(true, false, 32);
    rope_case(false, true, 16);
}

/* ---- products ---- */

static void gemm_case(uint32_t m, uint32_t n, uint32_t k)
{
    uint16_t *a = halves((size_t)m * k, 1, to_bf16), *b = halves((size_t)n * k, 1, to_bf16);
    float *c = room((size_t)m * n * 4);
    struct gemm_args g = {.a = a, .b = b, .c = c, .m = m, .n = n, .k = k};
    OK(gpu_gemm(gpu, &g, &err));
    finish();
    for (uint32_t i = 0; i < m; i++)
        for (uint32_t j = 0; j < n; j++) {
            double sum = 0;
            for (uint32_t d = 0; d < k; d++)
                sum += (double)bf16(a[(size_t)i * k + d]) * bf16(b[(size_t)j * k + d]);
            near(c[(size_t)i * n + j], sum, 1e-4, "a product", (size_t)i * n + j);
        }
    give(a), give(b), give(c);
}

/* As MLA takes queries into the latent space: each head has a matrix of its own. */
static void heads_have_products_of_their_own(void **state)
{
    (void)state;
    enum { M = 3, HEADS = 2, N = 72, K = 24, REST = 8, LDO = HEADS * (N + REST) };
    uint16_t *a = halves(M * HEADS * K, 1, to_bf16), *b = halves(HEADS * N * K, 1, to_bf16),
             *out = room(M * LDO * 2);
    struct head_gemm_args g = {.a = a,
                               .b = b,
                               .out = out,
                               .m = M,
                               .n = N,
                               .k = K,
                               .lda = HEADS * K,
                               .a_head = K,
                               .ldo = LDO,
                               .o_head = N + REST,
                               .f16 = true,
                               .scale = 0.5f};
    OK(gpu_head_gemm(gpu, &g, HEADS, &err));
    finish();
    for (size_t i = 0; i < M * LDO; i++) {
        size_t r = i / LDO, h = i % LDO / (N + REST), n = i % (N + REST);
        double sum = 0;
        for (size_t k = 0; n < N && k < K; k++)
            sum += 0.5 * bf16(a[(r * HEADS + h) * K + k]) * bf16(b[(h * N + n) * K + k]);
        near(f16(out[i]), sum, 2e-3, "a head's product", i);
    }
    give(a), give(b), give(out);
}

static void gemm_once(void)
{
    gemm_case(70, 66, 72);
}

static void products_of_odd_sizes_are_exact_within_f32(void **state)
{
    (void)state;
    each_order(gemm_once);
    gemm_case(1, 130, 8);
    gemm_case(64, 64, 200);
}

struct gate_case {
    uint32_t experts, top_k, score, groups, groups_used, group_top, normalize;
    bool bias;
};

/* The choice by its definition, in double precision. */
static void choose(const struct gate_case *g, const float *logits, const float *bias, float scale,
                   uint32_t *ids, double *weights)
{
    double score[EXPERTS_MAX], choice[EXPERTS_MAX], most = -1e300, sum = 0;
    bool eligible[EXPERTS_MAX];
    uint32_t size = g->experts / (g->groups ? g->groups : 1);
    for (uint32_t i = 0; i < g->experts; i++)
        most = fmax(most, logits[i]);
    for (uint32_t i = 0; i < g->experts; i++)
        sum += exp(logits[i] - most);
    for (uint32_t i = 0; i < g->experts; i++) {
        score[i] = g->score ? 1 / (1 + exp(-(double)logits[i])) : exp(logits[i] - most) / sum;
        choice[i] = score[i] + (g->bias ? bias[i] : 0);
        eligible[i] = g->groups <= 1;
    }
    double value[32];
    for (uint32_t k = 0; g->groups > 1 && k < g->groups; k++) {
        double best = -1e300, second = -1e300;
        for (uint32_t i = k * size; i < (k + 1) * size; i++) {
            second = choice[i] > best ? best : fmax(second, choice[i]);
            best = fmax(best, choice[i]);
        }
        value[k] = g->group_top == 2 ? best + second : best;
    }
    for (uint32_t u = 0; g->groups > 1 && u < g->groups_used; u++) {
        uint32_t best = 0;
        for (uint32_t k = 1; k < g->groups; k++)
            best = value[k] > value[best] ? k : best;
        value[best] = -1e300;
        for (uint32_t i = best * size; i < (best + 1) * size; i++)
            eligible[i] = true;
    }
    double total = 0;
    for (uint32_t k = 0; k < g->top_k; k++) {
        uint32_t best = UINT32_MAX;
        for (uint32_t i = 0; i < g->experts; i++)
            if (eligible[i] && (best == UINT32_MAX || choice[i] > choice[best]))
                best = i;
        eligible[best] = false;
        ids[k] = best;
        weights[k] = score[best];
        total += score[best];
    }
    for (uint32_t k = 0; k < g->top_k; k++)
        weights[k] *= scale / (g->normalize ? total : 1);
}

static void gate_once(void)
{
    static const struct gate_case cases[] = {
        {8, 2, 0, 1, 1, 1, 1, false},   /* Mixtral */
        {128, 8, 0, 1, 1, 1, 1, false}, /* Qwen3-MoE */
        {160, 6, 0, 8, 3, 1, 0, false}, /* DeepSeek-V2 */
        {256, 8, 1, 8, 4, 2, 1, true},  /* DeepSeek-V3 */
    };
    enum { ROWS = 3 };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        const struct gate_case *g = &cases[c];
        float *logits = floats(ROWS * g->experts, 2), *bias = floats(g->experts, 0.2f),
              *weights = room(ROWS * TOP_K_MAX * 4);
        uint32_t *ids = room(ROWS * TOP_K_MAX * 4), want[TOP_K_MAX];
        double w[TOP_K_MAX];
        struct moe_gate_args a = {.logits = logits,
                                  .bias = g->bias ? bias : NULL,
                                  .ids = ids,
                                  .weights = weights,
                                  .experts = g->experts,
                                  .top_k = g->top_k,
                                  .score = g->score,
                                  .groups = g->groups,
                                  .groups_used = g->groups_used,
                                  .group_top = g->group_top,
                                  .normalize = g->normalize,
                                  .scale = 2.5f};
        OK(gpu_moe_gate(gpu, &a, ROWS, &err));
        finish();
        for (uint32_t r = 0; r < ROWS; r++) {
            choose(g, logits + r * g->experts, bias, 2.5f, want, w);
            for (uint32_t k = 0; k < g->top_k; k++) {
                assert_int_equal(ids[r * g->top_k + k], want[k]);
                near(weights[r * g->top_k + k], w[k], 1e-5, "an expert's weight", k);
            }
        }
        give(logits), give(bias), give(weights), give(ids);
    }
}

static void experts_are_chosen_as_each_family_defines(void **state)
{
    (void)state;
    each_order(gate_once);
}

/* Rows through sort, grouped product and combine equal each row's own experts, one by one. */
static void experts_once(void)
{
    enum { ROWS = 40, EXPERTS = 5, TOP = 2, K = 40, N = 72, CHOICES = ROWS * TOP };
    uint32_t places = gpu_moe_places(CHOICES, EXPERTS);
    uint16_t *x = halves(ROWS * K, 1, to_bf16), *b = halves(EXPERTS * N * K, 1, to_bf16);
    uint32_t *ids = room(CHOICES * 4), *counts = room(EXPERTS * 4), *place = room(CHOICES * 4),
             *row_of = room(places * 4);
    uint32_t *expert_of = room(places / GEMM_TILE * 4);
    float *c = room((size_t)places * N * 4), *weights = floats(CHOICES, 1),
          *shared = floats(ROWS * N, 1), *y = room(ROWS * N * 4);
    for (int i = 0; i < CHOICES; i++)
        ids[i] =
            i % 7 == 6
                ? UINT32_MAX
                : (uint32_t)rng_below(&rng, i % 3 ? 2 : EXPERTS); /* masked ones, and a crowd */
    struct moe_place_args s = {.ids = ids,
                               .counts = counts,
                               .place = place,
                               .row_of = row_of,
                               .expert_of = expert_of,
                               .n = CHOICES,
                               .top_k = TOP,
                               .experts = EXPERTS,
                               .places = places};
    struct grouped_gemm_args g = {
        .a = x, .b = b, .row_of = row_of, .expert_of = expert_of, .c = c, .n = N, .k = K};
    struct combine_args m = {
        .c = c, .weights = weights, .shared = shared, .place = place, .y = y, .d = N, .top_k = TOP};
    OK(gpu_moe_sort(gpu, &s, counts, &err));
    OK(gpu_grouped_gemm(gpu, &g, places, &err));
    OK(gpu_combine(gpu, &m, ROWS, &err));
    finish();
    for (uint32_t r = 0; r < ROWS; r++)
        for (uint32_t n = 0; n < N; n++) {
            double want = shared[r * N + n];
            for (uint32_t t = 0; t < TOP; t++) {
                uint32_t e = ids[r * TOP + t];
                for (uint32_t k = 0; e != UINT32_MAX && k < K; k++)
                    want += (double)weights[r * TOP + t] * bf16(x[r * K + k]) *
                            bf16(b[((size_t)e * N + n) * K + k]);
            }
            near(y[r * N + n], want, 1e-4, "experts joined", r * N + n);
        }
    for (int i = 0; i < CHOICES; i++) /* earlier choices of an expert lie before later ones */
        for (int j = 0; j < i; j++)
            if (ids[i] == ids[j] && ids[i] != UINT32_MAX)
                assert_true(place[j] < place[i]);
    give(x), give(b), give(ids), give(counts), give(place), give(row_of), give(expert_of), give(c),
        give(weights), give(shared), give(y);
}

static void sorted_experts_equal_one_by_one(void **state)
{
    (void)state;
    each_order(experts_once);
}

/* ---- moving and choosing ---- */

static void runs_of_bytes_move_between_layouts(void **state)
{
    (void)state;
    /* Two heads of one rank become the first two of four. */
    enum { BLOCKS = 3, HEAD = 512 };
    uint8_t *from = room(BLOCKS * 2 * HEAD), *to = room(BLOCKS * 4 * HEAD);
    struct run *runs = room(BLOCKS * sizeof *runs);
    for (int i = 0; i < BLOCKS * 2 * HEAD; i++)
        from[i] = (uint8_t)rng_below(&rng, 256);
    for (uint64_t b = 0; b < BLOCKS; b++)
        runs[b] = (struct run){b * 2 * HEAD, b * 4 * HEAD + HEAD, 2 * HEAD};
    struct relayout_args a = {.from = from, .to = to, .runs = runs};
    OK(gpu_relayout(gpu, GPU_COMPUTE, &a, BLOCKS, &err));
    finish();
    for (int b = 0; b < BLOCKS; b++) {
        assert_memory_equal(to + b * 4 * HEAD + HEAD, from + b * 2 * HEAD, 2 * HEAD);
        for (int i = 0; i < HEAD; i++)
            assert_true(to[b * 4 * HEAD + i] == 0 && to[b * 4 * HEAD + 3 * HEAD + i] == 0);
    }
    give(from), give(to), give(runs);
}

static void sample_once(void)
{
    enum { ROWS = 2, VOCAB = 3000, N = 20 };
    float *logits = floats(ROWS * VOCAB, 3), *values = room(ROWS * N * 4);
    float *logprob = room(ROWS * 4), *most = room(ROWS * 4), *log_sum = room(ROWS * 4);
    uint32_t *token = room(ROWS * 4), *tokens = room(ROWS * N * 4);
    struct sample_row *rows = room(ROWS * sizeof *rows);
    struct logit_delta *deltas = room(2 * sizeof *deltas);
    logits[1234] = logits[1500] = 40; /* equals: the lower wins */
    deltas[0] = (struct logit_delta){1, 7, 100};
    deltas[1] = (struct logit_delta){1, 8, -100};
    struct bias_args b = {.logits = logits, .deltas = deltas, .n = 2, .vocab = VOCAB};
    struct sample_args s = {.logits = logits,
                            .rows = rows,
                            .token = token,
                            .logprob = logprob,
                            .max = most,
                            .log_sum = log_sum,
                            .vocab = VOCAB};
    struct top_n_args t = {
        .logits = logits, .tokens = tokens, .values = values, .vocab = VOCAB, .n = N};
    OK(gpu_bias(gpu, &b, &err));
    OK(gpu_sample(gpu, &s, ROWS, &err));
    OK(gpu_top_n(gpu, &t, ROWS, &err));
    finish();
    assert_int_equal(token[0], 1234);
    assert_int_equal(token[1], 7);
    for (uint32_t r = 0; r < ROWS; r++) {
        double sum = 0;
        for (uint32_t i = 0; i < VOCAB; i++)
            sum += exp((double)logits[r * VOCAB + i] - most[r]);
        near(log_sum[r], log(sum), 1e-5, "log sum", r);
        near(logprob[r], logits[r * VOCAB + token[r]] - most[r] - log(sum), 1e-5, "logprob", r);
        assert_int_equal(tokens[r * N], token[r]);
        for (uint32_t k = 1; k < N; k++) {
            uint32_t above = 0;
            float v = values[r * N + k];
            assert_true(v == logits[r * VOCAB + tokens[r * N + k]]);
            for (uint32_t i = 0; i < VOCAB; i++)
                above += logits[r * VOCAB + i] > v ||
                         (logits[r * VOCAB + i] == v && i < tokens[r * N + k]);
            assert_int_equal(above, k);
        }
    }
    assert_int_equal(tokens[1], 1500);
    give(logits), give(values), give(logprob), give(most), give(log_sum), give(token), give(tokens),
        give(rows), give(deltas);
}

static void greedy_choice_and_the_greatest_n_are_exact(void **state)
{
    (void)state;
    each_order(sample_once);
}

static void draws_follow_the_distribution_and_their_seed(void **state)
{
    (void)state;
    enum { ROWS = 3000, VOCAB = 32 };
    if (getenv("EMU_QUICK"))
        return; /* a kernel that other tests run, three million times a thread */
    float *logits = room((size_t)ROWS * VOCAB * 4), *scratch = room(ROWS * 12);
    uint32_t *token = room(ROWS * 4), counts[VOCAB] = {0};
    struct sample_row *rows = room(ROWS * sizeof *rows);
    double p[VOCAB], sum = 0, chi = 0;
    for (int i = 0; i < VOCAB; i++) {
        float l = i < 8 ? (float)i * 0.5f : -30;
        p[i] = exp(l / 1.5);
        sum += p[i];
        for (int r = 0; r < ROWS; r++)
            logits[r * VOCAB + i] = l;
    }
    for (uint32_t r = 0; r < ROWS; r++)
        rows[r] = (struct sample_row){.seed = 99, .position = r, .temperature = 1.5f};
    rows[1] = rows[0];
    struct sample_args s = {.logits = logits,
                            .rows = rows,
                            .token = token,
                            .logprob = scratch,
                            .max = scratch + ROWS,
                            .log_sum = scratch + 2 * ROWS,
                            .vocab = VOCAB};
    OK(gpu_sample(gpu, &s, ROWS, &err));
    finish();
    assert_int_equal(token[0], token[1]);
    for (int r = 0; r < ROWS; r++)
        counts[token[r]]++;
    for (int i = 0; i < 8; i++)
        chi += pow(counts[i] - ROWS * p[i] / sum, 2) / (ROWS * p[i] / sum);
    if (chi > 24.3) /* 7 degrees of freedom, one in a thousand */
        fail_msg("chi square of the draws is %g", chi);
    give(logits), give(scratch), give(token), give(rows);
}

static void shapes_that_no_kernel_has_are_refused(void **state)
{
    (void)state;
    struct decode_attention_args d = {.heads = 3, .kv_heads = 2};
    struct gemm_args g = {.m = 1, .n = 1, .k = 12};
    struct moe_gate_args m = {.experts = 4, .top_k = 5};
    struct mla_decode_args l = {.heads = 20};
    assert_int_equal(gpu_decode_attention(gpu, &d, 1, 64, 1, &err), -EINVAL);
    assert_int_equal(gpu_decode_attention(gpu, &d, 1, 80, 1, &err), -EINVAL);
    assert_int_equal(gpu_gemm(gpu, &g, &err), -EINVAL);
    assert_int_equal(gpu_moe_gate(gpu, &m, 1, &err), -EINVAL);
    assert_int_equal(gpu_mla_decode(gpu, &l, 1, 500, 64, 1, &err), -EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(conversions_round_as_the_hardware_does),
        cmocka_unit_test(residual_and_norm_follow_their_definition),
        cmocka_unit_test(embedding_takes_rows_of_the_table),
        cmocka_unit_test(gates_are_silu_and_gelu),
        cmocka_unit_test(fp8_rows_come_back_within_a_sixteenth),
        cmocka_unit_test(decode_attention_follows_its_definition),
        cmocka_unit_test(prefill_attention_follows_its_definition),
        cmocka_unit_test(mla_decode_follows_its_definition),
        cmocka_unit_test(heads_are_normed_rotated_and_stored),
        cmocka_unit_test(products_of_odd_sizes_are_exact_within_f32),
        cmocka_unit_test(heads_have_products_of_their_own),
        cmocka_unit_test(experts_are_chosen_as_each_family_defines),
        cmocka_unit_test(sorted_experts_equal_one_by_one),
        cmocka_unit_test(runs_of_bytes_move_between_layouts),
        cmocka_unit_test(greedy_choice_and_the_greatest_n_are_exact),
        cmocka_unit_test(draws_follow_the_distribution_and_their_seed),
        cmocka_unit_test(shapes_that_no_kernel_has_are_refused),
    };
    if (getenv("TEST_FILTER"))
        cmocka_set_test_filter(getenv("TEST_FILTER"));
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
