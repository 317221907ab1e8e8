/* This node's pods: desired roles out of the watch to the launchers, their reports into the pods.
 */
#include "agent/agent.h"
#include "agent/devices.h"
#include "agent/lead.h"

#include "lib/decide/fault.h"
#include "lib/decide/guard.h"

#include <stdio.h>
#include <stdlib.h>
#include <utlist.h>

#define RECONNECT_GRACE_NS                                                                         \
    (4 * NS_PER_S) /* after a start of the agent launchers need a moment to connect */
#define RETRY_MS 1000

struct apod *pods_find(struct agent *a, const char *uid)
{
    struct apod *p;
    DL_FOREACH (a->pods, p) {
        if (strcmp(p->uid, uid) == 0)
            return p;
    }
    return NULL;
}

const char *pods_role(const struct apod *p)
{
    return json_string_value(json_object_get(json_at(p->obj, "metadata.labels"), LABEL_ROLE));
}

static const json_t *condition(const struct apod *p)
{
    size_t i;
    json_t *c;
    json_array_foreach (json_at(p->obj, "status.conditions"), i, c) {
        if (strcmp(json_str_at(c, "type", ""), GATE_ROLE) == 0)
            return c;
    }
    return NULL;
}

struct verdict {
    bool ready;
    const char *reason;
    char message[900];
};

/* What the readiness gate should say. */
static void judge(const struct apod *p, struct verdict *v)
{
    const json_t *r = p->reported;
    const char *want = pods_role(p), *have = json_str_at(r, "role", "");
    const json_t *crash = json_object_get(r, "crash");
    bool ready = json_bool_at(r, "ready", false);
    *v = (struct verdict){.reason = "WorkerStarting"};
    CLEANUP(json_decrefp)
    json_t *fault = p->fault ? json_parse(str_c(p->fault), 4096, 4, NULL) : NULL;
    const char *asks = json_str_at(fault, "action", "");
    if (fault_action_parse(asks) >= FAULT_QUARANTINE_DEVICE && GUARD(no_work_on_bad_devices)) {
        v->reason = "DeviceFault";
        snprintf(v->message, sizeof v->message, "its device %s must not be used: %s",
                 json_str_at(fault, "device", ""), json_str_at(fault, "reason", ""));
    } else if (!r) {
        v->reason = "LauncherNotConnected";
        snprintf(v->message, sizeof v->message,
                 "the pod's launcher is not connected to the node's agent");
    } else if (json_bool_at(r, "draining", false)) {
        v->reason = "Draining";
        snprintf(v->message, sizeof v->message,
                 "the worker finishes what it has and takes nothing new");
    } else if (!ready && json_is_object(crash)) {
        v->reason = strcmp(json_str_at(crash, "reason", ""), "InsufficientMemory") == 0
                        ? "InsufficientMemory"
                        : "WorkerCrashed";
        snprintf(v->message, sizeof v->message, "%s",
                 json_str_at(crash, "message", "the worker ended"));
    } else if (!ready && GUARD(gate_needs_engine)) {
        snprintf(v->message, sizeof v->message, "%s",
                 json_str_at(r, "message", "the worker is starting"));
    } else if (!want || strcmp(want, have) != 0) {
        v->reason = "RoleChanging";
        snprintf(v->message, sizeof v->message, "the worker is %s and becomes %s", have,
                 want ? want : "nothing");
    } else if (strcmp(want, "standby") == 0) {
        v->reason = "Standby";
        bool warm = strcmp(json_str_at(r, "rung", "hot"), "warm") == 0;
        snprintf(v->message, sizeof v->message,
                 warm ? "the worker sleeps until it takes a role (warm)"
                      : "the worker is ready to take a role (hot)");
    } else {
        v->ready = true;
        v->reason = "RoleActive";
        const char *fewer = json_str_at(r, "degraded", "");
        snprintf(v->message, sizeof v->message, "the worker serves as %s%s%s", have,
                 *fewer ? " with " : "", fewer);
    }
}

struct patch {
    struct agent *a;
    char *uid;
    bool meta;
};

static void patched(const struct kube_result *r, void *ctx)
{
    struct patch *x = ctx;
    struct apod *p = pods_find(x->a, x->uid);
    if (p) {
        *(x->meta ? &p->patching_meta : &p->patching_status) = false;
        if (!r->err.code && r->object) {
            json_decref(p->obj); /* what the watch will say too */
            p->obj = json_incref(r->object);
        } else if (r->status != 404) {
            log_warn("a pod could not be written; trying again", LS("pod", p->name),
                     LI("status", r->status), LERR(&r->err));
            p->retry_ns = clock_mono_ns() + RETRY_MS * NS_PER_MS;
        }
        if (r->status != 404)
            pods_poke(p);
    }
    free(x->uid);
    free(x);
}

