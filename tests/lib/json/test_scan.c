/* The pull scanner against jansson on generated and damaged texts, and its own rules. */
#include "lib/json/json.h"
#include "lib/json/scan.h"

#include "lib/base/rng.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <cmocka.h>

#define SEED 20261130u

/* ---- a value read with the scanner, as jansson's tree ---- */

static json_t *value(struct scan *s, const struct scan_tok *t, struct arena *a);

static json_t *string_value(const struct scan_tok *t, struct arena *a)
{
    struct str text;
    assert_int_equal(scan_text(t, a, &text), 0);
    return json_stringn(text.p, text.n);
}

static json_t *number_value(const struct scan_tok *t)
{
    bool real = memchr(t->text.p, '.', t->text.n) || memchr(t->text.p, 'e', t->text.n) ||
                memchr(t->text.p, 'E', t->text.n);
    int64_t i;
    double f = 0;
    if (!real && scan_i64(t, INT64_MIN, INT64_MAX, &i) == 0)
        return json_integer(i);
    char z[64];
    snprintf(z, sizeof z, "%.*s", STR_ARG(t->text));
    f = strtod(z, NULL);
    return json_real(isfinite(f) ? f : 0); /* jansson refuses such a text anyway */
}

static json_t *container_value(struct scan *s, const struct scan_tok *t, struct arena *a)
{
    json_t *o = t->kind == SCAN_OBJECT ? json_object() : json_array();
    struct scan_tok k = {0}, v;
    int rc;
    while ((rc = t->kind == SCAN_OBJECT ? scan_member(s, &k, &v) : scan_element(s, &v)) > 0) {
        struct str key = STR("");
        if (t->kind == SCAN_OBJECT)
            assert_int_equal(scan_text(&k, a, &key), 0);
        json_t *item = value(s, &v, a);
        if (!item)
            break;
        assert_int_equal(t->kind == SCAN_OBJECT ? json_object_setn_new(o, key.p, key.n, item)
                                                : json_array_append_new(o, item),
                         0);
    }
    if (s->why) {
        json_decref(o);
        return NULL;
    }
    return o;
}

static json_t *value(struct scan *s, const struct scan_tok *t, struct arena *a)
{
    switch (t->kind) {
    case SCAN_STRING: return string_value(t, a);
    case SCAN_NUMBER: return number_value(t);
    case SCAN_TRUE: return json_true();
    case SCAN_FALSE: return json_false();
    case SCAN_NULL: return json_null();
    default: return container_value(s, t, a);
    }
}

static json_t *scan_all(struct str text, struct err *e)
{
    struct scan s;
    struct scan_tok t;
    struct arena a;
    arena_init(&a, 1 << 24);
    scan_init(&s, text, 0);
    json_t *o = scan_next(&s, &t) ? NULL : value(&s, &t, &a);
    if (o && scan_next(&s, &t)) {
        json_decref(o);
        o = NULL;
    }
    assert_true(!o == !!s.why);
    if (!o)
        scan_why(&s, e);
    scan_fini(&s);
    arena_fini(&a);
    return o;
}

/* What jansson alone refuses: numbers past 64 bits or a double, whose bounds are up to the
 * scanner's users, and keys with a NUL, which only its C strings can't hold. */
static bool jansson_only(const char *jansson_says)
{
    return strstr(jansson_says, "too big") || strstr(jansson_says, "overflow") ||
           strstr(jansson_says, "NUL byte");
}

static void check_against_jansson(struct str text, uint64_t round)
{
    json_error_t je;
    struct err e = {0};
    json_t *want =
        json_loadb(text.p, text.n, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL, &je);
    json_t *got = scan_all(text, &e);
    if (!want && jansson_only(je.text)) {
        json_decref(got);
        return;
    }
    if (!want != !got || (want && !json_equal(want, got)))
        fail_msg("seed %u round %llu: jansson %s (%s), scanner %s (%s): %.*s", SEED,
                 (unsigned long long)round, want ? "accepts" : "refuses", want ? "" : je.text,
                 got ? "accepts" : "refuses", e.msg, STR_ARG(text));
    json_decref(want);
    json_decref(got);
}

/* ---- generated texts ---- */

static void put(struct buf *b, const char *s)
{
    assert_int_equal(buf_cstr(b, s), 0);
}

static void put_space(struct buf *b, struct rng *r)
{
    static const char *const s[] = {"", "", "", " ", "\n", "\t ", "\r\n"};
    put(b, s[rng_below(r, 7)]);
}

