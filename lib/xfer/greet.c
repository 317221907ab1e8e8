#include "lib/xfer/conn.h"

#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/base/rng.h"
#include "lib/wire/le.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#define PURPOSE_CONTROL 1u
#define PURPOSE_POOL    2u

static bool client(const struct conn *c)
{
    return c->kind == CONN_OUT || c->kind == CONN_SHM_OUT;
}

bool greet_expects(const struct conn *c, uint8_t type)
{
    switch (c->state) {
    case CONN_CONNECTING: return false;
    case CONN_HELLO: return type == CONTROL_HELLO;
    case CONN_CHALLENGE: return type == CONTROL_CHALLENGE || type == CONTROL_REFUSED;
    case CONN_PROOF: return type == CONTROL_PROOF;
    case CONN_WELCOME: return type == CONTROL_WELCOME || type == CONTROL_REFUSED;
    case CONN_OPEN: return c->link && (type >= CONTROL_ORDER || type == CONTROL_PIECE);
    }
    return false;
}

static void put(struct conn *c, enum control_type type, const void *body, uint32_t n)
{
    if (control_frame_encode(type, body, n, &c->hs))
        conn_die(c, XFER_PEER_LOST, "the peer does not read what it is sent");
}

static void say_hello(struct conn *c)
{
    const struct xfer_cfg *g = &c->x->cfg;
    struct control_hello *h = &c->hello; /* from, to and session are set by who connects */
    h->version = CONTROL_VERSION;
    h->purpose = c->kind == CONN_OUT ? PURPOSE_CONTROL : PURPOSE_POOL;
    h->layout = g->layout;
    h->block_bytes = g->block_bytes;
    h->piece_bytes = g->piece_bytes;
    h->n_blocks = g->n_blocks;
    h->n_layers = g->n_layers;
    rng_secret(h->nonce, sizeof h->nonce);
    control_hello_encode(h, c->hello_bytes);
    put(c, CONTROL_HELLO, c->hello_bytes, CONTROL_HELLO_BYTES);
    c->state = CONN_CHALLENGE;
}

int greet_connect(struct conn *c)
{
    c->state = CONN_CONNECTING;
    if (connect(c->fd, (struct sockaddr *)&c->addr, c->addr_len) == 0) {
        say_hello(c);
        return 0;
    }
    if (errno == EINPROGRESS)
        return 0;
    return -errno;
}

void greet_connected(struct conn *c)
{
    int bad = 0;
    socklen_t n = sizeof bad;
    if (getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &bad, &n) || bad) {
        conn_die(c, XFER_PEER_LOST, strerror(bad ? bad : errno));
        return;
    }
    struct sockaddr_storage a;
    n = sizeof a;
    if (getpeername(c->fd, (struct sockaddr *)&a, &n) == 0)
        say_hello(c);
}

static void refuse(struct conn *c, const char *why)
{
    uint8_t body[12];
    le_put64(body, c->x->cfg.incarnation);
    le_put32(body + 8, XFER_WRONG_PEER);
    put(c, CONTROL_REFUSED, body, sizeof body);
    if (c->hs.n) /* one try: who refuses does not wait */
        (void)!send(c->fd, c->hs.data, c->hs.n, MSG_NOSIGNAL | MSG_DONTWAIT);
    log_warn("kv peer refused", LS("why", why));
    conn_die(c, XFER_WRONG_PEER, why);
}

static const char *misfit(const struct conn *c, const struct control_hello *h)
{
    const struct xfer_cfg *g = &c->x->cfg;
    if (h->to != g->incarnation)
        return "meant for another incarnation";
    if (h->purpose != (c->kind == CONN_IN ? PURPOSE_CONTROL : PURPOSE_POOL))
        return "came to the wrong door";
    if (h->layout != g->layout || h->piece_bytes != g->piece_bytes || h->n_layers != g->n_layers)
        return "another model or KV layout";
    if (h->n_blocks == 0 || h->n_blocks > (1u << 30) || h->block_bytes > (1ull << 32) ||
        h->block_bytes < h->piece_bytes * h->n_layers)
        return "a KV pool that can't be";
    return NULL;
}

static void on_hello(struct conn *c, const struct control_frame *f)
{
    struct control_hello h;
    const char *why = control_hello_decode(f, &h) ? "another protocol version" : misfit(c, &h);
    if (why) {
        refuse(c, why);
        return;
    }
    c->hello = h;
    memcpy(c->hello_bytes, f->body, CONTROL_HELLO_BYTES);
    rng_secret(c->nonce, sizeof c->nonce);
    uint8_t body[CONTROL_NONCE_BYTES + CONTROL_MAC_BYTES];
    memcpy(body, c->nonce, CONTROL_NONCE_BYTES);
    auth_mac(&c->x->secret, AUTH_SERVER, c->hello_bytes, c->nonce, body + CONTROL_NONCE_BYTES);
    put(c, CONTROL_CHALLENGE, body, sizeof body);
    c->state = CONN_PROOF;
}

static void on_challenge(struct conn *c, const struct control_frame *f)
{
    if (f->n != CONTROL_NONCE_BYTES + CONTROL_MAC_BYTES ||
        !auth_check(&c->x->secret, AUTH_SERVER, c->hello_bytes, f->body,
                    f->body + CONTROL_NONCE_BYTES)) {
        conn_die(c, XFER_WRONG_PEER, "the peer does not know the deployment's secret");
        return;
    }
    uint8_t mac[CONTROL_MAC_BYTES];
    auth_mac(&c->x->secret, AUTH_CLIENT, c->hello_bytes, f->body, mac);
    put(c, CONTROL_PROOF, mac, sizeof mac);
    if (c->kind == CONN_SHM_OUT) {
        c->state = CONN_WELCOME;
        return;
    }
    c->state = CONN_OPEN;
    c->deadline_ns = 0;
}

static void on_proof(struct conn *c, const struct control_frame *f, uint64_t now_ns)
{
    if (f->n != CONTROL_MAC_BYTES ||
        !auth_check(&c->x->secret, AUTH_CLIENT, c->hello_bytes, c->nonce, f->body)) {
        log_warn("kv peer without the deployment's secret");
        conn_die(c, XFER_WRONG_PEER, "the peer does not know the deployment's secret");
        return;
    }
    c->state = CONN_OPEN;
    c->deadline_ns = 0;
    c->x->n_unproven--;
    if (c->kind == CONN_SHM_IN) {
        shm_give(c);
        return;
    }
    c->link = hand_p_link(c->x->p, c->hello.from, c->hello.session, c->hello.n_blocks, c, now_ns);
    enum xfer_policy policy = c->x->cfg.policy;
    c->pair = policy == XFER_ONLY_TCP ? NULL : shm_connect(c, now_ns);
    if (!c->pair && policy == XFER_ONLY_SHM)
        conn_die(c, XFER_PEER_LOST, "no shared memory with this peer");
    else if (!c->pair)
        push_path(c, XFER_PATH_TCP);
}

void greet_frame(struct conn *c, const struct control_frame *f, uint64_t now_ns)
{
    if (f->type == CONTROL_REFUSED && client(c))
        conn_die(c, XFER_WRONG_PEER, "another incarnation, model or layout answered");
    else if (c->state == CONN_HELLO)
        on_hello(c, f);
    else if (c->state == CONN_CHALLENGE)
        on_challenge(c, f);
    else if (c->state == CONN_PROOF)
        on_proof(c, f, now_ns);
    else if (c->state == CONN_WELCOME)
        shm_welcome(c, f);
}
