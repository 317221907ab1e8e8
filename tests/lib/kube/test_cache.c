/* The cache, with its objects decoded and with them packed: what it holds, finds and tells. */
#include "lib/kube/cache.h"
#include "tests/lib/kube/apiserver.h"

#define LABELLED(name, value, rv)                                                                  \
    "{\"metadata\":{\"name\":\"" name "\",\"namespace\":\"d\",\"uid\":\"u-" name                   \
    "\",\"resourceVersion\":\"" rv "\",\"labels\":{\"x\":\"" value "\"}},"                         \
    "\"spec\":{\"nodeName\":\"node-of-" name "\"},\"status\":{\"phase\":\"Running\","              \
    "\"conditions\":[{\"type\":\"Ready\",\"status\":\"True\"}]}}"
#define EVENT(type, object) "{\"type\":\"" type "\",\"object\":" object "}\n"
#define INITIAL_END(rv)                                                                            \
    EVENT("BOOKMARK", "{\"metadata\":{\"resourceVersion\":\"" rv                                   \
                      "\",\"annotations\":{\"k8s.io/initial-events-end\":\"true\"}}}")
#define EXPIRED                                                                                    \
    EVENT("ERROR",                                                                                 \
          "{\"kind\":\"Status\",\"code\":410,\"reason\":\"Expired\",\"message\":\"too old\"}")

struct cached {
    struct apiserver s;
    struct kube_cache *cache;
    char text[1024];
    const char *until;
    unsigned syncs;
};

static void on_change(const void *old, const void *now, void *ctx)
{
    struct cached *c = ctx;
    const struct kube_pod *o = old, *n = now;
    size_t at = strlen(c->text);
    snprintf(c->text + at, sizeof c->text - at, "%s%s>%s%s ", o ? o->meta.name : "",
             o ? o->meta.resource_version : "", n ? n->meta.name : "",
             n ? n->meta.resource_version : "");
    if (strstr(c->text, c->until))
        uv_stop(&c->s.loop);
}

static void on_synced(void *ctx)
{
    struct cached *c = ctx;
    c->syncs++;
    strcat(c->text, "synced ");
    if (strstr(c->text, c->until))
        uv_stop(&c->s.loop);
}

static void begin(struct cached *c, const struct answer *script, size_t n, void **state)
{
    struct err e = {0};
    apiserver_start(&c->s, script, n);
    struct kube_cache_config cfg = {.kind = &kube_pods,
                                    .index_label = "x",
                                    .packed = *(const bool *)*state,
                                    .on_change = on_change,
                                    .on_synced = on_synced,
                                    .ctx = c,
                                    .backoff_min_ms = 5,
                                    .backoff_max_ms = 50};
    assert_int_equal(kube_cache_start(c->s.client, &cfg, &c->cache, &e), 0);
    apiserver_run(&c->s);
}

static void end(struct cached *c)
{
    kube_cache_stop(c->cache);
    apiserver_stop(&c->s);
}

static bool names(const void *object, void *ctx)
{
    const struct kube_pod *p = object;
    assert_string_equal(p->phase, "Running");
    assert_true(kube_condition_true(&p->conditions, "Ready"));
    assert_memory_equal(p->node, "node-of-", 8);
    assert_string_equal(p->node + 8, p->meta.name);
    strcat(ctx, p->meta.name);
    return true;
}

static void objects_are_held_whole_and_changes_told_with_old_and_new(void **state)
{
    struct cached c = {.until = "a8> "};
    struct answer script[] = {
        {.body = EVENT("ADDED", LABELLED("b", "one", "5")) EVENT("ADDED", LABELLED("a", "one", "6"))
             EVENT("ADDED", LABELLED("c", "one", "6")) INITIAL_END("7")
                 EVENT("MODIFIED", LABELLED("a", "one", "8"))
                     EVENT("ADDED", "{\"metadata\":{\"name\":\"x\",\"namespace\":\"d\","
                                    "\"labels\":7}}") EVENT("DELETED", LABELLED("a", "one", "9")),
         .hold = true}};
    begin(&c, script, 1, state);
    assert_string_equal(c.text, ">b5 >a6 >c6 synced a6>a8 a8> ");
    assert_int_equal(kube_cache_count(c.cache), 2);
    assert_null(kube_cache_get(c.cache, "d", "a"));
    assert_null(kube_cache_get(c.cache, "d", "x")); /* unreadable: as if absent */
    const struct kube_pod *b = kube_cache_get(c.cache, "d", "b");
    assert_non_null(b);
    assert_string_equal(b->meta.uid, "u-b");
    const char *uid = b->meta.uid; /* strings stay when another object is asked for */
    assert_string_equal(((const struct kube_pod *)kube_cache_get(c.cache, "d", "c"))->meta.uid,
                        "u-c");
    assert_string_equal(uid, "u-b");
    char all[64] = "";
    kube_cache_each(c.cache, names, all);
    assert_string_equal(all, "bc");
    end(&c);
}