static void put_string(struct buf *b, struct rng *r)
{
    static const char *const s[] = {"a",       "b",       "key",
                                    "\\n",     "\\u0041", "\\ud83d\\ude00",
                                    "é",       "😀",       "\\\\",
                                    "\\\"",    "\\/",     "\\u0000",
                                    " ",       "0",       "aaaaaaaaaaaaaaaaaaaa",
                                    "\\u00e9", "\x7f"};
    put(b, "\"");
    for (uint64_t n = rng_below(r, 4); n; n--)
        put(b, s[rng_below(r, sizeof s / sizeof *s)]);
    put(b, "\"");
}

static void put_value(struct buf *b, struct rng *r, int depth)
{
    static const char *const plain[] = {"true",
                                        "false",
                                        "null",
                                        "0",
                                        "-0",
                                        "1",
                                        "-12",
                                        "3.25",
                                        "1e3",
                                        "1E-2",
                                        "-0.5e+10",
                                        "9223372036854775807",
                                        "-9223372036854775808",
                                        "12345678901234567890",
                                        "1e400"};
    uint64_t kind = rng_below(r, depth > 5 ? 2 : 4);
    put_space(b, r);
    if (kind == 0)
        put(b, plain[rng_below(r, sizeof plain / sizeof *plain)]);
    else if (kind == 1)
        put_string(b, r);
    else {
        uint64_t n = rng_below(r, 5);
        put(b, kind == 2 ? "[" : "{");
        for (uint64_t i = 0; i < n; i++) {
            if (i)
                put(b, ",");
            put_space(b, r);
            if (kind == 3) {
                put_string(b, r);
                put_space(b, r);
                put(b, ":");
            }
            put_value(b, r, depth + 1);
        }
        put_space(b, r);
        put(b, kind == 2 ? "]" : "}");
    }
    put_space(b, r);
}

static void damage(struct buf *b, struct rng *r)
{
    static const char bytes[] = "{}[],:\"\\0123456789.eE+-tfnu \n\x01\x80\xc3\xed\xf0\xff";
    for (uint64_t n = rng_below(r, 3); n && b->n; n--) {
        size_t at = (size_t)rng_below(r, b->n);
        switch (rng_below(r, 3)) {
        case 0: b->data[at] = bytes[rng_below(r, sizeof bytes - 1)]; break;
        case 1:
            memmove(b->data + at, b->data + at + 1, b->n - at);
            b->n--;
            break;
        default: b->n = at; break;
        }
    }
}

static void it_agrees_with_jansson_on_generated_and_damaged_texts(void **state)
{
    (void)state;
    struct rng r = {SEED};
    struct buf b;
    buf_init(&b, 1 << 20);
    for (uint64_t round = 0; round < 30000; round++) {
        buf_reset(&b);
        put_value(&b, &r, 0);
        if (round % 2)
            damage(&b, &r);
        check_against_jansson(buf_view(&b), round);
    }
    buf_fini(&b);
}

static void it_agrees_with_jansson_on_known_hard_cases(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "",
        " ",
        "nul",
        "truex",
        "[1,]",
        "[,1]",
        "{\"a\":1,}",
        "{\"a\" 1}",
        "{a:1}",
        "{1:2}",
        "01",
        "-",
        "+1",
        ".5",
        "1.",
        "1e",
        "1e+",
        "0x1",
        "\"\\x\"",
        "\"\\u12\"",
        "\"\\ud800\"",
        "\"\\udc00\"",
        "\"\\ud800\\u0041\"",
        "\"\t\"",
        "\"\\u00zz\"",
        "\"abc",
        "[1",
        "{\"a\":",
        "[1] x",
        "[] []",
        "{\"a\":1,\"a\":2}",
        "{\"a\":1,\"\\u0061\":2}",
        "{\"a\":{\"a\":1},\"b\":{\"a\":1}}",
        "{\"\":1,\"\":2}",
        "\xef\xbb\xbf{}",
        "'a'",
        "NaN",
        "[Infinity]",
        "1 2",
        "\"\xc3\"",
        "\"\xc0\x80\"",
        "\"\xed\xa0\x80\"",
        "\"\xf4\x90\x80\x80\"",
        "{\"\xff\":1}",
        "[1e1000]",
        "/* c */ 1",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        check_against_jansson(str_c(texts[i]), i);
}

static void nesting_is_bounded(void **state)
{
    (void)state;
    struct err e = {0};
    char deep[400];
    memset(deep, '[', 200);
    memset(deep + 200, ']', 200);
    assert_null(scan_all((struct str){deep, 400}, &e));
    assert_non_null(strstr(e.msg, "too deep"));
    json_t *ok = scan_all((struct str){deep + 100, 200}, &e);
    assert_non_null(ok);
    json_decref(ok);
}

