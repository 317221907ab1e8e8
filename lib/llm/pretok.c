#include "lib/llm/pretok.h"

#include "lib/base/buf.h"
#include "lib/llm/pretok_scan.h"
#include "lib/llm/unicode_later.h"
#include "lib/llm/utf8.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <errno.h>
#include <pcre2.h>
#include <stdlib.h>

const char pretok_gpt2[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

#define SPACE_SET "\\t-\\r\\x{85}\\p{Z}"

/* "\p{L}" at p: its name and length, or 0. */
static size_t property_at(const char *p, size_t n, struct str *name)
{
    const char *end = n > 4 && p[0] == '\\' && (p[1] == 'p' || p[1] == 'P') && p[2] == '{'
                          ? memchr(p, '}', n)
                          : NULL;
    if (!end)
        return 0;
    *name = (struct str){p + 3, (size_t)(end - p) - 3};
    return (size_t)(end - p) + 1;
}

/* A property, with the characters that PCRE2's tables are too old for. */
static int spell_property(struct str whole, struct str name, bool in_set, struct buf *out)
{
    char z[16] = "";
    memcpy(z, name.p, name.n < sizeof z ? name.n : 0);
    const struct unicode_set *u = unicode_later_find(z);
    bool negated = whole.p[1] == 'P';
    if (!u || (negated && in_set))
        return buf_str(out, whole); /* a negated one inside a set has no plain spelling */
    int rc = in_set ? 0 : buf_cstr(out, negated ? "[^" : "[");
    if (!rc)
        rc = buf_printf(out, "\\p{%.*s}", STR_ARG(name));
    for (size_t i = 0; i < u->n && !rc; i++)
        rc = buf_printf(out, "\\x{%x}-\\x{%x}", u->range[i].first, u->range[i].last);
    return rc || in_set ? rc : buf_cstr(out, "]");
}

static int spell_escape(struct str at, bool in_set, size_t *used, struct buf *out)
{
    struct str name;
    *used = property_at(at.p, at.n, &name);
    if (*used)
        return spell_property((struct str){at.p, *used}, name, in_set, out);
    *used = 2;
    if (at.p[1] == 's')
        return buf_cstr(out, in_set ? SPACE_SET : "[" SPACE_SET "]");
    if (at.p[1] == 'S' && !in_set)
        return buf_cstr(out, "[^" SPACE_SET "]");
    return buf_append(out, at.p, 2);
}

/* Classes spelled out as Hugging Face's regex engine means them: \s as White_Space, \p{..} by newer
 * tables. */
static int spell_classes(struct str pattern, struct buf *out)
{
    bool in_set = false;
    for (size_t i = 0, used = 1; i < pattern.n; i += used) {
        char c = pattern.p[i];
        int rc;
        used = 1;
        if (c == '\\' && i + 1 < pattern.n) {
            rc = spell_escape((struct str){pattern.p + i, pattern.n - i}, in_set, &used, out);
        } else {
            in_set = c == '[' || (in_set && c != ']');
            rc = buf_append(out, &c, 1);
        }
        if (rc)
            return rc;
    }
    return 0;
}

static struct pretok_stage *next_stage(struct pretok *p, struct err *e)
{
    if (p->n == PRETOK_MAX_STAGES) {
        err_set(e, E2BIG, "the pre-tokenizer has more than %d stages", PRETOK_MAX_STAGES);
        return NULL;
    }
    return &p->stage[p->n];
}

static enum pretok_known known_pattern(struct str pattern)
{
    return str_eq_c(pattern, pretok_gpt2)     ? PRETOK_GPT2
           : str_eq_c(pattern, pretok_llama3) ? PRETOK_LLAMA3
           : str_eq_c(pattern, pretok_qwen2)  ? PRETOK_QWEN2
                                              : PRETOK_UNKNOWN;
}

int pretok_add_regex(struct pretok *p, struct str pattern, enum pretok_behavior b, bool invert,
                     struct err *e)
{
    struct pretok_stage *s = next_stage(p, e);
    if (!s)
        return -E2BIG;
    struct buf text;
    buf_init(&text, 16 * PRETOK_MAX_PATTERN);
    int rc = spell_classes(pattern, &text), code;
    PCRE2_SIZE at = 0;
    if (rc || pattern.n > PRETOK_MAX_PATTERN) {
        rc = err_set(e, E2BIG, "the pre-tokenizer's pattern is longer than %d bytes",
                     PRETOK_MAX_PATTERN);
        goto out;
    }
    pcre2_code *re = pcre2_compile((PCRE2_SPTR)buf_view(&text).p, text.n, PCRE2_UTF | PCRE2_UCP,
                                   &code, &at, NULL);
    if (!re) {
        PCRE2_UCHAR msg[128] = "";
        pcre2_get_error_message(code, msg, sizeof msg);
        rc = err_set(e, EINVAL, "the pre-tokenizer's pattern can't be used: %s at byte %zu",
                     (char *)msg, (size_t)at);
        goto out;
    }
    bool jit = pcre2_jit_compile(re, PCRE2_JIT_COMPLETE) == 0; /* without it is only slower */
    *s = (struct pretok_stage){
        .kind = PRETOK_REGEX, .behavior = b, .invert = invert, .code = re, .jit = jit};
    if (b == PRETOK_ISOLATED && !invert)
        s->known = known_pattern(pattern);
    p->n++;
out:
    buf_fini(&text);
    return rc;
}

int pretok_add_literal(struct pretok *p, struct str literal, enum pretok_behavior b, bool invert,
                       struct err *e)
{
    struct pretok_stage *s = next_stage(p, e);
    if (!s)
        return -E2BIG;
    if (literal.n == 0)
        return err_set(e, EINVAL, "the pre-tokenizer splits at an empty string");
    *s = (struct pretok_stage){.kind = PRETOK_LITERAL,
                               .behavior = b,
                               .invert = invert,
                               .literal = str_dup(literal),
                               .n_literal = literal.n};
    p->n++;
    return 0;
}

int pretok_add_digits(struct pretok *p, bool individual, struct err *e)
{
    struct pretok_stage *s = next_stage(p, e);
    if (!s)
        return -E2BIG;
    *s = (struct pretok_stage){.kind = individual ? PRETOK_DIGIT : PRETOK_DIGITS,
                               .behavior = individual ? PRETOK_ISOLATED : PRETOK_CONTIGUOUS};
    p->n++;
    return 0;
}

void pretok_fini(struct pretok *p)
{
    for (size_t i = 0; i < p->n; i++) {
        pcre2_code_free(p->stage[i].code);
        free(p->stage[i].literal);
    }
    *p = (struct pretok){0};
}

int pretok_scratch_init(struct pretok_scratch *s, const struct pretok *p)
{
    *s = (struct pretok_scratch){0};
    for (size_t i = 0; i < p->n; i++)
        if (p->stage[i].kind == PRETOK_REGEX) {
            s->match[i] = pcre2_match_data_create(1, NULL);
            if (!s->match[i])
                return -ENOMEM;
        }
    return 0;
}

void pretok_scratch_fini(struct pretok_scratch *s)
{
    for (size_t i = 0; i < PRETOK_MAX_STAGES; i++)
        pcre2_match_data_free(s->match[i]);
    *s = (struct pretok_scratch){0};
}

/* The next non-empty match at or after `from`. 1 found, 0 none, negative on failure. */
static int find_regex(const struct pretok_stage *st, pcre2_match_data *md, struct str text,
                      size_t from, size_t *start, size_t *end)
{
    PCRE2_SPTR p = (PCRE2_SPTR)text.p;
    int rc = PCRE2_ERROR_JIT_STACKLIMIT;
    if (st->jit)
        rc = pcre2_jit_match(st->code, p, text.n, from, PCRE2_NOTEMPTY, md, NULL);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) /* the interpreter takes its stack from the heap */
        rc = pcre2_match(st->code, p, text.n, from,
                         PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY | PCRE2_NO_JIT, md, NULL);
    if (rc == PCRE2_ERROR_NOMATCH)
        return 0;
    if (rc < 0)
        return -E2BIG; /* a match limit: the pattern doesn't fit this text */
    const PCRE2_SIZE *v = pcre2_get_ovector_pointer(md);
    *start = v[0];
    *end = v[1];
    return 1;
}

