#include "lib/fetch/remote.h"

#include "lib/fetch/set.h"
#include "lib/io/http.h"

#include <curl/curl.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define HOPS_MAX 5

/* One exchange. */
struct ask {
    const struct remote *r;
    int status;
    char location[REMOTE_URL_MAX], etag[256], linked[256], words[160];
    uint64_t linked_size, first, last, total, length;
    bool ranged; /* a valid Content-Range came */
    unsigned retry_after_ms;
    /* the body of a 2xx */
    int (*piece)(struct str data, void *ctx);
    void *ctx;
    uint64_t want_first, want_len, got; /* want_len 0: any body */
    const struct remote_info *info;     /* to compare with; NULL: none */
    bool probe;                         /* no body wanted */
    bool changed, misfit;
};

int remote_content_range(struct str value, uint64_t *first, uint64_t *last, uint64_t *total)
{
    struct str unit, range, a, b;
    struct str rest = str_trim(str_cut(str_trim(value), ' ', &unit));
    uint64_t x = 0, y = 0, n;
    struct str all = str_trim(str_cut(rest, '/', &range));
    range = str_trim(range);
    if (!str_ieq_c(unit, "bytes") || str_to_u64(all, 0, INT64_MAX, &n))
        return -EINVAL;
    if (!str_eq_c(range, "*")) {
        b = str_cut(range, '-', &a);
        if (str_to_u64(a, 0, INT64_MAX, &x) || str_to_u64(b, x, INT64_MAX, &y) || y >= n)
            return -EINVAL;
    }
    *first = x;
    *last = y;
    *total = n;
    return 0;
}

static void header(struct http_call *c, const char *name, char *out, size_t size)
{
    const char *v = http_header(c, name);
    snprintf(out, size, "%s", v && strlen(v) < size ? v : "");
}

static uint64_t header_u64(struct http_call *c, const char *name, uint64_t dflt)
{
    const char *v = http_header(c, name);
    uint64_t n;
    return v && str_to_u64(str_c(v), 0, INT64_MAX, &n) == 0 ? n : dflt;
}

/* "abc" and abc are one tag; a weak one says nothing about bytes. */
static void strong_tag(char *tag)
{
    size_t n = strlen(tag);
    if (n >= 2 && tag[0] == 'W' && tag[1] == '/') {
        tag[0] = 0;
    } else if (n >= 2 && tag[0] == '"' && tag[n - 1] == '"') {
        memmove(tag, tag + 1, n - 2);
        tag[n - 2] = 0;
    }
}

static bool fits(struct ask *a)
{
    if (a->want_len == 0)
        return true;
    if (a->status == 206)
        return a->ranged && a->first == a->want_first &&
               a->last == a->want_first + a->want_len - 1 &&
               (!a->info || a->total == a->info->bytes);
    return a->want_first == 0 && a->length == a->want_len;
}

static int on_headers(struct http_call *c, int status, void *ctx)
{
    struct ask *a = ctx;
    char linked[256];
    a->status = status;
    header(c, "location", a->location, sizeof a->location);
    header(c, "etag", a->etag, sizeof a->etag);
    header(c, "x-error-message", a->words, sizeof a->words);
    header(c, "x-linked-etag", linked, sizeof linked);
    if (*linked) {
        memcpy(a->linked, linked, sizeof a->linked);
        strong_tag(a->linked);
        a->linked_size = header_u64(c, "x-linked-size", UINT64_MAX);
    }
    strong_tag(a->etag);
    a->length = header_u64(c, "content-length", UINT64_MAX);
    a->retry_after_ms = (unsigned)(header_u64(c, "retry-after", 0) % 3600) * 1000;
    const char *range = http_header(c, "content-range");
    a->ranged = range && remote_content_range(str_c(range), &a->first, &a->last, &a->total) == 0;
    if (status / 100 != 2 || a->probe)
        return 1; /* all that was wanted is here */
    a->changed = a->info && *a->info->etag && *a->etag && strcmp(a->info->etag, a->etag) != 0;
    a->misfit = !fits(a);
    return a->changed || a->misfit;
}

static int on_data(struct http_call *c, struct str piece, void *ctx)
{
    struct ask *a = ctx;
    (void)c;
    if ((a->r->stop && atomic_load(a->r->stop)) || (a->want_len && piece.n > a->want_len - a->got))
        return 1;
    a->got += piece.n;
    return a->piece(piece, a->ctx);
}

/* ---- URLs ---- */

