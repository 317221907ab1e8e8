#include "lib/kube/watch.h"

#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/base/rng.h"
#include "lib/json/view_scan.h"
#include "lib/kube/client_int.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <uthash.h>
#include <utlist.h>

#define FRAME_MAX   (8u << 20)
#define STATUS_MAX  65536
#define LIST_MAX    (256u << 20)
#define ARENA_MAX   (64u << 20)
#define HEALTHY_NS  (120 * NS_PER_S)
#define QUICK_NS    (1 * NS_PER_S)
#define LIST_LIFE_S 600 /* a list that its end cuts short would be begun again for ever */
#define INITIAL_END "k8s.io/initial-events-end"

struct seen {
    UT_hash_handle hh;
    uint64_t round; /* the list in which it was last seen */
    char *uid;
    char key[];
};

struct kube_watch {
    struct kube_watch *prev, *next; /* of the client's unhurried ones */
    struct kube_client *client;
    struct kube_watch_config cfg;
    char *namespace, *label_selector, *field_selector;
    struct http_call *call;
    uv_timer_t timer;
    struct buf line;
    struct seen *seen;
    struct rng rng;
    uint64_t round, opened_ns;
    uint64_t healthy_ns; /* since when nothing failed; 0: since the last failure nothing worked */
    unsigned failures;
    unsigned retry_after_ms; /* of an ERROR event */
    char *rv;                /* where to go on watching; NULL: list first */
    bool no_streaming;       /* the server refused sendInitialEvents */
    bool initial;            /* inside a streaming list */
    bool listed;      /* the stream began with a list: it may live long, and be silent at its end */
    bool list_latest; /* "0" was too old: ask for the most recent */
    bool relisted;    /* at once, since the last complete list: the next time waits */
    bool renewed;     /* credentials were read again since the last success */
    bool synced, connected;
    bool fresh;          /* the next stream takes a connection of its own */
    bool refused;        /* the answer's status is not 200: its body is a Status */
    bool relist, failed; /* verdict of the current stream */
    unsigned depth;      /* inside callbacks */
    bool stopped;
};

static void begin(struct kube_watch *w);

/* A list begins. */
static void new_round(struct kube_watch *w)
{
    w->round++;
    if (w->cfg.on_list)
        w->cfg.on_list(w->cfg.ctx);
}

static char *dup_or_null(const char *s)
{
    return s ? xstrdup(s) : NULL;
}

static void on_closed(uv_handle_t *h)
{
    struct kube_watch *w = h->data;
    struct seen *s, *tmp;
    HASH_ITER (hh, w->seen, s, tmp) {
        HASH_DEL(w->seen, s);
        free(s->uid);
        free(s);
    }
    buf_fini(&w->line);
    free(w->namespace);
    free(w->label_selector);
    free(w->field_selector);
    free(w->rv);
    free(w);
}

static void dispose(struct kube_watch *w)
{
    if (w->cfg.unhurried)
        DL_DELETE(w->client->unhurried, w);
    uv_timer_stop(&w->timer);
    uv_close((uv_handle_t *)&w->timer, on_closed);
}

void kube_watch_stop(struct kube_watch *w)
{
    if (!w || w->stopped)
        return;
    w->stopped = true;
    if (w->call)
        http_cancel(w->call);
    w->call = NULL;
    if (!w->depth)
        dispose(w);
}

/* Callbacks may stop the watch: enter/leave keep it alive until the outermost one returns. False:
 * it is gone. */
static void enter(struct kube_watch *w)
{
    w->depth++;
}

static bool leave(struct kube_watch *w)
{
    bool stopped = w->stopped;
    if (--w->depth == 0 && stopped)
        dispose(w);
    return !stopped;
}

static void set_rv(struct kube_watch *w, const char *rv)
{
    if (!rv || !*rv)
        return;
    free(w->rv);
    w->rv = xstrdup(rv);
}

static void on_timer(uv_timer_t *t)
{
    begin(t->data);
}

static void again(struct kube_watch *w, unsigned delay_ms)
{
    w->connected = false;
    if (!w->stopped)
        uv_timer_start(&w->timer, on_timer, delay_ms, 0);
}

