/* control.h: layout of what P and D say to each other (lib/xfer carries it; DESIGN.md §4.2, §4.5).
 * Little-endian, packed.
 *
 * A frame is a header of 16 bytes {u32 magic, u8 type, u8[3] zero, u32 body bytes, u32 crc32c of
 * the 12 bytes before and of the body}, then the body. Bodies: hello      {u32 version, u32
 * purpose, u64 from, to, session, layout, block_bytes, piece_bytes, u32 n_blocks, n_layers, u8
 * nonce[32]} challenge  {u8 nonce[32], u8 mac[32]}        proof  {u8 mac[32]} welcome    {u64
 * pool_bytes, fd_off}          (on the unix socket with the pool's fd) refused    {u64 incarnation,
 * u32 reason}     (then the connection closes) piece      {u64 id, p_id, u32 dst_index, layer,
 * bytes, crc of the data}, followed by `bytes` of data, not counted in the frame's body all others
 * {u64 from, to, session, id, p_id, bytes, u32 reason, n, n_list, payload_bytes}, n_list x u32,
 * payload A decoder never trusts a length: bounds first, checksum next, fields last. */
#pragma once
#include "lib/base/buf.h"

#define CONTROL_MAGIC        0x31585442u /* "BTX1" */
#define CONTROL_VERSION      2u
#define CONTROL_HEADER_BYTES 16u
#define CONTROL_MSG_BYTES    64u /* body of an ordinary message before list and payload */
#define CONTROL_PIECE_BYTES  32u
#define CONTROL_WELCOME_MAX  (16 + 64 * 40) /* lib/xfer/slices.h */
#define CONTROL_NONCE_BYTES  32u
#define CONTROL_MAC_BYTES    32u
#define CONTROL_HELLO_BYTES  (64u + CONTROL_NONCE_BYTES + 8u)
#define CONTROL_LIST_MAX     (1u << 16)
#define CONTROL_PAYLOAD_MAX  (8u << 20)
#define CONTROL_BODY_MAX     (CONTROL_MSG_BYTES + 4u * CONTROL_LIST_MAX + CONTROL_PAYLOAD_MAX)

enum control_type {
    CONTROL_HELLO = 1,
    CONTROL_CHALLENGE,
    CONTROL_PROOF,
    CONTROL_WELCOME,
    CONTROL_REFUSED,
    CONTROL_PIECE,
    /* D to P */
    CONTROL_ORDER = 16, /* payload */
    CONTROL_GRANT,      /* list: block ids */
    CONTROL_REJECT,     /* reason, payload: text */
    CONTROL_ABORT,      /* reason, payload: text */
    CONTROL_CLOSE,      /* done or failed was heard: forget the transfer */
    /* P to D */
    CONTROL_ACCEPT = 32, /* the order is queued */
    CONTROL_ASK,         /* n: blocks wanted */
    CONTROL_DONE, /* n: pieces sent as frames, bytes: moved in all, payload. No write follows it. */
    CONTROL_FAILED, /* reason, payload: text. No write follows it. */
    /* both */
    CONTROL_HEARTBEAT =
        48, /* payload: n x {u64 id, u64 p_id} of the transfers that the sender holds */
};

/* id: D's name of the transfer. p_id: P's name of it, 0 when D has not heard it yet; never reused
 * by an incarnation. */
struct control_msg {
    enum control_type type;
    uint64_t from, to; /* incarnations */
    uint64_t session;  /* of the connection, drawn by D */
    uint64_t id, p_id;
    uint64_t bytes;
    uint32_t reason, n;
    uint32_t n_list;
    uint32_t payload_bytes;
    const void *list; /* n_list x u32, unaligned */
    const void *payload;
};

struct control_hello {
    uint32_t version, purpose; /* 1: control, 2: pool handover */
    uint64_t from, to, session;
    uint64_t layout, block_bytes, piece_bytes;
    uint32_t n_blocks, n_layers;
    uint8_t nonce[CONTROL_NONCE_BYTES];
};

struct control_piece {
    uint64_t id, p_id;
    uint32_t dst_index, layer, bytes, crc;
};

struct control_frame {
    enum control_type type;
    const uint8_t *body;
    uint32_t n;
};

/* Looks at the front of a stream. Bytes of the whole frame when it is there and sound, 0 when more
 * are needed (*need: total bytes wanted, at least n + 1), -EINVAL when the stream is garbage. */
int64_t control_frame_decode(const void *data, size_t n, struct control_frame *out,
                             size_t *need) MUST_CHECK;
void control_frame_header(uint8_t out[CONTROL_HEADER_BYTES], enum control_type type,
                          const void *body, uint32_t n);
int control_frame_encode(enum control_type type, const void *body, uint32_t n,
                         struct buf *out) MUST_CHECK;

int control_msg_encode(const struct control_msg *m, struct buf *out) MUST_CHECK;
int control_msg_decode(const struct control_frame *f, struct control_msg *m) MUST_CHECK;
uint32_t control_msg_item(const struct control_msg *m, uint32_t i); /* i-th of list */

void control_hello_encode(const struct control_hello *h, uint8_t out[CONTROL_HELLO_BYTES]);
int control_hello_decode(const struct control_frame *f, struct control_hello *h) MUST_CHECK;
/* Header and body of a piece; the data follows on the stream. */
void control_piece_encode(const struct control_piece *p,
                          uint8_t out[CONTROL_HEADER_BYTES + CONTROL_PIECE_BYTES]);
int control_piece_decode(const struct control_frame *f, struct control_piece *p) MUST_CHECK;
