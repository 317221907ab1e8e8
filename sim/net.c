/* The network: lib/io's HTTP client (http.h) and server (httpd.h) over messages in virtual time.
 * Messages of one connection keep their order; everything else that a network and a busy API
 * server do is drawn from the seed. */
#include "sim/net_int.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

struct net_faults net_faults;
struct net_counts net_counts;
uint64_t net_trouble_ns;
void (*net_on_write)(struct proc *p, const char *method, const char *path, int status);

static struct rng rng;

void net_seed(uint64_t seed)
{
    rng = (struct rng){rng_at(seed, 2, 0)};
}

void net_trouble_until(uint64_t ns)
{
    if (ns > net_trouble_ns)
        net_trouble_ns = ns;
}

static bool draw(double p)
{
    return p > 0 && rng_unit(&rng) < p;
}

static uint64_t latency(void)
{
    uint64_t ns = 300 * NS_PER_US + rng_below(&rng, 2700 * NS_PER_US);
    if (!draw(net_faults.slow))
        return ns;
    net_counts.slow++;
    return ns + rng_below(&rng, net_faults.slow_ns + 1);
}

static bool is_write(const struct http_call *c)
{
    return strcmp(c->method, "GET") != 0;
}

/* ---- lives of calls ---- */

static void leave_server(void *arg)
{
    net_left(arg);
}

static void unref(struct http_call *c)
{
    if (--c->refs)
        return;
    if (c->x) { /* cancelled on its way: the server got it all the same */
        c->x->call = NULL;
        c->x->leaving = true;
        sim_at(0, leave_server, c->x);
    }
    for (size_t i = 0; i < c->n_headers; i++)
        free(c->headers[i]);
    free(c->headers);
    free(c->method);
    free(c->url);
    free(c->body);
    free(c->held.data);
    buf_fini(&c->in);
    net_pairs_free(c->answer_headers);
    free(c);
}

static void unlink_call(struct http_call *c)
{
    if (c->prev)
        c->prev->next = c->next;
    else
        c->client->calls = c->next;
    if (c->next)
        c->next->prev = c->prev;
}

/* The client's side is over, for whatever reason. */
static void end(struct http_call *c)
{
    if (c->ended)
        return;
    c->ended = true;
    unlink_call(c);
    if (c->x) {
        c->x->call = NULL;
        c->x->leaving = true;
        sim_at(latency(), leave_server, c->x);
        c->x = NULL;
    }
    unref(c);
}

static bool reachable(const struct http_call *c)
{
    return !c->ended && c->client->proc->alive;
}

static void finish(struct http_call *c, const char *error, int code)
{
    if (!reachable(c))
        return;
    struct http_response r = {
        .status = c->status, .body = buf_view(&c->in), .error = error, .code = code, .call = c};
    void (*done)(const struct http_response *, void *) = c->r.on_done;
    void *ctx = c->r.ctx;
    c->refs++;
    end(c);
    if (!c->cancelled && done)
        done(&r, ctx);
    unref(c);
}

/* ---- messages to the client ---- */

#define LIST_END "k8s.io/initial-events-end" /* of the bookmark that ends a list */

static void pump(void *arg);

static struct msg *msg_new(struct http_call *c, enum msg_kind kind)
{
    struct msg *m = xcalloc(1, sizeof *m);
    m->call = c;
    m->kind = kind;
    c->refs++;
    return m;
}

/* Messages of a call wait in order; each has a turn of the pump at its time. */
static void post(struct msg *m)
{
    struct http_call *c = m->call;
    struct msg **at = &c->queue;
    uint64_t due = sim_now() + latency();
    c->last_due = due > c->last_due ? due : c->last_due;
    m->due = c->last_due;
    while (*at)
        at = &(*at)->next;
    *at = m;
    c->refs++;
    sim_at(c->last_due - sim_now(), pump, c);
}

static void msg_free(struct msg *m)
{
    unref(m->call);
    free(m->data);
    free(m);
}

static int give_data(struct http_call *c, const char *p, size_t n)
{
    if (!c->r.on_data)
        return buf_append(&c->in, p, n);
    return c->r.on_data(c, (struct str){p, n}, c->r.ctx);
}

/* Chunks end anywhere. */
static void data(struct http_call *c, const struct msg *m)
{
    size_t first =
        c->watch && m->n > 1 && rng_below(&rng, 4) == 0 ? 1 + rng_below(&rng, m->n - 1) : m->n;
    int rc = give_data(c, m->data, first);
    if (!rc && !c->ended && first < m->n)
        rc = give_data(c, m->data + first, m->n - first);
    if (rc)
        finish(c, "the callback ended it", -ECANCELED);
}

