/* Prompt lookup beside a search of the whole text. */
#include "lib/base/err.h"
#include "lib/base/rng.h"
#include "worker/lookup.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <cmocka.h>

#define SEED 20261130u

static uint32_t equal(const uint32_t *t, uint32_t at, uint32_t n)
{
    uint32_t k = 0;
    while (k < at && k < LOOKUP_COUNTED && t[at - 1 - k] == t[n - 1 - k])
        k++;
    return k;
}

/* The longest, where far fewer places than are looked at have the last two tokens (others may share
 * their bucket); else a true one. */
static void the_longest_earlier_occurrence_is_found_in_any_text(void **state)
{
    (void)state;
    uint32_t compared = 0;
    print_message("seed %u\n", SEED);
    for (uint32_t round = 0; round < 20; round++) {
        struct lookup x = {0};
        uint32_t t[600], n = 0;
        while (n < 600) { /* random tokens, and copies of what was */
            uint64_t r = rng_at(SEED, round, n);
            uint32_t k = 1 + (uint32_t)(r % 40), from = n ? (uint32_t)(r >> 32) % n : 0;
            for (uint32_t i = 0; i < k && n < 600; i++, n++)
                t[n] =
                    r & 128 && from + i < n ? t[from + i] : (uint32_t)(rng_at(SEED, 99, n) % 2000);
        }
        for (uint32_t end = 3; end < 600; end += 1 + end % 3) {
            struct lookup_match m = lookup_find(&x, t, end, 0);
            uint32_t best = 0, places = 0;
            for (uint32_t at = end - 1; at; at--) {
                uint32_t k = equal(t, at, end);
                places += k >= LOOKUP_SHORT;
                best = k > best ? k : best;
            }
            if (best < LOOKUP_SHORT) {
                assert_int_equal(m.at, 0);
                continue;
            }
            assert_true(m.at > 0 && m.at < end);
            assert_int_equal(equal(t, m.at, end), m.length);
            assert_true(m.length == best || places > 8);
            compared += places <= 8;
        }
        lookup_free(&x);
    }
    assert_true(compared > 1000);
}

static void a_place_that_the_last_match_leads_to_is_preferred_among_many(void **state)
{
    (void)state;
    struct lookup x = {0};
    uint32_t t[2000], n = 0;
    for (uint32_t i = 0; i < 10; i++) /* the passage that is being copied */
        t[n++] = 500 + i;
    uint32_t place = n - 3;
    while (n < 1900) { /* its last two tokens, again and again, with others before them */
        t[n] = 1000 + n;
        t[n + 1] = t[place - 2];
        t[n + 2] = t[place - 1];
        n += 3;
    }
    for (uint32_t i = 0; i < place; i++)
        t[n++] = t[i];
    struct lookup_match m = lookup_find(&x, t, n, place);
    assert_int_equal(m.at, place);
    assert_int_equal(m.length, place);
    lookup_free(&x);
}

/* One token again and again, and a hundred thousand of them: what a step costs doesn't grow. */
static void a_step_costs_the_same_however_long_the_text(void **state)
{
    (void)state;
    uint32_t n = 200000, *t = malloc(n * sizeof *t);
    struct lookup x = {0};
    for (uint32_t i = 0; i < n; i++)
        t[i] = i < n / 2 ? 7 : (uint32_t)(rng_at(SEED, 3, i) % 50);
    assert_int_equal(lookup_find(&x, t, 1, 0).at, 0);
    assert_int_equal(lookup_find(&x, t, n / 2, 0).length, LOOKUP_COUNTED);
    clock_t begin = clock();
    for (uint32_t i = n / 2; i <= n; i++)
        (void)lookup_find(&x, t, i, 0);
    double us = (double)(clock() - begin) * 1e6 / CLOCKS_PER_SEC / (n / 2);
    print_message("%.2f us a step\n", us);
    assert_true(us < 50); /* a scan of the text would take that long for 50,000 tokens */
    lookup_free(&x);
    free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_longest_earlier_occurrence_is_found_in_any_text),
        cmocka_unit_test(a_place_that_the_last_match_leads_to_is_preferred_among_many),
        cmocka_unit_test(a_step_costs_the_same_however_long_the_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
