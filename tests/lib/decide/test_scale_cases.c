/* Failures that users of other scalers reported, as cases: each test fails when the guard that
 * tests/cases.tsv names is switched off. */
#include "lib/decide/scale_record.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <cmocka.h>

#define S_NS  1000000000ull
#define NPODS 16

/* Prefill and decode of one deployment, each with its pods and one sample a pod. */
struct world {
    struct scale_plan p;
    struct scale_pod pods[2][NPODS];
    struct scale_sample samples[2][2 * NPODS];
    char uid[2][NPODS][8];
};

static void add_pod(struct world *w, int role)
{
    struct scale_input *in = &w->p.role[role].in;
    size_t i = in->n_pods++, k = in->n_samples++;
    snprintf(w->uid[role][i], sizeof w->uid[role][i], "%c%zu", "pd"[role], i);
    w->pods[role][i] = (struct scale_pod){
        .uid = w->uid[role][i], .incarnation = 100 + i, .ready = true, .placed = true};
    w->samples[role][k] = (struct scale_sample){.pod_uid = w->uid[role][i],
                                                .incarnation = 100 + i,
                                                .role = (enum rec_role)role,
                                                .ready = true,
                                                .age_ns = S_NS / 10,
                                                .kv_blocks = 100,
                                                .prefill_tokens_per_s = 1000,
                                                .decode_step_s = 0.02};
}

static void make(struct world *w, int prefill, int decode)
{
    memset(w, 0, sizeof *w);
    w->p.now_ns = 1000 * S_NS;
    for (int r = 0; r < 2; r++) {
        w->p.role[r].on = true;
        w->p.role[r].in = (struct scale_input){.role = (enum rec_role)r,
                                               .current = r ? decode : prefill,
                                               .min = 1,
                                               .max = 10,
                                               .heard = true,
                                               .ttft_s = 2,
                                               .down_window_ns = 60 * S_NS,
                                               .group_pods = 1,
                                               .pods = w->pods[r],
                                               .samples = w->samples[r]};
        for (int i = 0; i < (r ? decode : prefill); i++)
            add_pod(w, r);
        w->p.limits.min[r] = 1;
        w->p.limits.max[r] = 10;
    }
}

/* Looks once a second; a decision is carried out at once, new groups are pending (no pod is ready).
 */
static void run(struct world *w, int seconds)
{
    for (int i = 0; i < seconds; i++, w->p.now_ns += S_NS) {
        scale_plan(&w->p);
        for (int r = 0; r < 2; r++)
            w->p.role[r].in.current = w->p.role[r].out.to;
    }
}

static int32_t number(const struct world *w, int role)
{
    return w->p.role[role].in.current;
}

static const struct scale_decision *out(const struct world *w, int role)
{
    return &w->p.role[role].out;
}

static void long_prompts_raise_prefill_and_leave_a_quiet_decode_alone(void **state)
{
    struct world w;
    (void)state;
    make(&w, 1, 1);
    w.samples[0][0].waiting_tokens = 4000;
    w.samples[1][0].running = 2, w.samples[1][0].kv_blocks_used = 20, w.samples[1][0].waiting = 40;
    run(&w, 30);
    assert_int_equal(number(&w, 0), 5);
    assert_int_equal(number(&w, 1), 1);
}

static void the_last_sample_of_a_deleted_pod_scales_nothing(void **state)
{
    struct world w;
    (void)state;
    make(&w, 2, 1);
    w.samples[0][1].waiting_tokens = 50000;
    w.p.role[0].in.n_pods = 1; /* its pod is gone, its sample stays for a minute */
    w.p.role[0].in.current = 1;
    run(&w, 60);
    assert_int_equal(number(&w, 0), 1);
    assert_int_equal(out(&w, 0)->dropped[SCALE_DROP_UNKNOWN_POD], 1);
}

