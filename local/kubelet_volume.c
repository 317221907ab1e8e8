#include "local/kubelet_int.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static int base64_digit(char c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

char *kref_base64(const char *text, size_t *n)
{
    size_t len = text ? strlen(text) : 0;
    char *out = xmalloc(len / 4 * 3 + 4);
    unsigned acc = 0, bits = 0;
    *n = 0;
    for (size_t i = 0; i < len && text[i] != '='; i++) {
        int d = base64_digit(text[i]);
        if (d < 0) {
            free(out);
            return NULL;
        }
        acc = acc << 6 | (unsigned)d;
        bits += 6;
        if (bits >= 8) {
            bits -= 8;
            out[(*n)++] = (char)(acc >> bits & 0xff);
        }
    }
    out[*n] = 0;
    return out;
}

typedef void (*ref_fn)(struct kpod *p, const char *kind, const char *name);

static void refs_of_container(struct kpod *p, const json_t *spec, ref_fn fn)
{
    size_t i;
    json_t *item;
    const char *name;
    json_array_foreach (json_at(spec, "env"), i, item) {
        if ((name = json_str_at(item, "valueFrom.secretKeyRef.name", NULL)))
            fn(p, "secret", name);
        if ((name = json_str_at(item, "valueFrom.configMapKeyRef.name", NULL)))
            fn(p, "configmap", name);
    }
    json_array_foreach (json_at(spec, "envFrom"), i, item) {
        if ((name = json_str_at(item, "secretRef.name", NULL)))
            fn(p, "secret", name);
        if ((name = json_str_at(item, "configMapRef.name", NULL)))
            fn(p, "configmap", name);
    }
}

void kvol_each_ref(struct kpod *p, ref_fn fn)
{
    size_t i, j;
    json_t *v, *source;
    const char *name;
    for (i = 0; i < p->n_ctrs; i++)
        refs_of_container(p, p->ctrs[i]->spec, fn);
    json_array_foreach (json_at(p->obj, "spec.volumes"), i, v) {
        if ((name = json_str_at(v, "secret.secretName", NULL)))
            fn(p, "secret", name);
        if ((name = json_str_at(v, "configMap.name", NULL)))
            fn(p, "configmap", name);
        json_array_foreach (json_at(v, "projected.sources"), j, source) {
            if ((name = json_str_at(source, "secret.name", NULL)))
                fn(p, "secret", name);
            if ((name = json_str_at(source, "configMap.name", NULL)))
                fn(p, "configmap", name);
        }
    }
}

/* A file of a volume; its path may name folders but never leave the volume. */
static int put_file(const char *dir, const char *path, struct str text, mode_t mode, struct err *e)
{
    if (!*path || *path == '/' || strstr(path, ".."))
        return err_set(e, EINVAL, "the path %s leaves its volume", path);
    CLEANUP(free_charp) char *full = xasprintf("%s/%s", dir, path);
    char *slash = strrchr(full, '/');
    *slash = 0;
    int r = dir_make(full, 0700, e);
    *slash = '/';
    if (!r && (r = file_replace(full, text, mode)))
        err_set(e, -r, "can't write %s: %s", full, strerror(-r));
    return r;
}

static int put_entry(const char *dir, const char *path, const json_t *o, const char *key,
                     const char *kind, mode_t mode, struct err *e)
{
    const char *text = json_string_value(json_object_get(json_object_get(o, "data"), key));
    const char *binary = json_string_value(json_object_get(json_object_get(o, "binaryData"), key));
    bool encoded = strcmp(kind, "secret") == 0 || (!text && binary);
    if (!text)
        text = binary;
    if (!text)
        return err_set(e, ENOENT, "the %s has no key %s", kind, key);
    size_t n = strlen(text);
    CLEANUP(free_charp) char *raw = encoded ? kref_base64(text, &n) : NULL;
    return put_file(dir, path, (struct str){raw ? raw : text, n}, mode, e);
}

