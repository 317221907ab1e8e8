/* baton-controller: makes, scales, rolls, drains and heals the worker pods of InferenceDeployments.
 */
#include "controller/controller.h"
#include "lib/base/conf.h"
#include "lib/base/log.h"

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

static void on_signal(uv_signal_t *s, int number)
{
    log_info("stopping", LI("signal", number));
    ctl_end(s->data);
}

static int start(struct ctl *c, struct err *e)
{
    struct kube_config config = {0};
    int rc = kube_config_load(NULL, &config, e);
    if (!rc)
        rc = ctl_start(c, &config, e);
    if (!rc)
        rc = rights_start(c, e);
    kube_config_fini(&config);
    return rc;
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
    if (uv_loop_init(&loop) || uv_signal_init(&loop, &term) || uv_signal_init(&loop, &interrupt))
        return 1;
    c.loop = &loop;
    term.data = interrupt.data = &c;
    uv_signal_start(&term, on_signal, SIGTERM);
    uv_signal_start(&interrupt, on_signal, SIGINT);
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
    ctl_finish(&c);
    (void)uv_loop_close(&loop); /* busy only when a handle could not be closed in time */
    return c.exit_code;
}
