/* The router's own metrics (baton_router_*). */
#include "lib/base/clock.h"
#include "router/router.h"

#include <stdio.h>
#include <stdlib.h>

static struct metric_family *requests, *ttft, *tpot, *queue, *seconds, *prompt_tokens,
    *cached_tokens, *generated_tokens, *kv_bytes, *kv_each, *picks, *retries, *workers, *names,
    *slo;
static struct metric *in_flight;
static const double kv_bounds[] = {65536,    262144,    1048576,    4194304,   16777216,
                                   67108864, 268435456, 1073741824, 4294967296};

void stats_init(void)
{
    requests = metric_family(METRIC_COUNTER, "baton_router_requests_total",
                             "Requests by model, API and HTTP status (499: the client left).",
                             "model,api,status", NULL, 0);
    ttft = metric_family(METRIC_HISTOGRAM, "baton_router_ttft_seconds",
                         "From a request's arrival to its first token.", "model", NULL, 0);
    tpot = metric_family(METRIC_HISTOGRAM, "baton_router_tpot_seconds",
                         "Mean time between the tokens of a request after the first.", "model",
                         NULL, 0);
    queue = metric_family(METRIC_HISTOGRAM, "baton_router_queue_seconds",
                          "From a request's arrival until it was first sent to a worker.", "model",
                          NULL, 0);
    kv_each = metric_family(METRIC_HISTOGRAM, "baton_router_kv_moved_bytes",
                            "KV bytes that moved for a request from prefill to decode.", "model",
                            kv_bounds, sizeof kv_bounds / sizeof *kv_bounds);
    slo = metric_family(METRIC_COUNTER, "baton_router_slo_requests_total",
                        "Requests that an answer was owed, by what they met of the slo: met, ttft "
                        "(missed), tpot (missed), both (missed), failed.",
                        "model,outcome", NULL, 0);
    seconds = metric_family(METRIC_HISTOGRAM, "baton_router_request_seconds",
                            "From a request's arrival to the end of its answer.", "model", NULL, 0);
    prompt_tokens = metric_family(METRIC_COUNTER, "baton_router_prompt_tokens_total",
                                  "Prompt tokens of answered requests.", "model", NULL, 0);
    cached_tokens = metric_family(METRIC_COUNTER, "baton_router_cached_tokens_total",
                                  "Prompt tokens that a worker had cached.", "model", NULL, 0);
    generated_tokens = metric_family(METRIC_COUNTER, "baton_router_generated_tokens_total",
                                     "Generated tokens.", "model", NULL, 0);
    kv_bytes =
        metric_family(METRIC_COUNTER, "baton_router_kv_moved_bytes_total",
                      "KV bytes that moved from prefill to decode workers.", "model", NULL, 0);
    picks = metric_family(METRIC_COUNTER, "baton_router_picks_total",
                          "Picks by their outcome: split, alone, or why there was none.",
                          "model,reason", NULL, 0);
    retries = metric_family(METRIC_COUNTER, "baton_router_retries_total",
                            "Attempts that failed and were made again, by reason.", "model,reason",
                            NULL, 0);
    workers = metric_family(METRIC_GAUGE, "baton_router_workers",
                            "Live and ready workers by their actual role.", "infd,role", NULL, 0);
    names = metric_family(METRIC_GAUGE, "baton_router_index_blocks",
                          "Block names in the index of cached blocks.", "infd", NULL, 0);
    in_flight = metric_new(METRIC_GAUGE, "baton_router_in_flight", "Requests being served.");
}

enum slo_outcome { SLO_MET, SLO_TTFT, SLO_TPOT, SLO_BOTH, SLO_FAILED, SLO_OUTCOMES };
static const char *const outcome_name[] = {"met", "ttft", "tpot", "both", "failed"};

#define SERVED_MAX 1024
struct served {
    uint64_t at_ns;
    float ttft_s, tpot_s; /* < 0: it has none */
    bool met;
};