static void a_group_of_two_pods_is_one_replica(void **state)
{
    struct world w;
    (void)state;
    make(&w, 1, 4);
    struct scale_input *in = &w.p.role[1].in;
    in->current = 2; /* two groups of two pods; all four say the same */
    in->group_pods = 2;
    for (int i = 0; i < 4; i++) {
        w.pods[1][i].rank = i & 1;
        w.samples[1][i].kv_blocks_used = 45, w.samples[1][i].running = 3;
    }
    run(&w, 200); /* 90 of 200 blocks: one group would be at 0.9 */
    assert_int_equal(number(&w, 1), 2);
    assert_int_equal(out(&w, 1)->live, 2);
    assert_int_equal(out(&w, 1)->used_blocks, 90);
}

static void one_silent_worker_does_not_stop_scaling_down(void **state)
{
    struct world w;
    (void)state;
    make(&w, 6, 1);
    w.p.role[0].in.n_samples = 5;
    run(&w, 70);
    assert_int_equal(number(&w, 0), 1);
}

static void silent_workers_count_as_fully_used_for_going_down(void **state)
{
    struct world w;
    (void)state;
    make(&w, 6, 1);
    w.p.role[0].in.n_samples = 3; /* three may be as busy as can be */
    run(&w, 200);
    assert_int_equal(number(&w, 0), 3);
}

static void without_load_it_comes_down_after_the_window_and_not_before(void **state)
{
    struct world w;
    (void)state;
    make(&w, 7, 1);
    run(&w, 60);
    assert_int_equal(number(&w, 0), 7);
    run(&w, 10);
    assert_int_equal(number(&w, 0), 1);
}

static void the_tail_of_an_average_does_not_keep_a_role_from_zero(void **state)
{
    struct world w;
    (void)state;
    make(&w, 1, 1);
    for (int r = 0; r < 2; r++) {
        w.p.role[r].in.min = w.p.limits.min[r] = 0;
        w.p.role[r].in.arrival_tokens_per_s = 0.0001;
    }
    run(&w, 70);
    assert_int_equal(number(&w, 0), 0);
    assert_int_equal(number(&w, 1), 0);
}

static void what_was_asked_for_is_not_asked_for_again_while_it_is_pending(void **state)
{
    struct world w;
    (void)state;
    make(&w, 1, 1);
    w.p.role[0].in.max = w.p.limits.max[0] = 100;
    w.samples[0][0].waiting_tokens = 4000;
    run(&w, 90); /* cold start: none becomes ready */
    assert_int_equal(number(&w, 0), 5);
}

static void a_pod_without_a_node_stops_the_rise_and_is_told(void **state)
{
    struct world w;
    (void)state;
    make(&w, 1, 1);
    w.p.role[0].in.current = 2;
    w.pods[0][w.p.role[0].in.n_pods++] = (struct scale_pod){.uid = "n", .unschedulable = true};
    w.samples[0][0].waiting_tokens = 9000;
    run(&w, 60);
    assert_int_equal(number(&w, 0), 2);
    assert_true(out(&w, 0)->capacity_limited);
    assert_int_equal(out(&w, 0)->code, SCALE_UNSCHEDULABLE);
}

static void a_group_that_waits_for_a_node_is_given_up_soon_after_the_load_ends(void **state)
{
    struct world w;
    (void)state;
    make(&w, 1, 1);
    w.p.role[0].in.current = 4;
    w.p.role[0].in.down_window_ns = 600 * S_NS;
    for (int i = 0; i < 3; i++)
        w.pods[0][w.p.role[0].in.n_pods++] = (struct scale_pod){.uid = "n", .unschedulable = true};
    run(&w, 40);
    assert_int_equal(number(&w, 0), 1);
    assert_int_equal(w.p.role[0].memory.current, 1);
}

