#include "local/crd.h"
#include "local/jsonpath.h"
#include "local/names.h"
#include "local/schema.h"
#include "local/server_int.h"
#include "local/types.h"

#include "lib/base/log.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>

#define GROUP "apiextensions.k8s.io"

/* ---- defaults and validation of definitions ---- */

static char *lower(const char *s)
{
    char *out = xstrdup(s);
    for (char *p = out; *p; p++)
        *p = (char)tolower((unsigned char)*p);
    return out;
}

void crd_defaults(struct server *s, json_t *doc, const json_t *old)
{
    (void)s;
    (void)old;
    json_t *spec = json_object_get(doc, "spec"), *names = json_object_get(spec, "names");
    if (!json_is_object(spec) || !json_is_object(names))
        return;
    const char *kind = json_str_at(names, "kind", "");
    CLEANUP(free_charp) char *low = lower(kind);
    if (!json_object_get(names, "singular"))
        json_object_set_new(names, "singular", json_string(low));
    if (!json_object_get(names, "listKind"))
        json_object_set_new(names, "listKind", json_sprintf("%sList", kind));
    if (!json_object_get(spec, "conversion"))
        json_object_set_new(spec, "conversion", json_pack("{s:s}", "strategy", "None"));
}

static void check_columns(const json_t *v, size_t index, json_t *causes)
{
    size_t i;
    json_t *col;
    json_array_foreach (json_object_get(v, "additionalPrinterColumns"), i, col) {
        struct err e = {0};
        CLEANUP(free_charp)
        char *at = xasprintf("spec.versions[%zu].additionalPrinterColumns[%zu].jsonPath", index, i);
        const json_t *path = json_object_get(col, "jsonPath");
        if (json_is_string(path) && jsonpath_check(json_string_value(path), &e))
            cause_invalid(causes, at, path, "%s", e.msg);
    }
}

static void check_scale(const json_t *v, size_t index, json_t *causes)
{
    const json_t *scale = json_at(v, "subresources.scale");
    const char *spec = json_str_at(scale, "specReplicasPath", ""),
               *status = json_str_at(scale, "statusReplicasPath", "");
    CLEANUP(free_charp)
    char *a = xasprintf("spec.versions[%zu].subresources.scale.specReplicasPath", index);
    CLEANUP(free_charp)
    char *b = xasprintf("spec.versions[%zu].subresources.scale.statusReplicasPath", index);
    if (*spec && strncmp(spec, ".spec.", 6))
        cause_invalid(causes, a, json_object_get(scale, "specReplicasPath"),
                      "should be a json path under .spec");
    if (*status && strncmp(status, ".status.", 8))
        cause_invalid(causes, b, json_object_get(scale, "statusReplicasPath"),
                      "should be a json path under .status");
}

static void check_schema(const json_t *v, size_t index, json_t *causes)
{
    const json_t *doc = json_at(v, "schema.openAPIV3Schema");
    struct field_errors errs = {0};
    struct schema *sc = NULL;
    CLEANUP(free_charp) char *base = xasprintf("spec.versions[%zu].schema.openAPIV3Schema", index);
    if (!doc) {
        cause_required(causes, base, "");
        return;
    }
    if (schema_compile(doc, &sc, &errs)) {
        for (size_t i = 0; i < errs.n; i++) {
            const char *p = errs.v[i].path, *cut = "spec.validation.openAPIV3Schema";
            if (!strncmp(p, cut, strlen(cut)))
                p += strlen(cut);
            CLEANUP(free_charp) char *at = xasprintf("%s%s", base, p);
            json_array_append_new(causes, json_pack("{s:s,s:s,s:s}", "reason", errs.v[i].reason,
                                                    "message", errs.v[i].message, "field", at));
        }
        field_errors_fini(&errs);
        return;
    }
    schema_free(sc);
}

