/* Namespaces, secrets, config maps, services, events, nodes. */
#include "local/kinds.h"
#include "local/names.h"
#include "local/server_int.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>

#define MAX_DATA_BYTES (1024u * 1024u)

/* ---- namespaces ---- */

static void namespace_defaults(struct server *s, json_t *doc, const json_t *old)
{
    (void)s;
    json_t *meta = json_object_get(doc, "metadata");
    if (!json_object_get(meta, "labels"))
        json_object_set_new(meta, "labels", json_object());
    json_object_set_new(json_object_get(meta, "labels"), "kubernetes.io/metadata.name",
                        json_string(json_str_at(meta, "name", "")));
    (void)old;
}

static void namespace_server_sets(struct server *s, json_t *doc, const json_t *old)
{
    (void)s;
    if (old)
        return;
    json_object_set_new(doc, "spec", json_pack("{s:[s]}", "finalizers", "kubernetes"));
    json_object_set_new(doc, "status", json_pack("{s:s}", "phase", "Active"));
}

static const char *const namespace_fields[] = {"status.phase", NULL};
const struct kind_ops ops_namespace = {.defaults = namespace_defaults,
                                       .server_sets = namespace_server_sets,
                                       .fields = namespace_fields};

/* ---- secrets and config maps ---- */

static char *to_base64(const char *in, size_t n)
{
    static const char abc[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    char *out = xmalloc((n + 2) / 3 * 4 + 1), *o = out;
    for (size_t i = 0; i < n; i += 3) {
        uint32_t v = (uint32_t)(unsigned char)in[i] << 16;
        if (i + 1 < n)
            v |= (uint32_t)(unsigned char)in[i + 1] << 8;
        if (i + 2 < n)
            v |= (uint32_t)(unsigned char)in[i + 2];
        *o++ = abc[v >> 18];
        *o++ = abc[(v >> 12) & 63];
        *o++ = i + 1 < n ? abc[(v >> 6) & 63] : '=';
        *o++ = i + 2 < n ? abc[v & 63] : '=';
    }
    *o = 0;
    return out;
}

static void secret_defaults(struct server *s, json_t *doc, const json_t *old)
{
    (void)s;
    const char *key;
    json_t *v, *in = json_object_get(doc, "stringData");
    if (!json_object_get(doc, "type"))
        json_object_set_new(doc, "type", json_string(json_str_at(old, "type", "Opaque")));
    if (!in)
        return;
    if (!json_object_get(doc, "data"))
        json_object_set_new(doc, "data", json_object());
    json_object_foreach (in, key, v) {
        CLEANUP(free_charp) char *b64 = to_base64(json_string_value(v), json_string_length(v));
        json_object_set_new(json_object_get(doc, "data"), key, json_string(b64));
    }
    json_object_del(doc, "stringData");
}

static bool is_data_key(const char *k)
{
    size_t n = strlen(k);
    if (!n || n > 253 || !strcmp(k, ".") || !strncmp(k, "..", 2))
        return false;
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)k[i]) && !strchr("-._", k[i]))
            return false;
    return true;
}

static size_t check_data(const json_t *doc, const char *field, json_t *causes)
{
    const char *key;
    json_t *v;
    size_t total = 0;
    json_object_foreach (json_object_get((json_t *)doc, field), key, v) {
        CLEANUP(free_charp) char *at = xasprintf("%s[%s]", field, key);
        json_t *k = json_string(key);
        if (!is_data_key(key))
            cause_invalid(
                causes, at, k,
                "a valid config key must consist of alphanumeric characters, '-', '_' or '.' "
                "(e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation "
                "is '[-._a-zA-Z0-9]+')");
        json_decref(k);
        total += json_string_length(v);
    }
    return total;
}

static void check_immutable(const json_t *doc, const json_t *old, json_t *causes)
{
    static const char *const fields[] = {"data", "binaryData"};
    if (!old || !json_is_true(json_object_get(old, "immutable")))
        return;
    if (!json_is_true(json_object_get(doc, "immutable")))
        cause_forbidden(causes, "immutable", "field is immutable when `immutable` is set");
    for (size_t i = 0; i < 2; i++) {
        json_t *a = json_object_get(doc, fields[i]), *b = json_object_get(old, fields[i]);
        if ((a || b) && !json_equal(a, b))
            cause_forbidden(causes, fields[i], "field is immutable when `immutable` is set");
    }
}

static void too_long(json_t *causes)
{
    json_array_append_new(causes,
                          json_pack("{s:s,s:s,s:s}", "reason", "FieldValueTooLong", "message",
                                    "Too long: may not be more than 1048576 bytes", "field", ""));
}

