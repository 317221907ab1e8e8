#include "lib/base/rng.h"
#include "lib/decide/index.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

static struct block_name name(uint64_t v)
{
    struct block_name n = {{0}};
    uint64_t h = v * 0x9E3779B97F4A7C15ull;
    memcpy(n.b, &h, 8);
    memcpy(n.b + 8, &v, 8);
    return n;
}

static void the_longest_prefix_of_each_worker_is_found(void **s)
{
    (void)s;
    struct index *x = index_new(1000);
    struct block_name n[8];
    for (unsigned i = 0; i < 8; i++)
        n[i] = name(i);
    index_add(x, 0, n, 8);
    index_add(x, 1, n, 3);
    index_add(x, 2, n + 1, 7); /* not the first: worth nothing */
    index_add(x, 200, n, 1);
    uint32_t depth[256];
    index_match(x, n, 8, depth, 256);
    assert_int_equal(depth[0], 8);
    assert_int_equal(depth[1], 3);
    assert_int_equal(depth[2], 0);
    assert_int_equal(depth[200], 1);
    assert_int_equal(depth[3], 0);
    index_match(x, n, 2, depth, 2);
    assert_int_equal(depth[0], 2);
    index_free(x);
}

static void a_removed_block_ends_the_prefix(void **s)
{
    (void)s;
    struct index *x = index_new(1000);
    struct block_name n[5];
    for (unsigned i = 0; i < 5; i++)
        n[i] = name(i);
    index_add(x, 0, n, 5);
    index_add(x, 1, n, 5);
    index_remove(x, 0, n + 2, 1);
    uint32_t depth[2];
    index_match(x, n, 5, depth, 2);
    assert_int_equal(depth[0], 2);
    assert_int_equal(depth[1], 5);
    index_clear(x, 1);
    index_match(x, n, 5, depth, 2);
    assert_int_equal(depth[1], 0);
    assert_int_equal(depth[0], 2);
    assert_int_equal(index_names(x), 4);
    index_free(x);
}

static void past_its_bound_it_leaves_names_out(void **s)
{
    (void)s;
    struct index *x = index_new(100);
    for (unsigned i = 0; i < 150; i++) {
        struct block_name n = name(i);
        index_add(x, 0, &n, 1);
    }
    assert_int_equal(index_names(x), 100);
    assert_int_equal(index_left_out(x), 50);
    struct block_name first = name(0);
    index_add(x, 1, &first, 1); /* a known name still gains workers */
    uint32_t depth[2];
    index_match(x, &first, 1, depth, 2);
    assert_int_equal(depth[1], 1);
    index_free(x);
}

/* Against a plain table of bits, over random additions, removals and clears. */
static void it_agrees_with_a_plain_table(void **s)
{
    (void)s;
    enum { NAMES = 3000, WORKERS = 70 };
    static bool has[NAMES][WORKERS];
    struct index *x = index_new(100000);
    struct rng r = {42};
    for (int step = 0; step < 200000; step++) {
        unsigned v = (unsigned)rng_below(&r, NAMES), w = (unsigned)rng_below(&r, WORKERS);
        struct block_name n = name(v);
        uint64_t what = rng_below(&r, 10000);
        if (what == 0) {
            index_clear(x, w);
            for (unsigned i = 0; i < NAMES; i++)
                has[i][w] = false;
        } else if (what < 5000) {
            index_add(x, w, &n, 1);
            has[v][w] = true;
        } else {
            index_remove(x, w, &n, 1);
            has[v][w] = false;
        }
    }
    size_t total = 0;
    for (unsigned v = 0; v < NAMES; v++) {
        struct block_name n = name(v);
        uint32_t depth[WORKERS];
        bool any = false;
        index_match(x, &n, 1, depth, WORKERS);
        for (unsigned w = 0; w < WORKERS; w++) {
            assert_int_equal(depth[w], has[v][w]);
            any |= has[v][w];
        }
        total += any;
    }
    assert_int_equal(index_names(x), total);
    index_free(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_longest_prefix_of_each_worker_is_found),
        cmocka_unit_test(a_removed_block_ends_the_prefix),
        cmocka_unit_test(past_its_bound_it_leaves_names_out),
        cmocka_unit_test(it_agrees_with_a_plain_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
