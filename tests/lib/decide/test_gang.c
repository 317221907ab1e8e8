#include "lib/base/rng.h"
#include "lib/decide/gang.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#define S 1000000000ull

static struct gang_group group(const char *name, uint64_t created, int32_t size)
{
    return (struct gang_group){
        .name = name, .created_ns = created, .size = size, .there = size, .gated = size};
}

static void the_oldest_whole_group_has_the_turn(void **state)
{
    (void)state;
    struct gang_group g[] = {group("b", 20 * S, 2), group("a", 10 * S, 4), group("c", 5 * S, 2)};
    g[2].there = g[2].gated = 1; /* half of it is still to be made */
    assert_string_equal(gang_next(g, 3, 30 * S).group, "a");
}

static void nobody_else_is_let_go_while_a_group_is_being_placed(void **state)
{
    (void)state;
    struct gang_group g[] = {group("a", 10 * S, 2), group("b", 5 * S, 2)};
    g[0].gated = 0;
    g[0].lifted_ns = 30 * S;
    g[0].placed = 1;
    struct gang_turn t = gang_next(g, 2, 40 * S);
    assert_null(t.group);
    assert_null(t.take_back);
    assert_int_equal(t.look_again_ns, 90 * S);
    g[0].placed = 2;
    assert_string_equal(gang_next(g, 2, 40 * S).group, "b");
}

static void gates_that_a_dead_controller_left_are_lifted_first(void **state)
{
    (void)state;
    struct gang_group g[] = {group("a", 10 * S, 4), group("b", 5 * S, 2)};
    g[0].gated = 3;
    g[0].lifted_ns = 20 * S;
    assert_string_equal(gang_next(g, 2, 21 * S).group, "a");
}

static void a_group_that_is_not_placed_in_time_is_taken_back(void **state)
{
    (void)state;
    struct gang_group g[] = {group("a", 10 * S, 2), group("b", 15 * S, 2)};
    g[0].gated = 0;
    g[0].lifted_ns = 30 * S;
    g[0].placed = 1;
    struct gang_turn t = gang_next(g, 2, 30 * S + GANG_PATIENCE_NS);
    assert_string_equal(t.take_back, "a");
    assert_null(t.group);
}

static void a_group_in_back_off_lets_others_pass(void **state)
{
    (void)state;
    struct gang_group g[] = {group("a", 10 * S, 2), group("b", 20 * S, 2)};
    g[0].not_before_ns = 100 * S;
    struct gang_turn t = gang_next(g, 2, 30 * S);
    assert_string_equal(t.group, "b");
    assert_int_equal(t.look_again_ns, 100 * S);
    assert_string_equal(gang_next(g, 1, 100 * S).group, "a");
}

/* ---- no deadlock ---- */

#define GROUPS 4
#define NODES  5

struct cluster {
    struct gang_group g[GROUPS];
    int32_t free;
    uint64_t now;
    char names[GROUPS][8];
    uint64_t served[GROUPS]; /* when it was placed as a whole */
};

/* The scheduler gives a node to any pod that is free of its gate, in random order. */
static void place_one(struct cluster *c, struct rng *r)
{
    for (size_t k = 0, at = rng_below(r, GROUPS); k < GROUPS && c->free; k++) {
        struct gang_group *g = &c->g[(at + k) % GROUPS];
        if (g->there - g->gated > g->placed) {
            g->placed++;
            c->free--;
            return;
        }
    }
}

static void take_back(struct cluster *c, struct gang_group *g)
{
    c->free += g->placed;
    *g = group(g->name, c->now, g->size);
    g->not_before_ns = c->now + 30 * S;
}

/* A group that was served for a while is done and gives its nodes back. */
static void finish(struct cluster *c, size_t i)
{
    struct gang_group *g = &c->g[i];
    if (g->placed == g->size && !c->served[i])
        c->served[i] = c->now;
    if (c->served[i] && g->there && c->now > c->served[i] + 200 * S) {
        c->free += g->placed;
        g->there = g->gated = g->placed = 0;
    }
}

static struct gang_group *named(struct cluster *c, const char *name)
{
    for (size_t i = 0; i < GROUPS; i++)
        if (name && strcmp(c->g[i].name, name) == 0)
            return &c->g[i];
    return NULL;
}

static size_t list(const struct cluster *c, struct gang_group *out)
{
    size_t n = 0;
    for (size_t i = 0; i < GROUPS; i++)
        if (c->g[i].there)
            out[n++] = c->g[i];
    return n;
}

static void step(struct cluster *c, struct rng *r)
{
    struct gang_group all[GROUPS];
    struct gang_turn t = gang_next(all, list(c, all), c->now);
    struct gang_group *turn = named(c, t.group), *back = named(c, t.take_back);
    if (turn && turn->gated) {
        if (turn->gated == turn->there)
            turn->lifted_ns = c->now;
        turn->gated--;
    }
    if (back)
        take_back(c, back);
    place_one(c, r);
    c->now += S;
    for (size_t i = 0; i < GROUPS; i++)
        finish(c, i);
}

/* Groups of 2 to 4 pods on 5 nodes: no two fit beside a third, and each is served in the end. */
static void groups_that_compete_for_nodes_are_all_served_in_the_end(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 200; seed++) {
        struct cluster c = {.free = NODES, .now = 1000 * S};
        struct rng r = {seed};
        for (size_t i = 0; i < GROUPS; i++) {
            snprintf(c.names[i], sizeof c.names[i], "g%zu", i);
            c.g[i] = group(c.names[i], c.now + i, 2 + (int32_t)rng_below(&r, 3));
        }
        for (int i = 0; i < 4000; i++)
            step(&c, &r);
        for (size_t i = 0; i < GROUPS; i++)
            if (!c.served[i])
                fail_msg("seed %llu: group %zu was never placed", (unsigned long long)seed, i);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_oldest_whole_group_has_the_turn),
        cmocka_unit_test(nobody_else_is_let_go_while_a_group_is_being_placed),
        cmocka_unit_test(gates_that_a_dead_controller_left_are_lifted_first),
        cmocka_unit_test(a_group_that_is_not_placed_in_time_is_taken_back),
        cmocka_unit_test(a_group_in_back_off_lets_others_pass),
        cmocka_unit_test(groups_that_compete_for_nodes_are_all_served_in_the_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
