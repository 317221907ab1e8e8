#include "local/kubelet_int.h"

#include <stdio.h>
#include <stdlib.h>

static json_t *stamp(uint64_t wall_ns)
{
    char text[CLOCK_RFC3339_MAX];
    return json_string(clock_rfc3339(wall_ns, 0, text));
}

static void put_text(json_t *o, const char *key, const char *text)
{
    if (text && *text)
        json_object_set_new(o, key, json_string(text));
}

static json_t *terminated(struct kctr *c, const json_t *exit, int attempt)
{
    json_t *t = json_pack("{s:I}", "exitCode", json_int_at(exit, "code", 0));
    if (json_int_at(exit, "signal", 0))
        json_object_set_new(t, "signal", json_integer(json_int_at(exit, "signal", 0)));
    put_text(t, "reason", json_str_at(exit, "reason", NULL));
    put_text(t, "message", json_str_at(exit, "message", NULL));
    json_object_set_new(t, "startedAt", stamp((uint64_t)json_int_at(exit, "started", 0)));
    json_object_set_new(t, "finishedAt", stamp((uint64_t)json_int_at(exit, "finished", 0)));
    json_object_set_new(t, "containerID",
                        json_sprintf("baton://%s/%s/%d", c->pod->uid, c->name, attempt));
    return json_pack("{s:o}", "terminated", t);
}

static json_t *container_state(struct kctr *c)
{
    if (c->state == CTR_RUNNING)
        return json_pack("{s:{s:o}}", "running", "startedAt", stamp(c->started_wall_ns));
    if (c->state == CTR_EXITED && !c->wait_reason)
        return terminated(c, c->exit, c->attempt);
    json_t *w = json_pack("{s:s}", "reason", c->wait_reason ? c->wait_reason : "ContainerCreating");
    put_text(w, "message", c->wait_message);
    return json_pack("{s:o}", "waiting", w);
}

static json_t *container_status(struct kctr *c)
{
    const char *image = json_str_at(c->spec, "image", "");
    json_t *s =
        json_pack("{s:s, s:b, s:b, s:i, s:s, s:s, s:o}", "name", c->name, "ready", (int)c->ready,
                  "started", (int)(c->state == CTR_RUNNING && c->started), "restartCount",
                  c->restarts, "image", image, "imageID", "process", "state", container_state(c));
    if (c->init && !c->sidecar && c->state == CTR_EXITED)
        json_object_set_new(s, "ready", json_boolean(json_int_at(c->exit, "code", 1) == 0));
    bool waits = c->state == CTR_EXITED && c->wait_reason;
    const json_t *last = waits ? c->exit : c->last_exit;
    json_object_set_new(s, "lastState",
                        last ? terminated(c, last, waits ? c->attempt : c->attempt - 1)
                             : json_object());
    if (c->attempt >= 0)
        json_object_set_new(s, "containerID",
                            json_sprintf("baton://%s/%s/%d", c->pod->uid, c->name, c->attempt));
    return s;
}

static bool has_ended_once(const struct kctr *c)
{
    return c->state == CTR_EXITED || c->last_exit != NULL;
}

/* As the kubelet's getPhase. */
static const char *phase(struct kpod *p)
{
    bool failed = false, any_new = false;
    if (p->end_reason)
        return "Failed";
    if (kpod_finished(p, &failed))
        return failed ? "Failed" : "Succeeded";
    for (size_t i = 0; i < p->n_ctrs; i++) {
        struct kctr *c = p->ctrs[i];
        bool ran = c->state == CTR_RUNNING || has_ended_once(c);
        bool init_open =
            c->init &&
            !(c->sidecar ? ran : c->state == CTR_EXITED && json_int_at(c->exit, "code", 1) == 0);
        any_new |= init_open || (!c->init && !ran);
    }
    if (any_new)
        return "Pending";
    if (p->terminating) { /* told to end, and all have: what did they say? */
        bool live = false, bad = false;
        for (size_t i = 0; i < p->n_ctrs; i++) {
            live |= kctr_live(p->ctrs[i]);
            bad |= p->ctrs[i]->state == CTR_EXITED && json_int_at(p->ctrs[i]->exit, "code", 0) != 0;
        }
        if (!live)
            return bad ? "Failed" : "Succeeded";
    }
    return "Running";
}

