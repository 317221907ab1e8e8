/* Operators, attributes, items and slices, with Python's meaning. */
#include "lib/llm/jinja.h"
#include "lib/llm/utf8.h"

#include <errno.h>
#include <math.h>

static int undefined_used(struct render *r, const struct val *v)
{
    return jinja_fail(r, EINVAL, "%.*s", (int)(v->s.n > 200 ? 200 : v->s.n), v->s.p);
}

static const char *op_name(enum op op)
{
    static const char *const names[] = {"+", "-", "*", "/", "//", "%", "**"};
    return op <= OP_POW ? names[op] : "?";
}

static int mismatch(struct render *r, enum op op, const struct val *a, const struct val *b)
{
    if (a->kind == V_UNDEFINED || b->kind == V_UNDEFINED)
        return undefined_used(r, a->kind == V_UNDEFINED ? a : b);
    return jinja_fail(r, EINVAL, "unsupported operand types for %s: %s and %s", op_name(op),
                      v_kind_name(a), v_kind_name(b));
}

static int overflow(struct render *r)
{
    return jinja_fail(r, ERANGE, "a number is too large");
}

static int int_pow(struct render *r, int64_t a, int64_t b, int64_t *out)
{
    int64_t result = 1;
    while (b > 0) {
        if (b & 1 && __builtin_mul_overflow(result, a, &result))
            return overflow(r);
        b >>= 1;
        if (b && __builtin_mul_overflow(a, a, &a))
            return overflow(r);
    }
    *out = result;
    return 0;
}

static int float_op(struct render *r, enum op op, double a, double b, struct val *out)
{
    double v = 0;
    if ((op == OP_DIV || op == OP_FLOORDIV || op == OP_MOD) && b == 0)
        return jinja_fail(r, EINVAL, "division by zero");
    switch (op) {
    case OP_ADD: v = a + b; break;
    case OP_SUB: v = a - b; break;
    case OP_MUL: v = a * b; break;
    case OP_DIV: v = a / b; break;
    case OP_FLOORDIV: v = floor(a / b); break;
    case OP_MOD:
        v = fmod(a, b);
        if (v != 0 && (v < 0) != (b < 0))
            v += b;
        break;
    default: v = pow(a, b); break;
    }
    *out = (struct val){.kind = V_FLOAT, .f = v};
    return 0;
}

static int int_op(struct render *r, enum op op, int64_t a, int64_t b, struct val *out)
{
    int64_t v = 0;
    bool over = false;
    if (op == OP_DIV || (op == OP_POW && b < 0))
        return float_op(r, op, (double)a, (double)b, out);
    if ((op == OP_FLOORDIV || op == OP_MOD) && b == 0)
        return jinja_fail(r, EINVAL, "integer division or modulo by zero");
    switch (op) {
    case OP_ADD: over = __builtin_add_overflow(a, b, &v); break;
    case OP_SUB: over = __builtin_sub_overflow(a, b, &v); break;
    case OP_MUL: over = __builtin_mul_overflow(a, b, &v); break;
    case OP_FLOORDIV:
        over = a == INT64_MIN && b == -1;
        v = over ? 0 : a / b - (a % b != 0 && (a < 0) != (b < 0));
        break;
    case OP_MOD:
        v = b == -1 ? 0 : a % b;
        v += v != 0 && (v < 0) != (b < 0) ? b : 0;
        break;
    default: {
        int rc = int_pow(r, a, b, &v);
        if (rc)
            return rc;
    }
    }
    *out = v_int(v);
    return over ? overflow(r) : 0;
}

static int join_strings(struct render *r, struct str a, struct str b, struct val *out)
{
    int rc = jinja_charge(r, (a.n + b.n) / 64);
    char *p = rc ? NULL : arena_alloc(&r->a, a.n + b.n + 1);
    if (!p)
        return rc ? rc : jinja_no_memory(r);
    if (a.n)
        memcpy(p, a.p, a.n);
    if (b.n)
        memcpy(p + a.n, b.p, b.n);
    p[a.n + b.n] = 0;
    *out = v_str((struct str){p, a.n + b.n});
    return 0;
}

static int join_lists(struct render *r, const struct vlist *a, const struct vlist *b,
                      struct val *out)
{
    int rc = v_new_list(r, a->tuple, out);
    if (!rc)
        rc = jinja_charge(r, a->n + b->n);
    for (size_t i = 0; i < a->n && !rc; i++)
        rc = v_push(r, out->l, a->v[i]);
    for (size_t i = 0; i < b->n && !rc; i++)
        rc = v_push(r, out->l, b->v[i]);
    return rc;
}

