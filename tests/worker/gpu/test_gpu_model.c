/* The forward pass on a GPU, executed on the CPU by the emulation: every family's logits are those
 * of transformers within what bf16 allows, however the prompt is cut, decoded in batches, through
 * graphs, after sleep, and with KV that came from elsewhere. */
#include "tests/kernels/cuda/drawn.h"
#include "tests/kernels/cuda/emu_device.h"
#include "tests/worker/model/family.h"
#include "worker/gpu/gpu_model.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define BLOCKS 8u

struct bench {
    struct family f;
    struct model *m;
    struct gpu *g;
    struct gpu_model *gm;
    uint32_t table[BLOCKS / 2];
};

static struct err err;

#define OK(call)                                                                                   \
    do {                                                                                           \
        if ((call) < 0)                                                                            \
            fail_msg("%s", err.msg);                                                               \
    } while (0)

static void open_with(struct bench *b, const char *name, enum model_kv_dtype kv)
{
    struct gpu_model_options o = {
        .max_rows = 64, .max_sequences = 4, .pool_blocks = BLOCKS, .kv_dtype = kv};
    memset(b, 0, sizeof *b);
    family_open(&b->f, name);
    OK(model_load(b->f.dir, "scalar", &b->m, &err));
    b->g = emu_device_new(2);
    OK(gpu_model_new(b->g, b->m, &o, &b->gm, &err));
    for (uint32_t i = 0; i < BLOCKS / 2; i++)
        b->table[i] = BLOCKS - 1 - 2 * i;
}

static void open_bench(struct bench *b, const char *name)
{
    open_with(b, name, MODEL_KV_F16);
}

static void close_bench(struct bench *b)
{
    gpu_model_free(b->gm);
    gpu_close(b->g);
    model_free(b->m);
    family_close(&b->f);
}

/* Logits of ids[from, from + n), which follow what the cache holds. */
static void run(struct bench *b, uint32_t from, uint32_t n, const uint32_t *table, float *out)
{
    struct model_segment s = {.tokens = b->f.ids + from,
                              .n_tokens = n,
                              .start = from,
                              .blocks = table,
                              .n_blocks = BLOCKS / 2};
    struct model_batch batch = {.segments = &s, .n_segments = 1, .logits = out, .logits_rows = n};
    OK(gpu_model_forward(b->gm, &batch, &err));
}

/* Root mean square of the difference, in units of the logits' own spread. */
static double distance(const struct bench *b, const float *got, uint32_t from, uint32_t n)
{
    double diff = 0, mean = 0, square = 0, count = (double)n * b->f.vocab;
    for (size_t i = 0; i < (size_t)n * b->f.vocab; i++) {
        double want = b->f.logits[(size_t)from * b->f.vocab + i];
        diff += (got[i] - want) * (got[i] - want);
        mean += want;
        square += want * want;
    }
    return sqrt(diff / count) / sqrt(square / count - mean * mean / count / count);
}

/* Rows (positions) further than `limit`. A row whose k-th and next expert are nearly equal may
 * choose the other one in bf16. */
static uint32_t far_rows(const struct bench *b, const float *got, uint32_t n, double limit)
{
    uint32_t far = 0;
    for (uint32_t i = 0; i < n; i++)
        far += distance(b, got + (size_t)i * b->f.vocab, i, 1) > limit;
    return far;
}

static const char *const families[] = {
    "llama3",      "qwen2",          "qwen3",       "gemma3",
    "mixtral",     "qwen3-moe",      "deepseek-v2", "deepseek-v2-lite",
    "deepseek-v3", "deepseek-v3-fp8"};

static void every_family_gives_the_logits_of_transformers(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        struct bench b;
        open_bench(&b, families[i]);
        uint32_t n = b.f.n_ids;
        float *out = calloc((size_t)n * b.f.vocab, sizeof *out);
        run(&b, 0, n, b.table, out);
        double whole = distance(&b, out, 0, n);
        run(&b, 0, 11, b.table, out); /* in chunks, and the last ones token by token */
        run(&b, 11, n - 14, b.table, out + (size_t)11 * b.f.vocab);
        for (uint32_t k = n - 3; k < n; k++)
            run(&b, k, 1, b.table, out + (size_t)k * b.f.vocab);
        double parts = distance(&b, out, 0, n);
        uint32_t far = far_rows(&b, out, n, 0.03);
        printf("%-16s differs by %.4f of the logits' spread (in parts %.4f), %u of %u rows far\n",
               families[i], whole, parts, far, n);
        /* one row that chooses another expert shows, through its KV, a little in all later ones */
        bool moe = model_config(b.m)->moe.experts > 0;
        if (moe ? far > n / 2 || far_rows(&b, out, n, 0.2) > n / 8
                : !(whole < 0.02 && parts < 0.02 && far == 0))
            fail_msg("%s: logits are off by %.4f and %.4f of their spread", families[i], whole,
                     parts);
        free(out);
        close_bench(&b);
    }
}

