/* The connection pool against a small server in the same loop that does what a test tells it to. */
#include "lib/base/clock.h"
#include "lib/io/conn.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define OK "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

struct peer_conn {
    uv_tcp_t tcp;
    char in[1 << 16];
    size_t n;
};

static struct {
    uv_loop_t loop;
    uv_tcp_t server;
    uint16_t port;
    const char *answer; /* NULL: never answers */
    size_t answer_n;    /* 0: strlen */
    bool close_after;   /* hangs up after the answer, which does not say so */
    size_t need;        /* bytes of a request */
    unsigned connections, closed, requests;
    struct conn_pool *pool;
} t;

static void on_peer_closed(uv_handle_t *h)
{
    t.closed++;
    free(h->data);
}

static void on_sent(uv_write_t *w, int status)
{
    (void)status;
    uv_stream_t *s = w->handle;
    free(w);
    if (t.close_after && !uv_is_closing((uv_handle_t *)s))
        uv_close((uv_handle_t *)s, on_peer_closed);
}

static void on_alloc(uv_handle_t *h, size_t suggested, uv_buf_t *out)
{
    struct peer_conn *c = h->data;
    (void)suggested;
    *out = uv_buf_init(c->in, sizeof c->in);
}

static void on_peer_read(uv_stream_t *s, ssize_t n, const uv_buf_t *b)
{
    struct peer_conn *c = s->data;
    (void)b;
    if (n < 0) {
        if (!uv_is_closing((uv_handle_t *)s))
            uv_close((uv_handle_t *)s, on_peer_closed);
        return;
    }
    c->n += (size_t)n;
    if (c->n < t.need || !t.answer)
        return;
    c->n = 0;
    t.requests++;
    uv_write_t *w = calloc(1, sizeof *w);
    uv_buf_t out = uv_buf_init((char *)(uintptr_t)t.answer,
                               (unsigned)(t.answer_n ? t.answer_n : strlen(t.answer)));
    uv_write(w, s, &out, 1, on_sent);
}

static void on_connection(uv_stream_t *server, int status)
{
    struct peer_conn *c = calloc(1, sizeof *c);
    assert_int_equal(status, 0);
    uv_tcp_init(&t.loop, &c->tcp);
    c->tcp.data = c;
    assert_int_equal(uv_accept(server, (uv_stream_t *)&c->tcp), 0);
    uv_read_start((uv_stream_t *)&c->tcp, on_alloc, on_peer_read);
    t.connections++;
}

static int setup(void **state)
{
    (void)state;
    struct sockaddr_in a;
    int n = sizeof a;
    memset(&t, 0, sizeof t);
    uv_loop_init(&t.loop);
    uv_tcp_init(&t.loop, &t.server);
    uv_ip4_addr("127.0.0.1", 0, &a);
    uv_tcp_bind(&t.server, (struct sockaddr *)&a, 0);
    uv_listen((uv_stream_t *)&t.server, 16, on_connection);
    uv_tcp_getsockname(&t.server, (struct sockaddr *)&a, &n);
    t.port = ntohs(a.sin_port);
    t.need = 4;
    t.answer = OK;
    t.pool = conn_pool_new(&t.loop, 4);
    return 0;
}

static void close_peer(uv_handle_t *h, void *ctx)
{
    (void)ctx;
    if (uv_is_closing(h))
        return;
    uv_close(h, h->data && h != (uv_handle_t *)&t.server ? on_peer_closed : NULL);
}

static int teardown(void **state)
{
    (void)state;
    conn_pool_free(t.pool);
    while (uv_run(&t.loop, UV_RUN_NOWAIT) && !uv_is_closing((uv_handle_t *)&t.server)) {
        uv_walk(&t.loop, close_peer, NULL);
        uv_run(&t.loop, UV_RUN_NOWAIT);
    }
    for (int i = 0; i < 10; i++)
        uv_run(&t.loop, UV_RUN_NOWAIT);
    return uv_loop_close(&t.loop);
}

