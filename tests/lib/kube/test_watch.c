/* The watch against a scripted server: what can go wrong on the wire, each with its rule. */
#include "lib/kube/cache.h"
#include "tests/lib/kube/apiserver.h"

#define POD(name, uid, rv)                                                                         \
    "{\"metadata\":{\"name\":\"" name "\",\"namespace\":\"d\",\"uid\":\"" uid                      \
    "\",\"resourceVersion\":\"" rv "\"}}"
#define EVENT(type, object) "{\"type\":\"" type "\",\"object\":" object "}\n"
#define INITIAL_END(rv)                                                                            \
    EVENT("BOOKMARK", "{\"metadata\":{\"resourceVersion\":\"" rv                                   \
                      "\",\"annotations\":{\"k8s.io/initial-events-end\":\"true\"}}}")
#define BOOKMARK(rv) EVENT("BOOKMARK", "{\"metadata\":{\"resourceVersion\":\"" rv "\"}}")
#define EXPIRED                                                                                    \
    EVENT("ERROR",                                                                                 \
          "{\"kind\":\"Status\",\"code\":410,\"reason\":\"Expired\",\"message\":\"too old\"}")

struct log {
    struct apiserver s;
    struct kube_watch *watch;
    char text[4096];
    unsigned syncs, errors;
    const char *until; /* stop the loop when the text holds this */
    unsigned until_syncs;
};

static void note(struct log *l, const char *what, const char *name)
{
    size_t n = strlen(l->text);
    snprintf(l->text + n, sizeof l->text - n, "%s%s ", what, name);
    if (l->until && strstr(l->text, l->until))
        uv_stop(&l->s.loop);
}

static void on_event(enum kube_event_type type, json_t *o, void *ctx)
{
    static const char *const marks[] = {"+", "~", "-"};
    note(ctx, marks[type], json_str_at(o, "metadata.name", "?"));
}

static void on_synced(void *ctx)
{
    struct log *l = ctx;
    l->syncs++;
    note(l, "", "synced");
    if (l->until_syncs && l->syncs >= l->until_syncs)
        uv_stop(&l->s.loop);
}

static void on_error(const struct err *e, void *ctx)
{
    struct log *l = ctx;
    (void)e;
    l->errors++;
}

static void begin(struct log *l, const struct answer *script, size_t steps)
{
    struct err e = {0};
    memset(l, 0, sizeof *l);
    apiserver_start(&l->s, script, steps);
    struct kube_watch_config cfg = {.kind = &kube_pods,
                                    .label_selector = "a=b",
                                    .on_event = on_event,
                                    .on_synced = on_synced,
                                    .on_error = on_error,
                                    .ctx = l,
                                    .backoff_min_ms = 5,
                                    .backoff_max_ms = 50,
                                    .silence_ms = 1000};
    assert_int_equal(kube_watch_start(l->s.client, &cfg, &l->watch, &e), 0);
}

static void run_until(struct log *l, const char *text)
{
    l->until = text;
    if (!strstr(l->text, text))
        apiserver_run(&l->s);
}

static void end(struct log *l)
{
    kube_watch_stop(l->watch);
    apiserver_stop(&l->s);
}

static void a_streaming_list_ends_with_its_bookmark_and_goes_on(void **state)
{
    struct log l;
    struct answer script[] = {
        {.body = EVENT("ADDED", POD("a", "1", "5")) EVENT("ADDED", POD("b", "2", "6")) INITIAL_END(
             "7") EVENT("MODIFIED", POD("a", "1", "8")) EVENT("DELETED", POD("b", "2", "9")),
         .hold = true}};
    (void)state;
    begin(&l, script, 1);
    run_until(&l, "-b");
    assert_string_equal(l.text, "+a +b synced ~a -b ");
    assert_true(kube_watch_synced(l.watch));
    assert_true(kube_watch_connected(l.watch));
    assert_non_null(strstr(l.s.seen[0].query, "sendInitialEvents=true"));
    assert_non_null(strstr(l.s.seen[0].query, "allowWatchBookmarks=true"));
    assert_non_null(strstr(l.s.seen[0].query, "labelSelector=a%3Db"));
    assert_null(strstr(l.s.seen[0].query, "&resourceVersion="));
    assert_string_equal(l.s.seen[0].auth, "Bearer secret-token");
    end(&l);
}

