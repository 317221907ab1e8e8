#include "local/gc.h"
#include "local/object.h"

#include "lib/base/log.h"

#include <stdlib.h>

/* Work is kept as names and uids, never as pointers: an object may change again before its turn. */
enum work_kind { WORK_OWNER_GONE, WORK_CHECK_OWNERS, WORK_FOREGROUND, WORK_NAMESPACE_NEW };
struct work {
    enum work_kind kind;
    char *uid, *name;
    struct work *next;
};
struct gc {
    struct work *first, **last;
};

struct gc *gc_new(void)
{
    struct gc *g = xcalloc(1, sizeof *g);
    g->last = &g->first;
    return g;
}

static void work_free(struct work *w)
{
    free(w->uid);
    free(w->name);
    free(w);
}

void gc_free(struct gc *g)
{
    while (g && g->first) {
        struct work *w = g->first;
        g->first = w->next;
        work_free(w);
    }
    free(g);
}

static void note(struct server *s, enum work_kind kind, const char *uid, const char *name)
{
    struct work *w = xcalloc(1, sizeof *w);
    *w = (struct work){.kind = kind, .uid = xstrdup(uid), .name = xstrdup(name)};
    *s->gc->last = w;
    s->gc->last = &w->next;
    server_touch(s);
}

void gc_note_written(struct server *s, struct obj *o)
{
    if (o->has_owners)
        note(s, WORK_CHECK_OWNERS, o->uid, o->name);
}

/* Owners that wait for this dependent in the foreground may go on. */
void gc_note_removed(struct server *s, struct obj *o)
{
    size_t i;
    json_t *ref;
    note(s, WORK_OWNER_GONE, o->uid, o->name);
    if (o->has_owners)
        json_array_foreach (json_at(o->doc, "metadata.ownerReferences"), i, ref)
            note(s, WORK_FOREGROUND, json_str_at(ref, "uid", ""), "");
}

void gc_note_namespace(struct server *s, const char *name)
{
    note(s, WORK_NAMESPACE_NEW, "", name);
}

static bool has_finalizer(const json_t *doc, const char *name)
{
    size_t i;
    json_t *v;
    json_array_foreach (json_at(doc, "metadata.finalizers"), i, v)
        if (json_is_string(v) && !strcmp(json_string_value(v), name))
            return true;
    return false;
}

void gc_note_foreground(struct server *s, struct obj *o)
{
    if (has_finalizer(o->doc, "foregroundDeletion"))
        note(s, WORK_FOREGROUND, o->uid, o->name);
}

static const json_t *owner_ref(const struct obj *o, const char *uid)
{
    size_t i;
    json_t *ref;
    if (!o->has_owners)
        return NULL;
    json_array_foreach (json_at(o->doc, "metadata.ownerReferences"), i, ref)
        if (!strcmp(json_str_at(ref, "uid", ""), uid))
            return ref;
    return NULL;
}

/* Calls fn for each dependent of an owner; a snapshot is taken first, as fn writes. */
typedef void (*dependent_fn)(struct server *s, struct obj *o, const char *uid, void *ctx);
static void each_dependent(struct server *s, const char *uid, dependent_fn fn, void *ctx)
{
    struct obj **found = NULL;
    size_t n = 0;
    for (struct bucket *b = store_bucket_next(s->store, NULL); b;
         b = store_bucket_next(s->store, b))
        for (size_t i = 0; i < bucket_count(b); i++) {
            struct obj *o = bucket_at(b, i);
            if (!owner_ref(o, uid))
                continue;
            found = xrealloc(found, (n + 1) * sizeof(struct obj *));
            found[n++] = obj_ref(o);
        }
    for (size_t i = 0; i < n; i++) {
        struct obj *now = store_by_uid(s->store, found[i]->uid);
        if (now)
            fn(s, now, uid, ctx);
        obj_unref(found[i]);
    }
    free(found);
}

/* An owner exists when its uid does, and, for a reference with a namespace, lives where the
 * reference can mean it. */
static bool owner_exists(struct server *s, const struct obj *o, const json_t *ref)
{
    const struct obj *owner = store_by_uid(s->store, json_str_at(ref, "uid", ""));
    if (!owner)
        return false;
    return !*owner->ns || !strcmp(owner->ns, o->ns);
}

static void collect(struct server *s, struct obj *o)
{
    const struct resource *r = resource_of_bucket(s->reg, o->bucket);
    struct delete_options opt = {.grace = -1, .propagation = PROPAGATE_BACKGROUND};
    bool gone;
    json_t *out = NULL, *st = NULL;
    if (!r || json_at(o->doc, "metadata.deletionTimestamp"))
        return;
    if (object_delete(s, r, o, &opt, &gone, &out, &st))
        log_warn("garbage collection could not delete an object", LS("object", o->key),
                 LS("why", json_str_at(st, "message", "")));
    json_decref(out);
    json_decref(st);
}

/* Drops references to owners that are gone while another owner holds the object. */
static void drop_refs(struct server *s, struct obj *o, const char *uid)
{
    const struct resource *r = resource_of_bucket(s->reg, o->bucket);
    json_t *doc = json_deep_copy(o->doc), *refs = json_at(doc, "metadata.ownerReferences"),
           *st = NULL;
    for (size_t i = json_array_size(refs); i-- > 0;)
        if (!strcmp(json_str_at(json_array_get(refs, i), "uid", ""), uid))
            json_array_remove(refs, i);
    if (!json_array_size(refs))
        json_object_del(json_object_get(doc, "metadata"), "ownerReferences");
    if (!r || !object_store(s, r, doc, &st))
        json_decref(st);
}

