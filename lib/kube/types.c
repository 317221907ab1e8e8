#include "lib/kube/types.h"

#include <errno.h>

#define F(T, p, k, m)                                                                              \
    {                                                                                              \
        .path = p, .kind = k, .offset = offsetof(struct T, m)                                      \
    }
#define FR(T, p, k, m)                                                                             \
    {                                                                                              \
        .path = p, .kind = k, .offset = offsetof(struct T, m), .required = true                    \
    }
#define FS(T, p, k, m, s)                                                                          \
    {                                                                                              \
        .path = p, .kind = k, .offset = offsetof(struct T, m), .sub = &(s)                         \
    }
#define END                                                                                        \
    {                                                                                              \
        .path = NULL                                                                               \
    }
#define VIEW(T, n, ...)                                                                            \
    {                                                                                              \
        .name = n, .size = sizeof(struct T), .fields = (const struct view_field[])                 \
        {                                                                                          \
            __VA_ARGS__, END                                                                       \
        }                                                                                          \
    }

static const struct view owner_view =
    VIEW(kube_owner, "ownerReference", F(kube_owner, "apiVersion", VIEW_STR, api),
         F(kube_owner, "kind", VIEW_STR, kind), F(kube_owner, "name", VIEW_STR, name),
         F(kube_owner, "uid", VIEW_STR, uid), F(kube_owner, "controller", VIEW_BOOL, controller));

const struct view kube_meta_view = VIEW(
    kube_meta, "metadata", FR(kube_meta, "name", VIEW_STR, name),
    F(kube_meta, "namespace", VIEW_STR, namespace), F(kube_meta, "uid", VIEW_STR, uid),
    F(kube_meta, "resourceVersion", VIEW_STR, resource_version),
    F(kube_meta, "generation", VIEW_INT, generation),
    F(kube_meta, "creationTimestamp", VIEW_TIME, created_ns),
    F(kube_meta, "deletionTimestamp", VIEW_TIME, deleted_ns),
    F(kube_meta, "labels", VIEW_MAP, labels), F(kube_meta, "annotations", VIEW_MAP, annotations),
    FS(kube_meta, "ownerReferences", VIEW_LIST, owners, owner_view));

const struct view kube_condition_view = VIEW(
    kube_condition, "condition", FR(kube_condition, "type", VIEW_STR, type),
    FR(kube_condition, "status", VIEW_STR, status), F(kube_condition, "reason", VIEW_STR, reason),
    F(kube_condition, "message", VIEW_STR, message),
    F(kube_condition, "lastTransitionTime", VIEW_TIME, since_ns),
    F(kube_condition, "observedGeneration", VIEW_INT, observed_generation));

#define META(T)                                                                                    \
    {                                                                                              \
        .path = "metadata", .kind = VIEW_OBJ, .offset = offsetof(struct T, meta),                  \
        .required = true, .sub = &kube_meta_view                                                   \
    }

static const struct view terminated_view = VIEW(
    kube_terminated, "terminated", F(kube_terminated, "exitCode", VIEW_INT, exit_code),
    F(kube_terminated, "signal", VIEW_INT, signal), F(kube_terminated, "reason", VIEW_STR, reason),
    F(kube_terminated, "message", VIEW_STR, message),
    F(kube_terminated, "finishedAt", VIEW_TIME, finished_ns));

static const struct view container_status_view =
    VIEW(kube_container_status, "containerStatus", F(kube_container_status, "name", VIEW_STR, name),
         F(kube_container_status, "ready", VIEW_BOOL, ready),
         F(kube_container_status, "restartCount", VIEW_INT, restarts),
         F(kube_container_status, "state.waiting.reason", VIEW_STR, waiting_reason),
         F(kube_container_status, "state.waiting.message", VIEW_STR, waiting_message),
         FS(kube_container_status, "state.terminated", VIEW_OBJ, now, terminated_view),
         FS(kube_container_status, "lastState.terminated", VIEW_OBJ, last, terminated_view));

static const struct view container_spec_view =
    VIEW(kube_container_spec, "container",
         F(kube_container_spec, "resources.requests", VIEW_MAP, requests));
static const struct view gate_view =
    VIEW(kube_gate, "schedulingGate", F(kube_gate, "name", VIEW_STR, name));

