/* Model files and weight images that are truncated, damaged or hostile: each is a clear error, and
 * clean under ASan. */
#include "tests/worker/model/tiny.h"
#include "worker/model/model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

static struct tiny base = {.layers = 2,
                           .d = 64,
                           .heads = 2,
                           .kv_heads = 1,
                           .ff = 96,
                           .vocab = 80,
                           .type = GGUF_Q8_0,
                           .seed = 7};

static void good(struct buf *b)
{
    buf_init(b, 64u << 20);
    tiny_build(&base, b);
}

static int load(const struct buf *b, struct err *e)
{
    char *path = tiny_file(b);
    struct model *m = NULL;
    *e = (struct err){0};
    int rc = model_load(path, NULL, &m, e);
    if (rc == 0)
        model_free(m);
    unlink(path);
    free(path);
    return rc;
}

static void refused(const struct buf *b, const char *what, const char *says)
{
    struct err e;
    int rc = load(b, &e);
    if (rc >= 0)
        fail_msg("%s was accepted", what);
    if (!e.msg[0] || (says && !strstr(e.msg, says)))
        fail_msg("%s: the error is \"%s\", expected \"%s\"", what, e.msg, says);
}

static void put_at(struct buf *b, size_t at, const void *p, size_t n)
{
    assert_true(at + n <= b->n);
    memcpy(b->data + at, p, n);
}

static void put_u64(struct buf *b, size_t at, uint64_t v)
{
    put_at(b, at, &v, 8);
}

static void put_u32(struct buf *b, size_t at, uint32_t v)
{
    put_at(b, at, &v, 4);
}

/* Position just behind the first occurrence of a text. */
static size_t after(const struct buf *b, const char *text)
{
    char *p = memmem(b->data, b->n, text, strlen(text));
    assert_non_null(p);
    return (size_t)(p - b->data) + strlen(text);
}

static void the_undamaged_file_loads(void **state)
{
    (void)state;
    struct buf b;
    struct err e;
    good(&b);
    assert_int_equal(load(&b, &e), 0);
    buf_fini(&b);
}

static void a_file_cut_anywhere_is_refused(void **state)
{
    (void)state;
    struct buf b;
    good(&b);
    size_t whole = b.n;
    for (int i = 0; i < 60; i++) {
        b.n = i < 40 ? base.data_at * (size_t)i / 40
                     : base.data_at + (whole - base.data_at - 64) * (size_t)(i - 40) / 20;
        refused(&b, "a truncated file", NULL);
    }
    b.n = whole;
    buf_fini(&b);
}

struct damage {
    const char *what, *says, *anchor; /* anchor: text before the place; NULL: `at` alone */
    size_t at;
    uint32_t bytes; /* 4 or 8 */
    uint64_t value;
};

static void damaged_numbers_are_refused(void **state)
{
    (void)state;
    struct buf b;
    good(&b);
    const struct damage list[] = {
        {"another magic", "not a GGUF", NULL, 0, 4, 0x46554746},
        {"version 1", "version", NULL, 4, 4, 1},
        {"a big-endian version", "version", NULL, 4, 4, 0x03000000},
        {"2^63 tensors", "tensors", NULL, base.n_tensors_at, 8, 1ull << 63},
        {"a million tensors", "tensors", NULL, base.n_tensors_at, 8, 1000000},
        {"2^64-1 keys", "keys", NULL, base.n_kvs_at, 8, UINT64_MAX},
        {"60,000 keys", NULL, NULL, base.n_kvs_at, 8, 60000},
        {"too few keys", NULL, NULL, base.n_kvs_at, 8, 2},
        {"one tensor too many", NULL, NULL, base.n_tensors_at, 8, 21},
        {"a key of 2^60 bytes", "key", NULL, base.first_kv_at, 8, 1ull << 60},
        {"a key of 2^64-1 bytes", "key", NULL, base.first_kv_at, 8, UINT64_MAX},
        {"an unknown value type", "type", "general.architecture", 0, 4, 77},
        {"a string past the end", NULL, "general.architecture", 4, 8, 1ull << 40},
        {"an array instead of a string", NULL, "general.architecture", 0, 4, 9},
        {"a count as a float", "block_count", "llama.block_count", 0, 4, 6},
        {"no layers", "layers", "llama.block_count", 4, 4, 0},
        {"a billion layers", "layers", "llama.block_count", 4, 4, 1000000000},
        {"three layers of two", "lacks the tensor", "llama.block_count", 4, 4, 3},
        {"no width", "embedding", "llama.embedding_length", 4, 4, 0},
        {"a width of 2^32-1", "embedding", "llama.embedding_length", 4, 4, UINT32_MAX},
        {"another width", "token_embd", "llama.embedding_length", 4, 4, 128},
        {"no heads", "heads", "attention.head_count", 4, 4, 0},
        {"seven heads", NULL, "attention.head_count", 4, 4, 7},
        {"more KV heads than heads", "KV heads", "attention.head_count_kv", 4, 4, 5},
        {"no context", "context", "llama.context_length", 4, 4, 0},
        {"an epsilon of NaN", "epsilon", "layer_norm_rms_epsilon", 4, 4, 0x7fc00000},
        {"a negative epsilon", "epsilon", "layer_norm_rms_epsilon", 4, 4, 0xbf800000},
        {"a feed-forward of one", "feed", "llama.feed_forward_length", 4, 4, 1},
        {"a tensor name of 2^50 bytes", "name", NULL, base.tensors_at, 8, 1ull << 50},
        {"no dimensions", "dimensions", "token_embd.weight", 0, 4, 0},
        {"nine dimensions", "dimensions", "token_embd.weight", 0, 4, 9},
        {"a dimension of 0", "shape", "token_embd.weight", 4, 8, 0},
        {"a dimension of 2^63", "shape", "token_embd.weight", 4, 8, 1ull << 63},
        {"dimensions whose product wraps", "shape", "token_embd.weight", 12, 8, (1ull << 59) + 80},
        {"rows that are not whole blocks", "blocks", "token_embd.weight", 4, 8, 65},
        {"a vocabulary of a billion", "outside", "token_embd.weight", 12, 8, 1000000000},
        {"an unknown tensor type", "type", "token_embd.weight", 20, 4, 99},
        {"a type without kernels", "type", "token_embd.weight", 20, 4, 10},
        {"an offset past the end", "outside", "token_embd.weight", 24, 8, 1ull << 62},
        {"an offset that wraps", "outside", "token_embd.weight", 24, 8, UINT64_MAX - 31},
        {"an offset off the alignment", "aligned", "token_embd.weight", 24, 8, 8},
        {"a norm of another type", "type", "output_norm.weight", 12, 4, GGUF_Q8_0},
        {"a norm of another length", NULL, "output_norm.weight", 4, 8, 32},
        {"a weight of another shape", "attn_q", "blk.0.attn_q.weight", 12, 8, 32},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        const struct damage *d = &list[i];
        buf_fini(&b);
        good(&b);
        size_t at = (d->anchor ? after(&b, d->anchor) : 0) + d->at;
        if (d->bytes == 8)
            put_u64(&b, at, d->value);
        else
            put_u32(&b, at, (uint32_t)d->value);
        refused(&b, d->what, d->says);
    }
    buf_fini(&b);
}

