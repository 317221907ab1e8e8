/* When requests go out: Retry-After, the client's own rate, what must not wait, what is sent again;
 * connections that say nothing; credentials that rotate. */
#include "tests/lib/kube/apiserver.h"

#include "lib/base/metrics.h"
#include "lib/kube/client_int.h"

#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

struct outcome {
    struct apiserver *s;
    unsigned n, wanted;
    int status, code;
    char msg[256];
};

static void on_done(const struct kube_result *r, void *ctx)
{
    struct outcome *o = ctx;
    o->n++;
    o->status = r->status;
    o->code = r->err.code;
    snprintf(o->msg, sizeof o->msg, "%s", r->err.msg);
    if (o->n >= o->wanted)
        uv_stop(&o->s->loop);
}

static void get(struct outcome *o, bool urgent)
{
    struct err e = {0};
    struct kube_call c = {.verb = KUBE_GET,
                          .kind = &kube_pods,
                          .namespace = "d",
                          .name = "a",
                          .urgent = urgent,
                          .timeout_ms = 300,
                          .done = on_done,
                          .ctx = o};
    if (kube_start(o->s->client, &c, &e))
        fail_msg("%s", e.msg);
}

static unsigned ms_between(const struct apiserver *s, size_t a, size_t b)
{
    return (unsigned)((s->seen[b].at_ns - s->seen[a].at_ns) / NS_PER_MS);
}

/* ---- Retry-After ---- */

#define WAIT_1                                                                                     \
    {                                                                                              \
        .status = 429, .body = "{\"reason\":\"TooManyRequests\"}", .header = "Retry-After",        \
        .value = "1"                                                                               \
    }
#define OK                                                                                         \
    {                                                                                              \
        .body = "{\"kind\":\"x\"}", .whole = true                                                  \
    }

static void a_refused_request_is_sent_again_when_the_server_said(void **state)
{
    struct answer script[] = {WAIT_1, OK, OK};
    struct apiserver s;
    struct outcome o = {.s = &s, .wanted = 1};
    (void)state;
    apiserver_start(&s, script, 3);
    get(&o, false);
    apiserver_wait(&s, 100); /* refused by now */
    get(&o, false);          /* waits with the first, behind it */
    o.wanted = 2;
    apiserver_run(&s);
    assert_int_equal(o.status, 200);
    assert_int_equal(s.n, 3);
    assert_in_range(ms_between(&s, 0, 1), 990, 3000);
    assert_in_range(ms_between(&s, 0, 2), 990, 3000);
    apiserver_stop(&s);
}

static void a_request_is_not_sent_again_for_ever(void **state)
{
    struct answer again = {.status = 503,
                           .body = "{\"reason\":\"ServiceUnavailable\",\"details\":{"
                                   "\"retryAfterSeconds\":1}}"};
    struct answer script[] = {again, again, again, again, OK};
    struct apiserver s;
    struct outcome o = {.s = &s, .wanted = 1};
    (void)state;
    apiserver_start(&s, script, 5);
    get(&o, false);
    apiserver_run(&s);
    assert_int_equal(o.status, 503);
    assert_int_equal(s.n, 1 + RESEND_MAX);
    apiserver_stop(&s);
}

static void a_wait_that_is_too_long_is_the_callers_business(void **state)
{
    struct answer script[] = {{.status = 429, .body = "{}", .header = "Retry-After", .value = "31"},
                              OK};
    struct apiserver s;
    struct outcome o = {.s = &s, .wanted = 1};
    (void)state;
    apiserver_start(&s, script, 2);
    get(&o, false);
    apiserver_run(&s);
    assert_int_equal(o.status, 429);
    o.wanted = 2;
    get(&o, false); /* nothing is held back either */
    apiserver_run(&s);
    assert_int_equal(o.status, 200);
    apiserver_stop(&s);
}

static void leases_go_out_while_others_are_held_back(void **state)
{
    struct answer script[] = {WAIT_1, OK, OK};
    struct apiserver s;
    struct outcome o = {.s = &s, .wanted = 1}, lease = {.s = &s, .wanted = 1};
    (void)state;
    apiserver_start(&s, script, 3);
    get(&o, false);
    apiserver_wait(&s, 100);
    get(&lease, true);
    apiserver_run(&s);
    assert_int_equal(lease.n, 1);
    assert_int_equal(o.n, 0);
    apiserver_run(&s);
    assert_int_equal(o.n, 1);
    apiserver_stop(&s);
}