static const struct view taint_view =
    VIEW(kube_taint, "taint", F(kube_taint, "key", VIEW_STR, key),
         F(kube_taint, "value", VIEW_STR, value), F(kube_taint, "effect", VIEW_STR, effect));

const struct view kube_pod_view =
    VIEW(kube_pod, "Pod", META(kube_pod), F(kube_pod, "spec.nodeName", VIEW_STR, node),
         FS(kube_pod, "spec.schedulingGates", VIEW_LIST, gates, gate_view),
         F(kube_pod, "status.podIP", VIEW_STR, ip), F(kube_pod, "status.phase", VIEW_STR, phase),
         F(kube_pod, "status.reason", VIEW_STR, reason),
         F(kube_pod, "status.message", VIEW_STR, message),
         FS(kube_pod, "status.conditions", VIEW_LIST, conditions, kube_condition_view),
         FS(kube_pod, "status.containerStatuses", VIEW_LIST, containers, container_status_view),
         FS(kube_pod, "spec.containers", VIEW_LIST, specs, container_spec_view));

const struct view kube_node_view =
    VIEW(kube_node, "Node", META(kube_node),
         F(kube_node, "spec.unschedulable", VIEW_BOOL, unschedulable),
         F(kube_node, "status.allocatable", VIEW_MAP, allocatable),
         F(kube_node, "status.capacity", VIEW_MAP, capacity),
         FS(kube_node, "status.conditions", VIEW_LIST, conditions, kube_condition_view),
         FS(kube_node, "spec.taints", VIEW_LIST, taints, taint_view),
         F(kube_node, "status.nodeInfo.containerRuntimeVersion", VIEW_STR, runtime));

const struct view kube_secret_view =
    VIEW(kube_secret, "Secret", META(kube_secret), F(kube_secret, "type", VIEW_STR, type),
         F(kube_secret, "data.secret", VIEW_B64, secret));

const struct view kube_pdb_view = VIEW(kube_pdb, "PodDisruptionBudget", META(kube_pdb),
                                       F(kube_pdb, "spec.minAvailable", VIEW_INT, min_available),
                                       F(kube_pdb, "spec.selector.matchLabels", VIEW_MAP, selects));

const struct view kube_revision_view =
    VIEW(kube_revision, "ControllerRevision", META(kube_revision),
         F(kube_revision, "revision", VIEW_INT, number), F(kube_revision, "data", VIEW_RAW, data));

const struct view kube_pod_group_view = VIEW(kube_pod_group, "PodGroup", META(kube_pod_group));

static const struct view bounds_view =
    VIEW(infd_bounds, "bounds", F(infd_bounds, "min", VIEW_INT, min),
         F(infd_bounds, "max", VIEW_INT, max));

static const struct view parallelism_view =
    VIEW(infd_parallelism, "parallelism", F(infd_parallelism, "tensor", VIEW_INT, tensor),
         F(infd_parallelism, "pipeline", VIEW_INT, pipeline),
         F(infd_parallelism, "expert", VIEW_INT, expert),
         F(infd_parallelism, "data", VIEW_INT, data), F(infd_parallelism, "pods", VIEW_INT, pods));

static const struct view placement_view =
    VIEW(infd_placement, "placement", F(infd_placement, "packBy", VIEW_STR, pack_by),
         F(infd_placement, "mode", VIEW_STR, mode));
static const struct view claim_view =
    VIEW(infd_claim, "resourceClaim", F(infd_claim, "name", VIEW_STR, name),
         F(infd_claim, "resourceClaimTemplateName", VIEW_STR, claim_template));

static const struct view role_view =
    VIEW(infd_role, "role", F(infd_role, "replicas", VIEW_INT, replicas),
         FS(infd_role, "bounds", VIEW_OBJ, bounds, bounds_view),
         F(infd_role, "resources.requests", VIEW_MAP, requests),
         F(infd_role, "resources.limits", VIEW_MAP, limits),
         F(infd_role, "nodeSelector", VIEW_MAP, node_selector),
         F(infd_role, "tolerations", VIEW_RAW, tolerations),
         F(infd_role, "affinity", VIEW_RAW, affinity),
         FS(infd_role, "parallelism", VIEW_OBJ, parallelism, parallelism_view),
         FS(infd_role, "placement", VIEW_OBJ, placement, placement_view),
         FS(infd_role, "resourceClaims", VIEW_LIST, claims, claim_view));

