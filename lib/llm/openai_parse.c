/* Request bodies: a table of members per API; each has one function that reads and checks its
 * value. */
#include "lib/llm/openai_impl.h"

#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define MAX_BODY_DEPTH 100

/* ---- plain values ---- */

static const char *kind_name(enum scan_kind k)
{
    switch (k) {
    case SCAN_OBJECT: return "an object";
    case SCAN_ARRAY: return "an array";
    case SCAN_STRING: return "a string";
    case SCAN_NUMBER: return "a number";
    case SCAN_TRUE:
    case SCAN_FALSE: return "a boolean";
    default: return "null";
    }
}

int openai_want(struct openai_parse *p, const char *param, const char *what,
                const struct scan_tok *v)
{
    return openai_error_set(p->e, 400, NULL, param, "'%s' must be %s, not %s", param, what,
                            kind_name(v->kind));
}

int openai_scan_failed(struct openai_parse *p)
{
    struct err e = {0};
    scan_why(&p->s, &e);
    return openai_error_set(p->e, 400, "invalid_json", NULL, "The body is not valid JSON: %s",
                            e.msg);
}

int openai_no_memory(struct openai_parse *p)
{
    return openai_error_set(p->e, 413, "request_too_large", NULL,
                            "The request needs more memory than one may use");
}

static int get_bool(struct openai_parse *p, const char *param, const struct scan_tok *v, bool *out)
{
    if (v->kind != SCAN_TRUE && v->kind != SCAN_FALSE)
        return openai_want(p, param, "a boolean", v);
    *out = v->kind == SCAN_TRUE;
    return 0;
}

static int get_int(struct openai_parse *p, const char *param, const struct scan_tok *v, int64_t min,
                   int64_t max, int64_t *out)
{
    int rc = scan_i64(v, min, max, out);
    if (rc == -EINVAL)
        return openai_want(p, param, v->kind == SCAN_NUMBER ? "a whole number" : "an integer", v);
    if (rc)
        return openai_error_set(p->e, 400, NULL, param, "'%s' must be between %lld and %lld", param,
                                (long long)min, (long long)max);
    return 0;
}

static int get_u32(struct openai_parse *p, const char *param, const struct scan_tok *v, int64_t min,
                   int64_t max, uint32_t *out)
{
    int64_t i;
    int rc = get_int(p, param, v, min, max, &i);
    if (!rc)
        *out = (uint32_t)i;
    return rc;
}

static int get_float(struct openai_parse *p, const char *param, const struct scan_tok *v,
                     double min, double max, float *out)
{
    double d;
    int rc = scan_f64(v, min, max, &d);
    if (rc == -EINVAL)
        return openai_want(p, param, "a number", v);
    if (rc)
        return openai_error_set(p->e, 400, NULL, param, "'%s' must be between %g and %g", param,
                                min, max);
    *out = (float)d;
    return 0;
}

static int get_string(struct openai_parse *p, const char *param, const struct scan_tok *v,
                      struct str *out)
{
    if (v->kind != SCAN_STRING)
        return openai_want(p, param, "a string", v);
    return scan_text(v, p->a, out) ? openai_no_memory(p) : 0;
}

/* ---- members ---- */

#define MEMBER(name)                                                                               \
    static int name(struct openai_parse *p, const char *param, const struct scan_tok *v)