static void decode_in_batches_equals_decode_alone_through_graphs(void **state)
{
    (void)state;
    struct bench b;
    open_bench(&b, "llama3");
    enum { SEQUENCES = 3, PROMPT = 20 };
    uint64_t before = emu_device_counts().graphs;
    uint32_t vocab = b.f.vocab, tables[SEQUENCES][2] = {{7, 2}, {0, 5}, {3, 1}};
    float *alone = calloc((size_t)SEQUENCES * vocab, sizeof *alone),
          *both = calloc((size_t)SEQUENCES * vocab, sizeof *both);
    float *prompt = calloc((size_t)(PROMPT + SEQUENCES) * vocab, sizeof *prompt);
    struct model_segment s[SEQUENCES];
    for (uint32_t i = 0; i < SEQUENCES; i++) {
        uint32_t n = PROMPT + i;
        struct model_segment fill = {
            .tokens = b.f.ids, .n_tokens = n, .blocks = tables[i], .n_blocks = 2, .logits_from = n};
        struct model_batch fb = {
            .segments = &fill, .n_segments = 1, .logits = prompt, .logits_rows = n};
        OK(gpu_model_forward(b.gm, &fb, &err));
        s[i] = (struct model_segment){
            .tokens = b.f.ids + n, .n_tokens = 1, .start = n, .blocks = tables[i], .n_blocks = 2};
    }
    for (uint32_t i = 0; i < SEQUENCES; i++) {
        struct model_batch one = {.segments = &s[i],
                                  .n_segments = 1,
                                  .logits = alone + (size_t)i * vocab,
                                  .logits_rows = 1};
        OK(gpu_model_forward(b.gm, &one, &err));
    }
    struct model_batch all = {
        .segments = s, .n_segments = SEQUENCES, .logits = both, .logits_rows = SEQUENCES};
    for (int again = 0; again < 3; again++) { /* as it is, captured, and from the graph */
        memset(both, 0, (size_t)SEQUENCES * vocab * sizeof *both);
        OK(gpu_model_forward(b.gm, &all, &err));
        assert_memory_equal(alone, both, (size_t)SEQUENCES * vocab * sizeof *both);
    }
    struct gpu_model_stats st = gpu_model_stats(b.gm);
    assert_int_equal(st.graphs, 2); /* of one sequence and of four */
    assert_true(st.graph_runs >= 4);
    assert_true(emu_device_counts().graphs - before == st.graph_runs);
    for (uint32_t i = 0; i < SEQUENCES; i++)
        assert_true(distance(&b, both + (size_t)i * vocab, PROMPT + i, 1) < 0.03);
    free(alone), free(both), free(prompt);
    close_bench(&b);
}

/* Where every row allows it tokens come instead of logits: from a chunk of a prompt, a row as it
 * is, a captured graph with padding, and one that runs. */