static void pods_that_wait_for_a_node_do_not_freeze_the_rest(void **state)
{
    struct world w;
    (void)state;
    make(&w, 4, 1);
    w.p.role[0].in.current = 5;
    w.pods[0][w.p.role[0].in.n_pods++] = (struct scale_pod){.uid = "n", .unschedulable = true};
    run(&w, 130); /* the load has ended: live workers go too, though that pod still waits */
    assert_int_equal(number(&w, 0), 1);
}

static void first_slow_passes_of_a_new_worker_do_not_spoil_the_rate(void **state)
{
    struct world w;
    (void)state;
    make(&w, 2, 1);
    w.samples[0][1].prefill_tokens_per_s = 10;
    w.samples[0][1].warmup = true;
    w.p.role[0].in.arrival_tokens_per_s = 1100;
    run(&w, 30);
    assert_int_equal(number(&w, 0), 2);
}

static void two_workers_at_seventy_percent_do_not_swing(void **state)
{
    struct world w;
    (void)state;
    make(&w, 1, 2);
    for (int i = 0; i < 600; i++) { /* 65 % of two; what one can't hold two do */
        for (int k = 0; k < 2; k++)
            w.samples[1][k].kv_blocks_used = 30 + (uint32_t)(i % 3), w.samples[1][k].running = 4;
        run(&w, 1);
        assert_int_equal(number(&w, 1), 2);
    }
}

static void a_sample_without_a_name_is_counted_and_told(void **state)
{
    struct world w;
    (void)state;
    make(&w, 1, 1);
    w.samples[0][0].pod_uid = "";
    run(&w, 1);
    assert_int_equal(out(&w, 0)->dropped[SCALE_DROP_NO_ID], 1);
    assert_non_null(strstr(out(&w, 0)->inputs, "\"dropped_no_id\":1"));
}

static void a_sample_of_the_process_before_this_one_does_not_count(void **state)
{
    struct world w;
    (void)state;
    make(&w, 1, 1);
    w.samples[0][0].incarnation = 7;
    w.samples[0][0].waiting_tokens = 90000;
    run(&w, 30);
    assert_int_equal(number(&w, 0), 1);
    assert_int_equal(out(&w, 0)->dropped[SCALE_DROP_INCARNATION], 1);
}

static void a_sample_of_another_role_does_not_count(void **state)
{
    struct world w;
    (void)state;
    make(&w, 1, 1);
    w.samples[1][0].role = REC_PREFILL; /* it has not taken on its new role yet */
    w.samples[1][0].kv_blocks_used = 100, w.samples[1][0].running = 9;
    run(&w, 30);
    assert_int_equal(number(&w, 1), 1);
    assert_int_equal(out(&w, 1)->dropped[SCALE_DROP_ROLE], 1);
}

static void an_old_sample_does_not_count(void **state)
{
    struct world w;
    (void)state;
    make(&w, 1, 1);
    w.samples[0][0].age_ns = 60 * S_NS;
    w.samples[0][0].waiting_tokens = 90000;
    run(&w, 30);
    assert_int_equal(number(&w, 0), 1);
    assert_int_equal(out(&w, 0)->dropped[SCALE_DROP_STALE], 1);
}

static void a_query_with_a_target_is_a_share_and_without_one_a_number(void **state)
{
    struct world w;
    (void)state;
    make(&w, 1, 1);
    w.p.role[0].in.source = SCALE_FROM_QUERY;
    w.p.role[0].in.value = 6;
    w.p.role[0].in.target = 2; /* 2 a group: three groups */
    run(&w, 10);
    assert_int_equal(number(&w, 0), 3);
    make(&w, 1, 1);
    w.p.role[0].in.source = SCALE_FROM_QUERY;
    w.p.role[0].in.value = 6;
    run(&w, 10);
    assert_int_equal(number(&w, 0), 6);
}

static void a_query_without_a_value_changes_nothing(void **state)
{
    struct world w;
    (void)state;
    make(&w, 3, 1);
    w.p.role[0].in.source = SCALE_FROM_QUERY;
    w.p.role[0].in.heard = false;
    run(&w, 300);
    assert_int_equal(number(&w, 0), 3);
    assert_int_equal(out(&w, 0)->code, SCALE_UNHEARD);
}

