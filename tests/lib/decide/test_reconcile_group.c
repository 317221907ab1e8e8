/* Groups of several pods in reconcile(): made, placed, started, restarted and removed as a whole.
 */
#include "tests/lib/decide/rec_world.h"

static void grouped(struct world *w, int32_t decode, int32_t pods)
{
    world_init(w, 0, decode);
    for (int i = 0; i < REC_ROLES; i++)
        w->s.roles[i].pods = pods;
}

/* Pods that are there and not on their way out. */
static int there(struct world *w)
{
    int n = 0;
    for (size_t i = 0; i < WORLD_PODS; i++)
        n += w->pods[i].there && !w->pods[i].p.deleting;
    return n;
}

static struct rec_pod *nth(struct world *w, int32_t index)
{
    for (size_t i = 0; i < WORLD_PODS; i++)
        if (w->pods[i].there && !w->pods[i].p.deleting && w->pods[i].p.index == index)
            return &w->pods[i].p;
    return NULL;
}

static int count_kind(const struct world *w, enum rec_kind kind)
{
    int n = 0;
    for (size_t i = 0; i < w->plan.n; i++)
        n += w->plan.actions[i].kind == kind;
    return n;
}

static void a_group_is_made_whole_with_names_by_index(void **state)
{
    struct world w;
    (void)state;
    grouped(&w, 1, 4);
    world_turn(&w, SIZE_MAX);
    assert_int_equal(w.created, 4);
    const struct rec_pod *lead = nth(&w, 0);
    char name[80];
    for (int i = 0; i < 4; i++) {
        const struct rec_pod *p = nth(&w, i);
        snprintf(name, sizeof name, i ? "%s-%d" : "%s", lead->name, i);
        assert_string_equal(p->name, name);
        assert_string_equal(p->group, lead->name);
        assert_int_equal(p->epoch, 1);
        assert_true(p->gated);
    }
    world_fini(&w);
}

static void nobody_starts_before_all_have_an_address(void **state)
{
    struct world w;
    (void)state;
    grouped(&w, 1, 2);
    world_turn(&w, SIZE_MAX); /* made */
    world_turn(&w, SIZE_MAX); /* gates lifted */
    nth(&w, 0)->ip = "10.0.0.1";
    nth(&w, 0)->placed = true;
    world_turn(&w, SIZE_MAX);
    assert_null(nth(&w, 0)->peers);
    nth(&w, 1)->ip = "10.0.0.2";
    nth(&w, 1)->placed = true;
    world_turn(&w, SIZE_MAX);
    for (int i = 0; i < 2; i++)
        assert_string_equal(nth(&w, i)->peers, "[\"10.0.0.1\",\"10.0.0.2\"]");
    world_settle(&w);
    assert_string_equal(w.s.conditions[REC_READY].status, "True");
    world_fini(&w);
}

static void a_group_is_ready_when_all_of_its_pods_are(void **state)
{
    struct world w;
    (void)state;
    grouped(&w, 2, 2);
    world_settle(&w);
    assert_int_equal(w.s.counts[REC_DECODE].ready, 2);
    nth(&w, 1)->ready = false;
    world_turn(&w, SIZE_MAX);
    assert_int_equal(w.s.counts[REC_DECODE].current, 2);
    assert_int_equal(w.s.counts[REC_DECODE].ready, 1);
    assert_string_equal(w.s.conditions[REC_READY].status, "False");
    world_fini(&w);
}

static void ranks_end(struct world *w, int32_t index, const char *record)
{
    struct rec_pod *p = nth(w, index);
    p->failed_epoch = p->epoch;
    p->failed_ns = w->now;
    p->crash = record;
    for (int i = 0; i < p->size; i++)
        nth(w, i)->ready = false;
}