/* Scheme, host and port of a URL; false when it is none. */
static bool origin_of(const char *url, char out[512])
{
    CURLU *u = curl_url();
    char *scheme = NULL, *host = NULL, *port = NULL;
    bool ok = u && !curl_url_set(u, CURLUPART_URL, url, 0) &&
              !curl_url_get(u, CURLUPART_SCHEME, &scheme, 0) &&
              !curl_url_get(u, CURLUPART_HOST, &host, 0) &&
              !curl_url_get(u, CURLUPART_PORT, &port, CURLU_DEFAULT_PORT);
    ok = ok && snprintf(out, 512, "%s://%s:%s", scheme, host, port) < 512;
    curl_free(scheme);
    curl_free(host);
    curl_free(port);
    curl_url_cleanup(u);
    return ok;
}

static bool is_https(const char *url)
{
    return str_starts(str_c(url), STR("https://"));
}

/* Where `location` leads from `url`. */
static int resolve(const char *url, const char *location, char out[REMOTE_URL_MAX], struct err *e)
{
    CURLU *u = curl_url();
    char *full = NULL;
    int bad = !u || curl_url_set(u, CURLUPART_URL, url, 0) ||
              curl_url_set(u, CURLUPART_URL, location, 0) ||
              curl_url_get(u, CURLUPART_URL, &full, 0);
    if (!bad && strlen(full) >= REMOTE_URL_MAX)
        bad = 1;
    if (!bad && (!str_starts(str_c(full), STR("http")) || (is_https(url) && !is_https(full))))
        bad = 1;
    if (!bad)
        memcpy(out, full, strlen(full) + 1);
    curl_free(full);
    curl_url_cleanup(u);
    return bad ? err_set(e, EINVAL, "%s redirects to where it may not lead", url) : 0;
}

/* ---- exchanges ---- */

static int once(struct ask *a, const char *url, const char *range, struct err *e)
{
    const struct remote *r = a->r;
    char mine[512], theirs[512], auth[4200];
    const char *headers[3] = {NULL};
    size_t n = 0;
    bool own = origin_of(r->url, mine) && origin_of(url, theirs) && strcmp(mine, theirs) == 0;
    if (r->token && *r->token && own &&
        snprintf(auth, sizeof auth, "Authorization: Bearer %s", r->token) < (int)sizeof auth)
        headers[n++] = auth;
    if (range)
        headers[n++] = range;
    struct http_client_config c = {
        .ca_file = r->ca_file, .user_agent = "baton-agent", .proxy_env = !r->peer};
    struct http_request q = {.url = url,
                             .headers = headers,
                             .connect_timeout_ms = r->peer ? 2000 : 10000,
                             .silence_timeout_ms = r->peer ? 5000 : 30000,
                             .on_headers = on_headers,
                             .on_data = on_data,
                             .ctx = a};
    a->status = 0;
    int got = http_run(&c, &q, NULL, e);
    if (a->status && (a->status / 100 != 2 || a->probe))
        return 0; /* ended by us, on purpose */
    return got < 0 ? got : 0;
}

/* Through redirects; *at is the last URL. */
static int follow(struct ask *a, const char *from, const char *range, char at[REMOTE_URL_MAX],
                  struct err *e)
{
    if (snprintf(at, REMOTE_URL_MAX, "%s", from) >= REMOTE_URL_MAX)
        return err_set(e, EINVAL, "the URL is longer than %d characters", REMOTE_URL_MAX - 1);
    for (int hop = 0; hop <= HOPS_MAX; hop++) {
        char next[REMOTE_URL_MAX];
        int r = once(a, at, range, e);
        bool redirect = a->status / 100 == 3 && *a->location && !a->r->peer;
        if (r || !redirect)
            return r;
        if ((r = resolve(at, a->location, next, e)))
            return r;
        memcpy(at, next, sizeof next);
    }
    return err_set(e, EINVAL, "%s redirects more than %d times", from, HOPS_MAX);
}

/* A status that is no success, in words. */
static int refused(const struct ask *a, struct err *e)
{
    const struct remote *r = a->r;
    bool token = r->token && *r->token;
    const char *sep = *a->words ? ": " : "";
    switch (a->status) {
    case 401:
        if (!token && !r->peer)
            return err_set(e, EACCES,
                           "%s needs a token (HTTP 401%s%s): put one into a Secret and name it in "
                           "spec.model.tokenSecret",
                           r->url, sep, a->words);
        return err_set(e, EACCES, "%s refuses the token (HTTP 401%s%s)", r->url, sep, a->words);
    case 403:
        return err_set(e, EACCES, "%s denies access%s (HTTP 403%s%s)", r->url,
                       token ? " to this token's owner" : "", sep, a->words);
    case 404:
    case 410:
        return err_set(e, ENOENT, "%s does not exist (HTTP %d%s%s)", r->url, a->status, sep,
                       a->words);
    case 416: return err_set(e, ESTALE, "%s is shorter than it was (HTTP 416)", r->url);
    default:
        return err_set(e, a->status == 429 || a->status >= 500 ? EAGAIN : EINVAL,
                       "%s answers HTTP %d%s%s", r->url, a->status, sep, a->words);
    }
}