static void growing_arrivals_are_met_a_lead_time_ahead(void **state)
{
    struct world w;
    (void)state;
    make(&w, 1, 1);
    w.p.role[0].in.lead_s = 60;
    w.p.role[0].in.rung = SCALE_COLD;
    int asked = 0;
    for (int i = 0; i < 120 && !asked; i++) { /* 0 to 1,200 tokens/s in two minutes: 1 serves 800 */
        w.p.role[0].in.arrival_tokens_per_s = 10.0 * i;
        run(&w, 1);
        asked = number(&w, 0) > 1 ? i : 0;
    }
    assert_in_range(asked, 20, 70); /* at 800 it would be 80 */
    assert_non_null(strstr(out(&w, 0)->reason, "cold"));
}

static void no_more_is_asked_for_than_nodes_have_room_for(void **state)
{
    struct world w;
    const uint32_t two_prefill[SCALE_ROLES] = {1, 0, 0};
    (void)state;
    make(&w, 1, 1);
    w.p.space.known = true;
    scale_space_add(&w.p.space, two_prefill);
    scale_space_add(&w.p.space, two_prefill);
    w.samples[0][0].waiting_tokens = 7000;
    for (int i = 0; i < 5; i++, w.p.now_ns += S_NS)
        scale_plan(&w.p);
    assert_int_equal(out(&w, 0)->to, 3);
    assert_true(out(&w, 0)->capacity_limited);
    assert_int_equal(out(&w, 0)->code, SCALE_NO_ROOM);
    assert_non_null(strstr(out(&w, 0)->reason, "room for 2 more"));
}

static void roles_share_a_node_and_a_group_needs_all_its_pods(void **state)
{
    struct world w;
    const uint32_t node[SCALE_ROLES] = {4, 2, 0};
    (void)state;
    make(&w, 1, 1);
    w.p.space.known = true;
    scale_space_add(&w.p.space, node);
    w.p.role[1].in.group_pods = 2;
    w.samples[0][0].waiting_tokens = 7000;                              /* 9 of prefill */
    w.samples[1][0].kv_blocks_used = 100, w.samples[1][0].running = 10; /* and more decode */
    w.samples[1][0].waiting = 40;
    for (int i = 0; i < 5; i++, w.p.now_ns += S_NS)
        scale_plan(&w.p);
    assert_int_equal(out(&w, 0)->to, 5); /* a quarter went first, so no whole decode group fits */
    assert_int_equal(out(&w, 1)->to, 1);
}

static void the_ratio_is_kept_by_raising_the_deficient_side(void **state)
{
    struct world w;
    (void)state;
    make(&w, 1, 1);
    w.p.limits.ratio_min = 0.5;
    w.samples[1][0].kv_blocks_used = 100, w.samples[1][0].running = 10,
    w.samples[1][0].waiting = 18;
    run(&w, 10); /* (100 + 180) / 70 = 4 */
    assert_int_equal(number(&w, 1), 4);
    assert_int_equal(number(&w, 0), 2);
}

static void neither_role_is_at_zero_while_the_other_is_not(void **state)
{
    struct world w;
    (void)state;
    make(&w, 1, 1);
    for (int r = 0; r < 2; r++)
        w.p.role[r].in.min = w.p.limits.min[r] = 0;
    w.samples[1][0].kv_blocks_used = 10, w.samples[1][0].running = 1;
    run(&w, 200);
    assert_int_equal(number(&w, 0), 1);
    assert_int_equal(number(&w, 1), 1);
    w.samples[1][0].kv_blocks_used = 0, w.samples[1][0].running = 0;
    run(&w, 200);
    assert_int_equal(number(&w, 0), 0);
    assert_int_equal(number(&w, 1), 0);
}