static void check_versions(const json_t *doc, json_t *causes)
{
    const json_t *versions = json_at(doc, "spec.versions");
    size_t i, storage = 0;
    json_t *v;
    json_array_foreach ((json_t *)versions, i, v) {
        CLEANUP(free_charp) char *at = xasprintf("spec.versions[%zu].name", i);
        const char *why = name_check_dns1035_label(json_str_at(v, "name", ""));
        if (why)
            cause_invalid(causes, at, json_object_get(v, "name"), "%s", why);
        storage += json_bool_at(v, "storage", false);
        check_columns(v, i, causes);
        check_scale(v, i, causes);
        check_schema(v, i, causes);
    }
    if (storage != 1)
        cause_invalid(causes, "spec.versions", versions,
                      "must have exactly one version marked as storage version");
}

void crd_validate(const json_t *doc, const json_t *old, json_t *causes)
{
    static const char *const scopes[] = {"Cluster", "Namespaced", NULL};
    const json_t *spec = json_object_get(doc, "spec"), *scope = json_object_get(spec, "scope");
    const char *plural = json_str_at(spec, "names.plural", ""),
               *group = json_str_at(spec, "group", "");
    const char *sc = json_is_string(scope) ? json_string_value(scope) : "";
    CLEANUP(free_charp) char *want = xasprintf("%s.%s", plural, group);
    if (strcmp(want, json_str_at(doc, "metadata.name", "")))
        cause_invalid(causes, "metadata.name", json_at(doc, "metadata.name"),
                      "must be spec.names.plural+\".\"+spec.group");
    if (!strchr(group, '.'))
        cause_invalid(causes, "spec.group", json_object_get(spec, "group"),
                      "should be a domain with at least one dot");
    if (strcmp(sc, "Cluster") && strcmp(sc, "Namespaced"))
        cause_unsupported(causes, "spec.scope", scope, scopes);
    check_versions(doc, causes);
    static const char *const fixed[] = {"spec.group", "spec.scope", "spec.names.kind",
                                        "spec.names.plural"};
    for (size_t i = 0; old && i < 4; i++)
        if (!json_equal(json_at(old, fixed[i]), json_at(doc, fixed[i])))
            cause_invalid(causes, fixed[i], json_at(doc, fixed[i]), "field is immutable");
}

/* ---- status ---- */

static json_t *condition(const char *type, bool ok, const char *reason, const char *message)
{
    char now[40];
    return json_pack("{s:s,s:s,s:s,s:s,s:s}", "type", type, "status", ok ? "True" : "False",
                     "lastTransitionTime", now_rfc3339(now), "reason", reason, "message", message);
}

static bool names_taken(struct server *s, const json_t *doc)
{
    const char *group = json_str_at(doc, "spec.group", ""),
               *kind = json_str_at(doc, "spec.names.kind", "");
    const char *plural = json_str_at(doc, "spec.names.plural", "");
    for (size_t i = 0; i < registry_count(s->reg); i++) {
        const struct resource *r = registry_at(s->reg, i);
        if (strcmp(r->group, group))
            continue;
        bool own = r->crdv && !strcmp(r->crdv->crd->name, json_str_at(doc, "metadata.name", ""));
        if (!own && (!strcmp(r->kind, kind) || !strcmp(r->plural, plural)))
            return true;
    }
    return false;
}

static json_t *stored_versions(const json_t *doc)
{
    json_t *old = json_at(doc, "status.storedVersions"), *out = old ? json_copy(old) : json_array(),
           *v, *x;
    size_t i, k;
    json_array_foreach (json_at(doc, "spec.versions"), i, v) {
        bool have = false;
        if (!json_bool_at(v, "storage", false))
            continue;
        json_array_foreach (out, k, x)
            have |= json_equal(x, json_object_get(v, "name")) != 0;
        if (!have)
            json_array_append(out, json_object_get(v, "name"));
    }
    return out;
}

void crd_set_status(struct server *s, json_t *doc)
{
    bool taken = names_taken(s, doc);
    json_t *have = json_at(doc, "status.conditions");
    json_t *conditions = have && !taken ? json_incref(have) : json_array();
    if (!json_array_size(conditions)) {
        json_array_append_new(conditions, taken ? condition("NamesAccepted", false, "KindConflict",
                                                            "the names are already in use")
                                                : condition("NamesAccepted", true, "NoConflicts",
                                                            "no conflicts found"));
        json_array_append_new(
            conditions,
            taken ? condition("Established", false, "NotAccepted", "not all names are accepted")
                  : condition("Established", true, "InitialNamesAccepted",
                              "the initial names have been accepted"));
    }
    json_t *names = json_deep_copy(json_at(doc, "spec.names"));
    json_object_set_new(
        doc, "status",
        json_pack("{s:o,s:o,s:o}", "conditions", conditions, "acceptedNames",
                  taken ? json_pack("{s:s,s:s}", "plural", "", "kind", "") : json_incref(names),
                  "storedVersions", stored_versions(doc)));
    json_decref(names);
}

