/* baton-router: options, start, stop. */
#include "lib/base/clock.h"
#include "lib/base/conf.h"
#include "lib/base/file.h"
#include "lib/base/log.h"
#include "router/router.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

#define TICK_MS 10
#define PEM_MAX ((size_t)1 << 20)

static const struct conf_opt options[] = {
    {"--host", "BATON_POD_IP", CONF_STR, CONF(struct options, host), "127.0.0.1", 0, 0,
     "address to listen on, besides 127.0.0.1", "ADDRESS"},
    {"--port", "BATON_ROUTER_PORT", CONF_U64, CONF(struct options, port), "8080", 1, 65535,
     "port to listen on", "PORT"},
    {"--kubeconfig", "BATON_KUBECONFIG", CONF_STR, CONF(struct options, kubeconfig), "", 0, 0,
     "kubeconfig file (without one: the pod's service account)", "FILE"},
    {"--namespace", "BATON_POD_NAMESPACE", CONF_STR, CONF(struct options, namespace), "", 0, 0,
     "namespace to serve; * for all (empty: the kubeconfig's)", "NAME"},
    {"--static", "BATON_ROUTER_STATIC", CONF_STR, CONF(struct options, static_file), "", 0, 0,
     "serve the models and workers of this JSON file, without Kubernetes", "FILE"},
    {"--models-dir", "BATON_MODELS_DIR", CONF_STR, CONF(struct options, models_dir), MODELS_MOUNT,
     0, 0, "folder where file://" MODELS_MOUNT "/... sources lie for this process", "DIR"},
    {"--api-keys-file", "BATON_API_KEYS_FILE", CONF_STR, CONF(struct options, api_keys_file), "", 0,
     0, "file with one API key a line (# begins a comment); without any key the API is open",
     "FILE"},
    {"--api-keys", "BATON_API_KEYS", CONF_STR, CONF(struct options, api_keys), "", 0, 0,
     "API keys separated by commas; better given in the environment, where ps does not show it",
     "KEYS"},
    {"--cors-origin", "BATON_CORS_ORIGIN", CONF_STR, CONF(struct options, cors_origin), "*", 0, 0,
     "origin that browsers may call from; empty: none but this router's own page", "ORIGIN"},
    {"--hold-seconds", "BATON_ROUTER_HOLD_SECONDS", CONF_F64, CONF(struct options, hold_seconds),
     "60", 0, 3600, "how long a request waits while its model has worker pods and none is ready",
     "S"},
    {"--wake-seconds", "BATON_ROUTER_WAKE_SECONDS", CONF_F64, CONF(struct options, wake_seconds),
     "300", 0, 86400, "how long a request waits for the first worker of a model at zero", "S"},
    {"--max-held", "BATON_ROUTER_MAX_HELD", CONF_U64, CONF(struct options, max_held), "1000", 0,
     1000000, "requests of one model that may wait so; more get 503", "N"},
    {"--controller-url", "BATON_CONTROLLER_URL", CONF_STR, CONF(struct options, controller_url), "",
     0, 0,
     "where to tell the controller at once that a request waits for a model at zero; empty: "
     "it looks once a second",
     "URL"},
    {"--linger-seconds", "BATON_ROUTER_LINGER_SECONDS", CONF_U64,
     CONF(struct options, linger_seconds), "0", 0, 3600,
     "time after SIGTERM in which new connections are still served, until every load balancer "
     "knows",
     "S"},
    {"--drain-seconds", "BATON_DRAIN_SECONDS", CONF_U64, CONF(struct options, drain_seconds), "30",
     0, 86400, "how long running requests may take after SIGTERM", "S"},
    {"--max-connections", "BATON_ROUTER_MAX_CONNECTIONS", CONF_U64,
     CONF(struct options, max_connections), "4096", 1, 60000, "client connections", "N"},
    {"--max-body-bytes", "BATON_ROUTER_MAX_BODY_BYTES", CONF_BYTES,
     CONF(struct options, max_body_bytes), "32Mi", 1024, 33554432, "largest request body", "BYTES"},
    {"--inline-bytes", "BATON_ROUTER_INLINE_BYTES", CONF_BYTES, CONF(struct options, inline_bytes),
     "64Ki", 0, 33554432, "bodies up to this size are tokenised on the loop, others on a thread",
     "BYTES"},
    {"--index-blocks", "BATON_ROUTER_INDEX_BLOCKS", CONF_U64, CONF(struct options, index_blocks),
     "1000000", 0, 100000000, "names of cached blocks to remember for each model", "N"},
    {"--tls-cert", "BATON_ROUTER_TLS_CERT", CONF_STR, CONF(struct options, tls_cert), "", 0, 0,
     "PEM file with the certificate; with --tls-key the API is HTTPS", "FILE"},
    {"--tls-key", "BATON_ROUTER_TLS_KEY", CONF_STR, CONF(struct options, tls_key), "", 0, 0,
     "PEM file with the private key", "FILE"},
    {"--log-level", "BATON_LOG_LEVEL", CONF_STR, CONF(struct options, log_level), "info", 0, 0,
     "error, warn, info or debug", "LEVEL"},
    {"--log-format", "BATON_LOG_FORMAT", CONF_STR, CONF(struct options, log_format), "json", 0, 0,
     "json or text", "FORMAT"},
    {0},
};

static const struct conf_prog program = {
    .name = "baton-router",
    .summary =
        "Serves the OpenAI API for every model of a namespace: picks a prefill and a decode worker "
        "for each request by predicted seconds, and streams the answer.",
    .usage = "[options]",
    .opts = options,
};

