/* Every layout of small random models gives what the whole model gives; what is split is counted.
 */
#include "tests/worker/layout/layouts.h"
#include "tests/worker/model/tiny.h"

static char dir[] = "/tmp/baton-group-XXXXXX";

static const char *tiny_path(uint32_t type, bool gemma, uint32_t heads, uint32_t kv_heads)
{
    static char path[256];
    struct tiny m = {.layers = 6,
                     .d = heads * 32,
                     .heads = heads,
                     .kv_heads = kv_heads,
                     .ff = 512,
                     .vocab = 1000,
                     .type = type,
                     .gemma = gemma,
                     .seed = 11};
    struct buf b;
    buf_init(&b, 64u << 20);
    tiny_build(&m, &b);
    snprintf(path, sizeof path, "%s/m.gguf", dir);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(b.data, 1, b.n, f), b.n);
    assert_int_equal(fclose(f), 0);
    buf_fini(&b);
    return path;
}

static const struct model_layout layouts[] = {
    {2, 1, 1, 1}, {4, 1, 1, 1}, {8, 1, 1, 1}, {1, 2, 1, 1}, {1, 3, 1, 1}, {2, 2, 1, 1},
};
#define LAYOUTS (sizeof layouts / sizeof *layouts)

static struct layouts of(const char *path, struct model_layout layout)
{
    return (struct layouts){.path = path,
                            .layout = layout,
                            .n_seqs = LAYOUT_SEQS,
                            .prompt = 40,
                            .steps = 12,
                            .chunk = 17,
                            .kv = MODEL_KV_F32,
                            .seed = 3};
}

static void every_layout_gives_the_whole_models_logits_and_tokens(void **state)
{
    static const struct {
        uint32_t type, heads, kv_heads;
        bool gemma;
    } kinds[] = {{GGUF_F32, 9, 3, false}, {GGUF_F32, 8, 1, true}, {GGUF_Q4_1, 8, 4, false}};
    (void)state;
    for (size_t k = 0; k < 3; k++)
        for (size_t i = 0; i < LAYOUTS; i++) {
            struct layouts_result r;
            struct layouts l =
                of(tiny_path(kinds[k].type, kinds[k].gemma, kinds[k].heads, kinds[k].kv_heads),
                   layouts[i]);
            layouts_run(&l, &r);
            assert_true(r.max_delta <= 1e-3f);
            assert_true(r.max_logit > 0.1f);
            assert_int_equal(r.differ, 0);
            assert_int_equal(r.tokens, LAYOUT_SEQS * 13);
        }
}

static void a_layer_costs_two_all_reduces_and_the_embedding_one(void **state)
{
    struct layouts_result r;
    struct layouts l = of(tiny_path(GGUF_F32, false, 8, 2), (struct model_layout){2, 2, 1, 1});
    (void)state;
    layouts_run(&l, &r);
    for (uint32_t i = 0; i < 4; i++) {
        const struct group_report *p = &r.reports[i];
        uint64_t layers = 3;
        assert_int_equal(p->rank, i);
        assert_true(p->work.micro_batches >= p->work.steps);
        assert_int_equal(p->tensor.all_reduces,
                         p->work.micro_batches * (2 * layers + (p->stage == 0)));
    }
}

static void the_weights_are_split_not_copied(void **state)
{
    (void)state;
    const char *path = tiny_path(GGUF_F32, false, 8, 8);
    struct model *m = NULL;
    struct err e = {0};
    assert_int_equal(model_load(path, NULL, &m, &e), 0);
    uint64_t whole = model_shard_weight_bytes(m);
    model_free(m);
    for (size_t i = 0; i < LAYOUTS; i++) {
        uint64_t sum = 0, most = 0;
        for (uint32_t r = 0; r < model_layout_ranks(&layouts[i]); r++) {
            struct model_shard s = model_layout_shard(&layouts[i], r);
            assert_int_equal(model_shard_load(path, NULL, &s, &m, &e), 0);
            sum += model_shard_weight_bytes(m);
            most = model_shard_weight_bytes(m) > most ? model_shard_weight_bytes(m) : most;
            model_free(m);
        }
        assert_true(sum >= whole && sum < whole + whole / 5);
        assert_true(most < whole);
    }
}

static void damage_to_one_ranks_part_changes_the_logits(void **state)
{
    (void)state;
    for (uint32_t rank = 0; rank < 4; rank++) {
        struct layouts_result r;
        struct layouts l = of(tiny_path(GGUF_F32, false, 8, 4), (struct model_layout){2, 2, 1, 1});
        l.damaged = rank + 1;
        layouts_run(&l, &r);
        assert_true(!(r.max_delta <= 1e-3f));
    }
}

static void ranks_on_several_hosts_give_the_same(void **state)
{
    (void)state;
    for (uint32_t per_host = 1; per_host <= 2; per_host++) {
        struct layouts_result r;
        struct layouts l = of(tiny_path(GGUF_F32, false, 9, 3), (struct model_layout){2, 2, 1, 1});
        l.per_host = per_host;
        layouts_run(&l, &r);
        assert_true(r.max_delta <= 1e-3f);
        assert_int_equal(r.differ, 0);
    }
}

static void a_layout_that_wastes_says_so(void **state)
{
    char text[160];
    struct model_config c = {
        .n_heads = 4, .n_kv_heads = 1, .head_dim = 32, .d_ff = 64, .vocab = 64};
    struct model_shard s = {.tensor = 8};
    (void)state;
    c.n_layers = 1;
    assert_true(model_shard_wastes(&c, &s, text, sizeof text));
    assert_string_equal(text, "4 of 8 ranks have no attention head: the model has 4");
    s.tensor = 4;
    assert_true(model_shard_wastes(&c, &s, text, sizeof text));
    c.n_kv_heads = 4;
    assert_false(model_shard_wastes(&c, &s, text, sizeof text));
}

static int make_dir(void **state)
{
    (void)state;
    return mkdtemp(dir) ? 0 : -1;
}

static int drop_dir(void **state)
{
    char path[256];
    (void)state;
    snprintf(path, sizeof path, "%s/m.gguf", dir);
    unlink(path);
    return rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_layout_gives_the_whole_models_logits_and_tokens),
        cmocka_unit_test(a_layer_costs_two_all_reduces_and_the_embedding_one),
        cmocka_unit_test(the_weights_are_split_not_copied),
        cmocka_unit_test(damage_to_one_ranks_part_changes_the_logits),
        cmocka_unit_test(ranks_on_several_hosts_give_the_same),
        cmocka_unit_test(a_layout_that_wastes_says_so),
    };
    return cmocka_run_group_tests(tests, make_dir, drop_dir);
}
