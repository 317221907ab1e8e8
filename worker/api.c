#include "worker/api.h"
#include "worker/head.h"

#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/wire/le.h"
#include "lib/wire/record.h"
#include "lib/json/json.h"
#include "worker/events.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <stdio.h>
#include <stdlib.h>
#include <uthash.h>

#define BEAT_MS    100
#define BODY_MAX   (24u << 20) /* 2 x 1 Mi token ids, names, biases */
#define QUEUED_MAX (32u << 20) /* a client that reads so slowly is cut off */
#define WARMUP_NS  (10 * NS_PER_S)

struct call {
    uint64_t handle;
    struct api *api;
    struct httpd_req *req;
    UT_hash_handle hh;
};

struct api {
    struct api_config c;
    struct httpd *httpd;
    struct engine *engine;
    struct events *events;
    struct call *calls;
    uint64_t next_handle, started_ns;
    uv_async_t async;
    uv_timer_t beat;
    bool opened, stopping, drained_told, restart_told;
    enum wire_role role;
    bool draining;
    struct engine_status status;
    char *requests; /* JSON, from the engine */
    struct launcher_state told;
    uint64_t told_ns;
};

static bool is_ready(const struct api *a)
{
    bool serves = a->role != WIRE_ROLE_STANDBY;
    return a->engine && !a->draining && !a->status.failed && !(serves && a->status.asleep);
}

static struct events_state state_now(const struct api *a)
{
    struct events_state s = {.incarnation = a->c.incarnation,
                             .role = a->role,
                             .ready = is_ready(a),
                             .draining = a->draining,
                             .warmup = clock_mono_ns() - a->started_ns < WARMUP_NS,
                             .xfer_port = a->engine ? engine_xfer_port(a->engine) : 0,
                             .load = a->status.load};
    return s;
}

static void tell_launcher(struct api *a)
{
    struct launcher_state v = {.role = a->role,
                               .ready = is_ready(a),
                               .draining = a->draining,
                               .asleep = a->status.asleep,
                               .running = a->status.load.running,
                               .maskable = a->status.maskable,
                               .masked = a->status.masked};
    const struct launcher_state *t = &a->told;
    uint64_t now_ns = clock_mono_ns();
    bool changed = !a->told_ns || v.role != t->role || v.ready != t->ready ||
                   v.draining != t->draining || v.asleep != t->asleep ||
                   v.maskable != t->maskable || v.masked != t->masked;
    if (!a->c.launcher || (!changed && (v.running == t->running || now_ns - a->told_ns < NS_PER_S)))
        return;
    launcher_status(a->c.launcher, &v);
    a->told = v;
    a->told_ns = now_ns;
}

/* A change that routers and launcher hear at once. */
static void changed(struct api *a)
{
    struct events_state s = state_now(a);
    events_beat(a->events, &s);
    tell_launcher(a);
}

/* ---- engine output ---- */

static void deliver(struct api *a, struct engine_records *r)
{
    struct call *c;
    HASH_FIND(hh, a->calls, &r->handle, sizeof r->handle, c);
    if (!c)
        return; /* the client left */
    int rc = r->bytes.n ? httpd_stream_write(c->req, buf_view(&r->bytes)) : 0;
    if (rc == -EMSGSIZE) {
        log_warn("a client does not read its answer: cut off", LS("peer", httpd_peer(c->req)));
        httpd_abort(c->req);
    } else if (r->last) {
        httpd_stream_end(c->req);
    }
}

static void on_async(uv_async_t *h)
{
    struct api *a = h->data;
    struct engine_output out;
    if (!a->engine || a->stopping)
        return;
    engine_take(a->engine, &out);
    for (struct engine_records *r = out.records; r; r = r->next)
        deliver(a, r);
    engine_records_free(out.records);
    bool news = a->status.asleep != out.status.asleep || a->status.masked != out.status.masked;
    a->status = out.status;
    if (news)
        changed(a);
    if (out.requests) {
        free(a->requests);
        a->requests = out.requests;
    }
    events_names(a->events, out.events, out.n_events);
    free(out.events);
    if (a->status.restart_due && !a->restart_told && !a->draining) {
        a->restart_told = true;
        a->c.restart(a->c.ctx);
    }
    if (a->status.drained && a->draining && !a->calls && !a->drained_told) {
        a->drained_told = true;
        a->c.drained(a->c.ctx);
    }
}

