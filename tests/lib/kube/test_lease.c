/* Leader election against a Lease held in memory, with short times (longer where others compute).
 */
#include "lib/kube/lease.h"
#include "lib/io/httpd.h"

#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "tests/patience.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <cmocka.h>

static unsigned slow; /* every time below is that many times as long */

struct world;
struct candidate {
    struct world *w;
    struct kube_client *client;
    struct kube_lease *lease;
    bool leads, lost;
};

struct world {
    uv_loop_t loop;
    struct httpd *httpd;
    json_t *lease; /* NULL: not made yet */
    unsigned rv, writes;
    bool down; /* the server answers 503 */
    struct candidate c[2];
};

static void reply(struct httpd_req *r, int status, const json_t *o)
{
    struct buf b;
    buf_init(&b, 65536);
    assert_int_equal(json_write(o, false, &b), 0);
    httpd_reply(r, status, "application/json", buf_view(&b));
    buf_fini(&b);
}

static void store(struct world *w, json_t *body)
{
    char rv[16];
    snprintf(rv, sizeof rv, "%u", ++w->rv);
    json_object_set_new(json_object_get(body, "metadata"), "resourceVersion", json_string(rv));
    json_decref(w->lease);
    w->lease = body;
    w->writes++;
}

static void handle(struct httpd_req *r, void *ctx)
{
    struct world *w = ctx;
    struct err e;
    if (w->down) {
        httpd_replyf(r, 503, "application/json", "{\"reason\":\"ServiceUnavailable\"}");
        return;
    }
    if (str_eq_c(httpd_method(r), "GET")) {
        if (w->lease)
            reply(r, 200, w->lease);
        else
            httpd_replyf(r, 404, "application/json", "{\"reason\":\"NotFound\"}");
        return;
    }
    json_t *body = json_parse(httpd_body(r), 65536, 0, &e);
    const char *rv = json_str_at(body, "metadata.resourceVersion", "");
    bool create = str_eq_c(httpd_method(r), "POST");
    if (create ? w->lease != NULL
               : strcmp(rv, json_str_at(w->lease, "metadata.resourceVersion", "")) != 0) {
        httpd_replyf(r, 409, "application/json", "{\"reason\":\"%s\"}",
                     create ? "AlreadyExists" : "Conflict");
        json_decref(body);
        return;
    }
    store(w, body);
    reply(r, 200, w->lease);
}

static void on_acquired(void *ctx)
{
    struct candidate *c = ctx;
    c->leads = true;
}

static void on_lost(void *ctx)
{
    struct candidate *c = ctx;
    c->leads = false;
    c->lost = true;
}

static void join(struct world *w, int i)
{
    struct candidate *c = &w->c[i];
    struct err e = {0};
    char url[64];
    *c = (struct candidate){.w = w};
    snprintf(url, sizeof url, "http://127.0.0.1:%u", httpd_port(w->httpd));
    struct kube_config kc = {.server = url};
    assert_int_equal(kube_client_new(&w->loop, &kc, "test", &c->client, &e), 0);
    struct kube_lease_config cfg = {.namespace = "d",
                                    .name = "l",
                                    .identity = i ? "second" : "first",
                                    .duration_ms = 1000 * slow,
                                    .renew_deadline_ms = 500 * slow,
                                    .retry_ms = 50 * slow,
                                    .on_acquired = on_acquired,
                                    .on_lost = on_lost,
                                    .ctx = c};
    if (kube_lease_start(c->client, &cfg, &c->lease, &e))
        fail_msg("%s", e.msg);
}

/* As a process that is killed: no word to anyone. */
static void drop(struct world *w, int i)
{
    kube_client_free(w->c[i].client);
    w->c[i].client = NULL;
}

static void start(struct world *w)
{
    struct err e = {0};
    memset(w, 0, sizeof *w);
    uv_loop_init(&w->loop);
    struct httpd_config hc = {.loop = &w->loop,
                              .host = "127.0.0.1",
                              .max_body_bytes = 65536,
                              .handler = handle,
                              .ctx = w};
    assert_int_equal(httpd_start(&hc, &w->httpd, &e), 0);
}

static void turn(struct world *w, unsigned ms)
{
    uint64_t end = clock_mono_ns() + ms * slow * NS_PER_MS;
    while (clock_mono_ns() < end) {
        uv_run(&w->loop, UV_RUN_NOWAIT);
        uv_sleep(1);
    }
}

