/* Prometheus in the routers' place: a role's own query, or the workers' figures that routers export
 * (baton_router_worker_*, with pod uid, incarnation and role as labels). Instant queries over its
 * HTTP API: https://prometheus.io/docs/prometheus/latest/querying/api/ */
#include "controller/scaling.h"
#include "lib/base/clock.h"
#include "lib/base/log.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define PREFIX "baton_router_"

struct query {
    struct load *load;
    char *pool;       /* "default/chat-decode": a role's own query */
    char *deployment; /* else: the samples of this one */
};

static void query_free(struct query *q)
{
    q->load->prom_asking--;
    free(q->pool);
    free(q->deployment);
    free(q);
}

/* The values of an instant vector or scalar; false with a sentence when there is none. */
static const json_t *result_of(const struct http_response *res, json_t **keep, char *why, size_t n)
{
    struct err e = {0};
    *keep = NULL;
    if (res->error) {
        snprintf(why, n, "Prometheus: %s", res->error);
        return NULL;
    }
    *keep = json_parse(res->body, SCALING_BODY_MAX, 0, &e);
    if (strcmp(json_str_at(*keep, "status", ""), "success") != 0) {
        snprintf(why, n, "Prometheus answers %d: %.120s", res->status,
                 json_str_at(*keep, "error", "not what its API says"));
        return NULL;
    }
    return json_at(*keep, "data.result");
}

static double number_of(const json_t *pair)
{
    const char *text = json_string_value(json_array_get(pair, 1));
    return text ? strtod(text, NULL) : NAN;
}

/* A vector's sum; NaN when it is empty or holds a NaN: absent is not zero. */
static double value_of(const json_t *data, char *why, size_t n)
{
    double sum = 0;
    if (json_is_array(data) && json_array_size(data) == 2 &&
        json_is_number(json_array_get(data, 0)))
        sum = number_of(data); /* a scalar: [time, "value"] */
    else if (!json_array_size(data))
        sum = NAN;
    else
        for (size_t i = 0; i < json_array_size(data); i++)
            sum += number_of(json_object_get(json_array_get(data, i), "value"));
    if (!isfinite(sum))
        snprintf(why, n, "the query gives no number");
    return sum;
}

static void on_value(const struct http_response *res, void *ctx)
{
    struct query *q = ctx;
    struct pool *p = NULL;
    char why[sizeof p->query_error] = "";
    CLEANUP(json_decrefp) json_t *keep = NULL;
    const json_t *data = result_of(res, &keep, why, sizeof why);
    double v = data ? value_of(data, why, sizeof why) : NAN;
    HASH_FIND_STR(q->load->pools, q->pool, p);
    if (p) {
        if (*why && strcmp(why, p->query_error) != 0)
            log_warn("no value for scaling", LS("pool", q->pool), LS("why", why));
        snprintf(p->query_error, sizeof p->query_error, "%s", why);
        if (isfinite(v)) {
            p->query_value = v < 0 ? 0 : v;
            p->query_ns = clock_mono_ns();
        } else {
            p->query_ns = 0;
        }
    }
    query_free(q);
}

/* ---- the workers' figures ---- */

struct series {
    const char *name;
    size_t at;
    enum { S_U32, S_U64, S_F64, S_BOOL, S_AGE } kind;
};
#define S(n, k, m)                                                                                 \
    {                                                                                              \
        PREFIX "worker_" n, offsetof(struct scale_sample, m), k                                    \
    }
static const struct series series[] = {
    S("requests_running", S_U32, running),
    S("requests_waiting", S_U32, waiting),
    S("waiting_tokens", S_U64, waiting_tokens),
    S("resident_tokens", S_U64, resident_tokens),
    S("kv_blocks", S_U32, kv_blocks),
    S("kv_blocks_used", S_U32, kv_blocks_used),
    S("prefill_tokens_per_second", S_F64, prefill_tokens_per_s),
    S("decode_step_seconds", S_F64, decode_step_s),
    S("ready", S_BOOL, ready),
    S("draining", S_BOOL, draining),
    S("warming_up", S_BOOL, warmup),
    S("heartbeat_timestamp_seconds", S_AGE, age_ns),
};