static void deliver(struct msg *m)
{
    struct http_call *c = m->call;
    if (!reachable(c) || (c->severed && m->kind != MSG_BREAK)) {
        msg_free(m);
        return;
    }
    if (m->kind == MSG_HEAD) {
        c->status = m->status;
        if (c->r.on_headers && c->r.on_headers(c, m->status, c->r.ctx))
            finish(c, "the callback ended it", -ECANCELED);
    } else if (m->kind == MSG_DATA) {
        if (c->watch && memmem(m->data, m->n, LIST_END, sizeof LIST_END - 1))
            net_listed(c);
        data(c, m);
    } else {
        finish(c, m->kind == MSG_BREAK ? "Connection reset by peer" : NULL,
               m->kind == MSG_BREAK ? -EPIPE : 0);
    }
    msg_free(m);
}

/* Until when nothing passes; 0: it does. */
static uint64_t held_until(const struct http_call *c)
{
    const struct proc *p = c->client->proc;
    uint64_t until = p->cut_until_ns;
    if (c->watch && p->deaf_until_ns > until)
        until = p->deaf_until_ns;
    return reachable(c) && until > sim_now() ? until : 0;
}

static void pump(void *arg)
{
    struct http_call *c = arg;
    uint64_t hold = held_until(c);
    if (hold && c->queue) {
        sim_at(hold - sim_now(), pump, c);
        return;
    }
    while (c->queue && c->queue->due <= sim_now() && !held_until(c)) {
        struct msg *m = c->queue;
        c->queue = m->next;
        deliver(m);
    }
    unref(c);
}

void net_head(struct http_call *c, int status)
{
    struct msg *m = msg_new(c, MSG_HEAD);
    m->status = status;
    post(m);
}

void net_data(struct http_call *c, struct str s)
{
    struct msg *m = msg_new(c, MSG_DATA);
    m->data = str_dup(s);
    m->n = s.n;
    post(m);
}

static void release(struct http_call *c)
{
    if (!c->held.data)
        return;
    struct str s = {c->held.data, c->held.n};
    net_data(c, s);
    free(c->held.data);
    c->held.data = NULL;
}

static void release_later(void *arg)
{
    struct http_call *c = arg;
    release(c);
    unref(c);
}

/* The object that a frame of a watch is about; false for bookmarks and errors. The server writes an
 * object's name first in its metadata. */
static bool frame_key(struct str s, char out[160])
{
    static const char marks[] = "{\"type\":\"BOOKMARK\"", error[] = "{\"type\":\"ERROR\"";
    if (str_starts(s, STR(marks)) || str_starts(s, STR(error)))
        return false;
    const char *meta = memmem(s.p, s.n, "\"metadata\":{", 12);
    const char *name = meta ? memmem(meta, s.n - (size_t)(meta - s.p), "\"name\":\"", 8) : NULL;
    if (!name)
        return false;
    size_t left = s.n - (size_t)(name + 8 - s.p), n = strnlen(name + 8, left < 159 ? left : 159);
    const char *end = memchr(name + 8, '"', n);
    snprintf(out, 160, "%.*s", (int)(end ? (size_t)(end - name - 8) : n), name + 8);
    return true;
}

static void break_later(void *arg)
{
    struct http_call *c = arg;
    if (!c->ended) {
        trace("net: %s: cut %s", c->client->proc->name, c->url);
        post(msg_new(c, MSG_BREAK));
    }
    unref(c);
}

void net_cut_in(struct http_call *c, uint64_t delay_ns)
{
    c->refs++;
    sim_at(delay_ns, break_later, c);
}

/* A frame that never arrives. The server that lost it does not know the stream's versions any more:
 * the stream breaks within half a minute, and going on from where it was is refused (410). */
static void lose_frame(struct http_call *c)
{
    net_counts.lost_frames++;
    c->damaged = true;
    net_cut_in(c, NS_PER_S + rng_below(&rng, 29 * NS_PER_S));
}

static void hold_frame(struct http_call *c, struct str s, const char *key)
{
    net_counts.reordered++;
    c->held.data = str_dup(s);
    c->held.n = s.n;
    snprintf(c->held.key, sizeof c->held.key, "%s", key);
    c->refs++;
    sim_at(50 * NS_PER_MS + rng_below(&rng, 450 * NS_PER_MS), release_later, c);
}

