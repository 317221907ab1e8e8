#include "local/object.h"
#include "local/crd.h"
#include "local/fields.h"
#include "local/gc.h"
#include "local/managed.h"
#include "local/meta.h"
#include "local/schema.h"
#include "local/types.h"

#include "lib/base/clock.h"
#include "lib/base/rng.h"

#include <stdio.h>
#include <stdlib.h>

#define MAX_OBJECT_BYTES (3u << 19) /* 1.5 MiB, etcd's limit */

/* ---- storing ---- */

static bool is_crd(const struct resource *r)
{
    return !strcmp(r->plural, "customresourcedefinitions") &&
           !strcmp(r->group, "apiextensions.k8s.io");
}

struct obj *object_store(struct server *s, const struct resource *r, json_t *doc, json_t **st)
{
    struct err e = {0};
    const char *name = json_str_at(doc, "metadata.name", "");
    struct obj *old = bucket_get(r->bucket, json_str_at(doc, "metadata.namespace", ""), name);
    bool has_owners = json_array_size(json_at(doc, "metadata.ownerReferences")) > 0;
    bool crd = is_crd(r), created = !old;
    struct obj *o = store_put(s->store, r->bucket, doc, &e);
    if (!o) {
        status_internal(st, "%s", e.msg);
        return NULL;
    }
    if (created || has_owners)
        gc_note_written(s, o);
    if (crd)
        crd_serve(s, o->name, o->doc);
    if (created && !strcmp(r->plural, "namespaces") && !r->group[0])
        gc_note_namespace(s, o->name);
    server_touch(s);
    return o;
}

int object_remove(struct server *s, const struct resource *r, struct obj *o, json_t **st)
{
    struct err e = {0};
    obj_ref(o);
    int rc = store_remove(s->store, o, &e);
    if (rc) {
        rc = status_internal(st, "%s", e.msg);
    } else {
        gc_note_removed(s, o);
        if (is_crd(r))
            crd_serve(s, o->name, NULL);
        server_touch(s);
    }
    obj_unref(o);
    return rc;
}

json_t *object_view(const struct resource *r, const struct obj *o)
{
    char api[128];
    json_t *doc = json_deep_copy(o->doc);
    if (r->ops && r->ops->from_storage)
        doc = r->ops->from_storage(doc);
    json_object_set_new(doc, "apiVersion", json_string(resource_api_version(r, api)));
    if (r->crdv && r->crdv->schema) {
        schema_prune(r->crdv->schema, doc, NULL);
        schema_default(r->crdv->schema, doc);
    }
    return doc;
}

bool object_is_view(const struct resource *r, struct obj *o)
{
    char api[128];
    if ((r->ops && r->ops->from_storage) ||
        strcmp(json_str_at(o->doc, "apiVersion", ""), resource_api_version(r, api)))
        return false;
    if (!r->crdv || o->schema_serial == r->crdv->serial)
        return true;
    json_t *view = object_view(r, o);
    bool same = json_equal(view, o->doc);
    json_decref(view);
    if (same)
        o->schema_serial = r->crdv->serial;
    return same;
}

/* ---- decoding ---- */

static int check_kind(const struct resource *r, json_t *doc, json_t **st)
{
    char want[128];
    const char *api = json_str_at(doc, "apiVersion", ""), *kind = json_str_at(doc, "kind", "");
    resource_api_version(r, want);
    bool custom = resource_has(r, R_CUSTOM);
    if (!*kind && custom)
        return status_bad_request(st, "Object 'Kind' is missing in the request body");
    if (!*api && custom)
        return status_bad_request(st, "Object 'apiVersion' is missing in the request body");
    if (*api && strcmp(api, want) != 0)
        return status_bad_request(
            st, "the API version in the data (%s) does not match the expected API version (%s)",
            api, want);
    if (*kind && strcmp(kind, r->kind) != 0)
        return status_bad_request(st, "%s in version \"%s\" cannot be handled as a %s", kind,
                                  r->version, r->kind);
    json_object_set_new(doc, "apiVersion", json_string(want));
    json_object_set_new(doc, "kind", json_string(r->kind));
    return 0;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(json_string_value(*(json_t *const *)a), json_string_value(*(json_t *const *)b));
}

static void sort_strings(json_t *list)
{
    size_t n = json_array_size(list);
    json_t **v = xcalloc(n, sizeof(json_t *));
    for (size_t i = 0; i < n; i++)
        v[i] = json_incref(json_array_get(list, i));
    qsort(v, n, sizeof(json_t *), by_text);
    for (size_t i = 0; i < n; i++)
        json_array_set_new(list, i, v[i]);
    free(v);
}

