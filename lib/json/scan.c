#include "lib/json/scan.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

enum { ST_VALUE, ST_FIRST, ST_NEXT, ST_DONE, ST_FAILED };

/* Keys of the open objects, as a stack with a hash index. Objects close in LIFO order, so the
 * newest keys leave first and slots of a linear-probing table can simply be cleared. */
struct scan_key {
    uint64_t hash;
    struct str text;
    bool escaped;
    uint32_t object, slot;
};
struct scan_keys {
    struct scan_key *key;
    size_t n, cap;
    uint32_t *slot; /* index + 1 */
    uint32_t mask;
    uint32_t object[SCAN_MAX_DEPTH + 1]; /* serial of the object at each depth */
    size_t first[SCAN_MAX_DEPTH + 1];    /* its first key on the stack */
    uint32_t serial;
};

static int fail(struct scan *s, const char *why)
{
    if (!s->why)
        s->why = why;
    s->state = ST_FAILED;
    return -EINVAL;
}

void scan_init(struct scan *s, struct str text, int max_depth)
{
    *s = (struct scan){.in = text.p ? text : STR(""), .state = ST_VALUE};
    s->max_depth = max_depth > 0 && max_depth < SCAN_MAX_DEPTH ? max_depth : SCAN_MAX_DEPTH;
}

void scan_fini(struct scan *s)
{
    if (s->keys) {
        free(s->keys->key);
        free(s->keys->slot);
        free(s->keys);
    }
    s->keys = NULL;
}

/* ---- strings ---- */

static int hex4(const char *p, uint32_t *out)
{
    uint32_t v = 0;
    for (int i = 0; i < 4; i++) {
        char c = p[i];
        uint32_t d = c >= '0' && c <= '9'   ? (uint32_t)(c - '0')
                     : c >= 'a' && c <= 'f' ? (uint32_t)(c - 'a' + 10)
                     : c >= 'A' && c <= 'F' ? (uint32_t)(c - 'A' + 10)
                                            : 16;
        if (d > 15)
            return -EINVAL;
        v = v << 4 | d;
    }
    *out = v;
    return 0;
}

/* Bytes of the UTF-8 character at p, or 0 when it is ill-formed (Unicode table 3-7). */
static size_t utf8_char(const unsigned char *p, size_t n)
{
    size_t len = p[0] >= 0xf0 ? 4 : p[0] >= 0xe0 ? 3 : 2;
    if (p[0] < 0xc2 || p[0] > 0xf4 || len > n)
        return 0;
    unsigned char lo = p[0] == 0xe0 ? 0xa0 : p[0] == 0xf0 ? 0x90 : 0x80;
    unsigned char hi = p[0] == 0xed ? 0x9f : p[0] == 0xf4 ? 0x8f : 0xbf;
    if (p[1] < lo || p[1] > hi)
        return 0;
    for (size_t i = 2; i < len; i++)
        if ((p[i] & 0xc0) != 0x80)
            return 0;
    return len;
}

typedef signed char bytes16 __attribute__((vector_size(16)));

/* All ones where a byte needs a look: control characters, other than ASCII (negative), '"', '\\'.
 */
static inline bytes16 looks(const char *p)
{
    bytes16 w;
    memcpy(&w, p, sizeof w);
    return (w < 0x20) | (w == '"') | (w == '\\');
}

/* Bytes at the front that need no look: printable ASCII other than '"' and '\\'. 16 at a time. */
static size_t plain_run(const char *p, size_t n)
{
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        bytes16 any = looks(p + i);
        uint64_t half[2];
        memcpy(half, &any, sizeof half);
        if (half[0] | half[1])
            break;
    }
    while (i < n && (unsigned char)p[i] >= 0x20 && (unsigned char)p[i] < 0x80 && p[i] != '"' &&
           p[i] != '\\')
        i++;
    return i;
}

