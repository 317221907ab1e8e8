/* Placement of experts: the published example, properties of any placement, what skewed loads gain.
 */
#include "lib/decide/eplb.h"

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

static const float example[] = {90, 132, 40,  61, 104, 165, 39,  4,   73,  56, 183, 86,
                                20, 107, 104, 64, 19,  197, 187, 157, 172, 86, 16,  27};

static void check_place(const struct eplb_shape *s, const float *load, const uint32_t *want)
{
    struct err e = {0};
    uint32_t got[64], replica[64], count[64], n = 2 * s->physical;
    if (eplb_place(s, load, 2, got, replica, count, &e) < 0)
        fail_msg("%s", e.msg);
    assert_memory_equal(got, want, n * sizeof *want);
}

static void deepseeks_example_is_placed_as_published(void **state)
{
    (void)state;
    static const uint32_t want[] = {5, 6,  5, 7, 8, 4,  3, 4, 10, 9, 10, 2, 0, 1, 11, 1,
                                    7, 10, 6, 8, 6, 11, 8, 9, 2,  4, 5,  1, 5, 0, 3,  1};
    struct eplb_shape s = {.experts = 12, .physical = 16, .groups = 4, .nodes = 2, .devices = 8};
    check_place(&s, example, want);
}

static void groups_that_do_not_divide_are_placed_globally(void **state)
{
    (void)state;
    static const uint32_t want[] = {10, 6,  10, 7, 0, 2,  11, 4, 5, 9, 5, 4, 8, 3, 1, 1,
                                    1,  10, 2,  4, 5, 11, 5,  0, 6, 7, 6, 3, 8, 8, 9, 7};
    struct eplb_shape s = {.experts = 12, .physical = 16, .groups = 5, .nodes = 2, .devices = 8};
    check_place(&s, example, want);
}

static void places_of_each_expert_are_listed(void **state)
{
    (void)state;
    struct eplb_shape s = {.experts = 12, .physical = 16, .groups = 4, .nodes = 2, .devices = 8};
    uint32_t at[32], replica[32], count[24], places[12 * 3];
    struct err e = {0};
    assert_int_equal(eplb_place(&s, example, 2, at, replica, count, &e), 0);
    eplb_places(&s, at, places, 3);
    assert_memory_equal(places + 5 * 3, ((uint32_t[]){0, 2, EPLB_NONE}), 12);
    assert_memory_equal(places + 9 * 3, ((uint32_t[]){9, EPLB_NONE, EPLB_NONE}), 12);
}

/* Zipf's law over a random order of experts. */
static void skewed(float *load, uint32_t n, struct rng *rng)
{
    uint32_t *order = calloc(n, sizeof *order);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t j = (uint32_t)rng_below(rng, i + 1);
        order[i] = order[j];
        order[j] = i;
    }
    for (uint32_t i = 0; i < n; i++)
        load[order[i]] = (float)floor(100000.0 / pow(i + 1, 0.9));
    free(order);
}

/* Replicas of an expert share a node; none of a node's experts was given one that another of the
 * node needed more. */
static void check_nodes(const struct eplb_shape *s, const float *load, const uint32_t *at,
                        const uint32_t *count)
{
    uint32_t a_node = s->physical / s->nodes;
    for (uint32_t node = 0; node < s->nodes; node++) {
        const uint32_t *here = at + (size_t)node * a_node;
        float most = 0, least = INFINITY;
        for (uint32_t p = 0; p < a_node; p++) {
            uint32_t e = here[p], n = 0;
            for (uint32_t q = 0; q < a_node; q++)
                n += here[q] == e;
            assert_int_equal(n, count[e]);
            most = fmaxf(most, load[e] / (float)count[e]);
            if (count[e] > 1)
                least = fminf(least, load[e] / (float)(count[e] - 1));
        }
        assert_true(most <= least);
    }
}

