/* Products, the choice of experts, and shapes that no kernel has (bench.h). */
#include "tests/kernels/cuda/bench.h"

#include <errno.h>

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

/* A model that computes nonsense: its rows stay what they are, and are told from numbers later. */
static void scores_that_are_no_numbers_choose_experts_that_exist(void **state)
{
    (void)state;
    enum { EXPERTS = 8, USED = 2, ROWS = 3 };
    float *logits = floats(ROWS * EXPERTS, 2), *weights = room(ROWS * USED * 4);
    uint32_t *ids = room(ROWS * USED * 4);
    for (uint32_t i = 0; i < EXPERTS; i++)
        logits[EXPERTS + i] = NAN;
    for (uint32_t sigmoid = 0; sigmoid < 2; sigmoid++) {
        struct moe_gate_args a = {.logits = logits,
                                  .ids = ids,
                                  .weights = weights,
                                  .experts = EXPERTS,
                                  .top_k = USED,
                                  .score = sigmoid,
                                  .groups = 1,
                                  .groups_used = 1,
                                  .group_top = 1,
                                  .normalize = 1,
                                  .scale = 1};
        OK(gpu_moe_gate(gpu, &a, ROWS, &err));
        finish();
        for (uint32_t i = 0; i < ROWS * USED; i++) {
            assert_true(ids[i] < EXPERTS);
            assert_int_equal(isnan(weights[i]) != 0, i / USED == 1);
        }
    }
    give(logits), give(weights), give(ids);
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
        cmocka_unit_test(products_of_odd_sizes_are_exact_within_f32),
        cmocka_unit_test(heads_have_products_of_their_own),
        cmocka_unit_test(experts_are_chosen_as_each_family_defines),
        cmocka_unit_test(scores_that_are_no_numbers_choose_experts_that_exist),
        cmocka_unit_test(sorted_experts_equal_one_by_one),
        cmocka_unit_test(shapes_that_no_kernel_has_are_refused),
    };
    RUN(tests);
}