static void one_failure_restarts_the_group_exactly_once(void **state)
{
    struct world w;
    (void)state;
    grouped(&w, 1, 3);
    world_settle(&w);
    ranks_end(&w, 1, "{\"message\":\"rank 1 died\"}");
    world_turn(&w, SIZE_MAX);
    assert_int_equal(w.restarts, 3); /* each pod told once */
    ranks_end(&w, 2, "{\"message\":\"lost its peer\"}");
    nth(&w, 2)->failed_epoch = 1; /* rank 2 reports the same failure later */
    world_turn(&w, SIZE_MAX);
    world_settle(&w);
    w.now += 100 * S_NS; /* no back-off hides a second restart */
    world_settle(&w);
    assert_int_equal(w.restarts, 3);
    for (int i = 0; i < 3; i++)
        assert_int_equal(nth(&w, i)->epoch, 2);
    assert_int_equal(w.created, 3);
    assert_int_equal(w.deleted, 0);
    world_fini(&w);
}

static void the_record_of_a_failure_is_on_rank_0s_pod_before_the_restart(void **state)
{
    struct world w;
    (void)state;
    grouped(&w, 1, 2);
    world_settle(&w);
    ranks_end(&w, 1, "{\"message\":\"out of memory\"}");
    world_turn(&w, 1); /* the first write already holds both */
    assert_string_equal(nth(&w, 0)->crash, "{\"message\":\"out of memory\"}");
    assert_int_equal(nth(&w, 0)->epoch, 2);
    world_fini(&w);
}

static uint64_t restart_after(struct world *w)
{
    uint64_t from = w->now;
    uint32_t epoch = nth(w, 0)->epoch;
    ranks_end(w, 0, NULL);
    for (int i = 0; i < 2000 && nth(w, 0)->epoch == epoch; i++) {
        world_turn(w, SIZE_MAX);
        if (nth(w, 0)->epoch == epoch)
            w->now += S_NS;
    }
    uint64_t waited = w->now - from;
    world_kubelet(w);
    return waited / S_NS;
}

static void restarts_back_off_from_30_to_600_seconds_and_forget_after_10_minutes(void **state)
{
    static const uint64_t want[] = {0, 30, 60, 120, 240, 480, 600, 600};
    struct world w;
    (void)state;
    grouped(&w, 1, 2);
    world_settle(&w);
    for (size_t i = 0; i < sizeof want / sizeof *want; i++)
        assert_in_range(restart_after(&w), want[i], want[i] + 1);
    w.now += 1300 * S_NS; /* ten minutes healthy after the last back-off */
    assert_int_equal(restart_after(&w), 0);
    assert_in_range(restart_after(&w), 30, 31);
    world_fini(&w);
}

static void a_crash_of_the_controller_in_a_restart_loses_and_doubles_nothing(void **state)
{
    (void)state;
    for (size_t k = 0; k < 6; k++) {
        struct world w;
        grouped(&w, 1, 4);
        world_settle(&w);
        ranks_end(&w, 2, "{}");
        world_turn(&w, k);
        world_settle(&w);
        for (int i = 0; i < 4; i++)
            assert_int_equal(nth(&w, i)->epoch, 2);
        assert_int_equal(w.restarts, 4);
        world_fini(&w);
    }
}

static void a_crash_in_the_making_ends_with_every_pod_in_its_place(void **state)
{
    (void)state;
    for (size_t k = 0; k < 40; k++) {
        struct world w;
        grouped(&w, 4, 4);
        world_turn(&w, k);
        world_settle(&w);
        assert_int_equal(w.created, 16);
        assert_int_equal(there(&w), 16);
        assert_int_equal(w.s.counts[REC_DECODE].ready, 4);
        world_fini(&w);
    }
}

static void a_pod_that_is_gone_takes_its_group_with_it_and_all_come_back(void **state)
{
    struct world w;
    char old[64];
    (void)state;
    grouped(&w, 1, 2);
    world_settle(&w);
    snprintf(old, sizeof old, "%s", nth(&w, 0)->name);
    world_remove(&w, nth(&w, 1)->name);
    world_turn(&w, SIZE_MAX);
    assert_int_equal(w.deleted, 1); /* the survivor */
    assert_int_equal(w.created, 4);
    world_settle(&w);
    assert_int_equal(there(&w), 2);
    assert_string_not_equal(nth(&w, 0)->name, old);
    assert_int_equal(nth(&w, 0)->epoch, 2); /* inherited */
    world_fini(&w);
}

