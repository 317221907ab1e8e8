#include "lib/base/rng.h"
#include "lib/decide/rollout.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

#define ROLES 2

/* One role's groups. */
struct side {
    int32_t want, old_ready, old_unready, new_ready, new_unready;
};

struct fleet {
    struct side s[ROLES];
    struct rollout_budget b;
};

static int32_t live(const struct side *s)
{
    return s->old_ready + s->old_unready + s->new_ready + s->new_unready;
}

static int32_t ready(const struct side *s)
{
    return s->old_ready + s->new_ready;
}

static int32_t surge_of(const struct fleet *f)
{
    return f->b.max_surge || f->b.max_unavailable ? f->b.max_surge : 1;
}

static void ask(const struct fleet *f, struct rollout_move *m)
{
    struct rollout_role r[ROLES];
    for (int i = 0; i < ROLES; i++) {
        const struct side *s = &f->s[i];
        r[i] = (struct rollout_role){.want = s->want,
                                     .new_live = s->new_ready + s->new_unready,
                                     .new_ready = s->new_ready,
                                     .old_live = s->old_ready + s->old_unready,
                                     .old_ready = s->old_ready,
                                     .paired_ready = s->new_ready};
    }
    rollout_plan(r, ROLES, &f->b, m);
}

static const char *text(const struct fleet *f)
{
    static char out[300];
    size_t n =
        (size_t)snprintf(out, sizeof out, "maxUnavailable=%d maxSurge=%d%s", f->b.max_unavailable,
                         f->b.max_surge, f->b.in_step ? " in step" : "");
    for (int i = 0; i < ROLES; i++)
        n += (size_t)snprintf(out + n, sizeof out - n, "; want %d: old %d+%d new %d+%d",
                              f->s[i].want, f->s[i].old_ready, f->s[i].old_unready,
                              f->s[i].new_ready, f->s[i].new_unready);
    return out;
}

/* Carries a plan out, and checks what must hold of it in any state whatever. */
static bool carry_out(struct fleet *f)
{
    struct rollout_move m[ROLES];
    bool moved = false;
    ask(f, m);
    for (int i = 0; i < ROLES; i++) {
        struct side *s = &f->s[i], before = *s;
        int32_t floor = s->want - f->b.max_unavailable;
        assert_true(m[i].create >= 0 && m[i].drop_old_ready >= 0 && m[i].drop_new >= 0);
        assert_true(m[i].drop_old_ready <= s->old_ready && m[i].drop_old_unready <= s->old_unready);
        assert_true(m[i].drop_new <= s->new_ready + s->new_unready);
        s->old_ready -= m[i].drop_old_ready;
        s->old_unready -= m[i].drop_old_unready;
        int32_t useless = m[i].drop_new < s->new_unready ? m[i].drop_new : s->new_unready;
        s->new_unready -= useless;
        s->new_ready -= m[i].drop_new - useless;
        if (ready(s) < ready(&before) && ready(s) < floor)
            fail_msg("%s: role %d has %d ready, %d before", text(f), i, ready(s), ready(&before));
        s->new_unready += m[i].create;
        if (m[i].create && live(s) > s->want + surge_of(f))
            fail_msg("%s: role %d has %d groups", text(f), i, live(s));
        moved |= m[i].create || m[i].drop_old_ready || m[i].drop_old_unready || m[i].drop_new;
    }
    return moved;
}

static bool all_become_ready(struct fleet *f)
{
    bool any = false;
    for (int i = 0; i < ROLES; i++) {
        struct side *s = &f->s[i];
        s->old_ready += s->old_unready;
        s->new_ready += s->new_unready;
        any |= s->old_unready || s->new_unready;
        s->old_unready = s->new_unready = 0;
    }
    return any;
}

static bool done(const struct fleet *f)
{
    for (int i = 0; i < ROLES; i++)
        if (f->s[i].old_ready + f->s[i].old_unready || f->s[i].new_ready != f->s[i].want ||
            f->s[i].new_unready)
            return false;
    return true;
}

