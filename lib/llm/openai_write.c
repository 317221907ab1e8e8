/* Responses as compact JSON. Each writer stops at the first failure; on failure the buffer is as it
 * was. */
#include "lib/llm/openai.h"
#include "lib/llm/utf8.h"

#include <math.h>
#include <stdio.h>

int openai_write_float(float v, struct buf *out)
{
    char text[32];
    if (!isfinite(v))
        return buf_cstr(out, "null");
    snprintf(text, sizeof text, "%.9g", (double)v);
    return buf_cstr(out, text);
}

uint64_t openai_chars(struct str utf8)
{
    return utf8_count(utf8);
}

static int undo(struct buf *out, size_t n, int rc)
{
    if (rc && out->data) {
        out->n = n;
        out->data[n] = 0;
    }
    return rc;
}

static const char *finish_name(enum openai_finish f)
{
    switch (f) {
    case OPENAI_FINISH_STOP: return "\"stop\"";
    case OPENAI_FINISH_LENGTH: return "\"length\"";
    case OPENAI_FINISH_ERROR: return "\"error\"";
    case OPENAI_FINISH_NONE: break;
    }
    return "null";
}

static int write_head(const struct openai_head *h, bool chunk, struct buf *out)
{
    const char *object = h->api == OPENAI_CHAT ? chunk ? "chat.completion.chunk" : "chat.completion"
                                               : "text_completion";
    int rc = buf_cstr(out, "{\"id\":");
    if (!rc)
        rc = buf_json_str(out, str_c(h->id));
    if (!rc)
        rc = buf_printf(out, ",\"object\":\"%s\",\"created\":%llu,\"model\":", object,
                        (unsigned long long)h->created);
    if (!rc)
        rc = buf_json_str(out, h->model);
    return rc ? rc : buf_cstr(out, ",\"choices\":[");
}

static int write_usage(const struct openai_usage *u, struct buf *out)
{
    return buf_printf(
        out,
        "\"usage\":{\"prompt_tokens\":%llu,\"completion_tokens\":%llu,\"total_tokens\":%llu,"
        "\"prompt_tokens_details\":{\"cached_tokens\":%llu}}",
        (unsigned long long)u->prompt_tokens, (unsigned long long)u->completion_tokens,
        (unsigned long long)(u->prompt_tokens + u->completion_tokens),
        (unsigned long long)u->cached_tokens);
}

/* ---- log probabilities ---- */

/* A token as text. Bytes that are no UTF-8 by themselves are written as "bytes:\xe2\x82" so that
 * they stay apart. */
static int write_token(const struct openai_alt *t, bool as_ids, struct buf *out)
{
    if (as_ids)
        return buf_printf(out, "\"token_id:%u\"", t->id);
    if (utf8_valid(t->bytes))
        return buf_json_str(out, t->bytes);
    int rc = buf_cstr(out, "\"bytes:");
    for (size_t i = 0; i < t->bytes.n && !rc; i++)
        rc = buf_printf(out, "\\\\x%02x", (unsigned char)t->bytes.p[i]);
    return rc ? rc : buf_cstr(out, "\"");
}

static int write_bytes(struct str s, struct buf *out)
{
    int rc = buf_cstr(out, "[");
    for (size_t i = 0; i < s.n && !rc; i++)
        rc = buf_printf(out, i ? ",%u" : "%u", (unsigned char)s.p[i]);
    return rc ? rc : buf_cstr(out, "]");
}

static int chat_token(const struct openai_alt *t, bool as_ids, struct buf *out)
{
    int rc = buf_cstr(out, "{\"token\":");
    if (!rc)
        rc = write_token(t, as_ids, out);
    if (!rc)
        rc = buf_cstr(out, ",\"logprob\":");
    if (!rc)
        rc = openai_write_float(t->logprob, out);
    if (!rc)
        rc = buf_cstr(out, ",\"bytes\":");
    return rc ? rc : write_bytes(t->bytes, out);
}