static void a_pod_on_its_way_out_ends_its_group_together(void **state)
{
    struct world w;
    (void)state;
    grouped(&w, 2, 2);
    world_settle(&w);
    nth(&w, 1)->deleting = true; /* evicted */
    world_turn(&w, SIZE_MAX);
    assert_int_equal(w.deleted, 1);
    assert_int_equal(there(&w), 4); /* the other group and the new one */
    world_settle(&w);
    assert_int_equal(w.s.counts[REC_DECODE].ready, 2);
    world_fini(&w);
}

static void scaling_down_takes_whole_groups(void **state)
{
    struct world w;
    (void)state;
    grouped(&w, 3, 2);
    world_settle(&w);
    world_pool(&w, REC_DECODE)->replicas = 1;
    world_settle(&w);
    assert_int_equal(there(&w), 2);
    assert_string_equal(nth(&w, 0)->group, nth(&w, 1)->group);
    assert_int_equal(w.deleted, 4);
    world_fini(&w);
}

static void the_budget_of_evictions_counts_every_pod_of_a_group(void **state)
{
    struct world w;
    (void)state;
    grouped(&w, 2, 3);
    world_settle(&w);
    assert_int_equal(world_pool(&w, REC_DECODE)->pdb_min_available, 6); /* replaced first */
    assert_true(world_pool(&w, REC_DECODE)->pdb_all_ranks);
    w.s.max_unavailable = 1;
    w.s.max_surge = 0;
    world_settle(&w);
    assert_int_equal(world_pool(&w, REC_DECODE)->pdb_min_available, 5); /* one at a time */
    world_fini(&w);
}

static void a_role_moves_with_all_pods_of_the_group(void **state)
{
    struct world w;
    (void)state;
    grouped(&w, 2, 2);
    w.s.roles[REC_PREFILL].replicas = 1;
    world_settle(&w);
    w.s.roles[REC_PREFILL].replicas = 2;
    w.s.roles[REC_DECODE].replicas = 1;
    world_turn(&w, 4); /* cut off in the middle of the change */
    world_settle(&w);
    assert_int_equal(w.created, 6);
    assert_int_equal(w.s.counts[REC_PREFILL].ready, 2);
    assert_int_equal(w.s.counts[REC_DECODE].ready, 1);
    for (size_t i = 0; i < WORLD_PODS; i++)
        for (size_t k = 0; k < WORLD_PODS; k++)
            if (w.pods[i].there && w.pods[k].there &&
                strcmp(w.pods[i].p.group, w.pods[k].p.group) == 0)
                assert_int_equal(w.pods[i].p.role, w.pods[k].p.role);
    world_fini(&w);
}

static void a_group_that_is_not_placed_is_taken_back_and_tried_later(void **state)
{
    struct world w;
    (void)state;
    grouped(&w, 1, 2);
    w.no_nodes = true;
    for (int i = 0; i < 4; i++) {
        world_turn(&w, SIZE_MAX);
        world_kubelet(&w);
        w.now += S_NS;
    }
    assert_int_equal(there(&w), 2);
    assert_false(nth(&w, 0)->gated);
    w.now += GANG_PATIENCE_NS;
    world_turn(&w, SIZE_MAX);
    world_kubelet(&w);
    assert_int_equal(w.deleted, 2);
    assert_int_equal(there(&w), 2);
    world_turn(&w, SIZE_MAX);
    assert_true(nth(&w, 0)->gated); /* until its back-off is over */
    assert_string_equal(w.s.conditions[REC_CAPACITY_LIMITED].status, "True");
    assert_string_equal(w.s.conditions[REC_READY].reason, "NoCapacity");
    w.no_nodes = false;
    w.now += 31 * S_NS;
    world_settle(&w);
    assert_int_equal(w.s.counts[REC_DECODE].ready, 1);
    assert_int_equal(w.created, 4);
    world_fini(&w);
}

