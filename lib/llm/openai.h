/* openai.h: the OpenAI API's requests and responses, as types.
 *
 * Requests are parsed straight from the body's bytes with a pull scanner (lib/json/scan.h): no
 * tree, everything that must outlive the scan lies in the caller's arena or points into the body,
 * which the caller keeps as long as the request. Every field is checked; the first fault gives an
 * openai_error with the status that OpenAI answers. Unknown fields are ignored, duplicate keys
 * refused. Responses are appended to a buf as compact JSON (no SSE framing: lib/io/sse does it).
 * One thread per request; no global state.
 * Source: OpenAI API reference (chat, completions, models, errors); vLLM's additions where clients
 * rely on them (top_k, min_p, repetition_penalty, ignore_eos, min_tokens, stop_token_ids,
 * return_tokens_as_token_ids, /tokenize). */
#pragma once
#include "lib/base/arena.h"
#include "lib/base/buf.h"

#define OPENAI_MAX_BODY         (32u << 20)
#define OPENAI_MAX_N            16
#define OPENAI_MAX_STOP         16
#define OPENAI_MAX_STOP_BYTES   1024
#define OPENAI_MAX_TOP_LOGPROBS 20
#define OPENAI_MAX_LOGIT_BIAS   1024
#define OPENAI_MAX_PROMPTS      256
#define OPENAI_MAX_MESSAGES     65536

struct openai_error {
    int status;       /* HTTP */
    const char *type; /* "invalid_request_error", "server_error", ... (static) */
    const char *code; /* "model_not_found", "context_length_exceeded", ... or NULL (static) */
    char param[80];   /* "messages[2].role" or "" (null in the answer) */
    char msg[512];
};
int openai_error_set(struct openai_error *e, int status, const char *code, const char *param,
                     const char *fmt, ...) PRINTF_LIKE(5, 6);     /* returns -EINVAL */
int openai_error_model(struct openai_error *e, struct str model); /* 404 model_not_found */
int openai_error_context(struct openai_error *e, const char *param, uint64_t max_tokens,
                         uint64_t prompt_tokens,
                         uint64_t completion_tokens); /* 400 context_length_exceeded */

enum openai_api { OPENAI_CHAT, OPENAI_COMPLETIONS, OPENAI_TOKENIZE, OPENAI_DETOKENIZE };

struct openai_prompt {
    bool is_ids;
    struct str text; /* unescaped */
    const uint32_t *ids;
    size_t n_ids;
};
struct openai_bias {
    uint32_t id;
    float bias;
};

struct openai_request {
    enum openai_api api;
    struct str model; /* never empty for chat and completions */
    /* chat (and tokenize with messages) */
    struct str messages; /* the raw JSON array, checked */
    size_t n_messages;
    struct str tools; /* raw JSON array, or empty; empty too when tool_choice is "none" */
    struct str chat_template_kwargs; /* raw JSON object, or empty */
    bool add_generation_prompt;      /* true unless given */
    bool continue_final_message;
    /* completions, tokenize, detokenize */
    struct openai_prompt *prompts;
    size_t n_prompts;
    bool echo;
    bool add_special_tokens; /* true unless given (completions, tokenize) */
    bool return_token_strs;  /* tokenize */
    /* generation */
    bool has_max_tokens;
    uint32_t max_tokens; /* 0 only with echo or as the client said; without has_max_tokens: 16 for
                            completions */
    uint32_t min_tokens;
    float temperature, top_p, min_p;                               /* 1, 1, 0 unless given */
    uint32_t top_k;                                                /* 0: off */
    float presence_penalty, frequency_penalty, repetition_penalty; /* 0, 0, 1 */
    uint32_t n;
    bool has_seed;
    uint64_t seed; /* any 64-bit integer; negative ones as two's complement */
    bool ignore_eos, skip_special_tokens, include_stop;
    bool stream, include_usage;
    bool logprobs;          /* asked for */
    uint32_t top_logprobs;  /* alternatives per token; completions: logprobs=k gives k */
    bool token_ids_as_text; /* return_tokens_as_token_ids: "token_id:123" in logprobs */
    struct str stop[OPENAI_MAX_STOP];
    size_t n_stop;
    uint32_t stop_ids[OPENAI_MAX_STOP];
    size_t n_stop_ids;
    const struct openai_bias *logit_bias; /* by ascending id, no id twice */
    size_t n_logit_bias;
    struct str user;
};

