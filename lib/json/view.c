#include "lib/json/view.h"

#include "lib/base/clock.h"
#include "lib/json/view_int.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

/* Decoding runs twice over the same code: with base NULL it only counts bytes, then it fills one
 * allocation. */
struct walk {
    char *base;
    size_t used;
    struct err *e;
};

static void *take(struct walk *w, size_t n)
{
    void *p = w->base ? w->base + w->used : NULL;
    w->used += (n + 7) & ~(size_t)7;
    return p;
}

static const char *take_str(struct walk *w, const char *s, size_t n)
{
    char *p = take(w, n + 1);
    if (!p)
        return "";
    memcpy(p, s, n);
    p[n] = 0;
    return p;
}

static void *slot(void *obj, const struct view_field *f)
{
    return (char *)obj + f->offset;
}

static const void *cslot(const void *obj, const struct view_field *f)
{
    return (const char *)obj + f->offset;
}

static int wrong(struct walk *w, const struct view_field *f, const char *expected)
{
    return err_set(w->e, EINVAL, "%s: expected %s", f->path, expected);
}

static int decode_int(struct walk *w, const struct view_field *f, const json_t *v, int64_t *out)
{
    if (json_is_string(v)) {
        struct str s = {json_string_value(v), json_string_length(v)};
        return str_to_i64(s, INT64_MIN, INT64_MAX, out) ? wrong(w, f, "a whole number") : 0;
    }
    if (json_is_integer(v)) {
        *out = json_integer_value(v);
        return 0;
    }
    double r = json_real_value(v);
    if (!json_is_real(v) || r != (double)(int64_t)(r > 9e15 || r < -9e15 ? 0 : r))
        return wrong(w, f, "a whole number");
    *out = (int64_t)r;
    return 0;
}

static int decode_num(struct walk *w, const struct view_field *f, const json_t *v, double *out)
{
    if (json_is_string(v)) {
        struct str s = {json_string_value(v), json_string_length(v)};
        return str_to_f64(s, -1e300, 1e300, out) ? wrong(w, f, "a number") : 0;
    }
    if (!json_is_number(v))
        return wrong(w, f, "a number");
    *out = json_number_value(v);
    return 0;
}

static int decode_qty(struct walk *w, const struct view_field *f, const json_t *v, int64_t *out)
{
    if (json_is_integer(v) && json_integer_value(v) < INT64_MAX / 1000 &&
        json_integer_value(v) > INT64_MIN / 1000) {
        *out = json_integer_value(v) * 1000;
        return 0;
    }
    struct str s = {json_string_value(v), json_string_length(v)};
    if (!json_is_string(v) || str_to_quantity_milli(s, out))
        return wrong(w, f, "a quantity such as 500m or 2Gi");
    return 0;
}

static int decode_map(struct walk *w, const struct view_field *f, const json_t *v,
                      struct view_map *out)
{
    if (!json_is_object(v) || json_object_size(v) > VIEW_LIST_MAX)
        return wrong(w, f, "an object of strings");
    size_t n = json_object_size(v), i = 0;
    struct view_pair *items = take(w, n * sizeof *items);
    const char *key;
    json_t *item;
    json_object_foreach ((json_t *)(uintptr_t)v, key, item) {
        char num[32];
        const char *s = json_string_value(item);
        if (json_is_integer(item))
            snprintf(num, sizeof num, "%lld", (long long)json_integer_value(item));
        else if (json_is_real(item))
            snprintf(num, sizeof num, "%.17g", json_real_value(item));
        else if (!s)
            return wrong(w, f, "an object of strings");
        s = s ? s : num;
        const char *k = take_str(w, key, strlen(key)), *val = take_str(w, s, strlen(s));
        if (items)
            items[i++] = (struct view_pair){k, val};
    }
    *out = (struct view_map){n, items};
    return 0;
}

static int decode_raw(struct walk *w, const json_t *v, const char **out)
{
    struct buf b;
    buf_init(&b, VIEW_RAW_MAX);
    int rc = json_write(v, true, &b);
    if (rc)
        rc = err_set(w->e, EMSGSIZE, "an embedded JSON value is larger than 4 MiB");
    else
        *out = take_str(w, b.data, b.n);
    buf_fini(&b);
    return rc;
}

