#include "lib/io/conn.h"

#include "lib/base/clock.h"

#include <errno.h>
#include <stdlib.h>

#define READ_BYTES  65536
#define TICK_MS     50
#define IDLE_MAX_NS (60 * NS_PER_S)

struct conn;

struct peer {
    struct sockaddr_storage addr;
    struct conn *idle; /* newest first */
    unsigned n_idle, n_all;
    struct peer *next;
};

struct conn_call {
    struct conn *conn;
    struct conn_request r; /* host, head and body are not kept */
    uint64_t connect_by_ns, last_byte_ns;
    bool answered; /* some byte of the answer came */
    bool reused;
};

struct conn {
    uv_tcp_t tcp;
    uv_connect_t connect;
    struct conn_pool *pool;
    struct peer *peer;
    struct conn_call *call;
    struct codec codec;
    struct buf unsent; /* while connecting */
    bool connected, closing;
    uint64_t idle_since_ns;
    struct conn *prev, *next;           /* all connections of the pool */
    struct conn *prev_idle, *next_idle; /* of the peer */
};

struct conn_pool {
    uv_loop_t *loop;
    uv_timer_t tick;
    unsigned max_idle;
    struct peer *peers;
    struct conn *all;
    unsigned n_conns;
    bool closing, tick_closed;
    struct conn_pool_stats stats;
    char read_buf[READ_BYTES];
};

static void finish(struct conn_call *call, int code);

static bool same_addr(const struct sockaddr_storage *a, const struct sockaddr_storage *b)
{
    if (a->ss_family != b->ss_family)
        return false;
    size_t n = a->ss_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
    return memcmp(a, b, n) == 0;
}

static struct peer *find_peer(struct conn_pool *p, const struct sockaddr_storage *addr)
{
    for (struct peer **at = &p->peers; *at; at = &(*at)->next) {
        struct peer *peer = *at;
        if (same_addr(&peer->addr, addr)) {
            *at = peer->next; /* to the front: the next look-up is likely for the same */
            peer->next = p->peers;
            return p->peers = peer;
        }
    }
    struct peer *peer = xcalloc(1, sizeof *peer);
    peer->addr = *addr;
    peer->next = p->peers;
    return p->peers = peer;
}

static void drop_unused_peers(struct conn_pool *p)
{
    for (struct peer **at = &p->peers; *at;) {
        struct peer *peer = *at;
        if (peer->n_all) {
            at = &peer->next;
            continue;
        }
        *at = peer->next;
        free(peer);
    }
}

static void free_pool_when_empty(struct conn_pool *p)
{
    if (!p->closing || !p->tick_closed || p->n_conns)
        return;
    drop_unused_peers(p);
    free(p);
}

static void idle_remove(struct conn *c)
{
    struct peer *peer = c->peer;
    if (c->prev_idle)
        c->prev_idle->next_idle = c->next_idle;
    else
        peer->idle = c->next_idle;
    if (c->next_idle)
        c->next_idle->prev_idle = c->prev_idle;
    c->prev_idle = c->next_idle = NULL;
    c->idle_since_ns = 0;
    peer->n_idle--;
    c->pool->stats.idle--;
}

static void idle_add(struct conn *c)
{
    struct peer *peer = c->peer;
    c->idle_since_ns = clock_mono_ns();
    c->next_idle = peer->idle;
    if (peer->idle)
        peer->idle->prev_idle = c;
    peer->idle = c;
    peer->n_idle++;
    c->pool->stats.idle++;
}

static void on_closed(uv_handle_t *h)
{
    struct conn *c = h->data;
    struct conn_pool *p = c->pool;
    if (c->prev)
        c->prev->next = c->next;
    else
        p->all = c->next;
    if (c->next)
        c->next->prev = c->prev;
    c->peer->n_all--;
    p->n_conns--;
    codec_fini(&c->codec);
    buf_fini(&c->unsent);
    free(c);
    free_pool_when_empty(p);
}

static void close_conn(struct conn *c)
{
    if (c->closing)
        return;
    c->closing = true;
    if (c->idle_since_ns)
        idle_remove(c);
    uv_close((uv_handle_t *)&c->tcp, on_closed);
}

/* Ends the exchange; the connection goes back to the idle ones when it may. */
static void finish(struct conn_call *call, int code)
{
    struct conn *c = call->conn;
    struct conn_pool *p = c->pool;
    int status = call->answered && c->codec.state != CODEC_IN_HEAD ? c->codec.status : 0;
    bool stale = code && call->reused && !call->answered && code != -ETIMEDOUT;
    bool keep = !code && c->codec.keep_alive && c->peer->n_idle < p->max_idle && !p->closing;
    c->call = NULL;
    p->stats.active--;
    if (!keep)
        close_conn(c);
    if (call->r.on_done)
        call->r.on_done(call, status, code, stale, call->r.ctx);
    if (keep && !c->closing) {
        codec_reset(&c->codec);
        idle_add(c);
    }
    free(call);
}

