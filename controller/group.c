/* What makes a pod one of a group: its names, labels and annotations, and how the group is placed.
 */
#include "controller/controller.h"
#include "lib/base/clock.h"

#include <stdio.h>

static void text_of(json_t *o, const char *key, int64_t n)
{
    char text[24];
    snprintf(text, sizeof text, "%lld", (long long)n);
    json_object_set_new(o, key, json_string(text));
}

static json_t *annotations(const struct rec_action *a)
{
    json_t *ann = json_object();
    char time[CLOCK_RFC3339_MAX];
    if (a->epoch)
        text_of(ann, ANN_EPOCH, a->epoch);
    if (a->crash)
        json_object_set_new(ann, ANN_LAST_CRASH, json_string(a->crash));
    if (a->backoff_until_ns)
        json_object_set_new(ann, ANN_BACKOFF_UNTIL,
                            json_string(clock_rfc3339(a->backoff_until_ns, 0, time)));
    if (a->backoff_s)
        text_of(ann, ANN_BACKOFF_S, a->backoff_s);
    if (a->replaces)
        json_object_set_new(ann, ANN_REPLACES, json_string(a->replaces));
    if (a->rung)
        json_object_set_new(ann, ANN_RUNG, json_string(rec_rung_name(a->rung)));
    return ann;
}

static json_t *labels(const struct kube_infd *d, const struct rec_action *a)
{
    char pair[17];
    int64_t ranks = role_ranks(infd_role_of(d, a->role)) / (a->number > 1 ? a->number : 1);
    json_t *l = json_pack("{s:s, s:s, s:s, s:s, s:s, s:s}", "app.kubernetes.io/name",
                          "baton-worker", "app.kubernetes.io/managed-by", "baton-controller",
                          LABEL_INFD, d->meta.name, LABEL_ROLE, rec_role_name(a->role), LABEL_GROUP,
                          a->group, LABEL_REVISION, a->revision);
    pod_pair(d, pair);
    json_object_set_new(l, LABEL_PAIR, json_string(pair));
    text_of(l, LABEL_RANK, a->index * ranks);
    if (a->number > 1) {
        text_of(l, LABEL_INDEX, a->index);
        text_of(l, LABEL_GROUP_SIZE, a->number);
    }
    return l;
}

/* Rank 0 has the metrics of its group; an engine of another kind has them at its own port. */
static json_t *scraped(const struct kube_infd *d, const struct rec_action *a)
{
    json_t *ann = annotations(a);
    if (a->index == 0) {
        json_object_set_new(ann, "prometheus.io/scrape", json_string("true"));
        text_of(ann, "prometheus.io/port",
                d->engine_template && d->engine_port ? d->engine_port : 8000);
    }
    return ann;
}

json_t *group_metadata(const struct kube_infd *d, const struct rec_action *a)
{
    json_t *m =
        json_pack("{s:s, s:s, s:o, s:o, s:[o]}", "name", a->name, "namespace", d->meta.namespace,
                  "labels", labels(d, a), "annotations", scraped(d, a), "ownerReferences",
                  object_owner(kube_infds.api, kube_infds.kind, d->meta.name, d->meta.uid));
    ASSERT(m);
    return m;
}

/* The member `key` of an object, made as `empty` when it is absent. */
static json_t *member(json_t *o, const char *key, json_t *empty)
{
    json_t *v = json_object_get(o, key);
    if (v) {
        json_decref(empty);
        return v;
    }
    json_object_set_new(o, key, empty);
    return empty;
}

/* The pods of a group share a value of a node label. A pod matches its own term, so the first one
 * may go anywhere. */
