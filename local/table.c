#include "local/crd.h"
#include "local/jsonpath.h"
#include "local/table_int.h"

#include "lib/base/clock.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- cells ---- */

static char *duration(uint64_t s)
{
    uint64_t m = s / 60, h = s / 3600, d = h / 24;
    if (s < 120)
        return xasprintf("%llus", (unsigned long long)s);
    if (m < 10)
        return s % 60 ? xasprintf("%llum%llus", (unsigned long long)m, (unsigned long long)(s % 60))
                      : xasprintf("%llum", (unsigned long long)m);
    if (m < 180)
        return xasprintf("%llum", (unsigned long long)m);
    if (h < 8)
        return m % 60 ? xasprintf("%lluh%llum", (unsigned long long)h, (unsigned long long)(m % 60))
                      : xasprintf("%lluh", (unsigned long long)h);
    if (h < 48)
        return xasprintf("%lluh", (unsigned long long)h);
    if (d < 8)
        return h % 24 ? xasprintf("%llud%lluh", (unsigned long long)d, (unsigned long long)(h % 24))
                      : xasprintf("%llud", (unsigned long long)d);
    if (d < 730)
        return xasprintf("%llud", (unsigned long long)d);
    return d % 365 && d < 2920 ? xasprintf("%lluy%llud", (unsigned long long)(d / 365),
                                           (unsigned long long)(d % 365))
                               : xasprintf("%lluy", (unsigned long long)(d / 365));
}

char *table_age(const char *rfc3339)
{
    uint64_t at, now = clock_wall_ns();
    if (!rfc3339 || clock_parse_rfc3339(rfc3339, &at))
        return xstrdup("<unknown>");
    return duration(now > at ? (now - at) / NS_PER_S : 0);
}

static void cell_s(json_t *cells, const char *s)
{
    json_array_append_new(cells, json_string(s));
}

void cell_or(json_t *cells, const char *text, const char *fallback)
{
    cell_s(cells, *text ? text : fallback);
}

static void cell_i(json_t *cells, int64_t i)
{
    json_array_append_new(cells, json_integer(i));
}

void cell_age(const json_t *doc, json_t *cells)
{
    CLEANUP(free_charp) char *age = table_age(json_str_at(doc, "metadata.creationTimestamp", NULL));
    cell_s(cells, age);
}

static void cell_created(const json_t *d, json_t *cells)
{
    cell_s(cells, json_str_at(d, "metadata.creationTimestamp", ""));
}

/* Int-or-string, or N/A. */
static void cell_value(json_t *cells, const json_t *v, const char *fallback)
{
    if (json_is_integer(v))
        json_array_append_new(cells, json_sprintf("%lld", json_integer_value(v)));
    else
        cell_s(cells, json_is_string(v) ? json_string_value(v) : fallback);
}

static char *selector_text(const json_t *labels)
{
    const char *key;
    json_t *v;
    char *out = xstrdup("");
    json_object_foreach ((json_t *)labels, key, v) {
        char *more = xasprintf("%s%s%s=%s", out, *out ? "," : "", key,
                               json_is_string(v) ? json_string_value(v) : "");
        free(out);
        out = more;
    }
    return out;
}

static void cell_selector(json_t *cells, const json_t *labels)
{
    CLEANUP(free_charp) char *t = selector_text(labels);
    cell_or(cells, t, "<none>");
}

static char *names_of(const json_t *list, const char *field)
{
    size_t i;
    json_t *v;
    char *out = xstrdup("");
    json_array_foreach ((json_t *)list, i, v) {
        char *more = xasprintf("%s%s%s", out, i ? "," : "", json_str_at(v, field, ""));
        free(out);
        out = more;
    }
    return out;
}

static void cells_template(const json_t *d, json_t *cells)
{
    const json_t *list = json_at(d, "spec.template.spec.containers");
    CLEANUP(free_charp) char *names = names_of(list, "name");
    CLEANUP(free_charp) char *images = names_of(list, "image");
    cell_s(cells, names);
    cell_s(cells, images);
    cell_selector(cells, json_at(d, "spec.selector.matchLabels"));
}