static void tokens_chosen_by_the_device_are_those_of_its_logits(void **state)
{
    (void)state;
    struct bench b;
    open_bench(&b, "llama3");
    enum { PROMPT = 20, STEPS = 4, SEQUENCES = 3 };
    uint32_t vocab = b.f.vocab, tables[SEQUENCES][2] = {{7, 2}, {0, 5}, {3, 1}};
    float *logits = calloc((size_t)SEQUENCES * vocab, sizeof *logits);
    struct model_segment s[SEQUENCES];
    uint64_t drawn_before = gpu_model_stats(b.gm).draws;
    for (uint32_t step = 0; step <= STEPS; step++) {
        bool done = false;
        struct model_draw draws[SEQUENCES];
        for (uint32_t i = 0; i < SEQUENCES; i++) {
            uint32_t n = step ? 1 : PROMPT, from = step ? PROMPT + step - 1 : 0;
            s[i] = (struct model_segment){.tokens = b.f.ids + from,
                                          .n_tokens = n,
                                          .start = from,
                                          .blocks = tables[i],
                                          .n_blocks = 2,
                                          .logits_from = n - 1};
            draws[i] = (struct model_draw){.u = .31 * step, .temperature = (float)i * .6f};
        }
        struct model_batch batch = {
            .segments = s, .n_segments = SEQUENCES, .logits = logits, .logits_rows = SEQUENCES};
        OK(gpu_model_forward(b.gm, &batch, &err));
        batch.logits = NULL;
        batch.draws = draws;
        batch.drawn = &done;
        OK(gpu_model_forward(b.gm, &batch, &err));
        assert_true(done);
        for (uint32_t i = 0; i < SEQUENCES; i++)
            assert_int_equal(draws[i].token, drawn(logits + (size_t)i * vocab, vocab, draws[i].u,
                                                   draws[i].temperature, 0));
    }
    assert_int_equal(gpu_model_stats(b.gm).draws - drawn_before, (STEPS + 1) * SEQUENCES);
    free(logits);
    close_bench(&b);
}

struct push {
    struct bench *b;
    uint32_t next;
    uint8_t *pieces;
};

static void on_layer(void *ctx, uint32_t layer)
{
    struct push *p = ctx;
    uint64_t bytes = gpu_model_kv(p->b->gm)->piece_bytes;
    assert_int_equal(layer, p->next++);
    for (uint32_t i = 0; i < 2; i++)
        OK(gpu_model_read_piece(p->b->gm, p->b->table[i], layer,
                                p->pieces + (layer * 2 + i) * bytes, &err));
}

/* P's pieces, read layer by layer while it computes, are D's prompt. */
static void kv_pushed_by_layers_is_the_prompt_elsewhere(void **state)
{
    (void)state;
    struct bench p, d;
    open_bench(&p, "qwen3");
    open_bench(&d, "qwen3");
    const struct model_kv *kv = gpu_model_kv(p.gm);
    uint32_t layers = model_config(p.m)->n_layers, n = 39;
    struct push push = {.b = &p, .pieces = calloc(layers * 2, kv->piece_bytes)};
    float *here = calloc(p.f.vocab, sizeof *here), *there = calloc(p.f.vocab, sizeof *there);
    struct model_segment s = {
        .tokens = p.f.ids, .n_tokens = n, .blocks = p.table, .n_blocks = 2, .logits_from = n};
    struct model_batch batch = {.segments = &s,
                                .n_segments = 1,
                                .logits = here,
                                .logits_rows = 1,
                                .layer_done = on_layer,
                                .ctx = &push};
    OK(gpu_model_forward(p.gm, &batch, &err));
    assert_int_equal(push.next, layers);
    uint32_t other[BLOCKS / 2] = {1, 4, 0, 2};
    for (uint32_t l = 0; l < layers; l++)
        for (uint32_t i = 0; i < 2; i++)
            OK(gpu_model_write_piece(d.gm, other[i], l, push.pieces + (l * 2 + i) * kv->piece_bytes,
                                     &err));
    run(&p, n, 1, p.table, here);
    run(&d, n, 1, other, there);
    assert_memory_equal(here, there, p.f.vocab * sizeof *here);
    free(push.pieces), free(here), free(there);
    close_bench(&p);
    close_bench(&d);
}

/* The row after a prompt of n tokens whose KV the CPU made, on the GPU, and the other way round. */
static void cross(struct bench *b, enum model_kv_dtype kv, uint32_t n, float *gpu, float *cpu)
{
    struct model_work *w = NULL;
    struct model_work_options o = {
        .threads = 1, .max_rows = 64, .kv_dtype = kv, .pool_blocks = BLOCKS};
    OK(model_work_new(b->m, &o, &w, &err));
    uint64_t bytes = BLOCKS * gpu_model_kv(b->gm)->block_bytes;
    assert_memory_equal(model_work_kv(w), gpu_model_kv(b->gm), sizeof(struct model_kv));
    uint8_t *pool = aligned_alloc(64, bytes);
    struct model_segment s = {.tokens = b->f.ids,
                              .n_tokens = n,
                              .blocks = b->table,
                              .n_blocks = BLOCKS / 2,
                              .logits_from = n},
                         next = {.tokens = b->f.ids + n,
                                 .n_tokens = 1,
                                 .start = n,
                                 .blocks = b->table,
                                 .n_blocks = BLOCKS / 2};
    struct model_batch prompt = {.segments = &s, .n_segments = 1},
                       row = {.segments = &next, .n_segments = 1, .logits = gpu, .logits_rows = 1};
    memset(pool, 0xff, bytes);
    OK(model_forward(b->m, w, pool, &prompt, &err));
    OK(gpu_model_store(b->gm, b->table, 2, pool, &err));
    OK(gpu_model_forward(b->gm, &row, &err));
    memset(pool, 0xff, bytes);
    OK(gpu_model_forward(b->gm, &prompt, &err));
    OK(gpu_model_fetch(b->gm, b->table, 2, 0, model_config(b->m)->n_layers, pool, &err));
    row.logits = cpu;
    OK(model_forward(b->m, w, pool, &row, &err));
    free(pool);
    model_work_free(w);
}

