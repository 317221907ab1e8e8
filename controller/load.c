/* Every second: ask each router for each deployment's load, and let lib/decide/scale.h decide for
 * roles with bounds. What the routers said is kept by deployment and router; the samples of a
 * router that falls silent age away. */
#include "controller/controller.h"
#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/base/metrics.h"
#include "lib/decide/scale.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <uthash.h>

#define TICK_MS        1000
#define DOWN_WINDOW_NS (120 * NS_PER_S)
#define SAMPLES_MAX    4096
#define BODY_MAX       (8u << 20)

/* What one router said last about one deployment. */
struct report {
    UT_hash_handle hh;
    uint64_t heard_ns;
    double arrival;
    uint32_t held_requests;
    uint64_t held_tokens;
    struct scale_sample *samples; /* uids are owned */
    size_t n;
    char key[]; /* router address, then deployment: "127.0.0.1:8080 default/chat" */
};

struct memory {
    UT_hash_handle hh;
    struct scale_memory m;
    bool scaling; /* a request is on its way */
    char key[];   /* "default/chat-decode" */
};

struct load {
    struct ctl *ctl;
    struct http_client *http;
    uv_timer_t timer;
    struct report *reports;
    struct memory *memories;
    unsigned asking;
};

struct ask {
    struct load *load;
    char *key;
};

static void report_clear(struct report *r)
{
    for (size_t i = 0; i < r->n; i++)
        free((char *)(uintptr_t)r->samples[i].pod_uid);
    free(r->samples);
    r->samples = NULL;
    r->n = 0;
}

static struct report *report_of(struct load *l, const char *key)
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

static struct memory *memory_of(struct load *l, const char *key)
{
    struct memory *m;
    HASH_FIND_STR(l->memories, key, m);
    if (m)
        return m;
    m = xcalloc(1, sizeof *m + strlen(key) + 1);
    memcpy(m->key, key, strlen(key) + 1);
    HASH_ADD_STR(l->memories, key, m);
    return m;
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
        .role = rec_role_parse(json_str_at(o, "role", "")),
        .ready = json_bool_at(o, "ready", false),
        .draining = json_bool_at(o, "draining", false),
        .warmup = json_bool_at(o, "warmup", false),
        .age_ns = tokens_at(o, "age_ms") * NS_PER_MS,
        .running = count_at(o, "running"),
        .waiting = count_at(o, "waiting"),
        .waiting_tokens = tokens_at(o, "waiting_tokens") + tokens_at(o, "sent_tokens"),
        .kv_blocks = count_at(o, "kv_blocks"),
        .kv_blocks_used = count_at(o, "kv_blocks_used"),
        .prefill_tokens_per_s = json_num_at(o, "prefill_tokens_per_s", 0),
        .decode_step_s = json_num_at(o, "decode_step_s", 0),
    };
}

static void read_report(struct report *r, const json_t *o)
{
    static const char *const roles[] = {"roles.prefill.samples", "roles.decode.samples",
                                        "roles.unified.samples", "roles.standby.samples"};
    size_t n = 0;
    report_clear(r);
    r->heard_ns = clock_mono_ns();
    r->arrival = json_num_at(o, "arrival_tokens_per_s", 0);
    r->held_requests = count_at(o, "held_requests");
    r->held_tokens = tokens_at(o, "held_tokens");
    for (size_t k = 0; k < sizeof roles / sizeof *roles; k++)
        n += json_array_size(json_at(o, roles[k]));
    n = n < SAMPLES_MAX ? n : SAMPLES_MAX;
    r->samples = xcalloc(n + 1, sizeof *r->samples);
    for (size_t k = 0; k < sizeof roles / sizeof *roles; k++) {
        const json_t *list = json_at(o, roles[k]);
        for (size_t i = 0; i < json_array_size(list) && r->n < n; i++)
            read_sample(json_array_get(list, i), &r->samples[r->n++]);
    }
}