static int find_digits(const struct pretok_stage *st, struct str text, size_t from, size_t *start,
                       size_t *end)
{
    uint32_t cp;
    for (size_t i = from; i < text.n;) {
        unsigned char c = (unsigned char)text.p[i];
        if (c < 0x80 && (c < '0' || c > '9')) {
            i++;
            continue;
        }
        size_t k = utf8_next(text.p + i, text.n - i, &cp);
        if (c < 0x80 || utf8_is_numeric(cp)) {
            *start = i;
            *end = i + k;
            while (st->kind == PRETOK_DIGITS && *end < text.n) {
                k = utf8_next(text.p + *end, text.n - *end, &cp);
                if (!utf8_is_numeric(cp))
                    break;
                *end += k;
            }
            return 1;
        }
        i += k;
    }
    return 0;
}

static int find_literal(const struct pretok_stage *st, struct str text, size_t from, size_t *start,
                        size_t *end)
{
    const char *hit =
        from < text.n ? memmem(text.p + from, text.n - from, st->literal, st->n_literal) : NULL;
    if (!hit)
        return 0;
    *start = (size_t)(hit - text.p);
    *end = *start + st->n_literal;
    return 1;
}

struct run {
    const struct pretok *p;
    const struct pretok_scratch *s;
    pretok_word_fn *word;
    void *arg;
};
static int run_stage(const struct run *r, size_t i, struct str text);

/* What a stage does with one piece after another: `held` is the piece that a merging behaviour may
 * still extend. */
