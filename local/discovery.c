#include "local/discovery.h"
#include "local/crd.h"
#include "local/openapi.h"

#include <openssl/sha.h>
#include <stdio.h>
#include <stdlib.h>

#define GIT_VERSION "v1.37.2+baton"

/* ---- what is served, as groups and versions ---- */

/* Calls fn for each (group, version) once, in order; ctx as given. */
typedef void (*gv_fn)(struct server *s, const char *group, const char *version, void *ctx);

static bool seen_before(const struct registry *g, size_t n, const char *group, const char *version)
{
    for (size_t i = 0; i < n; i++) {
        const struct resource *r = registry_at(g, i);
        if (!strcmp(r->group, group) && (!version || !strcmp(r->version, version)))
            return true;
    }
    return false;
}

static void each_group(struct server *s, gv_fn fn, void *ctx)
{
    for (size_t i = 0; i < registry_count(s->reg); i++) {
        const struct resource *r = registry_at(s->reg, i);
        if (!seen_before(s->reg, i, r->group, NULL))
            fn(s, r->group, NULL, ctx);
    }
}

static void each_version(struct server *s, const char *group, gv_fn fn, void *ctx)
{
    for (size_t i = 0; i < registry_count(s->reg); i++) {
        const struct resource *r = registry_at(s->reg, i);
        if (!strcmp(r->group, group) && !seen_before(s->reg, i, group, r->version))
            fn(s, group, r->version, ctx);
    }
}

static json_t *words(const char *commas)
{
    json_t *out = json_array();
    struct str rest = str_c(commas), head;
    while (rest.n) {
        rest = str_cut(rest, ',', &head);
        json_array_append_new(out, json_stringn(head.p, head.n));
    }
    return out;
}

static json_t *verbs_of(const struct resource *r)
{
    if (resource_has(r, R_VIRTUAL))
        return words("create");
    return words("create,delete,deletecollection,get,list,patch,update,watch");
}

struct sub {
    const char *name, *group, *version, *kind, *verbs;
};

/* Subresources of a resource; returns how many. */
static size_t subs_of(const struct resource *r, struct sub out[10])
{
    size_t n = 0;
    bool core = !r->group[0];
    if (resource_has(r, R_STATUS))
        out[n++] = (struct sub){"status", r->group, r->version, r->kind, "get,patch,update"};
    if (resource_has(r, R_SCALE))
        out[n++] = (struct sub){"scale", "autoscaling", "v1", "Scale", "get,patch,update"};
    if (core && !strcmp(r->plural, "pods")) {
        out[n++] = (struct sub){"attach", "", "v1", "PodAttachOptions", "create,get"};
        out[n++] = (struct sub){"binding", "", "v1", "Binding", "create"};
        out[n++] = (struct sub){"eviction", "policy", "v1", "Eviction", "create"};
        out[n++] = (struct sub){"exec", "", "v1", "PodExecOptions", "create,get"};
        out[n++] = (struct sub){"log", "", "v1", "Pod", "get"};
        out[n++] = (struct sub){"portforward", "", "v1", "PodPortForwardOptions", "create,get"};
    }
    if (core && !strcmp(r->plural, "namespaces"))
        out[n++] = (struct sub){"finalize", "", "v1", "Namespace", "update"};
    if (core && !strcmp(r->plural, "serviceaccounts"))
        out[n++] = (struct sub){"token", "authentication.k8s.io", "v1", "TokenRequest", "create"};
    return n;
}

static json_t *gvk(const char *group, const char *version, const char *kind)
{
    return json_pack("{s:s,s:s,s:s}", "group", group, "version", version, "kind", kind);
}

/* ---- aggregated discovery, v2 ---- */

