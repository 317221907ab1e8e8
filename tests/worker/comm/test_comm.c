/* Collectives between processes, over shared memory, TCP and both. */
#include "lib/base/rng.h"
#include "tests/worker/comm/ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

static const struct {
    uint32_t n, per_host;
} shapes[] = {{1, 1}, {2, 2}, {3, 3}, {8, 8}, {2, 1}, {3, 1}, {4, 2}, {6, 3}};

#define SHAPES (sizeof shapes / sizeof *shapes)

static float value(uint32_t rank, size_t i)
{
    return (float)(rng_unit_at(7, rank, i) - .5) * (float)(1u << (i % 20));
}

/* What one process would get that adds the ranks' parts in order. */
static float sum_of(uint32_t ranks, size_t i)
{
    float s = value(0, i);
    for (uint32_t r = 1; r < ranks; r++)
        s += value(r, i);
    return s;
}

static int reduce_all(struct comm *c, struct ranks *r, void *arg)
{
    static const size_t sizes[] = {1, 17, 576, 8192, 8193, 40000, 131072, 131072 + 5, 700001};
    struct err e = {0};
    (void)r;
    (void)arg;
    uint32_t me = comm_rank(c), n = comm_ranks(c);
    float *x = malloc(sizes[8] * sizeof *x);
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        for (size_t i = 0; i < sizes[k]; i++)
            x[i] = value(me, i);
        if (comm_all_reduce(c, x, sizes[k], &e))
            return 1;
        for (size_t i = 0; i < sizes[k]; i++) {
            float want = sum_of(n, i);
            if (memcmp(&x[i], &want, sizeof want) != 0)
                return 2;
        }
    }
    struct comm_stats s;
    comm_stats(c, &s);
    return s.all_reduces == sizeof sizes / sizeof *sizes ? 0 : 3;
}

static void an_all_reduce_adds_in_the_order_of_ranks_whatever_size_and_placement(void **state)
{
    (void)state;
    for (size_t i = 0; i < SHAPES; i++) {
        struct ranks r;
        ranks_init(&r, shapes[i].n, shapes[i].per_host, 0);
        ranks_start(&r, reduce_all, NULL);
        assert_int_equal(ranks_wait(&r, NULL), 0);
        ranks_fini(&r);
    }
}

static int move_all(struct comm *c, struct ranks *r, void *arg)
{
    struct err e = {0};
    (void)r;
    (void)arg;
    uint32_t me = comm_rank(c), n = comm_ranks(c);
    size_t bytes = 1500000;
    uint8_t *mine = malloc(bytes), *all = malloc(bytes * n);
    memset(mine, (int)(me + 1), bytes);
    if (comm_all_gather(c, mine, bytes, all, &e))
        return 1;
    for (size_t i = 0; i < bytes * n; i++)
        if (all[i] != i / bytes + 1)
            return 2;
    for (uint32_t root = 0; root < n; root++) {
        memset(mine, me == root ? (int)(100 + root) : 0, bytes);
        if (comm_broadcast(c, root, mine, bytes - root, &e))
            return 3;
        for (size_t i = 0; i < bytes - root; i++)
            if (mine[i] != 100 + root)
                return 4;
    }
    if (n > 1) { /* a ring, more than a pipe holds */
        memset(mine, (int)me, bytes);
        struct comm_flow f[] = {{(me + 1) % n, true, mine, bytes},
                                {(me + n - 1) % n, false, all, bytes}};
        if (comm_exchange(c, f, 2, &e))
            return 5;
        for (size_t i = 0; i < bytes; i++)
            if (all[i] != (me + n - 1) % n)
                return 6;
    }
    return comm_barrier(c, &e) ? 7 : 0;
}

static void gathers_broadcasts_and_rings_move_every_byte(void **state)
{
    (void)state;
    for (size_t i = 0; i < SHAPES; i++) {
        struct ranks r;
        ranks_init(&r, shapes[i].n, shapes[i].per_host, 0);
        ranks_start(&r, move_all, NULL);
        assert_int_equal(ranks_wait(&r, NULL), 0);
        ranks_fini(&r);
    }
}

