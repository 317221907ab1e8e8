#include "lib/base/file.h"
#include "lib/json/view.h"
#include "lib/kube/client.h"
#include "lib/kube/yaml.h"

#include <errno.h>
#include <stdlib.h>

#define FILE_MAX (1u << 20)
#define ACCOUNT  "/var/run/secrets/kubernetes.io/serviceaccount"

struct cluster {
    uint64_t has;
    const char *name, *server, *ca_file, *ca_data;
    bool insecure;
};
struct user {
    uint64_t has;
    const char *name, *cert_file, *cert_data, *key_file, *key_data, *token, *token_file;
};
struct context {
    uint64_t has;
    const char *name, *cluster, *user, *namespace;
};
struct file {
    uint64_t has;
    const char *current;
    struct view_list clusters, users, contexts;
};

#define F(T, p, k, m)                                                                              \
    {                                                                                              \
        .path = p, .kind = k, .offset = offsetof(struct T, m)                                      \
    }
static const struct view cluster_view = {
    "cluster", sizeof(struct cluster),
    (const struct view_field[]){F(cluster, "name", VIEW_STR, name),
                                F(cluster, "cluster.server", VIEW_STR, server),
                                F(cluster, "cluster.certificate-authority", VIEW_STR, ca_file),
                                F(cluster, "cluster.certificate-authority-data", VIEW_B64, ca_data),
                                F(cluster, "cluster.insecure-skip-tls-verify", VIEW_BOOL, insecure),
                                {.path = NULL}}};
static const struct view user_view = {
    "user", sizeof(struct user),
    (const struct view_field[]){F(user, "name", VIEW_STR, name),
                                F(user, "user.client-certificate", VIEW_STR, cert_file),
                                F(user, "user.client-certificate-data", VIEW_B64, cert_data),
                                F(user, "user.client-key", VIEW_STR, key_file),
                                F(user, "user.client-key-data", VIEW_B64, key_data),
                                F(user, "user.token", VIEW_STR, token),
                                F(user, "user.tokenFile", VIEW_STR, token_file),
                                {.path = NULL}}};
static const struct view context_view = {
    "context", sizeof(struct context),
    (const struct view_field[]){F(context, "name", VIEW_STR, name),
                                F(context, "context.cluster", VIEW_STR, cluster),
                                F(context, "context.user", VIEW_STR, user),
                                F(context, "context.namespace", VIEW_STR, namespace),
                                {.path = NULL}}};
#define L(p, m, s)                                                                                 \
    {                                                                                              \
        .path = p, .kind = VIEW_LIST, .offset = offsetof(struct file, m), .sub = &(s)              \
    }
static const struct view file_view = {
    "kubeconfig", sizeof(struct file),
    (const struct view_field[]){F(file, "current-context", VIEW_STR, current),
                                L("clusters", clusters, cluster_view),
                                L("users", users, user_view),
                                L("contexts", contexts, context_view),
                                {.path = NULL}}};

/* The entry of a list by name; all three structs begin with has and name. */
static const void *named(const struct view_list *l, size_t size, const char *name)
{
    for (size_t i = 0; name && i < l->n; i++) {
        const struct user *u = (const void *)((const char *)l->items + i * size);
        if (u->name && strcmp(u->name, name) == 0)
            return u;
    }
    return NULL;
}

static int read_text(const char *path, char **out, struct err *e)
{
    char *text = file_read(path, FILE_MAX, e);
    if (!text)
        return -EINVAL;
    if (!*text) {
        free(text);
        return err_set(e, EINVAL, "%s: the file is empty", path);
    }
    *out = text;
    return 0;
}

static char *beside(const char *config_path, const char *path)
{
    const char *slash = strrchr(config_path, '/');
    if (path[0] == '/' || !slash)
        return xstrdup(path);
    return xasprintf("%.*s/%s", (int)(slash - config_path), config_path, path);
}

/* PEM text from the inline data or from a file named in the kubeconfig. */
static int pem(const char *config_path, const char *data, const char *file, char **out,
               char **out_file, struct err *e)
{
    if (data)
        *out = xstrdup(data);
    if (data || !file)
        return 0;
    *out_file = beside(config_path, file);
    return read_text(*out_file, out, e);
}

