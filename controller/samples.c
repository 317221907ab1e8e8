/* What routers say: asked every second, kept by router and deployment, aged by the time since it
 * was heard; a router that falls silent is forgotten. */
#include "controller/scaling.h"
#include "lib/base/clock.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define FORGET_NS     (60 * NS_PER_S)
#define CACHE_HALF_NS (300 * NS_PER_S)

struct ask {
    struct load *load;
    char *key;
};

void report_clear(struct report *r)
{
    for (size_t i = 0; i < r->n; i++)
        free((char *)(uintptr_t)r->samples[i].pod_uid);
    free(r->samples);
    r->samples = NULL;
    r->n = 0;
}

struct report *report_of(struct load *l, const char *key)
{
    struct report *r;
    HASH_FIND_STR(l->reports, key, r);
    if (r)
        return r;
    r = xcalloc(1, sizeof *r + strlen(key) + 1);
    memcpy(r->key, key, strlen(key) + 1);
    HASH_ADD_STR(l->reports, key, r);
    return r;
}

static uint32_t count_at(const json_t *o, const char *key)
{
    int64_t v = json_int_at(o, key, 0);
    return v < 0 ? 0 : v > UINT32_MAX ? UINT32_MAX : (uint32_t)v;
}

static uint64_t tokens_at(const json_t *o, const char *key)
{
    int64_t v = json_int_at(o, key, 0);
    return v < 0 ? 0 : (uint64_t)v;
}

static void read_sample(const json_t *o, struct scale_sample *s)
{
    *s = (struct scale_sample){
        .pod_uid = xstrdup(json_str_at(o, "uid", "")),
        .incarnation = strtoull(json_str_at(o, "incarnation", "0"), NULL, 16),
        .role = rec_role_parse(json_str_at(o, "role", "")),
        .ready = json_bool_at(o, "ready", false),
        .draining = json_bool_at(o, "draining", false),
        .warmup = json_bool_at(o, "warmup", false),
        .age_ns = tokens_at(o, "age_ms") * NS_PER_MS,
        .running = count_at(o, "running"),
        .waiting = count_at(o, "waiting"),
        .waiting_tokens = tokens_at(o, "waiting_tokens") + tokens_at(o, "sent_tokens"),
        .resident_tokens = tokens_at(o, "resident_tokens"),
        .kv_blocks = count_at(o, "kv_blocks"),
        .kv_blocks_used = count_at(o, "kv_blocks_used"),
        .prefill_tokens_per_s = json_num_at(o, "prefill_tokens_per_s", 0),
        .decode_step_s = json_num_at(o, "decode_step_s", 0),
    };
}

/* Several routers tell of the same counter: only its growth counts. A restarted worker has an empty
 * cache. */
static void keep_cached(struct busy *b, const struct scale_sample *s, uint64_t total, uint64_t now)
{
    if (b->heard_ns)
        b->cached_lately *= exp2(-(double)(now - b->heard_ns) / (double)CACHE_HALF_NS);
    if (b->incarnation != s->incarnation) {
        b->cached_lately = 0;
        b->cached_total = b->incarnation ? 0 : total;
        b->incarnation = s->incarnation;
    }
    if (total > b->cached_total) {
        b->cached_lately += (double)(total - b->cached_total);
        b->cached_total = total;
    }
}

static void keep_busy(struct load *l, const struct scale_sample *s, uint64_t cached, uint64_t now)
{
    struct busy *b;
    if (!*s->pod_uid)
        return;
    HASH_FIND_STR(l->busy, s->pod_uid, b);
    if (!b) {
        size_t n = strlen(s->pod_uid) + 1;
        b = xcalloc(1, sizeof *b + n);
        memcpy(b->uid, s->pod_uid, n);
        HASH_ADD_STR(l->busy, uid, b);
    }
    keep_cached(b, s, cached, now);
    b->heard_ns = now;
    b->requests = s->running + s->waiting;
}

static void read_report(struct load *l, struct report *r, const json_t *o)
{
    static const char *const roles[] = {"roles.prefill.samples", "roles.decode.samples",
                                        "roles.unified.samples", "roles.standby.samples"};
    size_t n = 0;
    report_clear(r);
    r->heard_ns = clock_mono_ns();
    r->arrival = json_num_at(o, "arrival_tokens_per_s", 0);
    r->goodput = json_num_at(o, "goodput.met_per_s", 0);
    r->requests_per_s = json_num_at(o, "goodput.requests_per_s", 0);
    r->held_requests = count_at(o, "held_requests");
    r->held_tokens = tokens_at(o, "held_tokens");
    for (size_t k = 0; k < sizeof roles / sizeof *roles; k++)
        n += json_array_size(json_at(o, roles[k]));
    n = n < SCALING_SAMPLES_MAX ? n : SCALING_SAMPLES_MAX;
    r->samples = xcalloc(n + 1, sizeof *r->samples);
    for (size_t k = 0; k < sizeof roles / sizeof *roles; k++) {
        const json_t *list = json_at(o, roles[k]);
        for (size_t i = 0; i < json_array_size(list) && r->n < n; i++) {
            const json_t *one = json_array_get(list, i);
            read_sample(one, &r->samples[r->n]);
            keep_busy(l, &r->samples[r->n++], tokens_at(one, "cached_tokens_total"), r->heard_ns);
        }
    }
}

