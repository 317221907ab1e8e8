#include "local/openapi.h"
#include "local/types.h"

#include <stdio.h>
#include <stdlib.h>

#define DEFS "#/components/schemas/"

static char *group_version_path(const struct openapi_resource *r)
{
    return *r->group ? xasprintf("apis/%s/%s", r->group, r->version)
                     : xasprintf("api/%s", r->version);
}

/* "dev.baton.serving.v1alpha1.WorkerPool", as upstream names the schemas of custom resources. */
static char *schema_name(const struct openapi_resource *r)
{
    if (!r->schema)
        return xasprintf("io.k8s.api.%s.%s.%s", *r->group ? r->group : "core", r->version, r->kind);
    CLEANUP(free_charp) char *rest = xstrdup(r->group);
    char *out = xstrdup("");
    for (char *dot; *rest; dot ? (void)(*dot = 0) : (void)(*rest = 0)) {
        dot = strrchr(rest, '.');
        char *next = xasprintf("%s%s.", out, dot ? dot + 1 : rest);
        free(out);
        out = next;
    }
    char *full = xasprintf("%s%s.%s", out, r->version, r->kind);
    free(out);
    return full;
}

static unsigned long hash_of(const json_t *j)
{
    unsigned long h = 1469598103934665603ul;
    CLEANUP(free_charp) char *text = json_dumps(j, JSON_SORT_KEYS | JSON_COMPACT);
    for (const char *p = text; p && *p; p++)
        h = (h ^ (unsigned char)*p) * 1099511628211ul;
    return h;
}

json_t *openapi_v3_index(const struct openapi_resource *r, size_t n)
{
    json_t *paths = json_object();
    for (size_t i = 0; i < n; i++) {
        CLEANUP(free_charp) char *path = group_version_path(&r[i]);
        if (json_object_get(paths, path))
            continue;
        CLEANUP(json_decrefp) json_t *doc = openapi_v3_group(r[i].group, r[i].version, r, n);
        json_object_set_new(
            paths, path,
            json_pack("{s:o}", "serverRelativeURL",
                      json_sprintf("/openapi/v3/%s?hash=%016lX", path, hash_of(doc))));
    }
    return json_pack("{s:o}", "paths", paths);
}

static json_t *gvk_list(const struct openapi_resource *r)
{
    return json_pack("[{s:s,s:s,s:s}]", "group", r->group, "kind", r->kind, "version", r->version);
}

static json_t *gvk(const struct openapi_resource *r)
{
    return json_pack("{s:s,s:s,s:s}", "group", r->group, "kind", r->kind, "version", r->version);
}

static json_t *query_parameter(const char *name, const char *type, const char *description)
{
    return json_pack("{s:s,s:s,s:s,s:{s:s,s:b}}", "name", name, "in", "query", "description",
                     description, "schema", "type", type, "uniqueItems", 1);
}

static json_t *write_parameters(bool patch)
{
    json_t *p = json_array();
    json_array_append_new(
        p, query_parameter("dryRun", "string",
                           "When present, indicates that modifications should not be persisted."));
    json_array_append_new(
        p, query_parameter("fieldManager", "string",
                           "A name associated with the actor that is making these changes."));
    json_array_append_new(
        p,
        query_parameter("fieldValidation", "string",
                        "Ignore, Warn or Strict: what to do about unknown and duplicate fields."));
    if (patch)
        json_array_append_new(
            p, query_parameter("force", "boolean", "Force is going to \"force\" Apply requests."));
    return p;
}

static json_t *operation(const struct openapi_resource *r, const char *action, const char *ref,
                         bool write)
{
    json_t *op =
        json_pack("{s:s,s:o,s:{s:{s:s,s:{s:{s:{s:s}}}}}}", "x-kubernetes-action", action,
                  "x-kubernetes-group-version-kind", gvk(r), "responses", "200", "description",
                  "OK", "content", "application/json", "schema", "$ref", ref);
    if (write)
        json_object_set_new(op, "parameters", write_parameters(strcmp(action, "patch") == 0));
    return op;
}

static void add_paths(json_t *paths, const struct openapi_resource *r, const char *ref)
{
    CLEANUP(free_charp) char *base = group_version_path(r);
    CLEANUP(free_charp)
    char *list =
        xasprintf("/%s/%s%s", base, r->namespaced ? "namespaces/{namespace}/" : "", r->plural);
    CLEANUP(free_charp) char *one = xasprintf("%s/{name}", list);
    json_object_set_new(paths, list,
                        json_pack("{s:o,s:o}", "get", operation(r, "list", ref, false), "post",
                                  operation(r, "post", ref, true)));
    json_object_set_new(paths, one,
                        json_pack("{s:o,s:o,s:o,s:o}", "get", operation(r, "get", ref, false),
                                  "put", operation(r, "put", ref, true), "patch",
                                  operation(r, "patch", ref, true), "delete",
                                  operation(r, "delete", ref, false)));
}

static json_t *meta_ref(void)
{
    return json_pack("{s:[{s:s}],s:s,s:{}}", "allOf", "$ref",
                     DEFS "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta", "description",
                     "Standard object's metadata. More info: "
                     "https://git.k8s.io/community/contributors/devel/sig-architecture/"
                     "api-conventions.md#metadata",
                     "default");
}

