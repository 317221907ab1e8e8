#include "local/fields.h"
#include "local/status.h"
#include "local/types.h"

#include "lib/base/clock.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

static char *join(const char *path, const char *field)
{
    return *path ? xasprintf("%s.%s", path, field) : xstrdup(field);
}

static char *join_index(const char *path, size_t i)
{
    return xasprintf("%s[%zu]", path, i);
}

static void prune_at(const json_t *schema, json_t *doc, const char *path, json_t *unknown)
{
    schema = types_resolve(schema);
    const char *key;
    json_t *v;
    void *tmp;
    size_t i;
    if (json_is_array(doc)) {
        json_array_foreach (doc, i, v) {
            CLEANUP(free_charp) char *at = join_index(path, i);
            prune_at(types_items(schema), v, at, unknown);
        }
        return;
    }
    if (!schema || !json_is_object(doc))
        return;
    bool keep = types_preserves_unknown(schema);
    json_object_foreach_safe(doc, tmp, key, v)
    {
        const json_t *f = types_field(schema, key);
        CLEANUP(free_charp) char *at = join(path, key);
        if (f && !json_is_null(v)) {
            prune_at(f, v, at, unknown);
        } else if (!keep) {
            if (!f && unknown)
                json_array_append_new(unknown, json_string(at));
            json_object_del(doc, key);
        }
    }
}

void fields_prune(const json_t *schema, json_t *doc, json_t *unknown)
{
    prune_at(schema, doc, "", unknown);
}

static bool is_quantity(const json_t *schema)
{
    return json_object_get(schema, "x-baton-format") != NULL;
}

static bool type_fits(const json_t *schema, const json_t *v)
{
    const char *type = json_string_value(json_object_get(schema, "type"));
    if (is_quantity(schema))
        return json_is_string(v) || json_is_number(v);
    if (json_is_true(json_object_get(schema, "x-kubernetes-int-or-string")))
        return json_is_string(v) || json_is_integer(v);
    if (!type)
        return true;
    switch (type[0]) {
    case 's': return json_is_string(v);
    case 'i': return json_is_integer(v);
    case 'n': return json_is_number(v);
    case 'b': return json_is_boolean(v);
    case 'a': return json_is_array(v);
    case 'o': return json_is_object(v);
    default: return true;
    }
}

static bool is_base64(const char *s)
{
    size_t n = strlen(s), pad = 0;
    if (n % 4)
        return false;
    for (size_t i = 0; i < n; i++) {
        if (s[i] == '=' && i + 2 >= n)
            pad++;
        else if (pad || (!isalnum((unsigned char)s[i]) && s[i] != '+' && s[i] != '/'))
            return false;
    }
    return true;
}

static int check_scalar(const json_t *schema, const json_t *v, const char *path, struct err *e)
{
    const char *format = json_string_value(json_object_get(schema, "format"));
    int64_t q;
    uint64_t t;
    if (format && strcmp(format, "date-time") == 0 && clock_parse_rfc3339(json_string_value(v), &t))
        return err_set(e, EINVAL, "%s: parsing time \"%s\" as RFC 3339 failed", path,
                       json_string_value(v));
    if (format && strcmp(format, "byte") == 0 && !is_base64(json_string_value(v)))
        return err_set(e, EINVAL, "%s: illegal base64 data", path);
    if (format && strcmp(format, "int32") == 0 &&
        (json_integer_value(v) > INT32_MAX || json_integer_value(v) < INT32_MIN))
        return err_set(e, EINVAL, "%s: %lld does not fit in an int32", path, json_integer_value(v));
    if (is_quantity(schema) && json_is_string(v) &&
        str_to_quantity_milli(str_c(json_string_value(v)), &q))
        return err_set(e, EINVAL,
                       "%s: quantities must match the regular expression "
                       "'^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
                       path);
    return 0;
}

static int check_at(const json_t *schema, json_t *doc, const char *path, struct err *e)
{
    schema = types_resolve(schema);
    const char *key;
    json_t *v;
    size_t i;
    int rc = 0;
    if (!schema || json_is_null(doc))
        return 0;
    if (!type_fits(schema, doc))
        return err_set(e, EINVAL, "cannot unmarshal %s into field %s of type %s",
                       json_is_string(doc)    ? "string"
                       : json_is_number(doc)  ? "number"
                       : json_is_boolean(doc) ? "bool"
                       : json_is_array(doc)   ? "array"
                                              : "object",
                       path, json_str_at(schema, "type", "quantity"));
    if (json_is_array(doc)) {
        json_array_foreach (doc, i, v) {
            CLEANUP(free_charp) char *at = join_index(path, i);
            if ((rc = check_at(types_items(schema), v, at, e)))
                return rc;
        }
        return 0;
    }
    if (!json_is_object(doc))
        return check_scalar(schema, doc, path, e);
    json_object_foreach (doc, key, v) {
        const json_t *f = types_field(schema, key);
        CLEANUP(free_charp) char *at = join(path, key);
        if (f && (rc = check_at(f, v, at, e)))
            return rc;
        if (f && is_quantity(types_resolve(f)) && json_is_integer(v))
            json_object_set_new(doc, key, json_sprintf("%lld", json_integer_value(v)));
    }
    return 0;
}

int fields_check_types(const json_t *schema, json_t *doc, struct err *e)
{
    return check_at(schema, doc, "", e);
}

void fields_default(const json_t *schema, json_t *doc)
{
    const char *key;
    json_t *v, *prop;
    size_t i;
    schema = types_resolve(schema);
    if (!schema)
        return;
    if (json_is_array(doc)) {
        json_array_foreach (doc, i, v)
            fields_default(types_items(schema), v);
        return;
    }
    if (!json_is_object(doc))
        return;
    json_object_foreach (json_object_get(schema, "properties"), key, prop) {
        const json_t *dflt = json_object_get(prop, "default");
        if (dflt && !json_object_get(doc, key))
            json_object_set_new(doc, key, json_deep_copy(dflt));
    }
    json_object_foreach (doc, key, v) {
        if (json_is_object(v) || json_is_array(v))
            fields_default(types_field(schema, key), v);
    }
}

static bool is_empty(const json_t *v)
{
    return !v || json_is_null(v) || (json_is_string(v) && !*json_string_value(v)) ||
           (json_is_array(v) && !json_array_size(v));
}

static void required_at(const json_t *schema, const json_t *doc, const char *path, json_t *causes)
{
    const char *key;
    json_t *v;
    size_t i;
    schema = types_resolve(schema);
    if (!schema)
        return;
    if (json_is_array(doc)) {
        json_array_foreach (doc, i, v) {
            CLEANUP(free_charp) char *at = join_index(path, i);
            required_at(types_items(schema), v, at, causes);
        }
        return;
    }
    if (!json_is_object(doc))
        return;
    json_array_foreach (json_object_get(schema, "required"), i, v) {
        CLEANUP(free_charp) char *at = join(path, json_string_value(v));
        if (is_empty(json_object_get(doc, json_string_value(v))))
            cause_required(causes, at, "");
    }
    json_object_foreach ((json_t *)doc, key, v) {
        CLEANUP(free_charp) char *at = join(path, key);
        if ((json_is_object(v) || json_is_array(v)) && strcmp(at, "status"))
            required_at(types_field(schema, key), v, at, causes);
    }
}

void fields_required(const json_t *schema, const json_t *doc, json_t *causes)
{
    required_at(schema, doc, "", causes);
}
