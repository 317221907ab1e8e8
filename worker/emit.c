/* Records and ends of choices and requests (engine_int.h). Nothing is freed here: an ended request
 * is reaped at the end of the engine's round, when its last records are handed out. */
#include "lib/base/clock.h"
#include "worker/engine_int.h"
#include "worker/model/logprob.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static void add_logprobs(const struct engine *g, const struct wire_request *w, const float *logits,
                         struct logprob_top *top, struct wire_record *rec)
{
    struct logprob_norm norm;
    logprob_norm(g->c.model, logits, g->vocab, &norm);
    rec->logprob = logprob_of(&norm, logits[rec->id]);
    rec->n_top = (uint16_t)logprob_best(&norm, logits, g->vocab, w->n_top, top);
    rec->top = top;
}

static uint8_t finish_of(const struct engine *g, const struct seq *s, uint32_t id)
{
    const struct wire_request *w = &s->req->wire;
    struct sample_in in = {.params = w, .eog = g->eog, .n_eog = g->n_eog};
    if (sample_is_stop(&in, id))
        return WIRE_FINISH_STOP;
    if (request_generated(s) >= w->max_tokens || s->n_tokens >= g->context)
        return WIRE_FINISH_LENGTH;
    return WIRE_FINISH_NONE;
}

static void put(struct request *r, const struct wire_record *rec)
{
    if (wire_record_encode(rec, &r->out))
        ASSERT(!"a request's records fit its buffer: they leave every step");
}

static uint16_t usage(const struct request *r, uint64_t now_ns, bool end, char *out, size_t n)
{
    int k = snprintf(out, n,
                     "{\"prompt_tokens\":%u,\"cached_tokens\":%u,\"kv_bytes\":%llu,"
                     "\"prefill_ms\":%.3f,\"queue_ms\":%.3f,\"prefill\":\"%s\"",
                     r->wire.n_prompt, r->cached_tokens, (unsigned long long)r->kv_bytes,
                     (double)r->prefill_us / 1e3,
                     r->started_ns ? (double)(r->started_ns - r->arrived_ns) / 1e6 : 0.0,
                     r->remote ? "remote" : "self");
    if (r->fallback[0])
        k += snprintf(out + k, n - (size_t)k, ",\"fallback\":\"%s\"", r->fallback);
    if (end)
        k += snprintf(out + k, n - (size_t)k,
                      ",\"completion_tokens\":%u,\"preemptions\":%u,\"total_ms\":%.3f",
                      r->generated_tokens, r->preemptions, (double)(now_ns - r->arrived_ns) / 1e6);
    return (uint16_t)(k + snprintf(out + k, n - (size_t)k, "}"));
}

static void first_token(struct engine *g, struct request *r)
{
    uint64_t now = clock_mono_ns();
    if (!r->remote)
        r->prefill_us = (now - r->started_ns) / NS_PER_US;
    r->prefilled_ns = now;
    metric_observe(g->m.ttft, (double)(now - r->arrived_ns) / 1e9);
}

/* The token becomes the sequence's; its record leaves; the choice may end by it. */
static void take_token(struct engine *g, struct seq *s, struct wire_record *rec)
{
    struct request *r = s->req;
    char extra[512];
    seq_push(s, rec->id);
    r->generated_tokens++;
    g->status.load.generated_tokens_total++;
    metric_add(g->m.generated_tokens, 1);
    rec->finish = finish_of(g, s, rec->id);
    rec->extra_bytes = 0;
    if (!r->opened) {
        first_token(g, r);
        rec->extra = extra;
        rec->extra_bytes = usage(r, r->prefilled_ns, false, extra, sizeof extra);
        r->opened = true;
    }
    put(r, rec);
    if (rec->finish)
        emit_finish(g, s, rec->finish);
}

void emit_token(struct engine *g, struct seq *s, uint32_t id, const float *logits)
{
    const struct wire_request *w = &s->req->wire;
    struct logprob_top top[WIRE_MAX_TOP];
    struct wire_record rec = {.id = id, .logprob = NAN, .choice = s->choice, .kind = WIRE_TOKEN};
    if (w->flags & WIRE_LOGPROBS)
        add_logprobs(g, w, logits, top, &rec);
    if (s->req->order_id)
        put(s->req, &rec);
    else
        take_token(g, s, &rec);
}

