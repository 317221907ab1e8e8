#include "agent/devices.h"
#include "agent/models_int.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <utlist.h>

#include "lib/base/metrics.h"
#include "lib/decide/guard.h"

#define BUSY_MS      1000
#define IDLE_MS      10000
#define TELL_NS      (15 * NS_PER_S)
#define RECHECK_NS   (3600 * NS_PER_S)
#define RETRY_MIN_NS (2 * NS_PER_S)
#define RETRY_MAX_NS (60 * NS_PER_S)

static const char *or_empty(const char *s)
{
    return s ? s : "";
}

static const char *endpoint_of(const struct models *m, const struct kube_infd *d)
{
    return d && d->model_endpoint ? d->model_endpoint : m->a->opt.hf_endpoint;
}

static bool is_file(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0;
}

/* ---- answers to launchers ---- */

static void answer(struct launcher *l, const char *state, const char *key, const char *text)
{
    CLEANUP(json_decrefp)
    json_t *o = json_pack("{s:s, s:s, s:s}", "type", "model", "state", state, key, text);
    if (!o || lines_send(l->lines, o, -1))
        log_warn("a launcher does not listen", LS("pod", l->pod));
}

static void hold(struct launcher *l, struct store_entry *e)
{
    models_release(l);
    l->model = e;
    e->users++;
    store_used(l->a->models->store, e);
}

static void answer_ready(struct launcher *l, struct store_entry *e)
{
    CLEANUP(free_charp) char *path = store_relative(e);
    hold(l, e);
    answer(l, "ready", "path", path);
}

static double gib(uint64_t bytes)
{
    return (double)bytes / (1 << 30);
}

static void progress_text(const struct model_fetch *f, char out[600])
{
    const struct fetch_progress *p = &f->seen;
    if (!f->fetch && f->why.code)
        snprintf(out, 600, "%s", f->why.msg);
    else if (!f->fetch || p->state == FETCH_ASKING)
        snprintf(out, 600, "asking for %.200s", f->source);
    else if (!p->bytes)
        snprintf(out, 600, "fetching %.200s", f->source);
    else
        snprintf(out, 600, "fetching %.200s from %s: %d%% of %.2f GiB at %.0f MB/s", f->source,
                 *p->from ? p->from : "its source", (int)((double)p->done * 100 / (double)p->bytes),
                 gib(p->bytes), p->bytes_per_s / 1e6);
    size_t n = strlen(out);
    if (f->fetch && p->err.code)
        snprintf(out + n, 600 - n, " (%.200s; trying again)", p->err.msg);
}

static bool waits_for(const struct launcher *l, const struct model_fetch *f)
{
    return l->model_key && strcmp(l->model_key, f->key) == 0;
}

/* Progress, but not every byte: a condition of the API changes with it. */
static void tell_progress(struct model_fetch *f)
{
    struct launcher *l;
    char text[600];
    uint64_t now = clock_mono_ns();
    int64_t percent =
        f->seen.bytes ? (int64_t)((double)f->seen.done * 10 / (double)f->seen.bytes) * 10 : 0;
    if (percent == f->told_percent && now - f->told_at_ns < TELL_NS)
        return;
    if (percent != f->told_percent)
        inventory_poke(f->m->a);
    f->told_percent = percent;
    f->told_at_ns = now;
    progress_text(f, text);
    log_info("model", LS("progress", text));
    DL_FOREACH (f->m->a->launchers, l)
        if (waits_for(l, f))
            answer(l, "wait", "message", text);
}

/* ---- fetches ---- */

static const char *token_key(const struct kube_infd *d)
{
    return d->model_secret_key ? d->model_secret_key : "token";
}

static struct model_fetch *find_fetch(const struct models *m, const char *key)
{
    struct model_fetch *f;
    DL_FOREACH (m->fetches, f)
        if (strcmp(f->key, key) == 0)
            return f;
    return NULL;
}

static void drop_fetch(struct model_fetch *f)
{
    DL_DELETE(f->m->fetches, f);
    free(f->ns);
    free(f->infd);
    free(f->source);
    free(f->sha256);
    free(f->endpoint);
    peers_forget(f);
    free(f);
}

static void count(const char *result)
{
    static struct metric_family *family;
    if (!family)
        family = metric_family(METRIC_COUNTER, "baton_agent_model_fetches_total",
                               "Models fetched, by result", "result", NULL, 0);
    metric_add(metric_series(family, result), 1);
}