static bool never(const void *ctx)
{
    (void)ctx;
    return false;
}

static void what_waited_is_not_sent_by_who_may_no_longer(void **state)
{
    struct answer script[] = {WAIT_1, OK};
    struct apiserver s;
    struct outcome o = {.s = &s, .wanted = 1};
    struct kube_call c = {.verb = KUBE_DELETE,
                          .kind = &kube_pods,
                          .namespace = "d",
                          .name = "a",
                          .may_send = never,
                          .done = on_done,
                          .ctx = &o};
    (void)state;
    apiserver_start(&s, script, 2);
    assert_int_equal(kube_start(s.client, &c, NULL), 0);
    apiserver_run(&s);
    assert_int_equal(o.code, ECANCELED);
    assert_int_equal(s.n, 1);
    apiserver_stop(&s);
}

/* ---- the blocking form ---- */

/* A server that answers one connection after another, in a thread of its own. */
static void *serve_two(void *arg)
{
    static const char *const answers[] = {
        "HTTP/1.1 429 x\r\nRetry-After: 1\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}",
        "HTTP/1.1 200 x\r\nContent-Length: 14\r\nConnection: close\r\n\r\n{\"kind\":\"Pod\"}"};
    int listener = *(int *)arg;
    for (int i = 0; i < 2; i++) {
        char request[4096];
        int fd = accept(listener, NULL, NULL);
        if (fd < 0 || read(fd, request, sizeof request) <= 0 ||
            write(fd, answers[i], strlen(answers[i])) < 0)
            abort();
        close(fd);
    }
    return NULL;
}

static void a_blocking_call_waits_too(void **state)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t n = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    pthread_t server;
    char url[64];
    struct kube_client *c;
    struct kube_result r;
    struct err e = {0};
    (void)state;
    assert_int_equal(bind(listener, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(listener, 2), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&at, &n), 0);
    assert_int_equal(pthread_create(&server, NULL, serve_two, &listener), 0);
    snprintf(url, sizeof url, "http://127.0.0.1:%u", ntohs(at.sin_port));
    struct kube_config kc = {.server = url};
    assert_int_equal(kube_client_new(NULL, &kc, "test", &c, &e), 0);
    struct kube_call call = {.verb = KUBE_GET, .kind = &kube_pods, .namespace = "d", .name = "a"};
    uint64_t began = clock_mono_ns();
    assert_int_equal(kube_run(c, &call, &r), 0);
    assert_in_range((clock_mono_ns() - began) / NS_PER_MS, 990, 5000);
    assert_string_equal(json_str_at(r.object, "kind", ""), "Pod");
    kube_result_fini(&r);
    kube_client_free(c);
    pthread_join(server, NULL);
    close(listener);
}

/* ---- the client's own rate ---- */

static void a_bucket_gives_its_burst_and_then_its_rate(void **state)
{
    struct bucket b = {.qps = 10, .burst = 5}, none = {.qps = -1, .burst = 1};
    uint64_t now = 1000 * NS_PER_S, wait;
    (void)state;
    for (int i = 0; i < 5; i++)
        assert_int_equal(bucket_take(&b, now), 0);
    wait = bucket_take(&b, now);
    assert_in_range(wait, 99 * NS_PER_MS, 101 * NS_PER_MS);
    assert_int_equal(bucket_take(&b, now + wait), 0);
    assert_true(bucket_take(&b, now + wait) > 0);
    now += 3600 * NS_PER_S; /* an hour saves no more than the burst */
    for (int i = 0; i < 5; i++)
        assert_int_equal(bucket_take(&b, now), 0);
    assert_true(bucket_take(&b, now) > 0);
    for (int i = 0; i < 1000; i++)
        assert_int_equal(bucket_take(&none, now), 0);
}

