/* Requests: who asks, for what, in which form; then to the handler of the verb. */
#include "local/auth.h"
#include "local/discovery.h"
#include "local/proto.h"
#include "local/render.h"
#include "local/verbs.h"

#include "lib/base/clock.h"
#include "lib/base/metrics.h"
#include "lib/kube/yaml.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#define MAX_SEGMENTS 12
#define MAX_BODY     (3u << 20)

/* ---- replies ---- */

static void meter_reply(const struct call *c)
{
    static const char *const verbs[] = {"get",    "list",  "watch",  "create",
                                        "update", "patch", "delete", "deletecollection"};
    static struct metric_family *requests, *seconds;
    if (!requests) {
        requests = metric_family(METRIC_COUNTER, "baton_apiserver_requests_total",
                                 "Requests answered, by verb, resource and status.",
                                 "verb,resource,code", NULL, 0);
        seconds =
            metric_family(METRIC_HISTOGRAM, "baton_apiserver_request_duration_seconds",
                          "Time from a request to its answer, commit included.", "verb", NULL, 0);
    }
    if (!c->r)
        return;
    char code[8];
    snprintf(code, sizeof code, "%d", c->status);
    metric_add(metric_series(requests, verbs[c->verb], c->r->plural, code), 1);
    metric_observe(metric_series(seconds, verbs[c->verb]),
                   (double)(clock_mono_ns() - c->start_ns) / (double)NS_PER_S);
}

static void send_reply(struct call *c)
{
    meter_reply(c);
    for (size_t i = json_array_size(c->warnings); i-- > 0;) { /* headers leave last set first */
        const json_t *w = json_array_get(c->warnings, i);
        CLEANUP(free_charp) char *h = xasprintf("299 - %s", json_string_value(w));
        httpd_set_header(c->req, "Warning", h);
    }
    httpd_reply(c->req, c->status, c->content_type, (struct str){c->body, c->body_len});
}

void call_reply_text(struct call *c, int status, const char *content_type, struct str text)
{
    c->status = status;
    c->content_type = content_type;
    free(c->body);
    c->body = str_dup(text);
    c->body_len = text.n;
    if (!store_dirty(c->s->store)) {
        send_reply(c);
        return;
    }
    c->queued = true;
    c->next = c->s->waiting;
    c->s->waiting = c;
}

void call_reply(struct call *c, int status, json_t *doc)
{
    char *text = json_dumps(doc, JSON_COMPACT);
    json_decref(doc);
    if (!text) {
        call_reply_text(c, 500, "text/plain", STR("the answer can't be written as JSON\n"));
        return;
    }
    call_reply_text(c, status, c->content_type ? c->content_type : "application/json", str_c(text));
    free(text);
}

void call_fail(struct call *c, json_t *st)
{
    int code = status_code(st);
    if (code == 401)
        httpd_set_header(c->req, "WWW-Authenticate", "Bearer");
    int64_t retry = json_int_at(st, "details.retryAfterSeconds", 0);
    char text[24];
    snprintf(text, sizeof text, "%lld", (long long)retry);
    if (retry)
        httpd_set_header(c->req, "Retry-After", text);
    c->content_type = "application/json";
    call_reply(c, code, st);
}

void call_reply_object(struct call *c, int status, json_t *doc)
{
    struct render d;
    render_init(&d, c);
    json_t *v = render_doc(&d, doc);
    json_decref(doc);
    c->content_type = render_content_type(&d, false);
    call_reply(c, status, v);
}

static void quote_warning(char *s)
{
    for (; *s; s++)
        if ((unsigned char)*s < ' ' || *s == 0x7f)
            *s = ' ';
}

void call_warn(struct call *c, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    char *raw = NULL;
    int n = vasprintf(&raw, fmt, ap);
    va_end(ap);
    ASSERT(n >= 0);
    quote_warning(raw);
    json_t *s = json_string(raw);
    free(raw);
    char *quoted = s ? json_dumps(s, JSON_ENCODE_ANY) : NULL;
    if (quoted) {
        if (!c->warnings)
            c->warnings = json_array();
        json_array_append_new(c->warnings, json_string(quoted));
    }
    free(quoted);
    json_decref(s);
}

