#include "local/kubelet_int.h"

#include "local/kubelet_records.h"

#include <dirent.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static void timer_closed(uv_handle_t *h)
{
    free(h);
}

uv_timer_t *kubelet_timer(struct kubelet *k, void *data)
{
    uv_timer_t *t = xcalloc(1, sizeof *t);
    uv_timer_init(k->cfg.loop, t);
    t->data = data;
    return t;
}

void kubelet_timer_free(uv_timer_t *t)
{
    if (!t)
        return;
    uv_timer_stop(t);
    uv_close((uv_handle_t *)t, timer_closed);
}

struct kpod *kubelet_pod(struct kubelet *k, const char *uid)
{
    struct kpod *p;
    DL_FOREACH (k->pods, p) {
        if (strcmp(p->uid, uid) == 0)
            return p;
    }
    return NULL;
}

/* The pod that the API shows under this name: for a static pod that is its mirror's name. */
struct kpod *kubelet_pod_named(struct kubelet *k, const char *ns, const char *name)
{
    struct kpod *p, *found = NULL;
    DL_FOREACH (k->pods, p) {
        CLEANUP(free_charp)
        char *shown = p->static_file ? xasprintf("%s-%s", p->name, k->node) : xstrdup(p->name);
        if (strcmp(p->ns, ns) == 0 && strcmp(shown, name) == 0 && (!found || found->terminating))
            found = p;
    }
    return found;
}