static void chunks_may_end_anywhere(void **state)
{
    (void)state;
    for (size_t piece = 1; piece <= 64; piece = piece * 3 + 1) { /* 1, 4, 13, 40 */
        struct log l;
        struct answer script[] = {{.body = EVENT("ADDED", POD("a", "1", "5")) "\n" INITIAL_END("7")
                                       EVENT("DELETED", POD("a", "1", "8")),
                                   .piece = piece,
                                   .hold = true}};
        begin(&l, script, 1);
        run_until(&l, "-a");
        assert_string_equal(l.text, "+a synced -a ");
        end(&l);
    }
}

static void a_server_without_streaming_lists_gets_list_and_watch(void **state)
{
    struct log l;
    struct answer script[] = {
        {.status = 422, .body = "{\"kind\":\"Status\",\"reason\":\"Invalid\"}"},
        {.body = "{\"kind\":\"PodList\",\"metadata\":{\"resourceVersion\":\"20\"},\"items\":[" POD(
             "a", "1", "5") "]}"},
        {.body = EVENT("ADDED", POD("b", "2", "21")), .hold = true},
    };
    (void)state;
    begin(&l, script, 3);
    run_until(&l, "+b");
    assert_string_equal(l.text, "+a synced +b ");
    assert_non_null(strstr(l.s.seen[1].query, "resourceVersion=0"));
    assert_null(strstr(l.s.seen[1].query, "watch"));
    assert_non_null(strstr(l.s.seen[2].query, "resourceVersion=20"));
    end(&l);
}

static void a_stream_that_ends_is_resumed_from_the_last_version(void **state)
{
    struct log l;
    struct answer script[] = {
        {.body = EVENT("ADDED", POD("a", "1", "5")) INITIAL_END("7") BOOKMARK("12")},
        {.body = EVENT("MODIFIED", POD("a", "1", "13")), .drop = true},
        {.body = EVENT("MODIFIED", POD("a", "1", "14")) EVENT("ADDED", POD("z", "9", "15")),
         .hold = true},
    };
    (void)state;
    begin(&l, script, 3);
    run_until(&l, "+z");
    assert_string_equal(l.text, "+a synced ~a ~a +z ");
    assert_non_null(strstr(l.s.seen[1].query, "resourceVersion=12"));
    assert_null(strstr(l.s.seen[1].query, "sendInitialEvents"));
    assert_non_null(strstr(l.s.seen[2].query, "resourceVersion=13"));
    end(&l);
}

static void a_list_that_breaks_off_is_begun_again(void **state)
{
    struct log l;
    struct answer script[] = {
        {.body = EVENT("ADDED", POD("a", "1", "5")) "{\"type\":\"ADD", .drop = true},
        {.body =
             EVENT("ADDED", POD("a", "1", "5")) EVENT("ADDED", POD("b", "2", "6")) INITIAL_END("7"),
         .hold = true},
    };
    (void)state;
    begin(&l, script, 2);
    run_until(&l, "synced");
    assert_string_equal(l.text, "+a ~a +b synced ");
    assert_true(l.errors >= 1);
    assert_non_null(strstr(l.s.seen[1].query, "sendInitialEvents"));
    end(&l);
}

static unsigned life(const struct seen_request *r)
{
    const char *at = strstr(r->query, "timeoutSeconds=");
    return at ? (unsigned)strtoul(at + 15, NULL, 10) : 0;
}

/* On a slow server a list takes longer than a watch lives: cut short, it would begin for ever. */
static void a_list_may_take_longer_than_a_watch_lives(void **state)
{
    struct log l;
    struct answer script[] = {
        {.body = EVENT("ADDED", POD("a", "1", "5")) INITIAL_END("7")},
        {.body = EVENT("ADDED", POD("b", "2", "8")), .hold = true},
    };
    (void)state;
    begin(&l, script, 2);
    run_until(&l, "+b");
    assert_true(life(&l.s.seen[0]) >= 600);
    assert_in_range(life(&l.s.seen[1]), 1, KUBE_WATCH_LIFE_S);
    end(&l);
}

