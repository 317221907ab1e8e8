/* Tests ("x is defined"), global functions, and methods of containers. */
#include "lib/llm/jinja.h"

#include <errno.h>
#include <stdio.h>
#include <time.h>

#define MAX_RANGE 1000000

/* ---- tests ---- */

enum test {
    IS_DEFINED,
    IS_UNDEFINED,
    IS_NONE,
    IS_STRING,
    IS_MAPPING,
    IS_ITERABLE,
    IS_SEQUENCE,
    IS_NUMBER,
    IS_INTEGER,
    IS_FLOAT,
    IS_BOOLEAN,
    IS_TRUE,
    IS_FALSE,
    IS_CALLABLE,
    IS_ODD,
    IS_EVEN,
    IS_UPPER,
    IS_LOWER,
    /* with an argument */
    IS_EQ,
    IS_NE,
    IS_LT,
    IS_LE,
    IS_GT,
    IS_GE,
    IS_IN,
    IS_SAMEAS,
    IS_DIVISIBLEBY,
    IS_FILTER,
    IS_TEST
};
static const struct {
    const char *name;
    enum test test;
} tests[] = {
    {"defined", IS_DEFINED},
    {"undefined", IS_UNDEFINED},
    {"none", IS_NONE},
    {"string", IS_STRING},
    {"mapping", IS_MAPPING},
    {"iterable", IS_ITERABLE},
    {"sequence", IS_SEQUENCE},
    {"number", IS_NUMBER},
    {"integer", IS_INTEGER},
    {"float", IS_FLOAT},
    {"boolean", IS_BOOLEAN},
    {"true", IS_TRUE},
    {"false", IS_FALSE},
    {"callable", IS_CALLABLE},
    {"odd", IS_ODD},
    {"even", IS_EVEN},
    {"upper", IS_UPPER},
    {"lower", IS_LOWER},
    {"eq", IS_EQ},
    {"==", IS_EQ},
    {"equalto", IS_EQ},
    {"ne", IS_NE},
    {"!=", IS_NE},
    {"lt", IS_LT},
    {"lessthan", IS_LT},
    {"le", IS_LE},
    {"gt", IS_GT},
    {"greaterthan", IS_GT},
    {"ge", IS_GE},
    {"in", IS_IN},
    {"sameas", IS_SAMEAS},
    {"divisibleby", IS_DIVISIBLEBY},
    {"filter", IS_FILTER},
    {"test", IS_TEST},
};

bool jinja_is_test(struct str name)
{
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        if (str_eq_c(name, tests[i].name))
            return true;
    return false;
}

static int parity(struct render *r, const struct val *v, const struct val *by, int64_t want,
                  bool *out)
{
    int64_t i, d = 2;
    if (!v_is_int(v, &i) || (by && (!v_is_int(by, &d) || d == 0)))
        return jinja_fail(r, EINVAL, "a divisibility test needs integers");
    *out = d == -1 ? want == 0 : i % d == want || i % d == -want;
    return 0;
}

static int text_case(struct render *r, const struct val *v, const char *method, bool *out)
{
    struct args none = {0};
    struct val yes;
    struct str s;
    int rc = v_text(r, v, &s);
    if (!rc)
        rc = jinja_str_method(r, s, str_c(method), &none, &yes);
    *out = !rc && yes.b;
    return rc;
}

static int ordered(struct render *r, enum test t, const struct val *v, const struct val *other,
                   bool *out)
{
    int order;
    int rc = v_order(r, v, other, &order);
    if (!rc)
        *out = t == IS_LT   ? order < 0
               : t == IS_LE ? order <= 0
               : t == IS_GT ? order > 0
                            : order >= 0;
    return rc;
}

static int compare_test(struct render *r, enum test t, const struct val *v, const struct val *other,
                        bool *out)
{
    if (!other)
        return jinja_fail(r, EINVAL, "this test needs an argument");
    switch (t) {
    case IS_EQ: *out = v_equal(v, other, 0); return 0;
    case IS_NE: *out = !v_equal(v, other, 0); return 0;
    case IS_IN: return jinja_contains(r, other, v, out);
    case IS_SAMEAS:
        *out = v->kind == other->kind && (v->kind == V_LIST   ? v->l == other->l
                                          : v->kind == V_DICT ? v->d == other->d
                                                              : v_equal(v, other, 0));
        return 0;
    case IS_DIVISIBLEBY: return parity(r, v, other, 0, out);
    default: return ordered(r, t, v, other, out);
    }
}