/* Checks the escape at p ('\\' first); returns its length, 0 when it is wrong. */
static size_t escape_len(const char *p, size_t n)
{
    uint32_t u, v;
    if (n < 2)
        return 0;
    if (p[1] != 'u')
        return memchr("\"\\/bfnrt", p[1], 8) ? 2 : 0;
    if (n < 6 || hex4(p + 2, &u))
        return 0;
    if (u >= 0xdc00 && u <= 0xdfff)
        return 0;
    if (u < 0xd800 || u > 0xdbff)
        return 6;
    bool paired =
        n >= 12 && p[6] == '\\' && p[7] == 'u' && !hex4(p + 8, &v) && v >= 0xdc00 && v <= 0xdfff;
    return paired ? 12 : 0;
}

static int scan_quoted(struct scan *s, struct scan_tok *t)
{
    const char *p = s->in.p;
    size_t n = s->in.n, i = s->at + 1;
    t->at = s->at;
    t->escaped = false;
    for (;;) {
        i += plain_run(p + i, n - i);
        if (i >= n)
            return fail(s, "a string is not closed");
        unsigned char c = (unsigned char)p[i];
        size_t k;
        if (c == '"')
            break;
        s->at = i;
        if (c == '\\') {
            t->escaped = true;
            k = escape_len(p + i, n - i);
            if (!k)
                return fail(s, "a string has an invalid escape");
        } else {
            k = c < 0x80 ? 0 : utf8_char((const unsigned char *)p + i, n - i);
            if (!k)
                return fail(s, c < 0x20 ? "a string has a raw control character"
                                        : "a string is not valid UTF-8");
        }
        i += k;
    }
    t->text = (struct str){p + t->at + 1, i - t->at - 1};
    s->at = i + 1;
    return 0;
}

static size_t put_utf8(uint32_t c, char *out)
{
    size_t n = 0;
    if (c < 0x80) {
        out[n++] = (char)c;
        return n;
    }
    if (c < 0x800) {
        out[n++] = (char)(0xc0 | c >> 6);
    } else {
        if (c < 0x10000) {
            out[n++] = (char)(0xe0 | c >> 12);
        } else {
            out[n++] = (char)(0xf0 | c >> 18);
            out[n++] = (char)(0x80 | (c >> 12 & 63));
        }
        out[n++] = (char)(0x80 | (c >> 6 & 63));
    }
    out[n++] = (char)(0x80 | (c & 63));
    return n;
}

static size_t unescape_one(const char *p, char *out, size_t *used)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    uint32_t u = 0, v = 0;
    if (p[1] != 'u') {
        *used = 2;
        out[0] = to[strchr(from, p[1]) - from];
        return 1;
    }
    *used = 6;
    (void)hex4(p + 2, &u);
    if (u >= 0xd800 && u <= 0xdbff) {
        *used = 12;
        (void)hex4(p + 8, &v);
        u = 0x10000 + ((u - 0xd800) << 10) + (v - 0xdc00);
    }
    return put_utf8(u, out);
}

size_t scan_unescape(struct str raw, char *out)
{
    size_t n = 0, used;
    for (size_t i = 0; i < raw.n;) {
        const char *hit = memchr(raw.p + i, '\\', raw.n - i);
        size_t k = hit ? (size_t)(hit - raw.p) - i : raw.n - i;
        memcpy(out + n, raw.p + i, k);
        n += k;
        i += k;
        if (hit) {
            n += unescape_one(raw.p + i, out + n, &used);
            i += used;
        }
    }
    return n;
}

int scan_text(const struct scan_tok *t, struct arena *a, struct str *out)
{
    if (!t->escaped) {
        *out = t->text;
        return 0;
    }
    char *p = arena_alloc(a, t->text.n + 1);
    if (!p)
        return -ENOMEM;
    size_t n = scan_unescape(t->text, p);
    p[n] = 0;
    *out = (struct str){p, n};
    return 0;
}

