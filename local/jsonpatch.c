#include "local/jsonpatch.h"

#include <errno.h>
#include <stdlib.h>

#define MAX_OPERATIONS 10000

/* The reference token of a pointer, unescaped. */
static char *token(struct str t)
{
    char *s = xmalloc(t.n + 1), *o = s;
    for (size_t i = 0; i < t.n; i++) {
        if (t.p[i] == '~' && i + 1 < t.n && (t.p[i + 1] == '0' || t.p[i + 1] == '1'))
            *o++ = t.p[++i] == '0' ? '~' : '/';
        else
            *o++ = t.p[i];
    }
    *o = 0;
    return s;
}

static int array_index(const char *t, size_t n, bool may_append, size_t *out)
{
    uint64_t i;
    if (may_append && !strcmp(t, "-")) {
        *out = n;
        return 0;
    }
    if ((t[0] == '0' && t[1]) || str_to_u64(str_c(t), 0, may_append ? n : (n ? n - 1 : 0), &i) ||
        (!may_append && !n))
        return -ENOENT;
    *out = (size_t)i;
    return 0;
}

static json_t *step(json_t *at, const char *t)
{
    size_t i;
    if (json_is_array(at))
        return array_index(t, json_array_size(at), false, &i) ? NULL : json_array_get(at, i);
    return json_object_get(at, t);
}

/* The container of a pointer's last token; the token is heap. NULL when the path doesn't exist. */
static json_t *parent_of(json_t *doc, const char *pointer, char **last)
{
    struct str rest = {pointer + 1, strlen(pointer + 1)}, head;
    json_t *at = doc;
    for (;;) {
        bool more = memchr(rest.p, '/', rest.n) != NULL;
        rest = str_cut(rest, '/', &head);
        char *t = token(head);
        if (!more) {
            *last = t;
            return json_is_object(at) || json_is_array(at) ? at : NULL;
        }
        at = step(at, t);
        free(t);
        if (!at) {
            *last = NULL;
            return NULL;
        }
    }
}

static int missing(struct err *e, const char *op, const char *path)
{
    return err_set(e, ENOENT, "%s operation does not apply: doc is missing path: %s", op, path);
}

static json_t *get(json_t *doc, const char *path)
{
    if (!*path)
        return doc;
    char *last = NULL;
    json_t *p = parent_of(doc, path, &last);
    json_t *v = p ? step(p, last) : NULL;
    free(last);
    return v;
}

static int add(json_t **doc, const char *path, json_t *value, struct err *e)
{
    if (!*path) {
        json_decref(*doc);
        *doc = value;
        return 0;
    }
    char *last = NULL;
    json_t *p = parent_of(*doc, path, &last);
    size_t i;
    int rc = p ? 0 : missing(e, "add", path);
    if (!rc && json_is_array(p)) {
        rc = array_index(last, json_array_size(p), true, &i);
        if (rc)
            rc = missing(e, "add", path);
        else
            json_array_insert(p, i, value);
    } else if (!rc) {
        json_object_set(p, last, value);
    }
    json_decref(value);
    free(last);
    return rc;
}

static int take_out(json_t *doc, const char *path, const char *op, struct err *e)
{
    char *last = NULL;
    json_t *p = *path ? parent_of(doc, path, &last) : NULL;
    size_t i;
    int rc = p && step(p, last) ? 0 : missing(e, op, path);
    if (!rc && json_is_array(p)) {
        rc = array_index(last, json_array_size(p), false, &i);
        if (!rc)
            json_array_remove(p, i);
    } else if (!rc) {
        json_object_del(p, last);
    }
    free(last);
    return rc;
}

static int replace(json_t **doc, const char *path, json_t *value, struct err *e)
{
    if (*path) {
        char *last = NULL;
        json_t *p = parent_of(*doc, path, &last);
        size_t i;
        int rc = p && step(p, last) ? 0 : missing(e, "replace", path);
        if (!rc && json_is_array(p)) {
            rc = array_index(last, json_array_size(p), false, &i);
            if (!rc)
                json_array_set(p, i, value);
        } else if (!rc) {
            json_object_set(p, last, value);
        }
        json_decref(value);
        free(last);
        return rc;
    }
    return add(doc, path, value, e);
}

static int move_or_copy(json_t **doc, const json_t *op, const char *path, bool move, struct err *e)
{
    const char *from = json_string_value(json_object_get(op, "from"));
    if (!from || (*from && *from != '/'))
        return err_set(e, EINVAL, "the operation needs a \"from\" that begins with /");
    json_t *v = get(*doc, from);
    if (!v)
        return missing(e, move ? "move" : "copy", from);
    v = json_deep_copy(v);
    int rc = move ? take_out(*doc, from, "move", e) : 0;
    if (rc) {
        json_decref(v);
        return rc;
    }
    return add(doc, path, v, e);
}

static int one(json_t **doc, const json_t *op, struct err *e)
{
    const char *name = json_string_value(json_object_get(op, "op"));
    const char *path = json_string_value(json_object_get(op, "path"));
    json_t *value = json_object_get(op, "value");
    if (!name || !path || (*path && *path != '/'))
        return err_set(e, EINVAL, "an operation needs \"op\" and a \"path\" that begins with /");
    bool needs = !strcmp(name, "add") || !strcmp(name, "replace") || !strcmp(name, "test");
    if (needs && !value)
        return err_set(e, EINVAL, "the operation \"%s\" needs a \"value\"", name);
    if (!strcmp(name, "add"))
        return add(doc, path, json_deep_copy(value), e);
    if (!strcmp(name, "replace"))
        return replace(doc, path, json_deep_copy(value), e);
    if (!strcmp(name, "remove"))
        return take_out(*doc, path, "remove", e);
    if (!strcmp(name, "move") || !strcmp(name, "copy"))
        return move_or_copy(doc, op, path, name[0] == 'm', e);
    if (strcmp(name, "test") != 0)
        return err_set(e, ENOENT, "unknown operation \"%s\"", name);
    json_t *v = get(*doc, path);
    if (!v ? !json_is_null(value) : !json_equal(v, value))
        return err_set(e, ENOENT, "testing value %s failed", path);
    return 0;
}

int jsonpatch_apply(json_t **doc, const json_t *patch, struct err *e)
{
    size_t i;
    json_t *op;
    if (!json_is_array(patch))
        return err_set(e, EINVAL, "a JSON patch is an array of operations");
    if (json_array_size(patch) > MAX_OPERATIONS)
        return err_set(e, EINVAL, "a JSON patch may have at most %d operations", MAX_OPERATIONS);
    json_t *work = json_deep_copy(*doc);
    int rc = 0;
    json_array_foreach ((json_t *)patch, i, op) {
        rc = one(&work, op, e);
        if (rc)
            break;
    }
    if (rc) {
        json_decref(work);
        return rc;
    }
    json_decref(*doc);
    *doc = work;
    return 0;
}
