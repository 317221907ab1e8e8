#include "local/kubelet_int.h"

#include "lib/base/host.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/utsname.h>
#include <unistd.h>

#define HEARTBEAT_MS    10000
#define LEASE_SECONDS   40
#define STATUS_EVERY    6 /* heartbeats */
#define LEASE_NAMESPACE "kube-node-lease"

static json_t *now_stamp(int digits)
{
    char text[CLOCK_RFC3339_MAX];
    return json_string(clock_rfc3339(clock_wall_ns(), digits, text));
}

static json_t *condition(const char *type, const char *status, const char *reason,
                         const char *message)
{
    return json_pack("{s:s, s:s, s:s, s:s, s:o, s:o}", "type", type, "status", status, "reason",
                     reason, "message", message, "lastHeartbeatTime", now_stamp(0),
                     "lastTransitionTime", now_stamp(0));
}

static json_t *resources(void)
{
    return json_pack("{s:o, s:o, s:s}", "cpu",
                     json_sprintf("%llum", (unsigned long long)host_milli_cpus()), "memory",
                     json_sprintf("%lluKi", (unsigned long long)host_memory_bytes() / 1024), "pods",
                     "250");
}

/* The first word of a file, or `dflt`. */
static void read_id(const char *path, const char *dflt, char out[64])
{
    FILE *f = fopen(path, "re");
    if (!f || fscanf(f, "%63s", out) != 1)
        snprintf(out, 64, "%s", dflt);
    if (f)
        fclose(f);
}

static json_t *node_status(const struct kubelet *k)
{
    struct utsname u;
    char machine[64], boot[64];
    uname(&u);
    read_id("/etc/machine-id", k->instance, machine);
    read_id("/proc/sys/kernel/random/boot_id", k->instance, boot);
    return json_pack(
        "{s:o, s:o, s:[{s:s, s:s}, {s:s, s:s}], s:[o, o, o, o], s:{s:s, s:s, s:s, s:s, s:s, s:s, "
        "s:s, s:s, s:s, s:s}}",
        "capacity", resources(), "allocatable", resources(), "addresses", "type", "InternalIP",
        "address", "127.0.0.1", "type", "Hostname", "address", u.nodename, "conditions",
        condition("Ready", "True", "KubeletReady", "baton-local runs pods as processes"),
        condition("MemoryPressure", "False", "KubeletHasSufficientMemory",
                  "memory limits are told to programs; without cgroups they can't be enforced"),
        condition("DiskPressure", "False", "KubeletHasNoDiskPressure", "the disk has room"),
        condition("PIDPressure", "False", "KubeletHasSufficientPID", "processes can be started"),
        "nodeInfo", "kubeletVersion", "v1.37.0-baton", "kubeProxyVersion", "none",
        "containerRuntimeVersion", "baton://processes", "kernelVersion", u.release,
        "operatingSystem", "linux", "osImage", u.sysname, "architecture",
        strcmp(u.machine, "x86_64") == 0 ? "amd64" : "arm64", "machineID", machine, "systemUUID",
        machine, "bootID", boot);
}

static void heartbeat(uv_timer_t *t);

static void status_written(const struct kube_result *r, void *ctx)
{
    struct kubelet *k = ctx;
    k->node_asked = false;
    if (!r->err.code)
        return;
    log_warn("node status not written; trying again", LI("status", r->status), LERR(&r->err));
    k->node_registered = false;
    uv_timer_start(k->node_timer, heartbeat, 1000, 0);
}

static void write_status(struct kubelet *k)
{
    CLEANUP(json_decrefp) json_t *body = json_pack("{s:o}", "status", node_status(k));
    struct kube_call call = {.verb = KUBE_PATCH,
                             .kind = &kube_nodes,
                             .name = k->node,
                             .subresource = "status",
                             .body = body,
                             .patch_type = "application/strategic-merge-patch+json",
                             .field_manager = KUBELET_MANAGER,
                             .done = status_written,
                             .ctx = k};
    struct err e;
    k->node_asked = kube_start(k->api, &call, &e) == 0;
}

static void node_made(const struct kube_result *r, void *ctx)
{
    struct kubelet *k = ctx;
    k->node_asked = false;
    if (r->err.code) {
        log_warn("node not registered; trying again", LI("status", r->status), LERR(&r->err));
        return;
    }
    k->node_registered = true;
    free(k->node_uid);
    k->node_uid = xstrdup(json_str_at(r->object, "metadata.uid", ""));
    log_info("node registered", LS("node", k->node));
    write_status(k);
}