/* Compares two texts by what they mean, a character at a time. */
static bool same_text(struct str a, bool a_escaped, struct str b, bool b_escaped)
{
    if (!a_escaped && !b_escaped)
        return str_eq(a, b);
    size_t i = 0, j = 0, used;
    while (i < a.n && j < b.n) {
        char ca[4] = {a.p[i]}, cb[4] = {b.p[j]};
        size_t na = 1, nb = 1;
        used = 1;
        if (a_escaped && a.p[i] == '\\')
            na = unescape_one(a.p + i, ca, &used);
        i += used;
        used = 1;
        if (b_escaped && b.p[j] == '\\')
            nb = unescape_one(b.p + j, cb, &used);
        j += used;
        /* An escape gives a whole character, a raw byte a part of one: complete the shorter side.
         */
        while (na < nb && i < a.n)
            ca[na++] = a.p[i++];
        while (nb < na && j < b.n)
            cb[nb++] = b.p[j++];
        if (na != nb || memcmp(ca, cb, na) != 0)
            return false;
    }
    return i == a.n && j == b.n;
}

bool scan_text_is(const struct scan_tok *t, const char *literal)
{
    return same_text(t->text, t->escaped, str_c(literal), false);
}

/* ---- duplicate keys ---- */

static uint64_t hash_text(struct str s, bool escaped, uint64_t h)
{
    size_t used = 1;
    for (size_t i = 0; i < s.n; i += used) {
        char c[4] = {s.p[i]};
        size_t n = 1;
        used = 1;
        if (escaped && s.p[i] == '\\')
            n = unescape_one(s.p + i, c, &used);
        for (size_t k = 0; k < n; k++)
            h = (h ^ (unsigned char)c[k]) * 0x100000001b3u;
    }
    return h ^ h >> 29;
}

static void place(struct scan_keys *k, uint32_t index)
{
    uint32_t i = (uint32_t)k->key[index].hash & k->mask;
    while (k->slot[i])
        i = (i + 1) & k->mask;
    k->slot[i] = index + 1;
    k->key[index].slot = i;
}

static int grow_keys(struct scan_keys *k)
{
    size_t cap = k->cap ? k->cap * 2 : 64;
    if (cap > SCAN_MAX_KEYS)
        return -E2BIG;
    struct scan_key *key = realloc(k->key, cap * sizeof *key);
    if (!key)
        return -ENOMEM;
    k->key = key;
    uint32_t *slot = calloc(cap * 2, sizeof *slot);
    if (!slot)
        return -ENOMEM;
    free(k->slot);
    k->slot = slot;
    k->mask = (uint32_t)(cap * 2 - 1);
    k->cap = cap;
    for (uint32_t i = 0; i < k->n; i++)
        place(k, i);
    return 0;
}

static int note_key(struct scan *s, const struct scan_tok *t)
{
    struct scan_keys *k = s->keys;
    if (k->n == k->cap && grow_keys(k))
        return fail(s, "an object has too many members");
    uint32_t object = k->object[s->depth];
    uint64_t h = hash_text(t->text, t->escaped, 0xcbf29ce484222325u ^ object * 0x9e3779b97f4a7c15u);
    for (uint32_t i = (uint32_t)h & k->mask; k->slot[i]; i = (i + 1) & k->mask) {
        const struct scan_key *o = &k->key[k->slot[i] - 1];
        if (o->hash == h && o->object == object &&
            same_text(o->text, o->escaped, t->text, t->escaped)) {
            s->at = t->at;
            return fail(s, "an object has the same key twice");
        }
    }
    k->key[k->n] =
        (struct scan_key){.hash = h, .text = t->text, .escaped = t->escaped, .object = object};
    place(k, (uint32_t)k->n);
    k->n++;
    return 0;
}

static int open_object(struct scan *s)
{
    if (!s->keys) {
        s->keys = calloc(1, sizeof *s->keys);
        if (!s->keys)
            return fail(s, "not enough memory");
    }
    s->keys->object[s->depth] = ++s->keys->serial;
    s->keys->first[s->depth] = s->keys->n;
    return 0;
}