static int report_unknown(struct call *c, json_t *unknown, json_t **st)
{
    size_t i, n = json_array_size(unknown);
    json_t *v;
    if (!n || c->validation == FIELDS_IGNORE)
        return 0;
    sort_strings(unknown);
    struct buf b;
    buf_init(&b, 1 << 16);
    int rc = 0;
    json_array_foreach (unknown, i, v) {
        if (c->validation == FIELDS_WARN)
            call_warn(c, "unknown field \"%s\"", json_string_value(v));
        else if (!rc)
            rc = buf_printf(&b, "%sunknown field \"%s\"", i ? ", " : "", json_string_value(v));
    }
    rc = 0;
    if (c->validation == FIELDS_STRICT)
        rc = status_bad_request(
            st, "%s in version \"%s\" cannot be handled as a %s: strict decoding error: %s",
            c->r->kind, c->r->version, c->r->kind, b.data ? b.data : "");
    buf_fini(&b);
    return rc;
}

static int prune_custom(struct call *c, json_t *doc, json_t **st)
{
    struct field_errors dropped = {0};
    json_t *unknown = json_array();
    json_t *meta_unknown = json_array();
    if (c->r->crdv->schema)
        schema_prune(c->r->crdv->schema, doc, &dropped);
    for (size_t i = 0; i < dropped.n; i++)
        json_array_append_new(unknown, json_string(dropped.v[i].path));
    fields_prune(types_object_meta(), json_object_get(doc, "metadata"), meta_unknown);
    size_t i;
    json_t *v;
    json_array_foreach (meta_unknown, i, v)
        json_array_append_new(unknown, json_sprintf("metadata.%s", json_string_value(v)));
    int rc = report_unknown(c, unknown, st);
    field_errors_fini(&dropped);
    json_decref(unknown);
    json_decref(meta_unknown);
    return rc;
}

static int prune_builtin(struct call *c, json_t *doc, json_t **st)
{
    struct err e = {0};
    json_t *unknown = json_array();
    int rc = 0;
    if (fields_check_types(c->r->schema, doc, &e))
        rc = status_bad_request(st, "%s in version \"%s\" cannot be handled as a %s: json: %s",
                                c->r->kind, c->r->version, c->r->kind, e.msg);
    if (!rc) {
        fields_prune(c->r->schema, doc, unknown);
        rc = report_unknown(c, unknown, st);
    }
    json_decref(unknown);
    return rc;
}

int object_check(struct call *c, json_t *doc, json_t **st)
{
    const struct resource *r = c->r;
    struct err e = {0};
    if (!json_is_object(doc))
        return status_bad_request(st, "the body is not a JSON object");
    if (check_kind(r, doc, st))
        return -1;
    json_t *meta = json_object_get(doc, "metadata");
    if (meta && !json_is_object(meta) && !json_is_null(meta))
        return status_bad_request(st, "metadata is not an object");
    if (!json_is_object(meta))
        json_object_set_new(doc, "metadata", json_object());
    if (fields_check_types(types_object_meta(), json_object_get(doc, "metadata"), &e))
        return status_bad_request(st,
                                  "%s in version \"%s\" cannot be handled as a %s: metadata: %s",
                                  r->kind, r->version, r->kind, e.msg);
    return resource_has(r, R_CUSTOM) ? prune_custom(c, doc, st) : prune_builtin(c, doc, st);
}

/* Brings a document from outside into stored form, checked, with defaults. */
static int take_in(struct call *c, json_t **doc, json_t **st)
{
    const struct resource *r = c->r;
    if (object_check(c, *doc, st))
        return -1;
    if (!resource_has(r, R_CUSTOM))
        fields_default(r->schema, *doc);
    else if (r->crdv->schema)
        schema_default(r->crdv->schema, *doc);
    if (r->ops && r->ops->to_storage)
        *doc = r->ops->to_storage(*doc);
    return 0;
}

/* ---- validation ---- */

static void validate_custom(const struct resource *r, const json_t *doc, const json_t *old,
                            json_t *causes)
{
    struct field_errors errs = {0};
    if (!r->crdv->schema || !schema_validate(r->crdv->schema, doc, old, &errs))
        return;
    for (size_t i = 0; i < errs.n; i++)
        json_array_append_new(causes,
                              json_pack("{s:s,s:s,s:s}", "reason", errs.v[i].reason, "message",
                                        errs.v[i].message, "field", errs.v[i].path));
    field_errors_fini(&errs);
}

