/* Both sides in one process, each with its own transfer thread, over real sockets and real shared
 * memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "tests/lib/xfer/pair.h"

#include <unistd.h>

#define HOST   "127.0.0.1"
#define SECRET "an old secret"

static char dir[] = "/tmp/test-xfer-XXXXXX";
static struct pair_side d, p;
static char peer[128];

static void both(enum xfer_policy policy)
{
    struct err e;
    assert_int_equal(pair_start(&d, HOST, policy, dir, SECRET, 1000, &e), 0);
    assert_int_equal(pair_start(&p, HOST, policy, dir, SECRET, 1000, &e), 0);
    pair_name(&p, HOST, peer);
}

static void neither(void)
{
    assert_int_equal(pair_busy(&d), 0);
    assert_int_equal(pair_busy(&p), 0);
    struct xfer_stats s;
    xfer_stats(d.x, &s);
    assert_int_equal(s.quarantined_blocks, 0);
    pair_stop(&d);
    pair_stop(&p);
}

static struct pair_order plain(uint64_t key, uint32_t n)
{
    return (struct pair_order){key, n, UINT32_MAX};
}

static void move_many(enum xfer_policy policy, enum xfer_path want)
{
    both(policy);
    for (uint32_t round = 0; round < 5; round++) {
        for (uint32_t i = 0; i < 5; i++)
            assert_non_null(pair_order(&d, peer, plain(100 * round + i, 1 + 2 * i)));
        assert_true(pair_run(&d, &p, 5 * (round + 1), 5000));
        for (uint32_t i = 0; i < PAIR_SLOTS; i++) {
            if (!d.slot[i].used)
                continue;
            assert_true(d.slot[i].done);
            assert_int_equal(d.slot[i].path, want);
            assert_int_equal(d.slot[i].bytes, (uint64_t)d.slot[i].n * PAIR_LAYERS * PAIR_PIECE);
            d.slot[i].used = false;
        }
    }
    assert_int_equal(d.done, 25);
    assert_int_equal(d.wrong_bytes, 0);
    neither();
}

static void blocks_arrive_intact_through_shared_memory(void **state)
{
    (void)state;
    move_many(XFER_AUTO, XFER_PATH_SHM);
}

static void blocks_arrive_intact_through_tcp(void **state)
{
    (void)state;
    move_many(XFER_ONLY_TCP, XFER_PATH_TCP);
}

static void workers_that_share_no_directory_take_tcp(void **state)
{
    (void)state;
    struct err e;
    assert_int_equal(pair_start(&d, HOST, XFER_AUTO, dir, SECRET, 1000, &e), 0);
    assert_int_equal(pair_start(&p, HOST, XFER_AUTO, "/proc", SECRET, 1000, &e),
                     0); /* not writable */
    pair_name(&p, HOST, peer);
    struct pair_slot *s = pair_order(&d, peer, plain(1, 8));
    assert_true(pair_run(&d, &p, 1, 3000));
    assert_true(s->done);
    assert_int_equal(s->path, XFER_PATH_TCP);
    neither();
    assert_true(pair_start(&p, HOST, XFER_ONLY_SHM, "/nowhere", SECRET, 1000, &e) < 0);
    xfer_pool_free(&p.pool);
}

static void a_full_prefix_hit_completes_without_a_block(void **state)
{
    (void)state;
    both(XFER_AUTO);
    struct pair_slot *s = pair_order(&d, peer, plain(1, 0));
    assert_true(pair_run(&d, &p, 1, 3000));
    assert_true(s->done);
    assert_int_equal(s->bytes, 0);
    assert_int_equal(s->path, XFER_PATH_NONE);
    neither();
}

static void prefill_failing_half_way_is_told_and_frees_both_ends(void **state)
{
    (void)state;
    both(XFER_AUTO);
    struct pair_slot *s = pair_order(&d, peer, (struct pair_order){1, 8, 2});
    assert_true(pair_run(&d, &p, 1, 3000));
    assert_false(s->done);
    assert_int_equal(s->reason, XFER_PEER_FAILED);
    neither();
}

