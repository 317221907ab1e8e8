#include "lib/xfer/xfer.h"

#include "lib/base/addr.h"
#include "lib/base/log.h"
#include "lib/base/metrics.h"
#include "lib/xfer/conn.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#define LEASE_DEFAULT_MS 2000u

static const char *const reason_names[XFER_REASONS] = {
    [XFER_OK] = "ok",
    [XFER_PEER_LOST] = "peer_lost",
    [XFER_LEASE_LOST] = "lease_lost",
    [XFER_WRONG_PEER] = "wrong_peer",
    [XFER_PEER_FAILED] = "peer_failed",
    [XFER_BY_REJECT] = "rejected",
    [XFER_BY_ABORT] = "aborted",
    [XFER_CORRUPT] = "corrupt",
    [XFER_INCOMPLETE] = "incomplete",
    [XFER_SHUTDOWN] = "shutdown",
};

const char *xfer_reason_name(enum xfer_reason r)
{
    return r < XFER_REASONS ? reason_names[r] : "unknown";
}

const char *xfer_path_name(enum xfer_path p)
{
    static const char *const names[] = {"none", "shm", "tcp"};
    return p <= XFER_PATH_TCP ? names[p] : "unknown";
}

/* ---- start and stop ---- */

static int listen_tcp(struct xfer *x, struct err *e)
{
    struct sockaddr_storage a;
    socklen_t n;
    int on = 1;
    if (addr_parse(x->host, x->cfg.port, &a, &n))
        return err_set(e, EINVAL, "\"%s\" is not a numeric address to listen on", x->host);
    x->listener = socket(a.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (x->listener < 0)
        return err_set(e, errno, "socket: %s", strerror(errno));
    (void)setsockopt(x->listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(x->listener, (struct sockaddr *)&a, n) || listen(x->listener, 256) ||
        getsockname(x->listener, (struct sockaddr *)&a, &n))
        return err_set(e, errno, "KV transfer on %s port %u: %s", x->host, x->cfg.port,
                       strerror(errno));
    x->port = ntohs(a.ss_family == AF_INET ? ((struct sockaddr_in *)&a)->sin_port
                                           : ((struct sockaddr_in6 *)&a)->sin6_port);
    return 0;
}

static int check(const struct xfer_cfg *c, struct err *e)
{
    if (!c->host || !c->incarnation)
        return err_set(e, EINVAL, "KV transfer needs an address and an incarnation");
    if (!c->secret_len || c->secret_len > XFER_SECRET_MAX)
        return err_set(e, EINVAL, "the peer secret must have 1 to %d bytes", XFER_SECRET_MAX);
    if (!c->n_blocks || !c->n_layers || !c->piece_bytes || c->piece_bytes > UINT32_MAX ||
        c->n_layers > 4096 || c->n_layers * c->piece_bytes > c->block_bytes)
        return err_set(e, EINVAL, "a KV pool of %u blocks of %zu bytes, %u layers of %zu, can't be",
                       c->n_blocks, c->block_bytes, c->n_layers, c->piece_bytes);
    return 0;
}

static void metrics(struct xfer_metrics *m)
{
    struct metric_family *f =
        metric_family(METRIC_COUNTER, "baton_kv_transfer_bytes_total",
                      "KV bytes received in transfers that completed, by path.", "path", NULL, 0);
    for (enum xfer_path p = XFER_PATH_NONE; p <= XFER_PATH_TCP; p++)
        m->bytes[p] = metric_series(f, xfer_path_name(p));
    f = metric_family(METRIC_COUNTER, "baton_kv_transfer_failures_total",
                      "KV transfers ordered by this worker that failed, by reason.", "reason", NULL,
                      0);
    for (int r = 0; r < XFER_REASONS; r++)
        m->failures[r] = metric_series(f, reason_names[r]);
    static const double bounds[] = {.0005, .001, .0025, .005, .01, .025, .05, .1,
                                    .25,   .5,   1,     2.5,  5,   10,   30};
    f = metric_family(METRIC_HISTOGRAM, "baton_kv_transfer_seconds",
                      "Time from the grant of blocks to the last byte.", "", bounds,
                      sizeof bounds / sizeof *bounds);
    m->seconds = metric_series(f);
    m->quarantined =
        metric_new(METRIC_GAUGE, "baton_kv_quarantined_blocks",
                   "Blocks of failed transfers whose writer is not yet known to have stopped.");
    m->links = metric_new(METRIC_GAUGE, "baton_kv_links", "Open connections to other workers.");
}

static int watch(struct xfer *x, int fd, void *who, struct err *e)
{
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = who};
    if (fd < 0 || epoll_ctl(x->epoll, EPOLL_CTL_ADD, fd, &ev) == 0)
        return 0;
    return err_set(e, errno, "epoll_ctl: %s", strerror(errno));
}

