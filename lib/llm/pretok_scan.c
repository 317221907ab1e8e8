#include "lib/llm/pretok_scan.h"

#include "lib/base/buf.h"
#include "lib/llm/utf8.h"

#include <pthread.h>

#define BMP 0x10000u

/* Of a character. NUMBER and what Digits takes are the same set, or the character is UNSURE. */
enum { OTHER, LETTER, NUMBER, SPACE, UNSURE, END };

static uint8_t classes[BMP];
static bool have_classes;

/* ---- the table: asked of PCRE2, so that both mean the same ---- */

static int mark(void *class, struct str word)
{
    uint32_t cp;
    for (size_t i = 0; i < word.n;) {
        i += utf8_next(word.p + i, word.n - i, &cp);
        classes[cp] = *(uint8_t *)class;
    }
    return 0;
}

static int mark_all(const char *pattern, uint8_t class, struct str text)
{
    struct pretok p = {0};
    struct pretok_scratch s;
    int rc = pretok_add_regex(&p, str_c(pattern), PRETOK_REMOVED, true, NULL);
    if (!rc && !(rc = pretok_scratch_init(&s, &p))) {
        rc = pretok_run(&p, &s, text, mark, &class);
        pretok_scratch_fini(&s);
    }
    pretok_fini(&p);
    return rc;
}

static void make_classes(void)
{
    struct buf text;
    char u[4];
    buf_init(&text, 4 * BMP);
    int rc = 0;
    for (uint32_t cp = 0; cp < BMP && !rc; cp++)
        if (cp < 0xd800 || cp > 0xdfff)
            rc = buf_append(&text, u, utf8_encode(cp, u));
    rc = rc ? rc : mark_all("\\p{L}+", LETTER, buf_view(&text));
    rc = rc ? rc : mark_all("\\p{N}+", NUMBER, buf_view(&text));
    rc = rc ? rc : mark_all("\\s+", SPACE, buf_view(&text));
    buf_fini(&text);
    for (uint32_t cp = 0; cp < BMP; cp++)
        if (utf8_is_numeric(cp) != (classes[cp] == NUMBER))
            classes[cp] = UNSURE;
    have_classes = rc == 0;
}

bool pretok_scan_init(struct pretok_scan *s, enum pretok_known known, bool digits, struct str text)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_classes);
    *s = (struct pretok_scan){.text = text, .known = known, .digits = digits, .class = classes};
    return have_classes;
}

/* ---- characters; the text is valid UTF-8 ---- */

static inline unsigned char byte(const struct pretok_scan *s, size_t i)
{
    return i < s->text.n ? (unsigned char)s->text.p[i] : 0;
}

static inline unsigned class_at(const struct pretok_scan *s, size_t i, size_t *bytes)
{
    *bytes = 0;
    if (i >= s->text.n)
        return END;
    const unsigned char *p = (const unsigned char *)s->text.p + i;
    uint32_t cp = p[0];
    *bytes = 1;
    if (cp >= 0xf0)
        return UNSURE;
    if (cp >= 0xe0) {
        cp = (cp & 0x0fu) << 12 | (p[1] & 0x3fu) << 6 | (p[2] & 0x3fu);
        *bytes = 3;
    } else if (cp >= 0x80) {
        cp = (cp & 0x1fu) << 6 | (p[1] & 0x3fu);
        *bytes = 2;
    }
    return s->class[cp];
}

/* The same for what follows: where numbers stand alone, the text ends before one. */
static inline unsigned next_class(const struct pretok_scan *s, size_t i, size_t *bytes)
{
    unsigned c = class_at(s, i, bytes);
    return c == NUMBER && s->digits ? END : c;
}

/* The end of the characters of one class from i on, where one is. */
static inline size_t run_of(const struct pretok_scan *s, size_t i, unsigned want)
{
    const unsigned char *p = (const unsigned char *)s->text.p;
    size_t k = 0;
    unsigned c;
    do {
        i += k;
        while (i < s->text.n && p[i] < 0x80 && s->class[p[i]] == want)
            i++;
        c = class_at(s, i, &k);
    } while (c == want);
    return c == UNSURE ? SCAN_UNDECIDED : i;
}