static void names_that_clash_or_miss_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *from, *to, *says;
    } list[] = {
        {"blk.1.attn_q.weight", "blk.0.attn_q.weight", "twice"},
        {"blk.1.ffn_down.weight", "blk.7.ffn_down.weight", "lacks"},
        {"token_embd.weight", "token_embx.weight", "token_embd"},
        {"general.architecture", "general.architextur3", "architecture"},
        {"llama.block_count", "llamb.block_count", "block_count"},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        struct buf b;
        good(&b);
        put_at(&b, after(&b, list[i].from) - strlen(list[i].from), list[i].to, strlen(list[i].to));
        refused(&b, list[i].to, list[i].says);
        buf_fini(&b);
    }
}

static void random_damage_never_does_more_than_fail(void **state)
{
    (void)state;
    const char *env = getenv("SEED");
    struct rng rng = {env ? strtoull(env, NULL, 10) : rng_secret_u64() % 1000000};
    printf("SEED=%llu\n", (unsigned long long)rng.state);
    for (int i = 0; i < 300; i++) {
        struct buf b;
        struct err e;
        good(&b);
        for (uint64_t k = 1 + rng_below(&rng, 6); k > 0; k--)
            b.data[rng_below(&rng, base.data_at)] = (char)rng_next(&rng);
        (void)load(&b, &e); /* accepted or refused; the sanitizer judges */
        buf_fini(&b);
    }
}

static void what_is_no_file_is_refused(void **state)
{
    (void)state;
    struct model *m = NULL;
    struct err e = {0};
    uint64_t bytes;
    assert_true(model_load("/nonexistent/model.gguf", NULL, &m, &e) < 0);
    assert_non_null(strstr(e.msg, "/nonexistent/model.gguf"));
    assert_true(model_load("/tmp", NULL, &m, &e) < 0);
    assert_true(model_image_bytes("/dev/null", NULL, &bytes, &e) < 0);
}

/* ---- images ---- */

static uint8_t *image(uint64_t *bytes)
{
    struct buf b;
    struct err e = {0};
    good(&b);
    char *path = tiny_file(&b);
    assert_int_equal(model_image_bytes(path, NULL, bytes, &e), 0);
    uint8_t *p = aligned_alloc(4096, *bytes);
    assert_true(model_image_fill(path, NULL, p, *bytes - 1, &e) < 0);
    assert_int_equal(model_image_fill(path, NULL, p, *bytes, &e), 0);
    unlink(path);
    free(path);
    buf_fini(&b);
    return p;
}

static void an_image_attaches_anywhere_and_damage_is_seen(void **state)
{
    (void)state;
    uint64_t bytes;
    struct err e = {0};
    struct model *m = NULL;
    uint8_t *p = image(&bytes), *q = aligned_alloc(4096, bytes);
    memcpy(q, p, bytes);
    assert_int_equal(model_attach(q, bytes, NULL, &m, &e), 0);
    model_free(m);
    assert_true(model_image_checksum(q) == model_image_checksum_now(q));
    q[bytes - 5000] ^= 1;
    assert_true(model_image_checksum(q) != model_image_checksum_now(q));
    for (size_t at = 0; at < 2048; at += 3) { /* the header and the directory, byte by byte */
        memcpy(q, p, bytes);
        q[at] ^= 0x41;
        if (model_attach(q, bytes, NULL, &m, &e) == 0)
            model_free(m);
    }
    memcpy(q, p, bytes);
    assert_true(model_attach(q, bytes - 4096, NULL, &m, &e) < 0);
    assert_true(model_attach(q, 16, NULL, &m, &e) < 0);
    assert_true(model_attach(q + 8, bytes - 8, NULL, &m, &e) < 0);
    free(p);
    free(q);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_undamaged_file_loads),
        cmocka_unit_test(a_file_cut_anywhere_is_refused),
        cmocka_unit_test(damaged_numbers_are_refused),
        cmocka_unit_test(names_that_clash_or_miss_are_refused),
        cmocka_unit_test(random_damage_never_does_more_than_fail),
        cmocka_unit_test(what_is_no_file_is_refused),
        cmocka_unit_test(an_image_attaches_anywhere_and_damage_is_seen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