static void register_node(struct kubelet *k)
{
    struct utsname u;
    uname(&u);
    CLEANUP(json_decrefp)
    json_t *body =
        json_pack("{s:{s:s, s:{s:s, s:s, s:s}}}", "metadata", "name", k->node, "labels",
                  "kubernetes.io/hostname", k->node, "kubernetes.io/os", "linux",
                  "kubernetes.io/arch", strcmp(u.machine, "x86_64") == 0 ? "amd64" : "arm64");
    struct kube_call call = {.verb = KUBE_APPLY,
                             .kind = &kube_nodes,
                             .name = k->node,
                             .body = body,
                             .field_manager = KUBELET_MANAGER,
                             .force = true,
                             .done = node_made,
                             .ctx = k};
    struct err e;
    k->node_asked = kube_start(k->api, &call, &e) == 0;
}

static void lease_done(const struct kube_result *r, void *ctx)
{
    struct kubelet *k = ctx;
    k->lease_asked = false;
    if (r->err.code)
        log_warn("node lease not renewed", LI("status", r->status), LERR(&r->err));
}

static void renew_lease(struct kubelet *k)
{
    CLEANUP(json_decrefp)
    json_t *body = json_pack("{s:{s:s, s:s}, s:{s:s, s:i, s:o}}", "metadata", "name", k->node,
                             "namespace", LEASE_NAMESPACE, "spec", "holderIdentity", k->node,
                             "leaseDurationSeconds", LEASE_SECONDS, "renewTime", now_stamp(6));
    if (k->node_uid)
        json_object_set_new(json_at(body, "metadata"), "ownerReferences",
                            json_pack("[{s:s, s:s, s:s, s:s}]", "apiVersion", "v1", "kind", "Node",
                                      "name", k->node, "uid", k->node_uid));
    struct kube_call call = {.verb = KUBE_APPLY,
                             .kind = &kube_leases,
                             .namespace = LEASE_NAMESPACE,
                             .name = k->node,
                             .body = body,
                             .field_manager = KUBELET_MANAGER,
                             .force = true,
                             .done = lease_done,
                             .ctx = k};
    struct err e;
    k->lease_asked = kube_start(k->api, &call, &e) == 0;
}

static void heartbeat(uv_timer_t *t)
{
    struct kubelet *k = t->data;
    if (!k->node_registered) {
        if (!k->node_asked)
            register_node(k);
        uv_timer_start(t, heartbeat, k->node_asked ? 250 : 1000, HEARTBEAT_MS);
        return;
    }
    if (!k->lease_asked)
        renew_lease(k);
    if (++k->heartbeats % STATUS_EVERY == 0 && !k->node_asked)
        write_status(k); /* finds out, too, whether somebody has deleted the Node */
    node_retry(k);
    uv_timer_start(t, heartbeat, HEARTBEAT_MS, HEARTBEAT_MS);
}

void node_start(struct kubelet *k)
{
    k->node_timer = kubelet_timer(k, k);
    uv_timer_start(k->node_timer, heartbeat, 0, 0);
}

static int64_t memory_request(const json_t *spec)
{
    const char *q = json_str_at(spec, "resources.requests.memory", NULL);
    int64_t milli;
    return q && str_to_quantity_milli(str_c(q), &milli) == 0 ? milli / 1000 : 0;
}

static int64_t pod_memory(const json_t *pod)
{
    int64_t sum = 0;
    size_t i;
    json_t *c;
    json_array_foreach (json_at(pod, "spec.containers"), i, c)
        sum += memory_request(c);
    return sum;
}

/* NULL when the pod fits here, else why not, in the scheduler's words. */
static char *unfit(struct kubelet *k, const json_t *pod, const json_t *node)
{
    struct kpod *p;
    const char *key;
    json_t *v;
    int64_t used = 0, want = pod_memory(pod), have = (int64_t)host_memory_bytes();
    if (json_bool_at(node, "spec.unschedulable", false))
        return xstrdup("0/1 nodes are available: 1 node(s) were unschedulable (kubectl uncordon).");
    json_object_foreach (json_at(pod, "spec.nodeSelector"), key, v) {
        const char *label =
            json_string_value(json_object_get(json_at(node, "metadata.labels"), key));
        if (!label || strcmp(label, json_string_value(v)) != 0)
            return xasprintf(
                "0/1 nodes are available: 1 node(s) didn't match Pod's node selector (%s=%s).", key,
                json_string_value(v));
    }
    DL_FOREACH (k->pods, p)
        used += p->terminating ? 0 : pod_memory(p->obj);
    if (want > have - used)
        return xasprintf(
            "0/1 nodes are available: 1 Insufficient memory (the pod asks for %lld MiB, %lld of "
            "%lld MiB are free).",
            (long long)(want >> 20), (long long)((have - used) >> 20), (long long)(have >> 20));
    return NULL;
}

