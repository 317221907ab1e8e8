/* Template text to tokens, with Jinja2's white space rules: trim_blocks and lstrip_blocks on, '-'
 * and '+' signs, one newline at the end dropped, "\r\n" read as "\n". Source: jinja2/lexer.py
 * (behaviour). */
#include "lib/llm/jinja.h"
#include "lib/llm/utf8.h"

#include <errno.h>
#include <stdlib.h>

struct lex {
    struct arena *a;
    struct str src;
    size_t at;
    uint32_t line;
    bool line_starting; /* the last thing read ended a line */
    struct toks *out;
    struct err *e;
};

static int add(struct lex *x, struct tok t)
{
    struct toks *o = x->out;
    if (o->n == o->cap) {
        size_t cap = o->cap ? o->cap * 2 : 256;
        struct tok *v = arena_alloc(x->a, cap * sizeof *v);
        if (!v)
            return err_set(x->e, E2BIG, "the chat template is too large");
        if (o->n)
            memcpy(v, o->v, o->n * sizeof *v);
        o->v = v;
        o->cap = cap;
    }
    if (!t.line)
        t.line = x->line;
    o->v[o->n++] = t;
    return 0;
}

static int fail(struct lex *x, const char *what)
{
    return err_set(x->e, EINVAL, "chat template line %u: %s", x->line, what);
}

static bool here(const struct lex *x, size_t at, const char *s)
{
    size_t n = strlen(s);
    return x->src.n - at >= n && memcmp(x->src.p + at, s, n) == 0;
}

static void advance(struct lex *x, size_t to)
{
    for (; x->at < to; x->at++)
        x->line += x->src.p[x->at] == '\n';
}

static size_t skip_space(const struct lex *x, size_t at)
{
    uint32_t cp;
    while (at < x->src.n) {
        size_t k = utf8_next(x->src.p + at, x->src.n - at, &cp);
        if (!utf8_is_space(cp) && !(cp >= 0x1c && cp <= 0x1f))
            break;
        at += k;
    }
    return at;
}

static size_t rstrip_len(const char *p, size_t n)
{
    while (n) {
        size_t k = n - 1;
        while (k > 0 && ((unsigned char)p[k] & 0xc0) == 0x80)
            k--;
        uint32_t cp;
        utf8_next(p + k, n - k, &cp);
        if (!utf8_is_space(cp) && !(cp >= 0x1c && cp <= 0x1f))
            break;
        n = k;
    }
    return n;
}

/* Text before a tag: '-' strips it all, lstrip_blocks strips what stands before a block tag on its
 * line. */
static size_t text_before_tag(const struct lex *x, size_t end, char sign, bool variable)
{
    size_t n = end - x->at;
    const char *p = x->src.p + x->at;
    if (sign == '-')
        return rstrip_len(p, n);
    if (sign == '+' || variable)
        return n;
    size_t line = n;
    while (line > 0 && p[line - 1] != '\n')
        line--;
    if (line == 0 && !x->line_starting)
        return n;
    return rstrip_len(p + line, n - line) == 0 ? line : n;
}

static int emit_text(struct lex *x, size_t n)
{
    return n ? add(x, (struct tok){.kind = T_TEXT, .s = {x->src.p + x->at, n}}) : 0;
}

/* Past a tag's end at `at` (which is "-%}", "+%}" or "%}"): what white space it takes with it. 0:
 * no end here. */
static size_t tag_end(const struct lex *x, size_t at, const char *close, bool trims)
{
    char sign = x->src.p[at];
    if ((sign == '-' || sign == '+') && here(x, at + 1, close))
        return sign == '-' ? skip_space(x, at + 3) : at + 3;
    if (!here(x, at, close))
        return 0;
    return at + 2 + (trims && at + 2 < x->src.n && x->src.p[at + 2] == '\n');
}

static void end_tag(struct lex *x, size_t to)
{
    advance(x, to);
    x->line_starting = to > 0 && x->src.p[to - 1] == '\n';
}

static int lex_comment(struct lex *x)
{
    for (size_t i = x->at; i < x->src.n; i++) {
        size_t end = tag_end(x, i, "#}", true);
        if (end) {
            end_tag(x, end);
            return 0;
        }
    }
    return fail(x, "a comment is not closed");
}

/* ---- inside tags ---- */

static size_t digits_end(const struct lex *x, size_t i)
{
    while (i < x->src.n && ((x->src.p[i] >= '0' && x->src.p[i] <= '9') || x->src.p[i] == '_'))
        i++;
    return i;
}

