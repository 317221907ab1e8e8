/* Two processes, real sockets and shared memory, kill -9 and SIGSTOP at random moments. KILL_SEED
 * replays. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "tests/lib/xfer/pair.h"
#include "tests/patience.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define HOST     "127.0.0.1"
#define SECRET   "an old secret"
#define ROUNDS   8u
#define LEASE_MS (400u * slow)
#define SECOND   (NS_PER_S * slow) /* what is promised within a second, where others compute */

static unsigned slow;
static char dir[] = "/tmp/test-xfer-XXXXXX";
static struct rng dice;
static struct pair_side side;
static uint64_t keys;

static struct pair_order some(void)
{
    return (struct pair_order){++keys, 4 + (uint32_t)rng_below(&dice, 8), UINT32_MAX};
}

/* A child that is the prefill worker; writes its name to the pipe and serves for ever. */
static void be_prefill(int to, enum xfer_policy policy, uint32_t delay_us)
{
    struct err e;
    char name[128] = {0};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (pair_start(&side, HOST, policy, dir, SECRET, LEASE_MS, &e))
        _exit(1);
    side.delay_us = delay_us;
    pair_name(&side, HOST, name);
    if (write(to, name, sizeof name) != sizeof name)
        _exit(1);
    for (;;)
        pair_run(NULL, &side, 0, 1000);
}

/* A child that is the decode worker: keeps ordering from the peer that the pipe names. */
static void be_decode(int from, enum xfer_policy policy)
{
    struct err e;
    char name[128];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (pair_start(&side, HOST, policy, dir, SECRET, LEASE_MS, &e) ||
        read(from, name, sizeof name) != sizeof name)
        _exit(1);
    for (;;) {
        for (int i = 0; i < 4; i++)
            pair_order(&side, name, some());
        pair_run(&side, NULL, side.ends + 4, 2000);
        for (uint32_t i = 0; i < PAIR_SLOTS; i++)
            side.slot[i].used &= !side.slot[i].ended;
    }
}

static pid_t child_prefill(enum xfer_policy policy, uint32_t delay_us, char name[128])
{
    int p[2];
    assert_int_equal(pipe(p), 0);
    pid_t pid = fork();
    if (pid == 0)
        be_prefill(p[1], policy, delay_us);
    assert_int_equal(read(p[0], name, 128), 128);
    close(p[0]);
    close(p[1]);
    return pid;
}

static void end_child(pid_t pid)
{
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

static void forget_ended(struct pair_side *s)
{
    for (uint32_t i = 0; i < PAIR_SLOTS; i++)
        if (s->slot[i].ended)
            s->slot[i].used = false;
}

static void prefill_killed(enum xfer_policy policy)
{
    struct err e;
    char name[128], next[128];
    for (uint32_t round = 0; round < ROUNDS; round++) {
        pid_t one = child_prefill(policy, 1000 * (uint32_t)rng_below(&dice, 4), name);
        pid_t two = child_prefill(policy, 0, next);
        struct pair_side *d = &side;
        assert_int_equal(pair_start(d, HOST, policy, dir, SECRET, LEASE_MS, &e), 0);
        for (int i = 0; i < 5; i++)
            assert_non_null(pair_order(d, name, some()));
        pair_run(d, NULL, 5, (uint32_t)rng_below(&dice, 40));
        uint64_t killed_ns = clock_mono_ns();
        end_child(one);
        assert_true(pair_run(d, NULL, 5, 3000 * slow));
        assert_true(clock_mono_ns() - killed_ns < SECOND);
        assert_int_equal(d->wrong_bytes, 0);
        assert_int_equal(pair_busy(d), 0);
        forget_ended(d);
        /* the successor serves at once, the dead one fails at once */
        struct pair_slot *good = pair_order(d, next, some()), *bad = pair_order(d, name, some());
        assert_true(pair_run(d, NULL, 7, 1000 * slow));
        assert_true(good->done);
        assert_false(bad->done);
        pair_stop(d);
        end_child(two);
    }
}

static void prefill_killed_while_it_writes_in_place(void **state)
{
    (void)state;
    prefill_killed(XFER_ONLY_SHM);
}

static void prefill_killed_while_it_sends(void **state)
{
    (void)state;
    prefill_killed(XFER_ONLY_TCP);
}

static void decode_killed(enum xfer_policy policy)
{
    struct err e;
    char name[128] = {0};
    uint32_t released = 0;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        int p[2];
        assert_int_equal(pipe(p), 0);
        pid_t pid = fork();
        if (pid == 0)
            be_decode(p[0], policy);
        assert_int_equal(pair_start(&side, HOST, policy, dir, SECRET, LEASE_MS, &e), 0);
        side.delay_us = 1000 * (uint32_t)rng_below(&dice, 3);
        pair_name(&side, HOST, name);
        assert_int_equal(write(p[1], name, sizeof name), sizeof name);
        /* the moment is drawn from when its first order came, however slowly the child starts */
        struct xfer_stats st = {0};
        uint64_t t = clock_mono_ns() + 10 * SECOND;
        for (bool ordered = false; clock_mono_ns() < t;) {
            pair_run(NULL, &side, 0, 5);
            xfer_stats(side.x, &st);
            if (!ordered && (st.as_p || side.released)) {
                ordered = true;
                t = clock_mono_ns() + (10 + rng_below(&dice, 60)) * NS_PER_MS;
            }
        }
        uint64_t killed_ns = clock_mono_ns();
        end_child(pid);
        do {
            pair_run(NULL, &side, 0, 5);
            xfer_stats(side.x, &st);
        } while ((st.as_p || st.links || pair_busy(&side)) &&
                 clock_mono_ns() - killed_ns < 3 * SECOND);
        assert_true(clock_mono_ns() - killed_ns < SECOND);
        assert_int_equal(pair_busy(&side), 0);
        released += side.released;
        pair_stop(&side);
        close(p[0]);
        close(p[1]);
    }
    assert_true(released > 0); /* in one round the kill may come before anything was held */
}

