#include "local/kubelet_int.h"

#include "lib/base/host.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define VALUE_MAX (1 << 20)

static const char *env_get(const json_t *env, struct str name)
{
    for (size_t i = json_array_size(env); i-- > 0;) {
        const char *kv = json_string_value(json_array_get(env, i));
        if (strncmp(kv, name.p, name.n) == 0 && kv[name.n] == '=')
            return kv + name.n + 1;
    }
    return NULL;
}

static void env_set(json_t *env, const char *name, const char *value)
{
    size_t n = strlen(name), i;
    json_t *old;
    json_array_foreach (env, i, old) {
        const char *kv = json_string_value(old);
        if (strncmp(kv, name, n) == 0 && kv[n] == '=') {
            json_array_remove(env, i);
            break;
        }
    }
    CLEANUP(free_charp) char *kv = xasprintf("%s=%s", name, value);
    json_array_append_new(env, json_stringn_nocheck(kv, strlen(kv)));
}

/* Rules:
 * https://kubernetes.io/docs/tasks/inject-data-application/define-interdependent-environment-variables/
 */
char *kenv_expand(const char *text, const json_t *env)
{
    struct buf b;
    buf_init(&b, VALUE_MAX);
    int bad = buf_cstr(&b, "");
    for (const char *p = text; *p && !bad;) {
        const char *end = p[0] == '$' && p[1] == '(' ? strchr(p, ')') : NULL;
        if (p[0] == '$' && p[1] == '$') {
            bad = buf_cstr(&b, "$");
            p += 2;
        } else if (end) {
            const char *v = env_get(env, (struct str){p + 2, (size_t)(end - p - 2)});
            bad = v ? buf_cstr(&b, v) : buf_append(&b, p, (size_t)(end - p + 1));
            p = end + 1;
        } else {
            bad = buf_append(&b, p++, 1);
        }
    }
    return buf_take(&b);
}

static const char *map_key(const json_t *map, const char *subscript)
{
    char key[320]; /* "['key']" */
    size_t n = strlen(subscript);
    if (n < 5 || n - 4 >= sizeof key || strncmp(subscript, "['", 2) ||
        strcmp(subscript + n - 2, "']"))
        return NULL;
    memcpy(key, subscript + 2, n - 4);
    key[n - 4] = 0;
    const char *v = json_string_value(json_object_get(map, key));
    return v ? v : "";
}

char *kenv_field(struct kpod *p, const char *path)
{
    const char *v = NULL;
    if (strncmp(path, "metadata.labels[", 16) == 0)
        v = map_key(json_at(p->obj, "metadata.labels"), path + 15);
    else if (strncmp(path, "metadata.annotations[", 21) == 0)
        v = map_key(json_at(p->obj, "metadata.annotations"), path + 20);
    else if (strcmp(path, "metadata.uid") == 0)
        v = p->uid;
    else if (strcmp(path, "metadata.name") == 0 && p->static_file)
        return xasprintf("%s-%s", p->name, p->k->node); /* as its mirror */
    else if (strcmp(path, "metadata.name") == 0)
        v = p->name;
    else if (strcmp(path, "metadata.namespace") == 0)
        v = p->ns;
    else if (strcmp(path, "spec.nodeName") == 0)
        v = p->k->node;
    else if (strcmp(path, "spec.serviceAccountName") == 0)
        v = json_str_at(p->obj, "spec.serviceAccountName", "default");
    else if (strcmp(path, "status.podIP") == 0 || strcmp(path, "status.podIPs") == 0)
        v = p->ip;
    else if (strcmp(path, "status.hostIP") == 0 || strcmp(path, "status.hostIPs") == 0)
        v = "127.0.0.1";
    return v ? xstrdup(v) : NULL;
}

static const json_t *sibling(struct kctr *c, const char *name)
{
    for (size_t i = 0; name && i < c->pod->n_ctrs; i++) {
        if (strcmp(c->pod->ctrs[i]->name, name) == 0)
            return c->pod->ctrs[i]->spec;
    }
    return c->spec;
}

