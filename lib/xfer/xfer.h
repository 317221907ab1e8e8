/* xfer.h: KV is pushed from a prefill worker (P) to the decode worker (D) that is the request's
 * home (DESIGN.md §4.2, §4.5).
 *
 *   D: xfer_order ──order──▶ P: ORDER event (queued; leases are kept from here on)
 *   D: ASK event  ◀───ask─── P: xfer_ask, when about to run
 *   D: xfer_grant ──grant──▶ P: GRANTED event      (or xfer_reject: P gets ABORTED)
 *                  ◀═pieces═ P: xfer_push, a layer at a time, while later layers compute
 *   D: DONE event ◀───done── P: xfer_done (first tokens, logprobs)   or FAILED ◀─failed─ xfer_fail
 *   D: xfer_abort ──abort──▶ P: ABORTED event, at any time
 *
 * Promises to the engine:
 *   - Every id that xfer_order returned ends in exactly one DONE or FAILED; every FAILED is
 * followed by exactly one QUIESCED. Blocks granted to an id that FAILED belong to nobody until
 * QUIESCED: a writer may still be at work (quarantine). After DONE they hold the pushed bytes and
 * are D's at once. Nothing follows DONE or QUIESCED.
 *   - Every ORDER event is followed by exactly one RELEASED, its last event: source blocks must be
 * held until then. ABORTED comes before it when D, the link or a lease ended the transfer; calls
 * made for that id afterwards do nothing.
 *   - A dead peer is noticed by its socket's end at once, a silent one after lease_ms; then the
 * events follow immediately.
 *   - Zero blocks (the prefix was all there) is a transfer like any other: ask for 0, or xfer_done
 * without asking.
 *   - A peer is host:port:incarnation. What is meant for another incarnation is refused by the one
 * that gets it.
 *
 * Threads: one engine thread calls everything here; one transfer thread, made by xfer_new, owns
 * sockets and the protocol. They exchange messages over two queues; no call blocks. The transfer
 * thread reads source blocks and writes destination blocks of the pool; the engine must not write a
 * source block between xfer_push and RELEASED. Ids are never reused within an incarnation; a retry
 * is a new order with a new id. Sizes are bytes.
 */
#pragma once
#include "lib/base/str.h"

#define XFER_PAYLOAD_MAX (8u << 20) /* order and done payloads */
#define XFER_BLOCKS_MAX  (1u << 16) /* blocks in one transfer */
#define XFER_REASON_MAX  160        /* text that travels with failed, rejected, aborted */
#define XFER_SECRET_MAX  256

struct xfer;

enum xfer_path { XFER_PATH_NONE, XFER_PATH_SHM, XFER_PATH_TCP };
enum xfer_policy {
    XFER_AUTO /* shm when D's pool can be mapped, else tcp */,
    XFER_ONLY_SHM,
    XFER_ONLY_TCP
};

/* The KV pool: block b, layer l lies at base + b * block_bytes + l * piece_bytes. */
struct xfer_pool {
    uint8_t *base;
    size_t len;
    int fd; /* what base maps, handed to peers on this host; -1: no shm path towards this worker */
    size_t fd_off; /* of base in fd, a multiple of the page size */
};

/* A part of a pool that is kept by one rank of a worker: some layers of every block, some KV heads
 * of each. Block b's layer l lies at pool.base + b * block_bytes + (l - layer0) * (heads' share of
 * a piece), K heads before V heads. */
struct xfer_slice {
    struct xfer_pool pool;
    size_t block_bytes;
    uint32_t layer0, layers, head0, heads;
    uint32_t block0, blocks; /* it has these blocks, block0 first in its pool; blocks 0: all */
};
#define XFER_SLICES_MAX 64u

/* An anonymous shared pool: all of it allocated (so that this process's cgroup pays), sealed
 * against resizing. */
int xfer_pool_new(struct xfer_pool *p, size_t len, struct err *e) MUST_CHECK;
void xfer_pool_free(struct xfer_pool *p);
/* Gives the memory back, addresses and descriptor stay (what is read then is zero); takes it again.
 */
int xfer_pool_release(struct xfer_pool *p, struct err *e) MUST_CHECK;
int xfer_pool_refill(struct xfer_pool *p, struct err *e) MUST_CHECK;

struct xfer_cfg {
    const char *host; /* numeric address to listen on, also what peers call this worker */
    uint16_t port;    /* 0: any free one; see xfer_port() */
    uint64_t incarnation;
    const void *secret; /* shared by the deployment's workers; proves both sides of a connection */
    size_t secret_len;
    const char
        *shm_dir; /* a directory that the workers of this host share, where they meet; NULL or "":
                   * no shm. $BATON_AGENT_DIR (hostPath), for $BATON_SHM_DIR is each pod's own. */
    enum xfer_policy policy;
    struct xfer_pool pool; /* all of it in one place; else: */
    const struct xfer_slice *slices;
    uint32_t n_slices; /* together all layers and heads of all blocks; 0: `pool` */
    uint32_t n_blocks, n_layers;
    size_t block_bytes,
        piece_bytes; /* piece = one layer of one block; n_layers * piece_bytes <= block_bytes */
    uint32_t halves, n_heads; /* of a piece: K and V (2), or a latent (1); KV heads. 0: 1 */
    uint64_t layout;          /* hash of model revision, KV dtype, block tokens: peers must agree */
    uint32_t lease_ms;        /* 0: 2000; heartbeats every fifth of it */
    void (*wake)(
        void *arg); /* optional: called on the transfer thread when events wait (post a futex) */
    void *wake_arg;
};

