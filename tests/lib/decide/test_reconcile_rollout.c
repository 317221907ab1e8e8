#include "tests/lib/decide/rec_world.h"

#include <stdlib.h>

static void new_revision(struct world *w, const char *revision)
{
    for (int i = 0; i < REC_ROLES; i++)
        w->s.roles[i].revision = revision;
    w->s.generation++;
}

static int of_revision(struct world *w, enum rec_role role, const char *revision, bool ready)
{
    int n = 0;
    for (size_t i = 0; i < WORLD_PODS; i++) {
        const struct rec_pod *p = &w->pods[i].p;
        n += w->pods[i].there && p->role == role && !p->deleting &&
             strcmp(p->revision, revision) == 0 && (p->ready || !ready);
    }
    return n;
}

/* One pod of those that are not ready yet becomes ready, or one that is deleted goes. */
static bool kubelet_one(struct world *w, struct rng *r)
{
    size_t start = rng_below(r, WORLD_PODS);
    for (size_t k = 0; k < WORLD_PODS; k++) {
        struct world_pod *p = &w->pods[(start + k) % WORLD_PODS];
        if (p->there && p->p.deleting) {
            p->there = false;
            return true;
        }
        if (p->there && !p->p.ready && !p->p.failed && !p->p.trouble) {
            p->p.ready = true;
            return true;
        }
    }
    return false;
}

static void check_budget(struct world *w, int n, int unavailable, int surge)
{
    int ready = world_count(w, REC_DECODE, true), all = world_count(w, REC_DECODE, false);
    if (ready < n - unavailable || all > n + surge)
        fail_msg("N=%d maxUnavailable=%d maxSurge=%d: %d ready, %d there", n, unavailable, surge,
                 ready, all);
}

static void a_rollout_keeps_its_budget_for_every_size_and_order(void **state)
{
    (void)state;
    for (int n = 1; n <= 5; n++)
        for (int u = 0; u <= 2; u++)
            for (int s = u ? 0 : 1; s <= 2; s++)
                for (uint64_t seed = 1; seed <= 8; seed++) {
                    struct world w;
                    struct rng r = {seed};
                    world_init(&w, 0, n);
                    w.s.max_unavailable = u;
                    w.s.max_surge = s;
                    world_settle(&w);
                    new_revision(&w, "r2");
                    for (int i = 0; i < 400 && (world_turn(&w, SIZE_MAX) || kubelet_one(&w, &r));
                         i++) {
                        check_budget(&w, n, u, s);
                        kubelet_one(&w, &r);
                    }
                    assert_int_equal(of_revision(&w, REC_DECODE, "r2", true), n);
                    assert_int_equal(of_revision(&w, REC_DECODE, "r1", false), 0);
                    assert_int_equal(w.created, 2 * n);
                    world_fini(&w);
                }
}

static void going_back_half_way_keeps_the_budget_too(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 50; seed++) {
        struct world w;
        struct rng r = {seed};
        world_init(&w, 0, 4);
        w.s.max_unavailable = 1;
        world_settle(&w);
        new_revision(&w, "r2");
        for (unsigned i = 0; i < 1 + seed % 12; i++) {
            world_turn(&w, SIZE_MAX);
            check_budget(&w, 4, 1, 1);
            kubelet_one(&w, &r);
        }
        new_revision(&w, "r1");
        for (int i = 0; i < 400 && (world_turn(&w, SIZE_MAX) || kubelet_one(&w, &r)); i++)
            check_budget(&w, 4, 1, 1);
        assert_int_equal(of_revision(&w, REC_DECODE, "r1", true), 4);
        world_fini(&w);
    }
}

static void edits_in_quick_succession_lose_no_ready_pod_beyond_the_budget(void **state)
{
    struct world w;
    struct rng r = {7};
    (void)state;
    world_init(&w, 0, 3);
    w.s.max_unavailable = 1;
    world_settle(&w);
    static const char *const revisions[] = {"r2", "r3", "r4"}; /* their pods never become ready */
    for (int k = 0; k < 3; k++) {
        new_revision(&w, revisions[k]);
        for (int i = 0; i < 10; i++) {
            world_turn(&w, SIZE_MAX);
            check_budget(&w, 3, 1, 1);
            for (size_t j = 0; j < WORLD_PODS; j++)
                if (w.pods[j].there && w.pods[j].p.deleting)
                    w.pods[j].there = false;
        }
    }
    assert_int_equal(of_revision(&w, REC_DECODE, "r1", true), 2);
    (void)r;
    world_fini(&w);
}