/* Rank a sends (a * 7 + b * 13) % 5000 * 37 bytes to rank b. */
static size_t to_bytes(uint32_t a, uint32_t b)
{
    return (a * 7 + b * 13 + 1) * 7919 % 90000 * (a == 0 && b == 1 ? 30 : 1);
}

/* In two halves, with an all-reduce in between, and sometimes a send that wants the same ways. */
static int deal_in_halves(struct comm *c, const uint8_t *give, const size_t *out, uint8_t *take,
                          const size_t *in, uint32_t round)
{
    struct err e = {0};
    uint32_t me = comm_rank(c), n = comm_ranks(c), word = 7;
    float x[3] = {1, 2, 3};
    if (comm_all_to_all_begin(c, give, out, take, in, &e) || comm_all_reduce(c, x, 3, &e) ||
        x[2] != 3 * (float)n)
        return 1;
    bool send = round % 2 && n > 1;
    if (send && me == 0 && comm_send(c, n - 1, &word, sizeof word, &e))
        return 1;
    if (send && me == n - 1 && comm_recv(c, 0, &word, sizeof word, &e))
        return 1;
    return comm_all_to_all_end(c, &e) || word != 7;
}

static int deal(struct comm *c, struct ranks *r, void *arg)
{
    struct err e = {0};
    (void)r;
    uint32_t me = comm_rank(c), n = comm_ranks(c);
    size_t out[RANKS_MAX], in[RANKS_MAX], o = 0, i = 0;
    for (uint32_t k = 0; k < n; k++) {
        o += out[k] = to_bytes(me, k);
        i += in[k] = to_bytes(k, me);
    }
    uint8_t *give = malloc(o + 1), *take = malloc(i + 1);
    for (uint32_t round = 0; round < 5; round++) {
        size_t at = 0;
        for (uint32_t k = 0; k < n; at += out[k++])
            memset(give + at, (int)(me * 16 + k + round), out[k]);
        memset(take, 0xee, i);
        if (arg ? deal_in_halves(c, give, out, take, in, round)
                : comm_all_to_all(c, give, out, take, in, &e))
            return 1;
        at = 0;
        for (uint32_t k = 0; k < n; at += in[k++])
            for (size_t b = 0; b < in[k]; b++)
                if (take[at + b] != (uint8_t)(k * 16 + me + round))
                    return 2;
    }
    return 0;
}

static void an_all_to_all_of_uneven_pieces_arrives_whole(void **state)
{
    (void)state;
    for (size_t i = 0; i < SHAPES; i++) {
        struct ranks r;
        ranks_init(&r, shapes[i].n, shapes[i].per_host, 0);
        ranks_start(&r, deal, NULL);
        assert_int_equal(ranks_wait(&r, NULL), 0);
        ranks_fini(&r);
    }
}

static void an_all_to_all_in_halves_lets_others_pass_and_arrives_whole(void **state)
{
    (void)state;
    for (size_t i = 0; i < SHAPES; i++) {
        struct ranks r;
        ranks_init(&r, shapes[i].n, shapes[i].per_host, 0);
        ranks_start(&r, deal, &r);
        assert_int_equal(ranks_wait(&r, NULL), 0);
        ranks_fini(&r);
    }
}

static int in_halves(struct comm *world, struct ranks *r, void *arg)
{
    struct err e = {0};
    struct comm *half, *odd;
    (void)r;
    (void)arg;
    uint32_t me = comm_rank(world), n = comm_ranks(world);
    if (comm_split(world, me / 2, &half, &e) || comm_split(world, me % 2, &odd, &e))
        return 1;
    if (comm_ranks(half) != 2 || comm_rank(half) != me % 2 || comm_ranks(odd) != n / 2)
        return 2;
    for (int round = 0; round < 200; round++) {
        float a = (float)me, b = (float)me, all = (float)me;
        if (comm_all_reduce(half, &a, 1, &e) || comm_all_reduce(odd, &b, 1, &e) ||
            comm_all_reduce(world, &all, 1, &e))
            return 3;
        float want = 0;
        for (uint32_t k = me % 2; k < n; k += 2)
            want += (float)k;
        if (a != (float)(me / 2 * 4 + 1) || b != want || all != (float)(n * (n - 1) / 2))
            return 4;
    }
    return 0;
}

