/* The scaling part's life: one timer, one HTTP client. */
#include "controller/scaling.h"
#include "lib/base/clock.h"
#include "lib/base/metrics.h"

#include <stdlib.h>

#define TICK_MS 1000

static void on_tick(uv_timer_t *t)
{
    struct load *l = t->data;
    uint64_t now = clock_mono_ns();
    samples_forget(l, now);
    scaler_look(l);
    samples_ask(l);
    promql_ask(l, now);
}

int load_start(struct ctl *c, struct err *e)
{
    struct load *l = xcalloc(1, sizeof *l);
    struct http_client_config cfg = {.loop = c->loop, .user_agent = "baton-controller"};
    int rc = http_client_new(&cfg, &l->http, e);
    if (rc) {
        free(l);
        return rc;
    }
    l->ctl = c;
    l->decisions = decisions_new(c->opts.decision_log);
    l->room = room_start(c);
    l->timer.data = l;
    uv_timer_init(c->loop, &l->timer);
    uv_timer_start(&l->timer, on_tick, TICK_MS, TICK_MS);
    c->load = l;
    metrics_collect(scaling_expose, c);
    return c->opts.metrics_port ? metrics_tls_start(l, &l->tls, e) : 0;
}

static void on_timer_closed(uv_handle_t *h)
{
    free(h->data);
}

void load_stop(struct ctl *c)
{
    struct load *l = c->load;
    if (!l)
        return;
    c->load = NULL;
    metrics_uncollect(scaling_expose, c);
    uv_timer_stop(&l->timer);
    metrics_tls_stop(l->tls);
    http_client_free(l->http);
    room_stop(l->room);
    samples_free(l);
    pools_free(l);
    decisions_free(l->decisions);
    uv_close((uv_handle_t *)&l->timer, on_timer_closed);
}
