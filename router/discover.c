/* What exists, from Kubernetes: InferenceDeployments, the rank-0 pods of Baton's own engine, and
 * the peer secrets. Only get, list and watch. A pod says where a worker is, never what it does:
 * roles come from the worker itself. */
#include "lib/base/log.h"
#include "lib/decide/hash.h"
#include "lib/kube/cache.h"
#include "router/rights.h"
#include "router/router.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WORKER_PORT 8000

struct discover {
    struct router *r;
    struct kube_client *client;
    struct access *access;
    struct kube_cache *infds, *pods, *secrets;
};

static const char *or_empty(const char *s)
{
    return s ? s : "";
}

static void sync_secret(struct discover *s, struct deployment *d)
{
    char name[300];
    snprintf(name, sizeof name, "%.255s-peer", d->infd);
    const struct kube_secret *secret =
        s->secrets ? kube_cache_get(s->secrets, d->namespace, name) : NULL;
    deployment_set_secret(d, secret ? secret->secret : NULL);
}

static void sync_pod(struct discover *s, const struct kube_pod *pod)
{
    const char *infd = kube_label(&pod->meta, LABEL_INFD),
               *rank = kube_label(&pod->meta, LABEL_RANK);
    struct deployment *d = infd ? fleet_find(s->r->fleet, pod->meta.namespace, infd) : NULL;
    if (!d)
        return;
    bool over = pod->phase && (!strcmp(pod->phase, "Succeeded") || !strcmp(pod->phase, "Failed"));
    bool usable = pod->ip && *pod->ip && rank && !strcmp(rank, "0") && !over;
    struct worker *w = deployment_worker(d, pod->meta.name);
    if (!usable && w)
        fleet_remove_worker(s->r->fleet, w);
    if (!usable)
        return;
    const char *pair = kube_label(&pod->meta, LABEL_PAIR);
    w = fleet_worker(s->r->fleet, d, pod->meta.name, pod->meta.uid, pod->ip, WORKER_PORT,
                     pod->meta.deleted_ns != 0);
    if (w)
        d->state[w->slot].pair = pair ? hash_mix(0, pair) : 0;
}

static bool sync_pod_of(const void *object, void *ctx)
{
    sync_pod(ctx, object);
    return true;
}

static double seconds(const char *duration)
{
    uint64_t ns;
    return kube_duration_ns(duration, 0, &ns) ? 0 : (double)ns / 1e9;
}

/* Somebody raises a role from zero when requests wait: Baton one that has bounds, or an external
 * scaler. */
static bool wakes(const struct kube_infd *i)
{
    const char *mode = i->scaling_mode ? i->scaling_mode : "Baton";
    if (strcmp(mode, "External") == 0)
        return true;
    return strcmp(mode, "Baton") == 0 &&
           (i->prefill.bounds.has || i->decode.bounds.has || i->unified.bounds.has);
}

static void on_infd(const void *old, const void *now, void *ctx)
{
    struct discover *s = ctx;
    const struct kube_infd *i = now ? now : old;
    struct deployment *d = fleet_find(s->r->fleet, i->meta.namespace, i->meta.name);
    if (!now || ((const struct kube_infd *)now)->meta.deleted_ns) {
        if (d)
            fleet_remove_deployment(s->r->fleet, d);
        return;
    }
    struct deployment_spec spec = {
        .infd = i->meta.name,
        .namespace = i->meta.namespace,
        .model_name = i->model_name && *i->model_name ? i->model_name : i->meta.name,
        .source = or_empty(i->model_source),
        .sha256 = or_empty(i->model_sha256),
        .endpoint = i->model_endpoint,
        .kv_dtype = or_empty(i->kv_dtype),
        .block_tokens =
            i->kv_block_tokens > 0 && i->kv_block_tokens <= 4096 ? (uint32_t)i->kv_block_tokens : 0,
        .max_context = i->model_max_context_tokens > 0 && i->model_max_context_tokens < UINT32_MAX
                           ? (uint32_t)i->model_max_context_tokens
                           : 0,
        .created_ns = i->meta.created_ns,
        .slo_ttft_s = seconds(i->slo_ttft),
        .slo_tpot_s = seconds(i->slo_tpot),
        .slo_percentile =
            i->slo_percentile > 0 && i->slo_percentile <= 100 ? (uint32_t)i->slo_percentile : 0,
        .wakes = wakes(i),
    };
    if (policy_parse(i->disaggregation, &spec.policy))
        log_warn("unknown routing.disaggregation, auto is used", LS("infd", i->meta.name),
                 LS("value", i->disaggregation));
    bool fresh = !d;
    d = fleet_deployment(s->r->fleet, &spec);
    sync_secret(s, d);
    if (fresh && s->pods)
        kube_cache_each(s->pods, sync_pod_of, s);
}

