#include "tests/lib/decide/rec_world.h"

static void a_new_deployment_gets_its_secret_pools_and_pods(void **state)
{
    struct world w;
    (void)state;
    world_init(&w, 1, 2);
    world_turn(&w, SIZE_MAX);
    assert_int_equal(w.s.secret, REC_SECRET_OURS);
    assert_int_equal(world_pool(&w, REC_PREFILL)->replicas, 1);
    assert_int_equal(world_pool(&w, REC_DECODE)->replicas, 2);
    assert_int_equal(world_pool(&w, REC_DECODE)->last_replicas, 2);
    assert_int_equal(world_count(&w, REC_PREFILL, false), 1);
    assert_int_equal(world_count(&w, REC_DECODE, false), 2);
    world_settle(&w);
    assert_int_equal(w.created, 3);
    assert_string_equal(w.s.conditions[REC_READY].status, "True");
    assert_string_equal(w.s.conditions[REC_ACCEPTED].status, "True");
    assert_string_equal(w.s.conditions[REC_PROGRESSING].status, "False");
    assert_int_equal(world_pool(&w, REC_DECODE)->ready_replicas, 2);
    assert_int_equal(world_pool(&w, REC_DECODE)->pdb_min_available, 2); /* maxSurge 1 */
    world_fini(&w);
}

static void every_kind_of_action_has_a_name(void **state)
{
    (void)state;
    for (int k = 0; k <= REC_STATUS; k++)
        assert_non_null(rec_kind_name((enum rec_kind)k));
}

static void reconciling_again_changes_nothing(void **state)
{
    struct world w;
    (void)state;
    world_init(&w, 2, 3);
    world_settle(&w);
    for (int i = 0; i < 3; i++)
        assert_int_equal(world_turn(&w, SIZE_MAX), 0);
    world_fini(&w);
}

static void the_same_snapshot_gives_the_same_names(void **state)
{
    struct world a, b;
    (void)state;
    world_init(&a, 3, 3);
    world_init(&b, 3, 3);
    world_turn(&a, 0);
    world_turn(&b, 0);
    for (size_t i = 0; i < a.plan.n; i++)
        if (a.plan.actions[i].kind == REC_CREATE_POD) {
            assert_string_equal(a.plan.actions[i].name, b.plan.actions[i].name);
            for (size_t j = 0; j < i; j++)
                if (a.plan.actions[j].kind == REC_CREATE_POD)
                    assert_string_not_equal(a.plan.actions[i].name, a.plan.actions[j].name);
        }
    assert_int_equal(strlen(world_action(&a, REC_CREATE_POD, 0)->name), strlen("chat-") + 5);
    world_fini(&a);
    world_fini(&b);
}

/* Kill the controller after its k-th write, for every k, in three situations. */
static void situation(struct world *w, int which)
{
    world_init(w, 2, 3);
    if (which == 0)
        return;
    world_settle(w);
    w->s.generation++;
    if (which == 1) {
        w->s.roles[REC_PREFILL].replicas = 4; /* 2 flips and more */
        w->s.roles[REC_DECODE].replicas = 1;
    } else {
        for (int i = 0; i < REC_ROLES; i++)
            w->s.roles[i].revision = "r2";
    }
}

static void a_crash_after_any_write_ends_in_the_same_state(void **state)
{
    static const int want[3][2] = {{2, 3}, {4, 1}, {2, 3}};
    static const unsigned created[3] = {5, 5, 10};
    (void)state;
    for (int which = 0; which < 3; which++) {
        for (size_t k = 0;; k++) {
            struct world w;
            situation(&w, which);
            size_t n = world_turn(&w, k);
            world_settle(&w);
            assert_int_equal(world_count(&w, REC_PREFILL, true), want[which][0]);
            assert_int_equal(world_count(&w, REC_DECODE, true), want[which][1]);
            assert_int_equal(w.created, created[which]);
            world_fini(&w);
            if (k >= n)
                break;
        }
    }
}

static void a_crash_at_every_second_write_still_gets_there(void **state)
{
    struct world w;
    (void)state;
    world_init(&w, 3, 4);
    for (int i = 0; i < 100 && world_turn(&w, 1); i++)
        world_kubelet(&w);
    world_settle(&w);
    assert_int_equal(w.created, 7);
    world_fini(&w);
}

