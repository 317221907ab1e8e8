/* safetensors: what is valid is read, what is not is refused with a sentence, from one file or
 * several. */
#include "lib/llm/safetensors.h"

#include "lib/base/buf.h"
#include "lib/base/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

static char dir[64];

static int make_dir(void **state)
{
    (void)state;
    snprintf(dir, sizeof dir, "/tmp/baton-st-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int drop_dir(void **state)
{
    (void)state;
    char cmd[128];
    snprintf(cmd, sizeof cmd, "rm -r '%s'", dir);
    return system(cmd);
}

static void put_file(const char *name, const void *p, size_t n)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "we");
    assert_non_null(f);
    assert_int_equal(fwrite(p, 1, n, f), n);
    fclose(f);
}

/* A file of this header and `data` bytes 0, 1, 2, … */
static void put(const char *name, const char *header, size_t data)
{
    struct buf b;
    uint64_t n = strlen(header);
    buf_init(&b, 1u << 20);
    assert_int_equal(buf_append(&b, &n, 8), 0);
    assert_int_equal(buf_cstr(&b, header), 0);
    for (size_t i = 0; i < data; i++) {
        char c = (char)i;
        assert_int_equal(buf_append(&b, &c, 1), 0);
    }
    put_file(name, b.data, b.n);
    buf_fini(&b);
}

static void drop(const char *name)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    unlink(path);
}

static void refused(const char *what, const char *says)
{
    struct safetensors *s;
    struct err e = {0};
    if (safetensors_open(dir, &s, &e) == 0)
        fail_msg("%s was accepted", what);
    if (!strstr(e.msg, says))
        fail_msg("%s: \"%s\" does not say \"%s\"", what, e.msg, says);
}

#define ONE   "{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}"
#define FILE1 "model.safetensors"

static void tensors_are_found_with_type_shape_and_bytes(void **state)
{
    (void)state;
    struct safetensors *s;
    struct err e = {0};
    uint8_t bytes[4];
    put(FILE1,
        "{\"__metadata__\":{\"format\":\"pt\"},\"b\":{\"dtype\":\"BF16\",\"shape\":[],"
        "\"data_offsets\":[24,26]},\"a\":" ONE ",\"empty\":{\"dtype\":\"F16\",\"shape\":[0,9],"
        "\"data_offsets\":[26,26]},\"\\u0063\":{\"data_offsets\":[26,28],\"dtype\":\"F4\","
        "\"shape\":"
        "[4]}}   ",
        28);
    if (safetensors_open(dir, &s, &e) < 0)
        fail_msg("%s", e.msg);
    assert_int_equal(safetensors_n_tensors(s), 4);
    const struct safetensors_tensor *a = safetensors_find(s, "a"), *b = safetensors_find(s, "b"),
                                    *c = safetensors_find(s, "c");
    assert_true(a && b && c && !safetensors_find(s, "d"));
    assert_true(a->type == ST_F32 && a->n_dims == 2 && a->shape[0] == 2 && a->shape[1] == 3);
    assert_true(b->type == ST_BF16 && b->n_dims == 0 && b->bytes == 2 && c->bytes == 2);
    assert_int_equal(safetensors_read(s, a, 20, bytes, 4, &e), 0);
    assert_memory_equal(bytes, ((uint8_t[]){20, 21, 22, 23}), 4);
    assert_true(safetensors_read(s, a, 21, bytes, 4, &e) < 0);
    assert_true(safetensors_read(s, a, UINT64_MAX, bytes, 4, &e) < 0);
    safetensors_free(s);
}