MEMBER(m_model)
{
    int rc = get_string(p, param, v, &p->r->model);
    if (!rc && (p->r->model.n == 0 || p->r->model.n > 512))
        return openai_error_set(p->e, 400, NULL, param, "'model' must have 1 to 512 bytes");
    return rc;
}
MEMBER(m_messages)
{
    return openai_read_messages(p, param, v);
}
MEMBER(m_prompt)
{
    return openai_read_prompt(p, param, v);
}
MEMBER(m_max_tokens)
{
    uint32_t n;
    int rc = get_u32(p, param, v, 0, UINT32_MAX, &n);
    if (rc)
        return rc;
    if (p->r->has_max_tokens && p->r->max_tokens != n)
        return openai_error_set(
            p->e, 400, NULL, param,
            "'max_tokens' and 'max_completion_tokens' differ: give one of them");
    p->r->has_max_tokens = true;
    p->r->max_tokens = n;
    return 0;
}
MEMBER(m_min_tokens)
{
    return get_u32(p, param, v, 0, UINT32_MAX, &p->r->min_tokens);
}
MEMBER(m_temperature)
{
    return get_float(p, param, v, 0, 2, &p->r->temperature);
}
MEMBER(m_top_p)
{
    int rc = get_float(p, param, v, 0, 1, &p->r->top_p);
    if (!rc && !(p->r->top_p > 0))
        return openai_error_set(p->e, 400, NULL, param, "'top_p' must be above 0 and at most 1");
    return rc;
}
MEMBER(m_min_p)
{
    return get_float(p, param, v, 0, 1, &p->r->min_p);
}
MEMBER(m_top_k)
{
    int64_t k;
    int rc = get_int(p, param, v, -1, INT32_MAX, &k);
    if (!rc)
        p->r->top_k = k > 0 ? (uint32_t)k : 0; /* -1 and 0: off */
    return rc;
}
MEMBER(m_presence)
{
    return get_float(p, param, v, -2, 2, &p->r->presence_penalty);
}
MEMBER(m_frequency)
{
    return get_float(p, param, v, -2, 2, &p->r->frequency_penalty);
}
MEMBER(m_repetition)
{
    int rc = get_float(p, param, v, 0, 10, &p->r->repetition_penalty);
    if (!rc && !(p->r->repetition_penalty > 0))
        return openai_error_set(p->e, 400, NULL, param,
                                "'repetition_penalty' must be above 0 and at most 10");
    return rc;
}
MEMBER(m_n)
{
    return get_u32(p, param, v, 1, p->max_n, &p->r->n);
}
MEMBER(m_best_of)
{
    return get_u32(p, param, v, 1, p->max_n, &p->best_of);
}
MEMBER(m_seed)
{
    int64_t i;
    int rc = scan_i64(v, INT64_MIN, INT64_MAX, &i);
    uint64_t u = (uint64_t)i;
    if (rc == -ERANGE)
        rc = str_to_u64(v->text, 0, UINT64_MAX, &u);
    if (rc)
        return openai_want(p, param, "an integer of at most 64 bits", v);
    p->r->has_seed = true;
    p->r->seed = u;
    return 0;
}
MEMBER(m_stream)
{
    return get_bool(p, param, v, &p->r->stream);
}
MEMBER(m_stream_options)
{
    return openai_read_stream_options(p, param, v);
}
MEMBER(m_stop)
{
    return openai_read_stop(p, param, v);
}
MEMBER(m_stop_ids)
{
    return openai_read_stop_ids(p, param, v);
}
MEMBER(m_logit_bias)
{
    return openai_read_logit_bias(p, param, v);
}
MEMBER(m_logprobs_bool)
{
    return get_bool(p, param, v, &p->r->logprobs);
}
MEMBER(m_logprobs_count)
{
    int rc = get_u32(p, param, v, 0, p->max_logprobs, &p->r->top_logprobs);
    p->r->logprobs = !rc;
    return rc;
}
MEMBER(m_top_logprobs)
{
    p->has_top_logprobs = true;
    return get_u32(p, param, v, 0, p->max_logprobs, &p->r->top_logprobs);
}
MEMBER(m_token_ids)
{
    return get_bool(p, param, v, &p->r->token_ids_as_text);
}
MEMBER(m_echo)
{
    return get_bool(p, param, v, &p->r->echo);
}
MEMBER(m_user)
{
    return get_string(p, param, v, &p->r->user);
}
MEMBER(m_suffix)
{
    (void)v;
    return openai_error_set(p->e, 400, "unsupported_parameter", param,
                            "'suffix' (insertion) is not supported");
}
MEMBER(m_response_format)
{
    return openai_read_response_format(p, param, v);
}
MEMBER(m_tools)
{
    return openai_read_tools(p, param, v);
}
MEMBER(m_tool_choice)
{
    if (v->kind == SCAN_STRING && scan_text_is(v, "none"))
        p->no_tools = true;
    else if (!(v->kind == SCAN_STRING && scan_text_is(v, "auto")))
        return openai_error_set(
            p->e, 400, "unsupported_parameter", param,
            "'tool_choice' can be \"auto\" or \"none\": forcing a call is not supported");
    return 0;
}
MEMBER(m_template_kwargs)
{
    if (v->kind != SCAN_OBJECT)
        return openai_want(p, param, "an object", v);
    return scan_skip(&p->s, v, &p->r->chat_template_kwargs) ? openai_scan_failed(p) : 0;
}
MEMBER(m_generation_prompt)
{
    p->has_generation_prompt = true;
    return get_bool(p, param, v, &p->r->add_generation_prompt);
}
MEMBER(m_continue_final)
{
    return get_bool(p, param, v, &p->r->continue_final_message);
}
MEMBER(m_add_special)
{
    return get_bool(p, param, v, &p->r->add_special_tokens);
}
MEMBER(m_token_strs)
{
    return get_bool(p, param, v, &p->r->return_token_strs);
}
MEMBER(m_ignore_eos)
{
    return get_bool(p, param, v, &p->r->ignore_eos);
}
MEMBER(m_skip_special)
{
    return get_bool(p, param, v, &p->r->skip_special_tokens);
}
MEMBER(m_include_stop)
{
    return get_bool(p, param, v, &p->r->include_stop);
}
MEMBER(m_audio)
{
    (void)v;
    return openai_error_set(p->e, 400, "unsupported_parameter", param,
                            "'%s' is not supported: this model writes text", param);
}
MEMBER(m_modalities)
{
    struct scan_tok item;
    int rc;
    if (v->kind != SCAN_ARRAY)
        return openai_want(p, param, "an array", v);
    while ((rc = scan_element(&p->s, &item)) > 0)
        if (item.kind != SCAN_STRING || !scan_text_is(&item, "text"))
            return openai_error_set(p->e, 400, "unsupported_parameter", param,
                                    "'modalities' can hold \"text\" only");
    return rc ? openai_scan_failed(p) : 0;
}

