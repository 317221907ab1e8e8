/* Filters. Source: Jinja2's list of builtin filters; tojson as transformers defines it (json.dumps,
 * no HTML escapes). */
#include "lib/llm/jinja.h"
#include "lib/llm/utf8.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define FILTER(name)                                                                               \
    static int name(struct render *r, const struct val *v, const struct args *a, struct val *out)

typedef int filter_fn(struct render *r, const struct val *v, const struct args *a, struct val *out);

static int full(struct render *r, struct buf *b, int rc, struct val *out)
{
    if (!rc)
        return v_take(r, b, out);
    buf_fini(b);
    return rc == -EMSGSIZE || rc == -ENOMEM ? jinja_no_memory(r) : rc;
}

static int int_arg(struct render *r, const struct args *a, size_t i, const char *name, int64_t dflt,
                   int64_t *out)
{
    const struct val *v = jinja_arg(a, i, name);
    *out = dflt;
    if (!v || v->kind == V_NONE)
        return 0;
    return v_is_int(v, out)
               ? 0
               : jinja_fail(r, EINVAL, "'%s' must be an integer, not %s", name, v_kind_name(v));
}

/* ---- text ---- */

FILTER(f_tojson)
{
    int64_t indent;
    const struct val *sorted = jinja_arg(a, 3, "sort_keys"),
                     *ascii = jinja_arg(a, 4, "ensure_ascii");
    struct buf b = v_buf(r);
    int rc = int_arg(r, a, 0, "indent", -1, &indent);
    if (!rc && indent > 100)
        rc = jinja_fail(r, EINVAL, "'indent' is too large");
    if (!rc)
        rc = v_json(r, v, (int)indent, sorted && v_truth(sorted), ascii && v_truth(ascii), &b);
    return full(r, &b, rc, out);
}

FILTER(f_trim)
{
    struct str s;
    int rc = v_text(r, v, &s);
    return rc ? rc : jinja_trim(r, s, jinja_arg(a, 0, "chars"), 3, out);
}

static int cased(struct render *r, const struct val *v, enum str_case how, struct val *out)
{
    struct str s;
    int rc = v_text(r, v, &s);
    return rc ? rc : jinja_case(r, s, how, out);
}

FILTER(f_upper)
{
    (void)a;
    return cased(r, v, CASE_UPPER, out);
}
FILTER(f_lower)
{
    (void)a;
    return cased(r, v, CASE_LOWER, out);
}
FILTER(f_title)
{
    (void)a;
    return cased(r, v, CASE_TITLE, out);
}
FILTER(f_capitalize)
{
    (void)a;
    return cased(r, v, CASE_CAPITALIZE, out);
}

FILTER(f_string)
{
    struct str s;
    (void)a;
    int rc = v_text(r, v, &s);
    *out = v_str(s);
    return rc;
}

FILTER(f_replace)
{
    struct str s, from, to;
    const struct val *x = jinja_arg(a, 0, "old"), *y = jinja_arg(a, 1, "new");
    int64_t max;
    int rc = x && y ? int_arg(r, a, 2, "count", -1, &max)
                    : jinja_fail(r, EINVAL, "replace needs an old and a new string");
    if (!rc)
        rc = v_text(r, v, &s);
    if (!rc)
        rc = v_text(r, x, &from);
    if (!rc)
        rc = v_text(r, y, &to);
    return rc ? rc : jinja_replace(r, s, from, to, max, out);
}

