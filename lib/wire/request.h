/* request.h: the binary body of POST /v1/internal/generate, router → D (DESIGN §4.2), and of the
 * order that D sends to P. Little-endian, versioned. A replay resends prompt + generated tokens;
 * positions are absolute. Every count is bounded before anything is allocated. Decoded arrays point
 * into the caller's buffer when it is 4-byte aligned, which wire_request_decode requires. */
#pragma once
#include "lib/base/buf.h"

#define WIRE_REQUEST_MAGIC   0x51525442u /* "BTRQ" */
#define WIRE_REQUEST_VERSION 1
#define WIRE_MAX_TOKENS      (1u << 20)
#define WIRE_MAX_CHOICES     16
#define WIRE_MAX_TOP         20
#define WIRE_MAX_BIAS        1024
#define WIRE_MAX_STOP_IDS    64
#define WIRE_HOST_MAX        64

enum wire_request_flags {
    WIRE_LOGPROBS = 1, /* logprob of each sampled token, and n_top alternatives */
    WIRE_PROMPT_LOGPROBS =
        2, /* echo: also for the prompt's tokens (kind token, finish WIRE_FINISH_PROMPT) */
    WIRE_IGNORE_EOS = 4,
    WIRE_NO_CACHE = 8, /* neither use nor keep cached blocks (tests, benchmarks) */
};

/* A peer is host, port (of xfer) and incarnation; port 0 means none. */
struct wire_peer {
    char host[WIRE_HOST_MAX];
    uint16_t port;
    uint64_t incarnation;
};

struct wire_bias {
    uint32_t id;
    float bias;
};

struct block_name_bytes {
    uint8_t b[16];
};

struct wire_request {
    uint64_t id[2]; /* random, drawn by the router; unique for ever */
    uint64_t seed;  /* drawn by the router when the client gave none */
    uint32_t flags;
    float temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;
    uint32_t top_k;      /* 0: off */
    uint32_t max_tokens; /* generated tokens a choice, n_generated included */
    uint32_t min_tokens;
    uint32_t deadline_ms; /* from arrival at D; 0: none */
    uint16_t n, n_top;
    struct wire_peer prefill; /* P, or port 0 for "D alone" */
    uint32_t n_prompt, n_generated, n_stop_ids, n_bias, n_blocks;
    const uint32_t *tokens;       /* [n_prompt + n_generated] */
    const uint32_t *stop_ids;     /* [n_stop_ids] besides the model's end-of-generation ids */
    const struct wire_bias *bias; /* [n_bias] */
    const struct block_name_bytes *blocks; /* [n_blocks] names of the full blocks of the prompt */
};

/* Appends the encoding to out. */
int wire_request_encode(const struct wire_request *r, struct buf *out) MUST_CHECK;
/* Fills *r; its pointers live as long as `body`. -EINVAL with a reason in *e for anything malformed
 * or out of bounds. */
int wire_request_decode(struct str body, struct wire_request *r, struct err *e) MUST_CHECK;
