#include "local/kubelet_int.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define GONE_GRACE_MS 2000

static const struct kube_kind kind_configmaps = {"v1", "ConfigMap", "configmaps", true, NULL};

const char *kpod_restart_policy(const struct kpod *p)
{
    return json_str_at(p->obj, "spec.restartPolicy", "Always");
}

int64_t kpod_grace_ms(const struct kpod *p)
{
    int64_t s = json_int_at(p->obj, "metadata.deletionGracePeriodSeconds",
                            json_int_at(p->obj, "spec.terminationGracePeriodSeconds", 30));
    return s < 0 ? 30000 : s > 86400 ? 86400000 : s * 1000;
}

/* Should this container run again after its end? */
static bool restarts_after(const struct kctr *c)
{
    const char *policy = kpod_restart_policy(c->pod);
    bool failed = json_int_at(c->exit, "code", 0) != 0;
    if (c->sidecar)
        return true;
    if (strcmp(policy, "Never") == 0)
        return false;
    if (c->init || strcmp(policy, "OnFailure") == 0)
        return failed;
    return true;
}

bool kpod_finished(const struct kpod *p, bool *failed)
{
    bool any_failed = false, all = true;
    for (size_t i = 0; i < p->n_ctrs; i++) {
        const struct kctr *c = p->ctrs[i];
        if (c->sidecar)
            continue;
        bool done = c->state == CTR_EXITED && !restarts_after(c);
        bool bad = done && json_int_at(c->exit, "code", 0) != 0;
        any_failed |= bad;
        if (c->init && bad) { /* an init container that failed for good ends the pod */
            *failed = true;
            return true;
        }
        all &= done;
    }
    *failed = any_failed;
    return all && p->n_ctrs > 0;
}

static void wake(uv_timer_t *t);

void kpod_poke(struct kpod *p)
{
    uv_timer_start(p->wake, wake, 0, 0);
}

void kpod_poke_in(struct kpod *p, uint64_t ms)
{
    if (!uv_is_active((uv_handle_t *)p->wake) || uv_timer_get_due_in(p->wake) > ms)
        uv_timer_start(p->wake, wake, ms, 0);
}

static void save_pod(struct kpod *p)
{
    struct err e;
    CLEANUP(free_charp) char *path = xasprintf("%s/pod.json", p->dir);
    CLEANUP(json_decrefp)
    json_t *o =
        json_pack("{s:s, s:s, s:s, s:s, s:I, s:O}", "uid", p->uid, "ns", p->ns, "name", p->name,
                  "ip", p->ip, "started", (json_int_t)p->started_wall_ns, "object", p->obj);
    if (p->static_file)
        json_object_set_new(o, "static", json_string(p->static_file));
    int r = dir_make(p->dir, 0700, &e);
    if (!r)
        r = file_replace_json(path, o);
    if (r)
        log_error("can't record a pod", LS("path", path), LS("error", strerror(-r)));
}

static bool ip_used(struct kubelet *k, const char *ip)
{
    struct kpod *p;
    DL_FOREACH (k->pods, p) {
        if (p->ip && strcmp(p->ip, ip) == 0)
            return true;
    }
    return false;
}

/* 127.a.b.n: a.b belong to this instance (kubelet.c), so that several can live on one machine. */
static char *new_ip(struct kubelet *k)
{
    for (unsigned i = 0; i < 250 * 200; i++) {
        unsigned net = (k->subnet + i / 250) & 0xffff;
        char *ip = xasprintf("127.%u.%u.%u", net >> 8 ? net >> 8 : 1, net & 0xff, i % 250 + 2);
        if (!ip_used(k, ip))
            return ip;
        free(ip);
    }
    return xstrdup("127.0.0.1");
}

static void add_containers(struct kpod *p, const char *member, bool init)
{
    size_t i;
    json_t *spec;
    json_array_foreach (json_at(p->obj, member), i, spec) {
        if (p->n_ctrs < KUBELET_MAX_CONTAINERS)
            p->ctrs[p->n_ctrs++] = kctr_new(p, spec, init);
    }
}

