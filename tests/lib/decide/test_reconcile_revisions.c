/* The history of revisions, pauses and reverts in reconcile(). */
#include "tests/lib/decide/rec_world.h"

static void want_revision(struct world *w, const char *all, const char *roles)
{
    w->s.revision = all;
    for (int i = 0; i < REC_ROLES; i++)
        w->s.roles[i].revision = roles;
    w->s.generation++;
}

static const struct rec_revision *stored(const struct world *w, const char *hash)
{
    for (size_t i = 0; i < w->s.n_revisions; i++)
        if (strcmp(w->revisions[i].hash, hash) == 0)
            return &w->revisions[i];
    return NULL;
}

static int of(struct world *w, const char *revision)
{
    int n = 0;
    for (size_t i = 0; i < WORLD_PODS; i++)
        n += w->pods[i].there && !w->pods[i].p.deleting &&
             strcmp(w->pods[i].p.revision, revision) == 0;
    return n;
}

static void a_revision_is_stored_before_pods_have_it(void **state)
{
    struct world w;
    (void)state;
    world_init(&w, 1, 1);
    want_revision(&w, "a1", "r1");
    world_turn(&w, 0);
    const struct rec_action *v = world_action(&w, REC_CREATE_REVISION, 0);
    assert_non_null(v);
    assert_true(v < world_action(&w, REC_CREATE_POD, 0));
    assert_string_equal(v->name, "chat-a1");
    assert_int_equal(v->number64, 1);
    world_settle(&w);
    assert_string_equal(w.s.status_revision, "a1");
    assert_string_equal(w.s.status_current, "a1");
    world_fini(&w);
}

static void going_back_takes_the_old_revision_up_again(void **state)
{
    struct world w;
    (void)state;
    world_init(&w, 1, 2);
    want_revision(&w, "a1", "r1");
    world_settle(&w);
    want_revision(&w, "a2", "r2");
    world_turn(&w, SIZE_MAX);
    world_kubelet(&w);
    want_revision(&w, "a1", "r1");
    world_settle(&w);
    assert_int_equal(w.s.n_revisions, 2);
    assert_int_equal(stored(&w, "a1")->number, 3);
    assert_int_equal(stored(&w, "a2")->number, 2);
    assert_int_equal(of(&w, "r1"), 3);
    world_fini(&w);
}

static void a_change_of_numbers_is_no_revision(void **state)
{
    struct world w;
    (void)state;
    world_init(&w, 1, 1);
    want_revision(&w, "a1", "r1");
    world_settle(&w);
    w.s.roles[REC_DECODE].replicas = 3;
    w.s.generation++;
    world_settle(&w);
    assert_int_equal(w.s.n_revisions, 1);
    assert_int_equal(w.deleted, 0);
    assert_int_equal(w.created, 4);
    world_fini(&w);
}

static void ten_revisions_are_kept(void **state)
{
    struct world w;
    char names[14][2][8];
    (void)state;
    world_init(&w, 1, 1);
    for (int i = 0; i < 14; i++) {
        snprintf(names[i][0], sizeof names[i][0], "a%d", i);
        snprintf(names[i][1], sizeof names[i][1], "r%d", i);
        want_revision(&w, names[i][0], names[i][1]);
        world_settle(&w);
    }
    assert_int_equal(w.s.n_revisions, REC_HISTORY);
    assert_null(stored(&w, "a3"));
    assert_non_null(stored(&w, "a4"));
    world_fini(&w);
}

static void a_revision_that_pods_have_is_kept_however_old(void **state)
{
    struct world w;
    char names[14][2][8];
    (void)state;
    world_init(&w, 1, 1);
    want_revision(&w, "a1", "r1");
    world_settle(&w);
    w.s.paused = true;
    for (int i = 2; i < 14; i++) {
        snprintf(names[i][0], sizeof names[i][0], "a%d", i);
        snprintf(names[i][1], sizeof names[i][1], "r%d", i);
        want_revision(&w, names[i][0], names[i][1]);
        world_settle(&w);
    }
    assert_int_equal(of(&w, "r1"), 2);
    assert_non_null(stored(&w, "a1"));
    assert_string_equal(w.s.status_current, "a1");
    world_fini(&w);
}

