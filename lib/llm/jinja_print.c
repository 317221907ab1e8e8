/* Values as text: what {{ }} prints, what repr() shows, what json.dumps writes. */
#include "lib/llm/jinja.h"
#include "lib/llm/utf8.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <utf8proc.h>

#define PRINT_DEPTH 130

struct buf v_buf(const struct render *r)
{
    struct buf b;
    buf_init(&b, r->max_capture);
    return b;
}

int v_take(struct render *r, struct buf *b, struct val *out)
{
    struct str s = buf_view(b);
    int rc = jinja_charge(r, s.n / 64);
    char *p = rc ? NULL : arena_dup(&r->a, s);
    buf_fini(b);
    if (!p)
        return rc ? rc : jinja_no_memory(r);
    *out = v_str((struct str){p, s.n});
    return 0;
}

static int full(struct render *r, int rc)
{
    return rc == -EMSGSIZE || rc == -ENOMEM ? jinja_fail(r, E2BIG, "the rendered text is too large")
                                            : rc;
}

/* Python's repr of a float: the shortest digits that read back the same. */
static int print_float(double f, struct buf *out)
{
    char text[40], digits[40];
    if (isnan(f))
        return buf_cstr(out, "nan");
    if (isinf(f))
        return buf_cstr(out, f < 0 ? "-inf" : "inf");
    int precision = 1;
    do
        snprintf(text, sizeof text, "%.*e", precision - 1, f);
    while (strtod(text, NULL) != f && ++precision <= 17);
    int exponent = atoi(strchr(text, 'e') + 1);
    if (exponent < -4 || exponent >= 16) {
        char *e = strchr(text, 'e');
        return buf_printf(out, "%.*se%c%02d", (int)(e - text), text, exponent < 0 ? '-' : '+',
                          abs(exponent));
    }
    int decimals = precision - 1 - exponent;
    snprintf(digits, sizeof digits, "%.*f", decimals > 1 ? decimals : 1, f);
    return buf_cstr(out, digits);
}

static bool printable(uint32_t cp)
{
    if (cp < 0x7f)
        return cp >= 0x20;
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    return c != UTF8PROC_CATEGORY_CC && c != UTF8PROC_CATEGORY_CF && c != UTF8PROC_CATEGORY_CS &&
           c != UTF8PROC_CATEGORY_CO && c != UTF8PROC_CATEGORY_CN && c != UTF8PROC_CATEGORY_ZL &&
           c != UTF8PROC_CATEGORY_ZP && c != UTF8PROC_CATEGORY_ZS;
}

static int repr_char(uint32_t cp, const char *p, size_t n, char quote, struct buf *out)
{
    if (cp == '\n')
        return buf_cstr(out, "\\n");
    if (cp == '\r')
        return buf_cstr(out, "\\r");
    if (cp == '\t')
        return buf_cstr(out, "\\t");
    if (cp == '\\' || cp == (uint32_t)quote)
        return buf_printf(out, "\\%c", (char)cp);
    if (printable(cp))
        return buf_append(out, p, n);
    return cp < 0x100     ? buf_printf(out, "\\x%02x", cp)
           : cp < 0x10000 ? buf_printf(out, "\\u%04x", cp)
                          : buf_printf(out, "\\U%08x", cp);
}

static int repr_str(struct str s, struct buf *out)
{
    char quote = s.n && memchr(s.p, '\'', s.n) && !memchr(s.p, '"', s.n) ? '"' : '\'';
    uint32_t cp;
    int rc = buf_append(out, &quote, 1);
    for (size_t i = 0; i < s.n && !rc;) {
        size_t k = utf8_next(s.p + i, s.n - i, &cp);
        rc = repr_char(cp, s.p + i, k, quote, out);
        i += k;
    }
    return rc ? rc : buf_append(out, &quote, 1);
}

static int repr_list(struct render *r, const struct vlist *l, struct buf *out, int depth)
{
    int rc = buf_cstr(out, l->tuple ? "(" : "[");
    for (size_t i = 0; i < l->n && !rc; i++) {
        rc = i ? buf_cstr(out, ", ") : 0;
        if (!rc)
            rc = v_repr(r, &l->v[i], out, depth + 1);
    }
    if (!rc && l->tuple && l->n == 1)
        rc = buf_cstr(out, ",");
    return rc ? rc : buf_cstr(out, l->tuple ? ")" : "]");
}

