/* Text decoded without a tree against the tree's decoder, on generated objects, on objects with a
 * value of another kind in a random place, and on damaged text. */
#include "lib/json/view_scan.h"
#include "tests/lib/json/things.h"

static struct str text_of(const json_t *o, struct buf *b)
{
    buf_reset(b);
    assert_int_equal(json_write(o, false, b), 0);
    return buf_view(b);
}

/* Both decoders on the same text: the same object, or both refuse. */
static bool agree(struct str text, int round)
{
    struct err e = {0}, f = {0};
    struct arena a;
    char where[200] = "";
    void *scanned = NULL, *copy = NULL;
    arena_init(&a, 1u << 20);
    json_t *o = json_parse(text, 1u << 20, 0, &e);
    void *decoded = o ? view_decode(&thing_view, o, &e) : NULL;
    int rc = view_scan(&thing_view, text, &a, &scanned, &f);
    if ((rc == 0) != (decoded != NULL))
        fail_msg("seed %u, object %d: the tree says %s, the text %s\n%.*s", SEED, round,
                 decoded ? "yes" : e.msg, rc ? f.msg : "yes", STR_ARG(text));
    if (decoded) {
        copy = view_copy(&thing_view, scanned);
        if (view_diff(&thing_view, decoded, scanned, where, sizeof where) ||
            view_diff(&thing_view, decoded, copy, where, sizeof where))
            fail_msg("seed %u, object %d: %s differs\n%.*s", SEED, round, where, STR_ARG(text));
    } else {
        assert_true(f.msg[0]);
    }
    free(copy);
    free(decoded);
    json_decref(o);
    arena_fini(&a);
    return rc == 0;
}

static void text_gives_what_its_tree_gives(void **state)
{
    (void)state;
    struct rng r = {SEED};
    struct buf b;
    buf_init(&b, 1u << 20);
    for (int i = 0; i < 1000; i++) {
        json_t *o = thing(&r);
        json_object_set_new(o, "other", thing(&r)); /* what no table names */
        json_object_set_new(o, "a.raw", json_string("a key with a dot is no path"));
        assert_true(agree(text_of(o, &b), i));
        json_decref(o);
    }
    buf_fini(&b);
}

static json_t *any(struct rng *r)
{
    static const double reals[] = {0.5, 3, -2.5e10, 1e300};
    switch (rng_below(r, 9)) {
    case 0: return json_null();
    case 1: return json_boolean(rng_below(r, 2));
    case 2: return json_integer(whole(r));
    case 3: return json_real(reals[rng_below(r, 4)]);
    case 4: return json_string(rng_below(r, 2) ? "12" : "2026-01-01T00:00:00Z");
    case 5: return json_string("a\"b\\c\nd é 😀");
    case 6: return json_pack("[s,i]", "x", 1);
    case 7: return json_pack("{s:s, s:i}", "text", "x", "k", 7);
    default: return json_pack("[{s:s}]", "text", "x");
    }
}

static void a_value_of_another_kind_is_refused_by_both(void **state)
{
    (void)state;
    static const char *const places[] = {
        "text", "a",   "a.raw", "a.secret", "a.b",     "a.b.number",  "real",   "yes",  "quantity",
        "at",   "map", "map.x", "leaf",     "leaf.at", "leaf.number", "leaves", "texts"};
    struct rng r = {SEED};
    struct buf b;
    int refused = 0;
    buf_init(&b, 1u << 20);
    for (int i = 0; i < 3000; i++) {
        json_t *o = thing(&r);
        json_t *v = any(&r);
        if (json_put(o, places[rng_below(&r, sizeof places / sizeof *places)], v))
            continue;
        refused += !agree(text_of(o, &b), i);
        json_decref(o);
    }
    assert_in_range(refused, 500, 2900);
    buf_fini(&b);
}

static void damaged_text_is_refused_by_both(void **state)
{
    (void)state;
    static const char bytes[] = "{}[],:\"\\0e. tnf\x01\xc3";
    struct rng r = {SEED};
    struct buf b;
    buf_init(&b, 1u << 20);
    for (int i = 0; i < 3000; i++) {
        json_t *o = thing(&r);
        struct str t = text_of(o, &b);
        if (rng_below(&r, 4) == 0)
            t.n = (size_t)rng_below(&r, t.n);
        else
            b.data[rng_below(&r, t.n)] = bytes[rng_below(&r, sizeof bytes - 1)];
        (void)agree(t, i);
        json_decref(o);
    }
    buf_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_gives_what_its_tree_gives),
        cmocka_unit_test(a_value_of_another_kind_is_refused_by_both),
        cmocka_unit_test(damaged_text_is_refused_by_both),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