static bool leads(const struct world *w, int i)
{
    return w->c[i].leads && kube_lease_valid(w->c[i].lease);
}

static void end(struct world *w)
{
    for (int i = 0; i < 2; i++)
        if (w->c[i].client) {
            kube_lease_release(w->c[i].lease, NULL, NULL);
            turn(w, 50);
            kube_client_free(w->c[i].client);
        }
    httpd_stop(w->httpd);
    json_decref(w->lease);
    for (int i = 0; i < 1000 && uv_loop_alive(&w->loop); i++)
        uv_run(&w->loop, UV_RUN_NOWAIT);
    assert_int_equal(uv_loop_close(&w->loop), 0);
}

static void the_first_leads_and_renews_and_the_second_waits(void **state)
{
    struct world w;
    (void)state;
    start(&w);
    join(&w, 0);
    turn(&w, 100);
    assert_true(leads(&w, 0));
    join(&w, 1);
    turn(&w, 1500);
    assert_true(leads(&w, 0));
    assert_false(leads(&w, 1));
    assert_true(w.writes > 10);
    assert_string_equal(json_str_at(w.lease, "spec.holderIdentity", ""), "first");
    assert_int_equal(json_int_at(w.lease, "spec.leaseTransitions", -1), 0);
    end(&w);
}

static void a_released_lease_is_taken_at_once(void **state)
{
    struct world w;
    (void)state;
    start(&w);
    join(&w, 0);
    turn(&w, 100);
    join(&w, 1);
    turn(&w, 100);
    kube_lease_release(w.c[0].lease, NULL, NULL);
    turn(&w, 400); /* less than its duration */
    drop(&w, 0);
    assert_true(leads(&w, 1));
    assert_int_equal(json_int_at(w.lease, "spec.leaseTransitions", -1), 1);
    end(&w);
}

static void one_who_can_not_renew_stops_before_another_may_begin(void **state)
{
    struct world w;
    (void)state;
    start(&w);
    join(&w, 0);
    turn(&w, 100);
    w.down = true;
    turn(&w, 700);
    assert_false(leads(&w, 0));
    assert_true(w.c[0].lost);
    w.down = false;
    turn(&w, 200);
    assert_false(leads(&w, 0)); /* it does not come back by itself: the program ends */
    end(&w);
}

static void a_short_outage_is_survived(void **state)
{
    struct world w;
    (void)state;
    start(&w);
    join(&w, 0);
    turn(&w, 100);
    w.down = true;
    turn(&w, 250);
    w.down = false;
    turn(&w, 600);
    assert_true(leads(&w, 0));
    assert_false(w.c[0].lost);
    end(&w);
}

static void expiry_is_judged_by_the_own_clock(void **state)
{
    struct world w;
    (void)state;
    start(&w);
    store(&w, json_pack("{s:{s:s}, s:{s:s, s:i, s:s, s:s, s:i}}", "metadata", "name", "l", "spec",
                        "holderIdentity", "dead", "leaseDurationSeconds", (int)slow, "acquireTime",
                        "2000-01-01T00:00:00.000000Z", "renewTime", "2000-01-01T00:00:00.000000Z",
                        "leaseTransitions", 4));
    join(&w, 0);
    turn(&w, 500); /* its renewTime is decades old, but clocks differ */
    assert_false(leads(&w, 0));
    turn(&w, 1000);
    assert_true(leads(&w, 0));
    assert_int_equal(json_int_at(w.lease, "spec.leaseTransitions", -1), 5);
    end(&w);
}

static void times_that_could_let_two_lead_are_refused(void **state)
{
    struct world w;
    struct err e = {0};
    struct kube_lease *l;
    (void)state;
    start(&w);
    join(&w, 0);
    struct kube_lease_config cfg = {.namespace = "d",
                                    .name = "l",
                                    .identity = "x",
                                    .duration_ms = 1000,
                                    .renew_deadline_ms = 1000,
                                    .retry_ms = 100};
    assert_true(kube_lease_start(w.c[0].client, &cfg, &l, &e) < 0);
    end(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_leads_and_renews_and_the_second_waits),
        cmocka_unit_test(a_released_lease_is_taken_at_once),
        cmocka_unit_test(one_who_can_not_renew_stops_before_another_may_begin),
        cmocka_unit_test(a_short_outage_is_survived),
        cmocka_unit_test(expiry_is_judged_by_the_own_clock),
        cmocka_unit_test(times_that_could_let_two_lead_are_refused),
    };
    slow = crowding();
    log_init("test", "text", LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
