#include "router/fleet.h"

#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "router/fleet_int.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Rough figures of a CPU share; corrected by what workers measure within seconds. */
#define PRIOR_FLOPS            100e9
#define PRIOR_BYTES_PER_S      10e9
#define PRIOR_LINK_BYTES_PER_S 1e9
#define LOAD_RETRY_MAX_S       60
#define ARRIVAL_MEMORY_S       5.0

struct fleet *fleet_new(const struct fleet_config *c)
{
    struct fleet *f = xcalloc(1, sizeof *f);
    f->c = *c;
    return f;
}

struct deployment *deployment_ref(struct deployment *d)
{
    d->refs++;
    return d;
}

void deployment_unref(struct deployment *d)
{
    if (!d || --d->refs)
        return;
    ASSERT(d->removed);
    free(d->infd);
    free(d->namespace);
    free(d->model_name);
    free(d->source);
    free(d->endpoint);
    free(d->sha256);
    free(d->kv_dtype);
    free(d->secret);
    model_unref(d->model);
    index_free(d->index);
    stats_forget(d);
    free(d);
}

void fleet_free(struct fleet *f)
{
    while (f->first)
        fleet_remove_deployment(f, f->first);
    free(f);
}

struct deployment *fleet_first(const struct fleet *f)
{
    return f->first;
}

struct deployment *fleet_find(const struct fleet *f, const char *namespace, const char *infd)
{
    for (struct deployment *d = f->first; d; d = d->next)
        if (strcmp(d->infd, infd) == 0 && strcmp(d->namespace, namespace) == 0)
            return d;
    return NULL;
}

struct deployment *fleet_by_model(const struct fleet *f, struct str model_name)
{
    struct deployment *best = NULL;
    for (struct deployment *d = f->first; d; d = d->next)
        if (str_eq_c(model_name, d->model_name) && (!best || d->created_ns < best->created_ns))
            best = d;
    return best;
}

static const char *or_empty(const char *s)
{
    return s ? s : "";
}

static bool set_text(char **at, const char *value)
{
    if (*at && strcmp(*at, or_empty(value)) == 0)
        return false;
    free(*at);
    *at = xstrdup(or_empty(value));
    return true;
}

static void set_costs(struct deployment *d, struct route_worker *s)
{
    struct cost_shape shape = {.weight_bytes = 1e8,
                               .params = 1e8,
                               .layers = 1,
                               .kv_heads = 1,
                               .head_dim = 64,
                               .heads = 1,
                               .kv_element_bytes = 2};
    if (d->model)
        shape = d->model->shape;
    const char *dtype = d->kv_dtype;
    bool byte = strcmp(dtype, "int8") == 0 || strcmp(dtype, "fp8") == 0;
    shape.kv_element_bytes = strcmp(dtype, "f32") == 0 ? 4 : byte ? 1 : 2;
    cost_model_init(&s->cost.m, &shape, PRIOR_FLOPS, PRIOR_BYTES_PER_S, PRIOR_LINK_BYTES_PER_S);
}

static void start_load(struct fleet *f, struct deployment *d);

static void on_model(struct model *m, const struct err *e, void *ctx)
{
    struct deployment *d = ctx;
    d->loading = false;
    if (d->removed) {
        model_unref(m);
    } else if (d->load_again) {
        model_unref(m);
        start_load(d->fleet, d);
    } else if (m) {
        model_unref(d->model);
        d->model = m;
        d->load_failures = 0;
        d->model_error[0] = 0;
        for (size_t i = 0; i < d->n_workers; i++)
            set_costs(d, &d->state[i]);
        log_info("model ready", LS("model", d->model_name), LS("infd", d->infd),
                 LS("tokenizer", tokenizer_describe(m->tokenizer)), LI("context", m->max_context));
    } else {
        unsigned wait_s = 1u << (d->load_failures < 6 ? d->load_failures : 6);
        d->load_failures++;
        d->load_again_ns =
            clock_mono_ns() + (wait_s < LOAD_RETRY_MAX_S ? wait_s : LOAD_RETRY_MAX_S) * NS_PER_S;
        snprintf(d->model_error, sizeof d->model_error, "%s", e->msg);
        log_warn("model not readable", LS("model", d->model_name), LERR(e));
    }
    deployment_unref(d);
}