static int size_from(const struct ask *a, struct remote_info *info, struct err *e)
{
    if (a->status == 206 && a->ranged)
        info->bytes = a->total;
    else if (a->status == 416 && a->ranged)
        info->bytes = 0; /* not one byte */
    else if (a->status == 200 && a->length != UINT64_MAX)
        info->bytes = a->length;
    else
        return err_set(e, EINVAL, "%s does not say how large it is", a->r->url);
    if (info->bytes > SET_MAX_FILE_BYTES)
        return err_set(e, EINVAL, "%s is larger than 4 TiB", a->r->url);
    if (*a->linked && a->linked_size != UINT64_MAX && a->linked_size != info->bytes)
        return err_set(e, EAGAIN, "%s: its size is told as %llu and as %llu bytes", a->r->url,
                       (unsigned long long)a->linked_size, (unsigned long long)info->bytes);
    return 0;
}

int remote_probe(const struct remote *r, struct remote_info *out, struct err *e)
{
    struct ask a = {.r = r, .probe = true};
    struct remote_info info = {0};
    int rc = follow(&a, r->url, "Range: bytes=0-0", info.located, e);
    if (rc)
        return rc;
    bool empty = a.status == 416 && a.ranged && a.total == 0;
    if (a.status / 100 != 2 && !empty)
        return refused(&a, e);
    if ((rc = size_from(&a, &info, e)))
        return rc;
    info.ranges = a.status == 206;
    memcpy(info.etag, a.etag, sizeof info.etag);
    if (sha_is_hex(a.linked))
        memcpy(info.sha256, a.linked, sizeof info.sha256);
    *out = info;
    return 0;
}

static int read_from(struct ask *a, const char *url, struct err *e)
{
    char range[80], at[REMOTE_URL_MAX];
    bool whole = a->want_first == 0 && a->want_len == a->info->bytes;
    snprintf(range, sizeof range, "Range: bytes=%llu-%llu", (unsigned long long)a->want_first,
             (unsigned long long)(a->want_first + a->want_len - 1));
    int rc = follow(a, url, whole && !a->info->ranges ? NULL : range, at, e);
    if (a->changed)
        return err_set(e, ESTALE, "%s changed while it was fetched", a->r->url);
    if (a->misfit)
        return err_set(e, EAGAIN, "%s answered with other bytes than were asked for", a->r->url);
    if (rc)
        return rc;
    if (a->status / 100 != 2)
        return refused(a, e);
    if (a->got != a->want_len)
        return err_set(e, EPIPE, "%s: the connection ended after %llu of %llu bytes", a->r->url,
                       (unsigned long long)a->got, (unsigned long long)a->want_len);
    return 0;
}

int remote_read(const struct remote *r, const struct remote_info *info, uint64_t from, uint64_t len,
                int (*piece)(struct str data, void *ctx), void *ctx, unsigned *retry_after_ms,
                struct err *e)
{
    bool moved = strcmp(info->located, r->url) != 0;
    struct ask a = {
        .r = r, .piece = piece, .ctx = ctx, .want_first = from, .want_len = len, .info = info};
    struct ask again = a;
    int rc = read_from(&a, info->located, e);
    if ((rc == -EACCES || rc == -ENOENT) && moved) { /* signed links expire */
        rc = read_from(&again, r->url, e);
        a.retry_after_ms = again.retry_after_ms;
    }
    *retry_after_ms = a.retry_after_ms;
    return rc;
}

static int to_buf(struct str data, void *ctx)
{
    struct buf *b = ctx;
    return buf_str(b, data);
}

int remote_text(const struct remote *r, struct buf *out, unsigned *retry_after_ms, struct err *e)
{
    char at[REMOTE_URL_MAX];
    struct ask a = {.r = r, .piece = to_buf, .ctx = out};
    int rc = follow(&a, r->url, NULL, at, e);
    *retry_after_ms = a.retry_after_ms;
    if (rc == -ECANCELED && !(r->stop && atomic_load(r->stop)))
        return err_set(e, EINVAL, "%s: the answer is larger than %zu bytes", r->url, out->max);
    return rc ? rc : a.status / 100 != 2 ? refused(&a, e) : 0;
}

bool remote_permanent(int code)
{
    return code == -EACCES || code == -ENOENT || code == -EINVAL || code == -ESTALE;
}