static void call_free(struct httpd_req *req, bool gone, void *ctx)
{
    (void)req;
    (void)gone;
    struct call *c = ctx;
    if (c->queued)
        for (struct call **p = &c->s->waiting; *p; p = &(*p)->next)
            if (*p == c) {
                *p = c->next;
                break;
            }
    if (c->watch)
        watch_close(c->watch);
    free(c->ns);
    free(c->name);
    free(c->sub);
    free(c->body);
    free((char *)c->manager);
    json_decref(c->warnings);
    free(c);
}

void server_flush(struct server *s, const char *failure)
{
    struct call *list = s->waiting, *ordered = NULL;
    s->waiting = NULL;
    while (list) { /* oldest first */
        struct call *next = list->next;
        list->next = ordered;
        ordered = list;
        list = next;
    }
    while (ordered) {
        struct call *c = ordered;
        ordered = c->next;
        c->queued = false;
        if (failure) {
            json_t *st = NULL;
            (void)status_internal(&st, "%s", failure);
            call_fail(c, st);
        } else {
            send_reply(c);
        }
    }
}

/* ---- bodies ---- */

static bool is_type(const char *content_type, const char *want)
{
    size_t n = strlen(want);
    return content_type && !strncasecmp(content_type, want, n) &&
           (!content_type[n] || content_type[n] == ';' || content_type[n] == ' ');
}

/* A key that comes twice: an error when validation is strict, else a warning, and the last one
 * counts. The text has passed the bounds of json_parse already, which refuses duplicates last. */
static json_t *decode_twice(struct call *c, struct str body, const char *why, json_t **st)
{
    const char *near = strstr(why, "near '\"");
    struct str key = str_c(near ? near + strlen("near '\"") : ""), name;
    (void)str_cut(key, '"', &name);
    if (c->validation == FIELDS_STRICT) {
        (void)status_bad_request(
            st,
            "%s in version \"%s\" cannot be handled as a %s: strict decoding error: "
            "duplicate field \"%.*s\"",
            c->r->kind, c->r->version, c->r->kind, STR_ARG(name));
        return NULL;
    }
    if (c->validation == FIELDS_WARN)
        call_warn(c, "duplicate field \"%.*s\"", STR_ARG(name));
    json_t *doc = json_loadb(body.p, body.n, JSON_DECODE_ANY, NULL);
    if (!doc)
        (void)status_bad_request(st, "the object provided is unrecognized: %s", why);
    return doc;
}

json_t *call_decode(struct call *c, struct str body, bool yaml, json_t **st)
{
    struct err e = {0};
    json_t *doc = yaml ? yaml_parse(body, MAX_BODY, &e) : json_parse(body, MAX_BODY, 0, &e);
    if (!doc && !yaml && strstr(e.msg, "duplicate object key"))
        return decode_twice(c, body, e.msg, st);
    if (!doc)
        (void)status_bad_request(
            st,
            "the object provided is unrecognized: couldn't get version/kind; %s "
            "parse error: %s",
            yaml ? "yaml" : "json", e.msg);
    return doc;
}

static json_t *decode_proto(struct str body, json_t **st)
{
    struct err e = {0};
    json_t *doc = proto_decode(body, &e);
    if (!doc)
        (void)status_bad_request(st, "the object provided is unrecognized: %s", e.msg);
    return doc;
}

json_t *call_body(struct call *c, json_t **st)
{
    struct str body = httpd_body(c->req);
    const char *type = httpd_header(c->req, "Content-Type");
    if (!str_trim(body).n)
        return NULL;
    if (is_type(type, PROTO_TYPE))
        return decode_proto(body, st);
    bool yaml = is_type(type, "application/yaml");
    if (type && *type && !yaml && !is_type(type, "application/json")) {
        (void)status_media(st, "application/json, application/yaml, " PROTO_TYPE);
        return NULL;
    }
    return call_decode(c, body, yaml, st);
}