/* The series that every request touches, looked up once a model. */
struct stats {
    struct metric *ok[4], *ttft, *tpot, *queue, *seconds, *prompt_tokens, *cached_tokens,
        *generated_tokens, *kv_bytes, *kv_each, *pick[ROUTE_REASONS], *slo[SLO_OUTCOMES];
    struct served last[SERVED_MAX]; /* a ring of the last requests */
    size_t n_last, next;
};
static const char *const api_name[] = {"chat", "completions", "tokenize", "detokenize"};

static struct stats *stats_of(struct deployment *d)
{
    if (d->stats)
        return d->stats;
    struct stats *s = d->stats = xcalloc(1, sizeof *s);
    const char *m = d->model_name;
    for (int i = 0; i < 4; i++)
        s->ok[i] = metric_series(requests, m, api_name[i], "200");
    s->ttft = metric_series(ttft, m);
    s->tpot = metric_series(tpot, m);
    s->queue = metric_series(queue, m);
    s->kv_each = metric_series(kv_each, m);
    for (int i = 0; i < SLO_OUTCOMES; i++)
        s->slo[i] = metric_series(slo, m, outcome_name[i]);
    s->seconds = metric_series(seconds, m);
    s->prompt_tokens = metric_series(prompt_tokens, m);
    s->cached_tokens = metric_series(cached_tokens, m);
    s->generated_tokens = metric_series(generated_tokens, m);
    s->kv_bytes = metric_series(kv_bytes, m);
    return s;
}

static void serve(struct stats *s, uint64_t now, enum slo_outcome outcome, double ttft_s,
                  double tpot_s)
{
    metric_add(s->slo[outcome], 1);
    s->last[s->next] = (struct served){now, (float)ttft_s, (float)tpot_s, outcome == SLO_MET};
    s->next = (s->next + 1) % SERVED_MAX;
    s->n_last += s->n_last < SERVED_MAX;
}

/* What a request met: its own TTFT, and the mean time between its tokens. */
static void judge(const struct exchange *x, struct stats *s, uint64_t now, double ttft_s,
                  double tpot_s)
{
    bool late = x->d->slo_ttft_s > 0 && ttft_s > x->d->slo_ttft_s;
    bool slow = x->d->slo_tpot_s > 0 && tpot_s > x->d->slo_tpot_s;
    serve(s, now,
          late && slow ? SLO_BOTH
          : late       ? SLO_TTFT
          : slow       ? SLO_TPOT
                       : SLO_MET,
          ttft_s, tpot_s);
}

