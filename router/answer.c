/* From records to the client: detokenise, apply stop strings, collect log probabilities, write
 * chunks or the whole answer. */
#include "lib/base/clock.h"
#include "lib/json/scan.h"
#include "router/router.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define MAX_TEXT (64u << 20) /* of one choice */

static int init_choice(struct exchange *x, struct job *j, struct choice *c)
{
    detok_init(&c->detok, x->model->tokenizer, x->rq.skip_special_tokens, true);
    int rc = stop_match_init(&c->stop, x->rq.stop, x->rq.n_stop, x->rq.include_stop, &x->arena);
    if (rc || !x->rq.echo)
        return rc;
    if (j->prompt_text.n)
        rc = buf_str(&c->text, j->prompt_text);
    else
        rc = tokenizer_decode(x->model->tokenizer, j->tokens.id, j->n_prompt,
                              x->rq.skip_special_tokens, &c->text, NULL);
    c->chars = x->rq.logprobs ? 0 : openai_chars(buf_view(&c->text));
    return rc;
}

int answer_init(struct exchange *x)
{
    uint32_t n = x->rq.n ? x->rq.n : 1;
    x->n_choices = x->n_jobs * n;
    x->choices = arena_calloc(&x->arena, x->n_choices * sizeof *x->choices);
    if (!x->choices) {
        x->n_choices = 0;
        return -ENOMEM;
    }
    for (size_t i = 0; i < x->n_choices; i++) {
        struct choice *c = &x->choices[i];
        c->index = (uint32_t)i;
        c->job = &x->jobs[i / n];
        buf_init(&c->text, MAX_TEXT);
    }
    for (size_t i = 0; i < x->n_jobs; i++) {
        x->jobs[i].first_choice = (uint32_t)i * n;
        x->jobs[i].n_choices = n;
    }
    for (size_t i = 0; i < x->n_choices; i++) {
        int rc = init_choice(x, x->choices[i].job, &x->choices[i]);
        if (rc)
            return rc;
    }
    return 0;
}

void answer_restart(struct job *j)
{
    j->n_done = 0;
    j->tokens.n = j->n_prompt;
    j->prompt_seen = j->prompt_skip = 0;
    for (uint32_t i = 0; i < j->n_choices; i++) {
        struct choice *c = &j->x->choices[j->first_choice + i];
        struct buf text = c->text;
        struct openai_logprob *tok = c->tok;
        size_t cap = c->cap_tok;
        buf_reset(&text);
        *c = (struct choice){.job = j, .index = c->index, .text = text, .tok = tok, .cap_tok = cap};
        if (init_choice(j->x, j, c))
            openai_error_set(&j->fault, 503, NULL, "", "the router has no memory for this request");
    }
}

void answer_release(struct exchange *x)
{
    for (size_t i = 0; i < x->n_choices; i++) {
        buf_fini(&x->choices[i].text);
        free(x->choices[i].tok);
    }
}

/* ---- log probabilities ---- */

static struct openai_alt alt_of(const struct exchange *x, uint32_t id, float logprob)
{
    return (struct openai_alt){id, logprob, tokenizer_bytes(x->model->tokenizer, id)};
}

static int add_logprob(struct choice *c, const struct wire_record *rec)
{
    struct exchange *x = c->job->x;
    if (c->n_tok == c->cap_tok) {
        size_t cap = c->cap_tok ? 2 * c->cap_tok : 16;
        struct openai_logprob *bigger = realloc(c->tok, cap * sizeof *bigger);
        if (!bigger)
            return -ENOMEM;
        c->tok = bigger;
        c->cap_tok = cap;
    }
    struct openai_alt *top = NULL;
    if (rec->n_top && !(top = arena_alloc(&x->arena, rec->n_top * sizeof *top)))
        return -ENOMEM;
    for (size_t i = 0; i < rec->n_top; i++) {
        struct wire_top t = wire_record_top(rec, i);
        top[i] = alt_of(x, t.id, t.logprob);
    }
    c->tok[c->n_tok++] = (struct openai_logprob){.token = alt_of(x, rec->id, rec->logprob),
                                                 .top = top,
                                                 .n_top = rec->n_top,
                                                 .text_offset = c->chars};
    return 0;
}