static void fail(struct kube_watch *w, const struct err *e, unsigned retry_after_ms)
{
    uint64_t min = w->cfg.backoff_min_ms, max = w->cfg.backoff_max_ms;
    if (w->healthy_ns && clock_mono_ns() - w->healthy_ns > HEALTHY_NS)
        w->failures = 0;
    w->healthy_ns = 0;
    unsigned shift = w->failures < 16 ? w->failures : 16;
    uint64_t ms = min << shift < max ? min << shift : max;
    ms += (uint64_t)((double)ms * rng_unit(&w->rng));
    if (ms < retry_after_ms)
        ms = retry_after_ms < RETRY_AFTER_MS ? retry_after_ms : RETRY_AFTER_MS;
    w->failures++;
    log_debug("watch failed", LS("kind", w->cfg.kind->kind), LERR(e), LI("retry_ms", ms));
    if (w->cfg.on_error) {
        enter(w);
        w->cfg.on_error(e, w->cfg.ctx);
        if (!leave(w))
            return;
    }
    again(w, (unsigned)ms);
}

static void on_silence(uv_timer_t *t);

/* Half-open connections say nothing: the timer runs while a stream is open and starts anew with
 * each byte. */
static void arm(struct kube_watch *w)
{
    uint64_t ms = w->cfg.silence_ms;
    if (w->cfg.unhurried && w->connected && !w->initial)
        ms = ms * KUBE_UNHURRIED_MS / KUBE_SILENCE_MS;
    uv_timer_start(&w->timer, on_silence, ms, 0);
}

static void on_silence(uv_timer_t *t)
{
    struct kube_watch *w = t->data;
    struct err e = {0};
    http_cancel(w->call);
    w->call = NULL;
    if (w->cfg.unhurried && w->connected && !w->initial) {
        w->fresh = true; /* no proof that anything is wrong: a server may send no bookmarks */
        again(w, 0);
        return;
    }
    kube_distrust(w->client);
    if (w->listed && !w->initial && clock_mono_ns() - w->opened_ns > KUBE_WATCH_LIFE_S * NS_PER_S) {
        again(w, 0);
        return;
    }
    err_set(&e, ETIMEDOUT, "%s: nothing was heard for %u ms", w->cfg.kind->plural,
            w->cfg.silence_ms);
    fail(w, &e, 0);
}

void kube_watches_doubt(struct kube_client *c)
{
    struct kube_watch *w;
    DL_FOREACH (c->unhurried, w)
        if (w->connected && !w->initial &&
            clock_mono_ns() - w->opened_ns > w->cfg.silence_ms * NS_PER_MS / 4) /* not a new one */
            uv_timer_start(&w->timer, on_silence, 0, 0);
}

static char *key_of(const json_t *object)
{
    return xasprintf("%s/%s", json_str_at(object, "metadata.namespace", ""),
                     json_str_at(object, "metadata.name", ""));
}

static void forget(struct kube_watch *w, struct seen *s)
{
    HASH_DEL(w->seen, s);
    free(s->uid);
    free(s);
}

static bool type_of(const struct scan_tok *t, enum kube_event_type *out)
{
    static const char *const names[] = {"ADDED", "MODIFIED", "DELETED"};
    for (int i = 0; i < 3; i++) {
        *out = (enum kube_event_type)i;
        if (t->kind == SCAN_STRING && scan_text_is(t, names[i]))
            return true;
    }
    return false;
}

/* For a receiver of viewed objects: one that was not read from its text. */
static void from_tree(struct kube_watch *w, enum kube_event_type type, const json_t *o)
{
    struct err e = {0};
    struct kube_meta meta = {.name = json_str_at(o, "metadata.name", ""),
                             .namespace = json_str_at(o, "metadata.namespace", "")};
    void *object = view_decode(w->cfg.kind->view, o, &e);
    w->cfg.on_object(type, object, object ? &((struct kube_object *)object)->meta : &meta,
                     object ? NULL : &e, w->cfg.ctx);
    free(object);
}

/* One object that exists. */
static void present(struct kube_watch *w, json_t *object)
{
    if (w->cfg.on_object) {
        from_tree(w, KUBE_MODIFIED, object);
        return;
    }
    CLEANUP(free_charp) char *key = key_of(object);
    const char *uid = json_str_at(object, "metadata.uid", "");
    struct seen *s;
    HASH_FIND_STR(w->seen, key, s);
    enum kube_event_type type = s ? KUBE_MODIFIED : KUBE_ADDED;
    if (!s) {
        s = xcalloc(1, sizeof *s + strlen(key) + 1);
        memcpy(s->key, key, strlen(key) + 1);
        HASH_ADD_STR(w->seen, key, s);
    }
    free(s->uid);
    s->uid = xstrdup(uid);
    s->round = w->round;
    w->cfg.on_event(type, object, w->cfg.ctx);
}