static void start_load(struct fleet *f, struct deployment *d)
{
    d->load_again = d->loading;
    if (d->loading)
        return;
    d->loading = true;
    deployment_ref(d);
    const char *addresses[4];
    size_t n = 0;
    for (size_t i = 0; i < d->n_workers && n < 4; i++)
        if (d->worker[i] && *d->worker[i]->address)
            addresses[n++] = d->worker[i]->address;
    struct model_spec spec = {.source = d->source,
                              .sha256 = d->sha256,
                              .endpoint = d->endpoint,
                              .workers = addresses,
                              .n_workers = d->secret ? n : 0,
                              .secret = d->secret};
    if (model_load(f->c.loop, &spec, on_model, d)) {
        d->loading = false;
        deployment_unref(d);
    }
}

static void name_space(struct deployment *d)
{
    struct block_space s = {.model_revision = str_c(*d->sha256 ? d->sha256 : d->source),
                            .kv_dtype = str_c(d->kv_dtype),
                            .block_tokens = d->block_tokens};
    block_seed(&s, &d->seed);
}

struct deployment *fleet_deployment(struct fleet *f, const struct deployment_spec *s)
{
    struct deployment *d = fleet_find(f, s->namespace, s->infd);
    if (!d) {
        d = xcalloc(1, sizeof *d);
        d->fleet = f;
        d->refs = 1;
        d->infd = xstrdup(s->infd);
        d->namespace = xstrdup(s->namespace);
        d->index = index_new(f->c.index_names);
        struct deployment **at = &f->first;
        while (*at)
            at = &(*at)->next;
        *at = d;
    }
    d->policy = s->policy;
    d->max_context = s->max_context;
    d->created_ns = s->created_ns;
    d->slo_ttft_s = s->slo_ttft_s;
    d->slo_tpot_s = s->slo_tpot_s;
    d->slo_percentile = s->slo_percentile ? s->slo_percentile : 90;
    d->wakes = s->wakes;
    uint32_t block_tokens = s->block_tokens ? s->block_tokens : 32;
    bool renamed = set_text(&d->model_name, s->model_name);
    if (renamed)
        stats_forget(d);
    bool moved = set_text(&d->source, s->source);
    moved |= set_text(&d->endpoint, s->endpoint ? s->endpoint : "");
    bool space = set_text(&d->sha256, s->sha256) || moved || d->block_tokens != block_tokens;
    space |= set_text(&d->kv_dtype, s->kv_dtype && *s->kv_dtype ? s->kv_dtype : "f16");
    d->block_tokens = block_tokens;
    if (space)
        name_space(d);
    if (space) {
        d->load_again_ns = 0;
        start_load(f, d);
    }
    return d;
}

void deployment_set_secret(struct deployment *d, const char *secret)
{
    if (d->secret && secret && strcmp(d->secret, secret) == 0)
        return;
    free(d->secret);
    d->secret = secret ? xstrdup(secret) : NULL;
    for (size_t i = 0; i < d->n_workers; i++)
        if (d->worker[i])
            d->worker[i]->next_try_ns = 0;
}

void fleet_remove_deployment(struct fleet *f, struct deployment *d)
{
    for (size_t i = 0; i < d->n_workers; i++)
        if (d->worker[i])
            fleet_remove_worker(f, d->worker[i]);
    for (struct deployment **at = &f->first; *at; at = &(*at)->next)
        if (*at == d) {
            *at = d->next;
            break;
        }
    d->removed = true;
    deployment_unref(d);
}