static void count_bytes(const struct fetch_progress *p)
{
    static struct metric_family *family;
    if (!family)
        family =
            metric_family(METRIC_COUNTER, "baton_agent_model_fetched_bytes_total",
                          "Bytes of models received, by where they came from", "from", NULL, 0);
    metric_add(metric_series(family, "peer"), (double)p->from_peers);
    metric_add(metric_series(family, "source"), (double)p->from_source);
}

static void forget_token(struct model_fetch *f)
{
    const struct kube_infd *d = *f->infd ? kube_cache_get(f->m->infds, f->ns, f->infd) : NULL;
    if (d && d->model_secret_name)
        secrets_forget(f->m->secrets, f->ns, d->model_secret_name, token_key(d));
}

static void fail(struct model_fetch *f, const struct err *e)
{
    struct launcher *l, *next;
    uint64_t wait = RETRY_MIN_NS;
    bool needs_peer = e->code == ENOENT && strncmp(f->source, "file://", 7) == 0;
    for (unsigned i = 0; i < f->failures && wait < RETRY_MAX_NS && !needs_peer; i++)
        wait *= 2;
    if (e->code == EACCES)
        forget_token(f);
    f->failures++;
    f->failed = true;
    f->why = *e;
    f->retry_at_ns = clock_mono_ns() + (wait < RETRY_MAX_NS ? wait : RETRY_MAX_NS);
    count("failed");
    log_warn("a model could not be fetched", LS("source", f->source), LERR(e),
             LI("retry_s", wait / NS_PER_S));
    DL_FOREACH_SAFE(f->m->a->launchers, l, next)
    if (waits_for(l, f)) {
        free(l->model_key);
        l->model_key = NULL;
        answer(l, "error", "message", e->msg);
    }
    inventory_poke(f->m->a);
}

static void finished(struct model_fetch *f, struct store_entry *e)
{
    struct models *m = f->m;
    struct launcher *l;
    struct err err;
    uint64_t ns = clock_mono_ns() - f->started_ns;
    if (store_complete(m->store, e, fetch_set(f->fetch), &err)) {
        fetch_free(f->fetch);
        f->fetch = NULL;
        fail(f, &err);
        return;
    }
    log_info("model fetched", LS("source", f->source), LI("bytes", e->bytes),
             LF("seconds", (double)ns / 1e9), LI("from_peers", f->seen.from_peers),
             LI("from_source", f->seen.from_source), LS("sha256", e->sha256));
    count("done");
    count_bytes(&f->seen);
    m->fetched++;
    DL_FOREACH (m->a->launchers, l)
        if (waits_for(l, f)) {
            l->fetched = true;
            answer_ready(l, e);
        }
    fetch_free(f->fetch);
    drop_fetch(f);
    inventory_poke(m->a);
}

static void look(struct model_fetch *f)
{
    struct store_entry *e = store_find(f->m->store, f->key);
    struct err denied;
    fetch_poll(f->fetch, &f->seen);
    if (f->seen.state == FETCH_WANTS_ROOM && !f->room_asked) {
        f->room_asked = true;
        int r = store_reserve(f->m->store, e, f->seen.bytes, &denied);
        fetch_room(f->fetch, r ? &denied : NULL);
    }
    if (f->seen.state != FETCH_DONE && f->seen.state != FETCH_FAILED) {
        f->room_asked = f->seen.state == FETCH_WANTS_ROOM && f->room_asked;
        tell_progress(f);
        return;
    }
    e->users--;
    if (f->seen.state == FETCH_DONE) {
        finished(f, e);
        return;
    }
    count_bytes(&f->seen);
    fetch_free(f->fetch);
    f->fetch = NULL;
    struct err why = f->seen.err;
    fail(f, &why);
}

static void notify(void *ctx)
{
    struct models *m = ctx;
    uv_async_send(m->wake);
}

static void start(struct model_fetch *f, const char *token, const char *secret)
{
    struct models *m = f->m;
    struct store_entry *e;
    struct err err;
    struct fetch_peer peers[FETCH_PEERS_MAX];
    if (store_begin(m->store, f->key, f->source, f->endpoint, f->sha256, &e, &err)) {
        fail(f, &err);
        return;
    }
    for (size_t i = 0; i < f->n_peers; i++)
        peers[i] = (struct fetch_peer){f->peer_urls[i], f->peer_names[i], secret};
    CLEANUP(free_charp) char *dir = store_folder(m->store, e);
    struct fetch_config c = {.dir = dir,
                             .source = f->source,
                             .sha256 = f->sha256,
                             .endpoint = f->endpoint,
                             .token = token,
                             .ca_file = m->a->opt.source_ca,
                             .peers = peers,
                             .n_peers = secret ? f->n_peers : 0,
                             .peers_sha256 = f->peers_sha256,
                             .chunk_bytes = m->a->opt.fetch_chunk,
                             .connections = (unsigned)m->a->opt.fetch_connections,
                             .notify = notify,
                             .ctx = m};
    f->room_asked = f->failed = false;
    f->why = (struct err){0};
    f->seen = (struct fetch_progress){0};
    f->started_ns = clock_mono_ns();
    if (fetch_start(&c, &f->fetch, &err)) {
        fail(f, &err);
        return;
    }
    e->users++;
    log_info("fetching a model", LS("source", f->source), LI("peers", c.n_peers));
    peers_forget(f); /* a next try asks anew */
}