struct pieces {
    const struct run *r;
    size_t stage;
    enum pretok_behavior behavior;
    struct str held;
    bool has_held, held_match;
};

static int release(struct pieces *q)
{
    if (!q->has_held)
        return 0;
    q->has_held = false;
    return run_stage(q->r, q->stage + 1, q->held);
}

static int piece(struct pieces *q, struct str s, bool match)
{
    if (s.n == 0)
        return 0;
    if (q->behavior == PRETOK_ISOLATED || (q->behavior == PRETOK_REMOVED && !match))
        return run_stage(q->r, q->stage + 1, s);
    if (q->behavior == PRETOK_REMOVED)
        return 0;
    bool joins =
        q->has_held && ((q->behavior == PRETOK_MERGE_PREVIOUS && match && !q->held_match) ||
                        (q->behavior == PRETOK_MERGE_NEXT && !match && q->held_match) ||
                        (q->behavior == PRETOK_CONTIGUOUS && match == q->held_match));
    if (joins) {
        q->held.n += s.n;
        q->held_match = match;
        return 0;
    }
    int rc = release(q);
    q->held = s;
    q->held_match = match;
    q->has_held = true;
    return rc;
}

static int find(const struct run *r, size_t i, struct str text, size_t from, size_t *start,
                size_t *end)
{
    const struct pretok_stage *st = &r->p->stage[i];
    if (st->kind == PRETOK_REGEX)
        return find_regex(st, r->s->match[i], text, from, start, end);
    return st->kind == PRETOK_LITERAL ? find_literal(st, text, from, start, end)
                                      : find_digits(st, text, from, start, end);
}

static int run_stage(const struct run *r, size_t i, struct str text)
{
    if (i == r->p->n)
        return r->word(r->arg, text);
    const struct pretok_stage *st = &r->p->stage[i];
    struct pieces q = {.r = r, .stage = i, .behavior = st->behavior};
    size_t at = 0;
    while (at < text.n) {
        size_t start = text.n, end = text.n;
        int rc = find(r, i, text, at, &start, &end);
        if (rc < 0)
            return rc;
        rc = piece(&q, (struct str){text.p + at, start - at}, st->invert);
        if (!rc)
            rc = piece(&q, (struct str){text.p + start, end - start}, !st->invert);
        if (rc)
            return rc;
        at = end;
    }
    return release(&q);
}

/* ---- the whole chain by a scanner ---- */

/* One word that the scanner left to PCRE2. The patterns look at nothing before a word; where
 * numbers stand alone they see the text up to the next one, which *limit remembers. */
static int slow_word(const struct run *r, size_t stage, struct str text, size_t *at, size_t *limit)
{
    size_t start = 0, end = 0;
    uint32_t cp;
    if (stage == 0)
        *limit = text.n;
    else if (*limit <= *at && !find_digits(&r->p->stage[0], text, *at, limit, &end))
        *limit = text.n;
    struct str word = {text.p + *at, *limit - *at};
    int rc = word.n ? find(r, stage, word, 0, &start, &end) : 0;
    if (rc < 0)
        return rc;
    if (!word.n) /* a number that the scanner doesn't know */
        word.n = utf8_next(word.p, text.n - *at, &cp);
    else if (rc)
        word.n = start ? start : end;
    *at += word.n;
    return r->word(r->arg, word);
}

static int scan_all(const struct run *r, const struct pretok_scan *s, size_t stage)
{
    int rc = 0;
    for (size_t at = 0, limit = 0; at < s->text.n && !rc;) {
        size_t end = pretok_scan_letters(s, at);
        if (end == SCAN_UNDECIDED)
            end = pretok_scan_word(s, at);
        if (end == SCAN_UNDECIDED) {
            rc = slow_word(r, stage, s->text, &at, &limit);
            continue;
        }
        rc = r->word(r->arg, (struct str){s->text.p + at, end - at});
        at = end;
    }
    return rc;
}

/* A known pattern alone, or after Digits(individual). */
static bool scanner_for(const struct pretok *p, struct str text, struct pretok_scan *s,
                        size_t *stage)
{
    *stage = p->n == 2 ? 1 : 0;
    if (p->slow || !p->n || p->n > 2 || p->stage[*stage].known == PRETOK_UNKNOWN)
        return false;
    if (*stage && p->stage[0].kind != PRETOK_DIGIT)
        return false;
    return pretok_scan_init(s, p->stage[*stage].known, *stage == 1, text);
}

int pretok_run(const struct pretok *p, const struct pretok_scratch *s, struct str text,
               pretok_word_fn *word, void *arg)
{
    struct run r = {p, s, word, arg};
    struct pretok_scan fast;
    size_t stage;
    if (!text.n)
        return 0;
    return scanner_for(p, text, &fast, &stage) ? scan_all(&r, &fast, stage)
                                               : run_stage(&r, 0, text);
}