static const struct view tier_view = VIEW(infd_tier, "tier", F(infd_tier, "name", VIEW_STR, name),
                                          F(infd_tier, "size", VIEW_STR, size));

static const struct view query_view =
    VIEW(infd_query, "query", F(infd_query, "role", VIEW_STR, role),
         F(infd_query, "query", VIEW_STR, query), F(infd_query, "target", VIEW_STR, target));

static const struct view role_status_view =
    VIEW(infd_role_status, "roleStatus", F(infd_role_status, "desired", VIEW_INT, desired),
         F(infd_role_status, "current", VIEW_INT, current),
         F(infd_role_status, "ready", VIEW_INT, ready),
         F(infd_role_status, "updated", VIEW_INT, updated),
         F(infd_role_status, "summary", VIEW_STR, summary));

#define I(p, k, m)     F(kube_infd, p, k, m)
#define IS(p, k, m, s) FS(kube_infd, p, k, m, s)
const struct view kube_infd_view = VIEW(
    kube_infd, "InferenceDeployment", META(kube_infd), I("spec.model.name", VIEW_STR, model_name),
    I("spec.model.source", VIEW_STR, model_source), I("spec.model.sha256", VIEW_STR, model_sha256),
    I("spec.model.maxContextTokens", VIEW_INT, model_max_context_tokens),
    I("spec.model.endpoint", VIEW_STR, model_endpoint),
    I("spec.model.tokenSecret.name", VIEW_STR, model_secret_name),
    I("spec.model.tokenSecret.key", VIEW_STR, model_secret_key),
    IS("spec.prefill", VIEW_OBJ, prefill, role_view),
    IS("spec.decode", VIEW_OBJ, decode, role_view),
    IS("spec.unified", VIEW_OBJ, unified, role_view), I("spec.standby.hot", VIEW_INT, standby_hot),
    I("spec.standby.warm", VIEW_INT, standby_warm),
    I("spec.standby.cachedNodes", VIEW_INT, standby_cached_nodes),
    I("spec.slo.ttft", VIEW_STR, slo_ttft), I("spec.slo.tpot", VIEW_STR, slo_tpot),
    I("spec.slo.percentile", VIEW_INT, slo_percentile),
    I("spec.scaling.mode", VIEW_STR, scaling_mode),
    I("spec.scaling.ratio.min", VIEW_STR, ratio_min),
    I("spec.scaling.ratio.max", VIEW_STR, ratio_max),
    I("spec.scaling.budget.groups", VIEW_INT, budget_groups),
    I("spec.scaling.downWindow", VIEW_STR, scale_down_window),
    I("spec.scaling.capacity", VIEW_STR, scaling_capacity),
    I("spec.scaling.prometheus.url", VIEW_STR, prometheus_url),
    IS("spec.scaling.prometheus.queries", VIEW_LIST, prometheus_queries, query_view),
    I("spec.routing.disaggregation", VIEW_STR, disaggregation),
    I("spec.routing.policy", VIEW_STR, policy),
    I("spec.kvCache.blockTokens", VIEW_INT, kv_block_tokens),
    I("spec.kvCache.dtype", VIEW_STR, kv_dtype), I("spec.kvCache.size", VIEW_STR, kv_size),
    I("spec.kvCache.ttl", VIEW_STR, kv_ttl),
    IS("spec.kvCache.tiers", VIEW_LIST, kv_tiers, tier_view),
    I("spec.rollout.maxUnavailable", VIEW_INT, max_unavailable),
    I("spec.rollout.maxSurge", VIEW_INT, max_surge),
    I("spec.rollout.drainTimeout", VIEW_STR, drain_timeout),
    I("spec.rollout.paused", VIEW_BOOL, paused), I("spec.engine.image", VIEW_STR, engine_image),
    I("spec.engine.template", VIEW_RAW, engine_template),
    I("spec.engine.port", VIEW_INT, engine_port),
    I("spec.engine.speculation", VIEW_STR, engine_speculation),
    I("spec.engine.redundantExperts", VIEW_INT, engine_redundant_experts),
    I("status.observedGeneration", VIEW_INT, observed_generation),
    IS("status.conditions", VIEW_LIST, conditions, kube_condition_view),
    IS("status.prefill", VIEW_OBJ, prefill_status, role_status_view),
    IS("status.decode", VIEW_OBJ, decode_status, role_status_view),
    IS("status.unified", VIEW_OBJ, unified_status, role_status_view),
    I("status.url", VIEW_STR, url), I("status.revision", VIEW_STR, revision),
    I("status.currentRevision", VIEW_STR, current_revision),
    I("status.standby.leadSeconds.hot", VIEW_NUM, lead_hot_s),
    I("status.standby.leadSeconds.warm", VIEW_NUM, lead_warm_s),
    I("status.standby.leadSeconds.cached", VIEW_NUM, lead_cached_s),
    I("status.standby.leadSeconds.cold", VIEW_NUM, lead_cold_s));