static void a_number_set_by_kubectl_scale_is_kept(void **state)
{
    struct world w;
    (void)state;
    world_init(&w, 1, 1);
    world_settle(&w);
    world_pool(&w, REC_DECODE)->replicas = 3;
    world_settle(&w);
    assert_int_equal(world_count(&w, REC_DECODE, true), 3);
    assert_int_equal(w.scaled, 0);
    assert_int_equal(world_pool(&w, REC_DECODE)->last_replicas, 1);
    world_fini(&w);
}

static void an_edited_number_scales_first_and_records_then(void **state)
{
    struct world w;
    (void)state;
    world_init(&w, 1, 1);
    world_settle(&w);
    w.s.roles[REC_DECODE].replicas = 2;
    world_turn(&w, 0);
    assert_int_equal(w.plan.actions[0].kind, REC_SCALE_POOL);
    assert_string_equal(w.plan.actions[0].resource_version,
                        world_pool(&w, REC_DECODE)->resource_version);
    assert_int_equal(w.plan.actions[1].kind, REC_RECORD_POOL);
    assert_int_equal(w.plan.actions[1].recorded, 2);
    world_turn(&w, 1); /* killed between the two */
    world_turn(&w, 0);
    assert_int_equal(w.plan.actions[0].kind,
                     REC_RECORD_POOL); /* already at the number: only record */
    world_settle(&w);
    assert_int_equal(w.scaled, 1);
    assert_int_equal(world_count(&w, REC_DECODE, true), 2);
    world_fini(&w);
}

static void a_role_that_changes_to_bounds_forgets_the_recorded_number(void **state)
{
    struct world w;
    (void)state;
    world_init(&w, 1, 2);
    world_settle(&w);
    struct rec_role_spec *d = &w.s.roles[REC_DECODE];
    *d = (struct rec_role_spec){.wanted = true,
                                .replicas = -1,
                                .bounds_min = 1,
                                .bounds_max = 4,
                                .revision = "r1",
                                .pool = d->pool};
    world_settle(&w);
    assert_int_equal(d->pool.last_replicas, -1);
    assert_int_equal(d->pool.bounds_max, 4);
    d->pool.replicas = 4; /* the scaler */
    world_settle(&w);
    assert_int_equal(world_count(&w, REC_DECODE, true), 4);
    d->replicas = 2;
    d->bounds_min = d->bounds_max = -1;
    world_settle(&w);
    assert_int_equal(d->pool.replicas, 2);
    world_fini(&w);
}

static void a_role_with_bounds_starts_at_their_minimum_and_one_without_anything_at_one(void **state)
{
    struct world w;
    (void)state;
    world_init(&w, -1, -1);
    w.s.roles[REC_PREFILL].bounds_min = 2;
    w.s.roles[REC_PREFILL].bounds_max = 5;
    world_settle(&w);
    assert_int_equal(world_pool(&w, REC_PREFILL)->replicas, 2);
    assert_int_equal(world_pool(&w, REC_DECODE)->replicas, 1);
    assert_int_equal(world_pool(&w, REC_DECODE)->last_replicas, -1);
    world_fini(&w);
}

static void one_pool_that_shrinks_gives_its_pods_to_one_that_grows(void **state)
{
    struct world w;
    (void)state;
    world_init(&w, 1, 3);
    world_settle(&w);
    w.s.roles[REC_PREFILL].replicas = 3;
    w.s.roles[REC_DECODE].replicas = 1;
    world_settle(&w);
    assert_int_equal(w.flipped, 2);
    assert_int_equal(w.created, 4);
    assert_int_equal(w.deleted, 0);
    assert_int_equal(world_count(&w, REC_PREFILL, true), 3);
    world_fini(&w);
}

static void pods_of_another_revision_are_not_given_away(void **state)
{
    struct world w;
    (void)state;
    world_init(&w, 1, 2);
    w.s.roles[REC_PREFILL].revision = "p1";
    world_settle(&w);
    w.s.roles[REC_PREFILL].replicas = 2;
    w.s.roles[REC_DECODE].replicas = 1;
    world_settle(&w);
    assert_int_equal(w.flipped, 0);
    assert_int_equal(w.created, 4);
    assert_int_equal(w.deleted, 1);
    world_fini(&w);
}

