/* Kernels of single rows: embedding, norms, gates, rotation into the cache, FP8, runs of bytes
 * (bench.h). */
#include "tests/kernels/cuda/cache.h"

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
    enum { ROWS = 3, D = 344, GROUPS = 3 }; /* the last group has fewer channels */
    uint16_t *x = halves(5 * D, 4, to_bf16), *back = room(ROWS * D * 2);
    uint8_t *codes = room(ROWS * D);
    float *scales = room(ROWS * GROUPS * 4);
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
                   scale = scales[r * GROUPS + i / FP8_GROUP];
            if (fabs(got - want) > fabs(want) / 15 + scale * 0x1p-9)
                fail_msg("row %zu channel %zu: %g came back as %g", r, i, want, got);
        }
    give(x), give(back), give(codes), give(scales), give(take);
}

/* Conversions of device.h, through a kernel that stores f16 (rope): every value of f16 and the
 * middle of every step. */
static void conversions_round_as_the_hardware_does(void **state)
{
    (void)state;
    enum { D = 128, ROWS = 512 };
    struct cache c = cache_new(ROWS / 32, 32, 1, D, false, KV_FORM_F16);
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

static void rope_case(bool neox, bool norm, uint32_t dims, uint32_t form)
{
    enum { ROWS = 2, HEADS = 9, KV = 1, D = 64, ALL = HEADS + 2 * KV, POSITIONS = 40 };
    struct cache c = cache_new(2, POSITIONS, KV, D, false, form);
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
            for (uint32_t i = 0; i < D; i++) {
                float got = h < HEADS ? half(&c, q[(r * HEADS + h) * D + i])
                                      : cell(&c, sequences[r], positions[r], is_v, 0, i);
                near(got, y[i] * (h < HEADS ? 0.125 : 1), form == KV_FORM_F16 ? 2e-3 : 5e-3,
                     "a rotated head", i);
            }
        }
    give(qkv), give(bias), give(cs), give(qn), give(kn), give(positions), give(sequences), give(q);
    cache_free(&c);
}

static void heads_are_normed_rotated_and_stored(void **state)
{
    (void)state;
    rope_case(true, true, 64, KV_FORM_F16);
    rope_case(false, false, 64, KV_FORM_BF16);
    rope_case(true, false, 32, KV_FORM_F16);
    rope_case(false, true, 16, KV_FORM_F16);
}

/* Rows that nothing turns: K and V in the cache are the CPU's bytes for the same values. */
static void stored_case(uint32_t form, uint32_t dim)
{
    enum { ROWS = 40, KV = 2, WIDE = 3 * KV };
    struct cache c = cache_new(1, ROWS, KV, dim, false, form);
    float *qkv = floats((size_t)ROWS * WIDE * dim, 3), *cs = floats(2, 1);
    uint32_t *positions = room(ROWS * 4), *sequences = room(ROWS * 4);
    uint16_t *q = room((size_t)ROWS * KV * dim * 2);
    uint8_t *want = room(c.view.head_bytes * 2);
    for (uint32_t r = 0; r < ROWS; r++)
        positions[r] = r;
    memset(qkv + 3 * WIDE * dim, 0, WIDE * dim * sizeof *qkv); /* a row of zeros */
    struct rope_args a = {.qkv = qkv,
                          .cs = cs,
                          .positions = positions,
                          .sequences = sequences,
                          .q = q,
                          .kv = c.view,
                          .heads = KV,
                          .kv_heads = KV,
                          .dim = dim,
                          .scale = 1};
    OK(gpu_rope_store(gpu, &a, ROWS, &err));
    finish();
    for (uint32_t h = 0; h < 2 * KV; h++) {
        memset(want, 0xff, c.view.head_bytes * 2); /* as the cache was */
        for (uint32_t r = 0; r < ROWS; r++)
            kv_store((enum kv_type)form, qkv + (r * WIDE + KV + h) * dim, dim, 32, r % 32,
                     want + r / 32 * c.view.head_bytes);
        for (uint32_t b = 0; b < 2; b++)
            assert_memory_equal(part_of(&c, 0, b * 32, h >= KV, h % KV),
                                want + b * c.view.head_bytes, c.view.head_bytes);
    }
    give(qkv), give(cs), give(positions), give(sequences), give(q), give(want);
    cache_free(&c);
}

