#include "local/cel_int.h"
#include "local/regex.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define BAD(e, name) err_set(e, EINVAL, "no such overload: %s", name)

static int ret(struct value *out, json_t *j)
{
    *out = (struct value){.kind = V_JSON, .j = j};
    return j ? 0 : -ENOMEM;
}

static const char *text(const struct value *v)
{
    return v->kind == V_JSON ? json_string_value(v->j) : NULL;
}

static bool integer(const struct value *v, json_int_t *out)
{
    if (v->kind != V_JSON || !json_is_integer(v->j))
        return false;
    *out = json_integer_value(v->j);
    return true;
}

static size_t code_points(const char *s)
{
    size_t n = 0;
    for (; *s; s++)
        n += ((unsigned char)*s & 0xc0) != 0x80;
    return n;
}

static int fn_size(const struct value *a, int n, struct value *out, struct err *e)
{
    (void)n;
    const char *s = text(a);
    if (s)
        return ret(out, json_integer((json_int_t)code_points(s)));
    if (a->kind == V_JSON && json_is_array(a->j))
        return ret(out, json_integer((json_int_t)json_array_size(a->j)));
    if (a->kind == V_JSON && json_is_object(a->j))
        return ret(out, json_integer((json_int_t)json_object_size(a->j)));
    return BAD(e, "size");
}

static int fn_starts(const struct value *a, int n, struct value *out, struct err *e)
{
    const char *s = text(a), *x = text(a + 1);
    (void)n;
    return s && x ? ret(out, json_boolean(str_starts(str_c(s), str_c(x)))) : BAD(e, "startsWith");
}

static int fn_ends(const struct value *a, int n, struct value *out, struct err *e)
{
    const char *s = text(a), *x = text(a + 1);
    (void)n;
    return s && x ? ret(out, json_boolean(str_ends(str_c(s), str_c(x)))) : BAD(e, "endsWith");
}

static int fn_contains(const struct value *a, int n, struct value *out, struct err *e)
{
    const char *s = text(a), *x = text(a + 1);
    (void)n;
    return s && x ? ret(out, json_boolean(strstr(s, x) != NULL)) : BAD(e, "contains");
}

static int fn_matches(const struct value *a, int n, struct value *out, struct err *e)
{
    const char *s = text(a), *x = text(a + 1);
    struct regex *re;
    (void)n;
    if (!s || !x)
        return BAD(e, "matches");
    int rc = regex_new(x, &re, e);
    if (rc)
        return rc;
    bool hit = regex_match(re, str_c(s));
    regex_free(re);
    return ret(out, json_boolean(hit));
}

static int map_case(const struct value *a, struct value *out, struct err *e, bool upper)
{
    const char *s = text(a);
    if (!s)
        return BAD(e, "lowerAscii");
    CLEANUP(free_charp) char *z = xstrdup(s);
    for (char *p = z; *p; p++)
        if (!((unsigned char)*p & 0x80))
            *p = (char)(upper ? toupper(*p) : tolower(*p));
    return ret(out, json_string(z));
}

static int fn_lower(const struct value *a, int n, struct value *out, struct err *e)
{
    (void)n;
    return map_case(a, out, e, false);
}

static int fn_upper(const struct value *a, int n, struct value *out, struct err *e)
{
    (void)n;
    return map_case(a, out, e, true);
}

static int fn_trim(const struct value *a, int n, struct value *out, struct err *e)
{
    const char *s = text(a);
    (void)n;
    if (!s)
        return BAD(e, "trim");
    struct str t = str_trim(str_c(s));
    return ret(out, json_stringn(t.p, t.n));
}

static int fn_split(const struct value *a, int n, struct value *out, struct err *e)
{
    const char *s = text(a), *sep = text(a + 1);
    json_int_t limit = -1;
    if (!s || !sep || !*sep || (n == 3 && !integer(a + 2, &limit)))
        return BAD(e, "split");
    json_t *l = json_array();
    for (const char *at; limit != 0 && (at = strstr(s, sep)) &&
                         (limit < 0 || (json_int_t)json_array_size(l) + 1 < limit);
         s = at + strlen(sep))
        json_array_append_new(l, json_stringn(s, (size_t)(at - s)));
    if (limit != 0)
        json_array_append_new(l, json_string(s));
    return ret(out, l);
}

