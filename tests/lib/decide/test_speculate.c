/* How many drafts a step takes, by what they cost and bring. */
#include "lib/base/rng.h"
#include "lib/decide/speculate.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#define SEED 20261130u

static struct speculate_cost cost_of(double one_s, double share)
{
    struct speculate_cost c;
    speculate_cost_init(&c);
    for (uint32_t i = 0; i < 400; i++) {
        uint32_t rows = 1 + i % 4;
        speculate_cost_observe(&c, rows, one_s * (1 + share * (rows - 1)));
    }
    return c;
}

static uint32_t drafts_of(double share, double accept, uint32_t rows, uint32_t most)
{
    struct speculate_cost c = cost_of(.01, share);
    struct speculate_history h = {0};
    struct speculate_seq s = {.history = &h, .accept = accept, .most = most};
    speculate(&c, &s, 1, rows, 64);
    return s.drafts;
}

static void the_cost_of_a_row_is_learnt_and_kept(void **state)
{
    (void)state;
    struct speculate_cost c = cost_of(.01, .3);
    assert_true(c.share > .299 && c.share < .301 && c.one_s > .00999 && c.one_s < .01001);
    for (uint32_t i = 0; i < 2000; i++) /* single rows tell nothing of a further one */
        speculate_cost_observe(&c, 1, i < 50 ? .01 : .02);
    assert_true(c.share > .25 && c.share < .35 && c.one_s > .0199 && c.one_s < .0201);
    double before = c.one_s;
    speculate_cost_observe(&c, 1, 5); /* somebody else had the machine */
    assert_true(c.one_s < before * 1.25);
}

static void a_cost_under_noise_is_still_found(void **state)
{
    struct speculate_cost c;
    (void)state;
    speculate_cost_init(&c);
    for (uint32_t i = 0; i < 1000; i++) {
        uint32_t rows = 1 + (uint32_t)(rng_at(SEED, 1, i) % 9);
        double noise = .8 + .4 * rng_unit_at(SEED, 2, i);
        speculate_cost_observe(&c, rows, .01 * (1 + .2 * (rows - 1)) * noise);
    }
    print_message("share %.3f\n", c.share);
    assert_true(c.share > .15 && c.share < .25);
}

static void drafts_grow_with_their_chance_and_shrink_with_their_price(void **state)
{
    (void)state;
    assert_int_equal(drafts_of(.01, .95, 1, 10), 10);
    assert_int_equal(drafts_of(.9, .5, 1, 10), 0);
    uint32_t before = 0;
    for (double a = .1; a < .99; a += .1) {
        uint32_t n = drafts_of(.2, a, 1, 16);
        assert_true(n >= before);
        before = n;
    }
    assert_true(before >= 3);
    before = 16;
    for (double share = .02; share < 1; share += .05) {
        uint32_t n = drafts_of(share, .8, 1, 16);
        assert_true(n <= before);
        before = n;
    }
    assert_int_equal(before, 0);
}

/* The sum that is maximised, over every number of drafts. */
static void the_number_is_the_one_with_the_most_tokens_a_second(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 500; i++) {
        double share = .02 + .5 * rng_unit_at(SEED, 3, i), a = .98 * rng_unit_at(SEED, 4, i);
        uint32_t rows = 1 + (uint32_t)(rng_at(SEED, 5, i) % 12), best = 0;
        double most = 0, tokens = rows, chance = a;
        for (uint32_t k = 0; k <= 16; k++) {
            double rate = tokens / (1 + share * (rows + k - 1));
            if (rate > most + 1e-9) {
                most = rate;
                best = k;
            }
            tokens += chance;
            chance *= a;
        }
        struct speculate_cost c = {.one_s = .01, .share = share};
        struct speculate_history h = {0};
        struct speculate_seq s = {.history = &h, .accept = a, .most = 16};
        speculate(&c, &s, 1, rows, 64);
        assert_int_equal(s.drafts, best);
    }
}

