/* The controller from its caches to its end: what starts, what wakes a key, who leads. */
#include "controller/controller.h"
#include "controller/standby.h"
#include "lib/base/log.h"
#include "lib/base/metrics.h"
#include "lib/base/rng.h"
#include "lib/decide/guard.h"

#include <malloc.h>

static void enqueue(struct ctl *c, const char *namespace, const char *infd)
{
    if (!namespace || !infd)
        return;
    CLEANUP(free_charp) char *key = xasprintf("%s/%s", namespace, infd);
    queue_add(c->queue, key);
}

static bool enqueue_infd(const void *object, void *ctx)
{
    const struct kube_infd *d = object;
    enqueue(ctx, d->meta.namespace, d->meta.name);
    return true;
}

/* A name that appears or goes may decide who of two serves a model name: all look again. */
static void on_infd(const void *old, const void *now, void *ctx)
{
    struct ctl *c = ctx;
    const struct kube_infd *d = now ? now : old;
    enqueue(c, d->meta.namespace, d->meta.name);
    standby_infd_changed(c, old, now);
    if (now && c->access)
        rights_tell(c, d);
    if (!old || !now)
        kube_cache_each(c->infds, enqueue_infd, c);
}

/* Anything with our label concerns the deployment that the label names. */
static void on_child(const void *old, const void *now, void *ctx)
{
    const struct kube_object *o = now ? now : old;
    enqueue(ctx, o->meta.namespace, kube_label(&o->meta, LABEL_INFD));
}

/* Groups of several pods wait for one turn in their namespace: whoever has one looks again. */
static bool enqueue_grouped(const void *object, void *ctx)
{
    const struct kube_infd *d = object;
    if (d->prefill.parallelism.pods > 1 || d->decode.parallelism.pods > 1 ||
        d->unified.parallelism.pods > 1)
        enqueue(ctx, d->meta.namespace, d->meta.name);
    return true;
}

static void on_pod(const void *old, const void *now, void *ctx)
{
    struct ctl *c = ctx;
    const struct kube_pod *p = now ? now : old, *q = old;
    bool placed = old && now && !q->node == !p->node && q->gates.n == p->gates.n;
    expected_seen(ctx, old, now);
    standby_pod_changed(ctx, old, now);
    on_child(old, now, ctx);
    if (kube_label(&p->meta, LABEL_GROUP_SIZE) && !placed)
        kube_cache_each(c->infds, enqueue_grouped, c);
}

static void on_node(const void *old, const void *now, void *ctx)
{
    nodes_changed(ctx, old, now, enqueue);
}

/* The first kind that has not been listed yet; NULL when all have been. */
static const char *missing(const struct ctl *c)
{
    const struct {
        const struct kube_cache *cache;
        const char *what;
    } all[] = {{c->infds, "inferencedeployments (are the CRDs installed?)"},
               {c->wps, "workerpools (are the CRDs installed?)"},
               {c->pods, "pods"},
               {c->secrets, "secrets"},
               {c->pdbs, "poddisruptionbudgets"},
               {c->revisions, "controllerrevisions"},
               {c->pod_groups, "podgroups"}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].cache && !kube_cache_synced(all[i].cache))
            return all[i].what;
    return c->gang_known ? NULL : "podgroups (asking whether the API server has them)";
}

static bool synced(const struct ctl *c)
{
    return !missing(c);
}

static void begin_if_ready(struct ctl *c)
{
    if (c->leading && synced(c))
        kube_cache_each(c->infds, enqueue_infd, c);
    rights_tell_all(c);
}

/* What a list of a whole cluster took on its way into the caches goes back to the system. */
static void on_synced(void *ctx)
{
    malloc_trim(0);
    begin_if_ready(ctx);
}

/* A turn begins when its requests need not wait for the client's rate: it decides from what is true
 * then. Those of turns that have begun may still be to come. */
static uint64_t pause_ms(void *ctx)
{
    struct ctl *c = ctx;
    return kube_pause_ms(c->client, TURN_REQUESTS * ((unsigned)queue_active(c->queue) + 1));
}

static void work(struct queue *q, const char *key, void *ctx)
{
    struct ctl *c = ctx;
    if (synced(c))
        execute_work(q, key, ctx);
    else
        queue_done(q, key); /* on_synced adds every key */
}

static void on_resync(uv_timer_t *t)
{
    struct ctl *c = t->data;
    struct rng r = {rng_secret_u64()};
    malloc_trim(0);
    begin_if_ready(c);
    uv_timer_start(t, on_resync, 300000 + rng_below(&r, 300000), 0);
}

static void ask_gang(uv_timer_t *t);

