/* A proxy stands between client and server and stops forwarding, while its kernel goes on
 * acknowledging: probes of TCP are answered, only the missing bytes tell. The limits of watch.h are
 * made a tenth of their length here, in the same order. */
#include "tests/lib/kube/apiserver.h"

#include "lib/kube/watch.h"

#define LIFE_S     2
#define SILENCE_MS (KUBE_SILENCE_MS / 10)

struct pipe {
    struct proxy *proxy;
    struct pipe *next;
    uv_tcp_t side[2]; /* client, server */
    uv_connect_t connect;
    bool frozen;
    unsigned open;
};

struct proxy {
    uv_loop_t *loop;
    uv_tcp_t listener;
    uint16_t port, to;
    struct pipe *pipes;
    unsigned made, swallowed;
};

struct sent {
    uv_write_t w;
    char data[];
};

static void on_alloc(uv_handle_t *h, size_t n, uv_buf_t *out)
{
    (void)h;
    *out = uv_buf_init(xcalloc(1, n), (unsigned)n);
}

static void on_written(uv_write_t *w, int status)
{
    (void)status;
    free(w->data);
}

static void close_side(uv_tcp_t *t)
{
    if (!uv_is_closing((uv_handle_t *)t))
        uv_close((uv_handle_t *)t, NULL);
}

static void on_bytes(uv_stream_t *from, ssize_t n, const uv_buf_t *b)
{
    struct pipe *p = from->data;
    uv_tcp_t *to = from == (uv_stream_t *)&p->side[0] ? &p->side[1] : &p->side[0];
    if (n > 0 && p->frozen) {
        p->proxy->swallowed++;
    } else if (n > 0 && !uv_is_closing((uv_handle_t *)to)) {
        struct sent *s = xcalloc(1, sizeof *s + (size_t)n);
        memcpy(s->data, b->base, (size_t)n);
        uv_buf_t out = uv_buf_init(s->data, (unsigned)n);
        s->w.data = s;
        uv_write(&s->w, (uv_stream_t *)to, &out, 1, on_written);
    } else if (n < 0 && !p->frozen) { /* an end passes; a frozen pipe keeps it to itself */
        close_side(&p->side[0]);
        close_side(&p->side[1]);
    } else if (n < 0) {
        close_side((uv_tcp_t *)from);
    }
    free(b->base);
}

static void on_connected(uv_connect_t *c, int status)
{
    struct pipe *p = c->data;
    assert_int_equal(status, 0);
    uv_read_start((uv_stream_t *)&p->side[0], on_alloc, on_bytes);
    uv_read_start((uv_stream_t *)&p->side[1], on_alloc, on_bytes);
}

static void on_client(uv_stream_t *listener, int status)
{
    struct proxy *x = listener->data;
    struct pipe *p = xcalloc(1, sizeof *p);
    struct sockaddr_in to;
    assert_int_equal(status, 0);
    *p = (struct pipe){.proxy = x, .next = x->pipes};
    x->pipes = p;
    x->made++;
    uv_tcp_init(x->loop, &p->side[0]);
    uv_tcp_init(x->loop, &p->side[1]);
    p->side[0].data = p->side[1].data = p->connect.data = p;
    assert_int_equal(uv_accept(listener, (uv_stream_t *)&p->side[0]), 0);
    uv_ip4_addr("127.0.0.1", x->to, &to);
    uv_tcp_connect(&p->connect, &p->side[1], (struct sockaddr *)&to, on_connected);
}

static void proxy_start(struct proxy *x, uv_loop_t *loop, uint16_t to)
{
    struct sockaddr_in at;
    int n = sizeof at;
    *x = (struct proxy){.loop = loop, .to = to};
    uv_tcp_init(loop, &x->listener);
    x->listener.data = x;
    uv_ip4_addr("127.0.0.1", 0, &at);
    assert_int_equal(uv_tcp_bind(&x->listener, (struct sockaddr *)&at, 0), 0);
    assert_int_equal(uv_listen((uv_stream_t *)&x->listener, 8, on_client), 0);
    uv_tcp_getsockname(&x->listener, (struct sockaddr *)&at, &n);
    x->port = ntohs(at.sin_port);
}

static void proxy_freeze(struct proxy *x)
{
    for (struct pipe *p = x->pipes; p; p = p->next)
        p->frozen = true;
}

