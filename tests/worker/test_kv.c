/* The KV pool under random use: blocks are never lost, shared or found by a wrong name. */
#include "lib/base/rng.h"
#include "worker/kv.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

#define BT 4u

static struct block_name name_of(uint64_t x)
{
    struct block_name n = {{0}};
    memcpy(n.b, &x, sizeof x);
    n.b[15] = 1;
    return n;
}

static void tails_are_evicted_before_heads(void **state)
{
    (void)state;
    struct kv *kv = kv_new(4, 1, BT);
    uint32_t table[4], tokens[BT] = {1, 2, 3, 4}, hit[4], idle;
    for (uint32_t i = 0; i < 4; i++) {
        struct block_name n = name_of(i);
        table[i] = kv_alloc(kv, 0);
        kv_name(kv, table[i], &n, tokens);
    }
    assert_int_equal(kv_alloc(kv, 0), KV_NONE);
    kv_release(kv, table, 4);
    assert_int_equal(kv_counts(kv).cached, 4);
    assert_int_equal(kv_alloc(kv, 0), table[3]);
    struct block_name names[4] = {name_of(0), name_of(1), name_of(2), name_of(3)};
    uint32_t all[4 * BT] = {1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4};
    assert_int_equal(kv_find(kv, 0, names, all, 4, hit, &idle), 3);
    assert_int_equal(idle, 3);
    assert_null(kv_check(kv, NULL));
    kv_free(kv);
}

static void a_name_with_other_tokens_is_no_hit(void **state)
{
    (void)state;
    struct kv *kv = kv_new(2, 1, BT);
    uint32_t tokens[BT] = {1, 2, 3, 4}, other[BT] = {1, 2, 3, 5}, hit[1], idle;
    struct block_name n = name_of(9);
    uint32_t a = kv_alloc(kv, 0), b = kv_alloc(kv, 0);
    kv_name(kv, a, &n, tokens);
    kv_name(kv, b, &n, tokens); /* the first keeps it */
    assert_int_equal(kv_find(kv, 0, &n, other, 1, hit, &idle), 0);
    assert_int_equal(kv_find(kv, 0, &n, tokens, 1, hit, &idle), 1);
    assert_int_equal(hit[0], a);
    assert_int_equal(idle, 0);
    kv_free(kv);
}

static void quarantined_blocks_are_nobodys_until_they_are_let_go(void **state)
{
    (void)state;
    struct kv *kv = kv_new(3, 1, BT);
    uint32_t b[2] = {kv_alloc(kv, 0), kv_alloc(kv, 0)};
    kv_quarantine(kv, b, 2);
    assert_int_equal(kv_counts(kv).quarantined, 2);
    assert_int_not_equal(kv_alloc(kv, 0), KV_NONE);
    assert_int_equal(kv_alloc(kv, 0), KV_NONE);
    kv_unquarantine(kv, b, 2);
    assert_int_equal(kv_counts(kv).free, 2);
    assert_null(kv_check(kv, NULL));
    kv_free(kv);
}

/* ---- random tables over few names ---- */

#define N      32u
#define TABLES 8u
struct table {
    uint32_t blocks[N], n;
};

static void note_events(struct kv *kv, bool *present, uint64_t n_names)
{
    size_t n;
    const struct kv_event *e = kv_events(kv, &n);
    for (size_t i = 0; i < n; i++) {
        uint64_t x;
        memcpy(&x, e[i].name.b, sizeof x);
        assert_true(x < n_names && present[x] != e[i].added);
        present[x] = e[i].added;
    }
    kv_events_clear(kv);
}

static void random_op(struct kv *kv, struct rng *g, struct table *t, uint32_t rank, uint32_t *bad,
                      uint32_t *n_bad)
{
    uint64_t op = rng_below(g, 10);
    uint32_t tokens[BT], hit, idle;
    if (op < 4 && t->n < N) {
        uint32_t b = kv_alloc(kv, rank);
        if (b != KV_NONE)
            t->blocks[t->n++] = b;
    } else if (op < 7 && t->n < N) {
        uint64_t x = rng_below(g, 40);
        struct block_name name = name_of(x);
        for (uint32_t i = 0; i < BT; i++)
            tokens[i] = (uint32_t)x + i;
        if (kv_find(kv, rank, &name, tokens, 1, &hit, &idle)) {
            kv_hold(kv, hit);
            t->blocks[t->n++] = hit;
        } else if (t->n) {
            kv_name(kv, t->blocks[t->n - 1], &name, tokens);
        }
    } else if (op == 7) {
        kv_release(kv, t->blocks, t->n);
        t->n = 0;
    } else if (op == 8 && *n_bad < N) {
        uint32_t b = kv_alloc(kv, rank);
        if (b != KV_NONE) {
            kv_quarantine(kv, &b, 1);
            bad[(*n_bad)++] = b;
        }
    } else if (op == 9 && *n_bad) {
        kv_unquarantine(kv, bad, *n_bad);
        *n_bad = 0;
    }
}

