/* record.h: what D streams back: 16-byte records, each followed by n_top × {u32 id, f32 logprob}
 * and extra_bytes of JSON (DESIGN §4.2). The last record of a choice has kind token with a finish
 * reason, or kind end; the stream ends with one record of kind end (extra: usage JSON
 * {"prompt_tokens","cached_tokens","kv_bytes","prefill_ms",…}) or error. The first token record of
 * a stream carries the same JSON as far as it is known by then: the router needs kv_bytes for a
 * response header that leaves before the first token does. */
#pragma once
#include "lib/base/buf.h"

#define WIRE_RECORD_BYTES 16
#define WIRE_RECORD_MAX   (WIRE_RECORD_BYTES + 8 * 64 + 65535)

enum wire_kind { WIRE_TOKEN = 1, WIRE_END = 2, WIRE_ERROR = 3, WIRE_PING = 4 };
enum wire_finish {
    WIRE_FINISH_NONE = 0,
    WIRE_FINISH_STOP =
        1, /* end-of-generation or stop id (the token itself is in the record, not to be shown) */
    WIRE_FINISH_LENGTH = 2, /* max_tokens or context */
    WIRE_FINISH_PROMPT = 3, /* not generated: a prompt token's logprobs (echo) */
    WIRE_FINISH_ABORT = 4,
};

struct wire_top {
    uint32_t id;
    float logprob;
};

struct wire_record {
    uint32_t id;
    float logprob; /* NaN: none */
    uint16_t choice;
    uint8_t kind, finish;
    uint16_t n_top, extra_bytes;
    const void *top; /* n_top × struct wire_top, unaligned */
    const char *extra;
};

int wire_record_encode(const struct wire_record *r, struct buf *out) MUST_CHECK;
/* Bytes consumed, 0 when more are needed, -EINVAL when malformed. *r points into data. */
int wire_record_decode(struct str data, struct wire_record *r) MUST_CHECK;
struct wire_top wire_record_top(const struct wire_record *r, size_t i);