static int chat_logprobs(const struct openai_logprobs *l, struct buf *out)
{
    int rc = buf_cstr(out, "{\"content\":[");
    for (size_t i = 0; i < l->n && !rc; i++) {
        const struct openai_logprob *t = &l->tok[i];
        rc = i ? buf_cstr(out, ",") : 0;
        if (!rc)
            rc = chat_token(&t->token, l->as_token_ids, out);
        if (!rc)
            rc = buf_cstr(out, ",\"top_logprobs\":[");
        for (size_t k = 0; k < t->n_top && !rc; k++) {
            rc = k ? buf_cstr(out, ",") : 0;
            if (!rc)
                rc = chat_token(&t->top[k], l->as_token_ids, out);
            if (!rc)
                rc = buf_cstr(out, "}");
        }
        if (!rc)
            rc = buf_cstr(out, "]}");
    }
    return rc ? rc : buf_cstr(out, "],\"refusal\":null}");
}

static bool same_shown(const struct openai_alt *a, const struct openai_alt *b, bool as_ids)
{
    return as_ids ? a->id == b->id : str_eq(a->bytes, b->bytes);
}

/* {"token": logprob}; of two ids with the same text the more likely (first) one is shown. */
static int completion_top(const struct openai_logprob *t, bool as_ids, struct buf *out)
{
    if (isnan(t->token.logprob))
        return buf_cstr(out, "null");
    int rc = buf_cstr(out, "{");
    bool first = true;
    for (size_t k = 0; k < t->n_top && !rc; k++) {
        bool shown = false;
        for (size_t j = 0; j < k; j++)
            shown |= same_shown(&t->top[j], &t->top[k], as_ids);
        if (shown)
            continue;
        rc = first ? 0 : buf_cstr(out, ",");
        first = false;
        if (!rc)
            rc = write_token(&t->top[k], as_ids, out);
        if (!rc)
            rc = buf_cstr(out, ":");
        if (!rc)
            rc = openai_write_float(t->top[k].logprob, out);
    }
    return rc ? rc : buf_cstr(out, "}");
}

static int completion_item(const struct openai_logprobs *l, size_t i, int list, struct buf *out)
{
    const struct openai_logprob *t = &l->tok[i];
    switch (list) {
    case 0: return write_token(&t->token, l->as_token_ids, out);
    case 1: return openai_write_float(t->token.logprob, out);
    case 2: return completion_top(t, l->as_token_ids, out);
    default: return buf_printf(out, "%llu", (unsigned long long)t->text_offset);
    }
}

static int completion_logprobs(const struct openai_logprobs *l, struct buf *out)
{
    static const char *const lists[] = {"{\"tokens\":[", "],\"token_logprobs\":[",
                                        "],\"top_logprobs\":[", "],\"text_offset\":["};
    int rc = 0;
    for (int list = 0; list < 4 && !rc; list++) {
        rc = buf_cstr(out, lists[list]);
        for (size_t i = 0; i < l->n && !rc; i++) {
            rc = i ? buf_cstr(out, ",") : 0;
            if (!rc)
                rc = completion_item(l, i, list, out);
        }
    }
    return rc ? rc : buf_cstr(out, "]}");
}

/* ---- choices ---- */

static int write_chat_text(const struct openai_choice *c, bool chunk, bool first, struct buf *out)
{
    if (!chunk) {
        int rc = buf_cstr(out, "\"message\":{\"role\":\"assistant\",\"content\":");
        if (!rc)
            rc = buf_json_str(out, c->text);
        return rc ? rc : buf_cstr(out, ",\"refusal\":null}");
    }
    int rc = buf_cstr(out, first ? "\"delta\":{\"role\":\"assistant\"" : "\"delta\":{");
    if (!rc && (c->text.n || first)) {
        rc = buf_cstr(out, first ? ",\"content\":" : "\"content\":");
        if (!rc)
            rc = buf_json_str(out, c->text);
    }
    return rc ? rc : buf_cstr(out, "}");
}

static int write_choice(const struct openai_head *h, const struct openai_choice *c, bool chunk,
                        bool first, struct buf *out)
{
    int rc = buf_printf(out, "{\"index\":%u,", c->index);
    if (!rc && h->api == OPENAI_CHAT) {
        rc = write_chat_text(c, chunk, first, out);
    } else if (!rc) {
        rc = buf_cstr(out, "\"text\":");
        if (!rc)
            rc = buf_json_str(out, c->text);
    }
    if (!rc)
        rc = buf_cstr(out, ",\"logprobs\":");
    if (!rc && !c->logprobs)
        rc = buf_cstr(out, "null");
    else if (!rc)
        rc = h->api == OPENAI_CHAT ? chat_logprobs(c->logprobs, out)
                                   : completion_logprobs(c->logprobs, out);
    if (!rc)
        rc = buf_printf(out, ",\"finish_reason\":%s", finish_name(c->finish));
    if (!rc && c->stop_reason_text) {
        rc = buf_cstr(out, ",\"stop_reason\":");
        if (!rc)
            rc = buf_json_str(out, str_c(c->stop_reason_text));
    }
    return rc ? rc : buf_cstr(out, "}");
}

