#include "cli/revisions.h"

#include <stdio.h>
#include <stdlib.h>

#define CHANGE_MAX 160

/* Fields that are no part of a revision, so an absent one says nothing. */
static bool uncovered(const char *parent, const char *key)
{
    static const char *const of_roles[] = {"replicas", "bounds"};
    static const char *const of_cache[] = {"ttl", "tiers"};
    bool role = strcmp(parent, "prefill") == 0 || strcmp(parent, "decode") == 0 ||
                strcmp(parent, "unified") == 0;
    for (size_t i = 0; i < 2; i++) {
        if ((role && strcmp(key, of_roles[i]) == 0) ||
            (strcmp(parent, "kvCache") == 0 && strcmp(key, of_cache[i]) == 0))
            return true;
    }
    return false;
}

static int by_number(const void *a, const void *b)
{
    json_int_t x = json_int_at(*(json_t *const *)a, "revision", 0),
               y = json_int_at(*(json_t *const *)b, "revision", 0);
    return x < y ? -1 : x > y;
}

static bool owned_by(const json_t *o, const char *uid)
{
    size_t i;
    json_t *owner;
    json_array_foreach (json_at(o, "metadata.ownerReferences"), i, owner) {
        if (strcmp(json_str_at(owner, "uid", ""), uid) == 0)
            return true;
    }
    return false;
}

json_t *revisions_list(struct target *t, const json_t *infd, struct err *e)
{
    CLEANUP(free_charp)
    char *selector = xasprintf("%s=%s", LABEL_INFD, json_str_at(infd, "metadata.name", ""));
    CLEANUP(json_decrefp) json_t *all = target_list(t, &target_revisions, selector, NULL, e);
    if (!all)
        return NULL;
    size_t n = json_array_size(all), i, kept = 0;
    json_t **sorted = xcalloc(n + 1, sizeof *sorted), *v, *out = json_array();
    json_array_foreach (all, i, v) {
        if (owned_by(v, json_str_at(infd, "metadata.uid", "")))
            sorted[kept++] = v;
    }
    qsort(sorted, kept, sizeof *sorted, by_number);
    for (i = 0; i < kept; i++)
        json_array_append(out, sorted[i]);
    free(sorted);
    return out;
}

const char *revision_hash(const json_t *revision, const json_t *infd)
{
    const char *name = json_str_at(revision, "metadata.name", "");
    size_t n = strlen(json_str_at(infd, "metadata.name", ""));
    return strlen(name) > n ? name + n + 1 : name;
}

/* ---- what changed ---- */

static void put_value(struct buf *out, const json_t *v)
{
    CLEANUP(free_charp) char *text = v ? json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
    if (buf_printf(out, "%.60s", text ? text : "none"))
        return;
}

static void compare(struct buf *out, const char *path, const json_t *a, const json_t *b)
{
    const char *key;
    json_t *v;
    if (json_equal(a, b) || out->n > CHANGE_MAX)
        return;
    if (!json_is_object(a) || !json_is_object(b)) {
        if (buf_printf(out, "%s%s: ", out->n ? ", " : "", path))
            return;
        put_value(out, a);
        if (buf_cstr(out, " → "))
            return;
        put_value(out, b);
        return;
    }
    json_object_foreach ((json_t *)(uintptr_t)a, key, v) {
        CLEANUP(free_charp) char *below = xasprintf("%s%s%s", path, *path ? "." : "", key);
        compare(out, below, v, json_object_get(b, key));
    }
    json_object_foreach ((json_t *)(uintptr_t)b, key, v) {
        CLEANUP(free_charp) char *below = xasprintf("%s%s%s", path, *path ? "." : "", key);
        if (!json_object_get(a, key))
            compare(out, below, NULL, v);
    }
}

char *revisions_change(const json_t *before, const json_t *after)
{
    struct buf out;
    buf_init(&out, 8192);
    compare(&out, "", json_at(before, "data.spec"), json_at(after, "data.spec"));
    if (buf_cstr(&out, out.n > CHANGE_MAX ? ", …" : ""))
        buf_reset(&out);
    char *text = buf_take(&out);
    return text ? text : xstrdup("");
}

/* ---- the way back ---- */

/* What turns `is` into `want`; NULL: nothing. Lists are replaced as a whole (RFC 7386). */
static json_t *difference(const char *name, const json_t *is, const json_t *want)
{
    const char *key;
    json_t *v;
    if (json_equal(is, want))
        return NULL;
    if (!json_is_object(is) || !json_is_object(want))
        return json_incref((json_t *)(uintptr_t)want);
    json_t *patch = json_object();
    json_object_foreach ((json_t *)(uintptr_t)want, key, v) {
        json_t *one = difference(key, json_object_get(is, key), v);
        if (one)
            json_object_set_new(patch, key, one);
    }
    json_object_foreach ((json_t *)(uintptr_t)is, key, v) {
        if (!json_object_get(want, key) && !uncovered(name, key))
            json_object_set_new(patch, key, json_null());
    }
    if (json_object_size(patch))
        return patch;
    json_decref(patch);
    return NULL;
}

json_t *revisions_patch(const json_t *infd, const json_t *revision)
{
    static const char *const parts[] = {"model",   "prefill", "decode", "unified",
                                        "kvCache", "engine",  "rollout"};
    const json_t *is = json_object_get(infd, "spec"), *want = json_at(revision, "data.spec");
    json_t *patch = json_object();
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        const json_t *a = json_object_get(is, parts[i]), *b = json_object_get(want, parts[i]);
        bool rollout = strcmp(parts[i], "rollout") == 0; /* only what is stored of it */
        json_t *one = b ? difference(parts[i], a, b) : NULL;
        if (rollout && one) {
            const char *key;
            void *next;
            json_t *v;
            json_object_foreach_safe(one, next, key, v)
            {
                if (json_is_null(v))
                    json_object_del(one, key);
            }
        }
        if (one && json_is_object(one) && !a && !rollout && i > 0 && i < 4)
            json_object_set_new(one, "replicas", json_integer(1)); /* the role comes back */
        if (!b && a && !rollout)
            one = json_null();
        if (one && (!json_is_object(one) || json_object_size(one)))
            json_object_set(patch, parts[i], one);
        json_decref(one);
    }
    return patch;
}
