#include "local/schema_int.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

struct check {
    struct field_errors *errs;
    const struct path *at;
    size_t bad;
};

static size_t validate(const struct schema *s, const json_t *v, const json_t *old,
                       const struct path *at, struct field_errors *errs);

static char *value_text(const json_t *v)
{
    if (json_is_object(v))
        return xstrdup("\"object\"");
    if (json_is_array(v))
        return xstrdup("\"array\"");
    char *t = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT);
    return t ? t : xstrdup("null");
}

/* "Invalid value: 5: spec.x in body should be …", as the API server words it. */
static void invalid(struct check *c, const json_t *v, const char *reason, const char *what)
{
    CLEANUP(free_charp) char *path = path_text(c->at);
    CLEANUP(free_charp) char *text = value_text(v);
    c->bad++;
    field_errors_add(c->errs, path, reason, "Invalid value: %s: %s in body %s", text, path, what);
}

static const char *const type_name[] = {"any",     "object", "array",  "string",
                                        "integer", "number", "boolean"};

static bool type_fits(const struct schema *s, const json_t *v)
{
    switch (s->type) {
    case T_OBJECT: return json_is_object(v);
    case T_ARRAY: return json_is_array(v);
    case T_STRING: return json_is_string(v);
    case T_INTEGER:
        return json_is_integer(v) ||
               (json_is_real(v) && json_real_value(v) == floor(json_real_value(v)));
    case T_NUMBER: return json_is_number(v);
    case T_BOOLEAN: return json_is_boolean(v);
    default: return true;
    }
}

static const char *name_of(const json_t *v)
{
    static const char *const names[] = {"object", "array",   "string",  "integer",
                                        "number", "boolean", "boolean", "null"};
    return names[json_typeof(v)];
}

static bool check_type(struct check *c, const struct schema *s, const json_t *v)
{
    bool fits = s->int_or_string ? json_is_integer(v) || json_is_string(v) : type_fits(s, v);
    if (fits)
        return true;
    CLEANUP(free_charp) char *path = path_text(c->at);
    c->bad++;
    field_errors_add(c->errs, path, "FieldValueTypeInvalid",
                     "Invalid value: \"%s\": %s in body must be of type %s: \"%s\"", name_of(v),
                     path, s->int_or_string ? "integer,string" : type_name[s->type], name_of(v));
    return false;
}

static void check_number(struct check *c, const struct schema *s, const json_t *v)
{
    double x = json_number_value(v);
    char what[96];
    if (s->has_min && (x < s->min || (s->min_exclusive && x == s->min))) {
        snprintf(what, sizeof what, "should be greater than%s %.17g",
                 s->min_exclusive ? "" : " or equal to", s->min);
        invalid(c, v, "FieldValueInvalid", what);
    }
    if (s->has_max && (x > s->max || (s->max_exclusive && x == s->max))) {
        snprintf(what, sizeof what, "should be less than%s %.17g",
                 s->max_exclusive ? "" : " or equal to", s->max);
        invalid(c, v, "FieldValueInvalid", what);
    }
    if (s->multiple_of > 0 && fmod(x, s->multiple_of) != 0) {
        snprintf(what, sizeof what, "should be a multiple of %.17g", s->multiple_of);
        invalid(c, v, "FieldValueInvalid", what);
    }
    bool i32 = s->format && strcmp(s->format, "int32") == 0;
    if (i32 && (x > INT32_MAX || x < INT32_MIN))
        invalid(c, v, "FieldValueInvalid", "must be of type int32");
}

static bool format_fits(const char *format, const char *s)
{
    int a, b, d, n = -1;
    if (strcmp(format, "date-time") == 0)
        return sscanf(s, "%4d-%2d-%2dT%*2d:%*2d:%*2d%n", &a, &b, &d, &n) == 3 && n == 19 &&
               strlen(s) > 19;
    if (strcmp(format, "date") == 0)
        return sscanf(s, "%4d-%2d-%2d%n", &a, &b, &d, &n) == 3 && n == 10 && s[10] == 0;
    if (strcmp(format, "ipv4") == 0)
        return sscanf(s, "%3d.%3d.%3d.%*3d%n", &a, &b, &d, &n) == 3 && n > 0 && s[n] == 0;
    return true;
}

