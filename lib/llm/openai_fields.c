/* Members of a request whose value has an inside: messages, prompts, stops, biases, tools. */
#include "lib/llm/openai_impl.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define MAX_TOKEN_ID 0x7fffffff

static int fail_at(struct openai_parse *p, const char *param, size_t i, const char *rest,
                   const char *what)
{
    char full[80];
    snprintf(full, sizeof full, "%s[%zu]%s", param, i, rest);
    return openai_error_set(p->e, 400, NULL, full, "'%s' %s", full, what);
}

/* ---- messages ---- */

struct message {
    bool has_role, has_content, null_content, has_tool_calls, has_tool_call_id;
    bool assistant, tool;
};

static int read_role(struct openai_parse *p, const char *param, size_t i, const struct scan_tok *v,
                     struct message *m)
{
    static const char *const roles[] = {"system", "user",      "assistant",
                                        "tool",   "developer", "function"};
    if (v->kind != SCAN_STRING)
        return fail_at(p, param, i, ".role", "must be a string");
    for (size_t k = 0; k < sizeof roles / sizeof *roles; k++)
        if (scan_text_is(v, roles[k])) {
            m->has_role = true;
            m->assistant = k == 2;
            m->tool = k == 3;
            return 0;
        }
    return fail_at(p, param, i, ".role", "must be system, user, assistant, tool or developer");
}

/* One part of a content list: {"type":"text","text":"..."}. */
static int read_part(struct openai_parse *p, const char *param, size_t i, const struct scan_tok *v)
{
    struct scan_tok key, val;
    bool text_type = false, has_text = false;
    int rc;
    if (v->kind != SCAN_OBJECT)
        return fail_at(p, param, i, ".content", "must hold parts that are objects");
    while ((rc = scan_member(&p->s, &key, &val)) > 0) {
        if (scan_text_is(&key, "type"))
            text_type = val.kind == SCAN_STRING &&
                        (scan_text_is(&val, "text") || scan_text_is(&val, "refusal"));
        else if (scan_text_is(&key, "text") || scan_text_is(&key, "refusal"))
            has_text = val.kind == SCAN_STRING;
        if (scan_skip(&p->s, &val, NULL))
            return openai_scan_failed(p);
    }
    if (rc)
        return openai_scan_failed(p);
    if (!text_type)
        return fail_at(p, param, i, ".content",
                       "can only have parts of type \"text\": this model reads text");
    return has_text ? 0 : fail_at(p, param, i, ".content", "has a text part without a text");
}

static int read_content(struct openai_parse *p, const char *param, size_t i,
                        const struct scan_tok *v, struct message *m)
{
    struct scan_tok part;
    int rc;
    m->has_content = true;
    m->null_content = v->kind == SCAN_NULL;
    if (v->kind == SCAN_STRING || v->kind == SCAN_NULL)
        return 0;
    if (v->kind != SCAN_ARRAY)
        return fail_at(p, param, i, ".content", "must be a string or an array of parts");
    while ((rc = scan_element(&p->s, &part)) > 0) {
        rc = read_part(p, param, i, &part);
        if (rc)
            return rc;
    }
    return rc ? openai_scan_failed(p) : 0;
}

static int read_message_member(struct openai_parse *p, const char *param, size_t i,
                               const struct scan_tok *key, const struct scan_tok *v,
                               struct message *m)
{
    if (scan_text_is(key, "role"))
        return read_role(p, param, i, v, m);
    if (scan_text_is(key, "content"))
        return read_content(p, param, i, v, m);
    if (scan_text_is(key, "name") && v->kind != SCAN_STRING && v->kind != SCAN_NULL)
        return fail_at(p, param, i, ".name", "must be a string");
    if (scan_text_is(key, "tool_calls") && v->kind != SCAN_NULL) {
        if (v->kind != SCAN_ARRAY)
            return fail_at(p, param, i, ".tool_calls", "must be an array");
        m->has_tool_calls = true;
    }
    if (scan_text_is(key, "tool_call_id")) {
        if (v->kind != SCAN_STRING)
            return fail_at(p, param, i, ".tool_call_id", "must be a string");
        m->has_tool_call_id = true;
    }
    return scan_skip(&p->s, v, NULL) ? openai_scan_failed(p) : 0;
}