static void put(struct scale_sample *s, const struct series *f, double v, double now_s)
{
    char *p = (char *)s + f->at;
    double n = v < 0 ? 0 : v;
    switch (f->kind) {
    case S_U32: *(uint32_t *)(void *)p = n > UINT32_MAX ? UINT32_MAX : (uint32_t)n; break;
    case S_U64: *(uint64_t *)(void *)p = n > 1e18 ? 0 : (uint64_t)n; break;
    case S_F64: *(double *)(void *)p = n; break;
    case S_BOOL: *(bool *)(void *)p = n > 0; break;
    case S_AGE: s->age_ns = now_s > v ? (uint64_t)((now_s - v) * 1e9) : 0; break;
    }
}

/* One sample a worker's process and the router that heard it: `instance` is Prometheus's label of
 * the router. */
struct key {
    UT_hash_handle hh;
    size_t at;
    char text[];
};

static struct scale_sample *sample_for(struct report *r, struct key **keys, const json_t *labels)
{
    struct key *k = NULL;
    const char *uid = json_str_at(labels, "uid", "");
    CLEANUP(free_charp)
    char *text = xasprintf("%s %s %s %s", uid, json_str_at(labels, "incarnation", ""),
                           json_str_at(labels, "role", ""), json_str_at(labels, "instance", ""));
    HASH_FIND_STR(*keys, text, k);
    if (k)
        return &r->samples[k->at];
    if (r->n == SCALING_SAMPLES_MAX)
        return NULL;
    k = xcalloc(1, sizeof *k + strlen(text) + 1);
    memcpy(k->text, text, strlen(text) + 1);
    k->at = r->n++;
    HASH_ADD_STR(*keys, text, k);
    r->samples[k->at] = (struct scale_sample){
        .pod_uid = xstrdup(uid),
        .incarnation = strtoull(json_str_at(labels, "incarnation", "0"), NULL, 16),
        .role = rec_role_parse(json_str_at(labels, "role", "")),
    };
    return &r->samples[k->at];
}

static void take_series(struct report *r, struct key **keys, const json_t *one)
{
    const json_t *labels = json_object_get(one, "metric");
    const char *name = json_str_at(labels, "__name__", "");
    double v = number_of(json_object_get(one, "value"));
    if (!isfinite(v))
        return;
    if (strcmp(name, PREFIX "arrival_tokens_per_second") == 0)
        r->arrival += v;
    else if (strcmp(name, PREFIX "held_requests") == 0)
        r->held_requests += v > 0 && v < UINT32_MAX ? (uint32_t)v : 0;
    else if (strcmp(name, PREFIX "held_tokens") == 0)
        r->held_tokens += v > 0 && v < 1e18 ? (uint64_t)v : 0;
    for (size_t i = 0; i < sizeof series / sizeof *series; i++) {
        struct scale_sample *s =
            strcmp(name, series[i].name) == 0 ? sample_for(r, keys, labels) : NULL;
        if (s)
            put(s, &series[i], v, (double)clock_wall_ns() / 1e9);
    }
}

static void on_samples(const struct http_response *res, void *ctx)
{
    struct query *q = ctx;
    char why[200] = "";
    CLEANUP(json_decrefp) json_t *keep = NULL;
    const json_t *data = result_of(res, &keep, why, sizeof why);
    if (!data) {
        log_debug("no samples", LS("deployment", q->deployment), LS("why", why));
        query_free(q);
        return;
    }
    CLEANUP(free_charp) char *key = xasprintf("prometheus %s", q->deployment);
    struct report *r = report_of(q->load, key);
    struct key *keys = NULL, *k, *tmp;
    report_clear(r);
    r->prometheus = true;
    r->heard_ns = json_array_size(data) ? clock_mono_ns() : r->heard_ns;
    r->arrival = 0;
    r->held_requests = 0;
    r->held_tokens = 0;
    r->samples = xcalloc(SCALING_SAMPLES_MAX, sizeof *r->samples);
    for (size_t i = 0; i < json_array_size(data); i++)
        take_series(r, &keys, json_array_get(data, i));
    HASH_ITER (hh, keys, k, tmp) {
        HASH_DEL(keys, k);
        free(k);
    }
    query_free(q);
}