struct result {
    bool done, stale;
    int status, code, stop_at; /* stop_at: on_data fails at this piece */
    size_t n, pieces;
    char body[256];
    struct conn_call *cancel_in_data;
    bool cancel;
};

static int on_data(struct conn_call *c, struct str piece, void *ctx)
{
    struct result *r = ctx;
    r->pieces++;
    if (r->n < sizeof r->body - piece.n)
        memcpy(r->body + r->n, piece.p, piece.n);
    r->n += piece.n;
    if (r->cancel) {
        conn_cancel(c);
        return 0;
    }
    return r->stop_at && (int)r->pieces >= r->stop_at ? -1 : 0;
}

static void on_done(struct conn_call *c, int status, int code, bool stale, void *ctx)
{
    struct result *r = ctx;
    (void)c;
    assert_false(r->done);
    r->done = true;
    r->status = status;
    r->code = code;
    r->stale = stale;
}

static struct conn_call *start(struct result *r, struct str body, unsigned silence_ms)
{
    struct conn_request q = {.host = "127.0.0.1",
                             .port = t.port,
                             .head = STR("GET "),
                             .body = body,
                             .silence_timeout_ms = silence_ms,
                             .on_data = on_data,
                             .on_done = on_done,
                             .ctx = r};
    struct err e;
    *r = (struct result){.stop_at = r->stop_at, .cancel = r->cancel};
    struct conn_call *c = conn_start(t.pool, &q, &e);
    assert_non_null(c);
    assert_false(r->done); /* never inside conn_start */
    return c;
}

static void run_until(const bool *flag)
{
    uint64_t end = clock_mono_ns() + 5 * NS_PER_S;
    while (!*flag && clock_mono_ns() < end)
        uv_run(&t.loop, UV_RUN_ONCE);
    assert_true(*flag);
}

static void turn(unsigned ms)
{
    uint64_t end = clock_mono_ns() + ms * NS_PER_MS;
    while (clock_mono_ns() < end)
        uv_run(&t.loop, UV_RUN_ONCE);
}

static void one_connection_serves_many_requests(void **s)
{
    (void)s;
    struct result r = {0};
    for (int i = 0; i < 20; i++) {
        start(&r, STR(""), 0);
        run_until(&r.done);
        assert_int_equal(r.status, 200);
        assert_int_equal(r.code, 0);
        assert_memory_equal(r.body, "ok", 2);
    }
    struct conn_pool_stats st;
    conn_pool_stats(t.pool, &st);
    assert_int_equal(t.connections, 1);
    assert_int_equal(st.opened, 1);
    assert_int_equal(st.reused, 19);
    assert_int_equal(st.idle, 1);
    assert_int_equal(st.active, 0);
}

static void a_large_body_arrives_whole(void **s)
{
    (void)s;
    size_t n = 8u << 20;
    char *big = malloc(n);
    memset(big, 'x', n);
    t.need = n + 4;
    struct result r = {0};
    for (int i = 0; i < 2; i++) { /* on a fresh and on a kept connection */
        start(&r, (struct str){big, n}, 0);
        memset(big, 'y', 100); /* the caller's memory is its own again */
        run_until(&r.done);
        assert_int_equal(r.status, 200);
    }
    free(big);
}

static void a_refused_connection_says_so(void **s)
{
    (void)s;
    uv_close((uv_handle_t *)&t.server, NULL);
    uv_run(&t.loop, UV_RUN_NOWAIT);
    struct result r = {0};
    start(&r, STR(""), 0);
    run_until(&r.done);
    assert_int_equal(r.code, -ECONNREFUSED);
    assert_int_equal(r.status, 0);
    assert_false(r.stale);
}

static void a_kept_connection_that_ended_is_stale_not_lost(void **s)
{
    (void)s;
    struct result r = {0};
    start(&r, STR(""), 0);
    run_until(&r.done);
    t.answer = ""; /* the next request on it is met by a hang-up */
    t.close_after = true;
    start(&r, STR(""), 0);
    run_until(&r.done);
    assert_true(r.code < 0);
    assert_true(r.stale);
    t.answer = OK;
    t.close_after = false;
    start(&r, STR(""), 0);
    run_until(&r.done);
    assert_int_equal(r.code, 0);
}