static int b64_digit(char c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

int view_b64(struct str s, char *out)
{
    size_t k = 0;
    if (s.n % 4)
        return -EINVAL;
    for (size_t i = 0; i < s.n; i += 4) {
        int pad = s.p[i + 3] != '=' ? 0 : s.p[i + 2] == '=' ? 2 : 1;
        uint32_t bits = 0;
        for (size_t j = 0; j < 4; j++) {
            int d = j + (size_t)pad >= 4 ? 0 : b64_digit(s.p[i + j]);
            if (d < 0 || (pad && i + 4 != s.n))
                return -EINVAL;
            bits = bits << 6 | (uint32_t)d;
        }
        for (int j = 0; j < 3 - pad; j++, k++)
            if (out)
                out[k] = (char)(bits >> (16 - 8 * j));
    }
    if (out)
        out[k] = 0;
    return 0;
}

static int decode_b64(struct walk *w, const struct view_field *f, const json_t *v, const char **out)
{
    struct str s = {json_string_value(v), json_string_length(v)};
    if (!s.p || s.n % 4)
        return wrong(w, f, "base64");
    char *p = take(w, s.n / 4 * 3 + 1);
    *out = p ? p : "";
    return view_b64(s, p) ? wrong(w, f, "base64") : 0;
}

static int decode_fields(struct walk *w, const struct view *v, const json_t *o, void *out,
                         int depth);

static int decode_list(struct walk *w, const struct view_field *f, const json_t *v,
                       struct view_list *out, int depth)
{
    if (!json_is_array(v) || json_array_size(v) > VIEW_LIST_MAX)
        return wrong(w, f, "a list");
    bool strs = f->kind == VIEW_STRS;
    size_t n = json_array_size(v), each = strs ? sizeof(char *) : f->sub->size;
    char *items = take(w, n * each);
    char *scratch = strs || items ? NULL : xcalloc(1, each);
    int rc = 0;
    for (size_t i = 0; i < n && !rc; i++) {
        const json_t *item = json_array_get(v, i);
        if (strs) {
            if (!json_is_string(item)) {
                rc = wrong(w, f, "a list of strings");
                break;
            }
            const char *s = take_str(w, json_string_value(item), json_string_length(item));
            if (items)
                ((const char **)(void *)items)[i] = s;
        } else {
            rc = decode_fields(w, f->sub, item, items ? items + i * each : scratch, depth + 1);
            if (rc && w->e)
                err_wrap(w->e, "%s[%zu]", f->path, i);
        }
    }
    free(scratch);
    if (!rc)
        *out = (struct view_list){n, items};
    return rc;
}

static int decode_value(struct walk *w, const struct view_field *f, const json_t *v, void *to,
                        int depth)
{
    switch (f->kind) {
    case VIEW_STR:
        if (!json_is_string(v))
            return wrong(w, f, "a string");
        *(const char **)to = take_str(w, json_string_value(v), json_string_length(v));
        return 0;
    case VIEW_INT: return decode_int(w, f, v, to);
    case VIEW_NUM: return decode_num(w, f, v, to);
    case VIEW_BOOL:
        if (!json_is_boolean(v))
            return wrong(w, f, "true or false");
        *(bool *)to = json_is_true(v);
        return 0;
    case VIEW_QTY: return decode_qty(w, f, v, to);
    case VIEW_TIME:
        if (!json_is_string(v) || clock_parse_rfc3339(json_string_value(v), to))
            return wrong(w, f, "a time (RFC 3339)");
        *(uint64_t *)to -= *(uint64_t *)to % NS_PER_US; /* as precise as the API's MicroTime */
        return 0;
    case VIEW_MAP: return decode_map(w, f, v, to);
    case VIEW_OBJ: {
        int rc = decode_fields(w, f->sub, v, to, depth + 1);
        if (rc && w->e)
            err_wrap(w->e, "%s", f->path);
        return rc;
    }
    case VIEW_LIST:
    case VIEW_STRS: return decode_list(w, f, v, to, depth);
    case VIEW_RAW: return decode_raw(w, v, to);
    case VIEW_B64: return decode_b64(w, f, v, to);
    }
    return wrong(w, f, "a known kind");
}

static int decode_fields(struct walk *w, const struct view *v, const json_t *o, void *out,
                         int depth)
{
    if (!json_is_object(o))
        return err_set(w->e, EINVAL, "%s: expected an object", v->name);
    if (depth > VIEW_DEPTH_MAX)
        return err_set(w->e, EINVAL, "%s: nested deeper than %d levels", v->name, VIEW_DEPTH_MAX);
    uint64_t *has = out;
    unsigned bit = 0;
    for (const struct view_field *f = v->fields; f->path; f++, bit++) {
        ASSERT(bit < 64);
        const json_t *value = json_at(o, f->path);
        if (!value || json_is_null(value)) {
            if (f->required)
                return err_set(w->e, EINVAL, "%s.%s is missing", v->name, f->path);
            continue;
        }
        int rc = decode_value(w, f, value, slot(out, f), depth);
        if (rc)
            return rc;
        *has |= 1ull << bit;
    }
    return 0;
}

void *view_decode(const struct view *v, const json_t *o, struct err *e)
{
    struct walk w = {.e = e};
    void *scratch = xcalloc(1, v->size);
    int rc = decode_fields(&w, v, o, scratch, 0);
    free(scratch);
    if (rc)
        return NULL;
    size_t head = (v->size + 7) & ~(size_t)7;
    char *obj = calloc(1, head + w.used);
    if (!obj) {
        err_set(e, ENOMEM, "%s: out of memory", v->name);
        return NULL;
    }
    w = (struct walk){.base = obj + head, .e = e};
    rc = decode_fields(&w, v, o, obj, 0);
    ASSERT(rc == 0);
    return obj;
}

/* ---- copies: the same two walks ---- */

static void copy_str(struct walk *w, const void *from, void *to)
{
    const char *s = *(const char *const *)from;
    const char *p = take_str(w, s, strlen(s));
    if (to)
        *(const char **)to = p;
}

static void copy_fields(struct walk *w, const struct view *v, const void *from, void *to);

static void copy_list(struct walk *w, const struct view_field *f, const struct view_list *from,
                      struct view_list *to)
{
    bool strs = f->kind == VIEW_STRS;
    size_t each = strs ? sizeof(char *) : f->sub->size;
    char *items = take(w, from->n * each);
    if (items && from->n)
        memcpy(items, from->items, from->n * each);
    for (size_t i = 0; i < from->n; i++) {
        const char *source = (const char *)from->items + i * each;
        char *target = items ? items + i * each : NULL;
        if (strs)
            copy_str(w, source, target);
        else
            copy_fields(w, f->sub, source, target);
    }
    if (to)
        to->items = items;
}

static void copy_map(struct walk *w, const struct view_map *from, struct view_map *to)
{
    struct view_pair *items = take(w, from->n * sizeof *items);
    for (size_t i = 0; i < from->n; i++) {
        copy_str(w, &from->items[i].key, items ? &items[i].key : NULL);
        copy_str(w, &from->items[i].value, items ? &items[i].value : NULL);
    }
    if (to)
        to->items = items;
}

/* `to` holds the bytes of `from`; what they point to is copied. */
static void copy_fields(struct walk *w, const struct view *v, const void *from, void *to)
{
    uint64_t has = *(const uint64_t *)from;
    for (const struct view_field *f = v->fields; f->path; f++, has >>= 1) {
        const void *source = cslot(from, f);
        void *target = to ? slot(to, f) : NULL;
        if (!(has & 1))
            continue;
        switch (f->kind) {
        case VIEW_STR:
        case VIEW_RAW:
        case VIEW_B64: copy_str(w, source, target); break;
        case VIEW_MAP: copy_map(w, source, target); break;
        case VIEW_OBJ: copy_fields(w, f->sub, source, target); break;
        case VIEW_LIST:
        case VIEW_STRS: copy_list(w, f, source, target); break;
        default: break;
        }
    }
}

void *view_copy(const struct view *v, const void *obj)
{
    struct walk w = {0};
    copy_fields(&w, v, obj, NULL);
    size_t head = (v->size + 7) & ~(size_t)7;
    char *copy = xcalloc(1, head + w.used);
    memcpy(copy, obj, v->size);
    w = (struct walk){.base = copy + head};
    copy_fields(&w, v, obj, copy);
    return copy;
}

static json_t *encode_b64(const char *s)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t n = strlen(s), k = 0;
    char *out = xmalloc((n + 2) / 3 * 4 + 1);
    for (size_t i = 0; i < n; i += 3) {
        uint32_t b = (uint32_t)(uint8_t)s[i] << 16;
        b |= i + 1 < n ? (uint32_t)(uint8_t)s[i + 1] << 8 : 0;
        b |= i + 2 < n ? (uint32_t)(uint8_t)s[i + 2] : 0;
        out[k++] = digits[b >> 18];
        out[k++] = digits[b >> 12 & 63];
        out[k++] = i + 1 < n ? digits[b >> 6 & 63] : '=';
        out[k++] = i + 2 < n ? digits[b & 63] : '=';
    }
    json_t *o = json_stringn(out, k);
    free(out);
    return o;
}