static inline bool is_newline(unsigned char c)
{
    return c == '\r' || c == '\n';
}

/* \s+(?!\S)|\s+ */
static size_t spaces_end(const struct pretok_scan *s, size_t at, size_t end)
{
    size_t k, last = end - 1;
    if (next_class(s, end, &k) == END)
        return end;
    while (((unsigned char)s->text.p[last] & 0xc0) == 0x80)
        last--;
    return last > at ? last : end;
}

/* 's 't 're 've 'm 'll 'd at an apostrophe: bytes, or 0. */
static size_t contraction(const struct pretok_scan *s, size_t at, unsigned char fold)
{
    unsigned char a = byte(s, at + 1) | fold, b = byte(s, at + 2) | fold;
    if (at + 1 < s->text.n && (a == 's' || a == 't' || a == 'm' || a == 'd'))
        return 2;
    bool two = ((a == 'r' || a == 'v') && b == 'e') || (a == 'l' && b == 'l');
    return two && at + 2 < s->text.n ? 3 : 0;
}

/* ---- the patterns ---- */

static size_t gpt2_word(const struct pretok_scan *s, size_t at)
{
    size_t k, from = at;
    unsigned char c = byte(s, at);
    if (c == '\'' && (k = contraction(s, at, 0)))
        return at + k;
    unsigned class = class_at(s, at, &k);
    if (c == ' ') {
        unsigned second = next_class(s, at + 1, &k);
        if (second == UNSURE)
            return SCAN_UNDECIDED;
        if (second != SPACE && second != END) {
            class = second;
            from = at + 1;
        }
    }
    size_t end = class == UNSURE ? SCAN_UNDECIDED : run_of(s, from, class);
    return end && class == SPACE ? spaces_end(s, at, end) : end;
}

static size_t numbers_end(const struct pretok_scan *s, size_t at, unsigned most)
{
    size_t k = 0;
    unsigned n = 0, c = NUMBER;
    for (; n < most && (c = class_at(s, at, &k)) == NUMBER; n++)
        at += k;
    return c == UNSURE ? SCAN_UNDECIDED : at;
}

static size_t white_word(const struct pretok_scan *s, size_t at)
{
    size_t end = run_of(s, at, SPACE), newline = end;
    while (newline > at && !is_newline((unsigned char)s->text.p[newline - 1]))
        newline--;
    return newline > at || !end ? newline : spaces_end(s, at, end);
}

/* Llama 3's, and Qwen2's, which takes one number at a time. */
static size_t llama3_word(const struct pretok_scan *s, size_t at, unsigned numbers)
{
    size_t k, k2, from = at;
    unsigned char c = byte(s, at);
    if (c == '\'' && byte(s, at + 1) >= 0x80)
        return SCAN_UNDECIDED; /* a long s is an s to PCRE2 */
    if (c == '\'' && (k = contraction(s, at, 0x20)))
        return at + k;
    unsigned class = class_at(s, at, &k);
    if (class == UNSURE)
        return SCAN_UNDECIDED;
    if (class == LETTER)
        return run_of(s, at, LETTER);
    if (class == NUMBER)
        return numbers_end(s, at, numbers);
    unsigned second = next_class(s, at + k, &k2);
    if (second == UNSURE)
        return SCAN_UNDECIDED;
    if (second == LETTER && !is_newline(c))
        return run_of(s, at + k, LETTER);
    if (second == OTHER && c == ' ') {
        class = OTHER;
        from = at + 1;
    }
    if (class == SPACE)
        return white_word(s, at);
    size_t end = run_of(s, from, OTHER);
    while (end && is_newline(byte(s, end)))
        end++;
    return end;
}

size_t pretok_scan_word(const struct pretok_scan *s, size_t at)
{
    size_t k;
    if (s->digits && class_at(s, at, &k) == NUMBER)
        return at + k;
    switch (s->known) {
    case PRETOK_GPT2: return gpt2_word(s, at);
    case PRETOK_LLAMA3: return llama3_word(s, at, 3);
    case PRETOK_QWEN2: return llama3_word(s, at, 1);
    case PRETOK_UNKNOWN: break;
    }
    return SCAN_UNDECIDED;
}