struct openai_limits {
    uint32_t max_n;        /* 0: OPENAI_MAX_N */
    uint32_t max_logprobs; /* 0: OPENAI_MAX_TOP_LOGPROBS */
};
int openai_parse(enum openai_api api, struct str body, const struct openai_limits *limits,
                 struct arena *a, struct openai_request *out, struct openai_error *e) MUST_CHECK;
/* Only the "model" member of a body that may be anything else (for engines whose JSON passes
 * unchanged). */
int openai_peek_model(struct str body, struct arena *a, struct str *model, bool *stream,
                      struct openai_error *e) MUST_CHECK;

/* ---- responses ---- */

struct openai_head {
    enum openai_api api;
    const char *id; /* "chatcmpl-..." or "cmpl-..." */
    struct str model;
    uint64_t created; /* seconds since the epoch */
};
struct openai_usage {
    uint64_t prompt_tokens, completion_tokens, cached_tokens;
};

/* One token with its log probability and alternatives. `bytes` as tokenizer_bytes gives them. */
struct openai_alt {
    uint32_t id;
    float logprob;
    struct str bytes;
};
struct openai_logprob {
    struct openai_alt token; /* logprob NAN: null (the first prompt token with echo) */
    const struct openai_alt *top;
    size_t n_top;
    uint64_t text_offset; /* completions: characters from the start of this choice's text */
};
struct openai_logprobs {
    const struct openai_logprob *tok;
    size_t n;
    bool as_token_ids;
};

enum openai_finish {
    OPENAI_FINISH_NONE,
    OPENAI_FINISH_STOP,
    OPENAI_FINISH_LENGTH,
    OPENAI_FINISH_ERROR
};

struct openai_choice {
    uint32_t index;
    struct str text;
    enum openai_finish finish;
    const struct openai_logprobs *logprobs; /* NULL: null */
    const char *stop_reason_text;           /* the stop string that matched, or NULL */
};
/* A whole answer. */
int openai_write_response(const struct openai_head *h, const struct openai_choice *choices,
                          size_t n, const struct openai_usage *usage, struct buf *out) MUST_CHECK;
/* One streamed chunk of one choice. `first` adds the role to a chat delta. with_usage: the member
 * "usage" is null (as OpenAI sends it when include_usage was asked for). */
int openai_write_chunk(const struct openai_head *h, const struct openai_choice *c, bool first,
                       bool with_usage, struct buf *out) MUST_CHECK;
/* The last chunk of a stream with include_usage: no choices. */
int openai_write_usage_chunk(const struct openai_head *h, const struct openai_usage *usage,
                             struct buf *out) MUST_CHECK;
int openai_write_error(const struct openai_error *e, struct buf *out) MUST_CHECK;

struct openai_model {
    struct str id, owned_by;
    uint64_t created;
    uint64_t max_model_len; /* 0: left out */
};
int openai_write_models(const struct openai_model *m, size_t n, struct buf *out) MUST_CHECK;
int openai_write_model(const struct openai_model *m, struct buf *out) MUST_CHECK;
/* {"count":3,"max_model_len":8192,"tokens":[...],"token_strs":null} */
int openai_write_tokens(const uint32_t *ids, size_t n, uint64_t max_model_len,
                        const struct str *strs, struct buf *out) MUST_CHECK;
int openai_write_detokenized(struct str text, struct buf *out) MUST_CHECK;
/* A float with 9 significant digits (round trip exact), or null when not finite. */
int openai_write_float(float v, struct buf *out) MUST_CHECK;
/* Characters (code points) of UTF-8 text: for text_offset. */
uint64_t openai_chars(struct str utf8);

/* ---- stop strings ---- */

/* Streams text through: emits what can no longer become part of a stop string, holds back the
 * longest suffix that is a proper prefix of one. The earliest match (ties: the shortest string, so
 * that the result doesn't depend on how the text was cut) ends it. Owner: the request; memory is
 * the arena's. */
struct stop_match {
    const struct str *stop;
    size_t n;
    bool include; /* the matched string is emitted too */
    int matched;  /* index, or -1 */
    char *held;   /* arena */
    size_t n_held, cap;
};
int stop_match_init(struct stop_match *m, const struct str *stop, size_t n, bool include,
                    struct arena *a) MUST_CHECK;
/* Returns 1 once a stop string has matched (later input is dropped), 0 before, negative on failure.
 */
int stop_match_push(struct stop_match *m, struct str text, struct buf *out) MUST_CHECK;
/* End of generation: what is held comes out. 1 when a stop string stands in it after all. */
int stop_match_flush(struct stop_match *m, struct buf *out) MUST_CHECK;
