/* Scores by the serving kernels against exact arithmetic (tests/golden/engine/MODEL-reference.json,
 * made by tools/goldens-reference.py), 600 tokens, past the sliding window of gemma3's local
 * layers. */
#include "tests/worker/model/runner.h"
#include "worker/model/score.h"

#include <jansson.h>
#include <math.h>

#define TIE 0.02 /* logits this near each other may change places */

static void check(const char *file, const char *golden)
{
    json_t *j = json_load_file(golden, 0, NULL);
    if (!j)
        fail_msg("no %s (tests run from the root of the repository)", golden);
    json_t *ids = json_object_get(j, "ids"), *top = json_object_get(j, "top"),
           *gap = json_object_get(j, "gap");
    json_t *logprob = json_object_get(j, "logprob");
    uint32_t n = (uint32_t)json_array_size(ids), agree = 0, id[1024];
    assert_true(n >= 500 && n <= 1024 && json_array_size(top) == n &&
                json_array_size(logprob) == n);
    for (uint32_t i = 0; i < n; i++)
        id[i] = (uint32_t)json_integer_value(json_array_get(ids, i));
    struct score_entry *s = calloc(n, sizeof *s);
    struct model *m = runner_model(file, NULL);
    struct err e = {0};
    double worst = 0;
    if (score_ids(m, 2, id, n, s, &e) < 0)
        fail_msg("%s", e.msg);
    assert_int_equal(s[0].n_top, 0);
    for (uint32_t i = 1; i < n; i++) {
        uint32_t best = (uint32_t)json_integer_value(json_array_get(top, i - 1));
        double off = fabs((double)s[i].logprob - json_number_value(json_array_get(logprob, i)));
        assert_int_equal(s[i].id, id[i]);
        assert_int_equal(s[i].n_top, SCORE_BEST);
        agree += s[i].top[0].id == best;
        if (s[i].top[0].id != best && json_number_value(json_array_get(gap, i - 1)) > TIE)
            fail_msg("%s: best at %u is %u, exactly %u", file, i, s[i].top[0].id, best);
        worst = off > worst ? off : worst;
        for (uint32_t k = 1; k < SCORE_BEST; k++)
            assert_true(s[i].top[k - 1].logprob >= s[i].top[k].logprob);
    }
    printf("%s: best token the same at %u of %u positions, log-probabilities within %.4f\n", file,
           agree, n - 1, worst);
    assert_true(worst < 0.05);
    assert_true(agree * 200 >= (n - 1) * 199);
    model_free(m);
    free(s);
    json_decref(j);
}

static void smollm2_scores_are_those_of_exact_arithmetic(void **state)
{
    (void)state;
    check("SmolLM2-135M-Instruct.Q4_1.gguf", "tests/golden/engine/smollm2-135m-reference.json");
}

static void gemma3_scores_are_those_of_exact_arithmetic(void **state)
{
    (void)state;
    check("gemma-3-270m.Q4_K_M.gguf", "tests/golden/engine/gemma3-270m-reference.json");
}

static void a_score_asks_for_tokens_of_the_vocabulary(void **state)
{
    (void)state;
    struct model *m = runner_model("SmolLM2-135M-Instruct.Q4_1.gguf", NULL);
    uint32_t ids[3] = {1, 2, 4000000};
    struct score_entry s[3];
    struct err e = {0};
    assert_true(score_ids(m, 1, ids, 3, s, &e) < 0);
    assert_non_null(strstr(e.msg, "4000000"));
    assert_true(score_ids(m, 1, ids, 0, s, &e) < 0);
    assert_int_equal(score_ids(m, 1, ids, 1, s, &e), 0);
    model_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(smollm2_scores_are_those_of_exact_arithmetic),
        cmocka_unit_test(gemma3_scores_are_those_of_exact_arithmetic),
        cmocka_unit_test(a_score_asks_for_tokens_of_the_vocabulary),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
