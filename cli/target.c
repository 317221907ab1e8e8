#include "cli/target.h"
#include "cli/kubeconfig.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define TIMEOUT_MS 10000

const struct kube_kind target_revisions = {"apps/v1", "ControllerRevision", "controllerrevisions",
                                           true, NULL};
static bool plugin;

void target_as_plugin(void)
{
    plugin = true;
}

void target_args(int argc, char **argv, const char *const *flags)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (strcmp(argv[i], "-n") == 0)
            argv[i] = xstrdup("--namespace");
        else if (strncmp(argv[i], "-n=", 3) == 0)
            argv[i] = xasprintf("--namespace=%s", argv[i] + 3);
        else if (strcmp(argv[i], "-A") == 0)
            argv[i] = xstrdup("--all-namespaces");
    }
    cli_options_first(argc, argv, flags);
}

/* The cluster of `baton up`: when it is there and nothing else was asked for. */
static bool is_local(const struct target_options *o, const struct target *t)
{
    const char *other = getenv("BATON_KUBECONFIG");
    if (*o->kubeconfig || *o->context || (other && *other))
        return false;
    if (plugin && !*o->data)
        return false;
    return access(t->cluster.kubeconfig, R_OK) == 0;
}

static int load(const struct target_options *o, struct target *t, struct kube_config *kc,
                struct err *e)
{
    const char *other = getenv("BATON_KUBECONFIG");
    t->local = is_local(o, t);
    if (t->local)
        return kube_config_load(t->cluster.kubeconfig, kc, e);
    bool inside = getenv("KUBERNETES_SERVICE_HOST") && !getenv("KUBECONFIG") && !*o->kubeconfig;
    if (!*o->kubeconfig && ((other && *other && !plugin) || inside))
        return kube_config_load(NULL, kc, e);
    if (*o->data && !*o->kubeconfig && !*o->context && !getenv("KUBECONFIG"))
        return err_set(e, ENOENT, "there is no cluster in %s: start one with `baton up`",
                       t->cluster.dir);
    return kubeconfig_load(o->kubeconfig, o->context, kc, e);
}

int target_open(const struct target_options *o, struct target *t, struct err *e)
{
    struct kube_config kc = {0};
    *t = (struct target){0};
    int rc = cluster_find(o->data, &t->cluster, e);
    if (rc)
        return rc;
    rc = load(o, t, &kc, e);
    if (!rc) {
        bool all = o->all_namespaces || (t->local && !*o->namespace && !plugin);
        t->namespace = all ? NULL : xstrdup(*o->namespace ? o->namespace : kc.namespace);
        rc = kube_client_new(NULL, &kc, "baton-cli", &t->client, e);
    }
    kube_config_fini(&kc);
    if (rc)
        target_close(t);
    return rc;
}

void target_close(struct target *t)
{
    if (t->client)
        kube_client_free(t->client);
    free(t->namespace);
    cluster_fini(&t->cluster);
    *t = (struct target){0};
}

static json_t *run(struct target *t, const struct kube_call *call, struct err *e)
{
    struct kube_result r;
    json_t *o = kube_run(t->client, call, &r) ? NULL : json_incref(r.object);
    if (r.err.code && !e->code)
        *e = r.err;
    kube_result_fini(&r);
    return o;
}

json_t *target_get(struct target *t, const struct kube_kind *kind, const char *name, struct err *e)
{
    const char *ns = t->namespace ? t->namespace : "default";
    struct kube_call call = {.verb = KUBE_GET,
                             .kind = kind,
                             .namespace = kind->namespaced ? ns : NULL,
                             .name = name,
                             .timeout_ms = TIMEOUT_MS};
    return run(t, &call, e);
}

json_t *target_list(struct target *t, const struct kube_kind *kind, const char *label_selector,
                    const char *field_selector, struct err *e)
{
    struct kube_call call = {.verb = KUBE_LIST,
                             .kind = kind,
                             .namespace = kind->namespaced ? t->namespace : NULL,
                             .label_selector = label_selector,
                             .field_selector = field_selector,
                             .timeout_ms = TIMEOUT_MS};
    CLEANUP(json_decrefp) json_t *o = run(t, &call, e);
    return o ? json_incref(json_at(o, "items")) : NULL;
}

int target_patch(struct target *t, const struct kube_kind *kind, const char *name,
                 const json_t *body, struct err *e)
{
    const char *ns = t->namespace ? t->namespace : "default";
    struct kube_call call = {.verb = KUBE_PATCH,
                             .kind = kind,
                             .namespace = kind->namespaced ? ns : NULL,
                             .name = name,
                             .body = body,
                             .field_manager = CLI_MANAGER,
                             .timeout_ms = TIMEOUT_MS};
    CLEANUP(json_decrefp) json_t *o = run(t, &call, e);
    return o ? 0 : -e->code;
}

static json_t *straight(const char *url)
{
    struct err e;
    struct buf text;
    CLEANUP(free_charp) char *full = xasprintf("%s/debug/state", url);
    struct http_client_config hc = {.user_agent = "baton-cli"};
    struct http_request r = {.url = full, .timeout_ms = 3000};
    buf_init(&text, 32 << 20);
    json_t *o =
        http_run(&hc, &r, &text, &e) == 200 ? json_parse(buf_view(&text), 32 << 20, 0, NULL) : NULL;
    buf_fini(&text);
    return o;
}

json_t *target_router_state(struct target *t, const char *namespace, const char *router_url)
{
    /* The API server's proxy: whoever may use it reaches the router from anywhere. */
    static const struct kube_kind proxied = {"v1", "Service",
                                             "services/baton-router:http/proxy/debug", true, NULL};
    struct err ignored = {0};
    if (*router_url)
        return straight(router_url);
    if (t->local) {
        CLEANUP(free_charp)
        char *url = xasprintf("http://127.0.0.1:%llu", (unsigned long long)t->cluster.router_port);
        return straight(url);
    }
    struct kube_call call = {.verb = KUBE_GET,
                             .kind = &proxied,
                             .namespace = namespace,
                             .name = "state",
                             .timeout_ms = 5000};
    return run(t, &call, &ignored);
}

const char *label_of(const json_t *o, const char *key)
{
    const char *v = json_string_value(json_object_get(json_at(o, "metadata.labels"), key));
    return v ? v : "";
}

const char *note_of(const json_t *o, const char *key)
{
    const char *v = json_string_value(json_object_get(json_at(o, "metadata.annotations"), key));
    return v ? v : "";
}

const json_t *condition_of(const json_t *o, const char *type)
{
    size_t i;
    json_t *c;
    json_array_foreach (json_at(o, "status.conditions"), i, c) {
        if (strcmp(json_str_at(c, "type", ""), type) == 0)
            return c;
    }
    return NULL;
}

bool condition_holds(const json_t *condition)
{
    return strcmp(json_str_at(condition, "status", ""), "True") == 0;
}