/* ---- kinds ---- */

static void t_deployment(const json_t *d, json_t *c)
{
    json_array_append_new(c, json_sprintf("%lld/%lld",
                                          (long long)json_int_at(d, "status.readyReplicas", 0),
                                          (long long)json_int_at(d, "spec.replicas", 0)));
    cell_i(c, json_int_at(d, "status.updatedReplicas", 0));
    cell_i(c, json_int_at(d, "status.availableReplicas", 0));
    cell_age(d, c);
    cells_template(d, c);
}

static void t_replicaset(const json_t *d, json_t *c)
{
    cell_i(c, json_int_at(d, "spec.replicas", 0));
    cell_i(c, json_int_at(d, "status.replicas", 0));
    cell_i(c, json_int_at(d, "status.readyReplicas", 0));
    cell_age(d, c);
    cells_template(d, c);
}

static void t_daemonset(const json_t *d, json_t *c)
{
    cell_i(c, json_int_at(d, "status.desiredNumberScheduled", 0));
    cell_i(c, json_int_at(d, "status.currentNumberScheduled", 0));
    cell_i(c, json_int_at(d, "status.numberReady", 0));
    cell_i(c, json_int_at(d, "status.updatedNumberScheduled", 0));
    cell_i(c, json_int_at(d, "status.numberAvailable", 0));
    cell_selector(c, json_at(d, "spec.template.spec.nodeSelector"));
    cell_age(d, c);
    cells_template(d, c);
}

static void t_service(const json_t *d, json_t *c)
{
    size_t i;
    json_t *p;
    char *ports = xstrdup("");
    json_array_foreach (json_at(d, "spec.ports"), i, p) {
        int64_t node = json_int_at(p, "nodePort", 0);
        CLEANUP(free_charp) char *np = node ? xasprintf(":%lld", (long long)node) : xstrdup("");
        char *more =
            xasprintf("%s%s%lld%s/%s", ports, i ? "," : "", (long long)json_int_at(p, "port", 0),
                      np, json_str_at(p, "protocol", "TCP"));
        free(ports);
        ports = more;
    }
    const char *type = json_str_at(d, "spec.type", "ClusterIP");
    cell_s(c, type);
    cell_or(c, json_str_at(d, "spec.clusterIP", ""), "<none>");
    cell_or(c, !strcmp(type, "ExternalName") ? json_str_at(d, "spec.externalName", "") : "",
            "<none>");
    cell_or(c, ports, "<none>");
    free(ports);
    cell_age(d, c);
    cell_selector(c, json_at(d, "spec.selector"));
}

static void t_configmap(const json_t *d, json_t *c)
{
    cell_i(c, (int64_t)(json_object_size(json_at(d, "data")) +
                        json_object_size(json_at(d, "binaryData"))));
    cell_age(d, c);
}

static void t_secret(const json_t *d, json_t *c)
{
    cell_s(c, json_str_at(d, "type", ""));
    cell_i(c, (int64_t)json_object_size(json_at(d, "data")));
    cell_age(d, c);
}

static void t_namespace(const json_t *d, json_t *c)
{
    cell_s(c, json_str_at(d, "status.phase", ""));
    cell_age(d, c);
}

static const char *node_address(const json_t *d, const char *type)
{
    size_t i;
    json_t *a;
    json_array_foreach (json_at(d, "status.addresses"), i, a)
        if (!strcmp(json_str_at(a, "type", ""), type))
            return json_str_at(a, "address", "");
    return "";
}

