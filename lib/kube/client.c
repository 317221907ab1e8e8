#include "lib/kube/client.h"

#include "lib/base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define BODY_MAX        (64u << 20)
#define TOKEN_REREAD_NS (60 * NS_PER_S)
#define TIMEOUT_MS      15000

struct kube_client {
    uv_loop_t *loop;
    struct http_client *http;
    struct kube_config config;
    char *user_agent, *token;
    uint64_t token_read_ns;
    struct pending *pending;
};

struct pending {
    struct kube_client *client;
    struct http_call *call;
    kube_done_fn done;
    void *ctx;
    struct pending *prev, *next;
};

static char *dup_or_null(const char *s)
{
    return s ? xstrdup(s) : NULL;
}

static struct http_client_config http_config(const struct kube_client *c)
{
    return (struct http_client_config){
        .loop = c->loop,
        .ca_pem = c->config.ca_pem,
        .client_cert_pem = c->config.cert_pem,
        .client_key_pem = c->config.key_pem,
        .insecure_skip_verify = c->config.insecure_skip_verify,
        .user_agent = c->user_agent,
    };
}

int kube_client_new(uv_loop_t *loop, const struct kube_config *config, const char *user_agent,
                    struct kube_client **out, struct err *e)
{
    struct kube_client *c = xcalloc(1, sizeof *c);
    c->loop = loop;
    c->config = (struct kube_config){
        .server = xstrdup(config->server),
        .ca_pem = dup_or_null(config->ca_pem),
        .cert_pem = dup_or_null(config->cert_pem),
        .key_pem = dup_or_null(config->key_pem),
        .token = dup_or_null(config->token),
        .token_file = dup_or_null(config->token_file),
        .namespace = xstrdup(config->namespace ? config->namespace : "default"),
        .insecure_skip_verify = config->insecure_skip_verify,
    };
    c->user_agent = xasprintf("%s/%s", user_agent, BATON_VERSION);
    if (loop) {
        struct http_client_config hc = http_config(c);
        int rc = http_client_new(&hc, &c->http, e);
        if (rc) {
            kube_client_free(c);
            return rc;
        }
    }
    *out = c;
    return 0;
}

void kube_client_free(struct kube_client *c)
{
    if (!c)
        return;
    if (c->http)
        http_client_free(c->http);
    for (struct pending *p = c->pending, *next; p; p = next) {
        next = p->next;
        free(p);
    }
    kube_config_fini(&c->config);
    free(c->user_agent);
    free(c->token);
    free(c);
}

const char *kube_namespace(const struct kube_client *c)
{
    return c->config.namespace;
}

uv_loop_t *kube_loop(const struct kube_client *c)
{
    return c->loop;
}

/* Service account tokens rotate: the file is read again once a minute. The old token stays when it
 * can't be read. */