static void a_role_gives_away_an_unready_pod_while_it_can_spare_no_ready_one(void **state)
{
    struct world w;
    (void)state;
    world_init(&w, 1, 2);
    world_settle(&w);
    for (size_t i = 0; i < WORLD_PODS; i++)
        if (w.pods[i].there && w.pods[i].p.role == REC_DECODE) {
            w.pods[i].p.ready = false;
            w.pods[i].p.trouble = "still loading";
            break;
        }
    w.s.roles[REC_PREFILL].replicas = 2;
    w.s.roles[REC_DECODE].replicas = 1;
    world_turn(&w, SIZE_MAX);
    const struct rec_action *a = world_action(&w, REC_LABEL_POD, 0);
    assert_non_null(a);
    assert_non_null(world_pod(&w, a->name)->trouble);
    world_fini(&w);
}

static void a_loaded_standby_worker_takes_the_role_that_misses_one(void **state)
{
    struct world w;
    (void)state;
    world_init(&w, 1, 1);
    w.s.hot_standby = 1;
    world_settle(&w);
    assert_int_equal(w.created, 3);
    assert_int_equal(world_count(&w, REC_STANDBY, false), 1);
    for (size_t i = 0; i < WORLD_PODS; i++)
        w.pods[i].p.standby_ready = w.pods[i].p.role == REC_STANDBY;
    w.s.roles[REC_DECODE].replicas = 2;
    world_turn(&w, SIZE_MAX);
    assert_int_equal(w.flipped, 1);
    assert_int_equal(world_action(&w, REC_CREATE_POD, 0)->role,
                     REC_STANDBY); /* backfilled behind */
    world_settle(&w);
    assert_int_equal(world_count(&w, REC_DECODE, true), 2);
    assert_int_equal(world_count(&w, REC_STANDBY, false), 1);
    world_fini(&w);
}

static void the_least_useful_pod_goes_first(void **state)
{
    struct world w;
    (void)state;
    world_init(&w, 0, 4);
    world_settle(&w);
    const char *names[4];
    int n = 0;
    for (size_t i = 0; i < WORLD_PODS; i++)
        if (w.pods[i].there)
            names[n++] = w.pods[i].p.name;
    struct rec_pod *p[4];
    for (int i = 0; i < 4; i++)
        p[i] = world_pod(&w, names[i]);
    p[0]->ready = false, p[0]->trouble = "not well"; /* first: not ready */
    p[1]->load = 5, p[2]->load = 0, p[3]->load = 0;
    p[2]->created_ns += 100; /* then the younger of the idle */
    for (int want = 3; want > 0; want--) {
        w.s.roles[REC_DECODE].replicas = want;
        world_turn(&w, SIZE_MAX);
        const struct rec_action *a = world_action(&w, REC_DELETE_POD, 0);
        static const int order[] = {0, 2, 3};
        assert_string_equal(a->name, names[order[3 - want]]);
        assert_null(world_action(&w, REC_DELETE_POD, 1));
        world_remove(&w, a->name);
    }
    world_fini(&w);
}

static void a_deleting_pod_is_replaced_at_once_and_not_deleted_again(void **state)
{
    struct world w;
    (void)state;
    world_init(&w, 1, 1);
    world_settle(&w);
    for (size_t i = 0; i < WORLD_PODS; i++)
        if (w.pods[i].there && w.pods[i].p.role == REC_DECODE)
            w.pods[i].p.deleting = true;
    world_turn(&w, SIZE_MAX);
    assert_int_equal(w.created, 3);
    assert_int_equal(w.deleted, 0);
    assert_int_equal(world_turn(&w, SIZE_MAX) ? w.created : w.created, 3);
    world_fini(&w);
}

static struct rec_pod *decode_pod(struct world *w)
{
    for (size_t i = 0; i < WORLD_PODS; i++)
        if (w->pods[i].there && w->pods[i].p.role == REC_DECODE && !w->pods[i].p.deleting)
            return &w->pods[i].p;
    return NULL;
}

