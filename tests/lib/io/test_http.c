/* The HTTP server and client against each other in one loop: bodies, streams, bounds, and clients
 * that leave. */
#include "lib/base/clock.h"
#include "lib/io/http.h"
#include "lib/io/httpd.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cmocka.h>

struct fixture {
    uv_loop_t loop;
    struct httpd *server;
    struct http_client *client;
    struct httpd_req *held; /* a request whose answer waits */
    int closed, gone, done, status, code, pieces;
    struct buf got;
    char url[64];
};

static void on_close(struct httpd_req *r, bool gone, void *ctx)
{
    struct fixture *f = ctx;
    f->closed++;
    f->gone += gone;
    if (f->held == r)
        f->held = NULL;
}

static void handler(struct httpd_req *r, void *ctx)
{
    struct fixture *f = ctx;
    struct str path = httpd_path(r);
    httpd_on_close(r, on_close, f);
    if (str_eq_c(path, "/echo")) {
        httpd_set_header(r, "x-arg", httpd_arg(r, "a") ? httpd_arg(r, "a") : "none");
        httpd_reply(r, 201, "text/plain", httpd_body(r));
    } else if (str_eq_c(path, "/hold")) {
        f->held = r;
    } else if (str_eq_c(path, "/stream")) {
        f->held = r;
        httpd_stream_start(r, 200, "text/event-stream", 1 << 20);
        assert_int_equal(httpd_stream_write(r, STR("one ")), 0);
    } else {
        httpd_replyf(r, 404, "text/plain", "no %.*s", STR_ARG(path));
    }
}

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    struct err e = {0};
    uv_loop_init(&f->loop);
    buf_init(&f->got, 1 << 20);
    struct httpd_config hc = {.loop = &f->loop,
                              .host = "127.0.0.1",
                              .max_body_bytes = 100000,
                              .handler = handler,
                              .ctx = f};
    assert_int_equal(httpd_start(&hc, &f->server, &e), 0);
    struct http_client_config cc = {.loop = &f->loop};
    assert_int_equal(http_client_new(&cc, &f->client, &e), 0);
    snprintf(f->url, sizeof f->url, "http://127.0.0.1:%u", httpd_port(f->server));
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    http_client_free(f->client);
    httpd_stop(f->server);
    uv_run(&f->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&f->loop), 0);
    buf_fini(&f->got);
    free(f);
    return 0;
}

static void on_done(const struct http_response *r, void *ctx)
{
    struct fixture *f = ctx;
    f->done++;
    f->status = r->status;
    f->code = r->code;
    if (r->body.n)
        assert_int_equal(buf_str(&f->got, r->body), 0);
}

static int on_data(struct http_call *c, struct str piece, void *ctx)
{
    struct fixture *f = ctx;
    (void)c;
    f->pieces++;
    return buf_str(&f->got, piece);
}

static struct http_call *start(struct fixture *f, const char *path, struct str body, bool stream)
{
    struct err e = {0};
    CLEANUP(free_charp) char *url = xasprintf("%s%s", f->url, path);
    struct http_request r = {.method = body.n ? "POST" : "GET",
                             .url = url,
                             .body = body,
                             .on_done = on_done,
                             .ctx = f,
                             .on_data = stream ? on_data : NULL};
    struct http_call *c = http_start(f->client, &r, &e);
    assert_non_null(c);
    return c;
}

#define RUN_UNTIL(f, cond)                                                                         \
    do {                                                                                           \
        uint64_t end_ = clock_mono_ns() + 5 * NS_PER_S;                                            \
        while (!(cond)) {                                                                          \
            assert_true(clock_mono_ns() < end_);                                                   \
            uv_run(&(f)->loop, UV_RUN_NOWAIT);                                                     \
        }                                                                                          \
    } while (0)

static void a_body_comes_back_with_headers_and_arguments(void **state)
{
    struct fixture *f = *state;
    for (int i = 1; i <= 20; i++) {
        buf_reset(&f->got);
        start(f, "/echo?a=b%20c", STR("hello"), false);
        RUN_UNTIL(f, f->done == i);
        assert_int_equal(f->status, 201);
        assert_string_equal(f->got.data, "hello");
    }
}

static void a_body_over_the_limit_is_refused(void **state)
{
    struct fixture *f = *state;
    static char big[200000];
    start(f, "/echo", (struct str){big, sizeof big}, false);
    RUN_UNTIL(f, f->done == 1);
    assert_true(f->status == 413 || f->code == -EPIPE);
}

static void a_reply_may_come_later(void **state)
{
    struct fixture *f = *state;
    start(f, "/hold", STR(""), false);
    RUN_UNTIL(f, f->held);
    httpd_replyf(f->held, 200, "text/plain", "late");
    RUN_UNTIL(f, f->done == 1);
    assert_string_equal(f->got.data, "late");
    RUN_UNTIL(f, f->closed == 1);
    assert_int_equal(f->gone, 0);
}