/* A Secret or ConfigMap as files: the items named, else every key. */
static int put_object(struct kpod *p, const char *dir, const char *kind, const char *name,
                      const json_t *source, struct err *e)
{
    CLEANUP(free_charp) char *at = xasprintf("%s/%s", kind, name);
    const json_t *o = json_object_get(p->refs, at);
    bool optional = json_bool_at(source, "optional", false);
    mode_t mode = (mode_t)(json_int_at(source, "defaultMode", 0644) & 0777);
    if (!json_is_object(o))
        return optional ? 0 : err_set(e, ENOENT, "%s \"%s\" not found", kind, name);
    const json_t *items = json_object_get(source, "items");
    size_t i;
    json_t *item, *value;
    const char *key;
    int r = 0;
    json_array_foreach (items, i, item) {
        mode_t m = (mode_t)(json_int_at(item, "mode", mode) & 0777);
        r = put_entry(dir, json_str_at(item, "path", ""), o, json_str_at(item, "key", ""), kind, m,
                      e);
        if (r && !optional)
            return r;
    }
    if (items)
        return 0;
    for (i = 0; i < 2; i++) {
        json_object_foreach (json_object_get(o, i ? "binaryData" : "data"), key, value) {
            if ((r = put_entry(dir, key, o, key, kind, mode, e)))
                return r;
        }
    }
    return 0;
}

static int put_downward(struct kpod *p, const char *dir, const json_t *items, struct err *e)
{
    size_t i;
    json_t *item;
    json_array_foreach (items, i, item) {
        const char *field = json_str_at(item, "fieldRef.fieldPath", "");
        bool labels = strcmp(field, "metadata.labels") == 0;
        CLEANUP(free_charp) char *text = NULL;
        if (labels || strcmp(field, "metadata.annotations") == 0) {
            struct buf b;
            buf_init(&b, 1 << 20);
            const char *key;
            json_t *v;
            int r = buf_cstr(&b, "");
            json_object_foreach (json_at(p->obj, field), key, v) {
                if (!r && !(r = buf_printf(&b, "%s=", key)) &&
                    !(r = buf_json_str(&b, str_c(json_string_value(v)))))
                    r = buf_cstr(&b, "\n");
            }
            text = buf_take(&b);
        } else {
            text = kenv_field(p, field);
        }
        if (!text)
            return err_set(e, EINVAL, "a downwardAPI volume names the unsupported field %s", field);
        int r = put_file(dir, json_str_at(item, "path", ""), str_c(text), 0644, e);
        if (r)
            return r;
    }
    return 0;
}

static int put_projected(struct kpod *p, const char *dir, const json_t *sources, struct err *e)
{
    size_t i;
    json_t *s, *o;
    int r = 0;
    json_array_foreach (sources, i, s) {
        if ((o = json_object_get(s, "secret")))
            r = put_object(p, dir, "secret", json_str_at(o, "name", ""), o, e);
        else if ((o = json_object_get(s, "configMap")))
            r = put_object(p, dir, "configmap", json_str_at(o, "name", ""), o, e);
        else if ((o = json_object_get(s, "downwardAPI")))
            r = put_downward(p, dir, json_object_get(o, "items"), e);
        /* serviceAccountToken: credentials come as BATON_KUBECONFIG */
        if (r)
            return r;
    }
    return 0;
}

/* What follows `root` in a path that is root or lies in it ("" or "/..."), else NULL. */
static const char *below(const char *path, const char *root)
{
    size_t n = strlen(root);
    return strncmp(path, root, n) == 0 && (path[n] == 0 || path[n] == '/') ? path + n : NULL;
}

/* Where a volume's files are. hostPath: three well-known folders are this instance's own, the rest
 * is taken as given. */
static char *volume_dir(struct kpod *p, const json_t *v)
{
    const char *host = json_str_at(v, "hostPath.path", NULL);
    const char *name = json_str_at(v, "name", "");
    if (host) {
        const char *rest = below(host, "/var/lib/baton/models");
        if (rest)
            return xasprintf("%s%s", p->k->models_dir, rest);
        rest = below(host, "/run/baton");
        if (rest)
            return xasprintf("%s/run%s", p->k->data_dir, rest);
        rest = below(host, "/dev/shm/baton"); /* a tmpfs in any case */
        return rest ? xasprintf("/dev/shm/baton-%s/node%s", p->k->instance, rest) : xstrdup(host);
    }
    if (strcmp(json_str_at(v, "emptyDir.medium", ""), "Memory") == 0)
        return xasprintf("/dev/shm/baton-%s/pods/%s/%s", p->k->instance, p->uid, name);
    return xasprintf("%s/volumes/%s", p->dir, name);
}

