/* httpd.h: an HTTP/1.1 server on libmicrohttpd inside a libuv loop (external epoll,
 * suspend/resume). One server belongs to one loop and its thread; every call and callback happens
 * there.
 *
 * A handler is called once the whole request body (bounded) is in. It answers now (httpd_reply) or
 * later, from the same thread: httpd_reply, or httpd_stream_start and then httpd_stream_write …
 * httpd_stream_end. A request object lives until its on_close callback, which is called exactly
 * once when the exchange is over, also when the client left (then `gone` is true; calls on the
 * request in between are harmless). A client that leaves while nothing is being written is seen at
 * once (EPOLLRDHUP). Requests with both Content-Length and Transfer-Encoding are refused (400). */
#pragma once
#include "lib/base/buf.h"

#include <uv.h>

struct httpd;
struct httpd_req;

typedef void (*httpd_handler)(struct httpd_req *req, void *ctx);
typedef void (*httpd_close_fn)(struct httpd_req *req, bool gone, void *ctx);

struct httpd_config {
    uv_loop_t *loop;
    const char *host; /* numeric address */
    uint16_t port;    /* 0: any; see httpd_port */
    size_t max_body_bytes;
    unsigned max_connections;  /* 0: 1024 */
    unsigned connection_bytes; /* memory of a connection: bounds its headers; cleared each request.
                                  0: 64 KiB */
    unsigned idle_timeout_s; /* keep-alive; 0: 120. Streams and pending replies are never timed out
                                by the server */
    const char *tls_cert_pem, *tls_key_pem; /* both or neither */
    const char *tls_client_ca_pem;          /* optional: ask for client certificates */
    httpd_handler handler;
    /* Words the server's own refusals (a body too large, a malformed path or framing): must
     * httpd_reply. NULL: plain text. */
    void (*refuse)(struct httpd_req *req, int status, const char *message, void *ctx);
    void *ctx;
};

int httpd_start(const struct httpd_config *c, struct httpd **out, struct err *e) MUST_CHECK;
/* Stops listening; running exchanges go on. Then httpd_stop closes everything (on_close is called
 * for each). */
void httpd_quiesce(struct httpd *h);
void httpd_stop(struct httpd *h);
uint16_t httpd_port(const struct httpd *h);
unsigned httpd_active(const struct httpd *h); /* exchanges whose reply is not finished */

struct str httpd_method(const struct httpd_req *r);
struct str
httpd_path(const struct httpd_req *r); /* percent-decoded, without the query; never has NUL bytes */
struct str httpd_query(const struct httpd_req *r); /* raw, without '?' */
/* Percent-decoded value of a query argument; NULL when absent. Lives as long as the request.
 * Repeated keys: the first. */
const char *httpd_arg(struct httpd_req *r, const char *key);
const char *httpd_header(const struct httpd_req *r, const char *name); /* NULL when absent */
struct str httpd_body(
    const struct httpd_req *r); /* 16-byte aligned; valid until on_close or httpd_body_free */
void httpd_body_free(struct httpd_req *r);   /* early, once parsed */
const char *httpd_peer(struct httpd_req *r); /* "127.0.0.1:1234" */
const char *httpd_client_cn(
    const struct httpd_req *r); /* common name of a verified client certificate, or NULL */

void *httpd_user(const struct httpd_req *r);
void httpd_set_user(struct httpd_req *r, void *user);
void httpd_on_close(struct httpd_req *r, httpd_close_fn fn, void *ctx);

/* Response headers, before the reply or the stream starts. Values with control characters are
 * dropped. The second does nothing when the name (in lower case both times) is set already. */
void httpd_set_header(struct httpd_req *r, const char *name, const char *value);
void httpd_default_header(struct httpd_req *r, const char *name, const char *value);
/* The whole reply, copied. Must be called once a request (or httpd_stream_start). */
void httpd_reply(struct httpd_req *r, int status, const char *content_type, struct str body);
void httpd_replyf(struct httpd_req *r, int status, const char *content_type, const char *fmt, ...)
    PRINTF_LIKE(4, 5);
/* `len` bytes of a file from `offset`, read as they are sent. fd is taken over. */
void httpd_reply_file(struct httpd_req *r, int status, const char *content_type, int fd,
                      uint64_t offset, uint64_t len);

/* A whole file, or the part of it that the request's Range names (one range); 404 when it can't be
 * opened. etag NULL: none. Returns the number of bytes that will be sent. */
uint64_t httpd_reply_path(struct httpd_req *r, const char *path, const char *etag);

/* A streamed reply (chunked). Writes are queued (copied) and flushed by the loop; -EMSGSIZE when
 * more than max_queued bytes wait for a slow client (the caller should httpd_abort), -EPIPE when
 * the client is gone. */
void httpd_stream_start(struct httpd_req *r, int status, const char *content_type,
                        size_t max_queued);
int httpd_stream_write(struct httpd_req *r, struct str data) MUST_CHECK;
size_t httpd_stream_queued(const struct httpd_req *r);
void httpd_stream_end(struct httpd_req *r);
void httpd_abort(
    struct httpd_req *r); /* closes the connection without ending the stream properly */

/* Answers /healthz, /readyz, /metrics and /debug/state when the path is one of them (true). ready
 * and state may be NULL; state appends a JSON object. */
struct httpd_std {
    bool (*ready)(void *ctx, struct buf *why);
    int (*state)(void *ctx, struct buf *out);
    void *ctx;
};
bool httpd_standard(struct httpd_req *r, const struct httpd_std *s);