void net_frame(struct http_call *c, struct str s)
{
    char key[160];
    bool watched = c->watch && (c->held.data || net_faults.lose_frame > 0 || net_faults.twice > 0 ||
                                net_faults.reorder > 0);
    bool about = watched && frame_key(s, key);
    if (c->held.data && (!about || strcmp(key, c->held.key) == 0))
        release(c); /* the order of one object's events is never changed */
    if (memmem(s.p, s.n, LIST_END, sizeof LIST_END - 1))
        c->listing = false;
    if (about && !c->listing && draw(net_faults.lose_frame)) { /* lists are whole or fail */
        trace("net: %s: frame lost, %s", c->client->proc->name, key);
        lose_frame(c);
        return;
    }
    if (about && !c->held.data && draw(net_faults.reorder)) {
        hold_frame(c, s, key);
        return;
    }
    net_data(c, s);
    if (about && draw(net_faults.twice)) {
        net_counts.twice++;
        net_data(c, s);
    }
    release(c);
}

void net_end(struct http_call *c, bool broken)
{
    release(c);
    post(msg_new(c, broken ? MSG_BREAK : MSG_END));
}

/* ---- what the network and a busy server answer themselves ---- */

static void refuse(struct http_call *c, int status, const char *reason, unsigned after_s)
{
    char text[400], seconds[16];
    snprintf(text, sizeof text,
             "{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"status\":\"Failure\",\"reason\":\"%s\","
             "\"code\":%d,\"message\":\"simulated: %s\",\"details\":{\"retryAfterSeconds\":%u}}",
             reason, status, reason, after_s);
    snprintf(seconds, sizeof seconds, "%u", after_s);
    if (after_s)
        net_pair(&c->answer_headers, "Retry-After", seconds);
    net_head(c, status);
    net_data(c, str_c(text));
    post(msg_new(c, MSG_END));
}

/* True: answered without the server. */
static bool refused(struct http_call *c)
{
    static const struct {
        int status;
        const char *reason;
        unsigned after;
    } answers[] = {{429, "TooManyRequests", 1},
                   {429, "TooManyRequests", 4},
                   {500, "InternalError", 0},
                   {503, "ServiceUnavailable", 1},
                   {504, "Timeout", 0}};
    if (draw(net_faults.refuse)) {
        size_t i = rng_below(&rng, sizeof answers / sizeof *answers);
        net_counts.refused++;
        trace("net: %s: %s %s refused with %d", c->client->proc->name, c->method, c->url,
              answers[i].status);
        refuse(c, answers[i].status, answers[i].reason, answers[i].after);
        return true;
    }
    if (is_write(c) && draw(net_faults.conflict)) {
        net_counts.conflicts++;
        trace("net: %s: %s %s conflicts", c->client->proc->name, c->method, c->url);
        refuse(c, 409, "Conflict", 0);
        return true;
    }
    return false;
}

/* A watch that would go on from versions that the server no longer has: 410, or an ERROR event
 * inside HTTP 200; a list from a cache that is behind: 504 with a cause that clients know. */
static bool expired(struct http_call *c)
{
    bool from_version = strstr(c->url, "resourceVersion=") && !strstr(c->url, "resourceVersion=0");
    if (!c->watch || !from_version || !(net_damaged(c) || draw(net_faults.gone)))
        return false;
    net_counts.gone++;
    trace("net: %s: %s is gone", c->client->proc->name, c->url);
    if (rng_below(&rng, 2)) {
        refuse(c, 410, "Expired", 0);
        return true;
    }
    net_head(c, 200);
    net_data(c, STR("{\"type\":\"ERROR\",\"object\":{\"kind\":\"Status\",\"apiVersion\":\"v1\","
                    "\"status\":\"Failure\",\"reason\":\"Expired\",\"code\":410,"
                    "\"message\":\"too old resource version\"}}\n"));
    post(msg_new(c, MSG_END));
    return true;
}

static void connect_fails(void *arg)
{
    struct http_call *c = arg;
    finish(c, "Connection timed out", -ETIMEDOUT);
    unref(c);
}

static void nobody_there(void *arg)
{
    struct http_call *c = arg;
    finish(c, "Connection refused", -ECONNREFUSED);
    unref(c);
}

