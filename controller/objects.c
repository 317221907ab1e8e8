#include "controller/controller.h"
#include "lib/base/clock.h"
#include "lib/base/rng.h"

#include <stdio.h>

json_t *object_owner(const char *api, const char *kind, const char *name, const char *uid)
{
    return json_pack("{s:s, s:s, s:s, s:s, s:b, s:b}", "apiVersion", api, "kind", kind, "name",
                     name, "uid", uid, "controller", 1, "blockOwnerDeletion", 1);
}

static json_t *owned_by_infd(const struct kube_infd *d)
{
    return object_owner(kube_infds.api, kube_infds.kind, d->meta.name, d->meta.uid);
}

/* metadata of an object of a role (REC_NO_ROLE: of the whole deployment), named <infd>-<suffix>. */
static json_t *meta(const struct kube_infd *d, enum rec_role role, const char *suffix)
{
    CLEANUP(free_charp) char *name = xasprintf("%s-%s", d->meta.name, suffix);
    json_t *labels = json_pack("{s:s, s:s}", "app.kubernetes.io/managed-by", "baton-controller",
                               LABEL_INFD, d->meta.name);
    if (role != REC_NO_ROLE)
        json_object_set_new(labels, LABEL_ROLE, json_string(rec_role_name(role)));
    return json_pack("{s:s, s:s, s:o}", "name", name, "namespace", d->meta.namespace, "labels",
                     labels);
}

static json_t *pool(const struct kube_infd *d, enum rec_role role)
{
    const struct infd_role *r = infd_role_of(d, role);
    json_t *o = json_pack("{s:s, s:s, s:o, s:{s:s, s:s}}", "apiVersion", kube_wps.api, "kind",
                          kube_wps.kind, "metadata", meta(d, role, rec_role_name(role)), "spec",
                          "inferenceDeployment", d->meta.name, "role", rec_role_name(role));
    json_object_set_new(json_object_get(o, "metadata"), "ownerReferences",
                        json_pack("[o]", owned_by_infd(d)));
    if (r->bounds.has)
        json_object_set_new(json_object_get(o, "spec"), "bounds",
                            json_pack("{s:I, s:I}", "min", (json_int_t)r->bounds.min, "max",
                                      (json_int_t)r->bounds.max));
    return o;
}

json_t *object_pool(const struct kube_infd *d, const struct rec_action *a)
{
    char text[16];
    json_t *o = pool(d, a->role);
    json_object_set_new(json_object_get(o, "spec"), "replicas", json_integer(a->number));
    if (a->recorded >= 0) {
        snprintf(text, sizeof text, "%d", a->recorded);
        json_object_set_new(json_object_get(o, "metadata"), "annotations",
                            json_pack("{s:s}", ANN_LAST_REPLICAS, text));
    }
    return o;
}

/* Never with replicas: that field belongs to whoever scales. */
json_t *object_pool_apply(const struct kube_infd *d, enum rec_role role)
{
    return pool(d, role);
}

json_t *object_secret(const struct kube_infd *d)
{
    uint8_t raw[32];
    char hex[65];
    rng_secret(raw, sizeof raw);
    str_to_hex(raw, sizeof raw, hex);
    struct kube_secret secret = {.type = "Opaque", .secret = hex};
    VIEW_SET(&kube_secret_view, &secret, struct kube_secret, type);
    VIEW_SET(&kube_secret_view, &secret, struct kube_secret, secret);
    json_t *o = view_encode(&kube_secret_view, &secret);
    json_object_set_new(o, "metadata", meta(d, REC_NO_ROLE, "peer"));
    json_object_set_new(json_object_get(o, "metadata"), "ownerReferences",
                        json_pack("[o]", owned_by_infd(d)));
    return o;
}