static void on_answer(const struct http_response *res, void *ctx)
{
    struct ask *a = ctx;
    if (res->status == 200 && !res->error) {
        CLEANUP(json_decrefp) json_t *o = json_parse(res->body, SCALING_BODY_MAX, 0, NULL);
        if (json_is_object(o))
            read_report(a->load, report_of(a->load, a->key), o);
    }
    a->load->asking--;
    free(a->key);
    free(a);
}

static void ask(struct load *l, const char *address, const struct kube_infd *d)
{
    CLEANUP(free_charp) char *secret_name = xasprintf("%s-peer", d->meta.name);
    const struct kube_secret *s = kube_cache_get(l->ctl->secrets, d->meta.namespace, secret_name);
    CLEANUP(free_charp)
    char *auth = xasprintf("Authorization: Bearer %s", s && s->secret ? s->secret : "");
    CLEANUP(free_charp)
    char *url = xasprintf("http://%s/v1/internal/load?infd=%s&namespace=%s", address, d->meta.name,
                          d->meta.namespace);
    const char *headers[] = {auth, NULL};
    struct ask *a = xcalloc(1, sizeof *a);
    a->load = l;
    a->key = xasprintf("%s %s/%s", address, d->meta.namespace, d->meta.name);
    struct http_request r = {
        .url = url,
        .headers = headers,
        .max_body_bytes = SCALING_BODY_MAX,
        .connect_timeout_ms = 500,
        .timeout_ms = 900,
        .on_done = on_answer,
        .ctx = a,
    };
    if (http_start(l->http, &r, NULL)) {
        l->asking++;
        return;
    }
    free(a->key);
    free(a);
}

struct asking {
    struct load *load;
    const char *address;
};

static bool ask_infd(const void *object, void *ctx)
{
    struct asking *k = ctx;
    ask(k->load, k->address, object);
    return true;
}

static bool ask_router(const void *object, void *ctx)
{
    struct load *l = ctx;
    const struct kube_pod *p = object;
    if (!p->ip || p->meta.deleted_ns)
        return true;
    CLEANUP(free_charp)
    char *address = xasprintf(strchr(p->ip, ':') ? "[%s]:8080" : "%s:8080", p->ip);
    struct asking k = {l, address};
    kube_cache_each(l->ctl->infds, ask_infd, &k);
    return true;
}

void samples_ask(struct load *l)
{
    struct ctl *c = l->ctl;
    if (l->asking > 256) /* routers that answer slowly are not asked again before they have */
        return;
    if (*c->opts.router_address) {
        struct asking k = {l, c->opts.router_address};
        kube_cache_each(c->infds, ask_infd, &k);
    } else {
        kube_cache_each(c->routers, ask_router, l);
    }
}

static void forget_busy(struct load *l, uint64_t now, uint64_t age_ns)
{
    struct busy *b, *tmp;
    HASH_ITER (hh, l->busy, b, tmp) {
        if (now - b->heard_ns < age_ns)
            continue;
        HASH_DEL(l->busy, b);
        free(b);
    }
}

void samples_forget(struct load *l, uint64_t now)
{
    struct report *r, *tmp;
    HASH_ITER (hh, l->reports, r, tmp) {
        if (now - r->heard_ns < FORGET_NS)
            continue;
        HASH_DEL(l->reports, r);
        report_clear(r);
        free(r);
    }
    forget_busy(l, now, FORGET_NS);
}

void samples_free(struct load *l)
{
    struct report *r, *tmp;
    HASH_ITER (hh, l->reports, r, tmp) {
        HASH_DEL(l->reports, r);
        report_clear(r);
        free(r);
    }
    forget_busy(l, 0, 0);
}

uint32_t load_of_pod(const struct ctl *c, const char *uid)
{
    const struct busy *b = NULL;
    if (c->load && uid)
        HASH_FIND_STR(c->load->busy, uid, b);
    return b ? b->requests : 0;
}

uint64_t cached_of_pod(const struct ctl *c, const char *uid)
{
    const struct busy *b = NULL;
    if (c->load && uid)
        HASH_FIND_STR(c->load->busy, uid, b);
    return b ? (uint64_t)b->cached_lately : 0;
}