static void a_woken_role_stays_until_its_request_was_served(void **state)
{
    struct world w;
    (void)state;
    make(&w, 0, 0);
    for (int r = 0; r < 2; r++) {
        w.p.role[r].in.min = w.p.limits.min[r] = 0;
        w.p.role[r].in.held_requests = 1;
        w.p.role[r].memory.rate = 1000, w.p.role[r].memory.blocks = 100;
    }
    run(&w, 1);
    assert_int_equal(number(&w, 0), 1);
    assert_int_equal(number(&w, 1), 1);
    for (int i = 0; i < 600; i++) { /* the worker takes ten minutes to start */
        run(&w, 1);
        assert_int_equal(number(&w, 0), 1);
        assert_int_equal(number(&w, 1), 1);
    }
}

static void the_budget_is_shared_by_need(void **state)
{
    struct world w;
    (void)state;
    make(&w, 1, 1);
    w.p.limits.budget = 6;
    w.samples[0][0].waiting_tokens = 6300; /* 8 */
    w.samples[1][0].kv_blocks_used = 100, w.samples[1][0].running = 10,
    w.samples[1][0].waiting = 18;
    run(&w, 10); /* 8 + 4: two thirds to prefill */
    assert_int_equal(number(&w, 0) + number(&w, 1), 6);
    assert_int_equal(number(&w, 0), 4);
}

static void steps_that_grow_with_the_batch_are_foretold(void **state)
{
    struct world w;
    (void)state;
    make(&w, 1, 2);
    w.p.role[1].in.tpot_s = 0.05;
    for (int i = 0; i < 60; i++) { /* step = 10 ms + 2 ms a request */
        for (int k = 0; k < 2; k++) {
            w.samples[1][k].running = 4 + (uint32_t)(i * 7 + k) % 12;
            w.samples[1][k].resident_tokens = w.samples[1][k].running * 100;
            w.samples[1][k].kv_blocks_used = w.samples[1][k].running;
            w.samples[1][k].decode_step_s = 0.010 + 0.002 * w.samples[1][k].running;
        }
        run(&w, 1);
    }
    for (int k = 0; k < 2; k++) /* 30 each: 70 ms; 20 each take 50 ms, so three are needed */
        w.samples[1][k].running = 30, w.samples[1][k].resident_tokens = 3000,
        w.samples[1][k].kv_blocks_used = 30, w.samples[1][k].decode_step_s = 0.070;
    run(&w, 5);
    assert_int_equal(number(&w, 1), 3);
}

static void decisions_are_made_again_from_their_records_to_the_same_bytes(void **state)
{
    struct world w;
    struct scale_about about = {"2026-11-30T06:00:00.123Z", "default", "chat", "c-0"};
    (void)state;
    make(&w, 2, 2);
    w.p.limits.ratio_min = 0.25;
    w.p.limits.budget = 9;
    w.p.space.known = true;
    scale_space_add(&w.p.space, (const uint32_t[SCALE_ROLES]){3, 2, 0});
    for (int i = 0; i < 200; i++) {
        for (int k = 0; k < 2; k++) {
            w.samples[0][k].waiting_tokens = (uint64_t)(i * i * 31 % 5000);
            w.samples[1][k].running = (uint32_t)(i * 13 + k) % 11;
            w.samples[1][k].kv_blocks_used = w.samples[1][k].running * 9;
            w.samples[1][k].decode_step_s = 0.01 + 0.003 * (double)w.samples[1][k].running;
        }
        w.p.role[0].in.arrival_tokens_per_s = 100.0 / 3 * (i % 50);
        run(&w, 1);
        w.p.now_ns -= S_NS; /* as it was decided */
        for (int r = 0; r < 2; r++)
            w.p.role[r].in.current = w.p.role[r].out.from;
        struct buf a, b;
        struct err e = {0};
        buf_init(&a, SCALE_RECORD_BYTES);
        buf_init(&b, SCALE_RECORD_BYTES);
        json_t *record = scale_record(&w.p, &about);
        assert_non_null(record);
        assert_int_equal(scale_record_write(record, &a), 0);
        json_t *read = json_parse(buf_view(&a), SCALE_RECORD_BYTES, 0, &e);
        json_t *again = read ? scale_replay(read, &e) : NULL;
        assert_non_null(again);
        assert_int_equal(scale_record_write(again, &b), 0);
        assert_true(str_eq(buf_view(&a), buf_view(&b)));
        json_decref(record);
        json_decref(read);
        json_decref(again);
        buf_fini(&a);
        buf_fini(&b);
        for (int r = 0; r < 2; r++)
            w.p.role[r].in.current = w.p.role[r].out.to < 2 ? 2 : w.p.role[r].out.to;
        w.p.now_ns += S_NS;
    }
}