static int fn_join(const struct value *a, int n, struct value *out, struct err *e)
{
    const char *sep = n == 2 ? text(a + 1) : "";
    struct buf b;
    size_t i;
    json_t *v;
    if (a->kind != V_JSON || !json_is_array(a->j) || !sep)
        return BAD(e, "join");
    buf_init(&b, 1 << 20);
    int rc = buf_cstr(&b, "");
    json_array_foreach (a->j, i, v) {
        const char *s = json_string_value(v);
        rc = rc ? rc : s ? buf_printf(&b, "%s%s", i ? sep : "", s) : BAD(e, "join");
    }
    rc = rc ? rc : ret(out, json_stringn(b.data, b.n));
    buf_fini(&b);
    return rc;
}

static int fn_replace(const struct value *a, int n, struct value *out, struct err *e)
{
    const char *s = text(a), *from = text(a + 1), *to = text(a + 2), *at;
    struct buf b;
    (void)n;
    if (!s || !from || !to || !*from)
        return BAD(e, "replace");
    buf_init(&b, 1 << 20);
    int rc = buf_cstr(&b, "");
    for (; !rc && (at = strstr(s, from)); s = at + strlen(from))
        rc = buf_append(&b, s, (size_t)(at - s)) ? -EMSGSIZE : buf_cstr(&b, to);
    rc = rc ? rc : buf_cstr(&b, s);
    rc = rc ? rc : ret(out, json_stringn(b.data, b.n));
    buf_fini(&b);
    return rc;
}

static size_t offset_of(const char *s, json_int_t code_point)
{
    size_t i = 0;
    for (; s[i] && code_point > 0; code_point--)
        for (i++; ((unsigned char)s[i] & 0xc0) == 0x80; i++)
            ;
    return i;
}

static int fn_substring(const struct value *a, int n, struct value *out, struct err *e)
{
    const char *s = text(a);
    json_int_t from = 0, to = s ? (json_int_t)code_points(s) : 0, size = to;
    if (!s || !integer(a + 1, &from) || (n == 3 && !integer(a + 2, &to)))
        return BAD(e, "substring");
    if (from < 0 || to < from || to > size)
        return err_set(e, ERANGE, "substring(): index out of range");
    size_t i = offset_of(s, from), k = offset_of(s, to);
    return ret(out, json_stringn(s + i, k - i));
}

static int fn_index_of(const struct value *a, int n, struct value *out, struct err *e)
{
    (void)n;
    const char *s = text(a), *x = text(a + 1);
    if (!s || !x)
        return BAD(e, "indexOf");
    const char *at = strstr(s, x);
    if (!at)
        return ret(out, json_integer(-1));
    CLEANUP(free_charp) char *head = str_dup((struct str){s, (size_t)(at - s)});
    return ret(out, json_integer((json_int_t)code_points(head)));
}

static int fn_int(const struct value *a, int n, struct value *out, struct err *e)
{
    int64_t v;
    const char *s = text(a);
    (void)n;
    if (s)
        return str_to_i64(str_c(s), INT64_MIN, INT64_MAX, &v)
                   ? err_set(e, EINVAL, "int(): \"%s\" is not an integer", s)
                   : ret(out, json_integer(v));
    if (a->kind == V_JSON && json_is_integer(a->j))
        return ret(out, json_incref(a->j));
    if (a->kind == V_JSON && json_is_real(a->j) && fabs(json_real_value(a->j)) < 9.2e18)
        return ret(out, json_integer((json_int_t)json_real_value(a->j)));
    return BAD(e, "int");
}

static int fn_double(const struct value *a, int n, struct value *out, struct err *e)
{
    double v;
    const char *s = text(a);
    (void)n;
    if (s)
        return str_to_f64(str_c(s), -1e308, 1e308, &v)
                   ? err_set(e, EINVAL, "double(): \"%s\" is not a number", s)
                   : ret(out, json_real(v));
    return a->kind == V_JSON && json_is_number(a->j) ? ret(out, json_real(json_number_value(a->j)))
                                                     : BAD(e, "double");
}

