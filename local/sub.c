#include "local/sub.h"

#include <stdlib.h>

static void fail_method(struct call *c)
{
    json_t *st = NULL;
    (void)status_method(&st);
    call_fail(c, st);
}

static void sub_status(struct call *c)
{
    switch (c->verb) {
    case VERB_GET: verb_get(c); break;
    case VERB_UPDATE: verb_update(c); break;
    case VERB_PATCH: verb_patch(c); break;
    default: fail_method(c);
    }
}

static void not_here(struct call *c)
{
    json_t *st = NULL;
    bool forward = !strcmp(c->sub, "portforward");
    (void)status_set(
        &st, 501, "NotImplemented", NULL, NULL,
        forward ? "the local API server does not forward ports: a pod runs as processes of "
                  "this machine, connect to its podIP (kubectl get pod %s -o wide)"
                : "the local API server does not run commands in pods: a pod runs as "
                  "processes of this machine, use a shell here; logs are at kubectl logs %s",
        c->name);
    call_fail(c, st);
}

/* PUT namespaces/<name>/finalize: only spec.finalizers changes. */
static void sub_finalize(struct call *c)
{
    json_t *st = NULL, *body = call_body(c, &st);
    struct obj *o = bucket_get(c->r->bucket, "", c->name);
    bool gone;
    if (c->verb != VERB_UPDATE) {
        json_decref(body);
        fail_method(c);
        return;
    }
    int rc = !body && st ? -1 : o ? 0 : status_not_found(&st, c->r, c->name);
    if (!rc) {
        json_t *doc = json_deep_copy(o->doc), *f = json_at(body, "spec.finalizers");
        json_object_set_new(doc, "spec", f ? json_pack("{s:O}", "finalizers", f) : json_object());
        o = object_store(c->s, c->r, doc, &st);
        rc = o ? 0 : -1;
    }
    json_t *out = rc ? NULL : object_view(c->r, o);
    if (!rc)
        rc = object_finish_delete(c->s, c->r, o, &gone, &st);
    json_decref(body);
    if (rc) {
        json_decref(out);
        call_fail(c, st);
    } else {
        call_reply_object(c, 200, out);
    }
}

static bool is_core(const struct call *c, const char *plural)
{
    return !c->r->group[0] && !strcmp(c->r->plural, plural);
}

static bool pod_sub(struct call *c)
{
    const char *s = c->sub;
    if (!strcmp(s, "log"))
        sub_log(c);
    else if (!strcmp(s, "binding"))
        sub_binding(c);
    else if (!strcmp(s, "eviction"))
        sub_eviction(c);
    else if (!strcmp(s, "exec") || !strcmp(s, "attach") || !strcmp(s, "portforward"))
        not_here(c);
    else
        return false;
    return true;
}

bool sub_handle(struct call *c)
{
    if (resource_has(c->r, R_VIRTUAL)) {
        if (is_core(c, "bindings"))
            sub_binding(c);
        else
            return sub_review(c);
        return true;
    }
    if (!strcmp(c->sub, "status") && resource_has(c->r, R_STATUS))
        sub_status(c);
    else if (!strcmp(c->sub, "scale") && resource_has(c->r, R_SCALE))
        sub_scale(c);
    else if (is_core(c, "pods"))
        return pod_sub(c);
    else if (is_core(c, "namespaces") && !strcmp(c->sub, "finalize"))
        sub_finalize(c);
    else if (is_core(c, "serviceaccounts") && !strcmp(c->sub, "token"))
        sub_token(c);
    else
        return false;
    return true;
}