static int repeat(struct render *r, const struct val *v, int64_t times, struct val *out)
{
    size_t n = times > 0 ? (size_t)times : 0, unit = v->kind == V_STR ? v->s.n : v->l->n;
    if (unit && n > (64u << 20) / unit)
        return jinja_no_memory(r);
    int rc = jinja_charge(r, v->kind == V_STR ? n * unit / 64 : n * unit);
    if (rc)
        return rc;
    if (v->kind == V_STR) {
        char *p = arena_alloc(&r->a, n * unit + 1);
        if (!p)
            return jinja_no_memory(r);
        for (size_t i = 0; i < n; i++)
            memcpy(p + i * unit, v->s.p, unit);
        *out = v_str((struct str){p, n * unit});
        return 0;
    }
    rc = v_new_list(r, v->l->tuple, out);
    for (size_t i = 0; i < n * unit && !rc; i++)
        rc = v_push(r, out->l, v->l->v[i % unit]);
    return rc;
}

/* "%s" % value, "%d items" % (n,): %s, %d, %r, %%. */
static int percent_format(struct render *r, struct str f, const struct val *args, struct val *out)
{
    bool tuple = args->kind == V_LIST && args->l->tuple;
    const struct val *v = tuple ? args->l->v : args;
    size_t n = tuple ? args->l->n : 1, used = 0;
    struct buf b = v_buf(r);
    int rc = 0;
    for (size_t i = 0; i < f.n && !rc; i++) {
        char c = f.p[i], d = c == '%' && i + 1 < f.n ? f.p[++i] : 0;
        if (c != '%' || d == '%')
            rc = buf_append(&b, &c, 1);
        else if ((d != 's' && d != 'd' && d != 'r') || used == n)
            rc = jinja_fail(r, EINVAL, "a format string can't be used with these arguments");
        else
            rc = d == 'r' ? v_repr(r, &v[used++], &b, 0) : v_print(r, &v[used++], &b);
    }
    if (!rc)
        return v_take(r, &b, out);
    buf_fini(&b);
    return rc == -EMSGSIZE ? jinja_no_memory(r) : rc;
}

int jinja_binary(struct render *r, enum op op, const struct val *a, const struct val *b,
                 struct val *out)
{
    int64_t i, j;
    double f, g;
    bool a_seq = a->kind == V_STR || a->kind == V_LIST,
         b_seq = b->kind == V_STR || b->kind == V_LIST;
    if (v_is_int(a, &i) && v_is_int(b, &j))
        return int_op(r, op, i, j, out);
    if (!v_number(a, &f) && !v_number(b, &g))
        return float_op(r, op, f, g, out);
    if (op == OP_ADD && a->kind == V_STR && b->kind == V_STR)
        return join_strings(r, a->s, b->s, out);
    if (op == OP_ADD && a->kind == V_LIST && b->kind == V_LIST && a->l->tuple == b->l->tuple)
        return join_lists(r, a->l, b->l, out);
    if (op == OP_MUL && a_seq && v_is_int(b, &j))
        return repeat(r, a, j, out);
    if (op == OP_MUL && b_seq && v_is_int(a, &i))
        return repeat(r, b, i, out);
    if (op == OP_MOD && a->kind == V_STR)
        return percent_format(r, a->s, b, out);
    return mismatch(r, op, a, b);
}

int jinja_contains(struct render *r, const struct val *in, const struct val *what, bool *out)
{
    struct val ignored;
    int rc = jinja_charge(r, in->kind == V_STR ? in->s.n / 64 : in->kind == V_LIST ? in->l->n : 1);
    if (rc)
        return rc;
    *out = false;
    switch (in->kind) {
    case V_STR:
        if (what->kind != V_STR)
            return jinja_fail(r, EINVAL, "'in <string>' requires string as left operand, not %s",
                              v_kind_name(what));
        *out = what->s.n == 0 || (in->s.n && memmem(in->s.p, in->s.n, what->s.p, what->s.n));
        return 0;
    case V_LIST:
        for (size_t i = 0; i < in->l->n && !*out; i++)
            *out = v_equal(&in->l->v[i], what, 0);
        return 0;
    case V_DICT: *out = v_get(in->d, what, &ignored); return 0;
    case V_UNDEFINED: return 0;
    default: return jinja_fail(r, EINVAL, "argument of type %s is not iterable", v_kind_name(in));
    }
}