static void a_failed_pod_is_replaced_and_the_next_failure_waits_longer(void **state)
{
    struct world w;
    uint64_t last = 0;
    (void)state;
    world_init(&w, 0, 1);
    world_settle(&w);
    for (unsigned i = 1; i <= 7; i++) {
        struct rec_pod *p = decode_pod(&w);
        assert_int_equal(p->epoch, i - 1);
        p->failed = true;
        p->ready = false;
        p->trouble = "OOMKilled";
        p->crash = "{\"exitCode\":137}";
        p->failed_ns = w.now;
        if (last) { /* not before its back-off is over */
            world_turn(&w, SIZE_MAX);
            assert_null(world_action(&w, REC_CREATE_POD, 0));
            assert_int_equal(w.plan.requeue_at_ns, p->backoff_until_ns);
            assert_string_equal(w.plan.conditions[REC_READY].reason, "PodFailed");
            w.now = p->backoff_until_ns;
        }
        world_turn(&w, SIZE_MAX);
        const struct rec_action *a = world_action(&w, REC_CREATE_POD, 0);
        assert_non_null(a);
        assert_string_equal(a->crash, "{\"exitCode\":137}");
        uint64_t wait = a->backoff_until_ns - w.now;
        assert_int_equal(wait, last == 0                       ? REC_BACKOFF_MIN_NS
                               : last * 2 < REC_BACKOFF_MAX_NS ? last * 2
                                                               : REC_BACKOFF_MAX_NS);
        last = wait;
        world_kubelet(&w);
    }
    struct rec_pod *p = decode_pod(&w); /* healthy for long: as if it were the first failure */
    w.now += REC_HEALTHY_NS + S_NS;
    p->failed = true;
    p->failed_ns = w.now;
    world_turn(&w, SIZE_MAX);
    assert_int_equal(world_action(&w, REC_CREATE_POD, 0)->backoff_until_ns - w.now,
                     REC_BACKOFF_MIN_NS);
    world_fini(&w);
}

static void a_new_revision_does_not_wait_for_the_back_off_of_the_old(void **state)
{
    struct world w;
    (void)state;
    world_init(&w, 0, 1);
    world_settle(&w);
    struct rec_pod *p = decode_pod(&w);
    p->failed = true;
    p->failed_ns = w.now;
    p->backoff_until_ns = w.now + 300 * S_NS;
    w.s.roles[REC_DECODE].revision = "r2";
    world_turn(&w, SIZE_MAX);
    const struct rec_action *a = world_action(&w, REC_CREATE_POD, 0);
    assert_non_null(a);
    assert_string_equal(a->revision, "r2");
    assert_int_equal(a->backoff_until_ns, 0);
    assert_null(world_action(&w, REC_CREATE_POD, 1));
    world_fini(&w);
}

static void a_failed_pod_that_nobody_misses_is_removed(void **state)
{
    struct world w;
    (void)state;
    world_init(&w, 0, 1);
    world_settle(&w);
    struct rec_pod *p = world_add_pod(&w, REC_DECODE, "chat-extra", "r1", false);
    p->failed = true;
    world_settle(&w);
    assert_null(world_pod(&w, "chat-extra"));
    assert_int_equal(w.created, 1);
    world_fini(&w);
}

static void the_older_of_two_with_one_model_name_serves(void **state)
{
    struct world w;
    (void)state;
    world_init(&w, 1, 1);
    struct rec_rival rivals[] = {{"other", "other-uid", "m", w.s.created_ns - 1},
                                 {"chat", "infd-uid", "m", w.s.created_ns}};
    w.s.rivals = rivals;
    w.s.n_rivals = 2;
    world_turn(&w, SIZE_MAX);
    assert_int_equal(w.plan.n, 1); /* only status */
    assert_string_equal(w.s.conditions[REC_ACCEPTED].status, "False");
    assert_string_equal(w.s.conditions[REC_ACCEPTED].reason, "ModelNameTaken");
    assert_string_equal(w.s.conditions[REC_READY].reason, "ModelNameTaken");
    rivals[0].created_ns = w.s.created_ns + 1; /* the other is younger */
    world_settle(&w);
    assert_string_equal(w.s.conditions[REC_ACCEPTED].status, "True");
    rivals[0].created_ns = w.s.created_ns; /* same age: one of the two, by uid */
    rivals[0].uid = "a";
    world_turn(&w, 0);
    assert_string_equal(w.plan.conditions[REC_ACCEPTED].status, "False");
    rivals[0].uid = "z";
    world_turn(&w, 0);
    assert_string_equal(w.plan.conditions[REC_ACCEPTED].status, "True");
    world_fini(&w);
}