static void a_server_with_pod_groups_places_by_itself(void **state)
{
    struct world w;
    (void)state;
    grouped(&w, 2, 2);
    w.s.gang = REC_GANG_NATIVE;
    world_turn(&w, SIZE_MAX);
    assert_false(nth(&w, 0)->gated);
    world_settle(&w);
    assert_int_equal(w.s.n_pod_groups, 2);
    assert_int_equal(w.s.counts[REC_DECODE].ready, 2);
    assert_int_equal(count_kind(&w, REC_CREATE_GANG), 0);
    world_fini(&w);
}

static void a_failed_group_of_an_older_revision_comes_back_whole_at_it_while_paused(void **state)
{
    struct world w;
    (void)state;
    grouped(&w, 2, 2);
    w.s.revision = "all-1";
    world_settle(&w);
    w.s.paused = true;
    w.s.revision = "all-2";
    for (int i = 0; i < REC_ROLES; i++) {
        w.s.roles[i].revision = "r2";
        w.s.roles[i].pods = 4;
    }
    w.s.generation++;
    world_settle(&w);
    assert_int_equal(w.created, 4); /* nothing moved */
    world_remove(&w, nth(&w, 1)->name);
    world_settle(&w);
    for (size_t i = 0; i < WORLD_PODS; i++)
        if (w.pods[i].there) {
            assert_string_equal(w.pods[i].p.revision, "r1");
            assert_int_equal(w.pods[i].p.size, 2);
        }
    assert_int_equal(there(&w), 4);
    assert_string_equal(w.s.conditions[REC_PROGRESSING].reason, "Paused");
    world_fini(&w);
}

/* ---- nodes that are emptied or lost ---- */

static void a_group_on_a_node_that_is_emptied_is_replaced_before_it_goes(void **state)
{
    struct world w;
    (void)state;
    grouped(&w, 1, 2);
    world_settle(&w);
    nth(&w, 1)->leaving = true; /* one of its two nodes */
    world_turn(&w, SIZE_MAX);
    assert_int_equal(w.deleted, 0);
    assert_int_equal(w.created, 4);
    for (int i = 0; i < 4 && !w.deleted; i++) {
        assert_true(world_count(&w, REC_DECODE, true) >= 2);
        world_kubelet(&w);
        world_turn(&w, SIZE_MAX);
    }
    assert_int_equal(w.deleted, 2);
    world_settle(&w);
    assert_int_equal(there(&w), 2);
    assert_string_equal(w.s.conditions[REC_READY].status, "True");
    world_fini(&w);
}

static void evictions_wait_for_the_replacement_but_not_for_room(void **state)
{
    struct world w;
    (void)state;
    world_init(&w, 0, 1);
    world_settle(&w);
    assert_int_equal(world_pool(&w, REC_DECODE)->pdb_min_available, 1);
    for (size_t i = 0; i < WORLD_PODS; i++)
        if (w.pods[i].there)
            w.pods[i].p.leaving = true;
    world_turn(&w, SIZE_MAX);
    for (size_t i = 0; i < WORLD_PODS; i++)
        if (w.pods[i].there && !w.pods[i].p.leaving)
            w.pods[i].p.unschedulable = true; /* no other node has room */
    world_turn(&w, SIZE_MAX);
    assert_int_equal(world_pool(&w, REC_DECODE)->pdb_min_available, 1);
    w.now += 61 * S_NS;
    world_turn(&w, SIZE_MAX);
    assert_int_equal(world_pool(&w, REC_DECODE)->pdb_min_available, 0);
    world_fini(&w);
}