static void a_reject_ends_the_transfer_at_both_ends(void **state)
{
    (void)state;
    both(XFER_ONLY_TCP);
    d.refuse = true;
    struct pair_slot *s = pair_order(&d, peer, plain(1, 8));
    assert_true(pair_run(&d, &p, 1, 3000));
    assert_int_equal(s->reason, XFER_BY_REJECT);
    while (!p.released)
        pair_run(NULL, &p, 0, 10);
    neither();
}

static void an_abort_while_queued_is_confirmed(void **state)
{
    (void)state;
    both(XFER_AUTO);
    p.mute = true;
    struct pair_slot *s = pair_order(&d, peer, plain(1, 8));
    pair_run(&d, &p, 1, 100);
    assert_false(s->ended);
    xfer_abort(d.x, s->id, "the client left");
    assert_true(pair_run(&d, &p, 1, 3000));
    assert_int_equal(s->reason, XFER_BY_ABORT);
    while (!p.released)
        pair_run(NULL, &p, 0, 10);
    neither();
}

static void another_incarnation_refuses(void **state)
{
    (void)state;
    both(XFER_AUTO);
    char wrong[128];
    snprintf(wrong, sizeof wrong, HOST ":%u:%016llx", xfer_port(p.x),
             (unsigned long long)p.incarnation + 1);
    struct pair_slot *s = pair_order(&d, wrong, plain(1, 8));
    assert_true(pair_run(&d, &p, 1, 1500));
    assert_int_equal(s->reason, XFER_WRONG_PEER);
    assert_int_equal(p.released, 0);
    neither();
}

static void another_secret_is_refused(void **state)
{
    (void)state;
    struct err e;
    assert_int_equal(pair_start(&d, HOST, XFER_AUTO, dir, "one", 1000, &e), 0);
    assert_int_equal(pair_start(&p, HOST, XFER_AUTO, dir, "two", 1000, &e), 0);
    pair_name(&p, HOST, peer);
    struct pair_slot *s = pair_order(&d, peer, plain(1, 8));
    assert_true(pair_run(&d, &p, 1, 1500));
    assert_int_equal(s->reason, XFER_WRONG_PEER);
    neither();
}

static void nobody_listening_fails_at_once(void **state)
{
    (void)state;
    both(XFER_AUTO);
    pair_stop(&p);
    uint64_t t = clock_mono_ns();
    struct pair_slot *s = pair_order(&d, peer, plain(1, 8));
    assert_true(pair_run(&d, NULL, 1, 1500));
    assert_int_equal(s->reason, XFER_PEER_LOST);
    assert_true(clock_mono_ns() - t < NS_PER_S);
    struct err e;
    assert_int_equal(pair_start(&p, HOST, XFER_AUTO, dir, SECRET, 1000, &e), 0);
    neither();
}

static void names_that_cannot_be_are_refused(void **state)
{
    (void)state;
    both(XFER_AUTO);
    static const char *const bad[] = {"",
                                      "x",
                                      "127.0.0.1:80",
                                      "127.0.0.1:80:12",
                                      "host:80:0123456789abcdef",
                                      "127.0.0.1:0:0123456789abcdef",
                                      "127.0.0.1:70000:0123456789abcdef",
                                      ":80:0123456789abcdef",
                                      "127.0.0.1:80:0123456789abcdeg"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_null(pair_order(&d, bad[i], plain(1, 1)));
    neither();
}

static int make_dir(void **state)
{
    (void)state;
    return mkdtemp(dir) ? 0 : -1;
}

static int drop_dir(void **state)
{
    (void)state;
    return rmdir(dir); /* fails when a socket was left behind */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_arrive_intact_through_shared_memory),
        cmocka_unit_test(blocks_arrive_intact_through_tcp),
        cmocka_unit_test(workers_that_share_no_directory_take_tcp),
        cmocka_unit_test(a_full_prefix_hit_completes_without_a_block),
        cmocka_unit_test(prefill_failing_half_way_is_told_and_frees_both_ends),
        cmocka_unit_test(a_reject_ends_the_transfer_at_both_ends),
        cmocka_unit_test(an_abort_while_queued_is_confirmed),
        cmocka_unit_test(another_incarnation_refuses),
        cmocka_unit_test(another_secret_is_refused),
        cmocka_unit_test(nobody_listening_fails_at_once),
        cmocka_unit_test(names_that_cannot_be_are_refused),
    };
    return cmocka_run_group_tests(tests, make_dir, drop_dir);
}