static void a_bad_revision_that_never_was_ready_is_replaced_without_help(void **state)
{
    struct world w;
    (void)state;
    world_init(&w, 0, 3);
    world_turn(&w, SIZE_MAX); /* first revision: nothing ever ready */
    for (size_t i = 0; i < WORLD_PODS; i++)
        if (w.pods[i].there)
            w.pods[i].p.trouble = "ImagePullBackOff";
    new_revision(&w, "r2");
    world_settle(&w);
    assert_int_equal(of_revision(&w, REC_DECODE, "r2", true), 3);
    world_fini(&w);
}

static void a_replacement_of_a_failed_pod_counts_within_the_surge(void **state)
{
    struct world w;
    (void)state;
    world_init(&w, 0, 3);
    world_settle(&w);
    for (size_t i = 0; i < WORLD_PODS; i++)
        if (w.pods[i].there) {
            w.pods[i].p.failed = true;
            w.pods[i].p.ready = false;
            break;
        }
    new_revision(&w, "r2");
    world_turn(&w, SIZE_MAX);
    assert_int_equal(world_count(&w, REC_DECODE, false), 4); /* 3 + maxSurge */
    world_fini(&w);
}

static void a_pod_that_changes_its_role_is_not_counted_as_ready_yet(void **state)
{
    struct world w;
    (void)state;
    world_init(&w, 2, 1);
    w.s.max_unavailable = 1;
    world_settle(&w);
    for (size_t i = 0; i < WORLD_PODS; i++)
        if (w.pods[i].there && w.pods[i].p.role == REC_PREFILL)
            w.pods[i].p.revision = "r2";
    new_revision(&w, "r2");
    w.s.roles[REC_PREFILL].replicas = 1;
    w.s.roles[REC_DECODE].replicas = 2;
    world_turn(&w, SIZE_MAX);
    assert_int_equal(w.flipped, 1);
    assert_int_equal(world_count(&w, REC_DECODE, true), 1); /* the old one serves on */
    world_settle(&w);
    assert_int_equal(of_revision(&w, REC_DECODE, "r2", true), 2);
    world_fini(&w);
}

static void ready_is_false_until_no_old_pod_is_left(void **state)
{
    struct world w;
    (void)state;
    world_init(&w, 1, 1);
    world_settle(&w);
    new_revision(&w, "r2");
    world_turn(&w, SIZE_MAX);
    assert_string_equal(w.s.conditions[REC_READY].status, "False");
    assert_string_equal(w.s.conditions[REC_READY].reason, "Updating");
    assert_string_equal(w.s.conditions[REC_PROGRESSING].reason, "RollingOut");
    assert_int_equal(w.s.observed_generation, w.s.generation);
    world_settle(&w);
    assert_string_equal(w.s.conditions[REC_READY].status, "True");
    world_fini(&w);
}

static void a_revision_and_a_number_changed_together_make_no_pod_of_the_old_revision(void **state)
{
    struct world w;
    (void)state;
    world_init(&w, 0, 2);
    world_settle(&w);
    new_revision(&w, "r2");
    w.s.roles[REC_DECODE].replicas = 4;
    while (world_turn(&w, SIZE_MAX)) {
        for (size_t i = 0; i < w.plan.n; i++)
            if (w.plan.actions[i].kind == REC_CREATE_POD)
                assert_string_equal(w.plan.actions[i].revision, "r2");
        world_kubelet(&w);
    }
    assert_int_equal(of_revision(&w, REC_DECODE, "r2", true), 4);
    world_fini(&w);
}

static void only_the_role_whose_revision_changed_is_rolled(void **state)
{
    struct world w;
    (void)state;
    world_init(&w, 2, 2);
    world_settle(&w);
    w.s.roles[REC_DECODE].revision = "d2";
    world_settle(&w);
    assert_int_equal(of_revision(&w, REC_PREFILL, "r1", true), 2);
    assert_int_equal(of_revision(&w, REC_DECODE, "d2", true), 2);
    assert_int_equal(w.created, 6);
    world_fini(&w);
}

static void roles_that_are_no_longer_wanted_serve_until_the_new_ones_can(void **state)
{
    struct world w;
    (void)state;
    world_init(&w, 1, 1);
    world_settle(&w);
    w.s.roles[REC_PREFILL].wanted = w.s.roles[REC_DECODE].wanted = false;
    w.s.roles[REC_PREFILL].replicas = w.s.roles[REC_DECODE].replicas = -1;
    w.s.roles[REC_UNIFIED].wanted = true;
    w.s.roles[REC_UNIFIED].replicas = 2;
    for (int i = 0; i < REC_ROLES; i++)
        w.s.roles[i].revision = "u1"; /* another layout: no pod can be given over */
    world_turn(&w, SIZE_MAX);
    assert_int_equal(w.deleted, 0);
    assert_int_equal(world_count(&w, REC_UNIFIED, false), 2);
    assert_false(world_pool(&w, REC_PREFILL)->exists);
    world_settle(&w);
    assert_int_equal(world_count(&w, REC_UNIFIED, true), 2);
    assert_int_equal(world_count(&w, REC_PREFILL, false) + world_count(&w, REC_DECODE, false), 0);
    world_fini(&w);
}