/* resource / divisor, rounded up; a limit that is not set is what the node has. */
static char *resource_field(struct kctr *c, const json_t *ref, struct err *e)
{
    const char *resource = json_str_at(ref, "resource", "");
    const json_t *spec = sibling(c, json_str_at(ref, "containerName", NULL));
    bool cpu = str_ends(str_c(resource), STR(".cpu"));
    bool limit = strncmp(resource, "limits.", 7) == 0;
    if (!limit && strncmp(resource, "requests.", 9) != 0) {
        err_set(e, EINVAL, "unsupported container resource: %s", resource);
        return NULL;
    }
    CLEANUP(free_charp) char *path = xasprintf("resources.%s", resource);
    json_t *q = json_at(spec, path);
    const char *text = json_string_value(q);
    int64_t value = 0, divisor = 1000;
    const char *by = json_str_at(ref, "divisor", "");
    if (json_is_integer(q))
        value = json_integer_value(q) * 1000;
    else if (text && str_to_quantity_milli(str_c(text), &value))
        value = 0;
    else if (!text && limit && cpu)
        value = (int64_t)host_milli_cpus();
    else if (!text && limit && strcmp(resource, "limits.memory") == 0)
        value = (int64_t)host_memory_bytes() * 1000;
    if (*by && strcmp(by, "0") && (str_to_quantity_milli(str_c(by), &divisor) || divisor <= 0)) {
        err_set(e, EINVAL, "the divisor %s of %s is not a quantity", by, resource);
        return NULL;
    }
    return xasprintf("%lld", (long long)((value + divisor - 1) / divisor));
}

/* The value of a key of a Secret (base64) or ConfigMap that was fetched. */
static char *ref_value(struct kpod *p, const char *kind, const json_t *ref, bool *missing,
                       struct err *e)
{
    const char *name = json_str_at(ref, "name", ""), *key = json_str_at(ref, "key", "");
    CLEANUP(free_charp) char *at = xasprintf("%s/%s", kind, name);
    const json_t *o = json_object_get(p->refs, at);
    const char *text = json_string_value(json_object_get(json_at(o, "data"), key));
    *missing = !text;
    if (!text) {
        if (!json_bool_at(ref, "optional", false))
            err_set(e, ENOENT, json_is_object(o) ? "key %s not found in %s %s" : "key %s: no %s %s",
                    key, kind, name);
        return NULL;
    }
    if (strcmp(kind, "secret") != 0)
        return xstrdup(text);
    size_t n;
    char *raw = kref_base64(text, &n);
    if (!raw)
        err_set(e, EINVAL, "key %s of secret %s is not base64", key, name);
    return raw;
}

static char *value_from(struct kctr *c, const json_t *from, bool *skip, struct err *e)
{
    struct kpod *p = c->pod;
    const json_t *ref;
    *skip = false;
    if ((ref = json_object_get(from, "fieldRef"))) {
        char *v = kenv_field(p, json_str_at(ref, "fieldPath", ""));
        if (!v)
            err_set(e, EINVAL, "unsupported fieldPath: %s", json_str_at(ref, "fieldPath", ""));
        return v;
    }
    if ((ref = json_object_get(from, "resourceFieldRef")))
        return resource_field(c, ref, e);
    bool missing = false;
    struct err why = {0};
    char *v = NULL;
    if ((ref = json_object_get(from, "secretKeyRef")))
        v = ref_value(p, "secret", ref, &missing, &why);
    else if ((ref = json_object_get(from, "configMapKeyRef")))
        v = ref_value(p, "configmap", ref, &missing, &why);
    else
        err_set(&why, EINVAL, "an environment variable has an unsupported valueFrom");
    if (!v && why.code == 0 && missing)
        *skip = true;
    else if (!v)
        *e = why;
    return v;
}

static int add_env_from(struct kctr *c, json_t *env, struct err *e)
{
    size_t i;
    json_t *from;
    json_array_foreach (json_at(c->spec, "envFrom"), i, from) {
        const char *prefix = json_str_at(from, "prefix", "");
        bool secret = json_object_get(from, "secretRef") != NULL;
        const json_t *ref = json_object_get(from, secret ? "secretRef" : "configMapRef");
        CLEANUP(free_charp)
        char *at =
            xasprintf("%s/%s", secret ? "secret" : "configmap", json_str_at(ref, "name", ""));
        json_t *o = json_object_get(c->pod->refs, at);
        if (!json_is_object(o)) {
            if (json_bool_at(ref, "optional", false))
                continue;
            return err_set(e, ENOENT, "%s not found", at);
        }
        const char *key;
        json_t *v;
        json_object_foreach (json_object_get(o, "data"), key, v) {
            size_t n;
            CLEANUP(free_charp) char *name = xasprintf("%s%s", prefix, key);
            CLEANUP(free_charp)
            char *text =
                secret ? kref_base64(json_string_value(v), &n) : xstrdup(json_string_value(v));
            if (text)
                env_set(env, name, text);
        }
    }
    return 0;
}

/* A path, or the URL of a file, under one of the container's mounts. */
static char *real_value(struct kctr *c, const char *v)
{
    if (v[0] == '/')
        return kvol_map(c, v);
    CLEANUP(free_charp) char *real = strncmp(v, "file:///", 8) == 0 ? kvol_map(c, v + 7) : NULL;
    return real ? xasprintf("file://%s", real) : NULL;
}