/* A directory that can't be used costs the fast path, not the worker, unless nothing else is
 * allowed. */
static int listen_shm(struct xfer *x, struct err *e)
{
    struct err why = {0};
    if (shm_listen(x, &why) == 0)
        return 0;
    if (x->cfg.policy == XFER_ONLY_SHM)
        return err_set(e, why.code, "%s", why.msg);
    log_warn("KV from workers on this host comes by TCP: the shared directory can't be used",
             LERR(&why));
    close_fdp(&x->shm_listener);
    return 0;
}

static int start(struct xfer *x, struct err *e)
{
    int rc = post_init(&x->commands, e);
    if (!rc)
        rc = post_init(&x->events, e);
    if (!rc)
        rc = listen_tcp(x, e);
    if (!rc && x->shm_dir && x->cfg.policy != XFER_ONLY_TCP)
        rc = listen_shm(x, e);
    x->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (!rc)
        rc = watch(x, x->commands.fd, &x->commands, e);
    if (!rc)
        rc = watch(x, x->listener, &x->listener, e);
    if (!rc)
        rc = watch(x, x->shm_listener, &x->shm_listener, e);
    if (rc)
        return rc;
    rc = pthread_create(&x->thread, NULL, loop_main, x);
    x->started = rc == 0;
    return rc ? err_set(e, rc, "transfer thread: %s", strerror(rc)) : 0;
}

int xfer_new(const struct xfer_cfg *cfg, struct xfer **out, struct err *e)
{
    struct slices pool;
    int rc = check(cfg, e);
    rc = rc ? rc : slices_of(cfg, &pool, e);
    if (rc)
        return rc;
    struct xfer *x = xcalloc(1, sizeof *x);
    x->cfg = *cfg;
    x->pool = pool;
    x->host = xstrdup(cfg->host);
    x->shm_dir = cfg->shm_dir && *cfg->shm_dir ? xstrdup(cfg->shm_dir) : NULL;
    x->cfg.lease_ms = cfg->lease_ms ? cfg->lease_ms : LEASE_DEFAULT_MS;
    memcpy(x->secret.key, cfg->secret, cfg->secret_len);
    x->secret.n = cfg->secret_len;
    x->epoll = x->listener = x->shm_listener = x->shm_dir_fd = x->commands.fd = x->events.fd = -1;
    x->next_id = 2;
    struct hand_cfg h = {.me = cfg->incarnation,
                         .lease_ns = (uint64_t)x->cfg.lease_ms * 1000000u,
                         .n_blocks = cfg->n_blocks,
                         .n_layers = cfg->n_layers,
                         .piece_bytes = cfg->piece_bytes,
                         .ops = &loop_ops,
                         .ctx = x};
    x->d = hand_d_new(&h);
    x->p = hand_p_new(&h);
    metrics(&x->metrics);
    rc = start(x, e);
    if (rc) {
        xfer_free(x);
        return rc;
    }
    *out = x;
    return 0;
}

void xfer_free(struct xfer *x)
{
    if (!x)
        return;
    x->stop = true;
    if (x->started) {
        uint64_t one = 1;
        (void)!write(x->commands.fd, &one, sizeof one);
        pthread_join(x->thread, NULL);
    }
    shm_unlisten(x);
    close_fdp(&x->listener);
    close_fdp(&x->epoll);
    hand_d_free(x->d);
    hand_p_free(x->p);
    for (struct post_letter *l = x->taken, *next; l; l = next) {
        next = l->next;
        free(l);
    }
    free(x->current);
    post_fini(&x->commands);
    post_fini(&x->events);
    free(x->host);
    free(x->shm_dir);
    free(x);
}

uint16_t xfer_port(const struct xfer *x)
{
    return x->port;
}

/* ---- commands ---- */

static struct command *command(enum command_kind kind, uint64_t id, const void *data, size_t n)
{
    struct command *c = xcalloc(1, sizeof *c + n);
    c->kind = kind;
    c->id = id;
    c->data_bytes = n;
    if (n)
        memcpy(c->data, data, n);
    return c;
}