static void what_is_not_ours_is_left_alone(void **state)
{
    struct world w;
    (void)state;
    world_init(&w, 1, 1);
    w.s.secret = REC_SECRET_FOREIGN;
    world_turn(&w, SIZE_MAX);
    assert_string_equal(w.s.conditions[REC_ACCEPTED].reason, "NameTaken");
    assert_int_equal(w.created, 0);
    w.s.secret = REC_SECRET_OURS;
    world_pool(&w, REC_DECODE)->exists = true;
    world_turn(&w, SIZE_MAX);
    assert_string_equal(w.s.conditions[REC_ACCEPTED].reason, "NameTaken");
    assert_int_equal(w.created, 0);
    assert_true(w.plan.requeue_at_ns > w.now);
    world_fini(&w);
}

static void an_impossible_spec_is_refused_with_its_sentence(void **state)
{
    struct world w;
    (void)state;
    world_init(&w, 1, 1);
    w.s.invalid = "spec.kvCache.size is not a quantity";
    world_turn(&w, SIZE_MAX);
    assert_string_equal(w.s.conditions[REC_ACCEPTED].message, w.s.invalid);
    assert_int_equal(w.created, 0);
    world_fini(&w);
}

static void a_deployment_that_is_being_deleted_is_left_to_garbage_collection(void **state)
{
    struct world w;
    (void)state;
    world_init(&w, 1, 1);
    w.s.deleting = true;
    assert_int_equal(world_turn(&w, SIZE_MAX), 0);
    world_fini(&w);
}

static void last_transition_moves_only_with_the_status(void **state)
{
    struct world w;
    (void)state;
    world_init(&w, 1, 1);
    world_turn(&w, SIZE_MAX);
    uint64_t since = w.s.conditions[REC_READY].since_ns;
    assert_string_equal(w.s.conditions[REC_READY].status, "False");
    w.now += 5 * S_NS;
    decode_pod(&w)->trouble = "CrashLoopBackOff: Error, exit code 1";
    world_turn(&w, SIZE_MAX);
    assert_string_equal(w.s.conditions[REC_READY].reason, "PodCrashing");
    assert_non_null(strstr(w.s.conditions[REC_READY].message, "exit code 1"));
    assert_int_equal(w.s.conditions[REC_READY].since_ns, since);
    decode_pod(&w)->trouble = NULL;
    world_settle(&w);
    assert_string_equal(w.s.conditions[REC_READY].status, "True");
    assert_true(w.s.conditions[REC_READY].since_ns > since);
    world_fini(&w);
}

static void a_pod_without_a_node_is_named_as_lack_of_capacity(void **state)
{
    struct world w;
    (void)state;
    world_init(&w, 1, 1);
    world_turn(&w, SIZE_MAX);
    decode_pod(&w)->unschedulable = true;
    world_turn(&w, SIZE_MAX);
    assert_string_equal(w.s.conditions[REC_CAPACITY_LIMITED].status, "True");
    world_kubelet(&w);
    world_turn(&w, SIZE_MAX);
    assert_string_equal(w.s.conditions[REC_READY].reason, "NoCapacity");
    world_fini(&w);
}

static void what_a_scaler_finds_no_room_for_is_told_of_the_deployment(void **state)
{
    struct world w;
    const struct rec_condition *c;
    (void)state;
    world_init(&w, 1, 1);
    world_settle(&w);
    c = &w.s.conditions[REC_CAPACITY_LIMITED];
    assert_string_equal(c->status, "False");
    w.s.roles[REC_DECODE].pool.limited = "needs 4, room for 2";
    world_turn(&w, SIZE_MAX);
    assert_string_equal(c->status, "True");
    assert_string_equal(c->reason, "NoRoomToScale");
    assert_string_equal(c->message, "decode: needs 4, room for 2");
    assert_string_equal(w.s.conditions[REC_READY].status, "True"); /* what it has serves */
    decode_pod(&w)->unschedulable = true;
    world_turn(&w, SIZE_MAX);
    assert_string_equal(c->reason, "Unschedulable");
    world_fini(&w);
}