/* ---- the form of the answer ---- */

static bool has_param(struct str params, const char *want)
{
    struct str p;
    while (params.n) {
        params = str_cut(params, ';', &p);
        if (str_eq_c(str_trim(p), want))
            return true;
    }
    return false;
}

/* 1 when this alternative of an Accept header can be served. */
static int try_accept(struct str alt, enum accept *out)
{
    struct str type, params = str_cut(alt, ';', &type);
    type = str_trim(type);
    if (str_ieq_c(type, "*/*") || str_ieq_c(type, "application/*") ||
        (str_ieq_c(type, "application/json") && !has_param(params, "as=Table") &&
         !has_param(params, "as=PartialObjectMetadata") &&
         !has_param(params, "as=PartialObjectMetadataList"))) {
        *out = ACCEPT_OBJECT;
        return 1;
    }
    if (!str_ieq_c(type, "application/json") || !has_param(params, "g=meta.k8s.io") ||
        !has_param(params, "v=v1"))
        return 0;
    *out = has_param(params, "as=Table") ? ACCEPT_TABLE : ACCEPT_PARTIAL;
    return 1;
}

static int choose_accept(struct call *c, json_t **st)
{
    const char *h = httpd_header(c->req, "Accept");
    struct str rest = str_c(h), alt;
    c->accept = ACCEPT_OBJECT;
    if (!h || !str_trim(rest).n)
        return 0;
    while (rest.n) {
        rest = str_cut(rest, ',', &alt);
        if (try_accept(str_trim(alt), &c->accept))
            return 0;
    }
    return status_set(st, 406, "NotAcceptable", NULL, NULL,
                      "only the following media types are accepted: application/json, "
                      "application/json;as=Table;v=v1;g=meta.k8s.io, "
                      "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io");
}

/* ---- options ---- */

/* The part of the User-Agent before the first slash, as kube-apiserver names managers that don't
 * name themselves. */
static char *default_manager(const struct call *c)
{
    const char *ua = httpd_header(c->req, "User-Agent");
    size_t n = ua ? strcspn(ua, "/") : 0;
    if (!n)
        return xstrdup("unknown");
    return str_dup((struct str){ua, n > 128 ? 128 : n});
}

static int write_options(struct call *c, json_t **st)
{
    const char *m = httpd_arg(c->req, "fieldManager"), *v = httpd_arg(c->req, "fieldValidation");
    const char *dry = httpd_arg(c->req, "dryRun"), *force = httpd_arg(c->req, "force");
    c->manager = m && *m ? xstrdup(m) : default_manager(c);
    c->force = force && (!strcmp(force, "true") || !strcmp(force, "1"));
    c->dry_run = dry && !strcmp(dry, "All");
    c->validation = FIELDS_WARN;
    if (v && !strcmp(v, "Strict"))
        c->validation = FIELDS_STRICT;
    else if (v && !strcmp(v, "Ignore"))
        c->validation = FIELDS_IGNORE;
    bool bad_v = v && *v && strcmp(v, "Strict") && strcmp(v, "Ignore") && strcmp(v, "Warn");
    if ((!dry || !*dry || c->dry_run) && !bad_v && strlen(c->manager) <= 128)
        return 0;
    json_t *causes = json_array();
    static const char *const dries[] = {"All", NULL}, *const vals[] = {"", "Ignore", "Strict",
                                                                       "Warn", NULL};
    json_t *dj = json_pack("[s]", dry ? dry : ""), *vj = json_string(v ? v : "");
    if (dry && *dry && !c->dry_run)
        cause_unsupported(causes, "dryRun", dj, dries);
    if (bad_v)
        cause_unsupported(causes, "fieldValidation", vj, vals);
    if (strlen(c->manager) > 128)
        cause_invalid(causes, "fieldManager", NULL, "may not be more than 128 bytes");
    json_decref(dj);
    json_decref(vj);
    const char *kind = c->verb == VERB_CREATE   ? "CreateOptions"
                       : c->verb == VERB_UPDATE ? "UpdateOptions"
                                                : "PatchOptions";
    return status_invalid(st, "meta.k8s.io", kind, "", causes);
}