static json_t *encode_list(const struct view_field *f, const struct view_list *l)
{
    json_t *a = json_array();
    for (size_t i = 0; i < l->n; i++)
        json_array_append_new(a, f->kind == VIEW_STRS ? json_string(VIEW_STR_AT(*l, i))
                                                      : view_encode(f->sub, (const char *)l->items +
                                                                                i * f->sub->size));
    return a;
}

static json_t *encode_map(const struct view_map *m)
{
    json_t *o = json_object();
    for (size_t i = 0; i < m->n; i++)
        json_object_set_new(o, m->items[i].key, json_string(m->items[i].value));
    return o;
}

static json_t *encode_qty(int64_t milli)
{
    char text[32];
    if (milli % 1000 == 0)
        snprintf(text, sizeof text, "%lld", (long long)(milli / 1000));
    else
        snprintf(text, sizeof text, "%lldm", (long long)milli);
    return json_string(text);
}

static json_t *encode_value(const struct view_field *f, const void *at)
{
    char time[CLOCK_RFC3339_MAX];
    switch (f->kind) {
    case VIEW_STR: return json_string(*(const char *const *)at);
    case VIEW_INT: return json_integer(*(const int64_t *)at);
    case VIEW_NUM: return json_real(*(const double *)at);
    case VIEW_BOOL: return json_boolean(*(const bool *)at);
    case VIEW_QTY: return encode_qty(*(const int64_t *)at);
    case VIEW_TIME:
        return json_string(
            clock_rfc3339(*(const uint64_t *)at, *(const uint64_t *)at % NS_PER_S ? 6 : 0, time));
    case VIEW_MAP: return encode_map(at);
    case VIEW_OBJ: return view_encode(f->sub, at);
    case VIEW_LIST:
    case VIEW_STRS: return encode_list(f, at);
    case VIEW_RAW: return json_parse(str_c(*(const char *const *)at), VIEW_RAW_MAX, 0, NULL);
    case VIEW_B64: return encode_b64(*(const char *const *)at);
    }
    return NULL;
}

