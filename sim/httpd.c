/* The server's half of the network: lib/io/httpd.h for the API server, whose handler is called with
 * a request when one arrives, and for requests without a network (net_call). */
#include "sim/net_int.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

struct httpd {
    struct httpd_config c;
};

/* Where net_call's answer goes. */
struct direct {
    int status;
    char *body;
};

static struct httpd *api;
static const char *writer = "nobody";
static struct http_client *clients;

/* ---- small things ---- */

void net_pair(struct pair **list, const char *name, const char *value)
{
    struct pair *p = xcalloc(1, sizeof *p);
    *p = (struct pair){*list, xstrdup(name), xstrdup(value)};
    *list = p;
}

const char *net_pair_get(const struct pair *list, const char *name)
{
    for (; list; list = list->next)
        if (strcasecmp(list->name, name) == 0)
            return list->value;
    return NULL;
}

void net_pairs_free(struct pair *p)
{
    for (struct pair *next; p; p = next) {
        next = p->next;
        free(p->name);
        free(p->value);
        free(p);
    }
}

const char *net_writer(void)
{
    return writer;
}

void net_client_added(struct http_client *h)
{
    h->next = clients;
    clients = h;
}

/* ---- damage ---- */

struct damage {
    struct damage *next;
    const struct proc *proc;
    char *kind; /* the path with its selector */
};
static struct damage *damages;

static char *kind_of(const char *url)
{
    return str_dup((struct str){url, strcspn(url, "&")});
}

static void note_damage(const struct http_call *c)
{
    struct damage *d = xcalloc(1, sizeof *d);
    *d = (struct damage){damages, c->client->proc, kind_of(c->url)};
    damages = d;
}

bool net_damaged(const struct http_call *c)
{
    CLEANUP(free_charp) char *kind = kind_of(c->url);
    for (const struct damage *d = damages; d; d = d->next)
        if (d->proc == c->client->proc && strcmp(d->kind, kind) == 0)
            return true;
    return false;
}

void net_listed(const struct http_call *c)
{
    CLEANUP(free_charp) char *kind = kind_of(c->url);
    for (struct damage **at = &damages, *d; (d = *at) != NULL;) {
        if (d->proc != c->client->proc || strcmp(d->kind, kind) != 0) {
            at = &d->next;
            continue;
        }
        *at = d->next;
        free(d->kind);
        free(d);
    }
}

/* ---- lives of requests ---- */

static void request_free(void *arg)
{
    struct httpd_req *x = arg;
    if (x->on_close)
        x->on_close(x, false, x->close_ctx);
    x->on_close = NULL;
    x->done = x->leaving;
    if (x->leaving)
        return;
    net_pairs_free(x->headers);
    net_pairs_free(x->args);
    free(x->method);
    free(x->path);
    free(x->query);
    free(x->body);
    free(x);
}

static void close_soon(struct httpd_req *x)
{
    if (x->closed)
        return;
    x->closed = true;
    if (x->call)
        x->call->x = NULL;
    x->call = NULL;
    sim_at(0, request_free, x);
}

void net_gone(struct httpd_req *x)
{
    close_soon(x);
}

void net_left(struct httpd_req *x)
{
    x->leaving = false;
    if (x->done)
        request_free(x);
    else
        close_soon(x);
}

static int hex(char c)
{
    return c <= '9' ? c - '0' : (c | 32) - 'a' + 10;
}

static char *unescape(struct str s)
{
    char *out = xmalloc(s.n + 1);
    size_t n = 0;
    for (size_t i = 0; i < s.n; i++) {
        if (s.p[i] == '%' && i + 2 < s.n) {
            out[n++] = (char)(hex(s.p[i + 1]) << 4 | hex(s.p[i + 2]));
            i += 2;
        } else {
            out[n++] = s.p[i];
        }
    }
    out[n] = 0;
    return out;
}