static void on_beat(uv_timer_t *t)
{
    struct api *a = t->data;
    on_async(&a->async);
    struct events_state s = state_now(a);
    events_beat(a->events, &s);
    tell_launcher(a);
}

void api_notify(void *api)
{
    struct api *a = api;
    uv_async_send(&a->async);
}

/* ---- endpoints ---- */

static void reply_error(struct httpd_req *req, int status, const char *code, const char *message,
                        bool retry)
{
    struct buf b;
    buf_init(&b, 16384);
    int rc = buf_printf(&b, "{\"status\":%d,\"code\":\"%s\",\"message\":", status, code);
    rc = rc ? rc : buf_json_str(&b, str_c(message));
    rc = rc ? rc : buf_printf(&b, ",\"retry\":%s}", retry ? "true" : "false");
    ASSERT(rc == 0);
    httpd_reply(req, status, "application/json", buf_view(&b));
    buf_fini(&b);
}

static bool authorised(const struct api *a, struct httpd_req *req)
{
    const char *h = httpd_header(req, "Authorization");
    size_t n = strlen(a->c.secret);
    if (h && strncmp(h, "Bearer ", 7) == 0 && strlen(h) == n + 7 &&
        CRYPTO_memcmp(h + 7, a->c.secret, n) == 0)
        return true;
    httpd_set_header(req, "WWW-Authenticate", "Bearer");
    reply_error(req, 401, "unauthorized", "this needs the deployment's peer secret", false);
    return false;
}

/* Why no request is taken now; NULL when one is. */
static const char *refusal(const struct api *a)
{
    if (!a->engine)
        return "loading";
    if (a->draining)
        return "draining";
    return a->role == WIRE_ROLE_DECODE || a->role == WIRE_ROLE_UNIFIED ? NULL : "wrong_role";
}

static void on_call_close(struct httpd_req *req, bool gone, void *ctx)
{
    struct call *c = ctx;
    struct api *a = c->api;
    (void)req;
    if (gone && a->engine && !a->stopping)
        engine_cancel(a->engine, c->handle);
    HASH_DEL(a->calls, c);
    free(c);
    if (!a->stopping)
        uv_async_send(&a->async);
}

static void generate(struct api *a, struct httpd_req *req)
{
    struct wire_request w;
    struct err e = {0};
    struct str body = httpd_body(req);
    const char *want = httpd_header(req, "x-baton-incarnation"), *why = refusal(a);
    if (want && strtoull(want, NULL, 16) != a->c.incarnation) {
        reply_error(req, 409, "incarnation", "this worker has another incarnation", true);
        return;
    }
    if (why) {
        reply_error(req, 503, why, "this worker takes no requests now", true);
        return;
    }
    if (HASH_COUNT(a->calls) >= a->c.max_queue) {
        httpd_set_header(req, "Retry-After", "1");
        reply_error(req, 429, "queue_full", "this worker's queue is full", true);
        return;
    }
    if (wire_request_decode(body, &w, &e)) {
        reply_error(req, 400, "invalid_request", e.msg, false);
        return;
    }
    void *copy = xmalloc(body.n);
    memcpy(copy, body.p, body.n);
    struct call *c = xcalloc(1, sizeof *c);
    *c = (struct call){.handle = ++a->next_handle, .api = a, .req = req};
    HASH_ADD(hh, a->calls, handle, sizeof c->handle, c);
    httpd_on_close(req, on_call_close, c);
    httpd_stream_start(req, 200, "application/octet-stream", QUEUED_MAX);
    engine_submit(a->engine, c->handle, copy, body.n);
    httpd_body_free(req);
}

/* {"id":"<32 hex digits>"}: id[0] then id[1] of the request, 16 digits each. */
static void cancel(struct api *a, struct httpd_req *req)
{
    struct err e = {0};
    uint8_t id[16];
    CLEANUP(json_decrefp) json_t *o = json_parse(httpd_body(req), 4096, 4, &e);
    const char *hex = o ? json_str_at(o, "id", "") : "";
    if (strlen(hex) != 32 || str_from_hex(str_c(hex), id, sizeof id)) {
        reply_error(req, 400, "invalid_request", "the body must be {\"id\":\"<32 hex digits>\"}",
                    false);
        return;
    }
    if (a->engine)
        engine_cancel_id(a->engine, __builtin_bswap64(le_get64(id)),
                         __builtin_bswap64(le_get64(id + 8)));
    httpd_reply(req, 202, "application/json", STR("{}"));
}