static void a_file_that_lies_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *what, *header;
        size_t data;
        const char *says;
    } list[] = {
        {"no object", "[1]", 0, "not a safetensors"},
        {"a cut header", "{\"a\":{\"dtype\":\"F32\"", 24, "header"},
        {"invalid UTF-8", "{\"\xff\":" ONE "}", 24, "header"},
        {"deep nesting", "{\"a\":{\"dtype\":[[[[[[[[[]]]]]]]]]}}", 0, "type"},
        {"a negative offset", "{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[-4,0]}}", 4,
         "whole number"},
        {"a fractional size", "{\"a\":{\"dtype\":\"F32\",\"shape\":[1.5],\"data_offsets\":[0,4]}}",
         4, "whole number"},
        {"a huge size", "{\"a\":{\"dtype\":\"F32\",\"shape\":[1e30],\"data_offsets\":[0,4]}}", 4,
         "whole number"},
        {"a size past 2^64",
         "{\"a\":{\"dtype\":\"F32\",\"shape\":[99999999999999999999],\"data_offsets\":[0,4]}}", 4,
         "whole number"},
        {"reversed offsets", "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", 4,
         "outside"},
        {"an offset past the end",
         "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 4, "outside"},
        {"an overlap", "{\"a\":" ONE ",\"b\":" ONE "}", 24, "overlaps"},
        {"a hole", "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 8, "hole"},
        {"trailing bytes", "{\"a\":" ONE "}", 25, "cut short"},
        {"missing bytes", "{\"a\":" ONE "}", 23, "outside"},
        {"bytes of no tensor", "{}", 1, "cut short"},
        {"a shape whose product wraps",
         "{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967297],\"data_offsets\":[0,0]}}", 0,
         "impossible"},
        {"a shape that wraps in bits",
         "{\"a\":{\"dtype\":\"F64\",\"shape\":[1152921504606846976],\"data_offsets\":[0,0]}}", 0,
         "impossible"},
        {"another size than its shape",
         "{\"a\":{\"dtype\":\"F16\",\"shape\":[2,3],\"data_offsets\":[0,24]}}", 24, "another size"},
        {"half a byte", "{\"a\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,1]}}", 1,
         "impossible"},
        {"a name twice", "{\"a\":" ONE ",\"a\":" ONE "}", 24, "header"},
        {"a member twice",
         "{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
         "header"},
        {"an unknown type", "{\"a\":{\"dtype\":\"F3\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
         "unknown type"},
        {"three offsets", "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,4]}}", 4,
         "too many"},
        {"one offset", "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4,
         "lacks"},
        {"nine dimensions",
         "{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}", 4,
         "too many"},
        {"a name with NUL", "{\"a\\u0000b\":" ONE "}", 24, "name"},
        {"an unknown member", "{\"a\":{\"dtype\":\"F32\",\"x\":1}}", 0, "member"},
        {"metadata of numbers", "{\"__metadata__\":{\"a\":1}}", 0, "header"},
        {"metadata that is a list", "{\"__metadata__\":[]}", 0, "header"},
        {"two values", "{}{}", 0, "header"},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        put(FILE1, list[i].header, list[i].data);
        refused(list[i].what, list[i].says);
    }
}

static void lengths_that_lie_are_refused(void **state)
{
    (void)state;
    static const uint64_t lengths[] = {0, 1, 3, 100000001, UINT64_MAX, UINT64_MAX - 7, 1ull << 40};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        char file[10] = {0};
        memcpy(file, &lengths[i], 8);
        memcpy(file + 8, "{}", 2);
        put_file(FILE1, file, sizeof file);
        refused("a length of the header", "not a safetensors");
    }
    put_file(FILE1, "1234567", 7);
    refused("a file of seven bytes", "not a safetensors");
}

static void a_name_of_two_thousand_letters_is_refused(void **state)
{
    (void)state;
    char header[4096];
    memset(header, 'a', sizeof header);
    memcpy(header, "{\"", 2);
    strcpy(header + 2002, "\":" ONE "}");
    put(FILE1, header, 24);
    refused("a long name", "name");
}

#define INDEX "model.safetensors.index.json"

static void put_index(const char *text)
{
    put_file(INDEX, text, strlen(text));
}

static void shards_are_read_as_one_model(void **state)
{
    (void)state;
    struct safetensors *s;
    struct err e = {0};
    put("x-1.safetensors", "{\"a\":" ONE "}", 24);
    put("x-2.safetensors", "{\"b\":" ONE "}", 24);
    put_index("{\"weight_map\":{\"a\":\"x-1.safetensors\",\"b\":\"x-2.safetensors\"}}");
    if (safetensors_open(dir, &s, &e) < 0)
        fail_msg("%s", e.msg);
    assert_int_equal(safetensors_n_tensors(s), 2);
    assert_int_not_equal(safetensors_find(s, "a")->shard, safetensors_find(s, "b")->shard);
    safetensors_free(s);
}