static void close_object(struct scan *s)
{
    struct scan_keys *k = s->keys;
    while (k->n > k->first[s->depth])
        k->slot[k->key[--k->n].slot] = 0;
}

/* ---- numbers and words ---- */

static size_t digits(struct str in, size_t i)
{
    size_t n = 0;
    while (i + n < in.n && in.p[i + n] >= '0' && in.p[i + n] <= '9')
        n++;
    return n;
}

static int scan_digits(struct scan *s, struct scan_tok *t)
{
    size_t i = s->at + (s->in.p[s->at] == '-');
    size_t n = digits(s->in, i);
    t->at = s->at;
    if (n == 0 || (n > 1 && s->in.p[i] == '0'))
        return fail(s, "a number is malformed");
    i += n;
    if (i < s->in.n && s->in.p[i] == '.') {
        n = digits(s->in, ++i);
        if (n == 0)
            return fail(s, "a number is malformed");
        i += n;
    }
    if (i < s->in.n && (s->in.p[i] == 'e' || s->in.p[i] == 'E')) {
        i++;
        if (i < s->in.n && (s->in.p[i] == '+' || s->in.p[i] == '-'))
            i++;
        n = digits(s->in, i);
        if (n == 0)
            return fail(s, "a number is malformed");
        i += n;
    }
    t->text = (struct str){s->in.p + s->at, i - s->at};
    s->at = i;
    t->kind = SCAN_NUMBER;
    return 0;
}

static int scan_word(struct scan *s, struct scan_tok *t)
{
    static const struct {
        struct str w;
        enum scan_kind kind;
    } words[] = {{{"true", 4}, SCAN_TRUE}, {{"false", 5}, SCAN_FALSE}, {{"null", 4}, SCAN_NULL}};
    struct str rest = {s->in.p + s->at, s->in.n - s->at};
    for (int i = 0; i < 3; i++)
        if (str_starts(rest, words[i].w)) {
            t->kind = words[i].kind;
            t->at = s->at;
            t->text = (struct str){rest.p, words[i].w.n};
            s->at += words[i].w.n;
            return 0;
        }
    return fail(s, "a value is expected");
}

/* ---- the machine ---- */

static int peek(struct scan *s)
{
    while (s->at < s->in.n) {
        char c = s->in.p[s->at];
        if (c != ' ' && c != '\n' && c != '\t' && c != '\r')
            return (unsigned char)c;
        s->at++;
    }
    return -1;
}

static int open_container(struct scan *s, struct scan_tok *t, bool object)
{
    if (s->depth == s->max_depth)
        return fail(s, "the nesting is too deep");
    t->at = s->at++;
    t->kind = object ? SCAN_OBJECT : SCAN_ARRAY;
    t->text = (struct str){s->in.p + t->at, 1};
    s->depth++;
    s->is_object[s->depth] = object;
    s->state = ST_FIRST;
    return object ? open_object(s) : 0;
}

static int close_container(struct scan *s, struct scan_tok *t)
{
    bool object = s->is_object[s->depth];
    t->at = s->at++;
    t->kind = object ? SCAN_OBJECT_END : SCAN_ARRAY_END;
    t->text = (struct str){s->in.p + t->at, 1};
    if (object)
        close_object(s);
    s->depth--;
    s->state = s->depth ? ST_NEXT : ST_DONE;
    return 0;
}

static int read_value(struct scan *s, struct scan_tok *t)
{
    int c = peek(s);
    if (c == '{' || c == '[')
        return open_container(s, t, c == '{');
    s->state = s->depth ? ST_NEXT : ST_DONE;
    if (c == '"') {
        t->kind = SCAN_STRING;
        return scan_quoted(s, t);
    }
    if (c == '-' || (c >= '0' && c <= '9'))
        return scan_digits(s, t);
    return c < 0 ? fail(s, "the text ends too early") : scan_word(s, t);
}