static void an_expired_version_lists_again_and_what_vanished_is_deleted(void **state)
{
    static const struct answer expired[2] = {{.body = EXPIRED},
                                             {.status = 410, .body = "{\"code\":410}"}};
    (void)state;
    for (int i = 0; i < 2; i++) { /* inside HTTP 200, and as a status */
        struct log l;
        struct answer script[] = {
            {.body = EVENT("ADDED", POD("a", "1", "5")) EVENT("ADDED", POD("b", "2", "6"))
                 INITIAL_END("7")},
            expired[i],
            {.body = EVENT("ADDED", POD("b", "2", "6")) EVENT("ADDED", POD("c", "3", "30"))
                 INITIAL_END("31"),
             .hold = true},
        };
        begin(&l, script, 3);
        l.until_syncs = 2;
        apiserver_run(&l.s);
        assert_string_equal(l.text, "+a +b synced ~b +c -a synced ");
        assert_null(strstr(l.s.seen[2].query, "&resourceVersion="));
        end(&l);
    }
}

static void errors_are_retried_with_growing_delays(void **state)
{
    struct log l;
    struct answer script[] = {
        {.status = 500, .body = "{}"},
        {.status = 429, .body = "{}"},
        {.status = 503, .body = "oops"},
        {.body = INITIAL_END("7"), .hold = true},
    };
    (void)state;
    begin(&l, script, 4);
    run_until(&l, "synced");
    assert_int_equal(l.errors, 3);
    assert_int_equal(l.s.n, 4);
    end(&l);
}

static unsigned ms_between(const struct log *l, size_t a, size_t b)
{
    return (unsigned)((l->s.seen[b].at_ns - l->s.seen[a].at_ns) / NS_PER_MS);
}

static void a_watch_waits_for_as_long_as_the_server_says(void **state)
{
    static const struct answer waits[] = {
        {.status = 429, .body = "{}", .header = "Retry-After", .value = "1"},
        {.status = 503, .body = "{\"details\":{\"retryAfterSeconds\":1}}"},
        {.body = EVENT("ERROR", "{\"kind\":\"Status\",\"code\":429,\"reason\":\"TooManyRequests\","
                                "\"details\":{\"retryAfterSeconds\":1}}")},
    };
    (void)state;
    for (int i = 0; i < 3; i++) {
        struct log l;
        struct answer script[] = {{.body = INITIAL_END("7") BOOKMARK("8")},
                                  waits[i],
                                  {.body = EVENT("ADDED", POD("a", "1", "9")), .hold = true}};
        begin(&l, script, 3);
        run_until(&l, "+a");
        assert_string_equal(l.text, "synced +a "); /* no relist */
        assert_in_range(ms_between(&l, 1, 2), 990, 3000);
        assert_non_null(strstr(l.s.seen[2].query, "resourceVersion=8"));
        end(&l);
    }
}

#define TOO_LARGE                                                                                  \
    "{\"kind\":\"Status\",\"code\":504,\"reason\":\"Timeout\",\"message\":\"Too large resource "   \
    "version: 9, current: 3\",\"details\":{\"causes\":[{\"reason\":\"ResourceVersionTooLarge\"}]," \
    "\"retryAfterSeconds\":5}}"

/* The server was restored from a copy, or another one answers that is behind. */
static void a_version_the_server_has_not_reached_lists_again_at_once(void **state)
{
    static const struct answer answers[] = {{.status = 504, .body = TOO_LARGE},
                                            {.body = EVENT("ERROR", TOO_LARGE)}};
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct log l;
        struct answer script[] = {
            {.body = EVENT("ADDED", POD("a", "1", "5")) INITIAL_END("9")},
            answers[i],
            {.body = EVENT("ADDED", POD("b", "2", "3")) INITIAL_END("3"), .hold = true},
        };
        begin(&l, script, 3);
        l.until_syncs = 2;
        apiserver_run(&l.s);
        assert_string_equal(l.text, "+a synced +b -a synced ");
        assert_in_range(ms_between(&l, 1, 2), 0, 900);
        assert_non_null(strstr(l.s.seen[2].query, "sendInitialEvents"));
        end(&l);
    }
}