/* The peer secret of f's deployment; SECRET_ABSENT: no peers can be asked. */
static enum secret_state peer_secret(struct model_fetch *f, const char **value)
{
    const char *why = "";
    CLEANUP(free_charp) char *name = xasprintf("%s-peer", f->infd);
    if (!*f->infd || !f->n_peers)
        return SECRET_ABSENT;
    enum secret_state s =
        secrets_get(f->m->secrets, f->ns, name, SECRET_KEY, SECRET_AGE_NS, value, &why);
    if (s == SECRET_ABSENT)
        log_warn("no peers are asked", LS("why", why));
    return s;
}

/* Starts it as soon as its Secrets and peers are known and its back-off is over. */
static void begin(struct model_fetch *f)
{
    struct models *m = f->m;
    const struct kube_infd *d = *f->infd ? kube_cache_get(m->infds, f->ns, f->infd) : NULL;
    const char *token = "", *why = "", *secret = NULL;
    if (f->fetch || (f->failed && clock_mono_ns() < f->retry_at_ns))
        return;
    if (d && d->model_secret_name) {
        enum secret_state s = secrets_get(m->secrets, f->ns, d->model_secret_name, token_key(d),
                                          SECRET_AGE_NS, &token, &why);
        if (s == SECRET_ASKING)
            return;
        if (s == SECRET_ABSENT) {
            struct err e;
            err_set(&e, EACCES, "the token for %.200s is missing: %s", f->source, why);
            fail(f, &e);
            return;
        }
    }
    if (!f->peers_known) {
        peers_ask(f);
        return;
    }
    enum secret_state s = peer_secret(f, &secret);
    if (s != SECRET_ASKING)
        start(f, token, s == SECRET_HERE ? secret : NULL);
}

void models_look(struct models *m)
{
    struct model_fetch *f, *next;
    DL_FOREACH_SAFE(m->fetches, f, next)
    {
        if (f->fetch)
            look(f);
        else
            begin(f);
    }
    uv_timer_set_repeat(m->timer, m->fetches ? BUSY_MS : IDLE_MS);
}

static struct model_fetch *want(struct models *m, const char *ns, const char *infd,
                                const char *source, const char *sha256, const char *endpoint,
                                const char *key)
{
    struct model_fetch *f = find_fetch(m, key);
    if (f && GUARD(fetch_once))
        return f;
    f = xcalloc(1, sizeof *f);
    f->m = m;
    snprintf(f->key, sizeof f->key, "%s", key);
    f->ns = xstrdup(ns);
    f->infd = xstrdup(infd);
    f->source = xstrdup(source);
    f->sha256 = xstrdup(sha256);
    f->endpoint = xstrdup(endpoint);
    DL_APPEND(m->fetches, f);
    uv_timer_set_repeat(m->timer, BUSY_MS);
    uv_timer_again(m->timer);
    return f;
}

/* ---- launchers ---- */

void models_release(struct launcher *l)
{
    if (l->model)
        l->model->users--;
    l->model = NULL;
    free(l->model_key);
    l->model_key = NULL;
}

static struct store_entry *here(struct models *m, const char *key, const char *sha256)
{
    struct store_entry *e = store_find(m->store, key);
    return e && e->complete ? e : store_by_sha(m->store, sha256);
}

/* A worker could not use what is in the cache: its digests are looked at again, once an hour or
 * when a file was touched (the model may just be of a kind that workers don't know). */
static void suspect(struct models *m, struct store_entry *e)
{
    bool lately = clock_wall_ns() < e->checked_wall_ns + RECHECK_NS;
    if (e->users || !e->complete || (lately && !store_changed(m->store, e)))
        return;
    log_warn("a cached model is suspected; its files are checked", LS("source", e->source));
    e->complete = false;
}