static int start_caches(struct ctl *c, struct err *e)
{
    struct {
        struct kube_cache **cache;
        struct kube_cache_config cfg;
    } all[] = {
        {&c->infds, {.kind = &kube_infds, .on_change = on_infd}},
        {&c->wps, {.kind = &kube_wps, .on_change = on_child}},
        {&c->pods,
         {.kind = &kube_pods,
          .label_selector = LABEL_INFD,
          .index_label = LABEL_INFD,
          .packed = true,
          .on_change = on_pod}},
        {&c->secrets, {.kind = &kube_secrets, .label_selector = LABEL_INFD, .on_change = on_child}},
        {&c->pdbs, {.kind = &kube_pdbs, .label_selector = LABEL_INFD, .on_change = on_child}},
        {&c->revisions,
         {.kind = &kube_revisions,
          .label_selector = LABEL_INFD,
          .index_label = LABEL_INFD,
          .on_change = on_child}},
        {&c->nodes, {.kind = &kube_nodes, .packed = true, .on_change = on_node}},
        {&c->routers, {.kind = &kube_pods, .label_selector = c->opts.router_selector}},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (all[i].cfg.kind->namespaced)
            all[i].cfg.namespace = c->namespace;
        all[i].cfg.on_synced = on_synced;
        all[i].cfg.ctx = c;
        int rc = kube_cache_start(c->client, &all[i].cfg, all[i].cache, e);
        if (rc)
            return rc;
    }
    return 0;
}

/* Whether groups are placed by the API server's own gangs: asked once, at the start. */
static void on_gang_answer(const struct kube_result *r, void *ctx)
{
    struct ctl *c = ctx;
    struct err e = {0};
    struct kube_cache_config cfg = {.kind = &kube_pod_groups,
                                    .namespace = c->namespace,
                                    .label_selector = LABEL_INFD,
                                    .index_label = LABEL_INFD,
                                    .on_change = on_child,
                                    .on_synced = on_synced,
                                    .ctx = c};
    if (!r->status || r->status >= 500 || r->status == 429) {
        uv_timer_start(&c->ask_gang, ask_gang, 1000, 0);
        return;
    }
    if (!r->err.code && kube_cache_start(c->client, &cfg, &c->pod_groups, &e) == 0)
        c->gang = REC_GANG_NATIVE;
    c->gang_known = true;
    log_info("groups of several pods are placed all or none",
             LS("by", c->gang == REC_GANG_NATIVE ? "PodGroups" : "scheduling gates"));
    begin_if_ready(c);
}

static void ask_gang(uv_timer_t *t)
{
    struct ctl *c = t->data;
    struct err e = {0};
    struct kube_call call = {.verb = KUBE_LIST,
                             .kind = &kube_pod_groups,
                             .namespace = c->namespace,
                             .label_selector = LABEL_INFD,
                             .done = on_gang_answer,
                             .ctx = c};
    if (kube_start(c->client, &call, &e))
        log_error("can't ask for podgroups", LERR(&e));
}

static void stop(struct ctl *c, int code)
{
    if (c->stopping)
        return;
    c->stopping = true;
    c->leading = false;
    c->exit_code = code;
    uv_stop(c->loop);
}

/* Another may have led until now, and one's own watches may have been silent for up to
 * KUBE_SILENCE_MS: a new leader lists everything before it writes. */
static void relist(struct ctl *c)
{
    struct kube_cache *all[] = {c->infds, c->wps,       c->pods,  c->secrets,
                                c->pdbs,  c->revisions, c->nodes, c->pod_groups};
    for (size_t i = 0; GUARD(fresh_leader) && i < sizeof all / sizeof *all; i++)
        if (all[i])
            kube_cache_relist(all[i]);
}

static void on_acquired(void *ctx)
{
    struct ctl *c = ctx;
    c->leading = true;
    if (c->lease)
        relist(c);
    metric_set(metric_new(METRIC_GAUGE, "baton_controller_leader", "1 while this process leads."),
               1);
    begin_if_ready(c);
}

static void on_lost(void *ctx)
{
    if (GUARD(fencing))
        stop(ctx, 1);
}

static void on_released(void *ctx)
{
    stop(ctx, 0);
}

void ctl_end(struct ctl *c)
{
    c->leading = false;
    if (c->lease)
        kube_lease_release(c->lease, on_released, c);
    else
        stop(c, 0);
    c->lease = NULL;
}

static int start_lease(struct ctl *c, struct err *e)
{
    CLEANUP(free_charp)
    char *id = xasprintf("%s_%016llx", c->opts.identity, (unsigned long long)rng_secret_u64());
    if (c->opts.no_election) {
        on_acquired(c);
        return 0;
    }
    const char *ns = *c->opts.own_namespace ? c->opts.own_namespace : c->namespace;
    struct kube_lease_config cfg = {
        .namespace = ns ? ns : kube_namespace(c->client),
        .name = "baton-controller",
        .identity = id,
        .duration_ms = (unsigned)c->opts.lease_s * 1000,
        .renew_deadline_ms = (unsigned)c->opts.renew_s * 1000,
        .retry_ms = (unsigned)c->opts.retry_s * 1000,
        .on_acquired = on_acquired,
        .on_lost = on_lost,
        .ctx = c,
    };
    return kube_lease_start(c->client, &cfg, &c->lease, e);
}