struct kpod *kpod_new(struct kubelet *k, json_t *obj, const char *uid, const char *static_file)
{
    struct kpod *p = xcalloc(1, sizeof *p);
    p->k = k;
    p->uid = xstrdup(uid);
    p->static_file = static_file ? xstrdup(static_file) : NULL;
    p->ns = xstrdup(json_str_at(obj, "metadata.namespace", "default"));
    p->name = xstrdup(json_str_at(obj, "metadata.name", ""));
    p->dir = xasprintf("%s/pods/%s", k->data_dir, uid);
    p->obj = json_incref(obj);
    p->refs = json_object();
    p->wake = kubelet_timer(k, p);
    add_containers(p, "spec.initContainers", true);
    add_containers(p, "spec.containers", false);
    CLEANUP(free_charp) char *path = xasprintf("%s/pod.json", p->dir);
    CLEANUP(json_decrefp) json_t *record = json_parse_file(path, 4 << 20, NULL);
    const char *ip = json_str_at(record, "ip", NULL);
    p->started_wall_ns = (uint64_t)json_int_at(record, "started", (json_int_t)clock_wall_ns());
    p->ip = ip && !ip_used(k, ip) ? xstrdup(ip) : new_ip(k);
    DL_APPEND(k->pods, p);
    for (size_t i = 0; record && i < p->n_ctrs; i++)
        kctr_adopt(p->ctrs[i]);
    save_pod(p);
    kpod_poke(p);
    return p;
}

void kpod_free(struct kpod *p, bool remove_files)
{
    DL_DELETE(p->k->pods, p);
    if (remove_files)
        node_retry(p->k); /* its memory may be what another waits for */
    if (remove_files) {
        kvol_teardown(p);
        dir_remove(p->dir);
    }
    for (size_t i = 0; i < p->n_ctrs; i++)
        kctr_free(p->ctrs[i]);
    kubelet_timer_free(p->wake);
    json_decref(p->obj);
    json_decref(p->mirror);
    json_decref(p->refs);
    json_decref(p->sent);
    json_decref(p->sending);
    free(p->refs_error);
    free(p->end_message);
    free(p->static_file);
    free(p->uid);
    free(p->ns);
    free(p->name);
    free(p->dir);
    free(p->ip);
    free(p);
}

void kpod_update(struct kpod *p, json_t *obj)
{
    bool was_deleted = json_at(p->obj, "metadata.deletionTimestamp") != NULL;
    json_decref(p->obj);
    p->obj = json_incref(obj);
    p->listed = true;
    if (!was_deleted && json_at(obj, "metadata.deletionTimestamp"))
        save_pod(p);
    kpod_poke(p);
}

void kpod_terminate(struct kpod *p, int64_t grace_ms, const char *reason, const char *message)
{
    uint64_t at = clock_mono_ns() + (uint64_t)grace_ms * NS_PER_MS;
    if (!p->terminating || at < p->deadline_ns)
        p->deadline_ns = at;
    p->terminating = true;
    if (reason && !p->end_reason) {
        p->end_reason = reason;
        p->end_message = xstrdup(message);
    }
    kpod_poke(p);
}

/* What is left of the grace that the API server wrote, so that a restarted kubelet keeps the
 * deadline. */
static int64_t deletion_grace_left(const struct kpod *p)
{
    uint64_t at, now = clock_wall_ns();
    int64_t grace = kpod_grace_ms(p);
    const char *stamp = json_str_at(p->obj, "metadata.deletionTimestamp", "");
    if (clock_parse_rfc3339(stamp, &at) == 0 && at > now &&
        (int64_t)((at - now) / NS_PER_MS) < grace)
        return (int64_t)((at - now) / NS_PER_MS);
    return clock_parse_rfc3339(stamp, &at) == 0 && at <= now ? 0 : grace;
}

static void deleted(const struct kube_result *r, void *ctx)
{
    struct kubelet *k = ((void **)ctx)[0];
    CLEANUP(free_charp) char *uid = ((void **)ctx)[1];
    free(ctx);
    struct kpod *p = kubelet_pod(k, uid);
    if (!p)
        return;
    if (r->status == 404 || r->status == 409 || (r->status >= 200 && r->status < 300)) {
        p->gone = true;
        kpod_poke(p);
        return;
    }
    p->delete_asked = false;
    kpod_poke_in(p, 1000);
}