static int validate(struct call *c, json_t *doc, const json_t *old, json_t **st)
{
    const struct resource *r = c->r;
    json_t *causes = json_array();
    meta_validate(r, doc, old, causes);
    if (resource_has(r, R_CUSTOM))
        validate_custom(r, doc, old, causes);
    else if (!r->ops || !r->ops->to_storage)
        fields_required(r->schema, doc, causes);
    if (r->ops && r->ops->validate)
        r->ops->validate(doc, old, causes);
    if (status_invalid(st, r->group, r->kind, json_str_at(doc, "metadata.name", ""), causes))
        return -1;
    return r->ops && r->ops->admit ? r->ops->admit(c->s, doc, old, st) : 0;
}

static int check_size(const json_t *doc, json_t **st)
{
    size_t n = json_dumpb(doc, NULL, 0, JSON_COMPACT);
    if (n <= MAX_OBJECT_BYTES)
        return 0;
    return status_set(st, 413, "RequestEntityTooLarge", NULL, NULL,
                      "Request entity too large: limit is %u", MAX_OBJECT_BYTES);
}

int object_check_namespace(struct server *s, const struct resource *r, const char *ns,
                           const char *name, json_t **st)
{
    const struct resource *nsr = resource_find(s->reg, "", "v1", "namespaces");
    const struct obj *o = bucket_get(nsr->bucket, "", ns);
    if (!o)
        return status_not_found(st, nsr, ns);
    if (!json_at(o->doc, "metadata.deletionTimestamp"))
        return 0;
    CLEANUP(free_charp)
    char *why = xasprintf(
        "unable to create new content in namespace %s because it is being terminated", ns);
    status_forbidden(st, r, name, why);
    CLEANUP(free_charp) char *msg = xasprintf("namespace %s is being terminated", ns);
    status_add_cause(*st, "NamespaceTerminating", msg, "metadata.namespace");
    return -1;
}

/* ---- create ---- */

static void manage(struct call *c, const json_t *old, json_t *doc, enum write_kind how)
{
    char now[40];
    struct managed_writer w = {
        .manager = c->manager, .sub = c->sub ? c->sub : "", .now = now_rfc3339(now)};
    if (how != WRITE_APPLY)
        managed_update(c->r, old, doc, &w);
}

static bool keeps_status_on_create(const struct resource *r)
{
    return !r->group[0] && !strcmp(r->plural, "nodes");
}

/* Stores unless dry-run, and gives back the served form. */
static int finish(struct call *c, json_t *doc, json_t **out, json_t **st)
{
    if (check_size(doc, st)) {
        json_decref(doc);
        return -1;
    }
    if (c->dry_run) {
        struct obj tmp = {.doc = doc};
        *out = object_view(c->r, &tmp);
        json_decref(doc);
        return 0;
    }
    struct obj *o = object_store(c->s, c->r, doc, st);
    if (!o)
        return -1;
    *out = object_view(c->r, o);
    return 0;
}

static int prepare_create(struct call *c, json_t **doc, enum write_kind how, json_t **st)
{
    const struct resource *r = c->r;
    if (take_in(c, doc, st) || meta_place(c, *doc, st))
        return -1;
    if (resource_has(r, R_NAMESPACED) &&
        object_check_namespace(c->s, r, json_str_at(*doc, "metadata.namespace", ""),
                               json_str_at(*doc, "metadata.name", ""), st))
        return -1;
    if (meta_new(c, *doc, st))
        return -1;
    if (resource_has(r, R_STATUS) && !keeps_status_on_create(r))
        json_object_del(*doc, "status");
    if (r->ops && r->ops->defaults)
        r->ops->defaults(c->s, *doc, NULL);
    manage(c, NULL, *doc, how);
    if (r->ops && r->ops->server_sets)
        r->ops->server_sets(c->s, *doc, NULL);
    if (validate(c, *doc, NULL, st))
        return -1;
    const char *name = json_str_at(*doc, "metadata.name", "");
    if (bucket_get(r->bucket, json_str_at(*doc, "metadata.namespace", ""), name))
        return status_exists(st, r, name);
    if (is_crd(r))
        crd_set_status(c->s, *doc);
    return 0;
}

int object_create(struct call *c, json_t *doc, enum write_kind how, json_t **out, json_t **st)
{
    if (prepare_create(c, &doc, how, st)) {
        json_decref(doc);
        return -1;
    }
    return finish(c, doc, out, st);
}

/* ---- update ---- */

