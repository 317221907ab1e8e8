/* Pods: defaults of spec and status, validation, what an update may change. */
#include "local/kinds.h"
#include "local/names.h"
#include "local/server_int.h"

#include <stdio.h>
#include <stdlib.h>

static void set_default(json_t *o, const char *key, json_t *value)
{
    if (json_object_get(o, key))
        json_decref(value);
    else
        json_object_set_new(o, key, value);
}

/* Always for no tag and for :latest. */
static const char *pull_policy(const char *image)
{
    const char *slash = strrchr(image, '/'), *name = slash ? slash + 1 : image;
    if (strchr(name, '@'))
        return "IfNotPresent";
    const char *colon = strchr(name, ':');
    return !colon || strcmp(colon, ":latest") == 0 ? "Always" : "IfNotPresent";
}

static void container_defaults(json_t *c)
{
    set_default(c, "imagePullPolicy", json_string(pull_policy(json_str_at(c, "image", ""))));
    json_t *limits = json_at(c, "resources.limits"), *v;
    const char *key;
    if (!limits)
        return;
    json_t *res = json_object_get(c, "resources");
    if (!json_object_get(res, "requests"))
        json_object_set_new(res, "requests", json_object());
    json_object_foreach (limits, key, v)
        set_default(json_object_get(res, "requests"), key, json_incref(v));
}

void podspec_defaults(json_t *spec)
{
    static const char *const lists[] = {"containers", "initContainers", "ephemeralContainers"};
    size_t i;
    json_t *c;
    for (size_t k = 0; k < sizeof lists / sizeof *lists; k++)
        json_array_foreach (json_object_get(spec, lists[k]), i, c)
            container_defaults(c);
    if (json_int_at(spec, "terminationGracePeriodSeconds", 1) < 0)
        json_object_set_new(spec, "terminationGracePeriodSeconds", json_integer(1));
    const char *account = json_str_at(spec, "serviceAccountName", NULL);
    if (account)
        set_default(spec, "serviceAccount", json_string(account));
    json_array_foreach (json_object_get(spec, "volumes"), i, c) {
        if (json_object_size(c) == 1)
            json_object_set_new(c, "emptyDir", json_object());
    }
}

static void add_toleration(json_t *spec, const char *key)
{
    json_t *list = json_object_get(spec, "tolerations"), *t;
    size_t i;
    if (!list) {
        list = json_array();
        json_object_set_new(spec, "tolerations", list);
    }
    json_array_foreach (list, i, t) {
        const char *k = json_str_at(t, "key", "");
        if (strcmp(k, key) == 0 || (!*k && !strcmp(json_str_at(t, "operator", ""), "Exists")))
            return;
    }
    json_array_append_new(list, json_pack("{s:s,s:s,s:s,s:i}", "key", key, "operator", "Exists",
                                          "effect", "NoExecute", "tolerationSeconds", 300));
}

static const char *qos_class(const json_t *spec)
{
    bool any = false, guaranteed = true;
    size_t i;
    json_t *c;
    json_array_foreach (json_object_get(spec, "containers"), i, c) {
        const json_t *lim = json_at(c, "resources.limits"), *req = json_at(c, "resources.requests");
        if (json_object_size(lim) || json_object_size(req))
            any = true;
        const json_t *cpu = json_object_get(lim, "cpu"), *mem = json_object_get(lim, "memory");
        if (!cpu || !mem || !json_equal((json_t *)cpu, json_object_get(req, "cpu")) ||
            !json_equal((json_t *)mem, json_object_get(req, "memory")))
            guaranteed = false;
    }
    return !any ? "BestEffort" : guaranteed ? "Guaranteed" : "Burstable";
}

static void pod_defaults(struct server *s, json_t *doc, const json_t *old)
{
    (void)s;
    json_t *spec = json_object_get(doc, "spec");
    if (!json_is_object(spec))
        return;
    podspec_defaults(spec);
    set_default(spec, "enableServiceLinks", json_true());
    (void)old;
}

/* What the scheduler would say of a pod that it may not look at yet. */
static void say_gated(json_t *doc)
{
    if (json_array_size(json_at(doc, "spec.schedulingGates")))
        json_object_set_new(json_object_get(doc, "status"), "conditions",
                            json_pack("[{s:s,s:s,s:n,s:n,s:s,s:s}]", "type", "PodScheduled",
                                      "status", "False", "lastProbeTime", "lastTransitionTime",
                                      "reason", "SchedulingGated", "message",
                                      "Scheduling is blocked due to non-empty scheduling gates"));
}