FILTER(f_indent)
{
    const struct val *w = jinja_arg(a, 0, "width"), *first = jinja_arg(a, 1, "first"),
                     *blank = jinja_arg(a, 2, "blank");
    bool indent_first = first && v_truth(first), indent_blank = blank && v_truth(blank);
    int64_t width = 4;
    struct str s, pad = STR("");
    struct buf b = v_buf(r);
    if (w && w->kind == V_STR)
        pad = w->s;
    else if (w && (!v_is_int(w, &width) || width < 0 || width > 1000))
        return jinja_fail(r, EINVAL, "'width' must be a string or an integer from 0 to 1000");
    int rc = v_text(r, v, &s);
    bool at_line = true, is_first = true;
    for (size_t i = 0; i < s.n && !rc; i++) {
        bool wanted =
            at_line && (is_first ? indent_first : true) && (indent_blank || s.p[i] != '\n');
        for (int64_t k = 0; wanted && !pad.n && k < width && !rc && !(w && w->kind == V_STR); k++)
            rc = buf_append(&b, " ", 1);
        if (wanted && !rc)
            rc = buf_str(&b, pad);
        if (!rc)
            rc = buf_append(&b, s.p + i, 1);
        at_line = s.p[i] == '\n';
        is_first = is_first && !at_line;
    }
    return full(r, &b, rc, out);
}