static void an_index_that_lies_is_refused(void **state)
{
    (void)state;
    put_index("{\"weight_map\":{\"a\":\"../x-1.safetensors\"}}");
    refused("a path that leads out", "plain name");
    put_index("{\"weight_map\":{\"a\":\"/etc/passwd\"}}");
    refused("an absolute path", "plain name");
    put_index("{\"weight_map\":{\"a\":7}}");
    refused("a number for a file", "plain name");
    put_index("{\"weight_map\":{\"a\":\"nothing.safetensors\"}}");
    refused("a missing shard", "nothing.safetensors");
    put_index("{\"weight_map\":{\"c\":\"x-1.safetensors\"}}");
    refused("a tensor that is not there", "not in");
    put_index("{\"weight_map\":{\"a\":\"x-2.safetensors\",\"b\":\"x-1.safetensors\"}}");
    refused("a tensor of another shard", "not in");
    put("x-2.safetensors", "{\"a\":" ONE "}", 24);
    put_index("{\"weight_map\":{\"a\":\"x-1.safetensors\",\"b\":\"x-2.safetensors\"}}");
    refused("a tensor in two shards", "twice");
    put_index("{\"weight_map\":{}}");
    refused("an empty map", "weight_map");
    put_index("[]");
    refused("no map", "weight_map");
    char path[256];
    snprintf(path, sizeof path, "%s/pipe", dir);
    assert_int_equal(mkfifo(path, 0600), 0);
    put_index("{\"weight_map\":{\"a\":\"pipe\"}}");
    refused("a pipe", "regular");
    drop(INDEX);
    drop(FILE1);
    refused("two files without an index", "several");
    drop("x-1.safetensors");
    drop("x-2.safetensors");
    refused("an empty folder", "no model.safetensors");
}

/* A valid file with random bytes changed: an error or a model, never more. */
static void random_damage_never_does_more_than_fail(void **state)
{
    (void)state;
    static const char header[] =
        "{\"__metadata__\":{\"k\":\"v\"},\"a\":" ONE ",\"b\":{\"dtype\":\"BF16\",\"shape\":[4],"
        "\"data_offsets\":[24,32]}}";
    const char *seed = getenv("SEED");
    struct rng rng = {seed ? strtoull(seed, NULL, 10) : rng_secret_u64() % 1000000};
    printf("SEED=%llu\n", (unsigned long long)rng.state);
    char file[8 + sizeof header - 1 + 32];
    for (int i = 0; i < 3000; i++) {
        uint64_t n = sizeof header - 1;
        struct safetensors *s;
        struct err e = {0};
        memset(file, 1, sizeof file);
        memcpy(file, &n, 8);
        memcpy(file + 8, header, n);
        for (uint64_t k = rng_below(&rng, 4) + 1; k > 0; k--)
            file[rng_below(&rng, 8 + n)] = (char)rng_next(&rng);
        put_file(FILE1, file, sizeof file);
        if (safetensors_open(dir, &s, &e) < 0) {
            assert_true(e.code != 0 && *e.msg);
            continue;
        }
        for (size_t t = 0; t < safetensors_n_tensors(s); t++) {
            const struct safetensors_tensor *x = safetensors_at(s, t);
            uint8_t all[64];
            assert_true(x->bytes <= sizeof all);
            assert_int_equal(safetensors_read(s, x, 0, all, x->bytes, &e), 0);
        }
        safetensors_free(s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors_are_found_with_type_shape_and_bytes),
        cmocka_unit_test(a_file_that_lies_is_refused),
        cmocka_unit_test(lengths_that_lie_are_refused),
        cmocka_unit_test(a_name_of_two_thousand_letters_is_refused),
        cmocka_unit_test(random_damage_never_does_more_than_fail),
        cmocka_unit_test(shards_are_read_as_one_model),
        cmocka_unit_test(an_index_that_lies_is_refused),
    };
    return cmocka_run_group_tests(tests, make_dir, drop_dir);
}