static void absent(struct kube_watch *w, json_t *object)
{
    if (w->cfg.on_object) {
        from_tree(w, KUBE_DELETED, object);
        return;
    }
    CLEANUP(free_charp) char *key = key_of(object);
    struct seen *s;
    HASH_FIND_STR(w->seen, key, s);
    if (!s)
        return;
    forget(w, s);
    w->cfg.on_event(KUBE_DELETED, object, w->cfg.ctx);
}

/* The list is complete: what it did not hold is gone, though no DELETED event came. */
static void sweep(struct kube_watch *w)
{
    struct seen *s, *tmp;
    HASH_ITER (hh, w->seen, s, tmp) {
        if (s->round == w->round)
            continue;
        const char *slash = strchr(s->key, '/');
        CLEANUP(json_decrefp)
        json_t *o = json_pack("{s:{s:s#, s:s, s:s}}", "metadata", "namespace", s->key,
                              (int)(slash - s->key), "name", slash + 1, "uid", s->uid);
        forget(w, s);
        w->cfg.on_event(KUBE_DELETED, o, w->cfg.ctx);
        if (w->stopped)
            return;
    }
    w->synced = true;
    if (w->cfg.on_synced)
        w->cfg.on_synced(w->cfg.ctx);
}

static bool stale_status(int64_t code, const char *reason)
{
    return code == 410 || strcmp(reason, "Expired") == 0 || strcmp(reason, "Gone") == 0;
}

/* The server (another one, or restored from a copy) has not got that far: it is to list what it
 * has. */
static bool too_large(int64_t code, const json_t *status)
{
    const json_t *causes = json_at(status, "details.causes"), *cause;
    size_t i;
    json_array_foreach (causes, i, cause)
        if (strcmp(json_str_at(cause, "reason", ""), "ResourceVersionTooLarge") == 0)
            return true;
    return code == 504 &&
           strncmp(json_str_at(status, "message", ""), "Too large resource version", 26) == 0;
}

static void error_event(struct kube_watch *w, const json_t *status)
{
    const char *reason = json_str_at(status, "reason", "");
    int64_t code = json_int_at(status, "code", 0);
    if (stale_status(code, reason) || too_large(code, status))
        w->relist = true;
    w->retry_after_ms = kube_retry_after(NULL, status);
    w->failed = true;
    log_debug("watch: error event", LS("kind", w->cfg.kind->kind), LS("reason", reason),
              LS("message", json_str_at(status, "message", "")));
}

static void bookmark(struct kube_watch *w, const json_t *object)
{
    const json_t *ann = json_at(object, "metadata.annotations");
    const char *end = json_string_value(json_object_get(ann, INITIAL_END));
    set_rv(w, json_str_at(object, "metadata.resourceVersion", NULL));
    if (w->initial && end && strcmp(end, "true") == 0) {
        w->initial = false;
        w->failures = 0;
        w->relisted = false;
        arm(w);
        sweep(w);
    }
}

/* A frame without a tree: its type comes first, then the object is read by the kind's view. True:
 * it was one, and is delivered. */
static bool typed_event(struct kube_watch *w, struct str text, struct arena *a)
{
    struct scan s;
    struct scan_tok key, value;
    enum kube_event_type type = KUBE_ADDED;
    void *object = NULL;
    struct err e = {0};
    scan_init(&s, text, JSON_MAX_DEPTH);
    bool ok = scan_next(&s, &value) == 0 && value.kind == SCAN_OBJECT &&
              scan_member(&s, &key, &value) == 1 && scan_text_is(&key, "type") &&
              type_of(&value, &type) && scan_member(&s, &key, &value) == 1 &&
              scan_text_is(&key, "object") &&
              view_scan_value(w->cfg.kind->view, &s, &value, a, &object, &e) == 0 &&
              scan_member(&s, &key, &value) == 0 && scan_next(&s, &value) == 0;
    scan_fini(&s);
    if (!ok)
        return false;
    const struct kube_meta *m = &((const struct kube_object *)object)->meta;
    if (!w->initial)
        set_rv(w, m->resource_version);
    w->cfg.on_object(type, object, m, NULL, w->cfg.ctx);
    return true;
}

