#include "lib/kube/client_int.h"

#include "lib/base/clock.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define TIMEOUT_MS 15000
#define QPS        100
#define BURST      200

/* The peer's TCP: probes after 15 s, given up after 30 s without an acknowledgement. */
#define DEAD_PEER_MS 30000

static char *dup_or_null(const char *s)
{
    return s ? xstrdup(s) : NULL;
}

struct http_client_config kube_http_config(const struct kube_client *c)
{
    return (struct http_client_config){
        .loop = c->loop,
        .ca_pem = c->config.ca_pem,
        .client_cert_pem = c->config.cert_pem,
        .client_key_pem = c->config.key_pem,
        .insecure_skip_verify = c->config.insecure_skip_verify,
        .user_agent = c->user_agent,
        .dead_peer_ms = DEAD_PEER_MS,
    };
}

static struct kube_config config_copy(const struct kube_config *c)
{
    return (struct kube_config){
        .server = xstrdup(c->server),
        .ca_pem = dup_or_null(c->ca_pem),
        .cert_pem = dup_or_null(c->cert_pem),
        .key_pem = dup_or_null(c->key_pem),
        .token = dup_or_null(c->token),
        .token_file = dup_or_null(c->token_file),
        .ca_file = dup_or_null(c->ca_file),
        .cert_file = dup_or_null(c->cert_file),
        .key_file = dup_or_null(c->key_file),
        .qps = c->qps ? c->qps : QPS,
        .burst = c->burst > 0 ? c->burst : BURST,
        .namespace = xstrdup(c->namespace ? c->namespace : "default"),
        .insecure_skip_verify = c->insecure_skip_verify,
    };
}

int kube_client_new(uv_loop_t *loop, const struct kube_config *config, const char *user_agent,
                    struct kube_client **out, struct err *e)
{
    struct kube_client *c = xcalloc(1, sizeof *c);
    c->loop = loop;
    c->config = config_copy(config);
    c->bucket = (struct bucket){.qps = c->config.qps, .burst = c->config.burst};
    c->user_agent = xasprintf("%s/%s", user_agent, BATON_VERSION);
    if (loop) {
        struct http_client_config hc = kube_http_config(c);
        int rc = http_client_new(&hc, &c->http, e);
        if (rc) {
            kube_client_free(c);
            return rc;
        }
        c->pump = xcalloc(1, sizeof *c->pump);
        uv_timer_init(loop, c->pump);
        c->pump->data = c;
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
    kube_send_fini(c);
    kube_auth_fini(c);
    kube_config_fini(&c->config);
    free(c->user_agent);
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
    rc = rc ? rc : put_arg(&b, &first, "dryRun", writes && call->dry_run ? "All" : NULL);
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

void kube_read_answer(int status, struct str body, bool text_only, struct kube_result *out)
{
    bool ok = status >= 200 && status < 300;
    out->status = status;
    out->text = body;
    if (ok && text_only)
        return;
    out->object = body.n ? json_parse(body, BODY_MAX, 0, NULL) : NULL;
    if (ok) {
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
}

unsigned kube_retry_after(const struct http_call *call, const json_t *status)
{
    const char *text = call ? http_header(call, "retry-after") : NULL;
    int64_t s = json_int_at(status, "details.retryAfterSeconds", 0);
    uint64_t header;
    if (text && !str_to_u64(str_c(text), 0, 3600, &header))
        s = (int64_t)header;
    return s > 0 && s < 3600 ? (unsigned)s * 1000 : 0;
}

bool kube_asks_to_wait(const struct kube_result *r)
{
    return (r->status == 429 || r->status == 503) && r->retry_after_ms &&
           r->retry_after_ms <= RETRY_AFTER_MS;
}

void kube_result_fini(struct kube_result *r)
{
    json_decref(r->object);
    r->object = NULL;
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
    const char *type = body.n ? content_type_of(call) : NULL;
    size_t n = body.n;
    char *keep = path;
    path = NULL;
    return kube_send(c, call, method_of(call->verb), keep, type, buf_take(&body), n, e);
}

struct run {
    struct kube_client *client;
    unsigned retry_after_ms;
};

static int on_run_headers(struct http_call *call, int status, void *ctx)
{
    struct run *run = ctx;
    (void)status;
    run->retry_after_ms = kube_retry_after(call, NULL);
    kube_warnings(run->client, call);
    return 0;
}

/* One sending. */
static void run_once(struct kube_client *c, const struct kube_call *call, const char *path,
                     struct str body, struct kube_result *out)
{
    struct kube_headers h;
    struct run run = {.client = c};
    struct buf answer;
    CLEANUP(free_charp) char *url = xasprintf("%s%s", c->config.server, path);
    *out = (struct kube_result){0};
    buf_init(&answer, BODY_MAX);
    kube_headers_init(&h, c, body.n ? content_type_of(call) : NULL);
    struct http_client_config hc = kube_http_config(c);
    struct http_request r = {
        .method = method_of(call->verb),
        .url = url,
        .headers = h.list,
        .body = body,
        .max_body_bytes = BODY_MAX,
        .timeout_ms = call->timeout_ms ? call->timeout_ms : TIMEOUT_MS,
        .on_headers = on_run_headers,
        .ctx = &run,
    };
    int status = http_run(&hc, &r, &answer, &out->err);
    if (status > 0)
        kube_read_answer(status, buf_view(&answer), false, out);
    else
        err_wrap(&out->err, "the API server at %s does not answer", c->config.server);
    if (out->err.code)
        out->retry_after_ms =
            run.retry_after_ms ? run.retry_after_ms : kube_retry_after(NULL, out->object);
    out->text = (struct str){0};
    kube_headers_fini(&h);
    buf_fini(&answer);
}

/* Is it to be sent again? Waits for as long as the server said. */
static bool run_again(struct kube_client *c, const struct kube_call *call,
                      const struct kube_result *r, unsigned tries, bool *renewed)
{
    bool eviction = call->subresource && strcmp(call->subresource, "eviction") == 0;
    if ((r->status == 401 || r->err.code == EPROTO) && !*renewed) {
        *renewed = true;
        return kube_credentials_changed(c);
    }
    if (!kube_asks_to_wait(r) || eviction || tries >= RESEND_MAX)
        return false;
    struct timespec t = {.tv_sec = r->retry_after_ms / 1000};
    nanosleep(&t, NULL);
    return true;
}

int kube_run(struct kube_client *c, const struct kube_call *call, struct kube_result *out)
{
    *out = (struct kube_result){0};
    struct buf body;
    bool renewed = false;
    CLEANUP(free_charp) char *path = kube_path(call);
    if (!path)
        return err_set(&out->err, EINVAL, "the request's path is too long");
    buf_init(&body, BODY_MAX);
    if (write_body(call, &body)) {
        buf_fini(&body);
        return err_set(&out->err, EMSGSIZE, "the request's body is too large");
    }
    run_once(c, call, path, buf_view(&body), out);
    for (unsigned tries = 0; run_again(c, call, out, tries, &renewed); tries++) {
        kube_result_fini(out);
        run_once(c, call, path, buf_view(&body), out);
    }
    buf_fini(&body);
    return -out->err.code;
}
