#include "lib/llm/openai.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

static const char *type_of_status(int status)
{
    switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 429: return "rate_limit_error";
    default: return status >= 500 ? "server_error" : "invalid_request_error";
    }
}

int openai_error_set(struct openai_error *e, int status, const char *code, const char *param,
                     const char *fmt, ...)
{
    *e = (struct openai_error){.status = status, .type = type_of_status(status), .code = code};
    snprintf(e->param, sizeof e->param, "%s", param ? param : "");
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(e->msg, sizeof e->msg, fmt, ap);
    va_end(ap);
    return -EINVAL;
}

int openai_error_model(struct openai_error *e, struct str model)
{
    openai_error_set(e, 404, "model_not_found", "model",
                     "The model `%.*s` does not exist here; GET /v1/models lists those that do",
                     (int)(model.n > 200 ? 200 : model.n), model.p);
    e->type = "invalid_request_error"; /* as OpenAI answers it */
    return -EINVAL;
}

int openai_error_context(struct openai_error *e, const char *param, uint64_t max_tokens,
                         uint64_t prompt_tokens, uint64_t completion_tokens)
{
    return openai_error_set(
        e, 400, "context_length_exceeded", param,
        "This model's maximum context length is %llu tokens. However, you requested %llu tokens "
        "(%llu in the prompt; %llu for the completion). Please reduce the length of the prompt or "
        "the completion.",
        (unsigned long long)max_tokens, (unsigned long long)(prompt_tokens + completion_tokens),
        (unsigned long long)prompt_tokens, (unsigned long long)completion_tokens);
}

static int put_or_null(const char *name, const char *v, struct buf *out)
{
    int rc = buf_printf(out, ",\"%s\":", name);
    if (!rc)
        rc = v && *v ? buf_json_str(out, str_c(v)) : buf_cstr(out, "null");
    return rc;
}

int openai_write_error(const struct openai_error *e, struct buf *out)
{
    int rc = buf_cstr(out, "{\"error\":{\"message\":");
    if (!rc)
        rc = buf_json_str(out, str_c(e->msg));
    if (!rc)
        rc = put_or_null("type", e->type ? e->type : "server_error", out);
    if (!rc)
        rc = put_or_null("param", e->param, out);
    if (!rc)
        rc = put_or_null("code", e->code, out);
    return rc ? rc : buf_cstr(out, "}}");
}
