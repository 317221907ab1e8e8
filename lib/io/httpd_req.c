#include "lib/io/httpd_int.h"

#include "lib/base/metrics.h"

#include <arpa/inet.h>
#include <errno.h>
#include <gnutls/gnutls.h>
#include <gnutls/x509.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int hex(char c)
{
    return c >= '0' && c <= '9'                 ? c - '0'
           : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10
                                                : -1;
}

/* Percent-decodes s; NULL for a broken escape or a NUL byte. Heap. */
static char *unescape(struct str s, bool plus)
{
    char *out = xmalloc(s.n + 1);
    size_t n = 0;
    for (size_t i = 0; i < s.n; i++) {
        char c = s.p[i];
        if (c == '%') {
            int hi = i + 2 < s.n ? hex(s.p[i + 1]) : -1, lo = hi >= 0 ? hex(s.p[i + 2]) : -1;
            if (lo < 0) {
                free(out);
                return NULL;
            }
            c = (char)(hi << 4 | lo);
            i += 2;
        } else if (c == '+' && plus) {
            c = ' ';
        }
        if (c == 0) {
            free(out);
            return NULL;
        }
        out[n++] = c;
    }
    out[n] = 0;
    return out;
}

void httpd_req_refuse(struct httpd_req *r, int status, const char *message)
{
    r->refused = true;
    if (r->h->c.refuse)
        r->h->c.refuse(r, status, message, r->h->c.ctx);
    else
        httpd_replyf(r, status, "text/plain", "%s\n", message);
}

struct httpd_req *httpd_req_new(struct httpd *h, const char *uri)
{
    struct httpd_req *r = xcalloc(1, sizeof *r);
    struct str path;
    r->h = h;
    r->uri = xstrdup(uri);
    r->query = str_cut(str_c(r->uri), '?', &path);
    r->path = unescape(path, false);
    buf_init(&r->body, h->c.max_body_bytes);
    r->next = h->reqs;
    if (r->next)
        r->next->prev = r;
    h->reqs = r;
    r->malformed_path = !r->path;
    if (!r->path)
        r->path = xstrdup("/");
    return r;
}

static void free_headers(struct header *x)
{
    for (struct header *next; x; x = next) {
        next = x->next;
        free(x->name);
        free(x->value);
        free(x);
    }
}

void httpd_req_free(struct httpd_req *r)
{
    if (r->prev)
        r->prev->next = r->next;
    else
        r->h->reqs = r->next;
    if (r->next)
        r->next->prev = r->prev;
    if (r->response)
        MHD_destroy_response(r->response);
    free_headers(r->headers);
    free_headers(r->args);
    buf_fini(&r->body);
    buf_fini(&r->queue);
    free(r->method);
    free(r->uri);
    free(r->path);
    free(r);
}

struct str httpd_method(const struct httpd_req *r)
{
    return str_c(r->method);
}

struct str httpd_path(const struct httpd_req *r)
{
    return str_c(r->path);
}

struct str httpd_query(const struct httpd_req *r)
{
    return r->query;
}

const char *httpd_arg(struct httpd_req *r, const char *key)
{
    struct str rest = r->query, pair, name;
    for (struct header *a = r->args; a; a = a->next)
        if (strcmp(a->name, key) == 0)
            return a->value;
    while (rest.n) {
        rest = str_cut(rest, '&', &pair);
        struct str value = str_cut(pair, '=', &name);
        CLEANUP(free_charp) char *k = unescape(name, true);
        if (!k || strcmp(k, key) != 0)
            continue;
        char *v = unescape(value, true);
        if (!v)
            return NULL;
        struct header *a = xmalloc(sizeof *a);
        *a = (struct header){xstrdup(key), v, r->args};
        r->args = a;
        return v;
    }
    return NULL;
}

const char *httpd_header(const struct httpd_req *r, const char *name)
{
    return MHD_lookup_connection_value(r->mc, MHD_HEADER_KIND, name);
}

struct str httpd_body(const struct httpd_req *r)
{
    return buf_view(&r->body);
}

void httpd_body_free(struct httpd_req *r)
{
    buf_fini(&r->body);
}

static void describe_peer(struct httpd_req *r)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(r->mc, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    char host[48] = "?";
    uint16_t port = 0;
    if (info && info->client_addr->sa_family == AF_INET) {
        const struct sockaddr_in *a = (const struct sockaddr_in *)(const void *)info->client_addr;
        inet_ntop(AF_INET, &a->sin_addr, host, sizeof host);
        port = ntohs(a->sin_port);
    }
    snprintf(r->peer, sizeof r->peer, "%s:%u", host, port);
}

