/* Picking (P, D) for a job and sending it to D. */
#include "lib/base/clock.h"
#include "lib/decide/guard.h"
#include "router/proxy.h"

#include <math.h>
#include <stdio.h>

static void fill_request(struct job *j, struct wire_request *w)
{
    const struct openai_request *q = &j->x->rq;
    uint32_t generated = (uint32_t)j->tokens.n - j->n_prompt;
    *w = (struct wire_request){
        .id = {rng_next(&j->x->r->rng), rng_next(&j->x->r->rng)},
        .seed = j->seed,
        .temperature = q->temperature,
        .top_p = q->top_p,
        .min_p = q->min_p,
        .repetition_penalty = q->repetition_penalty,
        .presence_penalty = q->presence_penalty,
        .frequency_penalty = q->frequency_penalty,
        .top_k = q->top_k,
        .max_tokens = q->max_tokens,
        .min_tokens = q->min_tokens,
        .n = (uint16_t)j->n_choices,
        .n_top = q->logprobs ? (uint16_t)q->top_logprobs : 0,
        .n_prompt = j->n_prompt,
        .n_generated = generated,
        .n_stop_ids = (uint32_t)q->n_stop_ids,
        .n_bias = (uint32_t)q->n_logit_bias,
        .n_blocks = (uint32_t)j->n_names,
        .tokens = j->tokens.id,
        .stop_ids = q->stop_ids,
        .bias = (const struct wire_bias *)q->logit_bias,
        .blocks = (const struct block_name_bytes *)j->names,
    };
    if (q->logprobs)
        w->flags |= WIRE_LOGPROBS;
    if (q->logprobs && q->echo && !generated)
        w->flags |= WIRE_PROMPT_LOGPROBS;
    if (q->ignore_eos)
        w->flags |= WIRE_IGNORE_EOS;
}
_Static_assert(sizeof(struct wire_bias) == sizeof(struct openai_bias), "one pair, two types");

/* Marks what failed for this job, prices, and takes the marks away again. */
static int pick(struct job *j, uint64_t now_ns)
{
    struct deployment *d = j->x->d;
    const struct openai_request *q = &j->x->rq;
    uint32_t cached[FLEET_WORKERS_MAX];
    index_match(d->index, j->names, j->n_names, cached, (unsigned)d->n_workers);
    for (size_t i = 0; i < d->n_workers; i++) {
        cached[i] *= d->block_tokens;
        for (unsigned k = 0; k < j->n_avoid; k++)
            d->state[i].avoid |= d->state[i].incarnation == j->avoid[k];
    }
    struct route_request rq = {.prompt_tokens = (uint32_t)j->tokens.n,
                               .max_tokens = q->max_tokens,
                               .n = j->n_choices,
                               .continued = j->tokens.n > j->n_prompt,
                               .policy = d->policy};
    int rc = route(&rq, d->state, d->n_workers, cached, now_ns, &j->x->r->rng, &j->pick);
    for (size_t i = 0; i < d->n_workers; i++)
        d->state[i].avoid = false;
    return rc;
}

static void reserve(struct job *j, struct worker *p, struct worker *d, uint64_t now_ns)
{
    uint64_t prompt = j->tokens.n;
    struct ledger_entry *a = &j->ledger[0], *b = &j->ledger[1];
    *a = (struct ledger_entry){.prefill = true, .prefill_tokens = prompt - j->pick.prefill_cached};
    *b = (struct ledger_entry){.decode = true, .kv_tokens = prompt};
    ledger_reserve(p ? p : d, a, now_ns);
    ledger_reserve(d, b, now_ns);
}

static void set_names(struct job *j, const struct worker *p, const struct worker *d)
{
    struct exchange *x = j->x;
    j->decode_incarnation = d->d->state[d->slot].incarnation;
    j->prefill_incarnation = p ? p->d->state[p->slot].incarnation : j->decode_incarnation;
    if (x->streaming || j != x->jobs)
        return;
    const char *prefill = p ? p->label : d->label;
    memcpy(x->decode_name, d->label, strlen(d->label) + 1);
    memcpy(x->prefill_name, prefill, strlen(prefill) + 1);
}

static void predict(struct job *j, const struct worker *at)
{
    uint64_t n = j->tokens.n - j->pick.prefill_cached;
    j->predicted_prefill_s =
        cost_prefill_s(&at->d->state[at->slot].cost, n ? n : 1, j->pick.prefill_cached);
}

