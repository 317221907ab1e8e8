#include "lib/kube/queue.h"

#include "lib/base/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

struct bench {
    uv_loop_t loop;
    struct queue *q;
    char log[4096];
    char busy[8][32];
    unsigned n, active, most_active, fail; /* the first `fail` turns fail */
    bool hold;                             /* turns don't end by themselves */
    bool adds_itself;                      /* turns that fail do */
    uint64_t at_ns[64];
    uint64_t pause_until_ns; /* no key is begun with before */
    unsigned asked;
};

static uint64_t pause_ms(void *ctx)
{
    struct bench *b = ctx;
    uint64_t now = clock_mono_ns();
    b->asked++;
    return b->pause_until_ns > now ? (b->pause_until_ns - now + NS_PER_MS - 1) / NS_PER_MS : 0;
}

static void work(struct queue *q, const char *key, void *ctx)
{
    struct bench *b = ctx;
    char copy[32];
    snprintf(copy, sizeof copy, "%s", key);
    for (unsigned i = 0; i < 8; i++)
        assert_string_not_equal(b->busy[i], copy); /* never twice at once */
    if (b->n < 64)
        b->at_ns[b->n] = clock_mono_ns();
    b->n++;
    snprintf(b->log + strlen(b->log), sizeof b->log - strlen(b->log), "%s ", copy);
    b->active++;
    b->most_active = b->active > b->most_active ? b->active : b->most_active;
    if (b->hold) {
        for (unsigned i = 0; i < 8; i++)
            if (!*b->busy[i]) {
                strcpy(b->busy[i], copy);
                return;
            }
        fail_msg("more at once than max_active");
    }
    b->active--;
    if (b->adds_itself && b->n <= b->fail)
        queue_add(q, copy);
    if (b->n <= b->fail)
        queue_retry(q, copy);
    else
        queue_done(q, copy);
}

static void start(struct bench *b, unsigned max_active)
{
    struct err e;
    memset(b, 0, sizeof *b);
    uv_loop_init(&b->loop);
    struct queue_config c = {
        .loop = &b->loop, .work = work, .ctx = b, .max_active = max_active, .pause_ms = pause_ms};
    assert_int_equal(queue_new(&c, &b->q, &e), 0);
}

static void turn(struct bench *b, unsigned ms)
{
    uint64_t end = clock_mono_ns() + ms * NS_PER_MS;
    do {
        uv_run(&b->loop, UV_RUN_NOWAIT);
        uv_sleep(1);
    } while (clock_mono_ns() < end);
}

static void release(struct bench *b, const char *key)
{
    for (unsigned i = 0; i < 8; i++)
        if (strcmp(b->busy[i], key) == 0) {
            b->busy[i][0] = 0;
            b->active--;
            queue_done(b->q, key);
            return;
        }
    fail_msg("%s is not worked on", key);
}

static void stop(struct bench *b)
{
    queue_free(b->q);
    while (uv_run(&b->loop, UV_RUN_NOWAIT))
        ;
    assert_int_equal(uv_loop_close(&b->loop), 0);
}

static void adds_of_one_key_are_merged_and_order_is_kept(void **state)
{
    struct bench b;
    (void)state;
    start(&b, 8);
    queue_add(b.q, "a");
    queue_add(b.q, "b");
    queue_add(b.q, "a");
    assert_int_equal(queue_depth(b.q), 2);
    turn(&b, 10);
    assert_string_equal(b.log, "a b ");
    stop(&b);
}

static void a_key_added_while_worked_on_gets_one_more_turn_and_only_afterwards(void **state)
{
    struct bench b;
    (void)state;
    start(&b, 8);
    b.hold = true;
    queue_add(b.q, "a");
    turn(&b, 5);
    for (int i = 0; i < 5; i++)
        queue_add(b.q, "a");
    turn(&b, 5);
    assert_int_equal(b.n, 1);
    release(&b, "a");
    turn(&b, 5);
    assert_int_equal(b.n, 2);
    release(&b, "a");
    turn(&b, 5);
    assert_int_equal(b.n, 2);
    stop(&b);
}

static void no_more_keys_at_once_than_allowed(void **state)
{
    struct bench b;
    (void)state;
    start(&b, 2);
    b.hold = true;
    queue_add(b.q, "a"), queue_add(b.q, "b"), queue_add(b.q, "c");
    turn(&b, 5);
    assert_int_equal(b.n, 2);
    release(&b, "b");
    turn(&b, 5);
    assert_string_equal(b.log, "a b c ");
    assert_int_equal(b.most_active, 2);
    stop(&b);
}