static const struct view decision_view =
    VIEW(wp_decision, "decision", F(wp_decision, "at", VIEW_TIME, at_ns),
         F(wp_decision, "from", VIEW_INT, from), F(wp_decision, "to", VIEW_INT, to),
         F(wp_decision, "reason", VIEW_STR, reason), F(wp_decision, "inputs", VIEW_STR, inputs));

const struct view kube_wp_view = VIEW(
    kube_wp, "WorkerPool", META(kube_wp), F(kube_wp, "spec.inferenceDeployment", VIEW_STR, infd),
    F(kube_wp, "spec.role", VIEW_STR, role), F(kube_wp, "spec.replicas", VIEW_INT, replicas),
    FS(kube_wp, "spec.bounds", VIEW_OBJ, bounds, bounds_view),
    F(kube_wp, "status.replicas", VIEW_INT, status_replicas),
    F(kube_wp, "status.readyReplicas", VIEW_INT, ready_replicas),
    F(kube_wp, "status.updatedReplicas", VIEW_INT, updated_replicas),
    F(kube_wp, "status.observedGeneration", VIEW_INT, observed_generation),
    F(kube_wp, "status.selector", VIEW_STR, selector),
    FS(kube_wp, "status.conditions", VIEW_LIST, conditions, kube_condition_view),
    FS(kube_wp, "status.decisions", VIEW_LIST, decisions, decision_view));

static const struct view device_view = VIEW(
    ninv_device, "device", F(ninv_device, "name", VIEW_STR, name),
    F(ninv_device, "kind", VIEW_STR, kind), F(ninv_device, "model", VIEW_STR, model),
    F(ninv_device, "isa", VIEW_STR, isa), F(ninv_device, "memoryBytes", VIEW_INT, memory_bytes),
    F(ninv_device, "milliCPUs", VIEW_INT, milli_cpus),
    F(ninv_device, "healthy", VIEW_BOOL, healthy), F(ninv_device, "reason", VIEW_STR, reason),
    F(ninv_device, "action", VIEW_STR, action), F(ninv_device, "uuid", VIEW_STR, uuid));
static const struct view model_view =
    VIEW(ninv_model, "model", F(ninv_model, "sha256", VIEW_STR, sha256),
         F(ninv_model, "source", VIEW_STR, source), F(ninv_model, "rung", VIEW_STR, rung),
         F(ninv_model, "bytes", VIEW_INT, bytes));
static const struct view fetch_view =
    VIEW(ninv_fetch, "fetch", F(ninv_fetch, "source", VIEW_STR, source),
         F(ninv_fetch, "sha256", VIEW_STR, sha256), F(ninv_fetch, "bytes", VIEW_INT, bytes),
         F(ninv_fetch, "percent", VIEW_INT, percent), F(ninv_fetch, "message", VIEW_STR, message));
static const struct view ninv_tier_view =
    VIEW(ninv_tier, "tier", F(ninv_tier, "name", VIEW_STR, name),
         F(ninv_tier, "capacityBytes", VIEW_INT, capacity_bytes),
         F(ninv_tier, "usedBytes", VIEW_INT, used_bytes));
static const struct view link_view =
    VIEW(ninv_link, "link", F(ninv_link, "peer", VIEW_STR, peer),
         F(ninv_link, "bytesPerSecond", VIEW_INT, bytes_per_second));