json_t *object_pdb(const struct kube_infd *d, enum rec_role role, int32_t min_available,
                   bool all_ranks, const char *pool_uid)
{
    CLEANUP(free_charp) char *pool_name = xasprintf("%s-%s", d->meta.name, rec_role_name(role));
    json_t *owner = object_owner(kube_wps.api, kube_wps.kind, pool_name, pool_uid);
    json_t *labels =
        json_pack("{s:s, s:s}", LABEL_INFD, d->meta.name, LABEL_ROLE, rec_role_name(role));
    if (!all_ranks)
        json_object_set_new(labels, LABEL_RANK, json_string("0"));
    json_t *o = json_pack("{s:s, s:s, s:o, s:{s:i, s:s, s:{s:o}}}", "apiVersion", kube_pdbs.api,
                          "kind", kube_pdbs.kind, "metadata", meta(d, role, rec_role_name(role)),
                          "spec", "minAvailable", min_available, "unhealthyPodEvictionPolicy",
                          "AlwaysAllow", "selector", "matchLabels", labels);
    json_object_set_new(json_object_get(o, "metadata"), "ownerReferences", json_pack("[o]", owner));
    return o;
}

json_t *object_conditions(const struct rec_condition *c, size_t n)
{
    char time[CLOCK_RFC3339_MAX];
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(
            list, json_pack("{s:s, s:s, s:s, s:s, s:s, s:I}", "type", c[i].type, "status",
                            c[i].status, "reason", c[i].reason, "message", c[i].message,
                            "lastTransitionTime", clock_rfc3339(c[i].since_ns, 0, time),
                            "observedGeneration", (json_int_t)c[i].observed_generation));
    return list;
}

static json_t *counts(const struct rec_counts *c)
{
    char summary[32];
    snprintf(summary, sizeof summary, "%d/%d", c->ready, c->desired);
    return json_pack("{s:i, s:i, s:i, s:i, s:s}", "desired", c->desired, "current", c->current,
                     "ready", c->ready, "updated", c->updated, "summary", summary);
}

json_t *object_status(const struct kube_infd *d, const struct rec_plan *p, const char *url)
{
    json_t *status =
        json_pack("{s:I, s:o, s:s}", "observedGeneration", (json_int_t)d->meta.generation,
                  "conditions", object_conditions(p->conditions, REC_CONDITIONS), "url", url);
    if (p->revision)
        json_object_set_new(status, "revision", json_string(p->revision));
    if (p->current)
        json_object_set_new(status, "currentRevision", json_string(p->current));
    for (int i = 0; i < REC_STANDBY; i++)
        if (infd_has_role(d, (enum rec_role)i))
            json_object_set_new(status, rec_role_name((enum rec_role)i), counts(&p->counts[i]));
    return json_pack("{s:s, s:s, s:{s:s, s:s, s:s}, s:o}", "apiVersion", kube_infds.api, "kind",
                     kube_infds.kind, "metadata", "name", d->meta.name, "namespace",
                     d->meta.namespace, "uid", d->meta.uid, "status", status);
}

json_t *object_pool_status(const struct kube_infd *d, const struct rec_plan *p, enum rec_role role)
{
    const struct rec_counts *c = &p->counts[role];
    struct arena a;
    arena_init(&a, 4096);
    CLEANUP(free_charp) char *name = xasprintf("%s-%s", d->meta.name, rec_role_name(role));
    json_t *o = json_pack("{s:s, s:s, s:{s:s, s:s}, s:{s:I, s:i, s:i, s:i, s:s, s:o}}",
                          "apiVersion", kube_wps.api, "kind", kube_wps.kind, "metadata", "name",
                          name, "namespace", d->meta.namespace, "status", "observedGeneration",
                          (json_int_t)p->pool_ready[role].observed_generation, "replicas",
                          c->current, "readyReplicas", c->ready, "updatedReplicas", c->updated,
                          "selector", rec_selector(&a, d->meta.name, role), "conditions",
                          object_conditions(&p->pool_ready[role], 1));
    arena_fini(&a);
    return o;
}
