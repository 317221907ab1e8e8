/* What was written and is not seen yet, when the cache stays behind for longer than its limit. */
#include "tests/lib/kube/apiserver.h"

#include "controller/controller.h"

#define EVENT(type, object) "{\"type\":\"" type "\",\"object\":" object "}\n"
#define POD(name, uid)                                                                             \
    "{\"metadata\":{\"name\":\"" name "\",\"namespace\":\"d\",\"uid\":\"" uid                      \
    "\",\"resourceVersion\":\"5\"}}"
#define DYING(name, uid)                                                                           \
    "{\"metadata\":{\"name\":\"" name "\",\"namespace\":\"d\",\"uid\":\"" uid                      \
    "\",\"deletionTimestamp\":\"2026-11-30T00:00:00Z\"}}"
#define INITIAL_END                                                                                \
    EVENT("BOOKMARK", "{\"metadata\":{\"resourceVersion\":\"7\",\"annotations\":{"                 \
                      "\"k8s.io/initial-events-end\":\"true\"}}}")

struct world {
    struct apiserver s;
    struct ctl c;
};

static void on_synced(void *ctx)
{
    uv_stop(&((struct world *)ctx)->s.loop);
}

/* The cache holds pod a (uid 1) and hears nothing more. */
static void start(struct world *w)
{
    static const struct answer script[] = {
        {.body = EVENT("ADDED", POD("a", "1")) INITIAL_END, .hold = true}};
    struct err e = {0};
    struct kube_cache_config cfg = {.kind = &kube_pods, .on_synced = on_synced, .ctx = w};
    memset(w, 0, sizeof *w);
    apiserver_start(&w->s, script, 1);
    assert_int_equal(kube_cache_start(w->s.client, &cfg, &w->c.pods, &e), 0);
    apiserver_run(&w->s);
}

static void end(struct world *w)
{
    expected_forget(&w->c, NULL);
    kube_cache_stop(w->c.pods);
    apiserver_stop(&w->s);
}

static json_t *parse(const char *text)
{
    json_t *o = json_parse(str_c(text), 65536, 0, NULL);
    assert_non_null(o);
    return o;
}

static void settle(struct world *w, const char *items)
{
    CLEANUP(free_charp) char *text = xasprintf("{\"items\":[%s]}", items);
    json_t *list = parse(text);
    expected_settle(&w->c, "d/chat", "d", list);
    json_decref(list);
}

static void expect_created(struct world *w, const char *pod)
{
    expected_add_created(&w->c, "d/chat", str_c(pod));
    w->c.expected->until_ns = 1; /* long ago */
}

static void a_pod_that_is_gone_before_it_was_seen_is_expected_no_more(void **state)
{
    struct world w;
    (void)state;
    start(&w);
    expect_created(&w, POD("b", "2"));
    expected_gone(&w.c, "d/other", "b");
    expected_gone(&w.c, "d/chat", "a");
    assert_true(expected_any(&w.c, "d/chat"));
    expected_gone(&w.c, "d/chat", "b");
    assert_false(expected_any(&w.c, "d/chat"));
    end(&w);
}

static void a_pod_that_was_made_counts_until_a_list_says_otherwise(void **state)
{
    struct world w;
    (void)state;
    start(&w);
    expect_created(&w, POD("b", "2"));
    assert_false(expected_overdue(&w.c, "d/other"));
    assert_true(expected_overdue(&w.c, "d/chat"));
    assert_non_null(w.c.expected); /* it is not forgotten because it took long */
    settle(&w, POD("a", "1") "," POD("b", "2"));
    assert_true(expected_any(&w.c, "d/chat")); /* it is there: the cache is behind */
    assert_false(expected_overdue(&w.c, "d/chat"));
    w.c.expected->until_ns = 1;
    settle(&w, POD("a", "1"));
    assert_false(expected_any(&w.c, "d/chat")); /* made, and gone unseen */
    end(&w);
}

static void a_pod_that_was_deleted_is_not_there_because_a_cache_shows_it(void **state)
{
    static const char *const lists[] = {"", DYING("a", "1"), POD("a", "9")};
    struct world w;
    (void)state;
    start(&w);
    for (int i = 0; i < 3; i++) {
        expected_add_deleted(&w.c, "d/chat", "a", "1");
        w.c.expected->until_ns = 1;
        assert_true(expected_overdue(&w.c, "d/chat"));
        settle(&w, lists[i]);
        assert_true(expected_deleted(&w.c, "1"));
        expected_forget(&w.c, "d/chat");
    }
    expected_add_deleted(&w.c, "d/chat", "a", "1");
    w.c.expected->until_ns = 1;
    settle(&w, POD("a", "1")); /* it was not deleted after all */
    assert_false(expected_deleted(&w.c, "1"));
    expected_add_deleted(&w.c, "d/chat", "gone", "7"); /* the cache never had it */
    w.c.expected->until_ns = 1;
    settle(&w, "");
    assert_false(expected_deleted(&w.c, "7"));
    end(&w);
}

static void what_the_cache_shows_is_expected_no_longer(void **state)
{
    struct kube_pod p = {.meta = {.name = (char *)(uintptr_t) "b", .uid = (char *)(uintptr_t) "2"}};
    struct world w;
    (void)state;
    start(&w);
    expected_add_created(&w.c, "d/chat", STR(POD("a", "1")));
    assert_null(w.c.expected);
    expected_add_created(&w.c, "d/chat", STR(POD("b", "2")));
    expected_seen(&w.c, NULL, &p);
    assert_false(expected_any(&w.c, "d/chat"));
    expected_add_deleted(&w.c, "d/chat", "b", "2");
    expected_seen(&w.c, &p, &p); /* unchanged */
    assert_true(expected_deleted(&w.c, "2"));
    expected_seen(&w.c, &p, NULL);
    assert_false(expected_deleted(&w.c, "2"));
    end(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pod_that_is_gone_before_it_was_seen_is_expected_no_more),
        cmocka_unit_test(a_pod_that_was_made_counts_until_a_list_says_otherwise),
        cmocka_unit_test(a_pod_that_was_deleted_is_not_there_because_a_cache_shows_it),
        cmocka_unit_test(what_the_cache_shows_is_expected_no_longer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