/* What the endpoint may not change comes from the old object. */
static void keep_other_half(struct call *c, const json_t *old, json_t *doc)
{
    const json_t *status = json_object_get(old, "status");
    if (c->sub && !strcmp(c->sub, "status")) {
        json_t *mine = json_incref(json_object_get(doc, "status"));
        json_t *meta = json_incref(json_object_get(doc, "metadata"));
        json_object_clear(doc);
        json_t *copy = json_deep_copy(old);
        json_object_update(doc, copy);
        json_decref(copy);
        json_object_del(doc, "status");
        if (mine)
            json_object_set_new(doc, "status", mine);
        if (resource_has(c->r, R_CUSTOM)) {
            json_object_set_new(doc, "metadata", json_deep_copy(json_object_get(old, "metadata")));
            json_t *managed = json_object_get(meta, "managedFields");
            if (managed)
                json_object_set(json_object_get(doc, "metadata"), "managedFields", managed);
            json_decref(meta);
        } else {
            json_object_set_new(doc, "metadata", meta);
        }
    } else if (resource_has(c->r, R_STATUS)) {
        if (status)
            json_object_set_new(doc, "status", json_deep_copy(status));
        else
            json_object_del(doc, "status");
    }
    if (!strcmp(c->r->plural, "namespaces") && !c->r->group[0] && json_object_get(old, "spec"))
        json_object_set_new(doc, "spec", json_deep_copy(json_object_get(old, "spec")));
}

static bool same_spec(const json_t *a, const json_t *b, bool with_status)
{
    json_t *x = json_copy((json_t *)a), *y = json_copy((json_t *)b);
    static const char *const skip[] = {"metadata", "apiVersion", "kind", "status"};
    for (size_t i = 0; i < (with_status ? 3u : 4u); i++) {
        json_object_del(x, skip[i]);
        json_object_del(y, skip[i]);
    }
    bool same = json_equal(x, y);
    json_decref(x);
    json_decref(y);
    return same;
}

static void bump_generation(const struct resource *r, const json_t *old, json_t *doc)
{
    int64_t g = json_int_at(old, "metadata.generation", 0);
    if (resource_has(r, R_GENERATION) && !same_spec(old, doc, !resource_has(r, R_STATUS)))
        g++;
    json_t *meta = json_object_get(doc, "metadata");
    if (g)
        json_object_set_new(meta, "generation", json_integer(g));
    else
        json_object_del(meta, "generation");
}

static int prepare_update(struct call *c, const struct obj *old, json_t **doc, enum write_kind how,
                          json_t **st)
{
    const struct resource *r = c->r;
    if (take_in(c, doc, st) || meta_place(c, *doc, st) || meta_check_update(c, old, *doc, how, st))
        return -1;
    keep_other_half(c, old->doc, *doc);
    meta_keep(old->doc, *doc);
    if (r->ops && r->ops->defaults)
        r->ops->defaults(c->s, *doc, old->doc);
    if (r->ops && r->ops->server_sets)
        r->ops->server_sets(c->s, *doc, old->doc);
    bump_generation(r, old->doc, *doc);
    if (validate(c, *doc, old->doc, st))
        return -1;
    if (is_crd(r) && !c->sub)
        crd_set_status(c->s, *doc);
    manage(c, old->doc, *doc, how);
    return 0;
}

static bool unchanged(const json_t *old, const json_t *doc)
{
    json_t *a = json_copy((json_t *)old), *b = json_copy((json_t *)doc);
    json_t *am = json_copy(json_object_get(a, "metadata"));
    json_t *bm = json_copy(json_object_get(b, "metadata"));
    json_object_del(am, "resourceVersion");
    json_object_del(bm, "resourceVersion");
    json_object_del(a, "apiVersion");
    json_object_del(b, "apiVersion");
    json_object_set_new(a, "metadata", am);
    json_object_set_new(b, "metadata", bm);
    bool same = json_equal(a, b);
    json_decref(a);
    json_decref(b);
    return same;
}

int object_update(struct call *c, struct obj *old, json_t *doc, enum write_kind how, json_t **out,
                  json_t **st)
{
    if (prepare_update(c, old, &doc, how, st)) {
        json_decref(doc);
        return -1;
    }
    if (unchanged(old->doc, doc)) {
        json_decref(doc);
        *out = object_view(c->r, old);
        return 0;
    }
    if (finish(c, doc, out, st))
        return -1;
    if (c->dry_run)
        return 0;
    bool gone;
    struct obj *now = bucket_get(c->r->bucket, json_str_at(*out, "metadata.namespace", ""),
                                 json_str_at(*out, "metadata.name", ""));
    if (now && object_finish_delete(c->s, c->r, now, &gone, st)) {
        json_decref(*out);
        *out = NULL;
        return -1;
    }
    return 0;
}
