/* PATCH: JSON patch, merge patch, strategic merge patch, server-side apply. */
#include "local/jsonpatch.h"
#include "local/managed.h"
#include "local/smp.h"
#include "local/verbs.h"

#include <errno.h>
#include <stdlib.h>

enum patch_kind { PATCH_JSON, PATCH_MERGE, PATCH_STRATEGIC, PATCH_APPLY };

static int patch_kind_of(struct call *c, enum patch_kind *out, json_t **st)
{
    static const struct {
        const char *type;
        enum patch_kind kind;
    } kinds[] = {{"application/json-patch+json", PATCH_JSON},
                 {"application/merge-patch+json", PATCH_MERGE},
                 {"application/strategic-merge-patch+json", PATCH_STRATEGIC},
                 {"application/apply-patch+yaml", PATCH_APPLY}};
    const char *h = httpd_header(c->req, "Content-Type");
    struct str type, rest = str_cut(str_c(h ? h : ""), ';', &type);
    (void)rest;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (str_ieq_c(str_trim(type), kinds[i].type) &&
            !(kinds[i].kind == PATCH_STRATEGIC && resource_has(c->r, R_CUSTOM))) {
            *out = kinds[i].kind;
            return 0;
        }
    return status_media(st, resource_has(c->r, R_CUSTOM)
                                ? "application/json-patch+json, application/merge-patch+json, "
                                  "application/apply-patch+yaml"
                                : "application/json-patch+json, application/merge-patch+json, "
                                  "application/strategic-merge-patch+json, "
                                  "application/apply-patch+yaml");
}

static int check_apply_options(struct call *c, enum patch_kind kind, json_t **st)
{
    json_t *causes = json_array();
    const char *m = httpd_arg(c->req, "fieldManager");
    if (kind == PATCH_APPLY && (!m || !*m))
        cause_required(causes, "fieldManager", "is required for apply patch");
    if (kind != PATCH_APPLY && httpd_arg(c->req, "force"))
        cause_forbidden(causes, "force", "may not be specified for non-apply patch");
    return status_invalid(st, "meta.k8s.io", "PatchOptions", "", causes);
}

static json_t *read_patch(struct call *c, enum patch_kind kind, json_t **st)
{
    struct str body = httpd_body(c->req);
    if (!str_trim(body).n) {
        (void)status_bad_request(st, "the patch is empty");
        return NULL;
    }
    return call_decode(c, body, kind == PATCH_APPLY, st);
}

static int patch_error(enum patch_kind kind, int rc, const struct err *e, json_t **st)
{
    if (rc == -ENOENT || kind == PATCH_STRATEGIC) {
        (void)status_set(st, 422, "Invalid", NULL, NULL,
                         "the server rejected our request due to an error in our request: %s",
                         e->msg);
        json_object_set_new(*st, "details", json_object());
        return -1;
    }
    return status_bad_request(st, "error decoding patch: %s", e->msg);
}

static int change(enum patch_kind kind, const char *group_kind, json_t **doc, const json_t *patch,
                  json_t **st)
{
    struct err e = {0};
    int rc;
    if (kind == PATCH_JSON) {
        rc = jsonpatch_apply(doc, patch, &e);
    } else if (!json_is_object(patch)) {
        return status_bad_request(st, "error decoding patch: a patch of this type is an object");
    } else if (kind == PATCH_MERGE) {
        rc = json_merge_patch(*doc, patch);
    } else {
        rc = smp_apply(*doc, patch, group_kind, &e);
    }
    return rc ? patch_error(kind, rc, &e, st) : 0;
}

int patch_view(struct call *c, const char *group_kind, json_t **doc, json_t **st)
{
    enum patch_kind kind = PATCH_JSON;
    if (patch_kind_of(c, &kind, st))
        return -1;
    if (kind == PATCH_APPLY)
        return status_media(st, "application/json-patch+json, application/merge-patch+json, "
                                "application/strategic-merge-patch+json");
    json_t *patch = read_patch(c, kind, st);
    int rc = patch ? change(kind, group_kind, doc, patch, st) : -1;
    json_decref(patch);
    return rc;
}

static int do_change(struct call *c, enum patch_kind kind, struct obj *old, const json_t *patch,
                     json_t **out, json_t **st)
{
    json_t *doc = object_view(c->r, old);
    CLEANUP(free_charp)
    char *gk = xasprintf("%s%s%s", c->r->group, c->r->group[0] ? "/" : "", c->r->kind);
    if (change(kind, gk, &doc, patch, st)) {
        json_decref(doc);
        return -1;
    }
    return object_update(c, old, doc, WRITE_PATCH, out, st);
}

/* ---- apply ---- */

static int place_config(struct call *c, json_t *config, json_t **st)
{
    json_t *meta = json_object_get(config, "metadata");
    if (json_array_size(json_object_get(meta, "managedFields")))
        return status_bad_request(st, "metadata.managedFields must be nil");
    const char *name = json_str_at(meta, "name", "");
    if (*name && strcmp(name, c->name))
        return status_bad_request(
            st, "the name of the object (%s) does not match the name on the URL (%s)", name,
            c->name);
    json_object_set_new(meta, "name", json_string(c->name));
    if (resource_has(c->r, R_NAMESPACED) && !*json_str_at(meta, "namespace", ""))
        json_object_set_new(meta, "namespace", json_string(c->ns));
    json_object_del(meta, "managedFields");
    return 0;
}

static int do_apply(struct call *c, struct obj *old, json_t *config, json_t **out, json_t **st)
{
    char now[40];
    struct managed_writer w = {.manager = c->manager,
                               .sub = c->sub ? c->sub : "",
                               .now = now_rfc3339(now),
                               .force = c->force};
    json_t *doc = NULL;
    if (object_check(c, config, st) || place_config(c, config, st))
        return -1;
    if (!old && c->sub)
        return status_not_found(st, c->r, c->name);
    const char *uid = json_str_at(config, "metadata.uid", "");
    if (!old && *uid)
        return status_conflict(
            st, c->r, c->name,
            "uid mismatch: the provided object specified uid, and no existing object "
            "was found");
    if (old && *uid && strcmp(uid, json_str_at(old->doc, "metadata.uid", "")) != 0)
        return status_conflict(st, c->r, c->name,
                               "Precondition failed: the UID of the object in storage is another");
    json_t *before = old ? object_view(c->r, old) : NULL;
    int rc = managed_apply(c->r, before, config, &w, &doc, st);
    json_decref(before);
    if (rc)
        return rc;
    return old ? object_update(c, old, doc, WRITE_APPLY, out, st)
               : object_create(c, doc, WRITE_APPLY, out, st);
}

/* ---- the verb ---- */

void verb_patch(struct call *c)
{
    json_t *st = NULL, *out = NULL;
    enum patch_kind kind = PATCH_JSON;
    struct obj *old = bucket_get(c->r->bucket, c->ns, c->name);
    int rc = patch_kind_of(c, &kind, &st);
    if (!rc)
        rc = check_apply_options(c, kind, &st);
    json_t *patch = rc ? NULL : read_patch(c, kind, &st);
    bool created = !old;
    if (!rc && !patch)
        rc = -1;
    if (old)
        obj_ref(old);
    if (!rc && kind == PATCH_APPLY)
        rc = do_apply(c, old, patch, &out, &st);
    else if (!rc && !old)
        rc = status_not_found(&st, c->r, c->name);
    else if (!rc)
        rc = do_change(c, kind, old, patch, &out, &st);
    obj_unref(old);
    json_decref(patch);
    if (rc)
        call_fail(c, st);
    else
        call_reply_object(c, created ? 201 : 200, out);
}
