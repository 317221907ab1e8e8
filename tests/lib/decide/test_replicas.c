/* Second copies of experts at run time. */
#include "lib/decide/replicas.h"

#include "lib/base/rng.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static void the_heaviest_goes_to_the_lightest(void **state)
{
    (void)state;
    static const float load[] = {100, 1, 10, 10, 5, 5};
    static const uint8_t home[] = {0, 0, 1, 1, 2, 2};
    uint32_t places[3];
    struct err e = {0};
    assert_int_equal(replicas_choose(load, home, 6, 3, 1, 0, NULL, places, &e), 0);
    assert_int_equal(places[1], 0); /* 100 at three ranks; rank 0's own room takes what is left */
    assert_int_equal(places[2], 0);
    uint32_t none[3] = {REPLICAS_NONE, REPLICAS_NONE, REPLICAS_NONE};
    assert_true(replicas_imbalance(load, home, 6, 3, 1, places) <
                replicas_imbalance(load, home, 6, 3, 1, none));
}

static void what_stays_keeps_its_place(void **state)
{
    (void)state;
    static const float load[] = {9, 8, 7, 6};
    static const uint8_t home[] = {0, 0, 1, 1};
    uint32_t first[4], again[4];
    struct err e = {0};
    assert_int_equal(replicas_choose(load, home, 4, 2, 2, 0, NULL, first, &e), 0);
    uint32_t turned[4] = {first[1], first[0], first[3], first[2]};
    assert_int_equal(replicas_choose(load, home, 4, 2, 2, 0, turned, again, &e), 0);
    assert_memory_equal(again, turned, sizeof turned);
}

static void any_load_gives_a_sound_choice_that_does_not_harm(void **state)
{
    (void)state;
    const char *seed = getenv("SEED");
    struct rng rng = {seed ? strtoull(seed, NULL, 10) : rng_secret_u64() % 1000000};
    printf("SEED=%llu\n", (unsigned long long)rng.state);
    for (uint32_t i = 0; i < 300; i++) {
        uint32_t ranks = 1 + (uint32_t)rng_below(&rng, 8), experts = ranks * (1 + i % 5u);
        uint32_t room = (uint32_t)rng_below(&rng, 4), places[32], none[32];
        float load[64];
        uint8_t home[64];
        struct err e = {0};
        for (uint32_t x = 0; x < experts; x++) {
            load[x] = i % 9 ? (float)floor(1000 * pow(rng_unit(&rng), 4)) : 0;
            home[x] = (uint8_t)(x * ranks / experts);
        }
        memset(none, 0xff, sizeof none);
        assert_int_equal(replicas_choose(load, home, experts, ranks, room, 0, NULL, places, &e), 0);
        for (uint32_t p = 0; p < ranks * room; p++) {
            assert_true(places[p] == REPLICAS_NONE ||
                        (places[p] < experts && home[places[p]] != p / room));
            for (uint32_t q = p / room * room; q < p; q++)
                assert_true(places[p] == REPLICAS_NONE || places[q] != places[p]);
        }
        assert_true(replicas_imbalance(load, home, experts, ranks, room, places) >= 1 - 1e-9);
    }
}

static void every_expert_is_covered_and_stays_so(void **state)
{
    (void)state;
    struct rng rng = {rng_secret_u64() % 1000000};
    printf("SEED=%llu\n", (unsigned long long)rng.state);
    for (uint32_t i = 0; i < 300; i++) {
        uint32_t ranks = 2 + (uint32_t)rng_below(&rng, 7), experts = ranks + i % 40u;
        uint32_t need = (experts + ranks - 1) / ranks, room = need + i % 3u;
        uint32_t cover[8 * 24], places[8 * 24], most[8] = {0};
        uint64_t at[64] = {0};
        float load[64];
        uint8_t home[64];
        struct err e = {0};
        for (uint32_t x = 0; x < experts; x++) {
            load[x] = (float)rng_below(&rng, 1000);
            home[x] = (uint8_t)((x * ranks + ranks - 1) / experts % ranks);
            most[home[x]]++;
        }
        for (uint32_t r = 0; r < ranks; r++)
            need = most[r] > need ? most[r] : need;
        room = room < need ? need : room;
        uint32_t fixed = replicas_cover(home, experts, ranks, room, cover);
        assert_true(fixed && fixed <= need);
        assert_int_equal(replicas_cover(home, experts, ranks, fixed - 1, places), 0);
        for (uint32_t p = 0; p < ranks * room; p++)
            if (cover[p] != REPLICAS_NONE) {
                assert_true(p % room < fixed && home[cover[p]] != p / room);
                at[cover[p]]++;
            }
        for (uint32_t x = 0; x < experts; x++)
            assert_int_equal(at[x], 1);
        assert_int_equal(
            replicas_choose(load, home, experts, ranks, room, fixed, cover, places, &e), 0);
        for (uint32_t r = 0; r < ranks; r++) {
            assert_memory_equal(places + r * room, cover + r * room, fixed * sizeof *cover);
            for (uint32_t a = 0; a < room; a++)
                for (uint32_t b = 0; b < a; b++)
                    assert_true(places[r * room + a] == REPLICAS_NONE ||
                                places[r * room + a] != places[r * room + b]);
        }
    }
}

static void bad_input_is_refused(void **state)
{
    (void)state;
    float load[2] = {1, NAN};
    uint8_t home[2] = {0, 5};
    uint32_t places[2];
    struct err e = {0};
    assert_true(replicas_choose(load, home, 2, 0, 1, 0, NULL, places, &e) < 0);
    assert_true(replicas_choose(load, home, 2, 65, 1, 0, NULL, places, &e) < 0);
    assert_true(replicas_choose(load, home, 2, 2, 1, 0, NULL, places, &e) < 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_heaviest_goes_to_the_lightest),
        cmocka_unit_test(what_stays_keeps_its_place),
        cmocka_unit_test(any_load_gives_a_sound_choice_that_does_not_harm),
        cmocka_unit_test(every_expert_is_covered_and_stays_so),
        cmocka_unit_test(bad_input_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
