/* baton-agent: the node's daemon; `baton-agent launch` is the entry point of a worker pod. */
#include "agent/agent.h"
#include "agent/devices.h"
#include "agent/launch.h"
#include "agent/models_int.h"
#include "agent/rights.h"
#include "lib/base/conf.h"
#include "lib/base/host.h"
#include "lib/base/metrics.h"
#include "lib/io/httpd.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <utlist.h>

static const struct conf_opt options[] = {
    {"--agent-dir", "BATON_AGENT_DIR", CONF_STR, CONF(struct agent_options, agent_dir),
     "/run/baton", 0, 0, "folder of agent.sock, shared with worker pods", "DIR"},
    {"--segment-dir", "BATON_SEGMENT_DIR", CONF_STR, CONF(struct agent_options, segment_dir), "", 0,
     0, "folder on a tmpfs for weight images (default: <agent-dir>/weights)", "DIR"},
    {"--models-dir", "BATON_MODELS_DIR", CONF_STR, CONF(struct agent_options, models_dir),
     "/var/lib/baton/models", 0, 0, "folder of model files, listed in the NodeInventory", "DIR"},
    {"--node", "BATON_NODE_NAME", CONF_STR, CONF(struct agent_options, node_name), "local", 0, 0,
     "name of the Node that this agent serves", "NAME"},
    {"--pod-ip", "BATON_POD_IP", CONF_STR, CONF(struct agent_options, pod_ip), "127.0.0.1", 0, 0,
     "address that the HTTP endpoints bind to", "IP"},
    {"--port", "BATON_AGENT_PORT", CONF_U64, CONF(struct agent_options, port), "8091", 0, 65535,
     "port of /healthz, /readyz, /metrics and /debug/state", "PORT"},
    {"--kubeconfig", "BATON_KUBECONFIG", CONF_STR, CONF(struct agent_options, kubeconfig), "", 0, 0,
     "kubeconfig file (default: the in-cluster service account)", "FILE"},
    {"--weights-budget", "BATON_WEIGHTS_BUDGET", CONF_BYTES,
     CONF(struct agent_options, weights_budget), "0", 0, 0,
     "memory for weight images (0: half of what this machine or its limit has)", "BYTES"},
    {"--tier-budget", "BATON_TIER_BUDGET", CONF_BYTES, CONF(struct agent_options, tier_budget), "0",
     0, 0, "memory for the node's KV tier", "BYTES"},
    {"--cache-budget", "BATON_CACHE_BUDGET", CONF_BYTES, CONF(struct agent_options, cache_budget),
     "0", 0, 0, "disk for fetched models in <models-dir>/fetched (0: nine tenths of what is free)",
     "BYTES"},
    {"--hf-endpoint", "HF_ENDPOINT", CONF_STR, CONF(struct agent_options, hf_endpoint), "", 0, 0,
     "where hf:// models come from when their spec names no endpoint (default: "
     "https://huggingface.co)",
     "URL"},
    {"--source-ca", "BATON_SOURCE_CA", CONF_STR, CONF(struct agent_options, source_ca), "", 0, 0,
     "PEM file with the authorities that model sources' certificates are checked against", "FILE"},
    {"--fetch-chunk", "BATON_FETCH_CHUNK", CONF_BYTES, CONF(struct agent_options, fetch_chunk),
     "32Mi", 4096, 1099511627776.0, "piece in which large files are fetched", "BYTES"},
    {"--fetch-connections", "BATON_FETCH_CONNECTIONS", CONF_U64,
     CONF(struct agent_options, fetch_connections), "4", 1, 8,
     "connections to a model's source at once", "N"},
    {"--nvml", "BATON_NVML", CONF_STR, CONF(struct agent_options, nvml), "", 0, 0,
     "NVIDIA's management library (default: libnvidia-ml.so.1, where there is one)", "FILE"},
    {"--device-look-ms", "BATON_DEVICE_LOOK_MS", CONF_U64,
     CONF(struct agent_options, device_look_ms), "5000", 10, 3600000,
     "how often devices' ECC counts, remapped rows and clocks are looked at", "MS"},
    {"--log-format", "BATON_LOG_FORMAT", CONF_STR, CONF(struct agent_options, log_format), "json",
     0, 0, "json or text", "FORMAT"},
    {"--log-level", "BATON_LOG_LEVEL", CONF_STR, CONF(struct agent_options, log_level), "info", 0,
     0, "error, warn, info or debug", "LEVEL"},
    {0}};

static const struct conf_prog prog = {"baton-agent",
                                      "Keeps a node's model weights in memory, once for all of its "
                                      "workers, and reports roles and inventory.\n"
                                      "`baton-agent launch` is the entry point of a worker pod.",
                                      "[options] | launch [options]", options};

static bool is_ready(void *ctx, struct buf *why)
{
    struct agent *a = ctx;
    if (!access_ready(a->access, why))
        return false;
    if (kube_watch_synced(a->watch))
        return true;
    if (buf_cstr(why, "the list of pods has not arrived"))
        return false;
    return false;
}

