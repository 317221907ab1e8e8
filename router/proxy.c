/* A job's life: picked, sent, its records taken, tried again elsewhere when that is exact,
 * cancelled when nobody waits. */
#include "router/proxy.h"

#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/json/json.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define BACKOFF_MS 30u

static uint64_t draw_seed(struct router *r)
{
    return rng_next(&r->rng);
}

void proxy_start(struct exchange *x)
{
    struct openai_error e = {0};
    if (answer_init(x)) {
        openai_error_set(&e, 503, NULL, "", "the router has no memory for this request");
        answer_fail(x, &e);
        return;
    }
    draw_id(x->head.api == OPENAI_CHAT ? "chatcmpl-" : "cmpl-", x->r, 12, x->id);
    x->head.id = x->id;
    x->state = X_RUNNING;
    uint64_t seed = x->rq.has_seed ? x->rq.seed : draw_seed(x->r);
    uint64_t now = clock_mono_ns();
    for (size_t i = 0; i < x->n_jobs && x->state == X_RUNNING; i++) {
        struct job *j = &x->jobs[i];
        j->seed = x->rq.has_seed ? seed : seed + i;
        j->wait_since_ns = now;
        job_send(j);
    }
}

/* ---- ends ---- */

static void release(struct job *j)
{
    ledger_release(&j->ledger[0]);
    ledger_release(&j->ledger[1]);
    buf_reset(&j->in);
}

void proxy_cancel(struct exchange *x)
{
    for (size_t i = 0; i < x->n_jobs; i++) {
        struct job *j = &x->jobs[i];
        if (j->call)
            conn_cancel(j->call);
        j->call = NULL;
        release(j);
        j->state = JOB_DONE;
    }
}

static void learn_prefill(const struct job *j)
{
    struct deployment *d = j->x->d;
    for (size_t i = 0; i < d->n_workers; i++)
        if (d->worker[i] && d->state[i].incarnation == j->prefill_incarnation && j->prefill_ms > 0)
            cost_observe(&d->state[i].cost.prefill,
                         j->predicted_prefill_s / cost_factor(&d->state[i].cost.prefill),
                         j->prefill_ms / 1e3);
}

static void job_done(struct job *j)
{
    struct exchange *x = j->x;
    release(j);
    j->state = JOB_DONE;
    learn_prefill(j);
    if (++x->n_jobs_done == x->n_jobs)
        answer_finish(x);
}

/* ---- failures ---- */

static void avoid(struct job *j, uint64_t incarnation)
{
    for (unsigned i = 0; i < j->n_avoid; i++)
        if (j->avoid[i] == incarnation)
            return;
    if (incarnation)
        j->avoid[j->n_avoid++ % JOB_AVOID] = incarnation;
    if (j->n_avoid > JOB_AVOID)
        j->n_avoid = JOB_AVOID;
}

/* Nothing that the client has seen may change: one choice continues exactly from its tokens;
 * several begin again. */
static bool can_repeat(const struct job *j)
{
    return j->n_choices == 1 || !j->x->streaming;
}

static void prepare_repeat(struct job *j)
{
    j->prompt_skip = 0;
    if (j->n_choices > 1)
        answer_restart(j);
    else
        j->prompt_skip = j->tokens.n == j->n_prompt ? j->prompt_seen : 0;
    j->ended = false;
    j->upstream_status = 0;
}

void job_failed(struct job *j, const char *reason, bool repeatable)
{
    struct exchange *x = j->x;
    uint64_t now = clock_mono_ns();
    release(j);
    if (j->tokens.n >= j->tokens_at_failure + JOB_PROGRESS)
        j->retries = 0; /* an answer of hours outlives many workers */
    j->tokens_at_failure = j->tokens.n;
    log_info("attempt failed", LS("request", x->request_id), LS("reason", reason),
             LS("decode", x->decode_name), LS("detail", j->fault.msg), LI("retries", j->retries));
    if (!repeatable || !can_repeat(j) || j->retries >= JOB_RETRIES) {
        struct openai_error e = j->fault;
        answer_fail(x, &e);
        return;
    }
    stats_retry(x->d, reason);
    j->retry_at_ns = now + (BACKOFF_MS << j->retries) * NS_PER_MS;
    j->wait_since_ns = now;
    j->retries++;
    j->state = JOB_WAITING;
    prepare_repeat(j);
}