static void communicators_of_one_group_do_not_disturb_each_other(void **state)
{
    (void)state;
    for (uint32_t per_host = 1; per_host <= 8; per_host *= 2) {
        struct ranks r;
        ranks_init(&r, 8, per_host, 0);
        ranks_start(&r, in_halves, NULL);
        assert_int_equal(ranks_wait(&r, NULL), 0);
        ranks_fini(&r);
    }
}

/* ---- failure ---- */

struct fate {
    uint64_t seen_ns; /* when the rank saw the group fail */
    int code;
    volatile bool works; /* it has come some way */
    char why[200];
};

static int reduce_for_ever(struct comm *c, struct ranks *r, void *arg)
{
    struct err e = {0};
    struct fate *f = (struct fate *)(void *)r->shared + comm_rank(c);
    uint32_t stuck = arg ? *(uint32_t *)arg : UINT32_MAX;
    float x[1000] = {0};
    int rc = 0;
    for (uint32_t i = 0; !rc; i++) {
        if (i == 50 && comm_rank(c) == stuck)
            sleep(4);
        rc = comm_all_reduce(c, x, 1000, &e);
        f->works = i > 3;
    }
    f->seen_ns = clock_mono_ns();
    f->code = rc;
    snprintf(f->why, sizeof f->why, "%s", e.msg);
    if (comm_barrier(c, &e) != -EPIPE) /* nothing works again */
        return 2;
    return 9;
}

static void await_work(const struct ranks *r)
{
    const struct fate *f = (const struct fate *)(const void *)r->shared;
    for (uint32_t i = 0; i < r->n; i++)
        while (!f[i].works)
            usleep(1000);
}

static void check_fates(const struct ranks *r, uint32_t dead, uint64_t from_ns, uint64_t within_ns,
                        const char *what)
{
    const struct fate *f = (const struct fate *)(const void *)r->shared;
    uint32_t first = dead == 0 ? 1 : 0;
    for (uint32_t i = 0; i < r->n; i++) {
        if (i == dead)
            continue;
        assert_int_equal(f[i].code, -EPIPE);
        assert_string_equal(f[i].why, f[first].why);
        assert_true(f[i].seen_ns - from_ns < within_ns);
    }
    assert_non_null(strstr(f[first].why, what));
}

static void when_a_rank_is_killed_all_fail_within_two_seconds_with_one_reason(void **state)
{
    (void)state;
    for (uint32_t k = 0; k < 6; k++) {
        struct ranks r;
        int codes[RANKS_MAX];
        char what[32];
        uint32_t dead = k % 3 == 2 ? 3 : k % 3;
        ranks_init(&r, 4, k < 3 ? 4 : 2, 4 * sizeof(struct fate));
        ranks_start(&r, reduce_for_ever, NULL);
        await_work(&r);
        uint64_t t = clock_mono_ns();
        kill(r.pids[dead], SIGKILL);
        ranks_wait(&r, codes);
        for (uint32_t i = 0; i < 4; i++)
            assert_int_equal(codes[i], i == dead ? 128 + SIGKILL : 9);
        snprintf(what, sizeof what, "rank %u (", dead);
        check_fates(&r, dead, t, 2 * NS_PER_S, what);
        ranks_fini(&r);
    }
}

static void a_stopped_rank_is_named_by_its_silence(void **state)
{
    struct ranks r;
    (void)state;
    ranks_init(&r, 4, 2, 4 * sizeof(struct fate));
    r.silent_ms = 1500;
    ranks_start(&r, reduce_for_ever, NULL);
    await_work(&r);
    uint64_t t = clock_mono_ns();
    kill(r.pids[3], SIGSTOP);
    int codes[RANKS_MAX], status;
    for (uint32_t i = 0; i < 3; i++) {
        waitpid(r.pids[i], &status, 0);
        assert_int_equal(WEXITSTATUS(status), 9);
    }
    kill(r.pids[3], SIGKILL);
    kill(r.pids[3], SIGCONT);
    ranks_wait(&r, codes);
    check_fates(&r, 3, t, 10 * NS_PER_S, "rank 3 (127.0.0.2) has been silent");
    ranks_fini(&r);
}