static void one_event(struct kube_watch *w, struct str text)
{
    if (w->cfg.on_object) {
        struct arena a;
        arena_init(&a, ARENA_MAX);
        bool done = typed_event(w, text, &a);
        arena_fini(&a);
        if (done)
            return;
    }
    CLEANUP(json_decrefp) json_t *o = json_parse(text, FRAME_MAX, 0, NULL);
    const char *type = json_str_at(o, "type", "");
    json_t *object = json_object_get(o, "object");
    if (!json_is_object(object)) {
        w->failed = true;
        return;
    }
    if (strcmp(type, "BOOKMARK") == 0) {
        bookmark(w, object);
        return;
    }
    if (strcmp(type, "ERROR") == 0) {
        error_event(w, object);
        return;
    }
    if (!w->initial)
        set_rv(w, json_str_at(object, "metadata.resourceVersion", NULL));
    if (strcmp(type, "DELETED") == 0)
        absent(w, object);
    else
        present(w, object);
}

/* A chunk may end anywhere: inside a line, or hold many of them. */
static int on_data(struct http_call *call, struct str piece, void *ctx)
{
    struct kube_watch *w = ctx;
    (void)call;
    arm(w);
    if (w->refused)
        return w->line.n + piece.n < STATUS_MAX && buf_append(&w->line, piece.p, piece.n);
    enter(w);
    while (piece.n && !w->stopped && !w->failed) {
        const char *nl = memchr(piece.p, '\n', piece.n);
        size_t n = nl ? (size_t)(nl - piece.p) : piece.n;
        if (buf_append(&w->line, piece.p, n)) {
            w->failed = true;
            break;
        }
        piece.p += n + (nl != NULL);
        piece.n -= n + (nl != NULL);
        if (!nl)
            break;
        struct str text = str_trim(buf_view(&w->line));
        if (text.n)
            one_event(w, text);
        buf_reset(&w->line);
    }
    bool failed = w->failed;
    return leave(w) && !failed ? 0 : 1;
}

static int on_headers(struct http_call *call, int status, void *ctx)
{
    struct kube_watch *w = ctx;
    kube_warnings(w->client, call);
    w->connected = status == 200;
    w->refused = status != 200;
    if (w->connected) {
        w->renewed = false;
        w->healthy_ns = w->healthy_ns ? w->healthy_ns : clock_mono_ns();
        arm(w);
    }
    return 0;
}

/* No list, or no stream: what the server said instead ("pods is forbidden: …"), and when to try
 * again. */
static void refused(struct kube_watch *w, const struct http_response *r, struct str body)
{
    struct err e = {0};
    int status = r->error ? 0 : r->status;
    CLEANUP(json_decrefp) json_t *o = status ? json_parse(body, STATUS_MAX, 0, NULL) : NULL;
    const char *message = json_str_at(o, "message", NULL);
    bool auth = status == 401 || r->code == -EPROTO;
    bool again_at_once = false;
    if (auth && !w->renewed) {
        again_at_once = kube_credentials_changed(w->client);
        w->renewed = true;
    }
    if (status == 410 || too_large(status, o)) {
        again_at_once = !w->relisted;
        w->relisted = w->list_latest = true;
        free(w->rv);
        w->rv = NULL;
    }
    if (r->code == -ETIMEDOUT)
        kube_distrust(w->client);
    if (again_at_once) {
        again(w, 0);
        return;
    }
    if (status)
        err_set(&e, kube_errno(status, ""), "%s: HTTP %d%s%s", w->cfg.kind->plural, status,
                message ? ": " : "", message ? message : "");
    else
        err_set(&e, EIO, "%s", r->error ? r->error : "no answer");
    fail(w, &e, kube_retry_after(status ? r->call : NULL, o));
}