/* ---- serving ---- */

static char *join(const json_t *list)
{
    char *out = xstrdup("");
    size_t i;
    json_t *v;
    json_array_foreach ((json_t *)list, i, v) {
        char *more = xasprintf("%s%s%s", out, *out ? "," : "", json_string_value(v));
        free(out);
        out = more;
    }
    return out;
}

static char *path_of(const json_t *scale, const char *field)
{
    const char *p = json_str_at(scale, field, NULL);
    return p && *p ? xstrdup(*p == '.' ? p + 1 : p) : NULL;
}

/* The schema as navigation needs it: the root knows apiVersion, kind and metadata. */
static json_t *root_schema(const json_t *openapi)
{
    json_t *root = openapi ? json_deep_copy(openapi)
                           : json_pack("{s:s,s:b}", "type", "object",
                                       "x-kubernetes-preserve-unknown-fields", 1);
    json_t *props = json_object_get(root, "properties");
    if (!props) {
        props = json_object();
        json_object_set_new(root, "properties", props);
    }
    json_object_set_new(props, "apiVersion", json_pack("{s:s}", "type", "string"));
    json_object_set_new(props, "kind", json_pack("{s:s}", "type", "string"));
    json_object_set_new(props, "metadata",
                        json_pack("{s:s}", "$ref",
                                  "#/components/schemas/"
                                  "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"));
    return root;
}

static void fill_fields(struct crd_version *cv)
{
    size_t i, n = 0;
    json_t *f;
    json_array_foreach (cv->selectable, i, f) {
        const char *p = json_str_at(f, "jsonPath", "");
        if (n < 16 && *p == '.')
            cv->field_list[n++] = xstrdup(p + 1);
    }
    cv->ops.fields = (const char *const *)cv->field_list;
}

static void fill_version(struct crd *crd, struct crd_version *cv, const json_t *v)
{
    const json_t *openapi = json_at(v, "schema.openAPIV3Schema");
    const json_t *scale = json_at(v, "subresources.scale");
    struct field_errors errs = {0};
    static uint64_t serial;
    cv->crd = crd;
    cv->serial = ++serial;
    cv->name = xstrdup(json_str_at(v, "name", ""));
    cv->schema_doc = root_schema(openapi);
    if (openapi && schema_compile(openapi, &cv->schema, &errs)) {
        log_error("a stored schema doesn't compile", LS("crd", crd->name), LS("version", cv->name));
        field_errors_fini(&errs);
        cv->schema = NULL;
    }
    cv->columns = json_incref(json_object_get(v, "additionalPrinterColumns"));
    cv->selectable = json_incref(json_object_get(v, "selectableFields"));
    cv->scale_spec = path_of(scale, "specReplicasPath");
    cv->scale_status = path_of(scale, "statusReplicasPath");
    cv->scale_selector = path_of(scale, "labelSelectorPath");
    fill_fields(cv);
}

static void add_resource(struct server *s, struct crd *crd, struct crd_version *cv, const json_t *v)
{
    struct resource *r = xcalloc(1, sizeof *r);
    unsigned flags = R_CUSTOM | R_GENERATION | (crd->namespaced ? R_NAMESPACED : 0);
    if (json_is_object(json_at(v, "subresources.status")))
        flags |= R_STATUS;
    if (cv->scale_spec)
        flags |= R_SCALE;
    *r = (struct resource){.group = crd->group,
                           .version = cv->name,
                           .plural = crd->plural,
                           .singular = crd->singular,
                           .kind = crd->kind,
                           .short_names = crd->short_names,
                           .categories = crd->categories,
                           .flags = flags,
                           .ops = &cv->ops,
                           .schema = cv->schema_doc,
                           .crdv = cv};
    if (json_bool_at(v, "deprecated", false)) {
        const char *w = json_str_at(v, "deprecationWarning", NULL);
        r->deprecated = true;
        r->deprecation =
            w ? xstrdup(w) : xasprintf("%s/%s %s is deprecated", crd->group, cv->name, crd->kind);
    }
    registry_add_custom(s->reg, r);
}