static struct httpd_req *request_new(const char *method, const char *path_and_query,
                                     struct str body)
{
    struct httpd_req *x = xcalloc(1, sizeof *x);
    struct str path, query = str_cut(str_c(path_and_query), '?', &path);
    x->method = xstrdup(method);
    x->path = unescape(path);
    x->query = str_dup(query);
    x->body = str_dup(body);
    x->body_n = body.n;
    return x;
}

static void serve(struct httpd_req *x, const char *who)
{
    writer = who;
    api->c.handler(x, api->c.ctx);
    sim_checks();
    writer = "nobody";
}

void net_dispatch(struct http_call *c)
{
    struct proc *p = c->client->proc;
    struct httpd_req *x =
        request_new(c->method, c->url + sizeof SIM_SERVER - 1, (struct str){c->body, c->body_n});
    bool write = strcmp(c->method, "GET") != 0;
    for (size_t i = 0; i < c->n_headers; i++) {
        struct str name, value = str_trim(str_cut(str_c(c->headers[i]), ':', &name));
        CLEANUP(free_charp) char *k = str_dup(name);
        CLEANUP(free_charp) char *v = str_dup(value);
        net_pair(&x->headers, k, v);
    }
    net_pair(&x->headers, "User-Agent", c->client->user_agent);
    x->call = c;
    c->x = x;
    serve(x, p->name);
    if (!write)
        return;
    net_counts.writes++;
    trace("api: %s: %s %s: %d", p->name, c->method, c->url + sizeof SIM_SERVER - 1, x->status);
    if (net_on_write)
        net_on_write(p, c->method, c->url, x->status);
}

int net_call(const char *user, const char *method, const char *path, const char *type, json_t *body,
             json_t **out)
{
    struct direct d = {0};
    char *text = body ? json_dumps(body, JSON_COMPACT) : NULL;
    struct httpd_req *x = request_new(method, path, str_c(text));
    CLEANUP(free_charp) char *auth = xasprintf("Bearer %s", server_token(user));
    const char *before = writer;
    json_decref(body);
    free(text);
    net_pair(&x->headers, "Authorization", auth);
    net_pair(&x->headers, "User-Agent", user);
    net_pair(&x->headers, "Content-Type", type ? type : "application/json");
    x->direct = &d;
    serve(x, user);
    writer = before;
    trace("api: %s: %s %s: %d", user, method, path, d.status);
    if (out)
        *out = d.body ? json_loads(d.body, 0, NULL) : NULL;
    free(d.body);
    return d.status;
}

/* ---- lib/io/httpd.h ---- */

int httpd_start(const struct httpd_config *c, struct httpd **out, struct err *e)
{
    (void)e;
    struct httpd *h = xcalloc(1, sizeof *h);
    h->c = *c;
    if (!api)
        api = h;
    *out = h;
    return 0;
}

void httpd_stop(struct httpd *h)
{
    (void)h;
}

uint16_t httpd_port(const struct httpd *h)
{
    (void)h;
    return 6443;
}

unsigned httpd_active(const struct httpd *h)
{
    (void)h;
    return 0;
}

struct str httpd_method(const struct httpd_req *x)
{
    return str_c(x->method);
}

struct str httpd_path(const struct httpd_req *x)
{
    return str_c(x->path);
}

struct str httpd_query(const struct httpd_req *x)
{
    return str_c(x->query);
}

const char *httpd_arg(struct httpd_req *x, const char *key)
{
    const char *known = net_pair_get(x->args, key);
    struct str rest = str_c(x->query), pair, name;
    while (!known && rest.n) {
        rest = str_cut(rest, '&', &pair);
        struct str value = str_cut(pair, '=', &name);
        if (!str_eq_c(name, key))
            continue;
        CLEANUP(free_charp) char *v = unescape(value);
        net_pair(&x->args, key, v);
        known = x->args->value;
    }
    return known;
}

