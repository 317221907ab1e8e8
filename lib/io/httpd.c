#include "lib/io/httpd_int.h"

#include "lib/base/log.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/epoll.h>
#include <unistd.h>

#define RESERVED_BODY                                                                              \
    (256u << 10) /* a body of up to this announced length gets its memory at once */

static void run(struct httpd *h);

static void on_idle(uv_idle_t *idle)
{
    (void)idle;
}

/* MHD_run handles what is ready; what it says about its next deadline arms the timer, or keeps the
 * loop awake. */
static void run(struct httpd *h)
{
    if (h->running || !h->d)
        return;
    h->running = true;
    h->dirty = false;
    MHD_run(h->d);
    MHD_UNSIGNED_LONG_LONG ms;
    if (MHD_get_timeout(h->d, &ms) != MHD_YES) {
        uv_timer_stop(&h->timer);
    } else if (ms == 0) {
        h->dirty = true;
    } else {
        uv_timer_start(&h->timer, h->timer.timer_cb, ms, 0);
    }
    h->running = false;
    if (h->dirty)
        uv_idle_start(&h->idle, on_idle);
    else
        uv_idle_stop(&h->idle);
}

void httpd_kick(struct httpd *h)
{
    if (!h->dirty) {
        h->dirty = true;
        if (!h->stopping)
            uv_idle_start(&h->idle, on_idle);
    }
}

static void on_poll(uv_poll_t *p, int status, int events)
{
    (void)status, (void)events;
    run(p->data);
}

static void on_timer(uv_timer_t *t)
{
    run(t->data);
}

static void on_prepare(uv_prepare_t *p)
{
    struct httpd *h = p->data;
    if (h->dirty)
        run(h);
}

/* Clients that left while their exchange was suspended: the daemon doesn't watch those sockets, so
 * we do. */
static void on_hup(uv_poll_t *p, int status, int events)
{
    struct httpd *h = p->data;
    struct epoll_event ev[64];
    (void)status, (void)events;
    int n = epoll_wait(h->hup_fd, ev, 64, 0);
    for (int i = 0; i < n; i++) {
        struct conn *c = ev[i].data.ptr;
        c->gone = true;
        if (c->req)
            httpd_req_gone(c->req);
    }
}

