/* openai_impl.h: the state of one request's parse, shared by openai_parse.c (members and defaults)
 * and openai_fields.c (the values with an inside). Internal to lib/llm. */
#pragma once
#include "lib/json/scan.h"
#include "lib/llm/openai.h"

struct openai_parse {
    struct scan s;
    struct arena *a;
    struct openai_request *r;
    struct openai_error *e;
    uint32_t max_n, max_logprobs, best_of;
    bool no_tools, has_stream_options, has_top_logprobs, has_generation_prompt;
};

int openai_want(struct openai_parse *p, const char *param, const char *what,
                const struct scan_tok *v);
int openai_scan_failed(struct openai_parse *p);
int openai_no_memory(struct openai_parse *p);

/* Each reads the value that v begins, to its end. */
int openai_read_messages(struct openai_parse *p, const char *param, const struct scan_tok *v);
int openai_read_prompt(struct openai_parse *p, const char *param, const struct scan_tok *v);
int openai_read_stop(struct openai_parse *p, const char *param, const struct scan_tok *v);
int openai_read_stop_ids(struct openai_parse *p, const char *param, const struct scan_tok *v);
int openai_read_logit_bias(struct openai_parse *p, const char *param, const struct scan_tok *v);
int openai_read_stream_options(struct openai_parse *p, const char *param, const struct scan_tok *v);
int openai_read_response_format(struct openai_parse *p, const char *param,
                                const struct scan_tok *v);
int openai_read_tools(struct openai_parse *p, const char *param, const struct scan_tok *v);