const struct view kube_ninv_view =
    VIEW(kube_ninv, "NodeInventory", META(kube_ninv),
         F(kube_ninv, "status.agentVersion", VIEW_STR, agent_version),
         F(kube_ninv, "status.hugePages", VIEW_STR, huge_pages),
         F(kube_ninv, "status.observedAt", VIEW_TIME, observed_ns),
         F(kube_ninv, "status.address", VIEW_STR, address),
         F(kube_ninv, "status.quarantined", VIEW_STR, quarantined),
         FS(kube_ninv, "status.fetches", VIEW_LIST, fetches, fetch_view),
         FS(kube_ninv, "status.devices", VIEW_LIST, devices, device_view),
         FS(kube_ninv, "status.models", VIEW_LIST, models, model_view),
         FS(kube_ninv, "status.tiers", VIEW_LIST, tiers, ninv_tier_view),
         FS(kube_ninv, "status.links", VIEW_LIST, links, link_view));

#define BATON_API "serving.baton.dev/v1alpha1"
const struct kube_kind kube_pods = {"v1", "Pod", "pods", true, &kube_pod_view};
const struct kube_kind kube_nodes = {"v1", "Node", "nodes", false, &kube_node_view};
const struct kube_kind kube_secrets = {"v1", "Secret", "secrets", true, &kube_secret_view};
const struct kube_kind kube_pdbs = {"policy/v1", "PodDisruptionBudget", "poddisruptionbudgets",
                                    true, &kube_pdb_view};
const struct kube_kind kube_revisions = {"apps/v1", "ControllerRevision", "controllerrevisions",
                                         true, &kube_revision_view};
const struct kube_kind kube_pod_groups = {"scheduling.k8s.io/v1beta1", "PodGroup", "podgroups",
                                          true, &kube_pod_group_view};
const struct kube_kind kube_leases = {"coordination.k8s.io/v1", "Lease", "leases", true, NULL};
const struct kube_kind kube_events = {"events.k8s.io/v1", "Event", "events", true, NULL};
const struct kube_kind kube_infds = {BATON_API, "InferenceDeployment", "inferencedeployments", true,
                                     &kube_infd_view};
const struct kube_kind kube_wps = {BATON_API, "WorkerPool", "workerpools", true, &kube_wp_view};
const struct kube_kind kube_ninvs = {BATON_API, "NodeInventory", "nodeinventories", false,
                                     &kube_ninv_view};

const char *kube_label(const struct kube_meta *m, const char *key)
{
    return view_map_get(&m->labels, key);
}

const char *kube_annotation(const struct kube_meta *m, const char *key)
{
    return view_map_get(&m->annotations, key);
}

const struct kube_condition *kube_condition_find(const struct view_list *conditions,
                                                 const char *type)
{
    for (size_t i = 0; i < conditions->n; i++) {
        const struct kube_condition *c = VIEW_AT(struct kube_condition, *conditions, i);
        if (strcmp(c->type, type) == 0)
            return c;
    }
    return NULL;
}

bool kube_condition_true(const struct view_list *conditions, const char *type)
{
    const struct kube_condition *c = kube_condition_find(conditions, type);
    return c && strcmp(c->status, "True") == 0;
}

const struct kube_owner *kube_controller_of(const struct kube_meta *m)
{
    for (size_t i = 0; i < m->owners.n; i++) {
        const struct kube_owner *o = VIEW_AT(struct kube_owner, m->owners, i);
        if (o->controller)
            return o;
    }
    return NULL;
}

int kube_duration_ns(const char *text, uint64_t dflt_ns, uint64_t *out)
{
    static const struct {
        const char *suffix;
        double ns;
    } units[] = {{"ms", 1e6}, {"us", 1e3}, {"ns", 1}, {"s", 1e9}, {"m", 60e9}, {"h", 3600e9}};
    if (!text) {
        *out = dflt_ns;
        return 0;
    }
    struct str s = str_c(text);
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        struct str suffix = str_c(units[i].suffix);
        double v;
        if (!str_ends(s, suffix))
            continue;
        if (str_to_f64((struct str){s.p, s.n - suffix.n}, 0, 1e9, &v))
            return -EINVAL;
        *out = (uint64_t)(v * units[i].ns);
        return 0;
    }
    return -EINVAL;
}