static int write_request(struct job *j, const struct worker *p, const struct worker *d,
                         struct str *head, struct str *body)
{
    struct router *r = j->x->r;
    struct wire_request w;
    fill_request(j, &w);
    if (p) {
        snprintf(w.prefill.host, sizeof w.prefill.host, "%.*s", WIRE_HOST_MAX - 1, p->host);
        w.prefill.port = p->last.xfer_port;
        w.prefill.incarnation = j->prefill_incarnation;
    }
    buf_reset(&r->scratch);
    int rc = wire_request_encode(&w, &r->scratch);
    size_t n = r->scratch.n;
    rc = rc ? rc
            : codec_write_head(&r->scratch, "POST", "/v1/internal/generate", d->address,
                               d->d->secret, d->incarnation_line, "application/octet-stream", n);
    if (rc)
        return rc;
    *body = (struct str){r->scratch.data, n};
    *head = (struct str){r->scratch.data + n, r->scratch.n - n};
    return 0;
}

static void send_to(struct job *j, struct worker *p, struct worker *d, uint64_t now_ns)
{
    struct conn_request rq = job_callbacks;
    struct err e = {0};
    set_names(j, p, d);
    if (write_request(j, p, d, &rq.head, &rq.body)) {
        openai_error_set(&j->fault, 500, NULL, "", "the request can't be written");
        job_failed(j, "encode", false);
        return;
    }
    rq.host = d->host;
    rq.port = d->port;
    rq.ctx = j;
    j->state = JOB_SENT;
    j->sent_at_ns = j->sent_at_ns ? j->sent_at_ns : now_ns;
    j->decode_lost_ns = 0;
    reserve(j, p, d, now_ns);
    predict(j, p ? p : d);
    j->call = conn_start(j->x->r->pool, &rq, &e);
    if (!j->call) {
        openai_error_set(&j->fault, 502, "worker_lost", "", "%.300s", e.msg);
        job_failed(j, "connect", true);
    }
}

/* At zero: a request stays until a worker has been made. That is asked for at once, and the request
 * keeps its place through the worker's start. */
static bool waits_for_waking(struct job *j, uint64_t now_ns)
{
    struct exchange *x = j->x;
    struct router *r = x->r;
    if (!x->d->wakes)
        return false;
    if (!deployment_has_workers(x->d)) {
        uint64_t tokens = 0;
        j->at_zero =
            j->at_zero || (GUARD(held_at_zero) && held_requests(r, x->d, &tokens) <= r->o.max_held);
        wake_push(r, x->d, now_ns);
    }
    return j->at_zero;
}

static void nothing_to_pick(struct job *j, uint64_t now_ns)
{
    static const char *const why[] = {
        [ROUTE_NO_WORKER] = "no worker of this model is ready",
        [ROUTE_NO_DECODE] = "no decode worker of this model is ready",
        [ROUTE_NO_PREFILL] = "no prefill worker of this model is ready, and its "
                             "routing.disaggregation is \"always\"",
    };
    struct exchange *x = j->x;
    double waited = (double)(now_ns - j->wait_since_ns) / 1e9;
    j->state = JOB_WAITING;
    if (deployment_has_workers(x->d) && waited < x->r->o.hold_seconds)
        return; /* one is expected: the tick looks again */
    if (waits_for_waking(j, now_ns) && waited < x->r->o.wake_seconds)
        return;
    struct openai_error e;
    if (j->at_zero || (x->d->wakes && !deployment_has_workers(x->d))) {
        httpd_set_header(x->req, "retry-after", "10");
        if (j->at_zero)
            openai_error_set(&e, 503, "model_at_zero", "",
                             "the model has no worker and none came within %.0f s", waited);
        else
            openai_error_set(&e, 503, "model_at_zero", "",
                             "the model has no worker, and %llu requests wait for one already",
                             (unsigned long long)x->r->o.max_held);
        answer_fail(x, &e);
        return;
    }
    openai_error_set(&e, 503, route_reason_name(j->pick.reason), "", "%s", why[j->pick.reason]);
    answer_fail(x, &e);
}

void job_send(struct job *j)
{
    uint64_t now = clock_mono_ns();
    struct deployment *d = j->x->d;
    int rc = pick(j, now);
    if (!j->arrived) {
        j->arrived = true;
        deployment_arrival(d, j->n_prompt - (rc ? 0 : j->pick.prefill_cached));
    }
    if (rc) {
        if (j->picks_failed++ == 0)
            stats_pick(d, j->pick.reason);
        nothing_to_pick(j, now);
        return;
    }
    stats_pick(d, j->pick.reason);
    struct worker *p = j->pick.prefill >= 0 ? d->worker[j->pick.prefill] : NULL;
    send_to(j, p, d->worker[j->pick.decode], now);
}