static void arrive(void *arg)
{
    struct http_call *c = arg;
    struct proc *p = c->client->proc;
    if (!reachable(c) || c->lose_request) {
        unref(c);
        return;
    }
    if (p->cut_until_ns > sim_now()) {
        sim_at(2 * NS_PER_S, connect_fails, c);
        return;
    }
    if (!refused(c) && !expired(c)) {
        c->watch_cut = c->watch && draw(net_faults.cut_stream);
        net_dispatch(c);
        if (c->watch_cut && !c->ended) {
            net_counts.cuts++;
            net_cut_in(c, NS_PER_S + rng_below(&rng, 60 * NS_PER_S));
        }
    }
    unref(c);
}

/* The answer is on its way; it may be lost with the write done. */
bool net_answer_lost(struct http_call *c)
{
    if (!is_write(c) || !draw(net_faults.lose_answer))
        return false;
    net_counts.lost_answers++;
    trace("net: %s: the answer to %s %s is lost", c->client->proc->name, c->method, c->url);
    if (rng_below(&rng, 2))
        post(msg_new(c, MSG_BREAK));
    return true; /* silence: the client's timeout ends it */
}

static void timed_out(void *arg)
{
    struct http_call *c = arg;
    finish(c, "Operation timed out", -ETIMEDOUT);
    unref(c);
}

/* ---- lib/io/http.h ---- */

int http_client_new(const struct http_client_config *conf, struct http_client **out, struct err *e)
{
    (void)e;
    struct http_client *h = xcalloc(1, sizeof *h);
    h->proc = conf->loop->data;
    h->user_agent = xstrdup(conf->user_agent ? conf->user_agent : "baton");
    net_client_added(h);
    *out = h;
    return 0;
}

void http_client_free(struct http_client *h)
{
    while (h->calls) {
        h->calls->cancelled = true;
        end(h->calls);
    }
}

struct http_call *http_start(struct http_client *h, const struct http_request *r, struct err *e)
{
    (void)e;
    struct http_call *c = xcalloc(1, sizeof *c);
    c->client = h;
    c->r = *r;
    c->method = xstrdup(r->method ? r->method : "GET");
    c->url = xstrdup(r->url);
    c->body = str_dup(r->body);
    c->body_n = r->body.n;
    for (const char *const *t = r->headers; t && *t; t++) {
        c->headers = xrealloc(c->headers, (c->n_headers + 1) * sizeof *c->headers);
        c->headers[c->n_headers++] = xstrdup(*t);
    }
    buf_init(&c->in, r->max_body_bytes ? r->max_body_bytes : 64u << 20);
    c->watch = strstr(r->url, "watch=1") != NULL;
    c->listing = strstr(r->url, "sendInitialEvents=true") != NULL;
    c->refs = 2; /* the client's and the arrival's */
    c->next = h->calls;
    if (c->next)
        c->next->prev = c;
    h->calls = c;
    if (strncmp(r->url, SIM_SERVER "/", sizeof SIM_SERVER) != 0) {
        sim_at(latency(), nobody_there, c);
        return c;
    }
    net_counts.requests++;
    c->lose_request = draw(net_faults.lose_request);
    if (c->lose_request) {
        net_counts.lost_requests++;
        trace("net: %s: %s %s is lost", h->proc->name, c->method, c->url);
    }
    sim_at(latency(), arrive, c);
    if (r->timeout_ms) {
        c->refs++;
        sim_at((uint64_t)r->timeout_ms * NS_PER_MS, timed_out, c);
    } else if (c->lose_request) {
        net_cut_in(c, 40 * NS_PER_S);
    }
    return c;
}

void http_cancel(struct http_call *c)
{
    c->cancelled = true;
    end(c);
}

const char *http_header(const struct http_call *c, const char *name)
{
    return net_pair_get(c->answer_headers, name);
}

const char *http_header_nth(const struct http_call *c, const char *name, size_t nth)
{
    return nth ? NULL : http_header(c, name);
}

void http_client_tls(struct http_client *c, const char *ca_pem, const char *client_cert_pem,
                     const char *client_key_pem)
{
    (void)c;
    (void)ca_pem;
    (void)client_cert_pem;
    (void)client_key_pem;
}

/* Nothing that is simulated may block. */
int http_run(const struct http_client_config *conf, const struct http_request *r, struct buf *out,
             struct err *e)
{
    (void)conf;
    (void)out;
    return err_set(e, ENOSYS, "%s: a blocking request in the simulation", r->url);
}