static int repr_dict(struct render *r, const struct vdict *d, struct buf *out, int depth)
{
    int rc = buf_cstr(out, "{");
    for (size_t i = 0; i < d->n && !rc; i++) {
        rc = i ? buf_cstr(out, ", ") : 0;
        if (!rc)
            rc = v_repr(r, &d->p[i].k, out, depth + 1);
        if (!rc)
            rc = buf_cstr(out, ": ");
        if (!rc)
            rc = v_repr(r, &d->p[i].v, out, depth + 1);
    }
    return rc ? rc : buf_cstr(out, "}");
}

int v_repr(struct render *r, const struct val *v, struct buf *out, int depth)
{
    int rc = jinja_charge(r, 1 + (v->kind == V_STR ? v->s.n / 64 : 0));
    if (!rc && depth > PRINT_DEPTH)
        rc = jinja_fail(r, E2BIG, "a value is nested too deep");
    if (rc)
        return rc;
    switch (v->kind) {
    case V_UNDEFINED: return full(r, buf_cstr(out, "Undefined"));
    case V_NONE: return full(r, buf_cstr(out, "None"));
    case V_BOOL: return full(r, buf_cstr(out, v->b ? "True" : "False"));
    case V_INT: return full(r, buf_printf(out, "%lld", (long long)v->i));
    case V_BIG: return full(r, buf_str(out, v->s));
    case V_FLOAT: return full(r, print_float(v->f, out));
    case V_STR: return full(r, repr_str(v->s, out));
    case V_LIST: return full(r, repr_list(r, v->l, out, depth));
    case V_DICT: return full(r, repr_dict(r, v->d, out, depth));
    default: return full(r, buf_printf(out, "<%s>", v_kind_name(v)));
    }
}

int v_print(struct render *r, const struct val *v, struct buf *out)
{
    if (v->kind == V_STR)
        return full(r, buf_str(out, v->s));
    return v->kind == V_UNDEFINED ? 0 : v_repr(r, v, out, 0);
}

int v_text(struct render *r, const struct val *v, struct str *out)
{
    if (v->kind == V_STR) {
        *out = v->s;
        return 0;
    }
    struct buf b = v_buf(r);
    struct val s;
    int rc = v_print(r, v, &b);
    if (rc) {
        buf_fini(&b);
        return rc;
    }
    rc = v_take(r, &b, &s);
    if (!rc)
        *out = s.s;
    return rc;
}

/* ---- json.dumps ---- */

struct dump {
    struct render *r;
    struct buf *out;
    int indent; /* < 0: one line */
    bool sorted, ascii;
};
static int dump(const struct dump *d, const struct val *v, int depth);

static int dump_char(const struct dump *d, uint32_t cp, const char *p, size_t n)
{
    static const char from[] = "\"\\\n\r\t\b\f", *const to[] = {"\\\"", "\\\\", "\\n", "\\r",
                                                                "\\t",  "\\b",  "\\f"};
    const char *hit = cp && cp < 0x80 ? strchr(from, (int)cp) : NULL;
    if (hit)
        return buf_cstr(d->out, to[hit - from]);
    if (cp < 0x20 || (d->ascii && cp >= 0x7f && cp < 0x10000 && cp != 0x7f))
        return buf_printf(d->out, "\\u%04x", cp);
    if (d->ascii && cp >= 0x10000)
        return buf_printf(d->out, "\\u%04x\\u%04x", 0xd800 + ((cp - 0x10000) >> 10),
                          0xdc00 + (cp & 0x3ff));
    return buf_append(d->out, p, n);
}

static int dump_str(const struct dump *d, struct str s)
{
    uint32_t cp;
    int rc = buf_cstr(d->out, "\"");
    for (size_t i = 0; i < s.n && !rc;) {
        size_t k = utf8_next(s.p + i, s.n - i, &cp);
        rc = dump_char(d, cp, s.p + i, k);
        i += k;
    }
    return rc ? rc : buf_cstr(d->out, "\"");
}

static int new_line(const struct dump *d, int depth)
{
    if (d->indent < 0)
        return 0;
    int rc = buf_cstr(d->out, "\n");
    for (int i = 0; i < d->indent * depth && !rc; i++)
        rc = buf_cstr(d->out, " ");
    return rc;
}