static int read_message(struct openai_parse *p, const char *param, size_t i,
                        const struct scan_tok *v)
{
    struct message m = {0};
    struct scan_tok key, val;
    int rc;
    if (v->kind != SCAN_OBJECT)
        return fail_at(p, param, i, "", "must be an object");
    while ((rc = scan_member(&p->s, &key, &val)) > 0) {
        rc = read_message_member(p, param, i, &key, &val, &m);
        if (rc)
            return rc;
    }
    if (rc)
        return openai_scan_failed(p);
    if (!m.has_role)
        return fail_at(p, param, i, ".role", "is required");
    if ((!m.has_content || m.null_content) && !(m.assistant && m.has_tool_calls))
        return fail_at(p, param, i, ".content",
                       m.assistant ? "is required unless there are tool_calls" : "is required");
    if (m.tool && !m.has_tool_call_id)
        return fail_at(p, param, i, ".tool_call_id", "is required in a tool message");
    return 0;
}

int openai_read_messages(struct openai_parse *p, const char *param, const struct scan_tok *v)
{
    struct scan_tok item;
    size_t n = 0;
    int rc;
    if (v->kind != SCAN_ARRAY)
        return openai_want(p, param, "an array", v);
    while ((rc = scan_element(&p->s, &item)) > 0) {
        if (n == OPENAI_MAX_MESSAGES)
            return openai_error_set(p->e, 400, NULL, param, "'messages' can hold %d messages",
                                    OPENAI_MAX_MESSAGES);
        rc = read_message(p, param, n++, &item);
        if (rc)
            return rc;
    }
    if (rc)
        return openai_scan_failed(p);
    if (n == 0)
        return openai_error_set(p->e, 400, NULL, param,
                                "'messages' must hold at least one message");
    p->r->messages = (struct str){p->s.in.p + v->at, p->s.at - v->at};
    p->r->n_messages = n;
    return 0;
}

/* ---- prompts ---- */

struct list {
    void *data;
    size_t n, cap;
};

/* Room for one more element of `size` bytes in an arena-backed list (old copies stay in the arena:
 * at most twice the end). */
static void *push(struct openai_parse *p, struct list *l, size_t size, size_t max)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 16;
        void *d = l->n >= max ? NULL : arena_alloc(p->a, cap * size);
        if (!d)
            return NULL;
        if (l->n)
            memcpy(d, l->data, l->n * size);
        l->data = d;
        l->cap = cap;
    }
    return (char *)l->data + size * l->n++;
}

static int get_id(struct openai_parse *p, const char *param, const struct scan_tok *v,
                  uint32_t *out)
{
    int64_t id;
    if (scan_i64(v, 0, MAX_TOKEN_ID, &id))
        return openai_error_set(p->e, 400, NULL, param,
                                "'%s' holds something that is not a token id", param);
    *out = (uint32_t)id;
    return 0;
}

/* The rest of an array of ids whose first element may already be read. */
static int read_ids(struct openai_parse *p, const char *param, const struct scan_tok *first,
                    struct openai_prompt *out)
{
    struct list l = {0};
    struct scan_tok v = {0};
    int rc = 1;
    if (first)
        v = *first;
    else
        rc = scan_element(&p->s, &v);
    for (; rc > 0; rc = scan_element(&p->s, &v)) {
        uint32_t *id = push(p, &l, sizeof *id, OPENAI_MAX_BODY);
        if (!id)
            return openai_no_memory(p);
        if (get_id(p, param, &v, id))
            return -EINVAL;
    }
    if (rc)
        return openai_scan_failed(p);
    *out = (struct openai_prompt){.is_ids = true, .ids = l.data, .n_ids = l.n};
    return 0;
}

static int read_one_prompt(struct openai_parse *p, const char *param, const struct scan_tok *v,
                           struct list *l)
{
    if (l->n == OPENAI_MAX_PROMPTS)
        return openai_error_set(p->e, 400, NULL, param, "'%s' can hold %d prompts", param,
                                OPENAI_MAX_PROMPTS);
    struct openai_prompt *o = push(p, l, sizeof *o, OPENAI_MAX_PROMPTS);
    if (!o)
        return openai_no_memory(p);
    *o = (struct openai_prompt){0};
    if (v->kind == SCAN_STRING)
        return scan_text(v, p->a, &o->text) ? openai_no_memory(p) : 0;
    if (v->kind != SCAN_ARRAY)
        return openai_want(p, param, "a string, an array of strings, or token ids", v);
    return read_ids(p, param, NULL, o);
}

