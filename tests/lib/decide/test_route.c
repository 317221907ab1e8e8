#include "lib/base/clock.h"
#include "lib/decide/route.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define NOW (1000 * NS_PER_S)
#define MAX 16

struct world {
    struct route_worker w[MAX];
    uint32_t cached[MAX];
    size_t n;
    struct rng rng;
};

static struct route_worker *add(struct world *f, enum route_role role)
{
    struct route_worker *w = &f->w[f->n++];
    const struct cost_shape shape = {.weight_bytes = 1e8,
                                     .params = 1.3e8,
                                     .layers = 30,
                                     .kv_heads = 3,
                                     .head_dim = 64,
                                     .heads = 9,
                                     .kv_element_bytes = 2};
    *w = (struct route_worker){.incarnation = f->n,
                               .heard_ns = NOW - 50 * NS_PER_MS,
                               .role = role,
                               .ready = true,
                               .kv_blocks = 4096,
                               .block_tokens = 32};
    cost_model_init(&w->cost.m, &shape, 100e9, 10e9, 1e9);
    return w;
}

static struct route_pick pick(struct world *f, uint32_t prompt, enum route_policy policy,
                              int expect)
{
    struct route_request q = {.prompt_tokens = prompt, .max_tokens = 64, .n = 1, .policy = policy};
    struct route_pick p;
    int rc = route(&q, f->w, f->n, f->cached, NOW, &f->rng, &p);
    assert_int_equal(rc == 0, expect);
    return p;
}

static void always_takes_two_workers_and_never_takes_one(void **s)
{
    (void)s;
    struct world f = {.rng = {1}};
    add(&f, ROUTE_PREFILL);
    add(&f, ROUTE_DECODE);
    struct route_pick p = pick(&f, 500, ROUTE_ALWAYS, 1);
    assert_int_equal(p.prefill, 0);
    assert_int_equal(p.decode, 1);
    assert_int_equal(p.reason, ROUTE_SPLIT);
    p = pick(&f, 500, ROUTE_NEVER, 1);
    assert_int_equal(p.prefill, -1);
    assert_int_equal(p.decode, 1);
    assert_int_equal(p.reason, ROUTE_ALONE);
}

static void without_prefill_workers_always_fails_and_auto_runs_on_decode(void **s)
{
    (void)s;
    struct world f = {.rng = {1}};
    add(&f, ROUTE_DECODE);
    assert_int_equal(pick(&f, 500, ROUTE_ALWAYS, 0).reason, ROUTE_NO_PREFILL);
    assert_int_equal(pick(&f, 500, ROUTE_AUTO, 1).reason, ROUTE_ALONE);
}

static void what_has_begun_goes_on_without_prefill_workers(void **s)
{
    (void)s;
    struct world f = {.rng = {1}};
    struct route_request q = {
        .prompt_tokens = 500, .max_tokens = 64, .n = 1, .continued = true, .policy = ROUTE_ALWAYS};
    struct route_pick p;
    add(&f, ROUTE_DECODE);
    assert_int_equal(route(&q, f.w, f.n, f.cached, NOW, &f.rng, &p), 0);
    assert_int_equal(p.reason, ROUTE_ALONE);
}

/* A node with many streams is lost: all of them come at once, each with thousands of tokens. */
static void what_has_begun_does_not_queue_at_prefill_while_decode_workers_are_idle(void **s)
{
    (void)s;
    struct world f = {.rng = {1}};
    struct route_request q = {.prompt_tokens = 4000,
                              .max_tokens = 3000,
                              .n = 1,
                              .continued = true,
                              .policy = ROUTE_ALWAYS};
    struct route_pick p;
    struct route_worker *prefill = add(&f, ROUTE_PREFILL), *busy = add(&f, ROUTE_DECODE);
    busy->running = 8; /* a prompt computed there would hold up eight answers */
    assert_int_equal(route(&q, f.w, f.n, f.cached, NOW, &f.rng, &p), 0);
    assert_int_equal(p.reason, ROUTE_SPLIT);
    busy->running = 0;
    prefill->sent_prefills = 3;
    prefill->sent_prefill_tokens = 12000;
    assert_int_equal(route(&q, f.w, f.n, f.cached, NOW, &f.rng, &p), 0);
    assert_int_equal(p.reason, ROUTE_ALONE);
    assert_int_equal(pick(&f, 4000, ROUTE_ALWAYS, 1).reason, ROUTE_SPLIT);
}

static void the_reason_says_what_is_missing(void **s)
{
    (void)s;
    struct world f = {.rng = {1}};
    assert_int_equal(pick(&f, 10, ROUTE_AUTO, 0).reason, ROUTE_NO_WORKER);
    add(&f, ROUTE_STANDBY);
    assert_int_equal(pick(&f, 10, ROUTE_AUTO, 0).reason, ROUTE_NO_WORKER);
    add(&f, ROUTE_PREFILL);
    assert_int_equal(pick(&f, 10, ROUTE_AUTO, 0).reason, ROUTE_NO_DECODE);
}