enum { CHAT = 1, COMP = 2, TOK = 4, DETOK = 8, GEN = CHAT | COMP };

static const struct member {
    const char *name;
    unsigned apis;
    bool null_is_absent;
    int (*read)(struct openai_parse *p, const char *param, const struct scan_tok *v);
} members[] = {
    {"model", GEN | TOK | DETOK, false, m_model},
    {"messages", CHAT | TOK, false, m_messages},
    {"prompt", COMP | TOK, true, m_prompt},
    {"tokens", DETOK, false, m_prompt},
    {"max_tokens", GEN, true, m_max_tokens},
    {"max_completion_tokens", CHAT, true, m_max_tokens},
    {"min_tokens", GEN, true, m_min_tokens},
    {"temperature", GEN, true, m_temperature},
    {"top_p", GEN, true, m_top_p},
    {"top_k", GEN, true, m_top_k},
    {"min_p", GEN, true, m_min_p},
    {"presence_penalty", GEN, true, m_presence},
    {"frequency_penalty", GEN, true, m_frequency},
    {"repetition_penalty", GEN, true, m_repetition},
    {"n", GEN, true, m_n},
    {"best_of", COMP, true, m_best_of},
    {"seed", GEN, true, m_seed},
    {"stream", GEN, true, m_stream},
    {"stream_options", GEN, true, m_stream_options},
    {"stop", GEN, true, m_stop},
    {"stop_token_ids", GEN, true, m_stop_ids},
    {"logit_bias", GEN, true, m_logit_bias},
    {"logprobs", CHAT, true, m_logprobs_bool},
    {"logprobs", COMP, true, m_logprobs_count},
    {"top_logprobs", CHAT, true, m_top_logprobs},
    {"return_tokens_as_token_ids", GEN, true, m_token_ids},
    {"echo", COMP, true, m_echo},
    {"user", GEN, true, m_user},
    {"suffix", COMP, true, m_suffix},
    {"response_format", GEN, true, m_response_format},
    {"tools", CHAT | TOK, true, m_tools},
    {"tool_choice", CHAT, true, m_tool_choice},
    {"chat_template_kwargs", CHAT | TOK, true, m_template_kwargs},
    {"add_generation_prompt", CHAT | TOK, true, m_generation_prompt},
    {"continue_final_message", CHAT | TOK, true, m_continue_final},
    {"add_special_tokens", COMP | TOK, true, m_add_special},
    {"return_token_strs", TOK, true, m_token_strs},
    {"ignore_eos", GEN, true, m_ignore_eos},
    {"skip_special_tokens", GEN, true, m_skip_special},
    {"include_stop_str_in_output", GEN, true, m_include_stop},
    {"audio", CHAT, true, m_audio},
    {"modalities", CHAT, true, m_modalities},
};

