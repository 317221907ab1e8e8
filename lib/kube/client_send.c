/* When a request goes out: at once while the client keeps below its rate, else in order of arrival;
 * not before the time that the server named with a 429 or 503; once more with new credentials when
 * the old ones were refused. */
#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/base/metrics.h"
#include "lib/kube/client_int.h"

#include <errno.h>
#include <stdlib.h>
#include <uthash.h>
#include <utlist.h>

#define TIMEOUT_MS   15000
#define WAITING_MAX  20000
#define WARNINGS_MAX 256
#define IDLE_MAX_S   118 /* libcurl's own limit */

struct waiting_call {
    struct waiting_call *prev, *next;
    struct kube_client *client;
    char *method, *path, *type, *body;
    size_t body_n;
    unsigned timeout_ms, resent;
    bool urgent, resend, renewed, text_only;
    bool (*may_send)(const void *ctx);
    kube_done_fn done;
    void *ctx;
};

struct text_seen {
    UT_hash_handle hh;
    char text[];
};

/* ---- one raw request ---- */

void kube_distrust(struct kube_client *c)
{
    c->timeout_ns = clock_mono_ns();
    kube_watches_doubt(c);
}

/* After a timeout only connections that carried something since are used again. */
static void choose_connection(const struct kube_client *c, struct http_request *r)
{
    uint64_t s = c->timeout_ns ? (clock_mono_ns() - c->timeout_ns) / NS_PER_S : IDLE_MAX_S;
    if (s < 2)
        r->fresh_connection = true;
    else if (s < IDLE_MAX_S)
        r->max_idle_s = (unsigned)s - 1;
}

struct http_call *kube_http_start(struct kube_client *c, const char *method, const char *path,
                                  const char *content_type, struct str body,
                                  const struct http_request *tmpl, struct err *e)
{
    struct kube_headers h;
    kube_headers_init(&h, c, content_type);
    CLEANUP(free_charp) char *url = xasprintf("%s%s", c->config.server, path);
    struct http_request r = *tmpl;
    r.method = method;
    r.url = url;
    r.headers = h.list;
    r.body = body;
    choose_connection(c, &r);
    struct http_call *call = http_start(c->http, &r, e);
    kube_headers_fini(&h);
    return call;
}

/* Warning: 299 - "text" */
void kube_warnings(struct kube_client *c, const struct http_call *call)
{
    const char *value;
    for (size_t i = 0; i < 16 && (value = http_header_nth(call, "warning", i)); i++) {
        const char *from = strchr(value, '"'), *to = strrchr(value, '"');
        struct str t =
            from && to > from ? (struct str){from + 1, (size_t)(to - from - 1)} : str_c(value);
        struct text_seen *s;
        HASH_FIND(hh, c->warnings, t.p, t.n, s);
        if (s || HASH_COUNT(c->warnings) >= WARNINGS_MAX)
            continue;
        s = xcalloc(1, sizeof *s + t.n + 1);
        memcpy(s->text, t.p, t.n);
        HASH_ADD_KEYPTR(hh, c->warnings, s->text, t.n, s);
        log_warn("the API server warns", LS("text", s->text));
    }
}

size_t kube_warnings_seen(const struct kube_client *c)
{
    return HASH_COUNT(c->warnings);
}

/* ---- the rate ---- */

uint64_t bucket_wait(struct bucket *b, double n, uint64_t now_ns)
{
    if (b->qps <= 0)
        return 0;
    b->tokens += b->at_ns ? (double)(now_ns - b->at_ns) / 1e9 * b->qps : b->burst;
    b->tokens = b->tokens < b->burst ? b->tokens : b->burst;
    b->at_ns = now_ns;
    return b->tokens < n ? (uint64_t)((n - b->tokens) / b->qps * 1e9) + 1 : 0;
}

uint64_t bucket_take(struct bucket *b, uint64_t now_ns)
{
    uint64_t ns = bucket_wait(b, 1, now_ns);
    b->tokens -= ns == 0 && b->qps > 0;
    return ns;
}

/* 0: a request may go now; else ms to wait. */
static uint64_t wait_ms(struct kube_client *c)
{
    uint64_t now = clock_mono_ns();
    uint64_t ns = c->hold_until_ns > now ? c->hold_until_ns - now : bucket_take(&c->bucket, now);
    return (ns + NS_PER_MS - 1) / NS_PER_MS;
}

uint64_t kube_pause_ms(struct kube_client *c, unsigned requests)
{
    uint64_t now = clock_mono_ns(), held = c->hold_until_ns > now ? c->hold_until_ns - now : 0;
    double n = (double)c->n_waiting + requests, most = c->bucket.burst / 2;
    uint64_t ns = bucket_wait(&c->bucket, n < most || most < 1 ? n : most, now);
    ns = ns > held ? ns : held;
    return (ns + NS_PER_MS - 1) / NS_PER_MS + (!ns && c->waiting); /* they go first */
}

static void count_held(const char *why)
{
    metric_add(metric_series(metric_family(METRIC_COUNTER, "baton_kube_held_total",
                                           "Requests to the API server that waited: for the "
                                           "program's own rate, or because the server asked.",
                                           "why", NULL, 0),
                             why),
               1);
}

/* ---- calls ---- */

static void call_free(struct waiting_call *p)
{
    free(p->method);
    free(p->path);
    free(p->type);
    free(p->body);
    free(p);
}