void models_ask(struct launcher *l, const json_t *msg)
{
    struct models *m = l->a->models;
    const char *text = json_str_at(msg, "source", ""), *sha256 = json_str_at(msg, "sha256", "");
    const char *infd = json_str_at(msg, "infd", "");
    struct source s;
    struct err e;
    char key[SOURCE_KEY_MAX], words[600];
    models_release(l);
    if (source_parse(text, &s, &e) || (*sha256 && !sha_is_hex(sha256))) {
        answer(l, "error", "message", *sha256 ? "the sha256 is not 64 hex digits" : e.msg);
        return;
    }
    if (s.kind == SOURCE_FILE && is_file(s.path)) {
        answer(l, "ready", "path", s.path);
        return;
    }
    if (!m->store) {
        answer(l, "error", "message", m->why_no_store);
        return;
    }
    const char *endpoint = endpoint_of(m, *infd ? kube_cache_get(m->infds, l->ns, infd) : NULL);
    source_key(text, endpoint, sha256, key);
    struct store_entry *have = here(m, key, sha256);
    if (have && json_bool_at(msg, "suspect", false))
        suspect(m, have);
    if (have && have->complete) {
        if (json_bool_at(msg, "hold", false))
            hold(l, have);
        else
            answer_ready(l, have);
        return;
    }
    struct model_fetch *f = want(m, l->ns, infd, text, sha256, endpoint, key);
    if (f->failed && !f->fetch && clock_mono_ns() < f->retry_at_ns) {
        answer(l, "error", "message", f->why.msg);
        return;
    }
    l->model_key = xstrdup(key);
    begin(f);
    progress_text(f, words);
    if (l->model_key)
        answer(l, "wait", "message", words);
}

/* ---- what this node should keep ---- */

static bool named_here(const struct models *m, const struct kube_infd *d)
{
    const char *text = kube_annotation(&d->meta, ANN_CACHED_NODES);
    CLEANUP(json_decrefp) json_t *list = text ? json_parse(str_c(text), 1u << 18, 4, NULL) : NULL;
    size_t i;
    json_t *name;
    json_array_foreach (list, i, name)
        if (strcmp(or_empty(json_string_value(name)), m->a->opt.node_name) == 0)
            return true;
    return false;
}

static bool keep(const void *object, void *ctx)
{
    const struct kube_infd *d = object;
    struct models *m = ctx;
    struct source s;
    char key[SOURCE_KEY_MAX];
    if (!d->model_source || source_parse(d->model_source, &s, NULL) || !named_here(m, d))
        return true;
    bool file = s.kind == SOURCE_FILE;
    if ((file && (is_file(s.path) || !d->model_sha256)) || (!file && !source_fetched(&s)))
        return true;
    source_key(d->model_source, endpoint_of(m, d), d->model_sha256, key);
    struct store_entry *have = here(m, key, or_empty(d->model_sha256));
    if (have)
        have->wanted = true;
    else
        begin(want(m, d->meta.namespace, d->meta.name, d->model_source, or_empty(d->model_sha256),
                   endpoint_of(m, d), key));
    return true;
}

static void evaluate(struct models *m)
{
    if (!m->store)
        return;
    for (size_t i = 0; i < store_count(m->store); i++)
        store_at(m->store, i)->wanted = false;
    kube_cache_each(m->infds, keep, m);
    models_look(m);
}

static void infd_changed(const void *old, const void *now, void *ctx)
{
    struct models *m = ctx;
    (void)old, (void)now;
    evaluate(m);
    inventory_poke(m->a);
}

/* A person lifts a quarantine. */
static void mine_changed(const void *old, const void *now, void *ctx)
{
    struct models *m = ctx;
    const struct kube_ninv *v = now;
    (void)old;
    if (v)
        devices_lift(m->a, kube_annotation(&v->meta, ANN_LIFT));
}

static void secrets_came(void *ctx)
{
    struct models *m = ctx;
    models_look(m);
    offers_try(m);
}

static void on_wake(uv_async_t *h)
{
    models_look(h->data);
}

static void on_timer(uv_timer_t *t)
{
    evaluate(t->data);
}

/* ---- reports ---- */

static void add_model(json_t *list, const char *source, const char *sha256, uint64_t bytes)
{
    json_array_append_new(list, json_pack("{s:s, s:s, s:s, s:I}", "source", source, "sha256",
                                          sha256, "rung", "nvme", "bytes", (json_int_t)bytes));
}

struct listing {
    struct models *m;
    json_t *models;
};

