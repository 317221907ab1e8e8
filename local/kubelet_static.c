/* Static pods: one manifest (JSON or YAML) a file in static_dir. They run whether the API answers
 * or not; a mirror pod,
 * "<name>-<node>", shows them in the API. A changed manifest is another pod: the old one ends, the
 * new one starts. */
#include "local/kubelet_int.h"

#include "lib/kube/yaml.h"

#include <dirent.h>
#include <openssl/sha.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#define SCAN_MS      500
#define MANIFEST_MAX (1 << 20)

/* A uid that follows from the file's name and text, in the form of a UUID. */
static char *static_uid(const char *file, const json_t *obj)
{
    struct buf b;
    uint8_t sum[SHA256_DIGEST_LENGTH];
    char hex[65];
    buf_init(&b, MANIFEST_MAX * 2);
    if (buf_printf(&b, "%s\n", file) || json_write(obj, true, &b))
        buf_reset(&b);
    SHA256((const unsigned char *)b.data, b.n, sum);
    buf_fini(&b);
    str_to_hex(sum, 32, hex);
    return xasprintf("%.8s-%.4s-%.4s-%.4s-%.12s", hex, hex + 8, hex + 12, hex + 16, hex + 20);
}

static struct kpod *by_file(struct kubelet *k, const char *file)
{
    struct kpod *p;
    DL_FOREACH (k->pods, p) {
        if (p->static_file && !p->terminating && strcmp(p->static_file, file) == 0)
            return p;
    }
    return NULL;
}

static void mirror_deleted(const struct kube_result *r, void *ctx)
{
    (void)r, (void)ctx;
}

static void delete_mirror(struct kubelet *k, const char *ns, const char *name)
{
    struct kube_call call = {.verb = KUBE_DELETE,
                             .kind = &kube_pods,
                             .namespace = ns,
                             .name = name,
                             .force_now = true,
                             .done = mirror_deleted,
                             .ctx = k};
    struct err e;
    if (kube_start(k->api, &call, &e))
        log_warn("can't delete a mirror pod", LS("pod", name), LERR(&e));
}

static void load(struct kubelet *k, const char *file)
{
    struct err e;
    CLEANUP(free_charp) char *path = xasprintf("%s/%s", k->static_dir, file);
    CLEANUP(json_decrefp) json_t *obj = yaml_parse_file(path, MANIFEST_MAX, &e);
    if (!obj || !json_at(obj, "spec.containers") || !json_at(obj, "metadata.name")) {
        log_error("a static pod's manifest is not a pod", LS("file", path),
                  LS("error", obj ? "metadata.name or spec.containers is missing" : e.msg));
        return;
    }
    if (!json_at(obj, "metadata.namespace"))
        json_object_set_new(json_at(obj, "metadata"), "namespace", json_string("default"));
    CLEANUP(free_charp) char *uid = static_uid(file, obj);
    struct kpod *p = by_file(k, file);
    if (p && strcmp(p->uid, uid) == 0)
        return;
    if (p) {
        CLEANUP(free_charp) char *shown = xasprintf("%s-%s", p->name, k->node);
        delete_mirror(k, p->ns, shown);
        kpod_terminate(p, kpod_grace_ms(p), NULL, NULL);
    }
    if (kubelet_pod(k, uid))
        return;
    p = kpod_new(k, obj, uid, file);
    log_info("static pod", LS("pod", p->name), LS("file", file));
}

static bool is_manifest(const char *name)
{
    struct str s = str_c(name);
    return name[0] != '.' &&
           (str_ends(s, STR(".json")) || str_ends(s, STR(".yaml")) || str_ends(s, STR(".yml")));
}

static void end_missing(struct kubelet *k)
{
    struct kpod *p;
    DL_FOREACH (k->pods, p) {
        if (!p->static_file || p->terminating)
            continue;
        CLEANUP(free_charp) char *path = xasprintf("%s/%s", k->static_dir, p->static_file);
        struct stat st;
        if (stat(path, &st) == 0)
            continue;
        log_info("static pod's manifest is gone", LS("pod", p->name));
        CLEANUP(free_charp) char *name = xasprintf("%s-%s", p->name, k->node);
        delete_mirror(k, p->ns, name);
        kpod_terminate(p, kpod_grace_ms(p), NULL, NULL);
    }
}

/* Names, sizes and times of the manifests: what has not changed is not read again. */
static uint64_t stamp_of(struct kubelet *k)
{
    uint64_t sum = 1;
    DIR *d = opendir(k->static_dir);
    struct dirent *ent;
    while (d && (ent = readdir(d))) {
        struct stat st;
        CLEANUP(free_charp) char *path = xasprintf("%s/%s", k->static_dir, ent->d_name);
        if (!is_manifest(ent->d_name) || stat(path, &st))
            continue;
        sum += (uint64_t)st.st_ino * 31 + (uint64_t)st.st_size +
               (uint64_t)st.st_mtim.tv_sec * 1000003 + (uint64_t)st.st_mtim.tv_nsec;
    }
    if (d)
        closedir(d);
    return sum;
}