static void secret_validate(const json_t *doc, const json_t *old, json_t *causes)
{
    if (check_data(doc, "data", causes) > MAX_DATA_BYTES / 3 * 4 + 4)
        too_long(causes);
    check_immutable(doc, old, causes);
    const json_t *type = json_object_get(doc, "type");
    if (old && !json_equal((json_t *)type, json_object_get(old, "type")))
        cause_invalid(causes, "type", type, "field is immutable");
}

static void configmap_validate(const json_t *doc, const json_t *old, json_t *causes)
{
    size_t n = check_data(doc, "data", causes);
    n += check_data(doc, "binaryData", causes);
    if (n > MAX_DATA_BYTES)
        too_long(causes);
    check_immutable(doc, old, causes);
}

static const char *const secret_fields[] = {"type", NULL};
const struct kind_ops ops_secret = {
    .defaults = secret_defaults, .validate = secret_validate, .fields = secret_fields};
const struct kind_ops ops_configmap = {.validate = configmap_validate};

/* ---- services ---- */

static bool ip_taken(struct server *s, const char *ip)
{
    const struct bucket *b = store_bucket(s->store, "services");
    for (size_t i = 0; i < bucket_count(b); i++)
        if (strcmp(json_str_at(bucket_at(b, i)->doc, "spec.clusterIP", ""), ip) == 0)
            return true;
    return false;
}

static void assign_cluster_ip(struct server *s, json_t *spec)
{
    char ip[32];
    for (unsigned i = 1; i < 65536; i++) {
        snprintf(ip, sizeof ip, "10.96.%u.%u", i >> 8, i & 255);
        if (!ip_taken(s, ip))
            break;
    }
    json_object_set_new(spec, "clusterIP", json_string(ip));
}

static void service_defaults(struct server *s, json_t *doc, const json_t *old)
{
    json_t *spec = json_object_get(doc, "spec"), *p;
    size_t i;
    (void)s;
    (void)old;
    if (!json_is_object(spec))
        return;
    if (strcmp(json_str_at(spec, "type", ""), "ExternalName") &&
        !json_object_get(spec, "internalTrafficPolicy"))
        json_object_set_new(spec, "internalTrafficPolicy", json_string("Cluster"));
    json_array_foreach (json_object_get(spec, "ports"), i, p) {
        if (!json_object_get(p, "targetPort"))
            json_object_set_new(p, "targetPort", json_incref(json_object_get(p, "port")));
    }
}

static void service_server_sets(struct server *s, json_t *doc, const json_t *old)
{
    json_t *spec = json_object_get(doc, "spec");
    if (!json_is_object(spec))
        return;
    bool external = !strcmp(json_str_at(spec, "type", ""), "ExternalName");
    const char *ip = json_str_at(spec, "clusterIP", NULL);
    const char *before = json_str_at(old, "spec.clusterIP", NULL);
    if (!external && before && (!ip || !*ip))
        json_object_set_new(spec, "clusterIP", json_string(before));
    else if (!external && (!ip || !*ip))
        assign_cluster_ip(s, spec);
    if (!external) {
        json_object_set_new(spec, "clusterIPs",
                            json_pack("[s]", json_str_at(spec, "clusterIP", "None")));
        if (!json_object_get(spec, "ipFamilies"))
            json_object_set_new(spec, "ipFamilies", json_pack("[s]", "IPv4"));
        if (!json_object_get(spec, "ipFamilyPolicy"))
            json_object_set_new(spec, "ipFamilyPolicy", json_string("SingleStack"));
    }
    if (!old)
        json_object_set_new(doc, "status", json_pack("{s:{}}", "loadBalancer"));
}

static void service_validate(const json_t *doc, const json_t *old, json_t *causes)
{
    static const char *const types[] = {"ClusterIP", "ExternalName", "LoadBalancer", "NodePort",
                                        NULL};
    const json_t *spec = json_object_get(doc, "spec"), *type = json_object_get(spec, "type");
    const char *t = json_is_string(type) ? json_string_value(type) : "";
    size_t i, known = 0;
    json_t *p;
    for (i = 0; types[i]; i++)
        known += !strcmp(t, types[i]);
    if (!known)
        cause_unsupported(causes, "spec.type", type, types);
    const char *ip = json_str_at(spec, "clusterIP", "");
    if (!json_array_size(json_object_get(spec, "ports")) && strcmp(t, "ExternalName") &&
        strcmp(ip, "None"))
        cause_required(causes, "spec.ports", "");
    json_array_foreach (json_object_get(spec, "ports"), i, p) {
        const json_t *port = json_object_get(p, "port");
        CLEANUP(free_charp) char *at = xasprintf("spec.ports[%zu].port", i);
        if (json_is_integer(port) &&
            (json_integer_value(port) < 1 || json_integer_value(port) > 65535))
            cause_invalid(causes, at, port, "must be between 1 and 65535, inclusive");
        CLEANUP(free_charp) char *name_at = xasprintf("spec.ports[%zu].name", i);
        if (json_array_size(json_object_get(spec, "ports")) > 1 && !*json_str_at(p, "name", ""))
            cause_required(causes, name_at, "");
    }
    const char *before = json_str_at(old, "spec.clusterIP", "");
    if (*before && strcmp(before, ip) && strcmp(t, "ExternalName"))
        cause_invalid(causes, "spec.clusterIPs[0]", json_object_get(spec, "clusterIPs"),
                      "may not change once set");
}