static void check_owners(struct server *s, struct obj *o)
{
    size_t i, alive = 0;
    json_t *ref;
    json_array_foreach (json_at(o->doc, "metadata.ownerReferences"), i, ref)
        alive += owner_exists(s, o, ref);
    if (!alive && o->has_owners)
        collect(s, o);
}

static void owner_gone(struct server *s, struct obj *o, const char *uid, void *ctx)
{
    (void)ctx;
    size_t i, alive = 0;
    json_t *ref;
    json_array_foreach (json_at(o->doc, "metadata.ownerReferences"), i, ref)
        alive += owner_exists(s, o, ref);
    if (alive)
        drop_refs(s, o, uid);
    else
        collect(s, o);
}

/* ---- foreground ---- */

static void foreground_child(struct server *s, struct obj *o, const char *uid, void *ctx)
{
    size_t *blocking = ctx;
    const json_t *ref = owner_ref(o, uid);
    const struct resource *r = resource_of_bucket(s->reg, o->bucket);
    struct delete_options opt = {.grace = -1, .propagation = PROPAGATE_FOREGROUND};
    bool gone = false;
    json_t *out = NULL, *st = NULL;
    bool blocks = json_bool_at(ref, "blockOwnerDeletion", false);
    if (!r)
        return;
    if (!json_at(o->doc, "metadata.deletionTimestamp") &&
        object_delete(s, r, o, &opt, &gone, &out, &st))
        log_warn("foreground deletion could not delete a dependent",
                 LS("why", json_str_at(st, "message", "")));
    json_decref(out);
    json_decref(st);
    *blocking += blocks && !gone;
}

static void remove_finalizer(struct server *s, struct obj *o, const char *name)
{
    const struct resource *r = resource_of_bucket(s->reg, o->bucket);
    json_t *doc = json_deep_copy(o->doc), *list = json_at(doc, "metadata.finalizers"), *st = NULL;
    bool gone;
    for (size_t i = json_array_size(list); i-- > 0;) {
        const char *f = json_string_value(json_array_get(list, i));
        if (f && !strcmp(f, name))
            json_array_remove(list, i);
    }
    if (!json_array_size(list))
        json_object_del(json_object_get(doc, "metadata"), "finalizers");
    struct obj *now = object_store(s, r, doc, &st);
    if (!now || object_finish_delete(s, r, now, &gone, &st))
        json_decref(st);
}

static void foreground(struct server *s, const char *uid)
{
    size_t blocking = 0;
    struct obj *o = store_by_uid(s->store, uid);
    if (!o || !has_finalizer(o->doc, "foregroundDeletion"))
        return;
    each_dependent(s, uid, foreground_child, &blocking);
    o = store_by_uid(s->store, uid);
    if (o && !blocking)
        remove_finalizer(s, o, "foregroundDeletion");
}

/* ---- namespaces ---- */

static void put_new(struct server *s, const char *plural, json_t *doc)
{
    const struct resource *r = resource_find(s->reg, "", "v1", plural);
    json_t *meta = json_object_get(doc, "metadata"), *st = NULL;
    char uid[37], now[40];
    if (bucket_get(r->bucket, json_str_at(meta, "namespace", ""), json_str_at(meta, "name", ""))) {
        json_decref(doc);
        return;
    }
    new_uid(uid);
    json_object_set_new(meta, "uid", json_string(uid));
    json_object_set_new(meta, "creationTimestamp", json_string(now_rfc3339(now)));
    if (!object_store(s, r, doc, &st))
        json_decref(st);
}

static void namespace_new(struct server *s, const char *ns)
{
    put_new(s, "serviceaccounts",
            json_pack("{s:s,s:s,s:{s:s,s:s}}", "apiVersion", "v1", "kind", "ServiceAccount",
                      "metadata", "name", "default", "namespace", ns));
    put_new(
        s, "configmaps",
        json_pack("{s:s,s:s,s:{s:s,s:s,s:{s:s}},s:{s:s}}", "apiVersion", "v1", "kind", "ConfigMap",
                  "metadata", "name", "kube-root-ca.crt", "namespace", ns, "annotations",
                  "kubernetes.io/description",
                  "Contains a CA bundle that can be used to verify the kube-apiserver when using "
                  "internal endpoints such as the internal service IP or kubernetes.default.svc. "
                  "No other usage is guaranteed across distributions of Kubernetes clusters.",
                  "data", "ca.crt", s->ca_pem));
}

/* ---- */

static void do_work(struct server *s, const struct work *w)
{
    struct obj *o;
    switch (w->kind) {
    case WORK_OWNER_GONE: each_dependent(s, w->uid, owner_gone, NULL); break;
    case WORK_CHECK_OWNERS:
        o = store_by_uid(s->store, w->uid);
        if (o)
            check_owners(s, o);
        break;
    case WORK_FOREGROUND: foreground(s, w->uid); break;
    case WORK_NAMESPACE_NEW: namespace_new(s, w->name); break;
    }
}

void gc_run(struct server *s)
{
    struct gc *g = s->gc;
    while (g->first) {
        struct work *w = g->first;
        g->first = w->next;
        if (!g->first)
            g->last = &g->first;
        do_work(s, w);
        work_free(w);
    }
}

static void orphan_child(struct server *s, struct obj *o, const char *uid, void *ctx)
{
    (void)ctx;
    drop_refs(s, o, uid);
}

void gc_orphan(struct server *s, const struct obj *owner)
{
    each_dependent(s, owner->uid, orphan_child, NULL);
}