static void a_pause_stops_a_rollout_where_it_is_and_nothing_else(void **state)
{
    struct world w;
    (void)state;
    world_init(&w, 0, 4);
    want_revision(&w, "a1", "r1");
    world_settle(&w);
    want_revision(&w, "a2", "r2");
    world_turn(&w, SIZE_MAX);
    world_kubelet(&w);
    world_turn(&w, SIZE_MAX); /* one is moved */
    w.s.paused = true;
    world_settle(&w);
    int moved = of(&w, "r2");
    assert_in_range(moved, 1, 3);
    w.s.roles[REC_DECODE].replicas = 6; /* numbers are still acted upon, at the usual revision */
    w.s.generation++;
    world_settle(&w);
    assert_int_equal(of(&w, "r1") + of(&w, "r2"), 6);
    assert_int_equal(of(&w, "r2"), moved);
    assert_string_equal(w.s.conditions[REC_READY].reason, "Paused");
    assert_string_equal(w.s.conditions[REC_PROGRESSING].status, "False");
    w.s.paused = false;
    world_settle(&w);
    assert_int_equal(of(&w, "r2"), 6);
    world_fini(&w);
}

/* Prefill and decode whose revisions can't work together move in step. */
static void roles_that_must_pair_are_rolled_together(void **state)
{
    struct world w;
    (void)state;
    world_init(&w, 2, 4);
    for (int i = 0; i < REC_ROLES; i++)
        w.s.roles[i].pair = "p1";
    want_revision(&w, "a1", "r1");
    world_settle(&w);
    for (int i = 0; i < REC_ROLES; i++)
        w.s.roles[i].pair = "p2";
    want_revision(&w, "a2", "r2");
    for (int i = 0; i < 100 && world_turn(&w, SIZE_MAX); i++) {
        int pairs[2][2] = {{0}};
        for (size_t k = 0; k < WORLD_PODS; k++) {
            const struct rec_pod *p = &w.pods[k].p;
            if (w.pods[k].there && p->ready && !p->deleting)
                pairs[p->role == REC_DECODE][strcmp(p->pair, "p2") == 0]++;
        }
        bool old = pairs[0][0] && pairs[1][0], fresh = pairs[0][1] && pairs[1][1];
        if (!old && !fresh)
            fail_msg("turn %d: no pair: prefill %d old %d new, decode %d old %d new", i,
                     pairs[0][0], pairs[0][1], pairs[1][0], pairs[1][1]);
        if (pairs[1][1] > 2 && !pairs[0][1])
            fail_msg("turn %d: decode runs ahead", i);
        world_kubelet(&w);
    }
    assert_int_equal(of(&w, "r2"), 6);
    world_fini(&w);
}

/* The controller dies after every write of a rollout; each new one goes on within the budget. */
static void a_controller_that_dies_after_every_write_of_a_rollout_keeps_the_budget(void **state)
{
    struct world w;
    (void)state;
    world_init(&w, 0, 3);
    want_revision(&w, "a1", "r1");
    world_settle(&w);
    want_revision(&w, "a2", "r2");
    for (int i = 0; i < 200 && world_turn(&w, 1); i++) {
        assert_true(world_count(&w, REC_DECODE, true) >= 3);
        assert_true(world_count(&w, REC_DECODE, false) <= 4);
        if (i % 3 == 0)
            world_kubelet(&w);
    }
    world_settle(&w);
    assert_int_equal(of(&w, "r2"), 3);
    assert_int_equal(w.created, 6);
    world_fini(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_revision_is_stored_before_pods_have_it),
        cmocka_unit_test(going_back_takes_the_old_revision_up_again),
        cmocka_unit_test(a_change_of_numbers_is_no_revision),
        cmocka_unit_test(ten_revisions_are_kept),
        cmocka_unit_test(a_revision_that_pods_have_is_kept_however_old),
        cmocka_unit_test(a_pause_stops_a_rollout_where_it_is_and_nothing_else),
        cmocka_unit_test(roles_that_must_pair_are_rolled_together),
        cmocka_unit_test(a_controller_that_dies_after_every_write_of_a_rollout_keeps_the_budget),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