static void a_large_batch_drafts_nothing(void **state)
{
    (void)state;
    assert_true(drafts_of(.2, .8, 1, 10) > 0);
    assert_int_equal(drafts_of(.2, .8, 32, 10), 0);
}

static void rows_go_where_they_are_most_likely_right(void **state)
{
    (void)state;
    struct speculate_cost c = cost_of(.01, .1);
    struct speculate_history h[3] = {0};
    struct speculate_seq s[3] = {{.history = &h[0], .accept = .4, .most = 10},
                                 {.history = &h[1], .accept = .95, .most = 10},
                                 {.history = &h[2], .accept = .9, .most = 2}};
    speculate(&c, s, 3, 3, 6);
    assert_int_equal(s[0].drafts + s[1].drafts + s[2].drafts, 6);
    assert_int_equal(s[0].drafts, 0);
    assert_true(s[1].drafts > s[2].drafts && s[2].drafts <= 2);
}

static void a_sequence_learns_and_a_new_one_begins_with_what_all_have_learnt(void **state)
{
    (void)state;
    struct speculate_history a = {0}, b = {0};
    struct speculate_prior p = {0};
    uint32_t class = speculate_class(5);
    double first = speculate_accept(&a, &p, class);
    for (uint32_t i = 0; i < 20; i++)
        speculate_learn(&a, &p, class, 4, 0);
    assert_true(speculate_accept(&a, &p, class) < .1);
    assert_true(speculate_accept(&b, &p, class) < first / 2);
    assert_true(speculate_accept(&b, &p, speculate_class(20)) > .8); /* longer matches: untouched */
    for (uint32_t i = 0; i < 20; i++)
        speculate_learn(&b, &p, class, 4, 4);
    assert_true(speculate_accept(&b, &p, class) > .9);
}

/* Tries of a sequence whose drafts never come true become rare: what is lost is bounded. */
static void text_that_never_repeats_costs_little(void **state)
{
    (void)state;
    struct speculate_cost c = cost_of(.01, .3);
    struct speculate_history h = {0};
    struct speculate_prior p = {0};
    uint32_t rows = 0, steps = 2000;
    for (uint32_t i = 0; i < steps; i++) {
        struct speculate_seq s = {.history = &h, .accept = speculate_accept(&h, &p, 2), .most = 10};
        speculate(&c, &s, 1, 1, 16);
        rows += s.drafts;
        if (s.drafts)
            speculate_learn(&h, &p, 2, s.drafts, 0);
    }
    print_message("%u drafts in %u steps\n", rows, steps);
    assert_true(rows > 5 && rows * .3 < .01 * steps);
}

static void a_text_that_begins_to_repeat_is_noticed(void **state)
{
    (void)state;
    struct speculate_cost c = cost_of(.01, .3);
    struct speculate_history h = {0};
    struct speculate_prior p = {0};
    for (uint32_t i = 0; i < 50; i++)
        speculate_learn(&h, &p, 2, 4, 0);
    uint32_t gained = 0;
    for (uint32_t i = 0; i < 1000; i++) {
        struct speculate_seq s = {.history = &h, .accept = speculate_accept(&h, &p, 2), .most = 10};
        speculate(&c, &s, 1, 1, 16);
        if (s.drafts)
            speculate_learn(&h, &p, 2, s.drafts, s.drafts);
        gained += s.drafts;
    }
    assert_true(gained > 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_cost_of_a_row_is_learnt_and_kept),
        cmocka_unit_test(a_cost_under_noise_is_still_found),
        cmocka_unit_test(drafts_grow_with_their_chance_and_shrink_with_their_price),
        cmocka_unit_test(the_number_is_the_one_with_the_most_tokens_a_second),
        cmocka_unit_test(a_large_batch_drafts_nothing),
        cmocka_unit_test(rows_go_where_they_are_most_likely_right),
        cmocka_unit_test(a_sequence_learns_and_a_new_one_begins_with_what_all_have_learnt),
        cmocka_unit_test(text_that_never_repeats_costs_little),
        cmocka_unit_test(a_text_that_begins_to_repeat_is_noticed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
