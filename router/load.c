/* What the controller asks for: load by role (GET /v1/internal/load), and /debug/state, /readyz. */
#include "lib/base/clock.h"
#include "lib/json/json.h"
#include "router/router.h"

#include <stdio.h>

static json_t *sample(const struct worker *w, uint64_t now)
{
    const struct route_worker *s = &w->d->state[w->slot];
    const struct wire_load *l = &w->last.load;
    char incarnation[20];
    snprintf(incarnation, sizeof incarnation, "%016llx", (unsigned long long)s->incarnation);
    return json_pack(
        "{s:s, s:s, s:s, s:s, s:b, s:b, s:b, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f, "
        "s:I, s:I, "
        "s:I, s:I, s:I, s:I}",
        "pod", w->name, "uid", w->uid, "incarnation", incarnation, "role",
        wire_role_name(w->last.role), "ready", s->ready, "draining", s->draining, "warmup",
        (w->last.flags & WIRE_HB_WARMUP) != 0, "age_ms",
        (json_int_t)((now - s->heard_ns) / NS_PER_MS), "running", (json_int_t)l->running, "waiting",
        (json_int_t)l->waiting, "waiting_tokens", (json_int_t)l->waiting_tokens, "sent_tokens",
        (json_int_t)s->sent_prefill_tokens, "resident_tokens", (json_int_t)l->resident_tokens,
        "kv_blocks", (json_int_t)l->kv_blocks, "kv_blocks_used", (json_int_t)l->kv_blocks_used,
        "prefill_tokens_per_s", (double)l->prefill_tokens_per_s, "decode_step_s",
        (double)l->decode_step_s, "prompt_tokens_total", (json_int_t)l->prompt_tokens_total,
        "cached_tokens_total", (json_int_t)l->cached_tokens_total, "generated_tokens_total",
        (json_int_t)l->generated_tokens_total, "kv_bytes_out_total",
        (json_int_t)l->kv_bytes_out_total, "kv_bytes_in_total", (json_int_t)l->kv_bytes_in_total,
        "preemptions_total", (json_int_t)l->preemptions_total);
}

/* Requests that wait in this router for a worker of the model. */
unsigned held_requests(const struct router *r, const struct deployment *d, uint64_t *tokens)
{
    unsigned n = 0;
    for (const struct exchange *x = r->exchanges; x; x = x->next)
        for (size_t i = 0; i < x->n_jobs && x->d == d && x->state == X_RUNNING; i++)
            if (x->jobs[i].state == JOB_WAITING) {
                n++;
                *tokens += x->jobs[i].n_prompt;
            }
    return n;
}

static json_t *role_load(const struct deployment *d, enum wire_role role, uint64_t now)
{
    uint64_t workers = 0, queued_tokens = 0, queued = 0, running = 0, blocks = 0, used = 0,
             resident = 0;
    double rate = 0, step_s = 0;
    json_t *samples = json_array();
    for (size_t i = 0; i < d->n_workers; i++) {
        const struct worker *w = d->worker[i];
        const struct route_worker *s = &d->state[i];
        if (!w || !s->incarnation || w->last.role != role || now - s->heard_ns > 5 * ROUTE_FRESH_NS)
            continue;
        const struct wire_load *l = &w->last.load;
        json_array_append_new(samples, sample(w, now));
        workers += s->ready && !s->draining;
        queued_tokens += l->waiting_tokens + s->sent_prefill_tokens;
        queued += l->waiting + s->sent_prefills;
        running += l->running;
        blocks += l->kv_blocks;
        used += l->kv_blocks_used;
        resident += l->resident_tokens;
        rate += (double)l->prefill_tokens_per_s;
        step_s = (double)l->decode_step_s > step_s ? (double)l->decode_step_s : step_s;
    }
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:o}", "workers",
                     (json_int_t)workers, "queued_tokens", (json_int_t)queued_tokens,
                     "queued_requests", (json_int_t)queued, "running", (json_int_t)running,
                     "kv_blocks", (json_int_t)blocks, "kv_used", (json_int_t)used,
                     "resident_tokens", (json_int_t)resident, "prefill_tokens_per_s", rate,
                     "decode_step_s", step_s, "samples", samples);
}

static json_t *deployment_load(const struct router *r, const struct deployment *d, uint64_t now)
{
    uint64_t held_tokens = 0;
    json_t *roles = json_object();
    for (enum wire_role role = WIRE_ROLE_PREFILL; role <= WIRE_ROLE_STANDBY; role++) {
        json_t *one = role_load(d, role, now);
        json_object_set_new(one, "arrival_tokens_per_s", json_real(d->arrival_tokens_per_s));
        json_object_set_new(roles, wire_role_name(role), one);
    }
    unsigned held = held_requests(r, d, &held_tokens);
    struct goodput g = stats_goodput(d, now);
    return json_pack(
        "{s:s, s:s, s:s, s:f, s:f, s:I, s:I, s:{s:i, s:f, s:f, s:i, s:f, s:f, s:b}, s:o}", "infd",
        d->infd, "namespace", d->namespace, "model", d->model_name, "arrival_tokens_per_s",
        d->arrival_tokens_per_s, "arrival_requests_per_s", d->arrival_requests_per_s,
        "held_requests", (json_int_t)held, "held_tokens", (json_int_t)held_tokens, "goodput",
        "window_s", GOODPUT_WINDOW_S, "requests_per_s", g.requests_per_s, "met_per_s", g.met_per_s,
        "percentile", (int)g.percentile, "ttft_s", g.ttft_s, "tpot_s", g.tpot_s, "slo_met",
        g.slo_met, "roles", roles);
}