static const struct member *find_member(unsigned api, const struct scan_tok *key)
{
    for (size_t i = 0; i < sizeof members / sizeof *members; i++)
        if (members[i].apis & api && scan_text_is(key, members[i].name))
            return &members[i];
    return NULL;
}

static int read_members(struct openai_parse *p)
{
    struct scan_tok key, v;
    int rc = scan_next(&p->s, &v);
    if (rc)
        return openai_scan_failed(p);
    if (v.kind != SCAN_OBJECT)
        return openai_error_set(p->e, 400, "invalid_json", NULL, "The body must be a JSON object");
    while ((rc = scan_member(&p->s, &key, &v)) > 0) {
        const struct member *m = find_member(1u << p->r->api, &key);
        if (!m || (m->null_is_absent && v.kind == SCAN_NULL))
            rc = scan_skip(&p->s, &v, NULL) ? openai_scan_failed(p) : 0;
        else
            rc = m->read(p, m->name, &v);
        if (rc)
            return rc;
    }
    if (rc == 0)
        rc = scan_next(&p->s, &v); /* nothing may follow */
    return rc ? openai_scan_failed(p) : 0;
}

/* ---- what members mean together ---- */

static int check_together(struct openai_parse *p)
{
    struct openai_request *r = p->r;
    struct openai_error *e = p->e;
    if (r->model.n == 0 && (r->api == OPENAI_CHAT || r->api == OPENAI_COMPLETIONS))
        return openai_error_set(e, 400, NULL, "model", "'model' is required");
    if (r->api == OPENAI_CHAT && !r->messages.n)
        return openai_error_set(e, 400, NULL, "messages", "'messages' is required");
    if (r->api == OPENAI_COMPLETIONS && !r->n_prompts)
        return openai_error_set(e, 400, NULL, "prompt", "'prompt' is required");
    if (r->api == OPENAI_TOKENIZE && !r->n_prompts == !r->messages.n)
        return openai_error_set(e, 400, NULL, "prompt",
                                "one of 'prompt' and 'messages' is required");
    if (r->api == OPENAI_DETOKENIZE && (!r->n_prompts || !r->prompts[0].is_ids))
        return openai_error_set(e, 400, NULL, "tokens",
                                "'tokens' (an array of token ids) is required");
    if (p->best_of && p->best_of != r->n)
        return openai_error_set(e, 400, "unsupported_parameter", "best_of",
                                "'best_of' must equal 'n'");
    if (p->has_stream_options && !r->stream)
        return openai_error_set(e, 400, NULL, "stream_options",
                                "'stream_options' is only allowed when 'stream' is true");
    if (p->has_top_logprobs && !r->logprobs && r->top_logprobs)
        return openai_error_set(e, 400, NULL, "top_logprobs",
                                "'logprobs' must be true when 'top_logprobs' is given");
    if (r->has_max_tokens && r->max_tokens == 0 && !r->echo)
        return openai_error_set(e, 400, NULL, "max_tokens", "'max_tokens' must be at least 1%s",
                                r->api == OPENAI_COMPLETIONS ? " (0 only with 'echo')" : "");
    if (r->has_max_tokens && r->min_tokens > r->max_tokens)
        return openai_error_set(e, 400, NULL, "min_tokens",
                                "'min_tokens' must not exceed 'max_tokens'");
    if (r->n_prompts * r->n > OPENAI_MAX_PROMPTS)
        return openai_error_set(e, 400, NULL, "n",
                                "at most %d choices a request (prompts times 'n')",
                                OPENAI_MAX_PROMPTS);
    if (r->continue_final_message && p->has_generation_prompt && r->add_generation_prompt)
        return openai_error_set(
            e, 400, NULL, "continue_final_message",
            "'continue_final_message' and 'add_generation_prompt' exclude each other");
    return 0;
}