static json_t *resource_schema(const struct openapi_resource *r)
{
    const json_t *own = r->schema ? r->schema : types_kind(r->group, r->version, r->kind);
    json_t *s =
        own ? json_deep_copy(own)
            : json_pack("{s:s,s:b}", "type", "object", "x-kubernetes-preserve-unknown-fields", 1);
    json_t *props = json_object_get(s, "properties");
    if (!props)
        json_object_set_new(s, "properties", props = json_object());
    json_object_set_new(
        props, "apiVersion",
        json_pack("{s:s,s:s}", "type", "string", "description",
                  "APIVersion defines the versioned schema of this representation of an object."));
    json_object_set_new(
        props, "kind",
        json_pack("{s:s,s:s}", "type", "string", "description",
                  "Kind is a string value representing the REST resource this object represents."));
    json_object_set_new(props, "metadata", meta_ref());
    json_object_set_new(s, "x-kubernetes-group-version-kind", gvk_list(r));
    return s;
}

static json_t *string_map(const char *description)
{
    return json_pack("{s:s,s:{s:s},s:s}", "type", "object", "additionalProperties", "type",
                     "string", "description", description);
}

static json_t *object_meta(void)
{
    static const char *const names[] = {"name",
                                        "generateName",
                                        "namespace",
                                        "uid",
                                        "resourceVersion",
                                        "creationTimestamp",
                                        "deletionTimestamp",
                                        "selfLink"};
    json_t *props = json_object();
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        json_object_set_new(props, names[i], json_pack("{s:s}", "type", "string"));
    json_object_set_new(props, "generation", json_pack("{s:s}", "type", "integer"));
    json_object_set_new(props, "deletionGracePeriodSeconds", json_pack("{s:s}", "type", "integer"));
    json_object_set_new(
        props, "labels",
        string_map(
            "Map of string keys and values that can be used to organize and categorize objects."));
    json_object_set_new(
        props, "annotations",
        string_map("Annotations is an unstructured key value map stored with a resource."));
    json_object_set_new(props, "finalizers",
                        json_pack("{s:s,s:{s:s}}", "type", "array", "items", "type", "string"));
    json_object_set_new(props, "ownerReferences",
                        json_pack("{s:s,s:{s:s}}", "type", "array", "items", "type", "object"));
    json_object_set_new(props, "managedFields",
                        json_pack("{s:s,s:{s:s}}", "type", "array", "items", "type", "object"));
    return json_pack("{s:s,s:s,s:o}", "type", "object", "description",
                     "ObjectMeta is metadata that all persisted resources must have.", "properties",
                     props);
}

/* Every built-in type that a schema refers to, and what those refer to. */
static void add_referred(json_t *schemas, const json_t *node)
{
    const char *key, *ref = json_string_value(json_object_get(node, "$ref"));
    json_t *v;
    size_t i;
    if (ref && strncmp(ref, DEFS, strlen(DEFS)) == 0 &&
        !json_object_get(schemas, ref + strlen(DEFS))) {
        json_t *to = json_object_get(types_components(), ref + strlen(DEFS));
        if (to) {
            json_object_set(schemas, ref + strlen(DEFS), to);
            add_referred(schemas, to);
        }
    }
    json_object_foreach ((json_t *)node, key, v)
        add_referred(schemas, v);
    json_array_foreach ((json_t *)node, i, v)
        add_referred(schemas, v);
}

json_t *openapi_v3_group(const char *group, const char *version, const struct openapi_resource *r,
                         size_t n)
{
    json_t *paths = json_object(), *schemas = json_object();
    size_t hits = 0;
    for (size_t i = 0; i < n; i++) {
        if (strcmp(r[i].group, group) != 0 || strcmp(r[i].version, version) != 0)
            continue;
        CLEANUP(free_charp) char *name = schema_name(&r[i]);
        CLEANUP(free_charp) char *ref = xasprintf(DEFS "%s", name);
        hits++;
        add_paths(paths, &r[i], ref);
        json_object_set_new(schemas, name, resource_schema(&r[i]));
    }
    json_object_set_new(schemas, "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta", object_meta());
    json_t *roots = json_copy(schemas), *root;
    const char *root_name;
    json_object_foreach (roots, root_name, root)
        add_referred(schemas, root);
    json_decref(roots);
    json_t *doc = json_pack("{s:s,s:{s:s,s:s},s:o,s:{s:o}}", "openapi", "3.0.0", "info", "title",
                            "Kubernetes", "version", "v1.37.2+baton", "paths", paths, "components",
                            "schemas", schemas);
    if (hits)
        return doc;
    json_decref(doc);
    return NULL;
}

json_t *openapi_v2(const struct openapi_resource *r, size_t n)
{
    json_t *definitions = json_object();
    for (size_t i = 0; i < n; i++) {
        CLEANUP(free_charp) char *name = schema_name(&r[i]);
        json_t *s = json_pack("{s:s,s:o}", "type", "object", "x-kubernetes-group-version-kind",
                              gvk_list(&r[i]));
        json_object_set_new(definitions, name, s);
    }
    return json_pack("{s:s,s:{s:s,s:s},s:{},s:o}", "swagger", "2.0", "info", "title", "Kubernetes",
                     "version", "v1.37.2+baton", "paths", "definitions", definitions);
}
