/* All containers of a pod start again in place when its first one fails, where the API server
 * offers that (restartPolicyRules with the action RestartAllContainers, Kubernetes 1.35): the pod
 * keeps its node, its devices and its address. Asked once, by a create that is not carried out
 * (dry run): older servers refuse the action or drop the field. Elsewhere the container that ended
 * starts again alone, as its restartPolicy says.
 *
 * Baton's own workers have one container, whose launcher restarts the ranks (docs/contracts.md);
 * this is for a user's pod template with several. Source:
 * https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#restart-all-containers */
#include "controller/restart.h"

#include "lib/base/log.h"

#include <stdlib.h>

#define ACTION   "RestartAllContainers"
#define AGAIN_MS 10000

struct restart {
    struct ctl *ctl;
    uv_timer_t timer;
    bool offered;
};

static json_t *rule(void)
{
    return json_pack("[{s:s, s:{s:s, s:[i]}}]", "action", ACTION, "exitCodes", "operator", "NotIn",
                     "values", 0);
}

/* As strict as a namespace may want it. */
static json_t *probe(void)
{
    json_t *o = json_pack(
        "{s:{s:s}, s:{s:b, s:{s:b, s:i, s:{s:s}}, s:[{s:s, s:s, s:s, s:o, s:{s:b, s:{s:[s]}}}]}}",
        "metadata", "generateName", "baton-asks-", "spec", "automountServiceAccountToken", 0,
        "securityContext", "runAsNonRoot", 1, "runAsUser", 65532, "seccompProfile", "type",
        "RuntimeDefault", "containers", "name", "c", "image", "none", "restartPolicy", "Always",
        "restartPolicyRules", rule(), "securityContext", "allowPrivilegeEscalation", 0,
        "capabilities", "drop", "ALL");
    ASSERT(o);
    return o;
}

static void ask(uv_timer_t *t);

static void on_answer(const struct kube_result *r, void *ctx)
{
    struct restart *x = ctx;
    if (!r->status || r->status == 429 || r->status >= 500) {
        uv_timer_start(&x->timer, ask, AGAIN_MS, 0);
        return;
    }
    const char *got = json_str_at(r->object, "spec.containers.0.restartPolicyRules.0.action", "");
    x->offered = !r->err.code && strcmp(got, ACTION) == 0;
    log_info("when one container of several fails", LS("restarts", x->offered ? "all" : "it"));
}

static void ask(uv_timer_t *t)
{
    struct restart *x = t->data;
    struct err e = {0};
    CLEANUP(json_decrefp) json_t *body = probe();
    const char *ns = x->ctl->namespace;
    struct kube_call call = {.verb = KUBE_CREATE,
                             .kind = &kube_pods,
                             .namespace = ns ? ns : kube_namespace(x->ctl->client),
                             .body = body,
                             .dry_run = true,
                             .done = on_answer,
                             .ctx = x};
    if (kube_start(x->ctl->client, &call, &e))
        log_error("can't ask for " ACTION, LERR(&e));
}

int restart_start(struct ctl *c, struct err *e)
{
    struct restart *x = xcalloc(1, sizeof *x);
    int rc = uv_timer_init(c->loop, &x->timer);
    if (rc) {
        free(x);
        return err_set(e, -rc, "can't make a timer: %s", uv_strerror(rc));
    }
    x->ctl = c;
    x->timer.data = x;
    c->restart = x;
    uv_timer_start(&x->timer, ask, 0, 0);
    return 0;
}

static void on_closed(uv_handle_t *h)
{
    free(h->data);
}

void restart_stop(struct ctl *c)
{
    if (c->restart)
        uv_close((uv_handle_t *)&c->restart->timer, on_closed);
    c->restart = NULL;
}

void restart_together(const struct ctl *c, json_t *spec)
{
    json_t *containers = json_object_get(spec, "containers"),
           *first = json_array_get(containers, 0);
    size_t n =
        json_array_size(containers) + json_array_size(json_object_get(spec, "initContainers"));
    if (!c->restart || !c->restart->offered || n < 2 || json_object_get(first, "restartPolicy") ||
        json_object_get(first, "restartPolicyRules"))
        return;
    json_object_set_new(first, "restartPolicy",
                        json_string(json_str_at(spec, "restartPolicy", "Always")));
    json_object_set_new(first, "restartPolicyRules", rule());
}
