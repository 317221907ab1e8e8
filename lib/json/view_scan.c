/* Views straight from text: the pull scanner walks the text once, members that no table names are
 * skipped, and no tree is made. Gives what view_decode gives for the text's tree. */
#include "lib/json/view_scan.h"

#include "lib/base/clock.h"
#include "lib/json/view_int.h"

#include <errno.h>
#include <stdio.h>

#define PATH_MAX_N 200

struct reader {
    struct scan *s;
    struct arena *a;
    struct err *e;
};

static int wrong(struct reader *r, const struct view_field *f, const char *expected)
{
    return err_set(r->e, EINVAL, "%s: expected %s", f->path, expected);
}

static int malformed(struct reader *r)
{
    return scan_why(r->s, r->e);
}

static int too_large(struct reader *r)
{
    return err_set(r->e, ENOMEM, "the object is too large");
}

/* A string with escapes resolved, NUL-terminated, in the arena. */
static int text_of(struct reader *r, const struct scan_tok *t, struct str *out)
{
    char *p = arena_alloc(r->a, t->text.n + 1);
    if (!p)
        return too_large(r);
    size_t n = t->text.n;
    if (t->escaped)
        n = scan_unescape(t->text, p);
    else if (n)
        memcpy(p, t->text.p, n);
    p[n] = 0;
    *out = (struct str){p, n};
    return memchr(p, 0, n) ? err_set(r->e, EINVAL, "a string holds a NUL") : 0;
}

static int read_str(struct reader *r, const struct view_field *f, const struct scan_tok *t,
                    const char *expected, struct str *out)
{
    return t->kind == SCAN_STRING ? text_of(r, t, out) : wrong(r, f, expected);
}

static bool plain_number(const struct scan_tok *t)
{
    return t->kind == SCAN_NUMBER && !memchr(t->text.p, '.', t->text.n) &&
           !memchr(t->text.p, 'e', t->text.n) && !memchr(t->text.p, 'E', t->text.n);
}

static int read_int(struct reader *r, const struct view_field *f, const struct scan_tok *t,
                    int64_t *out)
{
    struct str s;
    if (t->kind != SCAN_STRING)
        return scan_i64(t, INT64_MIN, INT64_MAX, out) ? wrong(r, f, "a whole number") : 0;
    int rc = text_of(r, t, &s);
    if (!rc && str_to_i64(s, INT64_MIN, INT64_MAX, out))
        rc = wrong(r, f, "a whole number");
    return rc;
}

static int read_num(struct reader *r, const struct view_field *f, const struct scan_tok *t,
                    double *out)
{
    struct str s;
    if (t->kind != SCAN_STRING)
        return scan_f64(t, -1.7976931348623157e308, 1.7976931348623157e308, out)
                   ? wrong(r, f, "a number")
                   : 0;
    int rc = text_of(r, t, &s);
    if (!rc && str_to_f64(s, -1e300, 1e300, out))
        rc = wrong(r, f, "a number");
    return rc;
}

static int read_qty(struct reader *r, const struct view_field *f, const struct scan_tok *t,
                    int64_t *out)
{
    struct str s;
    if (plain_number(t) && scan_i64(t, INT64_MIN / 1000 + 1, INT64_MAX / 1000 - 1, out) == 0) {
        *out *= 1000;
        return 0;
    }
    int rc = read_str(r, f, t, "a quantity such as 500m or 2Gi", &s);
    if (!rc && str_to_quantity_milli(s, out))
        rc = wrong(r, f, "a quantity such as 500m or 2Gi");
    return rc;
}

static int read_time(struct reader *r, const struct view_field *f, const struct scan_tok *t,
                     uint64_t *out)
{
    struct str s;
    int rc = read_str(r, f, t, "a time (RFC 3339)", &s);
    if (!rc && clock_parse_rfc3339(s.p, out))
        rc = wrong(r, f, "a time (RFC 3339)");
    if (!rc)
        *out -= *out % NS_PER_US; /* as precise as the API's MicroTime */
    return rc;
}

/* A number that stands for a string, as its text. */
static int number_text(struct reader *r, const struct view_field *f, const struct scan_tok *t,
                       const char **out)
{
    int64_t i;
    double d;
    char *p = NULL;
    if (plain_number(t) && scan_i64(t, INT64_MIN, INT64_MAX, &i) == 0)
        p = arena_printf(r->a, "%lld", (long long)i);
    else if (scan_f64(t, -1.7976931348623157e308, 1.7976931348623157e308, &d) == 0)
        p = arena_printf(r->a, "%.17g", d);
    else
        return wrong(r, f, "an object of strings");
    *out = p;
    return p ? 0 : too_large(r);
}

