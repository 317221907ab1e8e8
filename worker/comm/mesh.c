/* How the ranks of a group meet, and data between hosts. Rank r connects to rank 0 for life (see
 * watch.c) and to every lower rank of another host for data. A connection begins:
 *   listener → nonce; caller → hello, HMAC(secret, "c", nonce, hello); listener → HMAC(secret, "s",
 *   the hello's nonce, hello). All numbers little-endian. */
#include "worker/comm/comm_int.h"

#include "lib/base/addr.h"
#include "lib/base/clock.h"
#include "lib/base/rng.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/crypto.h>
#include <openssl/hmac.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define MAGIC       0x4d435442u /* "BTCM" */
#define RETRY_MS    30
#define GREET_MS    2000 /* what a caller may take to answer the nonce */
#define SEND_BUFFER (1 << 20)

enum { PURPOSE_LIFE = 1, PURPOSE_DATA = 2 };

struct hello {
    uint32_t magic, purpose, from, to, ranks, ranks_per_host;
    uint64_t session;
    uint8_t nonce[MESH_NONCE];
};
_Static_assert(sizeof(struct hello) == 48, "no padding on the wire");

uint16_t mesh_port(const struct world *w, uint32_t rank)
{
    return w->cfg.ports ? w->cfg.ports[rank]
                        : (uint16_t)(w->cfg.port + rank % w->cfg.ranks_per_host);
}

const char *mesh_host(const struct world *w, uint32_t rank)
{
    return w->hosts[rank / w->cfg.ranks_per_host];
}

/* ---- sockets ---- */

static int listen_here(struct world *w, struct err *e)
{
    struct sockaddr_storage a;
    socklen_t n;
    int on = 1;
    uint32_t me = w->cfg.rank;
    if (w->cfg.listen_fd >= 0)
        return 0;
    if (addr_parse(mesh_host(w, me), mesh_port(w, me), &a, &n))
        return err_set(e, EINVAL, "\"%s\" is not a numeric address", mesh_host(w, me));
    int fd = socket(a.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0)
        (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, n) || listen(fd, 128)) {
        int code = errno;
        close_fdp(&fd);
        return err_set(e, code, "rank %u can't listen on %s port %u: %s", me, mesh_host(w, me),
                       mesh_port(w, me), strerror(code));
    }
    w->cfg.listen_fd = fd;
    return 0;
}

static void tune(int fd)
{
    int on = 1, size = SEND_BUFFER;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
}

/* All n bytes before the deadline, or -errno. */
static int move_by(int fd, void *data, size_t n, bool out, uint64_t deadline_ns)
{
    uint8_t *p = data;
    while (n) {
        uint64_t now = clock_mono_ns();
        struct pollfd pf = {.fd = fd, .events = out ? POLLOUT : POLLIN};
        if (now >= deadline_ns)
            return -ETIMEDOUT;
        if (poll(&pf, 1, (int)((deadline_ns - now) / NS_PER_MS) + 1) <= 0)
            continue;
        ssize_t k =
            out ? send(fd, p, n, MSG_NOSIGNAL | MSG_DONTWAIT) : recv(fd, p, n, MSG_DONTWAIT);
        if (k == 0)
            return -ECONNRESET;
        if (k < 0 && errno != EAGAIN && errno != EINTR)
            return -errno;
        if (k > 0) {
            p += k;
            n -= (size_t)k;
        }
    }
    return 0;
}

static void mac(const struct world *w, char side, const uint8_t nonce[MESH_NONCE],
                const struct hello *h, uint8_t out[MESH_MAC])
{
    uint8_t text[1 + MESH_NONCE + sizeof *h];
    text[0] = (uint8_t)side;
    memcpy(text + 1, nonce, MESH_NONCE);
    memcpy(text + 1 + MESH_NONCE, h, sizeof *h);
    HMAC(EVP_sha256(), w->secret, (int)w->cfg.secret_len, text, sizeof text, out, NULL);
}

/* ---- calling ---- */

