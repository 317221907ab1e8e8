/* scale_decide() on recorded samples: the failures of other scalers are the cases. */
#include "lib/decide/scale.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <cmocka.h>

#define S_NS 1000000000ull

struct scene {
    struct scale_input in;
    struct scale_memory m;
    struct scale_decision d;
    struct scale_pod pods[8];
    struct scale_sample samples[16];
    uint64_t now;
};

static void scene(struct scene *s, enum rec_role role, int32_t current, int32_t min, int32_t max,
                  size_t workers)
{
    static const char *const uids[] = {"a", "b", "c", "d", "e", "f", "g", "h"};
    *s = (struct scene){.now = 1000 * S_NS};
    s->in = (struct scale_input){.role = role,
                                 .current = current,
                                 .min = min,
                                 .max = max,
                                 .heard = true,
                                 .ttft_s = 2,
                                 .down_window_ns = 60 * S_NS,
                                 .group_pods = 1,
                                 .pods = s->pods,
                                 .n_pods = workers,
                                 .samples = s->samples,
                                 .n_samples = workers};
    for (size_t i = 0; i < workers; i++) {
        s->pods[i] = (struct scale_pod){.uid = uids[i], .ready = true, .placed = true};
        s->samples[i] = (struct scale_sample){.pod_uid = uids[i],
                                              .role = role,
                                              .ready = true,
                                              .age_ns = S_NS / 10,
                                              .kv_blocks = 100,
                                              .prefill_tokens_per_s = 1000,
                                              .decode_step_s = 0.02};
    }
}

static int32_t after(struct scene *s, uint64_t seconds)
{
    for (uint64_t i = 0; i <= seconds; i++) {
        scale_decide(&s->in, &s->m, s->now, &s->d);
        if (s->d.to != s->in.current)
            return s->d.to;
        s->now += S_NS;
    }
    return s->d.to;
}

static void waiting_tokens_raise_prefill_straight_to_the_need(void **state)
{
    struct scene s;
    (void)state;
    scene(&s, REC_PREFILL, 1, 1, 10, 1);
    s.samples[0].waiting_tokens = 4000; /* 4000 / 1 s of slack / (0.8 x 1000) = 5 */
    assert_int_equal(after(&s, 10), 5);
    assert_non_null(strstr(s.d.reason, "need 5"));
    assert_non_null(strstr(s.d.inputs, "\"waiting_tokens\":4000"));
    scene(&s, REC_PREFILL, 1, 1, 3, 1);
    s.samples[0].waiting_tokens = 4000;
    assert_int_equal(after(&s, 10), 3); /* bounds */
}

static void arriving_tokens_alone_raise_prefill(void **state)
{
    struct scene s;
    (void)state;
    scene(&s, REC_PREFILL, 1, 1, 10, 1);
    s.in.arrival_tokens_per_s = 2000;
    assert_int_equal(after(&s, 10), 3);
}

static void prefill_load_leaves_a_quiet_decode_role_alone(void **state)
{
    struct scene s;
    (void)state;
    scene(&s, REC_DECODE, 1, 1, 10, 1);
    s.in.arrival_tokens_per_s = 50000;
    s.samples[0].kv_blocks_used = 20;
    s.samples[0].running = 2;
    assert_int_equal(after(&s, 30), 1);
}

static void kv_in_use_and_requests_that_wait_raise_decode(void **state)
{
    struct scene s;
    (void)state;
    scene(&s, REC_DECODE, 2, 1, 10, 2);
    for (int i = 0; i < 2; i++)
        s.samples[i].kv_blocks_used = 90, s.samples[i].running = 9, s.samples[i].waiting = 5;
    assert_int_equal(after(&s, 10), 4); /* (180 + 10 x 10) / 70 */
}

static void requests_that_wait_for_a_prefill_worker_do_not_raise_decode(void **state)
{
    struct scene s;
    (void)state;
    scene(&s, REC_DECODE, 1, 1, 10, 1);
    s.samples[0].kv_blocks_used = 40, s.samples[0].running = 1, s.samples[0].waiting = 59;
    assert_int_equal(after(&s, 30), 1);
}

