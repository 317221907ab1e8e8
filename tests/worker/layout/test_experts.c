/* Experts dealt over ranks with data-parallel attention: logits and tokens of the whole model, in
 * both ways of dispatch, with ranks that have no row, and what the ranks say of their load. */
#include "tests/worker/layout/layouts.h"
#include "tests/worker/model/family.h"

#define STEPS 30u

static struct layouts of(const struct family *f, struct model_layout layout, uint32_t steps)
{
    return (struct layouts){.path = f->dir,
                            .layout = layout,
                            .n_seqs = LAYOUT_SEQS,
                            .prompt = 40,
                            .steps = steps,
                            .chunk = 17,
                            .kv = MODEL_KV_F32,
                            .seed = 3};
}

static void check_load(const struct layouts_result *r, uint32_t ranks, uint32_t used)
{
    for (uint32_t i = 0; i < ranks; i++) {
        const struct model_work_stats *w = &r->reports[i].work;
        assert_true(w->dispatches > 0 && w->dispatches_latency <= w->dispatches);
        assert_true(w->expert_max <= w->expert_slots && w->expert_slots % used == 0);
        assert_true(w->expert_max * w->expert_ranks >= w->expert_slots);
        assert_int_equal(w->expert_slots, r->reports[0].work.expert_slots);
    }
}

static void experts_over_ranks_give_the_whole_models_logits_and_tokens(void **state)
{
    static const struct {
        const char *family;
        uint32_t used;
        struct model_layout layouts[5];
        uint32_t n;
    } kinds[] = {
        {"mixtral", 2, {{1, 1, 2, 2}, {1, 1, 4, 4}, {2, 1, 4, 2}}, 3},
        {"qwen3-moe", 3, {{1, 1, 2, 2}, {1, 1, 8, 8}, {1, 1, 2, 4}}, 3},
        {"deepseek-v2", 4, {{1, 1, 4, 4}, {2, 1, 4, 2}}, 2},
        {"deepseek-v3", 4, {{1, 1, 2, 2}, {1, 1, 8, 8}, {2, 1, 4, 2}, {2, 1, 8, 4}}, 4},
    };
    (void)state;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        struct family f;
        family_open(&f, kinds[k].family);
        for (uint32_t i = 0; i < kinds[k].n; i++) {
            struct layouts_result r;
            struct layouts l = of(&f, kinds[k].layouts[i], STEPS);
            layouts_run(&l, &r);
            assert_true(r.max_delta <= (l.layout.tensor > 1 ? 1e-3f : 0)); /* whole experts: bits */
            assert_int_equal(r.differ, 0);
            check_load(&r, model_layout_ranks(&l.layout), kinds[k].used);
        }
        family_close(&f);
    }
}

static void both_ways_of_dispatch_give_the_same(void **state)
{
    struct family f;
    struct layouts_result a, b;
    (void)state;
    family_open(&f, "deepseek-v3");
    struct layouts l = of(&f, (struct model_layout){1, 1, 4, 4}, STEPS);
    l.dispatch = MODEL_DISPATCH_LATENCY;
    layouts_run(&l, &a);
    l.dispatch = MODEL_DISPATCH_THROUGHPUT;
    layouts_run(&l, &b);
    assert_true(a.reports[0].work.dispatches_latency > 0);
    assert_int_equal(b.reports[0].work.dispatches_latency, 0);
    assert_true(a.max_delta == b.max_delta && a.max_logit == b.max_logit);
    assert_int_equal(a.differ + b.differ, 0);
    family_close(&f);
}

static double imbalance(const struct layouts_result *r)
{
    const struct model_work_stats *w = &r->reports[0].work;
    return (double)(w->expert_max * w->expert_ranks) / (double)w->expert_slots;
}

static void copies_of_hot_experts_come_while_serving_and_change_no_bit(void **state)
{
    static const struct model_layout kinds[] = {{1, 1, 4, 4}, {1, 1, 8, 8}, {2, 1, 4, 2}};
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        struct family f;
        struct layouts_result plain, copies;
        family_open(&f, "deepseek-v3");
        struct layouts l = of(&f, kinds[i], STEPS);
        l.prompt = 360; /* 40 steps of 72 rows */
        l.chunk = 9;
        layouts_run(&l, &plain);
        l.redundant = 2;
        l.balance_steps = 8;
        l.move_bytes = 5000; /* less than a matrix: several steps each */
        layouts_run(&l, &copies);
        printf("greatest load over mean: %.3f without copies, %.3f with two a rank\n",
               imbalance(&plain), imbalance(&copies));
        assert_true(copies.max_delta <= (l.layout.tensor > 1 ? 1e-3f : 0));
        assert_int_equal(copies.differ, 0);
        assert_true(copies.reports[0].work.rebalances >= 2);
        for (uint32_t r = 1; r < model_layout_ranks(&l.layout); r++)
            assert_int_equal(copies.reports[r].work.rebalances, copies.reports[0].work.rebalances);
        assert_true(imbalance(&copies) < imbalance(&plain));
        family_close(&f);
    }
}

