/* create, update, delete, deletecollection. */
#include "local/render.h"
#include "local/verbs.h"

#include <stdlib.h>

/* The body of a write, or NULL with the call answered. */
static json_t *need_body(struct call *c)
{
    json_t *st = NULL, *doc = call_body(c, &st);
    if (doc)
        return doc;
    if (!st)
        (void)status_bad_request(&st, "the request has no body");
    call_fail(c, st);
    return NULL;
}

void verb_create(struct call *c)
{
    json_t *st = NULL, *out = NULL, *doc = need_body(c);
    if (!doc)
        return;
    if (object_create(c, doc, WRITE_PUT, &out, &st))
        call_fail(c, st);
    else
        call_reply_object(c, 201, out);
}

/* Kinds that PUT makes when they don't exist. */
static bool creates_on_update(const struct resource *r)
{
    static const char *const plurals[] = {"leases", "events", "endpoints", "limitranges", NULL};
    for (size_t i = 0; plurals[i]; i++)
        if (!strcmp(r->plural, plurals[i]))
            return !resource_has(r, R_CUSTOM);
    return false;
}

void verb_update(struct call *c)
{
    json_t *st = NULL, *out = NULL, *doc = need_body(c);
    struct obj *old = bucket_get(c->r->bucket, c->ns, c->name);
    int rc, status = 200;
    if (!doc)
        return;
    if (old) {
        obj_ref(old);
        rc = object_update(c, old, doc, WRITE_PUT, &out, &st);
        obj_unref(old);
    } else if (creates_on_update(c->r) && !c->sub &&
               !*json_str_at(doc, "metadata.resourceVersion", "")) {
        rc = object_create(c, doc, WRITE_PUT, &out, &st);
        status = 201;
    } else {
        rc = status_not_found(&st, c->r, c->name);
        json_decref(doc);
    }
    if (rc)
        call_fail(c, st);
    else
        call_reply_object(c, status, out);
}

/* ---- delete ---- */

static int bad_propagation(const char *p, json_t **st)
{
    static const char *const allowed[] = {"Foreground", "Background", "Orphan", "nil", NULL};
    json_t *causes = json_array(), *v = json_string(p);
    cause_unsupported(causes, "propagationPolicy", v, allowed);
    json_decref(v);
    return status_invalid(st, "meta.k8s.io", "DeleteOptions", "", causes);
}

static int parse_propagation(const char *p, struct delete_options *o, json_t **st)
{
    if (!p || !*p)
        return 0;
    if (!strcmp(p, "Background"))
        o->propagation = PROPAGATE_BACKGROUND;
    else if (!strcmp(p, "Foreground"))
        o->propagation = PROPAGATE_FOREGROUND;
    else if (!strcmp(p, "Orphan"))
        o->propagation = PROPAGATE_ORPHAN;
    else
        return bad_propagation(p, st);
    return 0;
}

int delete_options(struct call *c, struct delete_options *o, json_t **body, json_t **st)
{
    const char *grace = httpd_arg(c->req, "gracePeriodSeconds");
    const char *orphan = httpd_arg(c->req, "orphanDependents");
    *o = (struct delete_options){.grace = -1, .dry_run = c->dry_run};
    *body = call_body(c, st);
    if (!*body && *st)
        return -1;
    if (grace && *grace && str_to_i64(str_c(grace), 0, INT32_MAX, &o->grace))
        return status_bad_request(st, "invalid gracePeriodSeconds: %s", grace);
    const char *p = json_str_at(*body, "propagationPolicy", NULL);
    if (parse_propagation(p ? p : httpd_arg(c->req, "propagationPolicy"), o, st))
        return -1;
    if ((orphan && !strcmp(orphan, "true")) || json_bool_at(*body, "orphanDependents", false))
        o->propagation = PROPAGATE_ORPHAN;
    o->grace = json_int_at(*body, "gracePeriodSeconds", o->grace);
    o->uid = json_str_at(*body, "preconditions.uid", NULL);
    o->rv = json_str_at(*body, "preconditions.resourceVersion", NULL);
    const json_t *dry = json_object_get(*body, "dryRun");
    if (json_array_size(dry))
        o->dry_run = true;
    return 0;
}

void verb_delete(struct call *c)
{
    json_t *st = NULL, *body = NULL, *out = NULL;
    struct delete_options opt;
    bool gone = false;
    struct obj *o = bucket_get(c->r->bucket, c->ns, c->name);
    int rc = delete_options(c, &opt, &body, &st);
    if (!rc && !o)
        rc = status_not_found(&st, c->r, c->name);
    if (o)
        obj_ref(o);
    if (!rc)
        rc = object_delete(c->s, c->r, o, &opt, &gone, &out, &st);
    if (rc) {
        call_fail(c, st);
    } else if (gone && !resource_has(c->r, R_RETURNS_OBJ)) {
        call_reply(c, 200, status_success(c->r, o->name, o->uid));
        json_decref(out);
    } else {
        call_reply_object(c, 200, out);
    }
    obj_unref(o);
    json_decref(body);
}

void verb_delete_collection(struct call *c)
{
    json_t *st = NULL, *body = NULL, *items = json_array();
    struct delete_options opt;
    struct selector sel = {0};
    struct obj_list l = {0};
    int rc = delete_options(c, &opt, &body, &st);
    if (!rc)
        rc = selector_parse(c->r, httpd_arg(c->req, "labelSelector"),
                            httpd_arg(c->req, "fieldSelector"), &sel, &st);
    if (!rc)
        rc = list_collect(c, &sel, 0, &l, &st);
    for (size_t i = 0; !rc && i < l.n; i++) {
        bool gone;
        json_t *out = NULL;
        struct obj *now = bucket_get(c->r->bucket, l.v[i]->ns, l.v[i]->name);
        if (now)
            rc = object_delete(c->s, c->r, now, &opt, &gone, &out, &st);
        if (out && !resource_has(c->r, R_CUSTOM)) {
            json_object_del(out, "kind");
            json_object_del(out, "apiVersion");
        }
        if (out)
            json_array_append_new(items, out);
    }
    list_free(&l);
    selector_fini(&sel);
    json_decref(body);
    if (rc) {
        json_decref(items);
        call_fail(c, st);
        return;
    }
    char api[128];
    c->content_type = "application/json";
    call_reply(c, 200,
               json_pack("{s:o,s:s,s:{s:s},s:o}", "kind", json_sprintf("%sList", c->r->kind),
                         "apiVersion", resource_api_version(c->r, api), "metadata",
                         "resourceVersion", "", "items", items));
}