static void slow_steps_raise_decode(void **state)
{
    struct scene s;
    (void)state;
    scene(&s, REC_DECODE, 2, 1, 10, 2);
    s.in.tpot_s = 0.02;
    for (int i = 0; i < 2; i++)
        s.samples[i].kv_blocks_used = 30, s.samples[i].running = 3,
        s.samples[i].decode_step_s = 0.03;
    assert_int_equal(after(&s, 10), 3);
}

static void a_spike_of_a_moment_changes_nothing(void **state)
{
    struct scene s;
    (void)state;
    scene(&s, REC_PREFILL, 1, 1, 10, 1);
    s.samples[0].waiting_tokens = 9000;
    scale_decide(&s.in, &s.m, s.now, &s.d);
    assert_int_equal(s.d.to, 1);
    s.samples[0].waiting_tokens = 0;
    s.now += S_NS;
    assert_int_equal(after(&s, 30), 1);
}

static void pending_groups_count_so_that_up_does_not_run_away(void **state)
{
    struct scene s;
    (void)state;
    scene(&s, REC_PREFILL, 5, 1, 10, 1); /* 5 asked for, one ready */
    s.samples[0].waiting_tokens = 4000;
    assert_int_equal(after(&s, 100), 5);
}

static void no_further_up_while_a_pod_finds_no_node_but_down_goes_on(void **state)
{
    struct scene s;
    (void)state;
    scene(&s, REC_PREFILL, 2, 1, 10, 1);
    s.pods[1] = (struct scale_pod){.uid = "p", .unschedulable = true};
    s.in.n_pods = 2;
    s.samples[0].waiting_tokens = 9000;
    assert_int_equal(after(&s, 30), 2);
    assert_non_null(strstr(s.d.reason, "no node"));
    s.samples[0].waiting_tokens =
        0; /* the load ends: the pending group is given up within the window */
    assert_int_equal(after(&s, 70), 1);
}

static void less_must_have_been_enough_for_the_whole_window(void **state)
{
    struct scene s;
    (void)state;
    scene(&s, REC_PREFILL, 3, 1, 10, 3);
    assert_int_equal(after(&s, 59), 3);
    s.samples[0].waiting_tokens = 2000; /* needs 3.3 by the down rule: the window starts anew */
    s.now += S_NS;
    scale_decide(&s.in, &s.m, s.now, &s.d);
    s.samples[0].waiting_tokens = 0;
    s.now += S_NS;
    assert_int_equal(after(&s, 58), 3);
    s.now += S_NS;
    assert_int_equal(after(&s, 5), 1);
}

static void down_goes_to_the_highest_need_within_the_window(void **state)
{
    struct scene s;
    (void)state;
    scene(&s, REC_PREFILL, 5, 1, 10, 5);
    for (int i = 0; i < 30; i++, s.now += S_NS)
        scale_decide(&s.in, &s.m, s.now, &s.d);
    s.in.arrival_tokens_per_s = 1700; /* 1700 / 600 = 3 */
    scale_decide(&s.in, &s.m, s.now, &s.d);
    s.in.arrival_tokens_per_s = 0;
    assert_int_equal(after(&s, 40), 3);
}

static void those_who_remain_would_not_soon_be_too_few(void **state)
{
    struct scene s;
    (void)state;
    scene(&s, REC_DECODE, 2, 1, 10, 2);
    for (int i = 0; i < 2; i++)
        s.samples[i].kv_blocks_used = 30,
        s.samples[i].running = 3; /* one would be at 60 of 100: above 0.5 */
    assert_int_equal(after(&s, 300), 2);
    for (int i = 0; i < 2; i++)
        s.samples[i].kv_blocks_used = 20;
    assert_int_equal(after(&s, 300), 1);
}

static void a_silent_live_worker_counts_as_fully_used_for_going_down(void **state)
{
    struct scene s;
    (void)state;
    scene(&s, REC_PREFILL, 6, 1, 10, 6);
    s.in.n_samples = 5; /* the sixth says nothing: the five idle ones still go, but for one */
    assert_int_equal(after(&s, 300), 1);
    assert_non_null(strstr(s.d.reason, "don't report"));
    scene(&s, REC_PREFILL, 3, 1, 10, 3);
    s.samples[1].age_ns = s.samples[2].age_ns = 6 * S_NS; /* or said it long ago */
    assert_int_equal(after(&s, 300), 2);
    assert_int_equal(s.d.dropped[SCALE_DROP_STALE], 2);
    scene(&s, REC_PREFILL, 3, 1, 10, 3);
    s.in.n_samples = 0; /* all silent: nobody goes */
    assert_int_equal(after(&s, 300), 3);
}

