/* From a body to jobs: parse, find the model, render the template, tokenise once, name the blocks,
 * check the context. Large bodies do the two expensive steps on a thread of libuv's pool. */
#include "lib/base/clock.h"
#include "router/router.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define MAX_PROMPT_TEXT (32u << 20)

typedef void (*step_fn)(struct exchange *x);
struct step {
    uv_work_t work;
    struct exchange *x;
    step_fn run, after;
};

static void parsed(struct exchange *x);
static void tokenized(struct exchange *x);

static struct str body_of(const struct exchange *x)
{
    return x->body.data ? buf_view(&x->body) : httpd_body(x->req);
}

static void on_work(uv_work_t *w)
{
    struct step *s = w->data;
    s->run(s->x);
}

static void on_after(uv_work_t *w, int status)
{
    struct step *s = w->data;
    struct exchange *x = s->x;
    step_fn after = s->after;
    free(s);
    x->pooled = false;
    if (!x->req)
        exchange_free(x); /* the client left meanwhile */
    else if (status)
        api_error(x->req, &(struct openai_error){.status = 503,
                                                 .type = "server_error",
                                                 .msg = "the router is stopping"});
    else
        after(x);
}

/* Runs a step here, or on the pool when there is much to do. */
static void run_step(struct exchange *x, step_fn run, step_fn after)
{
    if (body_of(x).n <= x->r->o.inline_bytes) {
        run(x);
        after(x);
        return;
    }
    if (!x->body.data) { /* the request's own body goes away with the client */
        struct str body = httpd_body(x->req);
        buf_init(&x->body, body.n + 1);
        if (buf_append(&x->body, body.p, body.n)) {
            openai_error_set(&x->error, 503, NULL, "", "no memory for a body of %zu bytes", body.n);
            after(x);
            return;
        }
        httpd_body_free(x->req);
    }
    struct step *s = xcalloc(1, sizeof *s);
    *s = (struct step){.x = x, .run = run, .after = after};
    s->work.data = s;
    x->pooled = true;
    if (uv_queue_work(&x->r->loop, &s->work, on_work, on_after)) {
        x->pooled = false;
        free(s);
        run(x);
        after(x);
    }
}

void exchange_free(struct exchange *x)
{
    struct router *r = x->r;
    answer_release(x);
    for (size_t i = 0; i < x->n_jobs; i++) {
        ids_fini(&x->jobs[i].tokens);
        buf_fini(&x->jobs[i].in);
    }
    if (x->prev)
        x->prev->next = x->next;
    else
        r->exchanges = x->next;
    if (x->next)
        x->next->prev = x->prev;
    r->n_exchanges--;
    deployment_unref(x->d);
    model_unref(x->model);
    buf_fini(&x->body);
    buf_fini(&x->out);
    arena_fini(&x->arena);
    free(x);
}

static void on_close(struct httpd_req *req, bool gone, void *ctx)
{
    (void)req;
    struct exchange *x = ctx;
    proxy_cancel(x);
    stats_request(x, gone ? 499 : 0);
    x->req = NULL;
    if (!x->pooled)
        exchange_free(x);
}

static void parse(struct exchange *x)
{
    int rc = openai_parse(x->head.api, body_of(x), NULL, &x->arena, &x->rq, &x->error);
    if (rc && !x->error.status)
        openai_error_set(&x->error, 400, NULL, "", "the body can't be read");
}

void admit(struct router *r, struct httpd_req *req, enum openai_api api, const char *request_id)
{
    struct exchange *x = xcalloc(1, sizeof *x);
    x->r = r;
    x->req = req;
    x->next = r->exchanges;
    if (x->next)
        x->next->prev = x;
    r->exchanges = x;
    r->n_exchanges++;
    x->start_ns = clock_mono_ns();
    x->head.api = api;
    x->head.created = clock_wall_ns() / NS_PER_S;
    snprintf(x->request_id, sizeof x->request_id, "%s", request_id);
    arena_init(&x->arena, EXCHANGE_MAX_BYTES);
    buf_init(&x->out, STREAM_QUEUE_BYTES);
    httpd_on_close(req, on_close, x);
    run_step(x, parse, parsed);
}

/* ---- tokens ---- */

static int out_of_memory(struct exchange *x)
{
    return openai_error_set(&x->error, 503, NULL, "", "the router has no memory for this request");
}

static int encode(struct exchange *x, struct str text, unsigned flags, struct ids *out)
{
    struct err e = {0};
    if (text.n > MAX_PROMPT_TEXT)
        return openai_error_set(&x->error, 400, "context_length_exceeded", "prompt",
                                "the prompt has %zu bytes; at most %u are read", text.n,
                                MAX_PROMPT_TEXT);
    int rc = tokenizer_encode(x->model->tokenizer, text, flags, out, &e);
    if (rc)
        openai_error_set(&x->error, 400, NULL, "prompt", "the prompt can't be tokenised: %.300s",
                         e.msg);
    return rc;
}

