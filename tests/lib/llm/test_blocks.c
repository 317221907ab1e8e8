/* Names of KV blocks: fixed vectors (they are in caches, indexes and events of other processes),
 * and chaining. */
#include "lib/base/rng.h"
#include "lib/llm/blocks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

static struct block_name seed_of(const char *revision, const char *dtype, const char *adapter,
                                 const char *salt, uint32_t block_tokens)
{
    struct block_space s = {str_c(revision), str_c(dtype), str_c(adapter), str_c(salt),
                            block_tokens};
    struct block_name n;
    block_seed(&s, &n);
    return n;
}

static void assert_hex(const struct block_name *n, const char *hex)
{
    char got[33];
    str_to_hex(n->b, 16, got);
    assert_string_equal(got, hex);
}

static void names_are_the_fixed_vectors(void **state)
{
    (void)state;
    struct block_name seed = seed_of("abc", "f16", "", "", 4), out[3];
    uint32_t tokens[10] = {1, 2, 3, 4, 5, 6, 7, 8, 4294967295u, 0};
    assert_hex(&seed, "d50b16a991cad30d5ea41004d239f564");
    assert_int_equal(block_names(&seed, tokens, 10, 4, out), 2);
    assert_hex(&out[0], "4fbde02e366e2aad14ef21e0d49c9803");
    assert_hex(&out[1], "b7d3f055d185fd2ad1d51b08e53ef96f");
}

static void only_full_blocks_have_names(void **state)
{
    (void)state;
    struct block_name seed = seed_of("abc", "f16", "", "", 4), out[1] = {{{0xee}}};
    uint32_t tokens[3] = {1, 2, 3};
    assert_int_equal(block_names(&seed, tokens, 3, 4, out), 0);
    assert_int_equal(block_names(&seed, tokens, 0, 4, out), 0);
    assert_int_equal(out[0].b[0], 0xee);
}

static void a_chain_can_be_continued_from_its_last_name(void **state)
{
    (void)state;
    struct block_name seed = seed_of("r", "f32", "a", "s", 2), all[4], some[4];
    uint32_t tokens[8] = {9, 8, 7, 6, 5, 4, 3, 2};
    assert_int_equal(block_names(&seed, tokens, 8, 2, all), 4);
    assert_int_equal(block_names(&seed, tokens, 5, 2, some), 2);
    assert_int_equal(block_names(&some[1], tokens + 4, 4, 2, some + 2), 2);
    for (int i = 0; i < 4; i++)
        assert_true(block_name_eq(&all[i], &some[i]));
}

/* Prompts of one conversation, of several, of two block sizes and seeds, more than fit. */
static void a_memory_of_names_changes_none(void **state)
{
    (void)state;
    struct block_memo *m = block_memo_new();
    struct rng r = {20261130u};
    static uint32_t tokens[40 * 32], base[40 * 32];
    static struct block_name want[40 * 8], got[40 * 8];
    assert_non_null(m);
    for (int i = 0; i < 4000; i++) {
        uint32_t per = rng_below(&r, 4) ? 32 : rng_below(&r, 2) ? 4 : 64;
        char revision[2] = {(char)('a' + rng_below(&r, 2)), 0};
        struct block_name seed = seed_of(revision, "f16", "", "", 32); /* one for several sizes */
        uint64_t story = rng_below(&r, i < 2000 ? 5 : 2000), same = rng_below(&r, 40 * 32);
        struct rng of_story = {story};
        for (size_t k = 0; k < 40 * 32; k++)
            base[k] = (uint32_t)rng_below(&of_story, 50000);
        memcpy(tokens, base, sizeof tokens);
        if (rng_below(&r, 2))
            for (size_t k = same; k < 40 * 32; k++)
                tokens[k] = (uint32_t)rng_below(&r, 50000);
        size_t n = block_names(&seed, tokens, 40 * 32 - 3, per, want);
        assert_int_equal(block_names_memo(m, &seed, tokens, 40 * 32 - 3, per, got), n);
        assert_memory_equal(want, got, n * sizeof *want);
    }
    block_memo_free(m);
}

static void every_part_of_the_space_changes_the_names(void **state)
{
    (void)state;
    struct block_name base = seed_of("r", "f16", "a", "s", 32);
    struct block_name other[] = {
        seed_of("R", "f16", "a", "s", 32), seed_of("r", "f32", "a", "s", 32),
        seed_of("r", "f16", "b", "s", 32), seed_of("r", "f16", "a", "t", 32),
        seed_of("r", "f16", "a", "s", 16), seed_of("rf", "16", "a", "s", 32),
        seed_of("r", "f16", "as", "", 32), seed_of("r", "f16", "", "as", 32),
    };
    for (size_t i = 0; i < sizeof other / sizeof *other; i++)
        assert_false(block_name_eq(&base, &other[i]));
}

static void one_token_changes_its_block_and_all_after_it(void **state)
{
    (void)state;
    struct block_name seed = seed_of("r", "f16", "", "", 2), a[4], b[4];
    uint32_t tokens[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    assert_int_equal(block_names(&seed, tokens, 8, 2, a), 4);
    tokens[3] = 99;
    assert_int_equal(block_names(&seed, tokens, 8, 2, b), 4);
    assert_true(block_name_eq(&a[0], &b[0]));
    for (int i = 1; i < 4; i++)
        assert_false(block_name_eq(&a[i], &b[i]));
    assert_true(block_name_hash(&a[1]) != block_name_hash(&b[1]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_are_the_fixed_vectors),
        cmocka_unit_test(only_full_blocks_have_names),
        cmocka_unit_test(a_chain_can_be_continued_from_its_last_name),
        cmocka_unit_test(a_memory_of_names_changes_none),
        cmocka_unit_test(every_part_of_the_space_changes_the_names),
        cmocka_unit_test(one_token_changes_its_block_and_all_after_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
