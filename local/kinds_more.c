/* Workloads, budgets, leases, roles, autoscalers. */
#include "local/crd.h"
#include "local/kinds.h"
#include "local/selector.h"
#include "local/server_int.h"

static void template_defaults(struct server *s, json_t *doc, const json_t *old)
{
    (void)s;
    (void)old;
    json_t *spec = json_at(doc, "spec.template.spec");
    if (json_is_object(spec))
        podspec_defaults(spec);
}

/* The static default of a strategy's parameters depends on its type. */
static void rolling_default(json_t *doc, const char *field, json_t *params)
{
    json_t *st = json_at(doc, field);
    if (json_is_object(st) && !strcmp(json_str_at(st, "type", ""), "RollingUpdate") &&
        !json_object_get(st, "rollingUpdate"))
        json_object_set(st, "rollingUpdate", params);
    json_decref(params);
}

static void deployment_defaults(struct server *s, json_t *doc, const json_t *old)
{
    template_defaults(s, doc, old);
    rolling_default(doc, "spec.strategy",
                    json_pack("{s:s,s:s}", "maxUnavailable", "25%", "maxSurge", "25%"));
}

static void daemonset_defaults(struct server *s, json_t *doc, const json_t *old)
{
    template_defaults(s, doc, old);
    rolling_default(doc, "spec.updateStrategy",
                    json_pack("{s:i,s:i}", "maxUnavailable", 1, "maxSurge", 0));
}

static void daemonset_server_sets(struct server *s, json_t *doc, const json_t *old)
{
    (void)s;
    if (!old)
        json_object_set_new(doc, "status",
                            json_pack("{s:i,s:i,s:i,s:i}", "currentNumberScheduled", 0,
                                      "numberMisscheduled", 0, "desiredNumberScheduled", 0,
                                      "numberReady", 0));
}

static bool template_selected(const json_t *doc)
{
    struct selector sel;
    json_t *st = NULL;
    if (selector_from_object(json_at(doc, "spec.selector"), &sel, &st)) {
        json_decref(st);
        return true;
    }
    bool ok = selector_matches(&sel, json_at(doc, "spec.template"));
    selector_fini(&sel);
    return ok;
}

static void workload_validate(const json_t *doc, const json_t *old, json_t *causes)
{
    const json_t *spec = json_at(doc, "spec.template.spec"), *sel = json_at(doc, "spec.selector");
    const json_t *labels = json_at(doc, "spec.template.metadata.labels");
    const json_t *n = json_at(doc, "spec.replicas");
    if (json_is_object(spec))
        podspec_validate(spec, "spec.template.spec", causes);
    if (json_is_integer(n) && json_integer_value(n) < 0)
        cause_invalid(causes, "spec.replicas", n, "must be greater than or equal to 0");
    if (sel && !json_object_size(sel))
        cause_invalid(causes, "spec.selector", sel, "empty selector is invalid for deployment");
    else if (sel && !template_selected(doc))
        cause_invalid(causes, "spec.template.metadata.labels", labels,
                      "`selector` does not match template `labels`");
    if (old && !json_equal((json_t *)sel, json_at(old, "spec.selector")))
        cause_invalid(causes, "spec.selector", sel, "field is immutable");
}

const struct kind_ops ops_deployment = {.defaults = deployment_defaults,
                                        .validate = workload_validate};
static const char *const replicaset_fields[] = {"status.replicas", NULL};
static void replicaset_server_sets(struct server *s, json_t *doc, const json_t *old)
{
    (void)s;
    if (!old)
        json_object_set_new(doc, "status", json_pack("{s:i}", "replicas", 0));
}
const struct kind_ops ops_replicaset = {.defaults = template_defaults,
                                        .server_sets = replicaset_server_sets,
                                        .validate = workload_validate,
                                        .fields = replicaset_fields};
const struct kind_ops ops_daemonset = {.defaults = daemonset_defaults,
                                       .server_sets = daemonset_server_sets,
                                       .validate = workload_validate};

static void pdb_validate(const json_t *doc, const json_t *old, json_t *causes)
{
    (void)old;
    if (json_at(doc, "spec.minAvailable") && json_at(doc, "spec.maxUnavailable"))
        cause_invalid(causes, "spec", json_object_get(doc, "spec"),
                      "minAvailable and maxUnavailable cannot be both set");
}

