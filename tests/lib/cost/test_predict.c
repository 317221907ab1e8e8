#include "lib/cost/predict.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

static struct cost_worker worker(void)
{
    const struct cost_shape shape = {.weight_bytes = 1e8,
                                     .params = 1.3e8,
                                     .layers = 30,
                                     .kv_heads = 3,
                                     .head_dim = 64,
                                     .heads = 9,
                                     .kv_element_bytes = 2};
    struct cost_worker w = {0};
    cost_model_init(&w.m, &shape, 100e9, 10e9, 1e9);
    return w;
}

static void kv_bytes_of_a_token_follow_from_the_shape(void **s)
{
    (void)s;
    struct cost_worker w = worker();
    assert_true(w.m.kv_bytes_per_token == 2.0 * 30 * 3 * 64 * 2);
}

static void prefill_grows_with_tokens_and_with_context(void **s)
{
    (void)s;
    struct cost_worker w = worker();
    assert_true(cost_prefill_s(&w, 0, 1000) == 0);
    assert_true(cost_prefill_s(&w, 100, 0) < cost_prefill_s(&w, 200, 0));
    assert_true(cost_prefill_s(&w, 100, 0) < cost_prefill_s(&w, 100, 4000));
    /* in two chunks it costs one more start and nothing else */
    double whole = cost_prefill_s(&w, 1000, 0);
    double halves = cost_prefill_s(&w, 500, 0) + cost_prefill_s(&w, 500, 500);
    assert_true(fabs(halves - whole - w.m.prefill_start_s) < 1e-9);
}

static void a_wrong_prior_is_left_within_sixteen_observations(void **s)
{
    (void)s;
    struct cost_worker w = worker();
    double truth = 7 * cost_prefill_s(&w, 300, 0);
    for (int i = 0; i < 16; i++)
        cost_observe(&w.prefill, cost_prefill_s(&w, 300, 0) / cost_factor(&w.prefill), truth);
    assert_true(fabs(cost_prefill_s(&w, 300, 0) / truth - 1) < 0.01);
    for (int i = 0; i < 100; i++)
        cost_observe(&w.prefill, 1, 2);
    assert_true(fabs(cost_factor(&w.prefill) - 2) < 0.05);
}

static void corrections_are_bounded_and_nonsense_is_ignored(void **s)
{
    (void)s;
    struct cost_fix f = {0};
    cost_observe(&f, 0, 1);
    cost_observe(&f, 1, -1);
    cost_observe(&f, NAN, 1);
    cost_observe(&f, 1, INFINITY);
    assert_int_equal(f.n, 0);
    for (int i = 0; i < 100; i++)
        cost_observe(&f, 1e-9, 1e9);
    assert_true(cost_factor(&f) <= COST_FIX_MAX * 1.0001);
}

static void a_workers_own_figures_are_taken(void **s)
{
    (void)s;
    struct cost_worker w = worker();
    for (int i = 0; i < 16; i++) {
        cost_report_prefill(&w, 256 / 0.5);
        cost_report_step(&w, 4, 1000, 0.02);
    }
    assert_true(fabs(cost_prefill_s(&w, 256, 0) - 0.5) < 0.01);
    assert_true(fabs(cost_step_s(&w, 4, 1000) - 0.02) < 0.001);
    cost_report_step(&w, 0, 0, 5); /* an idle worker's step says nothing */
    assert_true(fabs(cost_step_s(&w, 4, 1000) - 0.02) < 0.001);
}

static void what_a_worker_taught_fades_towards_its_peers(void **state)
{
    struct cost_fix slow = {0}, fresh = {0};
    (void)state;
    for (int i = 0; i < 40; i++)
        cost_observe(&slow, 1, 8);
    double before = cost_factor(&slow), peer = log(0.5);
    assert_true(before > 7.9);
    cost_fade(&slow, peer, COST_FADE_S);
    assert_true(fabs(log(cost_factor(&slow)) - (log(before) + peer) / 2) < 1e-9);
    for (int i = 0; i < 300; i++)
        cost_fade(&slow, peer, 0.1);
    assert_true(fabs(cost_factor(&slow) - 0.5) < 0.01);
    /* A worker that never taught anything begins with what its peers teach. */
    cost_fade(&fresh, peer, 0);
    assert_true(fabs(cost_factor(&fresh) - 0.5) < 1e-9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_a_worker_taught_fades_towards_its_peers),
        cmocka_unit_test(kv_bytes_of_a_token_follow_from_the_shape),
        cmocka_unit_test(prefill_grows_with_tokens_and_with_context),
        cmocka_unit_test(a_wrong_prior_is_left_within_sixteen_observations),
        cmocka_unit_test(corrections_are_bounded_and_nonsense_is_ignored),
        cmocka_unit_test(a_workers_own_figures_are_taken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