/* Feeds the codec and calls back until the data is used or the exchange has ended. */
static void take(struct conn *c, struct str data)
{
    struct conn_call *call;
    while ((call = c->call)) {
        struct str piece = {0};
        int rc = 0, ev = codec_feed(&c->codec, &data, &piece, NULL);
        if (ev < 0) {
            finish(call, ev);
        } else if (ev == CODEC_MORE) {
            return;
        } else if (ev == CODEC_HEADERS && call->r.on_headers) {
            rc = call->r.on_headers(call, c->codec.status, call->r.ctx);
        } else if (ev == CODEC_DATA && call->r.on_data) {
            rc = call->r.on_data(call, piece, call->r.ctx);
        } else if (ev == CODEC_DONE) {
            if (data.n)
                c->codec.keep_alive = false;
            finish(call, 0);
            return;
        }
        if (rc && c->call == call)
            finish(call, -ECANCELED);
    }
}

static void on_alloc(uv_handle_t *h, size_t suggested, uv_buf_t *out)
{
    (void)suggested;
    struct conn *c = h->data;
    *out = uv_buf_init(c->pool->read_buf, READ_BYTES);
}

static void on_read(uv_stream_t *s, ssize_t n, const uv_buf_t *b)
{
    struct conn *c = s->data;
    if (c->closing || n == 0)
        return;
    if (!c->call) { /* idle: an end, or bytes that nobody asked for */
        close_conn(c);
        return;
    }
    if (n < 0) {
        int code = n == UV_EOF ? codec_eof(&c->codec) : (int)n;
        c->codec.keep_alive = false;
        finish(c->call, code == CODEC_DONE ? 0 : code);
        return;
    }
    c->call->answered = true;
    c->call->last_byte_ns = clock_mono_ns();
    take(c, (struct str){b->base, (size_t)n});
}

static void on_written(uv_write_t *w, int status)
{
    (void)status; /* a failed write shows as the end of reading */
    free(w);
}

/* Writes at once what the socket takes; the rest is copied and queued. */
static int send_parts(struct conn *c, struct str head, struct str body)
{
    uv_buf_t parts[2] = {uv_buf_init((char *)(uintptr_t)head.p, (unsigned)head.n),
                         uv_buf_init((char *)(uintptr_t)body.p, (unsigned)body.n)};
    int n = uv_try_write((uv_stream_t *)&c->tcp, parts, body.n ? 2 : 1);
    size_t done = n > 0 ? (size_t)n : 0, total = head.n + body.n;
    if (done == total || (n < 0 && n != UV_EAGAIN))
        return 0;
    uv_write_t *w = malloc(sizeof *w + total - done);
    if (!w)
        return -ENOMEM;
    char *copy = (char *)(w + 1);
    size_t from_head = done < head.n ? head.n - done : 0;
    if (from_head)
        memcpy(copy, head.p + done, from_head);
    size_t body_at = done > head.n ? done - head.n : 0;
    if (body.n > body_at)
        memcpy(copy + from_head, body.p + body_at, body.n - body_at);
    uv_buf_t rest = uv_buf_init(copy, (unsigned)(total - done));
    if (uv_write(w, (uv_stream_t *)&c->tcp, &rest, 1, on_written))
        free(w);
    return 0;
}

static void on_connected(uv_connect_t *req, int status)
{
    struct conn *c = req->data;
    if (c->closing || !c->call)
        return;
    if (status) {
        finish(c->call, status);
        return;
    }
    c->connected = true;
    c->call->last_byte_ns = clock_mono_ns();
    uv_tcp_nodelay(&c->tcp, 1);
    uv_read_start((uv_stream_t *)&c->tcp, on_alloc, on_read);
    int rc = send_parts(c, buf_view(&c->unsent), (struct str){0});
    buf_fini(&c->unsent);
    if (rc)
        finish(c->call, rc);
}