FILTER(f_escape)
{
    static const char from[] = "&<>'\"", *const to[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    struct str s;
    struct buf b = v_buf(r);
    (void)a;
    int rc = v_text(r, v, &s);
    for (size_t i = 0; i < s.n && !rc; i++) {
        const char *hit = s.p[i] ? strchr(from, s.p[i]) : NULL;
        rc = hit ? buf_cstr(&b, to[hit - from]) : buf_append(&b, s.p + i, 1);
    }
    return full(r, &b, rc, out);
}

FILTER(f_join)
{
    const struct val *sep = jinja_arg(a, 0, "d"), *attr = jinja_arg(a, 1, "attribute");
    struct vlist *l = NULL;
    struct buf b = v_buf(r);
    int rc = v_items(r, v, &l);
    for (size_t i = 0; !rc && i < l->n; i++) {
        struct val item = l->v[i];
        rc = i && sep ? v_print(r, sep, &b) : 0;
        if (!rc && attr && attr->kind == V_STR)
            rc = jinja_item(r, &l->v[i], attr, &item);
        if (!rc)
            rc = v_print(r, &item, &b);
    }
    return full(r, &b, rc, out);
}

FILTER(f_wordcount)
{
    struct val words;
    struct args none = {0};
    struct str s;
    (void)a;
    int rc = v_text(r, v, &s);
    if (rc)
        return rc;
    rc = jinja_str_method(r, s, STR("split"), &none, &words);
    if (!rc)
        *out = v_int((int64_t)words.l->n);
    return rc;
}

/* ---- numbers ---- */

FILTER(f_int)
{
    int64_t dflt, i;
    double f;
    int rc = int_arg(r, a, 0, "default", 0, &dflt);
    *out = v_int(dflt);
    if (rc)
        return rc;
    if (v_is_int(v, &i)) {
        *out = v_int(i);
    } else if (v->kind == V_FLOAT && fabs(v->f) < 9e18) {
        *out = v_int((int64_t)v->f);
    } else if (v->kind == V_STR) {
        struct str s = str_trim(v->s);
        if (!str_to_i64(s, INT64_MIN, INT64_MAX, &i))
            *out = v_int(i);
        else if (!str_to_f64(s, -9e18, 9e18, &f))
            *out = v_int((int64_t)f);
    }
    return 0;
}

FILTER(f_float)
{
    const struct val *d = jinja_arg(a, 0, "default");
    double f = 0;
    if (v->kind == V_STR) {
        if (str_to_f64(str_trim(v->s), -HUGE_VAL, HUGE_VAL, &f) && d)
            (void)(v_number(d, &f) == 0);
    } else if (v_number(v, &f)) {
        f = 0;
        if (d)
            (void)(v_number(d, &f) == 0);
    }
    (void)r;
    *out = (struct val){.kind = V_FLOAT, .f = f};
    return 0;
}

FILTER(f_abs)
{
    struct val zero = v_int(0);
    double f;
    (void)a;
    if (v_number(v, &f))
        return jinja_fail(r, EINVAL, "bad operand type for abs(): %s", v_kind_name(v));
    if (v->kind == V_FLOAT) {
        *out = (struct val){.kind = V_FLOAT, .f = fabs(f)};
        return 0;
    }
    return jinja_binary(r, f < 0 ? OP_SUB : OP_ADD, &zero, v, out);
}

FILTER(f_round)
{
    const struct val *method = jinja_arg(a, 1, "method");
    int64_t digits;
    double f;
    int rc = int_arg(r, a, 0, "precision", 0, &digits);
    if (!rc && (v_number(v, &f) || digits < -20 || digits > 20))
        rc = jinja_fail(r, EINVAL, "round needs a number and a precision of -20 to 20");
    if (rc)
        return rc;
    double scale = pow(10, (double)digits), x = f * scale;
    bool up = method && method->kind == V_STR && str_eq_c(method->s, "ceil");
    bool down = method && method->kind == V_STR && str_eq_c(method->s, "floor");
    *out = (struct val){.kind = V_FLOAT,
                        .f = (up     ? ceil(x)
                              : down ? floor(x)
                                     : nearbyint(x)) /
                             scale};
    return 0;
}

FILTER(f_sum)
{
    const struct val *attr = jinja_arg(a, 0, "attribute"), *start = jinja_arg(a, 1, "start");
    struct vlist *l = NULL;
    int rc = v_items(r, v, &l);
    *out = start ? *start : v_int(0);
    for (size_t i = 0; !rc && i < l->n; i++) {
        struct val item = l->v[i], total = *out;
        if (attr && attr->kind == V_STR)
            rc = jinja_item(r, &l->v[i], attr, &item);
        if (!rc)
            rc = jinja_binary(r, OP_ADD, &total, &item, out);
    }
    return rc;
}

/* ---- lists ---- */

FILTER(f_length)
{
    (void)a;
    size_t n = 0;
    switch (v->kind) {
    case V_STR: n = utf8_count(v->s); break;
    case V_LIST: n = v->l->n; break;
    case V_DICT: n = v->d->n; break;
    case V_UNDEFINED: break;
    default: return jinja_fail(r, EINVAL, "object of type '%s' has no len()", v_kind_name(v));
    }
    *out = v_int((int64_t)n);
    return jinja_charge(r, v->kind == V_STR ? n / 16 : 0);
}

FILTER(f_default)
{
    const struct val *d = jinja_arg(a, 0, "default_value"), *boolean = jinja_arg(a, 1, "boolean");
    (void)r;
    bool missing = v->kind == V_UNDEFINED || (boolean && v_truth(boolean) && !v_truth(v));
    *out = missing ? d ? *d : v_str(STR("")) : *v;
    return 0;
}

static int end_item(struct render *r, const struct val *v, bool last, struct val *out)
{
    struct vlist *l;
    int rc = v_items(r, v, &l);
    if (!rc)
        *out = l->n ? l->v[last ? l->n - 1 : 0]
                    : v_undefined(STR("No first or last item, sequence was empty."));
    return rc;
}

FILTER(f_first)
{
    (void)a;
    return end_item(r, v, false, out);
}
FILTER(f_last)
{
    (void)a;
    return end_item(r, v, true, out);
}

FILTER(f_list)
{
    struct vlist *l;
    (void)a;
    int rc = v_items(r, v, &l);
    if (!rc)
        rc = v_new_list(r, false, out);
    for (size_t i = 0; !rc && i < l->n; i++)
        rc = v_push(r, out->l, l->v[i]);
    return rc ? rc : jinja_charge(r, out->l->n);
}

FILTER(f_reverse)
{
    struct vlist *l;
    struct buf b = v_buf(r);
    (void)a;
    int rc = v_items(r, v, &l);
    if (!rc)
        rc = v_new_list(r, false, out);
    for (size_t i = rc ? 0 : l->n; !rc && i-- > 0;)
        rc = v->kind == V_STR ? buf_str(&b, l->v[i].s) : v_push(r, out->l, l->v[i]);
    if (v->kind == V_STR)
        return full(r, &b, rc, out);
    return rc;
}

/* A stable merge sort, so that the comparison may fail. */
struct sorting {
    struct render *r;
    const struct val *attr;
    bool ignore_case, reverse;
};

static int sort_key(const struct sorting *s, const struct val *v, struct val *out)
{
    struct val k = *v;
    int rc = s->attr ? jinja_item(s->r, v, s->attr, &k) : 0;
    if (!rc && s->ignore_case && k.kind == V_STR)
        rc = jinja_case(s->r, k.s, CASE_LOWER, &k);
    *out = k;
    return rc;
}

static int merge_sort(const struct sorting *s, struct vpair *p, struct vpair *tmp, size_t n)
{
    if (n < 2)
        return 0;
    size_t half = n / 2, i = 0, j = half, k = 0;
    int rc = merge_sort(s, p, tmp, half), order;
    if (!rc)
        rc = merge_sort(s, p + half, tmp, n - half);
    while (!rc && i < half && j < n) {
        rc = jinja_charge(s->r, 1);
        if (!rc)
            rc = v_order(s->r, &p[j].k, &p[i].k, &order);
        tmp[k++] = !rc && (s->reverse ? order > 0 : order < 0) ? p[j++] : p[i++];
    }
    if (rc)
        return rc;
    while (i < half)
        tmp[k++] = p[i++];
    memcpy(p, tmp, k * sizeof *p);
    return 0;
}

/* Sorts the items of l into a new list; pairs of (key, item) in between. */
static int sort_items(const struct sorting *s, const struct vlist *l, struct val *out)
{
    struct render *r = s->r;
    struct vpair *p = arena_alloc(&r->a, (2 * l->n + 1) * sizeof *p);
    int rc = p ? v_new_list(r, false, out) : jinja_no_memory(r);
    for (size_t i = 0; i < l->n && !rc; i++) {
        p[i].v = l->v[i];
        rc = sort_key(s, &l->v[i], &p[i].k);
    }
    if (!rc)
        rc = merge_sort(s, p, p + l->n, l->n);
    for (size_t i = 0; i < l->n && !rc; i++)
        rc = v_push(r, out->l, p[i].v);
    return rc;
}

static bool true_arg(const struct args *a, size_t i, const char *name)
{
    const struct val *v = jinja_arg(a, i, name);
    return v && v_truth(v);
}

FILTER(f_sort)
{
    struct vlist *l;
    struct sorting s = {r, jinja_arg(a, 2, "attribute"), !true_arg(a, 1, "case_sensitive"),
                        true_arg(a, 0, "reverse")};
    int rc = v_items(r, v, &l);
    return rc ? rc : sort_items(&s, l, out);
}

/* (key, value) tuples. */
static int pairs_of(struct render *r, const struct val *v, struct val *out)
{
    int rc = v->kind == V_DICT || v->kind == V_UNDEFINED
                 ? v_new_list(r, false, out)
                 : jinja_fail(r, EINVAL, "Can only get item pairs from a mapping.");
    for (size_t i = 0; !rc && v->kind == V_DICT && i < v->d->n; i++) {
        struct val pair;
        rc = v_new_list(r, true, &pair);
        if (!rc)
            rc = v_push(r, pair.l, v->d->p[i].k);
        if (!rc)
            rc = v_push(r, pair.l, v->d->p[i].v);
        if (!rc)
            rc = v_push(r, out->l, pair);
    }
    return rc;
}

FILTER(f_items)
{
    (void)a;
    return pairs_of(r, v, out);
}

FILTER(f_dictsort)
{
    const struct val *by = jinja_arg(a, 1, "by");
    struct val pairs, index = v_int(by && by->kind == V_STR && str_eq_c(by->s, "value"));
    struct sorting s = {r, &index, !true_arg(a, 0, "case_sensitive"), true_arg(a, 2, "reverse")};
    int rc = pairs_of(r, v, &pairs);
    return rc ? rc : sort_items(&s, pairs.l, out);
}

FILTER(f_unique)
{
    struct vlist *l;
    struct val keys;
    struct sorting s = {r, jinja_arg(a, 1, "attribute"), !true_arg(a, 0, "case_sensitive"), false};
    int rc = v_items(r, v, &l);
    if (!rc)
        rc = v_new_list(r, false, out);
    if (!rc)
        rc = v_new_list(r, false, &keys);
    for (size_t i = 0; !rc && i < l->n; i++) {
        struct val k;
        bool seen = false;
        rc = sort_key(&s, &l->v[i], &k);
        if (!rc)
            rc = jinja_contains(r, &keys, &k, &seen);
        if (!rc && !seen)
            rc = v_push(r, keys.l, k);
        if (!rc && !seen)
            rc = v_push(r, out->l, l->v[i]);
    }
    return rc;
}

static int extreme(struct render *r, const struct val *v, const struct args *a, int sign,
                   struct val *out)
{
    struct vlist *l;
    struct sorting s = {r, jinja_arg(a, 1, "attribute"), !true_arg(a, 0, "case_sensitive"), false};
    struct val best = v_none(), k;
    int rc = v_items(r, v, &l), order = 0;
    *out = v_undefined(STR("No aggregated item, sequence was empty."));
    for (size_t i = 0; !rc && i < l->n; i++) {
        rc = sort_key(&s, &l->v[i], &k);
        if (!rc && i)
            rc = v_order(r, &k, &best, &order);
        if (!rc && (i == 0 || order * sign > 0)) {
            best = k;
            *out = l->v[i];
        }
    }
    return rc;
}

FILTER(f_min)
{
    return extreme(r, v, a, -1, out);
}
FILTER(f_max)
{
    return extreme(r, v, a, 1, out);
}

/* ---- filters that take filters or tests ---- */

static struct args rest_of(const struct args *a, size_t skip)
{
    struct args b = {0};
    for (size_t i = skip; i < a->n; i++)
        b.v[b.n++] = a->v[i];
    return b;
}

FILTER(f_map)
{
    const struct val *attr = jinja_arg(a, JINJA_MAX_ARGS, "attribute"),
                     *dflt = jinja_arg(a, JINJA_MAX_ARGS, "default");
    struct args rest = rest_of(a, 1);
    struct vlist *l;
    int rc = v_items(r, v, &l);
    if (!rc)
        rc = v_new_list(r, false, out);
    if (!rc && !attr && (a->n == 0 || a->v[0].kind != V_STR || !jinja_is_filter(a->v[0].s)))
        rc = jinja_fail(r, EINVAL, "map needs an attribute or the name of a filter");
    for (size_t i = 0; !rc && i < l->n; i++) {
        struct val item;
        rc = attr ? jinja_item(r, &l->v[i], attr, &item)
                  : jinja_filter(r, a->v[0].s, &l->v[i], &rest, &item);
        if (!rc && attr && item.kind == V_UNDEFINED && dflt)
            item = *dflt;
        if (!rc)
            rc = v_push(r, out->l, item);
    }
    return rc;
}

/* select, reject and their attribute forms: `keep` what passes the test (no test: what is true). */
static int pick(struct render *r, const struct val *v, const struct args *a, bool by_attr,
                bool keep, struct val *out)
{
    size_t at = by_attr;
    const struct val *test = at < a->n ? &a->v[at] : NULL;
    struct args rest = rest_of(a, at + 1);
    struct vlist *l;
    int rc = v_items(r, v, &l);
    if (!rc)
        rc = v_new_list(r, false, out);
    if (!rc &&
        ((by_attr && a->n == 0) || (test && (test->kind != V_STR || !jinja_is_test(test->s)))))
        rc = jinja_fail(r, EINVAL,
                        "select and reject need an attribute and tests that are supported");
    for (size_t i = 0; !rc && i < l->n; i++) {
        struct val item = l->v[i];
        bool yes = false;
        rc = jinja_charge(r, 1);
        if (!rc && by_attr)
            rc = jinja_item(r, &l->v[i], &a->v[0], &item);
        if (!rc && test)
            rc = jinja_test(r, test->s, &item, &rest, &yes);
        else
            yes = v_truth(&item);
        if (!rc && yes == keep)
            rc = v_push(r, out->l, l->v[i]);
    }
    return rc;
}

FILTER(f_select)
{
    return pick(r, v, a, false, true, out);
}
FILTER(f_reject)
{
    return pick(r, v, a, false, false, out);
}
FILTER(f_selectattr)
{
    return pick(r, v, a, true, true, out);
}
FILTER(f_rejectattr)
{
    return pick(r, v, a, true, false, out);
}

FILTER(f_attr)
{
    const struct val *name = jinja_arg(a, 0, "name");
    if (!name || name->kind != V_STR)
        return jinja_fail(r, EINVAL, "attr needs a name");
    return jinja_attr(r, v, name->s, out);
}

FILTER(f_batch)
{
    int64_t size;
    struct vlist *l;
    struct val row = v_none();
    const struct val *fill = jinja_arg(a, 1, "fill_with");
    int rc = int_arg(r, a, 0, "linecount", 0, &size);
    if (!rc && (size < 1 || size > 1 << 20))
        rc = jinja_fail(r, EINVAL, "batch needs a size");
    if (!rc)
        rc = v_items(r, v, &l);
    if (!rc)
        rc = v_new_list(r, false, out);
    for (size_t i = 0; !rc && i < l->n; i++) {
        if (i % (size_t)size == 0) {
            rc = v_new_list(r, false, &row);
            if (!rc)
                rc = v_push(r, out->l, row);
        }
        if (!rc)
            rc = v_push(r, row.l, l->v[i]);
    }
    while (!rc && fill && row.kind == V_LIST && (int64_t)row.l->n < size)
        rc = v_push(r, row.l, *fill);
    return rc;
}

FILTER(f_same)
{
    (void)r;
    (void)a;
    *out = *v;
    return 0;
}

static const struct {
    const char *name;
    filter_fn *fn;
} filters[] = {
    {"tojson", f_tojson},
    {"trim", f_trim},
    {"length", f_length},
    {"count", f_length},
    {"join", f_join},
    {"default", f_default},
    {"d", f_default},
    {"first", f_first},
    {"last", f_last},
    {"map", f_map},
    {"select", f_select},
    {"reject", f_reject},
    {"selectattr", f_selectattr},
    {"rejectattr", f_rejectattr},
    {"list", f_list},
    {"dictsort", f_dictsort},
    {"unique", f_unique},
    {"indent", f_indent},
    {"safe", f_same},
    {"string", f_string},
    {"int", f_int},
    {"float", f_float},
    {"capitalize", f_capitalize},
    {"items", f_items},
    {"upper", f_upper},
    {"lower", f_lower},
    {"title", f_title},
    {"replace", f_replace},
    {"reverse", f_reverse},
    {"sort", f_sort},
    {"abs", f_abs},
    {"round", f_round},
    {"sum", f_sum},
    {"min", f_min},
    {"max", f_max},
    {"attr", f_attr},
    {"e", f_escape},
    {"escape", f_escape},
    {"wordcount", f_wordcount},
    {"batch", f_batch},
};

static filter_fn *filter_of(struct str name)
{
    for (size_t i = 0; i < sizeof filters / sizeof *filters; i++)
        if (str_eq_c(name, filters[i].name))
            return filters[i].fn;
    return NULL;
}

bool jinja_is_filter(struct str name)
{
    return filter_of(name);
}

int jinja_filter(struct render *r, struct str name, const struct val *v, const struct args *a,
                 struct val *out)
{
    filter_fn *fn = filter_of(name);
    int rc = jinja_charge(r, 1);
    if (rc)
        return rc;
    return fn ? fn(r, v, a, out)
              : jinja_fail(r, EINVAL, "there is no filter '%.*s'", STR_ARG(name));
}