/* ---- paths ---- */

struct segments {
    char *v[MAX_SEGMENTS];
    size_t n;
};

static void split_path(struct str path, struct segments *s)
{
    struct str head;
    s->n = 0;
    while (path.n && s->n < MAX_SEGMENTS) {
        path = str_cut(path, '/', &head);
        if (head.n)
            s->v[s->n++] = str_dup(head);
    }
}

static void free_segments(struct segments *s)
{
    for (size_t i = 0; i < s->n; i++)
        free(s->v[i]);
}

static char *join_rest(const struct segments *s, size_t from)
{
    char *out = NULL;
    for (size_t i = from; i < s->n; i++) {
        char *more = out ? xasprintf("%s/%s", out, s->v[i]) : xstrdup(s->v[i]);
        free(out);
        out = more;
    }
    return out;
}

static bool namespace_sub(const char *s)
{
    return !strcmp(s, "status") || !strcmp(s, "finalize");
}

/* Fills resource, namespace, name and subresource; false when no such resource is served. */
static bool resolve(struct call *c, const struct segments *s)
{
    size_t i = !strcmp(s->v[0], "api") ? 1 : 2;
    const char *group = i == 1 ? "" : s->v[1];
    if (s->n < i + 2)
        return false;
    const char *version = s->v[i++];
    c->watch_path = !strcmp(s->v[i], "watch") && s->n > i + 1; /* the old form of ?watch=1 */
    i += c->watch_path;
    c->ns = xstrdup("");
    if (!strcmp(s->v[i], "namespaces") && s->n > i + 2 &&
        !(s->n == i + 3 && !*group && namespace_sub(s->v[i + 2]))) {
        free(c->ns);
        c->ns = xstrdup(s->v[i + 1]);
        i += 2;
    }
    c->r = resource_find(c->s->reg, group, version, s->v[i++]);
    if (!c->r || (*c->ns && !resource_has(c->r, R_NAMESPACED)))
        return false;
    if (i < s->n)
        c->name = xstrdup(s->v[i++]);
    c->sub = join_rest(s, i);
    return true;
}

static int choose_verb(struct call *c, json_t **st)
{
    struct str m = httpd_method(c->req);
    const char *w = httpd_arg(c->req, "watch");
    bool watch = c->watch_path || (w && (!strcmp(w, "true") || !strcmp(w, "1")));
    if (str_eq_c(m, "GET") || str_eq_c(m, "HEAD"))
        c->verb = c->name ? VERB_GET : watch ? VERB_WATCH : VERB_LIST;
    else if (str_eq_c(m, "POST"))
        c->verb = VERB_CREATE;
    else if (str_eq_c(m, "PUT") && c->name)
        c->verb = VERB_UPDATE;
    else if (str_eq_c(m, "PATCH") && c->name)
        c->verb = VERB_PATCH;
    else if (str_eq_c(m, "DELETE"))
        c->verb = c->name ? VERB_DELETE : VERB_DELETE_COLLECTION;
    else
        return status_method(st);
    if (c->verb == VERB_CREATE && c->name && !c->sub)
        return status_method(st);
    bool cluster_path = resource_has(c->r, R_NAMESPACED) && !*c->ns;
    if (cluster_path && (c->name || c->verb == VERB_CREATE) &&
        !(c->verb == VERB_CREATE && resource_has(c->r, R_VIRTUAL)))
        return status_method(st);
    if (resource_has(c->r, R_VIRTUAL) && c->verb != VERB_CREATE)
        return status_method(st);
    return 0;
}

