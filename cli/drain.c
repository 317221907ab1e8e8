/* baton drain: a worker pod, or every worker pod of a node, ends without an error for any client:
 * routers stop picking it, running requests end or go on elsewhere, then it goes. A pod is deleted
 * (any deletion is a drain); a node is cordoned and its workers are evicted, so that disruption
 * budgets hold. */
#include "cli/target.h"
#include "cli/verbs.h"
#include "lib/base/clock.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

struct drain_options {
    struct target_options target;
    const char *router;
    uint64_t timeout_s;
    bool no_wait;
};

static const struct conf_opt options[] = {
    TARGET_OPTIONS(struct drain_options, target),
    {"--timeout", NULL, CONF_U64, CONF(struct drain_options, timeout_s), "0", 0, 604800,
     "longest to wait; 0: for ever", "SECONDS"},
    {"--no-wait", NULL, CONF_BOOL, CONF(struct drain_options, no_wait), NULL, 0, 0,
     "begin it and end", NULL},
    {"--router", NULL, CONF_STR, CONF(struct drain_options, router), "", 0, 0,
     "the router's URL, for the numbers of requests (default: found by itself)", "URL"},
    {0}};
static const struct conf_prog prog = {
    "baton drain",
    "Takes a worker pod, or all worker pods of a node, out of service without an error for any "
    "client, and waits until\n"
    "they are gone. A node is cordoned first (kubectl uncordon NODE takes it back); its other pods "
    "are left alone.",
    "[pod/]POD | node/NODE [options]", options};

struct drain {
    struct target *t;
    const struct drain_options *o;
    uint64_t begun_ns;
    char blocked[300]; /* why the last eviction was put off */
};

/* Requests that run on a pod as the router sees it; -1: not known. */
static long long running(struct drain *d, const json_t *pod)
{
    const char *name = json_str_at(pod, "metadata.name", "");
    CLEANUP(json_decrefp)
    json_t *state =
        target_router_state(d->t, json_str_at(pod, "metadata.namespace", "default"), d->o->router);
    size_t i, j;
    json_t *deployment, *worker;
    json_array_foreach (json_object_get(state, "deployments"), i, deployment) {
        json_array_foreach (json_object_get(deployment, "workers"), j, worker) {
            if (strcmp(json_str_at(worker, "pod", ""), name) == 0)
                return json_int_at(worker, "running", 0);
        }
    }
    return -1;
}

static bool late(const struct drain *d)
{
    return d->o->timeout_s && clock_mono_ns() - d->begun_ns > d->o->timeout_s * NS_PER_S;
}

static unsigned seconds(const struct drain *d)
{
    return (unsigned)((clock_mono_ns() - d->begun_ns) / NS_PER_S);
}

/* ---- a pod ---- */

static int delete_pod(struct target *t, const json_t *pod, struct err *e)
{
    struct kube_result r;
    struct kube_call call = {.verb = KUBE_DELETE,
                             .kind = &kube_pods,
                             .namespace = json_str_at(pod, "metadata.namespace", "default"),
                             .name = json_str_at(pod, "metadata.name", ""),
                             .uid = json_str_at(pod, "metadata.uid", NULL),
                             .timeout_ms = 10000};
    int rc = kube_run(t->client, &call, &r);
    if (rc)
        *e = r.err;
    kube_result_fini(&r);
    return rc;
}

static void tell_pod(struct drain *d, const json_t *pod)
{
    long long n = running(d, pod);
    const char *name = json_str_at(pod, "metadata.name", "");
    if (n > 0)
        progress("%s drains: %lld requests run (%u s)", name, n, seconds(d));
    else
        progress("%s drains (%u s)", name, seconds(d));
}

static int drain_pod(struct drain *d, const json_t *pod, struct err *e)
{
    const char *name = json_str_at(pod, "metadata.name", ""),
               *uid = json_str_at(pod, "metadata.uid", "");
    if (!*label_of(pod, LABEL_INFD))
        return err_set(e, EINVAL, "%s is not a worker of Baton (it has no label %s)", name,
                       LABEL_INFD);
    int rc = json_at(pod, "metadata.deletionTimestamp") ? 0 : delete_pod(d->t, pod, e);
    if (rc || d->o->no_wait) {
        if (!rc)
            progress_done("%s drains", name);
        return rc;
    }
    for (;;) {
        struct err gone = {0};
        CLEANUP(json_decrefp) json_t *now = target_get(d->t, &kube_pods, name, &gone);
        if ((!now && gone.code == ENOENT) ||
            (now && strcmp(json_str_at(now, "metadata.uid", ""), uid) != 0))
            break;
        if (late(d))
            return err_set(e, ETIMEDOUT, "%s drains on after %llu s", name,
                           (unsigned long long)d->o->timeout_s);
        if (now)
            tell_pod(d, now);
        poll(NULL, 0, 500);
    }
    progress_done("%s is gone after %u s", name, seconds(d));
    return 0;
}

/* ---- a node ---- */

