/* Every family over several GPUs in every layout, as processes: the logits and tokens of one GPU.
 */
#include "tests/worker/gpu/layouts.h"

static bool has_experts(const struct family *f)
{
    const json_t *c = json_object_get(f->golden, "config");
    return json_object_get(c, "num_local_experts") || json_object_get(c, "n_routed_experts") ||
           json_object_get(c, "num_experts");
}

/* A row of experts that nearly tie may choose others in another order of sums. */
static void check(struct gpu_layouts *t, const char *name, struct model_layout layout, bool moe)
{
    struct gpu_layouts_result r;
    t->l.layout = layout;
    printf("%-16s ", name);
    fflush(stdout);
    gpu_layouts_run(t, &r);
    assert_true(r.far <= (moe ? r.rows / 2 : 0));
    assert_int_equal(r.differ, 0);
}

static void every_family_in_every_layout_is_one_gpu_within_bf16(void **state)
{
    static const struct model_layout all[] = {{1, 2, 1, 1}, {1, 3, 1, 1}, {2, 2, 1, 1}},
                                     moe[] = {{2, 1, 2, 1}, {2, 2, 2, 1}, {1, 1, 2, 2},
                                              {1, 1, 2, 4}, {2, 1, 4, 2}, {2, 1, 2, 2}};
    (void)state;
    for (size_t k = 0; k < N_FAMILIES; k++) {
        struct family f;
        family_open(&f, family_names[k]);
        struct gpu_layouts t = gpu_layouts_of(&f);
        t.draws = true;
        bool experts = has_experts(&f);
        gpu_layouts_want(&t);
        for (size_t i = 0; i < sizeof all / sizeof *all; i++)
            check(&t, family_names[k], all[i], experts);
        for (size_t i = 0; experts && i < sizeof moe / sizeof *moe; i++)
            check(&t, family_names[k], moe[i], true);
        if (!experts)
            check(&t, family_names[k], (struct model_layout){1, 1, 1, 2}, false);
        gpu_layouts_fini(&t);
        family_close(&f);
    }
}

static struct gpu_layouts open_mixtral(struct family *f)
{
    family_open(f, "mixtral");
    struct gpu_layouts t = gpu_layouts_of(f);
    t.draws = true;
    gpu_layouts_want(&t);
    return t;
}

static void rows_in_fp8_stay_near(void **state)
{
    static const enum model_dispatch ways[] = {MODEL_DISPATCH_LATENCY, MODEL_DISPATCH_THROUGHPUT};
    struct gpu_layouts_result r[2];
    struct family f;
    struct gpu_layouts t = open_mixtral(&f);
    (void)state;
    t.l.layout = (struct model_layout){1, 1, 2, 2};
    t.l.fp8 = true;
    for (int i = 0; i < 2; i++) {
        t.l.dispatch = ways[i];
        gpu_layouts_run(&t, &r[i]);
        assert_true(r[i].apart > 0.005 && r[i].apart < 0.3);
    }
    assert_true(r[0].greatest == r[1].greatest);
    gpu_layouts_fini(&t);
    family_close(&f);
}

static void without_nccl_data_goes_through_the_host(void **state)
{
    struct family f;
    struct gpu_layouts_result r;
    struct gpu_layouts t = open_mixtral(&f);
    (void)state;
    t.no_nccl = true;
    t.l.layout = (struct model_layout){2, 2, 2, 1};
    gpu_layouts_run(&t, &r);
    assert_true(r.far == 0 && r.differ == 0);
    assert_true(r.reports[0].tensor.all_reduces > 0 && r.reports[0].pipeline.sends > 0);
    t.l.dispatch = MODEL_DISPATCH_THROUGHPUT;
    t.l.layout = (struct model_layout){1, 1, 2, 2};
    gpu_layouts_run(&t, &r);
    assert_true(r.far == 0 && r.differ == 0);
    assert_true(r.reports[0].expert.all_to_alls > 0);
    gpu_layouts_fini(&t);
    family_close(&f);
}

/* At its first step, its second, while tokens are decoded. */
static void a_rank_that_dies_takes_its_group_with_it(void **state)
{
    static const struct {
        struct model_layout layout;
        uint32_t rank;
    } deaths[] = {{{1, 3, 1, 1}, 1},
                  {{1, 1, 2, 2}, 1},
                  {{2, 2, 2, 1}, 2},
                  {{2, 1, 4, 2}, 3},
                  {{2, 1, 1, 1}, 0}};
    struct family f;
    struct gpu_layouts t = open_mixtral(&f);
    (void)state;
    for (uint32_t i = 0; i < 10; i++)
        gpu_layouts_die(&t, deaths[i / 2].layout, deaths[i / 2].rank, i % 2 ? 3 : i % 3);
    gpu_layouts_fini(&t);
    family_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_family_in_every_layout_is_one_gpu_within_bf16),
        cmocka_unit_test(rows_in_fp8_stay_near),
        cmocka_unit_test(without_nccl_data_goes_through_the_host),
        cmocka_unit_test(a_rank_that_dies_takes_its_group_with_it),
    };
    gpu_layouts_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