static void scan(uv_timer_t *t)
{
    struct kubelet *k = t->data;
    uint64_t stamp = stamp_of(k);
    if (k->draining || stamp == k->static_stamp)
        return;
    k->static_stamp = stamp;
    end_missing(k);
    DIR *d = opendir(k->static_dir);
    struct dirent *ent;
    while (d && (ent = readdir(d))) {
        if (is_manifest(ent->d_name))
            load(k, ent->d_name);
    }
    if (d)
        closedir(d);
}

void static_start(struct kubelet *k)
{
    k->static_timer = kubelet_timer(k, k);
    uv_timer_start(k->static_timer, scan, 0, SCAN_MS);
}

struct mirror_call {
    struct kubelet *k;
    char *uid;
};

static void mirror_free(struct mirror_call *m)
{
    free(m->uid);
    free(m);
}

static void again(struct mirror_call *m)
{
    struct kpod *p = kubelet_pod(m->k, m->uid);
    if (p) {
        p->mirror_asked = false;
        kpod_poke_in(p, 300);
    }
    mirror_free(m);
}

static void namespace_made(const struct kube_result *r, void *ctx)
{
    (void)r;
    again(ctx);
}

static void make_namespace(struct mirror_call *m, const char *ns)
{
    static const struct kube_kind kind = {"v1", "Namespace", "namespaces", false, NULL};
    CLEANUP(json_decrefp) json_t *body = json_pack("{s:{s:s}}", "metadata", "name", ns);
    struct kube_call call = {.verb = KUBE_CREATE,
                             .kind = &kind,
                             .body = body,
                             .done = namespace_made,
                             .ctx = m,
                             .field_manager = KUBELET_MANAGER};
    struct err e;
    if (kube_start(m->k->api, &call, &e))
        again(m);
}

static void mirror_made(const struct kube_result *r, void *ctx)
{
    struct mirror_call *m = ctx;
    struct kpod *p = kubelet_pod(m->k, m->uid);
    if (!p || p->terminating) {
        mirror_free(m);
        return;
    }
    if (r->status == 404) { /* its namespace */
        make_namespace(m, p->ns);
        return;
    }
    if (r->err.code) { /* 409: the mirror of the manifest before is still there, or the watch is
                          about to tell of ours */
        if (r->status != 409)
            log_warn("mirror pod not made; trying again", LS("pod", p->name), LERR(&r->err));
        again(m);
        return;
    }
    p->mirror_asked = false;
    json_decref(p->mirror);
    p->mirror = json_incref(r->object);
    kpod_poke(p);
    mirror_free(m);
}

/* A mirror left by an earlier manifest (another hash) is replaced. */
static bool stale(struct kpod *p)
{
    const json_t *a = json_at(p->mirror, "metadata.annotations");
    const char *hash = json_string_value(json_object_get(a, MIRROR_ANNOTATION));
    return !hash || strcmp(hash, p->uid) != 0;
}

void static_ensure_mirror(struct kpod *p)
{
    struct kubelet *k = p->k;
    if (!k->synced || p->mirror_asked)
        return;
    CLEANUP(free_charp) char *name = xasprintf("%s-%s", p->name, k->node);
    if (p->mirror) {
        if (stale(p)) {
            json_decref(p->mirror);
            p->mirror = NULL;
            delete_mirror(k, p->ns, name);
        }
        return;
    }
    CLEANUP(json_decrefp) json_t *body = json_deep_copy(p->obj);
    json_t *meta = json_object_get(body, "metadata"), *notes = json_object_get(meta, "annotations");
    if (!notes)
        json_object_set_new(meta, "annotations", notes = json_object());
    json_object_set_new(meta, "name", json_string(name));
    json_object_set_new(notes, MIRROR_ANNOTATION, json_string(p->uid));
    json_object_set_new(notes, "kubernetes.io/config.source", json_string("file"));
    json_object_set_new(json_object_get(body, "spec"), "nodeName", json_string(k->node));
    struct mirror_call *m = xcalloc(1, sizeof *m);
    *m = (struct mirror_call){k, xstrdup(p->uid)};
    struct kube_call call = {.verb = KUBE_CREATE,
                             .kind = &kube_pods,
                             .namespace = p->ns,
                             .body = body,
                             .field_manager = KUBELET_MANAGER,
                             .done = mirror_made,
                             .ctx = m};
    struct err e;
    p->mirror_asked = kube_start(k->api, &call, &e) == 0;
    if (!p->mirror_asked)
        mirror_free(m);
}