static json_t *aggregated_resource(const struct resource *r)
{
    struct sub subs[10];
    size_t n = subs_of(r, subs);
    json_t *o = json_pack("{s:s,s:o,s:s,s:s,s:o}", "resource", r->plural, "responseKind",
                          gvk(r->group, r->version, r->kind), "scope",
                          resource_has(r, R_NAMESPACED) ? "Namespaced" : "Cluster",
                          "singularResource", r->singular, "verbs", verbs_of(r));
    if (r->short_names[0])
        json_object_set_new(o, "shortNames", words(r->short_names));
    if (r->categories[0])
        json_object_set_new(o, "categories", words(r->categories));
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(list, json_pack("{s:s,s:o,s:o}", "subresource", subs[i].name,
                                              "responseKind",
                                              gvk(subs[i].group, subs[i].version, subs[i].kind),
                                              "verbs", words(subs[i].verbs)));
    if (n)
        json_object_set(o, "subresources", list);
    json_decref(list);
    return o;
}

static void aggregated_version(struct server *s, const char *group, const char *version, void *ctx)
{
    json_t *resources = json_array();
    for (size_t i = 0; i < registry_count(s->reg); i++) {
        const struct resource *r = registry_at(s->reg, i);
        if (!strcmp(r->group, group) && !strcmp(r->version, version))
            json_array_append_new(resources, aggregated_resource(r));
    }
    json_array_append_new(ctx, json_pack("{s:s,s:o,s:s}", "version", version, "resources",
                                         resources, "freshness", "Current"));
}

struct groups_ctx {
    json_t *items;
    bool core;
};

static void aggregated_group(struct server *s, const char *group, const char *version, void *ctx)
{
    struct groups_ctx *g = ctx;
    json_t *versions = json_array();
    (void)version;
    if (g->core != !*group) {
        json_decref(versions);
        return;
    }
    each_version(s, group, aggregated_version, versions);
    json_t *meta = *group ? json_pack("{s:s,s:n}", "name", group, "creationTimestamp")
                          : json_pack("{s:n}", "creationTimestamp");
    json_array_append_new(g->items, json_pack("{s:o,s:o}", "metadata", meta, "versions", versions));
}

static void reply_aggregated(struct call *c, bool core)
{
    struct groups_ctx g = {.items = json_array(), .core = core};
    each_group(c->s, aggregated_group, &g);
    c->content_type = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    call_reply(c, 200,
               json_pack("{s:s,s:s,s:{},s:o}", "kind", "APIGroupDiscoveryList", "apiVersion",
                         "apidiscovery.k8s.io/v2", "metadata", "items", g.items));
}

static bool wants_aggregated(const struct call *c)
{
    const char *accept = httpd_header(c->req, "Accept");
    const char *p = accept ? strstr(accept, "APIGroupDiscoveryList") : NULL;
    return p && strstr(accept, "v=v2;");
}

/* ---- legacy discovery ---- */

static void legacy_version(struct server *s, const char *group, const char *version, void *ctx)
{
    (void)s;
    json_array_append_new(ctx,
                          json_pack("{s:o,s:s}", "groupVersion",
                                    json_sprintf("%s/%s", group, version), "version", version));
}

static json_t *legacy_one(struct server *s, const char *group)
{
    json_t *versions = json_array();
    each_version(s, group, legacy_version, versions);
    return json_pack("{s:s,s:o,s:O}", "name", group, "versions", versions, "preferredVersion",
                     json_array_get(versions, 0));
}

static void legacy_group(struct server *s, const char *group, const char *version, void *ctx)
{
    (void)version;
    if (*group)
        json_array_append_new(ctx, legacy_one(s, group));
}

static void add_legacy_resource(json_t *list, const struct resource *r)
{
    struct sub subs[10];
    size_t n = subs_of(r, subs);
    bool ns = resource_has(r, R_NAMESPACED);
    json_t *o = json_pack("{s:s,s:s,s:b,s:s,s:o}", "name", r->plural, "singularName", r->singular,
                          "namespaced", ns, "kind", r->kind, "verbs", verbs_of(r));
    if (r->short_names[0])
        json_object_set_new(o, "shortNames", words(r->short_names));
    if (r->categories[0])
        json_object_set_new(o, "categories", words(r->categories));
    json_array_append_new(list, o);
    for (size_t i = 0; i < n; i++) {
        json_t *x =
            json_pack("{s:o,s:s,s:b,s:s,s:o}", "name",
                      json_sprintf("%s/%s", r->plural, subs[i].name), "singularName", "",
                      "namespaced", ns, "kind", subs[i].kind, "verbs", words(subs[i].verbs));
        if (strcmp(subs[i].group, r->group)) {
            json_object_set_new(x, "group", json_string(subs[i].group));
            json_object_set_new(x, "version", json_string(subs[i].version));
        }
        json_array_append_new(list, x);
    }
}