static void pdb_defaults(struct server *s, json_t *doc, const json_t *old)
{
    (void)s;
    if (!old)
        json_object_set_new(doc, "status",
                            json_pack("{s:i,s:i,s:i,s:i}", "disruptionsAllowed", 0,
                                      "currentHealthy", 0, "desiredHealthy", 0, "expectedPods", 0));
}
const struct kind_ops ops_pdb = {.server_sets = pdb_defaults, .validate = pdb_validate};

static void lease_validate(const json_t *doc, const json_t *old, json_t *causes)
{
    (void)old;
    const json_t *d = json_at(doc, "spec.leaseDurationSeconds");
    const json_t *n = json_at(doc, "spec.leaseTransitions");
    if (json_is_integer(d) && json_integer_value(d) <= 0)
        cause_invalid(causes, "spec.leaseDurationSeconds", d, "must be greater than 0");
    if (json_is_integer(n) && json_integer_value(n) < 0)
        cause_invalid(causes, "spec.leaseTransitions", n, "must be greater than or equal to 0");
}
const struct kind_ops ops_lease = {.validate = lease_validate};

static void binding_defaults(struct server *s, json_t *doc, const json_t *old)
{
    (void)s;
    (void)old;
    size_t i;
    json_t *sub;
    json_array_foreach (json_object_get(doc, "subjects"), i, sub) {
        bool account = !strcmp(json_str_at(sub, "kind", ""), "ServiceAccount");
        if (!account && !json_object_get(sub, "apiGroup"))
            json_object_set_new(sub, "apiGroup", json_string("rbac.authorization.k8s.io"));
    }
}

static void binding_validate(const json_t *doc, const json_t *old, json_t *causes)
{
    const json_t *ref = json_object_get(doc, "roleRef");
    if (old && !json_equal((json_t *)ref, json_object_get(old, "roleRef")))
        cause_invalid(causes, "roleRef", ref, "cannot change roleRef");
}
const struct kind_ops ops_rbac = {.defaults = binding_defaults, .validate = binding_validate};
const struct kind_ops ops_role = {0};

static void revision_validate(const json_t *doc, const json_t *old, json_t *causes)
{
    const json_t *n = json_object_get(doc, "revision"), *data = json_object_get(doc, "data");
    if (json_is_integer(n) && json_integer_value(n) < 0)
        cause_invalid(causes, "revision", n, "must be greater than or equal to 0");
    if (!old && !json_is_object(data))
        cause_required(causes, "data", "data is mandatory");
    if (old && !json_equal((json_t *)data, json_object_get(old, "data")))
        cause_invalid(causes, "data", data, "field is immutable");
}
const struct kind_ops ops_revision = {.validate = revision_validate};

static void hpa_validate(const json_t *doc, const json_t *old, json_t *causes)
{
    (void)old;
    const json_t *lo = json_at(doc, "spec.minReplicas"), *hi = json_at(doc, "spec.maxReplicas");
    if (json_is_integer(hi) && json_integer_value(hi) < 1)
        cause_invalid(causes, "spec.maxReplicas", hi, "must be greater than 0");
    else if (json_is_integer(hi) && json_is_integer(lo) &&
             json_integer_value(hi) < json_integer_value(lo))
        cause_invalid(causes, "spec.maxReplicas", hi,
                      "must be greater than or equal to `minReplicas`");
}
static void hpa_defaults(struct server *s, json_t *doc, const json_t *old)
{
    (void)s;
    (void)old;
    json_t *spec = json_object_get(doc, "spec");
    if (json_is_object(spec) && !json_array_size(json_object_get(spec, "metrics")))
        json_object_set_new(spec, "metrics",
                            json_pack("[{s:s,s:{s:s,s:{s:s,s:i}}}]", "type", "Resource", "resource",
                                      "name", "cpu", "target", "type", "Utilization",
                                      "averageUtilization", 80));
}
const struct kind_ops ops_hpa = {.defaults = hpa_defaults, .validate = hpa_validate};

static void policy_defaults(struct server *s, json_t *doc, const json_t *old)
{
    (void)s;
    (void)old;
    json_t *spec = json_object_get(doc, "spec");
    if (!json_is_object(spec) || json_object_get(spec, "policyTypes"))
        return;
    json_t *types = json_pack("[s]", "Ingress");
    if (json_array_size(json_object_get(spec, "egress")))
        json_array_append_new(types, json_string("Egress"));
    json_object_set_new(spec, "policyTypes", types);
}
const struct kind_ops ops_networkpolicy = {.defaults = policy_defaults};

const struct kind_ops ops_crd = {.defaults = crd_defaults, .validate = crd_validate};