static const json_t *old_condition(const struct kpod *p, const char *type)
{
    size_t i;
    json_t *c;
    const json_t *in = p->static_file ? p->mirror : p->obj;
    json_array_foreach (json_at(in, "status.conditions"), i, c) {
        if (strcmp(json_str_at(c, "type", ""), type) == 0)
            return c;
    }
    return NULL;
}

static void add_condition(struct kpod *p, json_t *list, const char *type, bool value,
                          const char *reason, const char *message)
{
    const json_t *old = old_condition(p, type), *sent = NULL;
    const char *status = value ? "True" : "False";
    size_t i;
    json_t *item;
    json_array_foreach (json_at(p->sent, "conditions"), i, item) {
        if (strcmp(json_str_at(item, "type", ""), type) == 0)
            sent = item;
    }
    const json_t *base = sent ? sent : old;
    json_t *since = json_object_get(base, "lastTransitionTime");
    bool same = since && strcmp(json_str_at(base, "status", ""), status) == 0;
    json_t *c = json_pack("{s:s, s:s, s:O?}", "type", type, "status", status, "lastTransitionTime",
                          same ? since : NULL);
    if (!same)
        json_object_set_new(c, "lastTransitionTime", stamp(clock_wall_ns()));
    json_object_set_new(c, "lastProbeTime", json_null());
    /* null, not absent: a patch must take back what an earlier one said */
    json_object_set_new(c, "reason", value ? json_null() : json_string(reason));
    json_object_set_new(c, "message", value ? json_null() : json_string(message));
    json_array_append_new(list, c);
}

/* Readiness gates are conditions that others write (the agent writes serving.baton.dev/role). */
static bool gates_open(struct kpod *p, char *closed, size_t n)
{
    size_t i;
    json_t *g;
    json_array_foreach (json_at(p->obj, "spec.readinessGates"), i, g) {
        const char *type = json_str_at(g, "conditionType", "");
        const json_t *c = old_condition(p, type);
        if (!c || strcmp(json_str_at(c, "status", ""), "True") != 0) {
            snprintf(closed, n,
                     c ? "the status of pod readiness gate \"%s\" is not \"True\", but %s"
                       : "corresponding condition of pod readiness gate \"%s\" does not exist%s.",
                     type, c ? json_str_at(c, "status", "") : "");
            return false;
        }
    }
    return true;
}

static json_t *conditions(struct kpod *p, const char *now_phase)
{
    json_t *list = json_array();
    bool initialized = true, ready = true;
    char unready[512] = "", uninit[512] = "", gate[512] = "";
    for (size_t i = 0; i < p->n_ctrs; i++) {
        struct kctr *c = p->ctrs[i];
        bool ok = c->init && !c->sidecar
                      ? c->state == CTR_EXITED && json_int_at(c->exit, "code", 1) == 0
                      : c->ready;
        char *list_text = c->init ? uninit : unready;
        if (ok)
            continue;
        if (c->init)
            initialized = false;
        else
            ready = false;
        size_t n = strlen(list_text);
        snprintf(list_text + n, sizeof unready - n, n ? " %s" : "%s", c->name);
    }
    bool done = strcmp(now_phase, "Succeeded") == 0;
    const char *reason = done ? "PodCompleted" : p->end_reason ? "PodFailed" : "ContainersNotReady";
    char message[600], init_message[600];
    snprintf(message, sizeof message, "containers with unready status: [%s]", unready);
    snprintf(init_message, sizeof init_message, "containers with incomplete status: [%s]", uninit);
    bool open = gates_open(p, gate, sizeof gate);
    add_condition(p, list, "PodReadyToStartContainers", p->ready_to_run || p->n_ctrs == 0,
                  "NotPrepared", "the pod's folder and volumes are not ready");
    add_condition(p, list, "Initialized", initialized || done, "ContainersNotInitialized",
                  init_message);
    add_condition(p, list, "Ready", ready && initialized && open && !p->terminating,
                  ready && !open ? "ReadinessGatesNotReady" : reason,
                  ready && !open ? gate : message);
    add_condition(p, list, "ContainersReady", ready && initialized, reason, message);
    if (p->static_file)
        add_condition(p, list, "PodScheduled", true, "", "");
    return list;
}