static void dead_draining_and_unready_workers_are_not_picked(void **s)
{
    (void)s;
    struct world f = {.rng = {7}};
    add(&f, ROUTE_DECODE)->heard_ns = NOW - ROUTE_FRESH_NS - 1;
    add(&f, ROUTE_DECODE)->draining = true;
    add(&f, ROUTE_DECODE)->ready = false;
    add(&f, ROUTE_DECODE)->incarnation = 0;
    assert_int_equal(pick(&f, 10, ROUTE_AUTO, 0).reason, ROUTE_NO_WORKER);
    add(&f, ROUTE_DECODE);
    for (int i = 0; i < 100; i++)
        assert_int_equal(pick(&f, 10, ROUTE_AUTO, 1).decode, 4);
}

static void two_unified_workers_are_parted_when_a_split_is_asked_for(void **s)
{
    (void)s;
    struct world f = {.rng = {1}};
    add(&f, ROUTE_UNIFIED);
    assert_int_equal(pick(&f, 100, ROUTE_ALWAYS, 0).reason, ROUTE_NO_PREFILL);
    add(&f, ROUTE_UNIFIED)->waiting_tokens = 5000;
    for (int i = 0; i < 50; i++) {
        struct route_pick p = pick(&f, 100, ROUTE_ALWAYS, 1);
        assert_int_not_equal(p.prefill, p.decode);
    }
}

static void auto_splits_when_decode_is_busy_and_not_when_it_is_idle(void **s)
{
    (void)s;
    struct world f = {.rng = {1}};
    add(&f, ROUTE_PREFILL);
    struct route_worker *d = add(&f, ROUTE_DECODE);
    assert_int_equal(pick(&f, 2000, ROUTE_AUTO, 1).reason, ROUTE_ALONE);
    d->running = 8;
    d->resident_tokens = 8000;
    assert_int_equal(pick(&f, 2000, ROUTE_AUTO, 1).reason, ROUTE_SPLIT);
    f.w[0].waiting_tokens = 1000000; /* P's queue costs more than it saves */
    assert_int_equal(pick(&f, 2000, ROUTE_AUTO, 1).reason, ROUTE_ALONE);
}

/* The ledger is what keeps a burst between two heartbeats from running to one worker. */
static void a_burst_is_spread_by_the_ledger(void **s)
{
    (void)s;
    struct world f = {.rng = {99}};
    int per_p[MAX] = {0}, per_d[MAX] = {0};
    for (int i = 0; i < 4; i++)
        add(&f, ROUTE_PREFILL);
    for (int i = 0; i < 4; i++)
        add(&f, ROUTE_DECODE);
    for (int i = 0; i < 200; i++) {
        struct route_pick p = pick(&f, 300, ROUTE_ALWAYS, 1);
        per_p[p.prefill]++;
        per_d[p.decode]++;
        f.w[p.prefill].sent_prefills++;
        f.w[p.prefill].sent_prefill_tokens += 300;
        f.w[p.decode].sent_decodes++;
        f.w[p.decode].sent_kv_tokens += 300;
    }
    for (int i = 0; i < 4; i++) {
        assert_in_range(per_p[i], 45, 55);
        assert_in_range(per_d[4 + i], 40, 60);
    }
}

static void equal_workers_are_picked_at_random(void **s)
{
    (void)s;
    struct world f = {.rng = {5}};
    int per[MAX] = {0};
    for (int i = 0; i < 4; i++)
        add(&f, ROUTE_DECODE);
    for (int i = 0; i < 4000; i++)
        per[pick(&f, 300, ROUTE_NEVER, 1).decode]++;
    for (int i = 0; i < 4; i++)
        assert_in_range(per[i], 850, 1150);
}

static void a_cached_prefix_draws_and_a_hot_one_spills(void **s)
{
    (void)s;
    struct world f = {.rng = {3}};
    for (int i = 0; i < 4; i++)
        add(&f, ROUTE_PREFILL);
    add(&f, ROUTE_DECODE);
    f.cached[2] = 2016;
    struct route_pick p = pick(&f, 2048, ROUTE_ALWAYS, 1);
    assert_int_equal(p.prefill, 2);
    assert_int_equal(p.prefill_cached, 2016);
    int hot = 0, spilled = 0;
    for (int i = 0; i < 100; i++) {
        p = pick(&f, 2048, ROUTE_ALWAYS, 1);
        hot += p.prefill == 2;
        spilled += p.prefill != 2;
        f.w[p.prefill].sent_prefills++;
        f.w[p.prefill].sent_prefill_tokens += 2048 - p.prefill_cached;
    }
    assert_true(hot >= 25);     /* it keeps its share and more */
    assert_true(spilled >= 30); /* and the others help */
}