static void t_node(const json_t *d, json_t *c)
{
    const char *ready = "Unknown", *key;
    size_t i;
    json_t *v;
    json_array_foreach (json_at(d, "status.conditions"), i, v)
        if (!strcmp(json_str_at(v, "type", ""), "Ready"))
            ready = !strcmp(json_str_at(v, "status", ""), "True") ? "Ready" : "NotReady";
    bool off = json_bool_at(d, "spec.unschedulable", false);
    json_array_append_new(c, json_sprintf("%s%s", ready, off ? ",SchedulingDisabled" : ""));
    char *roles = xstrdup("");
    static const char prefix[] = "node-role.kubernetes.io/";
    json_object_foreach (json_at(d, "metadata.labels"), key, v) {
        if (strncmp(key, prefix, sizeof prefix - 1))
            continue;
        char *more = xasprintf("%s%s%s", roles, *roles ? "," : "", key + sizeof prefix - 1);
        free(roles);
        roles = more;
    }
    cell_or(c, roles, "<none>");
    free(roles);
    cell_age(d, c);
    cell_s(c, json_str_at(d, "status.nodeInfo.kubeletVersion", ""));
    cell_or(c, node_address(d, "InternalIP"), "<none>");
    cell_or(c, node_address(d, "ExternalIP"), "<none>");
    cell_or(c, json_str_at(d, "status.nodeInfo.osImage", ""), "<unknown>");
    cell_or(c, json_str_at(d, "status.nodeInfo.kernelVersion", ""), "<unknown>");
    cell_or(c, json_str_at(d, "status.nodeInfo.containerRuntimeVersion", ""), "<unknown>");
}

static const char *event_time(const json_t *d, const char *field, const char *other)
{
    const char *t = json_str_at(d, field, NULL);
    return t ? t : json_str_at(d, other, NULL);
}

static void t_event(const json_t *d, json_t *c)
{
    const char *series = json_str_at(d, "series.lastObservedTime", NULL);
    CLEANUP(free_charp)
    char *last = table_age(series ? series : event_time(d, "lastTimestamp", "eventTime"));
    CLEANUP(free_charp) char *first = table_age(event_time(d, "firstTimestamp", "eventTime"));
    const char *kind = json_str_at(d, "involvedObject.kind", "");
    char *low = xstrdup(kind);
    for (char *p = low; *p; p++)
        *p = (char)(*p >= 'A' && *p <= 'Z' ? *p + 32 : *p);
    cell_s(c, last);
    cell_s(c, json_str_at(d, "type", ""));
    cell_s(c, json_str_at(d, "reason", ""));
    json_array_append_new(c, json_sprintf("%s/%s", low, json_str_at(d, "involvedObject.name", "")));
    free(low);
    cell_s(c, json_str_at(d, "involvedObject.fieldPath", ""));
    cell_s(c, json_str_at(d, "source.component", json_str_at(d, "reportingComponent", "")));
    cell_s(c, json_str_at(d, "message", json_str_at(d, "note", "")));
    cell_s(c, first);
    cell_i(c, json_int_at(d, "count", json_int_at(d, "series.count", 1)));
    cell_s(c, json_str_at(d, "metadata.name", ""));
}

static void t_endpoints(const json_t *d, json_t *c)
{
    size_t i;
    json_t *s;
    char *out = xstrdup("");
    json_array_foreach (json_at(d, "subsets"), i, s) {
        CLEANUP(free_charp) char *ips = names_of(json_object_get(s, "addresses"), "ip");
        int64_t port = json_int_at(json_array_get(json_object_get(s, "ports"), 0), "port", 0);
        char *more = xasprintf("%s%s%s:%lld", out, i ? "," : "", ips, (long long)port);
        free(out);
        out = more;
    }
    cell_or(c, out, "<none>");
    free(out);
    cell_age(d, c);
}