static void must_end(const struct fleet *start)
{
    struct fleet f = *start;
    for (int i = 0; i < 40; i++) {
        bool moved = carry_out(&f);
        moved |= all_become_ready(&f);
        if (!moved) {
            if (!done(&f))
                fail_msg("stuck at %s", text(&f));
            return;
        }
    }
    fail_msg("no end from %s", text(start));
}

#define MOST 4 /* groups of a role in a state */

/* Calls fn for every state of a side. */
static void each_side(struct fleet *f, int i, void (*fn)(struct fleet *))
{
    struct side *s = &f->s[i];
    for (s->old_ready = 0; s->old_ready <= MOST; s->old_ready++)
        for (s->old_unready = 0; s->old_ready + s->old_unready <= MOST; s->old_unready++)
            for (s->new_ready = 0; s->old_ready + s->old_unready + s->new_ready <= MOST;
                 s->new_ready++)
                for (s->new_unready = 0; live(s) <= MOST; s->new_unready++)
                    fn(f);
}

static void check_state(struct fleet *f)
{
    must_end(f);
}

static void each_second_side(struct fleet *f)
{
    each_side(f, 1, check_state);
}

static void each_budget(int32_t p, int32_t d, void (*fn)(struct fleet *))
{
    for (int32_t u = 0; u <= 2; u++)
        for (int32_t s = 0; s <= 2; s++)
            for (int step = 0; step < 2; step++) {
                struct fleet f = {.b = {u, s, step}};
                f.s[0].want = p;
                f.s[1].want = d;
                fn(&f);
            }
}

static void from_any_first_side(struct fleet *f)
{
    each_side(f, 0, each_second_side);
}

/* Every state of two roles of up to three wanted groups and up to four there, reachable or not:
 * a plan keeps the budget, and the rollout ends. */
static void any_state_of_two_roles_keeps_its_budget_and_gets_there(void **state)
{
    (void)state;
    for (int32_t p = 0; p <= 3; p++)
        for (int32_t d = 1; d <= 3; d++)
            each_budget(p, d, from_any_first_side);
}

/* Random: which of the groups that are not ready becomes so. */
static void one_becomes_ready(struct fleet *f, struct rng *r)
{
    for (int k = 0, at = (int)rng_below(r, ROLES); k < ROLES; k++) {
        struct side *s = &f->s[(at + k) % ROLES];
        if (s->new_unready) {
            s->new_unready--;
            s->new_ready++;
            return;
        }
    }
}

static double weight(const struct fleet *f, bool fresh)
{
    int32_t some[ROLES], all[ROLES];
    for (int i = 0; i < ROLES; i++) {
        some[i] = fresh ? f->s[i].new_ready : f->s[i].old_ready;
        all[i] = f->s[i].want;
    }
    return rollout_weight(some, all, ROLES);
}

/* What is asked of every moment of a rollout: the share of the work that pairs of one revision can
 * do, summed over both revisions. Rounding costs less than two thirds of a group of the smallest
 * role. */
static void check_pairs(const struct fleet *f)
{
    int32_t least = f->s[0].want < f->s[1].want ? f->s[0].want : f->s[1].want;
    int32_t lost = f->b.max_surge || !f->b.max_unavailable ? 0 : f->b.max_unavailable;
    double bound = 1 - ((double)lost + 2.0 / 3) / least;
    if (weight(f, true) + weight(f, false) < bound - 1e-9)
        fail_msg("%s: pairs can do %.3f of the work", text(f), weight(f, true) + weight(f, false));
}

static void roll(struct fleet f, uint64_t seed)
{
    struct rng r = {seed};
    for (int i = 0; i < ROLES; i++)
        f.s[i].old_ready = f.s[i].want;
    for (int i = 0; i < 200 && !done(&f); i++) {
        carry_out(&f);
        check_pairs(&f);
        one_becomes_ready(&f, &r);
        check_pairs(&f);
    }
    assert_true(done(&f));
}

static void roles_that_move_in_step_keep_pairs_through_the_whole_rollout(void **state)
{
    (void)state;
    for (int32_t p = 1; p <= 5; p++)
        for (int32_t d = p; d <= 10; d++)
            for (int32_t u = 0; u <= 2; u++)
                for (int32_t s = 0; s <= 2; s++)
                    for (uint64_t seed = 1; seed <= 6; seed++) {
                        struct fleet f = {.b = {u, s, true}};
                        f.s[0].want = p;
                        f.s[1].want = d;
                        roll(f, seed);
                    }
}