static void a_stream_arrives_piece_by_piece(void **state)
{
    struct fixture *f = *state;
    start(f, "/stream", STR(""), true);
    RUN_UNTIL(f, f->pieces == 1);
    assert_int_equal(httpd_stream_write(f->held, STR("two ")), 0);
    RUN_UNTIL(f, f->pieces == 2);
    assert_int_equal(httpd_stream_write(f->held, STR("three")), 0);
    httpd_stream_end(f->held);
    RUN_UNTIL(f, f->done == 1);
    assert_string_equal(f->got.data, "one two three");
    assert_int_equal(f->code, 0);
}

static void an_aborted_stream_is_an_error_for_the_client(void **state)
{
    struct fixture *f = *state;
    start(f, "/stream", STR(""), true);
    RUN_UNTIL(f, f->pieces == 1);
    httpd_abort(f->held);
    RUN_UNTIL(f, f->done == 1);
    assert_true(f->code < 0);
}

static void a_client_that_leaves_is_seen_while_nothing_is_written(void **state)
{
    struct fixture *f = *state;
    struct http_call *c = start(f, "/hold", STR(""), false);
    RUN_UNTIL(f, f->held);
    http_cancel(c);
    RUN_UNTIL(f, f->closed == 1);
    assert_int_equal(f->gone, 1);
    c = start(f, "/stream", STR(""), true);
    RUN_UNTIL(f, f->pieces == 1);
    http_cancel(c);
    RUN_UNTIL(f, f->closed == 2);
    assert_int_equal(f->gone, 2);
    assert_int_equal(f->done, 0);
}

static void a_refused_connection_is_an_error(void **state)
{
    struct fixture *f = *state;
    snprintf(f->url, sizeof f->url, "http://127.0.0.1:1");
    start(f, "/echo", STR(""), false);
    RUN_UNTIL(f, f->done == 1);
    assert_int_equal(f->code, -ECONNREFUSED);
}

static void raw(struct fixture *f, const char *text, char *out, size_t max)
{
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons(httpd_port(f->server)),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    assert_true(write(fd, text, strlen(text)) > 0);
    ssize_t n;
    size_t got = 0;
    uint64_t end = clock_mono_ns() + 5 * NS_PER_S;
    do {
        assert_true(clock_mono_ns() < end);
        uv_run(&f->loop, UV_RUN_NOWAIT);
        n = recv(fd, out + got, max - 1 - got, MSG_DONTWAIT);
        if (n > 0)
            got += (size_t)n;
        out[got] = 0;
    } while (n != 0 && !strstr(out, "\r\n\r\n"));
    close(fd);
}

static void smuggling_and_malformed_paths_are_refused(void **state)
{
    struct fixture *f = *state;
    char out[4096] = "";
    raw(f,
        "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: "
        "chunked\r\n\r\n0\r\n\r\n",
        out, sizeof out);
    assert_non_null(strstr(out, " 400 "));
    raw(f, "GET /a%00b HTTP/1.1\r\nHost: x\r\n\r\n", out, sizeof out);
    assert_non_null(strstr(out, " 400 "));
    raw(f, "GET /ec%zz HTTP/1.1\r\nHost: x\r\n\r\n", out, sizeof out);
    assert_non_null(strstr(out, " 400 "));
}

/* Of this process's sockets, the one that is connected to the port. */
static int socket_to(uint16_t port)
{
    for (int fd = 3; fd < 256; fd++) {
        struct sockaddr_in a;
        socklen_t n = sizeof a;
        if (getpeername(fd, (struct sockaddr *)&a, &n) == 0 && a.sin_family == AF_INET &&
            ntohs(a.sin_port) == port)
            return fd;
    }
    return -1;
}

static int option(int fd, int level, int name)
{
    int v = -1;
    socklen_t n = sizeof v;
    assert_int_equal(getsockopt(fd, level, name, &v, &n), 0);
    return v;
}

static void a_peer_whose_tcp_is_dead_is_given_up_by_the_kernel(void **state)
{
    struct fixture *f = *state;
    struct http_client_config cc = {.loop = &f->loop, .dead_peer_ms = 30000};
    struct http_client *watched;
    struct err e = {0};
    CLEANUP(free_charp) char *url = xasprintf("%s/hold", f->url);
    struct http_request r = {.url = url};
    assert_int_equal(http_client_new(&cc, &watched, &e), 0);
    assert_non_null(http_start(watched, &r, &e));
    while (!f->held)
        uv_run(&f->loop, UV_RUN_ONCE);
    int fd = socket_to(httpd_port(f->server));
    assert_true(fd >= 0);
    assert_int_equal(option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT), 30000);
    assert_int_equal(option(fd, SOL_SOCKET, SO_KEEPALIVE), 1);
    assert_int_equal(option(fd, IPPROTO_TCP, TCP_KEEPIDLE), 15);
    assert_int_equal(option(fd, IPPROTO_TCP, TCP_KEEPINTVL), 5);
    http_client_free(watched);
}

int main(void)
{
#define T(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(a_peer_whose_tcp_is_dead_is_given_up_by_the_kernel),
        T(a_body_comes_back_with_headers_and_arguments),
        T(a_body_over_the_limit_is_refused),
        T(a_reply_may_come_later),
        T(a_stream_arrives_piece_by_piece),
        T(an_aborted_stream_is_an_error_for_the_client),
        T(a_client_that_leaves_is_seen_while_nothing_is_written),
        T(a_refused_connection_is_an_error),
        T(smuggling_and_malformed_paths_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
