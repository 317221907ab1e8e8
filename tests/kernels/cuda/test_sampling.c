/* From logits to tokens (bench.h). */
#include "tests/kernels/cuda/bench.h"

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_choice_and_the_greatest_n_are_exact),
        cmocka_unit_test(draws_follow_the_distribution_and_their_seed),
    };
    RUN(tests);
}
