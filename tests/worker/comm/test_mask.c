/* Ranks that die and are masked: what the others compute together stays right, a rank that is only
 * slow has ended before anybody goes on, and what nobody has any more ends the group. */
#include "lib/base/rng.h"
#include "tests/worker/comm/ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#define FLOATS 30000u /* more than an all-reduce that everybody adds up whole */
#define PIECE  3000u  /* bytes of the smallest piece of an all-to-all */

struct plan {
    uint64_t sets[3];
    uint32_t n;
};

struct fate {
    volatile uint64_t masked, rounds, since; /* rounds since the last mask */
    int code;
    char why[240];
};

struct side {
    volatile bool stop;
    struct fate fates[RANKS_MAX];
};

static struct side *side_of(const struct ranks *r)
{
    return (struct side *)(void *)r->shared;
}

static float value(uint32_t rank, uint64_t round, size_t i)
{
    return (float)((rank + 1) * (i % 97 + 1) + round % 5);
}

static bool lives(const struct comm *world, uint32_t rank)
{
    return !(comm_masked(world) >> rank & 1);
}

static int sums(struct comm *c, uint64_t round, struct err *e)
{
    static float x[FLOATS];
    for (size_t i = 0; i < FLOATS; i++)
        x[i] = value(comm_rank(c), round, i);
    int rc = comm_all_reduce(c, x, FLOATS, e);
    for (size_t i = 0; !rc && i < FLOATS; i += 7) {
        float want = 0;
        for (uint32_t r = 0; r < comm_ranks(c); r++)
            want += lives(c, r) ? value(r, round, i) : 0;
        if (x[i] != want)
            return err_set(e, EBADMSG, "round %llu: a sum of %f for %f", (unsigned long long)round,
                           (double)x[i], (double)want);
    }
    return rc;
}

/* Among the members of `c`, whose ranks in the world are r * stride + first. */
static int gathers(struct comm *c, const struct comm *world, uint32_t first, uint32_t stride,
                   uint64_t round, struct err *e)
{
    uint64_t mine = round * 100 + comm_rank(c), all[RANKS_MAX];
    memset(all, 0xff, sizeof all);
    int rc = comm_all_gather(c, &mine, sizeof mine, all, e);
    for (uint32_t r = 0; !rc && r < comm_ranks(c); r++)
        if (all[r] != (lives(world, first + r * stride) ? round * 100 + r : 0))
            return err_set(e, EBADMSG, "round %llu: rank %u gave %llu", (unsigned long long)round,
                           r, (unsigned long long)all[r]);
    return rc;
}

static int pieces(struct comm *c, uint64_t round, struct err *e)
{
    static uint8_t out[RANKS_MAX * 2 * PIECE * RANKS_MAX], in[sizeof out];
    size_t out_bytes[RANKS_MAX], in_bytes[RANKS_MAX], at = 0;
    uint32_t me = comm_rank(c), n = comm_ranks(c);
    for (uint32_t r = 0; r < n; r++) {
        out_bytes[r] = PIECE * (1 + (me + r) % n);
        in_bytes[r] = PIECE * (1 + (me + r) % n);
        memset(out + at, (int)(me * 16 + r + round), out_bytes[r]);
        at += out_bytes[r];
    }
    memset(in, 0, sizeof in);
    int rc = comm_all_to_all_begin(c, out, out_bytes, in, in_bytes, e);
    rc = rc ? rc : comm_all_to_all_end(c, e);
    at = 0;
    for (uint32_t r = 0; !rc && r < n; at += in_bytes[r++])
        for (size_t i = 0; i < in_bytes[r]; i += 11)
            if (in[at + i] != (lives(c, r) ? (uint8_t)(r * 16 + me + round) : 0))
                return err_set(e, EBADMSG, "round %llu: a wrong byte of rank %u",
                               (unsigned long long)round, r);
    return rc;
}

/* Until rank 0 says stop, or the group fails. */
static int go_on(struct comm *c, struct ranks *r, void *arg)
{
    const struct plan *plan = arg;
    uint32_t me = comm_rank(c);
    struct fate *f = &side_of(r)->fates[me];
    struct comm *odd;
    struct err e = {0};
    struct {
        uint64_t round;
        bool stop;
    } now = {0};
    int rc = comm_split(c, me % 2, &odd, &e);
    rc = rc ? rc : comm_barrier(c, &e);
    if (!rc && me == 0)
        rc = comm_allow_masks(c, plan->sets, plan->n, plan->n ? plan->n : 1, "thing", -1, &e);
    while (!rc && !now.stop) {
        now.stop = me == 0 && side_of(r)->stop;
        now.round += me == 0;
        rc = comm_broadcast(c, 0, &now, sizeof now, &e);
        rc = rc ? rc : sums(c, now.round, &e);
        rc = rc ? rc : gathers(odd, c, me % 2, 2, now.round, &e);
        rc = rc ? rc : pieces(c, now.round, &e);
        rc = rc ? rc : gathers(c, c, 0, 1, now.round, &e);
        if (rc == -ECANCELED) {
            rc = comm_regroup(c, &e);
            now.stop = false;
            f->since = 0;
        } else {
            f->since++;
        }
        f->rounds++;
        f->masked = comm_masked(c);
    }
    f->code = rc;
    snprintf(f->why, sizeof f->why, "%s", rc ? e.msg : "");
    return rc == -EPIPE ? 9 : rc ? 1 : 0;
}

