/* types.h: the kinds that Baton reads or owns and their typed views (lib/json/view.h). Only the
 * fields we use are listed. A cached object is one allocation; members are borrowed from it. Absent
 * strings are NULL, absent numbers 0 (ask the has-bit where the difference matters). Schemas:
 * manifests/crds; a test checks tables against them both ways. */
#pragma once
#include "lib/json/view.h"

#define BATON_PREFIX      "serving.baton.dev/"
#define LABEL_INFD        BATON_PREFIX "infd"
#define LABEL_ROLE        BATON_PREFIX "role"
#define LABEL_RANK        BATON_PREFIX "rank"
#define LABEL_GROUP       BATON_PREFIX "group"
#define LABEL_REVISION    BATON_PREFIX "revision"
#define ANN_LAST_REPLICAS BATON_PREFIX "last-infd-replicas"
#define ANN_EPOCH         BATON_PREFIX "epoch"
#define ANN_LAST_CRASH    BATON_PREFIX "last-crash"
#define ANN_BACKOFF_UNTIL BATON_PREFIX "backoff-until"
#define ANN_ACTUAL_ROLE   BATON_PREFIX "actual-role"
#define ANN_INCARNATION   BATON_PREFIX "incarnation"
#define LABEL_PAIR        BATON_PREFIX "pair"
#define LABEL_GROUP_SIZE  BATON_PREFIX "group-size"
#define LABEL_INDEX       BATON_PREFIX "index"
#define ANN_PEERS         BATON_PREFIX "peers"
#define ANN_FAILED_EPOCH  BATON_PREFIX "failed-epoch"
#define ANN_BACKOFF_S     BATON_PREFIX "backoff-seconds"
#define ANN_GANG_LIFTED   BATON_PREFIX "gang-lifted"
#define GATE_GANG         BATON_PREFIX "gang"     /* scheduling gate */
#define ANN_REPLACES      BATON_PREFIX "replaces" /* the group whose place this one takes */
#define ANN_RUNG          BATON_PREFIX "rung"
#define ANN_LEAD          BATON_PREFIX "lead"
#define ANN_CACHED_NODES  BATON_PREFIX "cached-nodes"
#define ANN_DEVICE_FAULT  BATON_PREFIX "device-fault"
#define GATE_ROLE         BATON_PREFIX "role"

/* A kind as the API names it. view is NULL for kinds that are only written or handled as JSON. */
struct kube_kind {
    const char *api; /* "v1", "serving.baton.dev/v1alpha1" */
    const char *kind, *plural;
    bool namespaced;
    const struct view *view;
};
extern const struct kube_kind kube_pods, kube_nodes, kube_secrets, kube_pdbs, kube_revisions,
    kube_pod_groups, kube_leases, kube_events, kube_infds, kube_wps, kube_ninvs;

struct kube_owner {
    uint64_t has;
    const char *api, *kind, *name, *uid;
    bool controller;
};
struct kube_meta {
    uint64_t has;
    const char *name, *namespace, *uid, *resource_version;
    int64_t generation;
    uint64_t created_ns, deleted_ns; /* deleted_ns != 0: being deleted (draining) */
    struct view_map labels, annotations;
    struct view_list owners; /* struct kube_owner */
};
struct kube_condition {
    uint64_t has;
    const char *type, *status, *reason, *message; /* status "True", "False", "Unknown" */
    uint64_t since_ns;                            /* lastTransitionTime */
    int64_t observed_generation;
};

/* Every viewed object starts with these two members. */
struct kube_object {
    uint64_t has;
    struct kube_meta meta;
};

struct kube_terminated {
    uint64_t has;
    int64_t exit_code, signal;
    const char *reason, *message; /* "OOMKilled", "Error" */
    uint64_t finished_ns;
};
struct kube_container_status {
    uint64_t has;
    const char *name;
    bool ready;
    int64_t restarts;
    const char *waiting_reason, *waiting_message; /* "CrashLoopBackOff" */
    struct kube_terminated now, last;             /* state.terminated, lastState.terminated */
};
struct kube_container_spec {
    uint64_t has;
    struct view_map requests;
};
struct kube_gate {
    uint64_t has;
    const char *name;
};
struct kube_pod {
    uint64_t has;
    struct kube_meta meta;
    const char *node, *ip, *phase, *reason, *message;
    struct view_list conditions; /* struct kube_condition */
    struct view_list containers; /* struct kube_container_status */
    struct view_list gates;      /* struct kube_gate */
    struct view_list specs;      /* struct kube_container_spec: what the containers ask for */
};
struct kube_taint {
    uint64_t has;
    const char *key, *value, *effect;
};
struct kube_node {
    uint64_t has;
    struct kube_meta meta;
    bool unschedulable;
    struct view_map allocatable, capacity;
    struct view_list conditions; /* struct kube_condition */
    struct view_list taints;     /* struct kube_taint */
    const char *runtime;         /* "containerd://2.1.4", "baton://processes" */
};
struct kube_secret {
    uint64_t has;
    struct kube_meta meta;
    const char *type;
    const char *secret; /* data.secret, decoded: the peer secret of `<infd>-peer` */
};

struct kube_pdb {
    uint64_t has;
    struct kube_meta meta;
    int64_t min_available;
    struct view_map selects; /* matchLabels */
};

struct kube_revision {
    uint64_t has;
    struct kube_meta meta;
    int64_t number;
    const char *data; /* JSON text: {"spec": …} */
};
struct kube_pod_group {
    uint64_t has;
    struct kube_meta meta;
};

