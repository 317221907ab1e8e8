/* Values: containers, truth, equality, order, and reading them from JSON. */
#include "lib/json/scan.h"
#include "lib/llm/jinja.h"
#include "lib/llm/utf8.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#define JSON_DEPTH 100

int jinja_fail(struct render *r, int code, const char *fmt, ...)
{
    char msg[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    return err_set(r->e, code, "chat template line %u: %s", r->line, msg);
}

int jinja_no_memory(struct render *r)
{
    return jinja_fail(r, E2BIG, "rendering needs more than %zu MiB of memory", r->a.max >> 20);
}

int jinja_charge(struct render *r, size_t steps)
{
    r->steps += steps;
    return r->steps > r->max_steps
               ? jinja_fail(r, E2BIG, "rendering takes more than %zu steps", r->max_steps)
               : 0;
}

struct val v_str(struct str s)
{
    return (struct val){.kind = V_STR, .s = s};
}

struct val v_int(int64_t i)
{
    return (struct val){.kind = V_INT, .i = i};
}

struct val v_bool(bool b)
{
    return (struct val){.kind = V_BOOL, .b = b};
}

struct val v_none(void)
{
    return (struct val){.kind = V_NONE};
}

struct val v_undefined(struct str what)
{
    return (struct val){.kind = V_UNDEFINED, .s = what};
}

const char *v_kind_name(const struct val *v)
{
    static const char *const names[] = {"undefined", "None",  "bool",     "int",   "int",
                                        "float",     "str",   "list",     "dict",  "namespace",
                                        "loop",      "macro", "function", "method"};
    return v->kind == V_LIST && v->l->tuple ? "tuple" : names[v->kind];
}

bool v_truth(const struct val *v)
{
    switch (v->kind) {
    case V_UNDEFINED:
    case V_NONE: return false;
    case V_BOOL: return v->b;
    case V_INT: return v->i != 0;
    case V_FLOAT: return v->f != 0;
    case V_STR: return v->s.n > 0;
    case V_LIST: return v->l->n > 0;
    case V_DICT: return v->d->n > 0;
    default: return true;
    }
}

bool v_is_int(const struct val *v, int64_t *i)
{
    *i = v->kind == V_BOOL ? v->b : v->kind == V_INT ? v->i : 0;
    return v->kind == V_BOOL || v->kind == V_INT;
}

int v_number(const struct val *v, double *f)
{
    int64_t i;
    if (v_is_int(v, &i))
        *f = (double)i;
    else if (v->kind == V_FLOAT)
        *f = v->f;
    else if (v->kind == V_BIG)
        *f = v->s.n < 320 && v->s.p[0] == '-' ? -HUGE_VAL : HUGE_VAL;
    else
        return -EINVAL;
    return 0;
}

static bool lists_equal(const struct vlist *a, const struct vlist *b, int depth)
{
    if (a->n != b->n || a->tuple != b->tuple)
        return false;
    for (size_t i = 0; i < a->n; i++)
        if (!v_equal(&a->v[i], &b->v[i], depth))
            return false;
    return true;
}

static bool dicts_equal(const struct vdict *a, const struct vdict *b, int depth)
{
    struct val other;
    if (a->n != b->n)
        return false;
    for (size_t i = 0; i < a->n; i++)
        if (!v_get(b, &a->p[i].k, &other) || !v_equal(&a->p[i].v, &other, depth))
            return false;
    return true;
}

bool v_equal(const struct val *a, const struct val *b, int depth)
{
    int64_t i, j;
    double f, g;
    if (depth > JSON_DEPTH + 20)
        return false;
    if (v_is_int(a, &i) && v_is_int(b, &j))
        return i == j;
    if (a->kind == V_BIG && b->kind == V_BIG)
        return str_eq(a->s, b->s);
    if (!v_number(a, &f) && !v_number(b, &g))
        return f == g;
    if (a->kind != b->kind)
        return false;
    switch (a->kind) {
    case V_UNDEFINED:
    case V_NONE: return true;
    case V_STR:
    case V_FUNCTION: return str_eq(a->s, b->s);
    case V_LIST: return lists_equal(a->l, b->l, depth + 1);
    case V_DICT: return dicts_equal(a->d, b->d, depth + 1);
    case V_NAMESPACE: return a->d == b->d;
    case V_LOOP: return a->loop == b->loop;
    case V_MACRO: return a->macro == b->macro;
    default: return false;
    }
}

static int str_order(struct str a, struct str b)
{
    size_t n = a.n < b.n ? a.n : b.n;
    int c = n ? memcmp(a.p, b.p, n) : 0; /* UTF-8 orders as code points do */
    return c ? c : (a.n > b.n) - (a.n < b.n);
}

int v_order(struct render *r, const struct val *a, const struct val *b, int *out)
{
    int64_t i, j;
    double f, g;
    if (v_is_int(a, &i) && v_is_int(b, &j)) {
        *out = (i > j) - (i < j);
        return 0;
    }
    if (!v_number(a, &f) && !v_number(b, &g)) {
        *out = (f > g) - (f < g);
        return 0;
    }
    if (a->kind == V_STR && b->kind == V_STR) {
        *out = str_order(a->s, b->s);
        return 0;
    }
    if (a->kind != V_LIST || b->kind != V_LIST)
        return jinja_fail(r, EINVAL, "%s and %s can't be ordered", v_kind_name(a), v_kind_name(b));
    for (size_t k = 0; k < a->l->n && k < b->l->n; k++)
        if (!v_equal(&a->l->v[k], &b->l->v[k], 0)) {
            int rc = jinja_charge(r, k + 1);
            if (!rc && ++r->depth > JINJA_MAX_DEPTH)
                rc = jinja_fail(r, E2BIG, "lists are nested too deep");
            if (!rc)
                rc = v_order(r, &a->l->v[k], &b->l->v[k], out);
            r->depth--;
            return rc;
        }
    *out = (a->l->n > b->l->n) - (a->l->n < b->l->n);
    return 0;
}

/* ---- containers ---- */

int v_new_list(struct render *r, bool tuple, struct val *out)
{
    struct vlist *l = arena_calloc(&r->a, sizeof *l);
    if (!l)
        return jinja_no_memory(r);
    l->tuple = tuple;
    *out = (struct val){.kind = V_LIST, .l = l};
    return 0;
}

int v_push(struct render *r, struct vlist *l, struct val v)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 8;
        struct val *p = arena_alloc(&r->a, cap * sizeof *p);
        if (!p)
            return jinja_no_memory(r);
        if (l->n)
            memcpy(p, l->v, l->n * sizeof *p);
        l->v = p;
        l->cap = cap;
    }
    l->v[l->n++] = v;
    return 0;
}