void emit_given(struct engine *g, struct seq *s, const struct wire_record *from)
{
    struct wire_record rec = *from;
    rec.extra_bytes = 0;
    if (rec.finish == WIRE_FINISH_PROMPT) {
        s->req->prompt_reported++;
        put(s->req, &rec);
    } else {
        take_token(g, s, &rec);
    }
}

void emit_prompt(struct engine *g, struct seq *s, uint32_t position, const float *logits)
{
    struct request *r = s->req;
    const struct wire_request *w = &r->wire;
    struct logprob_top top[WIRE_MAX_TOP];
    struct wire_record rec = {.kind = WIRE_TOKEN, .finish = WIRE_FINISH_PROMPT, .logprob = NAN};
    if (r->prompt_reported == 0) {
        rec.id = w->tokens[0];
        put(r, &rec);
        r->prompt_reported = 1;
    }
    if (position + 1 != r->prompt_reported || position + 1 >= w->n_prompt)
        return;
    rec.id = w->tokens[position + 1];
    add_logprobs(g, w, logits, top, &rec);
    put(r, &rec);
    r->prompt_reported++;
}

static void count_end(struct engine *g, const char *reason)
{
    metric_add(metric_series(g->m.ended, reason), 1);
}

static void end_request(struct request *r)
{
    char extra[768];
    struct wire_record rec = {.kind = WIRE_END, .logprob = NAN, .extra = extra};
    rec.extra_bytes = usage(r, clock_mono_ns(), true, extra, sizeof extra);
    put(r, &rec);
    r->ended = true;
}

void emit_finish(struct engine *g, struct seq *s, uint8_t finish)
{
    struct request *r = s->req;
    if (s->state == SEQ_WAITING)
        queue_remove(g, s);
    else if (s->state == SEQ_RUNNING)
        running_remove(g, s);
    seq_release(s, g->kv);
    s->state = SEQ_ENDED;
    count_end(g, finish == WIRE_FINISH_STOP ? "stop" : "length");
    if (--r->n_open == 0)
        end_request(r);
}

static uint16_t error_json(struct buf *b, int status, const char *code, const char *message,
                           bool retry)
{
    int rc = buf_printf(b, "{\"status\":%d,\"code\":", status);
    rc = rc ? rc : buf_json_str(b, str_c(code));
    rc = rc ? rc : buf_cstr(b, ",\"message\":");
    rc = rc ? rc : buf_json_str(b, str_c(message));
    rc = rc ? rc : buf_printf(b, ",\"retry\":%s}", retry ? "true" : "false");
    ASSERT(rc == 0);
    return (uint16_t)b->n;
}

static void put_error(struct buf *out, int status, const char *code, const char *message,
                      bool retry)
{
    struct buf extra;
    buf_init(&extra, 16384);
    struct wire_record rec = {.kind = WIRE_ERROR, .finish = WIRE_FINISH_ABORT, .logprob = NAN};
    rec.extra_bytes = error_json(&extra, status, code, message, retry);
    rec.extra = extra.data;
    int rc = wire_record_encode(&rec, out);
    ASSERT(rc == 0);
    buf_fini(&extra);
}

void emit_error(struct engine *g, struct request *r, int status, const char *code,
                const char *message, bool retry)
{
    if (r->ended)
        return;
    if (r->order_id) {
        handover_fail(g, r, message);
        return;
    }
    handover_abandon(g, r, message);
    request_stop(g, r);
    put_error(&r->out, status, code, message, retry);
    g->status.errors++;
    count_end(g, "error");
}

static void send(struct engine *g, uint64_t handle, struct buf *bytes, bool last)
{
    struct engine_records *x = xcalloc(1, sizeof *x);
    x->handle = handle;
    x->last = last;
    x->bytes = *bytes;
    pthread_mutex_lock(&g->lock);
    *g->out_tail = x;
    g->out_tail = &x->next;
    pthread_mutex_unlock(&g->lock);
    g->notify_due = true;
}

void emit_flush(struct engine *g, struct request *r)
{
    size_t max = r->out.max;
    if (!r->handle || (!r->out.n && !r->ended))
        return;
    send(g, r->handle, &r->out, r->ended);
    buf_init(&r->out, max);
}

void emit_refusal(struct engine *g, uint64_t handle, int status, const char *code,
                  const char *message, bool retry)
{
    struct buf b;
    buf_init(&b, 16384 + 64);
    put_error(&b, status, code, message, retry);
    send(g, handle, &b, true);
    count_end(g, "error");
}