static void t_endpointslice(const json_t *d, json_t *c)
{
    size_t i;
    json_t *e;
    char *ports = xstrdup(""), *ips = xstrdup("");
    json_array_foreach (json_at(d, "ports"), i, e) {
        char *more =
            xasprintf("%s%s%lld", ports, i ? "," : "", (long long)json_int_at(e, "port", 0));
        free(ports);
        ports = more;
    }
    json_array_foreach (json_at(d, "endpoints"), i, e) {
        char *more = xasprintf("%s%s%s", ips, i ? "," : "", json_str_at(e, "addresses.0", ""));
        free(ips);
        ips = more;
    }
    cell_s(c, json_str_at(d, "addressType", ""));
    cell_or(c, ports, "<unset>");
    cell_or(c, ips, "<unset>");
    free(ports);
    free(ips);
    cell_age(d, c);
}

static void t_pdb(const json_t *d, json_t *c)
{
    cell_value(c, json_at(d, "spec.minAvailable"), "N/A");
    cell_value(c, json_at(d, "spec.maxUnavailable"), "N/A");
    cell_i(c, json_int_at(d, "status.disruptionsAllowed", 0));
    cell_age(d, c);
}

static void t_lease(const json_t *d, json_t *c)
{
    cell_s(c, json_str_at(d, "spec.holderIdentity", ""));
    cell_age(d, c);
}

static void t_revision(const json_t *d, json_t *c)
{
    size_t i;
    json_t *o, *controller = NULL;
    json_array_foreach (json_at(d, "metadata.ownerReferences"), i, o)
        if (json_bool_at(o, "controller", false))
            controller = o;
    const char *api = json_str_at(controller, "apiVersion", ""), *slash = strchr(api, '/');
    CLEANUP(free_charp)
    char *kind = xasprintf("%s%s%.*s", json_str_at(controller, "kind", ""), slash ? "." : "",
                           slash ? (int)(slash - api) : 0, api);
    for (char *p = kind; *p; p++)
        *p = *p >= 'A' && *p <= 'Z' ? (char)(*p + 32) : *p;
    if (controller)
        json_array_append_new(c, json_sprintf("%s/%s", kind, json_str_at(controller, "name", "")));
    else
        cell_s(c, "<none>");
    CLEANUP(free_charp)
    char *number = xasprintf("%lld", (long long)json_int_at(d, "revision", 0));
    cell_s(c, number);
    cell_age(d, c);
}

static void t_binding(const json_t *d, json_t *c)
{
    json_array_append_new(c, json_sprintf("%s/%s", json_str_at(d, "roleRef.kind", ""),
                                          json_str_at(d, "roleRef.name", "")));
    cell_age(d, c);
}

static void t_networkpolicy(const json_t *d, json_t *c)
{
    cell_selector(c, json_at(d, "spec.podSelector.matchLabels"));
    cell_age(d, c);
}

static void t_hpa(const json_t *d, json_t *c)
{
    json_array_append_new(c, json_sprintf("%s/%s", json_str_at(d, "spec.scaleTargetRef.kind", ""),
                                          json_str_at(d, "spec.scaleTargetRef.name", "")));
    cell_s(c, "<unknown>");
    cell_i(c, json_int_at(d, "spec.minReplicas", 1));
    cell_i(c, json_int_at(d, "spec.maxReplicas", 0));
    cell_i(c, json_int_at(d, "status.currentReplicas", 0));
    cell_age(d, c);
}

static void t_priorityclass(const json_t *d, json_t *c)
{
    cell_i(c, json_int_at(d, "value", 0));
    json_array_append_new(c, json_boolean(json_bool_at(d, "globalDefault", false)));
    cell_age(d, c);
    cell_s(c, json_str_at(d, "preemptionPolicy", ""));
}

static void t_webhooks(const json_t *d, json_t *c)
{
    cell_i(c, (int64_t)json_array_size(json_at(d, "webhooks")));
    cell_age(d, c);
}

static void t_policy(const json_t *d, json_t *c)
{
    cell_i(c, (int64_t)json_array_size(json_at(d, "spec.validations")));
    cell_or(c, json_str_at(d, "spec.paramKind.kind", ""), "<unset>");
    cell_age(d, c);
}