/* ---- attributes, items ---- */

static int bound(struct render *r, const struct val *self, struct str name, struct val *out)
{
    struct vmethod *m = arena_alloc(&r->a, sizeof *m);
    if (!m)
        return jinja_no_memory(r);
    *m = (struct vmethod){*self, name};
    *out = (struct val){.kind = V_METHOD, .method = m};
    return 0;
}

static bool one_of(struct str s, const char *const *names)
{
    for (; *names; names++)
        if (str_eq_c(s, *names))
            return true;
    return false;
}

static bool has_method(const struct val *v, struct str name)
{
    static const char *const of_dict[] = {"get",   "items",   "keys",     "values",
                                          "copy",  "update",  "pop",      "setdefault",
                                          "clear", "popitem", "fromkeys", NULL};
    static const char *const of_list[] = {"index",   "count",  "copy",  "append",
                                          "extend",  "insert", "pop",   "remove",
                                          "reverse", "sort",   "clear", NULL};
    static const char *const of_loop[] = {"cycle", "changed", NULL};
    switch (v->kind) {
    case V_STR: return jinja_is_str_method(name);
    case V_DICT: return one_of(name, of_dict);
    case V_LIST: return one_of(name, of_list);
    case V_LOOP: return one_of(name, of_loop);
    default: return false;
    }
}

static bool loop_attr(const struct loop *l, struct str name, struct val *out)
{
    size_t n = l->items->n, at = l->at;
    const struct {
        const char *name;
        struct val v;
    } attrs[] = {
        {"index", v_int((int64_t)at + 1)},
        {"index0", v_int((int64_t)at)},
        {"revindex", v_int((int64_t)(n - at))},
        {"revindex0", v_int((int64_t)(n - at) - 1)},
        {"first", v_bool(at == 0)},
        {"last", v_bool(at + 1 == n)},
        {"length", v_int((int64_t)n)},
        {"depth", v_int(l->depth + 1)},
        {"depth0", v_int(l->depth)},
        {"previtem", at > 0 ? l->items->v[at - 1] : v_undefined(STR("there is no previous item"))},
        {"nextitem", at + 1 < n ? l->items->v[at + 1] : v_undefined(STR("there is no next item"))},
    };
    for (size_t i = 0; i < sizeof attrs / sizeof *attrs; i++)
        if (str_eq_c(name, attrs[i].name)) {
            *out = attrs[i].v;
            return true;
        }
    return false;
}

static int undefined_attr(struct render *r, const struct val *v, struct str name, struct val *out)
{
    char *what = arena_printf(&r->a, "'%s object' has no attribute '%.*s'", v_kind_name(v),
                              (int)(name.n > 100 ? 100 : name.n), name.p);
    if (!what)
        return jinja_no_memory(r);
    *out = v_undefined(str_c(what));
    return 0;
}

int jinja_attr(struct render *r, const struct val *v, struct str name, struct val *out)
{
    struct val key = v_str(name);
    if (v->kind == V_UNDEFINED)
        return undefined_used(r, v);
    if (v->kind == V_LOOP && loop_attr(v->loop, name, out))
        return 0;
    if (has_method(v, name))
        return bound(r, v, name, out);
    if ((v->kind == V_DICT || v->kind == V_NAMESPACE) && v_get(v->d, &key, out))
        return 0;
    return undefined_attr(r, v, name, out);
}

/* Byte offset of character i of s; s.n past its end. */
static size_t char_offset(struct str s, size_t i)
{
    size_t at = 0;
    uint32_t cp;
    while (i-- && at < s.n)
        at += utf8_next(s.p + at, s.n - at, &cp);
    return at;
}

static int char_at(struct render *r, struct str s, int64_t i, struct val *out)
{
    uint32_t cp;
    int64_t n = (int64_t)utf8_count(s);
    int rc = jinja_charge(r, s.n / 64);
    if (rc)
        return rc;
    i += i < 0 ? n : 0;
    if (i < 0 || i >= n) {
        *out = v_undefined(STR("a string has no such element"));
        return 0;
    }
    size_t at = char_offset(s, (size_t)i);
    *out = v_str((struct str){s.p + at, utf8_next(s.p + at, s.n - at, &cp)});
    return 0;
}