struct worker *deployment_worker(const struct deployment *d, const char *name)
{
    for (size_t i = 0; i < d->n_workers; i++)
        if (d->worker[i] && strcmp(d->worker[i]->name, name) == 0)
            return d->worker[i];
    return NULL;
}

bool deployment_has_workers(const struct deployment *d)
{
    for (size_t i = 0; i < d->n_workers; i++)
        if (d->worker[i] && !d->worker[i]->leaving)
            return true;
    return false;
}

static struct worker *add_worker(struct deployment *d, const char *name)
{
    size_t slot = 0;
    while (slot < d->n_workers && d->worker[slot])
        slot++;
    if (slot == FLEET_WORKERS_MAX) {
        log_error("too many workers in a deployment", LS("infd", d->infd), LS("worker", name),
                  LI("max", FLEET_WORKERS_MAX));
        return NULL;
    }
    if (slot == d->n_workers)
        d->n_workers++;
    struct worker *w = xcalloc(1, sizeof *w);
    w->d = d;
    w->slot = (unsigned)slot;
    w->name = xstrdup(name);
    buf_init(&w->in, 2 * (size_t)WIRE_HEARTBEAT_MAX_BYTES);
    d->worker[slot] = w;
    d->state[slot] = (struct route_worker){0};
    set_costs(d, &d->state[slot]);
    return w;
}

struct worker *fleet_worker(struct fleet *f, struct deployment *d, const char *name,
                            const char *uid, const char *host, uint16_t port, bool leaving)
{
    struct worker *w = deployment_worker(d, name);
    if (w && strcmp(w->uid, or_empty(uid)) != 0) { /* another pod of the same name */
        fleet_remove_worker(f, w);
        w = NULL;
    }
    if (!w && !(w = add_worker(d, name)))
        return NULL;
    w->leaving = leaving;
    set_text(&w->uid, uid);
    if (set_text(&w->host, host) || w->port != port) {
        w->port = port;
        worker_disconnect(w, "its address changed");
        w->next_try_ns = 0;
    }
    worker_update_state(w);
    return w;
}

void fleet_remove_worker(struct fleet *f, struct worker *w)
{
    struct deployment *d = w->d;
    worker_disconnect(w, "its pod is gone");
    ledger_clear(w);
    d->worker[w->slot] = NULL;
    d->state[w->slot] = (struct route_worker){0};
    while (d->n_workers && !d->worker[d->n_workers - 1])
        d->n_workers--;
    buf_fini(&w->in);
    free(w->name);
    free(w->uid);
    free(w->host);
    free(w);
    (void)f;
}

void deployment_arrival(struct deployment *d, uint64_t uncached_tokens)
{
    d->arrived_tokens += uncached_tokens;
    d->arrived_requests++;
}

static void average_arrivals(struct deployment *d, uint64_t now_ns)
{
    double dt = (double)(now_ns - d->arrival_at_ns) / 1e9;
    if (dt < 0.25)
        return;
    double keep = d->arrival_at_ns ? exp(-dt / ARRIVAL_MEMORY_S) : 0;
    d->arrival_tokens_per_s =
        keep * d->arrival_tokens_per_s + (1 - keep) * (double)d->arrived_tokens / dt;
    d->arrival_requests_per_s =
        keep * d->arrival_requests_per_s + (1 - keep) * (double)d->arrived_requests / dt;
    d->arrived_tokens = d->arrived_requests = 0;
    d->arrival_at_ns = now_ns;
}

void fleet_tick(struct fleet *f, uint64_t now_ns)
{
    for (struct deployment *d = f->first; d; d = d->next) {
        average_arrivals(d, now_ns);
        if (!d->model && !d->loading && now_ns >= d->load_again_ns)
            start_load(f, d);
        for (size_t i = 0; i < d->n_workers; i++) {
            struct worker *w = d->worker[i];
            if (w && !w->events && w->host && *w->host && now_ns >= w->next_try_ns)
                worker_connect(w, f->c.pool, now_ns);
        }
    }
}