static void bound(const struct kube_result *r, void *ctx)
{
    (void)ctx;
    if (r->err.code && r->status != 404 && r->status != 409)
        log_warn("pod not bound", LI("status", r->status), LERR(&r->err));
}

static void say_unschedulable(struct kubelet *k, const json_t *pod, const char *why)
{
    size_t i;
    json_t *c;
    json_array_foreach (json_at(pod, "status.conditions"), i, c) {
        if (strcmp(json_str_at(c, "type", ""), "PodScheduled") == 0 &&
            strcmp(json_str_at(c, "message", ""), why) == 0)
            return;
    }
    CLEANUP(json_decrefp)
    json_t *body =
        json_pack("{s:{s:s, s:[{s:s, s:s, s:s, s:s, s:o}]}}", "status", "phase", "Pending",
                  "conditions", "type", "PodScheduled", "status", "False", "reason",
                  "Unschedulable", "message", why, "lastTransitionTime", now_stamp(0));
    struct kube_call call = {.verb = KUBE_PATCH,
                             .kind = &kube_pods,
                             .subresource = "status",
                             .body = body,
                             .namespace = json_str_at(pod, "metadata.namespace", "default"),
                             .name = json_str_at(pod, "metadata.name", ""),
                             .patch_type = "application/strategic-merge-patch+json",
                             .field_manager = KUBELET_MANAGER,
                             .done = bound,
                             .ctx = k};
    struct err e;
    if (kube_start(k->api, &call, &e))
        log_warn("can't say that a pod doesn't fit", LERR(&e));
}

void node_forget(struct kubelet *k, const json_t *pod)
{
    json_object_del(k->unbound, json_str_at(pod, "metadata.uid", ""));
}

void node_retry(struct kubelet *k)
{
    if (k->draining || json_object_size(k->unbound) == 0)
        return;
    CLEANUP(json_decrefp) json_t *waiting = k->unbound;
    const char *uid;
    json_t *pod;
    k->unbound = json_object();
    json_object_foreach (waiting, uid, pod)
        node_bind(k, pod);
}

static void bind_pod(struct kubelet *k, const json_t *pod)
{
    const char *name = json_str_at(pod, "metadata.name", "");
    CLEANUP(free_charp) char *plural = xasprintf("pods/%s/binding", name);
    struct kube_kind kind = {"v1", "Binding", plural, true, NULL};
    CLEANUP(json_decrefp)
    json_t *body = json_pack("{s:s, s:s, s:{s:s}, s:{s:s, s:s, s:s}}", "apiVersion", "v1", "kind",
                             "Binding", "metadata", "name", name, "target", "apiVersion", "v1",
                             "kind", "Node", "name", k->node);
    struct kube_call call = {.verb = KUBE_CREATE,
                             .kind = &kind,
                             .body = body,
                             .done = bound,
                             .ctx = k,
                             .namespace = json_str_at(pod, "metadata.namespace", "default")};
    struct err e;
    if (kube_start(k->api, &call, &e))
        log_warn("can't bind a pod", LS("pod", name), LERR(&e));
}

struct binding {
    struct kubelet *k;
    json_t *pod;
};

static void node_looked(const struct kube_result *r, void *ctx)
{
    struct binding *b = ctx;
    CLEANUP(free_charp) char *why = r->err.code ? NULL : unfit(b->k, b->pod, r->object);
    if (why || r->err.code)
        json_object_set(b->k->unbound, json_str_at(b->pod, "metadata.uid", ""), b->pod);
    if (why)
        say_unschedulable(b->k, b->pod, why);
    else if (!r->err.code)
        bind_pod(b->k, b->pod);
    json_decref(b->pod);
    free(b);
}

/* One node: binding is a check that the pod fits. An unfit pod is looked at again when it changes,
 * when room comes free and at each heartbeat. */
void node_bind(struct kubelet *k, json_t *pod)
{
    const char *scheduler = json_str_at(pod, "spec.schedulerName", "default-scheduler");
    if (json_at(pod, "metadata.deletionTimestamp") || strcmp(scheduler, "default-scheduler") != 0 ||
        json_array_size(json_at(pod, "spec.schedulingGates")) > 0)
        return;
    struct binding *b = xcalloc(1, sizeof *b);
    *b = (struct binding){k, json_incref(pod)};
    struct kube_call call = {
        .verb = KUBE_GET, .kind = &kube_nodes, .name = k->node, .done = node_looked, .ctx = b};
    struct err e;
    if (kube_start(k->api, &call, &e)) {
        log_warn("can't look at the node", LERR(&e));
        json_decref(b->pod);
        free(b);
    }
}