static void connection_failed(struct job *j, int code, bool stale)
{
    if (!j->fault.status || j->upstream_status == 0)
        openai_error_set(&j->fault, 502, "worker_lost", "", "the worker's connection failed: %s",
                         uv_strerror(code ? code : UV_EOF));
    if (stale &&
        j->stale_repeats < 8) { /* an idle connection had ended: nothing was lost, send again */
        j->stale_repeats++;
        release(j);
        j->state = JOB_WAITING;
        j->retry_at_ns = 0;
        prepare_repeat(j);
        job_send(j);
        return;
    }
    avoid(j, j->decode_incarnation);
    job_failed(j,
               code == -ECONNREFUSED ? "refused"
               : code == -ETIMEDOUT  ? "timeout"
                                     : "lost",
               true);
}

static void status_failed(struct job *j)
{
    int s = j->upstream_status;
    if (s == 429)
        openai_error_set(&j->fault, 429, "overloaded", "", "every worker's queue is full");
    else if (s == 409 || s == 503)
        openai_error_set(&j->fault, 503, "unavailable", "", "no worker takes this request now");
    else
        openai_error_set(&j->fault, 502, "worker_error", "", "the worker answered HTTP %d", s);
    if (s != 409)
        avoid(j, j->decode_incarnation);
    job_failed(j, "status", s == 409 || s == 429 || s >= 500);
}

/* ---- records ---- */

static int take_error(struct job *j, const struct wire_record *rec)
{
    CLEANUP(json_decrefp)
    json_t *o = json_parse((struct str){rec->extra, rec->extra_bytes}, 65536, 8, NULL);
    int status = (int)json_int_at(o, "status", 500);
    bool again = json_bool_at(o, "retry", status >= 500);
    if (status < 400 || status > 599)
        status = 500;
    openai_error_set(&j->fault, status, status < 500 ? NULL : "worker_error", "", "%.400s",
                     json_str_at(o, "message", "the worker failed"));
    const char *code = json_str_at(o, "code", "");
    j->error_seen = true;
    j->error_repeatable = again;
    /* A failed hand-over is P's; anything else D's own. */
    avoid(j, strstr(code, "prefill") ? j->prefill_incarnation : j->decode_incarnation);
    return -ECANCELED;
}

static int take_record(struct job *j, const struct wire_record *rec)
{
    if (rec->kind == WIRE_ERROR)
        return take_error(j, rec);
    int rc = answer_record(j, rec);
    if (!rc && rec->kind == WIRE_END && (rec->finish == WIRE_FINISH_NONE || rec->extra_bytes)) {
        j->ended = true;
        rc = answer_ended(j);
    }
    return rc;
}

/* Takes the whole records of data; returns bytes used or a negative errno. */
static ssize_t take_records(struct job *j, struct str data)
{
    size_t used = 0;
    while (used < data.n) {
        struct wire_record rec;
        int n = wire_record_decode((struct str){data.p + used, data.n - used}, &rec);
        if (n <= 0)
            return n < 0 ? n : (ssize_t)used;
        int rc = take_record(j, &rec);
        if (rc)
            return rc;
        used += (size_t)n;
    }
    return (ssize_t)used;
}