static void pack(json_t *spec, const struct infd_placement *p, const struct rec_action *a)
{
    json_t *term = json_pack("{s:{s:{s:s}}, s:s}", "labelSelector", "matchLabels", LABEL_GROUP,
                             a->group, "topologyKey", p->pack_by);
    json_t *affinity =
        member(member(spec, "affinity", json_object()), "podAffinity", json_object());
    if (p->mode && strcmp(p->mode, "Required") == 0)
        json_array_append_new(
            member(affinity, "requiredDuringSchedulingIgnoredDuringExecution", json_array()), term);
    else
        json_array_append_new(
            member(affinity, "preferredDuringSchedulingIgnoredDuringExecution", json_array()),
            json_pack("{s:i, s:o}", "weight", 100, "podAffinityTerm", term));
}

static void claim(json_t *spec, const struct infd_role *role)
{
    json_t *container = json_array_get(json_object_get(spec, "containers"), 0);
    json_t *claims = member(spec, "resourceClaims", json_array());
    json_t *used = member(member(container, "resources", json_object()), "claims", json_array());
    for (size_t i = 0; i < role->claims.n; i++) {
        const struct infd_claim *c = VIEW_AT(struct infd_claim, role->claims, i);
        json_array_append_new(claims, json_pack("{s:s, s:s}", "name", c->name,
                                                "resourceClaimTemplateName", c->claim_template));
        json_array_append_new(used, json_pack("{s:s}", "name", c->name));
    }
}

void group_place(json_t *spec, const struct ctl *c, const struct infd_role *role,
                 const struct rec_action *a)
{
    static const char *const probes[] = {"startupProbe", "readinessProbe", "livenessProbe"};
    json_t *container = json_array_get(json_object_get(spec, "containers"), 0);
    if (role->claims.n)
        claim(spec, role);
    if (a->number <= 1)
        return;
    if (role->placement.pack_by)
        pack(spec, &role->placement, a);
    if (a->gated)
        json_array_append_new(member(spec, "schedulingGates", json_array()),
                              json_pack("{s:s}", "name", GATE_GANG));
    else if (c->gang == REC_GANG_NATIVE)
        json_object_set_new(spec, "schedulingGroup", json_pack("{s:s}", "podGroupName", a->group));
    /* Only rank 0 serves HTTP; the readiness gate speaks for the others. */
    for (size_t i = 0; a->index && i < sizeof probes / sizeof *probes; i++)
        json_object_del(container, probes[i]);
}

json_t *group_gang(const struct kube_infd *d, const struct rec_action *a)
{
    json_t *o = json_pack(
        "{s:s, s:s, s:{s:s, s:s, s:{s:s, s:s}, s:[{s:s, s:s, s:s, s:s}]}, s:{s:{s:{s:i}}}}",
        "apiVersion", kube_pod_groups.api, "kind", kube_pod_groups.kind, "metadata", "name",
        a->group, "namespace", d->meta.namespace, "labels", "app.kubernetes.io/managed-by",
        "baton-controller", LABEL_INFD, d->meta.name, "ownerReferences", "apiVersion", "v1", "kind",
        "Pod", "name", a->group, "uid", a->uid, "spec", "schedulingPolicy", "gang", "minCount",
        (int)a->number);
    ASSERT(o);
    return o;
}

json_t *group_patch(const struct rec_action *a)
{
    json_t *ann = annotations(a);
    if (a->peers)
        json_object_set_new(ann, ANN_PEERS, json_string(a->peers));
    json_t *o = json_pack("{s:{s:s, s:s, s:o}}", "metadata", "uid", a->uid, "resourceVersion",
                          a->resource_version, "annotations", ann);
    ASSERT(o);
    return o;
}

/* A strategic merge patch: other gates belong to others. */
json_t *group_lift(const struct rec_action *a, uint64_t now_ns)
{
    char time[CLOCK_RFC3339_MAX];
    json_t *o = json_pack("{s:{s:s, s:s, s:{s:s}}, s:{s:[{s:s, s:s}]}}", "metadata", "uid", a->uid,
                          "resourceVersion", a->resource_version, "annotations", ANN_GANG_LIFTED,
                          clock_rfc3339(now_ns, 0, time), "spec", "schedulingGates", "$patch",
                          "delete", "name", GATE_GANG);
    ASSERT(o);
    return o;
}
