#include "lib/llm/utf8.h"

#include "lib/llm/unicode_later.h"

#include <utf8proc.h>

/* Lead byte -> length and the bounds of the second byte (table 3-7). */
static size_t lead(unsigned char c, unsigned char *lo, unsigned char *hi)
{
    *lo = 0x80;
    *hi = 0xbf;
    if (c >= 0xc2 && c <= 0xdf)
        return 2;
    if (c >= 0xe0 && c <= 0xef) {
        if (c == 0xe0)
            *lo = 0xa0;
        if (c == 0xed)
            *hi = 0x9f;
        return 3;
    }
    if (c >= 0xf0 && c <= 0xf4) {
        if (c == 0xf0)
            *lo = 0x90;
        if (c == 0xf4)
            *hi = 0x8f;
        return 4;
    }
    return 0;
}

/* Bytes of the longest well-formed beginning (>= 1); *want is the length that the lead byte
 * announces (0: none). */
static size_t well_formed(const char *p, size_t n, size_t *want)
{
    unsigned char lo, hi;
    *want = lead((unsigned char)p[0], &lo, &hi);
    size_t i = 1;
    for (; i < *want && i < n; i++) {
        unsigned char c = (unsigned char)p[i];
        if (c < lo || c > hi)
            break;
        lo = 0x80;
        hi = 0xbf;
    }
    return i;
}

size_t utf8_next(const char *p, size_t n, uint32_t *cp)
{
    unsigned char c = (unsigned char)p[0];
    if (c < 0x80) {
        *cp = c;
        return 1;
    }
    size_t want, have = well_formed(p, n, &want);
    if (want == 0 || have < want) {
        *cp = UTF8_BAD;
        return have;
    }
    uint32_t v = c & (0x7fu >> want);
    for (size_t i = 1; i < want; i++)
        v = v << 6 | ((unsigned char)p[i] & 0x3fu);
    *cp = v;
    return want;
}

bool utf8_is_partial(const char *p, size_t n)
{
    size_t want;
    return n > 0 && well_formed(p, n, &want) == n && n < want;
}

/* Bytes of ASCII at the front. */
static size_t ascii_run(const char *p, size_t n)
{
    size_t i = 0;
    for (; i + 32 <= n; i += 32) {
        uint64_t w[4];
        memcpy(w, p + i, sizeof w);
        if ((w[0] | w[1] | w[2] | w[3]) & 0x8080808080808080u)
            break;
    }
    while (i < n && !(p[i] & 0x80))
        i++;
    return i;
}

bool utf8_is_ascii(struct str s)
{
    return ascii_run(s.p, s.n) == s.n;
}

/* Offset of the first ill-formed byte, or s.n. */
static size_t valid_run(struct str s)
{
    size_t i = 0;
    uint32_t cp;
    while ((i += ascii_run(s.p + i, s.n - i)) < s.n) {
        size_t k = utf8_next(s.p + i, s.n - i, &cp);
        if (cp == UTF8_BAD)
            return i;
        i += k;
    }
    return i;
}

bool utf8_valid(struct str s)
{
    return valid_run(s) == s.n;
}

int utf8_repair(struct str s, struct buf *out)
{
    while (s.n) {
        size_t good = valid_run(s);
        int rc = buf_append(out, s.p, good);
        if (!rc && good < s.n) {
            uint32_t cp;
            good += utf8_next(s.p + good, s.n - good, &cp);
            rc = buf_cstr(out, UTF8_REPLACEMENT);
        }
        if (rc)
            return rc;
        s.p += good;
        s.n -= good;
    }
    return 0;
}

size_t utf8_encode(uint32_t cp, char out[4])
{
    if (cp > 0x10ffff || (cp >= 0xd800 && cp <= 0xdfff))
        cp = 0xfffd;
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (char)(0xc0 | cp >> 6);
        out[1] = (char)(0x80 | (cp & 0x3f));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (char)(0xe0 | cp >> 12);
        out[1] = (char)(0x80 | (cp >> 6 & 0x3f));
        out[2] = (char)(0x80 | (cp & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | cp >> 18);
    out[1] = (char)(0x80 | (cp >> 12 & 0x3f));
    out[2] = (char)(0x80 | (cp >> 6 & 0x3f));
    out[3] = (char)(0x80 | (cp & 0x3f));
    return 4;
}

size_t utf8_count(struct str s)
{
    size_t count = 0;
    uint32_t cp;
    for (size_t i = 0; i < s.n; count++)
        i += utf8_next(s.p + i, s.n - i, &cp);
    return count;
}

bool utf8_is_space(uint32_t cp)
{
    return (cp >= 9 && cp <= 13) || cp == ' ' || cp == 0x85 || cp == 0xa0 || cp == 0x1680 ||
           (cp >= 0x2000 && cp <= 0x200a) || cp == 0x2028 || cp == 0x2029 || cp == 0x202f ||
           cp == 0x205f || cp == 0x3000;
}

static utf8proc_category_t category(uint32_t cp)
{
    return cp > 0x10ffff ? UTF8PROC_CATEGORY_CN : utf8proc_category((utf8proc_int32_t)cp);
}

bool utf8_is_numeric(uint32_t cp)
{
    utf8proc_category_t c = category(cp);
    if (c == UTF8PROC_CATEGORY_ND || c == UTF8PROC_CATEGORY_NL || c == UTF8PROC_CATEGORY_NO)
        return true;
    return unicode_set_has(unicode_later_find("is_numeric"), cp);
}

const struct unicode_set *unicode_later_find(const char *name)
{
    const struct unicode_set *u = unicode_later;
    while (u->name && strcmp(u->name, name) != 0)
        u++;
    return u->name ? u : NULL;
}

bool unicode_set_has(const struct unicode_set *s, uint32_t cp)
{
    size_t lo = 0, hi = s ? s->n : 0;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (cp < s->range[mid].first)
            hi = mid;
        else if (cp > s->range[mid].last)
            lo = mid + 1;
        else
            return true;
    }
    return false;
}

bool utf8_is_word(uint32_t cp)
{
    utf8proc_category_t c = category(cp);
    return (c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_ND) || c == UTF8PROC_CATEGORY_NL ||
           c == UTF8PROC_CATEGORY_PC;
}