static int host_path(const json_t *v, const char *dir, struct err *e)
{
    const char *type = json_str_at(v, "hostPath.type", "");
    struct stat st;
    bool there = stat(dir, &st) == 0;
    if (strcmp(type, "DirectoryOrCreate") == 0 && !there)
        return dir_make(dir, 0755, e);
    if (!there && *type)
        return err_set(e, ENOENT, "hostPath type check failed: %s does not exist", dir);
    if (there && strncmp(type, "Directory", 9) == 0 && !S_ISDIR(st.st_mode))
        return err_set(e, ENOTDIR, "hostPath type check failed: %s is not a folder", dir);
    return 0;
}

static int setup_one(struct kpod *p, const json_t *v, struct err *e)
{
    CLEANUP(free_charp) char *dir = volume_dir(p, v);
    const json_t *s;
    if (json_object_get(v, "hostPath"))
        return host_path(v, dir, e);
    int r = dir_make(dir, 0700, e);
    if (r)
        return r;
    if ((s = json_object_get(v, "secret")))
        return put_object(p, dir, "secret", json_str_at(s, "secretName", ""), s, e);
    if ((s = json_object_get(v, "configMap")))
        return put_object(p, dir, "configmap", json_str_at(s, "name", ""), s, e);
    if ((s = json_object_get(v, "downwardAPI")))
        return put_downward(p, dir, json_object_get(s, "items"), e);
    if ((s = json_object_get(v, "projected")))
        return put_projected(p, dir, json_object_get(s, "sources"), e);
    if (json_object_get(v, "emptyDir"))
        return 0;
    return err_set(e, ENOTSUP,
                   "the volume %s is of a type that Baton's process mode doesn't have (it has "
                   "emptyDir, hostPath, secret, configMap, downwardAPI and projected)",
                   json_str_at(v, "name", ""));
}

int kvol_setup(struct kpod *p, struct err *e)
{
    size_t i;
    json_t *v;
    json_array_foreach (json_at(p->obj, "spec.volumes"), i, v) {
        int r = setup_one(p, v, e);
        if (r)
            return err_wrap(e, "volume \"%s\"", json_str_at(v, "name", ""));
    }
    return 0;
}

static const json_t *volume_named(struct kpod *p, const char *name)
{
    size_t i;
    json_t *v;
    json_array_foreach (json_at(p->obj, "spec.volumes"), i, v) {
        if (strcmp(json_str_at(v, "name", ""), name) == 0)
            return v;
    }
    return NULL;
}

char *kvol_map(struct kctr *c, const char *path)
{
    size_t i, best_n = 0;
    json_t *m, *best = NULL;
    json_array_foreach (json_at(c->spec, "volumeMounts"), i, m) {
        const char *mount = json_str_at(m, "mountPath", "");
        size_t n = strlen(mount);
        while (n > 1 && mount[n - 1] == '/')
            n--;
        if (n > best_n && strncmp(path, mount, n) == 0 && (path[n] == 0 || path[n] == '/')) {
            best = m;
            best_n = n;
        }
    }
    const json_t *v = best ? volume_named(c->pod, json_str_at(best, "name", "")) : NULL;
    if (!v)
        return NULL;
    CLEANUP(free_charp) char *dir = volume_dir(c->pod, v);
    const char *sub = json_str_at(best, "subPath", "");
    return xasprintf("%s%s%s%s", dir, *sub ? "/" : "", sub, path + best_n);
}

void kvol_teardown(struct kpod *p)
{
    CLEANUP(free_charp)
    char *memory = xasprintf("/dev/shm/baton-%s/pods/%s", p->k->instance, p->uid);
    dir_remove(memory);
}