static void ranks_without_rows_take_part(void **state)
{
    struct family f;
    struct layouts_result r;
    (void)state;
    family_open(&f, "mixtral");
    struct layouts l = of(&f, (struct model_layout){1, 1, 2, 2}, 12);
    l.n_seqs = 1;
    layouts_run(&l, &r);
    assert_true(r.max_delta <= 1e-3f);
    l.layout = (struct model_layout){1, 1, 4, 4};
    layouts_run(&l, &r);
    assert_true(r.max_delta <= 1e-3f);
    family_close(&f);
}

static void two_halves_that_take_turns_give_the_same_bits(void **state)
{
    static const char *const families[] = {"mixtral", "qwen3-moe", "deepseek-v2", "deepseek-v3"};
    static const struct model_layout kinds[] = {{1, 1, 4, 4}, {2, 1, 4, 2}, {1, 1, 2, 4}};
    (void)state;
    for (size_t k = 0; k < sizeof families / sizeof *families; k++) {
        struct family f;
        family_open(&f, families[k]);
        for (size_t i = 0; i < 3; i++) {
            struct layouts_result whole, halves;
            struct layouts l = of(&f, kinds[i], 12);
            l.per_host = i == 0 ? 2 : 0; /* over sockets too */
            l.threads = i == 2 ? 3 : 1;
            layouts_run(&l, &whole);
            l.halves = GROUP_HALVES;
            layouts_run(&l, &halves);
            assert_int_equal(whole.reports[0].work.halved, 0);
            assert_true(halves.reports[0].work.halved >= 12);
            assert_true(halves.max_delta == whole.max_delta); /* the whole model's beside both */
            assert_true(l.layout.tensor > 1 || halves.max_delta == 0);
            assert_int_equal(halves.differ, 0);
        }
        family_close(&f);
    }
}

static void halves_go_with_copies_of_experts_and_with_one_row(void **state)
{
    struct family f;
    struct layouts_result r;
    (void)state;
    family_open(&f, "deepseek-v3");
    struct layouts l = of(&f, (struct model_layout){1, 1, 4, 4}, STEPS);
    l.halves = GROUP_HALVES;
    l.redundant = 2;
    l.balance_steps = 8;
    layouts_run(&l, &r);
    assert_true(r.max_delta == 0 && r.reports[0].work.rebalances >= 1);
    l.n_seqs = 1; /* a prompt in halves, then one row a step: whole */
    layouts_run(&l, &r);
    assert_true(r.max_delta == 0);
    assert_int_equal(r.reports[0].work.halved, 3);
    l.halves = GROUP_HALVES_MEASURED;
    l.n_seqs = LAYOUT_SEQS;
    layouts_run(&l, &r);
    assert_true(r.max_delta == 0 && r.reports[0].work.halved > 0);
    family_close(&f);
}

static void rows_in_fp8_stay_near(void **state)
{
    struct family f;
    struct layouts_result r;
    (void)state;
    family_open(&f, "qwen3-moe");
    struct layouts l = of(&f, (struct model_layout){1, 1, 4, 4}, 12);
    l.fp8 = true;
    layouts_run(&l, &r);
    assert_true(r.max_delta > 1e-4f && r.max_delta < 3.0f);
    family_close(&f);
}

static void a_changed_expert_changes_the_logits(void **state)
{
    struct family f;
    struct layouts_result r;
    (void)state;
    family_open(&f, "deepseek-v3");
    struct layouts l = of(&f, (struct model_layout){1, 1, 4, 4}, 12);
    l.damaged = 3;
    layouts_run(&l, &r);
    assert_true(r.max_delta > 1e-2f);
    family_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(experts_over_ranks_give_the_whole_models_logits_and_tokens),
        cmocka_unit_test(both_ways_of_dispatch_give_the_same),
        cmocka_unit_test(copies_of_hot_experts_come_while_serving_and_change_no_bit),
        cmocka_unit_test(ranks_without_rows_take_part),
        cmocka_unit_test(two_halves_that_take_turns_give_the_same_bits),
        cmocka_unit_test(halves_go_with_copies_of_experts_and_with_one_row),
        cmocka_unit_test(rows_in_fp8_stay_near),
        cmocka_unit_test(a_changed_expert_changes_the_logits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
