#include "local/schema_int.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#define MAX_ERRORS 64

struct compile {
    struct field_errors *errs;
    int depth;
};

void field_errors_add(struct field_errors *f, const char *path, const char *reason, const char *fmt,
                      ...)
{
    char *text = NULL;
    va_list ap;
    if (!f || f->n >= MAX_ERRORS)
        return;
    va_start(ap, fmt);
    int n = vasprintf(&text, fmt, ap);
    va_end(ap);
    ASSERT(n >= 0);
    f->v = xrealloc(f->v, (f->n + 1) * sizeof *f->v);
    f->v[f->n++] = (struct field_error){xstrdup(path), reason, text};
}

void field_errors_fini(struct field_errors *f)
{
    for (size_t i = 0; i < f->n; i++) {
        free(f->v[i].path);
        free(f->v[i].message);
    }
    free(f->v);
    *f = (struct field_errors){0};
}

char *path_text(const struct path *p)
{
    if (!p || !p->up)
        return xstrdup(p && p->key ? p->key : "");
    CLEANUP(free_charp) char *up = path_text(p->up);
    if (!p->key)
        return xasprintf("%s[%zu]", up, p->index);
    return xasprintf("%s%s%s", up, *up ? "." : "", p->key);
}

bool schema_is_meta_field(const char *name)
{
    return strcmp(name, "apiVersion") == 0 || strcmp(name, "kind") == 0 ||
           strcmp(name, "metadata") == 0;
}

static int type_of(const char *name)
{
    static const char *const names[] = {"",        "object", "array",  "string",
                                        "integer", "number", "boolean"};
    for (int i = 1; i < 7; i++)
        if (name && strcmp(name, names[i]) == 0)
            return i;
    return -1;
}

static struct schema *compile(struct compile *c, const json_t *j, const char *path,
                              bool structural);

static struct schema **compile_list(struct compile *c, const json_t *list, const char *path,
                                    size_t *n)
{
    struct schema **v = xcalloc(json_array_size(list), sizeof *v);
    size_t i;
    json_t *item;
    json_array_foreach ((json_t *)(uintptr_t)list, i, item) {
        v[i] = compile(c, item, path, false);
    }
    *n = json_array_size(list);
    return v;
}

static const char **strings(const json_t *list, size_t *n)
{
    const char **v = xcalloc(json_array_size(list), sizeof *v);
    size_t i;
    json_t *item;
    *n = 0;
    json_array_foreach ((json_t *)(uintptr_t)list, i, item) {
        if (json_is_string(item))
            v[(*n)++] = json_string_value(item);
    }
    return v;
}

static void compile_type(struct compile *c, struct schema *s, const json_t *j, const char *path,
                         bool structural)
{
    const char *type = json_str_at(j, "type", NULL);
    int t = type_of(type);
    s->int_or_string = json_is_true(json_object_get(j, "x-kubernetes-int-or-string"));
    s->preserve_unknown = json_is_true(json_object_get(j, "x-kubernetes-preserve-unknown-fields"));
    s->embedded = json_is_true(json_object_get(j, "x-kubernetes-embedded-resource"));
    s->nullable = json_is_true(json_object_get(j, "nullable"));
    if (t > 0)
        s->type = (enum schema_type)t;
    else if (type)
        field_errors_add(c->errs, path, "FieldValueNotSupported",
                         "Unsupported value: \"%s\": supported values: \"array\", \"boolean\", "
                         "\"integer\", \"number\", \"object\", \"string\"",
                         type);
    else if (structural && !s->int_or_string && !s->preserve_unknown)
        field_errors_add(c->errs, path, "FieldValueRequired",
                         "Required value: must not be empty for specified object fields");
}

static int64_t bound(const json_t *j, const char *key)
{
    return json_int_at(j, key, -1);
}

static void compile_values(struct compile *c, struct schema *s, const json_t *j, const char *path)
{
    struct err e = {0};
    s->has_min = json_is_number(json_object_get(j, "minimum"));
    s->has_max = json_is_number(json_object_get(j, "maximum"));
    s->min = json_num_at(j, "minimum", 0);
    s->max = json_num_at(j, "maximum", 0);
    s->min_exclusive = json_bool_at(j, "exclusiveMinimum", false);
    s->max_exclusive = json_bool_at(j, "exclusiveMaximum", false);
    s->multiple_of = json_num_at(j, "multipleOf", 0);
    s->min_length = bound(j, "minLength");
    s->max_length = bound(j, "maxLength");
    s->min_items = bound(j, "minItems");
    s->max_items = bound(j, "maxItems");
    s->min_props = bound(j, "minProperties");
    s->max_props = bound(j, "maxProperties");
    s->unique_items = json_bool_at(j, "uniqueItems", false);
    s->enumeration = json_incref(json_object_get(j, "enum"));
    s->dflt = json_incref(json_object_get(j, "default"));
    const char *format = json_str_at(j, "format", NULL), *pattern = json_str_at(j, "pattern", NULL);
    s->format = format ? xstrdup(format) : NULL;
    if (pattern) {
        s->pattern_text = xstrdup(pattern);
        if (regex_new(pattern, &s->pattern, &e))
            field_errors_add(c->errs, path, "FieldValueInvalid", "Invalid value: %s", e.msg);
    }
}