static void the_watchdog_names_the_rank_that_does_not_come(void **state)
{
    struct ranks r;
    uint32_t stuck = 2;
    (void)state;
    ranks_init(&r, 4, 4, 4 * sizeof(struct fate));
    r.stuck_ms = 1000;
    ranks_start(&r, reduce_for_ever, &stuck);
    assert_int_equal(ranks_wait(&r, NULL), 9);
    check_fates(&r, stuck, clock_mono_ns() - 20 * NS_PER_S, 30 * NS_PER_S,
                "rank 2 (127.0.0.1) is stuck: computing");
    ranks_fini(&r);
}

static int one_fails(struct comm *c, struct ranks *r, void *arg)
{
    struct err e = {0};
    float x = 0;
    int rc = 0;
    for (int i = 0; i < 3 && !rc; i++)      /* then everybody has left comm_join */
        rc = comm_all_reduce(c, &x, 1, &e); /* the last one may see the failure already */
    if (comm_rank(c) == 1)
        comm_fail(c, "rank 1 ran out of luck");
    return reduce_for_ever(c, r, arg);
}

static void a_rank_that_fails_itself_takes_all_with_it(void **state)
{
    struct ranks r;
    (void)state;
    ranks_init(&r, 4, 2, 4 * sizeof(struct fate));
    ranks_start(&r, one_fails, NULL);
    assert_int_equal(ranks_wait(&r, NULL), 9);
    check_fates(&r, RANKS_MAX, clock_mono_ns() - 10 * NS_PER_S, 20 * NS_PER_S, "out of luck");
    ranks_fini(&r);
}

static void a_rank_that_never_comes_is_named(void **state)
{
    struct ranks r;
    struct err e = {0};
    struct comm *world = NULL;
    (void)state;
    ranks_init(&r, 2, 1, 0);
    r.join_ms = 400;
    struct comm_config c = ranks_config(&r, 0);
    assert_int_equal(comm_join(&c, &world, &e), -ETIMEDOUT);
    assert_non_null(strstr(e.msg, "rank 1 (127.0.0.2) did not join"));
    close(r.listeners[1]);
    ranks_fini(&r);
}

static int nothing(struct comm *c, struct ranks *r, void *arg)
{
    struct err e = {0};
    (void)r;
    (void)arg;
    return comm_barrier(c, &e) ? 1 : 0;
}

static void another_secret_or_session_is_no_member(void **state)
{
    (void)state;
    for (int k = 0; k < 2; k++) {
        struct ranks r;
        struct err e = {0};
        struct comm *world = NULL;
        ranks_init(&r, 2, 1, 0);
        ranks_start_one(&r, 0, nothing, NULL);
        struct comm_config c = ranks_config(&r, 1);
        c.join_ms = 400;
        if (k == 0)
            c.secret = "a secret of another one...";
        else
            c.session++;
        assert_int_equal(comm_join(&c, &world, &e), -ETIMEDOUT);
        kill(r.pids[0], SIGKILL);
        waitpid(r.pids[0], NULL, 0);
        close(r.listeners[0]);
        ranks_fini(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_all_reduce_adds_in_the_order_of_ranks_whatever_size_and_placement),
        cmocka_unit_test(gathers_broadcasts_and_rings_move_every_byte),
        cmocka_unit_test(an_all_to_all_of_uneven_pieces_arrives_whole),
        cmocka_unit_test(an_all_to_all_in_halves_lets_others_pass_and_arrives_whole),
        cmocka_unit_test(communicators_of_one_group_do_not_disturb_each_other),
        cmocka_unit_test(when_a_rank_is_killed_all_fail_within_two_seconds_with_one_reason),
        cmocka_unit_test(a_stopped_rank_is_named_by_its_silence),
        cmocka_unit_test(the_watchdog_names_the_rank_that_does_not_come),
        cmocka_unit_test(a_rank_that_fails_itself_takes_all_with_it),
        cmocka_unit_test(a_rank_that_never_comes_is_named),
        cmocka_unit_test(another_secret_or_session_is_no_member),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