int openai_write_response(const struct openai_head *h, const struct openai_choice *choices,
                          size_t n, const struct openai_usage *usage, struct buf *out)
{
    size_t start = out->n;
    int rc = write_head(h, false, out);
    for (size_t i = 0; i < n && !rc; i++) {
        rc = i ? buf_cstr(out, ",") : 0;
        if (!rc)
            rc = write_choice(h, &choices[i], false, false, out);
    }
    if (!rc)
        rc = buf_cstr(out, "],");
    if (!rc)
        rc = write_usage(usage, out);
    return undo(out, start, rc ? rc : buf_cstr(out, "}"));
}

int openai_write_chunk(const struct openai_head *h, const struct openai_choice *c, bool first,
                       bool with_usage, struct buf *out)
{
    size_t start = out->n;
    int rc = write_head(h, true, out);
    if (!rc)
        rc = write_choice(h, c, true, first, out);
    return undo(out, start, rc ? rc : buf_cstr(out, with_usage ? "],\"usage\":null}" : "]}"));
}

int openai_write_usage_chunk(const struct openai_head *h, const struct openai_usage *usage,
                             struct buf *out)
{
    size_t start = out->n;
    int rc = write_head(h, true, out);
    if (!rc)
        rc = buf_cstr(out, "],");
    if (!rc)
        rc = write_usage(usage, out);
    return undo(out, start, rc ? rc : buf_cstr(out, "}"));
}

/* ---- models, tokens ---- */

int openai_write_model(const struct openai_model *m, struct buf *out)
{
    size_t start = out->n;
    int rc = buf_cstr(out, "{\"id\":");
    if (!rc)
        rc = buf_json_str(out, m->id);
    if (!rc)
        rc = buf_printf(out, ",\"object\":\"model\",\"created\":%llu,\"owned_by\":",
                        (unsigned long long)m->created);
    if (!rc)
        rc = buf_json_str(out, m->owned_by);
    if (!rc && m->max_model_len)
        rc = buf_printf(out, ",\"max_model_len\":%llu", (unsigned long long)m->max_model_len);
    return undo(out, start, rc ? rc : buf_cstr(out, "}"));
}

int openai_write_models(const struct openai_model *m, size_t n, struct buf *out)
{
    size_t start = out->n;
    int rc = buf_cstr(out, "{\"object\":\"list\",\"data\":[");
    for (size_t i = 0; i < n && !rc; i++) {
        rc = i ? buf_cstr(out, ",") : 0;
        if (!rc)
            rc = openai_write_model(&m[i], out);
    }
    return undo(out, start, rc ? rc : buf_cstr(out, "]}"));
}

int openai_write_tokens(const uint32_t *ids, size_t n, uint64_t max_model_len,
                        const struct str *strs, struct buf *out)
{
    size_t start = out->n;
    int rc = buf_printf(out, "{\"count\":%zu,\"max_model_len\":%llu,\"tokens\":[", n,
                        (unsigned long long)max_model_len);
    for (size_t i = 0; i < n && !rc; i++)
        rc = buf_printf(out, i ? ",%u" : "%u", ids[i]);
    if (!rc)
        rc = buf_cstr(out, strs ? "],\"token_strs\":[" : "],\"token_strs\":null}");
    for (size_t i = 0; strs && i < n && !rc; i++) {
        rc = i ? buf_cstr(out, ",") : 0;
        if (!rc)
            rc = buf_json_str(out, strs[i]);
    }
    if (!rc && strs)
        rc = buf_cstr(out, "]}");
    return undo(out, start, rc);
}

int openai_write_detokenized(struct str text, struct buf *out)
{
    size_t start = out->n;
    int rc = buf_cstr(out, "{\"prompt\":");
    if (!rc)
        rc = buf_json_str(out, text);
    return undo(out, start, rc ? rc : buf_cstr(out, "}"));
}
