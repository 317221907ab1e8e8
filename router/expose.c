/* Series of what comes and goes: each worker as it was last heard, with who it is (pod uid,
 * incarnation, actual role), and each deployment's arrivals and held requests. The scaler can be
 * fed from Prometheus with these alone. Labels avoid `pod`, `namespace` and `instance`, which a
 * scrape of the router adds for the router itself. */
#include "lib/base/clock.h"
#include "router/router.h"

#include <stdio.h>

struct shown {
    const char *name, *help;
    double (*value)(const struct worker *w, const struct route_worker *s, uint64_t now_ns);
};

#define LOAD(fn, member)                                                                           \
    static double fn(const struct worker *w, const struct route_worker *s, uint64_t now)           \
    {                                                                                              \
        (void)s, (void)now;                                                                        \
        return (double)w->last.load.member;                                                        \
    }
LOAD(running, running)
LOAD(waiting, waiting)
LOAD(resident_tokens, resident_tokens)
LOAD(kv_blocks, kv_blocks)
LOAD(kv_blocks_used, kv_blocks_used)
LOAD(prefill_rate, prefill_tokens_per_s)
LOAD(step_s, decode_step_s)

static double waiting_tokens(const struct worker *w, const struct route_worker *s, uint64_t now)
{
    (void)now;
    return (double)(w->last.load.waiting_tokens + s->sent_prefill_tokens);
}

static double ready(const struct worker *w, const struct route_worker *s, uint64_t now)
{
    (void)w, (void)now;
    return s->ready;
}

static double draining(const struct worker *w, const struct route_worker *s, uint64_t now)
{
    (void)w, (void)now;
    return s->draining;
}

static double warming_up(const struct worker *w, const struct route_worker *s, uint64_t now)
{
    (void)s, (void)now;
    return (w->last.flags & WIRE_HB_WARMUP) != 0;
}

static double heard_at(const struct worker *w, const struct route_worker *s, uint64_t now)
{
    (void)w;
    return (double)(clock_wall_ns() - (now - s->heard_ns)) / 1e9;
}

#define W "baton_router_worker_"
static const struct shown shown[] = {
    {W "requests_running", "Requests and prefill orders that run in the worker.", running},
    {W "requests_waiting", "Requests and prefill orders that wait in the worker.", waiting},
    {W "waiting_tokens",
     "Uncached prompt tokens that wait in the worker or are on their way to it.", waiting_tokens},
    {W "resident_tokens", "Tokens in the KV of the worker's running requests.", resident_tokens},
    {W "kv_blocks", "Blocks of the worker's KV pool.", kv_blocks},
    {W "kv_blocks_used", "Of them held by running requests.", kv_blocks_used},
    {W "prefill_tokens_per_second", "Prompt tokens a second, as the worker measures; 0: unknown.",
     prefill_rate},
    {W "decode_step_seconds", "Duration of a decode step, as the worker measures; 0: unknown.",
     step_s},
    {W "ready", "1 while the worker takes requests.", ready},
    {W "draining", "1 while it finishes what it has.", draining},
    {W "warming_up", "1 while its figures come from its first seconds.", warming_up},
    {W "heartbeat_timestamp_seconds", "When it was last heard, seconds since the epoch.", heard_at},
};

static int expose_worker(struct buf *out, const struct shown *f, const struct worker *w,
                         uint64_t now)
{
    const struct deployment *d = w->d;
    const struct route_worker *s = &d->state[w->slot];
    if (!s->incarnation) /* not connected: a series that ends is seen at once, an old value is not
                          */
        return 0;
    return buf_printf(out,
                      "%s{infd_namespace=\"%s\",infd=\"%s\",worker=\"%s\",uid=\"%s\","
                      "incarnation=\"%016llx\",role=\"%s\"} %.9g\n",
                      f->name, d->namespace, d->infd, w->name, w->uid,
                      (unsigned long long)s->incarnation, wire_role_name(w->last.role),
                      f->value(w, s, now));
}

static int expose_workers(struct router *r, struct buf *out, uint64_t now)
{
    int rc = 0;
    for (size_t k = 0; k < sizeof shown / sizeof *shown && !rc; k++) {
        rc = buf_printf(out, "# HELP %s %s\n# TYPE %s gauge\n", shown[k].name, shown[k].help,
                        shown[k].name);
        for (const struct deployment *d = fleet_first(r->fleet); d && !rc; d = d->next)
            for (size_t i = 0; i < d->n_workers && !rc; i++)
                if (d->worker[i])
                    rc = expose_worker(out, &shown[k], d->worker[i], now);
    }
    return rc;
}

static int expose_deployments(struct router *r, struct buf *out, const char *name, const char *help,
                              double (*value)(const struct router *, const struct deployment *))
{
    int rc = buf_printf(out, "# HELP %s %s\n# TYPE %s gauge\n", name, help, name);
    for (const struct deployment *d = fleet_first(r->fleet); d && !rc; d = d->next)
        rc = buf_printf(out, "%s{infd_namespace=\"%s\",infd=\"%s\"} %.9g\n", name, d->namespace,
                        d->infd, value(r, d));
    return rc;
}

static double arrivals(const struct router *r, const struct deployment *d)
{
    (void)r;
    return d->arrival_tokens_per_s;
}

static double held(const struct router *r, const struct deployment *d)
{
    uint64_t tokens = 0;
    return held_requests(r, d, &tokens);
}

static double held_tokens(const struct router *r, const struct deployment *d)
{
    uint64_t tokens = 0;
    held_requests(r, d, &tokens);
    return (double)tokens;
}

static double goodput(const struct router *r, const struct deployment *d)
{
    (void)r;
    return stats_goodput(d, clock_mono_ns()).met_per_s;
}

static double ttft(const struct router *r, const struct deployment *d)
{
    (void)r;
    return stats_goodput(d, clock_mono_ns()).ttft_s;
}

static double tpot(const struct router *r, const struct deployment *d)
{
    (void)r;
    return stats_goodput(d, clock_mono_ns()).tpot_s;
}

int expose_fleet(struct buf *out, void *router)
{
    static const struct {
        const char *name, *help;
        double (*value)(const struct router *, const struct deployment *);
    } all[] = {
        {"baton_router_arrival_tokens_per_second", "Uncached prompt tokens that arrive.", arrivals},
        {"baton_router_held_requests", "Requests that wait in the router for a worker.", held},
        {"baton_router_held_tokens", "Their prompt tokens.", held_tokens},
        {"baton_router_goodput_requests_per_second",
         "Requests of the last minute that met the slo's TTFT and TPOT.", goodput},
        {"baton_router_slo_ttft_seconds", "TTFT of the last minute at the slo's percentile.", ttft},
        {"baton_router_slo_tpot_seconds", "TPOT of the last minute at the slo's percentile.", tpot},
    };
    struct router *r = router;
    int rc = expose_workers(r, out, clock_mono_ns());
    for (size_t i = 0; i < sizeof all / sizeof *all && !rc; i++)
        rc = expose_deployments(r, out, all[i].name, all[i].help, all[i].value);
    return rc;
}
