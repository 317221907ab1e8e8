/* hand.h: the hand-over protocol as two pure state machines, hand_d (the request's home) and hand_p
 * (the prefill worker). They know no socket and no clock: what happened comes in as calls with
 * `now_ns`, what to do goes out through struct hand_ops. The same code runs on the transfer thread
 * (loop.c) and, in virtual time under every fault, on fake.c.
 *
 * Rules that make it safe whatever is lost, late, doubled or reordered:
 *   - Each side repeats its last word every fifth of a lease until answered: order until accept,
 * ask until grant or reject, abort until failed, done/failed until close. A repeated ask is
 * answered by the same grant.
 *   - A transfer at P is named (session, id, p_id); p_id is never reused. A grant names the p_id
 * that asked, so a doubled order that comes back from the dead can't receive the grant of its
 * predecessor.
 *   - P's done and failed mean "no write of mine follows"; they leave only when no push is
 * outstanding. Only they, or the transport's proof that the writer is gone (hand_d_stopped), end a
 * quarantine. Time never does.
 *   - What one side does not know, it answers at once: unknown at P → failed, unknown at D → abort
 * or close. So forgetting is always safe. Ops are called from inside and must not call back into
 * the machine. One thread. */
#pragma once
#include "lib/wire/control.h"
#include "lib/xfer/xfer.h"

struct hand_link; /* one session with one peer, on either side */

struct hand_push {
    uint64_t id, p_id;
    uint32_t src_block, dst_block, dst_index, layer;
    uint32_t n_blocks; /* of the whole transfer */
};

struct hand_ops {
    void (*send)(void *ctx, struct hand_link *l, const struct control_msg *m);
    void (*event)(void *ctx, const struct xfer_event *e); /* copied by the callee */
    /* P only: starts moving a piece; hand_p_pushed follows. */
    void (*push)(void *ctx, struct hand_link *l, const struct hand_push *p);
    /* P only: forgets pushes of p_id that have not begun; returns how many. */
    uint32_t (*cancel)(void *ctx, struct hand_link *l, uint64_t p_id);
    /* The peer is silent or refuses: close the connection, then report what is known of it. */
    void (*drop)(void *ctx, struct hand_link *l);
};

struct hand_cfg {
    uint64_t me; /* incarnation */
    uint64_t lease_ns;
    uint32_t n_blocks, n_layers; /* of this worker's pool */
    size_t piece_bytes;
    const struct hand_ops *ops;
    void *ctx;
};

void *hand_link_user(const struct hand_link *l); /* what was given when the link was made */

struct hand_d;
struct hand_d *hand_d_new(const struct hand_cfg *cfg);
void hand_d_free(struct hand_d *d);
struct hand_link *hand_d_link(struct hand_d *d, uint64_t peer, uint64_t session, void *user,
                              uint64_t now_ns);
/* The session is over: its transfers fail. Blocks stay in quarantine. Idempotent. */
void hand_d_lost(struct hand_d *d, struct hand_link *l, enum xfer_reason why, const char *text,
                 uint64_t now_ns);
/* Proof that nothing of this session can write any more: everything quiesces, the link is freed. */
void hand_d_stopped(struct hand_d *d, struct hand_link *l, uint64_t now_ns);

void hand_d_order(struct hand_d *d, struct hand_link *l, uint64_t id, const void *payload, size_t n,
                  uint64_t now_ns);
void hand_d_grant(struct hand_d *d, uint64_t id, const uint32_t *blocks, uint32_t n,
                  uint64_t now_ns);
void hand_d_reject(struct hand_d *d, uint64_t id, const char *text, uint64_t now_ns);
void hand_d_abort(struct hand_d *d, uint64_t id, const char *text, uint64_t now_ns);
void hand_d_recv(struct hand_d *d, struct hand_link *l, const struct control_msg *m,
                 uint64_t now_ns);
/* Pieces that come as frames. open: is (id, p_id) of this link granted, index and layer in range,
 * and the piece not here yet? Then *block is where it goes, and close must follow: sound or
 * corrupt. */
bool hand_d_piece_open(struct hand_d *d, struct hand_link *l, const struct control_piece *p,
                       uint32_t *block);
void hand_d_piece_close(struct hand_d *d, struct hand_link *l, const struct control_piece *p,
                        bool sound, uint64_t now_ns);
uint64_t hand_d_tick(struct hand_d *d, uint64_t now_ns); /* runs timers; when to call again */
uint32_t hand_d_transfers(const struct hand_d *d);
uint32_t hand_d_quarantined(const struct hand_d *d); /* blocks */

struct hand_p;
struct hand_p *hand_p_new(const struct hand_cfg *cfg);
void hand_p_free(struct hand_p *p);
struct hand_link *hand_p_link(struct hand_p *p, uint64_t peer, uint64_t session,
                              uint32_t peer_blocks, void *user, uint64_t now_ns);
/* The connection is closed and nothing of it is being written: transfers end, the link is freed. */
void hand_p_gone(struct hand_p *p, struct hand_link *l, uint64_t now_ns);
void hand_p_path(struct hand_link *l,
                 enum xfer_path path); /* how pushes travel: decides what done says */

void hand_p_ask(struct hand_p *p, uint64_t p_id, uint32_t n_blocks, uint64_t now_ns);
void hand_p_push(struct hand_p *p, uint64_t p_id, uint32_t layer, const struct xfer_piece *pieces,
                 uint32_t n, uint64_t now_ns);
void hand_p_done(struct hand_p *p, uint64_t p_id, const void *payload, size_t n, uint64_t now_ns);
void hand_p_fail(struct hand_p *p, uint64_t p_id, enum xfer_reason why, const char *text,
                 uint64_t now_ns);
void hand_p_recv(struct hand_p *p, struct hand_link *l, const struct control_msg *m,
                 uint64_t now_ns);
/* n pushes of p_id have left this process's memory for good. */
void hand_p_pushed(struct hand_p *p, uint64_t p_id, uint32_t n, uint64_t now_ns);
uint64_t hand_p_tick(struct hand_p *p, uint64_t now_ns);
uint32_t hand_p_transfers(const struct hand_p *p); /* not yet released */
