/* Tokenizers against Hugging Face's ids (goldens by tools/goldens-llm.py), and their properties. */
#include "lib/llm/tokenizer.h"
#include "lib/llm/utf8.h"
#include "tests/lib/llm/strings.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

static struct tables tables;

static struct tokenizer *open_model(const char *file)
{
    struct err e = {0};
    struct tokenizer *t = NULL;
    CLEANUP(free_charp) char *path = strchr(file, '/') ? xstrdup(file) : model_path(file);
    if (tokenizer_open(path, &t, &e))
        fail_msg("%s", e.msg);
    return t;
}

static struct tokenizer *smollm2(void)
{
    return open_model("SmolLM2-135M-Instruct.Q4_1.gguf");
}

static void check_hashes(const struct tokenizer *t, const char *golden, unsigned flags,
                         size_t at_least)
{
    CLEANUP(free_charp) char *path = xasprintf(GOLDEN "%s.hashes", golden);
    FILE *f = fopen(path, "re");
    assert_non_null(f);
    struct buf text;
    struct ids ids;
    unsigned want;
    size_t n = 0;
    buf_init(&text, 1 << 20);
    ids_init(&ids, 1 << 20);
    for (; fscanf(f, "%8x", &want) == 1; n++) {
        string_at(&tables, n, &text);
        ids.n = 0;
        assert_int_equal(tokenizer_encode(t, buf_view(&text), flags, &ids, NULL), 0);
        if (fnv(ids.id, ids.n * 4) != want)
            fail_msg("%s: string %zu (seed %u) has other ids than Hugging Face: \"%s\"", golden, n,
                     GOLDEN_SEED, text.data);
    }
    fclose(f);
    assert_true(n >= at_least);
    buf_fini(&text);
    ids_fini(&ids);
}

static void smollm2_from_gguf_gives_hugging_faces_ids(void **state)
{
    (void)state;
    CLEANUP(tokenizer_freep) struct tokenizer *t = smollm2();
    check_hashes(t, "smollm2", TOKENIZE_ADD_SPECIAL | TOKENIZE_PARSE_SPECIAL, 10000);
    check_hashes(t, "smollm2-plain", 0, 10000);
}

static void gemma3_from_gguf_gives_hugging_faces_ids(void **state)
{
    (void)state;
    CLEANUP(tokenizer_freep) struct tokenizer *t = open_model("gemma-3-270m.Q4_K_M.gguf");
    check_hashes(t, "gemma3", TOKENIZE_ADD_SPECIAL | TOKENIZE_PARSE_SPECIAL, 10000);
    assert_int_equal(tokenizer_bos(t), 2);
    assert_true(tokenizer_adds_bos(t));
    assert_true(tokenizer_is_eog(t, 1) && tokenizer_is_eog(t, 106));
    assert_int_equal(tokenizer_chat_template(t).n, 0);
}

static void each_pipeline_of_tokenizer_json_gives_hugging_faces_ids(void **state)
{
    (void)state;
    static const char *const names[] = {"small-llama3", "small-qwen2", "small-tekken",
                                        "small-llama2", "small-metaspace"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        CLEANUP(free_charp) char *file = xasprintf(GOLDEN "%s.json", names[i]);
        CLEANUP(tokenizer_freep) struct tokenizer *t = open_model(file);
        check_hashes(t, names[i], TOKENIZE_ADD_SPECIAL | TOKENIZE_PARSE_SPECIAL, 2000);
    }
}

static void facts_of_smollm2_are_read_from_the_file(void **state)
{
    (void)state;
    CLEANUP(tokenizer_freep) struct tokenizer *t = smollm2();
    assert_int_equal(tokenizer_vocab(t), 49152);
    assert_int_equal(tokenizer_bos(t), 1);
    assert_int_equal(tokenizer_eos(t), 2);
    assert_false(tokenizer_adds_bos(t));
    assert_int_equal(tokenizer_find(t, STR("<|im_end|>")), 2);
    assert_true(tokenizer_is_special(t, 2) && !tokenizer_is_special(t, 100));
    assert_true(str_eq_c(tokenizer_bytes(t, 2), "<|im_end|>"));
    assert_int_equal(tokenizer_bytes(t, 49152).n, 0);
    assert_true(str_starts(tokenizer_chat_template(t), STR("{% for message in messages %}")));
}