static void proxy_close(struct proxy *x)
{
    uv_close((uv_handle_t *)&x->listener, NULL);
    for (struct pipe *p = x->pipes; p; p = p->next) {
        close_side(&p->side[0]);
        close_side(&p->side[1]);
    }
}

static void proxy_free(struct proxy *x)
{
    for (struct pipe *p = x->pipes, *next; p; p = next) {
        next = p->next;
        free(p);
    }
}

struct watched {
    struct apiserver s;
    char text[256];
    const char *until;
    unsigned errors;
};

static void on_event(enum kube_event_type type, json_t *o, void *ctx)
{
    struct watched *w = ctx;
    size_t n = strlen(w->text);
    (void)type;
    snprintf(w->text + n, sizeof w->text - n, "%s ", json_str_at(o, "metadata.name", "?"));
    if (strstr(w->text, w->until))
        uv_stop(&w->s.loop);
}

static void on_error(const struct err *e, void *ctx)
{
    struct watched *w = ctx;
    (void)e;
    w->errors++;
}

#define POD(name)                                                                                  \
    "{\"type\":\"ADDED\",\"object\":{\"metadata\":{\"name\":\"" name "\",\"namespace\":\"d\","     \
    "\"uid\":\"u\",\"resourceVersion\":\"8\"}}}\n"
#define INITIAL_END                                                                                \
    "{\"type\":\"BOOKMARK\",\"object\":{\"metadata\":{\"resourceVersion\":\"7\",\"annotations\":{" \
    "\"k8s.io/initial-events-end\":\"true\"}}}}\n"

static void watch_through(struct watched *w, struct proxy *x, const struct answer *script, size_t n,
                          struct kube_watch **out)
{
    struct err e = {0};
    memset(w, 0, sizeof *w);
    apiserver_init(&w->s, script, n);
    apiserver_listen(&w->s, 0, NULL, NULL);
    proxy_start(x, &w->s.loop, httpd_port(w->s.httpd));
    apiserver_connect(&w->s, "http", x->port, (struct kube_config){0});
    struct kube_watch_config cfg = {.kind = &kube_pods,
                                    .on_event = on_event,
                                    .on_error = on_error,
                                    .ctx = w,
                                    .backoff_min_ms = 5,
                                    .silence_ms = SILENCE_MS,
                                    .watch_timeout_s = LIFE_S};
    assert_int_equal(kube_watch_start(w->s.client, &cfg, out, &e), 0);
}

static void end(struct watched *w, struct proxy *x, struct kube_watch *watch)
{
    kube_watch_stop(watch);
    proxy_close(x);
    apiserver_stop(&w->s);
    proxy_free(x);
}

static void a_proxy_that_swallows_is_found_and_gone_around(void **state)
{
    struct watched w;
    struct proxy x;
    struct kube_watch *watch;
    struct answer script[] = {
        {.body = INITIAL_END POD("first"), .hold = true},
        {.body = POD("second"), .hold = true},
    };
    (void)state;
    watch_through(&w, &x, script, 2, &watch);
    w.until = "first";
    apiserver_run(&w.s);
    proxy_freeze(&x);
    uint64_t frozen = clock_mono_ns();
    w.until = "second";
    apiserver_run(&w.s);
    uint64_t ms = (clock_mono_ns() - frozen) / NS_PER_MS;
    assert_in_range(ms, SILENCE_MS - 200, SILENCE_MS * 45 / 36); /* 45 s at full length */
    assert_int_equal(x.made, 2);
    assert_int_equal(w.errors, 1);
    assert_non_null(strstr(w.s.seen[1].query, "resourceVersion=8"));
    end(&w, &x, watch);
}

static void a_quiet_server_that_ends_its_watches_is_not_taken_for_dead(void **state)
{
    struct watched w;
    struct proxy x;
    struct kube_watch *watch;
    struct answer script[] = {
        {.body = INITIAL_END, .hold = true},
        {.body = "", .hold = true},
        {.body = POD("late"), .hold = true},
    };
    (void)state;
    watch_through(&w, &x, script, 3, &watch);
    w.until = "late";
    for (int i = 0; i < 2; i++) { /* as the server does when timeoutSeconds are over */
        apiserver_wait(&w.s, LIFE_S * 1000);
        httpd_stream_end(w.s.stream);
        w.s.stream = NULL;
    }
    apiserver_run(&w.s);
    assert_int_equal(w.errors, 0);
    assert_int_equal(x.made, 1); /* one connection for all three */
    assert_non_null(strstr(w.s.seen[0].query, "timeoutSeconds=2"));
    end(&w, &x, watch);
}

