/* What is known of scaling, over HTTP: figures of a pool for KEDA's metrics-api trigger and for
 * people, the decisions as lines of JSON, the routers' push that wakes a model at zero, and the
 * same figures as Prometheus series. */
#include "controller/scaling.h"
#include "lib/base/clock.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#define LOOK_FRESH_NS (10 * NS_PER_S)
#define LINES_DEFAULT 100

/* ---- the figures ---- */

static bool is_fresh(const struct pool *p, uint64_t now)
{
    return p->looked_ns && now - p->looked_ns < LOOK_FRESH_NS && p->last.code != SCALE_UNHEARD;
}

static double needed(const struct pool *p, uint64_t now)
{
    return is_fresh(p, now) && p->last.load >= 0 ? p->last.load : NAN;
}

static double queued_tokens(const struct pool *p, uint64_t now)
{
    return is_fresh(p, now) ? (double)(p->last.waiting_tokens + p->held_tokens) : NAN;
}

static double queued_requests(const struct pool *p, uint64_t now)
{
    return is_fresh(p, now) ? (double)p->last.waiting + p->held_requests : NAN;
}

static double running_requests(const struct pool *p, uint64_t now)
{
    return is_fresh(p, now) ? (double)p->last.running : NAN;
}

static double held_requests(const struct pool *p, uint64_t now)
{
    return is_fresh(p, now) ? (double)p->held_requests : NAN;
}

static double kv_used(const struct pool *p, uint64_t now)
{
    double blocks = p->last.blocks_each * p->last.heard_of;
    return is_fresh(p, now) && blocks > 0 ? (double)p->last.used_blocks / blocks : NAN;
}

static double arrival(const struct pool *p, uint64_t now)
{
    return is_fresh(p, now) ? p->arrival : NAN;
}

static double goodput(const struct pool *p, uint64_t now)
{
    return is_fresh(p, now) ? p->goodput : NAN;
}

const struct scaling_metric scaling_metrics[] = {
    {"baton_needed_groups",
     "Groups' worth of work by Baton's rule or the spec's query, before bounds; 1 is one group at "
     "its target. Use as an average value with target 1.",
     needed},
    {"baton_queued_tokens", "Uncached prompt tokens that wait in workers and routers.",
     queued_tokens},
    {"baton_queued_requests", "Requests that wait in workers and routers.", queued_requests},
    {"baton_running_requests", "Requests that run in the role's workers.", running_requests},
    {"baton_held_requests", "Requests of the deployment that routers hold for a worker.",
     held_requests},
    {"baton_kv_used_ratio", "Share of the role's KV blocks held by running requests, 0 to 1.",
     kv_used},
    {"baton_arrival_tokens_per_second", "Uncached prompt tokens that arrive at the routers.",
     arrival},
    {"baton_goodput_requests_per_second",
     "Requests of the deployment that met TTFT and TPOT, of the last minute.", goodput},
};
const size_t n_scaling_metrics = sizeof scaling_metrics / sizeof *scaling_metrics;

static int expose_pools(struct load *l, const struct scaling_metric *m, uint64_t now,
                        struct buf *out)
{
    struct pool *p, *tmp;
    int rc = buf_printf(out, "# HELP %s %s\n# TYPE %s gauge\n", m->name, m->help, m->name);
    HASH_ITER (hh, l->pools, p, tmp) {
        double v = p->role == REC_NO_ROLE ? NAN : m->value(p, now);
        if (rc || isnan(v))
            continue;
        rc = buf_printf(out, "%s{infd_namespace=\"%s\",infd=\"%s\",role=\"%s\"} %.9g\n", m->name,
                        p->namespace, p->infd, rec_role_name(p->role), v);
    }
    return rc;
}

int scaling_expose(struct buf *out, void *ctx)
{
    struct ctl *c = ctx;
    uint64_t now = clock_mono_ns();
    int rc = 0;
    for (size_t i = 0; i < n_scaling_metrics && c->load && !rc; i++)
        rc = expose_pools(c->load, &scaling_metrics[i], now, out);
    return rc;
}

/* ---- answers ---- */

static void reply_json(struct httpd_req *r, int status, json_t *o)
{
    struct buf body;
    buf_init(&body, SCALING_BODY_MAX);
    if (!o || json_write(o, false, &body) || buf_cstr(&body, "\n"))
        httpd_replyf(r, 500, "application/json", "{\"error\":{\"message\":\"out of memory\"}}\n");
    else
        httpd_reply(r, status, "application/json", buf_view(&body));
    buf_fini(&body);
    json_decref(o);
}

static void reply_error(struct httpd_req *r, int status, const char *message)
{
    reply_json(r, status, json_pack("{s:{s:s}}", "error", "message", message));
}