static int lex_number(struct lex *x)
{
    size_t i = digits_end(x, x->at), n = 0;
    bool real = false;
    if (i + 1 < x->src.n && x->src.p[i] == '.' && x->src.p[i + 1] >= '0' &&
        x->src.p[i + 1] <= '9') {
        real = true;
        i = digits_end(x, i + 1);
    }
    if (i < x->src.n && (x->src.p[i] == 'e' || x->src.p[i] == 'E')) {
        size_t k = i + 1 + (i + 1 < x->src.n && (x->src.p[i + 1] == '+' || x->src.p[i + 1] == '-'));
        if (digits_end(x, k) > k) {
            real = true;
            i = digits_end(x, k);
        }
    }
    char text[64];
    for (size_t k = x->at; k < i; k++)
        if (x->src.p[k] != '_' && n + 1 < sizeof text)
            text[n++] = x->src.p[k];
    text[n] = 0;
    struct tok t = {.kind = real ? T_FLOAT : T_INT, .s = {x->src.p + x->at, i - x->at}};
    t.f = strtod(text, NULL);
    if (!real && str_to_i64((struct str){text, n}, 0, INT64_MAX, &t.i))
        return fail(x, "a number is too large");
    x->at = i;
    return add(x, t);
}

static int hex_digits(const char *p, size_t n, uint32_t *out)
{
    uint32_t v = 0;
    for (size_t i = 0; i < n; i++) {
        char c = p[i];
        int d = c >= '0' && c <= '9'                 ? c - '0'
                : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10
                                                     : -1;
        if (d < 0)
            return -EINVAL;
        v = v << 4 | (uint32_t)d;
    }
    *out = v;
    return 0;
}

/* One escape at p (p[0] is '\\'); Python's rules, an unknown escape stays as it is. Returns what it
 * used. */
static size_t unescape(const char *p, size_t n, char *out, size_t *n_out)
{
    static const char from[] = "nrtabfv\\'\"0", to[] = "\n\r\t\a\b\f\v\\'\"\0";
    const char *hit = n > 1 && p[1] ? strchr(from, p[1]) : NULL;
    uint32_t cp;
    *n_out = 0;
    if (n > 1 && p[1] == '\n')
        return 2;
    if (hit) {
        out[(*n_out)++] = to[hit - from];
        return 2;
    }
    size_t digits = n > 1 ? p[1] == 'x' ? 2 : p[1] == 'u' ? 4 : p[1] == 'U' ? 8 : 0 : 0;
    if (digits && n >= 2 + digits && !hex_digits(p + 2, digits, &cp)) {
        *n_out = utf8_encode(cp, out);
        return 2 + digits;
    }
    out[(*n_out)++] = '\\';
    return 1;
}

static int lex_string(struct lex *x)
{
    char quote = x->src.p[x->at];
    size_t i = x->at + 1, n = 0, k;
    while (i < x->src.n && x->src.p[i] != quote)
        i += x->src.p[i] == '\\' ? 2 : 1;
    if (i >= x->src.n)
        return fail(x, "a string is not closed");
    char *text = arena_alloc(x->a, i - x->at + 4);
    if (!text)
        return err_set(x->e, E2BIG, "the chat template is too large");
    for (size_t j = x->at + 1; j < i;) {
        if (x->src.p[j] != '\\') {
            text[n++] = x->src.p[j++];
            continue;
        }
        j += unescape(x->src.p + j, i - j, text + n, &k);
        n += k;
    }
    struct tok t = {.kind = T_STRING, .line = x->line, .s = {text, n}};
    advance(x, i + 1);
    return add(x, t);
}

static bool is_name(char c, bool first)
{
    return c == '_' || ((c | 32) >= 'a' && (c | 32) <= 'z') || (!first && c >= '0' && c <= '9') ||
           (unsigned char)c >= 0x80;
}

static int lex_operator(struct lex *x)
{
    static const char *const two[] = {"//", "**", "==", "!=", ">=", "<="};
    static const char one[] = "+-/*%~[](){}><=.:|,;";
    struct tok t = {.kind = T_OP, .s = {x->src.p + x->at, 1}};
    for (size_t i = 0; i < sizeof two / sizeof *two; i++)
        if (here(x, x->at, two[i]))
            t.s.n = 2;
    if (t.s.n == 1 && !memchr(one, x->src.p[x->at], sizeof one - 1))
        return fail(x, "an unexpected character in a tag");
    x->at += t.s.n;
    return add(x, t);
}

static int lex_token(struct lex *x)
{
    char c = x->src.p[x->at];
    if (c >= '0' && c <= '9')
        return lex_number(x);
    if (c == '"' || c == '\'')
        return lex_string(x);
    if (!is_name(c, true))
        return lex_operator(x);
    size_t i = x->at;
    while (i < x->src.n && is_name(x->src.p[i], i == x->at))
        i++;
    struct tok t = {.kind = T_NAME, .s = {x->src.p + x->at, i - x->at}};
    x->at = i;
    return add(x, t);
}