static struct str special_text(const struct tokenizer *t, uint32_t id)
{
    return id == TOKEN_NONE ? STR("") : tokenizer_bytes(t, id);
}

static int encode_chat(struct exchange *x, struct ids *out)
{
    const struct tokenizer *t = x->model->tokenizer;
    if (!x->model->chat)
        return openai_error_set(&x->error, 400, NULL, "messages", "%s", x->model->chat_error);
    struct chat_render in = {.messages = x->rq.messages,
                             .tools = x->rq.tools,
                             .extra = x->rq.chat_template_kwargs,
                             .bos_token = special_text(t, tokenizer_bos(t)),
                             .eos_token = special_text(t, tokenizer_eos(t)),
                             .add_generation_prompt = x->rq.add_generation_prompt,
                             .continue_final_message = x->rq.continue_final_message,
                             .now_wall_ns = clock_wall_ns()};
    struct buf text;
    struct err e = {0};
    buf_init(&text, MAX_PROMPT_TEXT);
    int rc = chat_template_render(x->model->chat, &in, &text, &e);
    if (rc)
        openai_error_set(&x->error, 400, NULL, "messages", "the chat template: %.400s", e.msg);
    else
        rc = encode(x, buf_view(&text), TOKENIZE_PARSE_SPECIAL, out);
    buf_fini(&text);
    return rc;
}

static int encode_prompt(struct exchange *x, const struct openai_prompt *p, struct ids *out)
{
    uint32_t vocab = tokenizer_vocab(x->model->tokenizer);
    if (!p->is_ids)
        return encode(
            x, p->text,
            TOKENIZE_PARSE_SPECIAL | (x->rq.add_special_tokens ? TOKENIZE_ADD_SPECIAL : 0), out);
    for (size_t i = 0; i < p->n_ids; i++)
        if (p->ids[i] >= vocab)
            return openai_error_set(&x->error, 400, NULL, "prompt",
                                    "token id %u is past the vocabulary of %u", p->ids[i], vocab);
    return ids_append(out, p->ids, p->n_ids) ? out_of_memory(x) : 0;
}

static uint32_t context_limit(const struct exchange *x)
{
    uint32_t own = x->model->max_context, set = x->d->max_context;
    return set && set < own ? set : own;
}

static int check_context(struct exchange *x, size_t n_prompt)
{
    const char *param = x->head.api == OPENAI_CHAT ? "messages" : "prompt";
    uint32_t limit = context_limit(x);
    if (!n_prompt)
        return openai_error_set(&x->error, 400, NULL, param, "the prompt is empty");
    if (!x->rq.has_max_tokens && x->head.api == OPENAI_CHAT) {
        if (n_prompt >= limit)
            return openai_error_context(&x->error, param, limit, n_prompt, 1);
        uint32_t room = limit - (uint32_t)n_prompt;
        x->rq.max_tokens = !x->rq.max_tokens || room < x->rq.max_tokens ? room : x->rq.max_tokens;
        return 0;
    }
    if (n_prompt + x->rq.max_tokens > limit)
        return openai_error_context(&x->error, param, limit, n_prompt, x->rq.max_tokens);
    return 0;
}

static int name_blocks(struct exchange *x, struct job *j)
{
    uint32_t per = x->d->block_tokens;
    size_t n = j->n_prompt / per;
    if (!n)
        return 0;
    j->names = arena_alloc(&x->arena, n * sizeof *j->names);
    if (!j->names)
        return out_of_memory(x);
    j->n_names =
        block_names_memo(x->model->named, &x->d->seed, j->tokens.id, j->n_prompt, per, j->names);
    return 0;
}

static int make_job(struct exchange *x, struct job *j, const struct openai_prompt *p)
{
    struct ids *ids = &j->tokens;
    ids_init(ids, WIRE_MAX_TOKENS);
    buf_init(&j->in, WIRE_RECORD_MAX);
    j->x = x;
    int rc = p ? encode_prompt(x, p, ids) : encode_chat(x, ids);
    rc = rc ? rc : check_context(x, ids->n);
    if (rc)
        return rc;
    j->n_prompt = (uint32_t)ids->n;
    if (p && !p->is_ids)
        j->prompt_text = p->text;
    return name_blocks(x, j);
}

static int check_ids(struct exchange *x)
{
    uint32_t vocab = tokenizer_vocab(x->model->tokenizer);
    for (size_t i = 0; i < x->rq.n_logit_bias; i++)
        if (x->rq.logit_bias[i].id >= vocab)
            return openai_error_set(&x->error, 400, NULL, "logit_bias",
                                    "token id %u is past the vocabulary of %u",
                                    x->rq.logit_bias[i].id, vocab);
    for (size_t i = 0; i < x->rq.n_stop_ids; i++)
        if (x->rq.stop_ids[i] >= vocab)
            return openai_error_set(&x->error, 400, NULL, "stop_token_ids",
                                    "token id %u is past the vocabulary of %u", x->rq.stop_ids[i],
                                    vocab);
    return 0;
}