static void pod_server_sets(struct server *s, json_t *doc, const json_t *old)
{
    (void)s;
    static const char *const kept[] = {"serviceAccountName", "serviceAccount", "priority",
                                       "preemptionPolicy", "tolerations"};
    json_t *spec = json_object_get(doc, "spec"), *before;
    if (!json_is_object(spec))
        return;
    for (size_t i = 0; old && i < sizeof kept / sizeof *kept; i++) {
        before = json_object_get(json_object_get(old, "spec"), kept[i]);
        if (before)
            set_default(spec, kept[i], json_deep_copy(before));
    }
    if (old)
        return;
    set_default(spec, "serviceAccountName", json_string("default"));
    set_default(spec, "serviceAccount",
                json_string(json_str_at(spec, "serviceAccountName", "default")));
    set_default(spec, "priority", json_integer(0));
    set_default(spec, "preemptionPolicy", json_string("PreemptLowerPriority"));
    add_toleration(spec, "node.kubernetes.io/not-ready");
    add_toleration(spec, "node.kubernetes.io/unreachable");
    json_object_set_new(doc, "status",
                        json_pack("{s:s,s:s}", "phase", "Pending", "qosClass", qos_class(spec)));
    say_gated(doc);
}

static void check_ports(const json_t *c, const char *path, json_t *causes)
{
    size_t i;
    json_t *p;
    json_array_foreach (json_object_get(c, "ports"), i, p) {
        const json_t *port = json_object_get(p, "containerPort");
        CLEANUP(free_charp) char *at = xasprintf("%s.ports[%zu].containerPort", path, i);
        if (json_is_integer(port) && !json_integer_value(port))
            cause_required(causes, at, "");
        else if (json_is_integer(port) &&
                 (json_integer_value(port) < 1 || json_integer_value(port) > 65535))
            cause_invalid(causes, at, port, "must be between 1 and 65535, inclusive");
    }
}

static bool has_named(const json_t *list, const char *name)
{
    size_t i;
    json_t *v;
    json_array_foreach ((json_t *)list, i, v)
        if (strcmp(json_str_at(v, "name", ""), name) == 0)
            return true;
    return false;
}

static void check_mounts(const json_t *spec, const json_t *c, const char *path, json_t *causes)
{
    size_t i;
    json_t *m;
    json_array_foreach (json_object_get(c, "volumeMounts"), i, m) {
        const char *name = json_str_at(m, "name", "");
        CLEANUP(free_charp) char *at = xasprintf("%s.volumeMounts[%zu].name", path, i);
        CLEANUP(free_charp) char *msg = xasprintf("Not found: \"%s\"", name);
        if (*name && !has_named(json_object_get(spec, "volumes"), name))
            json_array_append_new(causes, json_pack("{s:s,s:s,s:s}", "reason", "FieldValueNotFound",
                                                    "message", msg, "field", at));
    }
}

static void check_container(const json_t *spec, const json_t *c, const char *path, json_t *causes)
{
    static const char *const pulls[] = {"Always", "IfNotPresent", "Never", NULL};
    const json_t *name = json_object_get(c, "name"), *pull = json_object_get(c, "imagePullPolicy");
    CLEANUP(free_charp) char *name_at = xasprintf("%s.name", path);
    CLEANUP(free_charp) char *image_at = xasprintf("%s.image", path);
    CLEANUP(free_charp) char *pull_at = xasprintf("%s.imagePullPolicy", path);
    const char *why = json_is_string(name) && *json_string_value(name)
                          ? name_check_dns_label(json_string_value(name))
                          : NULL;
    if (why)
        cause_invalid(causes, name_at, name, "%s", why);
    if (!*json_str_at(c, "image", ""))
        cause_required(causes, image_at, "");
    if (json_is_string(pull) && strcmp(json_string_value(pull), "Always") &&
        strcmp(json_string_value(pull), "IfNotPresent") && strcmp(json_string_value(pull), "Never"))
        cause_unsupported(causes, pull_at, pull, pulls);
    check_ports(c, path, causes);
    check_mounts(spec, c, path, causes);
}

static void check_duplicates(const json_t *list, const char *path, json_t *causes)
{
    size_t i;
    json_t *v, *seen = json_object();
    json_array_foreach ((json_t *)list, i, v) {
        const json_t *name = json_object_get(v, "name");
        CLEANUP(free_charp) char *at = xasprintf("%s[%zu].name", path, i);
        if (!json_is_string(name))
            continue;
        if (json_object_get(seen, json_string_value(name)))
            cause_duplicate(causes, at, name);
        json_object_set_new(seen, json_string_value(name), json_true());
    }
    json_decref(seen);
}