/* Listens and starts the transfer thread. Strings and the secret are copied; the pool must outlive
 * xfer_free. */
int xfer_new(const struct xfer_cfg *cfg, struct xfer **out, struct err *e) MUST_CHECK;
void xfer_free(struct xfer *x); /* closes every link (peers see it at once), joins the thread */
uint16_t xfer_port(const struct xfer *x);

/* ---- as D ---- */
/* peer: "host:port:incarnation" (16 hex digits, numeric host, IPv6 in brackets). Returns the
 * transfer's id; what goes wrong later is a FAILED event. -EINVAL for a peer or payload that can't
 * be. */
int xfer_order(struct xfer *x, struct str peer, const void *payload, size_t n, uint64_t *id,
               struct err *e) MUST_CHECK;
void xfer_grant(struct xfer *x, uint64_t id, const uint32_t *blocks, uint32_t n); /* n as asked */
void xfer_reject(struct xfer *x, uint64_t id, const char *reason); /* FAILED and QUIESCED follow */
void xfer_abort(struct xfer *x, uint64_t id,
                const char *reason); /* likewise, unless it ended already */

/* ---- as P ---- */
struct xfer_piece {
    uint32_t src_block; /* in this worker's pool */
    uint32_t dst_index; /* 0..n-1 of what was asked */
};
void xfer_ask(struct xfer *x, uint64_t id, uint32_t n_blocks);
/* Pieces of one layer; each (dst_index, layer) exactly once over the transfer's life. After GRANTED
 * only. */
void xfer_push(struct xfer *x, uint64_t id, uint32_t layer, const struct xfer_piece *pieces,
               uint32_t n);
/* Sent when all pushes are out. A transfer with pieces missing fails ("incomplete") instead. */
void xfer_done(struct xfer *x, uint64_t id, const void *payload, size_t n);
void xfer_fail(struct xfer *x, uint64_t id, const char *reason);

/* ---- events ---- */
enum xfer_event_kind {
    XFER_NONE,
    /* at D */
    XFER_ASK,      /* n_blocks wanted: answer with xfer_grant or xfer_reject (or xfer_abort) */
    XFER_DONE,     /* payload, bytes, path, seconds */
    XFER_FAILED,   /* reason, text */
    XFER_QUIESCED, /* blocks granted to this id may be used again */
    /* at P */
    XFER_ORDER,    /* payload, peer */
    XFER_GRANTED,  /* n_blocks, blocks (D's ids, for information: xfer_push takes indexes) */
    XFER_ABORTED,  /* reason, text: stop computing it */
    XFER_RELEASED, /* source blocks are free again; bytes pushed, path */
};

enum xfer_reason {
    XFER_OK,
    XFER_PEER_LOST,   /* connection ended or could not be made */
    XFER_LEASE_LOST,  /* silent for longer than the lease */
    XFER_WRONG_PEER,  /* another incarnation, layout or secret answered */
    XFER_PEER_FAILED, /* the peer's engine said so; text is its reason */
    XFER_BY_REJECT,
    XFER_BY_ABORT,
    XFER_CORRUPT,    /* a checksum did not match */
    XFER_INCOMPLETE, /* done, but pieces are missing */
    XFER_SHUTDOWN,
    XFER_REASONS
};
const char *xfer_reason_name(enum xfer_reason r); /* "peer_lost": label values of the metrics */
const char *xfer_path_name(enum xfer_path p);     /* "none", "shm", "tcp" */

struct xfer_event {
    enum xfer_event_kind kind;
    enum xfer_reason reason;
    enum xfer_path path;
    uint64_t id;
    uint64_t peer; /* incarnation of the other side */
    uint32_t n_blocks;
    const uint32_t *blocks;
    const void *payload;
    size_t payload_len;
    uint64_t bytes;             /* payload of pieces moved */
    double seconds;             /* DONE: from grant to done */
    char text[XFER_REASON_MAX]; /* for people: "the prefill worker restarted" */
};

/* Takes the next event: 1, or 0 when there is none. blocks and payload stay valid until the next
 * call. */
int xfer_poll(struct xfer *x, struct xfer_event *out);
int xfer_fd(const struct xfer *x); /* eventfd, readable while events wait (xfer_poll clears it) */

struct xfer_stats {
    uint32_t links, as_d, as_p; /* open connections, transfers alive in each role */
    uint32_t quarantined_blocks;
};
void xfer_stats(const struct xfer *x, struct xfer_stats *out); /* any thread */

/* Metrics (lib/base/metrics.h): baton_kv_transfer_bytes_total{path}, baton_kv_transfer_seconds,
 * baton_kv_transfer_failures_total{reason}, baton_kv_quarantined_blocks, baton_kv_links. */