/* A watch that ends once it has heard of "second". */
struct heard {
    uv_loop_t *loop;
    struct kube_watch *watch;
    char text[64];
    unsigned errors;
};

static void hear(enum kube_event_type type, json_t *o, void *ctx)
{
    struct heard *h = ctx;
    size_t n = strlen(h->text);
    (void)type;
    snprintf(h->text + n, sizeof h->text - n, "%s ", json_str_at(o, "metadata.name", "?"));
    if (strstr(h->text, "second"))
        kube_watch_stop(h->watch);
    uv_stop(h->loop);
}

static void hear_error(const struct err *e, void *ctx)
{
    struct heard *h = ctx;
    (void)e;
    h->errors++;
}

static void run_until(struct watched *w, const struct heard *h, const char *name)
{
    while (!strstr(h->text, name))
        apiserver_run(&w->s);
}

static void hear_from(struct watched *w, struct heard *h, bool unhurried, unsigned silence_ms)
{
    struct err e = {0};
    struct kube_watch_config cfg = {.kind = &kube_pods,
                                    .on_event = hear,
                                    .on_error = hear_error,
                                    .ctx = h,
                                    .backoff_min_ms = 5,
                                    .silence_ms = silence_ms,
                                    .unhurried = unhurried};
    h->loop = &w->s.loop;
    assert_int_equal(kube_watch_start(w->s.client, &cfg, &h->watch, &e), 0);
    run_until(w, h, "first");
}

static void begin(struct watched *w, struct proxy *x, const struct answer *script, size_t n)
{
    memset(w, 0, sizeof *w);
    apiserver_init(&w->s, script, n);
    apiserver_listen(&w->s, 0, NULL, NULL);
    proxy_start(x, &w->s.loop, httpd_port(w->s.httpd));
    apiserver_connect(&w->s, "http", x->port, (struct kube_config){0});
}

static void an_unhurried_watch_waits_longer_and_calls_silence_no_error(void **state)
{
    struct watched w;
    struct proxy x;
    struct heard h = {0};
    struct answer script[] = {{.body = INITIAL_END POD("first"), .hold = true},
                              {.body = POD("second"), .hold = true}};
    (void)state;
    begin(&w, &x, script, 2);
    hear_from(&w, &h, true, 400);
    proxy_freeze(&x);
    uint64_t frozen = clock_mono_ns();
    run_until(&w, &h, "second");
    assert_true(clock_mono_ns() - frozen >= 900 * NS_PER_MS); /* 400 × 90 / 36 */
    assert_int_equal(h.errors, 0);
    assert_int_equal(x.made, 2);
    assert_non_null(strstr(w.s.seen[1].query, "resourceVersion=8"));
    end(&w, &x, NULL);
}

static void what_one_watch_finds_dead_is_dead_for_the_unhurried_ones_too(void **state)
{
    struct watched w;
    struct proxy x;
    struct heard quick = {0}, slow = {0};
    struct answer script[] = {{.body = INITIAL_END POD("first"), .hold = true},
                              {.body = INITIAL_END POD("first"), .hold = true},
                              {.body = POD("second"), .whole = true},
                              {.body = POD("second"), .whole = true}};
    (void)state;
    begin(&w, &x, script, 4);
    hear_from(&w, &slow, true, 6000); /* alone it would wait for 15 s */
    apiserver_wait(&w.s, 1600);
    hear_from(&w, &quick, false, 500);
    proxy_freeze(&x);
    run_until(&w, &slow, "second"); /* within 10 s */
    run_until(&w, &quick, "second");
    assert_int_equal(quick.errors, 1);
    assert_int_equal(slow.errors, 0);
    end(&w, &x, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_proxy_that_swallows_is_found_and_gone_around),
        cmocka_unit_test(a_quiet_server_that_ends_its_watches_is_not_taken_for_dead),
        cmocka_unit_test(an_unhurried_watch_waits_longer_and_calls_silence_no_error),
        cmocka_unit_test(what_one_watch_finds_dead_is_dead_for_the_unhurried_ones_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