static const char *token(struct kube_client *c)
{
    uint64_t now = clock_mono_ns();
    if (!c->config.token_file)
        return c->config.token;
    if (c->token && now - c->token_read_ns < TOKEN_REREAD_NS)
        return c->token;
    char text[16384];
    CLEANUP(close_fdp) int fd = open(c->config.token_file, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (n > 0) {
        struct str t = str_trim((struct str){text, (size_t)n});
        free(c->token);
        c->token = str_dup(t);
        c->token_read_ns = now;
    }
    return c->token ? c->token : c->config.token;
}

static int put_escaped(struct buf *b, const char *s)
{
    for (; *s; s++) {
        bool plain = (*s >= 'a' && *s <= 'z') || (*s >= 'A' && *s <= 'Z') ||
                     (*s >= '0' && *s <= '9') || strchr("-._~", *s);
        int rc = plain ? buf_append(b, s, 1) : buf_printf(b, "%%%02X", (unsigned)(uint8_t)*s);
        if (rc)
            return rc;
    }
    return 0;
}

static int put_segment(struct buf *b, const char *s)
{
    int rc = buf_cstr(b, "/");
    return rc ? rc : put_escaped(b, s);
}

static int put_arg(struct buf *b, bool *first, const char *key, const char *value)
{
    if (!value)
        return 0;
    int rc = buf_printf(b, "%c%s=", *first ? '?' : '&', key);
    *first = false;
    return rc ? rc : put_escaped(b, value);
}

char *kube_path(const struct kube_call *call)
{
    const struct kube_kind *k = call->kind;
    bool first = true;
    struct buf b;
    buf_init(&b, 65536);
    int rc = buf_printf(&b, "%s/%s", strchr(k->api, '/') ? "/apis" : "/api", k->api);
    if (!rc && k->namespaced && call->namespace) {
        rc = buf_cstr(&b, "/namespaces");
        rc = rc ? rc : put_segment(&b, call->namespace);
    }
    rc = rc ? rc : buf_printf(&b, "/%s", k->plural);
    if (call->name && call->verb != KUBE_CREATE && call->verb != KUBE_LIST)
        rc = rc ? rc : put_segment(&b, call->name);
    if (call->subresource)
        rc = rc ? rc : put_segment(&b, call->subresource);
    bool writes = call->verb != KUBE_GET && call->verb != KUBE_LIST && call->verb != KUBE_DELETE;
    rc = rc ? rc : put_arg(&b, &first, "fieldManager", writes ? call->field_manager : NULL);
    rc = rc ? rc
            : put_arg(&b, &first, "force", call->verb == KUBE_APPLY && call->force ? "true" : NULL);
    rc = rc ? rc : put_arg(&b, &first, "labelSelector", call->label_selector);
    rc = rc ? rc : put_arg(&b, &first, "fieldSelector", call->field_selector);
    if (rc) {
        buf_fini(&b);
        return NULL;
    }
    return buf_take(&b);
}

static json_t *delete_options(const struct kube_call *call)
{
    json_t *o = json_pack("{s:s, s:s}", "apiVersion", "v1", "kind", "DeleteOptions");
    if (call->grace_seconds || call->force_now)
        json_object_set_new(o, "gracePeriodSeconds", json_integer(call->grace_seconds));
    if (call->uid || call->resource_version) {
        json_t *p = json_object();
        if (call->uid)
            json_object_set_new(p, "uid", json_string(call->uid));
        if (call->resource_version)
            json_object_set_new(p, "resourceVersion", json_string(call->resource_version));
        json_object_set_new(o, "preconditions", p);
    }
    json_object_set_new(o, "propagationPolicy", json_string("Background"));
    return o;
}

/* The request body; a whole object gets its apiVersion and kind when they are absent. */
static int write_body(const struct kube_call *call, struct buf *b)
{
    if (call->verb == KUBE_DELETE) {
        CLEANUP(json_decrefp) json_t *o = delete_options(call);
        return json_write(o, false, b);
    }
    if (!call->body)
        return 0;
    bool whole = call->verb != KUBE_PATCH && json_is_object(call->body) &&
                 (!call->subresource || strcmp(call->subresource, "status") == 0);
    if (!whole ||
        (json_object_get(call->body, "kind") && json_object_get(call->body, "apiVersion")))
        return json_write(call->body, false, b);
    CLEANUP(json_decrefp) json_t *o = json_copy((json_t *)(uintptr_t)call->body);
    json_object_set_new(o, "apiVersion", json_string(call->kind->api));
    json_object_set_new(o, "kind", json_string(call->kind->kind));
    return json_write(o, false, b);
}

static const char *method_of(enum kube_verb v)
{
    static const char *const methods[] = {
        [KUBE_GET] = "GET",      [KUBE_LIST] = "GET",    [KUBE_CREATE] = "POST",
        [KUBE_UPDATE] = "PUT",   [KUBE_APPLY] = "PATCH", [KUBE_PATCH] = "PATCH",
        [KUBE_DELETE] = "DELETE"};
    return methods[v];
}

static const char *content_type_of(const struct kube_call *call)
{
    if (call->verb == KUBE_APPLY)
        return "application/apply-patch+yaml"; /* JSON is YAML */
    if (call->verb == KUBE_PATCH)
        return call->patch_type ? call->patch_type : "application/merge-patch+json";
    return "application/json";
}

int kube_errno(int status, const char *reason)
{
    if (status >= 200 && status < 300)
        return 0;
    switch (status) {
    case 404: return ENOENT;
    case 409: return strcmp(reason, "AlreadyExists") == 0 ? EEXIST : EAGAIN;
    case 410: return ESTALE;
    case 400:
    case 422: return EINVAL;
    case 401:
    case 403: return EACCES;
    case 429: return EBUSY;
    default: return EIO;
    }
}

static const char *default_reason(int status)
{
    switch (status) {
    case 401: return "Unauthorized";
    case 403: return "Forbidden";
    case 404: return "NotFound";
    case 409: return "Conflict";
    case 410: return "Expired";
    case 422: return "Invalid";
    case 429: return "TooManyRequests";
    default: return "InternalError";
    }
}

/* Fills everything but retry_after_ms. */
static void read_answer(int status, struct str body, struct kube_result *out)
{
    out->status = status;
    out->object = body.n ? json_parse(body, BODY_MAX, 0, NULL) : NULL;
    if (status >= 200 && status < 300) {
        if (!out->object && body.n)
            err_set(&out->err, EIO, "the API server's answer is not valid JSON");
        return;
    }
    const char *reason = json_str_at(out->object, "reason", "");
    const char *message = json_str_at(out->object, "message", NULL);
    snprintf(out->reason, sizeof out->reason, "%s", *reason ? reason : default_reason(status));
    err_set(&out->err, kube_errno(status, out->reason), "%s", message ? message : "");
    if (!message)
        err_set(&out->err, kube_errno(status, out->reason), "HTTP %d from the API server (%s)",
                status, out->reason);
    int64_t after = json_int_at(out->object, "details.retryAfterSeconds", 0);
    if (after > 0 && after < 3600)
        out->retry_after_ms = (unsigned)after * 1000;
}

void kube_result_fini(struct kube_result *r)
{
    json_decref(r->object);
    r->object = NULL;
}

struct headers {
    char *auth, *type;
    const char *list[4];
};

static void headers_init(struct headers *h, struct kube_client *c, const char *content_type)
{
    const char *t = token(c);
    size_t n = 0;
    *h = (struct headers){0};
    h->list[n++] = "Accept: application/json";
    if (t) {
        h->auth = xasprintf("Authorization: Bearer %s", t);
        h->list[n++] = h->auth;
    }
    if (content_type) {
        h->type = xasprintf("Content-Type: %s", content_type);
        h->list[n++] = h->type;
    }
}

static void headers_fini(struct headers *h)
{
    free(h->auth);
    free(h->type);
}

struct http_call *kube_http_start(struct kube_client *c, const char *method, const char *path,
                                  const char *content_type, struct str body,
                                  const struct http_request *tmpl, struct err *e)
{
    struct headers h;
    headers_init(&h, c, content_type);
    CLEANUP(free_charp) char *url = xasprintf("%s%s", c->config.server, path);
    struct http_request r = *tmpl;
    r.method = method;
    r.url = url;
    r.headers = h.list;
    r.body = body;
    struct http_call *call = http_start(c->http, &r, e);
    headers_fini(&h);
    return call;
}

static void unlink_pending(struct pending *p)
{
    if (p->next)
        p->next->prev = p->prev;
    if (p->prev)
        p->prev->next = p->next;
    else
        p->client->pending = p->next;
}

static void on_done(const struct http_response *r, void *ctx)
{
    struct pending *p = ctx;
    struct kube_result out = {0};
    if (r->status && !r->error) {
        read_answer(r->status, r->body, &out);
        const char *after = http_header(r->call, "retry-after");
        uint64_t s;
        if (after && !str_to_u64(str_c(after), 0, 3600, &s))
            out.retry_after_ms = (unsigned)s * 1000;
    } else {
        err_set(&out.err, r->code ? -r->code : EIO, "the API server at %s does not answer: %s",
                p->client->config.server, r->error ? r->error : "no response");
    }
    unlink_pending(p);
    if (p->done)
        p->done(&out, p->ctx);
    kube_result_fini(&out);
    free(p);
}

int kube_start(struct kube_client *c, const struct kube_call *call, struct err *e)
{
    struct buf body;
    CLEANUP(free_charp) char *path = kube_path(call);
    if (!path)
        return err_set(e, EINVAL, "the request's path is too long");
    buf_init(&body, BODY_MAX);
    if (write_body(call, &body)) {
        buf_fini(&body);
        return err_set(e, EMSGSIZE, "the request's body is too large");
    }
    struct pending *p = xcalloc(1, sizeof *p);
    *p = (struct pending){.client = c, .done = call->done, .ctx = call->ctx, .next = c->pending};
    struct http_request r = {
        .max_body_bytes = BODY_MAX,
        .timeout_ms = call->timeout_ms ? call->timeout_ms : TIMEOUT_MS,
        .on_done = on_done,
        .ctx = p,
    };
    p->call = kube_http_start(c, method_of(call->verb), path, body.n ? content_type_of(call) : NULL,
                              buf_view(&body), &r, e);
    buf_fini(&body);
    if (!p->call) {
        free(p);
        return -EINVAL;
    }
    if (c->pending)
        c->pending->prev = p;
    c->pending = p;
    return 0;
}

int kube_run(struct kube_client *c, const struct kube_call *call, struct kube_result *out)
{
    *out = (struct kube_result){0};
    struct buf body, answer;
    CLEANUP(free_charp) char *path = kube_path(call);
    if (!path)
        return err_set(&out->err, EINVAL, "the request's path is too long");
    buf_init(&body, BODY_MAX);
    buf_init(&answer, BODY_MAX);
    if (write_body(call, &body)) {
        buf_fini(&body);
        return err_set(&out->err, EMSGSIZE, "the request's body is too large");
    }
    struct headers h;
    headers_init(&h, c, body.n ? content_type_of(call) : NULL);
    CLEANUP(free_charp) char *url = xasprintf("%s%s", c->config.server, path);
    struct http_client_config hc = http_config(c);
    struct http_request r = {
        .method = method_of(call->verb),
        .url = url,
        .headers = h.list,
        .body = buf_view(&body),
        .max_body_bytes = BODY_MAX,
        .timeout_ms = call->timeout_ms ? call->timeout_ms : TIMEOUT_MS,
    };
    int status = http_run(&hc, &r, &answer, &out->err);
    if (status > 0)
        read_answer(status, buf_view(&answer), out);
    else
        err_wrap(&out->err, "the API server at %s does not answer", c->config.server);
    headers_fini(&h);
    buf_fini(&body);
    buf_fini(&answer);
    return -out->err.code;
}