static void numbers_are_bounded_by_who_reads_them(void **state)
{
    (void)state;
    struct scan s;
    struct scan_tok t;
    int64_t i = 7;
    double f = 7;
    static const struct {
        const char *text;
        int rc;
        int64_t want;
    } cases[] = {{"5", 0, 5},
                 {"5.0", 0, 5},
                 {"5e0", 0, 5},
                 {"5.5", -EINVAL, 7},
                 {"101", -ERANGE, 7},
                 {"-1", -ERANGE, 7},
                 {"99999999999999999999", -ERANGE, 7},
                 {"1e300", -ERANGE, 7},
                 {"true", -EINVAL, 7},
                 {"\"5\"", -EINVAL, 7}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        i = 7;
        scan_init(&s, str_c(cases[k].text), 0);
        assert_int_equal(scan_next(&s, &t), 0);
        assert_int_equal(scan_i64(&t, 0, 100, &i), cases[k].rc);
        assert_int_equal(i, cases[k].want);
        scan_fini(&s);
    }
    scan_init(&s, STR("0.25"), 0);
    assert_int_equal(scan_next(&s, &t), 0);
    assert_int_equal(scan_f64(&t, 0, 0.2, &f), -ERANGE);
    assert_int_equal(scan_f64(&t, 0, 1, &f), 0);
    assert_true(f == 0.25);
    scan_fini(&s);
}

static void a_skipped_value_gives_its_text(void **state)
{
    (void)state;
    struct scan s;
    struct scan_tok k, v;
    struct str raw;
    scan_init(&s, STR("{ \"a\" : {\"x\": [1, {}]} , \"b\":2}"), 0);
    assert_int_equal(scan_next(&s, &v), 0);
    assert_int_equal(scan_member(&s, &k, &v), 1);
    assert_int_equal(scan_skip(&s, &v, &raw), 0);
    assert_true(str_eq_c(raw, "{\"x\": [1, {}]}"));
    assert_int_equal(scan_member(&s, &k, &v), 1);
    assert_true(scan_text_is(&k, "b"));
    assert_int_equal(scan_skip(&s, &v, &raw), 0);
    assert_true(str_eq_c(raw, "2"));
    assert_int_equal(scan_member(&s, &k, &v), 0);
    scan_fini(&s);
}

static void a_fault_is_told_by_line_and_column(void **state)
{
    (void)state;
    struct err e = {0};
    assert_null(scan_all(STR("{\n \"a\": 1,\n \"a\": 2}"), &e));
    assert_string_equal(e.msg, "line 3 column 2: an object has the same key twice");
}

static void a_failed_scanner_stays_failed(void **state)
{
    (void)state;
    struct scan s;
    struct scan_tok t;
    scan_init(&s, STR("[x]"), 0);
    assert_int_equal(scan_next(&s, &t), 0);
    assert_int_equal(scan_next(&s, &t), -EINVAL);
    assert_int_equal(scan_next(&s, &t), -EINVAL);
    scan_fini(&s);
}

static void many_keys_are_fast_and_doubles_among_them_found(void **state)
{
    (void)state;
    struct buf b;
    struct err e = {0};
    struct scan s;
    struct scan_tok t;
    buf_init(&b, 1 << 24);
    put(&b, "{");
    for (int i = 0; i < 200000; i++)
        assert_int_equal(buf_printf(&b, "\"k%d\":{\"k%d\":1},", i, i), 0);
    put(&b, "\"k777\":1}");
    scan_init(&s, buf_view(&b), 0);
    while (scan_next(&s, &t) == 0 && t.kind != SCAN_END)
        ;
    scan_why(&s, &e);
    assert_non_null(strstr(e.msg, "same key twice"));
    scan_fini(&s);
    buf_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_agrees_with_jansson_on_generated_and_damaged_texts),
        cmocka_unit_test(it_agrees_with_jansson_on_known_hard_cases),
        cmocka_unit_test(nesting_is_bounded),
        cmocka_unit_test(numbers_are_bounded_by_who_reads_them),
        cmocka_unit_test(a_skipped_value_gives_its_text),
        cmocka_unit_test(a_fault_is_told_by_line_and_column),
        cmocka_unit_test(a_failed_scanner_stays_failed),
        cmocka_unit_test(many_keys_are_fast_and_doubles_among_them_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
