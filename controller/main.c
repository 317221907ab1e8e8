/* baton-controller: makes, scales, rolls, drains and heals the worker pods of InferenceDeployments.
 */
#include "controller/controller.h"
#include "lib/base/clock.h"
#include "lib/base/conf.h"
#include "lib/base/log.h"
#include "lib/base/metrics.h"
#include "lib/base/rng.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#define O(f, e, k, m, d, lo, hi, a, h)                                                             \
    {                                                                                              \
        f, e, k, offsetof(struct options, m), d, lo, hi, h, a                                      \
    }
static const struct conf_opt option_table[] = {
    O("--namespace", "BATON_NAMESPACE", CONF_STR, namespace, "", 0, 0, "NAME",
      "namespace to work in; empty: the kubeconfig's or the pod's; *: all"),
    O("--pod-namespace", "BATON_POD_NAMESPACE", CONF_STR, own_namespace, "", 0, 0, "NAME",
      "namespace of the Lease; empty: the one worked in, else the kubeconfig's"),
    O("--pod-ip", "BATON_POD_IP", CONF_STR, pod_ip, "127.0.0.1", 0, 0, "ADDRESS",
      "address to listen on"),
    O("--port", "BATON_CONTROLLER_PORT", CONF_U64, port, "8090", 0, 65535, "PORT",
      "port of /healthz, /readyz, /metrics, /debug/state; 0: any"),
    O("--identity", "BATON_POD_NAME", CONF_STR, identity, "baton-controller", 0, 0, "NAME",
      "name of this process in the Lease"),
    O("--worker-image", "BATON_WORKER_IMAGE", CONF_STR, worker_image,
      "ghcr.io/baton/baton:" BATON_VERSION, 0, 0, "IMAGE",
      "image of worker pods whose InferenceDeployment names none"),
    O("--router-url", "BATON_ROUTER_URL", CONF_STR, router_url, "http://baton-router:8080", 0, 0,
      "URL", "what status.url says: where clients reach the router"),
    O("--router-selector", "BATON_ROUTER_SELECTOR", CONF_STR, router_selector,
      "app.kubernetes.io/name=baton-router", 0, 0, "SELECTOR",
      "labels of the router pods that are asked for load"),
    O("--router-address", "BATON_ROUTER_ADDRESS", CONF_STR, router_address, "", 0, 0, "HOST:PORT",
      "ask this router for load instead of the router pods"),
    O("--agent-dir", "BATON_AGENT_DIR", CONF_STR, agent_dir, "/run/baton", 0, 0, "DIR",
      "folder on the node with the agent's socket"),
    O("--models-dir", "BATON_MODELS_DIR", CONF_STR, models_dir, "/var/lib/baton/models", 0, 0,
      "DIR", "folder on the node with model files"),
    O("--lease-seconds", NULL, CONF_U64, lease_s, "15", 1, 600, "S", "life of the leader's Lease"),
    O("--renew-seconds", NULL, CONF_U64, renew_s, "10", 1, 600, "S",
      "a leader that can't renew for so long ends"),
    O("--retry-seconds", NULL, CONF_U64, retry_s, "2", 1, 600, "S",
      "time between tries to get or renew the Lease"),
    O("--no-leader-election", NULL, CONF_BOOL, no_election, NULL, 0, 0, NULL,
      "for a single process, in tests"),
    O("--no-scaler", NULL, CONF_BOOL, plain_scaling, NULL, 0, 0, NULL,
      "don't scale roles that have bounds"),
    O("--log-format", "BATON_LOG_FORMAT", CONF_STR, log_format, "json", 0, 0, "json|text",
      "form of log lines"),
    O("--log-level", "BATON_LOG_LEVEL", CONF_STR, log_level, "info", 0, 0, "LEVEL",
      "error, warn, info or debug"),
    {0},
};
static const struct conf_prog program = {
    .name = "baton-controller",
    .summary = "Makes, scales, rolls, drains and heals the worker pods of InferenceDeployments. "
               "Run two; one leads.",
    .usage = "[options]",
    .opts = option_table,
};

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
    if (!old || !now)
        kube_cache_each(c->infds, enqueue_infd, c);
}

/* Anything with our label concerns the deployment that the label names. */
static void on_child(const void *old, const void *now, void *ctx)
{
    const struct kube_object *o = now ? now : old;
    enqueue(ctx, o->meta.namespace, kube_label(&o->meta, LABEL_INFD));
}

static void on_pod(const void *old, const void *now, void *ctx)
{
    expected_seen(ctx, old, now);
    on_child(old, now, ctx);
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
               {c->pdbs, "poddisruptionbudgets"}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!kube_cache_synced(all[i].cache))
            return all[i].what;
    return NULL;
}

static bool synced(const struct ctl *c)
{
    return !missing(c);
}

static void begin_if_ready(struct ctl *c)
{
    if (c->leading && synced(c))
        kube_cache_each(c->infds, enqueue_infd, c);
}

static void on_synced(void *ctx)
{
    begin_if_ready(ctx);
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
    begin_if_ready(c);
    uv_timer_start(t, on_resync, 300000 + rng_below(&r, 300000), 0);
}

