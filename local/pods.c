/* Subresources of pods: log, binding, eviction. */
#include "local/managed.h"
#include "local/sub.h"

#include "lib/base/clock.h"

#include <errno.h>
#include <stdlib.h>

static void fail_method(struct call *c)
{
    json_t *st = NULL;
    (void)status_method(&st);
    call_fail(c, st);
}

/* ---- log ---- */

static bool has_container(const json_t *pod, const char *name, struct buf *all)
{
    static const char *const lists[] = {"spec.containers", "spec.initContainers",
                                        "spec.ephemeralContainers"};
    bool found = false;
    size_t i;
    json_t *v;
    for (size_t k = 0; k < 3; k++)
        json_array_foreach (json_at(pod, lists[k]), i, v) {
            const char *n = json_str_at(v, "name", "");
            found |= !strcmp(n, name);
            if (!k && buf_printf(all, "%s%s", all->n ? " " : "", n))
                break;
        }
    return found;
}

/* The container that is meant; the only one when none is named. Borrowed from pod or the request.
 */
static int pick_container(struct call *c, const struct obj *pod, const char **out, json_t **st)
{
    const char *want = httpd_arg(c->req, "container");
    const json_t *list = json_at(pod->doc, "spec.containers");
    struct buf all;
    buf_init(&all, 1 << 16);
    bool known = has_container(pod->doc, want ? want : "", &all);
    int rc = 0;
    if (want && *want) {
        if (!known)
            rc = status_bad_request(st, "container %s is not valid for pod %s", want, pod->name);
        *out = want;
    } else if (json_array_size(list) == 1) {
        *out = json_str_at(json_array_get(list, 0), "name", "");
    } else {
        rc = status_bad_request(
            st, "a container name must be specified for pod %s, choose one of: [%s]", pod->name,
            all.data ? all.data : "");
    }
    buf_fini(&all);
    return rc;
}

static bool arg_true(struct call *c, const char *key)
{
    const char *v = httpd_arg(c->req, key);
    return v && (!strcmp(v, "true") || !strcmp(v, "1"));
}

static int arg_number(struct call *c, const char *key, int64_t *out, json_t **st)
{
    const char *v = httpd_arg(c->req, key);
    if (v && *v && str_to_i64(str_c(v), 0, INT64_MAX, out))
        return status_bad_request(st, "%s: must be a number that is not negative", key);
    return 0;
}

static int parse_log(struct call *c, struct server_log_query *q, json_t **st)
{
    int64_t since = 0;
    uint64_t at = 0;
    const char *t = httpd_arg(c->req, "sinceTime");
    q->follow = arg_true(c, "follow");
    q->previous = arg_true(c, "previous");
    q->timestamps = arg_true(c, "timestamps");
    q->tail_lines = q->limit_bytes = -1;
    if (arg_number(c, "tailLines", &q->tail_lines, st) ||
        arg_number(c, "limitBytes", &q->limit_bytes, st) ||
        arg_number(c, "sinceSeconds", &since, st))
        return -1;
    if (t && *t && clock_parse_rfc3339(t, &at))
        return status_bad_request(st, "sinceTime: must be an RFC 3339 time");
    if (since > 1000000000)
        since = 1000000000;
    if (since)
        at = clock_wall_ns() - (uint64_t)since * NS_PER_S;
    q->since_wall_ns = (int64_t)at;
    return 0;
}

static int start_log(struct call *c, const struct obj *pod, json_t **st)
{
    struct server_log_query q = {.ns = c->ns, .pod = c->name, .uid = pod->uid};
    struct err e = {0};
    if (pick_container(c, pod, &q.container, st) || parse_log(c, &q, st))
        return -1;
    if (!c->s->log_fn)
        return status_set(st, 501, "NotImplemented", NULL, NULL,
                          "no kubelet runs beside this API server, so there are no logs");
    int rc = c->s->log_fn(&q, c->req, c->s->log_ctx, &e);
    if (rc == -ENOENT || rc == -EAGAIN)
        return status_bad_request(st, "%s", e.msg);
    return rc ? status_internal(st, "%s", e.msg) : 0;
}

void sub_log(struct call *c)
{
    json_t *st = NULL;
    struct obj *pod = bucket_get(c->r->bucket, c->ns, c->name);
    if (c->verb != VERB_GET) {
        fail_method(c);
        return;
    }
    int rc = pod ? 0 : status_not_found(&st, c->r, c->name);
    if (!rc)
        rc = start_log(c, pod, &st);
    if (rc)
        call_fail(c, st);
}

/* ---- binding ---- */