static void an_idle_connection_that_ends_leaves_the_pool(void **s)
{
    (void)s;
    t.close_after = true;
    struct result r = {0};
    start(&r, STR(""), 0);
    run_until(&r.done);
    turn(30);
    struct conn_pool_stats st;
    conn_pool_stats(t.pool, &st);
    assert_int_equal(st.idle, 0);
}

static void a_cut_answer_is_epipe(void **s)
{
    (void)s;
    t.answer = "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nonly this";
    t.close_after = true;
    struct result r = {0};
    start(&r, STR(""), 0);
    run_until(&r.done);
    assert_int_equal(r.code, -EPIPE);
    assert_int_equal(r.status, 200);
    assert_false(r.stale);
}

static void silence_is_a_timeout(void **s)
{
    (void)s;
    t.answer = NULL;
    struct result r = {0};
    uint64_t begin = clock_mono_ns();
    start(&r, STR(""), 120);
    run_until(&r.done);
    assert_int_equal(r.code, -ETIMEDOUT);
    assert_true(clock_mono_ns() - begin < NS_PER_S);
}

static void cancelling_closes_the_connection_at_once(void **s)
{
    (void)s;
    t.answer = NULL;
    struct result r = {0};
    struct conn_call *c = start(&r, STR(""), 0);
    turn(20);
    assert_int_equal(t.connections, 1);
    conn_cancel(c);
    turn(20);
    assert_int_equal(t.closed, 1);
    assert_false(r.done);
}

static void a_call_may_be_cancelled_or_ended_from_its_own_callback(void **s)
{
    (void)s;
    struct result r = {.cancel = true};
    start(&r, STR(""), 0);
    turn(30);
    assert_false(r.done);
    assert_int_equal(r.pieces, 1);
    r = (struct result){.stop_at = 1};
    start(&r, STR(""), 0);
    run_until(&r.done);
    assert_int_equal(r.code, -ECANCELED);
}

static void nonsense_is_ebadmsg_and_extra_bytes_end_the_connection(void **s)
{
    (void)s;
    t.answer = "220 smtp ready\r\n\r\n";
    struct result r = {0};
    start(&r, STR(""), 0);
    run_until(&r.done);
    assert_int_equal(r.code, -EBADMSG);
    t.answer = OK "and more";
    start(&r, STR(""), 0);
    run_until(&r.done);
    assert_int_equal(r.code, 0);
    struct conn_pool_stats st;
    conn_pool_stats(t.pool, &st);
    assert_int_equal(st.idle, 0);
}

static void many_at_once_keep_only_so_many(void **s)
{
    (void)s;
    struct result r[12] = {{0}};
    for (int i = 0; i < 12; i++)
        start(&r[i], STR(""), 0);
    for (int i = 0; i < 12; i++) {
        run_until(&r[i].done);
        assert_int_equal(r[i].status, 200);
    }
    struct conn_pool_stats st;
    conn_pool_stats(t.pool, &st);
    assert_int_equal(st.idle, 4);
}

static void names_are_not_addresses(void **s)
{
    (void)s;
    struct conn_request q = {.host = "localhost", .port = 1, .head = STR("x")};
    struct err e = {0};
    assert_null(conn_start(t.pool, &q, &e));
    assert_non_null(strstr(e.msg, "numeric"));
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(one_connection_serves_many_requests),
        TEST(a_large_body_arrives_whole),
        TEST(a_refused_connection_says_so),
        TEST(a_kept_connection_that_ended_is_stale_not_lost),
        TEST(an_idle_connection_that_ends_leaves_the_pool),
        TEST(a_cut_answer_is_epipe),
        TEST(silence_is_a_timeout),
        TEST(cancelling_closes_the_connection_at_once),
        TEST(a_call_may_be_cancelled_or_ended_from_its_own_callback),
        TEST(nonsense_is_ebadmsg_and_extra_bytes_end_the_connection),
        TEST(many_at_once_keep_only_so_many),
        TEST(names_are_not_addresses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