static int dump_separator(const struct dump *d, size_t i, int depth)
{
    int rc = i ? buf_cstr(d->out, d->indent < 0 ? ", " : ",") : 0;
    return rc ? rc : new_line(d, depth);
}

static int dump_list(const struct dump *d, const struct vlist *l, int depth)
{
    if (l->n == 0)
        return buf_cstr(d->out, "[]");
    int rc = buf_cstr(d->out, "[");
    for (size_t i = 0; i < l->n && !rc; i++) {
        rc = dump_separator(d, i, depth + 1);
        if (!rc)
            rc = dump(d, &l->v[i], depth + 1);
    }
    if (!rc)
        rc = new_line(d, depth);
    return rc ? rc : buf_cstr(d->out, "]");
}

/* json.dumps writes keys that are no strings as strings. */
static int dump_key(const struct dump *d, const struct val *k)
{
    if (k->kind == V_STR)
        return dump_str(d, k->s);
    int rc = buf_cstr(d->out, "\"");
    if (!rc)
        rc = dump(d, k, PRINT_DEPTH);
    return rc ? rc : buf_cstr(d->out, "\"");
}

static int by_key(const void *a, const void *b)
{
    const struct vpair *x = *(const struct vpair *const *)a, *y = *(const struct vpair *const *)b;
    size_t n = x->k.s.n < y->k.s.n ? x->k.s.n : y->k.s.n;
    int c = n ? memcmp(x->k.s.p, y->k.s.p, n) : 0;
    return c ? c : (x->k.s.n > y->k.s.n) - (x->k.s.n < y->k.s.n);
}

static int dump_dict(const struct dump *d, const struct vdict *v, int depth)
{
    if (v->n == 0)
        return buf_cstr(d->out, "{}");
    const struct vpair **order = arena_alloc(&d->r->a, v->n * sizeof *order);
    if (!order)
        return -ENOMEM;
    bool strings = true;
    for (size_t i = 0; i < v->n; i++) {
        order[i] = &v->p[i];
        strings &= v->p[i].k.kind == V_STR;
    }
    if (d->sorted && strings)
        qsort(order, v->n, sizeof *order, by_key);
    int rc = buf_cstr(d->out, "{");
    for (size_t i = 0; i < v->n && !rc; i++) {
        rc = dump_separator(d, i, depth + 1);
        if (!rc)
            rc = dump_key(d, &order[i]->k);
        if (!rc)
            rc = buf_cstr(d->out, ": ");
        if (!rc)
            rc = dump(d, &order[i]->v, depth + 1);
    }
    if (!rc)
        rc = new_line(d, depth);
    return rc ? rc : buf_cstr(d->out, "}");
}

static int dump_float(double f, struct buf *out)
{
    if (isnan(f))
        return buf_cstr(out, "NaN");
    return isinf(f) ? buf_cstr(out, f < 0 ? "-Infinity" : "Infinity") : print_float(f, out);
}

static int dump(const struct dump *d, const struct val *v, int depth)
{
    int rc = jinja_charge(d->r, 1 + (v->kind == V_STR ? v->s.n / 64 : 0));
    if (!rc && depth > PRINT_DEPTH)
        rc = jinja_fail(d->r, E2BIG, "a value is nested too deep");
    if (rc)
        return rc;
    switch (v->kind) {
    case V_NONE: return buf_cstr(d->out, "null");
    case V_BOOL: return buf_cstr(d->out, v->b ? "true" : "false");
    case V_INT: return buf_printf(d->out, "%lld", (long long)v->i);
    case V_BIG: return buf_str(d->out, v->s);
    case V_FLOAT: return dump_float(v->f, d->out);
    case V_STR: return dump_str(d, v->s);
    case V_LIST: return dump_list(d, v->l, depth);
    case V_DICT: return dump_dict(d, v->d, depth);
    case V_UNDEFINED: return jinja_fail(d->r, EINVAL, "%.*s", STR_ARG(v->s));
    default: return jinja_fail(d->r, EINVAL, "a %s is not JSON serializable", v_kind_name(v));
    }
}

int v_json(struct render *r, const struct val *v, int indent, bool sorted, bool ascii,
           struct buf *out)
{
    struct dump d = {r, out, indent, sorted, ascii};
    return full(r, dump(&d, v, 0));
}