static void finish(struct waiting_call *p, const struct kube_result *r)
{
    if (p->done)
        p->done(r, p->ctx);
    call_free(p);
}

static void pump(struct kube_client *c);

static void on_pump(uv_timer_t *t)
{
    pump(t->data);
}

static void on_done(const struct http_response *r, void *ctx);

/* Takes p over. */
static int send_now(struct waiting_call *p, struct err *e)
{
    struct kube_client *c = p->client;
    struct http_request r = {
        .max_body_bytes = BODY_MAX,
        .timeout_ms = p->timeout_ms ? p->timeout_ms : TIMEOUT_MS,
        .on_done = on_done,
        .ctx = p,
    };
    if (!kube_http_start(c, p->method, p->path, p->type, (struct str){p->body, p->body_n}, &r, e))
        return -EINVAL;
    DL_APPEND(c->sent, p);
    return 0;
}

/* Sends one that waited; what can't be sent is told to its caller. */
static void send_later(struct waiting_call *p)
{
    struct kube_result out = {0};
    if (p->may_send && !p->may_send(p->ctx))
        err_set(&out.err, ECANCELED, "not sent: it may not be any more");
    else if (send_now(p, &out.err) == 0)
        return;
    finish(p, &out);
}

static void pump(struct kube_client *c)
{
    while (c->waiting) {
        uint64_t ms = wait_ms(c);
        if (ms) {
            uv_timer_start(c->pump, on_pump, ms, 0);
            return;
        }
        struct waiting_call *p = c->waiting;
        DL_DELETE(c->waiting, p);
        c->n_waiting--;
        send_later(p);
    }
}

/* Is the request to be sent again, and when? */
static bool again(struct waiting_call *p, const struct http_response *r,
                  const struct kube_result *out)
{
    struct kube_client *c = p->client;
    bool refused = r->status == 401 || (!r->status && r->code == -EPROTO);
    if (refused && !p->renewed && kube_credentials_changed(c)) {
        p->renewed = true;
        send_later(p);
        return true;
    }
    if (!kube_asks_to_wait(out) || !p->resend)
        return false;
    uint64_t until = clock_mono_ns() + out->retry_after_ms * NS_PER_MS;
    if (until > c->hold_until_ns)
        c->hold_until_ns = until;
    if (p->resent == RESEND_MAX)
        return false;
    p->resent++;
    count_held("server");
    DL_PREPEND(c->waiting, p);
    c->n_waiting++;
    pump(c);
    return true;
}

static void on_done(const struct http_response *r, void *ctx)
{
    struct waiting_call *p = ctx;
    struct kube_client *c = p->client;
    struct kube_result out = {0};
    if (r->status && !r->error) {
        kube_read_answer(r->status, r->body, p->text_only, &out);
        out.retry_after_ms = kube_retry_after(r->call, out.object);
        kube_warnings(c, r->call);
    } else {
        err_set(&out.err, r->code ? -r->code : EIO, "the API server at %s does not answer: %s",
                c->config.server, r->error ? r->error : "no response");
        if (r->code == -ETIMEDOUT)
            kube_distrust(c);
    }
    DL_DELETE(c->sent, p);
    if (!again(p, r, &out))
        finish(p, &out);
    kube_result_fini(&out);
}

static int send_or_wait(struct waiting_call *p, struct err *e)
{
    struct kube_client *c = p->client;
    uint64_t ms = c->waiting ? 0 : wait_ms(c);
    if (!c->waiting && !ms)
        return send_now(p, e);
    if (c->n_waiting >= WAITING_MAX)
        return err_set(e, EBUSY, "%u requests wait for the API server", c->n_waiting);
    count_held(c->hold_until_ns > clock_mono_ns() ? "server" : "rate");
    if (!c->waiting)
        uv_timer_start(c->pump, on_pump, ms, 0);
    DL_APPEND(c->waiting, p);
    c->n_waiting++;
    return 0;
}

int kube_send(struct kube_client *c, const struct kube_call *call, const char *method, char *path,
              const char *content_type, char *body, size_t body_n, struct err *e)
{
    struct waiting_call *p = xcalloc(1, sizeof *p);
    *p = (struct waiting_call){
        .client = c,
        .method = xstrdup(method),
        .path = path,
        .type = content_type ? xstrdup(content_type) : NULL,
        .body = body,
        .body_n = body_n,
        .timeout_ms = call->timeout_ms,
        .urgent = call->urgent,
        .text_only = call->text_only,
        /* a 429 to an eviction tells of a budget, not of the server's load */
        .resend =
            !call->urgent && !(call->subresource && strcmp(call->subresource, "eviction") == 0),
        .may_send = call->may_send,
        .done = call->done,
        .ctx = call->ctx,
    };
    int rc = p->urgent ? send_now(p, e) : send_or_wait(p, e);
    if (rc)
        call_free(p);
    return rc;
}

static void on_pump_closed(uv_handle_t *h)
{
    free(h);
}

void kube_send_fini(struct kube_client *c)
{
    struct waiting_call *p, *tmp;
    struct text_seen *s, *next;
    DL_FOREACH_SAFE(c->sent, p, tmp)
    call_free(p);
    DL_FOREACH_SAFE(c->waiting, p, tmp)
    call_free(p);
    HASH_ITER (hh, c->warnings, s, next) {
        HASH_DEL(c->warnings, s);
        free(s);
    }
    if (c->pump)
        uv_close((uv_handle_t *)c->pump, on_pump_closed);
}