static int parse_peer(struct str peer, struct command *c)
{
    char host[64];
    if (peer.n < 19 || peer.p[peer.n - 17] != ':')
        return -EINVAL;
    uint8_t inc[8];
    if (str_from_hex((struct str){peer.p + peer.n - 16, 16}, inc, sizeof inc))
        return -EINVAL;
    for (int i = 0; i < 8; i++)
        c->peer = c->peer << 8 | inc[i];
    struct str hp = {peer.p, peer.n - 17};
    size_t colon = hp.n;
    while (colon && hp.p[colon - 1] != ':')
        colon--;
    uint64_t port;
    if (colon < 2 || str_to_u64((struct str){hp.p + colon, hp.n - colon}, 1, 65535, &port))
        return -EINVAL;
    struct str h = {hp.p, colon - 1};
    if (h.n > 2 && h.p[0] == '[' && h.p[h.n - 1] == ']')
        h = (struct str){h.p + 1, h.n - 2};
    if (h.n >= sizeof host)
        return -EINVAL;
    memcpy(host, h.p, h.n);
    host[h.n] = '\0';
    return addr_parse(host, (uint16_t)port, &c->addr, &c->addr_len);
}

int xfer_order(struct xfer *x, struct str peer, const void *payload, size_t n, uint64_t *id,
               struct err *e)
{
    if (n > XFER_PAYLOAD_MAX)
        return err_set(e, EINVAL, "an order of %zu bytes is too big", n);
    struct command *c = command(COMMAND_ORDER, x->next_id, payload, n);
    if (parse_peer(peer, c)) {
        free(c);
        return err_set(e, EINVAL, "\"" STR_FMT "\" is not host:port:incarnation",
                       peer.n > 100 ? 100 : (int)peer.n, peer.p);
    }
    *id = x->next_id;
    x->next_id += 2;
    post_send(&x->commands, &c->letter);
    return 0;
}

void xfer_grant(struct xfer *x, uint64_t id, const uint32_t *blocks, uint32_t n)
{
    struct command *c = command(COMMAND_GRANT, id, blocks, n * sizeof *blocks);
    c->n = n;
    post_send(&x->commands, &c->letter);
}

static void send_text(struct xfer *x, enum command_kind kind, uint64_t id, const char *text)
{
    post_send(&x->commands,
              &command(kind, id, text ? text : "", text ? strlen(text) + 1 : 1)->letter);
}

void xfer_reject(struct xfer *x, uint64_t id, const char *reason)
{
    send_text(x, COMMAND_REJECT, id, reason);
}

void xfer_abort(struct xfer *x, uint64_t id, const char *reason)
{
    send_text(x, COMMAND_ABORT, id, reason);
}

void xfer_ask(struct xfer *x, uint64_t id, uint32_t n_blocks)
{
    struct command *c = command(COMMAND_ASK, id, NULL, 0);
    c->n = n_blocks;
    post_send(&x->commands, &c->letter);
}

void xfer_push(struct xfer *x, uint64_t id, uint32_t layer, const struct xfer_piece *pieces,
               uint32_t n)
{
    struct command *c = command(COMMAND_PUSH, id, pieces, n * sizeof *pieces);
    c->n = n;
    c->layer = layer;
    post_send(&x->commands, &c->letter);
}

void xfer_done(struct xfer *x, uint64_t id, const void *payload, size_t n)
{
    ASSERT(n <= XFER_PAYLOAD_MAX);
    post_send(&x->commands, &command(COMMAND_DONE, id, payload, n)->letter);
}

void xfer_fail(struct xfer *x, uint64_t id, const char *reason)
{
    send_text(x, COMMAND_FAIL, id, reason);
}

/* ---- events ---- */

int xfer_poll(struct xfer *x, struct xfer_event *out)
{
    free(x->current);
    x->current = NULL;
    if (!x->taken)
        x->taken = post_take(&x->events);
    if (!x->taken)
        return 0;
    x->current = x->taken;
    x->taken = x->taken->next;
    *out = ((struct happening *)x->current)->event;
    return 1;
}

int xfer_fd(const struct xfer *x)
{
    return x->events.fd;
}

void xfer_stats(const struct xfer *x, struct xfer_stats *out)
{
    *out = (struct xfer_stats){.links = x->n_links,
                               .as_d = x->n_d,
                               .as_p = x->n_p,
                               .quarantined_blocks = x->n_quarantined};
}