static int read_prompt_array(struct openai_parse *p, const char *param, struct list *l)
{
    struct scan_tok v;
    int rc = scan_element(&p->s, &v);
    if (rc > 0 && v.kind == SCAN_NUMBER) {
        struct openai_prompt *o = push(p, l, sizeof *o, 1);
        return o ? read_ids(p, param, &v, o) : openai_no_memory(p);
    }
    enum scan_kind kind = v.kind;
    for (; rc > 0; rc = scan_element(&p->s, &v)) {
        if (v.kind != kind)
            return openai_error_set(p->e, 400, NULL, param, "'%s' mixes strings and token ids",
                                    param);
        rc = read_one_prompt(p, param, &v, l);
        if (rc)
            return rc;
    }
    return rc ? openai_scan_failed(p) : 0;
}

int openai_read_prompt(struct openai_parse *p, const char *param, const struct scan_tok *v)
{
    struct list l = {0};
    int rc =
        v->kind == SCAN_ARRAY ? read_prompt_array(p, param, &l) : read_one_prompt(p, param, v, &l);
    if (rc)
        return rc;
    if (l.n == 0)
        return openai_error_set(p->e, 400, NULL, param, "'%s' must not be an empty array", param);
    p->r->prompts = l.data;
    p->r->n_prompts = l.n;
    return 0;
}

/* ---- stops ---- */

static int add_stop(struct openai_parse *p, const char *param, const struct scan_tok *v)
{
    struct openai_request *r = p->r;
    if (r->n_stop == OPENAI_MAX_STOP)
        return openai_error_set(p->e, 400, NULL, param, "'stop' can hold %d strings",
                                OPENAI_MAX_STOP);
    if (v->kind != SCAN_STRING)
        return openai_want(p, param, "a string or an array of strings", v);
    struct str *s = &r->stop[r->n_stop];
    if (scan_text(v, p->a, s))
        return openai_no_memory(p);
    if (s->n == 0 || s->n > OPENAI_MAX_STOP_BYTES)
        return openai_error_set(p->e, 400, NULL, param, "a stop string must have 1 to %d bytes",
                                OPENAI_MAX_STOP_BYTES);
    r->n_stop++;
    return 0;
}

int openai_read_stop(struct openai_parse *p, const char *param, const struct scan_tok *v)
{
    struct scan_tok item;
    int rc;
    if (v->kind != SCAN_ARRAY)
        return add_stop(p, param, v);
    while ((rc = scan_element(&p->s, &item)) > 0) {
        rc = add_stop(p, param, &item);
        if (rc)
            return rc;
    }
    return rc ? openai_scan_failed(p) : 0;
}

int openai_read_stop_ids(struct openai_parse *p, const char *param, const struct scan_tok *v)
{
    struct scan_tok item;
    int rc;
    if (v->kind != SCAN_ARRAY)
        return openai_want(p, param, "an array of token ids", v);
    while ((rc = scan_element(&p->s, &item)) > 0) {
        if (p->r->n_stop_ids == OPENAI_MAX_STOP)
            return openai_error_set(p->e, 400, NULL, param, "'%s' can hold %d ids", param,
                                    OPENAI_MAX_STOP);
        rc = get_id(p, param, &item, &p->r->stop_ids[p->r->n_stop_ids]);
        if (rc)
            return rc;
        p->r->n_stop_ids++;
    }
    return rc ? openai_scan_failed(p) : 0;
}

/* ---- logit_bias: {"50256": -100} ---- */

static int by_id(const void *a, const void *b)
{
    uint32_t x = ((const struct openai_bias *)a)->id, y = ((const struct openai_bias *)b)->id;
    return x < y ? -1 : x > y;
}

static int read_bias(struct openai_parse *p, const char *param, const struct scan_tok *key,
                     const struct scan_tok *v, struct list *l)
{
    uint64_t id;
    double bias;
    if (key->escaped || str_to_u64(key->text, 0, MAX_TOKEN_ID, &id))
        return openai_error_set(p->e, 400, NULL, param,
                                "'logit_bias' must map token ids to numbers");
    if (scan_f64(v, -100, 100, &bias))
        return openai_error_set(p->e, 400, NULL, param,
                                "'logit_bias' values must be numbers between -100 and 100");
    struct openai_bias *b = push(p, l, sizeof *b, OPENAI_MAX_LOGIT_BIAS);
    if (!b)
        return openai_error_set(p->e, 400, NULL, param, "'logit_bias' can hold %d ids",
                                OPENAI_MAX_LOGIT_BIAS);
    *b = (struct openai_bias){(uint32_t)id, (float)bias};
    return 0;
}