static void requests_beyond_the_rate_wait_in_order_and_leases_do_not(void **state)
{
    struct answer ok = OK, script[10];
    struct apiserver s;
    struct outcome o = {.s = &s, .wanted = 8}, lease = {.s = &s, .wanted = 1};
    struct kube_config kc = {.qps = 20, .burst = 4};
    (void)state;
    for (int i = 0; i < 10; i++)
        script[i] = ok;
    apiserver_init(&s, script, 10);
    apiserver_listen(&s, 0, NULL, NULL);
    apiserver_connect(&s, "http", httpd_port(s.httpd), kc);
    assert_int_equal(kube_pause_ms(s.client, 2), 0);
    assert_int_equal(kube_pause_ms(s.client, 100), 0); /* half the burst is enough */
    for (int i = 0; i < 8; i++)
        get(&o, false);
    assert_in_range(kube_pause_ms(s.client, 1), 1, 150); /* half the burst, none of it there */
    get(&lease, true);
    apiserver_run(&s);
    assert_int_equal(lease.n, 1);
    assert_true(o.n <= 6); /* the burst, and what the wait has brought */
    apiserver_run(&s);
    assert_int_equal(o.n, 8);
    assert_int_equal(s.n, 9);
    assert_in_range(ms_between(&s, 0, 8), 180, 3000); /* 4 beyond the burst, 50 ms each */
    apiserver_stop(&s);
}

/* ---- connections that say nothing ---- */

static void after_a_timeout_no_idle_connection_is_trusted(void **state)
{
    struct answer script[] = {OK, {.body = "", .hold = true}, OK, OK};
    struct apiserver s;
    struct outcome o = {.s = &s, .wanted = 1};
    (void)state;
    apiserver_start(&s, script, 4);
    get(&o, false); /* leaves an idle connection */
    apiserver_run(&s);
    o.wanted = 2;
    get(&o, false); /* goes silent on it */
    apiserver_run(&s);
    assert_int_equal(o.code, ETIMEDOUT);
    s.stream = NULL;
    for (unsigned i = 3; i <= 4; i++) {
        o.wanted = i;
        get(&o, false);
        apiserver_run(&s);
        assert_int_equal(o.status, 200);
    }
    assert_string_equal(s.seen[0].peer, s.seen[1].peer);
    assert_string_not_equal(s.seen[1].peer, s.seen[2].peer);
    apiserver_stop(&s);
}

/* ---- warnings ---- */

static void warnings_are_remembered_once_each(void **state)
{
    struct answer one = {.body = "{}", .header = "Warning", .value = "299 - \"v1 is old\""},
                  two = {.body = "{}", .header = "Warning", .value = "299 - \"v2 is new\""};
    struct answer script[] = {one, one, two};
    struct apiserver s;
    struct outcome o = {.s = &s};
    (void)state;
    apiserver_start(&s, script, 3);
    for (unsigned i = 1; i <= 3; i++) {
        o.wanted = i;
        get(&o, false);
        apiserver_run(&s);
        assert_int_equal(kube_warnings_seen(s.client), i < 3 ? 1 : 2);
    }
    apiserver_stop(&s);
}

/* ---- credentials ---- */