static void compile_lists(struct compile *c, struct schema *s, const json_t *j, const char *path)
{
    const char *type = json_str_at(j, "x-kubernetes-list-type", "atomic");
    s->list_kind = strcmp(type, "map") == 0   ? LIST_MAP
                   : strcmp(type, "set") == 0 ? LIST_SET
                                              : LIST_ATOMIC;
    s->map_keys = strings(json_object_get(j, "x-kubernetes-list-map-keys"), &s->n_map_keys);
    s->map_atomic = strcmp(json_str_at(j, "x-kubernetes-map-type", "granular"), "atomic") == 0;
    if (s->list_kind == LIST_MAP && s->n_map_keys == 0)
        field_errors_add(c->errs, path, "FieldValueRequired",
                         "Required value: x-kubernetes-list-map-keys must not be empty if "
                         "x-kubernetes-list-type is map");
}

static void compile_children(struct compile *c, struct schema *s, const json_t *j, const char *path,
                             bool structural)
{
    const char *name;
    json_t *v;
    json_object_foreach (json_object_get(j, "properties"), name, v) {
        CLEANUP(free_charp) char *sub = xasprintf("%s.properties[%s]", path, name);
        struct schema_prop *p = xcalloc(1, sizeof *p);
        p->name = xstrdup(name);
        /* The root's metadata has a schema of its own; what the CRD says of it is value validation
         * only. */
        p->schema = compile(c, v, sub, structural && !(s->root && schema_is_meta_field(name)));
        HASH_ADD_KEYPTR(hh, s->props, p->name, strlen(p->name), p);
    }
    json_t *additional = json_object_get(j, "additionalProperties");
    CLEANUP(free_charp) char *items = xasprintf("%s.items", path);
    if (json_is_object(additional))
        s->additional = compile(c, additional, path, structural);
    else if (json_is_true(additional))
        s->preserve_unknown = true;
    if (json_is_object(json_object_get(j, "items")))
        s->items = compile(c, json_object_get(j, "items"), items, structural);
    else if (structural && s->type == T_ARRAY)
        field_errors_add(c->errs, items, "FieldValueRequired", "Required value: must be specified");
    s->required = strings(json_object_get(j, "required"), &s->n_required);
    s->all_of = compile_list(c, json_object_get(j, "allOf"), path, &s->n_all);
    s->any_of = compile_list(c, json_object_get(j, "anyOf"), path, &s->n_any);
    s->one_of = compile_list(c, json_object_get(j, "oneOf"), path, &s->n_one);
    if (json_object_get(j, "not"))
        s->negated = compile(c, json_object_get(j, "not"), path, false);
}

static const void *cel_field(const void *node, const char *name, bool *known)
{
    const struct schema *s = node;
    struct schema_prop *p;
    HASH_FIND_STR(s->props, name, p);
    *known = true;
    if (p)
        return p->schema;
    if (s->additional)
        return s->additional;
    if ((s->root || s->embedded) && schema_is_meta_field(name))
        return NULL;
    *known = s->type != T_OBJECT;
    return NULL;
}

static const void *cel_items(const void *node)
{
    const struct schema *s = node;
    return s->items ? s->items : s->additional;
}

static const char *rule_reason(const char *r)
{
    static const char *const known[] = {"FieldValueInvalid", "FieldValueForbidden",
                                        "FieldValueRequired", "FieldValueDuplicate"};
    for (size_t i = 0; i < 4; i++)
        if (strcmp(r, known[i]) == 0)
            return known[i];
    return known[0];
}