static void kv_of_every_type_serves_both_backends(void **state)
{
    static const struct {
        enum model_kv_dtype type;
        const char *name;
        double limit;
    } types[] = {
        {MODEL_KV_BF16, "bf16", 0.03}, {MODEL_KV_I8, "int8", 0.05}, {MODEL_KV_F8, "fp8", 0.15}};
    (void)state;
    for (size_t i = 0; i < 2 * sizeof types / sizeof *types; i++) {
        const char *family = i % 2 ? "deepseek-v2-lite" : "llama3";
        struct bench b;
        open_with(&b, family, types[i / 2].type);
        uint32_t n = b.f.n_ids;
        float *out = calloc((size_t)n * b.f.vocab, sizeof *out);
        run(&b, 0, 30, b.table, out);
        run(&b, 30, n - 31, b.table, out + (size_t)30 * b.f.vocab);
        run(&b, n - 1, 1, b.table, out + (size_t)(n - 1) * b.f.vocab);
        double all = distance(&b, out, 0, n);
        cross(&b, types[i / 2].type, n - 1, out, out + b.f.vocab);
        double gpu = distance(&b, out, n - 1, 1), cpu = distance(&b, out + b.f.vocab, n - 1, 1);
        printf("%-16s with KV of %s: off by %.4f; after the CPU's prompt %.4f, the CPU after the "
               "GPU's %.4f\n",
               family, types[i / 2].name, all, gpu, cpu);
        assert_true(all < types[i / 2].limit && gpu < types[i / 2].limit &&
                    cpu < types[i / 2].limit);
        free(out);
        close_bench(&b);
    }
    struct gpu_model_options o = {
        .max_rows = 8, .max_sequences = 1, .pool_blocks = 1, .kv_dtype = MODEL_KV_F32};
    struct bench b;
    open_bench(&b, "llama3");
    struct gpu_model *none = NULL;
    assert_int_equal(gpu_model_new(b.g, b.m, &o, &none, &err), -ENOTSUP);
    close_bench(&b);
}

/* A prompt of 160 tokens in two long chunks, whose latents become keys and values again in pieces
 * of 64, beside a single token; and in short ones, which stay in the latent space. */
static void long_chunks_over_latents_give_what_short_ones_give(void **state)
{
    enum { FIRST = 90, LAST = 70, ALL = FIRST + LAST, SHORT = 40 };
    static const uint32_t tables[2][5] = {{7, 5, 3, 1, 0}, {2, 4, 6, 8, 9}}, one[] = {10};
    static const enum model_kv_dtype types[] = {MODEL_KV_F16, MODEL_KV_BF16};
    (void)state;
    for (size_t t = 0; t < 2; t++) {
        struct bench b = {.g = emu_device_new(2)};
        struct gpu_model_options o = {.max_rows = 96,
                                      .max_sequences = 3,
                                      .pool_blocks = 11,
                                      .kv_dtype = types[t],
                                      .expand_tokens = 64};
        family_open(&b.f, "deepseek-v2-lite");
        OK(model_load(b.f.dir, "scalar", &b.m, &err));
        OK(gpu_model_new(b.g, b.m, &o, &b.gm, &err));
        uint32_t ids[ALL], vocab = b.f.vocab;
        float *rows[2] = {calloc((size_t)ALL * vocab, sizeof(float)),
                          calloc((size_t)ALL * vocab, sizeof(float))},
              *tail = calloc((size_t)(FIRST + 1) * vocab, sizeof(float));
        for (uint32_t i = 0; i < ALL; i++)
            ids[i] = b.f.ids[i * 7 % b.f.n_ids];
        for (uint32_t way = 0; way < 2; way++)
            for (uint32_t at = 0, n = 0; at < ALL; at += n) {
                n = way ? SHORT : at ? LAST : FIRST;
                struct model_segment s[] = {
                    {.tokens = ids + at,
                     .n_tokens = n,
                     .start = at,
                     .blocks = tables[way],
                     .n_blocks = 5},
                    {.tokens = ids, .n_tokens = 1, .blocks = one, .n_blocks = 1}};
                struct model_batch batch = {.segments = s,
                                            .n_segments = 1 + (at > 0),
                                            .logits = tail,
                                            .logits_rows = n + 1};
                OK(gpu_model_forward(b.gm, &batch, &err));
                memcpy(rows[way] + (size_t)at * vocab, tail, (size_t)n * vocab * sizeof *tail);
            }
        double apart = 0, square = 0;
        for (size_t i = 0; i < (size_t)ALL * vocab; i++) {
            apart += pow((double)rows[0][i] - rows[1][i], 2);
            square += (double)rows[0][i] * rows[0][i];
        }
        printf("long and short chunks differ by %.4f of the logits\n", sqrt(apart / square));
        assert_true(apart > 0 && sqrt(apart / square) < 0.05);
        free(rows[0]), free(rows[1]), free(tail);
        close_bench(&b);
    }
}

