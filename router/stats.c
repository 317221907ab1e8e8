/* The router's own metrics (baton_router_*). */
#include "lib/base/clock.h"
#include "router/router.h"

#include <stdio.h>
#include <stdlib.h>

static struct metric_family *requests, *ttft, *tpot, *seconds, *prompt_tokens, *cached_tokens,
    *generated_tokens, *kv_bytes, *picks, *retries, *workers, *names;
static struct metric *in_flight;

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

/* The series that every request touches, looked up once a model. */
struct stats {
    struct metric *ok[4], *ttft, *tpot, *seconds, *prompt_tokens, *cached_tokens, *generated_tokens,
        *kv_bytes, *pick[ROUTE_REASONS];
};
static const char *const api_name[] = {"chat", "completions", "tokenize", "detokenize"};

static const struct stats *stats_of(struct deployment *d)
{
    if (d->stats)
        return d->stats;
    struct stats *s = d->stats = xcalloc(1, sizeof *s);
    const char *m = d->model_name;
    for (int i = 0; i < 4; i++)
        s->ok[i] = metric_series(requests, m, api_name[i], "200");
    s->ttft = metric_series(ttft, m);
    s->tpot = metric_series(tpot, m);
    s->seconds = metric_series(seconds, m);
    s->prompt_tokens = metric_series(prompt_tokens, m);
    s->cached_tokens = metric_series(cached_tokens, m);
    s->generated_tokens = metric_series(generated_tokens, m);
    s->kv_bytes = metric_series(kv_bytes, m);
    return s;
}

static void latencies(const struct exchange *x, const struct stats *s, uint64_t now)
{
    uint64_t first = 0, last = 0, tokens = 0, cached = 0, kv = 0;
    for (size_t i = 0; i < x->n_jobs; i++) {
        const struct job *j = &x->jobs[i];
        first =
            !first || (j->first_token_ns && j->first_token_ns < first) ? j->first_token_ns : first;
        last = j->last_token_ns > last ? j->last_token_ns : last;
        cached += j->cached_tokens;
        kv += j->kv_bytes;
    }
    uint32_t longest = 0;
    for (size_t i = 0; i < x->n_choices; i++) {
        tokens += x->choices[i].n_tokens;
        longest = x->choices[i].n_tokens > longest ? x->choices[i].n_tokens : longest;
    }
    if (first)
        metric_observe(s->ttft, (double)(first - x->start_ns) / 1e9);
    if (longest > 1)
        metric_observe(s->tpot, (double)(last - first) / 1e9 / (longest - 1));
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
        const struct stats *s = stats_of(x->d);
        metric_add(s->ok[x->head.api], 1);
        if (status)
            latencies(x, s, clock_mono_ns());
        return;
    }
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