static void compile_rules(struct compile *c, struct schema *s, const json_t *j, const char *path)
{
    const json_t *list = json_object_get(j, "x-kubernetes-validations");
    const struct cel_types types = {s, cel_field, cel_items};
    size_t i;
    json_t *r;
    s->rules = xcalloc(json_array_size(list), sizeof *s->rules);
    json_array_foreach ((json_t *)(uintptr_t)list, i, r) {
        struct err e = {0};
        struct schema_rule *x = &s->rules[s->n_rules];
        CLEANUP(free_charp) char *sub = xasprintf("%s.x-kubernetes-validations[%zu].rule", path, i);
        const char *text = json_str_at(r, "rule", ""),
                   *expr = json_str_at(r, "messageExpression", NULL);
        if (cel_compile(text, &types, &x->rule, &e)) {
            field_errors_add(c->errs, sub, "FieldValueInvalid",
                             "Invalid value: \"%s\": compilation failed: %s", text, e.msg);
            continue;
        }
        s->n_rules++;
        if (!cel_may_be_bool(x->rule))
            field_errors_add(c->errs, sub, "FieldValueInvalid",
                             "Invalid value: \"%s\": must evaluate to a bool", text);
        x->text = xstrdup(text);
        x->message = xstrdup(json_str_at(r, "message", ""));
        x->field_path = xstrdup(json_str_at(r, "fieldPath", ""));
        x->reason = rule_reason(json_str_at(r, "reason", ""));
        x->optional_old_self = json_bool_at(r, "optionalOldSelf", false);
        if (expr && cel_compile(expr, &types, &x->message_expression, &e))
            field_errors_add(c->errs, sub, "FieldValueInvalid",
                             "Invalid value: \"%s\": messageExpression compilation failed: %s",
                             expr, e.msg);
    }
}

static struct schema *compile(struct compile *c, const json_t *j, const char *path, bool structural)
{
    struct schema *s = xcalloc(1, sizeof *s);
    s->min_length = s->max_length = s->min_items = s->max_items = s->min_props = s->max_props = -1;
    s->source = json_incref((json_t *)(uintptr_t)j);
    s->root = c->depth == 0;
    if (++c->depth > SCHEMA_MAX_DEPTH) {
        field_errors_add(c->errs, path, "FieldValueInvalid",
                         "Invalid value: the schema is nested deeper than %d levels",
                         SCHEMA_MAX_DEPTH);
    } else if (!json_is_object(j)) {
        field_errors_add(c->errs, path, "FieldValueTypeInvalid",
                         "Invalid value: a schema must be an object");
    } else {
        compile_type(c, s, j, path, structural);
        compile_values(c, s, j, path);
        compile_lists(c, s, j, path);
        compile_children(c, s, j, path, structural);
        compile_rules(c, s, j, path);
    }
    c->depth--;
    return s;
}

int schema_compile(const json_t *openapi_v3_schema, struct schema **out, struct field_errors *errs)
{
    struct compile c = {.errs = errs};
    size_t before = errs->n;
    struct schema *s = compile(&c, openapi_v3_schema, "spec.validation.openAPIV3Schema", true);
    if (errs->n > before) {
        schema_free(s);
        return -EINVAL;
    }
    *out = s;
    return 0;
}

static void free_list(struct schema **v, size_t n)
{
    for (size_t i = 0; i < n; i++)
        schema_free(v[i]);
    free(v);
}

void schema_free(struct schema *s)
{
    if (!s)
        return;
    struct schema_prop *p, *next;
    HASH_ITER (hh, s->props, p, next) {
        HASH_DEL(s->props, p);
        schema_free(p->schema);
        free(p->name);
        free(p);
    }
    for (size_t i = 0; i < s->n_rules; i++) {
        cel_free(s->rules[i].rule);
        cel_free(s->rules[i].message_expression);
        free(s->rules[i].text);
        free(s->rules[i].message);
        free(s->rules[i].field_path);
    }
    free(s->rules);
    schema_free(s->additional);
    schema_free(s->items);
    schema_free(s->negated);
    free_list(s->all_of, s->n_all);
    free_list(s->any_of, s->n_any);
    free_list(s->one_of, s->n_one);
    free(s->required);
    free(s->map_keys);
    json_decref(s->dflt);
    json_decref(s->enumeration);
    regex_free(s->pattern);
    free(s->pattern_text);
    free(s->format);
    json_decref(s->source);
    free(s);
}

const struct schema *schema_field(const struct schema *s, const char *key)
{
    struct schema_prop *p = NULL;
    if (s)
        HASH_FIND_STR(s->props, key, p);
    return p ? p->schema : s ? s->additional : NULL;
}

const struct schema *schema_items(const struct schema *s)
{
    return s ? s->items : NULL;
}

enum list_kind schema_list_kind(const struct schema *s, const char *const **map_keys,
                                size_t *n_keys)
{
    if (!s)
        return LIST_ATOMIC;
    *map_keys = s->map_keys;
    *n_keys = s->n_map_keys;
    return s->list_kind;
}

bool schema_map_atomic(const struct schema *s)
{
    return s && s->map_atomic;
}

const json_t *schema_default_of(const struct schema *s)
{
    return s ? s->dflt : NULL;
}
