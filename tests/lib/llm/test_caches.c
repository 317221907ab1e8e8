/* Words and texts that come up again: found whole or not at all, within their memory. */
#include "lib/base/rng.h"
#include "lib/llm/segment_cache.h"
#include "lib/llm/word_cache.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <cmocka.h>

#define SEED 20261130u

/* A word's ids say which word it is. */
static size_t ids_of(struct str w, uint32_t id[WORD_LONG_IDS])
{
    size_t n = w.n % (WORD_LONG_IDS + 1);
    for (size_t i = 0; i < n; i++)
        id[i] = (uint32_t)w.n << 24 | (uint32_t)(unsigned char)w.p[i * w.n / n] << 8 |
                (unsigned char)w.p[w.n - 1];
    return n;
}

static void a_word_is_found_with_its_own_ids_or_not_at_all(void **state)
{
    (void)state;
    struct word_cache c;
    struct rng r = {SEED};
    char text[128];
    size_t hits = 0, n_got;
    assert_int_equal(word_cache_init(&c), 0);
    for (int i = 0; i < 300000; i++) {
        struct str w = {text, 1 + rng_below(&r, rng_below(&r, 4) ? 3 : 75)};
        uint32_t id[WORD_LONG_IDS];
        memset(text, (int)rng_below(&r, 3) * 'x', sizeof text); /* zeros: as behind a key */
        for (size_t k = 0; k < 3; k++)
            text[rng_below(&r, w.n)] = (char)rng_below(&r, 20);
        size_t n = ids_of(w, id), readable = rng_below(&r, 2) ? sizeof text : w.n;
        const uint32_t *got = word_cache_find(&c, w, readable, &n_got);
        if (got && (n_got != n || memcmp(got, id, n * sizeof *id)))
            fail_msg("word %d of %zu bytes (seed %u) has the ids of another", i, w.n, SEED);
        hits += got != NULL;
        word_cache_put(&c, w, id, n);
    }
    assert_true(hits > 50000 && hits < 300000);
    word_cache_fini(&c);
}

static int find(struct segment_cache *c, const char *text, unsigned how, struct ids *out)
{
    struct segment s = segment_of(c, str_c(text), how);
    out->n = 0;
    return segment_cache_find(c, &s, out);
}

static void offer(struct segment_cache *c, const char *text, unsigned how, uint32_t id)
{
    struct segment s = segment_of(c, str_c(text), how);
    uint32_t ids[100];
    for (size_t i = 0; i < 100; i++)
        ids[i] = id;
    segment_cache_put(c, &s, ids, 100);
}

static void a_text_is_kept_when_it_comes_up_the_second_time(void **state)
{
    (void)state;
    struct segment_cache *c = segment_cache_new(1 << 20);
    struct ids ids;
    ids_init(&ids, 1000);
    offer(c, "a text", 1, 7);
    assert_int_equal(find(c, "a text", 1, &ids), 0);
    offer(c, "a text", 1, 7);
    assert_int_equal(find(c, "a text", 1, &ids), 1);
    assert_int_equal(ids.n, 100);
    assert_int_equal(ids.id[99], 7);
    assert_int_equal(find(c, "a text", 0, &ids), 0); /* another way of cutting */
    assert_int_equal(find(c, "a texT", 1, &ids), 0);
    ids.max = 99;
    assert_int_equal(find(c, "a text", 1, &ids), -EMSGSIZE);
    ids_fini(&ids);
    segment_cache_free(c);
}

static void the_text_that_was_not_wanted_for_longest_goes(void **state)
{
    (void)state;
    struct segment_cache *c = segment_cache_new(4096); /* of 500 bytes each */
    struct ids ids;
    char name[16];
    ids_init(&ids, 1000);
    for (uint32_t i = 0; i < 100; i++) {
        snprintf(name, sizeof name, "text %u", i);
        offer(c, name, 0, i);
        offer(c, name, 0, i);
        assert_int_equal(find(c, name, 0, &ids), 1);
        assert_int_equal(ids.id[0], i);
        assert_int_equal(find(c, "text 0", 0, &ids), 1); /* is wanted all the time */
    }
    unsigned kept = 0;
    for (uint32_t i = 0; i < 100; i++) {
        snprintf(name, sizeof name, "text %u", i);
        kept += (unsigned)find(c, name, 0, &ids);
    }
    assert_in_range(kept, 4, 9);
    ids_fini(&ids);
    segment_cache_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_word_is_found_with_its_own_ids_or_not_at_all),
        cmocka_unit_test(a_text_is_kept_when_it_comes_up_the_second_time),
        cmocka_unit_test(the_text_that_was_not_wanted_for_longest_goes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