static struct conn *open_conn(struct conn_pool *p, struct peer *peer, const struct conn_request *r,
                              struct err *e)
{
    struct conn *c = xcalloc(1, sizeof *c);
    buf_init(&c->unsent, r->head.n + r->body.n + 1);
    if (buf_append(&c->unsent, r->head.p, r->head.n) ||
        buf_append(&c->unsent, r->body.p, r->body.n)) {
        buf_fini(&c->unsent);
        free(c);
        err_set(e, ENOMEM, "no memory for a request of %zu bytes", r->body.n);
        return NULL;
    }
    c->pool = p;
    c->peer = peer;
    codec_init(&c->codec);
    uv_tcp_init(p->loop, &c->tcp);
    c->tcp.data = c->connect.data = c;
    c->next = p->all;
    if (p->all)
        p->all->prev = c;
    p->all = c;
    p->n_conns++;
    peer->n_all++;
    int rc =
        uv_tcp_connect(&c->connect, &c->tcp, (const struct sockaddr *)&peer->addr, on_connected);
    if (rc) {
        close_conn(c);
        err_set(e, -rc, "connect: %s", uv_strerror(rc));
        return NULL;
    }
    p->stats.opened++;
    return c;
}

static int parse_addr(const struct conn_request *r, struct sockaddr_storage *out, struct err *e)
{
    memset(out, 0, sizeof *out);
    if (uv_ip4_addr(r->host, r->port, (struct sockaddr_in *)out) == 0 ||
        uv_ip6_addr(r->host, r->port, (struct sockaddr_in6 *)out) == 0)
        return 0;
    return err_set(e, EINVAL, "\"%s\" is not a numeric address", r->host);
}

struct conn_call *conn_start(struct conn_pool *p, const struct conn_request *r, struct err *e)
{
    struct sockaddr_storage addr;
    if (parse_addr(r, &addr, e))
        return NULL;
    struct peer *peer = find_peer(p, &addr);
    struct conn *c = r->fresh ? NULL : peer->idle;
    bool reused = c;
    if (c)
        idle_remove(c);
    else if (!(c = open_conn(p, peer, r, e)))
        return NULL;
    struct conn_call *call = xcalloc(1, sizeof *call);
    unsigned connect_ms = r->connect_timeout_ms ? r->connect_timeout_ms : 1000;
    uint64_t now = clock_mono_ns();
    *call = (struct conn_call){.conn = c,
                               .r = *r,
                               .connect_by_ns = now + connect_ms * NS_PER_MS,
                               .last_byte_ns = now,
                               .reused = reused};
    c->call = call;
    p->stats.active++;
    if (reused) {
        p->stats.reused++;
        if (send_parts(c, r->head, r->body)) {
            conn_cancel(call);
            err_set(e, ENOMEM, "no memory for a request of %zu bytes", r->body.n);
            return NULL;
        }
    }
    call->r.head = call->r.body = (struct str){0};
    call->r.host = NULL;
    return call;
}

void conn_cancel(struct conn_call *call)
{
    struct conn *c = call->conn;
    ASSERT(c->call == call);
    c->call = NULL;
    c->pool->stats.active--;
    close_conn(c);
    free(call);
}

struct str conn_header(const struct conn_call *call, const char *name)
{
    return codec_header(&call->conn->codec, name);
}

static bool overdue(const struct conn *c, uint64_t now)
{
    const struct conn_call *call = c->call;
    if (!c->connected)
        return now > call->connect_by_ns;
    uint64_t silence_ns = call->r.silence_timeout_ms * NS_PER_MS;
    return silence_ns && now > call->last_byte_ns + silence_ns;
}

static void on_tick(uv_timer_t *t)
{
    struct conn_pool *p = t->data;
    uint64_t now = clock_mono_ns();
    for (struct conn *c = p->all, *next; c; c = next) {
        next = c->next; /* closing is deferred: next stays valid */
        if (c->closing)
            continue;
        if (c->call && overdue(c, now))
            finish(c->call, -ETIMEDOUT);
        else if (c->idle_since_ns && now > c->idle_since_ns + IDLE_MAX_NS)
            close_conn(c);
    }
    drop_unused_peers(p);
}

struct conn_pool *conn_pool_new(uv_loop_t *loop, unsigned max_idle_per_peer)
{
    struct conn_pool *p = xcalloc(1, sizeof *p);
    p->loop = loop;
    p->max_idle = max_idle_per_peer ? max_idle_per_peer : 64;
    uv_timer_init(loop, &p->tick);
    p->tick.data = p;
    uv_timer_start(&p->tick, on_tick, TICK_MS, TICK_MS);
    return p;
}

static void on_tick_closed(uv_handle_t *h)
{
    struct conn_pool *p = h->data;
    p->tick_closed = true;
    free_pool_when_empty(p);
}

void conn_pool_free(struct conn_pool *p)
{
    if (!p)
        return;
    p->closing = true;
    for (struct conn *c = p->all; c; c = c->next) {
        if (c->call) {
            free(c->call);
            c->call = NULL;
        }
        close_conn(c);
    }
    uv_close((uv_handle_t *)&p->tick, on_tick_closed);
}

void conn_pool_stats(const struct conn_pool *p, struct conn_pool_stats *out)
{
    *out = p->stats;
}
