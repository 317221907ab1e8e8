#include "lib/xfer/conn.h"

#include "lib/wire/crc32c.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>
#include <utlist.h>

#define ROUNDS 16 /* reads of one connection before others get their turn */

struct conn *conn_new(struct xfer *x, enum conn_kind kind, int fd, uint64_t now_ns)
{
    struct conn *c = xcalloc(1, sizeof *c);
    c->x = x;
    c->kind = kind;
    c->fd = fd;
    c->deadline_ns = now_ns + (uint64_t)x->cfg.lease_ms * 1000000u;
    buf_init(&c->in, CONTROL_HEADER_BYTES + CONTROL_BODY_MAX + CONN_READ);
    buf_init(&c->hs, 4096);
    buf_init(&c->out, CONN_OUT_MAX);
    if (kind == CONN_OUT || kind == CONN_IN) {
        c->tx = xcalloc(1, sizeof *c->tx);
        buf_init(&c->tx->control, CONN_OUT_MAX);
    }
    struct epoll_event ev = {.events = c->events = EPOLLIN, .data.ptr = c};
    ASSERT(epoll_ctl(x->epoll, EPOLL_CTL_ADD, fd, &ev) == 0);
    DL_APPEND(x->conns, c);
    return c;
}

void conn_free(struct conn *c)
{
    DL_DELETE(c->x->conns, c);
    /* Unmapped before closed: D takes the end of file as proof that nobody writes. */
    slices_unmap(&c->map);
    for (uint32_t i = 0; i < c->n_got; i++)
        close_fdp(&c->got_fds[i]);
    close_fdp(&c->fd);
    buf_fini(&c->in);
    buf_fini(&c->hs);
    buf_fini(&c->out);
    if (c->tx) {
        buf_fini(&c->tx->control);
        free(c->tx->stage);
    }
    free(c->rx.whole);
    free(c->tx);
    free(c->push);
    free(c);
}

void conn_die(struct conn *c, enum xfer_reason why, const char *text)
{
    if (c->dead)
        return;
    c->dead = true;
    c->why = why;
    snprintf(c->text, sizeof c->text, "%s", text);
}

const char *conn_peer(struct conn *c)
{
    bool client = c->kind == CONN_OUT || c->kind == CONN_SHM_OUT;
    snprintf(c->peer, sizeof c->peer, "%016llx",
             (unsigned long long)(client ? c->hello.to : c->hello.from));
    return c->peer;
}

static bool wants_out(const struct conn *c)
{
    if (c->state == CONN_CONNECTING || c->hs.n)
        return true;
    if (c->state != CONN_OPEN || !c->tx)
        return false;
    return c->out.n || c->tx->at < c->tx->n_iov || push_ready(c);
}

void conn_arm(struct conn *c)
{
    uint32_t want = EPOLLIN | (wants_out(c) ? EPOLLOUT : 0u);
    if (want == c->events || c->fd < 0)
        return;
    struct epoll_event ev = {.events = c->events = want, .data.ptr = c};
    ASSERT(epoll_ctl(c->x->epoll, EPOLL_CTL_MOD, c->fd, &ev) == 0);
}

void conn_send(struct conn *c, const struct control_msg *m)
{
    if (!c->dead && control_msg_encode(m, &c->out))
        conn_die(c, XFER_PEER_LOST, "the peer does not read what it is sent");
}

/* ---- in ---- */