const char *httpd_peer(struct httpd_req *r)
{
    if (!*r->peer)
        describe_peer(r);
    return r->peer;
}

const char *httpd_client_cn(const struct httpd_req *r)
{
    static _Thread_local char cn[256];
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(r->mc, MHD_CONNECTION_INFO_GNUTLS_SESSION);
    unsigned verdict = 1, n = 0;
    if (!info || !r->h->c.tls_client_ca_pem)
        return NULL;
    gnutls_session_t session = info->tls_session;
    const gnutls_datum_t *list = gnutls_certificate_get_peers(session, &n);
    if (!list || n == 0 || gnutls_certificate_verify_peers2(session, &verdict) || verdict)
        return NULL;
    gnutls_x509_crt_t crt;
    size_t size = sizeof cn;
    if (gnutls_x509_crt_init(&crt))
        return NULL;
    int rc = gnutls_x509_crt_import(crt, &list[0], GNUTLS_X509_FMT_DER);
    rc = rc ? rc : gnutls_x509_crt_get_dn_by_oid(crt, GNUTLS_OID_X520_COMMON_NAME, 0, 0, cn, &size);
    gnutls_x509_crt_deinit(crt);
    return rc ? NULL : cn;
}

void *httpd_user(const struct httpd_req *r)
{
    return r->user;
}

void httpd_set_user(struct httpd_req *r, void *user)
{
    r->user = user;
}

void httpd_on_close(struct httpd_req *r, httpd_close_fn fn, void *ctx)
{
    r->on_close = fn;
    r->close_ctx = ctx;
}

void httpd_set_header(struct httpd_req *r, const char *name, const char *value)
{
    for (const char *p = value; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            return;
    struct header *x = xmalloc(sizeof *x);
    *x = (struct header){xstrdup(name), xstrdup(value), r->headers};
    r->headers = x;
}

void httpd_default_header(struct httpd_req *r, const char *name, const char *value)
{
    for (const struct header *x = r->headers; x; x = x->next)
        if (strcmp(x->name, name) == 0)
            return;
    httpd_set_header(r, name, value);
}

void httpd_req_resume(struct httpd_req *r)
{
    if (r->suspended) {
        r->suspended = false;
        MHD_resume_connection(r->mc);
        httpd_kick(r->h);
    }
}

void httpd_req_gone(struct httpd_req *r)
{
    r->gone = true;
    httpd_req_resume(r);
}

static void set_response(struct httpd_req *r, int status, const char *content_type,
                         enum exchange state)
{
    if (content_type)
        MHD_add_response_header(r->response, MHD_HTTP_HEADER_CONTENT_TYPE, content_type);
    for (struct header *x = r->headers; x; x = x->next)
        MHD_add_response_header(r->response, x->name, x->value);
    r->status = status;
    r->state = state;
    httpd_req_resume(r);
}

void httpd_reply(struct httpd_req *r, int status, const char *content_type, struct str body)
{
    if (r->state > EX_PENDING)
        return;
    r->response =
        MHD_create_response_from_buffer(body.n, (void *)(uintptr_t)body.p, MHD_RESPMEM_MUST_COPY);
    ASSERT(r->response);
    set_response(r, status, content_type, EX_REPLY);
}

void httpd_replyf(struct httpd_req *r, int status, const char *content_type, const char *fmt, ...)
{
    char *text = NULL;
    va_list ap;
    va_start(ap, fmt);
    int n = vasprintf(&text, fmt, ap);
    va_end(ap);
    ASSERT(n >= 0);
    httpd_reply(r, status, content_type, (struct str){text, (size_t)n});
    free(text);
}

#define FILE_PIECE (256u << 10) /* the library's own reader of files takes 4 KiB at a time */

struct file_part {
    int fd;
    uint64_t offset, len;
};

static ssize_t read_file(void *ctx, uint64_t pos, char *out, size_t max)
{
    const struct file_part *f = ctx;
    size_t left = (size_t)(f->len - pos);
    ssize_t n = pread(f->fd, out, left < max ? left : max, (off_t)(f->offset + pos));
    return n > 0 ? n : MHD_CONTENT_READER_END_WITH_ERROR;
}

static void close_file(void *ctx)
{
    struct file_part *f = ctx;
    close(f->fd);
    free(f);
}

void httpd_reply_file(struct httpd_req *r, int status, const char *content_type, int fd,
                      uint64_t offset, uint64_t len)
{
    if (r->state > EX_PENDING) {
        close(fd);
        return;
    }
    struct file_part *f = xmalloc(sizeof *f);
    *f = (struct file_part){fd, offset, len};
    r->response = MHD_create_response_from_callback(len, FILE_PIECE, read_file, f, close_file);
    ASSERT(r->response);
    set_response(r, status, content_type, EX_REPLY);
}

/* The daemon wants bytes. With none to give, the connection is suspended until there are. */
static ssize_t read_stream(void *ctx, uint64_t pos, char *out, size_t max)
{
    struct httpd_req *r = ctx;
    (void)pos;
    if (r->gone || r->aborted)
        return MHD_CONTENT_READER_END_WITH_ERROR;
    size_t n = r->queue.n - r->queue_at;
    if (n == 0) {
        if (r->ended)
            return MHD_CONTENT_READER_END_OF_STREAM;
        r->suspended = true;
        MHD_suspend_connection(r->mc);
        return 0;
    }
    n = n < max ? n : max;
    memcpy(out, r->queue.data + r->queue_at, n);
    r->queue_at += n;
    if (r->queue_at == r->queue.n) {
        buf_reset(&r->queue);
        r->queue_at = 0;
    }
    return (ssize_t)n;
}

void httpd_stream_start(struct httpd_req *r, int status, const char *content_type,
                        size_t max_queued)
{
    if (r->state > EX_PENDING)
        return;
    buf_init(&r->queue, max_queued);
    r->response = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 32768, read_stream, r, NULL);
    ASSERT(r->response);
    set_response(r, status, content_type, EX_STREAM);
}