static int by_value(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

/* Nearest rank. */
static double percentile(float *v, size_t n, uint32_t p)
{
    if (!n)
        return 0;
    qsort(v, n, sizeof *v, by_value);
    size_t rank = (n * p + 99) / 100;
    return v[rank ? rank - 1 : 0];
}

struct goodput stats_goodput(const struct deployment *d, uint64_t now)
{
    float first[SERVED_MAX], each[SERVED_MAX];
    size_t n_first = 0, n_each = 0, met = 0, n = 0;
    const struct stats *s = d->stats;
    uint64_t oldest = now;
    for (size_t i = 0; s && i < s->n_last; i++) {
        const struct served *r = &s->last[i];
        if (now - r->at_ns > GOODPUT_WINDOW_S * NS_PER_S)
            continue;
        n++;
        met += r->met;
        oldest = r->at_ns < oldest ? r->at_ns : oldest;
        if (r->ttft_s >= 0)
            first[n_first++] = r->ttft_s;
        if (r->tpot_s >= 0)
            each[n_each++] = r->tpot_s;
    }
    /* A full ring covers less than the window when requests come fast. */
    double span = n == SERVED_MAX ? (double)(now - oldest) / 1e9 : GOODPUT_WINDOW_S;
    span = span > 0.001 ? span : 0.001;
    struct goodput g = {.requests_per_s = (double)n / span,
                        .met_per_s = (double)met / span,
                        .percentile = d->slo_percentile};
    g.ttft_s = percentile(first, n_first, d->slo_percentile);
    g.tpot_s = percentile(each, n_each, d->slo_percentile);
    g.slo_met = met * 100 >= n * d->slo_percentile;
    return g;
}

static void latencies(const struct exchange *x, struct stats *s, uint64_t now)
{
    uint64_t first = 0, last = 0, sent = 0, tokens = 0, cached = 0, kv = 0;
    for (size_t i = 0; i < x->n_jobs; i++) {
        const struct job *j = &x->jobs[i];
        first =
            !first || (j->first_token_ns && j->first_token_ns < first) ? j->first_token_ns : first;
        last = j->last_token_ns > last ? j->last_token_ns : last;
        sent = j->sent_at_ns > sent ? j->sent_at_ns : sent;
        cached += j->cached_tokens;
        kv += j->kv_bytes;
    }
    uint32_t longest = 0;
    for (size_t i = 0; i < x->n_choices; i++) {
        tokens += x->choices[i].n_tokens;
        longest = x->choices[i].n_tokens > longest ? x->choices[i].n_tokens : longest;
    }
    double ttft_s = first ? (double)(first - x->start_ns) / 1e9 : -1;
    double tpot_s = longest > 1 ? (double)(last - first) / 1e9 / (longest - 1) : -1;
    if (ttft_s >= 0)
        metric_observe(s->ttft, ttft_s);
    if (tpot_s >= 0)
        metric_observe(s->tpot, tpot_s);
    if (sent)
        metric_observe(s->queue, (double)(sent - x->start_ns) / 1e9);
    metric_observe(s->kv_each, (double)kv);
    judge(x, s, now, ttft_s, tpot_s);
    metric_observe(s->seconds, (double)(now - x->start_ns) / 1e9);
    metric_add(s->prompt_tokens, (double)x->prompt_tokens);
    metric_add(s->cached_tokens, (double)cached);
    metric_add(s->generated_tokens, (double)tokens);
    metric_add(s->kv_bytes, (double)kv);
}

/* Once a request; status 0: it was counted before, or nothing went wrong. */
void stats_request(struct exchange *x, int status)
{
    char number[12];
    if (x->counted)
        return;
    x->counted = true;
    if (x->d && (status == 0 || status == 200)) {
        struct stats *s = stats_of(x->d);
        metric_add(s->ok[x->head.api], 1);
        if (status)
            latencies(x, s, clock_mono_ns());
        return;
    }
    if (x->d && status >= 500) /* our failure: it was owed an answer */
        serve(stats_of(x->d), clock_mono_ns(), SLO_FAILED, -1, -1);
    snprintf(number, sizeof number, "%d", status ? status : 200);
    const char *model = x->d ? x->d->model_name : "";
    metric_add(metric_series(requests, model, api_name[x->head.api], number), 1);
}

void stats_pick(struct deployment *d, enum route_reason reason)
{
    stats_of(d);
    struct metric **at = &d->stats->pick[reason];
    if (!*at)
        *at = metric_series(picks, d->model_name, route_reason_name(reason));
    metric_add(*at, 1);
}

/* The model has another name, or is gone. */
void stats_forget(struct deployment *d)
{
    free(d->stats);
    d->stats = NULL;
}

void stats_retry(const struct deployment *d, const char *reason)
{
    metric_add(metric_series(retries, d->model_name, reason), 1);
}

void stats_fleet(struct router *r)
{
    metric_set(in_flight, r->n_exchanges);
    for (struct deployment *d = fleet_first(r->fleet); d; d = d->next) {
        unsigned n[WIRE_ROLE_STANDBY + 1] = {0};
        for (size_t i = 0; i < d->n_workers; i++)
            if (d->worker[i] && d->state[i].incarnation && d->state[i].ready)
                n[d->worker[i]->last.role]++;
        for (enum wire_role role = WIRE_ROLE_PREFILL; role <= WIRE_ROLE_STANDBY; role++)
            metric_set(metric_series(workers, d->infd, wire_role_name(role)), n[role]);
        metric_set(metric_series(names, d->infd), (double)index_names(d->index));
    }
}