static void free_resource(struct resource *r)
{
    free((char *)r->deprecation);
    free(r);
}

static void free_crd(struct crd *crd)
{
    for (size_t i = 0; i < crd->n_versions; i++) {
        struct crd_version *cv = &crd->versions[i];
        free(cv->name);
        json_decref(cv->schema_doc);
        schema_free(cv->schema);
        json_decref(cv->columns);
        json_decref(cv->selectable);
        free(cv->scale_spec);
        free(cv->scale_status);
        free(cv->scale_selector);
        for (size_t k = 0; cv->field_list[k]; k++)
            free(cv->field_list[k]);
    }
    free(crd->versions);
    free(crd->name);
    free(crd->group);
    free(crd->plural);
    free(crd->singular);
    free(crd->kind);
    free(crd->list_kind);
    free(crd->short_names);
    free(crd->categories);
    free(crd);
}

static void unserve(struct server *s, const char *name)
{
    for (struct crd **p = &s->crds; *p; p = &(*p)->next)
        if (!strcmp((*p)->name, name)) {
            struct crd *crd = *p;
            *p = crd->next;
            registry_remove_custom(s->reg, crd, free_resource);
            free_crd(crd);
            return;
        }
}

static bool established(const json_t *doc)
{
    size_t i;
    json_t *c;
    json_array_foreach (json_at(doc, "status.conditions"), i, c)
        if (!strcmp(json_str_at(c, "type", ""), "Established"))
            return !strcmp(json_str_at(c, "status", ""), "True");
    return false;
}

/* Versions in the order of discovery: as given, the storage version first. */
void crd_serve(struct server *s, const char *name, const json_t *doc)
{
    unserve(s, name);
    if (!doc || !established(doc))
        return;
    const json_t *names = json_at(doc, "spec.names"), *versions = json_at(doc, "spec.versions");
    struct crd *crd = xcalloc(1, sizeof *crd);
    crd->name = xstrdup(name);
    crd->group = xstrdup(json_str_at(doc, "spec.group", ""));
    crd->plural = xstrdup(json_str_at(names, "plural", ""));
    crd->singular = xstrdup(json_str_at(names, "singular", ""));
    crd->kind = xstrdup(json_str_at(names, "kind", ""));
    crd->list_kind = xstrdup(json_str_at(names, "listKind", ""));
    crd->short_names = join(json_object_get(names, "shortNames"));
    crd->categories = join(json_object_get(names, "categories"));
    crd->namespaced = !strcmp(json_str_at(doc, "spec.scope", ""), "Namespaced");
    crd->n_versions = json_array_size(versions);
    crd->versions = xcalloc(crd->n_versions + 1, sizeof *crd->versions);
    size_t i;
    json_t *v;
    for (int pass = 0; pass < 2; pass++)
        json_array_foreach ((json_t *)versions, i, v) {
            if (json_bool_at(v, "storage", false) != (pass == 0))
                continue;
            fill_version(crd, &crd->versions[i], v);
            if (json_bool_at(v, "served", false))
                add_resource(s, crd, &crd->versions[i], v);
        }
    crd->next = s->crds;
    s->crds = crd;
}

void crd_free_all(struct server *s)
{
    while (s->crds) {
        CLEANUP(free_charp) char *name = xstrdup(s->crds->name);
        unserve(s, name);
    }
}

void crd_reload(struct server *s)
{
    crd_free_all(s);
    const struct bucket *b = store_bucket(s->store, GROUP "/customresourcedefinitions");
    for (size_t i = 0; i < bucket_count(b); i++)
        crd_serve(s, bucket_at(b, i)->name, bucket_at(b, i)->doc);
}

const char *crd_list_kind(const struct resource *r, char out[256])
{
    if (r->crdv && r->crdv->crd->list_kind[0])
        return r->crdv->crd->list_kind;
    snprintf(out, 256, "%sList", r->kind);
    return out;
}
