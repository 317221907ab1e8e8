/* Watches: initial events, the stream, bookmarks, deadlines. */
#include "local/render.h"
#include "local/verbs.h"

#include "lib/base/clock.h"
#include "lib/base/rng.h"

#include <stdio.h>
#include <stdlib.h>

#define MAX_EVENT_BYTES  (16u << 20)
#define MAX_QUEUED       (64u << 20) /* a client that is this far behind is cut off */
#define BOOKMARK_EVERY_S 10u

struct watch {
    struct server *s;
    struct call *c; /* NULL once the exchange is over or ended */
    struct watch *next;
    struct bucket *bucket;
    char *ns, *group, *version, *plural; /* the resource is looked up anew, its CRD may change */
    struct selector sel;
    struct render render;
    bool bookmarks, columns_sent;
    uint64_t start_rv, sent_rv, deadline_ns, bookmark_ns;
};

/* ---- writing ---- */

static void finish(struct watch *w, bool cut)
{
    struct call *c = w->c;
    if (!c)
        return;
    w->c = NULL;
    if (cut)
        httpd_abort(c->req);
    else
        httpd_stream_end(c->req);
}

static void send_text(struct watch *w, const char *type, struct str object)
{
    struct buf b;
    buf_init(&b, MAX_EVENT_BYTES + 64);
    int rc = buf_printf(&b, "{\"type\":\"%s\",\"object\":", type);
    if (!rc)
        rc = buf_str(&b, object);
    if (!rc)
        rc = buf_cstr(&b, "}\n");
    if (!rc)
        rc = httpd_stream_write(w->c->req, buf_view(&b));
    buf_fini(&b);
    if (rc)
        finish(w, true);
}

static void send_object(struct watch *w, const char *type, struct obj *o)
{
    struct buf b;
    if (!w->c)
        return;
    buf_init(&b, MAX_EVENT_BYTES);
    if (render_object(&w->render, o, !w->columns_sent, &b)) {
        finish(w, true);
    } else {
        w->columns_sent = true;
        send_text(w, type, buf_view(&b));
    }
    buf_fini(&b);
}

static void send_json(struct watch *w, const char *type, json_t *doc)
{
    char *text = json_dumps(doc, JSON_COMPACT);
    json_decref(doc);
    if (text && w->c)
        send_text(w, type, str_c(text));
    free(text);
}

static void send_bookmark(struct watch *w, bool initial_end)
{
    char api[128], rv[24];
    uint64_t at = store_rv(w->s->store);
    if (w->start_rv > at)
        at = w->start_rv;
    snprintf(rv, sizeof rv, "%llu", (unsigned long long)at);
    json_t *meta = json_pack("{s:s,s:n}", "resourceVersion", rv, "creationTimestamp");
    if (initial_end)
        json_object_set_new(meta, "annotations",
                            json_pack("{s:s}", "k8s.io/initial-events-end", "true"));
    const char *kind = w->render.r->kind;
    resource_api_version(w->render.r, api);
    json_t *doc = json_pack("{s:s,s:s,s:o}", "kind", kind, "apiVersion", api, "metadata", meta);
    json_t *view = w->render.accept == ACCEPT_TABLE
                       ? json_pack("{s:s,s:s,s:{s:s},s:n,s:[{s:[],s:o}]}", "kind", "Table",
                                   "apiVersion", "meta.k8s.io/v1", "metadata", "resourceVersion",
                                   rv, "columnDefinitions", "rows", "cells", "object", doc)
                       : render_doc(&w->render, doc);
    if (w->render.accept != ACCEPT_TABLE)
        json_decref(doc);
    send_json(w, "BOOKMARK", view);
    w->sent_rv = at;
}

/* ---- events ---- */

static bool sees(const struct watch *w, const struct obj *o)
{
    return o && (!*w->ns || !strcmp(o->ns, w->ns)) && selector_matches(&w->sel, o->doc);
}

/* An object that no longer matches is gone for this watcher: its old state under the new version.
 */
static void send_left(struct watch *w, const struct event *ev)
{
    json_t *doc = json_deep_copy(ev->prev->doc);
    char rv[24];
    snprintf(rv, sizeof rv, "%llu", (unsigned long long)ev->rv);
    json_object_set_new(json_object_get(doc, "metadata"), "resourceVersion", json_string(rv));
    struct obj tmp = *ev->prev;
    tmp.doc = doc;
    tmp.text = NULL;
    send_object(w, "DELETED", &tmp);
    free(tmp.text);
    json_decref(doc);
}

static void deliver(struct watch *w, const struct event *ev)
{
    if (!w->c || ev->bucket != w->bucket || ev->rv <= w->start_rv)
        return;
    bool before = sees(w, ev->prev), now = ev->type != EVENT_DELETED && sees(w, ev->obj);
    if (now)
        send_object(w, before ? "MODIFIED" : "ADDED", ev->obj);
    else if (before && ev->type == EVENT_DELETED)
        send_object(w, "DELETED", ev->obj);
    else if (before)
        send_left(w, ev);
    w->sent_rv = ev->rv;
}

/* The resource may have been replaced (CRD change) or be gone. */
static bool refresh(struct watch *w)
{
    w->render.r = resource_find(w->s->reg, w->group, w->version, w->plural);
    if (!w->render.r)
        finish(w, false);
    return w->render.r != NULL;
}

void watch_event(const struct event *ev, void *server)
{
    struct server *s = server;
    for (struct watch *w = s->watches, *next; w; w = next) {
        next = w->next;
        if (w->c && ev->bucket == w->bucket && refresh(w))
            deliver(w, ev);
    }
}

