/* The real models in every layout: 8 prompts decoded together for 64 tokens, beside the whole
 * model. Slow: left out of `make check`.
 *
 * Products of quantised weights take activations in 15 bits a value, KV lies in f16: a sum that
 * differs in its last bit may round to the next step there, which the layers after it carry on. So
 * the bound of 1e-3 is for float weights and f32 KV; for files as they are it is a part of the
 * greatest logit.
 */
#include "tests/worker/layout/floats.h"
#include "tests/worker/layout/layouts.h"

#define BOUND_FLOAT    1e-3f
#define PART_QUANTISED 1e-3f

static const struct model_layout layouts[] = {
    {2, 1, 1, 1}, {4, 1, 1, 1}, {8, 1, 1, 1}, {1, 2, 1, 1}, {1, 3, 1, 1}, {2, 2, 1, 1},
};
#define LAYOUTS (sizeof layouts / sizeof *layouts)

static const char *model_path(const char *file)
{
    static char path[512];
    const char *dir = getenv("BATON_MODELS"), *home = getenv("HOME");
    if (dir)
        snprintf(path, sizeof path, "%s/%s", dir, file);
    else
        snprintf(path, sizeof path, "%s/.cache/baton/models/%s", home ? home : "", file);
    return path;
}

static uint64_t file_bytes(const char *path)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    long n = ftell(f);
    fclose(f);
    return (uint64_t)n;
}

static void run(const char *path, bool quantised)
{
    for (size_t i = 0; i < LAYOUTS; i++) {
        struct layouts_result r;
        struct layouts l = {.path = path,
                            .layout = layouts[i],
                            .n_seqs = LAYOUT_SEQS,
                            .prompt = 48,
                            .steps = 63,
                            .chunk = 48,
                            .kv = MODEL_KV_F32,
                            .seed = 5,
                            .limit_s = 3600};
        layouts_run(&l, &r);
        assert_true(r.max_delta <= (quantised ? PART_QUANTISED * r.max_logit : BOUND_FLOAT));
        assert_int_equal(r.differ, 0);
        assert_int_equal(r.tokens, LAYOUT_SEQS * 64);
        uint64_t sum = 0;
        for (uint32_t k = 0; k < model_layout_ranks(&layouts[i]); k++)
            sum += r.reports[k].weight_bytes;
        printf("  weights of all ranks: %.3f of the file\n",
               (double)sum / (double)file_bytes(path));
        assert_true(sum < file_bytes(path) + file_bytes(path) / 5);
    }
}

static void run_float(const char *file)
{
    char to[] = "/tmp/baton-float-XXXXXX";
    struct err e = {0};
    int fd = mkstemp(to);
    assert_true(fd >= 0);
    close(fd);
    if (floats_copy(model_path(file), to, &e))
        fail_msg("%s", e.msg);
    run(to, false);
    unlink(to);
}

static void smollm2_with_float_weights_in_every_layout_is_the_whole_model(void **state)
{
    (void)state;
    run_float("SmolLM2-135M-Instruct.Q4_1.gguf");
}

static void gemma3_with_float_weights_in_every_layout_is_the_whole_model(void **state)
{
    (void)state;
    run_float("gemma-3-270m.Q4_K_M.gguf");
}

static void smollm2_as_it_is_keeps_its_tokens(void **state)
{
    (void)state;
    run(model_path("SmolLM2-135M-Instruct.Q4_1.gguf"), true);
}

static void gemma3_as_it_is_keeps_its_tokens(void **state)
{
    (void)state;
    run(model_path("gemma-3-270m.Q4_K_M.gguf"), true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(smollm2_with_float_weights_in_every_layout_is_the_whole_model),
        cmocka_unit_test(smollm2_as_it_is_keeps_its_tokens),
        cmocka_unit_test(gemma3_with_float_weights_in_every_layout_is_the_whole_model),
        cmocka_unit_test(gemma3_as_it_is_keeps_its_tokens),
    };
    cmocka_set_test_filter(getenv("ONLY")); /* a pattern: these take minutes */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
