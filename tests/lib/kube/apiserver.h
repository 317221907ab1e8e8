/* apiserver.h: a scripted API server in the test's own loop. Each request takes the next step of
 * the script; bodies are written in pieces of a given size, one a loop turn, so that chunks end
 * anywhere. */
#pragma once
#include "lib/base/clock.h"
#include "lib/io/httpd.h"
#include "lib/kube/client.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

#define STEPS_MAX 32

struct answer {
    int status; /* 0: 200 */
    const char *body;
    size_t piece; /* bytes a turn; 0: all at once */
    bool hold;    /* keep the stream open */
    bool whole;   /* not a stream: several may be answered at once */
    bool drop;    /* break the connection off */
    const char *header, *value;
};

struct seen_request {
    char method[8], path[128], query[512], type[64], auth[64], body[2048], peer[64];
    uint64_t at_ns;
};

struct apiserver {
    uv_loop_t loop;
    uv_timer_t tick, limit;
    struct httpd *httpd;
    struct kube_client *client;
    struct answer script[STEPS_MAX];
    struct seen_request seen[STEPS_MAX];
    size_t steps, n;
    struct httpd_req *stream; /* being written */
    const struct answer *answer;
    size_t written;
    bool timed_out;
};

static inline void apiserver_close(struct httpd_req *r, bool gone, void *ctx)
{
    struct apiserver *s = ctx;
    (void)gone;
    if (s->stream == r)
        s->stream = NULL;
}

static inline void apiserver_tick(uv_timer_t *t)
{
    struct apiserver *s = t->data;
    if (!s->stream)
        return;
    const struct answer *a = s->answer;
    size_t left = strlen(a->body) - s->written, n = a->piece && a->piece < left ? a->piece : left;
    if (n && httpd_stream_write(s->stream, (struct str){a->body + s->written, n}))
        return;
    s->written += n;
    if (n || a->hold)
        return;
    struct httpd_req *r = s->stream;
    s->stream = NULL;
    if (a->drop)
        httpd_abort(r);
    else
        httpd_stream_end(r);
}

static inline void apiserver_handle(struct httpd_req *r, void *ctx)
{
    struct apiserver *s = ctx;
    if (s->n >= s->steps) {
        httpd_replyf(r, 503, "application/json", "{}");
        return;
    }
    struct seen_request *q = &s->seen[s->n];
    const struct answer *a = &s->script[s->n++];
    const char *type = httpd_header(r, "content-type"), *auth = httpd_header(r, "authorization");
    snprintf(q->method, sizeof q->method, "%.*s", STR_ARG(httpd_method(r)));
    snprintf(q->path, sizeof q->path, "%.*s", STR_ARG(httpd_path(r)));
    snprintf(q->query, sizeof q->query, "%.*s", STR_ARG(httpd_query(r)));
    snprintf(q->body, sizeof q->body, "%.*s", STR_ARG(httpd_body(r)));
    snprintf(q->type, sizeof q->type, "%s", type ? type : "");
    snprintf(q->auth, sizeof q->auth, "%s", auth ? auth : "");
    snprintf(q->peer, sizeof q->peer, "%s", httpd_peer(r));
    q->at_ns = clock_mono_ns();
    if (a->header)
        httpd_set_header(r, a->header, a->value);
    if (a->whole || (a->status && a->status != 200)) {
        httpd_reply(r, a->status ? a->status : 200, "application/json", str_c(a->body));
        return;
    }
    httpd_on_close(r, apiserver_close, s);
    httpd_stream_start(r, 200, "application/json", 1u << 20);
    s->stream = r;
    s->answer = a;
    s->written = 0;
}

static inline void apiserver_limit(uv_timer_t *t)
{
    struct apiserver *s = t->data;
    s->timed_out = true;
    uv_stop(&s->loop);
}

static inline void apiserver_listen(struct apiserver *s, uint16_t port, const char *cert,
                                    const char *key)
{
    struct err e = {0};
    struct httpd_config hc = {.loop = &s->loop,
                              .host = "127.0.0.1",
                              .port = port,
                              .max_body_bytes = 1u << 20,
                              .tls_cert_pem = cert,
                              .tls_key_pem = key,
                              .handler = apiserver_handle,
                              .ctx = s};
    if (httpd_start(&hc, &s->httpd, &e))
        fail_msg("%s", e.msg);
}

static inline void apiserver_connect(struct apiserver *s, const char *scheme, uint16_t port,
                                     struct kube_config kc)
{
    struct err e = {0};
    char url[64];
    snprintf(url, sizeof url, "%s://127.0.0.1:%u", scheme, port);
    kc.server = url;
    if (kube_client_new(&s->loop, &kc, "test", &s->client, &e))
        fail_msg("%s", e.msg);
}

/* Neither server nor client yet. */
static inline void apiserver_init(struct apiserver *s, const struct answer *script, size_t steps)
{
    memset(s, 0, sizeof *s);
    assert_true(steps <= STEPS_MAX);
    if (steps)
        memcpy(s->script, script, steps * sizeof *script);
    s->steps = steps;
    uv_loop_init(&s->loop);
    uv_timer_init(&s->loop, &s->tick);
    uv_timer_init(&s->loop, &s->limit);
    s->tick.data = s->limit.data = s;
    uv_timer_start(&s->tick, apiserver_tick, 1, 1);
}

static inline void apiserver_start(struct apiserver *s, const struct answer *script, size_t steps)
{
    struct kube_config kc = {.token = (char *)(uintptr_t) "secret-token"};
    apiserver_init(s, script, steps);
    apiserver_listen(s, 0, NULL, NULL);
    apiserver_connect(s, "http", httpd_port(s->httpd), kc);
}

/* Runs until uv_stop is called by a callback of the test. */
static inline void apiserver_run(struct apiserver *s)
{
    uv_timer_start(&s->limit, apiserver_limit, 10000, 0);
    uv_run(&s->loop, UV_RUN_DEFAULT);
    uv_timer_stop(&s->limit);
    if (s->timed_out)
        fail_msg("nothing happened for 10 s; %zu requests were seen, the last with %s", s->n,
                 s->n ? s->seen[s->n - 1].query : "");
}

static inline void apiserver_wait(struct apiserver *s, unsigned ms)
{
    uint64_t end = clock_mono_ns() + ms * NS_PER_MS;
    while (clock_mono_ns() < end)
        uv_run(&s->loop, UV_RUN_ONCE);
}

static inline void apiserver_stop(struct apiserver *s)
{
    kube_client_free(s->client);
    httpd_stop(s->httpd);
    uv_close((uv_handle_t *)&s->tick, NULL);
    uv_close((uv_handle_t *)&s->limit, NULL);
    for (int i = 0; i < 1000 && uv_loop_alive(&s->loop); i++)
        uv_run(&s->loop, UV_RUN_NOWAIT);
    assert_int_equal(uv_loop_close(&s->loop), 0); /* nothing was left open */
}