static void delete_object(struct kpod *p)
{
    if (p->delete_asked)
        return;
    void **ctx = xcalloc(2, sizeof *ctx);
    ctx[0] = p->k;
    ctx[1] = xstrdup(p->uid);
    struct kube_call call = {.verb = KUBE_DELETE,
                             .kind = &kube_pods,
                             .namespace = p->ns,
                             .name = p->name,
                             .uid = p->uid,
                             .force_now = true,
                             .done = deleted,
                             .ctx = ctx};
    struct err e;
    p->delete_asked = kube_start(p->k->api, &call, &e) == 0;
    if (!p->delete_asked) {
        log_error("can't delete a pod's object", LS("pod", p->name), LERR(&e));
        free(ctx[1]);
        free(ctx);
    }
}

/* True while something runs. */
static bool stop_all(struct kpod *p)
{
    uint64_t now = clock_mono_ns();
    int64_t left = p->deadline_ns > now ? (int64_t)((p->deadline_ns - now) / NS_PER_MS) : 0;
    bool live = false, regular = false;
    for (size_t i = 0; i < p->n_ctrs; i++)
        regular |= !p->ctrs[i]->sidecar && kctr_live(p->ctrs[i]);
    for (size_t i = 0; i < p->n_ctrs; i++) {
        struct kctr *c = p->ctrs[i];
        if (!kctr_live(c))
            continue;
        live = true;
        if (c->sidecar && regular && left > 0) /* sidecars end last */
            continue;
        if (!c->stopping || left <= 0)
            kctr_stop(c, left);
    }
    if (live)
        kpod_poke_in(p, left > 0 ? (uint64_t)left + 1 : 200);
    return live;
}

static void sync_terminating(struct kpod *p)
{
    bool live = stop_all(p);
    if (p->gone || p->static_file) { /* a static pod ends with its manifest */
        if (!live)
            kpod_free(p, true);
        return;
    }
    kstatus_sync(p);
    bool deleting = json_at(p->obj, "metadata.deletionTimestamp") != NULL;
    if (!live && deleting && !p->sending)
        delete_object(p);
}

struct ref_call {
    struct kubelet *k;
    char *uid, *key;
};

static void ref_done(const struct kube_result *r, void *ctx)
{
    struct ref_call *rc = ctx;
    struct kpod *p = kubelet_pod(rc->k, rc->uid);
    if (p) {
        bool found = r->status >= 200 && r->status < 300 && r->object;
        json_object_set_new(p->refs, rc->key, found ? json_incref(r->object) : json_null());
        if (!found && r->status != 404) {
            free(p->refs_error);
            p->refs_error = xasprintf("can't read %s: %s", rc->key, r->err.msg);
        }
        if (--p->refs_open == 0) {
            p->refs_state = p->refs_error ? REFS_NONE : REFS_READY;
            p->refs_retry_ns = p->refs_error ? clock_mono_ns() + NS_PER_S : 0;
            kpod_poke(p);
        }
    }
    free(rc->uid);
    free(rc->key);
    free(rc);
}

static void ask_ref(struct kpod *p, const char *kind, const char *name)
{
    CLEANUP(free_charp) char *key = xasprintf("%s/%s", kind, name);
    if (json_object_get(p->refs, key))
        return;
    struct ref_call *rc = xcalloc(1, sizeof *rc);
    *rc = (struct ref_call){p->k, xstrdup(p->uid), xstrdup(key)};
    struct kube_call call = {.verb = KUBE_GET,
                             .namespace = p->ns,
                             .name = name,
                             .done = ref_done,
                             .ctx = rc,
                             .kind =
                                 strcmp(kind, "secret") == 0 ? &kube_secrets : &kind_configmaps};
    struct err e;
    json_object_set_new(p->refs, key, json_null());
    if (kube_start(p->k->api, &call, &e) == 0) {
        p->refs_open++;
        return;
    }
    free(rc->uid);
    free(rc->key);
    free(rc);
}

/* True once every Secret and ConfigMap that the pod names has been looked up. */
static bool gather_refs(struct kpod *p)
{
    if (p->refs_state == REFS_READY)
        return true;
    if (p->refs_state == REFS_ASKING)
        return false;
    if (clock_mono_ns() < p->refs_retry_ns) {
        kpod_poke_in(p, 1000);
        return false;
    }
    free(p->refs_error);
    p->refs_error = NULL;
    p->ready_to_run = false;
    json_object_clear(p->refs);
    p->refs_state = REFS_ASKING;
    kvol_each_ref(p, ask_ref);
    if (p->refs_open == 0)
        p->refs_state = REFS_READY;
    return p->refs_state == REFS_READY;
}

