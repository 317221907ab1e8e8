/* The planner's digits are those that the field teaches with. */
#include "lib/cost/plan.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <cmocka.h>

static struct plan plan;

static struct plan_input input(const char *model, const char *device)
{
    return (struct plan_input){model_profile_find(model),
                               device_profile_find(device),
                               8192,
                               512,
                               64,
                               2,
                               0,
                               0,
                               0,
                               0,
                               false};
}

static void expect(const char *id, double want, double tolerance)
{
    const struct plan_number *n = plan_find(&plan, id);
    if (!n)
        fail_msg("no number %s", id);
    if (fabs(n->value - want) > tolerance * fabs(want))
        fail_msg("%s is %g, expected %g (%s)", id, n->value, want, n->formula);
    assert_true(n->formula[0] != 0);
}

static bool advised(const char *id)
{
    for (size_t i = 0; i < plan.n_advice; i++)
        if (strcmp(plan.advice[i].id, id) == 0)
            return true;
    return false;
}

static void llama_3_70b_on_h100_gives_the_numbers_of_the_field(void **state)
{
    struct plan_input in = input("llama-3-70b", "h100");
    struct err e = {0};
    (void)state;
    assert_int_equal(plan_compute(&in, &plan, &e), 0);
    expect("kv_bytes_per_token", 320 * 1024, 0);
    expect("weights_per_device_tp2", 70e9, 1e-9);
    expect("weights_per_device_tp4", 35e9, 1e-9);
    expect("weights_per_device_tp8", 17.5e9, 1e-9);
    expect("kv_room_per_device_tp2", 2e9, 1e-9);
    expect("kv_room_per_device_tp4", 37e9, 1e-9);
    expect("kv_room_per_device_tp8", 54.5e9, 1e-9);
    expect("weights_per_device_tp2_fp8", 35e9, 1e-9);
    expect("kv_room_per_device_tp2_fp8", 37e9, 1e-9);
    expect("decode_bound_batch1_tp2", 20.9e-3, 0.002);
    expect("decode_bound_batch1_tp4", 10.4e-3, 0.005);
    expect("decode_bound_batch1_tp8", 5.2e-3, 0.005);
    expect("all_reduces_per_step", 160, 0);
    expect("all_reduce_bytes", 294e6, 0.002);
    expect("all_reduce_s_link", 0.65e-3, 0.005);
    expect("all_reduce_s_nic", 5.87e-3, 0.002);
    expect("kv_bytes_prompt", 2.68e9, 0.002);
    expect("prefill_s", 0.29, 0.002);
    expect("transfer_s_one_nic", 53.7e-3, 0.001);
    expect("transfer_s_all_nics", 6.71e-3, 0.001);
    expect("transfer_s_one_nic_fp8", 26.8e-3, 0.002);
    expect("ttft_overhead_unpipelined", 0.185, 0.005);
    expect("load_vs_recompute", 5.4, 0.005);
    expect("load_500_tokens_s", 3.28e-3, 0.002);
    expect("recompute_500_tokens_s", 17.7e-3, 0.002);
    assert_true(plan.layout.disaggregate);
}

static void deepseek_v3_gives_its_expert_units(void **state)
{
    struct plan_input in = input("deepseek-v3", "h800");
    struct err e = {0};
    (void)state;
    assert_int_equal(plan_compute(&in, &plan, &e), 0);
    expect("kv_bytes_per_token", 70272, 0);
    expect("dispatch_bytes", 57344, 0);
    expect("combine_bytes", 114688, 0);
    expect("experts_per_device_ep32", 9, 0);
    expect("servers_ep32", 4, 0);
    expect("experts_per_device_ep144", 2, 0);
    expect("servers_ep144", 18, 0);
    assert_true(advised("does-not-fit"));
}

static void a_bad_layout_is_warned_about_with_its_reason(void **state)
{
    struct plan_input in = input("llama-3-70b", "h100");
    struct err e = {0};
    (void)state;
    in.tensor = 16;
    in.disaggregate = true;
    in.requests_per_s = 0.1;
    assert_int_equal(plan_compute(&in, &plan, &e), 0);
    assert_true(advised("tp-above-kv-heads"));
    assert_true(advised("tp-across-servers"));
    assert_true(advised("disaggregating-too-early"));
    in = input("llama-3-70b", "h100");
    in.tensor = 1;
    assert_int_equal(plan_compute(&in, &plan, &e), 0);
    assert_true(advised("weights-do-not-fit"));
    assert_false(advised("tp-across-servers"));
}

static void more_load_asks_for_more_groups(void **state)
{
    struct plan_input in = input("llama-3-70b", "h100");
    struct err e = {0};
    (void)state;
    in.requests_per_s = 1;
    assert_int_equal(plan_compute(&in, &plan, &e), 0);
    uint32_t p = plan.layout.prefill_groups, d = plan.layout.decode_groups;
    in.requests_per_s = 40;
    assert_int_equal(plan_compute(&in, &plan, &e), 0);
    assert_true(plan.layout.prefill_groups > p && plan.layout.decode_groups > d);
    assert_true(plan.layout.disaggregate);
}

static void figures_that_make_no_sense_are_refused(void **state)
{
    struct plan_input in = input("llama-3-70b", "h100");
    struct model_profile m = *in.model;
    struct device_profile d = *in.device;
    struct err e = {0};
    (void)state;
    m.layers = 0;
    in.model = &m;
    assert_int_equal(plan_compute(&in, &plan, &e), -EINVAL);
    assert_non_null(strstr(e.msg, "layers"));
    in = input("llama-3-70b", "h100");
    d.memory_bytes_per_s = 0;
    in.device = &d;
    assert_int_equal(plan_compute(&in, &plan, &e), -EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(llama_3_70b_on_h100_gives_the_numbers_of_the_field),
        cmocka_unit_test(deepseek_v3_gives_its_expert_units),
        cmocka_unit_test(a_bad_layout_is_warned_about_with_its_reason),
        cmocka_unit_test(more_load_asks_for_more_groups),
        cmocka_unit_test(figures_that_make_no_sense_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