static void on_pod(const void *old, const void *now, void *ctx)
{
    struct discover *s = ctx;
    if (now) {
        sync_pod(s, now);
        return;
    }
    const struct kube_pod *pod = old;
    const char *infd = kube_label(&pod->meta, LABEL_INFD);
    struct deployment *d = infd ? fleet_find(s->r->fleet, pod->meta.namespace, infd) : NULL;
    struct worker *w = d ? deployment_worker(d, pod->meta.name) : NULL;
    if (w)
        fleet_remove_worker(s->r->fleet, w);
}

static void on_secret(const void *old, const void *now, void *ctx)
{
    struct discover *s = ctx;
    const struct kube_secret *secret = now ? now : old;
    const char *name = secret->meta.name;
    size_t n = strlen(name);
    if (n <= 5 || strcmp(name + n - 5, "-peer") != 0)
        return;
    CLEANUP(free_charp) char *infd = str_dup((struct str){name, n - 5});
    struct deployment *d = fleet_find(s->r->fleet, secret->meta.namespace, infd);
    if (d)
        deployment_set_secret(d, now ? secret->secret : NULL);
}

static int start_cache(struct discover *s, const struct kube_kind *kind, const char *label,
                       void (*on_change)(const void *, const void *, void *),
                       struct kube_cache **out, struct err *e)
{
    const char *ns = *s->r->o.namespace ? s->r->o.namespace : kube_namespace(s->client);
    struct kube_cache_config c = {.kind = kind,
                                  .namespace = strcmp(ns, "*") == 0 ? NULL : ns,
                                  .label_selector = label,
                                  .on_change = on_change,
                                  .ctx = s};
    return kube_cache_start(s->client, &c, out, e);
}

int discover_start(struct router *r, struct discover **out, struct err *e)
{
    struct kube_config config = {0};
    int rc = kube_config_load(*r->o.kubeconfig ? r->o.kubeconfig : NULL, &config, e);
    if (rc)
        return rc;
    struct discover *s = xcalloc(1, sizeof *s);
    s->r = r;
    rc = kube_client_new(&r->loop, &config, "baton-router", &s->client, e);
    kube_config_fini(&config);
    const char *ns = *r->o.namespace ? r->o.namespace : rc ? "" : kube_namespace(s->client);
    rc = rc ? rc
            : access_start(s->client, "baton-router", strcmp(ns, "*") == 0 ? NULL : ns,
                           router_rights, NULL, NULL, &s->access, e);
    rc = rc ? rc : start_cache(s, &kube_secrets, LABEL_INFD, on_secret, &s->secrets, e);
    rc = rc ? rc : start_cache(s, &kube_pods, LABEL_INFD, on_pod, &s->pods, e);
    rc = rc ? rc : start_cache(s, &kube_infds, NULL, on_infd, &s->infds, e);
    if (rc)
        discover_stop(s);
    else
        *out = s;
    return rc;
}

void discover_stop(struct discover *s)
{
    if (!s)
        return;
    access_stop(s->access);
    if (s->infds)
        kube_cache_stop(s->infds);
    if (s->pods)
        kube_cache_stop(s->pods);
    if (s->secrets)
        kube_cache_stop(s->secrets);
    if (s->client)
        kube_client_free(s->client);
    free(s);
}

bool discover_synced(const struct discover *s)
{
    return kube_cache_synced(s->infds) && kube_cache_synced(s->pods) &&
           kube_cache_synced(s->secrets);
}

bool discover_permitted(struct discover *s, struct buf *why)
{
    return access_ready(s->access, why);
}
