/* At which data rank a sequence is computed. */
#include "lib/base/rng.h"
#include "lib/decide/place.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <cmocka.h>

#define BT 32u

static void the_rank_with_least_to_do_is_chosen_and_the_first_of_equals(void **state)
{
    (void)state;
    struct place_rank r[3] = {{.free_blocks = 10, .backlog_tokens = 100},
                              {.free_blocks = 10, .backlog_tokens = 50},
                              {.free_blocks = 10, .backlog_tokens = 50}};
    assert_int_equal(place_choose(r, 3, 64, BT), 1);
    r[1].sequences = 1;
    assert_int_equal(place_choose(r, 3, 64, BT), 2);
    assert_int_equal(place_choose(r, 1, 64, BT), 0);
}

static void a_cached_prefix_draws_its_sequence_until_the_rank_is_much_busier(void **state)
{
    (void)state;
    struct place_rank r[2] = {{.free_blocks = 10}, {.free_blocks = 10, .hit_blocks = 4}};
    assert_int_equal(place_choose(r, 2, 160, BT), 1);
    r[1].sequences = 3;
    assert_int_equal(place_choose(r, 2, 160, BT), 1);
    r[1].sequences = 5;
    assert_int_equal(place_choose(r, 2, 160, BT), 0);
}

static void a_rank_without_room_is_taken_only_when_none_has_any(void **state)
{
    (void)state;
    struct place_rank r[2] = {{.free_blocks = 2, .hit_blocks = 1},
                              {.free_blocks = 5, .backlog_tokens = 1000, .sequences = 9}};
    assert_int_equal(place_choose(r, 2, 160, BT), 1);
    r[0].hit_blocks = 3;
    assert_int_equal(place_choose(r, 2, 160, BT), 0);
    r[0].idle_blocks = 3; /* the hit itself is free: holding it takes blocks too */
    assert_int_equal(place_choose(r, 2, 160, BT), 1);
    r[1].free_blocks = 0; /* lacks 5, the first one 3 */
    assert_int_equal(place_choose(r, 2, 160, BT), 0);
}

static void prompts_that_come_together_are_spread(void **state)
{
    (void)state;
    struct place_rank r[4] = {
        {.free_blocks = 64}, {.free_blocks = 64}, {.free_blocks = 64}, {.free_blocks = 64}};
    struct rng g = {11};
    uint32_t most = 0, least = UINT32_MAX;
    for (int i = 0; i < 64; i++) {
        uint32_t tokens = 16 + (uint32_t)rng_below(&g, 64);
        struct place_rank *at = &r[place_choose(r, 4, tokens, BT)];
        at->free_blocks -= place_blocks(at, tokens, BT);
        at->backlog_tokens += place_backlog(at, tokens, BT);
        at->sequences++;
    }
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t all = r[i].backlog_tokens + 32 * r[i].sequences;
        most = all > most ? all : most;
        least = all < least ? all : least;
    }
    assert_true(most - least <= 2 * (80 + 32));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_rank_with_least_to_do_is_chosen_and_the_first_of_equals),
        cmocka_unit_test(a_cached_prefix_draws_its_sequence_until_the_rank_is_much_busier),
        cmocka_unit_test(a_rank_without_room_is_taken_only_when_none_has_any),
        cmocka_unit_test(prompts_that_come_together_are_spread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