json_t *view_encode(const struct view *v, const void *obj)
{
    json_t *o = json_object();
    uint64_t has = *(const uint64_t *)obj;
    unsigned bit = 0;
    for (const struct view_field *f = v->fields; f->path; f++, bit++) {
        if (!(has >> bit & 1))
            continue;
        json_t *value = encode_value(f, cslot(obj, f));
        if (json_put(o, f->path, value ? value : json_null()))
            continue; /* out of memory: jansson kept nothing */
    }
    return o;
}

const char *view_map_get(const struct view_map *m, const char *key)
{
    for (size_t i = 0; i < m->n; i++)
        if (strcmp(m->items[i].key, key) == 0)
            return m->items[i].value;
    return NULL;
}

static bool same_str(const char *a, const char *b)
{
    return a == b || (a && b && strcmp(a, b) == 0);
}

static bool same_map(const struct view_map *a, const struct view_map *b)
{
    if (a->n != b->n)
        return false;
    for (size_t i = 0; i < a->n; i++)
        if (!same_str(a->items[i].value, view_map_get(b, a->items[i].key)))
            return false;
    return true;
}

/* Where the comparison is: grows on the way down, is cut on the way up. */
struct trail {
    char text[512];
    size_t n;
};

static size_t step(struct trail *t, const char *name)
{
    size_t before = t->n, len = strlen(name), dot = t->n > 0;
    if (t->n + dot + len < sizeof t->text) {
        t->text[t->n] = '.';
        memcpy(t->text + t->n + dot, name, len + 1);
        t->n += dot + len;
    }
    return before;
}