static void a_list_that_is_too_large_asks_for_the_most_recent_at_once(void **state)
{
    struct log l;
    struct answer script[] = {
        {.status = 422, .body = "{}"},
        {.status = 504, .body = TOO_LARGE},
        {.status = 504, .body = TOO_LARGE}, /* again: now it waits */
        {.body = "{\"metadata\":{\"resourceVersion\":\"3\"},\"items\":[]}"},
        {.body = BOOKMARK("4"), .hold = true},
    };
    (void)state;
    begin(&l, script, 5);
    run_until(&l, "synced");
    assert_non_null(strstr(l.s.seen[1].query, "resourceVersion=0"));
    assert_null(strstr(l.s.seen[2].query, "resourceVersion=0"));
    assert_in_range(ms_between(&l, 1, 2), 0, 900);
    assert_in_range(ms_between(&l, 2, 3), 4990, 9000);
    end(&l);
}

static void nonsense_in_the_stream_starts_it_again(void **state)
{
    struct log l;
    struct answer script[] = {
        {.body = INITIAL_END("7") "{\"type\":\"ADDED\",\"object\":[}\n" EVENT("ADDED",
                                                                              POD("a", "1", "8")),
         .hold = true},
        {.body = EVENT("ADDED", POD("a", "1", "8")), .hold = true},
    };
    (void)state;
    begin(&l, script, 2);
    run_until(&l, "+a");
    assert_string_equal(l.text, "synced +a ");
    assert_int_equal(l.s.n, 2);
    end(&l);
}

static void a_silent_stream_is_given_up(void **state)
{
    struct log l;
    struct answer script[] = {
        {.body = INITIAL_END("7"), .hold = true},
        {.body = EVENT("ADDED", POD("a", "1", "8")), .hold = true},
    };
    (void)state;
    begin(&l, script, 2);
    run_until(&l, "+a");
    assert_non_null(strstr(l.s.seen[1].query, "resourceVersion=7"));
    end(&l);
}

static void stop_here(enum kube_event_type type, json_t *o, void *ctx)
{
    struct log *l = ctx;
    (void)type;
    (void)o;
    kube_watch_stop(l->watch);
    l->watch = NULL;
    uv_stop(&l->s.loop);
}

static void a_watch_may_be_stopped_from_its_own_callback(void **state)
{
    struct log l;
    struct answer script[] = {{.body = EVENT("ADDED", POD("a", "1", "5"))
                                   EVENT("ADDED", POD("b", "2", "6")) INITIAL_END("7"),
                               .hold = true}};
    struct err e = {0};
    (void)state;
    memset(&l, 0, sizeof l);
    apiserver_start(&l.s, script, 1);
    struct kube_watch_config cfg = {.kind = &kube_pods, .on_event = stop_here, .ctx = &l};
    assert_int_equal(kube_watch_start(l.s.client, &cfg, &l.watch, &e), 0);
    apiserver_run(&l.s);
    end(&l);
}

/* ---- the cache ---- */

struct cached {
    struct apiserver s;
    struct kube_cache *cache;
    char text[1024];
    const char *until;
};

static void on_change(const void *old, const void *now, void *ctx)
{
    struct cached *c = ctx;
    const struct kube_pod *o = old, *n = now;
    size_t at = strlen(c->text);
    snprintf(c->text + at, sizeof c->text - at, "%s>%s ", o ? o->meta.resource_version : "",
             n ? n->meta.resource_version : "");
    if (strstr(c->text, c->until))
        uv_stop(&c->s.loop);
}

static bool names(const void *object, void *ctx)
{
    strcat(ctx, ((const struct kube_pod *)object)->meta.name);
    return true;
}

static void the_cache_holds_decoded_objects_and_tells_old_and_new(void **state)
{
    struct cached c = {.until = "8>"};
    struct answer script[] = {
        {.body = EVENT("ADDED", POD("b", "1", "5")) EVENT("ADDED", POD("a", "2", "6"))
             INITIAL_END("7") EVENT("MODIFIED", POD("a", "2", "8"))
                 EVENT("ADDED", "{\"metadata\":{\"name\":\"x\",\"namespace\":\"d\",\"labels\":7}}")
                     EVENT("DELETED", POD("a", "2", "9")),
         .hold = true}};
    struct err e = {0};
    (void)state;
    apiserver_start(&c.s, script, 1);
    struct kube_cache_config cfg = {.kind = &kube_pods, .on_change = on_change, .ctx = &c};
    assert_int_equal(kube_cache_start(c.s.client, &cfg, &c.cache, &e), 0);
    apiserver_run(&c.s);
    assert_string_equal(c.text, ">5 >6 6>8 8> ");
    assert_true(kube_cache_synced(c.cache));
    assert_int_equal(kube_cache_count(c.cache), 1);
    assert_null(kube_cache_get(c.cache, "d", "a"));
    assert_null(kube_cache_get(c.cache, "d", "x")); /* unreadable: as if absent */
    const struct kube_pod *b = kube_cache_get(c.cache, "d", "b");
    assert_non_null(b);
    assert_string_equal(b->meta.uid, "1");
    char all[64] = "";
    kube_cache_each(c.cache, names, all);
    assert_string_equal(all, "b");
    kube_cache_stop(c.cache);
    apiserver_stop(&c.s);
}