static void check_string(struct check *c, const struct schema *s, const json_t *v)
{
    const char *z = json_string_value(v);
    int64_t n = 0;
    char what[256];
    for (const char *p = z; *p; p++)
        n += ((unsigned char)*p & 0xc0) != 0x80;
    CLEANUP(free_charp) char *path = path_text(c->at);
    if (s->max_length >= 0 && n > s->max_length) {
        c->bad++;
        field_errors_add(c->errs, path, "FieldValueTooLong",
                         "Too long: may not be more than %lld bytes", (long long)s->max_length);
    }
    if (s->min_length >= 0 && n < s->min_length) {
        snprintf(what, sizeof what, "should be at least %lld chars long", (long long)s->min_length);
        invalid(c, v, "FieldValueInvalid", what);
    }
    if (s->pattern && !regex_match(s->pattern, str_c(z))) {
        snprintf(what, sizeof what, "should match '%s'", s->pattern_text);
        invalid(c, v, "FieldValueInvalid", what);
    }
    if (s->format && !format_fits(s->format, z)) {
        snprintf(what, sizeof what, "must be of type %s: \"%.100s\"", s->format, z);
        invalid(c, v, "FieldValueInvalid", what);
    }
}

static void check_enum(struct check *c, const struct schema *s, const json_t *v)
{
    struct buf list;
    size_t i;
    json_t *e;
    json_array_foreach (s->enumeration, i, e) {
        if (json_equal(e, v))
            return;
    }
    buf_init(&list, 4096);
    json_array_foreach (s->enumeration, i, e) {
        CLEANUP(free_charp) char *t = value_text(e);
        if (buf_printf(&list, "%s%s", i ? ", " : "", t))
            break;
    }
    CLEANUP(free_charp) char *path = path_text(c->at);
    CLEANUP(free_charp) char *text = value_text(v);
    c->bad++;
    field_errors_add(c->errs, path, "FieldValueNotSupported",
                     "Unsupported value: %s: supported values: %s", text,
                     list.data ? list.data : "");
    buf_fini(&list);
}

/* Do two items of a list stand for the same entry: equal in a set, equal keys in a map? */
static bool same_item(const struct schema *s, const json_t *a, const json_t *b)
{
    if (s->list_kind != LIST_MAP)
        return json_equal(a, b);
    for (size_t i = 0; i < s->n_map_keys; i++) {
        const json_t *x = json_object_get(a, s->map_keys[i]),
                     *y = json_object_get(b, s->map_keys[i]);
        const json_t *d = schema_default_of(schema_field(s->items, s->map_keys[i]));
        if (!json_equal(x ? x : d, y ? y : d) && (x || y))
            return false;
    }
    return true;
}

static const json_t *old_item(const struct schema *s, const json_t *old, const json_t *item)
{
    size_t i;
    json_t *o;
    if (s->list_kind == LIST_MAP)
        json_array_foreach ((json_t *)(uintptr_t)old, i, o) {
            if (same_item(s, o, item))
                return o;
        }
    return NULL;
}

static void check_duplicates(struct check *c, const struct schema *s, const json_t *v)
{
    size_t n = json_array_size(v);
    if (s->list_kind == LIST_ATOMIC && !s->unique_items)
        return;
    for (size_t i = 1; i < n && i < 4096; i++)
        for (size_t k = 0; k < i; k++)
            if (same_item(s, json_array_get(v, i), json_array_get(v, k))) {
                struct path here = {c->at, NULL, i};
                CLEANUP(free_charp) char *path = path_text(&here);
                CLEANUP(free_charp)
                char *text = json_dumps(json_array_get(v, i), JSON_ENCODE_ANY | JSON_COMPACT);
                c->bad++;
                field_errors_add(c->errs, path, "FieldValueDuplicate", "Duplicate value: %s",
                                 text ? text : "");
                break;
            }
}

static void check_array(struct check *c, const struct schema *s, const json_t *v, const json_t *old)
{
    int64_t n = (int64_t)json_array_size(v);
    size_t i;
    json_t *item;
    CLEANUP(free_charp) char *path = path_text(c->at);
    if (s->max_items >= 0 && n > s->max_items) {
        c->bad++;
        field_errors_add(c->errs, path, "FieldValueTooMany",
                         "Too many: %lld: must have at most %lld items", (long long)n,
                         (long long)s->max_items);
        return;
    }
    if (s->min_items >= 0 && n < s->min_items) {
        char what[64];
        snprintf(what, sizeof what, "should have at least %lld items", (long long)s->min_items);
        invalid(c, v, "FieldValueInvalid", what);
    }
    check_duplicates(c, s, v);
    if (!s->items)
        return;
    json_array_foreach ((json_t *)(uintptr_t)v, i, item) {
        struct path here = {c->at, NULL, i};
        c->bad += validate(s->items, item, old_item(s, old, item), &here, c->errs);
    }
}