static bool prepare(struct kpod *p)
{
    struct err e = {0};
    if (!gather_refs(p))
        return false;
    if (p->ready_to_run)
        return true;
    if (kvol_setup(p, &e)) {
        kubelet_event(p, true, "FailedMount", "%s", e.msg);
        for (size_t i = 0; i < p->n_ctrs; i++) {
            if (p->ctrs[i]->state == CTR_WAITING)
                kctr_wait(p->ctrs[i], "ContainerCreating", "%s", e.msg);
        }
        p->refs_state = REFS_NONE;
        p->refs_retry_ns = clock_mono_ns() + 2 * NS_PER_S;
        kpod_poke_in(p, 2000);
        return false;
    }
    p->ready_to_run = true;
    return true;
}

static bool needs_start(const struct kctr *c)
{
    return c->state == CTR_WAITING || (c->state == CTR_EXITED && restarts_after(c));
}

/* Starts a container that should run and doesn't, unless its back-off says later. */
static void maybe_start(struct kctr *c)
{
    struct kpod *p = c->pod;
    uint64_t now = clock_mono_ns();
    if (kctr_live(c)) {
        if (c->stopping && now >= c->kill_at_ns)
            kctr_kill(c);
        if (c->stopping)
            kpod_poke_in(p, c->kill_at_ns > now ? (c->kill_at_ns - now) / NS_PER_MS + 1 : 1000);
        return;
    }
    if (!needs_start(c))
        return;
    if (now < c->next_start_ns) {
        uint64_t left_ms = (c->next_start_ns - now) / NS_PER_MS + 1;
        if (c->state == CTR_EXITED) {
            uint64_t of_ms = c->backoff_ms / 2;
            kctr_wait(c, "CrashLoopBackOff",
                      "back-off %llu.%llus restarting failed container=%s pod=%s_%s",
                      (unsigned long long)(of_ms / 1000), (unsigned long long)(of_ms % 1000 / 100),
                      c->name, p->name, p->ns);
            kubelet_event(p, true, "BackOff",
                          "Back-off restarting failed container %s in pod %s_%s", c->name, p->name,
                          p->ns);
        }
        kpod_poke_in(p, left_ms);
        return;
    }
    if (prepare(p))
        kctr_start(c);
}

static void sync_containers(struct kpod *p)
{
    for (size_t i = 0; i < p->n_ctrs; i++) {
        struct kctr *c = p->ctrs[i];
        maybe_start(c);
        if (!c->init)
            continue;
        bool passed = c->sidecar ? c->state == CTR_RUNNING && c->started
                                 : c->state == CTR_EXITED && !restarts_after(c) &&
                                       json_int_at(c->exit, "code", 0) == 0;
        if (!passed)
            return; /* the next ones wait for it */
    }
}

static void check_deadline(struct kpod *p)
{
    int64_t s = json_int_at(p->obj, "spec.activeDeadlineSeconds", 0);
    if (s <= 0)
        return;
    uint64_t end = p->started_wall_ns + (uint64_t)s * NS_PER_S, now = clock_wall_ns();
    if (now < end)
        kpod_poke_in(p, (end - now) / NS_PER_MS + 1);
    else
        kpod_terminate(p, kpod_grace_ms(p), "DeadlineExceeded",
                       "Pod was active on the node longer than the specified deadline");
}

static void kpod_sync(struct kpod *p)
{
    struct kubelet *k = p->k;
    bool failed;
    if (p->gone && !p->terminating)
        kpod_terminate(p, GONE_GRACE_MS, NULL, NULL);
    else if (json_at(p->obj, "metadata.deletionTimestamp") && !p->terminating)
        kpod_terminate(p, deletion_grace_left(p), NULL, NULL);
    if (k->draining) {
        bool live = stop_all(p);
        kstatus_sync(p);
        if (!live)
            kubelet_check_drained(k);
        return;
    }
    if (!p->terminating && !kpod_finished(p, &failed))
        check_deadline(p);
    if (p->terminating) {
        sync_terminating(p);
        return;
    }
    if (p->static_file)
        static_ensure_mirror(p);
    if (kpod_finished(p, &failed)) {
        for (size_t i = 0; i < p->n_ctrs; i++)
            kctr_stop(p->ctrs[i], kpod_grace_ms(p)); /* sidecars */
    } else if (k->synced || p->static_file) {
        sync_containers(p);
    }
    kstatus_sync(p);
}

static void wake(uv_timer_t *t)
{
    kpod_sync(t->data);
}