int v_new_dict(struct render *r, struct val *out)
{
    struct vdict *d = arena_calloc(&r->a, sizeof *d);
    if (!d)
        return jinja_no_memory(r);
    *out = (struct val){.kind = V_DICT, .d = d};
    return 0;
}

static struct val *slot_of(const struct vdict *d, const struct val *k)
{
    for (size_t i = 0; i < d->n; i++)
        if (v_equal(&d->p[i].k, k, 0))
            return &d->p[i].v;
    return NULL;
}

static int append_pair(struct render *r, struct vdict *d, struct val k, struct val v)
{
    if (d->n == d->cap) {
        size_t cap = d->cap ? d->cap * 2 : 8;
        struct vpair *p = arena_alloc(&r->a, cap * sizeof *p);
        if (!p)
            return jinja_no_memory(r);
        if (d->n)
            memcpy(p, d->p, d->n * sizeof *p);
        d->p = p;
        d->cap = cap;
    }
    d->p[d->n++] = (struct vpair){k, v};
    return 0;
}

int v_put(struct render *r, struct vdict *d, struct val k, struct val v)
{
    int rc = jinja_charge(r, d->n / 8 + 1);
    struct val *at = rc ? NULL : slot_of(d, &k);
    if (at)
        *at = v;
    return rc || at ? rc : append_pair(r, d, k, v);
}

bool v_get(const struct vdict *d, const struct val *k, struct val *out)
{
    const struct val *at = slot_of(d, k);
    if (at)
        *out = *at;
    return at;
}

bool v_get_c(const struct vdict *d, const char *k, struct val *out)
{
    struct val key = v_str(str_c(k));
    return v_get(d, &key, out);
}