const char *httpd_header(const struct httpd_req *x, const char *name)
{
    return net_pair_get(x->headers, name);
}

struct str httpd_body(const struct httpd_req *x)
{
    return (struct str){x->body, x->body_n};
}

void httpd_body_free(struct httpd_req *x)
{
    (void)x;
}

const char *httpd_peer(struct httpd_req *x)
{
    (void)x;
    return "10.0.0.1:1";
}

const char *httpd_client_cn(const struct httpd_req *x)
{
    (void)x;
    return NULL;
}

void httpd_on_close(struct httpd_req *x, httpd_close_fn fn, void *ctx)
{
    x->on_close = fn;
    x->close_ctx = ctx;
}

void httpd_set_header(struct httpd_req *x, const char *name, const char *value)
{
    if (x->call)
        net_pair(&x->call->answer_headers, name, value);
}

void httpd_reply(struct httpd_req *x, int status, const char *type, struct str body)
{
    struct http_call *c = x->call;
    (void)type;
    x->status = status;
    x->replied = true;
    if (x->direct) {
        x->direct->status = status;
        x->direct->body = str_dup(body);
    } else if (c && !net_answer_lost(c)) {
        net_head(c, status);
        net_data(c, body);
        net_end(c, false);
    }
    close_soon(x);
}

void httpd_replyf(struct httpd_req *x, int status, const char *type, const char *fmt, ...)
{
    va_list ap;
    char *text = NULL;
    va_start(ap, fmt);
    int n = vasprintf(&text, fmt, ap);
    va_end(ap);
    ASSERT(n >= 0);
    httpd_reply(x, status, type, str_c(text));
    free(text);
}

void httpd_stream_start(struct httpd_req *x, int status, const char *type, size_t max_queued)
{
    (void)type;
    (void)max_queued;
    x->status = status;
    x->streaming = true;
    if (x->call)
        net_head(x->call, status);
}

int httpd_stream_write(struct httpd_req *x, struct str data)
{
    if (x->call && x->streaming) {
        net_frame(x->call, data);
        if (x->call->damaged) {
            note_damage(x->call);
            x->call->damaged = false;
        }
    }
    return 0;
}

void httpd_stream_end(struct httpd_req *x)
{
    if (x->call)
        net_end(x->call, false);
    close_soon(x);
}

void httpd_abort(struct httpd_req *x)
{
    if (x->call)
        net_end(x->call, true);
    close_soon(x);
}

bool httpd_standard(struct httpd_req *x, const struct httpd_std *s)
{
    (void)s;
    (void)x;
    return false;
}

/* ---- cuts ---- */

void net_drop(struct proc *p, bool silent)
{
    for (struct http_client *h = clients; h; h = h->next)
        for (struct http_call *c = h->calls, *next; h->proc == p && c; c = next) {
            next = c->next;
            c->severed = !silent;
            if (!silent)
                net_cut_in(c, rng_below(&(struct rng){(uint64_t)c->last_due}, 20) * NS_PER_MS);
            if (c->x && !p->alive)
                net_gone(c->x);
        }
}

const char *net_open(const struct proc *p)
{
    for (const struct http_client *h = clients; h; h = h->next)
        for (const struct http_call *c = h->proc == p ? h->calls : NULL; c; c = c->next)
            if (!c->watch)
                return c->url;
    return NULL;
}

void net_calm(void)
{
    const struct net_faults none = {0};
    if (memcmp(&net_faults, &none, sizeof none) != 0 || net_trouble_ns > sim_now())
        net_trouble_ns = sim_now();
    net_faults = none; /* damaged streams break within half a minute */
    for (unsigned i = 0; i < control_count(); i++) {
        struct proc *p = control_proc(i);
        bool held = p->cut_until_ns > sim_now() || p->deaf_until_ns > sim_now();
        p->cut_until_ns = p->deaf_until_ns = 0;
        if (held)
            net_drop(p, false); /* what was held back would come late */
    }
}