static void random_use(uint32_t ranks, bool lose)
{
    struct rng g = {42};
    printf("%u ranks, seed %llu\n", ranks, (unsigned long long)g.state);
    struct kv *kv = kv_new(N, ranks, BT);
    struct table tables[TABLES] = {{{0}, 0}};
    uint32_t bad[N], n_bad = 0;
    bool present[40] = {false};
    for (int i = 0; i < 50000; i++) {
        uint32_t which = (uint32_t)rng_below(&g, TABLES);
        if (lose && i == 25000)
            kv_lose(kv, ranks - 1); /* what is held there goes on being counted */
        random_op(kv, &g, &tables[which], which % ranks, bad, &n_bad);
        uint32_t refs[N] = {0};
        for (uint32_t k = 0; k < TABLES; k++)
            for (uint32_t j = 0; j < tables[k].n; j++)
                refs[tables[k].blocks[j]]++;
        const char *wrong = kv_check(kv, refs);
        if (wrong)
            fail_msg("step %d: %s", i, wrong);
        note_events(kv, present, 40);
    }
    for (uint32_t k = 0; k < TABLES; k++)
        kv_release(kv, tables[k].blocks, tables[k].n);
    kv_unquarantine(kv, bad, n_bad);
    uint32_t lost = lose ? N / ranks : 0;
    assert_int_equal(kv_counts(kv).free, N - lost);
    assert_int_equal(kv_counts(kv).lost, lost);
    for (uint32_t r = 0; r < ranks; r++) {
        assert_int_equal(kv_counts_of(kv, r).free, lose && r == ranks - 1 ? 0 : N / ranks);
        assert_true(!kv_is_lost(kv, r) || kv_counts_of(kv, r).cached == 0);
    }
    kv_free(kv);
}

static void random_use_keeps_the_invariants(void **state)
{
    (void)state;
    random_use(1, false);
    random_use(4, false);
    random_use(4, true);
}

static void a_data_rank_finds_only_what_it_has_and_a_name_goes_with_its_last_block(void **state)
{
    (void)state;
    struct kv *kv = kv_new(4, 2, BT);
    uint32_t tokens[BT] = {1, 2, 3, 4}, hit, idle;
    struct block_name n = name_of(7);
    uint32_t a = kv_alloc(kv, 0), b = kv_alloc(kv, 1);
    size_t events;
    assert_int_equal(kv_rank_of(kv, a), 0);
    assert_int_equal(kv_rank_of(kv, b), 1);
    kv_name(kv, a, &n, tokens);
    assert_int_equal(kv_find(kv, 1, &n, tokens, 1, &hit, &idle), 0);
    kv_name(kv, b, &n, tokens);
    assert_int_equal(kv_find(kv, 0, &n, tokens, 1, &hit, &idle), 1);
    assert_int_equal(hit, a);
    assert_int_equal(kv_find(kv, 1, &n, tokens, 1, &hit, &idle), 1);
    assert_int_equal(hit, b);
    kv_events(kv, &events);
    assert_int_equal(events, 1);
    kv_drop(kv, a);
    kv_drop(kv, b);
    while (kv_alloc(kv, 0) != KV_NONE)
        ;
    assert_int_equal(kv_counts_of(kv, 1).free, 2);
    kv_events(kv, &events);
    assert_int_equal(events, 1); /* the other rank has it */
    while (kv_alloc(kv, 1) != KV_NONE)
        ;
    kv_events(kv, &events);
    assert_int_equal(events, 2);
    kv_free(kv);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tails_are_evicted_before_heads),
        cmocka_unit_test(a_name_with_other_tokens_is_no_hit),
        cmocka_unit_test(quarantined_blocks_are_nobodys_until_they_are_let_go),
        cmocka_unit_test(random_use_keeps_the_invariants),
        cmocka_unit_test(a_data_rank_finds_only_what_it_has_and_a_name_goes_with_its_last_block),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