static ssize_t recv_with_fds(struct conn *c, void *to, size_t n)
{
    union {
        struct cmsghdr align;
        char space[CMSG_SPACE(XFER_SLICES_MAX * sizeof(int))];
    } u;
    struct iovec iov = {to, n};
    struct msghdr m = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &u, .msg_controllen = sizeof u};
    ssize_t got = recvmsg(c->fd, &m, MSG_CMSG_CLOEXEC);
    const struct cmsghdr *h = got > 0 ? CMSG_FIRSTHDR(&m) : NULL;
    if (h && h->cmsg_level == SOL_SOCKET && h->cmsg_type == SCM_RIGHTS) {
        for (uint32_t i = 0; i < c->n_got; i++)
            close_fdp(&c->got_fds[i]);
        c->n_got = (uint32_t)((h->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        memcpy(c->got_fds, CMSG_DATA(h), c->n_got * sizeof(int));
    }
    return got;
}

static ssize_t read_some(struct conn *c)
{
    bool direct = c->rx.active && c->rx.open;
    if (buf_reserve(&c->in, direct ? CONN_TAIL : CONN_READ))
        return 0;
    void *end = c->in.data + c->in.n;
    ssize_t n;
    if (!direct) {
        n = c->kind == CONN_SHM_OUT ? recv_with_fds(c, end, CONN_READ)
                                    : read(c->fd, end, CONN_READ);
        if (n > 0)
            c->in.n += (size_t)n;
        return n;
    }
    size_t left = c->rx.piece.bytes - c->rx.got;
    struct iovec iov[2] = {{c->rx.dst + c->rx.got, left}, {end, CONN_TAIL}};
    n = readv(c->fd, iov, 2);
    if (n > 0) {
        size_t head = (size_t)n < left ? (size_t)n : left;
        c->rx.got += (uint32_t)head;
        c->in.n += (size_t)n - head;
    }
    return n;
}

static void piece_begin(struct conn *c, const struct control_frame *f)
{
    struct xfer *x = c->x;
    if (c->kind != CONN_OUT || control_piece_decode(f, &c->rx.piece) ||
        c->rx.piece.bytes != x->cfg.piece_bytes) {
        conn_die(c, XFER_PEER_LOST, "the peer sent a piece of another shape");
        return;
    }
    c->rx.active = true;
    c->rx.got = 0;
    c->rx.open = hand_d_piece_open(x->d, c->link, &c->rx.piece, &c->rx.block);
    if (c->rx.open && slices_flat(&x->pool)) {
        c->rx.dst = slices_piece(&x->pool, c->rx.block, c->rx.piece.layer);
    } else if (c->rx.open) {
        if (!c->rx.whole)
            c->rx.whole = xmalloc(x->cfg.piece_bytes);
        c->rx.dst = c->rx.whole;
    }
}

static void piece_end(struct conn *c, uint64_t now_ns)
{
    c->rx.active = false;
    if (c->rx.open) {
        bool sound = crc32c(0, c->rx.dst, c->rx.piece.bytes) == c->rx.piece.crc;
        if (sound && c->rx.dst == c->rx.whole)
            slices_scatter(&c->x->pool, c->rx.block, c->rx.piece.layer, c->rx.whole);
        hand_d_piece_close(c->x->d, c->link, &c->rx.piece, sound, now_ns);
    }
}

static void dispatch(struct conn *c, const struct control_frame *f, uint64_t now_ns)
{
    struct control_msg m;
    if (c->state != CONN_OPEN)
        greet_frame(c, f, now_ns);
    else if (f->type == CONTROL_PIECE)
        piece_begin(c, f);
    else if (control_msg_decode(f, &m) || !c->link)
        conn_die(c, XFER_PEER_LOST, "the peer sent what is not a message");
    else if (c->kind == CONN_OUT)
        hand_d_recv(c->x->d, c->link, &m, now_ns);
    else
        hand_p_recv(c->x->p, c->link, &m, now_ns);
}

/* Eats one thing from the front of `in` at `at`; 0: more bytes are needed. */
static size_t eat(struct conn *c, size_t at, uint64_t now_ns)
{
    const char *p = c->in.data + at;
    size_t n = c->in.n - at, need = 0;
    if (c->rx.active) {
        size_t left = c->rx.piece.bytes - c->rx.got, take = n < left ? n : left;
        if (c->rx.open && take)
            memcpy(c->rx.dst + c->rx.got, p, take);
        c->rx.got += (uint32_t)take;
        if (c->rx.got == c->rx.piece.bytes)
            piece_end(c, now_ns);
        return take;
    }
    struct control_frame f;
    if (n > 4 && !greet_expects(c, (uint8_t)p[4])) {
        conn_die(c, XFER_WRONG_PEER, "the peer speaks out of turn");
        return 0;
    }
    int64_t used = control_frame_decode(p, n, &f, &need);
    if (used < 0)
        conn_die(c, XFER_PEER_LOST, "the peer sent garbage");
    if (used > 0)
        dispatch(c, &f, now_ns);
    return used > 0 ? (size_t)used : 0;
}

static void parse(struct conn *c, uint64_t now_ns)
{
    size_t at = 0;
    if (c->rx.active && c->rx.got == c->rx.piece.bytes)
        piece_end(c, now_ns);
    while (!c->dead && at < c->in.n) {
        size_t took = eat(c, at, now_ns);
        if (!took)
            break;
        at += took;
    }
    buf_consume(&c->in, at);
}

void conn_readable(struct conn *c, uint64_t now_ns)
{
    for (int i = 0; i < ROUNDS && !c->dead; i++) {
        ssize_t n = read_some(c);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n <= 0) {
            conn_die(c, XFER_PEER_LOST, "the peer's connection ended");
            return;
        }
        parse(c, now_ns);
    }
}

/* ---- out ---- */

static bool flush_hs(struct conn *c)
{
    while (c->hs.n) {
        ssize_t n = send(c->fd, c->hs.data, c->hs.n, MSG_NOSIGNAL);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return false;
        if (n < 0) {
            conn_die(c, XFER_PEER_LOST, strerror(errno));
            return false;
        }
        buf_consume(&c->hs, (size_t)n);
    }
    return true;
}

static bool refill(struct conn *c)
{
    struct conn_tx *tx = c->tx;
    tx->at = tx->n_iov = tx->first = 0;
    buf_reset(&tx->control);
    if (c->out.n) {
        struct buf t = tx->control;
        tx->control = c->out;
        c->out = t;
        tx->iov[tx->n_iov++] = (struct iovec){tx->control.data, tx->control.n};
        tx->first = 1;
    }
    push_fill(c);
    return tx->n_iov > 0;
}

/* n bytes of tx are out of this process. */
static void advance(struct conn *c, size_t n, uint64_t now_ns)
{
    struct conn_tx *tx = c->tx;
    while (n && tx->at < tx->n_iov) {
        struct iovec *v = &tx->iov[tx->at];
        if (n < v->iov_len) {
            v->iov_base = (char *)v->iov_base + n;
            v->iov_len -= n;
            return;
        }
        n -= v->iov_len;
        uint32_t i = tx->at++ - tx->first;
        if (tx->at > tx->first && i % 2 == 1)
            hand_p_pushed(c->x->p, tx->p_id[i / 2], 1, now_ns);
    }
}

void conn_writable(struct conn *c, uint64_t now_ns)
{
    if (c->state == CONN_CONNECTING)
        greet_connected(c);
    if (c->dead || c->state == CONN_CONNECTING || !flush_hs(c) || c->state != CONN_OPEN || !c->tx)
        return;
    for (int i = 0; i < ROUNDS; i++) {
        struct conn_tx *tx = c->tx;
        if (tx->at == tx->n_iov && !refill(c))
            return;
        struct msghdr m = {.msg_iov = tx->iov + tx->at, .msg_iovlen = tx->n_iov - tx->at};
        ssize_t n = sendmsg(c->fd, &m, MSG_NOSIGNAL);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n < 0) {
            conn_die(c, XFER_PEER_LOST, strerror(errno));
            return;
        }
        advance(c, (size_t)n, now_ns);
    }
}
