/* The standby ladder in reconcile(), and the choice of nodes: rivals' failures are the cases. */
#include "lib/decide/standby.h"
#include "tests/lib/decide/rec_world.h"

static struct rec_pod *standby(struct world *w, const char *name, enum rec_rung rung, bool ready)
{
    struct rec_pod *p = world_add_pod(w, REC_STANDBY, name, "r1", false);
    p->rung = rung;
    p->standby_ready = ready;
    p->size = 1;
    return p;
}

static void settled(struct world *w, int32_t prefill, int32_t decode, int32_t hot, int32_t warm)
{
    world_init(w, prefill, decode);
    w->s.hot_standby = hot;
    w->s.warm_standby = warm;
    world_settle(w);
    for (size_t i = 0; i < WORLD_PODS; i++) /* what standby pods report */
        w->pods[i].p.standby_ready |= w->pods[i].there && w->pods[i].p.role == REC_STANDBY;
    world_settle(w);
}

static int on_rung(struct world *w, enum rec_rung rung)
{
    int n = 0;
    for (size_t i = 0; i < WORLD_PODS; i++) {
        const struct rec_pod *p = &w->pods[i].p;
        n += w->pods[i].there && p->role == REC_STANDBY && !p->deleting && p->rung == rung;
    }
    return n;
}

static void standby_is_made_by_rung(void **state)
{
    struct world w;
    (void)state;
    settled(&w, 1, 1, 1, 2);
    assert_int_equal(on_rung(&w, REC_RUNG_HOT), 1);
    assert_int_equal(on_rung(&w, REC_RUNG_WARM), 2);
    assert_int_equal(world_count(&w, REC_STANDBY, false), 3);
    world_fini(&w);
}

static void the_highest_rung_is_promoted(void **state)
{
    struct world w;
    (void)state;
    world_init(&w, 1, 2);
    world_add_pod(&w, REC_PREFILL, "p", "r1", true)->size = 1;
    world_add_pod(&w, REC_DECODE, "d", "r1", true)->size = 1;
    struct rec_pod *cold = standby(&w, "on-its-way", REC_RUNG_HOT, false);
    cold->created_ns -= 300 * S_NS;
    standby(&w, "warm", REC_RUNG_WARM, true)->created_ns -= 200 * S_NS;
    standby(&w, "hot", REC_RUNG_HOT, true)->created_ns -= 100 * S_NS;
    w.s.hot_standby = 2;
    w.s.warm_standby = 1;
    world_settle(&w);
    assert_int_equal(world_pod(&w, "hot")->role, REC_DECODE);
    assert_int_equal(world_pod(&w, "warm")->role, REC_STANDBY);
    world_pool(&w, REC_DECODE)->replicas++;
    world_turn(&w, SIZE_MAX);
    /* the warm one: it is there, the other hot one is not */
    assert_int_equal(world_pod(&w, "warm")->role, REC_DECODE);
    assert_int_equal(world_pod(&w, "on-its-way")->role, REC_STANDBY);
    world_fini(&w);
}

static void what_was_promoted_is_filled_in_from_below(void **state)
{
    struct world w;
    (void)state;
    settled(&w, 1, 1, 1, 1);
    struct rec_pool *p = world_pool(&w, REC_DECODE);
    p->replicas++; /* as a scaler does */
    world_settle(&w);
    assert_int_equal(w.flipped, 1);
    assert_int_equal(on_rung(&w, REC_RUNG_HOT), 1);  /* the warm one woke */
    assert_int_equal(on_rung(&w, REC_RUNG_WARM), 1); /* a new one */
    assert_int_equal(world_count(&w, REC_DECODE, false), 2);
    world_fini(&w);
}