/* Room for one more element of a growing array in the arena. */
static int grow(struct reader *r, void **items, size_t n, size_t *cap, size_t size)
{
    if (n < *cap)
        return 0;
    size_t more = *cap ? *cap * 2 : 8;
    void *p = n < VIEW_LIST_MAX ? arena_calloc(r->a, more * size) : NULL;
    if (!p)
        return too_large(r);
    if (n)
        memcpy(p, *items, n * size);
    *items = p;
    *cap = more;
    return 0;
}

static int read_map(struct reader *r, const struct view_field *f, const struct scan_tok *t,
                    struct view_map *out)
{
    struct scan_tok key, value;
    struct view_map m = {0};
    size_t cap = 0;
    if (t->kind != SCAN_OBJECT)
        return wrong(r, f, "an object of strings");
    for (;;) {
        struct str k = {0}, v = {0};
        int more = scan_member(r->s, &key, &value);
        if (more < 0)
            return malformed(r);
        if (!more)
            break;
        int rc = grow(r, (void **)&m.items, m.n, &cap, sizeof *m.items);
        rc = rc ? rc : text_of(r, &key, &k);
        if (!rc && value.kind == SCAN_NUMBER)
            rc = number_text(r, f, &value, &v.p);
        else if (!rc)
            rc = read_str(r, f, &value, "an object of strings", &v);
        if (rc)
            return rc;
        m.items[m.n++] = (struct view_pair){k.p, v.p};
    }
    *out = m;
    return 0;
}

static int read_strs(struct reader *r, const struct view_field *f, const struct scan_tok *t,
                     struct view_list *out)
{
    struct scan_tok item;
    struct view_list l = {0};
    size_t cap = 0;
    int more;
    if (t->kind != SCAN_ARRAY)
        return wrong(r, f, "a list");
    while ((more = scan_element(r->s, &item)) > 0) {
        struct str s;
        int rc = grow(r, &l.items, l.n, &cap, sizeof(char *));
        rc = rc ? rc : read_str(r, f, &item, "a list of strings", &s);
        if (rc)
            return rc;
        VIEW_STR_AT(l, l.n++) = s.p;
    }
    if (more < 0)
        return malformed(r);
    *out = l;
    return 0;
}

static int read_object(struct reader *r, const struct view *v, const struct scan_tok *t, void *out,
                       int depth);

static int read_list(struct reader *r, const struct view_field *f, const struct scan_tok *t,
                     struct view_list *out, int depth)
{
    struct scan_tok item;
    struct view_list l = {0};
    size_t cap = 0, each = f->sub->size;
    int more;
    if (t->kind != SCAN_ARRAY)
        return wrong(r, f, "a list");
    while ((more = scan_element(r->s, &item)) > 0) {
        int rc = grow(r, &l.items, l.n, &cap, each);
        if (!rc)
            rc = read_object(r, f->sub, &item, (char *)l.items + l.n * each, depth + 1);
        if (rc)
            return err_wrap(r->e, "%s[%zu]", f->path, l.n), rc;
        l.n++;
    }
    if (more < 0)
        return malformed(r);
    *out = l;
    return 0;
}

static int read_raw(struct reader *r, const struct scan_tok *t, const char **out)
{
    struct str raw;
    if (scan_skip(r->s, t, &raw))
        return malformed(r);
    struct buf b;
    CLEANUP(json_decrefp) json_t *o = json_parse(raw, VIEW_RAW_MAX, 0, r->e);
    if (!o)
        return -EINVAL;
    buf_init(&b, VIEW_RAW_MAX);
    int rc = json_write(o, true, &b);
    if (rc)
        rc = err_set(r->e, EMSGSIZE, "an embedded JSON value is larger than 4 MiB");
    else if (!(*out = arena_dup(r->a, buf_view(&b))))
        rc = too_large(r);
    buf_fini(&b);
    return rc;
}

static int read_b64(struct reader *r, const struct view_field *f, const struct scan_tok *t,
                    const char **out)
{
    struct str s;
    int rc = read_str(r, f, t, "base64", &s);
    if (rc)
        return rc;
    char *p = arena_alloc(r->a, s.n / 4 * 3 + 1);
    if (!p)
        return too_large(r);
    *out = p;
    return view_b64(s, p) ? wrong(r, f, "base64") : 0;
}