static int from_view(const char *path, const struct file *f, struct kube_config *out, struct err *e)
{
    const struct context *ctx = named(&f->contexts, sizeof(struct context), f->current);
    if (!ctx)
        return err_set(e, EINVAL, "current-context \"%s\" is not among the contexts",
                       f->current ? f->current : "");
    const struct cluster *c = named(&f->clusters, sizeof(struct cluster), ctx->cluster);
    if (!c || !c->server)
        return err_set(e, EINVAL, "context \"%s\" names no cluster with a server", ctx->name);
    out->server = xstrdup(c->server);
    for (size_t n = strlen(out->server); n && out->server[n - 1] == '/'; n--)
        out->server[n - 1] = 0;
    out->insecure_skip_verify = c->insecure;
    out->namespace = xstrdup(ctx->namespace ? ctx->namespace : "default");
    int rc = pem(path, c->ca_data, c->ca_file, &out->ca_pem, &out->ca_file, e);
    const struct user *u = named(&f->users, sizeof(struct user), ctx->user);
    if (rc || !u)
        return rc;
    if (u->token)
        out->token = xstrdup(u->token);
    if (u->token_file)
        out->token_file = beside(path, u->token_file);
    rc = pem(path, u->cert_data, u->cert_file, &out->cert_pem, &out->cert_file, e);
    return rc ? rc : pem(path, u->key_data, u->key_file, &out->key_pem, &out->key_file, e);
}

static int from_file(const char *path, struct kube_config *out, struct err *e)
{
    CLEANUP(json_decrefp) json_t *o = yaml_parse_file(path, FILE_MAX, e);
    if (!o)
        return -EINVAL;
    struct file *f = view_decode(&file_view, o, e);
    int rc = f ? from_view(path, f, out, e) : -EINVAL;
    free(f);
    return rc ? err_wrap(e, "%s", path) : 0;
}

static int in_cluster(struct kube_config *out, struct err *e)
{
    const char *host = getenv("KUBERNETES_SERVICE_HOST"), *port = getenv("KUBERNETES_SERVICE_PORT");
    if (!host || !port)
        return err_set(
            e, ENOENT,
            "no Kubernetes API server is known: set BATON_KUBECONFIG to a kubeconfig file, or run "
            "in a pod with a service account");
    out->server = strchr(host, ':') ? xasprintf("https://[%s]:%s", host, port)
                                    : xasprintf("https://%s:%s", host, port);
    out->token_file = xstrdup(ACCOUNT "/token");
    out->ca_file = xstrdup(ACCOUNT "/ca.crt");
    int rc = read_text(out->ca_file, &out->ca_pem, e);
    if (!rc)
        rc = read_text(ACCOUNT "/namespace", &out->namespace, e);
    return rc;
}

/* 0 when it is not set: the client's own. */
static int rate_from(const char *variable, int *out, struct err *e)
{
    const char *text = getenv(variable);
    int64_t v = 0;
    if (text && *text && str_to_i64(str_c(text), -1, 1000000, &v))
        return err_set(e, EINVAL, "%s is \"%s\": a number of requests, or -1 for no limit",
                       variable, text);
    *out = (int)v;
    return 0;
}

int kube_config_load(const char *path, struct kube_config *out, struct err *e)
{
    struct kube_config c = {0};
    struct err local = {0};
    if (!e)
        e = &local;
    if (!path)
        path = getenv("BATON_KUBECONFIG");
    int rc = path && *path ? from_file(path, &c, e) : in_cluster(&c, e);
    rc = rc ? rc : rate_from("BATON_KUBE_QPS", &c.qps, e);
    rc = rc ? rc : rate_from("BATON_KUBE_BURST", &c.burst, e);
    if (rc)
        kube_config_fini(&c);
    else
        *out = c;
    return rc;
}

void kube_config_fini(struct kube_config *c)
{
    free(c->server);
    free(c->ca_pem);
    free(c->cert_pem);
    free(c->key_pem);
    free(c->token);
    free(c->token_file);
    free(c->ca_file);
    free(c->cert_file);
    free(c->key_file);
    free(c->namespace);
    *c = (struct kube_config){0};
}