static int fn_string(const struct value *a, int n, struct value *out, struct err *e)
{
    (void)n;
    if (text(a))
        return ret(out, json_incref(a->j));
    if (a->kind == V_JSON && json_is_integer(a->j))
        return ret(out, json_sprintf("%lld", (long long)json_integer_value(a->j)));
    if (a->kind == V_JSON && json_is_real(a->j))
        return ret(out, json_sprintf("%.17g", json_real_value(a->j)));
    if (a->kind == V_JSON && json_is_boolean(a->j))
        return ret(out, json_string(json_is_true(a->j) ? "true" : "false"));
    return BAD(e, "string");
}

/* Go's duration text: "1h30m", "300ms", "-2.5s". */
static bool parse_duration(const char *s, double *seconds)
{
    static const struct {
        const char *unit;
        double s;
    } units[] = {{"ns", 1e-9}, {"us", 1e-6}, {"ms", 1e-3}, {"h", 3600}, {"m", 60}, {"s", 1}};
    bool neg = *s == '-', any = false;
    double total = 0;
    s += neg || *s == '+';
    if (strcmp(s, "0") == 0)
        return *seconds = 0, true;
    while (*s) {
        char *end;
        if (!isdigit((unsigned char)*s) && *s != '.')
            return false;
        double v = strtod(s, &end);
        size_t i = 0;
        while (i < 6 && strncmp(end, units[i].unit, strlen(units[i].unit)) != 0)
            i++;
        if (end == s || i == 6)
            return false;
        total += v * units[i].s;
        s = end + strlen(units[i].unit);
        any = true;
    }
    *seconds = neg ? -total : total;
    return any;
}

static int fn_duration(const struct value *a, int n, struct value *out, struct err *e)
{
    double s;
    (void)n;
    if (!text(a) || !parse_duration(text(a), &s))
        return err_set(e, EINVAL, "duration(): not a duration such as 30s or 1h30m");
    *out = (struct value){.kind = V_DURATION, .num = s};
    return 0;
}

static int fn_quantity(const struct value *a, int n, struct value *out, struct err *e)
{
    int64_t milli;
    (void)n;
    if (!text(a) || str_to_quantity_milli(str_c(text(a)), &milli))
        return err_set(e, EINVAL, "quantity(): not a quantity such as 500m or 2Gi");
    *out = (struct value){.kind = V_QUANTITY, .num = (double)milli / 1000};
    return 0;
}

static int fn_is_quantity(const struct value *a, int n, struct value *out, struct err *e)
{
    int64_t milli;
    (void)n;
    return text(a) ? ret(out, json_boolean(str_to_quantity_milli(str_c(text(a)), &milli) == 0))
                   : BAD(e, "isQuantity");
}

static int compare_method(const struct value *a, struct value *out, struct err *e, int sign)
{
    int order;
    int rc = a->kind == V_JSON ? BAD(e, "isLessThan") : value_compare(a, a + 1, &order, e);
    return rc ? rc : ret(out, json_boolean(order * sign > 0));
}

static int fn_less(const struct value *a, int n, struct value *out, struct err *e)
{
    (void)n;
    return compare_method(a, out, e, -1);
}

static int fn_greater(const struct value *a, int n, struct value *out, struct err *e)
{
    (void)n;
    return compare_method(a, out, e, 1);
}

static int fn_is_url(const struct value *a, int n, struct value *out, struct err *e)
{
    const char *s = text(a);
    (void)n;
    if (!s)
        return BAD(e, "isURL");
    size_t i = 0;
    while (isalnum((unsigned char)s[i]) || (i && strchr("+-.", s[i]) && s[i]))
        i++;
    return ret(out, json_boolean(i > 0 && isalpha((unsigned char)s[0]) &&
                                 strncmp(s + i, "://", 3) == 0 && s[i + 3]));
}