static int read_value(struct reader *r, const struct view_field *f, const struct scan_tok *t,
                      void *to, int depth)
{
    struct str s;
    int rc;
    switch (f->kind) {
    case VIEW_STR:
        rc = read_str(r, f, t, "a string", &s);
        if (!rc)
            *(const char **)to = s.p;
        return rc;
    case VIEW_INT: return read_int(r, f, t, to);
    case VIEW_NUM: return read_num(r, f, t, to);
    case VIEW_BOOL:
        if (t->kind != SCAN_TRUE && t->kind != SCAN_FALSE)
            return wrong(r, f, "true or false");
        *(bool *)to = t->kind == SCAN_TRUE;
        return 0;
    case VIEW_QTY: return read_qty(r, f, t, to);
    case VIEW_TIME: return read_time(r, f, t, to);
    case VIEW_MAP: return read_map(r, f, t, to);
    case VIEW_OBJ:
        rc = read_object(r, f->sub, t, to, depth + 1);
        if (rc)
            err_wrap(r->e, "%s", f->path);
        return rc;
    case VIEW_LIST: return read_list(r, f, t, to, depth);
    case VIEW_STRS: return read_strs(r, f, t, to);
    case VIEW_RAW: return read_raw(r, t, to);
    case VIEW_B64: return read_b64(r, f, t, to);
    }
    return wrong(r, f, "a known kind");
}

/* ---- members by path ---- */

struct path {
    char text[PATH_MAX_N]; /* with a dot at the end, or empty */
    size_t n;
};

/* The field at path + key; *below: some field lies further down. A path is never the beginning of
 * another one of its table. */
static const struct view_field *field_at(const struct view *v, const struct path *p, struct str key,
                                         bool *below)
{
    *below = false;
    if (memchr(key.p, '.', key.n))
        return NULL;
    for (const struct view_field *f = v->fields; f->path; f++) {
        if (strncmp(f->path, p->text, p->n) != 0 || strncmp(f->path + p->n, key.p, key.n) != 0)
            continue;
        char end = f->path[p->n + key.n];
        if (!end)
            return f;
        *below |= end == '.';
    }
    return NULL;
}

static int read_members(struct reader *r, const struct view *v, struct path *p, void *out,
                        int depth);

static int descend(struct reader *r, const struct view *v, struct path *p, struct str key,
                   void *out, int depth)
{
    size_t before = p->n;
    ASSERT(p->n + key.n + 2 <= sizeof p->text); /* it is the beginning of a table's path */
    memcpy(p->text + p->n, key.p, key.n);
    p->n += key.n;
    p->text[p->n++] = '.';
    p->text[p->n] = 0;
    int rc = read_members(r, v, p, out, depth);
    p->n = before;
    p->text[before] = 0;
    return rc;
}

static int read_members(struct reader *r, const struct view *v, struct path *p, void *out,
                        int depth)
{
    struct scan_tok key, value;
    for (;;) {
        struct str k;
        bool below;
        int more = scan_member(r->s, &key, &value), rc = 0;
        if (more < 0)
            return malformed(r);
        if (!more)
            return 0;
        if (scan_text(&key, r->a, &k))
            return too_large(r);
        const struct view_field *f = field_at(v, p, k, &below);
        if (f && value.kind != SCAN_NULL) {
            rc = read_value(r, f, &value, (char *)out + f->offset, depth);
            if (!rc)
                *(uint64_t *)out |= 1ull << (f - v->fields);
        } else if (!f && below && value.kind == SCAN_OBJECT) {
            rc = descend(r, v, p, k, out, depth);
        } else if (scan_skip(r->s, &value, NULL)) {
            rc = malformed(r);
        }
        if (rc)
            return rc;
    }
}

static int read_object(struct reader *r, const struct view *v, const struct scan_tok *t, void *out,
                       int depth)
{
    struct path p = {0};
    if (t->kind != SCAN_OBJECT)
        return err_set(r->e, EINVAL, "%s: expected an object", v->name);
    if (depth > VIEW_DEPTH_MAX)
        return err_set(r->e, EINVAL, "%s: nested deeper than %d levels", v->name, VIEW_DEPTH_MAX);
    int rc = read_members(r, v, &p, out, depth);
    if (rc)
        return rc;
    for (const struct view_field *f = v->fields; f->path; f++)
        if (f->required && !(*(const uint64_t *)out >> (f - v->fields) & 1))
            return err_set(r->e, EINVAL, "%s.%s is missing", v->name, f->path);
    return 0;
}

int view_scan_value(const struct view *v, struct scan *s, const struct scan_tok *t, struct arena *a,
                    void **out, struct err *e)
{
    struct err ignored = {0};
    struct reader r = {s, a, e ? e : &ignored};
    void *object = arena_calloc(a, v->size);
    int rc = object ? read_object(&r, v, t, object, 0) : too_large(&r);
    if (!rc)
        *out = object;
    return rc;
}

int view_scan(const struct view *v, struct str text, struct arena *a, void **out, struct err *e)
{
    struct scan s;
    struct scan_tok t;
    scan_init(&s, text, JSON_MAX_DEPTH);
    int rc = scan_next(&s, &t);
    rc = rc ? scan_why(&s, e) : view_scan_value(v, &s, &t, a, out, e);
    if (!rc && (scan_next(&s, &t) || t.kind != SCAN_END))
        rc = scan_why(&s, e);
    scan_fini(&s);
    return rc;
}