static json_t *pool_json(const struct pool *p, uint64_t now)
{
    const struct scale_decision *d = &p->last;
    json_t *o = json_pack(
        "{s:s, s:s, s:s, s:i, s:i, s:i, s:I, s:I, s:I, s:b, s:s, s:s, s:I}", "namespace",
        p->namespace, "infd", p->infd, "role", rec_role_name(p->role), "replicas", d->from,
        "need_up", d->need_up, "need_down", d->need_down, "live", (json_int_t)d->live, "heard_of",
        (json_int_t)d->heard_of, "pending", (json_int_t)d->pending, "capacity_limited",
        d->capacity_limited, "code", scale_code_name(d->code), "reason", d->reason, "age_ms",
        (json_int_t)((now - p->looked_ns) / NS_PER_MS));
    for (size_t i = 0; o && i < n_scaling_metrics; i++) {
        double v = scaling_metrics[i].value(p, now);
        if (!isnan(v)) /* "baton_needed_groups" -> "needed_groups" */
            json_object_set_new(o, scaling_metrics[i].name + 6, json_real(v));
    }
    if (o && *p->query_error)
        json_object_set_new(o, "query_error", json_string(p->query_error));
    return o;
}

static void list_pools(struct load *l, struct httpd_req *r)
{
    struct pool *p, *tmp;
    json_t *items = json_array();
    HASH_ITER (hh, l->pools, p, tmp)
        if (p->role != REC_NO_ROLE && p->looked_ns)
            json_array_append_new(items, pool_json(p, clock_mono_ns()));
    reply_json(r, 200, json_pack("{s:o}", "items", items));
}

/* /v1/scaling/<namespace>/<infd>/<role>. A figure that is not known is absent, and KEDA, which
 * asked for it, sees an error and not a zero. */
static void one_pool(struct load *l, struct httpd_req *r, struct str path)
{
    struct str ns, infd;
    path = str_cut(path, '/', &ns);
    path = str_cut(path, '/', &infd);
    CLEANUP(free_charp) char *a = str_dup(ns);
    CLEANUP(free_charp) char *b = str_dup(infd);
    CLEANUP(free_charp) char *c = str_dup(path);
    struct pool *p = pool_find(l, a, b, c);
    if (!p || !p->looked_ns)
        reply_error(r, 404, "no such role: /v1/scaling/NAMESPACE/INFERENCEDEPLOYMENT/ROLE");
    else
        reply_json(r, 200, pool_json(p, clock_mono_ns()));
}

static void list_decisions(struct load *l, struct httpd_req *r)
{
    struct buf out;
    uint64_t most = LINES_DEFAULT;
    const char *n = httpd_arg(r, "n");
    if (n && str_to_u64(str_c(n), 1, SCALING_DECISIONS, &most))
        most = LINES_DEFAULT;
    buf_init(&out, SCALING_DECISION_MAX + 1);
    if (decisions_write(l->decisions, httpd_arg(r, "namespace"), httpd_arg(r, "infd"), most, &out))
        reply_error(r, 500, "out of memory");
    else
        httpd_reply(r, 200, "application/x-ndjson", buf_view(&out));
    buf_fini(&out);
}

/* ---- waking ---- */

/* In time that depends on the lengths alone. */
static bool is_secret(const char *authorization, const char *secret)
{
    static const char prefix[] = "Bearer ";
    size_t n = strlen(secret), m = authorization ? strlen(authorization) : 0;
    unsigned char differ = 0;
    if (m != n + sizeof prefix - 1 || strncmp(authorization, prefix, sizeof prefix - 1) != 0)
        return false;
    for (size_t i = 0; i < n; i++)
        differ |= (unsigned char)(authorization[sizeof prefix - 1 + i] ^ secret[i]);
    return !differ;
}

static void wake(struct ctl *c, struct httpd_req *r)
{
    CLEANUP(json_decrefp) json_t *o = json_parse(httpd_body(r), 4096, 0, NULL);
    const char *ns = json_str_at(o, "namespace", ""), *infd = json_str_at(o, "infd", "");
    CLEANUP(free_charp) char *name = xasprintf("%s-peer", infd);
    const struct kube_secret *s = kube_cache_get(c->secrets, ns, name);
    if (!s || !s->secret || !is_secret(httpd_header(r, "authorization"), s->secret)) {
        reply_error(r, 401, "the peer secret of the deployment is needed");
        return;
    }
    if (scaler_wake(c->load, ns, infd))
        reply_json(r, 202, json_pack("{s:b}", "waking", 1));
    else
        reply_error(r, 503, "this controller doesn't lead: ask again, another may answer");
}

bool scaling_http(struct ctl *c, struct httpd_req *r)
{
    static const struct str scaling = {"/v1/scaling", 11};
    struct str path = httpd_path(r), method = httpd_method(r);
    if (!c->load)
        return false;
    if (str_eq_c(path, "/v1/internal/wake")) {
        if (str_eq_c(method, "POST"))
            wake(c, r);
        else
            reply_error(r, 405, "POST it");
        return true;
    }
    if (!str_starts(path, scaling) || !str_eq_c(method, "GET"))
        return false;
    path = (struct str){path.p + scaling.n, path.n - scaling.n};
    if (path.n == 0)
        list_pools(c->load, r);
    else if (str_eq_c(path, "/decisions"))
        list_decisions(c->load, r);
    else if (path.p[0] == '/')
        one_pool(c->load, r, (struct str){path.p + 1, path.n - 1});
    else
        return false;
    return true;
}