static void what_is_no_record_is_refused_with_a_sentence(void **state)
{
    static const char *const bad[] = {"{}", "[]", "{\"version\":1,\"roles\":[{}]}",
                                      "{\"version\":9}",
                                      "{\"version\":1,\"roles\":[{\"input\":{\"role\":0}},"
                                      "{\"input\":{\"role\":0}}]}"};
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct err e = {0};
        json_t *o = json_parse(str_c(bad[i]), 1000, 0, &e);
        json_t *again = scale_replay(o, &e);
        assert_null(again);
        assert_true(e.code && *e.msg);
        json_decref(o);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(long_prompts_raise_prefill_and_leave_a_quiet_decode_alone),
        cmocka_unit_test(the_last_sample_of_a_deleted_pod_scales_nothing),
        cmocka_unit_test(a_group_of_two_pods_is_one_replica),
        cmocka_unit_test(one_silent_worker_does_not_stop_scaling_down),
        cmocka_unit_test(silent_workers_count_as_fully_used_for_going_down),
        cmocka_unit_test(without_load_it_comes_down_after_the_window_and_not_before),
        cmocka_unit_test(the_tail_of_an_average_does_not_keep_a_role_from_zero),
        cmocka_unit_test(what_was_asked_for_is_not_asked_for_again_while_it_is_pending),
        cmocka_unit_test(a_pod_without_a_node_stops_the_rise_and_is_told),
        cmocka_unit_test(a_group_that_waits_for_a_node_is_given_up_soon_after_the_load_ends),
        cmocka_unit_test(pods_that_wait_for_a_node_do_not_freeze_the_rest),
        cmocka_unit_test(first_slow_passes_of_a_new_worker_do_not_spoil_the_rate),
        cmocka_unit_test(two_workers_at_seventy_percent_do_not_swing),
        cmocka_unit_test(a_sample_without_a_name_is_counted_and_told),
        cmocka_unit_test(a_sample_of_the_process_before_this_one_does_not_count),
        cmocka_unit_test(a_sample_of_another_role_does_not_count),
        cmocka_unit_test(an_old_sample_does_not_count),
        cmocka_unit_test(a_query_with_a_target_is_a_share_and_without_one_a_number),
        cmocka_unit_test(a_query_without_a_value_changes_nothing),
        cmocka_unit_test(growing_arrivals_are_met_a_lead_time_ahead),
        cmocka_unit_test(no_more_is_asked_for_than_nodes_have_room_for),
        cmocka_unit_test(roles_share_a_node_and_a_group_needs_all_its_pods),
        cmocka_unit_test(the_ratio_is_kept_by_raising_the_deficient_side),
        cmocka_unit_test(neither_role_is_at_zero_while_the_other_is_not),
        cmocka_unit_test(a_woken_role_stays_until_its_request_was_served),
        cmocka_unit_test(the_budget_is_shared_by_need),
        cmocka_unit_test(steps_that_grow_with_the_batch_are_foretold),
        cmocka_unit_test(decisions_are_made_again_from_their_records_to_the_same_bytes),
        cmocka_unit_test(what_is_no_record_is_refused_with_a_sentence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