static json_t *bound(struct call *c, const struct obj *pod, const char *node)
{
    json_t *doc = json_deep_copy(pod->doc);
    char now[40];
    now_rfc3339(now);
    json_object_set_new(json_object_get(doc, "spec"), "nodeName", json_string(node));
    json_t *list = json_at(doc, "status.conditions");
    if (!list) {
        list = json_array();
        json_object_set_new(json_object_get(doc, "status"), "conditions", list);
    }
    for (size_t i = json_array_size(list); i-- > 0;)
        if (!strcmp(json_str_at(json_array_get(list, i), "type", ""), "PodScheduled"))
            json_array_remove(list, i);
    json_array_append_new(list, json_pack("{s:s,s:s,s:n,s:s}", "type", "PodScheduled", "status",
                                          "True", "lastProbeTime", "lastTransitionTime", now));
    const struct resource *pods = resource_find(c->s->reg, "", "v1", "pods");
    struct managed_writer w = {.manager = c->manager, .sub = "binding", .now = now};
    managed_update(pods, pod->doc, doc, &w);
    return doc;
}

static int bind_pod(struct call *c, const char *name, const json_t *body, json_t **st)
{
    const struct resource *pods = resource_find(c->s->reg, "", "v1", "pods");
    struct obj *pod = bucket_get(pods->bucket, c->ns, name);
    const char *node = json_str_at(body, "target.name", ""),
               *uid = json_str_at(body, "metadata.uid", "");
    if (!pod)
        return status_not_found(st, pods, name);
    if (!*node)
        return status_bad_request(st, "target.name: the node's name is required");
    const char *now = json_str_at(pod->doc, "spec.nodeName", "");
    CLEANUP(free_charp) char *why = NULL;
    if (*uid && strcmp(uid, pod->uid))
        why = xasprintf("Precondition failed: UID in precondition: %s, UID in object meta: %s", uid,
                        pod->uid);
    else if (*now)
        why = xasprintf("pod %s is already assigned to node \"%s\"", name, now);
    else if (json_array_size(json_at(pod->doc, "spec.schedulingGates")))
        why = xasprintf("pod %s has non-empty .spec.schedulingGates", name);
    else if (json_at(pod->doc, "metadata.deletionTimestamp"))
        why = xasprintf("pod %s is being deleted, cannot be assigned to a host", name);
    if (why) {
        (void)status_set(st, 409, "Conflict", pods, name,
                         "Operation cannot be fulfilled on pods/binding \"%s\": %s", name, why);
        json_object_set_new(json_object_get(*st, "details"), "kind", json_string("pods/binding"));
        return -1;
    }
    if (c->dry_run)
        return 0;
    return object_store(c->s, pods, bound(c, pod, node), st) ? 0 : -1;
}

void sub_binding(struct call *c)
{
    json_t *st = NULL;
    if (c->verb != VERB_CREATE) {
        fail_method(c);
        return;
    }
    json_t *body = call_body(c, &st);
    if (!body && !st)
        (void)status_bad_request(&st, "the request has no body");
    const char *name = c->name ? c->name : json_str_at(body, "metadata.name", "");
    if (st || bind_pod(c, name, body, &st))
        call_fail(c, st);
    else
        call_reply(c, 201,
                   json_pack("{s:s,s:s,s:{},s:s,s:i}", "kind", "Status", "apiVersion", "v1",
                             "metadata", "status", "Success", "code", 201));
    json_decref(body);
}

/* ---- eviction ---- */

static int evict(struct call *c, const json_t *body, json_t **st)
{
    struct obj *pod = bucket_get(c->r->bucket, c->ns, c->name);
    const json_t *o = json_object_get(body, "deleteOptions");
    struct delete_options opt = {.grace = json_int_at(o, "gracePeriodSeconds", -1),
                                 .uid = json_str_at(o, "preconditions.uid", NULL),
                                 .rv = json_str_at(o, "preconditions.resourceVersion", NULL),
                                 .dry_run =
                                     c->dry_run || json_array_size(json_object_get(o, "dryRun"))};
    bool gone;
    json_t *out = NULL;
    if (!pod)
        return status_not_found(st, c->r, c->name);
    if (pdb_check(c->s, pod, st))
        return -1;
    obj_ref(pod);
    int rc = object_delete(c->s, c->r, pod, &opt, &gone, &out, st);
    obj_unref(pod);
    json_decref(out);
    return rc;
}

void sub_eviction(struct call *c)
{
    json_t *st = NULL;
    if (c->verb != VERB_CREATE) {
        fail_method(c);
        return;
    }
    json_t *body = call_body(c, &st);
    if (st || evict(c, body, &st))
        call_fail(c, st);
    else
        call_reply(c, 201,
                   json_pack("{s:s,s:s,s:{},s:s,s:i}", "kind", "Status", "apiVersion", "v1",
                             "metadata", "status", "Success", "code", 201));
    json_decref(body);
}