/* InferenceDeployment (infd) */
struct infd_bounds {
    uint64_t has;
    int64_t min, max;
};
struct infd_parallelism {
    uint64_t has;
    int64_t tensor, pipeline, expert, data, pods;
};
struct infd_placement {
    uint64_t has;
    const char *pack_by, *mode; /* label of nodes; "Preferred", "Required" */
};
struct infd_claim {
    uint64_t has;
    const char *name, *claim_template;
};
struct infd_role {
    uint64_t has;
    int64_t replicas;
    struct infd_bounds bounds;
    struct view_map requests, limits; /* resources */
    struct view_map node_selector;
    const char *tolerations, *affinity; /* JSON text */
    struct infd_parallelism parallelism;
    struct infd_placement placement;
    struct view_list claims; /* struct infd_claim */
};
struct infd_tier {
    uint64_t has;
    const char *name, *size; /* "dram", "nvme"; a quantity */
};
struct infd_query { /* PromQL in place of Baton's rule */
    uint64_t has;
    const char *role, *query, *target; /* target: a decimal; absent: the value is groups */
};
struct infd_role_status {
    uint64_t has;
    int64_t desired, current, ready, updated;
    const char *summary; /* "ready/desired" */
};
struct kube_infd {
    uint64_t has;
    struct kube_meta meta;
    /* spec.model */
    const char *model_name, *model_source, *model_sha256;
    int64_t model_max_context_tokens;
    const char *model_endpoint, *model_secret_name, *model_secret_key;
    /* roles */
    struct infd_role prefill, decode, unified;
    int64_t standby_hot, standby_warm, standby_cached_nodes;
    const char *slo_ttft, *slo_tpot; /* "500ms", "2s" */
    int64_t slo_percentile;
    const char *scaling_mode;          /* Baton, External, Off */
    const char *ratio_min, *ratio_max; /* prefill groups per decode group */
    int64_t budget_groups;
    const char *scale_down_window, *scaling_capacity; /* capacity: Known, Any */
    const char *prometheus_url;
    struct view_list prometheus_queries; /* struct infd_query */
    const char *disaggregation, *policy; /* routing: auto, always, never; cost, round-robin */
    int64_t kv_block_tokens;
    const char *kv_dtype, *kv_size, *kv_ttl;
    struct view_list kv_tiers; /* struct infd_tier */
    int64_t max_unavailable, max_surge;
    const char *drain_timeout;
    bool paused;
    const char *engine_image, *engine_speculation,
        *engine_template; /* template: JSON text of a pod template; present = foreign engine */
    int64_t engine_port, engine_redundant_experts;
    /* status */
    int64_t observed_generation;
    struct view_list conditions; /* struct kube_condition */
    struct infd_role_status prefill_status, decode_status, unified_status;
    const char *url, *revision, *current_revision;
    double lead_hot_s, lead_warm_s, lead_cached_s, lead_cold_s; /* status.standby.leadSeconds */
};

/* WorkerPool (wp) */
struct wp_decision {
    uint64_t has;
    uint64_t at_ns;
    int64_t from, to;
    const char *reason, *inputs; /* a sentence; compact JSON of the numbers it was made from */
};
struct kube_wp {
    uint64_t has;
    struct kube_meta meta;
    const char *infd, *role; /* spec.inferenceDeployment, spec.role */
    int64_t replicas;        /* groups; only through scale after creation */
    struct infd_bounds bounds;
    int64_t status_replicas, ready_replicas, updated_replicas, observed_generation;
    const char *selector;
    struct view_list conditions; /* struct kube_condition */
    struct view_list decisions;  /* struct wp_decision, newest first */
};

/* NodeInventory (ninv): cluster-scoped, named as its Node and owned by it; the agent applies the
 * object and then its status subresource (field manager baton-agent). */
struct ninv_device {
    uint64_t has;
    const char *name, *kind, *model, *isa; /* "cpu0"; cpu or gpu; "NVIDIA H100"; "avx512" */
    int64_t memory_bytes, milli_cpus;
    bool healthy;
    const char *reason, *action, *uuid; /* action: lib/decide/fault.h */
};
struct ninv_fetch {
    uint64_t has;
    const char *source, *sha256, *message;
    int64_t bytes, percent;
};
struct ninv_model {
    uint64_t has;
    const char *sha256, *source, *rung; /* rung: dram, nvme */
    int64_t bytes;
};
struct ninv_tier {
    uint64_t has;
    const char *name; /* dram, nvme */
    int64_t capacity_bytes, used_bytes;
};
struct ninv_link {
    uint64_t has;
    const char *peer; /* node name, or "memory" for the node's own copy bandwidth */
    int64_t bytes_per_second;
};
struct kube_ninv {
    uint64_t has;
    struct kube_meta meta;
    const char *agent_version, *huge_pages;
    const char *address, *quarantined; /* host:port of the agent; why nothing should go there */
    uint64_t observed_ns;
    struct view_list devices, models, fetches, tiers, links; /* the structs above */
};

extern const struct view kube_meta_view, kube_pod_view, kube_node_view, kube_secret_view,
    kube_pdb_view, kube_revision_view, kube_pod_group_view, kube_infd_view, kube_wp_view,
    kube_ninv_view, kube_condition_view;

const char *kube_label(const struct kube_meta *m, const char *key);      /* NULL when absent */
const char *kube_annotation(const struct kube_meta *m, const char *key); /* NULL when absent */
const struct kube_condition *kube_condition_find(const struct view_list *conditions,
                                                 const char *type);
bool kube_condition_true(const struct view_list *conditions, const char *type);
const struct kube_owner *kube_controller_of(const struct kube_meta *m); /* NULL when none */
/* "300ms", "2s", "5m" in nanoseconds; 0 or -EINVAL. NULL gives dflt_ns. */
int kube_duration_ns(const char *text, uint64_t dflt_ns, uint64_t *out) MUST_CHECK;
