#include "lib/json/json.h"

#include "lib/base/file.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

/* Nesting is bounded before jansson recurses. Strings are skipped so that brackets inside don't
 * count. */
static int check_depth(struct str t, int max_depth, struct err *e)
{
    int depth = 0;
    bool in_string = false;
    for (size_t i = 0; i < t.n; i++) {
        char c = t.p[i];
        if (in_string) {
            if (c == '\\')
                i++;
            else if (c == '"')
                in_string = false;
        } else if (c == '"') {
            in_string = true;
        } else if (c == '{' || c == '[') {
            if (++depth > max_depth)
                return err_set(e, EINVAL, "JSON is nested deeper than %d levels", max_depth);
        } else if (c == '}' || c == ']') {
            depth--;
        }
    }
    return 0;
}

json_t *json_parse(struct str text, size_t max_bytes, int max_depth, struct err *e)
{
    json_error_t je;
    if (text.n > max_bytes) {
        err_set(e, EMSGSIZE, "JSON of %zu bytes is larger than the limit of %zu", text.n,
                max_bytes);
        return NULL;
    }
    if (check_depth(text, max_depth ? max_depth : JSON_MAX_DEPTH, e))
        return NULL;
    json_t *o =
        json_loadb(text.p ? text.p : "", text.n, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &je);
    if (!o)
        err_set(e, EINVAL, "JSON line %d column %d: %s", je.line, je.column, je.text);
    return o;
}

json_t *json_parse_file(const char *path, size_t max_bytes, struct err *e)
{
    struct buf b;
    json_t *o = NULL;
    buf_init(&b, max_bytes);
    if (file_append(path, &b, e) == 0) {
        o = json_parse(buf_view(&b), max_bytes, 0, e);
        if (!o)
            err_wrap(e, "%s", path);
    }
    buf_fini(&b);
    return o;
}

json_t *json_at(const json_t *o, const char *path)
{
    struct str rest = str_c(path), head;
    const json_t *at = o;
    while (rest.n && at) {
        rest = str_cut(rest, '.', &head);
        uint64_t i;
        if (json_is_array(at))
            at = str_to_u64(head, 0, 1u << 30, &i) ? NULL : json_array_get(at, (size_t)i);
        else
            at = json_object_getn(at, head.p, head.n);
    }
    return (json_t *)(uintptr_t)at;
}

const char *json_str_at(const json_t *o, const char *path, const char *dflt)
{
    const char *s = json_string_value(json_at(o, path));
    return s ? s : dflt;
}

static bool as_int(const json_t *v, int64_t *out)
{
    if (json_is_integer(v)) {
        *out = json_integer_value(v);
        return true;
    }
    double r = json_real_value(v);
    if (!json_is_real(v) || r != floor(r) || fabs(r) > 9e15)
        return false;
    *out = (int64_t)r;
    return true;
}

int64_t json_int_at(const json_t *o, const char *path, int64_t dflt)
{
    int64_t v = dflt;
    return as_int(json_at(o, path), &v) ? v : dflt;
}

double json_num_at(const json_t *o, const char *path, double dflt)
{
    const json_t *v = json_at(o, path);
    return json_is_number(v) ? json_number_value(v) : dflt;
}

bool json_bool_at(const json_t *o, const char *path, bool dflt)
{
    const json_t *v = json_at(o, path);
    return json_is_boolean(v) ? json_is_true(v) : dflt;
}

int json_need_str(const json_t *o, const char *path, const char **out, struct err *e)
{
    const char *s = json_string_value(json_at(o, path));
    if (!s)
        return err_set(e, EINVAL, "%s: a string is required", path);
    *out = s;
    return 0;
}

int json_need_int(const json_t *o, const char *path, int64_t min, int64_t max, int64_t *out,
                  struct err *e)
{
    int64_t v;
    if (!as_int(json_at(o, path), &v))
        return err_set(e, EINVAL, "%s: a whole number is required", path);
    if (v < min || v > max)
        return err_set(e, ERANGE, "%s: must be between %lld and %lld, not %lld", path,
                       (long long)min, (long long)max, (long long)v);
    *out = v;
    return 0;
}

int json_put(json_t *o, const char *path, json_t *value)
{
    struct str rest = str_c(path), head;
    for (;;) {
        rest = str_cut(rest, '.', &head);
        if (rest.n == 0)
            return json_object_setn_new(o, head.p, head.n, value) ? -ENOMEM : 0;
        json_t *next = json_object_getn(o, head.p, head.n);
        if (!json_is_object(next)) {
            next = json_object();
            if (json_object_setn_new(o, head.p, head.n, next)) {
                json_decref(value);
                return -ENOMEM;
            }
        }
        o = next;
    }
}

int json_merge_patch(json_t *target, const json_t *patch)
{
    const char *key;
    json_t *v;
    json_object_foreach ((json_t *)(uintptr_t)patch, key, v) {
        if (json_is_null(v)) {
            json_object_del(target, key);
            continue;
        }
        json_t *old = json_object_get(target, key);
        if (json_is_object(v)) {
            if (!json_is_object(old)) {
                old = json_object();
                if (json_object_set_new(target, key, old))
                    return -ENOMEM;
            }
            int rc = json_merge_patch(old, v);
            if (rc)
                return rc;
        } else if (json_object_set_new(target, key, json_deep_copy(v))) {
            return -ENOMEM;
        }
    }
    return 0;
}

static int sink(const char *p, size_t n, void *out)
{
    return buf_append(out, p, n) ? -1 : 0;
}

int json_write(const json_t *o, bool sorted, struct buf *out)
{
    size_t flags = JSON_COMPACT | JSON_ENCODE_ANY | (sorted ? JSON_SORT_KEYS : 0);
    return json_dump_callback(o, sink, out, flags) ? -EMSGSIZE : 0;
}