int openai_read_logit_bias(struct openai_parse *p, const char *param, const struct scan_tok *v)
{
    struct scan_tok key, val;
    struct list l = {0};
    int rc;
    if (v->kind != SCAN_OBJECT)
        return openai_want(p, param, "an object", v);
    while ((rc = scan_member(&p->s, &key, &val)) > 0) {
        rc = read_bias(p, param, &key, &val, &l);
        if (rc)
            return rc;
    }
    if (rc)
        return openai_scan_failed(p);
    struct openai_bias *b = l.data;
    if (l.n)
        qsort(b, l.n, sizeof *b, by_id);
    for (size_t i = 1; i < l.n; i++)
        if (b[i].id == b[i - 1].id)
            return openai_error_set(p->e, 400, NULL, param, "'logit_bias' holds the id %u twice",
                                    b[i].id);
    p->r->logit_bias = b;
    p->r->n_logit_bias = l.n;
    return 0;
}

/* ---- the small objects ---- */

int openai_read_stream_options(struct openai_parse *p, const char *param, const struct scan_tok *v)
{
    struct scan_tok key, val;
    int rc;
    p->has_stream_options = true;
    if (v->kind != SCAN_OBJECT)
        return openai_want(p, param, "an object", v);
    while ((rc = scan_member(&p->s, &key, &val)) > 0) {
        if (scan_text_is(&key, "include_usage") && val.kind != SCAN_NULL) {
            if (val.kind != SCAN_TRUE && val.kind != SCAN_FALSE)
                return openai_want(p, "stream_options.include_usage", "a boolean", &val);
            p->r->include_usage = val.kind == SCAN_TRUE;
        } else if (scan_skip(&p->s, &val, NULL)) {
            return openai_scan_failed(p);
        }
    }
    return rc ? openai_scan_failed(p) : 0;
}

int openai_read_response_format(struct openai_parse *p, const char *param, const struct scan_tok *v)
{
    struct scan_tok key, val;
    bool text = false;
    int rc;
    if (v->kind != SCAN_OBJECT)
        return openai_want(p, param, "an object", v);
    while ((rc = scan_member(&p->s, &key, &val)) > 0) {
        if (scan_text_is(&key, "type"))
            text = val.kind == SCAN_STRING && scan_text_is(&val, "text");
        if (scan_skip(&p->s, &val, NULL))
            return openai_scan_failed(p);
    }
    if (rc)
        return openai_scan_failed(p);
    return text ? 0
                : openai_error_set(p->e, 400, "unsupported_parameter", param,
                                   "'response_format' can be {\"type\":\"text\"} only: constrained "
                                   "output is not supported");
}

static int check_tool(struct openai_parse *p, const char *param, size_t i, const struct scan_tok *v)
{
    struct scan_tok key, val;
    bool function = false;
    int rc;
    if (v->kind != SCAN_OBJECT)
        return fail_at(p, param, i, "", "must be an object");
    while ((rc = scan_member(&p->s, &key, &val)) > 0) {
        if (scan_text_is(&key, "function"))
            function = val.kind == SCAN_OBJECT;
        if (scan_skip(&p->s, &val, NULL))
            return openai_scan_failed(p);
    }
    if (rc)
        return openai_scan_failed(p);
    return function ? 0 : fail_at(p, param, i, ".function", "is required: tools are functions");
}

int openai_read_tools(struct openai_parse *p, const char *param, const struct scan_tok *v)
{
    struct scan_tok item;
    size_t n = 0;
    int rc;
    if (v->kind != SCAN_ARRAY)
        return openai_want(p, param, "an array", v);
    while ((rc = scan_element(&p->s, &item)) > 0) {
        rc = check_tool(p, param, n++, &item);
        if (rc)
            return rc;
    }
    if (rc)
        return openai_scan_failed(p);
    if (n)
        p->r->tools = (struct str){p->s.in.p + v->at, p->s.at - v->at};
    return 0;
}
