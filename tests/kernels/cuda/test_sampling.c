/* From logits to tokens (bench.h). */
#include "tests/kernels/cuda/bench.h"
#include "tests/kernels/cuda/drawn.h"

static void sample_once(void)
{
    enum { ROWS = 2, VOCAB = 3000, N = 20 };
    float *logits = floats(ROWS * VOCAB, 3), *values = room(ROWS * N * 4);
    float *logprob = room(ROWS * 4);
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
                            .parts = 1,
                            .cut = {0, VOCAB}};
    struct top_n_args t = {
        .logits = logits, .tokens = tokens, .values = values, .vocab = VOCAB, .n = N};
    OK(gpu_bias(gpu, &b, &err));
    OK(gpu_sample(gpu, &s, ROWS, &err));
    OK(gpu_top_n(gpu, &t, ROWS, &err));
    finish();
    assert_int_equal(token[0], 1234);
    assert_int_equal(token[1], 7);
    for (uint32_t r = 0; r < ROWS; r++) {
        double sum = 0, most = logits[r * VOCAB + token[r]];
        for (uint32_t i = 0; i < VOCAB; i++)
            sum += exp((double)logits[r * VOCAB + i] - most);
        near(logprob[r], -log(sum), 1e-5, "logprob", r);
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
    give(logits), give(values), give(logprob), give(token), give(tokens), give(rows), give(deltas);
}

static void greedy_choice_and_the_greatest_n_are_exact(void **state)
{
    (void)state;
    each_order(sample_once);
}

static void draw_once(void)
{
    enum { ROWS = 24, VOCAB = 2111, PARTS = 3 };
    static const uint32_t cut[PARTS + 1] = {0, 704, 1408, VOCAB};
    float *whole = floats(ROWS * VOCAB, 3), *parts = room(ROWS * VOCAB * 4), *logprob;
    uint32_t *token = room(ROWS * 4);
    struct sample_row *rows = room(ROWS * sizeof *rows);
    logprob = room(ROWS * 4);
    for (uint32_t r = 0; r < ROWS; r++)
        rows[r] = (struct sample_row){(r % 8) / 8.0 + 0.0625, r < 8 ? .7f : 1.3f, r < 16 ? 0 : .1f};
    rows[0].u = 0;
    rows[1].u = 1 - 0x1p-53;
    for (uint32_t i = 0; i < VOCAB; i++)
        whole[5 * VOCAB + i] = i % 2 ? NAN : -INFINITY;
    whole[6 * VOCAB + 9] = INFINITY;
    for (uint32_t p = 0; p < PARTS; p++)
        for (uint32_t r = 0; r < ROWS; r++)
            memcpy(parts + (size_t)ROWS * cut[p] + r * (cut[p + 1] - cut[p]),
                   whole + r * VOCAB + cut[p], (cut[p + 1] - cut[p]) * 4);
    for (int in_parts = 0; in_parts < 2; in_parts++) {
        struct sample_args a = {.logits = in_parts ? parts : whole,
                                .rows = rows,
                                .token = token,
                                .logprob = in_parts ? NULL : logprob,
                                .parts = in_parts ? PARTS : 1,
                                .cut = {0, VOCAB}};
        if (in_parts)
            memcpy(a.cut, cut, sizeof cut);
        memset(token, 0, ROWS * 4);
        OK(gpu_sample(gpu, &a, ROWS, &err));
        finish();
        for (uint32_t r = 0; r < ROWS; r++) {
            const struct sample_row *row = &rows[r];
            assert_int_equal(token[r],
                             drawn(whole + r * VOCAB, VOCAB, row->u, row->temperature, row->min_p));
            assert_int_equal(token[r] == UINT32_MAX, r == 5 || r == 6);
        }
    }
    give(whole), give(parts), give(token), give(rows), give(logprob);
}

static void a_draw_is_the_token_where_the_number_falls(void **state)
{
    (void)state;
    each_order(draw_once);
}

static void draws_follow_the_distribution(void **state)
{
    (void)state;
    enum { ROWS = 400, VOCAB = 32 };
    if (getenv("EMU_QUICK"))
        return; /* a kernel that other tests run, 400,000 threads of it */
    float *logits = room((size_t)ROWS * VOCAB * 4);
    uint32_t *token = room(ROWS * 4), counts[VOCAB] = {0};
    struct sample_row *rows = room(ROWS * sizeof *rows);
    double p[VOCAB], sum = 0;
    for (int i = 0; i < VOCAB; i++) {
        float l = i < 8 ? (float)i * 0.5f : -30;
        p[i] = exp(l / 1.5);
        sum += p[i];
        for (int r = 0; r < ROWS; r++)
            logits[r * VOCAB + i] = l;
    }
    for (uint32_t r = 0; r < ROWS; r++)
        rows[r] = (struct sample_row){.u = (r + .5) / ROWS, .temperature = 1.5f};
    struct sample_args s = {
        .logits = logits, .rows = rows, .token = token, .parts = 1, .cut = {0, VOCAB}};
    OK(gpu_sample(gpu, &s, ROWS, &err));
    finish();
    for (int r = 0; r < ROWS; r++)
        counts[token[r]]++;
    for (int i = 0; i < 8; i++)
        if (fabs(counts[i] - ROWS * p[i] / sum) > 1.001)
            fail_msg("token %d: %u of %d evenly spaced numbers, not %g", i, counts[i], ROWS,
                     ROWS * p[i] / sum);
    give(logits), give(token), give(rows);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_choice_and_the_greatest_n_are_exact),
        cmocka_unit_test(a_draw_is_the_token_where_the_number_falls),
        cmocka_unit_test(draws_follow_the_distribution),
    };
    RUN(tests);
}