static void a_silent_live_worker_counts_as_idle_for_going_up(void **state)
{
    struct scene s;
    (void)state;
    scene(&s, REC_DECODE, 2, 1, 10, 2);
    s.in.n_samples = 1;
    assert_int_equal(after(&s, 30), 2);
}

static void silent_routers_change_nothing(void **state)
{
    struct scene s;
    (void)state;
    scene(&s, REC_PREFILL, 3, 1, 10, 3);
    s.in.heard = false;
    assert_int_equal(after(&s, 300), 3);
    s.in.heard = true; /* and the window starts when they speak again */
    assert_int_equal(after(&s, 50), 3);
}

static void samples_of_the_dead_and_of_strangers_do_not_count(void **state)
{
    struct scene s;
    (void)state;
    scene(&s, REC_PREFILL, 1, 1, 10, 1);
    s.samples[1] = s.samples[0];
    s.samples[1].pod_uid = "gone"; /* scaled 2 -> 1, its last sample is kept */
    s.samples[1].waiting_tokens = 50000;
    s.in.n_samples = 2;
    assert_int_equal(after(&s, 60), 1);
}

static void a_worker_still_in_its_old_role_counts_as_silent(void **state)
{
    struct scene s;
    (void)state;
    scene(&s, REC_DECODE, 3, 1, 10, 3);
    s.samples[1].role = s.samples[2].role = REC_PREFILL;
    s.samples[1].kv_blocks_used = s.samples[2].kv_blocks_used = 100;
    assert_int_equal(after(&s, 300), 2);
    assert_int_equal(s.d.dropped[SCALE_DROP_ROLE], 2);
}

static void the_freshest_of_several_routers_samples_counts_once(void **state)
{
    struct scene s;
    (void)state;
    scene(&s, REC_PREFILL, 1, 1, 10, 1);
    s.samples[0].waiting_tokens = 100;
    s.samples[1] = s.samples[0];
    s.samples[1].age_ns = 3 * S_NS;
    s.samples[1].waiting_tokens = 9000;
    s.in.n_samples = 2;
    assert_int_equal(after(&s, 10), 1);
    assert_non_null(strstr(s.d.inputs, "\"waiting_tokens\":100"));
}

static void first_slow_passes_do_not_spoil_the_rate(void **state)
{
    struct scene s;
    (void)state;
    scene(&s, REC_PREFILL, 2, 1, 10, 2);
    s.samples[1].prefill_tokens_per_s = 10;
    s.samples[1].warmup = true;
    s.in.arrival_tokens_per_s = 1100; /* two of 1000 tokens/s do it; two of 505 would not */
    assert_int_equal(after(&s, 10), 2);
}

static void without_any_rate_nothing_is_decided(void **state)
{
    struct scene s;
    (void)state;
    scene(&s, REC_PREFILL, 2, 1, 10, 2);
    s.samples[0].prefill_tokens_per_s = s.samples[1].prefill_tokens_per_s = 0;
    s.samples[0].waiting_tokens = 100000;
    assert_int_equal(after(&s, 100), 2);
    assert_non_null(strstr(s.d.reason, "measured"));
}

static void a_role_at_zero_wakes_at_once_for_a_held_request(void **state)
{
    struct scene s;
    (void)state;
    scene(&s, REC_DECODE, 0, 0, 4, 0);
    assert_int_equal(after(&s, 100), 0);
    s.in.held_requests = 1;
    scale_decide(&s.in, &s.m, s.now, &s.d);
    assert_int_equal(s.d.to, 1);
}

static void numbers_outside_the_bounds_come_inside_without_samples(void **state)
{
    struct scene s;
    (void)state;
    scene(&s, REC_PREFILL, 9, 2, 4, 0);
    s.in.heard = false;
    scale_decide(&s.in, &s.m, s.now, &s.d);
    assert_int_equal(s.d.to, 4);
    s.in.current = 0;
    scale_decide(&s.in, &s.m, s.now, &s.d);
    assert_int_equal(s.d.to, 2);
}