static int read_key(struct scan *s, struct scan_tok *t)
{
    if (peek(s) != '"')
        return fail(s, "a key in quotes is expected");
    t->kind = SCAN_KEY;
    int rc = scan_quoted(s, t);
    if (!rc)
        rc = note_key(s, t);
    if (rc)
        return rc;
    if (peek(s) != ':')
        return fail(s, "a colon is expected after a key");
    s->at++;
    s->state = ST_VALUE;
    return 0;
}

int scan_next(struct scan *s, struct scan_tok *t)
{
    *t = (struct scan_tok){0};
    if (s->state == ST_FAILED)
        return -EINVAL;
    if (s->state == ST_VALUE)
        return read_value(s, t);
    int c = peek(s);
    if (s->state == ST_DONE) {
        t->at = s->at;
        return c < 0 ? 0 : fail(s, "there is text after the value");
    }
    bool object = s->is_object[s->depth];
    if (c == (object ? '}' : ']'))
        return close_container(s, t);
    if (s->state == ST_NEXT) {
        if (c != ',')
            return fail(s, c < 0 ? "the text ends too early"
                                 : "a comma or the end of the object or array is expected");
        s->at++;
    }
    return object ? read_key(s, t) : read_value(s, t);
}

int scan_member(struct scan *s, struct scan_tok *key, struct scan_tok *value)
{
    int rc = scan_next(s, key);
    if (rc)
        return rc;
    if (key->kind == SCAN_OBJECT_END)
        return 0;
    ASSERT(key->kind == SCAN_KEY);
    rc = scan_next(s, value);
    return rc ? rc : 1;
}

int scan_element(struct scan *s, struct scan_tok *value)
{
    int rc = scan_next(s, value);
    return rc ? rc : value->kind != SCAN_ARRAY_END;
}

int scan_skip(struct scan *s, const struct scan_tok *t, struct str *raw)
{
    if (t->kind == SCAN_OBJECT || t->kind == SCAN_ARRAY) {
        int depth = s->depth;
        struct scan_tok u;
        do {
            int rc = scan_next(s, &u);
            if (rc)
                return rc;
        } while (s->depth >= depth);
    }
    if (raw)
        *raw = (struct str){s->in.p + t->at, s->at - t->at};
    return 0;
}

int scan_why(const struct scan *s, struct err *e)
{
    size_t line = 1, column = 1;
    for (size_t i = 0; i < s->at && i < s->in.n; i++) {
        column++;
        if (s->in.p[i] == '\n') {
            line++;
            column = 1;
        }
    }
    return err_set(e, EINVAL, "line %zu column %zu: %s", line, column,
                   s->why ? s->why : "no fault");
}

int scan_f64(const struct scan_tok *t, double min, double max, double *out)
{
    char text[64];
    if (t->kind != SCAN_NUMBER)
        return -EINVAL;
    if (t->text.n >= sizeof text)
        return -ERANGE;
    memcpy(text, t->text.p, t->text.n);
    text[t->text.n] = 0;
    double v = strtod(text, NULL);
    if (!(v >= min && v <= max))
        return -ERANGE;
    *out = v;
    return 0;
}

int scan_i64(const struct scan_tok *t, int64_t min, int64_t max, int64_t *out)
{
    if (t->kind != SCAN_NUMBER)
        return -EINVAL;
    int64_t v;
    int rc = str_to_i64(t->text, INT64_MIN, INT64_MAX, &v);
    if (rc == -EINVAL) {
        double d;
        rc = scan_f64(t, -9e15, 9e15, &d);
        if (!rc && d != floor(d))
            return -EINVAL;
        v = rc ? 0 : (int64_t)d;
    }
    if (rc)
        return rc;
    if (v < min || v > max)
        return -ERANGE;
    *out = v;
    return 0;
}