void podspec_validate(const json_t *spec, const char *path, json_t *causes)
{
    static const char *const restarts[] = {"Always", "OnFailure", "Never", NULL};
    static const char *const lists[] = {"containers", "initContainers"};
    size_t i;
    json_t *c;
    for (size_t k = 0; k < 2; k++) {
        CLEANUP(free_charp) char *at = xasprintf("%s.%s", path, lists[k]);
        json_array_foreach (json_object_get(spec, lists[k]), i, c) {
            CLEANUP(free_charp) char *item = xasprintf("%s[%zu]", at, i);
            check_container(spec, c, item, causes);
        }
        check_duplicates(json_object_get(spec, lists[k]), at, causes);
    }
    CLEANUP(free_charp) char *vol = xasprintf("%s.volumes", path);
    check_duplicates(json_object_get(spec, "volumes"), vol, causes);
    const json_t *restart = json_object_get(spec, "restartPolicy");
    CLEANUP(free_charp) char *restart_at = xasprintf("%s.restartPolicy", path);
    const char *r = json_is_string(restart) ? json_string_value(restart) : "";
    if (strcmp(r, "Always") && strcmp(r, "OnFailure") && strcmp(r, "Never"))
        cause_unsupported(causes, restart_at, restart, restarts);
}

static void forget_images(json_t *spec)
{
    static const char *const lists[] = {"containers", "initContainers"};
    size_t i;
    json_t *c;
    for (size_t k = 0; k < 2; k++)
        json_array_foreach (json_object_get(spec, lists[k]), i, c) {
            json_object_del(c, "image");
            json_object_del(c, "imagePullPolicy");
        }
    json_object_del(spec, "activeDeadlineSeconds");
    json_object_del(spec, "tolerations");
    json_object_del(spec, "schedulingGates");
}

/* Gates may only be taken away. */
static void check_gates(const json_t *spec, const json_t *old, json_t *causes)
{
    const json_t *now = json_object_get(spec, "schedulingGates");
    const json_t *before = json_object_get(json_object_get(old, "spec"), "schedulingGates");
    size_t i;
    json_t *gate;
    check_duplicates(now, "spec.schedulingGates", causes);
    json_array_foreach ((json_t *)now, i, gate) {
        const char *name = json_str_at(gate, "name", "");
        CLEANUP(free_charp) char *at = xasprintf("spec.schedulingGates[%zu].name", i);
        CLEANUP(free_charp)
        char *why = xasprintf("only deletion is allowed, but found new scheduling gate '%s'", name);
        if (old && !has_named(before, name))
            cause_forbidden(causes, at, "%s", why);
    }
}

static bool same_but_mutable(const json_t *a, const json_t *b)
{
    json_t *x = json_deep_copy(a), *y = json_deep_copy(b);
    forget_images(x);
    forget_images(y);
    bool same = json_equal(x, y);
    json_decref(x);
    json_decref(y);
    return same;
}

static void pod_validate(const json_t *doc, const json_t *old, json_t *causes)
{
    const json_t *spec = json_object_get(doc, "spec");
    if (json_is_object(spec))
        podspec_validate(spec, "spec", causes);
    check_gates(spec, old, causes);
    if (old && !same_but_mutable(spec, json_object_get(old, "spec")))
        cause_forbidden(
            causes, "spec",
            "pod updates may not change fields other than `spec.containers[*].image`,"
            "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` "
            "(only additions to existing tolerations),`spec.terminationGracePeriodSeconds` "
            "(allow it to be set to 1 if it was previously negative)");
}

/* The service account must exist, as the admission plugin of that name asks. */
static int pod_admit(struct server *s, json_t *doc, const json_t *old, json_t **st)
{
    if (old)
        return 0;
    const struct resource *sa = resource_find(s->reg, "", "v1", "serviceaccounts");
    const struct resource *pods = resource_find(s->reg, "", "v1", "pods");
    const char *ns = json_str_at(doc, "metadata.namespace", "");
    const char *name = json_str_at(doc, "spec.serviceAccountName", "default");
    if (bucket_get(sa->bucket, ns, name))
        return 0;
    CLEANUP(free_charp)
    char *why = xasprintf("error looking up service account %s/%s: serviceaccount "
                          "\"%s\" not found",
                          ns, name, name);
    return status_forbidden(st, pods, json_str_at(doc, "metadata.name", ""), why);
}

static const char *const pod_fields[] = {
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.schedulerName",
    "spec.serviceAccountName",
    "spec.hostNetwork",
    "status.phase",
    "status.podIP",
    "status.nominatedNodeName",
    NULL,
};

const struct kind_ops ops_pod = {
    .defaults = pod_defaults,
    .server_sets = pod_server_sets,
    .validate = pod_validate,
    .admit = pod_admit,
    .fields = pod_fields,
};