static bool std_ready(void *ctx, struct buf *why)
{
    const struct api *a = ctx;
    const char *text = !a->engine    ? "the model is being loaded"
                       : a->draining ? "draining"
                                     : "the engine failed";
    if (is_ready(a))
        return true;
    int rc = buf_cstr(why, text);
    (void)rc;
    return false;
}

/* "3 of 4 ranks, masked: [2]" */
static int put_ranks(const struct api *a, struct buf *b)
{
    const struct engine_status *s = &a->status;
    const char *comma = "";
    int rc = buf_printf(b, "%u of %u ranks, masked: [",
                        s->ranks - (uint32_t)__builtin_popcountll(s->masked), s->ranks);
    for (uint32_t r = 0; !rc && r < s->ranks; r++)
        if (s->masked >> r & 1) {
            rc = buf_printf(b, "%s%u", comma, r);
            comma = ", ";
        }
    return rc ? rc : buf_cstr(b, "]");
}

/* Well, with fewer ranks. */
static bool healthy_with_fewer(const struct api *a, struct httpd_req *req)
{
    struct str path = httpd_path(req);
    struct buf b;
    if (!a->status.masked || !is_ready(a) ||
        !(str_eq_c(path, "/healthz") || str_eq_c(path, "/readyz")))
        return false;
    buf_init(&b, 1024);
    int rc = buf_cstr(&b, "ok: ");
    rc = rc ? rc : put_ranks(a, &b);
    rc = rc ? rc : buf_cstr(&b, "\n");
    ASSERT(rc == 0);
    httpd_reply(req, 200, "text/plain", buf_view(&b));
    buf_fini(&b);
    return true;
}

static int put_totals(const struct api *a, struct buf *b)
{
    const struct engine_status *s = &a->status;
    const struct wire_load *l = &s->load;
    return buf_printf(
        b,
        "\"totals\":{\"steps\":%llu,\"prompt_tokens\":%llu,\"cached_tokens\":%llu,"
        "\"generated_tokens\":%llu,\"preemptions\":%llu,\"fallbacks\":%llu,\"errors\":%llu,"
        "\"kv_bytes_in\":%llu,\"kv_bytes_out\":%llu},"
        "\"prefill_tokens_per_s\":%.3f,\"decode_step_s\":%.6f",
        (unsigned long long)s->steps, (unsigned long long)l->prompt_tokens_total,
        (unsigned long long)l->cached_tokens_total, (unsigned long long)l->generated_tokens_total,
        (unsigned long long)l->preemptions_total, (unsigned long long)s->fallbacks,
        (unsigned long long)s->errors, (unsigned long long)l->kv_bytes_in_total,
        (unsigned long long)l->kv_bytes_out_total, (double)l->prefill_tokens_per_s,
        (double)l->decode_step_s);
}

static int std_state(void *ctx, struct buf *b)
{
    const struct api *a = ctx;
    const struct engine_status *s = &a->status;
    const struct wire_load *l = &s->load;
    int rc = buf_printf(b,
                        "{\"incarnation\":\"%016llx\",\"role\":\"%s\",\"ready\":%s,\"draining\":%s,"
                        "\"http_port\":%u,\"xfer_port\":%u,\"streams\":%u,\"routers\":%u,\"name\":",
                        (unsigned long long)a->c.incarnation, wire_role_name(a->role),
                        is_ready(a) ? "true" : "false", a->draining ? "true" : "false", api_port(a),
                        a->engine ? engine_xfer_port(a->engine) : 0, HASH_COUNT(a->calls),
                        events_count(a->events));
    rc = rc ? rc : buf_json_str(b, str_c(a->c.name));
    rc = rc ? rc : buf_cstr(b, ",\"ranks\":\"");
    rc = rc ? rc : put_ranks(a, b);
    rc = rc ? rc : buf_cstr(b, "\",\"model\":");
    rc = rc ? rc : buf_json_str(b, str_c(a->c.model_name));
    rc = rc ? rc
            : buf_printf(
                  b,
                  ",\"requests\":%u,\"orders\":%u,\"inbound\":%u,\"in_air\":%u,\"running\":%u,"
                  "\"waiting\":%u,"
                  "\"waiting_tokens\":%llu,\"resident_tokens\":%llu,\"kv\":{\"blocks\":%u,\"used\":"
                  "%u,"
                  "\"cached\":%u,\"quarantined\":%u,\"block_tokens\":%u,\"block_bytes\":%llu,"
                  "\"check\":\"%s\"},",
                  s->requests, s->orders, s->inbound, s->in_air, l->running, l->waiting,
                  (unsigned long long)l->waiting_tokens, (unsigned long long)l->resident_tokens,
                  l->kv_blocks, l->kv_blocks_used, l->kv_blocks_cached, s->kv_quarantined,
                  l->block_tokens, (unsigned long long)a->c.kv.block_bytes, s->check);
    rc = rc ? rc : put_totals(a, b);
    return rc ? rc : buf_printf(b, ",\"alive\":%s}", a->requests ? a->requests : "[]");
}