int jinja_item(struct render *r, const struct val *v, const struct val *key, struct val *out)
{
    int64_t i;
    if (v->kind == V_UNDEFINED)
        return undefined_used(r, v);
    if (v->kind == V_DICT) {
        int rc = jinja_charge(r, v->d->n / 8);
        if (rc || v_get(v->d, key, out))
            return rc;
    } else if (v->kind == V_LIST && v_is_int(key, &i)) {
        i += i < 0 ? (int64_t)v->l->n : 0;
        *out = i >= 0 && i < (int64_t)v->l->n ? v->l->v[i]
                                              : v_undefined(STR("a list has no such element"));
        return 0;
    } else if (v->kind == V_STR && v_is_int(key, &i)) {
        return char_at(r, v->s, i, out);
    }
    if (key->kind == V_STR)
        return v->kind == V_DICT && !has_method(v, key->s) ? undefined_attr(r, v, key->s, out)
                                                           : jinja_attr(r, v, key->s, out);
    *out = v_undefined(STR("a value has no such element"));
    return 0;
}

/* ---- slices ---- */

static int bound_of(struct render *r, const struct val *v, int64_t dflt, int64_t n, int64_t low,
                    int64_t high, int64_t *out)
{
    if (!v || v->kind == V_NONE) {
        *out = dflt;
        return 0;
    }
    if (!v_is_int(v, out))
        return jinja_fail(r, EINVAL, "slice indices must be integers or None, not %s",
                          v_kind_name(v));
    if (*out < 0)
        *out = *out < -n ? low : *out + n;
    if (*out > high)
        *out = high;
    if (*out < low)
        *out = low;
    return 0;
}

static int slice_list(struct render *r, const struct vlist *l, int64_t from, int64_t to,
                      int64_t step, struct val *out)
{
    int rc = v_new_list(r, l->tuple, out);
    for (int64_t i = from; !rc && (step > 0 ? i < to : i > to); i += step) {
        rc = jinja_charge(r, 1);
        if (!rc)
            rc = v_push(r, out->l, l->v[i]);
    }
    return rc;
}

static int slice_str(struct render *r, struct str s, int64_t from, int64_t to, int64_t step,
                     struct val *out)
{
    struct val v = v_str(s), parts;
    struct vlist *chars;
    int rc = jinja_charge(r, s.n / 64);
    if (rc)
        return rc;
    if (step == 1) {
        size_t a = from < to ? char_offset(s, (size_t)from) : 0;
        size_t b = from < to ? char_offset(s, (size_t)to) : 0;
        *out = v_str((struct str){s.p + a, b - a});
        return 0;
    }
    rc = v_items(r, &v, &chars);
    if (!rc)
        rc = slice_list(r, chars, from, to, step, &parts);
    struct buf b = v_buf(r);
    for (size_t i = 0; !rc && i < parts.l->n; i++)
        rc = buf_str(&b, parts.l->v[i].s);
    if (!rc)
        return v_take(r, &b, out);
    buf_fini(&b);
    return rc == -EMSGSIZE ? jinja_no_memory(r) : rc;
}

int jinja_slice(struct render *r, const struct val *v, const struct val *from, const struct val *to,
                const struct val *step, struct val *out)
{
    int64_t by = 1, a, b;
    if (v->kind == V_UNDEFINED)
        return undefined_used(r, v);
    if (v->kind != V_LIST && v->kind != V_STR)
        return jinja_fail(r, EINVAL, "%s can't be sliced", v_kind_name(v));
    if (step && step->kind != V_NONE &&
        (!v_is_int(step, &by) || by == 0 || by < -INT32_MAX || by > INT32_MAX))
        return jinja_fail(r, EINVAL, "a slice step must be an integer other than 0");
    int64_t n = v->kind == V_LIST ? (int64_t)v->l->n : (int64_t)utf8_count(v->s);
    int64_t low = by < 0 ? -1 : 0, high = by < 0 ? n - 1 : n;
    int rc = bound_of(r, from, by < 0 ? n - 1 : 0, n, low, high, &a);
    if (!rc)
        rc = bound_of(r, to, by < 0 ? -1 : n, n, low, high, &b);
    if (rc)
        return rc;
    return v->kind == V_LIST ? slice_list(r, v->l, a, b, by, out)
                             : slice_str(r, v->s, a, b, by, out);
}
