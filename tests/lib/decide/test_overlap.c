/* When a step is computed as two halves. */
#include "lib/base/rng.h"
#include "lib/decide/overlap.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <cmocka.h>

/* Runs n steps that take `whole` or `halved` seconds, with some noise; how many were halved. */
static uint32_t live(struct overlap *o, struct rng *g, uint32_t rows, uint32_t n, double whole,
                     double halved)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < n; i++) {
        bool h = overlap_next(o, rows);
        double noise = 1 + 0.01 * (double)rng_below(g, 100) / 100;
        if (rng_below(g, 10) == 0)
            noise *= 20; /* somebody else's step */
        overlap_learn(o, rows, h, (h ? halved : whole) * noise);
        count += h;
    }
    return count;
}

static void both_ways_are_tried_in_turn_first(void **state)
{
    struct overlap o = {0};
    (void)state;
    for (uint32_t i = 0; i < 2 * OVERLAP_TRIES; i++) {
        bool h = overlap_next(&o, 64);
        assert_int_equal(h, i % 2);
        overlap_learn(&o, 64, h, 1);
    }
}

static void halves_stay_off_where_they_do_not_pay_and_go_on_where_they_do(void **state)
{
    struct overlap o = {0};
    struct rng g = {5};
    (void)state;
    assert_int_equal(live(&o, &g, 64, 1000, 1.0, 1.3), OVERLAP_TRIES);
    assert_int_equal(live(&o, &g, 512, 1000, 1.0, 0.7), 1000 - OVERLAP_TRIES);
    assert_false(overlap_next(&o, 100)); /* of the class of 64 */
    assert_true(overlap_next(&o, 1000));
}

static void a_gain_within_the_noise_is_none(void **state)
{
    struct overlap o = {0};
    struct rng g = {6};
    (void)state;
    assert_int_equal(live(&o, &g, 64, 500, 1.0, 0.985), OVERLAP_TRIES);
}

static void it_is_measured_again_when_the_load_may_have_changed(void **state)
{
    struct overlap o = {0};
    struct rng g = {7};
    (void)state;
    live(&o, &g, 64, 2 * OVERLAP_TRIES + OVERLAP_STEPS, 1.0, 1.3);
    assert_false(overlap_next(&o, 64));
    assert_true(live(&o, &g, 64, 100, 1.0, 0.5) >= 100 - OVERLAP_TRIES);
}

static void one_slow_step_decides_nothing(void **state)
{
    struct overlap o = {0};
    (void)state;
    for (uint32_t i = 0; i < 2 * OVERLAP_TRIES; i++) {
        bool h = overlap_next(&o, 8);
        overlap_learn(&o, 8, h, h ? 1.2 : i == 4 ? 50 : 1);
    }
    assert_false(overlap_next(&o, 8));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_ways_are_tried_in_turn_first),
        cmocka_unit_test(halves_stay_off_where_they_do_not_pay_and_go_on_where_they_do),
        cmocka_unit_test(a_gain_within_the_noise_is_none),
        cmocka_unit_test(it_is_measured_again_when_the_load_may_have_changed),
        cmocka_unit_test(one_slow_step_decides_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