#define LABELLED(name, value, rv)                                                                  \
    "{\"metadata\":{\"name\":\"" name "\",\"namespace\":\"d\",\"uid\":\"" name                     \
    "\",\"resourceVersion\":\"" rv "\",\"labels\":{\"x\":\"" value "\"}}}"

static void objects_are_found_by_their_index_label_as_it_is_now(void **state)
{
    struct cached c = {.until = "10>"};
    struct answer script[] = {
        {.body = EVENT("ADDED", LABELLED("c", "one", "1")) EVENT("ADDED", LABELLED("b", "two", "2"))
             EVENT("ADDED", LABELLED("a", "one", "3")) EVENT("ADDED", POD("d", "4", "4"))
                 INITIAL_END("5") EVENT("MODIFIED", LABELLED("b", "one", "6"))
                     EVENT("MODIFIED", LABELLED("c", "three", "7"))
                         EVENT("ADDED", LABELLED("e", "four", "10"))
                             EVENT("DELETED", LABELLED("e", "four", "11")),
         .hold = true}};
    struct err e = {0};
    char one[64] = "", two[64] = "", three[64] = "", four[64] = "";
    (void)state;
    apiserver_start(&c.s, script, 1);
    struct kube_cache_config cfg = {
        .kind = &kube_pods, .index_label = "x", .on_change = on_change, .ctx = &c};
    assert_int_equal(kube_cache_start(c.s.client, &cfg, &c.cache, &e), 0);
    apiserver_run(&c.s);
    while (kube_cache_get(c.cache, "d", "e"))
        uv_run(&c.s.loop, UV_RUN_ONCE);
    kube_cache_each_labelled(c.cache, "d", "one", names, one);
    kube_cache_each_labelled(c.cache, "d", "two", names, two);
    kube_cache_each_labelled(c.cache, "d", "three", names, three);
    kube_cache_each_labelled(c.cache, "d", "four", names, four);
    assert_string_equal(one, "ab");
    assert_string_equal(two, "");
    assert_string_equal(three, "c");
    assert_string_equal(four, "");
    kube_cache_stop(c.cache);
    apiserver_stop(&c.s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_streaming_list_ends_with_its_bookmark_and_goes_on),
        cmocka_unit_test(chunks_may_end_anywhere),
        cmocka_unit_test(a_server_without_streaming_lists_gets_list_and_watch),
        cmocka_unit_test(a_stream_that_ends_is_resumed_from_the_last_version),
        cmocka_unit_test(a_list_that_breaks_off_is_begun_again),
        cmocka_unit_test(a_list_may_take_longer_than_a_watch_lives),
        cmocka_unit_test(an_expired_version_lists_again_and_what_vanished_is_deleted),
        cmocka_unit_test(errors_are_retried_with_growing_delays),
        cmocka_unit_test(a_watch_waits_for_as_long_as_the_server_says),
        cmocka_unit_test(a_version_the_server_has_not_reached_lists_again_at_once),
        cmocka_unit_test(a_list_that_is_too_large_asks_for_the_most_recent_at_once),
        cmocka_unit_test(nonsense_in_the_stream_starts_it_again),
        cmocka_unit_test(a_silent_stream_is_given_up),
        cmocka_unit_test(a_watch_may_be_stopped_from_its_own_callback),
        cmocka_unit_test(the_cache_holds_decoded_objects_and_tells_old_and_new),
        cmocka_unit_test(objects_are_found_by_their_index_label_as_it_is_now),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