static void reply_json(struct httpd_req *req, json_t *o)
{
    struct buf body;
    buf_init(&body, 64u << 20);
    if (!o || json_write(o, false, &body))
        httpd_replyf(req, 500, "application/json", "{\"error\":{\"message\":\"out of memory\"}}");
    else
        httpd_reply(req, 200, "application/json", buf_view(&body));
    buf_fini(&body);
    json_decref(o);
}

/* One deployment's object with ?infd=NAME; else {"items": [...]} of those whose peer secret the
 * caller holds. */
void load_handle(struct router *r, struct httpd_req *req)
{
    const char *infd = httpd_arg(req, "infd"), *namespace = httpd_arg(req, "namespace");
    const char *authorization = httpd_header(req, "authorization");
    uint64_t now = clock_mono_ns();
    json_t *items = json_array();
    bool any = false;
    for (const struct deployment *d = fleet_first(r->fleet); d; d = d->next) {
        if ((infd && strcmp(infd, d->infd) != 0) ||
            (namespace && strcmp(namespace, d->namespace) != 0))
            continue;
        any = true;
        if (!d->secret || bearer_is(authorization, d->secret))
            json_array_append_new(items, deployment_load(r, d, now));
    }
    if (any && !json_array_size(items)) {
        json_decref(items);
        httpd_replyf(req, 401, "application/json",
                     "{\"error\":{\"message\":\"the peer secret is needed\"}}");
    } else if (infd && !any) {
        json_decref(items);
        httpd_replyf(req, 404, "application/json",
                     "{\"error\":{\"message\":\"no such deployment\"}}");
    } else if (infd) {
        json_t *one = json_incref(json_array_get(items, 0));
        json_decref(items);
        reply_json(req, one);
    } else {
        reply_json(req, json_pack("{s:o}", "items", items));
    }
}

bool router_ready(void *ctx, struct buf *why)
{
    const struct router *r = ctx;
    if (r->discover && !discover_permitted(r->discover, why))
        return false;
    const char *reason = r->leaving ? "shutting down"
                         : r->discover && !discover_synced(r->discover)
                             ? "the list of deployments and pods is not complete yet"
                             : NULL;
    if (reason && buf_cstr(why, reason))
        return false;
    return !reason;
}

static json_t *worker_state(const struct worker *w, uint64_t now)
{
    const struct route_worker *s = &w->d->state[w->slot];
    json_t *o = sample(w, s->incarnation ? now : s->heard_ns);
    json_object_set_new(o, "address", json_sprintf("%s:%u", w->host, w->port));
    json_object_set_new(o, "connected", json_boolean(s->incarnation != 0));
    json_object_set_new(o, "last_error", json_string(w->last_error));
    json_object_set_new(o, "prefill_factor", json_real(cost_factor(&s->cost.prefill)));
    json_object_set_new(o, "step_factor", json_real(cost_factor(&s->cost.step)));
    return o;
}

static json_t *deployment_state(const struct router *r, const struct deployment *d, uint64_t now)
{
    uint64_t held_tokens = 0;
    unsigned held = held_requests(r, d, &held_tokens);
    json_t *workers = json_array();
    for (size_t i = 0; i < d->n_workers; i++)
        if (d->worker[i])
            json_array_append_new(workers, worker_state(d->worker[i], now));
    return json_pack("{s:s, s:s, s:s, s:b, s:s, s:I, s:I, s:I, s:f, s:o}", "infd", d->infd,
                     "namespace", d->namespace, "model", d->model_name, "ready", d->model != NULL,
                     "error", d->model_error, "index_blocks", (json_int_t)index_names(d->index),
                     "index_left_out", (json_int_t)index_left_out(d->index), "held_requests",
                     (json_int_t)held, "arrival_tokens_per_s", d->arrival_tokens_per_s, "workers",
                     workers);
}

static json_t *exchange_state(const struct exchange *x, uint64_t now)
{
    static const char *const names[] = {"preparing", "running", "answered"};
    return json_pack("{s:s, s:s, s:I, s:s, s:s, s:I}", "request_id", x->request_id, "state",
                     names[x->state], "age_ms", (json_int_t)((now - x->start_ns) / NS_PER_MS),
                     "prefill", x->prefill_name, "decode", x->decode_name, "prompt_tokens",
                     (json_int_t)x->prompt_tokens);
}

int router_state(void *ctx, struct buf *out)
{
    const struct router *r = ctx;
    uint64_t now = clock_mono_ns();
    struct conn_pool_stats s;
    conn_pool_stats(r->pool, &s);
    json_t *deployments = json_array(), *requests = json_array();
    for (const struct deployment *d = fleet_first(r->fleet); d; d = d->next)
        json_array_append_new(deployments, deployment_state(r, d, now));
    size_t n = 0;
    for (const struct exchange *x = r->exchanges; x && n < 1000; x = x->next, n++)
        json_array_append_new(requests, exchange_state(x, now));
    json_t *o = json_pack("{s:b, s:I, s:{s:I, s:I, s:I, s:I}, s:o, s:o}", "draining", r->leaving,
                          "in_flight", (json_int_t)r->n_exchanges, "connections", "idle",
                          (json_int_t)s.idle, "active", (json_int_t)s.active, "opened",
                          (json_int_t)s.opened, "reused", (json_int_t)s.reused, "deployments",
                          deployments, "requests", requests);
    int rc = o ? json_write(o, false, out) : -1;
    json_decref(o);
    return rc;
}