/* What the end of a stream means: go on, list again, or back off. */
static void on_stream_done(const struct http_response *r, void *ctx)
{
    struct kube_watch *w = ctx;
    struct err e = {0};
    uint64_t lived = clock_mono_ns() - w->opened_ns;
    bool was_initial = w->initial;
    w->call = NULL;
    w->connected = false;
    uv_timer_stop(&w->timer);
    if (was_initial && (r->status == 400 || r->status == 422)) {
        w->no_streaming = true;
        again(w, 0);
        return;
    }
    if (r->status != 200) {
        refused(w, r, buf_view(&w->line));
        return;
    }
    if (w->relist) {
        free(w->rv);
        w->rv = NULL;
        w->list_latest = true;
        if (lived > QUICK_NS || !w->relisted) {
            w->relisted = lived <= QUICK_NS;
            again(w, 0);
            return;
        }
    }
    if (r->error && r->code != -ECANCELED)
        err_set(&e, EIO, "%s", r->error);
    else if (w->failed || (lived < QUICK_NS && was_initial))
        err_set(&e, EIO, "the watch ended with an error");
    if (e.code)
        fail(w, &e, w->retry_after_ms);
    else
        again(w, lived < QUICK_NS ? w->cfg.backoff_min_ms : 0);
}

/* 1, or -1 when it can't be read. */
static int typed_item(struct kube_watch *w, struct scan *s, const struct scan_tok *t)
{
    struct arena a;
    void *object = NULL;
    struct err e = {0};
    arena_init(&a, ARENA_MAX);
    int rc = view_scan_value(w->cfg.kind->view, s, t, &a, &object, &e);
    if (!rc)
        w->cfg.on_object(KUBE_MODIFIED, object, &((struct kube_object *)object)->meta, NULL,
                         w->cfg.ctx);
    arena_fini(&a);
    return rc ? -1 : 1;
}

/* A list without a tree: one object after another. False: the tree is to say what is wrong. */
static bool typed_list(struct kube_watch *w, struct str body)
{
    struct scan s;
    struct scan_tok key, value, item;
    struct str meta = {0};
    scan_init(&s, body, JSON_MAX_DEPTH);
    int more = scan_next(&s, &value) == 0 && value.kind == SCAN_OBJECT ? 1 : -1;
    bool items = false;
    while (more > 0 && (more = scan_member(&s, &key, &value)) > 0) {
        bool list = scan_text_is(&key, "items") && value.kind == SCAN_ARRAY;
        if (!list && scan_skip(&s, &value, scan_text_is(&key, "metadata") ? &meta : NULL))
            more = -1;
        items |= list;
        int one = list;
        while (one > 0 && !w->stopped && (one = scan_element(&s, &item)) > 0)
            one = typed_item(w, &s, &item);
        if (one < 0)
            more = -1;
        if (w->stopped)
            break;
    }
    scan_fini(&s);
    if (more || !items)
        return false;
    CLEANUP(json_decrefp) json_t *o = json_parse(meta, FRAME_MAX, 0, NULL);
    set_rv(w, json_str_at(o, "resourceVersion", NULL));
    return true;
}

static bool tree_list(struct kube_watch *w, struct str body, struct err *e)
{
    CLEANUP(json_decrefp) json_t *o = json_parse(body, LIST_MAX, 0, e);
    const json_t *items = json_object_get(o, "items");
    if (!items) {
        err_set(e, EIO, "the answer to the list is not a list");
        return false;
    }
    for (size_t i = 0; i < json_array_size(items) && !w->stopped; i++)
        present(w, json_array_get(items, i));
    if (!w->stopped)
        set_rv(w, json_str_at(o, "metadata.resourceVersion", NULL));
    return true;
}

static void on_list_done(const struct http_response *r, void *ctx)
{
    struct kube_watch *w = ctx;
    struct err e = {0};
    w->call = NULL;
    if (r->status != 200 || r->error) {
        refused(w, r, r->body);
        return;
    }
    enter(w);
    new_round(w);
    if (!(w->cfg.on_object && typed_list(w, r->body)) && !tree_list(w, r->body, &e) &&
        !w->stopped) {
        fail(w, &e, 0);
        leave(w);
        return;
    }
    if (!w->stopped)
        sweep(w);
    if (!leave(w))
        return;
    w->failures = 0;
    w->list_latest = w->relisted = false;
    again(w, 0);
}