static bool http_ready(void *ctx, struct buf *why)
{
    struct ctl *c = ctx;
    if (!access_ready(c->access, why))
        return false;
    const char *what = missing(c);
    if (!what)
        return true;
    return buf_printf(why, "can't list yet: %s; the log says why", what) < 0;
}

static int http_state(void *ctx, struct buf *out)
{
    const struct ctl *c = ctx;
    return buf_printf(out,
                      "{\"leading\":%s,\"synced\":%s,\"inferencedeployments\":%zu,\"workerpools\":%"
                      "zu,\"pods\":%zu,"
                      "\"queue_depth\":%zu,\"queue_active\":%zu}",
                      c->leading ? "true" : "false", synced(c) ? "true" : "false",
                      kube_cache_count(c->infds), kube_cache_count(c->wps),
                      kube_cache_count(c->pods), queue_depth(c->queue), queue_active(c->queue));
}

static void handle(struct httpd_req *r, void *ctx)
{
    struct httpd_std std = {.ready = http_ready, .state = http_state, .ctx = ctx};
    if (!httpd_standard(r, &std) && !scaling_http(ctx, r))
        httpd_replyf(r, 404, "text/plain",
                     "not found: try /healthz, /readyz, /metrics, /debug/state or /v1/scaling\n");
}

static int start_http(struct ctl *c, struct err *e)
{
    struct httpd_config cfg = {
        .loop = c->loop,
        .host = c->opts.pod_ip,
        .port = (uint16_t)c->opts.port,
        .max_body_bytes = 65536,
        .handler = handle,
        .ctx = c,
    };
    return httpd_start(&cfg, &c->http, e);
}

int ctl_start(struct ctl *c, const struct kube_config *config, struct err *e)
{
    int rc = kube_client_new(c->loop, config, "baton-controller", &c->client, e);
    if (rc)
        return rc;
    rc = uv_timer_init(c->loop, &c->resync);
    if (rc)
        return err_set(e, -rc, "can't make a timer: %s", uv_strerror(rc));
    rc = uv_timer_init(c->loop, &c->ask_gang);
    if (rc)
        return err_set(e, -rc, "can't make a timer: %s", uv_strerror(rc));
    c->resync.data = c->ask_gang.data = c;
    c->usable_nodes_stale = true;
    uv_timer_start(&c->resync, on_resync, 300000, 0);
    const char *ns = c->opts.namespace;
    c->namespace = strcmp(ns, "*") == 0 ? NULL : *ns ? ns : kube_namespace(c->client);
    struct queue_config q = {.loop = c->loop,
                             .work = work,
                             .pause_ms = pause_ms,
                             .ctx = c,
                             .max_active = 2,
                             .retry_min_ms = 20,
                             .retry_max_ms = 60000};
    rc = queue_new(&q, &c->queue, e);
    if (!rc)
        rc = kube_events_new(c->client, "baton-controller", c->opts.identity, &c->events, e);
    if (!rc)
        rc = start_caches(c, e);
    if (!rc)
        uv_timer_start(&c->ask_gang, ask_gang, 0, 0);
    if (!rc)
        rc = standby_start(c, enqueue, e);
    if (!rc)
        rc = load_start(c, e);
    if (!rc)
        rc = start_http(c, e);
    return rc ? rc : start_lease(c, e);
}

void ctl_finish(struct ctl *c)
{
    access_stop(c->access);
    load_stop(c);
    standby_stop(c);
    kube_cache_stop(c->infds);
    kube_cache_stop(c->wps);
    kube_cache_stop(c->pods);
    kube_cache_stop(c->secrets);
    kube_cache_stop(c->pdbs);
    kube_cache_stop(c->revisions);
    kube_cache_stop(c->nodes);
    if (c->pod_groups)
        kube_cache_stop(c->pod_groups);
    kube_cache_stop(c->routers);
    kube_events_free(c->events);
    if (c->http)
        httpd_stop(c->http);
    queue_free(c->queue);
    kube_client_free(c->client);
    expected_forget(c, NULL);
    doubt_free(c, NULL);
    uv_close((uv_handle_t *)&c->resync, NULL);
    uv_close((uv_handle_t *)&c->ask_gang, NULL);
    for (int i = 0; i < 100 && uv_loop_alive(c->loop); i++)
        uv_run(c->loop, UV_RUN_NOWAIT); /* handles close and free what they belong to */
}
