/* What the controller asks of the API server, and the condition `Permitted` (False, RightsMissing)
 * that tells of a right that it lacks. The condition has a field manager of its own, so that it
 * comes and goes whatever the reconciliation writes. */
#include "controller/controller.h"
#include "lib/base/clock.h"
#include "lib/base/log.h"

#define RIGHTS_MANAGER "baton-controller-rights"
#define CONDITION      "Permitted"
#define CRD_GROUP      "serving.baton.dev"

/* Compared by a test with the controller's Roles and ClusterRoles in the chart. */
static const struct access_right always[] = {
    {CRD_GROUP, "inferencedeployments", "get,list,watch,patch", NULL, NULL},
    {CRD_GROUP, "inferencedeployments/status", "patch", NULL, NULL},
    {CRD_GROUP, "inferencedeployments/finalizers", "update", NULL, NULL},
    {CRD_GROUP, "workerpools", "list,watch,create,patch,delete", NULL, NULL},
    {CRD_GROUP, "workerpools/finalizers", "update", NULL, NULL},
    {CRD_GROUP, "workerpools/status", "patch", NULL, NULL},
    {CRD_GROUP, "workerpools/scale", "update", NULL, NULL},
    {"", "pods", "list,watch,create,patch,delete", NULL, NULL},
    {"", "secrets", "list,watch,create", NULL, NULL},
    {"policy", "poddisruptionbudgets", "list,watch,create,patch", NULL, NULL},
    {"apps", "controllerrevisions", "list,watch,create,patch,delete", NULL, NULL},
    {"scheduling.k8s.io", "podgroups", "list,watch,create", NULL, NULL},
    {"events.k8s.io", "events", "create,patch", NULL, NULL},
    {"coordination.k8s.io", "leases", "create", NULL, NULL},
    {"coordination.k8s.io", "leases", "get,update", "baton-controller", NULL},
    {"", "nodes", "list,watch", NULL, "*"},
    {CRD_GROUP, "nodeinventories", "list,watch", NULL, "*"},
};
/* Only where it serves external metrics. */
static const struct access_right for_metrics[] = {
    {"", "configmaps", "list,watch", "extension-apiserver-authentication", "kube-system"},
    {"", "secrets", "update", "baton-metrics-tls", NULL},
    {"apiregistration.k8s.io", "apiservices", "get,patch", "v1beta1.external.metrics.k8s.io", "*"},
};
#define N_ALWAYS  (sizeof always / sizeof *always)
#define N_METRICS (sizeof for_metrics / sizeof *for_metrics)
static struct access_right rights[N_ALWAYS + N_METRICS + 1]; /* ends with an empty one */

static void told(const struct kube_result *r, void *ctx)
{
    (void)ctx;
    if (r->err.code)
        log_warn("the condition " CONDITION " could not be written", LERR(&r->err));
}

/* An apply without the condition takes it away: this manager owns nothing else. */
static json_t *body_of(const struct kube_infd *d, const char *missing)
{
    char now[CLOCK_RFC3339_MAX];
    json_t *conditions = json_array();
    if (missing)
        json_array_append_new(
            conditions, json_pack("{s:s, s:s, s:s, s:s, s:s, s:I}", "type", CONDITION, "status",
                                  "False", "reason", "RightsMissing", "message", missing,
                                  "lastTransitionTime", clock_rfc3339(clock_wall_ns(), 0, now),
                                  "observedGeneration", (json_int_t)d->meta.generation));
    return json_pack("{s:{s:s}, s:{s:o}}", "metadata", "name", d->meta.name, "status", "conditions",
                     conditions);
}

void rights_tell(struct ctl *c, const struct kube_infd *d)
{
    const char *missing = access_missing(c->access);
    const struct kube_condition *is = kube_condition_find(&d->conditions, CONDITION);
    struct err e = {0};
    if (!c->leading || (missing ? is && is->message && strcmp(is->message, missing) == 0 : !is))
        return;
    CLEANUP(json_decrefp) json_t *body = body_of(d, missing);
    struct kube_call call = {.verb = KUBE_APPLY,
                             .kind = &kube_infds,
                             .namespace = d->meta.namespace,
                             .name = d->meta.name,
                             .subresource = "status",
                             .body = body,
                             .field_manager = RIGHTS_MANAGER,
                             .force = true,
                             .done = told};
    if (kube_start(c->client, &call, &e))
        log_error("the condition " CONDITION " can't be written", LERR(&e));
}

static bool tell_one(const void *object, void *ctx)
{
    rights_tell(ctx, object);
    return true;
}

void rights_tell_all(void *ctx)
{
    struct ctl *c = ctx;
    if (c->access)
        kube_cache_each(c->infds, tell_one, c);
}

int rights_start(struct ctl *c, struct err *e)
{
    memcpy(rights, always, sizeof always);
    if (c->opts.metrics_port)
        memcpy(rights + N_ALWAYS, for_metrics, sizeof for_metrics);
    return access_start(c->client, "baton-controller", c->namespace, rights, rights_tell_all, c,
                        &c->access, e);
}
