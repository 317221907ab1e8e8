/* The controller's options: one table for flags, environment, defaults, bounds and help. */
#include "controller/controller.h"
#include "lib/base/conf.h"

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
    O("--decision-log", "BATON_DECISION_LOG", CONF_STR, decision_log, "", 0, 0, "FILE",
      "append every scaling decision with its inputs, one JSON object a line; `baton explain "
      "--replay` reads it"),
    O("--metrics-port", "BATON_METRICS_PORT", CONF_U64, metrics_port, "0", 0, 65535, "PORT",
      "TLS port of external.metrics.k8s.io for HPA; 0: not served"),
    O("--metrics-service", "BATON_METRICS_SERVICE", CONF_STR, metrics_service, "baton-controller",
      0, 0, "NAME", "Service that the APIService names: the name in the certificate"),
    O("--metrics-cert", "BATON_METRICS_CERT", CONF_STR, metrics_cert, "", 0, 0, "FILE",
      "certificate for it (PEM); empty: one of its own, kept in the Secret baton-metrics-tls"),
    O("--metrics-key", "BATON_METRICS_KEY", CONF_STR, metrics_key, "", 0, 0, "FILE",
      "key of that certificate (PEM)"),
    O("--log-format", "BATON_LOG_FORMAT", CONF_STR, log_format, "json", 0, 0, "json|text",
      "form of log lines"),
    O("--log-level", "BATON_LOG_LEVEL", CONF_STR, log_level, "info", 0, 0, "LEVEL",
      "error, warn, info or debug"),
    {0},
};
const struct conf_prog ctl_program = {
    .name = "baton-controller",
    .summary = "Makes, scales, rolls, drains and heals the worker pods of InferenceDeployments. "
               "Run two; one leads.",
    .usage = "[options]",
    .opts = option_table,
};