static int characters(struct render *r, struct str s, struct vlist *l)
{
    uint32_t cp;
    int rc = jinja_charge(r, s.n);
    for (size_t i = 0; i < s.n && !rc;) {
        size_t k = utf8_next(s.p + i, s.n - i, &cp);
        rc = v_push(r, l, v_str((struct str){s.p + i, k}));
        i += k;
    }
    return rc;
}

int v_items(struct render *r, const struct val *v, struct vlist **out)
{
    struct val list = {0};
    if (v->kind == V_LIST) {
        *out = v->l;
        return 0;
    }
    int rc = v_new_list(r, false, &list);
    if (rc)
        return rc;
    *out = list.l;
    switch (v->kind) {
    case V_UNDEFINED: return 0;
    case V_STR: return characters(r, v->s, list.l);
    case V_DICT:
        rc = jinja_charge(r, v->d->n);
        for (size_t i = 0; i < v->d->n && !rc; i++)
            rc = v_push(r, list.l, v->d->p[i].k);
        return rc;
    default: return jinja_fail(r, EINVAL, "%s is not iterable", v_kind_name(v));
    }
}

/* ---- from JSON ---- */

static int number_from_json(struct render *r, struct str text, struct val *out)
{
    (void)r;
    bool real = false;
    for (size_t i = 0; i < text.n; i++)
        real |= text.p[i] == '.' || text.p[i] == 'e' || text.p[i] == 'E';
    if (!real) {
        *out = (struct val){.kind = V_INT};
        if (str_to_i64(text, INT64_MIN, INT64_MAX, &out->i))
            *out = (struct val){.kind = V_BIG, .s = text};
        return 0;
    }
    char *z = arena_dup(&r->a, text);
    if (!z)
        return jinja_no_memory(r);
    *out = (struct val){.kind = V_FLOAT, .f = strtod(z, NULL)};
    return 0;
}

static int value_from(struct render *r, struct scan *s, const struct scan_tok *t, struct val *out);

static int list_from(struct render *r, struct scan *s, struct val *out)
{
    struct scan_tok t;
    struct val v;
    int rc = v_new_list(r, false, out), more = 0;
    while (!rc && (more = scan_element(s, &t)) > 0) {
        rc = value_from(r, s, &t, &v);
        if (!rc)
            rc = v_push(r, out->l, v);
    }
    return rc ? rc : more;
}

static int dict_from(struct render *r, struct scan *s, struct val *out)
{
    struct scan_tok k, t;
    struct str key;
    struct val v;
    int rc = v_new_dict(r, out), more = 0;
    while (!rc && (more = scan_member(s, &k, &t)) > 0) {
        rc = scan_text(&k, &r->a, &key) ? jinja_no_memory(r) : value_from(r, s, &t, &v);
        if (!rc)
            rc = append_pair(r, out->d, v_str(key), v); /* the scanner refuses doubles */
    }
    return rc ? rc : more;
}

static int value_from(struct render *r, struct scan *s, const struct scan_tok *t, struct val *out)
{
    struct str text;
    int rc = jinja_charge(r, 1);
    if (rc)
        return rc;
    switch (t->kind) {
    case SCAN_STRING:
        if (scan_text(t, &r->a, &text))
            return jinja_no_memory(r);
        *out = v_str(text);
        return 0;
    case SCAN_NUMBER: return number_from_json(r, t->text, out);
    case SCAN_TRUE:
    case SCAN_FALSE: *out = v_bool(t->kind == SCAN_TRUE); return 0;
    case SCAN_ARRAY: return list_from(r, s, out);
    case SCAN_OBJECT: return dict_from(r, s, out);
    default: *out = v_none(); return 0;
    }
}

int v_from_json(struct render *r, struct str json, const char *what, struct val *out)
{
    struct scan s;
    struct scan_tok t;
    scan_init(&s, json, JSON_DEPTH);
    int rc = scan_next(&s, &t);
    if (!rc)
        rc = value_from(r, &s, &t, out);
    if (!rc)
        rc = scan_next(&s, &t);
    if (s.why) {
        rc = scan_why(&s, r->e);
        if (r->e)
            err_wrap(r->e, "%s", what);
    }
    scan_fini(&s);
    return rc;
}