static void on_answer(const struct http_response *res, void *ctx)
{
    struct ask *a = ctx;
    if (res->status == 200 && !res->error) {
        CLEANUP(json_decrefp) json_t *o = json_parse(res->body, BODY_MAX, 0, NULL);
        if (json_is_object(o))
            read_report(report_of(a->load, a->key), o);
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
        .max_body_bytes = BODY_MAX,
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

static void forget_silent(struct load *l, uint64_t now)
{
    struct report *r, *tmp;
    HASH_ITER (hh, l->reports, r, tmp) {
        if (now - r->heard_ns < 60 * NS_PER_S)
            continue;
        HASH_DEL(l->reports, r);
        report_clear(r);
        free(r);
    }
}

uint32_t load_of_pod(const struct ctl *c, const char *uid)
{
    const struct report *r, *tmp;
    uint64_t newest = 0;
    uint32_t running = 0;
    if (!c->load || !uid)
        return 0;
    HASH_ITER (hh, c->load->reports, r, tmp) {
        for (size_t i = 0; i < r->n; i++) {
            if (r->heard_ns < newest || strcmp(r->samples[i].pod_uid, uid) != 0)
                continue;
            newest = r->heard_ns;
            running = r->samples[i].running + r->samples[i].waiting;
        }
    }
    return running;
}

/* ---- deciding ---- */

struct gather {
    struct load *load;
    const struct kube_infd *d;
    enum rec_role role;
    uint64_t now;
    struct scale_input in;
    struct scale_pod pods[SAMPLES_MAX];
    struct scale_sample samples[SAMPLES_MAX];
};

static bool gather_pod(const void *object, void *ctx)
{
    struct gather *g = ctx;
    const struct kube_pod *p = object;
    const char *infd = kube_label(&p->meta, LABEL_INFD), *role = kube_label(&p->meta, LABEL_ROLE);
    const struct kube_condition *s = kube_condition_find(&p->conditions, "PodScheduled");
    if (!infd || !role || !p->meta.namespace || strcmp(infd, g->d->meta.name) != 0 ||
        strcmp(p->meta.namespace, g->d->meta.namespace) != 0 || rec_role_parse(role) != g->role ||
        p->meta.deleted_ns)
        return true;
    const char *rank = kube_label(&p->meta, LABEL_RANK);
    if (g->in.n_pods < SAMPLES_MAX)
        g->pods[g->in.n_pods++] = (struct scale_pod){
            .uid = p->meta.uid,
            .rank = rank && strcmp(rank, "0") != 0,
            .ready = kube_condition_true(&p->conditions, "Ready"),
            .placed = p->node != NULL,
            .unschedulable = !p->node && s && s->reason && strcmp(s->reason, "Unschedulable") == 0,
        };
    return true;
}

static void gather_reports(struct gather *g)
{
    const struct report *r, *tmp;
    CLEANUP(free_charp) char *key = xasprintf(" %s/%s", g->d->meta.namespace, g->d->meta.name);
    HASH_ITER (hh, g->load->reports, r, tmp) {
        uint64_t age = g->now - r->heard_ns;
        if (!str_ends(str_c(r->key), str_c(key)) || age > SCALE_FRESH_NS)
            continue;
        g->in.heard = true;
        g->in.arrival_tokens_per_s += r->arrival;
        g->in.held_requests += r->held_requests;
        g->in.held_tokens += r->held_tokens;
        for (size_t i = 0; i < r->n && g->in.n_samples < SAMPLES_MAX; i++) {
            g->samples[g->in.n_samples] = r->samples[i];
            g->samples[g->in.n_samples++].age_ns += age;
        }
    }
}

static double seconds(const char *duration)
{
    uint64_t ns;
    return kube_duration_ns(duration, 0, &ns) ? 0 : (double)ns / 1e9;
}

static double decimal(const char *text)
{
    double v = 0;
    return text && !str_to_f64(str_c(text), 0, 1e6, &v) ? v : 0;
}

/* False: Baton doesn't scale this role, or not now. */
static bool gather(struct gather *g, const struct kube_wp *w)
{
    const struct kube_infd *d = g->d;
    const struct infd_role *r = infd_role_of(d, g->role);
    if (!infd_has_role(d, g->role) || !r->bounds.has || !w || w->meta.deleted_ns ||
        !VIEW_HAS(&kube_wp_view, w, struct kube_wp, replicas))
        return false;
    g->in = (struct scale_input){
        .role = g->role,
        .current = (int32_t)w->replicas,
        .min = (int32_t)r->bounds.min,
        .max = (int32_t)r->bounds.max,
        .ttft_s = seconds(d->slo_ttft),
        .tpot_s = seconds(d->slo_tpot),
        .pods = g->pods,
        .samples = g->samples,
    };
    if (kube_duration_ns(d->scale_down_window, DOWN_WINDOW_NS, &g->in.down_window_ns))
        g->in.down_window_ns = DOWN_WINDOW_NS;
    kube_cache_each(g->load->ctl->pods, gather_pod, g);
    gather_reports(g);
    return true;
}

/* ---- acting ---- */

struct scaling {
    struct load *load;
    char *namespace, *pool, *key, *infd, *infd_uid;
    struct scale_decision d;
    json_t *decisions;
};

static void scaling_end(struct scaling *s)
{
    struct memory *m = memory_of(s->load, s->key);
    m->scaling = false;
    free(s->namespace);
    free(s->pool);
    free(s->key);
    free(s->infd);
    free(s->infd_uid);
    json_decref(s->decisions);
    free(s);
}

static void on_recorded(const struct kube_result *r, void *ctx)
{
    struct scaling *s = ctx;
    if (r->err.code)
        log_warn("a scaling decision was not recorded", LS("pool", s->key), LERR(&r->err));
    scaling_end(s);
}

/* The last five decisions, newest first, by a field manager of their own: the controller's status
 * apply leaves them alone. */
static void record(struct scaling *s)
{
    struct err e = {0};
    CLEANUP(json_decrefp)
    json_t *body = json_pack("{s:{s:s, s:s}, s:{s:O}}", "metadata", "name", s->pool, "namespace",
                             s->namespace, "status", "decisions", s->decisions);
    struct kube_call call = {
        .verb = KUBE_APPLY,
        .kind = &kube_wps,
        .namespace = s->namespace,
        .name = s->pool,
        .subresource = "status",
        .body = body,
        .field_manager = "baton-scaler",
        .force = true,
        .done = on_recorded,
        .ctx = s,
    };
    if (kube_start(s->load->ctl->client, &call, &e))
        scaling_end(s);
}

static void on_scaled(const struct kube_result *r, void *ctx)
{
    struct scaling *s = ctx;
    struct kube_regarding about = {&kube_infds, s->namespace, s->infd, s->infd_uid, NULL};
    if (r->err.code) {
        log_debug("not scaled", LS("pool", s->key),
                  LERR(&r->err)); /* 409: someone scaled; look again in a second */
        scaling_end(s);
        return;
    }
    char note[400];
    snprintf(note, sizeof note, "%s from %d to %d: %s", s->pool, s->d.from, s->d.to, s->d.reason);
    kube_event(s->load->ctl->events, &about, "Normal", "Scaled", "Scale", note);
    log_info("scaled", LS("pool", s->key), LI("from", s->d.from), LI("to", s->d.to),
             LS("why", s->d.reason), LS("inputs", s->d.inputs));
    metric_add(metric_series(metric_family(METRIC_COUNTER, "baton_controller_scalings_total",
                                           "Scaling decisions carried out.", "direction", NULL, 0),
                             s->d.to > s->d.from ? "up" : "down"),
               1);
    record(s);
}

static json_t *decisions(const struct kube_wp *w, const struct scale_decision *d)
{
    char time[CLOCK_RFC3339_MAX];
    json_t *list = json_array();
    json_array_append_new(list, json_pack("{s:s, s:i, s:i, s:s, s:s}", "at",
                                          clock_rfc3339(clock_wall_ns(), 0, time), "from", d->from,
                                          "to", d->to, "reason", d->reason, "inputs", d->inputs));
    CLEANUP(json_decrefp) json_t *old = view_encode(&kube_wp_view, w);
    const json_t *past = json_at(old, "status.decisions");
    for (size_t i = 0; i < json_array_size(past) && i < 4; i++)
        json_array_append(list, json_array_get(past, i));
    return list;
}

static void act(struct gather *g, const struct kube_wp *w, const struct scale_decision *d)
{
    struct ctl *c = g->load->ctl;
    struct scaling *s = xcalloc(1, sizeof *s);
    struct err e = {0};
    *s = (struct scaling){
        .load = g->load,
        .namespace = xstrdup(w->meta.namespace),
        .pool = xstrdup(w->meta.name),
        .key = xasprintf("%s/%s", w->meta.namespace, w->meta.name),
        .infd = xstrdup(g->d->meta.name),
        .infd_uid = xstrdup(g->d->meta.uid),
        .d = *d,
        .decisions = decisions(w, d),
    };
    CLEANUP(json_decrefp)
    json_t *body =
        json_pack("{s:s, s:s, s:{s:s, s:s, s:s}, s:{s:i}}", "apiVersion", "autoscaling/v1", "kind",
                  "Scale", "metadata", "name", s->pool, "namespace", s->namespace,
                  "resourceVersion", w->meta.resource_version, "spec", "replicas", d->to);
    struct kube_call call = {
        .verb = KUBE_UPDATE,
        .kind = &kube_wps,
        .namespace = s->namespace,
        .name = s->pool,
        .subresource = "scale",
        .body = body,
        .field_manager = "baton-scaler",
        .done = on_scaled,
        .ctx = s,
    };
    memory_of(g->load, s->key)->scaling = true;
    if (kube_start(c->client, &call, &e))
        scaling_end(s);
}

static const struct kube_wp *pool_of(const struct ctl *c, const struct kube_infd *d,
                                     enum rec_role role)
{
    CLEANUP(free_charp) char *name = xasprintf("%s-%s", d->meta.name, rec_role_name(role));
    return kube_cache_get(c->wps, d->meta.namespace, name);
}

static void limit_both(const struct kube_infd *d, struct scale_decision *p,
                       struct scale_decision *k)
{
    struct scale_limits l = {
        .ratio_min = decimal(d->ratio_min),
        .ratio_max = decimal(d->ratio_max),
        .budget = (int32_t)d->budget_groups,
        .min = {(int32_t)d->prefill.bounds.min, (int32_t)d->decode.bounds.min},
        .max = {(int32_t)d->prefill.bounds.max, (int32_t)d->decode.bounds.max},
    };
    scale_limit(&l, p, k);
}

static bool decide_infd(const void *object, void *ctx)
{
    struct load *l = ctx;
    const struct kube_infd *d = object;
    struct scale_decision out[REC_STANDBY];
    const struct kube_wp *pools[REC_STANDBY];
    bool decided[REC_STANDBY] = {false};
    if ((d->scaling_mode && strcmp(d->scaling_mode, "Baton") != 0) || d->meta.deleted_ns)
        return true;
    struct gather *g = xcalloc(1, sizeof *g);
    *g = (struct gather){.load = l, .d = d, .now = clock_mono_ns()};
    for (int i = 0; i < REC_STANDBY; i++) {
        g->role = (enum rec_role)i;
        pools[i] = pool_of(l->ctl, d, g->role);
        if (!gather(g, pools[i]))
            continue;
        CLEANUP(free_charp)
        char *key = xasprintf("%s/%s", pools[i]->meta.namespace, pools[i]->meta.name);
        struct memory *m = memory_of(l, key);
        scale_decide(&g->in, &m->m, g->now, &out[i]);
        decided[i] = !m->scaling;
    }
    if (decided[REC_PREFILL] && decided[REC_DECODE])
        limit_both(d, &out[REC_PREFILL], &out[REC_DECODE]);
    for (int i = 0; i < REC_STANDBY; i++)
        if (decided[i] && out[i].to != out[i].from)
            act(g, pools[i], &out[i]);
    free(g);
    return true;
}

static void on_tick(uv_timer_t *t)
{
    struct load *l = t->data;
    struct ctl *c = l->ctl;
    if (!c->leading || (c->lease && !kube_lease_valid(c->lease)))
        return;
    forget_silent(l, clock_mono_ns());
    if (!c->opts.plain_scaling)
        kube_cache_each(c->infds, decide_infd, l);
    if (l->asking > 256) /* routers that answer slowly are not asked again before they have */
        return;
    if (*c->opts.router_address) {
        struct asking k = {l, c->opts.router_address};
        kube_cache_each(c->infds, ask_infd, &k);
    } else {
        kube_cache_each(c->routers, ask_router, l);
    }
}

int load_start(struct ctl *c, struct err *e)
{
    struct load *l = xcalloc(1, sizeof *l);
    struct http_client_config cfg = {.loop = c->loop, .user_agent = "baton-controller"};
    int rc = http_client_new(&cfg, &l->http, e);
    if (rc) {
        free(l);
        return rc;
    }
    l->ctl = c;
    l->timer.data = l;
    uv_timer_init(c->loop, &l->timer);
    uv_timer_start(&l->timer, on_tick, TICK_MS, TICK_MS);
    c->load = l;
    return 0;
}

static void on_timer_closed(uv_handle_t *h)
{
    free(h->data);
}

void load_stop(struct ctl *c)
{
    struct load *l = c->load;
    struct report *r, *tmp;
    struct memory *m, *mt;
    if (!l)
        return;
    c->load = NULL;
    uv_timer_stop(&l->timer);
    http_client_free(l->http);
    HASH_ITER (hh, l->reports, r, tmp) {
        HASH_DEL(l->reports, r);
        report_clear(r);
        free(r);
    }
    HASH_ITER (hh, l->memories, m, mt) {
        HASH_DEL(l->memories, m);
        free(m);
    }
    uv_close((uv_handle_t *)&l->timer, on_timer_closed);
}
