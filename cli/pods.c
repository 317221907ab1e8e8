/* The static pods of a cluster on one machine: the same programs that run as Deployments and a
 * DaemonSet elsewhere. */
#include "cli/common.h"

static void env(json_t *list, const char *name, const char *value)
{
    json_array_append_new(list, json_pack("{s:s, s:s}", "name", name, "value", value));
}

static void env_field(json_t *list, const char *name, const char *path)
{
    json_array_append_new(list, json_pack("{s:s, s:{s:{s:s}}}", "name", name, "valueFrom",
                                          "fieldRef", "fieldPath", path));
}

static json_t *environment(const struct cluster *c, const char *name)
{
    json_t *l = json_array();
    CLEANUP(free_charp) char *config = xasprintf("%s/kubeconfigs/baton-%s", c->dir, name);
    CLEANUP(free_charp) char *port = xasprintf("%llu", (unsigned long long)c->router_port);
    CLEANUP(free_charp) char *url = xasprintf("http://127.0.0.1:%s", port);
    CLEANUP(free_charp) char *address = xasprintf("127.0.0.1:%s", port);
    env_field(l, "BATON_POD_IP", "status.podIP");
    env_field(l, "BATON_POD_NAME", "metadata.name");
    env_field(l, "BATON_NODE_NAME", "spec.nodeName");
    env(l, "BATON_KUBECONFIG", config);
    if (strcmp(name, "controller") == 0) {
        env(l, "BATON_NAMESPACE", "*");
        env_field(l, "BATON_POD_NAMESPACE", "metadata.namespace");
        env(l, "BATON_ROUTER_URL", url);
        env(l, "BATON_ROUTER_ADDRESS", address);
    } else if (strcmp(name, "router") == 0) {
        env(l, "BATON_POD_NAMESPACE", "*"); /* the namespace that it serves */
        env(l, "BATON_ROUTER_PORT", port);
        env(l, "BATON_DRAIN_SECONDS", "5");
        env(l, "BATON_MODELS_DIR", "/var/lib/baton/models");
    } else {
        env(l, "BATON_AGENT_DIR", "/run/baton");
        env(l, "BATON_SEGMENT_DIR", "/dev/shm/baton");
        env(l, "BATON_MODELS_DIR", "/var/lib/baton/models");
    }
    return l;
}

static json_t *probe(const char *path, int port, int period, int failures)
{
    return json_pack("{s:{s:s, s:i}, s:i, s:i, s:i}", "httpGet", "path", path, "port", port,
                     "periodSeconds", period, "failureThreshold", failures, "timeoutSeconds", 5);
}

static json_t *host_volume(const char *name, const char *path)
{
    return json_pack("{s:s, s:{s:s, s:s}}", "name", name, "hostPath", "path", path, "type",
                     "DirectoryOrCreate");
}

static json_t *mount(const char *name, const char *path)
{
    return json_pack("{s:s, s:s}", "name", name, "mountPath", path);
}

json_t *static_pod(const struct cluster *c, const char *name)
{
    bool agent = strcmp(name, "agent") == 0;
    int port = agent ? 8091 : strcmp(name, "controller") == 0 ? 8090 : (int)c->router_port;
    CLEANUP(free_charp) char *program = xasprintf("baton-%s", name);
    CLEANUP(free_charp) char *port_text = xasprintf("%d", port);
    json_t *container =
        json_pack("{s:s, s:s, s:[s], s:o, s:o, s:o, s:o}", "name", name, "image", "baton",
                  "command", program, "env", environment(c, name), "startupProbe",
                  probe("/healthz", port, 1, 60), "readinessProbe", probe("/readyz", port, 1, 2),
                  "livenessProbe", probe("/healthz", port, 10, 6));
    json_t *pod =
        json_pack("{s:s, s:s, s:{s:s, s:s, s:{s:s}, s:{s:s, s:s}}, s:{s:b, s:i, s:s, s:[o]}}",
                  "apiVersion", "v1", "kind", "Pod", "metadata", "name", program, "namespace",
                  SYSTEM_NAMESPACE, "labels", "app.kubernetes.io/name", program, "annotations",
                  "prometheus.io/scrape", "true", "prometheus.io/port", port_text, "spec",
                  "automountServiceAccountToken", 0, "terminationGracePeriodSeconds", 10,
                  "priorityClassName", "system-node-critical", "containers", container);
    if (strcmp(name, "router") == 0) { /* it reads tokenizers where workers read weights */
        json_object_set_new(container, "volumeMounts",
                            json_pack("[o]", mount("models", "/var/lib/baton/models")));
        json_object_set_new(json_object_get(pod, "spec"), "volumes",
                            json_pack("[o]", host_volume("models", "/var/lib/baton/models")));
    }
    if (agent) {
        json_object_set_new(container, "volumeMounts",
                            json_pack("[o, o, o]", mount("run", "/run/baton"),
                                      mount("segments", "/dev/shm/baton"),
                                      mount("models", "/var/lib/baton/models")));
        json_object_set_new(json_object_get(pod, "spec"), "volumes",
                            json_pack("[o, o, o]", host_volume("run", "/run/baton"),
                                      host_volume("segments", "/dev/shm/baton"),
                                      host_volume("models", "/var/lib/baton/models")));
    }
    return pod;
}
