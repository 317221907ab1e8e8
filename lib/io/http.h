/* http.h: an asynchronous HTTP client on libcurl's multi interface inside a libuv loop, and a
 * blocking form for tools. One client belongs to one loop and its thread; callbacks happen there,
 * never inside a call of this header. Connections are kept alive and reused. Redirects are not
 * followed (they would carry the bearer token away). */
#pragma once
#include "lib/base/buf.h"

#include <uv.h>

struct http_client;
struct http_call;

struct http_response {
    int status;        /* 0: no response (see error) */
    struct str body;   /* what on_data did not take; bounded by max_body_bytes */
    const char *error; /* NULL on success; libcurl's words else ("Connection refused") */
    int code; /* negative errno for error: -ECONNREFUSED, -ETIMEDOUT, -EPIPE, -ECANCELED, -EIO,
                 -EMSGSIZE, -EPROTO (TLS: no handshake, or a certificate that is not trusted) */
    struct http_call *call; /* for http_response_header */
};

struct http_request {
    const char *method;          /* NULL: GET */
    const char *url;             /* copied */
    const char *const *headers;  /* "Name: value", NULL-terminated, or NULL; copied */
    struct str body;             /* copied */
    size_t max_body_bytes;       /* 0: 64 MiB */
    unsigned connect_timeout_ms; /* 0: 2000 */
    unsigned timeout_ms;         /* whole exchange; 0: none */
    unsigned silence_timeout_ms; /* no byte received for so long; 0: none */
    bool fresh_connection;
    unsigned max_idle_s; /* reuse no connection that was idle for longer; 0: 118 */
    /* Streaming: each piece of the body as it comes (then `body` in the response stays empty). A
     * non-zero return ends the call with -ECANCELED. */
    int (*on_headers)(struct http_call *c, int status, void *ctx);
    int (*on_data)(struct http_call *c, struct str piece, void *ctx);
    /* Exactly once, unless http_cancel was called. The call is freed after it returns. */
    void (*on_done)(const struct http_response *r, void *ctx);
    void *ctx;
};

struct http_client_config {
    uv_loop_t *loop;
    const char *ca_file, *ca_pem;                 /* for https; both NULL: the system's */
    const char *client_cert_pem, *client_key_pem; /* optional */
    bool insecure_skip_verify;
    const char *user_agent;
    unsigned max_host_connections; /* 0: unlimited */
    unsigned dead_peer_ms; /* break a connection whose peer's TCP acknowledges nothing for so long,
                              idle ones too (they are probed after 15 s); 0: the kernel's way */
    bool proxy_env;        /* honour http_proxy, https_proxy and no_proxy (for addresses outside) */
};

int http_client_new(const struct http_client_config *c, struct http_client **out,
                    struct err *e) MUST_CHECK;
/* Cancels what runs (no on_done), then frees; the loop must run once more afterwards to close the
 * handles. */
void http_client_free(struct http_client *c);

/* For requests from now on; borrowed until the client is freed, as those of the configuration. */
void http_client_tls(struct http_client *c, const char *ca_pem, const char *client_cert_pem,
                     const char *client_key_pem);

/* NULL (with *e) only for a malformed request. */
struct http_call *http_start(struct http_client *c, const struct http_request *r, struct err *e);
/* No callback happens after it; allowed inside this call's own callbacks too. */
void http_cancel(struct http_call *c);
/* Value of a response header (case-insensitive), NULL if absent. Valid in on_headers, on_data,
 * on_done. */
const char *http_header(const struct http_call *c, const char *name);
/* The nth (from 0) of the headers of that name. */
const char *http_header_nth(const struct http_call *c, const char *name, size_t nth);

/* Blocking, for tools: runs one request to its end. body is appended to out (bounded by out->max);
 * returns the HTTP status or a negative errno. r's callbacks on_headers/on_data may be used;
 * on_done is not called. `c->loop` is ignored. */
int http_run(const struct http_client_config *c, const struct http_request *r, struct buf *out,
             struct err *e) MUST_CHECK;