static json_t *compute(struct kpod *p)
{
    const char *now_phase = phase(p);
    json_t *s =
        json_pack("{s:s, s:s, s:[{s:s}], s:s, s:[{s:s}], s:o, s:s}", "phase", now_phase, "hostIP",
                  "127.0.0.1", "hostIPs", "ip", "127.0.0.1", "podIP", p->ip, "podIPs", "ip", p->ip,
                  "startTime", stamp(p->started_wall_ns), "qosClass", "Burstable");
    put_text(s, "reason", p->end_reason);
    put_text(s, "message", p->end_message);
    json_object_set_new(s, "conditions", conditions(p, now_phase));
    json_t *init = json_array(), *main = json_array();
    for (size_t i = 0; i < p->n_ctrs; i++)
        json_array_append_new(p->ctrs[i]->init ? init : main, container_status(p->ctrs[i]));
    json_object_set_new(s, "containerStatuses", main);
    if (json_array_size(init))
        json_object_set_new(s, "initContainerStatuses", init);
    else
        json_decref(init);
    json_object_del(s, "qosClass"); /* the API server's word */
    return s;
}

static void patched(const struct kube_result *r, void *ctx)
{
    struct kubelet *k = ((void **)ctx)[0];
    CLEANUP(free_charp) char *uid = ((void **)ctx)[1];
    free(ctx);
    struct kpod *p = kubelet_pod(k, uid);
    if (!p)
        return;
    json_t *was = p->sending;
    p->sending = NULL;
    if (r->status >= 200 && r->status < 300) {
        json_decref(p->sent);
        p->sent = was;
        kpod_poke(p); /* newer news may have waited */
        return;
    }
    json_decref(was);
    if (r->status != 404)
        log_warn("pod status not written; trying again", LS("pod", p->name),
                 LI("status", r->status), LS("error", r->err.msg));
    p->status_retry_ns = clock_mono_ns() + NS_PER_S;
    kpod_poke_in(p, 1001);
}

void kstatus_sync(struct kpod *p)
{
    if (p->sending || p->gone || (p->static_file && !p->mirror) || (!p->static_file && !p->listed))
        return;
    if (clock_mono_ns() < p->status_retry_ns) {
        kpod_poke_in(p, 500);
        return;
    }
    json_t *now = compute(p);
    if (p->sent && json_equal(p->sent, now)) {
        json_decref(now);
        return;
    }
    void **ctx = xcalloc(2, sizeof *ctx);
    ctx[0] = p->k;
    ctx[1] = xstrdup(p->uid);
    CLEANUP(json_decrefp) json_t *body = json_pack("{s:O}", "status", now);
    CLEANUP(free_charp)
    char *name = p->static_file ? xasprintf("%s-%s", p->name, p->k->node) : xstrdup(p->name);
    struct kube_call call = {.verb = KUBE_PATCH,
                             .kind = &kube_pods,
                             .namespace = p->ns,
                             .name = name,
                             .subresource = "status",
                             .body = body,
                             .patch_type = "application/strategic-merge-patch+json",
                             .field_manager = KUBELET_MANAGER,
                             .done = patched,
                             .ctx = ctx};
    struct err e;
    if (kube_start(p->k->api, &call, &e) == 0) {
        p->sending = now;
        return;
    }
    log_error("can't write a pod's status", LS("pod", p->name), LERR(&e));
    json_decref(now);
    free(ctx[1]);
    free(ctx);
}