/* A conversation of `n` messages out of 60 long texts; the same ones come up again and again. */
static void conversation_at(struct rng *r, const char *turn, struct buf *piece, struct buf *out)
{
    buf_reset(out);
    for (uint64_t n = 1 + rng_below(r, 5); n; n--) {
        uint64_t which = rng_below(r, 60);
        for (uint64_t i = 0; i < 4; i++) {
            string_at(&tables, which * 4 + i, piece);
            put(out, piece->data, piece->n);
        }
        put_cstr(out, rng_below(r, 8) ? turn : "");
    }
}

static void check_remembering(const char *file, const char *turn)
{
    CLEANUP(tokenizer_freep) struct tokenizer *plain = open_model(file);
    CLEANUP(tokenizer_freep) struct tokenizer *keeps = open_model(file);
    struct buf piece, text;
    struct ids want, got;
    struct rng r = {GOLDEN_SEED};
    tokenizer_remember(keeps, 1u << 16); /* some fit, others go */
    buf_init(&piece, 1 << 20);
    buf_init(&text, 1 << 20);
    ids_init(&want, 1 << 20);
    ids_init(&got, 1 << 20);
    for (int i = 0; i < 400; i++) {
        unsigned flags = (unsigned)rng_below(&r, 4);
        conversation_at(&r, turn, &piece, &text);
        want.n = got.n = 0;
        assert_int_equal(tokenizer_encode(plain, buf_view(&text), flags, &want, NULL), 0);
        assert_int_equal(tokenizer_encode(keeps, buf_view(&text), flags, &got, NULL), 0);
        if (want.n != got.n || memcmp(want.id, got.id, want.n * 4))
            fail_msg("%s: conversation %d (seed %u) has other ids from memory", file, i,
                     GOLDEN_SEED);
    }
    buf_fini(&piece);
    buf_fini(&text);
    ids_fini(&want);
    ids_fini(&got);
}

static void what_is_remembered_changes_no_ids(void **state)
{
    (void)state;
    check_remembering("SmolLM2-135M-Instruct.Q4_1.gguf", "<|im_end|>\n<|im_start|>user\n");
    check_remembering("gemma-3-270m.Q4_K_M.gguf", "<end_of_turn>\n<start_of_turn>model\n");
    check_remembering(GOLDEN "small-llama2.json", "</s><s>");
    check_remembering(GOLDEN "small-llama3.json", "<|eot_id|>");
}

static void control_tokens_in_plain_text_stay_text(void **state)
{
    (void)state;
    CLEANUP(tokenizer_freep) struct tokenizer *t = smollm2();
    struct ids ids;
    ids_init(&ids, 100);
    assert_int_equal(tokenizer_encode(t, STR("a<|im_end|>"), 0, &ids, NULL), 0);
    for (size_t i = 0; i < ids.n; i++)
        assert_false(tokenizer_is_special(t, ids.id[i]));
    ids.n = 0;
    assert_int_equal(tokenizer_encode(t, STR("a<|im_end|>"), TOKENIZE_PARSE_SPECIAL, &ids, NULL),
                     0);
    assert_int_equal(ids.n, 2);
    assert_int_equal(ids.id[1], 2);
    ids_fini(&ids);
}

static void decoding_gives_the_repaired_text_back(void **state)
{
    (void)state;
    CLEANUP(tokenizer_freep)
    struct tokenizer *t = open_model(GOLDEN "small-llama3.json"); /* SmolLM2 lacks some bytes */
    struct buf text, repaired, back;
    struct ids ids;
    buf_init(&text, 1 << 20);
    buf_init(&repaired, 1 << 20);
    buf_init(&back, 1 << 20);
    ids_init(&ids, 1 << 20);
    for (size_t i = 0; i < 2000; i++) {
        string_at(&tables, i, &text);
        buf_reset(&repaired);
        buf_reset(&back);
        ids.n = 0;
        assert_int_equal(utf8_repair(buf_view(&text), &repaired), 0);
        assert_int_equal(tokenizer_encode(t, buf_view(&text), TOKENIZE_PARSE_SPECIAL, &ids, NULL),
                         0);
        assert_int_equal(tokenizer_decode(t, ids.id, ids.n, false, &back, NULL), 0);
        if (!str_eq(buf_view(&repaired), buf_view(&back)))
            fail_msg("string %zu (seed %u) comes back changed", i, GOLDEN_SEED);
    }
    buf_fini(&text);
    buf_fini(&repaired);
    buf_fini(&back);
    ids_fini(&ids);
}