void kubelet_event(struct kpod *p, bool warning, const char *reason, const char *fmt, ...)
{
    char note[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(note, sizeof note, fmt, ap);
    va_end(ap);
    if (!p->k->events || (p->static_file && !p->mirror))
        return;
    const json_t *o = p->static_file ? p->mirror : p->obj;
    struct kube_regarding about = {.kind = &kube_pods,
                                   .namespace = p->ns,
                                   .name = json_str_at(o, "metadata.name", p->name),
                                   .uid = json_str_at(o, "metadata.uid", p->uid)};
    kube_event(p->k->events, &about, warning ? "Warning" : "Normal", reason, reason, note);
}

static bool bound_here(struct kubelet *k, const json_t *obj)
{
    return strcmp(json_str_at(obj, "spec.nodeName", ""), k->node) == 0;
}

static struct kpod *mirrored(struct kubelet *k, const json_t *obj)
{
    const char *hash =
        json_string_value(json_object_get(json_at(obj, "metadata.annotations"), MIRROR_ANNOTATION));
    return hash ? kubelet_pod(k, hash) : NULL;
}

static bool is_mirror(const json_t *obj)
{
    return json_object_get(json_at(obj, "metadata.annotations"), MIRROR_ANNOTATION) != NULL;
}

static bool is_over(const json_t *obj)
{
    const char *phase = json_str_at(obj, "status.phase", "");
    return strcmp(phase, "Succeeded") == 0 || strcmp(phase, "Failed") == 0;
}

static void on_deleted(struct kubelet *k, json_t *obj)
{
    const char *uid = json_str_at(obj, "metadata.uid", "");
    struct kpod *p;
    DL_FOREACH (k->pods, p) {
        if (p->mirror && strcmp(json_str_at(p->mirror, "metadata.uid", ""), uid) == 0) {
            json_decref(p->mirror); /* somebody deleted a mirror: it is made again */
            p->mirror = NULL;
            json_decref(p->sent);
            p->sent = NULL;
            kpod_poke(p);
            return;
        }
    }
    p = kubelet_pod(k, uid);
    if (p) {
        p->gone = true;
        kpod_poke(p);
    }
}

static void delete_done(const struct kube_result *r, void *ctx)
{
    (void)r, (void)ctx;
}

/* A pod that is being deleted and that nothing of runs here (a mirror without a manifest, or never
 * started). */
static void delete_leftover(struct kubelet *k, const json_t *obj)
{
    struct kube_call call = {.verb = KUBE_DELETE,
                             .kind = &kube_pods,
                             .force_now = true,
                             .namespace = json_str_at(obj, "metadata.namespace", "default"),
                             .name = json_str_at(obj, "metadata.name", ""),
                             .uid = json_str_at(obj, "metadata.uid", ""),
                             .done = delete_done,
                             .ctx = k};
    struct err e;
    if (kube_start(k->api, &call, &e))
        log_warn("can't delete a pod's object", LERR(&e));
}

static void on_mirror(struct kubelet *k, json_t *obj)
{
    struct kpod *p = mirrored(k, obj);
    if (!p) {
        if (k->static_stamp)
            delete_leftover(k, obj);
        return;
    }
    if (json_at(obj, "metadata.deletionTimestamp"))
        delete_leftover(k, obj);
    json_decref(p->mirror);
    p->mirror = json_incref(obj);
    kpod_poke(p);
}

static void on_event(enum kube_event_type type, json_t *obj, void *ctx)
{
    struct kubelet *k = ctx;
    node_forget(k, obj);
    if (type == KUBE_DELETED) {
        on_deleted(k, obj);
        return;
    }
    const char *node = json_str_at(obj, "spec.nodeName", "");
    if (!*node) {
        if (!k->draining)
            node_bind(k, obj);
        return;
    }
    if (!bound_here(k, obj))
        return;
    if (is_mirror(obj)) {
        on_mirror(k, obj);
        return;
    }
    struct kpod *p = kubelet_pod(k, json_str_at(obj, "metadata.uid", ""));
    if (p) {
        kpod_update(p, obj);
        return;
    }
    if (is_over(obj) || k->draining) {
        if (json_at(obj, "metadata.deletionTimestamp"))
            delete_leftover(k, obj);
        return;
    }
    p = kpod_new(k, obj, json_str_at(obj, "metadata.uid", ""), NULL);
    p->listed = true;
    log_info("pod", LS("pod", p->name), LS("namespace", p->ns), LS("ip", p->ip));
}

/* The list is complete: what is on record here and not in it was deleted while nobody watched. */
static void on_synced(void *ctx)
{
    struct kubelet *k = ctx;
    struct kpod *p;
    k->synced = true;
    DL_FOREACH (k->pods, p) {
        if (!p->static_file && !p->listed)
            p->gone = true;
        kpod_poke(p);
    }
}

static void on_watch_error(const struct err *e, void *ctx)
{
    (void)ctx;
    log_warn("watch of pods interrupted; it goes on", LERR(e));
}

/* Pods on record, before the API has answered: their processes are adopted at once. */
static void adopt_records(struct kubelet *k)
{
    CLEANUP(free_charp) char *root = xasprintf("%s/pods", k->data_dir);
    DIR *d = opendir(root);
    struct dirent *ent;
    size_t n = 0;
    while (d && (ent = readdir(d))) {
        if (ent->d_name[0] == '.')
            continue;
        CLEANUP(free_charp) char *dir = xasprintf("%s/%s", root, ent->d_name);
        CLEANUP(free_charp) char *path = xasprintf("%s/pod.json", dir);
        CLEANUP(json_decrefp) json_t *record = json_parse_file(path, 4 << 20, NULL);
        json_t *obj = json_object_get(record, "object");
        if (!obj) { /* killed while the folder was made: nothing has run yet */
            dir_remove(dir);
            continue;
        }
        kpod_new(k, obj, ent->d_name, json_str_at(record, "static", NULL));
        n++;
    }
    if (d)
        closedir(d);
    if (n)
        log_info("pods adopted from the records", LI("pods", n));
}

/* 127.64–191.x are the pod IPs of all instances; which two bytes are this one's follows from its
 * name. */
static void name_instance(struct kubelet *k)
{
    char text[INSTANCE_MAX];
    uint64_t h = records_instance_number(k->data_dir);
    records_instance(k->data_dir, text);
    k->instance = xstrdup(text);
    k->subnet = (64 + (unsigned)(h >> 40 & 127)) << 8 | (unsigned)(h >> 52 & 255);
}

static char *own_folder(void)
{
    char path[4096];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    path[n > 0 ? n : 0] = 0;
    char *slash = strrchr(path, '/');
    if (slash)
        *slash = 0;
    return xstrdup(path);
}

static char *default_models(void)
{
    const char *home = getenv("HOME");
    return xasprintf("%s/.cache/baton/models", home ? home : "");
}

static char *real_folder(const char *path)
{
    char *real = realpath(path, NULL);
    return real ? real : xstrdup(path);
}

static int make_folders(struct kubelet *k, struct err *e)
{
    static const char *const names[] = {"pods", "run"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        CLEANUP(free_charp) char *dir = xasprintf("%s/%s", k->cfg.data_dir, names[i]);
        if (dir_make(dir, 0700, e))
            return -e->code;
    }
    return dir_make(k->static_dir, 0700, e);
}

static int open_api(struct kubelet *k, struct err *e)
{
    struct kube_config kc;
    int r = kube_config_load(k->kubeconfig, &kc, e);
    if (r)
        return r;
    r = kube_client_new(k->cfg.loop, &kc, "baton-kubelet", &k->api, e);
    kube_config_fini(&kc);
    if (r)
        return r;
    struct http_client_config hc = {
        .loop = k->cfg.loop, .user_agent = "kube-probe/baton", .insecure_skip_verify = true};
    if ((r = http_client_new(&hc, &k->http, e)) ||
        (r = kube_events_new(k->api, "kubelet", k->node, &k->events, e)))
        return r;
    struct kube_watch_config wc = {.kind = &kube_pods,
                                   .on_event = on_event,
                                   .on_synced = on_synced,
                                   .on_error = on_watch_error,
                                   .ctx = k,
                                   .backoff_min_ms = 100,
                                   .backoff_max_ms = 2000};
    return kube_watch_start(k->api, &wc, &k->pods_watch, e);
}

int kubelet_start(const struct kubelet_config *c, struct kubelet **out, struct err *e)
{
    struct kubelet *k = xcalloc(1, sizeof *k);
    k->cfg = *c;
    k->unbound = json_object();
    k->cfg.backoff_ms = c->backoff_ms ? c->backoff_ms : 1000;
    k->cfg.log_bytes = c->log_bytes ? c->log_bytes : 10 << 20;
    k->node = xstrdup(c->node_name ? c->node_name : "local");
    k->bin_dir = c->bin_dir ? real_folder(c->bin_dir) : own_folder();
    k->models_dir = c->models_dir ? real_folder(c->models_dir) : default_models();
    k->static_dir = c->static_dir ? xstrdup(c->static_dir) : xasprintf("%s/static", c->data_dir);
    k->kubeconfig = real_folder(c->kubeconfig);
    int r = make_folders(k, e);
    k->data_dir = real_folder(c->data_dir);
    name_instance(k);
    if (!r) {
        adopt_records(k);
        r = open_api(k, e);
    }
    if (r) {
        kubelet_free(k);
        return r;
    }
    node_start(k);
    static_start(k);
    *out = k;
    return 0;
}

void kubelet_check_drained(struct kubelet *k)
{
    struct kpod *p;
    if (!k->draining || !k->drain_done)
        return;
    DL_FOREACH (k->pods, p) {
        if (p->sending && clock_mono_ns() < k->drain_deadline_ns)
            return; /* the last word on it is on its way; the answer pokes the pod */
        for (size_t i = 0; i < p->n_ctrs; i++) {
            if (kctr_live(p->ctrs[i]))
                return;
        }
    }
    void (*done)(void *) = k->drain_done;
    k->drain_done = NULL;
    done(k->drain_ctx);
}

static void drain_tick(uv_timer_t *t)
{
    kubelet_check_drained(t->data);
}

void kubelet_drain(struct kubelet *k, unsigned max_grace_ms, void (*done)(void *ctx), void *ctx)
{
    struct kpod *p;
    k->draining = true;
    k->drain_done = done;
    k->drain_ctx = ctx;
    k->drain_deadline_ns = clock_mono_ns() + (max_grace_ms + 1000) * NS_PER_MS;
    DL_FOREACH (k->pods, p) {
        int64_t grace = kpod_grace_ms(p);
        uint64_t at =
            clock_mono_ns() +
            (uint64_t)(grace < (int64_t)max_grace_ms ? grace : (int64_t)max_grace_ms) * NS_PER_MS;
        if (!p->terminating || at < p->deadline_ns)
            p->deadline_ns = at;
        kpod_poke(p);
    }
    k->retry_timer = kubelet_timer(k, k);
    uv_timer_start(k->retry_timer, drain_tick, 20, 50);
}

void kubelet_free(struct kubelet *k)
{
    if (k->pods_watch)
        kube_watch_stop(k->pods_watch);
    if (k->events)
        kube_events_free(k->events);
    while (k->pods)
        kpod_free(k->pods, false);
    if (k->api)
        kube_client_free(k->api);
    if (k->http)
        http_client_free(k->http);
    kubelet_timer_free(k->node_timer);
    kubelet_timer_free(k->static_timer);
    kubelet_timer_free(k->retry_timer);
    json_decref(k->unbound);
    free(k->data_dir);
    free(k->node);
    free(k->bin_dir);
    free(k->models_dir);
    free(k->static_dir);
    free(k->kubeconfig);
    free(k->instance);
    free(k->node_uid);
    free(k);
}

int kubelet_state(struct kubelet *k, struct buf *out)
{
    struct kpod *p;
    int r = buf_printf(out, "\"node\":\"%s\",\"synced\":%s,\"pods\":[", k->node,
                       k->synced ? "true" : "false");
    DL_FOREACH (k->pods, p) {
        r = r ? r
              : buf_printf(out, "%s{\"name\":\"%s\",\"ip\":\"%s\",\"containers\":[",
                           p->prev->next ? "," : "", p->name, p->ip);
        for (size_t i = 0; i < p->n_ctrs; i++)
            r = r ? r
                  : buf_printf(out, "%s{\"name\":\"%s\",\"state\":%d,\"pid\":%d,\"restarts\":%d}",
                               i ? "," : "", p->ctrs[i]->name, (int)p->ctrs[i]->state,
                               (int)p->ctrs[i]->main.pid, p->ctrs[i]->restarts);
        r = r ? r : buf_cstr(out, "]}");
    }
    return r ? r : buf_cstr(out, "]");
}