static void t_policybinding(const json_t *d, json_t *c)
{
    cell_s(c, json_str_at(d, "spec.policyName", ""));
    cell_or(c, json_str_at(d, "spec.paramRef.name", ""), "<unset>");
    cell_age(d, c);
}

/* Columns after NAME: "Title" string, "#Title" integer, "+Title" wide only. */
static const struct {
    const char *plural, *columns;
    void (*cells)(const json_t *doc, json_t *cells);
} kinds[] = {
    {"pods", "Ready,Status,Restarts,Age,+IP,+Node,+Nominated Node,+Readiness Gates", table_pod},
    {"deployments", "Ready,#Up-to-date,#Available,Age,+Containers,+Images,+Selector", t_deployment},
    {"replicasets", "#Desired,#Current,#Ready,Age,+Containers,+Images,+Selector", t_replicaset},
    {"daemonsets",
     "#Desired,#Current,#Ready,#Up-to-date,#Available,Node "
     "Selector,Age,+Containers,+Images,+Selector",
     t_daemonset},
    {"services", "Type,Cluster-IP,External-IP,Port(s),Age,+Selector", t_service},
    {"configmaps", "Data,Age", t_configmap},
    {"secrets", "Type,Data,Age", t_secret},
    {"serviceaccounts", "Age", cell_age},
    {"namespaces", "Status,Age", t_namespace},
    {"persistentvolumes", "Age", cell_age},
    {"persistentvolumeclaims", "Age", cell_age},
    {"resourcequotas", "Age", cell_age},
    {"nodes",
     "Status,Roles,Age,Version,+Internal-IP,+External-IP,+OS-Image,+Kernel-Version,+Container-"
     "Runtime",
     t_node},
    {"endpoints", "Endpoints,Age", t_endpoints},
    {"endpointslices", "AddressType,Ports,Endpoints,Age", t_endpointslice},
    {"poddisruptionbudgets", "Min Available,Max Unavailable,#Allowed Disruptions,Age", t_pdb},
    {"leases", "Holder,Age", t_lease},
    {"controllerrevisions", "Controller,Revision,Age", t_revision},
    {"rolebindings", "Role,Age", t_binding},
    {"clusterrolebindings", "Role,Age", t_binding},
    {"networkpolicies", "Pod-Selector,Age", t_networkpolicy},
    {"horizontalpodautoscalers", "Reference,Targets,MinPods,MaxPods,Replicas,Age", t_hpa},
    {"priorityclasses", "#Value,Global-Default,Age,PreemptionPolicy", t_priorityclass},
    {"mutatingwebhookconfigurations", "#Webhooks,Age", t_webhooks},
    {"validatingwebhookconfigurations", "#Webhooks,Age", t_webhooks},
    {"validatingadmissionpolicies", "#Validations,ParamKind,Age", t_policy},
    {"validatingadmissionpolicybindings", "PolicyName,ParamRef,Age", t_policybinding},
};
static const char other_columns[] = "Created At";
static const char event_columns[] =
    "Last Seen,Type,Reason,Object,+Subobject,+Source,Message,+First Seen,+Count,+Name";

static bool is_event(const struct resource *r)
{
    return !strcmp(r->plural, "events") && !resource_has(r, R_CUSTOM);
}

static int kind_index(const struct resource *r)
{
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds && !resource_has(r, R_CUSTOM); i++)
        if (!strcmp(kinds[i].plural, r->plural))
            return (int)i;
    return -1;
}

static json_t *column(const char *name, const char *type, const char *format,
                      const char *description, int64_t priority)
{
    return json_pack("{s:s,s:s,s:s,s:s,s:I}", "name", name, "type", type, "format", format,
                     "description", description, "priority", (json_int_t)priority);
}