static void a_pod_on_a_silent_node_is_replaced_and_left_alone(void **state)
{
    struct world w;
    (void)state;
    world_init(&w, 0, 2);
    world_settle(&w);
    nth(&w, 0)->lost = true;
    nth(&w, 0)->ready = false;
    const char *name = nth(&w, 0)->name;
    world_turn(&w, SIZE_MAX);
    assert_int_equal(w.created, 3);
    assert_int_equal(w.deleted, 0); /* no grace of 0, no deletion without evidence */
    world_kubelet(&w);
    world_pod(&w, name)->lost = false; /* the node is back */
    world_pod(&w, name)->ready = true;
    world_settle(&w);
    assert_int_equal(world_count(&w, REC_DECODE, true), 2);
    world_fini(&w);
}

static void what_was_evicted_is_made_again_without_back_off(void **state)
{
    struct world w;
    (void)state;
    world_init(&w, 0, 1);
    world_settle(&w);
    struct rec_pod *p = nth(&w, 0);
    p->failed = p->disrupted = true;
    p->ready = false;
    p->failed_ns = w.now;
    p->backoff_until_ns = w.now + 300 * S_NS;
    world_turn(&w, SIZE_MAX);
    assert_int_equal(w.created, 2);
    world_settle(&w);
    assert_int_equal(nth(&w, 0)->backoff_until_ns, 0);
    world_fini(&w);
}

static void the_victim_has_the_fewest_requests_and_then_the_least_cache(void **state)
{
    struct world w;
    (void)state;
    world_init(&w, 0, 3);
    world_settle(&w);
    struct rec_pod *p[3];
    size_t n = 0;
    for (size_t i = 0; i < WORLD_PODS; i++)
        if (w.pods[i].there)
            p[n++] = &w.pods[i].p;
    bool later = strcmp(p[1]->name, p[2]->name) > 0; /* the name must not decide */
    struct rec_pod *little = p[later ? 1 : 2], *much = p[later ? 2 : 1];
    p[0]->load = 2;
    little->load = much->load = 1;
    little->cached_tokens = 500;
    much->cached_tokens = 9000;
    world_pool(&w, REC_DECODE)->replicas = 2;
    world_turn(&w, SIZE_MAX);
    assert_true(little->deleting);
    assert_int_equal(w.deleted, 1);
    world_fini(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_group_is_made_whole_with_names_by_index),
        cmocka_unit_test(nobody_starts_before_all_have_an_address),
        cmocka_unit_test(a_group_is_ready_when_all_of_its_pods_are),
        cmocka_unit_test(one_failure_restarts_the_group_exactly_once),
        cmocka_unit_test(the_record_of_a_failure_is_on_rank_0s_pod_before_the_restart),
        cmocka_unit_test(restarts_back_off_from_30_to_600_seconds_and_forget_after_10_minutes),
        cmocka_unit_test(a_crash_of_the_controller_in_a_restart_loses_and_doubles_nothing),
        cmocka_unit_test(a_crash_in_the_making_ends_with_every_pod_in_its_place),
        cmocka_unit_test(a_pod_that_is_gone_takes_its_group_with_it_and_all_come_back),
        cmocka_unit_test(a_pod_on_its_way_out_ends_its_group_together),
        cmocka_unit_test(scaling_down_takes_whole_groups),
        cmocka_unit_test(the_budget_of_evictions_counts_every_pod_of_a_group),
        cmocka_unit_test(a_role_moves_with_all_pods_of_the_group),
        cmocka_unit_test(a_group_that_is_not_placed_is_taken_back_and_tried_later),
        cmocka_unit_test(a_server_with_pod_groups_places_by_itself),
        cmocka_unit_test(a_failed_group_of_an_older_revision_comes_back_whole_at_it_while_paused),
        cmocka_unit_test(a_group_on_a_node_that_is_emptied_is_replaced_before_it_goes),
        cmocka_unit_test(evictions_wait_for_the_replacement_but_not_for_room),
        cmocka_unit_test(a_pod_on_a_silent_node_is_replaced_and_left_alone),
        cmocka_unit_test(what_was_evicted_is_made_again_without_back_off),
        cmocka_unit_test(the_victim_has_the_fewest_requests_and_then_the_least_cache),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