/* sum, min, max and isSorted of a list of numbers or strings. */
static int fold_list(const struct value *a, struct value *out, struct err *e, int which)
{
    if (a->kind != V_JSON || !json_is_array(a->j))
        return BAD(e, "sum, min, max, isSorted");
    struct value best = {0};
    double sum = 0;
    json_int_t isum = 0;
    bool sorted = true, whole = true;
    size_t i;
    json_t *v;
    json_array_foreach (a->j, i, v) {
        struct value x = {.kind = V_JSON, .j = v};
        int order = 0, rc = best.j ? value_compare(&x, &best, &order, e) : 0;
        if (rc)
            return rc;
        sorted &= !best.j || order >= 0;
        if (!best.j || which == 3 || (which == 1 && order < 0) || (which == 2 && order > 0))
            best = x;
        whole &= json_is_integer(v);
        isum += json_integer_value(v);
        sum += json_number_value(v);
    }
    if (which == 0)
        return ret(out, whole ? json_integer(isum) : json_real(sum));
    if (which == 3)
        return ret(out, json_boolean(sorted));
    return best.j ? ret(out, json_incref(best.j))
                  : err_set(e, EINVAL, "min() or max() of an empty list");
}

static int fn_sum(const struct value *a, int n, struct value *out, struct err *e)
{
    (void)n;
    return fold_list(a, out, e, 0);
}

static int fn_min(const struct value *a, int n, struct value *out, struct err *e)
{
    (void)n;
    return fold_list(a, out, e, 1);
}

static int fn_max(const struct value *a, int n, struct value *out, struct err *e)
{
    (void)n;
    return fold_list(a, out, e, 2);
}

static int fn_is_sorted(const struct value *a, int n, struct value *out, struct err *e)
{
    (void)n;
    return fold_list(a, out, e, 3);
}

static int fn_type(const struct value *a, int n, struct value *out, struct err *e)
{
    static const char *const names[] = {"map",    "list", "string", "int",
                                        "double", "bool", "bool",   "null_type"};
    (void)n, (void)e;
    return ret(out, json_string(a->kind == V_JSON ? names[json_typeof(a->j)]
                                                  : "google.protobuf.Duration"));
}

static int fn_dyn(const struct value *a, int n, struct value *out, struct err *e)
{
    (void)n, (void)e;
    *out = *a;
    json_incref(a->kind == V_JSON ? a->j : NULL);
    return 0;
}

static const struct cel_fn table[] = {
    {"size", false, 1, 1, false, fn_size},
    {"size", true, 1, 1, false, fn_size},
    {"startsWith", true, 2, 2, true, fn_starts},
    {"endsWith", true, 2, 2, true, fn_ends},
    {"contains", true, 2, 2, true, fn_contains},
    {"matches", true, 2, 2, true, fn_matches},
    {"matches", false, 2, 2, true, fn_matches},
    {"lowerAscii", true, 1, 1, false, fn_lower},
    {"upperAscii", true, 1, 1, false, fn_upper},
    {"trim", true, 1, 1, false, fn_trim},
    {"split", true, 2, 3, false, fn_split},
    {"join", true, 1, 2, false, fn_join},
    {"replace", true, 3, 3, false, fn_replace},
    {"substring", true, 2, 3, false, fn_substring},
    {"indexOf", true, 2, 2, false, fn_index_of},
    {"int", false, 1, 1, false, fn_int},
    {"double", false, 1, 1, false, fn_double},
    {"string", false, 1, 1, false, fn_string},
    {"duration", false, 1, 1, false, fn_duration},
    {"quantity", false, 1, 1, false, fn_quantity},
    {"isQuantity", false, 1, 1, true, fn_is_quantity},
    {"isLessThan", true, 2, 2, true, fn_less},
    {"isGreaterThan", true, 2, 2, true, fn_greater},
    {"isURL", false, 1, 1, true, fn_is_url},
    {"sum", true, 1, 1, false, fn_sum},
    {"min", true, 1, 1, true, fn_min},
    {"max", true, 1, 1, true, fn_max},
    {"isSorted", true, 1, 1, true, fn_is_sorted},
    {"type", false, 1, 1, false, fn_type},
    {"dyn", false, 1, 1, true, fn_dyn},
};

const struct cel_fn *cel_fn_find(struct str name, bool method, int n_args)
{
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const struct cel_fn *f = &table[i];
        if (f->call && f->method == method && n_args >= f->min_args && n_args <= f->max_args &&
            str_eq_c(name, f->name))
            return f;
    }
    return NULL;
}