static void on_tick(uv_timer_t *t)
{
    struct router *r = t->data;
    uint64_t now = clock_mono_ns();
    fleet_tick(r->fleet, now);
    proxy_tick(r, now);
    if (r->draining && !r->n_exchanges)
        uv_stop(&r->loop);
}

static void on_drained(uv_timer_t *t)
{
    struct router *r = t->data;
    log_warn("drain time is over", LI("requests", r->n_exchanges));
    uv_stop(&r->loop);
}

/* No more connections; what runs may finish. */
static void on_lingered(uv_timer_t *t)
{
    struct router *r = t->data;
    log_info("draining", LI("requests", r->n_exchanges));
    r->draining = true;
    for (int i = 0; i < 2; i++)
        if (r->http[i])
            httpd_quiesce(r->http[i]);
    uv_timer_start(&r->drain, on_drained, r->o.drain_seconds * 1000, 0);
}

/* Not ready any more, but for a while load balancers still send connections here: they are served.
 */
static void on_signal(uv_signal_t *s, int number)
{
    struct router *r = s->data;
    if (r->leaving) {
        uv_stop(&r->loop);
        return;
    }
    log_info("leaving", LI("signal", number), LI("requests", r->n_exchanges));
    r->leaving = true;
    if (r->o.linger_seconds)
        uv_timer_start(&r->drain, on_lingered, r->o.linger_seconds * 1000, 0);
    else
        on_lingered(&r->drain);
}

static int listen_on(struct router *r, const char *host, struct httpd **out, struct err *e)
{
    CLEANUP(free_charp) char *cert = NULL;
    CLEANUP(free_charp) char *key = NULL;
    if (*r->o.tls_cert && (!(cert = file_read(r->o.tls_cert, PEM_MAX, e)) ||
                           !(key = file_read(r->o.tls_key, PEM_MAX, e))))
        return -EINVAL;
    struct httpd_config c = {.loop = &r->loop,
                             .host = host,
                             .port = (uint16_t)r->o.port,
                             .max_body_bytes = (size_t)r->o.max_body_bytes,
                             .max_connections = (unsigned)r->o.max_connections,
                             .connection_bytes = 16384,
                             .tls_cert_pem = cert,
                             .tls_key_pem = key,
                             .handler = api_handle,
                             .refuse = api_refuse,
                             .ctx = r};
    int rc = httpd_start(&c, out, e);
    if (!rc)
        log_info("listening", LS("host", host), LI("port", r->o.port));
    return rc;
}

/* A connection a client and one a worker: as many descriptors as we may have. */
static void raise_descriptor_limit(void)
{
    struct rlimit l;
    if (getrlimit(RLIMIT_NOFILE, &l) == 0 && l.rlim_cur < l.rlim_max) {
        l.rlim_cur = l.rlim_max;
        if (setrlimit(RLIMIT_NOFILE, &l))
            log_warn("can't raise the limit of open files", LS("error", strerror(errno)));
    }
}

static int start(struct router *r, struct err *e)
{
    raise_descriptor_limit();
    stats_init();
    r->rng.state = rng_secret_u64();
    buf_init(&r->scratch, 64u << 20);
    r->pool = conn_pool_new(&r->loop, 0);
    model_set_dir(r->o.models_dir);
    struct fleet_config f = {.loop = &r->loop,
                             .pool = r->pool,
                             .index_names = (size_t)r->o.index_blocks,
                             .on_down = proxy_worker_down,
                             .ctx = r};
    r->fleet = fleet_new(&f);
    metrics_collect(expose_fleet, r);
    int rc = wake_start(r, e);
    rc = rc ? rc : keys_load(&r->o, &r->keys, e);
    if (!rc)
        rc = *r->o.static_file ? static_load(r, r->o.static_file, e)
                               : discover_start(r, &r->discover, e);
    if (rc)
        return rc;
    if (strcmp(r->o.host, "0.0.0.0") == 0)
        return listen_on(r, r->o.host, &r->http[0], e);
    rc = listen_on(r, "127.0.0.1", &r->http[0], e);
    if (!rc && *r->o.host && strcmp(r->o.host, "127.0.0.1") != 0)
        rc = listen_on(r, r->o.host, &r->http[1], e);
    return rc;
}

static void start_handles(struct router *r)
{
    uv_timer_init(&r->loop, &r->tick);
    uv_timer_init(&r->loop, &r->drain);
    uv_signal_init(&r->loop, &r->sigterm);
    uv_signal_init(&r->loop, &r->sigint);
    r->tick.data = r->drain.data = r->sigterm.data = r->sigint.data = r;
    uv_timer_start(&r->tick, on_tick, TICK_MS, TICK_MS);
    uv_signal_start(&r->sigterm, on_signal, SIGTERM);
    uv_signal_start(&r->sigint, on_signal, SIGINT);
}

int main(int argc, char **argv)
{
    static struct router r;
    struct err e = {0};
    enum log_level level;
    int first, rc = conf_parse(&program, argc, argv, &r.o, &first, &e);
    if (rc > 0)
        return 0;
    if (rc || first < argc || log_level_parse(r.o.log_level, &level)) {
        fprintf(stderr, "baton-router: %s\n",
                rc             ? e.msg
                : first < argc ? "it takes no arguments; see --help"
                               : "--log-level is error, warn, info or debug");
        return 2;
    }
    log_init("baton-router", r.o.log_format, level);
    signal(SIGPIPE, SIG_IGN);
    uv_loop_init(&r.loop);
    if (start(&r, &e)) {
        fprintf(stderr, "baton-router: %s\n", e.msg);
        return 1;
    }
    start_handles(&r);
    uv_run(&r.loop, UV_RUN_DEFAULT);
    log_info("stopped", LI("requests", r.n_exchanges));
    return 0;
}
