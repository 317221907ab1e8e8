/* baton-local: a Kubernetes API server and a kubelet in one process, for one machine. Also the
 * small programs that live beside it: `shim` (between the kubelet and a container), `supervise` and
 * `cleanup` (`baton up` and `baton down`). */
#include "lib/base/conf.h"
#include "lib/base/log.h"
#include "local/kubelet.h"
#include "local/kubelet_proc.h"
#include "local/kubelet_shim.h"
#include "local/server.h"
#include "local/supervise.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct options {
    const char *data, *host, *kubeconfig, *node, *models_dir, *bin_dir, *log_format, *log_level;
    uint64_t port, drain_seconds, backoff_ms, log_bytes;
    bool no_kubelet;
};

static const struct conf_opt table[] = {
    {"--data", "BATON_DATA", CONF_STR, CONF(struct options, data), "", 0, 0,
     "data folder: objects, keys, pods and their logs", "DIR"},
    {"--port", NULL, CONF_U64, CONF(struct options, port), "0", 0, 65535,
     "port of the API (0: the last one used, else any that is free)", "PORT"},
    {"--host", NULL, CONF_STR, CONF(struct options, host), "127.0.0.1", 0, 0, "address of the API",
     "IP"},
    {"--kubeconfig", NULL, CONF_STR, CONF(struct options, kubeconfig), "", 0, 0,
     "kubeconfig file to write for kubectl (default: <data>/kubeconfig)", "FILE"},
    {"--no-kubelet", NULL, CONF_BOOL, CONF(struct options, no_kubelet), NULL, 0, 0,
     "serve the API alone", NULL},
    {"--node", NULL, CONF_STR, CONF(struct options, node), "local", 0, 0, "name of the Node",
     "NAME"},
    {"--models-dir", NULL, CONF_STR, CONF(struct options, models_dir), "", 0, 0,
     "folder behind /var/lib/baton/models (default: ~/.cache/baton/models)", "DIR"},
    {"--bin-dir", NULL, CONF_STR, CONF(struct options, bin_dir), "", 0, 0,
     "folder of Baton's programs (default: this one's)", "DIR"},
    {"--drain-seconds", NULL, CONF_U64, CONF(struct options, drain_seconds), "8", 0, 86400,
     "longest grace that containers get when this process is told to end", "SECONDS"},
    {"--backoff-ms", NULL, CONF_U64, CONF(struct options, backoff_ms), "1000", 1, 300000,
     "delay before the second restart of a container; doubles up to 30 times that", "MS"},
    {"--log-bytes", NULL, CONF_BYTES, CONF(struct options, log_bytes), "10Mi", 4096,
     1099511627776.0, "size at which a container's log is rotated", "BYTES"},
    {"--log-format", "BATON_LOG_FORMAT", CONF_STR, CONF(struct options, log_format), "json", 0, 0,
     "json or text", "FORMAT"},
    {"--log-level", "BATON_LOG_LEVEL", CONF_STR, CONF(struct options, log_level), "info", 0, 0,
     "error, warn, info or debug", "LEVEL"},
    {0}};

static const struct conf_prog prog = {"baton-local",
                                      "A Kubernetes API server and a kubelet that runs pods as "
                                      "processes, for one machine. `baton up` starts it.",
                                      "[serve] --data DIR [options] | supervise | cleanup", table};

struct local {
    struct options opt;
    uv_loop_t loop;
    struct server *server;
    struct kubelet *kubelet;
    uv_signal_t term, inter;
    bool ending;
};

/* Baton's parts have users of their own: who wrote what is then seen in managedFields and can be
 * ruled by policy. */
static int write_kubeconfigs(struct local *l, struct err *e)
{
    static const char *const users[] = {"baton-kubelet", "baton-controller", "baton-router",
                                        "baton-agent"};
    CLEANUP(free_charp) char *dir = xasprintf("%s/kubeconfigs", l->opt.data);
    int r = dir_make(dir, 0700, e);
    for (size_t i = 0; !r && i < sizeof users / sizeof *users; i++) {
        CLEANUP(free_charp) char *path = xasprintf("%s/%s", dir, users[i]);
        r = server_write_kubeconfig(l->server, users[i], path, e);
    }
    return r;
}

