#include "lib/io/http.h"

#include <curl/curl.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/socket.h>

struct http_call {
    struct http_client *client; /* NULL for http_run */
    struct http_call *prev, *next, *next_pending;
    CURL *easy;
    struct curl_slist *headers;
    char *body;
    struct http_request r;
    struct buf in, in_headers;
    char error[CURL_ERROR_SIZE];
    int status;
    unsigned dead_peer_ms;
    bool added, cancelled, refused, too_big, announced;
};

struct http_client {
    struct http_client_config c;
    CURLM *multi;
    uv_timer_t timer, kick;
    struct http_call *calls, *pending, *dead;
    int depth; /* > 0 while inside libcurl or a callback */
    int open_handles;
    bool closing;
};

struct sock {
    uv_poll_t poll;
    struct http_client *client;
    curl_socket_t fd;
};

static void global_init(void)
{
    curl_global_init(CURL_GLOBAL_DEFAULT);
}

static int cancelled(const struct http_call *c)
{
    return c->cancelled || c->refused;
}

static size_t on_body(char *p, size_t size, size_t n, void *ctx)
{
    struct http_call *c = ctx;
    n *= size;
    if (cancelled(c))
        return 0;
    if (c->r.on_data) {
        c->refused = c->r.on_data(c, (struct str){p, n}, c->r.ctx) != 0;
        return cancelled(c) ? 0 : n;
    }
    if (buf_append(&c->in, p, n)) {
        c->too_big = true;
        return 0;
    }
    return n;
}

/* libcurl gives whole lines; a status line begins a new set (100-continue, trailers don't matter
 * here). */
static size_t on_header(char *p, size_t size, size_t n, void *ctx)
{
    struct http_call *c = ctx;
    n *= size;
    if (cancelled(c))
        return 0;
    if (n > 5 && memcmp(p, "HTTP/", 5) == 0)
        buf_reset(&c->in_headers);
    if (n > 2) {
        if (buf_append(&c->in_headers, p, n))
            return 0;
        return n;
    }
    long status = 0;
    curl_easy_getinfo(c->easy, CURLINFO_RESPONSE_CODE, &status);
    if (status >= 200 && !c->announced) {
        c->announced = true;
        c->status = (int)status;
        if (c->r.on_headers)
            c->refused = c->r.on_headers(c, c->status, c->r.ctx) != 0;
    }
    return cancelled(c) ? 0 : n;
}

const char *http_header(const struct http_call *c, const char *name)
{
    return http_header_nth(c, name, 0);
}

const char *http_header_nth(const struct http_call *c, const char *name, size_t nth)
{
    static _Thread_local char value[4096];
    struct str rest = buf_view(&c->in_headers), line, key;
    while (rest.n) {
        rest = str_cut(rest, '\n', &line);
        struct str v = str_trim(str_cut(line, ':', &key));
        if (!str_ieq_c(key, name) || nth--)
            continue;
        size_t n = v.n < sizeof value - 1 ? v.n : sizeof value - 1;
        memcpy(value, v.p, n);
        value[n] = 0;
        return value;
    }
    return NULL;
}

static struct curl_blob blob(const char *pem)
{
    return (struct curl_blob){
        .data = (void *)(uintptr_t)pem, .len = strlen(pem), .flags = CURL_BLOB_NOCOPY};
}

static void set_tls(CURL *e, const struct http_client_config *c)
{
    struct curl_blob b;
    if (c->ca_file)
        curl_easy_setopt(e, CURLOPT_CAINFO, c->ca_file);
    if (c->ca_pem) {
        b = blob(c->ca_pem);
        curl_easy_setopt(e, CURLOPT_CAINFO_BLOB, &b);
    }
    if (c->client_cert_pem && c->client_key_pem) {
        curl_easy_setopt(e, CURLOPT_SSLCERTTYPE, "PEM");
        curl_easy_setopt(e, CURLOPT_SSLKEYTYPE, "PEM");
        b = blob(c->client_cert_pem);
        curl_easy_setopt(e, CURLOPT_SSLCERT_BLOB, &b);
        b = blob(c->client_key_pem);
        curl_easy_setopt(e, CURLOPT_SSLKEY_BLOB, &b);
    }
    if (c->insecure_skip_verify) {
        curl_easy_setopt(e, CURLOPT_SSL_VERIFYPEER, 0L);
        curl_easy_setopt(e, CURLOPT_SSL_VERIFYHOST, 0L);
    }
}