/* ---- text ---- */

static void choice_done(struct choice *c, enum openai_finish finish)
{
    if (c->done)
        return;
    c->done = true;
    c->finish = finish;
    c->job->n_done++;
}

static int push_text(struct choice *c, struct str text)
{
    int rc = stop_match_push(&c->stop, text, &c->text);
    if (rc == 1) {
        c->stop_text = c->stop.stop[c->stop.matched].p;
        choice_done(c, OPENAI_FINISH_STOP);
        rc = 0;
    }
    return rc;
}

static int end_text(struct choice *c, enum openai_finish finish)
{
    struct buf tail;
    buf_init(&tail, 64);
    int rc = detok_flush(&c->detok, &tail);
    rc = rc ? rc : push_text(c, buf_view(&tail));
    buf_fini(&tail);
    if (!rc && !c->done)
        rc = stop_match_flush(&c->stop, &c->text);
    choice_done(c, finish);
    return rc;
}

static int show_token(struct choice *c, uint32_t id)
{
    struct buf *piece = &c->job->x->out; /* empty between flushes */
    size_t start = piece->n;
    int rc = detok_push(&c->detok, id, piece);
    struct str text = {piece->data ? piece->data + start : "", piece->n - start};
    if (!rc && text.n) {
        c->chars += openai_chars(text);
        rc = push_text(c, text);
    }
    if (piece->data) {
        piece->n = start;
        piece->data[start] = 0;
    }
    return rc;
}

static enum openai_finish finish_of(uint8_t finish)
{
    return finish == WIRE_FINISH_STOP     ? OPENAI_FINISH_STOP
           : finish == WIRE_FINISH_LENGTH ? OPENAI_FINISH_LENGTH
                                          : OPENAI_FINISH_ERROR;
}

static int generated(struct job *j, struct choice *c, const struct wire_record *rec)
{
    struct exchange *x = j->x;
    uint64_t now = clock_mono_ns();
    if (!j->first_token_ns)
        j->first_token_ns = now;
    j->last_token_ns = now;
    c->n_tokens++;
    if (j->n_choices == 1 && ids_push(&j->tokens, rec->id))
        return -EMSGSIZE;
    if (rec->finish == WIRE_FINISH_STOP)
        return end_text(c, OPENAI_FINISH_STOP);
    int rc = x->rq.logprobs ? add_logprob(c, rec) : 0;
    rc = rc ? rc : show_token(c, rec->id);
    if (!rc && rec->finish != WIRE_FINISH_NONE && !c->done)
        rc = end_text(c, finish_of(rec->finish));
    return rc;
}

/* A prompt token's log probability belongs to every choice of the job. */
static int prompt_token(struct job *j, const struct wire_record *rec)
{
    if (j->prompt_skip) {
        j->prompt_skip--;
        return 0;
    }
    j->prompt_seen++;
    if (!j->x->rq.logprobs || rec->choice != 0)
        return 0;
    struct str bytes = tokenizer_bytes(j->x->model->tokenizer, rec->id);
    bool hidden =
        j->x->rq.skip_special_tokens && tokenizer_is_special(j->x->model->tokenizer, rec->id);
    for (uint32_t i = 0; i < j->n_choices; i++) {
        struct choice *c = &j->x->choices[j->first_choice + i];
        int rc = add_logprob(c, rec);
        if (rc)
            return rc;
        c->chars += hidden ? 0 : openai_chars(bytes);
    }
    return 0;
}