static int greet(const struct world *w, int fd, uint32_t to, uint32_t purpose, uint64_t deadline_ns)
{
    struct hello h = {.magic = MAGIC,
                      .purpose = purpose,
                      .from = w->cfg.rank,
                      .to = to,
                      .ranks = w->cfg.ranks,
                      .ranks_per_host = w->cfg.ranks_per_host,
                      .session = w->cfg.session};
    uint8_t nonce[MESH_NONCE], frame[sizeof h + MESH_MAC], want[MESH_MAC], got[MESH_MAC];
    rng_secret(h.nonce, sizeof h.nonce);
    int rc = move_by(fd, nonce, sizeof nonce, false, deadline_ns);
    memcpy(frame, &h, sizeof h);
    mac(w, 'c', nonce, &h, frame + sizeof h);
    rc = rc ? rc : move_by(fd, frame, sizeof frame, true, deadline_ns);
    rc = rc ? rc : move_by(fd, got, sizeof got, false, deadline_ns);
    mac(w, 's', h.nonce, &h, want);
    return rc ? rc : CRYPTO_memcmp(got, want, MESH_MAC) ? -EACCES : 0;
}

static int call_once(const struct world *w, uint32_t to, uint32_t purpose, uint64_t deadline_ns,
                     int *out)
{
    struct sockaddr_storage a;
    socklen_t n;
    if (addr_parse(mesh_host(w, to), mesh_port(w, to), &a, &n))
        return -EINVAL;
    int fd = socket(a.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int rc = fd < 0 ? -errno : 0;
    if (!rc && connect(fd, (struct sockaddr *)&a, n))
        rc = -errno;
    if (!rc)
        tune(fd);
    rc = rc ? rc : greet(w, fd, to, purpose, deadline_ns);
    if (rc) {
        close_fdp(&fd);
        return rc;
    }
    *out = fd;
    return 0;
}

static int call(struct world *w, uint32_t to, uint32_t purpose, uint64_t deadline_ns, struct err *e)
{
    int *fd = purpose == PURPOSE_LIFE ? &w->peers[to].life : &w->peers[to].fd;
    for (;;) {
        int rc = call_once(w, to, purpose, deadline_ns, fd);
        if (rc == 0)
            return 0;
        if (rc == -EINVAL)
            return err_set(e, EINVAL, "\"%s\" is not a numeric address", mesh_host(w, to));
        if (clock_mono_ns() + RETRY_MS * NS_PER_MS >= deadline_ns)
            return err_set(e, ETIMEDOUT, "rank %u (%s port %u) did not join within %u s: %s", to,
                           mesh_host(w, to), mesh_port(w, to), w->cfg.join_ms / 1000,
                           strerror(-rc));
        usleep(RETRY_MS * 1000);
    }
}

/* ---- being called ---- */

static bool fits(const struct world *w, const struct hello *h)
{
    const struct comm_config *c = &w->cfg;
    if (h->magic != MAGIC || h->to != c->rank || h->from >= c->ranks || h->session != c->session ||
        h->ranks != c->ranks || h->ranks_per_host != c->ranks_per_host)
        return false;
    if (h->purpose == PURPOSE_LIFE)
        return c->rank == 0 && h->from > 0 && w->peers[h->from].life < 0;
    return h->purpose == PURPOSE_DATA && h->from > c->rank && !world_is_here(w, h->from) &&
           w->peers[h->from].fd < 0;
}

static void answer(struct world *w, int fd)
{
    uint8_t nonce[MESH_NONCE], frame[sizeof(struct hello) + MESH_MAC], sum[MESH_MAC];
    struct hello h;
    uint64_t deadline_ns = clock_mono_ns() + GREET_MS * NS_PER_MS;
    rng_secret(nonce, sizeof nonce);
    int rc = move_by(fd, nonce, sizeof nonce, true, deadline_ns);
    rc = rc ? rc : move_by(fd, frame, sizeof frame, false, deadline_ns);
    memcpy(&h, frame, sizeof h);
    mac(w, 'c', nonce, &h, sum);
    if (rc || CRYPTO_memcmp(sum, frame + sizeof h, MESH_MAC) || !fits(w, &h)) {
        close(fd);
        return;
    }
    mac(w, 's', h.nonce, &h, sum);
    if (move_by(fd, sum, sizeof sum, true, deadline_ns)) {
        close(fd);
        return;
    }
    tune(fd);
    *(h.purpose == PURPOSE_LIFE ? &w->peers[h.from].life : &w->peers[h.from].fd) = fd;
}

/* The lowest rank that is still awaited; cfg.ranks: none. */
static uint32_t missing(const struct world *w)
{
    uint32_t r = w->cfg.rank + 1;
    for (; r < w->cfg.ranks; r++)
        if ((w->cfg.rank == 0 && w->peers[r].life < 0) ||
            (!world_is_here(w, r) && w->peers[r].fd < 0))
            break;
    return r;
}

static int await_callers(struct world *w, uint64_t deadline_ns, struct err *e)
{
    uint32_t r;
    while ((r = missing(w)) < w->cfg.ranks) {
        uint64_t now = clock_mono_ns();
        struct pollfd p = {.fd = w->cfg.listen_fd, .events = POLLIN};
        if (now >= deadline_ns)
            return err_set(e, ETIMEDOUT, "rank %u (%s) did not join within %u s", r,
                           mesh_host(w, r), w->cfg.join_ms / 1000);
        if (poll(&p, 1, (int)((deadline_ns - now) / NS_PER_MS) + 1) <= 0)
            continue;
        int fd = accept4(w->cfg.listen_fd, NULL, NULL, SOCK_CLOEXEC);
        if (fd >= 0)
            answer(w, fd);
    }
    return 0;
}

int mesh_join(struct world *w, struct err *e)
{
    uint32_t me = w->cfg.rank;
    uint64_t deadline_ns = clock_mono_ns() + w->cfg.join_ms * NS_PER_MS;
    int rc = missing(w) < w->cfg.ranks ? listen_here(w, e) : 0;
    if (!rc && me > 0)
        rc = call(w, 0, PURPOSE_LIFE, deadline_ns, e);
    for (uint32_t r = 0; !rc && r < me; r++)
        if (!world_is_here(w, r))
            rc = call(w, r, PURPOSE_DATA, deadline_ns, e);
    return rc ? rc : await_callers(w, deadline_ns, e);
}

/* ---- data ---- */

static ssize_t flow_move(const struct world *w, struct comm_flow *f)
{
    int fd = w->peers[f->peer].fd;
    ssize_t k = f->out ? send(fd, f->data, f->bytes, MSG_NOSIGNAL | MSG_DONTWAIT)
                       : recv(fd, f->data, f->bytes, MSG_DONTWAIT);
    if (k == 0)
        return -ECONNRESET;
    if (k < 0)
        return errno == EAGAIN || errno == EINTR ? 0 : -errno;
    f->data = (uint8_t *)f->data + k;
    f->bytes -= (size_t)k;
    return k;
}

/* A link that breaks is a death, which the watch of rank 0 names; should it not (the process lives,
 * only this link is cut), the silence after that is ended here. */
static int broken(struct world *w, uint32_t peer, ssize_t code, struct err *e)
{
    char why[128];
    for (int i = 0; i < 10 && !watch_failed(w); i++)
        usleep(20000);
    snprintf(why, sizeof why, "rank %u (%s): its connection broke: %s", peer, mesh_host(w, peer),
             strerror((int)-code));
    watch_fail(w, peer, why);
    return watch_error(w, e);
}

int mesh_try(struct world *w, struct comm_flow *f, uint32_t n, struct err *e)
{
    for (uint32_t i = 0; i < n; i++) {
        if (!f[i].bytes || world_is_here(w, f[i].peer))
            continue;
        ssize_t got = flow_move(w, &f[i]);
        if (got < 0)
            return broken(w, f[i].peer, got, e);
    }
    return 0;
}

int mesh_run(struct world *w, struct comm_flow *f, uint32_t n, struct err *e)
{
    struct pollfd p[2 * COMM_RANKS_MAX + 1];
    for (;;) {
        uint32_t k = 0;
        bool moved = false;
        for (uint32_t i = 0; i < n; i++) {
            if (!f[i].bytes || world_is_here(w, f[i].peer))
                continue;
            ssize_t got = flow_move(w, &f[i]);
            if (got < 0)
                return broken(w, f[i].peer, got, e);
            moved |= got > 0;
            if (f[i].bytes)
                p[k++] = (struct pollfd){.fd = w->peers[f[i].peer].fd,
                                         .events = f[i].out ? POLLOUT : POLLIN};
        }
        if (!k)
            return 0;
        if (watch_failed(w))
            return watch_error(w, e);
        if (moved)
            continue;
        p[k] = (struct pollfd){.fd = w->fail_fd, .events = POLLIN};
        poll(p, k + 1, WAIT_CHECK_MS);
    }
}
