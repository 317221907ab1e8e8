#include "local/spaces.h"
#include "local/gc.h"
#include "local/object.h"

#include "lib/base/clock.h"
#include "lib/base/log.h"

#include <stdlib.h>

#define EVENT_LIFE_NS (3600ull * NS_PER_S)
#define CRD_FINALIZER "customresourcecleanup.apiextensions.k8s.io"

/* Deletes what lies in a bucket (of one namespace, or of all when ns is NULL). Returns how many are
 * still there. */
static size_t empty_bucket(struct server *s, struct bucket *b, const char *ns)
{
    const struct resource *r = resource_of_bucket(s->reg, b);
    struct delete_options opt = {.grace = -1, .propagation = PROPAGATE_BACKGROUND};
    size_t left = 0;
    if (!r)
        return 0;
    for (size_t i = bucket_count(b); i-- > 0;) {
        struct obj *o = bucket_at(b, i);
        bool gone = false;
        json_t *out = NULL, *st = NULL;
        if (!o || (ns && strcmp(o->ns, ns)))
            continue;
        if (!json_at(o->doc, "metadata.deletionTimestamp") &&
            object_delete(s, r, o, &opt, &gone, &out, &st))
            log_warn("an object could not be deleted", LS("why", json_str_at(st, "message", "")));
        left += !gone;
        json_decref(out);
        json_decref(st);
    }
    return left;
}

static size_t empty_namespace(struct server *s, const char *ns)
{
    size_t left = 0;
    for (struct bucket *b = store_bucket_next(s->store, NULL); b;
         b = store_bucket_next(s->store, b)) {
        const struct resource *r = resource_of_bucket(s->reg, b);
        if (r && resource_has(r, R_NAMESPACED))
            left += empty_bucket(s, b, ns);
    }
    return left;
}

static void finish_space(struct server *s, const struct resource *r, const char *key, json_t *doc)
{
    json_t *st = NULL;
    bool gone;
    struct obj *now = object_store(s, r, doc, &st);
    if (!now || object_finish_delete(s, r, now, &gone, &st)) {
        log_warn("a deletion could not be finished", LS("object", key),
                 LS("why", json_str_at(st, "message", "")));
        json_decref(st);
    }
}

static void run_namespaces(struct server *s)
{
    const struct resource *r = resource_find(s->reg, "", "v1", "namespaces");
    for (size_t i = bucket_count(r->bucket); i-- > 0;) {
        struct obj *o = bucket_at(r->bucket, i);
        if (!o || !json_at(o->doc, "metadata.deletionTimestamp") ||
            !json_array_size(json_at(o->doc, "spec.finalizers")))
            continue;
        CLEANUP(free_charp) char *name = xstrdup(o->name);
        if (empty_namespace(s, name))
            continue;
        json_t *doc = json_deep_copy(bucket_get(r->bucket, "", name)->doc);
        json_object_del(json_object_get(doc, "spec"), "finalizers");
        finish_space(s, r, name, doc);
    }
}

static bool drop_finalizer(json_t *doc, const char *name)
{
    json_t *list = json_at(doc, "metadata.finalizers");
    for (size_t i = json_array_size(list); i-- > 0;) {
        const char *f = json_string_value(json_array_get(list, i));
        if (!f || strcmp(f, name))
            continue;
        json_array_remove(list, i);
        if (!json_array_size(list))
            json_object_del(json_object_get(doc, "metadata"), "finalizers");
        return true;
    }
    return false;
}

static void run_definitions(struct server *s)
{
    const struct resource *r =
        resource_find(s->reg, "apiextensions.k8s.io", "v1", "customresourcedefinitions");
    for (size_t i = bucket_count(r->bucket); i-- > 0;) {
        struct obj *o = bucket_at(r->bucket, i);
        if (!o || !json_at(o->doc, "metadata.deletionTimestamp"))
            continue;
        CLEANUP(free_charp)
        char *id = xasprintf("%s/%s", json_str_at(o->doc, "spec.group", ""),
                             json_str_at(o->doc, "spec.names.plural", ""));
        if (empty_bucket(s, store_bucket(s->store, id), NULL))
            continue;
        json_t *doc = json_deep_copy(o->doc);
        if (drop_finalizer(doc, CRD_FINALIZER))
            finish_space(s, r, id, doc);
        else
            json_decref(doc);
    }
}

void spaces_run(struct server *s)
{
    if (!store_dirty(s->store))
        return;
    run_namespaces(s);
    run_definitions(s);
    gc_run(s);
}

/* ---- old events ---- */

static bool is_old(const struct obj *o, uint64_t now)
{
    const char *t = json_str_at(o->doc, "lastTimestamp", NULL);
    uint64_t at;
    if (!t)
        t = json_str_at(o->doc, "metadata.creationTimestamp", "");
    return !clock_parse_rfc3339(t, &at) && at + EVENT_LIFE_NS < now;
}

void spaces_tick(struct server *s)
{
    const struct resource *r = resource_find(s->reg, "", "v1", "events");
    uint64_t now = clock_wall_ns();
    for (size_t i = bucket_count(r->bucket); i-- > 0;) {
        struct obj *o = bucket_at(r->bucket, i);
        json_t *st = NULL;
        if (is_old(o, now) && object_remove(s, r, o, &st))
            json_decref(st);
    }
}

/* ---- a fresh cluster ---- */

static void make(struct server *s, const char *group, const char *plural, json_t *doc)
{
    const struct resource *r = resource_find(s->reg, group, "v1", plural);
    json_t *meta = json_object_get(doc, "metadata"), *st = NULL;
    char uid[37], now[40];
    new_uid(uid);
    json_object_set_new(meta, "uid", json_string(uid));
    json_object_set_new(meta, "creationTimestamp", json_string(now_rfc3339(now)));
    if (!object_store(s, r, doc, &st)) {
        log_error("a first object could not be stored", LS("why", json_str_at(st, "message", "")));
        json_decref(st);
    }
}

static void make_namespace(struct server *s, const char *name)
{
    make(s, "", "namespaces",
         json_pack("{s:s,s:s,s:{s:s,s:{s:s}},s:{s:[s]},s:{s:s}}", "apiVersion", "v1", "kind",
                   "Namespace", "metadata", "name", name, "labels", "kubernetes.io/metadata.name",
                   name, "spec", "finalizers", "kubernetes", "status", "phase", "Active"));
}

static void make_roles(struct server *s)
{
    const char *api = "rbac.authorization.k8s.io/v1", *group = "rbac.authorization.k8s.io";
    make(s, group, "clusterroles",
         json_pack("{s:s,s:s,s:{s:s},s:[{s:[s],s:[s],s:[s]},{s:[s],s:[s]}]}", "apiVersion", api,
                   "kind", "ClusterRole", "metadata", "name", "cluster-admin", "rules", "apiGroups",
                   "*", "resources", "*", "verbs", "*", "nonResourceURLs", "*", "verbs", "*"));
    make(s, group, "clusterrolebindings",
         json_pack("{s:s,s:s,s:{s:s},s:{s:s,s:s,s:s},s:[{s:s,s:s,s:s}]}", "apiVersion", api, "kind",
                   "ClusterRoleBinding", "metadata", "name", "cluster-admin", "roleRef", "apiGroup",
                   group, "kind", "ClusterRole", "name", "cluster-admin", "subjects", "kind",
                   "Group", "apiGroup", group, "name", "system:masters"));
}

void spaces_first(struct server *s)
{
    static const char *const names[] = {"default", "kube-system", "kube-public", "kube-node-lease",
                                        "baton-system"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        make_namespace(s, names[i]);
    make_roles(s);
}