static bool start_patch(struct apod *p, const json_t *body, bool meta)
{
    struct patch *x = xcalloc(1, sizeof *x);
    *x = (struct patch){p->a, xstrdup(p->uid), meta};
    struct kube_call call = {.verb = KUBE_PATCH,
                             .kind = &kube_pods,
                             .namespace = p->ns,
                             .name = p->name,
                             .subresource = meta ? NULL : "status",
                             .body = body,
                             .patch_type = "application/strategic-merge-patch+json",
                             .field_manager = AGENT_MANAGER,
                             .done = patched,
                             .ctx = x};
    struct err e;
    if (kube_start(p->a->api, &call, &e) == 0)
        return true;
    log_error("can't write a pod", LS("pod", p->name), LERR(&e));
    free(x->uid);
    free(x);
    return false;
}

static void write_condition(struct apod *p)
{
    struct verdict v;
    char now[CLOCK_RFC3339_MAX];
    judge(p, &v);
    if (v.ready)
        lead_serves(p);
    const json_t *is = condition(p);
    const char *status = v.ready ? "True" : "False";
    bool same_status = strcmp(json_str_at(is, "status", ""), status) == 0;
    if (same_status && strcmp(json_str_at(is, "reason", ""), v.reason) == 0 &&
        strcmp(json_str_at(is, "message", ""), v.message) == 0)
        return;
    clock_rfc3339(clock_wall_ns(), 0, now);
    CLEANUP(json_decrefp)
    json_t *body = json_pack("{s:{s:s}, s:{s:[{s:s, s:s, s:s, s:s, s:s}]}}", "metadata", "uid",
                             p->uid, "status", "conditions", "type", GATE_ROLE, "status", status,
                             "reason", v.reason, "message", v.message, "lastTransitionTime",
                             same_status ? json_str_at(is, "lastTransitionTime", now) : now);
    if (body) /* NULL: a message that is not UTF-8 */
        p->patching_status = start_patch(p, body, false);
}

static bool differs(const struct apod *p, json_t *notes, const char *key, const char *want)
{
    const char *is =
        json_string_value(json_object_get(json_at(p->obj, "metadata.annotations"), key));
    if (want ? is && strcmp(is, want) == 0 : !is)
        return false;
    json_object_set_new(notes, key, want ? json_string(want) : json_null());
    return true;
}

bool pods_grouped(const struct apod *p)
{
    const char *size =
        json_string_value(json_object_get(json_at(p->obj, "metadata.labels"), LABEL_GROUP_SIZE));
    return size && strcmp(size, "1") != 0;
}

/* In a group of several pods epoch and back-off are the controller's; this pod only says which
 * epoch its ranks failed in, together with the record of why. */
static bool note_epoch(struct apod *p, json_t *notes)
{
    const json_t *r = p->reported, *crash = json_object_get(r, "crash");
    char epoch[24];
    bool any = false;
    if (!pods_grouped(p)) {
        snprintf(epoch, sizeof epoch, "%lld", (long long)json_int_at(r, "epoch", 0));
        if (json_object_get(r, "epoch"))
            any |= differs(p, notes, ANN_EPOCH, epoch);
        return any | differs(p, notes, ANN_BACKOFF_UNTIL, json_str_at(r, "backoff_until", NULL));
    }
    snprintf(epoch, sizeof epoch, "%lld", (long long)json_int_at(crash, "epoch", 0));
    return json_int_at(crash, "epoch", 0) > 0 && differs(p, notes, ANN_FAILED_EPOCH, epoch);
}

/* Annotations tell routers and the controller; they stay as they are while no launcher is
 * connected. */