static void unified_pods_of_the_same_revision_become_prefill_and_decode(void **state)
{
    struct world w;
    (void)state;
    world_init(&w, -1, -1);
    w.s.roles[REC_PREFILL].wanted = w.s.roles[REC_DECODE].wanted = false;
    w.s.roles[REC_UNIFIED].wanted = true;
    w.s.roles[REC_UNIFIED].replicas = 2;
    world_settle(&w);
    w.s.roles[REC_UNIFIED].wanted = false;
    w.s.roles[REC_UNIFIED].replicas = -1;
    w.s.roles[REC_PREFILL].wanted = w.s.roles[REC_DECODE].wanted = true;
    w.s.roles[REC_PREFILL].replicas = w.s.roles[REC_DECODE].replicas = 1;
    world_settle(&w);
    assert_int_equal(w.flipped, 2);
    assert_int_equal(w.created, 2);
    world_fini(&w);
}

/* ---- anything at all ---- */

static void hostile_edit(struct world *w, struct rng *r)
{
    static const char *const revisions[] = {"r1", "r2", "r3"};
    enum rec_role role = rng_below(r, 2) ? REC_DECODE : REC_PREFILL;
    struct rec_role_spec *spec = &w->s.roles[role];
    struct world_pod *p = &w->pods[rng_below(r, 24)];
    switch (rng_below(r, 12)) {
    case 0: spec->replicas = (int32_t)rng_below(r, 5); break;
    case 1:
        if (spec->pool.exists)
            spec->pool.replicas = (int32_t)rng_below(r, 5);
        break;
    case 2: spec->revision = revisions[rng_below(r, 3)]; break;
    case 3: p->there = false; break;
    case 4:
        if (p->there)
            p->p.deleting = true;
        break;
    case 5:
        if (p->there)
            p->p.failed = true, p->p.ready = false, p->p.failed_ns = w->now;
        break;
    case 6:
        if (p->there)
            p->p.ready = false;
        break;
    case 7: spec->pool.exists = false; break;
    case 8: spec->pool.last_replicas = -1; break;
    case 9: spec->pool.pdb_min_available = -1; break;
    case 10: w->s.secret = REC_SECRET_ABSENT; break;
    default:
        if (p->there && !p->p.deleting)
            p->p.role = role;
        break;
    }
    w->s.generation++;
}

static void any_edits_and_crashes_end_with_what_was_asked_for(void **state)
{
    uint64_t seed = 20261130;
    (void)state;
    printf("seed %llu\n", (unsigned long long)seed);
    for (int round = 0; round < 300; round++) {
        struct world w;
        struct rng r = {seed + (uint64_t)round};
        world_init(&w, 1, 2);
        for (int i = 0; i < 60; i++) {
            hostile_edit(&w, &r);
            world_turn(&w, rng_below(&r, 12));
            if (rng_below(&r, 2))
                kubelet_one(&w, &r);
            w.now += rng_below(&r, 40) * S_NS;
        }
        w.now += 2000 * S_NS; /* back-offs are over */
        world_settle(&w);
        for (int role = REC_PREFILL; role <= REC_DECODE; role++) {
            int want = w.s.roles[role].pool.replicas;
            if (world_count(&w, (enum rec_role)role, true) != want ||
                world_count(&w, (enum rec_role)role, false) != want)
                fail_msg("round %d: %s has %d, wanted %d", round,
                         rec_role_name((enum rec_role)role),
                         world_count(&w, (enum rec_role)role, false), want);
        }
        world_fini(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rollout_keeps_its_budget_for_every_size_and_order),
        cmocka_unit_test(going_back_half_way_keeps_the_budget_too),
        cmocka_unit_test(edits_in_quick_succession_lose_no_ready_pod_beyond_the_budget),
        cmocka_unit_test(a_bad_revision_that_never_was_ready_is_replaced_without_help),
        cmocka_unit_test(a_replacement_of_a_failed_pod_counts_within_the_surge),
        cmocka_unit_test(a_pod_that_changes_its_role_is_not_counted_as_ready_yet),
        cmocka_unit_test(ready_is_false_until_no_old_pod_is_left),
        cmocka_unit_test(a_revision_and_a_number_changed_together_make_no_pod_of_the_old_revision),
        cmocka_unit_test(only_the_role_whose_revision_changed_is_rolled),
        cmocka_unit_test(roles_that_are_no_longer_wanted_serve_until_the_new_ones_can),
        cmocka_unit_test(unified_pods_of_the_same_revision_become_prefill_and_decode),
        cmocka_unit_test(any_edits_and_crashes_end_with_what_was_asked_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