static void streamed_text_equals_decoded_text_and_is_always_utf8(void **state)
{
    (void)state;
    CLEANUP(tokenizer_freep) struct tokenizer *t = smollm2();
    struct rng r = {7};
    struct buf whole, streamed;
    buf_init(&whole, 1 << 20);
    buf_init(&streamed, 1 << 20);
    for (int round = 0; round < 2000; round++) {
        uint32_t id[40];
        size_t n = 1 + (size_t)rng_below(&r, 40);
        struct detok d;
        buf_reset(&whole);
        buf_reset(&streamed);
        detok_init(&d, t, false, false);
        for (size_t i = 0; i < n; i++) {
            id[i] = (uint32_t)(rng_below(&r, 2) ? rng_below(&r, 49152)
                                                : 17 + rng_below(&r, 256)); /* many lone bytes */
            assert_int_equal(detok_push(&d, id[i], &streamed), 0);
            assert_true(d.n_held <= 3);
            assert_true(utf8_valid(buf_view(&streamed)));
        }
        assert_int_equal(detok_flush(&d, &streamed), 0);
        assert_int_equal(tokenizer_decode(t, id, n, false, &whole, NULL), 0);
        assert_true(str_eq(buf_view(&whole), buf_view(&streamed)));
    }
    buf_fini(&whole);
    buf_fini(&streamed);
}

static void a_leading_space_is_dropped_only_at_the_beginning(void **state)
{
    (void)state;
    CLEANUP(tokenizer_freep) struct tokenizer *t = open_model(GOLDEN "small-llama2.json");
    struct ids ids;
    struct buf out;
    struct detok d;
    ids_init(&ids, 100);
    buf_init(&out, 1000);
    assert_int_equal(tokenizer_encode(t, STR("the word"), 0, &ids, NULL), 0);
    assert_int_equal(tokenizer_decode(t, ids.id, ids.n, true, &out, NULL), 0);
    assert_string_equal(out.data, "the word");
    buf_reset(&out);
    detok_init(&d, t, true, true);
    for (size_t i = 0; i < ids.n; i++)
        assert_int_equal(detok_push(&d, ids.id[i], &out), 0);
    assert_int_equal(detok_flush(&d, &out), 0);
    assert_string_equal(out.data, " the word");
    ids_fini(&ids);
    buf_fini(&out);
}

static void a_megabyte_word_takes_a_second_at_most(void **state)
{
    (void)state;
    static const char *const files[] = {"SmolLM2-135M-Instruct.Q4_1.gguf",
                                        "gemma-3-270m.Q4_K_M.gguf"};
    char *text = xmalloc(1 << 20);
    for (int kind = 0; kind < 6; kind++) {
        CLEANUP(tokenizer_freep) struct tokenizer *t = open_model(files[kind % 2]);
        struct ids ids;
        struct timespec a, b;
        struct rng r = {(uint64_t)kind};
        for (size_t i = 0; i < 1 << 20; i++)
            text[i] = kind < 2 ? 'a' : kind < 4 ? ' ' : (char)('a' + rng_below(&r, 26));
        ids_init(&ids, 1 << 21);
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &a);
        assert_int_equal(tokenizer_encode(t, (struct str){text, 1 << 20}, 0, &ids, NULL), 0);
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &b);
        double s = (double)(b.tv_sec - a.tv_sec) + (double)(b.tv_nsec - a.tv_nsec) / 1e9;
        if (s > 10) /* a second on the slowest machine, ten under a sanitizer; a quadratic one takes
                       hours */
            fail_msg("kind %d: %.2f s", kind, s);
        ids_fini(&ids);
    }
    free(text);
}

static void too_many_tokens_is_an_error_that_leaves_the_list_alone(void **state)
{
    (void)state;
    CLEANUP(tokenizer_freep) struct tokenizer *t = smollm2();
    struct err e = {0};
    struct ids ids;
    ids_init(&ids, 3);
    assert_int_equal(ids_push(&ids, 9), 0);
    assert_int_equal(tokenizer_encode(t, STR("one two three four"), 0, &ids, &e), -EMSGSIZE);
    assert_non_null(strstr(e.msg, "more than 3 tokens"));
    assert_int_equal(ids.n, 1);
    ids_fini(&ids);
}

static void ids_past_the_vocabulary_are_refused(void **state)
{
    (void)state;
    CLEANUP(tokenizer_freep) struct tokenizer *t = smollm2();
    struct err e = {0};
    struct buf out;
    uint32_t id[2] = {100, 49152};
    buf_init(&out, 100);
    assert_int_equal(buf_cstr(&out, "x"), 0);
    assert_int_equal(tokenizer_decode(t, id, 2, false, &out, &e), -EINVAL);
    assert_string_equal(out.data, "x");
    assert_non_null(strstr(e.msg, "49152"));
    buf_fini(&out);
}

struct worker {
    const struct tokenizer *t;
    size_t wrong;
};