void watch_tick(struct server *s)
{
    uint64_t now = clock_mono_ns();
    for (struct watch *w = s->watches, *next; w; w = next) {
        next = w->next;
        if (!w->c || !refresh(w))
            continue;
        if (w->bookmarks && now >= w->bookmark_ns) {
            w->bookmark_ns = now + BOOKMARK_EVERY_S * NS_PER_S;
            if (store_rv(s->store) > w->sent_rv)
                send_bookmark(w, false);
        }
        if (w->c && now >= w->deadline_ns)
            finish(w, false);
    }
}

size_t watch_count(const struct server *s)
{
    size_t n = 0;
    for (const struct watch *w = s->watches; w; w = w->next)
        n += w->c != NULL;
    return n;
}

void watch_close(struct watch *w)
{
    for (struct watch **p = &w->s->watches; *p; p = &(*p)->next)
        if (*p == w) {
            *p = w->next;
            break;
        }
    selector_fini(&w->sel);
    free(w->ns);
    free(w->group);
    free(w->version);
    free(w->plural);
    free(w);
}

/* ---- start ---- */

struct start {
    uint64_t rv;
    bool initial;  /* send what exists first */
    bool mark_end; /* and a bookmark after it */
};

static int refuse(json_t **st, const char *field, const char *why)
{
    json_t *causes = json_array();
    cause_forbidden(causes, field, "%s", why);
    return status_invalid(st, "meta.k8s.io", "ListOptions", "", causes);
}

static bool is_true(const char *v)
{
    return v && (!strcmp(v, "true") || !strcmp(v, "1"));
}

static int parse_start(struct call *c, struct start *out, json_t **st)
{
    const char *rv = httpd_arg(c->req, "resourceVersion");
    const char *send = httpd_arg(c->req, "sendInitialEvents");
    const char *match = httpd_arg(c->req, "resourceVersionMatch");
    bool initial = is_true(send);
    *out = (struct start){0};
    if (rv && *rv && str_to_u64(str_c(rv), 0, UINT64_MAX, &out->rv))
        return status_bad_request(st, "Invalid value: \"%s\": resourceVersion must be a number",
                                  rv);
    if (send && *send && (!match || !*match))
        return refuse(st, "resourceVersionMatch",
                      "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan");
    if (match && *match && (!send || !*send))
        return refuse(
            st, "resourceVersionMatch",
            "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided");
    if (match && *match && strcmp(match, "NotOlderThan"))
        return refuse(st, "resourceVersionMatch",
                      "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan");
    if (initial && !is_true(httpd_arg(c->req, "allowWatchBookmarks")))
        out->mark_end = false;
    else
        out->mark_end = initial;
    out->initial = initial || ((!send || !*send) && !out->rv);
    return 0;
}

static struct watch *watch_new(struct call *c, struct selector *sel)
{
    struct watch *w = xcalloc(1, sizeof *w);
    const char *t = httpd_arg(c->req, "timeoutSeconds");
    uint64_t seconds = 1800 + rng_secret_u64() % 1800;
    if (t && *t && str_to_u64(str_c(t), 1, 86400, &seconds))
        seconds = 1800;
    w->s = c->s;
    w->c = c;
    w->bucket = c->r->bucket;
    w->ns = xstrdup(c->ns);
    w->group = xstrdup(c->r->group);
    w->version = xstrdup(c->r->version);
    w->plural = xstrdup(c->r->plural);
    w->sel = *sel;
    w->bookmarks = is_true(httpd_arg(c->req, "allowWatchBookmarks"));
    w->deadline_ns = clock_mono_ns() + seconds * NS_PER_S;
    w->bookmark_ns = clock_mono_ns() + BOOKMARK_EVERY_S * NS_PER_S;
    render_init(&w->render, c);
    w->next = c->s->watches;
    c->s->watches = w;
    c->watch = w;
    return w;
}

static void send_expired(struct watch *w, uint64_t rv)
{
    json_t *st = NULL;
    (void)status_expired(&st, "too old resource version: %llu (%llu)", (unsigned long long)rv,
                         (unsigned long long)store_compacted(w->s->store));
    send_json(w, "ERROR", st);
    finish(w, false);
}

static void send_initial(struct watch *w, struct call *c)
{
    struct obj_list l;
    json_t *st = NULL;
    if (list_collect(c, &w->sel, 0, &l, &st)) {
        json_decref(st);
        return;
    }
    for (size_t i = 0; i < l.n; i++)
        send_object(w, "ADDED", l.v[i]);
    list_free(&l);
}

static void replay(struct watch *w, uint64_t rv)
{
    const struct event *ev;
    for (size_t i = store_events_after(w->s->store, rv); (ev = store_event(w->s->store, i)); i++)
        deliver(w, ev);
}

void verb_watch(struct call *c)
{
    json_t *st = NULL;
    struct start start;
    struct selector sel = {0};
    server_commit(c->s); /* what is sent must be on disk */
    if (parse_start(c, &start, &st) ||
        selector_parse(c->r, httpd_arg(c->req, "labelSelector"), httpd_arg(c->req, "fieldSelector"),
                       &sel, &st)) {
        call_fail(c, st);
        return;
    }
    struct watch *w = watch_new(c, &sel);
    httpd_stream_start(c->req, 200, render_content_type(&w->render, true), MAX_QUEUED);
    if (start.initial) {
        w->start_rv = w->sent_rv = store_rv(c->s->store);
        send_initial(w, c);
        if (start.mark_end && w->c)
            send_bookmark(w, true);
        return;
    }
    if (start.rv && start.rv < store_compacted(c->s->store)) {
        send_expired(w, start.rv);
        return;
    }
    w->start_rv = w->sent_rv = start.rv ? start.rv : store_rv(c->s->store);
    replay(w, w->start_rv);
}