static int start_caches(struct ctl *c, struct err *e)
{
    struct {
        struct kube_cache **cache;
        struct kube_cache_config cfg;
    } all[] = {
        {&c->infds, {.kind = &kube_infds, .on_change = on_infd}},
        {&c->wps, {.kind = &kube_wps, .on_change = on_child}},
        {&c->pods, {.kind = &kube_pods, .label_selector = LABEL_INFD, .on_change = on_pod}},
        {&c->secrets, {.kind = &kube_secrets, .label_selector = LABEL_INFD, .on_change = on_child}},
        {&c->pdbs, {.kind = &kube_pdbs, .label_selector = LABEL_INFD, .on_change = on_child}},
        {&c->routers, {.kind = &kube_pods, .label_selector = c->opts.router_selector}},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        all[i].cfg.namespace = c->namespace;
        all[i].cfg.on_synced = on_synced;
        all[i].cfg.ctx = c;
        int rc = kube_cache_start(c->client, &all[i].cfg, all[i].cache, e);
        if (rc)
            return rc;
    }
    return 0;
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

static void on_acquired(void *ctx)
{
    struct ctl *c = ctx;
    c->leading = true;
    metric_set(metric_new(METRIC_GAUGE, "baton_controller_leader", "1 while this process leads."),
               1);
    begin_if_ready(c);
}

static void on_lost(void *ctx)
{
    stop(ctx, 1);
}

static void on_released(void *ctx)
{
    stop(ctx, 0);
}

static void on_signal(uv_signal_t *s, int number)
{
    struct ctl *c = s->data;
    log_info("stopping", LI("signal", number));
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
    const char *what = missing(ctx);
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
    if (!httpd_standard(r, &std))
        httpd_replyf(r, 404, "text/plain",
                     "not found: try /healthz, /readyz, /metrics or /debug/state\n");
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

static int start(struct ctl *c, struct err *e)
{
    struct kube_config config;
    int rc = kube_config_load(NULL, &config, e);
    if (rc)
        return rc;
    rc = kube_client_new(c->loop, &config, "baton-controller", &c->client, e);
    kube_config_fini(&config);
    if (rc)
        return rc;
    const char *ns = c->opts.namespace;
    c->namespace = strcmp(ns, "*") == 0 ? NULL : *ns ? ns : kube_namespace(c->client);
    struct queue_config q = {.loop = c->loop,
                             .work = work,
                             .ctx = c,
                             .max_active = 4,
                             .retry_min_ms = 20,
                             .retry_max_ms = 60000};
    rc = queue_new(&q, &c->queue, e);
    if (!rc)
        rc = kube_events_new(c->client, "baton-controller", c->opts.identity, &c->events, e);
    if (!rc)
        rc = start_caches(c, e);
    if (!rc)
        rc = load_start(c, e);
    if (!rc)
        rc = start_http(c, e);
    return rc ? rc : start_lease(c, e);
}

static void finish(struct ctl *c)
{
    load_stop(c);
    kube_cache_stop(c->infds);
    kube_cache_stop(c->wps);
    kube_cache_stop(c->pods);
    kube_cache_stop(c->secrets);
    kube_cache_stop(c->pdbs);
    kube_cache_stop(c->routers);
    kube_events_free(c->events);
    if (c->http)
        httpd_stop(c->http);
    queue_free(c->queue);
    kube_client_free(c->client);
    expected_free(c);
    uv_close((uv_handle_t *)&c->resync, NULL);
    for (int i = 0; i < 100 && uv_loop_alive(c->loop); i++)
        uv_run(c->loop, UV_RUN_NOWAIT); /* handles close and free what they belong to */
}

int main(int argc, char **argv)
{
    struct ctl c = {0};
    struct err e = {0};
    enum log_level level;
    int first, rc = conf_parse(&program, argc, argv, &c.opts, &first, &e);
    if (rc > 0)
        return 0;
    if (rc < 0 || log_level_parse(c.opts.log_level, &level)) {
        fprintf(stderr, "baton-controller: %s\n",
                rc < 0 ? e.msg : "--log-level must be error, warn, info or debug");
        return 2;
    }
    log_init("baton-controller", c.opts.log_format, level);
    signal(SIGPIPE, SIG_IGN);
    uv_loop_t loop;
    uv_signal_t term, interrupt;
    if (uv_loop_init(&loop) || uv_signal_init(&loop, &term) || uv_signal_init(&loop, &interrupt) ||
        uv_timer_init(&loop, &c.resync))
        return 1;
    c.loop = &loop;
    term.data = interrupt.data = c.resync.data = &c;
    uv_signal_start(&term, on_signal, SIGTERM);
    uv_signal_start(&interrupt, on_signal, SIGINT);
    uv_timer_start(&c.resync, on_resync, 300000, 0);
    rc = start(&c, &e);
    if (rc) {
        log_error("can't start", LERR(&e));
        return 1;
    }
    log_info("started", LS("namespace", c.namespace ? c.namespace : "*"),
             LI("port", httpd_port(c.http)), LS("version", baton_version));
    uv_run(&loop, UV_RUN_DEFAULT);
    uv_close((uv_handle_t *)&term, NULL);
    uv_close((uv_handle_t *)&interrupt, NULL);
    finish(&c);
    (void)uv_loop_close(&loop); /* busy only when a handle could not be closed in time */
    return c.exit_code;
}