static void what_failed_is_avoided_while_another_remains(void **s)
{
    (void)s;
    struct world f = {.rng = {3}};
    add(&f, ROUTE_DECODE)->avoid = true;
    assert_int_equal(pick(&f, 100, ROUTE_NEVER, 1).decode, 0);
    add(&f, ROUTE_DECODE)->waiting_tokens = 100000;
    for (int i = 0; i < 50; i++)
        assert_int_equal(pick(&f, 100, ROUTE_NEVER, 1).decode, 1);
}

static void a_full_kv_pool_is_dear(void **s)
{
    (void)s;
    struct world f = {.rng = {3}};
    struct route_worker *full = add(&f, ROUTE_DECODE);
    full->kv_blocks_used = 4090;
    full->resident_tokens = 4090 * 32;
    full->running = 1;
    add(&f, ROUTE_DECODE)->running = 2;
    for (int i = 0; i < 50; i++)
        assert_int_equal(pick(&f, 1000, ROUTE_NEVER, 1).decode, 1);
}

static void the_same_inputs_give_the_same_pick(void **s)
{
    (void)s;
    for (uint64_t seed = 1; seed < 50; seed++) {
        struct world a = {.rng = {seed}}, b;
        for (int i = 0; i < 8; i++)
            add(&a, i % 2 ? ROUTE_DECODE : ROUTE_PREFILL)->waiting_tokens = seed * 100;
        b = a;
        struct route_pick p = pick(&a, 700, ROUTE_AUTO, 1), q = pick(&b, 700, ROUTE_AUTO, 1);
        assert_int_equal(p.prefill, q.prefill);
        assert_int_equal(p.decode, q.decode);
    }
}

/* A rollout in its middle: 2 prefill and 9 decode of the old revision, 1 and 1 of the new. */
static void mixed_fleet(struct world *f)
{
    for (int i = 0; i < 3; i++)
        add(f, ROUTE_PREFILL)->pair = i < 2 ? 7 : 8;
    for (int i = 0; i < 10; i++)
        add(f, ROUTE_DECODE)->pair = i < 9 ? 7 : 8;
}

static void prefill_and_decode_are_of_one_revision(void **s)
{
    (void)s;
    struct world f = {.rng = {3}};
    mixed_fleet(&f);
    for (int i = 0; i < 500; i++) {
        struct route_pick p = pick(&f, 500, ROUTE_ALWAYS, 1);
        assert_int_equal(f.w[p.prefill].pair, f.w[p.decode].pair);
    }
}

static void a_revision_gets_what_its_scarcer_role_can_do(void **s)
{
    (void)s;
    struct world f = {.rng = {4}};
    int fresh = 0, n = 4000;
    mixed_fleet(&f);
    for (int i = 0; i < n; i++)
        fresh += f.w[pick(&f, 500, ROUTE_ALWAYS, 1).prefill].pair == 8;
    /* weights 2/3 and 1/10: 13 % to the new one, not the third that prefill alone would say */
    assert_in_range(fresh, n * 10 / 100, n * 16 / 100);
}

static void revisions_that_lack_a_role_make_no_pairs(void **s)
{
    (void)s;
    struct world f = {.rng = {5}};
    add(&f, ROUTE_PREFILL)->pair = 7;
    add(&f, ROUTE_DECODE)->pair = 8;
    pick(&f, 500, ROUTE_ALWAYS, 0);
    struct route_pick p = pick(&f, 500, ROUTE_AUTO, 1);
    assert_int_equal(p.reason, ROUTE_ALONE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prefill_and_decode_are_of_one_revision),
        cmocka_unit_test(a_revision_gets_what_its_scarcer_role_can_do),
        cmocka_unit_test(revisions_that_lack_a_role_make_no_pairs),
        cmocka_unit_test(always_takes_two_workers_and_never_takes_one),
        cmocka_unit_test(without_prefill_workers_always_fails_and_auto_runs_on_decode),
        cmocka_unit_test(what_has_begun_goes_on_without_prefill_workers),
        cmocka_unit_test(what_has_begun_does_not_queue_at_prefill_while_decode_workers_are_idle),
        cmocka_unit_test(the_reason_says_what_is_missing),
        cmocka_unit_test(dead_draining_and_unready_workers_are_not_picked),
        cmocka_unit_test(two_unified_workers_are_parted_when_a_split_is_asked_for),
        cmocka_unit_test(auto_splits_when_decode_is_busy_and_not_when_it_is_idle),
        cmocka_unit_test(a_burst_is_spread_by_the_ledger),
        cmocka_unit_test(equal_workers_are_picked_at_random),
        cmocka_unit_test(a_cached_prefix_draws_and_a_hot_one_spills),
        cmocka_unit_test(what_failed_is_avoided_while_another_remains),
        cmocka_unit_test(a_full_kv_pool_is_dear),
        cmocka_unit_test(the_same_inputs_give_the_same_pick),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