static void on_connection(void *ctx, struct MHD_Connection *mc, void **socket_ctx,
                          enum MHD_ConnectionNotificationCode code)
{
    struct httpd *h = ctx;
    if (code == MHD_CONNECTION_NOTIFY_CLOSED) {
        struct conn *c = *socket_ctx;
        if (c) {
            epoll_ctl(h->hup_fd, EPOLL_CTL_DEL, c->fd, NULL);
            free(c);
        }
        *socket_ctx = NULL;
        return;
    }
    struct conn *c = xcalloc(1, sizeof *c);
    c->h = h;
    c->fd = MHD_get_connection_info(mc, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
    struct epoll_event ev = {.events = EPOLLRDHUP | EPOLLET, .data.ptr = c};
    if (epoll_ctl(h->hup_fd, EPOLL_CTL_ADD, c->fd, &ev))
        log_warn("can't watch a connection for its client leaving", LS("error", strerror(errno)));
    *socket_ctx = c;
}

static void *on_uri(void *ctx, const char *uri, struct MHD_Connection *mc)
{
    (void)mc;
    return httpd_req_new(ctx, uri);
}

static size_t keep_escapes(void *ctx, struct MHD_Connection *mc, char *s)
{
    (void)ctx, (void)mc;
    return strlen(s);
}

static void refuse_large(struct httpd_req *r)
{
    char message[96];
    snprintf(message, sizeof message, "the request body is larger than the limit of %zu bytes",
             r->h->c.max_body_bytes);
    httpd_req_refuse(r, 413, message);
}

/* First sight of an exchange: refuse what must not be read. */
static enum MHD_Result begin(struct httpd_req *r, struct MHD_Connection *mc, const char *method)
{
    r->mc = mc;
    r->conn =
        *(struct conn **)(uintptr_t)&MHD_get_connection_info(mc, MHD_CONNECTION_INFO_SOCKET_CONTEXT)
             ->socket_context;
    r->conn->req = r;
    r->method = xstrdup(method);
    r->h->active++;
    const char *length = httpd_header(r, "Content-Length");
    uint64_t n = 0;
    if (r->malformed_path)
        httpd_req_refuse(r, 400, "the path has a malformed percent escape");
    else if (length && httpd_header(r, "Transfer-Encoding"))
        httpd_req_refuse(r, 400, "Content-Length and Transfer-Encoding exclude each other");
    else if (length && (str_to_u64(str_c(length), 0, UINT64_MAX, &n) || n > r->h->c.max_body_bytes))
        refuse_large(r);
    else if (n && n <= RESERVED_BODY && buf_reserve(&r->body, n))
        httpd_req_refuse(r, 503, "no memory for the request's body");
    return r->refused ? httpd_req_answer(r) : MHD_YES;
}

static enum MHD_Result on_request(void *ctx, struct MHD_Connection *mc, const char *url,
                                  const char *method, const char *version, const char *data,
                                  size_t *data_n, void **con_cls)
{
    struct httpd_req *r = *con_cls;
    (void)ctx, (void)url, (void)version;
    if (!r->mc)
        return begin(r, mc, method);
    if (*data_n) {
        if (!r->refused && buf_append(&r->body, data, *data_n))
            refuse_large(r);
        *data_n = 0;
        return MHD_YES;
    }
    if (r->state == EX_BODY) {
        r->state = EX_PENDING;
        r->in_handler = true;
        r->h->c.handler(r, r->h->c.ctx);
        r->in_handler = false;
    }
    return httpd_req_answer(r);
}

static void on_completed(void *ctx, struct MHD_Connection *mc, void **con_cls,
                         enum MHD_RequestTerminationCode code)
{
    struct httpd_req *r = *con_cls;
    (void)ctx, (void)mc;
    *con_cls = NULL;
    if (!r)
        return;
    if (r->mc)
        r->h->active--;
    if (r->conn)
        r->conn->req = NULL;
    r->state = EX_DONE;
    if (r->on_close)
        r->on_close(r, code != MHD_REQUEST_TERMINATED_COMPLETED_OK || r->gone, r->close_ctx);
    httpd_req_free(r);
}

static void ignore_mhd_log(void *ctx, const char *fmt, va_list ap)
{
    char line[256];
    (void)ctx;
    vsnprintf(line, sizeof line, fmt, ap);
    line[strcspn(line, "\n")] = 0;
    log_debug("http server", LS("detail", line));
}

static int start_daemon(struct httpd *h, struct err *e)
{
    const struct httpd_config *c = &h->c;
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_port = htons(c->port)};
    if (inet_pton(AF_INET, c->host ? c->host : "127.0.0.1", &addr.sin_addr) != 1)
        return err_set(e, EINVAL, "listen address \"%s\" is not a numeric IPv4 address", c->host);
    struct MHD_OptionItem tls[] = {{MHD_OPTION_END, 0, NULL},
                                   {MHD_OPTION_END, 0, NULL},
                                   {MHD_OPTION_END, 0, NULL},
                                   {MHD_OPTION_END, 0, NULL}};
    unsigned flags = MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG;
    int n = 0;
    if (c->tls_cert_pem) {
        flags |= MHD_USE_TLS;
        tls[n++] = (struct MHD_OptionItem){MHD_OPTION_HTTPS_MEM_CERT, 0,
                                           (void *)(uintptr_t)c->tls_cert_pem};
        tls[n++] =
            (struct MHD_OptionItem){MHD_OPTION_HTTPS_MEM_KEY, 0, (void *)(uintptr_t)c->tls_key_pem};
        if (c->tls_client_ca_pem)
            tls[n++] = (struct MHD_OptionItem){MHD_OPTION_HTTPS_MEM_TRUST, 0,
                                               (void *)(uintptr_t)c->tls_client_ca_pem};
    }
    unsigned idle = c->idle_timeout_s ? c->idle_timeout_s : 120;
    h->d = MHD_start_daemon(
        flags, c->port, NULL, NULL, on_request, h, MHD_OPTION_EXTERNAL_LOGGER, ignore_mhd_log, NULL,
        MHD_OPTION_SOCK_ADDR, &addr, MHD_OPTION_LISTENING_ADDRESS_REUSE, 1u,
        MHD_OPTION_CONNECTION_LIMIT, c->max_connections ? c->max_connections : 1024u,
        MHD_OPTION_CONNECTION_TIMEOUT, idle, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
        (size_t)(c->connection_bytes ? c->connection_bytes : 65536), MHD_OPTION_NOTIFY_CONNECTION,
        on_connection, h, MHD_OPTION_NOTIFY_COMPLETED, on_completed, h, MHD_OPTION_URI_LOG_CALLBACK,
        on_uri, h, MHD_OPTION_UNESCAPE_CALLBACK, keep_escapes, NULL, MHD_OPTION_LISTEN_BACKLOG_SIZE,
        1024u, MHD_OPTION_ARRAY, tls, MHD_OPTION_END);
    if (!h->d)
        return err_set(e, errno ? errno : EIO,
                       "can't listen on %s:%u: %s (is another program using the port?)",
                       c->host ? c->host : "127.0.0.1", c->port,
                       errno ? strerror(errno) : "TLS set-up failed");
    h->port = MHD_get_daemon_info(h->d, MHD_DAEMON_INFO_BIND_PORT)->port;
    return 0;
}

