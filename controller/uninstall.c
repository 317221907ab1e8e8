/* `baton-controller uninstall`: what a Helm hook runs so that nothing is left behind. Before the
 * chart's objects go: the InferenceDeployments of the namespace, until their pods have drained
 * (while controller, routers and agents still run). After: what programs made and nobody owns, the
 * controllers' Lease and Secret, and the agents' NodeInventories once no agent is left. Blocking.
 */
#include "controller/uninstall.h"
#include "lib/base/clock.h"
#include "lib/base/conf.h"
#include "lib/base/log.h"
#include "lib/kube/client.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>

struct uninstall_options {
    const char *namespace;
    bool after, agents;
    uint64_t timeout_s;
};

static const struct conf_opt options[] = {
    {"--namespace", "BATON_NAMESPACE", CONF_STR, CONF(struct uninstall_options, namespace), "", 0,
     0, "namespace to empty; empty: the pod's", "NAME"},
    {"--after", NULL, CONF_BOOL, CONF(struct uninstall_options, after), NULL, 0, 0,
     "the programs are gone: delete what they left", NULL},
    {"--agents", NULL, CONF_BOOL, CONF(struct uninstall_options, agents), NULL, 0, 0,
     "with --after: the agents are gone too, and so go their NodeInventories", NULL},
    {"--timeout", NULL, CONF_U64, CONF(struct uninstall_options, timeout_s), "600", 1, 86400,
     "longest to wait for pods", "SECONDS"},
    {0}};
static const struct conf_prog prog = {
    "baton-controller uninstall",
    "Deletes the InferenceDeployments of a namespace and waits until their pods have drained; with "
    "--after, what the\nprograms left. Helm runs it (charts/baton, uninstall.deleteWorkloads).",
    "[options]", options};

struct uninstall {
    struct kube_client *client;
    const char *ns;
    uint64_t end_ns;
};

static json_t *items(struct uninstall *u, const struct kube_kind *kind, const char *selector,
                     struct err *e)
{
    struct kube_call call = {.verb = KUBE_LIST,
                             .kind = kind,
                             .namespace = kind->namespaced ? u->ns : NULL,
                             .label_selector = selector};
    struct kube_result r;
    json_t *found = NULL;
    if (kube_run(u->client, &call, &r) == 0)
        found = json_incref(json_at(r.object, "items"));
    else
        *e = r.err;
    kube_result_fini(&r);
    return found;
}

static int delete_one(struct uninstall *u, const struct kube_kind *kind, const char *name,
                      struct err *e)
{
    struct kube_call call = {.verb = KUBE_DELETE,
                             .kind = kind,
                             .namespace = kind->namespaced ? u->ns : NULL,
                             .name = name};
    struct kube_result r;
    int rc = kube_run(u->client, &call, &r);
    if (rc == -ENOENT)
        rc = 0;
    else if (rc)
        *e = r.err;
    else
        log_info("deleted", LS("kind", kind->kind), LS("name", name));
    kube_result_fini(&r);
    return rc;
}

static int delete_all(struct uninstall *u, const struct kube_kind *kind, struct err *e)
{
    CLEANUP(json_decrefp) json_t *all = items(u, kind, NULL, e);
    size_t i;
    json_t *o;
    int rc = all || e->code == ENOENT ? 0 : -e->code;
    json_array_foreach (all, i, o) {
        if (!rc)
            rc = delete_one(u, kind, json_str_at(o, "metadata.name", ""), e);
    }
    return rc;
}

/* Until no pod has the label. */
static int wait_gone(struct uninstall *u, const char *selector, struct err *e)
{
    for (;;) {
        CLEANUP(json_decrefp) json_t *pods = items(u, &kube_pods, selector, e);
        size_t n = json_array_size(pods);
        if (pods && !n)
            return 0;
        if (clock_mono_ns() > u->end_ns)
            return err_set(e, ETIMEDOUT, "%zu pods (%s) are still there", n, selector);
        log_info("pods are still there", LS("selector", selector), LI("pods", n));
        poll(NULL, 0, 2000);
    }
}

static int before(struct uninstall *u, struct err *e)
{
    int rc = delete_all(u, &kube_infds, e);
    return rc ? rc : wait_gone(u, LABEL_INFD, e);
}

static int after(struct uninstall *u, bool agents, struct err *e)
{
    int rc = wait_gone(u, "app.kubernetes.io/name in (baton-controller,baton-agent)", e);
    if (!rc)
        rc = delete_one(u, &kube_leases, "baton-controller", e);
    if (!rc)
        rc = delete_one(u, &kube_secrets, "baton-metrics-tls", e);
    return rc || !agents ? rc : delete_all(u, &kube_ninvs, e);
}

int uninstall_main(int argc, char **argv)
{
    struct uninstall_options o = {0};
    struct kube_config config = {0};
    struct uninstall u = {0};
    struct err e = {0};
    int first, rc = conf_parse(&prog, argc, argv, &o, &first, &e);
    if (rc > 0)
        return 0;
    if (rc < 0) {
        fprintf(stderr, "baton-controller uninstall: %s\n", e.msg);
        return 2;
    }
    log_init("baton-controller", "json", LOG_INFO);
    rc = kube_config_load(NULL, &config, &e);
    if (!rc)
        rc = kube_client_new(NULL, &config, "baton-controller", &u.client, &e);
    if (!rc) {
        u.ns = *o.namespace ? o.namespace : kube_namespace(u.client);
        u.end_ns = clock_mono_ns() + o.timeout_s * NS_PER_S;
        rc = o.after ? after(&u, o.agents, &e) : before(&u, &e);
        kube_client_free(u.client);
    }
    kube_config_fini(&config);
    if (rc)
        log_error("not everything could be deleted", LERR(&e));
    return rc ? 1 : 0;
}