/* False when the group and version aren't served. */
static bool reply_resources(struct call *c, const char *group, const char *version)
{
    json_t *list = json_array();
    for (size_t i = 0; i < registry_count(c->s->reg); i++) {
        const struct resource *r = registry_at(c->s->reg, i);
        if (!strcmp(r->group, group) && !strcmp(r->version, version))
            add_legacy_resource(list, r);
    }
    if (!json_array_size(list)) {
        json_decref(list);
        return false;
    }
    call_reply(c, 200,
               json_pack("{s:s,s:s,s:o,s:o}", "kind", "APIResourceList", "apiVersion", "v1",
                         "groupVersion", json_sprintf("%s%s%s", group, *group ? "/" : "", version),
                         "resources", list));
    return true;
}

static bool reply_group(struct call *c, const char *group)
{
    if (!seen_before(c->s->reg, registry_count(c->s->reg), group, NULL))
        return false;
    json_t *g = legacy_one(c->s, group);
    json_object_set_new(g, "kind", json_string("APIGroup"));
    json_object_set_new(g, "apiVersion", json_string("v1"));
    call_reply(c, 200, g);
    return true;
}

static bool reply_apis(struct call *c)
{
    if (wants_aggregated(c)) {
        reply_aggregated(c, false);
        return true;
    }
    json_t *groups = json_array();
    each_group(c->s, legacy_group, groups);
    call_reply(
        c, 200,
        json_pack("{s:s,s:s,s:o}", "kind", "APIGroupList", "apiVersion", "v1", "groups", groups));
    return true;
}

static bool reply_api(struct call *c)
{
    if (wants_aggregated(c)) {
        reply_aggregated(c, true);
        return true;
    }
    call_reply(c, 200,
               json_pack("{s:s,s:[s],s:[{s:s,s:s}]}", "kind", "APIVersions", "versions", "v1",
                         "serverAddressByClientCIDRs", "clientCIDR", "0.0.0.0/0", "serverAddress",
                         c->s->url + strlen("https://")));
    return true;
}

static bool reply_version(struct call *c)
{
    call_reply(c, 200,
               json_pack("{s:s,s:s,s:s,s:s,s:s,s:s,s:s,s:s,s:s}", "major", "1", "minor", "37",
                         "gitVersion", GIT_VERSION, "gitCommit", "", "gitTreeState", "clean",
                         "buildDate", "2026-11-01T00:00:00Z", "goVersion", "none", "compiler",
                         "gcc", "platform", "linux/amd64"));
    return true;
}

/* ---- OpenAPI ---- */

static struct openapi_resource *openapi_resources(struct server *s, size_t *n)
{
    size_t count = registry_count(s->reg);
    struct openapi_resource *out = xcalloc(count + 1, sizeof *out);
    for (size_t i = 0; i < count; i++) {
        const struct resource *r = registry_at(s->reg, i);
        out[i] = (struct openapi_resource){.group = r->group,
                                           .version = r->version,
                                           .kind = r->kind,
                                           .plural = r->plural,
                                           .namespaced = resource_has(r, R_NAMESPACED),
                                           .status = resource_has(r, R_STATUS),
                                           .scale = resource_has(r, R_SCALE),
                                           .schema = r->crdv ? r->schema : NULL};
    }
    *n = count;
    return out;
}