/* 0 evicted or gone; -EBUSY: a budget holds it back for now. */
static int evict(struct drain *d, const json_t *pod, struct err *e)
{
    const char *name = json_str_at(pod, "metadata.name", ""),
               *ns = json_str_at(pod, "metadata.namespace", "");
    struct kube_result r;
    CLEANUP(free_charp) char *path = xasprintf("pods/%s", name);
    const struct kube_kind one = {"v1", "Pod", path, true, NULL};
    CLEANUP(json_decrefp)
    json_t *body =
        json_pack("{s:s, s:s, s:{s:s, s:s}, s:{s:{s:s}}}", "apiVersion", "policy/v1", "kind",
                  "Eviction", "metadata", "name", name, "namespace", ns, "deleteOptions",
                  "preconditions", "uid", json_str_at(pod, "metadata.uid", ""));
    struct kube_call call = {.verb = KUBE_CREATE,
                             .kind = &one,
                             .namespace = ns,
                             .subresource = "eviction",
                             .body = body,
                             .timeout_ms = 10000};
    int rc = kube_run(d->t->client, &call, &r);
    if (rc == -EBUSY)
        snprintf(d->blocked, sizeof d->blocked, "%s waits: %.200s", name, r.err.msg);
    else if (rc && r.status != 404 && r.status != 409)
        *e = r.err;
    else
        rc = 0;
    kube_result_fini(&r);
    return rc;
}

/* Evicts what can be; tells how many are still there, or a negative errno. */
static int round_of(struct drain *d, const char *selector, struct err *e)
{
    CLEANUP(json_decrefp)
    json_t *pods = target_list(d->t, &kube_pods, LABEL_INFD, selector, e);
    size_t i, leaving = 0;
    json_t *pod;
    long long requests = 0;
    if (!pods)
        return -e->code;
    d->blocked[0] = 0;
    json_array_foreach (pods, i, pod) {
        if (!json_at(pod, "metadata.deletionTimestamp")) {
            int rc = evict(d, pod, e);
            if (rc && rc != -EBUSY)
                return rc;
            if (rc)
                continue;
        }
        leaving++;
        long long n = running(d, pod);
        requests += n > 0 ? n : 0;
    }
    if (i)
        progress("%zu workers left, %zu of them drain, %lld requests run (%u s)%s%s", i, leaving,
                 requests, seconds(d), *d->blocked ? "; " : "", d->blocked);
    return (int)i;
}

static int drain_node(struct drain *d, const char *node, struct err *e)
{
    CLEANUP(json_decrefp) json_t *cordon = json_pack("{s:{s:b}}", "spec", "unschedulable", 1);
    CLEANUP(free_charp) char *selector = xasprintf("spec.nodeName=%s", node);
    int rc = target_patch(d->t, &kube_nodes, node, cordon, e);
    if (rc)
        return rc;
    free(d->t->namespace);
    d->t->namespace = NULL; /* the node's workers of every namespace */
    progress_done("%s is cordoned", node);
    while ((rc = round_of(d, selector, e)) > 0 && !d->o->no_wait) {
        if (late(d))
            return err_set(e, ETIMEDOUT, "%d workers are still on %s after %llu s%s%s", rc, node,
                           (unsigned long long)d->o->timeout_s, *d->blocked ? "; " : "",
                           d->blocked);
        poll(NULL, 0, 1000);
    }
    if (rc == 0)
        progress_done("%s has no workers any more (%u s); kubectl uncordon %s takes it back", node,
                      seconds(d), node);
    return rc < 0 ? rc : 0;
}

static int drain(struct drain *d, const char *what, struct err *e)
{
    const char *slash = strchr(what, '/'), *name = slash ? slash + 1 : what;
    size_t n = slash ? (size_t)(slash - what) : 0;
    bool node = n && (strncmp(what, "node", n) == 0 || strncmp(what, "nodes", n) == 0 ||
                      strncmp(what, "no", n) == 0);
    bool pod = n && (strncmp(what, "pod", n) == 0 || strncmp(what, "pods", n) == 0 ||
                     strncmp(what, "po", n) == 0);
    if (n && !node && !pod)
        return err_set(e, EINVAL, "%s: what is drained is a pod or a node", what);
    if (node)
        return drain_node(d, name, e);
    CLEANUP(json_decrefp) json_t *o = target_get(d->t, &kube_pods, name, e);
    return o ? drain_pod(d, o, e) : -e->code;
}

int drain_main(int argc, char **argv)
{
    static const char *const flags[] = {"--no-wait", "--help", "--version", NULL};
    struct drain_options o = {0};
    struct target t;
    struct err e = {0};
    int first;
    target_args(argc, argv, flags);
    int r = conf_parse(&prog, argc, argv, &o, &first, &e);
    if (r > 0)
        return 0;
    if (!r && argc - first != 1)
        r = err_set(&e, EINVAL, "say which pod or node: %s %s", prog.name, prog.usage);
    if (r) {
        cli_fail("drain", &e);
        return 2;
    }
    r = target_open(&o.target, &t, &e);
    if (!r) {
        struct drain d = {.t = &t, .o = &o, .begun_ns = clock_mono_ns()};
        r = drain(&d, argv[first], &e);
        target_close(&t);
    }
    return r ? cli_fail("drain", &e) : 0;
}