static void handle(struct httpd_req *req, void *ctx)
{
    struct api *a = ctx;
    const struct httpd_std std = {std_ready, std_state, a};
    struct str path = httpd_path(req), method = httpd_method(req);
    if (healthy_with_fewer(a, req) || httpd_standard(req, &std))
        return;
    if (!str_starts(path, STR("/v1/internal/"))) {
        reply_error(req, 404, "not_found", "no such path", false);
        return;
    }
    if (!authorised(a, req))
        return;
    bool post = str_eq_c(method, "POST");
    if (str_eq_c(path, "/v1/internal/generate") && post) {
        generate(a, req);
    } else if (str_eq_c(path, "/v1/internal/cancel") && post) {
        cancel(a, req);
    } else if (str_eq_c(path, "/v1/internal/model") && str_eq_c(method, "GET")) {
        head_reply(req, a->c.model_path);
    } else if (str_eq_c(path, "/v1/internal/events") && str_eq_c(method, "GET")) {
        struct events_state s = state_now(a);
        events_subscribe(a->events, req, &s);
    } else {
        reply_error(req, 404, "not_found", "no such path or method", false);
    }
}

/* ---- life ---- */

int api_start(const struct api_config *c, struct api **out, struct err *e)
{
    struct api *a = xcalloc(1, sizeof *a);
    a->c = *c;
    a->role = WIRE_ROLE_STANDBY;
    a->events = events_new();
    struct httpd_config h = {.loop = c->loop,
                             .host = c->host,
                             .port = c->port,
                             .max_body_bytes = BODY_MAX,
                             .max_connections = c->max_queue + 256,
                             .handler = handle,
                             .ctx = a};
    int rc = httpd_start(&h, &a->httpd, e);
    if (rc) {
        events_free(a->events);
        free(a);
        return rc;
    }
    a->async.data = a->beat.data = a;
    rc = uv_async_init(c->loop, &a->async, on_async);
    ASSERT(rc == 0);
    rc = uv_timer_init(c->loop, &a->beat);
    ASSERT(rc == 0);
    rc = uv_timer_start(&a->beat, on_beat, BEAT_MS, BEAT_MS);
    ASSERT(rc == 0);
    *out = a;
    return 0;
}

void api_serve(struct api *a, struct engine *g, enum wire_role role)
{
    a->engine = g;
    a->role = role;
    a->started_ns = clock_mono_ns();
    changed(a);
}

uint16_t api_port(const struct api *a)
{
    return httpd_port(a->httpd);
}

void api_set_role(struct api *a, enum wire_role role)
{
    if (role == a->role)
        return;
    log_info("role changed", LS("from", wire_role_name(a->role)), LS("to", wire_role_name(role)));
    a->role = role;
    if (a->engine)
        engine_set_role(a->engine, role);
    changed(a);
}

void api_set_sleep(struct api *a, bool wanted)
{
    log_info("rung wanted", LS("rung", wanted ? "warm" : "hot"));
    if (a->engine)
        engine_set_sleep(a->engine, wanted);
}

void api_drain(struct api *a, uint64_t deadline_ns)
{
    if (a->draining)
        return;
    log_info("draining", LI("running", a->status.load.running));
    a->draining = true;
    if (a->engine)
        engine_drain(a->engine, deadline_ns);
    changed(a);
}

void api_stop(struct api *a)
{
    a->stopping = true;
    httpd_stop(a->httpd);
    uv_close((uv_handle_t *)&a->async, NULL);
    uv_close((uv_handle_t *)&a->beat, NULL);
}

void api_free(struct api *a)
{
    events_free(a->events);
    free(a->requests);
    free(a);
}