static const char *const service_fields[] = {"spec.clusterIP", "spec.type", NULL};
const struct kind_ops ops_service = {.defaults = service_defaults,
                                     .server_sets = service_server_sets,
                                     .validate = service_validate,
                                     .fields = service_fields};

/* ---- events: core/v1 is the stored form, events.k8s.io/v1 the other name of the same fields ----
 */

static const struct {
    const char *core, *v1;
} event_names[] = {
    {"involvedObject", "regarding"},
    {"message", "note"},
    {"reportingComponent", "reportingController"},
    {"source", "deprecatedSource"},
    {"firstTimestamp", "deprecatedFirstTimestamp"},
    {"lastTimestamp", "deprecatedLastTimestamp"},
    {"count", "deprecatedCount"},
};

static void rename_field(json_t *doc, const char *from, const char *to)
{
    json_t *v = json_object_get(doc, from);
    if (!v)
        return;
    json_object_set(doc, to, v);
    json_object_del(doc, from);
}

static json_t *event_to_core(json_t *doc)
{
    for (size_t i = 0; i < sizeof event_names / sizeof *event_names; i++)
        rename_field(doc, event_names[i].v1, event_names[i].core);
    json_object_set_new(doc, "apiVersion", json_string("v1"));
    return doc;
}

static json_t *event_from_core(json_t *doc)
{
    for (size_t i = 0; i < sizeof event_names / sizeof *event_names; i++)
        rename_field(doc, event_names[i].core, event_names[i].v1);
    return doc;
}

static void event_validate(const json_t *doc, const json_t *old, json_t *causes)
{
    (void)old;
    const json_t *ns = json_at(doc, "involvedObject.namespace");
    const char *want =
        json_is_string(ns) && *json_string_value(ns) ? json_string_value(ns) : "default";
    if (strcmp(want, json_str_at(doc, "metadata.namespace", "")) != 0)
        cause_invalid(causes, "involvedObject.namespace", ns, "does not match event.namespace");
}

static const char *const event_fields[] = {
    "involvedObject.kind",
    "involvedObject.namespace",
    "involvedObject.name",
    "involvedObject.uid",
    "involvedObject.apiVersion",
    "involvedObject.resourceVersion",
    "involvedObject.fieldPath",
    "reason",
    "reportingComponent",
    "source=source.component",
    "type",
    NULL,
};
static const char *const event_v1_fields[] = {
    "regarding.kind=involvedObject.kind",
    "regarding.namespace=involvedObject.namespace",
    "regarding.name=involvedObject.name",
    "regarding.uid=involvedObject.uid",
    "regarding.apiVersion=involvedObject.apiVersion",
    "reason",
    "reportingController=reportingComponent",
    "type",
    NULL,
};
static void event_server_sets(struct server *s, json_t *doc, const json_t *old)
{
    (void)s;
    (void)old;
    static const char *const texts[] = {"reportingComponent", "reportingInstance"};
    for (size_t i = 0; i < 2; i++)
        if (!json_object_get(doc, texts[i]))
            json_object_set_new(doc, texts[i], json_string(""));
}

const struct kind_ops ops_event = {
    .server_sets = event_server_sets, .validate = event_validate, .fields = event_fields};
const struct kind_ops ops_event_v1 = {.validate = event_validate,
                                      .to_storage = event_to_core,
                                      .from_storage = event_from_core,
                                      .fields = event_v1_fields};

/* ---- nodes ---- */

static const char *const node_fields[] = {"spec.unschedulable", NULL};
static void node_server_sets(struct server *s, json_t *doc, const json_t *old)
{
    (void)s;
    json_t *capacity = json_at(doc, "status.capacity");
    if (!old && capacity && !json_at(doc, "status.allocatable"))
        json_object_set_new(json_object_get(doc, "status"), "allocatable",
                            json_deep_copy(capacity));
}
const struct kind_ops ops_node = {.server_sets = node_server_sets, .fields = node_fields};