static bool is_write(enum verb v)
{
    return v != VERB_GET && v != VERB_LIST && v != VERB_WATCH;
}

static void dispatch(struct call *c)
{
    if (c->sub || resource_has(c->r, R_VIRTUAL)) {
        if (!sub_handle(c)) {
            json_t *st = NULL;
            (void)status_no_path(&st);
            call_fail(c, st);
        }
        return;
    }
    if (c->r->deprecated)
        call_warn(c, "%s", c->r->deprecation);
    switch (c->verb) {
    case VERB_GET: verb_get(c); break;
    case VERB_LIST: verb_list(c); break;
    case VERB_WATCH: verb_watch(c); break;
    case VERB_CREATE: verb_create(c); break;
    case VERB_UPDATE: verb_update(c); break;
    case VERB_PATCH: verb_patch(c); break;
    case VERB_DELETE: verb_delete(c); break;
    case VERB_DELETE_COLLECTION: verb_delete_collection(c); break;
    }
}

static void handle_resource(struct call *c, const struct segments *seg)
{
    json_t *st = NULL;
    int rc = resolve(c, seg) ? choose_verb(c, &st) : status_no_path(&st);
    if (!rc)
        rc = choose_accept(c, &st);
    if (!rc && is_write(c->verb))
        rc = write_options(c, &st);
    if (rc)
        call_fail(c, st);
    else
        dispatch(c);
}

static bool is_public(struct str path)
{
    return str_starts(path, STR("/healthz")) || str_starts(path, STR("/livez")) ||
           str_starts(path, STR("/readyz")) || str_eq_c(path, "/version");
}

static bool handle_health(struct call *c, struct str path)
{
    if (!is_public(path) || str_eq_c(path, "/version"))
        return false;
    call_reply_text(c, 200, "text/plain; charset=utf-8", STR("ok"));
    return true;
}

static int write_state(void *ctx, struct buf *out)
{
    const struct server *s = ctx;
    size_t objects = 0;
    for (struct bucket *b = store_bucket_next(s->store, NULL); b;
         b = store_bucket_next(s->store, b))
        objects += bucket_count(b);
    return buf_printf(
        out,
        "{\"resource_version\":%llu,\"compacted\":%llu,\"objects\":%zu,\"watches\":%zu,"
        "\"kinds\":%zu,\"connections\":%u}",
        (unsigned long long)store_rv(s->store), (unsigned long long)store_compacted(s->store),
        objects, watch_count(s), registry_count(s->reg), httpd_active(s->httpd));
}

/* /metrics and /debug/state, for users only. */
static bool handle_standard(struct call *c, struct str path)
{
    struct httpd_std std = {.state = write_state, .ctx = c->s};
    return (str_eq_c(path, "/metrics") || str_eq_c(path, "/debug/state")) &&
           httpd_standard(c->req, &std);
}

void rest_handle(struct httpd_req *req, void *ctx)
{
    struct call *c = xcalloc(1, sizeof *c);
    struct str path = httpd_path(req);
    json_t *st = NULL;
    c->s = ctx;
    c->req = req;
    c->start_ns = clock_mono_ns();
    httpd_on_close(req, call_free, c);
    c->user = auth_request(c->s, req);
    if (!c->user && (!is_public(path) || httpd_header(req, "Authorization"))) {
        (void)status_set(&st, 401, "Unauthorized", NULL, NULL, "Unauthorized");
        call_fail(c, st);
        return;
    }
    if (handle_health(c, path) || discovery_handle(c, path) || handle_standard(c, path))
        return;
    struct segments seg;
    split_path(path, &seg);
    bool api = seg.n > 2 && !strcmp(seg.v[0], "api");
    if (api || (seg.n > 3 && !strcmp(seg.v[0], "apis"))) {
        handle_resource(c, &seg);
    } else {
        call_reply_text(c, 404, "text/plain; charset=utf-8", STR("404 page not found\n"));
    }
    free_segments(&seg);
}