/* ---- asking ---- */

static char *url_of(const char *base, const char *query)
{
    struct buf b;
    size_t n = strlen(base);
    buf_init(&b, 64u << 10);
    int rc = buf_printf(&b, "%.*s/api/v1/query?query=", (int)(n && base[n - 1] == '/' ? n - 1 : n),
                        base);
    for (const char *p = query; *p && !rc; p++)
        rc = buf_printf(&b,
                        (*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') ||
                                (*p >= '0' && *p <= '9')
                            ? "%c"
                            : "%%%02X",
                        (unsigned char)*p);
    char *url = rc ? NULL : str_dup(buf_view(&b));
    buf_fini(&b);
    return url;
}

static void start(struct load *l, const char *base, const char *promql, struct query *q,
                  void (*done)(const struct http_response *, void *))
{
    CLEANUP(free_charp) char *url = url_of(base, promql);
    struct http_request r = {.url = url,
                             .max_body_bytes = SCALING_BODY_MAX,
                             .connect_timeout_ms = 1000,
                             .timeout_ms = 5000,
                             .on_done = done,
                             .ctx = q};
    q->load = l;
    l->prom_asking++;
    if (!url || !http_start(l->http, &r, NULL))
        query_free(q);
}

static void ask_role(struct load *l, const struct kube_infd *d, const struct infd_query *query)
{
    CLEANUP(free_charp) char *name = xasprintf("%s-%s", d->meta.name, query->role);
    struct pool *p = pool_of(l, d->meta.namespace, name);
    struct query *q = xcalloc(1, sizeof *q);
    q->pool = xstrdup(p->key);
    start(l, d->prometheus_url, query->query, q, on_value);
}

static void ask_samples(struct load *l, const struct kube_infd *d)
{
    CLEANUP(free_charp)
    char *promql = xasprintf("{__name__=~\"" PREFIX "(worker_.+|arrival_tokens_per_second|held_"
                             "requests|held_tokens)\",infd=\"%s\",infd_namespace=\"%s\"}",
                             d->meta.name, d->meta.namespace);
    struct query *q = xcalloc(1, sizeof *q);
    q->deployment = xasprintf("%s/%s", d->meta.namespace, d->meta.name);
    start(l, d->prometheus_url, promql, q, on_samples);
}

static bool ask(const void *object, void *ctx)
{
    struct load *l = ctx;
    const struct kube_infd *d = object;
    bool own[SCALE_ROLES] = {false}, rule = false;
    if (!d->prometheus_url || d->meta.deleted_ns)
        return true;
    for (size_t i = 0; i < d->prometheus_queries.n; i++) {
        const struct infd_query *q = VIEW_AT(struct infd_query, d->prometheus_queries, i);
        enum rec_role role = rec_role_parse(q->role);
        if (role >= SCALE_ROLES || !infd_has_role(d, role) || !q->query)
            continue;
        own[role] = true;
        ask_role(l, d, q);
    }
    for (int i = 0; i < SCALE_ROLES; i++)
        rule |= infd_has_role(d, (enum rec_role)i) && !own[i];
    if (rule)
        ask_samples(l, d);
    return true;
}

void promql_ask(struct load *l, uint64_t now)
{
    if (l->prom_asking > 64 || now - l->prom_asked_ns < SCALING_PROM_MS * NS_PER_MS)
        return;
    l->prom_asked_ns = now;
    kube_cache_each(l->ctl->infds, ask, l);
}