int httpd_stream_write(struct httpd_req *r, struct str data)
{
    if (r->gone || r->aborted || r->state != EX_STREAM)
        return -EPIPE;
    if (r->queue_at && r->queue.n + data.n > r->queue.max / 2) {
        buf_consume(&r->queue, r->queue_at);
        r->queue_at = 0;
    }
    int rc = buf_append(&r->queue, data.p, data.n);
    if (!rc && data.n)
        httpd_req_resume(r);
    return rc;
}

size_t httpd_stream_queued(const struct httpd_req *r)
{
    return r->queue.n - r->queue_at;
}

void httpd_stream_end(struct httpd_req *r)
{
    r->ended = true;
    httpd_req_resume(r);
}

void httpd_abort(struct httpd_req *r)
{
    r->aborted = true;
    httpd_req_resume(r);
}

enum MHD_Result httpd_req_answer(struct httpd_req *r)
{
    if (r->gone || r->aborted)
        return MHD_NO;
    if (!r->response) {
        r->suspended = true;
        MHD_suspend_connection(r->mc);
        return MHD_YES;
    }
    enum MHD_Result ok = MHD_queue_response(r->mc, (unsigned)r->status, r->response);
    MHD_destroy_response(r->response);
    r->response = NULL;
    return ok;
}

bool httpd_standard(struct httpd_req *r, const struct httpd_std *s)
{
    struct str path = httpd_path(r);
    struct buf b;
    buf_init(&b, 16u << 20);
    bool mine = true;
    if (str_eq_c(path, "/healthz") || str_eq_c(path, "/livez")) {
        httpd_reply(r, 200, "text/plain", STR("ok\n"));
    } else if (str_eq_c(path, "/readyz")) {
        bool ready = !s->ready || s->ready(s->ctx, &b);
        if (ready)
            buf_reset(&b);
        if (buf_cstr(&b, ready ? "ok\n" : "\n") == 0)
            httpd_reply(r, ready ? 200 : 503, "text/plain", buf_view(&b));
    } else if (str_eq_c(path, "/metrics")) {
        int rc = metrics_write(&b);
        httpd_reply(r, rc ? 500 : 200, METRICS_CONTENT_TYPE, buf_view(&b));
    } else if (str_eq_c(path, "/debug/state")) {
        int rc = s->state ? s->state(s->ctx, &b) : buf_cstr(&b, "{}");
        httpd_reply(r, rc ? 500 : 200, "application/json", buf_view(&b));
    } else {
        mine = false;
    }
    buf_fini(&b);
    return mine;
}