static void set_method(CURL *e, const struct http_call *c)
{
    const char *m = c->r.method;
    curl_easy_setopt(e, CURLOPT_CUSTOMREQUEST, m);
    if (strcmp(m, "HEAD") == 0)
        curl_easy_setopt(e, CURLOPT_NOBODY, 1L);
    if (c->r.body.n || strcmp(m, "POST") == 0 || strcmp(m, "PUT") == 0 || strcmp(m, "PATCH") == 0) {
        curl_easy_setopt(e, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)c->r.body.n);
        curl_easy_setopt(e, CURLOPT_POSTFIELDS, c->body);
    }
}

static int on_socket_made(void *ctx, curl_socket_t fd, curlsocktype purpose)
{
    const struct http_call *c = ctx;
    (void)purpose;
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &c->dead_peer_ms, sizeof c->dead_peer_ms);
    return CURL_SOCKOPT_OK;
}

static void set_options(struct http_call *c, const struct http_client_config *conf)
{
    CURL *e = c->easy;
    c->dead_peer_ms = conf->dead_peer_ms;
    if (c->dead_peer_ms) {
        curl_easy_setopt(e, CURLOPT_SOCKOPTFUNCTION, on_socket_made);
        curl_easy_setopt(e, CURLOPT_SOCKOPTDATA, c);
    }
    if (c->r.max_idle_s)
        curl_easy_setopt(e, CURLOPT_MAXAGE_CONN, (long)c->r.max_idle_s);
    curl_easy_setopt(e, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(e, CURLOPT_FOLLOWLOCATION, 0L);
    curl_easy_setopt(e, CURLOPT_PROTOCOLS_STR, "http,https");
    if (!conf->proxy_env)
        curl_easy_setopt(e, CURLOPT_NOPROXY, "*");
    curl_easy_setopt(e, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(e, CURLOPT_USERAGENT, conf->user_agent ? conf->user_agent : "baton");
    curl_easy_setopt(e, CURLOPT_HTTPHEADER, c->headers);
    curl_easy_setopt(e, CURLOPT_ERRORBUFFER, c->error);
    curl_easy_setopt(e, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(e, CURLOPT_WRITEDATA, c);
    curl_easy_setopt(e, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(e, CURLOPT_HEADERDATA, c);
    curl_easy_setopt(e, CURLOPT_PRIVATE, c);
    curl_easy_setopt(e, CURLOPT_TCP_KEEPALIVE, 1L);
    curl_easy_setopt(e, CURLOPT_TCP_KEEPIDLE, 15L);
    curl_easy_setopt(e, CURLOPT_TCP_KEEPINTVL, 5L);
    curl_easy_setopt(e, CURLOPT_CONNECTTIMEOUT_MS,
                     (long)(c->r.connect_timeout_ms ? c->r.connect_timeout_ms : 2000));
    curl_easy_setopt(e, CURLOPT_TIMEOUT_MS, (long)c->r.timeout_ms);
    if (c->r.silence_timeout_ms) {
        curl_easy_setopt(e, CURLOPT_LOW_SPEED_LIMIT, 1L);
        curl_easy_setopt(e, CURLOPT_LOW_SPEED_TIME, (long)((c->r.silence_timeout_ms + 999) / 1000));
    }
    if (c->r.fresh_connection)
        curl_easy_setopt(e, CURLOPT_FRESH_CONNECT, 1L);
    set_tls(e, conf);
    set_method(e, c);
}

static void call_free(struct http_call *c)
{
    if (c->easy)
        curl_easy_cleanup(c->easy);
    curl_slist_free_all(c->headers);
    free((void *)(uintptr_t)c->r.method);
    free(c->body);
    buf_fini(&c->in);
    buf_fini(&c->in_headers);
    free(c);
}

static struct http_call *call_new(const struct http_client_config *conf,
                                  const struct http_request *r, struct err *e)
{
    struct http_call *c = xcalloc(1, sizeof *c);
    c->r = *r;
    c->r.method = xstrdup(r->method ? r->method : "GET");
    c->body = str_dup(r->body);
    c->easy = curl_easy_init();
    ASSERT(c->easy);
    buf_init(&c->in, r->max_body_bytes ? r->max_body_bytes : (size_t)64 << 20);
    buf_init(&c->in_headers, 65536);
    c->headers = curl_slist_append(NULL, "Expect:");
    for (const char *const *h = r->headers; h && *h; h++)
        c->headers = curl_slist_append(c->headers, *h);
    CURLcode rc = curl_easy_setopt(c->easy, CURLOPT_URL, r->url);
    CURLU *u = curl_url();
    CURLUcode bad = curl_url_set(u, CURLUPART_URL, r->url, 0);
    curl_url_cleanup(u);
    if (rc != CURLE_OK || bad) {
        err_set(e, EINVAL, "\"%s\" is not a URL that can be called: %s", r->url,
                curl_url_strerror(bad));
        call_free(c);
        return NULL;
    }
    set_options(c, conf);
    return c;
}

/* What libcurl says, as an errno. */
static int code_of(const struct http_call *c, CURLcode rc)
{
    long os = 0;
    if (c->too_big)
        return -EMSGSIZE;
    if (cancelled(c))
        return -ECANCELED;
    curl_easy_getinfo(c->easy, CURLINFO_OS_ERRNO, &os);
    switch (rc) {
    case CURLE_OPERATION_TIMEDOUT: return -ETIMEDOUT;
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_PEER_FAILED_VERIFICATION: return -EPROTO;
    case CURLE_COULDNT_CONNECT: return os ? (int)-os : -ECONNREFUSED;
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_GOT_NOTHING:
    case CURLE_PARTIAL_FILE: return -EPIPE;
    default: return -EIO;
    }
}

static struct http_response response_of(struct http_call *c, CURLcode rc)
{
    struct http_response out = {.body = buf_view(&c->in), .call = c};
    long status = 0;
    curl_easy_getinfo(c->easy, CURLINFO_RESPONSE_CODE, &status);
    out.status = (int)status;
    if (rc != CURLE_OK) {
        out.code = code_of(c, rc);
        out.error = c->too_big    ? "the response is larger than the limit"
                    : c->error[0] ? c->error
                                  : curl_easy_strerror(rc);
    }
    return out;
}

/* ---- the multi handle in the loop ---- */

static void settle(struct http_client *h);

static void enter(struct http_client *h)
{
    h->depth++;
}

static void leave(struct http_client *h)
{
    if (--h->depth == 0)
        settle(h);
}

static void unlink_call(struct http_call *c)
{
    struct http_client *h = c->client;
    if (c->prev)
        c->prev->next = c->next;
    else
        h->calls = c->next;
    if (c->next)
        c->next->prev = c->prev;
}

static void finish(struct http_call *c, CURLcode rc)
{
    struct http_client *h = c->client;
    curl_multi_remove_handle(h->multi, c->easy);
    unlink_call(c);
    if (!c->cancelled && c->r.on_done) {
        struct http_response resp = response_of(c, rc);
        enter(h);
        c->r.on_done(&resp, c->r.ctx);
        h->depth--;
    }
    call_free(c);
}

/* Outside libcurl: add what was started, remove what was cancelled, report what ended. */
static void settle(struct http_client *h)
{
    for (;;) {
        struct http_call *c = h->pending;
        if (c) {
            h->pending = c->next_pending;
            if (c->cancelled) {
                finish(c, CURLE_OK);
            } else {
                c->added = true;
                enter(h);
                curl_multi_add_handle(h->multi, c->easy);
                h->depth--;
            }
            continue;
        }
        if ((c = h->dead)) {
            h->dead = c->next_pending;
            finish(c, CURLE_OK);
            continue;
        }
        int left;
        CURLMsg *m = curl_multi_info_read(h->multi, &left);
        if (!m)
            return;
        CURLcode rc = m->data.result;
        curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, &c);
        if (!c->cancelled)
            finish(c, rc);
    }
}

static void act(struct http_client *h, curl_socket_t fd, int what)
{
    int running;
    enter(h);
    curl_multi_socket_action(h->multi, fd, what, &running);
    leave(h);
}

static void on_timer(uv_timer_t *t)
{
    act(t->data, CURL_SOCKET_TIMEOUT, 0);
}

static void on_kick(uv_timer_t *t)
{
    struct http_client *h = t->data;
    if (h->depth == 0)
        settle(h);
}

static int set_timer(CURLM *m, long ms, void *ctx)
{
    struct http_client *h = ctx;
    (void)m;
    if (ms < 0)
        uv_timer_stop(&h->timer);
    else
        uv_timer_start(&h->timer, on_timer, (uint64_t)ms, 0);
    return 0;
}

static void on_socket(uv_poll_t *p, int status, int events)
{
    struct sock *s = p->data;
    int what = (events & UV_READABLE ? CURL_CSELECT_IN : 0) |
               (events & UV_WRITABLE ? CURL_CSELECT_OUT : 0);
    act(s->client, s->fd, status < 0 ? CURL_CSELECT_ERR : what);
}

static void on_sock_closed(uv_handle_t *p)
{
    struct sock *s = p->data;
    free(s);
}

static int set_socket(CURL *easy, curl_socket_t fd, int what, void *ctx, void *socket_ctx)
{
    struct http_client *h = ctx;
    struct sock *s = socket_ctx;
    (void)easy;
    if (what == CURL_POLL_REMOVE) {
        if (s) {
            uv_poll_stop(&s->poll);
            curl_multi_assign(h->multi, fd, NULL);
            uv_close((uv_handle_t *)&s->poll, on_sock_closed);
        }
        return 0;
    }
    if (!s) {
        s = xcalloc(1, sizeof *s);
        s->client = h;
        s->fd = fd;
        if (uv_poll_init_socket(h->c.loop, &s->poll, fd)) {
            free(s);
            return -1;
        }
        s->poll.data = s;
        curl_multi_assign(h->multi, fd, s);
    }
    uv_poll_start(&s->poll,
                  (what & CURL_POLL_IN ? UV_READABLE : 0) |
                      (what & CURL_POLL_OUT ? UV_WRITABLE : 0),
                  on_socket);
    return 0;
}

int http_client_new(const struct http_client_config *c, struct http_client **out, struct err *e)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, global_init);
    struct http_client *h = xcalloc(1, sizeof *h);
    h->c = *c;
    h->multi = curl_multi_init();
    if (!h->multi) {
        free(h);
        return err_set(e, ENOMEM, "libcurl: can't make a multi handle");
    }
    curl_multi_setopt(h->multi, CURLMOPT_SOCKETFUNCTION, set_socket);
    curl_multi_setopt(h->multi, CURLMOPT_SOCKETDATA, h);
    curl_multi_setopt(h->multi, CURLMOPT_TIMERFUNCTION, set_timer);
    curl_multi_setopt(h->multi, CURLMOPT_TIMERDATA, h);
    if (c->max_host_connections)
        curl_multi_setopt(h->multi, CURLMOPT_MAX_HOST_CONNECTIONS, (long)c->max_host_connections);
    uv_timer_init(c->loop, &h->timer);
    uv_timer_init(c->loop, &h->kick);
    h->timer.data = h->kick.data = h;
    h->open_handles = 2;
    *out = h;
    return 0;
}

static void on_handle_closed(uv_handle_t *p)
{
    struct http_client *h = p->data;
    if (--h->open_handles == 0)
        free(h);
}

void http_client_free(struct http_client *h)
{
    if (h->closing)
        return;
    h->closing = true;
    enter(h);
    while (h->calls) {
        struct http_call *c = h->calls;
        c->cancelled = true;
        finish(c, CURLE_OK);
    }
    curl_multi_cleanup(h->multi);
    uv_close((uv_handle_t *)&h->timer, on_handle_closed);
    uv_close((uv_handle_t *)&h->kick, on_handle_closed);
}

void http_client_tls(struct http_client *c, const char *ca_pem, const char *client_cert_pem,
                     const char *client_key_pem)
{
    c->c.ca_pem = ca_pem;
    c->c.client_cert_pem = client_cert_pem;
    c->c.client_key_pem = client_key_pem;
}

struct http_call *http_start(struct http_client *h, const struct http_request *r, struct err *e)
{
    struct http_call *c = call_new(&h->c, r, e);
    if (!c)
        return NULL;
    c->client = h;
    c->next = h->calls;
    if (c->next)
        c->next->prev = c;
    h->calls = c;
    struct http_call **at = &h->pending;
    while (*at)
        at = &(*at)->next_pending;
    *at = c;
    uv_timer_start(&h->kick, on_kick, 0, 0);
    return c;
}

void http_cancel(struct http_call *c)
{
    struct http_client *h = c->client;
    if (c->cancelled)
        return;
    c->cancelled = true;
    if (!c->added)
        return; /* still pending: settle drops it */
    c->next_pending = h->dead;
    h->dead = c;
    uv_timer_start(&h->kick, on_kick, 0, 0);
}

int http_run(const struct http_client_config *conf, const struct http_request *r, struct buf *out,
             struct err *e)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, global_init);
    struct http_request bounded = *r;
    if (out)
        bounded.max_body_bytes = out->max;
    struct http_call *c = call_new(conf, &bounded, e);
    if (!c)
        return -EINVAL;
    CURLcode rc = curl_easy_perform(c->easy);
    struct http_response resp = response_of(c, rc);
    int result = resp.status;
    if (resp.error)
        result = err_set(e, -resp.code, "%s %s: %s", c->r.method, r->url, resp.error);
    else if (out && buf_str(out, resp.body))
        result = err_set(e, EMSGSIZE, "%s: the response is larger than the limit", r->url);
    call_free(c);
    return result;
}