/* Only two pods fit: a woken pod is not made anew, the backfill is a wake-up. */
static void hot_is_filled_from_warm_before_pods_are_made(void **state)
{
    struct world w;
    (void)state;
    world_init(&w, 1, 1);
    standby(&w, "warm", REC_RUNG_WARM, true);
    w.s.hot_standby = 1;
    for (int i = 0; i < 2; i++)
        world_add_pod(&w, i ? REC_DECODE : REC_PREFILL, i ? "d" : "p", "r1", true)->size = 1;
    assert_int_equal(reconcile(world_snapshot(&w), w.now, &w.arena, &w.plan), 0);
    bool woken = false;
    for (size_t i = 0; i < w.plan.n; i++) {
        const struct rec_action *a = &w.plan.actions[i];
        woken |= a->kind == REC_RUNG_POD && strcmp(a->name, "warm") == 0 && a->rung == REC_RUNG_HOT;
        assert_false(a->kind == REC_CREATE_POD && a->role == REC_STANDBY);
        assert_false(a->kind == REC_DELETE_POD);
    }
    assert_true(woken);
    world_fini(&w);
}

/* A promotion is one write; the controller may be killed after any action of any pass: no pod is
 * ever awake without a role, none that has a role is removed as standby, and the end is the same.
 */
static void a_controller_killed_between_two_writes_leaves_nothing_half_promoted(void **state)
{
    (void)state;
    for (unsigned kill = 1; kill < 12; kill++) {
        struct world w;
        settled(&w, 1, 1, 1, 1);
        world_pool(&w, REC_DECODE)->replicas++;
        unsigned writes = 0;
        for (int pass = 0; pass < 40; pass++) {
            assert_int_equal(reconcile(world_snapshot(&w), w.now, &w.arena, &w.plan), 0);
            for (size_t i = 0; i < w.plan.n; i++) {
                const struct rec_action *a = &w.plan.actions[i];
                if (a->kind == REC_DELETE_POD) {
                    const struct rec_pod *p = world_pod(&w, a->name);
                    assert_true(p && p->role == REC_STANDBY);
                }
                world_apply(&w, a);
                if (++writes == kill)
                    break; /* killed: the next pass sees what was written */
            }
            for (size_t i = 0; i < WORLD_PODS; i++)
                if (w.pods[i].there && w.pods[i].p.role != REC_STANDBY)
                    w.pods[i].p.ready = !w.pods[i].p.deleting;
            w.now += S_NS;
        }
        world_settle(&w);
        assert_int_equal(world_count(&w, REC_DECODE, false), 2);
        assert_int_equal(world_count(&w, REC_PREFILL, false), 1);
        assert_int_equal(world_count(&w, REC_STANDBY, false), 2);
        world_fini(&w);
    }
}

static void a_role_other_than_standby_wakes_whatever_the_annotation_says(void **state)
{
    (void)state;
    assert_string_equal(standby_told("decode", "warm"), "hot");
    assert_string_equal(standby_told("standby", "warm"), "warm");
    assert_string_equal(standby_told("standby", NULL), "hot");
    assert_string_equal(standby_told("standby", "nonsense"), "hot");
    assert_string_equal(standby_told(NULL, "warm"), "warm");
}

static void surplus_of_a_role_stands_by_rather_than_ending(void **state)
{
    struct world w;
    (void)state;
    settled(&w, 1, 2, 0, 0);
    w.s.hot_standby = 1;
    world_pool(&w, REC_DECODE)->replicas--;
    world_settle(&w);
    assert_int_equal(w.deleted, 0);
    assert_int_equal(world_count(&w, REC_STANDBY, false), 1);
    assert_int_equal(world_count(&w, REC_DECODE, false), 1);
    world_fini(&w);
}

/* ---- nodes ---- */

static void names(const struct standby_node *n, const uint32_t *picked, int count, char out[64])
{
    out[0] = 0;
    for (int i = 0; i < count; i++)
        snprintf(out + strlen(out), 64 - strlen(out), "%s%s", i ? " " : "", n[picked[i]].name);
}