static void handle_init(struct httpd *h)
{
    int fd = MHD_get_daemon_info(h->d, MHD_DAEMON_INFO_EPOLL_FD)->epoll_fd;
    uv_loop_t *loop = h->c.loop;
    uv_poll_init(loop, &h->poll, fd);
    uv_poll_init(loop, &h->hup_poll, h->hup_fd);
    uv_timer_init(loop, &h->timer);
    uv_prepare_init(loop, &h->prepare);
    uv_idle_init(loop, &h->idle);
    h->poll.data = h->hup_poll.data = h->timer.data = h->prepare.data = h->idle.data = h;
    h->open_handles = 5;
    h->timer.timer_cb = on_timer;
    uv_poll_start(&h->poll, UV_READABLE, on_poll);
    uv_poll_start(&h->hup_poll, UV_READABLE, on_hup);
    uv_prepare_start(&h->prepare, on_prepare);
}

int httpd_start(const struct httpd_config *c, struct httpd **out, struct err *e)
{
    struct httpd *h = xcalloc(1, sizeof *h);
    h->c = *c;
    h->hup_fd = epoll_create1(EPOLL_CLOEXEC);
    errno = 0;
    int rc = h->hup_fd < 0 ? err_set(e, errno, "epoll: %s", strerror(errno)) : start_daemon(h, e);
    if (rc) {
        close_fdp(&h->hup_fd);
        free(h);
        return rc;
    }
    handle_init(h);
    httpd_kick(h);
    *out = h;
    return 0;
}

void httpd_quiesce(struct httpd *h)
{
    MHD_socket s = MHD_quiesce_daemon(h->d);
    if (s != MHD_INVALID_SOCKET)
        close(s);
}

static void on_handle_closed(uv_handle_t *handle)
{
    struct httpd *h = handle->data;
    if (--h->open_handles == 0) {
        close_fdp(&h->hup_fd);
        free(h);
    }
}

void httpd_stop(struct httpd *h)
{
    if (h->stopping)
        return;
    h->stopping = true;
    for (struct httpd_req *r = h->reqs; r; r = r->next)
        if (r->mc)
            httpd_abort(r);
    MHD_run(h->d);
    MHD_stop_daemon(h->d);
    h->d = NULL;
    uv_close((uv_handle_t *)&h->poll, on_handle_closed);
    uv_close((uv_handle_t *)&h->hup_poll, on_handle_closed);
    uv_close((uv_handle_t *)&h->timer, on_handle_closed);
    uv_close((uv_handle_t *)&h->prepare, on_handle_closed);
    uv_close((uv_handle_t *)&h->idle, on_handle_closed);
}

uint16_t httpd_port(const struct httpd *h)
{
    return h->port;
}

unsigned httpd_active(const struct httpd *h)
{
    return h->active;
}