static void take_member(struct job *j, const struct scan_tok *key, const struct scan_tok *value)
{
    uint64_t *at = scan_text_is(key, "cached_tokens") ? &j->cached_tokens
                   : scan_text_is(key, "kv_bytes")    ? &j->kv_bytes
                                                      : NULL;
    int64_t v;
    double ms;
    if (at && !scan_i64(value, 0, INT64_MAX, &v)) {
        *at = (uint64_t)v;
    } else if (scan_text_is(key, "prefill_ms") && !scan_f64(value, 0, 1e12, &ms) && ms > 0) {
        j->prefill_ms = ms;
    } else if (scan_text_is(key, "prefill") && value->kind == SCAN_STRING &&
               scan_text_is(value, "self") && j == j->x->jobs && !j->x->streaming) {
        /* D did P's part: it had everything cached, or P failed it */
        memcpy(j->x->prefill_name, j->x->decode_name, sizeof j->x->prefill_name);
    }
}

static void take_usage(struct job *j, const struct wire_record *rec)
{
    struct scan s;
    struct scan_tok key, value;
    scan_init(&s, (struct str){rec->extra, rec->extra_bytes}, 8);
    if (!scan_next(&s, &value) && value.kind == SCAN_OBJECT)
        while (scan_member(&s, &key, &value) == 1) {
            take_member(j, &key, &value);
            if (scan_skip(&s, &value, NULL))
                break;
        }
    scan_fini(&s);
}

int answer_record(struct job *j, const struct wire_record *rec)
{
    if (rec->kind == WIRE_PING)
        return 0;
    if (rec->extra_bytes)
        take_usage(j, rec);
    if (rec->kind == WIRE_TOKEN && rec->finish == WIRE_FINISH_PROMPT)
        return prompt_token(j, rec);
    if (rec->choice >= j->n_choices)
        return -EBADMSG;
    struct choice *c = &j->x->choices[j->first_choice + rec->choice];
    if (rec->kind == WIRE_TOKEN)
        return c->done ? 0 : generated(j, c, rec);
    if (rec->finish != WIRE_FINISH_NONE && !c->done)
        return end_text(c, finish_of(rec->finish));
    return 0;
}

/* A request that generates nothing (max_tokens 0) ends without a token. */
int answer_ended(struct job *j)
{
    int rc = 0;
    for (uint32_t i = 0; i < j->n_choices && !rc && !j->x->rq.max_tokens; i++) {
        struct choice *c = &j->x->choices[j->first_choice + i];
        if (!c->done)
            rc = end_text(c, OPENAI_FINISH_LENGTH);
    }
    return rc;
}

/* ---- out ---- */

static void set_head(struct exchange *x)
{
    char number[32];
    uint64_t kv = 0;
    for (size_t i = 0; i < x->n_jobs; i++)
        kv += x->jobs[i].kv_bytes;
    snprintf(number, sizeof number, "%llu", (unsigned long long)kv);
    httpd_set_header(x->req, "x-baton-prefill", x->prefill_name);
    httpd_set_header(x->req, "x-baton-decode", x->decode_name);
    httpd_set_header(x->req, "x-baton-kv-bytes", number);
}

static void start_stream(struct exchange *x)
{
    x->streaming = true;
    set_head(x);
    httpd_set_header(x->req, "cache-control", "no-cache");
    httpd_set_header(x->req, "x-accel-buffering", "no");
    httpd_stream_start(x->req, 200, "text/event-stream; charset=utf-8", STREAM_QUEUE_BYTES);
}

static int write_choice(struct exchange *x, struct choice *c)
{
    struct openai_logprobs lp = {c->tok, c->n_tok, x->rq.token_ids_as_text};
    struct openai_choice out = {.index = c->index,
                                .text = buf_view(&c->text),
                                .finish = c->done ? c->finish : OPENAI_FINISH_NONE,
                                .logprobs = x->rq.logprobs && c->n_tok ? &lp : NULL,
                                .stop_reason_text = c->stop_text};
    int rc = buf_cstr(&x->out, "data: ");
    rc = rc ? rc : openai_write_chunk(&x->head, &out, !c->opened, x->rq.include_usage, &x->out);
    rc = rc ? rc : buf_cstr(&x->out, "\n\n");
    c->opened = true;
    c->closed = c->done;
    c->n_tok = 0;
    buf_reset(&c->text);
    return rc;
}