static void sleep_keeps_weights_addresses_and_graphs(void **state)
{
    (void)state;
    struct bench b;
    uint64_t freed;
    open_bench(&b, "qwen2");
    float *before = calloc(b.f.vocab, sizeof *before), *after = calloc(b.f.vocab, sizeof *after);
    for (int i = 0; i < 2; i++)
        run(&b, 0, 1, b.table, before); /* the second time captures */
    OK(b.g->ops->sleep(b.g, &freed, &err));
    assert_true(freed >= gpu_model_stats(b.gm).weight_bytes + gpu_model_stats(b.gm).kv_bytes);
    OK(b.g->ops->wake(b.g, &err));
    uint64_t graphs = gpu_model_stats(b.gm).graphs;
    run(&b, 0, 1, b.table, after);
    assert_int_equal(gpu_model_stats(b.gm).graphs, graphs);
    assert_memory_equal(before, after, b.f.vocab * sizeof *before);
    free(before), free(after);
    close_bench(&b);
}

static void what_is_out_of_range_is_refused_with_a_sentence(void **state)
{
    (void)state;
    struct bench b;
    open_bench(&b, "llama3");
    float out[1];
    uint32_t bad_block[1] = {BLOCKS}, good[1] = {0}, bad_token[1] = {b.f.vocab}, token[1] = {0};
    const struct model_segment bad[] = {
        {.tokens = token, .n_tokens = 1, .blocks = bad_block, .n_blocks = 1},
        {.tokens = bad_token, .n_tokens = 1, .blocks = good, .n_blocks = 1},
        {.tokens = token, .n_tokens = 1, .start = 32, .blocks = good, .n_blocks = 1},
        {.tokens = token, .n_tokens = 0, .blocks = good, .n_blocks = 1},
        {.tokens = token, .n_tokens = 1, .start = 1u << 30, .blocks = good, .n_blocks = 1},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct model_batch batch = {
            .segments = &bad[i], .n_segments = 1, .logits = out, .logits_rows = 1};
        err = (struct err){0};
        assert_int_equal(gpu_model_forward(b.gm, &batch, &err), -EINVAL);
        assert_true(strlen(err.msg) > 10);
    }
    assert_int_equal(gpu_model_read_piece(b.gm, BLOCKS, 0, out, &err), -EINVAL);
    close_bench(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_family_gives_the_logits_of_transformers),
        cmocka_unit_test(decode_in_batches_equals_decode_alone_through_graphs),
        cmocka_unit_test(tokens_chosen_by_the_device_are_those_of_its_logits),
        cmocka_unit_test(kv_pushed_by_layers_is_the_prompt_elsewhere),
        cmocka_unit_test(kv_of_every_type_serves_both_backends),
        cmocka_unit_test(long_chunks_over_latents_give_what_short_ones_give),
        cmocka_unit_test(sleep_keeps_weights_addresses_and_graphs),
        cmocka_unit_test(what_is_out_of_range_is_refused_with_a_sentence),
    };
    if (getenv("TEST_FILTER"))
        cmocka_set_test_filter(getenv("TEST_FILTER"));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