static int start(struct local *l, struct err *e)
{
    CLEANUP(free_charp)
    char *admin =
        *l->opt.kubeconfig ? xstrdup(l->opt.kubeconfig) : xasprintf("%s/kubeconfig", l->opt.data);
    struct server_config sc = {.loop = &l->loop,
                               .data_dir = l->opt.data,
                               .kubeconfig = admin,
                               .host = l->opt.host,
                               .port = (uint16_t)l->opt.port};
    int r = server_start(&sc, &l->server, e);
    if (r || (r = write_kubeconfigs(l, e)) || l->opt.no_kubelet)
        return r;
    CLEANUP(free_charp) char *own = xasprintf("%s/kubeconfigs/baton-kubelet", l->opt.data);
    struct kubelet_config kc = {.loop = &l->loop,
                                .data_dir = l->opt.data,
                                .kubeconfig = own,
                                .node_name = l->opt.node,
                                .bin_dir = *l->opt.bin_dir ? l->opt.bin_dir : NULL,
                                .models_dir = *l->opt.models_dir ? l->opt.models_dir : NULL,
                                .backoff_ms = (unsigned)l->opt.backoff_ms,
                                .log_bytes = l->opt.log_bytes};
    r = kubelet_start(&kc, &l->kubelet, e);
    if (!r)
        server_set_log_provider(l->server, kubelet_log, l->kubelet);
    return r;
}

static void drained(void *ctx)
{
    struct local *l = ctx;
    log_info("every container has ended");
    uv_stop(&l->loop);
}

static void on_term(uv_signal_t *s, int sig)
{
    struct local *l = s->data;
    if (l->ending || !l->kubelet) {
        uv_stop(&l->loop);
        return;
    }
    l->ending = true;
    log_info("told to end", LI("signal", sig));
    kubelet_drain(l->kubelet, (unsigned)l->opt.drain_seconds * 1000, drained, l);
}

static void watch_signals(struct local *l)
{
    uv_signal_init(&l->loop, &l->term);
    uv_signal_init(&l->loop, &l->inter);
    l->term.data = l->inter.data = l;
    uv_signal_start(&l->term, on_term, SIGTERM);
    uv_signal_start(&l->inter, on_term, SIGINT);
}

static void stop(struct local *l)
{
    if (l->kubelet)
        kubelet_free(l->kubelet);
    if (l->server)
        server_stop(l->server);
    uv_close((uv_handle_t *)&l->term, NULL);
    uv_close((uv_handle_t *)&l->inter, NULL);
    for (int i = 0; i < 10; i++)
        uv_run(&l->loop, UV_RUN_NOWAIT);
}

static int serve(int argc, char **argv)
{
    static struct local l;
    struct err e = {0};
    enum log_level level = LOG_INFO;
    int first, r = conf_parse(&prog, argc, argv, &l.opt, &first, &e);
    if (r > 0)
        return 0;
    if (!r && first < argc)
        r = err_set(&e, EINVAL, "unknown argument %s; see baton-local --help", argv[first]);
    if (!r && !*l.opt.data)
        r = err_set(&e, EINVAL, "--data must name the data folder");
    if (!r && log_level_parse(l.opt.log_level, &level))
        r = err_set(&e, EINVAL, "--log-level is error, warn, info or debug");
    if (r) {
        fprintf(stderr, "baton-local: %s\n", e.msg);
        return 2;
    }
    log_init("baton-local", l.opt.log_format, level);
    signal(SIGPIPE, SIG_IGN);
    uv_loop_init(&l.loop);
    watch_signals(&l);
    if (start(&l, &e)) {
        log_error("baton-local can't start", LERR(&e));
        fprintf(stderr, "baton-local: %s\n", e.msg);
        return 1;
    }
    log_info("baton-local ready", LS("url", server_url(l.server)), LS("data", l.opt.data));
    uv_run(&l.loop, UV_RUN_DEFAULT);
    stop(&l);
    return 0;
}

int main(int argc, char **argv)
{
    const char *verb = argc > 1 ? argv[1] : "";
    if (strcmp(verb, "shim") == 0)
        return shim_main();
    if (strcmp(verb, "supervise") == 0)
        return supervise_main(argc - 1, argv + 1);
    if (strcmp(verb, "cleanup") == 0)
        return cleanup_main(argc - 1, argv + 1);
    if (strcmp(verb, "serve") == 0)
        return serve(argc - 1, argv + 1);
    return serve(argc, argv);
}