static int state(void *ctx, struct buf *out)
{
    struct agent *a = ctx;
    CLEANUP(json_decrefp) json_t *images = json_array();
    CLEANUP(json_decrefp) json_t *launchers = json_array();
    struct launcher *l;
    for (size_t i = 0; i < weights_count(a->weights); i++) {
        struct weights_info w;
        weights_info(a->weights, i, &w);
        json_array_append_new(images, json_pack("{s:s, s:s, s:s, s:s, s:I, s:I, s:i, s:b}",
                                                "source", w.source, "isa", w.isa, "layout",
                                                w.layout, "checksum", w.checksum, "rank",
                                                (json_int_t)w.rank, "bytes", (json_int_t)w.bytes,
                                                "users", (int)w.users, "ready", (int)w.ready));
    }
    DL_FOREACH (a->launchers, l)
        json_array_append_new(launchers, json_pack("{s:s*, s:I, s:O*}", "pod", l->pod, "pid",
                                                   (json_int_t)l->pid, "status", l->status));
    CLEANUP(json_decrefp)
    json_t *o = json_pack("{s:s, s:o, s:O, s:I, s:I, s:i, s:O, s:b}", "node", a->opt.node_name,
                          "models", models_state(a), "images", images, "weights_used_bytes",
                          (json_int_t)weights_used_bytes(a->weights), "weights_budget_bytes",
                          (json_int_t)weights_budget_bytes(a->weights), "fills",
                          (int)weights_fills(a->weights), "launchers", launchers, "watch_connected",
                          (int)kube_watch_connected(a->watch));
    return o ? json_write(o, false, out) : -EINVAL;
}

static void handle(struct httpd_req *req, void *ctx)
{
    struct agent *a = ctx;
    struct httpd_std std = {is_ready, state, a};
    struct launcher *l;
    double n = 0;
    DL_FOREACH (a->launchers, l)
        n++;
    metric_set(metric_new(METRIC_GAUGE, "baton_agent_launchers", "Launchers connected"), n);
    metric_set(
        metric_new(METRIC_GAUGE, "baton_agent_weights_bytes", "Memory that weight images hold"),
        (double)weights_used_bytes(a->weights));
    metric_set(metric_new(METRIC_GAUGE, "baton_agent_weights_budget_bytes",
                          "Memory that weight images may hold"),
               (double)weights_budget_bytes(a->weights));
    metric_set(metric_new(METRIC_GAUGE, "baton_agent_weights_fills",
                          "Weight images loaded since the start"),
               weights_fills(a->weights));
    if (!models_offer(a, req) && !httpd_standard(req, &std))
        httpd_replyf(req, 404, "text/plain",
                     "there is nothing here; see /healthz, /readyz, /metrics, /debug/state\n");
}

static void on_term(uv_signal_t *s, int sig)
{
    (void)sig;
    struct agent *a = s->data;
    /* The last one turns off the light: nobody will want what no deployment asks for. */
    bool wanted = a->launchers || !a->models || !kube_cache_synced(a->models->infds) ||
                  kube_cache_count(a->models->infds) > 0;
    if (!wanted)
        weights_drop_all(a->weights);
    log_info(wanted ? "agent stops; weights stay for the next one"
                    : "agent stops; no deployment is left, nor are weights");
    uv_stop(&a->loop);
}

static int start(struct agent *a, struct err *e)
{
    CLEANUP(free_charp)
    char *dir = *a->opt.segment_dir ? xstrdup(a->opt.segment_dir)
                                    : xasprintf("%s/weights", a->opt.agent_dir);
    uint64_t budget = a->opt.weights_budget ? a->opt.weights_budget : host_memory_bytes() / 2;
    struct kube_config kc;
    int r = weights_open(dir, budget, &a->weights, e);
    if (r || (r = sock_start(a, e)))
        return r;
    if ((r = kube_config_load(*a->opt.kubeconfig ? a->opt.kubeconfig : NULL, &kc, e)))
        return r;
    r = kube_client_new(&a->loop, &kc, "baton-agent", &a->api, e);
    kube_config_fini(&kc);
    if (!r)
        r = access_start(a->api, "baton-agent", kube_namespace(a->api), agent_rights, NULL, NULL,
                         &a->access, e);
    if (r || (r = models_start(a, e)) || (r = pods_start(a, e)))
        return r;
    devices_start(a);
    inventory_start(a);
    struct httpd_config hc = {.loop = &a->loop,
                              .host = a->opt.pod_ip,
                              .port = (uint16_t)a->opt.port,
                              .max_body_bytes = 65536,
                              .handler = handle,
                              .ctx = a};
    struct httpd *h;
    return httpd_start(&hc, &h, e);
}

static int agent_main(int argc, char **argv)
{
    struct agent a = {0};
    struct err e = {0};
    enum log_level level;
    int first, r = conf_parse(&prog, argc, argv, &a.opt, &first, &e);
    if (r > 0)
        return 0;
    if (!r && first < argc)
        r = err_set(&e, EINVAL, "unknown argument %s; see baton-agent --help", argv[first]);
    if (r || log_level_parse(a.opt.log_level, &level)) {
        fprintf(stderr, "baton-agent: %s\n",
                r ? e.msg : "--log-level is error, warn, info or debug");
        return 2;
    }
    log_init("baton-agent", a.opt.log_format, level);
    signal(SIGPIPE, SIG_IGN);
    uv_loop_init(&a.loop);
    a.started_ns = clock_mono_ns();
    if (start(&a, &e)) {
        log_error("the agent can't start", LERR(&e));
        return 1;
    }
    uv_signal_t term, inter;
    uv_signal_init(&a.loop, &term);
    uv_signal_init(&a.loop, &inter);
    term.data = inter.data = &a;
    uv_signal_start(&term, on_term, SIGTERM);
    uv_signal_start(&inter, on_term, SIGINT);
    log_info("agent ready", LS("node", a.opt.node_name), LS("dir", a.opt.agent_dir));
    uv_run(&a.loop, UV_RUN_DEFAULT);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "launch") == 0)
        return launch_main(argc - 1, argv + 1);
    return agent_main(argc, argv);
}