static void reply_with_etag(struct call *c, json_t *doc)
{
    char *text = json_dumps(doc, JSON_COMPACT);
    json_decref(doc);
    unsigned char sum[SHA256_DIGEST_LENGTH];
    char hex[2 * sizeof sum + 1], tag[2 * sizeof sum + 3];
    SHA256((const unsigned char *)text, strlen(text), sum);
    str_to_hex(sum, sizeof sum, hex);
    snprintf(tag, sizeof tag, "\"%s\"", hex);
    const char *have = httpd_header(c->req, "If-None-Match");
    httpd_set_header(c->req, "Etag", tag);
    if (have && strstr(have, hex))
        call_reply_text(c, 304, "application/json", STR(""));
    else
        call_reply_text(c, 200, "application/json", str_c(text));
    free(text);
}

/* kubectl validates what the server can't (kind List) by the v2 document and wants it as protobuf:
 * one without definitions, which means that there is nothing to check. gnostic's
 * openapi.v2.Document: swagger = 1, info = 2 {title = 1, version = 2}, paths = 8. */
static bool reply_v2_protobuf(struct call *c)
{
    static const char doc[] = "\x0a\x03"
                              "2.0"
                              "\x12\x15\x0a\x0a"
                              "Kubernetes"
                              "\x12\x07"
                              "v1.37.2"
                              "\x42\x00";
    call_reply_text(c, 200, "application/com.github.proto-openapi.spec.v2.v1.0+protobuf",
                    (struct str){doc, sizeof doc - 1});
    return true;
}

static bool reply_openapi(struct call *c, struct str path)
{
    const char *accept = httpd_header(c->req, "Accept");
    if (accept && strstr(accept, "protobuf") && str_eq_c(path, "/openapi/v2"))
        return reply_v2_protobuf(c);
    size_t n;
    struct openapi_resource *r = openapi_resources(c->s, &n);
    json_t *doc = NULL;
    CLEANUP(free_charp) char *p = str_dup(path);
    char group[256] = "", version[64] = "";
    if (!strcmp(p, "/openapi/v2"))
        doc = openapi_v2(r, n);
    else if (!strcmp(p, "/openapi/v3"))
        doc = openapi_v3_index(r, n);
    else if (sscanf(p, "/openapi/v3/apis/%255[^/]/%63[^/]", group, version) == 2 ||
             sscanf(p, "/openapi/v3/api/%63[^/]", version) == 1)
        doc = openapi_v3_group(group, version, r, n);
    free(r);
    if (doc)
        reply_with_etag(c, doc);
    return doc != NULL;
}

/* ---- */

static bool reply_root(struct call *c)
{
    call_reply(c, 200,
               json_pack("{s:[s,s,s,s,s,s,s,s]}", "paths", "/api", "/api/v1", "/apis", "/healthz",
                         "/livez", "/openapi/v3", "/readyz", "/version"));
    return true;
}

bool discovery_handle(struct call *c, struct str path)
{
    char group[256], version[64], extra;
    if (!str_eq_c(httpd_method(c->req), "GET") && !str_eq_c(httpd_method(c->req), "HEAD"))
        return false;
    while (path.n > 1 && path.p[path.n - 1] == '/')
        path.n--;
    CLEANUP(free_charp) char *p = str_dup(path);
    if (!strcmp(p, "/"))
        return reply_root(c);
    if (!strcmp(p, "/api"))
        return reply_api(c);
    if (!strcmp(p, "/apis"))
        return reply_apis(c);
    if (!strcmp(p, "/version"))
        return reply_version(c);
    if (str_starts(path, STR("/openapi/")))
        return reply_openapi(c, path);
    if (sscanf(p, "/api/%63[^/]%c", version, &extra) == 1)
        return reply_resources(c, "", version);
    if (sscanf(p, "/apis/%255[^/]/%63[^/]%c", group, version, &extra) == 2)
        return reply_resources(c, group, version);
    if (sscanf(p, "/apis/%255[^/]%c", group, &extra) == 1)
        return reply_group(c, group);
    return false;
}