static void put(const char *dir, const char *name, const char *text)
{
    CLEANUP(free_charp) char *path = xasprintf("%s/%s", dir, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static char *slurp(const char *dir, const char *name)
{
    CLEANUP(free_charp) char *path = xasprintf("%s/%s", dir, name);
    FILE *f = fopen(path, "r");
    char *text = xcalloc(1, 65536);
    assert_non_null(f);
    assert_true(fread(text, 1, 65535, f) > 0);
    fclose(f);
    return text;
}

static void tidy(const char *dir)
{
    CLEANUP(free_charp) char *command = xasprintf("rm -r %s", dir);
    assert_int_equal(system(command), 0);
}

static void a_token_that_is_refused_is_read_again_at_once(void **state)
{
    char dir[] = "/tmp/baton-test-XXXXXX";
    struct answer no = {.status = 401, .body = "{\"reason\":\"Unauthorized\"}"};
    struct answer script[] = {OK, no, OK, no, OK};
    struct apiserver s;
    struct outcome o = {.s = &s, .wanted = 1};
    (void)state;
    assert_non_null(mkdtemp(dir));
    put(dir, "token", "first\n");
    CLEANUP(free_charp) char *path = xasprintf("%s/token", dir);
    struct kube_config kc = {.token_file = path};
    apiserver_init(&s, script, 5);
    apiserver_listen(&s, 0, NULL, NULL);
    apiserver_connect(&s, "http", httpd_port(s.httpd), kc);
    get(&o, false);
    apiserver_run(&s);
    put(dir, "token", "second\n"); /* within the minute */
    o.wanted = 2;
    get(&o, false);
    apiserver_run(&s);
    assert_int_equal(o.status, 200);
    assert_string_equal(s.seen[0].auth, "Bearer first");
    assert_string_equal(s.seen[1].auth, "Bearer first");
    assert_string_equal(s.seen[2].auth, "Bearer second");
    o.wanted = 3;
    get(&o, false); /* the same token: refused for good */
    apiserver_run(&s);
    assert_int_equal(o.status, 401);
    assert_int_equal(s.n, 4);
    apiserver_stop(&s);
    tidy(dir);
}

static void make_cert(const char *dir, const char *name)
{
    CLEANUP(free_charp)
    char *command = xasprintf("cd %s && openssl req -x509 -newkey ec -pkeyopt "
                              "ec_paramgen_curve:prime256v1 -nodes -subj /CN=%s -addext "
                              "subjectAltName=IP:127.0.0.1 -days 2 -keyout %s.key -out %s.crt "
                              "2>/dev/null",
                              dir, name, name, name);
    assert_int_equal(system(command), 0);
}

static void listen_as(struct apiserver *s, const char *dir, const char *name, uint16_t port)
{
    char file[32];
    snprintf(file, sizeof file, "%s.crt", name);
    CLEANUP(free_charp) char *cert = slurp(dir, file);
    snprintf(file, sizeof file, "%s.key", name);
    CLEANUP(free_charp) char *key = slurp(dir, file);
    apiserver_listen(s, port, cert, key);
}

static void a_new_ca_is_read_when_tls_fails(void **state)
{
    char dir[] = "/tmp/baton-test-XXXXXX";
    struct answer script[] = {OK, OK};
    struct apiserver s;
    struct outcome o = {.s = &s, .wanted = 1};
    (void)state;
    assert_non_null(mkdtemp(dir));
    make_cert(dir, "old");
    make_cert(dir, "new");
    CLEANUP(free_charp) char *ca = slurp(dir, "old.crt"), *next = slurp(dir, "new.crt");
    put(dir, "ca.crt", ca);
    CLEANUP(free_charp) char *path = xasprintf("%s/ca.crt", dir);
    struct kube_config kc = {.ca_pem = ca, .ca_file = path};
    apiserver_init(&s, script, 2);
    listen_as(&s, dir, "old", 0);
    uint16_t port = httpd_port(s.httpd);
    apiserver_connect(&s, "https", port, kc);
    get(&o, false);
    apiserver_run(&s);
    assert_int_equal(o.status, 200);
    httpd_stop(s.httpd);
    listen_as(&s, dir, "new", port);
    o.wanted = 2;
    get(&o, false); /* the file is still the old one */
    apiserver_run(&s);
    assert_int_equal(o.code, EPROTO);
    put(dir, "ca.crt", next);
    o.wanted = 3;
    get(&o, false);
    apiserver_run(&s);
    if (o.status != 200)
        fail_msg("%s", o.msg);
    apiserver_stop(&s);
    tidy(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_refused_request_is_sent_again_when_the_server_said),
        cmocka_unit_test(a_request_is_not_sent_again_for_ever),
        cmocka_unit_test(a_wait_that_is_too_long_is_the_callers_business),
        cmocka_unit_test(leases_go_out_while_others_are_held_back),
        cmocka_unit_test(what_waited_is_not_sent_by_who_may_no_longer),
        cmocka_unit_test(a_blocking_call_waits_too),
        cmocka_unit_test(a_bucket_gives_its_burst_and_then_its_rate),
        cmocka_unit_test(requests_beyond_the_rate_wait_in_order_and_leases_do_not),
        cmocka_unit_test(after_a_timeout_no_idle_connection_is_trusted),
        cmocka_unit_test(warnings_are_remembered_once_each),
        cmocka_unit_test(a_token_that_is_refused_is_read_again_at_once),
        cmocka_unit_test(a_new_ca_is_read_when_tls_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
