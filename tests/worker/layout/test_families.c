/* Every family in every layout, as processes: the whole model's logits and tokens. */
#include "tests/worker/layout/layouts.h"
#include "tests/worker/model/family.h"

static const struct model_layout layouts[] = {
    {2, 1, 1, 1}, {4, 1, 1, 1}, {8, 1, 1, 1}, {1, 2, 1, 1}, {1, 3, 1, 1}, {2, 2, 1, 1},
};
#define LAYOUTS (sizeof layouts / sizeof *layouts)

static bool has_experts(const struct family *f)
{
    const json_t *c = json_object_get(f->golden, "config");
    return json_object_get(c, "num_local_experts") || json_object_get(c, "n_routed_experts") ||
           json_object_get(c, "num_experts");
}

static void check(const struct family *f, const char *name, struct model_layout layout)
{
    struct layouts_result r;
    struct layouts l = {.path = f->dir,
                        .layout = layout,
                        .n_seqs = LAYOUT_SEQS,
                        .prompt = 40,
                        .steps = 64,
                        .chunk = 23,
                        .kv = MODEL_KV_F32,
                        .seed = 5};
    printf("%-18s ", name);
    fflush(stdout);
    layouts_run(&l, &r);
    assert_true(r.max_delta <= 1e-3f);
    assert_int_equal(r.differ, 0);
}

static void every_family_in_every_layout_gives_the_whole_models_logits(void **state)
{
    (void)state;
    for (size_t k = 0; k < N_FAMILIES; k++) {
        struct family f;
        family_open(&f, family_names[k]);
        for (size_t i = 0; i < LAYOUTS; i++)
            check(&f, family_names[k], layouts[i]);
        if (has_experts(&f)) {
            check(&f, family_names[k], (struct model_layout){2, 1, 2, 1});
            check(&f, family_names[k], (struct model_layout){4, 1, 4, 1});
        }
        family_close(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_family_in_every_layout_gives_the_whole_models_logits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