static void nodes_that_keep_a_model_stay_chosen(void **state)
{
    struct arena a;
    uint32_t *picked;
    char text[64];
    (void)state;
    arena_init(&a, 1 << 20);
    const struct standby_node n[] = {
        {.name = "a", .usable = true, .room_bytes = UINT64_MAX},
        {.name = "b", .usable = true, .has = true, .wanted = true},
        {.name = "c", .usable = false, .has = true, .wanted = true}, /* cordoned */
        {.name = "d", .usable = true, .has = true, .serves = true},
        {.name = "e", .usable = true, .room_bytes = 5}, /* too small */
        {.name = "f", .usable = true, .has = true},
    };
    names(n, picked, standby_cache_nodes(n, 6, 1, 10, &a, &picked), text);
    assert_string_equal(text, "b");
    names(n, picked, standby_cache_nodes(n, 6, 3, 10, &a, &picked), text);
    assert_string_equal(text, "a b f");
    names(n, picked, standby_cache_nodes(n, 6, 9, 10, &a, &picked), text);
    assert_string_equal(text, "a b d f");
    assert_int_equal(standby_cache_nodes(n, 6, 0, 10, &a, &picked), 0);
    arena_fini(&a);
}

static void new_pods_prefer_nodes_that_have_the_model(void **state)
{
    struct arena a;
    uint32_t *picked;
    char text[64];
    (void)state;
    arena_init(&a, 1 << 20);
    const struct standby_node n[] = {{.name = "far", .usable = true},
                                     {.name = "near", .usable = true, .has = true},
                                     {.name = "sick", .usable = false, .has = true}};
    names(n, picked, standby_prefer_nodes(n, 3, 8, &a, &picked), text);
    assert_string_equal(text, "near");
    arena_fini(&a);
}

/* ---- lead times ---- */

static void lead_times_are_medians_and_outlive_their_pods(void **state)
{
    struct standby_lead s[4], bad;
    double prev[STANDBY_RUNGS] = {9, 5, -1, 0.5}, out[STANDBY_RUNGS];
    (void)state;
    assert_int_equal(standby_lead_parse("{\"rung\":\"hot\",\"seconds\":0.03}", &s[0]), 0);
    assert_int_equal(standby_lead_parse("{\"rung\":\"hot\",\"seconds\":0.01}", &s[1]), 0);
    assert_int_equal(standby_lead_parse("{\"rung\":\"hot\",\"seconds\":7}", &s[2]), 0);
    assert_int_equal(standby_lead_parse("{\"rung\":\"warm\",\"seconds\":0.2}", &s[3]), 0);
    const char *nonsense[] = {"",
                              "{}",
                              "[]",
                              "{\"rung\":\"hot\",\"seconds\":-1}",
                              "{\"rung\":\"x\",\"seconds\":1}",
                              "{\"rung\":\"hot\",\"seconds\":1e9}",
                              "{\"rung\":\"hot\",\"seconds\":\"1\"}"};
    for (size_t i = 0; i < sizeof nonsense / sizeof *nonsense; i++)
        assert_true(standby_lead_parse(nonsense[i], &bad) < 0);
    standby_leads(s, 4, prev, out);
    assert_true(out[STANDBY_HOT] > 0.029 && out[STANDBY_HOT] < 0.031);
    assert_true(out[STANDBY_WARM] > 0.19 && out[STANDBY_WARM] < 0.21);
    assert_true(out[STANDBY_CACHED] > 4.9 && out[STANDBY_COLD] > 8.9);
    const int32_t have[STANDBY_RUNGS] = {0, 0, 1, 1};
    assert_true(standby_lead_of(out, have, 1) < 0.04);
    assert_true(standby_lead_of(out, have, 2) < 0.3 && standby_lead_of(out, have, 2) > 0.1);
    assert_true(standby_lead_of(out, have, 3) > 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(standby_is_made_by_rung),
        cmocka_unit_test(the_highest_rung_is_promoted),
        cmocka_unit_test(what_was_promoted_is_filled_in_from_below),
        cmocka_unit_test(hot_is_filled_from_warm_before_pods_are_made),
        cmocka_unit_test(a_controller_killed_between_two_writes_leaves_nothing_half_promoted),
        cmocka_unit_test(a_role_other_than_standby_wakes_whatever_the_annotation_says),
        cmocka_unit_test(surplus_of_a_role_stands_by_rather_than_ending),
        cmocka_unit_test(nodes_that_keep_a_model_stay_chosen),
        cmocka_unit_test(new_pods_prefer_nodes_that_have_the_model),
        cmocka_unit_test(lead_times_are_medians_and_outlive_their_pods),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