static int add_env(struct kctr *c, json_t *env, struct err *e)
{
    size_t i;
    json_t *item;
    json_array_foreach (json_at(c->spec, "env"), i, item) {
        const char *name = json_str_at(item, "name", "");
        const json_t *from = json_object_get(item, "valueFrom");
        bool skip = false;
        CLEANUP(free_charp)
        char *v =
            from ? value_from(c, from, &skip, e) : kenv_expand(json_str_at(item, "value", ""), env);
        if (skip)
            continue;
        if (!v)
            return err_wrap(e, "environment variable %s", name);
        CLEANUP(free_charp) char *real = real_value(c, v);
        env_set(env, name, real ? real : v);
    }
    return 0;
}

char *kenv_mark(const struct kctr *c)
{
    return xasprintf("BATON_CONTAINER=%s/%s/%d", c->pod->uid, c->name, c->attempt);
}

static void add_base_env(struct kctr *c, json_t *env)
{
    struct kpod *p = c->pod;
    const char *path = getenv("PATH"), *home = getenv("HOME");
    CLEANUP(free_charp)
    char *full = xasprintf("%s:%s", p->k->bin_dir, path ? path : "/usr/local/bin:/usr/bin:/bin");
    env_set(env, "PATH", full);
    env_set(env, "HOME", home ? home : "/");
    env_set(env, "HOSTNAME", p->name);
    env_set(env, "BATON_INSTANCE", p->k->instance);
    bool account =
        json_bool_at(p->obj, "spec.automountServiceAccountToken", true) &&
        strcmp(json_str_at(p->obj, "spec.serviceAccountName", "default"), "default") != 0;
    if (account)
        env_set(env, "BATON_KUBECONFIG", p->k->kubeconfig);
}

static bool runnable(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode) && access(path, X_OK) == 0;
}

/* Where argv[0] is: `baton-…` beside baton-local wherever an image would have it, else as execvp
 * would look. */
static char *find_program(struct kctr *c, const char *arg0, const json_t *env)
{
    const char *slash = strrchr(arg0, '/'), *base = slash ? slash + 1 : arg0;
    if (strncmp(base, "baton-", 6) == 0) {
        char *own = xasprintf("%s/%s", c->pod->k->bin_dir, base);
        if (runnable(own))
            return own;
        free(own);
    }
    if (slash) {
        char *real = kvol_map(c, arg0);
        return real ? real : xstrdup(arg0);
    }
    struct str rest = str_c(env_get(env, STR("PATH"))), dir;
    while (rest.n) {
        rest = str_cut(rest, ':', &dir);
        char *path = xasprintf(STR_FMT "/%s", STR_ARG(dir), arg0);
        if (runnable(path))
            return path;
        free(path);
    }
    return NULL;
}

static void add_args(struct kctr *c, const char *member, const json_t *env, json_t *argv)
{
    size_t i;
    json_t *item;
    json_array_foreach (json_at(c->spec, member), i, item) {
        CLEANUP(free_charp) char *v = kenv_expand(json_string_value(item), env);
        CLEANUP(free_charp) char *real = v[0] == '/' ? kvol_map(c, v) : NULL;
        json_array_append_new(argv, json_string_nocheck(real && i ? real : v));
    }
}

int kenv_build(struct kctr *c, json_t **env_out, json_t **argv_out, char **file, char **cwd,
               struct err *e)
{
    json_t *env = json_array(), *argv = json_array();
    add_base_env(c, env);
    int r = add_env_from(c, env, e);
    if (!r)
        r = add_env(c, env, e);
    if (!r) {
        add_args(c, "command", env, argv);
        add_args(c, "args", env, argv);
        if (json_array_size(json_at(c->spec, "command")) == 0)
            r = err_set(
                e, EINVAL,
                "the container has no command: Baton's process mode has no images to take an "
                "entry point from, so the pod must name one");
    }
    const char *dir = json_str_at(c->spec, "workingDir", "");
    char *real = *dir ? kvol_map(c, dir) : NULL;
    if (!r) {
        const char *arg0 = json_string_value(json_array_get(argv, 0));
        *file = find_program(c, arg0, env);
        if (!*file)
            r = err_set(e, ENOENT, "executable file not found in $PATH: %s", arg0);
    }
    if (r) {
        json_decref(env);
        json_decref(argv);
        free(real);
        return r;
    }
    *cwd = real ? real : xstrdup(*dir ? dir : c->pod->dir);
    *env_out = env;
    *argv_out = argv;
    return 0;
}
