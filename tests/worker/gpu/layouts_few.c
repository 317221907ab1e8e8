/* GPUs of several ranks in a few layouts: one GPU's logits and tokens, what travels, what happens
 * when a rank dies. Every family in every layout: layouts_all.c. */
#include "tests/worker/gpu/layouts.h"

static struct family mixtral;
static struct gpu_layouts with; /* one GPU's logits */

static int set_up(void **state)
{
    (void)state;
    family_open(&mixtral, "mixtral");
    with = gpu_layouts_of(&mixtral);
    with.l.n_seqs = 2;
    with.l.prompt = with.l.chunk = 18;
    with.l.steps = 2;
    gpu_layouts_want(&with);
    return 0;
}

static int take_down(void **state)
{
    (void)state;
    gpu_layouts_fini(&with);
    family_close(&mixtral);
    return 0;
}

static void check(struct gpu_layouts *t, struct model_layout layout, struct gpu_layouts_result *r)
{
    t->l.layout = layout;
    gpu_layouts_run(t, r);
    assert_true(r->far == 0);
    assert_int_equal(r->differ, 0);
}

/* 60 rows, 30 rows, then one a sequence: 2 micro-batches, 1, 1 (which is captured the second time).
 */
static void stages_pass_rows_on_and_give_one_gpus_logits(void **state)
{
    struct gpu_layouts_result r;
    struct gpu_layouts t = with;
    (void)state;
    check(&t, (struct model_layout){1, 2, 1, 1}, &r);
    assert_int_equal(r.reports[0].work.steps, 3);
    assert_int_equal(r.reports[0].work.micro_batches, 4);
    assert_int_equal(r.reports[0].pipeline.sends, 4); /* rows on */
    assert_int_equal(r.reports[0].pipeline.recvs, 3); /* those that give logits back */
    assert_int_equal(r.reports[1].pipeline.recvs, 4);
    assert_int_equal(r.reports[1].pipeline.sends, 3);
    t.draws = true;
    check(&t, (struct model_layout){2, 2, 2, 1}, &r);
    for (uint32_t i = 0; i < 4; i++)
        assert_true(r.reports[i].tensor.all_reduces > 0);
    t.l.damaged = 2; /* rank 1's part counts */
    gpu_layouts_run(&t, &r);
    assert_true(r.far > 0);
}

static void rows_travel_to_experts_both_ways(void **state)
{
    struct gpu_layouts_result r;
    struct gpu_layouts t = with;
    (void)state;
    check(&t, (struct model_layout){1, 1, 2, 2}, &r);
    const struct model_work_stats *w = &r.reports[0].work;
    assert_true(w->dispatches_latency > 0 && w->dispatches == w->dispatches_latency);
    assert_int_equal(r.reports[0].expert.all_to_alls, 2 * w->dispatches);
    float greatest = r.greatest;
    t.l.dispatch = MODEL_DISPATCH_THROUGHPUT;
    check(&t, (struct model_layout){1, 1, 2, 2}, &r);
    assert_true(r.greatest == greatest); /* the same bits */
    assert_int_equal(w->dispatches_latency, 0);
    assert_int_equal(r.reports[0].expert.all_gathers, 1 + w->dispatches); /* who has NCCL; counts */
    assert_int_equal(r.reports[0].expert.all_to_alls, 2 * w->dispatches);
    assert_true(w->expert_slots % 2 == 0 && w->expert_max * 2 >= w->expert_slots);
    t.draws = true;
    check(&t, (struct model_layout){2, 1, 4, 2}, &r);
}

static void a_rank_that_dies_takes_its_group_with_it(void **state)
{
    struct gpu_layouts t = with;
    (void)state;
    gpu_layouts_die(&t, (struct model_layout){1, 2, 1, 1}, 1, 0);
    gpu_layouts_die(&t, (struct model_layout){1, 1, 2, 2}, 0, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stages_pass_rows_on_and_give_one_gpus_logits),
        cmocka_unit_test(rows_travel_to_experts_both_ways),
        cmocka_unit_test(a_rank_that_dies_takes_its_group_with_it),
    };
    gpu_layouts_init();
    return cmocka_run_group_tests(tests, set_up, take_down);
}