static bool kind_test(enum test t, const struct val *v)
{
    enum val_kind k = v->kind;
    bool integer = k == V_INT || k == V_BIG;
    switch (t) {
    case IS_DEFINED: return k != V_UNDEFINED;
    case IS_UNDEFINED: return k == V_UNDEFINED;
    case IS_NONE: return k == V_NONE;
    case IS_STRING: return k == V_STR;
    case IS_MAPPING: return k == V_DICT;
    case IS_ITERABLE:
        return k == V_STR || k == V_LIST || k == V_DICT || k == V_UNDEFINED || k == V_LOOP;
    case IS_SEQUENCE: return k == V_STR || k == V_LIST || k == V_DICT || k == V_UNDEFINED;
    case IS_NUMBER: return integer || k == V_FLOAT || k == V_BOOL;
    case IS_INTEGER: return integer;
    case IS_FLOAT: return k == V_FLOAT;
    case IS_BOOLEAN: return k == V_BOOL;
    case IS_TRUE: return k == V_BOOL && v->b;
    case IS_FALSE: return k == V_BOOL && !v->b;
    default: return k >= V_MACRO;
    }
}

int jinja_test(struct render *r, struct str name, const struct val *v, const struct args *a,
               bool *out)
{
    size_t i = 0;
    while (i < sizeof tests / sizeof *tests && !str_eq_c(name, tests[i].name))
        i++;
    if (i == sizeof tests / sizeof *tests)
        return jinja_fail(r, EINVAL, "there is no test '%.*s'", STR_ARG(name));
    enum test t = tests[i].test;
    switch (t) {
    case IS_ODD:
    case IS_EVEN: return parity(r, v, NULL, t == IS_ODD, out);
    case IS_UPPER: return text_case(r, v, "isupper", out);
    case IS_LOWER: return text_case(r, v, "islower", out);
    case IS_FILTER:
    case IS_TEST:
        *out = v->kind == V_STR && (t == IS_FILTER ? jinja_is_filter(v->s) : jinja_is_test(v->s));
        return 0;
    default: break;
    }
    if (t >= IS_EQ)
        return compare_test(r, t, v, jinja_arg(a, 0, "other"), out);
    *out = kind_test(t, v);
    return 0;
}

/* ---- global functions ---- */

static int g_range(struct render *r, const struct args *a, struct val *out)
{
    int64_t v[3] = {0, 0, 1};
    for (size_t i = 0; i < a->n && i < 3; i++)
        if (!v_is_int(&a->v[i], &v[i]))
            return jinja_fail(r, EINVAL, "range() needs integers");
    if (a->n == 0 || a->n > 3 || v[2] == 0)
        return jinja_fail(r, EINVAL, "range() takes 1 to 3 integers, the last one not 0");
    int64_t from = a->n > 1 ? v[0] : 0, to = a->n > 1 ? v[1] : v[0];
    int rc = v_new_list(r, false, out);
    for (int64_t i = from; !rc && (v[2] > 0 ? i < to : i > to); i += v[2]) {
        if (out->l->n == MAX_RANGE)
            return jinja_fail(r, E2BIG, "range() is larger than %d", MAX_RANGE);
        rc = jinja_charge(r, 1);
        if (!rc)
            rc = v_push(r, out->l, v_int(i));
        if (v[2] > 0 ? i > INT64_MAX - v[2] : i < INT64_MIN - v[2])
            break;
    }
    return rc;
}

static int g_dict(struct render *r, const struct args *a, struct val *out)
{
    int rc = v_new_dict(r, out);
    for (size_t i = 0; i < a->n && !rc; i++) {
        if (a->v[i].kind != V_DICT)
            return jinja_fail(r, EINVAL, "dict() takes a mapping and named values");
        for (size_t k = 0; k < a->v[i].d->n && !rc; k++)
            rc = v_put(r, out->d, a->v[i].d->p[k].k, a->v[i].d->p[k].v);
    }
    for (size_t i = 0; i < a->n_kw && !rc; i++)
        rc = v_put(r, out->d, v_str(a->kw[i].name), a->kw[i].v);
    return rc;
}

static int g_namespace(struct render *r, const struct args *a, struct val *out)
{
    int rc = g_dict(r, a, out);
    out->kind = V_NAMESPACE;
    return rc;
}

static int g_raise(struct render *r, const struct args *a, struct val *out)
{
    struct str s = STR("the template refused the conversation");
    (void)out;
    int rc = a->n ? v_text(r, &a->v[0], &s) : 0;
    if (rc)
        return rc;
    r->raised = true;
    return err_set(r->e, EBADMSG, "%.*s", (int)(s.n > 480 ? 480 : s.n), s.p);
}

