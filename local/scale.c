/* The scale subresource: a view of one number of an object. */
#include "local/crd.h"
#include "local/sub.h"

#include <stdlib.h>

struct paths {
    const char *spec, *status, *selector;
};

static struct paths paths_of(const struct resource *r)
{
    if (r->crdv)
        return (struct paths){r->crdv->scale_spec, r->crdv->scale_status, r->crdv->scale_selector};
    return (struct paths){"spec.replicas", "status.replicas", NULL};
}

static const char *op_word(const char *op)
{
    return !strcmp(op, "In") ? "in" : "notin";
}

/* matchLabels and matchExpressions as the string form. */
static char *selector_string(const json_t *sel)
{
    struct buf b;
    const char *key, *sep = "";
    json_t *v, *x;
    size_t i, k;
    buf_init(&b, 1 << 16);
    int rc = buf_append(&b, "", 0);
    json_object_foreach (json_object_get((json_t *)sel, "matchLabels"), key, v) {
        rc = rc ? rc : buf_printf(&b, "%s%s=%s", sep, key, json_string_value(v));
        sep = ",";
    }
    json_array_foreach (json_object_get(sel, "matchExpressions"), i, v) {
        const char *op = json_str_at(v, "operator", "");
        key = json_str_at(v, "key", "");
        if (!strcmp(op, "Exists") || !strcmp(op, "DoesNotExist")) {
            rc = rc ? rc : buf_printf(&b, "%s%s%s", sep, op[0] == 'E' ? "" : "!", key);
        } else {
            rc = rc ? rc : buf_printf(&b, "%s%s %s (", sep, key, op_word(op));
            json_array_foreach (json_object_get(v, "values"), k, x)
                rc = rc ? rc : buf_printf(&b, "%s%s", k ? "," : "", json_string_value(x));
            rc = rc ? rc : buf_cstr(&b, ")");
        }
        sep = ",";
    }
    return buf_take(&b);
}

static json_t *scale_of(const struct resource *r, const json_t *doc)
{
    struct paths p = paths_of(r);
    json_t *meta = json_object(), *spec = json_object(), *status = json_object();
    static const char *const kept[] = {"name", "namespace", "uid", "resourceVersion",
                                       "creationTimestamp"};
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
        json_t *v = json_object_get(json_object_get(doc, "metadata"), kept[i]);
        if (v)
            json_object_set(meta, kept[i], v);
    }
    json_t *n = json_at(doc, p.spec);
    if (json_is_integer(n))
        json_object_set(spec, "replicas", n);
    json_object_set_new(status, "replicas",
                        json_integer(p.status ? json_int_at(doc, p.status, 0) : 0));
    CLEANUP(free_charp) char *sel = r->crdv ? NULL : selector_string(json_at(doc, "spec.selector"));
    const char *text = sel ? sel : p.selector ? json_str_at(doc, p.selector, "") : "";
    if (*text)
        json_object_set_new(status, "selector", json_string(text));
    return json_pack("{s:s,s:s,s:o,s:o,s:o}", "kind", "Scale", "apiVersion", "autoscaling/v1",
                     "metadata", meta, "spec", spec, "status", status);
}

static int check_scale(struct call *c, const struct obj *o, const json_t *scale, int64_t *replicas,
                       json_t **st)
{
    char rv[24];
    snprintf(rv, sizeof rv, "%llu", (unsigned long long)o->rv);
    const json_t *n = json_at(scale, "spec.replicas");
    const char *have = json_str_at(scale, "metadata.resourceVersion", "");
    const char *kind = json_str_at(scale, "kind", "Scale"),
               *name = json_str_at(scale, "metadata.name", "");
    if (strcmp(kind, "Scale"))
        return status_bad_request(st, "expected a Scale, got %s", kind);
    if (*name && strcmp(name, o->name))
        return status_bad_request(
            st, "the name of the object (%s) does not match the name on the URL (%s)", name,
            o->name);
    if (*have && strcmp(have, rv))
        return status_modified(st, c->r, o->name);
    if (n && !json_is_integer(n))
        return status_bad_request(st, "spec.replicas: expected an integer");
    *replicas = json_is_integer(n) ? json_integer_value(n) : 0;
    if (*replicas >= 0)
        return 0;
    json_t *causes = json_array();
    cause_invalid(causes, "spec.replicas", n, "must be greater than or equal to 0");
    return status_invalid(st, "autoscaling", "Scale", o->name, causes);
}

static int write_scale(struct call *c, struct obj *o, const json_t *scale, json_t **out,
                       json_t **st)
{
    int64_t n = 0;
    if (check_scale(c, o, scale, &n, st))
        return -1;
    json_t *doc = object_view(c->r, o), *after = NULL;
    if (json_put(doc, paths_of(c->r).spec, json_integer(n))) {
        json_decref(doc);
        return status_internal(st, "the replicas path can't be set");
    }
    if (object_update(c, o, doc, WRITE_PATCH, &after, st))
        return -1;
    *out = scale_of(c->r, after);
    json_decref(after);
    return 0;
}

void sub_scale(struct call *c)
{
    json_t *st = NULL, *scale = NULL, *out = NULL;
    struct obj *o = bucket_get(c->r->bucket, c->ns, c->name);
    int rc = o ? 0 : status_not_found(&st, c->r, c->name);
    if (o)
        obj_ref(o);
    if (!rc && c->verb == VERB_GET) {
        out = scale_of(c->r, o->doc);
    } else if (!rc && c->verb == VERB_UPDATE) {
        scale = call_body(c, &st);
        rc = scale ? write_scale(c, o, scale, &out, &st) : -1;
    } else if (!rc && c->verb == VERB_PATCH) {
        scale = scale_of(c->r, o->doc);
        rc = patch_view(c, "autoscaling/Scale", &scale, &st);
        if (!rc)
            rc = write_scale(c, o, scale, &out, &st);
    } else if (!rc) {
        rc = status_method(&st);
    }
    if (rc && !st)
        (void)status_bad_request(&st, "the request has no body");
    obj_unref(o);
    json_decref(scale);
    if (rc)
        call_fail(c, st);
    else
        call_reply(c, 200, out);
}