static void check_properties(const struct eplb_shape *s, const float *load)
{
    uint32_t *at = calloc(s->physical, sizeof *at), *replica = calloc(s->physical, sizeof *at),
             *count = calloc(s->experts, sizeof *at), *seen = calloc(s->experts, sizeof *at);
    struct err e = {0};
    assert_int_equal(eplb_place(s, load, 1, at, replica, count, &e), 0);
    for (uint32_t p = 0; p < s->physical; p++) {
        assert_true(at[p] < s->experts && replica[p] < count[at[p]]);
        seen[at[p]]++;
    }
    assert_memory_equal(seen, count, s->experts * sizeof *seen);
    check_nodes(s, load, at, count);
    assert_true(eplb_imbalance(s, load, at) >= 1 - 1e-6);
    free(at);
    free(replica);
    free(count);
    free(seen);
}

static void any_load_gives_every_expert_its_places_in_one_node(void **state)
{
    (void)state;
    const char *seed = getenv("SEED");
    struct rng rng = {seed ? strtoull(seed, NULL, 10) : rng_secret_u64() % 1000000};
    printf("SEED=%llu\n", (unsigned long long)rng.state);
    for (int i = 0; i < 300; i++) {
        uint32_t nodes = 1u << rng_below(&rng, 3), devices = nodes << rng_below(&rng, 3);
        uint32_t groups = nodes << rng_below(&rng, 2), size = 1 + (uint32_t)rng_below(&rng, 8);
        uint32_t experts = groups * size;
        struct eplb_shape s = {
            .experts = experts, .groups = groups, .nodes = nodes, .devices = devices};
        s.physical =
            (experts + devices) / devices * devices + devices * (uint32_t)rng_below(&rng, 3);
        float *load = calloc(experts, sizeof *load);
        skewed(load, experts, &rng);
        if (i % 7 == 0)
            memset(load, 0, experts * sizeof *load);
        check_properties(&s, load);
        free(load);
    }
}

static void a_skewed_trace_is_evened_out(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        struct eplb_shape s;
        double limit;
    } cases[] = {
        {"prefill, 4 nodes x 8", {256, 288, 8, 4, 32}, 1.5},
        {"decode, 18 nodes x 8", {256, 288, 8, 18, 144}, 2.2},
        {"one node of 8", {64, 72, 1, 1, 8}, 1.2},
    };
    struct rng rng = {7};
    float load[256];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct eplb_shape *s = &cases[i].s;
        struct eplb_shape plain = *s; /* before: no replicas, experts in order */
        uint32_t at[288], before[288];
        struct err e = {0};
        skewed(load, s->experts, &rng);
        plain.physical = s->experts;
        while (plain.physical % plain.devices)
            plain.physical++;
        eplb_initial(&plain, before);
        assert_int_equal(eplb_place(s, load, 1, at, NULL, NULL, &e), 0);
        double was = eplb_imbalance(&plain, load, before), is = eplb_imbalance(s, load, at);
        printf("%s: greatest over mean load %.2f before, %.2f after\n", cases[i].name, was, is);
        assert_true(is < was && is < cases[i].limit);
    }
}

static void shapes_that_do_not_fit_are_refused(void **state)
{
    (void)state;
    static const struct eplb_shape bad[] = {
        {0, 0, 1, 1, 1},       {8, 7, 1, 1, 1},          {8, 8, 1, 1, 3}, {8, 8, 3, 1, 1},
        {8, 8, 0, 1, 1},       {8, 8, 1, 0, 1},          {8, 8, 1, 1, 0}, {8, 8, 1, 3, 4},
        {5000, 5000, 1, 1, 1}, {8, UINT32_MAX, 1, 1, 1},
    };
    float load[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    uint32_t at[8];
    struct err e = {0};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_true(eplb_check(&bad[i], &e) < 0 && *e.msg);
    struct eplb_shape good = {8, 8, 1, 1, 2};
    assert_int_equal(eplb_place(&good, load, 1, at, NULL, NULL, &e), 0);
    load[3] = NAN;
    assert_true(eplb_place(&good, load, 1, at, NULL, NULL, &e) < 0);
    load[3] = -1;
    assert_true(eplb_place(&good, load, 1, at, NULL, NULL, &e) < 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(deepseeks_example_is_placed_as_published),
        cmocka_unit_test(groups_that_do_not_divide_are_placed_globally),
        cmocka_unit_test(places_of_each_expert_are_listed),
        cmocka_unit_test(any_load_gives_every_expert_its_places_in_one_node),
        cmocka_unit_test(a_skewed_trace_is_evened_out),
        cmocka_unit_test(shapes_that_do_not_fit_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