static void tokenize(struct exchange *x)
{
    size_t n = x->head.api == OPENAI_CHAT || !x->rq.n_prompts ? 1 : x->rq.n_prompts;
    x->jobs = arena_calloc(&x->arena, n * sizeof *x->jobs);
    if (!x->jobs) {
        out_of_memory(x);
        return;
    }
    int rc = check_ids(x);
    for (size_t i = 0; i < n && !rc; i++) {
        x->n_jobs = i + 1;
        rc = make_job(x, &x->jobs[i], x->rq.n_prompts ? &x->rq.prompts[i] : NULL);
    }
    if (rc && !x->error.status)
        out_of_memory(x);
}

/* ---- back on the loop ---- */

/* Without its tokenizer a request can't be held; the model is woken all the same, so that a worker
 * can tell it and the client's next attempt finds both. */
static int without_model(struct exchange *x)
{
    struct deployment *d = x->d;
    if (d->wakes && !deployment_has_workers(d)) {
        wake_push(x->r, d, clock_mono_ns());
        httpd_set_header(x->req, "retry-after", "10");
        return openai_error_set(&x->error, 503, "model_not_ready", "model",
                                "the model has no worker that could tell its tokenizer; one is "
                                "asked for: %.200s",
                                d->model_error);
    }
    return openai_error_set(&x->error, 503, "model_not_ready", "model",
                            "the model is not ready: %.300s",
                            d->loading ? "its tokenizer is being loaded" : d->model_error);
}

static int find_model(struct exchange *x)
{
    struct deployment *d =
        x->rq.model.n ? fleet_by_model(x->r->fleet, x->rq.model) : fleet_first(x->r->fleet);
    if (!d)
        return openai_error_model(&x->error, x->rq.model);
    x->d = deployment_ref(d);
    if (!d->model)
        return without_model(x);
    x->model = model_ref(d->model);
    x->head.model = str_c(arena_dup(&x->arena, str_c(d->model_name)));
    return 0;
}

static void answer_tokens(struct exchange *x)
{
    const struct job *j = &x->jobs[0];
    const struct tokenizer *t = x->model->tokenizer;
    struct str *strs = NULL;
    if (x->rq.return_token_strs && (strs = arena_alloc(&x->arena, j->n_prompt * sizeof *strs)))
        for (size_t i = 0; i < j->n_prompt; i++)
            strs[i] = tokenizer_bytes(t, j->tokens.id[i]);
    if (openai_write_tokens(j->tokens.id, j->n_prompt, context_limit(x), strs, &x->out))
        out_of_memory(x);
}

static void answer_text(struct exchange *x)
{
    struct buf text;
    struct err e = {0};
    buf_init(&text, MAX_PROMPT_TEXT);
    const struct openai_prompt *p = &x->rq.prompts[0];
    int rc = tokenizer_decode(x->model->tokenizer, p->ids, p->n_ids, false, &text, &e);
    if (rc)
        openai_error_set(&x->error, 400, NULL, "tokens", "%.300s", e.msg);
    else if (openai_write_detokenized(buf_view(&text), &x->out))
        out_of_memory(x);
    buf_fini(&text);
}

static void count(struct exchange *x)
{
    for (size_t i = 0; i < x->n_jobs; i++)
        x->prompt_tokens += x->jobs[i].n_prompt;
}

static void tokenized(struct exchange *x)
{
    if (!x->error.status && x->head.api == OPENAI_TOKENIZE)
        answer_tokens(x);
    if (x->error.status) {
        answer_fail(x, &x->error);
        return;
    }
    if (x->head.api == OPENAI_TOKENIZE) {
        x->state = X_ANSWERED;
        httpd_reply(x->req, 200, "application/json", buf_view(&x->out));
        return;
    }
    count(x);
    proxy_start(x);
}

/* /tokenize has no bound on length: only what is served is limited by the context. */
static void tokenize_only(struct exchange *x)
{
    struct job *j = x->jobs = arena_calloc(&x->arena, sizeof *x->jobs);
    if (!j) {
        out_of_memory(x);
        return;
    }
    x->n_jobs = 1;
    ids_init(&j->tokens, WIRE_MAX_TOKENS);
    buf_init(&j->in, WIRE_RECORD_MAX);
    int rc = x->rq.n_prompts ? encode_prompt(x, &x->rq.prompts[0], &j->tokens)
                             : encode_chat(x, &j->tokens);
    if (rc && !x->error.status)
        out_of_memory(x);
    j->n_prompt = (uint32_t)j->tokens.n;
}

static void parsed(struct exchange *x)
{
    if (x->error.status || find_model(x)) {
        answer_fail(x, &x->error);
        return;
    }
    if (x->head.api == OPENAI_DETOKENIZE) {
        answer_text(x);
        if (x->error.status) {
            answer_fail(x, &x->error);
            return;
        }
        x->state = X_ANSWERED;
        httpd_reply(x->req, 200, "application/json", buf_view(&x->out));
        return;
    }
    run_step(x, x->head.api == OPENAI_TOKENIZE ? tokenize_only : tokenize, tokenized);
}