static char *url_path(const struct kube_watch *w, const char *query)
{
    struct kube_call call = {
        .verb = KUBE_LIST,
        .kind = w->cfg.kind,
        .namespace = w->namespace,
        .label_selector = w->label_selector,
        .field_selector = w->field_selector,
    };
    CLEANUP(free_charp) char *base = kube_path(&call);
    return xasprintf("%s%c%s", base, strchr(base, '?') ? '&' : '?', query);
}

static void start(struct kube_watch *w, const char *query, const struct http_request *tmpl)
{
    struct err e = {0};
    CLEANUP(free_charp) char *path = url_path(w, query);
    w->opened_ns = clock_mono_ns();
    w->relist = w->failed = w->refused = false;
    w->retry_after_ms = 0;
    buf_reset(&w->line);
    w->call = kube_http_start(w->client, "GET", path, NULL, (struct str){0}, tmpl, &e);
    if (!w->call)
        fail(w, &e, 0);
}

static unsigned life_s(struct kube_watch *w)
{
    unsigned most = w->rv && !w->cfg.unhurried ? KUBE_WATCH_LIFE_S : LIST_LIFE_S;
    if (w->cfg.watch_timeout_s)
        return w->cfg.watch_timeout_s;
    return w->rv ? most - (unsigned)rng_below(&w->rng, most / 5 + 1) : most;
}

static void begin(struct kube_watch *w)
{
    char query[512];
    unsigned timeout = life_s(w);
    struct http_request stream = {
        .fresh_connection = w->fresh,
        .on_headers = on_headers,
        .on_data = on_data,
        .on_done = on_stream_done,
        .ctx = w,
    };
    struct http_request list = {
        .timeout_ms = 60000,
        .silence_timeout_ms = w->cfg.silence_ms,
        .max_body_bytes = LIST_MAX,
        .on_done = on_list_done,
        .ctx = w,
    };
    w->initial = w->listed = w->fresh = false;
    if (!w->rv && w->no_streaming) {
        start(w, w->list_latest ? "resourceVersion=" : "resourceVersion=0", &list);
        return;
    }
    if (!w->rv) {
        w->initial = w->listed = true;
        new_round(w);
        snprintf(query, sizeof query,
                 "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&"
                 "allowWatchBookmarks=true&timeoutSeconds=%u",
                 timeout);
    } else {
        snprintf(query, sizeof query,
                 "watch=1&allowWatchBookmarks=true&timeoutSeconds=%u&resourceVersion=%s", timeout,
                 w->rv);
    }
    start(w, query, &stream);
    if (w->call)
        arm(w);
}

int kube_watch_start(struct kube_client *c, const struct kube_watch_config *cfg,
                     struct kube_watch **out, struct err *e)
{
    struct kube_watch *w = xcalloc(1, sizeof *w);
    int rc = uv_timer_init(kube_loop(c), &w->timer);
    if (rc) {
        free(w);
        return err_set(e, -rc, "can't make a timer: %s", uv_strerror(rc));
    }
    w->client = c;
    w->cfg = *cfg;
    w->cfg.backoff_min_ms = cfg->backoff_min_ms ? cfg->backoff_min_ms : 800;
    w->cfg.backoff_max_ms = cfg->backoff_max_ms ? cfg->backoff_max_ms : 30000;
    w->cfg.silence_ms = cfg->silence_ms ? cfg->silence_ms : KUBE_SILENCE_MS;
    w->namespace = dup_or_null(cfg->namespace);
    w->label_selector = dup_or_null(cfg->label_selector);
    w->field_selector = dup_or_null(cfg->field_selector);
    w->rng = (struct rng){rng_secret_u64()};
    w->timer.data = w;
    buf_init(&w->line, FRAME_MAX);
    if (cfg->unhurried)
        DL_APPEND(c->unhurried, w);
    again(w, 0);
    *out = w;
    return 0;
}

void kube_watch_relist(struct kube_watch *w)
{
    if (w->stopped)
        return;
    if (w->call)
        http_cancel(w->call);
    w->call = NULL;
    free(w->rv);
    w->rv = NULL;
    w->list_latest = true;
    w->synced = false;
    w->failed = true; /* nothing more of the stream that is being read */
    kube_distrust(w->client);
    again(w, 0);
}

bool kube_watch_synced(const struct kube_watch *w)
{
    return w->synced;
}

bool kube_watch_connected(const struct kube_watch *w)
{
    return w->connected;
}