int answer_flush(struct exchange *x)
{
    if (!x->rq.stream)
        return 0;
    int rc = 0;
    for (size_t i = 0; i < x->n_choices && !rc; i++) {
        struct choice *c = &x->choices[i];
        if (c->closed || (!c->text.n && !c->n_tok && !c->done))
            continue;
        rc = write_choice(x, c);
    }
    if (rc || !x->out.n)
        return rc;
    if (!x->streaming)
        start_stream(x);
    rc = httpd_stream_write(x->req, buf_view(&x->out));
    buf_reset(&x->out);
    return rc;
}

static struct openai_usage usage_of(const struct exchange *x)
{
    struct openai_usage u = {.prompt_tokens = x->prompt_tokens};
    for (size_t i = 0; i < x->n_choices; i++)
        u.completion_tokens += x->choices[i].n_tokens;
    for (size_t i = 0; i < x->n_jobs; i++)
        u.cached_tokens += x->jobs[i].cached_tokens;
    return u;
}

static int end_stream(struct exchange *x)
{
    int rc = answer_flush(x);
    if (!rc && !x->streaming)
        start_stream(x);
    if (!rc && x->rq.include_usage) {
        struct openai_usage u = usage_of(x);
        rc = buf_cstr(&x->out, "data: ");
        rc = rc ? rc : openai_write_usage_chunk(&x->head, &u, &x->out);
        rc = rc ? rc : buf_cstr(&x->out, "\n\n");
    }
    rc = rc ? rc : buf_cstr(&x->out, "data: [DONE]\n\n");
    rc = rc ? rc : httpd_stream_write(x->req, buf_view(&x->out));
    if (!rc)
        httpd_stream_end(x->req);
    return rc;
}

static int write_whole(struct exchange *x)
{
    struct openai_choice *out = arena_calloc(&x->arena, x->n_choices * sizeof *out);
    struct openai_logprobs *lp = arena_calloc(&x->arena, x->n_choices * sizeof *lp);
    if (!out || !lp)
        return -ENOMEM;
    for (size_t i = 0; i < x->n_choices; i++) {
        const struct choice *c = &x->choices[i];
        lp[i] = (struct openai_logprobs){c->tok, c->n_tok, x->rq.token_ids_as_text};
        out[i] = (struct openai_choice){.index = c->index,
                                        .text = buf_view(&c->text),
                                        .finish = c->finish,
                                        .logprobs = x->rq.logprobs ? &lp[i] : NULL,
                                        .stop_reason_text = c->stop_text};
    }
    struct openai_usage u = usage_of(x);
    struct buf body;
    buf_init(&body, 2 * (size_t)MAX_TEXT);
    int rc = openai_write_response(&x->head, out, x->n_choices, &u, &body);
    if (!rc) {
        set_head(x);
        httpd_reply(x->req, 200, "application/json", buf_view(&body));
    }
    buf_fini(&body);
    return rc;
}

void answer_finish(struct exchange *x)
{
    int rc = x->rq.stream ? end_stream(x) : write_whole(x);
    if (rc) {
        struct openai_error e = {.status = 500,
                                 .type = "server_error",
                                 .msg = "the answer does not fit into the router's memory"};
        answer_fail(x, &e);
        return;
    }
    x->state = X_ANSWERED;
    stats_request(x, 200);
}

void answer_fail(struct exchange *x, const struct openai_error *e)
{
    if (x->state == X_ANSWERED || !x->req)
        return;
    proxy_cancel(x);
    x->state = X_ANSWERED;
    stats_request(x, e->status);
    if (!x->streaming) {
        if (*x->decode_name)
            set_head(x);
        api_error(x->req, e);
        return;
    }
    buf_reset(&x->out);
    if (buf_cstr(&x->out, "data: ") || openai_write_error(e, &x->out) ||
        buf_cstr(&x->out, "\n\n") || httpd_stream_write(x->req, buf_view(&x->out)))
        httpd_abort(x->req);
    else
        httpd_stream_end(x->req);
}