static void decode_killed_frees_what_prefill_holds_in_place(void **state)
{
    (void)state;
    decode_killed(XFER_ONLY_SHM);
}

static void decode_killed_frees_what_prefill_holds_over_tcp(void **state)
{
    (void)state;
    decode_killed(XFER_ONLY_TCP);
}

/* A stopped process may wake and go on writing: time alone must not free its blocks. */
static void a_frozen_writer_keeps_its_blocks_in_quarantine_until_it_is_dead(void **state)
{
    (void)state;
    struct err e;
    char name[128];
    struct xfer_stats st;
    pid_t pid = child_prefill(XFER_ONLY_SHM, 30000, name);
    assert_int_equal(pair_start(&side, HOST, XFER_ONLY_SHM, dir, SECRET, LEASE_MS, &e), 0);
    struct pair_slot *s = pair_order(&side, name, some());
    while (!s->n)
        pair_run(&side, NULL, 1, 5);
    kill(pid, SIGSTOP);
    uint64_t t = clock_mono_ns();
    while (!s->ended)
        pair_run(&side, NULL, 1, 5);
    assert_true(clock_mono_ns() - t < SECOND);
    assert_int_equal(s->reason, XFER_LEASE_LOST);
    pair_run(&side, NULL, 1, 600 * slow);
    assert_int_equal(side.quiesced, 0);
    xfer_stats(side.x, &st);
    assert_int_equal(st.quarantined_blocks, s->n);
    assert_int_equal(pair_busy(&side), s->n);
    end_child(pid);
    assert_true(pair_run(&side, NULL, 1, 1000 * slow));
    assert_int_equal(pair_busy(&side), 0);
    pair_stop(&side);
}

static void a_frozen_sender_frees_its_blocks_as_the_connection_is_closed(void **state)
{
    (void)state;
    struct err e;
    char name[128];
    pid_t pid = child_prefill(XFER_ONLY_TCP, 30000, name);
    assert_int_equal(pair_start(&side, HOST, XFER_ONLY_TCP, dir, SECRET, LEASE_MS, &e), 0);
    struct pair_slot *s = pair_order(&side, name, some());
    while (!s->n)
        pair_run(&side, NULL, 1, 5);
    kill(pid, SIGSTOP);
    assert_true(pair_run(&side, NULL, 1, 1000 * slow));
    assert_int_equal(s->reason, XFER_LEASE_LOST);
    assert_int_equal(pair_busy(&side), 0);
    end_child(pid);
    pair_stop(&side);
}

static int begin(void **state)
{
    (void)state;
    const char *env = getenv("KILL_SEED");
    slow = crowding();
    dice.state = env ? strtoull(env, NULL, 10) : rng_secret_u64() % 1000000;
    print_message("KILL_SEED=%llu\n", (unsigned long long)dice.state);
    return mkdtemp(dir) ? 0 : -1;
}

/* Sockets of killed workers are swept by the next one that starts. */
static int finish(void **state)
{
    (void)state;
    struct err e;
    if (pair_start(&side, HOST, XFER_AUTO, dir, SECRET, LEASE_MS, &e))
        return -1;
    pair_stop(&side);
    return rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prefill_killed_while_it_writes_in_place),
        cmocka_unit_test(prefill_killed_while_it_sends),
        cmocka_unit_test(decode_killed_frees_what_prefill_holds_in_place),
        cmocka_unit_test(decode_killed_frees_what_prefill_holds_over_tcp),
        cmocka_unit_test(a_frozen_writer_keeps_its_blocks_in_quarantine_until_it_is_dead),
        cmocka_unit_test(a_frozen_sender_frees_its_blocks_as_the_connection_is_closed),
    };
    return cmocka_run_group_tests(tests, begin, finish);
}
