/* heartbeat.h: what rank 0 sends on GET /v1/internal/events to each router: one message every 100
 * ms and at once on a change of role, drain or readiness. Frames are u32 length, then the body. The
 * first frame of a connection carries `reset` and all cached block names (in several frames when
 * there are many: the last of them has `complete`); later frames carry the names added and removed
 * since, in order. A gap in `seq` means: drop the connection and start again. */
#pragma once
#include "lib/base/buf.h"
#include "lib/wire/request.h"

#define WIRE_HEARTBEAT_MAGIC     0x42485442u /* "BTHB" */
#define WIRE_HEARTBEAT_VERSION   1
#define WIRE_HEARTBEAT_MAX_NAMES 16384
#define WIRE_HEARTBEAT_MAX_BYTES (4096 + 2 * 16 * WIRE_HEARTBEAT_MAX_NAMES)

enum wire_role {
    WIRE_ROLE_NONE,
    WIRE_ROLE_PREFILL,
    WIRE_ROLE_DECODE,
    WIRE_ROLE_UNIFIED,
    WIRE_ROLE_STANDBY
};
const char *wire_role_name(enum wire_role role); /* "prefill"; "" for none */
enum wire_role wire_role_parse(const char *name);

enum wire_heartbeat_flags {
    WIRE_HB_RESET = 1,
    WIRE_HB_COMPLETE = 2,
    WIRE_HB_DRAINING = 4,
    WIRE_HB_READY = 8,
    WIRE_HB_WARMUP = 16, /* figures still come from the first seconds */
};

struct wire_load {
    uint32_t running, waiting; /* requests */
    uint64_t waiting_tokens;   /* uncached prompt tokens queued here, prefill orders included */
    uint64_t resident_tokens;  /* tokens in KV of running requests */
    uint32_t kv_blocks, kv_blocks_used,
        kv_blocks_cached; /* total; held by requests; free but reusable by name */
    uint32_t block_tokens;
    float prefill_tokens_per_s, decode_step_s; /* measured, EWMA; 0 unknown */
    uint64_t prompt_tokens_total, cached_tokens_total, generated_tokens_total, kv_bytes_in_total,
        kv_bytes_out_total;
    uint64_t preemptions_total;
};

struct wire_heartbeat {
    uint64_t incarnation, seq;
    uint32_t flags;
    uint8_t role; /* actual */
    uint16_t xfer_port;
    struct wire_load load;
    uint32_t n_added, n_removed;
    const struct block_name_bytes *added, *removed;
};

/* Appends one frame, its length included. */
int wire_heartbeat_encode(const struct wire_heartbeat *h, struct buf *out) MUST_CHECK;
/* Bytes consumed, 0 when more are needed, -EINVAL when malformed. Pointers go into data. */
int wire_heartbeat_decode(struct str data, struct wire_heartbeat *h) MUST_CHECK;
