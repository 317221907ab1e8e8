/* Records against the objects that they were made of, on generated pods and deployments; the
 * dictionary's words are counted to the last. */
#include "lib/json/pack.h"
#include "tests/lib/json/things.h"

static void *object(struct rng *r)
{
    struct err e = {0};
    json_t *o = thing(r);
    void *x = view_decode(&thing_view, o, &e);
    if (!x)
        fail_msg("%s", e.msg);
    json_decref(o);
    return x;
}

static void a_record_opens_to_what_it_was_made_of(void **state)
{
    (void)state;
    struct rng r = {SEED};
    struct dict *words = dict_new();
    struct pack_room room = {0};
    enum { N = 2000, KEPT = 64 };
    struct pack *kept[KEPT] = {0};
    void *was[KEPT] = {0};
    for (int i = 0; i < N; i++) {
        size_t at = (size_t)rng_below(&r, KEPT);
        char where[200] = "";
        if (was[at] && view_diff(&thing_view, was[at],
                                 pack_open(kept[at], &thing_view, words, &room), where, 200))
            fail_msg("seed %u, object %d: %s differs", SEED, i, where);
        pack_drop(kept[at], &thing_view, words);
        free(was[at]);
        was[at] = object(&r);
        kept[at] = pack_new(&thing_view, was[at], words);
    }
    assert_true(dict_count(words) > 20);
    for (int i = 0; i < KEPT; i++) {
        pack_drop(kept[i], &thing_view, words);
        free(was[i]);
    }
    assert_int_equal(dict_count(words), 0);
    pack_room_fini(&room);
    dict_free(words);
}

static void strings_that_come_again_are_kept_once(void **state)
{
    (void)state;
    struct dict *words = dict_new();
    uint32_t a, b, c;
    assert_false(dict_take(words, STR("pending"), &a));
    assert_true(dict_take(words, STR("pending"), &a));
    assert_true(dict_take(words, STR("pending"), &b));
    assert_int_equal(a, b);
    assert_string_equal(dict_text(words, a), "pending");
    assert_false(dict_take(words, STR("running"), &c));
    assert_int_equal(dict_count(words), 1);
    dict_drop(words, a);
    assert_string_equal(dict_text(words, b), "pending");
    dict_drop(words, b);
    assert_int_equal(dict_count(words), 0);
    assert_true(dict_take(words, STR("running"), &c));
    assert_string_equal(dict_text(words, c), "running");
    dict_drop(words, c);
    dict_free(words);
}

static void many_words_find_their_place_again(void **state)
{
    (void)state;
    struct dict *words = dict_new();
    enum { N = 3000 };
    static uint32_t id[N];
    char name[32];
    for (int i = 0; i < N; i++) {
        int n = snprintf(name, sizeof name, "word-%d", i);
        struct str s = {name, (size_t)n};
        bool first = dict_take(words, s, &id[i]);
        assert_true(first || dict_take(words, s, &id[i]));
    }
    assert_int_equal(dict_count(words), N);
    for (int i = 0; i < N; i += 2)
        dict_drop(words, id[i]);
    for (int i = 1; i < N; i += 2) {
        snprintf(name, sizeof name, "word-%d", i);
        assert_string_equal(dict_text(words, id[i]), name);
    }
    assert_int_equal(dict_count(words), N / 2);
    for (int i = 1; i < N; i += 2)
        dict_drop(words, id[i]);
    dict_free(words);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_record_opens_to_what_it_was_made_of),
        cmocka_unit_test(strings_that_come_again_are_kept_once),
        cmocka_unit_test(many_words_find_their_place_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