static int g_strftime(struct render *r, const struct args *a, struct val *out)
{
    char format[128], text[512];
    time_t t = (time_t)(r->now_wall_ns / 1000000000u);
    struct tm tm;
    if (a->n != 1 || a->v[0].kind != V_STR || a->v[0].s.n >= sizeof format)
        return jinja_fail(r, EINVAL, "strftime_now() needs a format of at most %zu bytes",
                          sizeof format - 1);
    memcpy(format, a->v[0].s.p, a->v[0].s.n);
    format[a->v[0].s.n] = 0;
    gmtime_r(&t, &tm);
    size_t n = strftime(text, sizeof text, format, &tm);
    char *p = arena_dup(&r->a, (struct str){text, n});
    if (!p)
        return jinja_no_memory(r);
    *out = v_str((struct str){p, n});
    return 0;
}

static const struct {
    const char *name;
    int (*fn)(struct render *r, const struct args *a, struct val *out);
} globals[] = {
    {"range", g_range},           {"dict", g_dict},
    {"namespace", g_namespace},   {"raise_exception", g_raise},
    {"strftime_now", g_strftime},
};

bool jinja_is_global(struct str name)
{
    for (size_t i = 0; i < sizeof globals / sizeof *globals; i++)
        if (str_eq_c(name, globals[i].name))
            return true;
    return false;
}

int jinja_global(struct render *r, struct str name, const struct args *a, struct val *out)
{
    for (size_t i = 0; i < sizeof globals / sizeof *globals; i++)
        if (str_eq_c(name, globals[i].name))
            return globals[i].fn(r, a, out);
    return jinja_fail(r, EINVAL, "there is no function '%.*s'", STR_ARG(name));
}

/* ---- methods of dicts, lists and loops ---- */

static int dict_part(struct render *r, const struct vdict *d, int part, struct val *out)
{
    int rc = v_new_list(r, false, out);
    for (size_t i = 0; i < d->n && !rc; i++)
        rc = v_push(r, out->l, part ? d->p[i].v : d->p[i].k);
    return rc;
}

static int dict_method(struct render *r, const struct val *self, struct str name,
                       const struct args *a, struct val *out)
{
    struct args none = {0};
    if (str_eq_c(name, "items"))
        return jinja_filter(r, STR("items"), self, &none, out);
    if (str_eq_c(name, "keys"))
        return dict_part(r, self->d, 0, out);
    if (str_eq_c(name, "values"))
        return dict_part(r, self->d, 1, out);
    if (str_eq_c(name, "copy")) {
        struct args one = {.v = {*self}, .n = 1};
        return g_dict(r, &one, out);
    }
    if (!str_eq_c(name, "get") || a->n == 0)
        return jinja_fail(r, EINVAL, "dict.%.*s() is not allowed in chat templates", STR_ARG(name));
    if (!v_get(self->d, &a->v[0], out))
        *out = a->n > 1 ? a->v[1] : v_none();
    return jinja_charge(r, self->d->n / 8);
}

static int list_method(struct render *r, const struct val *self, struct str name,
                       const struct args *a, struct val *out)
{
    int64_t count = 0;
    struct args none = {0};
    if (str_eq_c(name, "copy"))
        return jinja_filter(r, STR("list"), self, &none, out);
    bool index = str_eq_c(name, "index");
    if ((!index && !str_eq_c(name, "count")) || a->n != 1)
        return jinja_fail(r, EINVAL, "list.%.*s() is not allowed in chat templates", STR_ARG(name));
    int rc = jinja_charge(r, self->l->n);
    for (size_t i = 0; i < self->l->n && !rc; i++) {
        if (!v_equal(&self->l->v[i], &a->v[0], 0))
            continue;
        count++;
        if (index) {
            *out = v_int((int64_t)i);
            return 0;
        }
    }
    *out = v_int(count);
    return !rc && index ? jinja_fail(r, EINVAL, "the value is not in the list") : rc;
}

static int loop_method(struct render *r, struct loop *l, struct str name, const struct args *a,
                       struct val *out)
{
    if (str_eq_c(name, "cycle")) {
        if (a->n == 0)
            return jinja_fail(r, EINVAL, "no items for cycling given");
        *out = a->v[l->at % a->n];
        return 0;
    }
    struct val now;
    int rc = v_new_list(r, true, &now);
    for (size_t i = 0; i < a->n && !rc; i++)
        rc = v_push(r, now.l, a->v[i]);
    if (rc)
        return rc;
    *out = v_bool(!l->has_changed || !v_equal(&l->last_changed, &now, 0));
    l->has_changed = true;
    l->last_changed = now;
    return 0;
}

int jinja_method(struct render *r, const struct vmethod *m, const struct args *a, struct val *out)
{
    switch (m->self.kind) {
    case V_STR: return jinja_str_method(r, m->self.s, m->name, a, out);
    case V_DICT: return dict_method(r, &m->self, m->name, a, out);
    case V_LIST: return list_method(r, &m->self, m->name, a, out);
    default: return loop_method(r, m->self.loop, m->name, a, out);
    }
}
