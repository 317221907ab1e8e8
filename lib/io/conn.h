/* conn.h: keep-alive HTTP/1.1 connections to workers, inside one libuv loop and its thread. One
 * exchange at a time a connection, TCP_NODELAY, numeric addresses. What is sent is written at once
 * when the socket takes it; what is received goes through lib/io/codec.h from one buffer of the
 * pool to the callbacks, without a copy.
 *
 * An exchange is freed after on_done returns, or by conn_cancel (then on_done is not called): that
 * closes the connection at once, which is how a worker learns that nobody waits any more. Callbacks
 * never run inside conn_start. */
#pragma once
#include "lib/io/codec.h"

#include <uv.h>

struct conn_pool;
struct conn_call;

struct conn_request {
    const char *host; /* numeric IPv4 or IPv6 */
    uint16_t port;
    struct str head,
        body; /* written one after the other; copied only when the socket is full or connecting */
    unsigned connect_timeout_ms; /* 0: 1000 */
    unsigned
        silence_timeout_ms; /* no byte received for so long, after the request was sent; 0: none */
    bool fresh;             /* never reuse an idle connection */
    /* Any may be NULL. A non-zero return ends the exchange with -ECANCELED (on_done is called). */
    int (*on_headers)(struct conn_call *c, int status, void *ctx);
    int (*on_data)(struct conn_call *c, struct str piece, void *ctx);
    /* code 0: complete; -ECONNREFUSED, -ETIMEDOUT, -EPIPE (closed early), -EBADMSG, ...; status 0:
     * no answer came. `stale` is true when a reused connection ended before any byte of the answer:
     * safe to send again. */
    void (*on_done)(struct conn_call *c, int status, int code, bool stale, void *ctx);
    void *ctx;
};

struct conn_pool_stats {
    unsigned idle, active;
    uint64_t opened, reused;
};

struct conn_pool *conn_pool_new(uv_loop_t *loop, unsigned max_idle_per_peer /* 0: 64 */);
/* Cancels what runs and closes everything; the loop must run once more before its end. */
void conn_pool_free(struct conn_pool *p);
void conn_pool_stats(const struct conn_pool *p, struct conn_pool_stats *out);

/* NULL with *e when the address is not numeric or no socket can be made. */
struct conn_call *conn_start(struct conn_pool *p, const struct conn_request *r, struct err *e);
void conn_cancel(struct conn_call *c);
struct str conn_header(const struct conn_call *c,
                       const char *name); /* of the answer, in the callbacks */