static void begin(struct ranks *r, uint32_t n, uint32_t silent_ms, struct plan *plan)
{
    ranks_init(r, n, n, sizeof(struct side));
    r->silent_ms = silent_ms;
    ranks_start(r, go_on, plan);
    for (uint32_t i = 0; i < n; i++)
        while (side_of(r)->fates[i].rounds < 5)
            usleep(1000);
}

/* All that live have done so many rounds without these. */
static void await(const struct ranks *r, uint64_t masked)
{
    for (uint32_t i = 0; i < r->n; i++)
        while (!(masked >> i & 1) &&
               (side_of(r)->fates[i].masked != masked || side_of(r)->fates[i].since < 20))
            usleep(1000);
}

static void the_others_compute_what_they_would_without_the_dead(void **state)
{
    (void)state;
    for (uint32_t k = 0; k < 3; k++) {
        struct ranks r;
        struct plan plan = {.sets = {0x0f, 0x06}, .n = 2};
        int codes[RANKS_MAX];
        begin(&r, 4, 0, &plan);
        usleep((useconds_t)(rng_secret_u64() % 3000));
        kill(r.pids[1 + k], SIGKILL);
        await(&r, 2ull << k);
        side_of(&r)->stop = true;
        ranks_wait(&r, codes);
        for (uint32_t i = 0; i < 4; i++)
            assert_int_equal(codes[i], i == 1 + k ? 128 + SIGKILL : 0);
        ranks_fini(&r);
    }
}

static void a_rank_that_is_only_slow_has_ended_before_it_is_masked(void **state)
{
    struct ranks r;
    struct plan plan = {0};
    int codes[RANKS_MAX];
    (void)state;
    begin(&r, 4, 1500, &plan);
    kill(r.pids[3], SIGSTOP);
    await(&r, 8);
    siginfo_t end = {0};
    waitid(P_PID, (id_t)r.pids[3], &end, WEXITED | WNOHANG | WNOWAIT);
    assert_int_equal(end.si_pid, r.pids[3]);
    side_of(&r)->stop = true;
    ranks_wait(&r, codes);
    assert_int_equal(codes[3], 128 + SIGKILL);
    assert_int_equal(codes[0] + codes[1] + codes[2], 0);
    ranks_fini(&r);
}

static void check_end(struct ranks *r, uint64_t dead, const char *why)
{
    int codes[RANKS_MAX];
    ranks_wait(r, codes);
    for (uint32_t i = 0; i < r->n; i++) {
        assert_int_equal(codes[i], dead >> i & 1 ? 128 + SIGKILL : 9);
        if (!(dead >> i & 1))
            assert_non_null(strstr(side_of(r)->fates[i].why, why));
    }
    ranks_fini(r);
}

static void what_nobody_has_any_more_ends_the_group_and_is_named(void **state)
{
    struct ranks r;
    struct plan plan = {.sets = {0x0f, 0x06, 0x06}, .n = 3};
    (void)state;
    begin(&r, 4, 0, &plan);
    kill(r.pids[1], SIGKILL);
    await(&r, 2);
    kill(r.pids[2], SIGKILL);
    check_end(&r, 6,
              "rank 2 (127.0.0.1) died: its connection ended; not masked: no rank is left that "
              "has thing 1, 2");
}

static void three_may_die_one_after_the_other_and_a_fourth_ends_it(void **state)
{
    static const uint32_t order[] = {3, 5, 1};
    struct ranks r;
    struct plan plan = {0};
    uint64_t dead = 0;
    (void)state;
    begin(&r, 6, 0, &plan);
    for (uint32_t k = 0; k < 3; k++) {
        kill(r.pids[order[k]], SIGKILL);
        dead |= 1ull << order[k];
        await(&r, dead);
    }
    kill(r.pids[2], SIGKILL);
    check_end(&r, dead | 4, "not masked: too many ranks have died");
}

static void two_that_die_at_once_are_masked_both(void **state)
{
    struct ranks r;
    struct plan plan = {0};
    int codes[RANKS_MAX];
    (void)state;
    begin(&r, 5, 0, &plan);
    kill(r.pids[4], SIGKILL);
    kill(r.pids[2], SIGKILL);
    await(&r, 0x14);
    side_of(&r)->stop = true;
    ranks_wait(&r, codes);
    assert_int_equal(codes[0] + codes[1] + codes[3], 0);
    ranks_fini(&r);
}

static void when_rank_0_dies_all_fail(void **state)
{
    struct ranks r;
    struct plan plan = {0};
    (void)state;
    begin(&r, 3, 0, &plan);
    kill(r.pids[0], SIGKILL);
    check_end(&r, 1, "rank 0 (127.0.0.1) died");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_others_compute_what_they_would_without_the_dead),
        cmocka_unit_test(a_rank_that_is_only_slow_has_ended_before_it_is_masked),
        cmocka_unit_test(what_nobody_has_any_more_ends_the_group_and_is_named),
        cmocka_unit_test(three_may_die_one_after_the_other_and_a_fourth_ends_it),
        cmocka_unit_test(two_that_die_at_once_are_masked_both),
        cmocka_unit_test(when_rank_0_dies_all_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
