/* Revisions: what of a spec the hash covers, stored as a ControllerRevision, and read back when a
 * pod of an older revision must be made. */
#include "controller/controller.h"

#include <errno.h>
#include <stdlib.h>

/* The members of spec.<role> that stay out: numbers are no part of a revision. */
static void keep_shape(json_t *spec)
{
    static const char *const roles[] = {"prefill", "decode", "unified"};
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++) {
        json_t *r = json_object_get(spec, roles[i]);
        json_object_del(r, "replicas");
        json_object_del(r, "bounds");
    }
}

/* {"spec": …}: the parts that the hashes of the roles are made of. */
json_t *revision_data(const struct kube_infd *d)
{
    static const char *const parts[] = {"model",   "prefill", "decode",
                                        "unified", "kvCache", "engine"};
    CLEANUP(json_decrefp) json_t *whole = view_encode(&kube_infd_view, d);
    json_t *from = json_object_get(whole, "spec"), *spec = json_object();
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (json_object_get(from, parts[i]))
            json_object_set(spec, parts[i], json_object_get(from, parts[i]));
    json_t *kv = json_object_get(spec, "kvCache"), *drain = json_at(from, "rollout.drainTimeout");
    json_object_del(kv, "ttl"); /* not in the hash */
    json_object_del(kv, "tiers");
    if (drain)
        json_object_set_new(spec, "rollout", json_pack("{s:O}", "drainTimeout", drain));
    keep_shape(spec);
    /* The API server compares the bytes of data, and a patch of the number writes them anew in
     * order of keys: so they are in that order from the start. */
    char *text = json_dumps(spec, JSON_COMPACT | JSON_SORT_KEYS);
    ASSERT(text);
    json_t *sorted = json_loads(text, 0, NULL);
    free(text);
    json_decref(spec);
    return json_pack("{s:o}", "spec", sorted);
}

static const char *label_of(enum rec_role role)
{
    static const char *const keys[] = {BATON_PREFIX "revision-prefill",
                                       BATON_PREFIX "revision-decode",
                                       BATON_PREFIX "revision-unified"};
    return keys[role];
}

json_t *revision_object(const struct kube_infd *d, const struct rec_action *a)
{
    json_t *labels =
        json_pack("{s:s, s:s, s:s}", "app.kubernetes.io/managed-by", "baton-controller", LABEL_INFD,
                  d->meta.name, LABEL_REVISION, a->revision);
    for (int i = 0; i < REC_STANDBY; i++) {
        char hash[17];
        if (!infd_has_role(d, (enum rec_role)i))
            continue;
        pod_revision(d, infd_role_of(d, (enum rec_role)i), hash);
        json_object_set_new(labels, label_of((enum rec_role)i), json_string(hash));
        int64_t pods = role_pods(infd_role_of(d, (enum rec_role)i));
        CLEANUP(free_charp) char *key = xasprintf("%s-pods", label_of((enum rec_role)i));
        CLEANUP(free_charp) char *n = xasprintf("%lld", (long long)pods);
        if (pods > 1)
            json_object_set_new(labels, key, json_string(n));
    }
    json_t *o =
        json_pack("{s:s, s:s, s:{s:s, s:s, s:o, s:[o]}, s:I, s:o}", "apiVersion",
                  kube_revisions.api, "kind", kube_revisions.kind, "metadata", "name", a->name,
                  "namespace", d->meta.namespace, "labels", labels, "ownerReferences",
                  object_owner(kube_infds.api, kube_infds.kind, d->meta.name, d->meta.uid),
                  "revision", (json_int_t)a->number64, "data", revision_data(d));
    ASSERT(o);
    return o;
}

static enum rec_role shape_of(const struct kube_revision *v, enum rec_role role)
{
    if (role != REC_STANDBY) /* a standby worker has the shape of the role that decodes */
        return role;
    return kube_label(&v->meta, label_of(REC_UNIFIED)) ? REC_UNIFIED : REC_DECODE;
}

int32_t revision_pods(const struct kube_revision *v, enum rec_role role)
{
    CLEANUP(free_charp) char *key = xasprintf("%s-pods", label_of(shape_of(v, role)));
    const char *text = kube_label(&v->meta, key);
    int64_t n;
    return text && !str_to_i64(str_c(text), 1, 64, &n) ? (int32_t)n : 1;
}

const char *revision_of_role(const struct kube_revision *v, enum rec_role role)
{
    return kube_label(&v->meta, label_of(shape_of(v, role)));
}

struct find {
    const char *hash, *uid;
    enum rec_role role;
    const struct kube_revision *found;
};

static bool look(const void *object, void *ctx)
{
    struct find *f = ctx;
    const struct kube_revision *v = object;
    const struct kube_owner *o = kube_controller_of(&v->meta);
    const char *hash = revision_of_role(v, f->role);
    if (o && o->uid && strcmp(o->uid, f->uid) == 0 && hash && strcmp(hash, f->hash) == 0)
        f->found = v;
    return !f->found;
}

struct kube_infd *revision_infd(const struct ctl *c, const struct kube_infd *d, enum rec_role role,
                                const char *hash, struct err *e)
{
    struct find f = {hash, d->meta.uid, role, NULL};
    kube_cache_each_labelled(c->revisions, d->meta.namespace, d->meta.name, look, &f);
    if (!f.found || !f.found->data) {
        err_set(e, ENOENT, "revision %s is not stored", hash);
        return NULL;
    }
    CLEANUP(json_decrefp) json_t *data = json_parse(str_c(f.found->data), 1u << 20, 0, e);
    json_t *spec = json_object_get(data, "spec");
    if (!json_is_object(spec)) {
        err_set(e, EINVAL, "the ControllerRevision %s holds no spec", f.found->meta.name);
        return NULL;
    }
    CLEANUP(json_decrefp)
    json_t *o = json_pack("{s:{s:s, s:s, s:s}, s:O}", "metadata", "name", d->meta.name, "namespace",
                          d->meta.namespace, "uid", d->meta.uid, "spec", spec);
    return view_decode(&kube_infd_view, o, e);
}