static void *encode_many(void *arg)
{
    struct worker *w = arg;
    struct buf text;
    struct ids a, b;
    buf_init(&text, 1 << 20);
    ids_init(&a, 1 << 20);
    ids_init(&b, 1 << 20);
    for (size_t i = 0; i < 300; i++) {
        string_at(&tables, i, &text);
        a.n = b.n = 0;
        w->wrong += tokenizer_encode(w->t, buf_view(&text), 2, &a, NULL) ||
                    tokenizer_encode(w->t, buf_view(&text), 2, &b, NULL) || a.n != b.n ||
                    memcmp(a.id, b.id, a.n * 4) != 0;
    }
    buf_fini(&text);
    ids_fini(&a);
    ids_fini(&b);
    return NULL;
}

static void threads_may_share_a_tokenizer(void **state)
{
    (void)state;
    CLEANUP(tokenizer_freep) struct tokenizer *t = smollm2();
    pthread_t id[4];
    struct worker w[4] = {{t, 0}, {t, 0}, {t, 0}, {t, 0}};
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&id[i], NULL, encode_many, &w[i]), 0);
    for (int i = 0; i < 4; i++) {
        pthread_join(id[i], NULL);
        assert_int_equal(w[i].wrong, 0);
    }
}

static void write_file(const char *path, const char *p, size_t n)
{
    FILE *f = fopen(path, "we");
    assert_non_null(f);
    assert_int_equal(fwrite(p, 1, n, f), n);
    fclose(f);
}

static void hostile_tokenizer_json_files_are_errors(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "",
        "{",
        "[]",
        "{}",
        "{\"model\":{}}",
        "{\"model\":{\"type\":\"WordPiece\",\"vocab\":{},\"merges\":[]}}",
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":-1},\"merges\":[]}}",
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":4294967296},\"merges\":[]}}",
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"a\":1},\"merges\":[]}}",
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a b\"]}}",
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[[\"a\"]]}}",
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":7}}",
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]},\"added_tokens\":[{\"id\":"
        "99999999,\"content\":\"x\"}]}",
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]},\"added_tokens\":[{\"id\":"
        "1}]}",
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]},\"normalizer\":{\"type\":"
        "\"Magic\"}}",
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]},\"pre_tokenizer\":{"
        "\"type\":\"Split\",\"pattern\":{\"Regex\":\"(\"},\"behavior\":\"Isolated\"}}",
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]},\"pre_tokenizer\":{"
        "\"type\":\"Split\",\"pattern\":{\"String\":\"\"},\"behavior\":\"Isolated\"}}",
    };
    char path[] = "/tmp/baton-test-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct err e = {0};
        struct tokenizer *t = NULL;
        write_file(path, bad[i], strlen(bad[i]));
        if (tokenizer_open(path, &t, &e) >= 0 || !e.msg[0] || t)
            fail_msg("accepted or silent: %s", bad[i]);
    }
    unlink(path);
}

static void a_missing_file_is_named_in_the_error(void **state)
{
    (void)state;
    struct err e = {0};
    struct tokenizer *t;
    assert_int_equal(tokenizer_open("/nonexistent/tokenizer.json", &t, &e), -ENOENT);
    assert_non_null(strstr(e.msg, "/nonexistent/tokenizer.json"));
}

int main(void)
{
    tables_open(&tables);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(smollm2_from_gguf_gives_hugging_faces_ids),
        cmocka_unit_test(gemma3_from_gguf_gives_hugging_faces_ids),
        cmocka_unit_test(each_pipeline_of_tokenizer_json_gives_hugging_faces_ids),
        cmocka_unit_test(what_is_remembered_changes_no_ids),
        cmocka_unit_test(facts_of_smollm2_are_read_from_the_file),
        cmocka_unit_test(control_tokens_in_plain_text_stay_text),
        cmocka_unit_test(decoding_gives_the_repaired_text_back),
        cmocka_unit_test(streamed_text_equals_decoded_text_and_is_always_utf8),
        cmocka_unit_test(a_leading_space_is_dropped_only_at_the_beginning),
        cmocka_unit_test(a_megabyte_word_takes_a_second_at_most),
        cmocka_unit_test(too_many_tokens_is_an_error_that_leaves_the_list_alone),
        cmocka_unit_test(ids_past_the_vocabulary_are_refused),
        cmocka_unit_test(threads_may_share_a_tokenizer),
        cmocka_unit_test(hostile_tokenizer_json_files_are_errors),
        cmocka_unit_test(a_missing_file_is_named_in_the_error),
    };
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    json_decref(tables.all);
    return rc;
}
