/* conn.h: connections of the transfer thread (private to lib/xfer). Four kinds:
 *   OUT       D → P, control; pieces come back on it when the path is tcp. Owns a link of hand_d.
 *   IN        accepted by P, the other end of OUT. Owns a link of hand_p, a queue of pushes.
 *   SHM_OUT   P → D, unix socket: asks for the pool's fd, then stays open for as long as P has it
 * mapped. SHM_IN    accepted by D: its end of file proves that P (process or mapping) can't write
 * any more: a dying process leaves its address space before it closes its files, a living one
 * unmaps before it closes. Handshake: hello → challenge → proof (→ welcome with the fd). All
 * sockets are non-blocking; a connection that is `dead` is closed by the loop's reap, never inside
 * a callback. One thread. */
#pragma once
#include "lib/xfer/auth.h"
#include "lib/xfer/hand.h"
#include "lib/xfer/post.h"
#include "lib/xfer/slices.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/uio.h>

enum conn_kind { CONN_OUT, CONN_IN, CONN_SHM_OUT, CONN_SHM_IN };
enum conn_state {
    CONN_CONNECTING,
    CONN_HELLO,
    CONN_CHALLENGE,
    CONN_PROOF,
    CONN_WELCOME,
    CONN_OPEN
};

#define CONN_TX_PIECES 32u         /* pieces in one writev */
#define CONN_TX_BYTES  (2u << 20)  /* after that much, control goes first again */
#define CONN_OUT_MAX   (64u << 20) /* control bytes that a peer may leave unread */
#define CONN_READ      (64u << 10)
#define CONN_TAIL      4096u /* read behind a piece: the next header */

struct conn_rx {       /* a piece that is arriving */
    bool active, open; /* open: goes to dst; else it is read and dropped */
    struct control_piece piece;
    uint8_t *dst;   /* in the pool, or `whole`: it lies there in slices */
    uint8_t *whole; /* [piece_bytes], when first needed */
    uint32_t got, block;
};

struct conn_tx { /* what one writev sends */
    struct buf control;
    struct iovec iov[1 + 2 * CONN_TX_PIECES];
    uint8_t head[CONN_TX_PIECES][CONTROL_HEADER_BYTES + CONTROL_PIECE_BYTES];
    uint64_t p_id[CONN_TX_PIECES];
    uint8_t *stage; /* [CONN_TX_PIECES, piece_bytes] of a pool in slices, when first needed */
    uint32_t n_iov, at, first; /* first: index of the first piece's header in iov */
};

struct conn {
    struct xfer *x;
    enum conn_kind kind;
    enum conn_state state;
    int fd;
    uint32_t events; /* epoll interest */
    bool dead;
    enum xfer_reason why; /* of death, for events */
    char text[XFER_REASON_MAX], peer[17];
    uint64_t deadline_ns;       /* handshake must be over; 0 when it is */
    struct control_hello hello; /* the client's, whichever end this is */
    uint8_t hello_bytes[CONTROL_HELLO_BYTES], nonce[CONTROL_NONCE_BYTES];
    struct sockaddr_storage addr; /* OUT */
    socklen_t addr_len;
    struct buf in, hs, out; /* hs: handshake, sent before out */
    struct hand_link *link;
    struct conn *pair; /* OUT ↔ SHM_IN, IN ↔ SHM_OUT */
    struct conn_rx rx;
    struct conn_tx *tx;
    /* IN: pushes that have not begun */
    struct hand_push *push;
    size_t push_head, push_n, push_cap;
    bool path_known;
    struct slices map; /* SHM_OUT: D's pool, n 0: not mapped */
    int got_fds[XFER_SLICES_MAX];
    uint32_t n_got; /* SHM_OUT: came with the welcome */
    struct conn *prev, *next;
};

struct xfer_metrics {
    struct metric *bytes[3], *seconds, *failures[XFER_REASONS], *quarantined, *links;
};

struct xfer {
    struct xfer_cfg cfg;
    struct slices pool;
    char *host, *shm_dir;
    struct auth_secret secret;
    uint16_t port;
    struct post commands, events;
    pthread_t thread;
    bool started;
    _Atomic bool stop;
    int epoll, listener, shm_listener, shm_dir_fd;
    struct hand_d *d;
    struct hand_p *p;
    struct conn *conns;
    uint32_t n_unproven; /* accepted, handshake not over */
    struct xfer_metrics metrics;
    _Atomic uint32_t n_links, n_d, n_p, n_quarantined;
    /* engine's thread */
    uint64_t next_id;
    struct post_letter *taken, *current;
};

/* conn.c: bytes in and out */
struct conn *conn_new(struct xfer *x, enum conn_kind kind, int fd, uint64_t now_ns);
void conn_free(struct conn *c); /* closes, unmaps, forgets pushes; links are the caller's */
void conn_die(struct conn *c, enum xfer_reason why, const char *text);
const char *conn_peer(struct conn *c); /* the other side's incarnation in hex */
void conn_arm(struct conn *c);         /* sets what epoll waits for */
void conn_readable(struct conn *c, uint64_t now_ns);
void conn_writable(struct conn *c, uint64_t now_ns);
void conn_send(struct conn *c, const struct control_msg *m);

/* greet.c: handshakes */
int greet_connect(struct conn *c); /* after the socket exists; sends hello when connected */
void greet_connected(struct conn *c);
void greet_frame(struct conn *c, const struct control_frame *f, uint64_t now_ns);
bool greet_expects(const struct conn *c, uint8_t type);

/* push.c: pieces */
void push_add(struct conn *in, const struct hand_push *p);
uint32_t push_cancel(struct conn *in, uint64_t p_id);
void push_path(struct conn *in, enum xfer_path path);
bool push_shm(struct conn *in, uint64_t now_ns); /* copies a share; true when more waits */
void push_fill(struct conn *in);                 /* tcp: next pieces into tx */
bool push_ready(const struct conn *in);          /* tcp: something for push_fill */

/* shm.c: the pool's handover */
int shm_listen(struct xfer *x, struct err *e) MUST_CHECK;
void shm_unlisten(struct xfer *x);
struct conn *shm_connect(struct conn *in, uint64_t now_ns); /* NULL: not on this host */
void shm_give(struct conn *shm_in);                         /* welcome with the fd */
void shm_welcome(struct conn *shm_out, const struct control_frame *f);

/* What the engine's thread asks of the transfer thread. */
enum command_kind {
    COMMAND_ORDER,
    COMMAND_GRANT,
    COMMAND_REJECT,
    COMMAND_ABORT, /* D */
    COMMAND_ASK,
    COMMAND_PUSH,
    COMMAND_DONE,
    COMMAND_FAIL, /* P */
};
struct command {
    struct post_letter letter;
    enum command_kind kind;
    uint64_t id;
    uint32_t n, layer;
    uint64_t peer; /* ORDER: incarnation */
    struct sockaddr_storage addr;
    socklen_t addr_len;
    size_t data_bytes;
    _Alignas(8) uint8_t data[]; /* payload, text (with its NUL), block ids or pieces */
};
struct happening { /* what the transfer thread tells the engine's */
    struct post_letter letter;
    struct xfer_event event;
    _Alignas(8) uint8_t data[];
};

/* loop.c: the transfer thread */
void *loop_main(void *x);
extern const struct hand_ops loop_ops;

/* reap.c: what the end of a connection means */
void reap(struct xfer *x, uint64_t now_ns);
void reap_all(struct xfer *x, uint64_t now_ns); /* shutting down */