static void failures_wait_longer_and_longer_until_one_succeeds(void **state)
{
    struct bench b;
    (void)state;
    start(&b, 8);
    b.fail = 5;
    queue_add(b.q, "a");
    turn(&b, 250); /* 5 + 10 + 20 + 40 + 80 ms */
    assert_int_equal(b.n, 6);
    for (unsigned i = 1; i < 6; i++)
        assert_true(b.at_ns[i] - b.at_ns[i - 1] >= ((5u << (i - 1)) - 1) * NS_PER_MS);
    queue_add(b.q, "a"); /* success has reset it */
    turn(&b, 5);
    assert_int_equal(b.n, 7);
    stop(&b);
}

/* What a failing turn writes may wake its own key again and again. */
static void adds_do_not_cut_a_back_off_short(void **state)
{
    struct bench b;
    (void)state;
    start(&b, 1);
    b.fail = 7;           /* waits 5, 10, 20, 40, 80, 160 and 320 ms */
    b.adds_itself = true; /* while it is worked on */
    queue_add(b.q, "ns/a");
    while (b.n < 7) {
        queue_add(b.q, "ns/a");
        turn(&b, 2);
    }
    assert_int_equal(queue_retrying(b.q), b.n < 8);
    for (unsigned i = 1; i < 7; i++)
        assert_true(b.at_ns[i] - b.at_ns[i - 1] >= (5ull << (i - 1)) * NS_PER_MS);
    while (b.n < 8)
        turn(&b, 20); /* it succeeds: nothing waits any more */
    assert_int_equal(queue_retrying(b.q), 0);
    uint64_t before = clock_mono_ns();
    queue_add(b.q, "ns/a");
    while (b.n < 9)
        turn(&b, 1);
    assert_true(clock_mono_ns() - before < 300 * NS_PER_MS);
    stop(&b);
}

static void the_earlier_of_two_delays_wins_and_an_add_does_not_cancel_it(void **state)
{
    struct bench b;
    (void)state;
    start(&b, 8);
    queue_add_after(b.q, "a", 10000);
    queue_add_after(b.q, "a", 20);
    queue_add_after(b.q, "a", 5000);
    queue_add(b.q, "a");
    turn(&b, 10);
    assert_int_equal(b.n, 1);
    turn(&b, 60);
    assert_int_equal(b.n, 2);
    stop(&b);
}

static void how_long_a_key_waited_for_its_turn_is_known(void **state)
{
    struct bench b;
    (void)state;
    start(&b, 1);
    b.hold = true;
    queue_add(b.q, "a");
    turn(&b, 5);
    assert_in_range(queue_waited_ns(b.q), 0, 4 * NS_PER_S);
    queue_add(b.q, "b"); /* waits for a */
    turn(&b, 60);
    release(&b, "a");
    turn(&b, 5);
    assert_string_equal(b.log, "a b ");
    assert_in_range(queue_waited_ns(b.q), 60 * NS_PER_MS, 60 * NS_PER_S);
    release(&b, "b");
    turn(&b, 5);
    stop(&b);
}

/* Also what comes due meanwhile waits; nobody spins. */
static void a_pause_holds_keys_back_in_their_order(void **state)
{
    struct bench b;
    (void)state;
    start(&b, 8);
    uint64_t began = clock_mono_ns();
    b.pause_until_ns = began + 80 * NS_PER_MS;
    queue_add(b.q, "a");
    queue_add_after(b.q, "c", 20);
    queue_add(b.q, "b");
    while (b.n < 3 && clock_mono_ns() < began + 20 * NS_PER_S)
        turn(&b, 1);
    assert_string_equal(b.log, "a b c ");
    assert_true(b.at_ns[0] >= b.pause_until_ns);
    assert_true(b.asked < 20);
    stop(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adds_of_one_key_are_merged_and_order_is_kept),
        cmocka_unit_test(a_key_added_while_worked_on_gets_one_more_turn_and_only_afterwards),
        cmocka_unit_test(no_more_keys_at_once_than_allowed),
        cmocka_unit_test(failures_wait_longer_and_longer_until_one_succeeds),
        cmocka_unit_test(adds_do_not_cut_a_back_off_short),
        cmocka_unit_test(the_earlier_of_two_delays_wins_and_an_add_does_not_cancel_it),
        cmocka_unit_test(how_long_a_key_waited_for_its_turn_is_known),
        cmocka_unit_test(a_pause_holds_keys_back_in_their_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