static void scaled_to_zero_is_not_ready(void **state)
{
    struct world w;
    (void)state;
    world_init(&w, 0, 0);
    world_settle(&w);
    assert_string_equal(w.s.conditions[REC_READY].reason, "ScaledToZero");
    assert_int_equal(w.created, 0);
    world_fini(&w);
}

static void a_mistake_in_a_number_is_carried_out_in_portions(void **state)
{
    struct world w;
    (void)state;
    world_init(&w, 0, 1000000);
    world_turn(&w, 0);
    size_t n = 0;
    while (world_action(&w, REC_CREATE_POD, n))
        n++;
    assert_int_equal(n, 64);
    assert_int_equal(w.plan.counts[REC_DECODE].desired, 1000); /* the schema's maximum */
    world_fini(&w);
}

static void lost_annotations_and_pools_are_made_good_without_touching_pods(void **state)
{
    struct world w;
    (void)state;
    world_init(&w, 2, 2);
    world_settle(&w);
    world_pool(&w, REC_DECODE)->last_replicas = -1; /* kubectl replace --force drops them */
    *world_pool(&w, REC_PREFILL) = (struct rec_pool){.replicas = -1,
                                                     .last_replicas = -1,
                                                     .bounds_min = -1,
                                                     .bounds_max = -1,
                                                     .pdb_min_available = -1};
    w.s.secret = REC_SECRET_ABSENT;
    world_settle(&w);
    assert_int_equal(w.created, 4);
    assert_int_equal(w.deleted, 0);
    assert_int_equal(world_pool(&w, REC_PREFILL)->replicas, 2);
    world_fini(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_new_deployment_gets_its_secret_pools_and_pods),
        cmocka_unit_test(every_kind_of_action_has_a_name),
        cmocka_unit_test(reconciling_again_changes_nothing),
        cmocka_unit_test(the_same_snapshot_gives_the_same_names),
        cmocka_unit_test(a_crash_after_any_write_ends_in_the_same_state),
        cmocka_unit_test(a_crash_at_every_second_write_still_gets_there),
        cmocka_unit_test(a_number_set_by_kubectl_scale_is_kept),
        cmocka_unit_test(an_edited_number_scales_first_and_records_then),
        cmocka_unit_test(a_role_that_changes_to_bounds_forgets_the_recorded_number),
        cmocka_unit_test(
            a_role_with_bounds_starts_at_their_minimum_and_one_without_anything_at_one),
        cmocka_unit_test(one_pool_that_shrinks_gives_its_pods_to_one_that_grows),
        cmocka_unit_test(pods_of_another_revision_are_not_given_away),
        cmocka_unit_test(a_role_gives_away_an_unready_pod_while_it_can_spare_no_ready_one),
        cmocka_unit_test(a_loaded_standby_worker_takes_the_role_that_misses_one),
        cmocka_unit_test(the_least_useful_pod_goes_first),
        cmocka_unit_test(a_deleting_pod_is_replaced_at_once_and_not_deleted_again),
        cmocka_unit_test(a_failed_pod_is_replaced_and_the_next_failure_waits_longer),
        cmocka_unit_test(a_new_revision_does_not_wait_for_the_back_off_of_the_old),
        cmocka_unit_test(a_failed_pod_that_nobody_misses_is_removed),
        cmocka_unit_test(the_older_of_two_with_one_model_name_serves),
        cmocka_unit_test(what_is_not_ours_is_left_alone),
        cmocka_unit_test(an_impossible_spec_is_refused_with_its_sentence),
        cmocka_unit_test(a_deployment_that_is_being_deleted_is_left_to_garbage_collection),
        cmocka_unit_test(last_transition_moves_only_with_the_status),
        cmocka_unit_test(a_pod_without_a_node_is_named_as_lack_of_capacity),
        cmocka_unit_test(what_a_scaler_finds_no_room_for_is_told_of_the_deployment),
        cmocka_unit_test(scaled_to_zero_is_not_ready),
        cmocka_unit_test(a_mistake_in_a_number_is_carried_out_in_portions),
        cmocka_unit_test(lost_annotations_and_pools_are_made_good_without_touching_pods),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