static void check_object(struct check *c, const struct schema *s, const json_t *v,
                         const json_t *old)
{
    int64_t n = (int64_t)json_object_size(v);
    const char *key;
    json_t *child;
    for (size_t i = 0; i < s->n_required; i++) {
        if (json_object_get(v, s->required[i]))
            continue;
        struct path here = {c->at, s->required[i], 0};
        CLEANUP(free_charp) char *path = path_text(&here);
        c->bad++;
        field_errors_add(c->errs, path, "FieldValueRequired", "Required value");
    }
    CLEANUP(free_charp) char *path = path_text(c->at);
    if (s->max_props >= 0 && n > s->max_props) {
        c->bad++;
        field_errors_add(c->errs, path, "FieldValueTooMany",
                         "Too many: %lld: must have at most %lld items", (long long)n,
                         (long long)s->max_props);
    }
    if (s->min_props >= 0 && n < s->min_props)
        invalid(c, v, "FieldValueInvalid", "has too few properties");
    json_object_foreach ((json_t *)(uintptr_t)v, key, child) {
        struct path here = {c->at, key, 0};
        const struct schema *sub = schema_field(s, key);
        if (sub)
            c->bad += validate(sub, child, json_object_get(old, key), &here, c->errs);
    }
}

static size_t matches(struct schema **list, size_t n, const json_t *v, const struct path *at)
{
    size_t hits = 0;
    for (size_t i = 0; i < n; i++) {
        struct field_errors none = {0};
        hits += validate(list[i], v, NULL, at, &none) == 0;
        field_errors_fini(&none);
    }
    return hits;
}

static void check_junctors(struct check *c, const struct schema *s, const json_t *v)
{
    for (size_t i = 0; i < s->n_all; i++)
        c->bad += validate(s->all_of[i], v, NULL, c->at, c->errs);
    if (s->n_any && matches(s->any_of, s->n_any, v, c->at) == 0)
        invalid(c, v, "FieldValueInvalid", "must validate at least one schema (anyOf)");
    if (s->n_one && matches(s->one_of, s->n_one, v, c->at) != 1)
        invalid(c, v, "FieldValueInvalid", "must validate one and only one schema (oneOf)");
    if (s->negated) {
        struct schema *one[] = {s->negated};
        if (matches(one, 1, v, c->at))
            invalid(c, v, "FieldValueInvalid", "must not validate the schema (not)");
    }
}

static void check_rules(struct check *c, const struct schema *s, const json_t *v, const json_t *old)
{
    for (size_t i = 0; i < s->n_rules; i++) {
        const struct schema_rule *r = &s->rules[i];
        struct err e = {0};
        if (!old && cel_uses_old_self(r->rule) && !r->optional_old_self)
            continue;
        int rc = cel_eval_bool(r->rule, v, old, &e);
        if (rc == 1)
            continue;
        CLEANUP(free_charp) char *path = path_text(c->at);
        CLEANUP(free_charp) char *full = xasprintf("%s%s", path, r->field_path);
        CLEANUP(free_charp) char *text = value_text(v);
        CLEANUP(free_charp)
        char *said = rc == 0 && r->message_expression
                         ? cel_eval_string(r->message_expression, v, old, &e)
                         : NULL;
        c->bad++;
        if (rc < 0)
            field_errors_add(c->errs, full, "FieldValueInvalid",
                             "Invalid value: %s: rule evaluation error: %s", text, e.msg);
        else if (said || *r->message)
            field_errors_add(c->errs, full, r->reason, "Invalid value: %s: %s", text,
                             said ? said : r->message);
        else
            field_errors_add(c->errs, full, r->reason, "Invalid value: %s: failed rule: %s", text,
                             r->text);
    }
}

static size_t validate(const struct schema *s, const json_t *v, const json_t *old,
                       const struct path *at, struct field_errors *errs)
{
    struct check c = {.errs = errs, .at = at};
    if (json_is_null(v) && s->nullable)
        return 0;
    if (!check_type(&c, s, v))
        return c.bad;
    if (json_is_number(v))
        check_number(&c, s, v);
    else if (json_is_string(v))
        check_string(&c, s, v);
    else if (json_is_array(v))
        check_array(&c, s, v, old);
    else if (json_is_object(v))
        check_object(&c, s, v, old);
    if (s->enumeration)
        check_enum(&c, s, v);
    check_junctors(&c, s, v);
    /* As upstream: rules are evaluated once the structure is right. */
    if (c.bad == 0)
        check_rules(&c, s, v, old);
    return c.bad;
}

int schema_validate(const struct schema *s, const json_t *object, const json_t *old,
                    struct field_errors *errs)
{
    return validate(s, object, old, NULL, errs) ? -EINVAL : 0;
}