static int take_data(struct job *j, struct str piece)
{
    if (!j->in.n) {
        ssize_t n = take_records(j, piece);
        if (n < 0)
            return (int)n;
        piece.p += n;
        piece.n -= (size_t)n;
        return buf_append(&j->in, piece.p, piece.n);
    }
    while (piece.n) { /* a record was cut: complete it in j->in, piece by piece */
        size_t room = j->in.max - j->in.n, k = piece.n < room ? piece.n : room;
        int rc = buf_append(&j->in, piece.p, k);
        ssize_t n = rc ? rc : take_records(j, buf_view(&j->in));
        if (n < 0)
            return (int)n;
        if (n == 0 && k == 0)
            return -EBADMSG;
        buf_consume(&j->in, (size_t)n);
        piece.p += k;
        piece.n -= k;
    }
    return 0;
}

static int on_headers(struct conn_call *c, int status, void *ctx)
{
    (void)c;
    struct job *j = ctx;
    j->upstream_status = status;
    return 0;
}

static int on_data(struct conn_call *c, struct str piece, void *ctx)
{
    (void)c;
    struct job *j = ctx;
    struct exchange *x = j->x;
    if (j->upstream_status != 200)
        return 0; /* an error's body: the status says enough */
    int rc = take_data(j, piece);
    if (rc)
        return rc;
    /* Response headers carry what the first token's record tells. */
    if ((x->streaming || j->first_token_ns) && answer_flush(x)) {
        j->unwanted = true; /* the client left, or reads far too slowly */
        httpd_abort(x->req);
        return -EPIPE;
    }
    /* All choices have met their stop strings: whatever D still computes is for nobody (see
     * on_done). */
    return j->n_done == j->n_choices && !j->ended && x->rq.n_stop ? -ESHUTDOWN : 0;
}

static void on_done(struct conn_call *c, int status, int code, bool stale, void *ctx)
{
    (void)c;
    struct job *j = ctx;
    j->call = NULL;
    j->upstream_status = status;
    if (j->unwanted) {
        release(j);
        j->state = JOB_DONE;
    } else if (j->error_seen) {
        j->error_seen = false;
        job_failed(j, "error", j->error_repeatable);
    } else if (status == 200 && j->n_done == j->n_choices) {
        job_done(j);
    } else if (status == 200 && !code && j->ended) {
        openai_error_set(&j->fault, 502, "worker_error", "", "the worker ended without an answer");
        job_failed(j, "incomplete", !j->x->streaming);
    } else if (status && status != 200 && !code) {
        status_failed(j);
    } else {
        connection_failed(j, code, stale);
    }
}

const struct conn_request job_callbacks = {
    .on_headers = on_headers, .on_data = on_data, .on_done = on_done};

/* ---- the fleet ---- */

void proxy_worker_down(struct deployment *d, uint64_t incarnation, void *ctx)
{
    struct router *r = ctx;
    for (struct exchange *x = r->exchanges; x; x = x->next) {
        if (x->d != d || x->state != X_RUNNING)
            continue;
        for (size_t i = 0; i < x->n_jobs; i++)
            if (x->jobs[i].state == JOB_SENT && x->jobs[i].decode_incarnation == incarnation)
                x->jobs[i].decode_lost_ns = clock_mono_ns();
    }
}

/* The event stream ended but the request's own connection has not: give it a moment to end by
 * itself, then give up. */
static void check_lost(struct job *j, uint64_t now_ns)
{
    if (!j->decode_lost_ns || now_ns < j->decode_lost_ns + LOST_GRACE_NS || !j->call)
        return;
    conn_cancel(j->call);
    j->call = NULL;
    j->decode_lost_ns = 0;
    connection_failed(j, -ETIMEDOUT, false);
}

void proxy_tick(struct router *r, uint64_t now_ns)
{
    for (struct exchange *x = r->exchanges; x; x = x->next)
        for (size_t i = 0; i < x->n_jobs && x->state == X_RUNNING; i++) {
            struct job *j = &x->jobs[i];
            if (j->state == JOB_SENT)
                check_lost(j, now_ns);
            else if (j->state == JOB_WAITING && now_ns >= j->retry_at_ns)
                job_send(j);
        }
}