static void write_annotations(struct apod *p)
{
    const json_t *r = p->reported, *crash = json_object_get(r, "crash");
    if (!r)
        return;
    CLEANUP(free_charp)
    char *record = json_is_object(crash) ? json_dumps(crash, JSON_COMPACT) : NULL;
    CLEANUP(json_decrefp) json_t *notes = json_object();
    const char *incarnation = json_str_at(r, "incarnation", NULL);
    bool any = differs(p, notes, ANN_ACTUAL_ROLE, json_str_at(r, "role", NULL));
    if (incarnation)
        any |= differs(p, notes, ANN_INCARNATION, incarnation);
    any |= note_epoch(p, notes);
    if (record)
        any |= differs(p, notes, ANN_LAST_CRASH, record);
    if (p->fault || p->fault_known) /* forgiven or lifted: it goes */
        any |= differs(p, notes, ANN_DEVICE_FAULT, p->fault);
    if (p->lead)
        any |= differs(p, notes, ANN_LEAD, p->lead);
    if (!any)
        return;
    CLEANUP(json_decrefp)
    json_t *body = json_pack("{s:{s:s, s:O}}", "metadata", "uid", p->uid, "annotations", notes);
    p->patching_meta = start_patch(p, body, true);
}

static void see_faults(struct apod *p, const struct launcher *l)
{
    uint64_t created = 0;
    if (clock_parse_rfc3339(json_str_at(p->obj, "metadata.creationTimestamp", ""), &created))
        created = 0;
    free(p->fault);
    p->fault = l ? devices_fault_of(p->a, l->devices, created) : NULL;
    p->fault_known = l && devices_known(p->a);
}

static void sync_pod(uv_timer_t *t)
{
    struct apod *p = t->data;
    uint64_t now = clock_mono_ns();
    struct launcher *l = sock_launcher(p->a, p->uid);
    see_faults(p, l);
    if (l)
        sock_tell(l, p);
    if (now < p->retry_ns) {
        uv_timer_start(t, sync_pod, (p->retry_ns - now) / NS_PER_MS + 1, 0);
        return;
    }
    if (!p->reported && now < p->seen_ns + RECONNECT_GRACE_NS) {
        uv_timer_start(t, sync_pod, (p->seen_ns + RECONNECT_GRACE_NS - now) / NS_PER_MS + 1, 0);
        return;
    }
    if (!p->patching_status)
        write_condition(p);
    if (!p->patching_meta)
        write_annotations(p);
}

void pods_poke(struct apod *p)
{
    uv_timer_start(p->wake, sync_pod, 0, 0);
}

static void timer_closed(uv_handle_t *h)
{
    free(h);
}

static void pod_free(struct apod *p)
{
    DL_DELETE(p->a->pods, p);
    uv_close((uv_handle_t *)p->wake, timer_closed);
    json_decref(p->obj);
    json_decref(p->reported);
    free(p->fault);
    free(p->lead);
    free(p->ns);
    free(p->name);
    free(p->uid);
    free(p);
}

static struct apod *pod_new(struct agent *a, const json_t *obj)
{
    struct apod *p = xcalloc(1, sizeof *p);
    p->a = a;
    p->ns = xstrdup(json_str_at(obj, "metadata.namespace", "default"));
    p->name = xstrdup(json_str_at(obj, "metadata.name", ""));
    p->uid = xstrdup(json_str_at(obj, "metadata.uid", ""));
    p->seen_ns = clock_mono_ns();
    p->wake = xcalloc(1, sizeof *p->wake);
    uv_timer_init(&a->loop, p->wake);
    p->wake->data = p;
    struct launcher *l = sock_launcher(a, p->uid);
    p->reported = l && l->status ? json_incref(l->status) : NULL;
    DL_APPEND(a->pods, p);
    return p;
}

static void on_event(enum kube_event_type type, json_t *obj, void *ctx)
{
    struct agent *a = ctx;
    struct apod *p = pods_find(a, json_str_at(obj, "metadata.uid", ""));
    if (type == KUBE_DELETED) {
        if (p)
            pod_free(p);
        return;
    }
    if (!p && !json_object_get(json_at(obj, "metadata.labels"), LABEL_ROLE))
        return;
    if (!p)
        p = pod_new(a, obj);
    lead_asked(p, obj);
    json_decref(p->obj);
    p->obj = json_incref(obj);
    pods_poke(p);
}

static void on_error(const struct err *e, void *ctx)
{
    (void)ctx;
    log_warn("watch of pods interrupted; it goes on", LERR(e));
}

int pods_start(struct agent *a, struct err *e)
{
    CLEANUP(free_charp) char *selector = xasprintf("spec.nodeName=%s", a->opt.node_name);
    struct kube_watch_config c = {.kind = &kube_pods,
                                  .field_selector = selector,
                                  .on_event = on_event,
                                  .on_error = on_error,
                                  .ctx = a,
                                  .backoff_min_ms = 200,
                                  .backoff_max_ms = 5000};
    return kube_watch_start(a->api, &c, &a->watch, e);
}
