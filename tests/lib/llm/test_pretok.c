/* The scanners of known patterns give the words that PCRE2 gives. */
#include "lib/base/clock.h"
#include "lib/llm/pretok.h"
#include "lib/llm/utf8.h"
#include "tests/lib/llm/strings.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

static struct tables tables;

static int put_length(void *out, struct str word)
{
    return buf_printf(out, "%zu ", word.n);
}

static void words(struct pretok *p, const struct pretok_scratch *s, bool slow, struct str text,
                  struct buf *out)
{
    buf_reset(out);
    p->slow = slow;
    assert_int_equal(pretok_run(p, s, text, put_length, out), 0);
}

struct both {
    struct pretok p;
    struct pretok_scratch s;
    struct buf fast, slow;
};

static void both_init(struct both *b, const char *pattern, bool digits)
{
    *b = (struct both){0};
    if (digits)
        assert_int_equal(pretok_add_digits(&b->p, true, NULL), 0);
    assert_int_equal(pretok_add_regex(&b->p, str_c(pattern), PRETOK_ISOLATED, false, NULL), 0);
    assert_int_not_equal(b->p.stage[digits].known, PRETOK_UNKNOWN);
    assert_int_equal(pretok_scratch_init(&b->s, &b->p), 0);
    buf_init(&b->fast, 16 << 20);
    buf_init(&b->slow, 16 << 20);
}

static void both_fini(struct both *b)
{
    pretok_scratch_fini(&b->s);
    pretok_fini(&b->p);
    buf_fini(&b->fast);
    buf_fini(&b->slow);
}

static void check(struct both *b, struct str text, const char *what, uint64_t i)
{
    if (!text.n)
        return;
    words(&b->p, &b->s, false, text, &b->fast);
    words(&b->p, &b->s, true, text, &b->slow);
    if (!str_eq(buf_view(&b->fast), buf_view(&b->slow)))
        fail_msg("%s %llu (seed %u): \"%.*s\" is cut as %s, not as %s", what, (unsigned long long)i,
                 GOLDEN_SEED, (int)text.n, text.p, b->fast.data, b->slow.data);
}

/* Short strings over what the patterns tell apart: every neighbourhood comes up. */
static void draw(struct rng *r, struct buf *out)
{
    static const char *const piece[] = {
        " ",
        " ",
        "  ",
        "\n",
        "\r\n",
        "\t",
        "\xc2\xa0" /* no-break space */,
        "\xe2\x80\xa8",
        "a",
        "Z",
        "s",
        "S",
        "t",
        "re",
        "VE",
        "lL",
        "m",
        "d",
        "'",
        "'",
        "\xe2\x80\x99",
        "0",
        "12",
        "345",
        "\xc2\xb2",
        "\xe2\x85\xa3",
        "\xe4\xb8\x80",
        "\xd9\xa3",
        ".",
        "-",
        "_",
        "/",
        "\x1c",
        "\x01",
        "\xc3\xa9",
        "\xd1\x8f",
        "\xcc\x81" /* combining acute */,
        "\xe2\x82\xac",
        "\xef\xac\x81",
        "\xc5\xbf" /* long s */,
        "\xe2\x84\xaa" /* kelvin */,
        "\xc2\x85",
        "\xf0\x9f\x98\x80" /* past the BMP: emoji, letter, number */,
        "\xf0\x90\x90\x80",
        "\xf0\x9d\x9f\x98",
        "\xf0\x90\x8f\x91",
        "\xf3\xa0\x84\x80",
        "\xea\x9f\x8b",
        "\xef\xbb\xbf"};
    buf_reset(out);
    for (uint64_t n = 1 + rng_below(r, 9); n; n--) {
        if (rng_below(r, 16) == 0)
            put_code_point(out, (uint32_t)rng_below(r, 0x30000));
        else
            put_cstr(out, piece[rng_below(r, sizeof piece / sizeof *piece)]);
    }
    if (rng_below(r, 2)) /* the scanner for letters wants 17 bytes */
        put_cstr(out, "abcdefghijklmnopq rs");
}

static void the_words_are_those_of_the_pattern(void **state)
{
    (void)state;
    const char *const pattern[] = {pretok_gpt2, pretok_llama3, pretok_qwen2};
    struct rng r = {GOLDEN_SEED};
    struct buf text, repaired;
    buf_init(&text, 1 << 20);
    buf_init(&repaired, 4 << 20);
    for (size_t k = 0; k < 6; k++) {
        struct both b;
        both_init(&b, pattern[k % 3], k >= 3);
        for (uint64_t i = 0; i < 60000; i++) {
            draw(&r, &text);
            check(&b, buf_view(&text), "drawn string", i);
        }
        for (uint64_t i = 0; i < 3000; i++) {
            string_at(&tables, i, &text);
            buf_reset(&repaired);
            assert_int_equal(utf8_repair(buf_view(&text), &repaired), 0);
            check(&b, buf_view(&repaired), "string", i);
        }
        both_fini(&b);
    }
    buf_fini(&text);
    buf_fini(&repaired);
}

/* Each character between others of each class. */
static void every_character_is_in_its_class(void **state)
{
    (void)state;
    struct both b;
    struct buf text;
    buf_init(&text, 1 << 20);
    both_init(&b, pretok_llama3, false);
    for (uint32_t cp = 1; cp < 0x30000; cp++) {
        if (cp >= 0xd800 && cp <= 0xdfff)
            continue;
        buf_reset(&text);
        put_cstr(&text, "a");
        put_code_point(&text, cp);
        put_cstr(&text, " ");
        put_code_point(&text, cp);
        put_cstr(&text, "b 1");
        put_code_point(&text, cp);
        check(&b, buf_view(&text), "code point", cp);
    }
    both_fini(&b);
    buf_fini(&text);
}

static uint64_t time_of(struct both *b, struct buf *text, int n)
{
    buf_reset(text);
    for (int i = 0; i < n; i++)
        put_cstr(text, "\xf0\x9f\x98\x80 ");
    uint64_t begin = clock_thread_cpu_ns();
    words(&b->p, &b->s, false, buf_view(text), &b->fast);
    return clock_thread_cpu_ns() - begin;
}

/* Each word is left to PCRE2, and the next number, which it may not look past, is never found. */
static void emoji_take_time_in_proportion(void **state)
{
    (void)state;
    struct both b;
    struct buf text;
    buf_init(&text, 8 << 20);
    both_init(&b, pretok_gpt2, true);
    uint64_t few = time_of(&b, &text, 10000), many = time_of(&b, &text, 200000);
    assert_true(many < 100 * few + 100 * NS_PER_MS);
    both_fini(&b);
    buf_fini(&text);
}

int main(void)
{
    tables_open(&tables);
    if (!tables.all)
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_words_are_those_of_the_pattern),
        cmocka_unit_test(every_character_is_in_its_class),
        cmocka_unit_test(emoji_take_time_in_proportion),
    };
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    json_decref(tables.all);
    return rc;
}