/* llm-d-router's example: 2 prefill and 10 decode; pairs weighted by prefill alone would send a
 * third of the traffic to a tenth of the decode. */
static void the_weight_of_a_revision_is_that_of_its_scarcer_role(void **state)
{
    (void)state;
    int32_t old[] = {2, 9}, fresh[] = {1, 1}, all[] = {3, 10}, none[] = {0, 0};
    assert_float_equal(rollout_weight(fresh, all, 2), 0.1, 1e-9);
    assert_float_equal(rollout_weight(old, all, 2), 2.0 / 3, 1e-9);
    assert_float_equal(rollout_weight(none, none, 2), 0, 1e-9);
}

static struct rollout_move one(struct rollout_role r, int32_t unavailable, int32_t surge)
{
    struct rollout_role roles[] = {r};
    struct rollout_budget b = {unavailable, surge, false};
    struct rollout_move m;
    rollout_plan(roles, 1, &b, &m);
    return m;
}

static void a_single_group_can_be_rolled_without_any_budget(void **state)
{
    (void)state;
    struct rollout_move m =
        one((struct rollout_role){.want = 1, .old_live = 1, .old_ready = 1}, 0, 0);
    assert_int_equal(m.create, 1);
    assert_int_equal(m.drop_old_ready, 0);
}

static void old_groups_that_never_became_ready_are_replaced_at_once(void **state)
{
    (void)state;
    struct rollout_move m = one((struct rollout_role){.want = 3, .old_live = 3}, 0, 1);
    assert_int_equal(m.drop_old_unready, 3);
    assert_int_equal(m.create, 3);
}

static void ready_groups_are_given_up_only_within_max_unavailable(void **state)
{
    (void)state;
    struct rollout_role r = {.want = 4, .old_live = 4, .old_ready = 4, .new_live = 1};
    assert_int_equal(one(r, 0, 1).drop_old_ready, 0);
    assert_int_equal(one(r, 1, 1).drop_old_ready, 1);
    r.new_ready = 1;
    assert_int_equal(one(r, 1, 1).drop_old_ready, 2);
}

static void groups_are_made_only_within_max_surge(void **state)
{
    (void)state;
    struct rollout_role r = {.want = 4, .old_live = 4, .old_ready = 4};
    assert_int_equal(one(r, 0, 1).create, 1);
    assert_int_equal(one(r, 0, 3).create, 3);
    r.old_live = r.old_ready = 0;
    assert_int_equal(one(r, 0, 3).create, 4); /* nothing to replace: no surge */
}

/* While prefill's new group is not ready decode waits for it. */
static void no_role_runs_ahead_of_the_other(void **state)
{
    (void)state;
    struct rollout_role r[] = {{.want = 2, .old_live = 2, .old_ready = 2, .new_live = 1},
                               {.want = 4,
                                .old_live = 3,
                                .old_ready = 3,
                                .new_live = 2,
                                .new_ready = 2,
                                .paired_ready = 2}};
    struct rollout_budget b = {1, 2, true};
    struct rollout_move m[2];
    rollout_plan(r, 2, &b, m);
    assert_int_equal(m[1].create, 0);
    assert_int_equal(m[1].drop_old_ready, 0);
    b.in_step = false;
    rollout_plan(r, 2, &b, m);
    assert_true(m[1].create > 0 || m[1].drop_old_ready > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_state_of_two_roles_keeps_its_budget_and_gets_there),
        cmocka_unit_test(roles_that_move_in_step_keep_pairs_through_the_whole_rollout),
        cmocka_unit_test(the_weight_of_a_revision_is_that_of_its_scarcer_role),
        cmocka_unit_test(a_single_group_can_be_rolled_without_any_budget),
        cmocka_unit_test(old_groups_that_never_became_ready_are_replaced_at_once),
        cmocka_unit_test(ready_groups_are_given_up_only_within_max_unavailable),
        cmocka_unit_test(groups_are_made_only_within_max_surge),
        cmocka_unit_test(no_role_runs_ahead_of_the_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