static void unified_takes_the_larger_of_both_needs(void **state)
{
    struct scene s;
    (void)state;
    scene(&s, REC_UNIFIED, 1, 1, 10, 1);
    s.samples[0].waiting_tokens = 3000;
    s.samples[0].kv_blocks_used = 90;
    s.samples[0].running = 3;
    assert_int_equal(after(&s, 10), 4);
}

static void ratio_and_budget_bind_both_roles(void **state)
{
    struct scale_limits l = {.ratio_min = 0.5, .ratio_max = 1, .min = {1, 1}, .max = {8, 8}};
    struct scale_decision p = {.from = 1, .to = 1}, d = {.from = 1, .to = 6};
    (void)state;
    scale_limit(&l, &p, &d);
    assert_int_equal(p.to, 3);
    assert_non_null(strstr(p.reason, "ratio.min"));
    p = (struct scale_decision){.to = 5}, d = (struct scale_decision){.to = 2};
    scale_limit(&l, &p, &d);
    assert_int_equal(d.to, 5);
    l.max[1] = 3; /* decode can't follow: prefill is held back */
    p.to = 5, d.to = 2;
    scale_limit(&l, &p, &d);
    assert_int_equal(d.to, 3);
    assert_int_equal(p.to, 3);
    l = (struct scale_limits){.budget = 6, .min = {1, 1}, .max = {8, 8}};
    p.to = 5, d.to = 4;
    scale_limit(&l, &p, &d);
    assert_int_equal(p.to + d.to, 6);
    l.budget = 1;
    scale_limit(&l, &p, &d);
    assert_int_equal(p.to, 1);
    assert_int_equal(d.to, 1);
}

static void the_same_inputs_give_the_same_bytes(void **state)
{
    struct scene a, b;
    (void)state;
    scene(&a, REC_DECODE, 2, 1, 10, 2);
    scene(&b, REC_DECODE, 2, 1, 10, 2);
    for (int i = 0; i < 100; i++) {
        a.samples[0].kv_blocks_used = b.samples[0].kv_blocks_used = (uint32_t)(i * 7 % 90);
        scale_decide(&a.in, &a.m, a.now, &a.d);
        scale_decide(&b.in, &b.m, b.now, &b.d);
        assert_memory_equal(&a.d, &b.d, sizeof a.d);
        a.now += S_NS;
        b.now += S_NS;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(waiting_tokens_raise_prefill_straight_to_the_need),
        cmocka_unit_test(arriving_tokens_alone_raise_prefill),
        cmocka_unit_test(prefill_load_leaves_a_quiet_decode_role_alone),
        cmocka_unit_test(kv_in_use_and_requests_that_wait_raise_decode),
        cmocka_unit_test(requests_that_wait_for_a_prefill_worker_do_not_raise_decode),
        cmocka_unit_test(slow_steps_raise_decode),
        cmocka_unit_test(a_spike_of_a_moment_changes_nothing),
        cmocka_unit_test(pending_groups_count_so_that_up_does_not_run_away),
        cmocka_unit_test(no_further_up_while_a_pod_finds_no_node_but_down_goes_on),
        cmocka_unit_test(less_must_have_been_enough_for_the_whole_window),
        cmocka_unit_test(down_goes_to_the_highest_need_within_the_window),
        cmocka_unit_test(those_who_remain_would_not_soon_be_too_few),
        cmocka_unit_test(a_silent_live_worker_counts_as_fully_used_for_going_down),
        cmocka_unit_test(a_silent_live_worker_counts_as_idle_for_going_up),
        cmocka_unit_test(silent_routers_change_nothing),
        cmocka_unit_test(samples_of_the_dead_and_of_strangers_do_not_count),
        cmocka_unit_test(a_worker_still_in_its_old_role_counts_as_silent),
        cmocka_unit_test(the_freshest_of_several_routers_samples_counts_once),
        cmocka_unit_test(first_slow_passes_do_not_spoil_the_rate),
        cmocka_unit_test(without_any_rate_nothing_is_decided),
        cmocka_unit_test(a_role_at_zero_wakes_at_once_for_a_held_request),
        cmocka_unit_test(numbers_outside_the_bounds_come_inside_without_samples),
        cmocka_unit_test(unified_takes_the_larger_of_both_needs),
        cmocka_unit_test(ratio_and_budget_bind_both_roles),
        cmocka_unit_test(the_same_inputs_give_the_same_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