static void defaults(struct openai_parse *p)
{
    *p->r = (struct openai_request){
        .api = p->r->api,
        .add_generation_prompt = true,
        .add_special_tokens = true,
        .skip_special_tokens = true,
        .temperature = 1,
        .top_p = 1,
        .repetition_penalty = 1,
        .n = 1,
        .max_tokens = p->r->api == OPENAI_COMPLETIONS ? 16 : 0,
    };
}

int openai_parse(enum openai_api api, struct str body, const struct openai_limits *limits,
                 struct arena *a, struct openai_request *out, struct openai_error *e)
{
    struct openai_request r = {.api = api};
    struct openai_parse p = {
        .a = a, .r = &r, .e = e, .max_n = OPENAI_MAX_N, .max_logprobs = OPENAI_MAX_TOP_LOGPROBS};
    if (limits && limits->max_n)
        p.max_n = limits->max_n;
    if (limits && limits->max_logprobs)
        p.max_logprobs = limits->max_logprobs;
    if (body.n > OPENAI_MAX_BODY)
        return openai_error_set(e, 413, "request_too_large", NULL,
                                "The body of %zu bytes is larger than the limit of %u", body.n,
                                OPENAI_MAX_BODY);
    defaults(&p);
    scan_init(&p.s, body, MAX_BODY_DEPTH);
    int rc = read_members(&p);
    scan_fini(&p.s);
    if (!rc)
        rc = check_together(&p);
    if (rc)
        return rc;
    if (p.no_tools)
        r.tools = STR("");
    if (r.continue_final_message)
        r.add_generation_prompt = false;
    *out = r;
    return 0;
}

int openai_peek_model(struct str body, struct arena *a, struct str *model, bool *stream,
                      struct openai_error *e)
{
    struct openai_request r = {0};
    struct openai_parse p = {.a = a, .r = &r, .e = e};
    struct scan_tok key, v;
    scan_init(&p.s, body, MAX_BODY_DEPTH);
    int rc = scan_next(&p.s, &v);
    if (!rc && v.kind != SCAN_OBJECT)
        rc = openai_error_set(e, 400, "invalid_json", NULL, "The body must be a JSON object");
    while (!rc && (rc = scan_member(&p.s, &key, &v)) > 0) {
        if (scan_text_is(&key, "model"))
            rc = m_model(&p, "model", &v);
        else if (scan_text_is(&key, "stream") && v.kind != SCAN_NULL)
            rc = m_stream(&p, "stream", &v);
        else
            rc = scan_skip(&p.s, &v, NULL);
    }
    if (!rc)
        rc = scan_next(&p.s, &v);
    if (p.s.why)
        rc = openai_scan_failed(&p);
    scan_fini(&p.s);
    if (!rc && !r.model.n)
        rc = openai_error_set(e, 400, NULL, "model", "'model' is required");
    if (rc)
        return rc;
    *model = r.model;
    *stream = r.stream;
    return 0;
}