static void add_columns(json_t *out, const char *spec)
{
    struct str rest = str_c(spec), head;
    while (rest.n) {
        rest = str_cut(rest, ',', &head);
        bool wide = head.n && head.p[0] == '+';
        if (wide)
            head = (struct str){head.p + 1, head.n - 1};
        bool number = head.n && head.p[0] == '#';
        if (number)
            head = (struct str){head.p + 1, head.n - 1};
        CLEANUP(free_charp) char *name = str_dup(head);
        const char *type = number ? "integer" : !strcmp(name, "Created At") ? "date" : "string";
        json_array_append_new(out, column(name, type, "", name, wide));
    }
}

static const char *description_of(const json_t *col, char *text, size_t n)
{
    snprintf(text, n, "Custom resource definition column (in JSONPath format): %s",
             json_str_at(col, "jsonPath", ""));
    return json_str_at(col, "description", text);
}

static void add_custom_columns(json_t *out, const struct crd_version *cv)
{
    size_t i;
    json_t *col;
    char text[512];
    json_array_foreach (cv->columns, i, col)
        json_array_append_new(
            out, column(json_str_at(col, "name", ""), json_str_at(col, "type", "string"),
                        json_str_at(col, "format", ""), description_of(col, text, sizeof text),
                        json_int_at(col, "priority", 0)));
    if (!json_array_size(cv->columns))
        json_array_append_new(out, column("Age", "date", "", "Age", 0));
}

static const char name_text[] =
    "Name must be unique within a namespace. Is required when creating resources, although some "
    "resources "
    "may allow a client to request the generation of an appropriate name automatically. Name is "
    "primarily "
    "intended for creation idempotence and configuration definition. Cannot be updated. More info: "
    "https://kubernetes.io/docs/concepts/overview/working-with-objects/names#names";

json_t *table_columns(const struct resource *r)
{
    json_t *out = json_array();
    int k = kind_index(r);
    if (!is_event(r))
        json_array_append_new(out, column("Name", "string", "name", name_text, 0));
    if (r->crdv)
        add_custom_columns(out, r->crdv);
    else
        add_columns(out, is_event(r) ? event_columns : k >= 0 ? kinds[k].columns : other_columns);
    return out;
}

/* Several results of a path are joined as kube-apiserver prints them. */
static json_t *custom_cell(const json_t *col, const json_t *doc)
{
    const char *type = json_str_at(col, "type", "string");
    json_t *found = json_array(), *out = NULL;
    jsonpath_find(doc, json_str_at(col, "jsonPath", ""), found);
    const json_t *v = json_array_get(found, 0);
    if (!v || json_is_null(v)) {
        out = json_null();
    } else if (!strcmp(type, "date")) {
        CLEANUP(free_charp) char *age = table_age(json_string_value(v));
        out = json_string(age);
    } else if (!strcmp(type, "integer")) {
        out = json_is_number(v) ? json_integer((json_int_t)json_number_value(v)) : json_null();
    } else if (!strcmp(type, "number")) {
        out = json_is_number(v) ? json_incref((json_t *)v) : json_null();
    } else if (!strcmp(type, "boolean")) {
        out = json_is_boolean(v) ? json_incref((json_t *)v) : json_null();
    } else if (json_is_string(v)) {
        out = json_incref((json_t *)v);
    } else {
        char *text = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT);
        out = json_string(text ? text : "");
        free(text);
    }
    json_decref(found);
    return out;
}

json_t *table_cells(const struct resource *r, const json_t *doc)
{
    json_t *cells = json_array(), *col;
    int k = kind_index(r);
    size_t i;
    if (is_event(r)) {
        t_event(doc, cells);
        return cells;
    }
    cell_s(cells, json_str_at(doc, "metadata.name", ""));
    if (r->crdv) {
        json_array_foreach (r->crdv->columns, i, col)
            json_array_append_new(cells, custom_cell(col, doc));
        if (!json_array_size(r->crdv->columns))
            cell_age(doc, cells);
    } else if (k >= 0) {
        kinds[k].cells(doc, cells);
    } else {
        cell_created(doc, cells);
    }
    return cells;
}
