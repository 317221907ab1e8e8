/* template.h: chat templates: the part of Jinja2 that models' templates use, rendered as
 * transformers' apply_chat_template renders it (trim_blocks, lstrip_blocks, loop controls, tojson
 * without HTML escapes).
 *
 * Templates come from model files and are hostile input: compile size, nesting, steps, output and
 * memory are bounded; errors name the template's line. A compiled template is constant: threads may
 * render it at once. Source: Jinja2's documentation; transformers utils/chat_template_utils. */
#pragma once
#include "lib/base/buf.h"

#define CHAT_TEMPLATE_MAX_BYTES (1u << 20)

struct chat_template;
int chat_template_new(struct str source, struct chat_template **out, struct err *e) MUST_CHECK;
void chat_template_free(struct chat_template *t); /* NULL is fine */

struct chat_render {
    struct str messages; /* JSON array as the client sent it */
    struct str tools;    /* JSON array, or empty: the variable `tools` is then none */
    struct str extra;    /* JSON object of further variables (chat_template_kwargs), or empty */
    struct str bos_token, eos_token;
    bool add_generation_prompt;
    bool continue_final_message; /* end with the last message's text, as transformers does */
    bool plain_values; /* hand messages over as they are; else content that is a list of text parts
                          becomes one string where the template expects strings, and tool-call
                          arguments in JSON text become objects */
    uint64_t now_wall_ns; /* for strftime_now (UTC) */
    size_t max_steps;     /* 0: 20 million */
    size_t max_memory;    /* 0: 16 x the inputs + 64 MiB */
};
/* Appends the text. raise_exception() in a template is -EBADMSG with its message in e->msg; a
 * template that can't run is -EINVAL; a limit is -E2BIG. On failure `out` is as it was. */
int chat_template_render(const struct chat_template *t, const struct chat_render *in,
                         struct buf *out, struct err *e) MUST_CHECK;
/* True when the template reads message content as a list of parts itself. */
bool chat_template_takes_parts(const struct chat_template *t);
/* What to answer to a chat request for a model without a template. */
extern const char chat_template_missing[];
