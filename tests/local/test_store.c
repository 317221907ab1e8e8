#include "local/store.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>
#include <cmocka.h>

struct seen {
    uint64_t rv[64];
    enum event_type type[64];
    size_t n;
};

static void on_event(const struct event *ev, void *ctx)
{
    struct seen *s = ctx;
    assert_true(s->n < 64);
    s->rv[s->n] = ev->rv;
    s->type[s->n++] = ev->type;
}

struct fixture {
    char dir[64], path[96];
    struct seen seen;
    struct store *st;
};

static void open_store(struct fixture *f, uint64_t window)
{
    struct err e = {0};
    struct store_config c = {
        .path = f->path, .event_window = window, .on_event = on_event, .ctx = &f->seen};
    f->seen = (struct seen){0};
    assert_int_equal(store_open(&c, &f->st, &e), 0);
}

static int setup(void **state)
{
    struct fixture *f = xcalloc(1, sizeof *f);
    snprintf(f->dir, sizeof f->dir, P_tmpdir "/baton-store-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    snprintf(f->path, sizeof f->path, "%s/store.db", f->dir);
    open_store(f, 16);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    store_close(f->st);
    CLEANUP(free_charp) char *cmd = xasprintf("rm -rf '%s'", f->dir);
    assert_int_equal(system(cmd), 0);
    free(f);
    return 0;
}

static json_t *thing(const char *ns, const char *name, int n)
{
    return json_pack("{s:s,s:s,s:{s:s,s:s,s:s},s:i}", "kind", "Thing", "apiVersion", "v1",
                     "metadata", "name", name, "namespace", ns, "uid", name, "n", n);
}

static struct obj *put(struct fixture *f, const char *ns, const char *name, int n)
{
    struct err e = {0};
    struct obj *o = store_put(f->st, store_bucket(f->st, "things"), thing(ns, name, n), &e);
    assert_non_null(o);
    return o;
}

static void commit(struct fixture *f)
{
    struct err e = {0};
    assert_int_equal(store_commit(f->st, &e), 0);
}

static void events_come_at_the_commit_in_order_and_not_before(void **state)
{
    struct fixture *f = *state;
    struct err e = {0};
    put(f, "a", "x", 1);
    put(f, "a", "x", 2);
    assert_int_equal(f->seen.n, 0);
    assert_int_equal(store_rv(f->st), 0);
    assert_int_equal(store_remove(f->st, bucket_get(store_bucket(f->st, "things"), "a", "x"), &e),
                     0);
    commit(f);
    assert_int_equal(f->seen.n, 3);
    assert_int_equal(f->seen.type[0], EVENT_ADDED);
    assert_int_equal(f->seen.type[1], EVENT_MODIFIED);
    assert_int_equal(f->seen.type[2], EVENT_DELETED);
    assert_int_equal(store_rv(f->st), 3);
}

static void objects_and_events_survive_a_reopening(void **state)
{
    struct fixture *f = *state;
    put(f, "a", "x", 1);
    put(f, "b", "y", 7);
    commit(f);
    put(f, "a", "x", 2);
    commit(f);
    store_close(f->st);
    open_store(f, 16);
    struct bucket *b = store_bucket(f->st, "things");
    assert_int_equal(bucket_count(b), 2);
    assert_int_equal(json_int_at(bucket_get(b, "a", "x")->doc, "n", 0), 2);
    assert_int_equal(store_rv(f->st), 3);
    size_t i = store_events_after(f->st, 2);
    const struct event *ev = store_event(f->st, i);
    assert_int_equal(ev->type, EVENT_MODIFIED);
    assert_int_equal(json_int_at(ev->prev->doc, "n", 0), 1);
    assert_null(store_event(f->st, i + 1));
    assert_ptr_equal(store_by_uid(f->st, "y"), bucket_get(b, "b", "y"));
}

static void what_was_not_committed_is_not_there_after_a_reopening(void **state)
{
    struct fixture *f = *state;
    put(f, "a", "x", 1);
    commit(f);
    put(f, "a", "x", 2);
    put(f, "a", "z", 1);
    store_close(f->st);
    open_store(f, 16);
    struct bucket *b = store_bucket(f->st, "things");
    assert_int_equal(bucket_count(b), 1);
    assert_int_equal(json_int_at(bucket_get(b, "a", "x")->doc, "n", 0), 1);
    assert_int_equal(store_rv(f->st), 1);
}

static void the_window_is_bounded_and_says_what_is_gone(void **state)
{
    struct fixture *f = *state;
    for (int i = 0; i < 40; i++) {
        put(f, "a", "x", i);
        commit(f);
    }
    assert_true(store_compacted(f->st) >= 20);
    assert_true(store_compacted(f->st) <= 24);
    uint64_t compacted = store_compacted(f->st);
    store_close(f->st);
    open_store(f, 16);
    assert_int_equal(store_compacted(f->st), compacted);
    assert_int_equal(store_rv(f->st), 40);
}

static void versions_go_on_after_everything_was_compacted(void **state)
{
    struct fixture *f = *state;
    struct err e = {0};
    put(f, "a", "x", 1);
    commit(f);
    assert_int_equal(store_remove(f->st, bucket_get(store_bucket(f->st, "things"), "a", "x"), &e),
                     0);
    commit(f);
    store_compact(f->st);
    store_close(f->st);
    open_store(f, 16);
    assert_int_equal(store_rv(f->st), 2);
    assert_int_equal(put(f, "a", "x", 1)->rv, 3);
}

static void keys_are_sorted_and_found_by_prefix(void **state)
{
    struct fixture *f = *state;
    put(f, "b", "2", 1);
    put(f, "a", "9", 1);
    put(f, "b", "1", 1);
    struct bucket *b = store_bucket(f->st, "things");
    assert_string_equal(bucket_at(b, 0)->key, "a/9");
    assert_string_equal(bucket_at(b, bucket_lower(b, "b/"))->key, "b/1");
    assert_null(bucket_at(b, 3));
}

static void a_commit_that_the_disk_refuses_leaves_memory_as_it_was(void **state)
{
    struct fixture *f = *state;
    struct err e = {0};
    struct rlimit was, small = {4096, RLIM_INFINITY};
    put(f, "a", "x", 1);
    commit(f);
    size_t events = f->seen.n;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
    small.rlim_max = was.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    put(f, "a", "x", 2);
    put(f, "a", "y", 1);
    int rc = store_commit(f->st, &e);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
    assert_true(rc < 0);
    struct bucket *b = store_bucket(f->st, "things");
    assert_int_equal(bucket_count(b), 1);
    assert_int_equal(json_int_at(bucket_get(b, "a", "x")->doc, "n", 0), 1);
    assert_int_equal(store_rv(f->st), 1);
    assert_int_equal(f->seen.n, events);
    assert_int_equal(put(f, "a", "x", 3)->rv, 2); /* and it works again */
    commit(f);
    store_close(f->st);
    open_store(f, 16);
    assert_int_equal(json_int_at(bucket_get(store_bucket(f->st, "things"), "a", "x")->doc, "n", 0),
                     3);
}

static void the_text_of_an_item_is_the_text_without_its_kind(void **state)
{
    struct fixture *f = *state;
    struct obj *o = put(f, "a", "x", 1);
    assert_memory_equal(obj_text(o).p, "{\"kind\":\"Thing\",\"apiVersion\":\"v1\",\"metadata\"",
                        42);
    assert_memory_equal(obj_item_tail(o).p, "\"metadata\":", 11);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(events_come_at_the_commit_in_order_and_not_before),
        T(objects_and_events_survive_a_reopening),
        T(what_was_not_committed_is_not_there_after_a_reopening),
        T(the_window_is_bounded_and_says_what_is_gone),
        T(versions_go_on_after_everything_was_compacted),
        T(keys_are_sorted_and_found_by_prefix),
        T(a_commit_that_the_disk_refuses_leaves_memory_as_it_was),
        T(the_text_of_an_item_is_the_text_without_its_kind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