static void an_index_follows_the_label(void **state)
{
    struct cached c = {.until = "e10> "};
    struct answer script[] = {
        {.body = EVENT("ADDED", LABELLED("c", "one", "1")) EVENT("ADDED", LABELLED("b", "two", "2"))
             EVENT("ADDED", LABELLED("a", "one", "3")) INITIAL_END("5")
                 EVENT("MODIFIED", LABELLED("b", "one", "6"))
                     EVENT("MODIFIED", LABELLED("c", "three", "7"))
                         EVENT("ADDED", LABELLED("e", "four", "10"))
                             EVENT("DELETED", LABELLED("e", "four", "11")),
         .hold = true}};
    const char *const want[][2] = {{"one", "ab"}, {"two", ""}, {"three", "c"}, {"four", ""}};
    begin(&c, script, 1, state);
    for (size_t i = 0; i < 4; i++) {
        char all[64] = "";
        kube_cache_each_labelled(c.cache, "d", want[i][0], names, all);
        assert_string_equal(all, want[i][1]);
    }
    end(&c);
}

static void what_a_new_list_does_not_hold_is_deleted(void **state)
{
    struct cached c = {.until = "synced a1>a1 >c8 b2> synced "};
    struct answer script[] = {{.body = EVENT("ADDED", LABELLED("a", "one", "1")) EVENT(
                                   "ADDED", LABELLED("b", "one", "2")) INITIAL_END("3") EXPIRED},
                              {.body = EVENT("ADDED", LABELLED("a", "one", "1"))
                                   EVENT("ADDED", LABELLED("c", "one", "8")) INITIAL_END("9"),
                               .hold = true}};
    begin(&c, script, 2, state);
    assert_string_equal(c.text, ">a1 >b2 synced a1>a1 >c8 b2> synced ");
    assert_int_equal(kube_cache_count(c.cache), 2);
    assert_null(kube_cache_get(c.cache, "d", "b"));
    char all[64] = "";
    kube_cache_each_labelled(c.cache, "d", "one", names, all);
    assert_string_equal(all, "ac");
    end(&c);
}

static void a_server_without_streaming_lists_fills_it_too(void **state)
{
    struct cached c = {.until = "synced b2> "};
    struct answer script[] = {
        {.status = 400, .body = "{\"kind\":\"Status\",\"code\":400}"},
        {.body =
             "{\"kind\":\"PodList\",\"metadata\":{\"resourceVersion\":\"3\"},\"items\":[" LABELLED(
                 "a", "one", "1") "," LABELLED("b", "one", "2") "]}"},
        {.body = EVENT("DELETED", LABELLED("b", "one", "4")), .hold = true}};
    begin(&c, script, 3, state);
    assert_string_equal(c.text, ">a1 >b2 synced b2> ");
    assert_int_equal(kube_cache_count(c.cache), 1);
    end(&c);
}

int main(void)
{
    static bool decoded = false, packed = true;
#define BOTH(test)                                                                                 \
    {"decoded: " #test, test, NULL, NULL, &decoded},                                               \
    {                                                                                              \
        "packed: " #test, test, NULL, NULL, &packed                                                \
    }
    const struct CMUnitTest tests[] = {
        BOTH(objects_are_held_whole_and_changes_told_with_old_and_new),
        BOTH(an_index_follows_the_label),
        BOTH(what_a_new_list_does_not_hold_is_deleted),
        BOTH(a_server_without_streaming_lists_fills_it_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