/* From the first token of a tag to past its end. Braces balance: "}}" of a dict inside {{ }} is no
 * end. */
static int lex_tag(struct lex *x, bool variable)
{
    const char *close = variable ? "}}" : "%}";
    int braces = 0;
    for (;;) {
        advance(x, skip_space(x, x->at));
        if (x->at >= x->src.n)
            return fail(x, "a tag is not closed");
        size_t end = braces > 0 ? 0 : tag_end(x, x->at, close, !variable);
        if (end) {
            int rc = add(x, (struct tok){.kind = variable ? T_VAR_END : T_BLOCK_END});
            end_tag(x, end);
            return rc;
        }
        char c = x->src.p[x->at];
        braces += (c == '{' || c == '[' || c == '(') - (c == '}' || c == ']' || c == ')');
        int rc = lex_token(x);
        if (rc)
            return rc;
    }
}

/* ---- raw blocks ---- */

static size_t word_tag(const struct lex *x, size_t at, const char *word, char *sign)
{
    *sign = 0;
    if (!here(x, at, "{%"))
        return 0;
    at += 2;
    if (at < x->src.n && (x->src.p[at] == '-' || x->src.p[at] == '+'))
        *sign = x->src.p[at++];
    at = skip_space(x, at);
    if (!here(x, at, word))
        return 0;
    at = skip_space(x, at + strlen(word));
    return at < x->src.n ? at : 0;
}

static int lex_raw(struct lex *x, size_t begin_end)
{
    char sign;
    advance(x, begin_end);
    x->line_starting = false;
    for (size_t i = x->at; i < x->src.n; i++) {
        size_t at = word_tag(x, i, "endraw", &sign);
        size_t end = at ? tag_end(x, at, "%}", true) : 0;
        if (!end)
            continue;
        int rc = emit_text(x, text_before_tag(x, i, sign, false));
        end_tag(x, end);
        return rc;
    }
    return fail(x, "a raw block is not closed");
}

/* ---- the whole ---- */

static size_t next_tag(const struct lex *x)
{
    for (size_t i = x->at; i + 1 < x->src.n; i++)
        if (x->src.p[i] == '{' &&
            (x->src.p[i + 1] == '{' || x->src.p[i + 1] == '%' || x->src.p[i + 1] == '#'))
            return i;
    return x->src.n;
}

static int lex_one(struct lex *x, size_t tag)
{
    char kind = x->src.p[tag + 1], sign = tag + 2 < x->src.n ? x->src.p[tag + 2] : 0, raw_sign;
    bool signed_tag = sign == '-' || sign == '+';
    int rc = emit_text(x, text_before_tag(x, tag, signed_tag ? sign : 0, kind == '{'));
    if (rc)
        return rc;
    size_t raw = word_tag(x, tag, "raw", &raw_sign);
    size_t raw_end = raw ? tag_end(x, raw, "%}", false) : 0;
    if (raw_end)
        return lex_raw(x, raw_end);
    advance(x, tag + 2 + signed_tag);
    if (kind == '#')
        return lex_comment(x);
    rc = add(x, (struct tok){.kind = kind == '{' ? T_VAR_BEGIN : T_BLOCK_BEGIN});
    return rc ? rc : lex_tag(x, kind == '{');
}

/* "\r\n" and "\r" become "\n"; one newline at the very end is dropped. */
static int normal_newlines(struct lex *x)
{
    char *p = arena_alloc(x->a, x->src.n + 1);
    size_t n = 0;
    if (!p)
        return err_set(x->e, E2BIG, "the chat template is too large");
    for (size_t i = 0; i < x->src.n; i++) {
        char c = x->src.p[i];
        if (c == '\r') {
            c = '\n';
            i += i + 1 < x->src.n && x->src.p[i + 1] == '\n';
        }
        p[n++] = c;
    }
    if (n && p[n - 1] == '\n')
        n--;
    p[n] = 0;
    x->src = (struct str){p, n};
    return 0;
}

int jinja_lex(struct arena *a, struct str source, struct toks *out, struct err *e)
{
    struct lex x = {.a = a, .src = source, .line = 1, .line_starting = true, .out = out, .e = e};
    int rc = normal_newlines(&x);
    while (!rc && x.at < x.src.n) {
        size_t tag = next_tag(&x);
        if (tag == x.src.n) {
            rc = emit_text(&x, x.src.n - x.at);
            break;
        }
        rc = lex_one(&x, tag);
    }
    return rc ? rc : add(&x, (struct tok){.kind = T_END});
}