/* MLA: the latent is normed, its second part is turned. */
static void latent_case(uint32_t form, bool neox)
{
    enum {
        ROWS = 2,
        HEADS = 9,
        NOPE = 24,
        LATENT = 64,
        ROPE = 16,
        W = LATENT + ROPE,
        Q = NOPE + ROPE
    };
    struct cache c = cache_new(1, 40, 1, W, true, form);
    float *q = floats(ROWS * HEADS * Q, 1), *kv = floats(ROWS * W, 2), *norm = floats(LATENT, 1),
          *cs = floats(40 * ROPE, 1);
    uint32_t *positions = room(ROWS * 4), *sequences = room(ROWS * 4);
    uint16_t *nope = room(ROWS * HEADS * NOPE * 2), *out = room(ROWS * HEADS * W * 2);
    positions[0] = 33, positions[1] = 2;
    struct mla_prepare_args a = {.q = q,
                                 .kv_a = kv,
                                 .norm = norm,
                                 .cs = cs,
                                 .positions = positions,
                                 .sequences = sequences,
                                 .q_nope = nope,
                                 .q_out = out,
                                 .kv = c.view,
                                 .heads = HEADS,
                                 .nope = NOPE,
                                 .latent = LATENT,
                                 .rope = ROPE,
                                 .neox = neox,
                                 .eps = 1e-6f,
                                 .scale = 0.5f};
    OK(gpu_mla_prepare(gpu, &a, ROWS, &err));
    finish();
    for (uint32_t r = 0; r < ROWS; r++)
        for (uint32_t h = 0; h <= HEADS; h++) {
            const float *x = h < HEADS ? q + (r * HEADS + h) * Q + NOPE : kv + r * W + LATENT,
                        *t = cs + positions[r] * ROPE;
            double s = 0, most = 0, want[W];
            for (uint32_t i = 0; i < LATENT; i++)
                s += (double)kv[r * W + i] * kv[r * W + i];
            for (uint32_t i = 0; i < LATENT; i++)
                want[i] = kv[r * W + i] / sqrt(s / LATENT + 1e-6) * norm[i];
            for (uint32_t p = 0; p < ROPE / 2; p++) {
                uint32_t i = neox ? p : 2 * p, j = neox ? p + ROPE / 2 : 2 * p + 1;
                want[LATENT + i] = (double)x[i] * t[2 * p] - (double)x[j] * t[2 * p + 1];
                want[LATENT + j] = (double)x[i] * t[2 * p + 1] + (double)x[j] * t[2 * p];
            }
            for (uint32_t i = 0; i < W; i++)
                most = fmax(most, fabs(want[i]));
            double step = form == KV_FORM_I8 ? most / 127 : form == KV_FORM_F8 ? most / 16 : 5e-3;
            for (uint32_t i = 0; h == HEADS && i < W; i++)
                near(cell(&c, 0, positions[r], false, 0, i), want[i], step, "a latent", i);
            for (uint32_t i = LATENT; h < HEADS && i < W; i++)
                near(half(&c, out[(r * HEADS + h) * W + i]), want[i] / 2, 5e-3, "a query", i);
            for (uint32_t i = 0; h < HEADS && i < NOPE; i++)
                assert_true(nope[(r * HEADS + h) * NOPE + i] ==
                            to_bf16(q[(r * HEADS + h) * Q + i]));
        }
    give(q), give(kv), give(norm), give(cs), give(positions), give(sequences), give(nope),
        give(out);
    cache_free(&c);
}

static void what_is_stored_has_the_cpus_bytes(void **state)
{
    (void)state;
    for (size_t i = 0; i < FORMS; i++) {
        stored_case(forms[i], 64);
        stored_case(forms[i], 16);
        stored_case(forms[i], 128);
        latent_case(forms[i], i % 2);
    }
}

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(conversions_round_as_the_hardware_does),
        cmocka_unit_test(residual_and_norm_follow_their_definition),
        cmocka_unit_test(embedding_takes_rows_of_the_table),
        cmocka_unit_test(gates_are_silu_and_gelu),
        cmocka_unit_test(fp8_rows_come_back_within_a_sixteenth),
        cmocka_unit_test(heads_are_normed_rotated_and_stored),
        cmocka_unit_test(what_is_stored_has_the_cpus_bytes),
        cmocka_unit_test(runs_of_bytes_move_between_layouts),
    };
    RUN(tests);
}