/* Pinned file:// models that lie here: peers may have them. */
static bool add_file(const void *object, void *ctx)
{
    const struct kube_infd *d = object;
    struct listing *x = ctx;
    struct stat st;
    if (!d->model_source || !d->model_sha256 || strncmp(d->model_source, "file:///", 8) != 0 ||
        stat(d->model_source + 7, &st) || !S_ISREG(st.st_mode))
        return true;
    for (size_t i = 0; i < json_array_size(x->models); i++) {
        json_t *m = json_array_get(x->models, i);
        if (strcmp(json_str_at(m, "source", ""), d->model_source) != 0 ||
            strcmp(json_str_at(m, "rung", ""), "nvme") != 0)
            continue;
        if (!json_object_get(m, "sha256"))
            json_object_set_new(m, "sha256", json_string(d->model_sha256));
        return true;
    }
    add_model(x->models, d->model_source, d->model_sha256, (uint64_t)st.st_size);
    return true;
}

void models_inventory(struct agent *a, json_t *models, json_t *fetches)
{
    struct models *m = a->models;
    struct model_fetch *f;
    struct listing x = {m, models};
    for (size_t i = 0; m->store && i < store_count(m->store); i++) {
        const struct store_entry *e = store_at(m->store, i);
        if (e->complete)
            add_model(models, e->source, e->sha256, e->bytes);
    }
    kube_cache_each(m->infds, add_file, &x);
    DL_FOREACH (m->fetches, f) {
        json_t *o =
            json_pack("{s:s, s:I}", "source", f->source, "percent", (json_int_t)f->told_percent);
        if (*f->sha256)
            json_object_set_new(o, "sha256", json_string(f->sha256));
        if (f->seen.bytes)
            json_object_set_new(o, "bytes", json_integer((json_int_t)f->seen.bytes));
        if (f->why.code)
            json_object_set_new(o, "message", json_string(f->why.msg));
        json_array_append_new(fetches, o);
    }
}

json_t *models_state(struct agent *a)
{
    struct models *m = a->models;
    struct model_fetch *f;
    CLEANUP(json_decrefp) json_t *cached = json_array();
    CLEANUP(json_decrefp) json_t *fetches = json_array();
    for (size_t i = 0; m->store && i < store_count(m->store); i++) {
        const struct store_entry *e = store_at(m->store, i);
        json_array_append_new(cached,
                              json_pack("{s:s, s:s, s:s, s:I, s:i, s:b, s:b}", "key", e->key,
                                        "source", e->source, "sha256", e->sha256, "bytes",
                                        (json_int_t)e->bytes, "users", (int)e->users, "complete",
                                        (int)e->complete, "wanted", (int)e->wanted));
    }
    DL_FOREACH (m->fetches, f) {
        char text[600];
        progress_text(f, text);
        json_array_append_new(fetches, json_pack("{s:s, s:s, s:b}", "source", f->source, "progress",
                                                 text, "failed", (int)f->failed));
    }
    return json_pack("{s:O, s:O, s:i, s:I, s:I, s:I}", "cached", cached, "fetches", fetches,
                     "fetched", (int)m->fetched, "cache_bytes",
                     (json_int_t)(m->store ? store_used_bytes(m->store) : 0), "cache_budget_bytes",
                     (json_int_t)(m->store ? store_budget_bytes(m->store) : 0), "offered_bytes",
                     (json_int_t)m->offered_bytes);
}

int models_start(struct agent *a, struct err *e)
{
    struct models *m = a->models = xcalloc(1, sizeof *m);
    struct err why;
    m->a = a;
    if (store_open(a->opt.models_dir, a->opt.cache_budget, &m->store, &why)) {
        snprintf(m->why_no_store, sizeof m->why_no_store, "%s", why.msg);
        log_warn("this node has no model cache", LERR(&why));
        m->store = NULL;
    }
    m->secrets = secrets_new(a->api, secrets_came, m);
    m->wake = xcalloc(1, sizeof *m->wake);
    m->timer = xcalloc(1, sizeof *m->timer);
    uv_async_init(&a->loop, m->wake, on_wake);
    uv_timer_init(&a->loop, m->timer);
    m->wake->data = m->timer->data = m;
    uv_timer_start(m->timer, on_timer, IDLE_MS, IDLE_MS);
    struct kube_cache_config infds = {
        .kind = &kube_infds, .on_change = infd_changed, .unhurried = true, .ctx = m};
    CLEANUP(free_charp) char *name = xasprintf("metadata.name=%s", a->opt.node_name);
    struct kube_cache_config mine = {.kind = &kube_ninvs,
                                     .field_selector = name,
                                     .on_change = mine_changed,
                                     .unhurried = true,
                                     .ctx = m};
    int r = kube_cache_start(a->api, &infds, &m->infds, e);
    return r ? r : kube_cache_start(a->api, &mine, &m->mine, e);
}
