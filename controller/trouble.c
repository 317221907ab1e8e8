/* What is wrong with a pod, in one word for conditions and one sentence that says what to do. */
#include "controller/controller.h"

#include <stdio.h>

#define TEXT_MAX 900

static bool is(const char *a, const char *b)
{
    return a && strcmp(a, b) == 0;
}

static void PRINTF_LIKE(4, 5)
    set(struct trouble *t, const char *reason, bool disrupted, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(t->text, sizeof t->text, fmt, ap);
    va_end(ap);
    t->reason = reason;
    t->disrupted = disrupted;
}

/* Somebody else ends the pod. */
static bool disruption(const struct kube_pod *p, struct trouble *t)
{
    static const struct {
        const char *why, *reason, *text;
    } words[] = {
        {"PreemptionByScheduler", "Preempted",
         "a pod of higher priority took its place; give these pods a higher priority, or add room"},
        {"EvictionByEvictionAPI", "Evicted",
         "evicted, as by kubectl drain; it is made again on another node"},
        {"DeletionByTaintManager", "NodeLost",
         "its node is tainted NoExecute (lost or taken away); it is made again on another node"},
        {"DeletionByPodGC", "NodeLost",
         "its node is gone from the cluster; it is made again on another node"},
        {"TerminationByKubelet", "Evicted",
         "the kubelet ended it for want of memory or disk on the node; look at the node's "
         "conditions"},
    };
    const struct kube_condition *c = kube_condition_find(&p->conditions, "DisruptionTarget");
    if (!c || !is(c->status, "True"))
        return false;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (is(c->reason, words[i].why)) {
            set(t, words[i].reason, true, "%s", words[i].text);
            return true;
        }
    set(t, "Evicted", true, "%.300s", c->message ? c->message : "it is being taken away");
    return true;
}

/* phase Failed, for a reason that is not the containers'. */
static bool ended_by_node(const struct kube_pod *p, struct trouble *t)
{
    static const char *const reasons[] = {
        "Evicted",  "Preempting", "NodeShutdown", "Terminated",
        "NodeLost", "Shutdown",   "NodeAffinity", "UnexpectedAdmissionError"};
    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++)
        if (is(p->phase, "Failed") && is(p->reason, reasons[i])) {
            set(t, is(p->reason, "Preempting") ? "Preempted" : "Evicted", true,
                "%s: %.300s; it is made again, on another node where there is room", p->reason,
                p->message ? p->message : "the node ended it");
            return true;
        }
    return false;
}

static bool unscheduled(const struct kube_pod *p, struct trouble *t)
{
    const struct kube_condition *c = kube_condition_find(&p->conditions, "PodScheduled");
    if (p->node || !c || !is(c->status, "False"))
        return false;
    if (is(c->reason, "SchedulingGated")) {
        set(t, "WaitsForGroup", false, "waits until all pods of its group can be placed together");
        return true;
    }
    if (!is(c->reason, "Unschedulable"))
        return false;
    set(t, "NoCapacity", false, "%.300s", c->message ? c->message : "no node has room");
    t->unschedulable = true;
    return true;
}

static bool is_image(const char *reason)
{
    static const char *const words[] = {
        "ErrImagePull",      "ImagePullBackOff",    "InvalidImageName",         "ErrImageNeverPull",
        "ImageInspectError", "RegistryUnavailable", "SignatureValidationFailed"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (is(reason, words[i]))
            return true;
    return false;
}

static bool is_setup(const char *reason)
{
    static const char *const words[] = {"CreateContainerConfigError", "CreateContainerError",
                                        "RunContainerError", "PostStartHookError", "StartError"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (is(reason, words[i]))
            return true;
    return false;
}

static void crashed(const struct kube_pod *p, const struct kube_container_status *c,
                    const struct kube_terminated *e, struct trouble *t)
{
    const char *why = e->reason ? e->reason : "Error";
    if (is(why, "OOMKilled")) {
        set(t, "OutOfMemory", false,
            "OOMKilled, exit code %lld, after %lld restarts: it used more than its memory limit; "
            "raise resources.limits.memory, or lower kvCache.size",
            (long long)e->exit_code, (long long)c->restarts);
        return;
    }
    set(t, is(c->waiting_reason, "CrashLoopBackOff") ? "PodCrashing" : "PodFailed", false,
        "%s: %s, exit code %lld, %lld restarts%s%.200s; see kubectl logs %s --previous",
        c->waiting_reason ? c->waiting_reason : "ended", why, (long long)e->exit_code,
        (long long)c->restarts, e->message ? ": " : "", e->message ? e->message : "", p->meta.name);
}

static bool container(const struct kube_pod *p, const struct kube_container_status *c,
                      struct trouble *t)
{
    const struct kube_terminated *e = c->now.has ? &c->now : c->last.has ? &c->last : NULL;
    const char *message = c->waiting_message ? c->waiting_message : "no details given";
    if (is_image(c->waiting_reason)) {
        set(t, "ImageError", false,
            "%s: %.300s; check the image's name (spec.engine.image) and that nodes may pull it",
            c->waiting_reason, message);
        return true;
    }
    if (is_setup(c->waiting_reason)) {
        set(t, "ContainerError", false,
            "%s: %.300s; the pod refers to something that is missing "
            "or not allowed on the node",
            c->waiting_reason, message);
        return true;
    }
    bool again = c->waiting_reason && (is(c->waiting_reason, "CrashLoopBackOff") || c->restarts);
    if (e && (c->now.has || again)) {
        crashed(p, c, e, t);
        return true;
    }
    return false;
}

/* What the agent says of a worker that can't serve ("needs 9.1 GiB, node has 7.8"). */
static bool worker(const struct kube_pod *p, struct trouble *t)
{
    static const char *const words[] = {"WorkerCrashed", "InsufficientMemory", "ModelUnavailable",
                                        "DeviceFault"};
    const struct kube_condition *c = kube_condition_find(&p->conditions, GATE_ROLE);
    for (size_t i = 0; c && i < sizeof words / sizeof *words; i++)
        if (is(c->reason, words[i])) {
            set(t, "PodCrashing", false, "%s: %.400s", c->reason, c->message ? c->message : "");
            return true;
        }
    return false;
}

bool trouble_of(const struct kube_pod *p, enum node_state node, struct trouble *t)
{
    *t = (struct trouble){0};
    if (disruption(p, t) || ended_by_node(p, t) || worker(p, t))
        return true;
    if (node == NODE_LOST && !kube_condition_true(&p->conditions, "Ready")) {
        set(t, "NodeLost", true,
            "its node %s has fallen silent; a replacement is made elsewhere. If the node will not "
            "come back, delete it or taint it node.kubernetes.io/out-of-service",
            p->node ? p->node : "");
        return true;
    }
    if (unscheduled(p, t))
        return true;
    for (size_t i = 0; i < p->containers.n; i++)
        if (container(p, VIEW_AT(struct kube_container_status, p->containers, i), t))
            return true;
    if (p->reason) {
        set(t, "PodFailed", false, "%s%s%.300s", p->reason, p->message ? ": " : "",
            p->message ? p->message : "");
        return true;
    }
    return false;
}