static bool diff_at(const struct view *v, const void *a, const void *b, struct trail *t);

static bool differ(const struct view_field *f, const void *a, const void *b, struct trail *t)
{
    const struct view_list *la = a, *lb = b;
    switch (f->kind) {
    case VIEW_STR:
    case VIEW_RAW:
    case VIEW_B64: return !same_str(*(const char *const *)a, *(const char *const *)b);
    case VIEW_INT:
    case VIEW_QTY:
    case VIEW_TIME: return memcmp(a, b, 8) != 0;
    case VIEW_NUM: return memcmp(a, b, sizeof(double)) != 0;
    case VIEW_BOOL: return *(const bool *)a != *(const bool *)b;
    case VIEW_MAP: return !same_map(a, b);
    case VIEW_OBJ: return diff_at(f->sub, a, b, t);
    case VIEW_STRS:
        for (size_t i = 0; la->n == lb->n && i < la->n; i++)
            if (!same_str(VIEW_STR_AT(*la, i), VIEW_STR_AT(*lb, i)))
                return true;
        return la->n != lb->n;
    case VIEW_LIST:
        for (size_t i = 0; la->n == lb->n && i < la->n; i++)
            if (diff_at(f->sub, (const char *)la->items + i * f->sub->size,
                        (const char *)lb->items + i * f->sub->size, t))
                return true;
        return la->n != lb->n;
    }
    return true;
}

static bool diff_at(const struct view *v, const void *a, const void *b, struct trail *t)
{
    uint64_t ha = *(const uint64_t *)a, hb = *(const uint64_t *)b;
    unsigned bit = 0;
    for (const struct view_field *f = v->fields; f->path; f++, bit++) {
        bool in_a = ha >> bit & 1, in_b = hb >> bit & 1;
        size_t before = step(t, f->path);
        if (in_a != in_b || (in_a && differ(f, cslot(a, f), cslot(b, f), t)))
            return true;
        t->n = before;
        t->text[before] = 0;
    }
    return false;
}

bool view_diff(const struct view *v, const void *a, const void *b, char *out, size_t n)
{
    struct trail t = {0};
    bool d = diff_at(v, a, b, &t);
    if (d && n)
        snprintf(out, n, "%s", t.text);
    return d;
}

bool view_equal(const struct view *v, const void *a, const void *b)
{
    return !view_diff(v, a, b, NULL, 0);
}

static uint64_t bit_of(const struct view *v, size_t offset)
{
    unsigned bit = 0;
    for (const struct view_field *f = v->fields; f->path; f++, bit++)
        if (f->offset == offset)
            return 1ull << bit;
    ASSERT(false);
    return 0;
}

bool view_has_at(const struct view *v, const void *obj, size_t offset)
{
    return *(const uint64_t *)obj & bit_of(v, offset);
}

void view_set_at(const struct view *v, void *obj, size_t offset, bool has)
{
    uint64_t *bits = obj, bit = bit_of(v, offset);
    *bits = has ? *bits | bit : *bits & ~bit;
}
