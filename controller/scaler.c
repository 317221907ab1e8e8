/* A look at every deployment: gather, decide, act where Baton may, keep what was found for those
 * who ask. */
#include "controller/scaling.h"
#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/base/metrics.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define CALM_NS        (10 * NS_PER_S) /* between looks where nothing can come of it */
#define DOWN_WINDOW_NS (120 * NS_PER_S)

/* Until they are measured: a label flip, a copy from memory, a read from disk, a fetch. */
static const double lead_guess_s[SCALE_RUNGS] = {0.5, 5, 20, 60};

struct pool *pool_of(struct load *l, const char *namespace, const char *name)
{
    struct pool *p;
    CLEANUP(free_charp) char *key = xasprintf("%s/%s", namespace, name);
    HASH_FIND_STR(l->pools, key, p);
    if (p)
        return p;
    p = xcalloc(1, sizeof *p + strlen(key) + 1);
    memcpy(p->key, key, strlen(key) + 1);
    p->namespace = xstrdup(namespace);
    p->name = xstrdup(name);
    p->role = REC_NO_ROLE;
    HASH_ADD_STR(l->pools, key, p);
    return p;
}

struct pool *pool_find(struct load *l, const char *namespace, const char *infd, const char *role)
{
    struct pool *p;
    CLEANUP(free_charp) char *key = xasprintf("%s/%s-%s", namespace, infd, role);
    HASH_FIND_STR(l->pools, key, p);
    return p && p->role != REC_NO_ROLE ? p : NULL;
}

static void pool_free(struct load *l, struct pool *p)
{
    HASH_DEL(l->pools, p);
    free(p->namespace);
    free(p->infd);
    free(p->name);
    free(p);
}

void pools_free(struct load *l)
{
    struct pool *p, *tmp;
    struct waker *w, *wt;
    HASH_ITER (hh, l->pools, p, tmp)
        pool_free(l, p);
    HASH_ITER (hh, l->wakers, w, wt) {
        HASH_DEL(l->wakers, w);
        free(w);
    }
}

/* ---- gathering ---- */

struct gather {
    struct load *load;
    const struct kube_infd *d;
    uint64_t now;
    struct scale_plan plan;
    const struct kube_wp *wp[SCALE_ROLES];
    struct pool *pool[SCALE_ROLES];
    bool ours[SCALE_ROLES]; /* Baton decides its number */
    int32_t hot, warm;      /* standby workers that are ready */
    bool woken;
    uint32_t held_requests;
    uint64_t held_tokens;
    double goodput;
    struct scale_pod *pods[SCALE_ROLES];
    struct scale_sample *samples[SCALE_ROLES];
    size_t pods_cap[SCALE_ROLES], samples_cap[SCALE_ROLES];
};

static void *room_for(void *items, size_t n, size_t *cap, size_t size)
{
    if (n < *cap)
        return items;
    *cap = *cap ? *cap * 2 : 64;
    return xrealloc(items, *cap * size);
}

static void count_standby(struct gather *g, const struct kube_pod *p)
{
    const char *rung = kube_annotation(&p->meta, BATON_PREFIX "rung");
    const char *actual = kube_annotation(&p->meta, ANN_ACTUAL_ROLE);
    const char *rank = kube_label(&p->meta, LABEL_RANK);
    if (!actual || strcmp(actual, "standby") != 0 || (rank && strcmp(rank, "0") != 0))
        return;
    if (rung && strcmp(rung, "warm") == 0)
        g->warm++;
    else
        g->hot++;
}

static bool gather_pod(const void *object, void *ctx)
{
    struct gather *g = ctx;
    const struct kube_pod *p = object;
    const char *infd = kube_label(&p->meta, LABEL_INFD), *role = kube_label(&p->meta, LABEL_ROLE);
    const struct kube_condition *s = kube_condition_find(&p->conditions, "PodScheduled");
    if (!infd || !role || !p->meta.namespace || strcmp(infd, g->d->meta.name) != 0 ||
        strcmp(p->meta.namespace, g->d->meta.namespace) != 0 || p->meta.deleted_ns)
        return true;
    enum rec_role r = rec_role_parse(role);
    if (r == REC_STANDBY)
        count_standby(g, p);
    if (r >= SCALE_ROLES)
        return true;
    struct scale_input *in = &g->plan.role[r].in;
    const char *incarnation = kube_annotation(&p->meta, ANN_INCARNATION);
    const char *rank = kube_label(&p->meta, LABEL_RANK);
    uint64_t n = 0;
    if (rank && str_to_u64(str_c(rank), 0, UINT32_MAX, &n))
        n = 0;
    g->pods[r] = room_for(g->pods[r], in->n_pods, &g->pods_cap[r], sizeof **g->pods);
    g->pods[r][in->n_pods++] = (struct scale_pod){
        .uid = p->meta.uid,
        .revision = kube_label(&p->meta, LABEL_REVISION),
        .incarnation = incarnation ? strtoull(incarnation, NULL, 16) : 0,
        .rank = (uint32_t)n,
        .ready = kube_condition_true(&p->conditions, "Ready"),
        .placed = p->node != NULL,
        .unschedulable = !p->node && s && s->reason && strcmp(s->reason, "Unschedulable") == 0,
    };
    return true;
}

/* Which role a sample is dealt to: that of its pod's label; a stranger's, that which it claims. */
struct owner {
    UT_hash_handle hh;
    enum rec_role role;
    const char *uid;
};

static struct owner *owners_of(const struct gather *g)
{
    struct owner *all = NULL;
    for (int i = 0; i < SCALE_ROLES; i++)
        for (size_t k = 0; k < g->plan.role[i].in.n_pods; k++) {
            struct owner *o = xcalloc(1, sizeof *o);
            o->role = (enum rec_role)i;
            o->uid = g->pods[i][k].uid ? g->pods[i][k].uid : "";
            HASH_ADD_KEYPTR(hh, all, o->uid, strlen(o->uid), o);
        }
    return all;
}

static void deal(struct gather *g, struct owner *owners, const struct report *r, uint64_t age)
{
    for (size_t i = 0; i < r->n; i++) {
        struct owner *o = NULL;
        HASH_FIND_STR(owners, r->samples[i].pod_uid, o);
        enum rec_role role = o ? o->role : r->samples[i].role;
        if (role >= SCALE_ROLES || !g->plan.role[role].on ||
            g->plan.role[role].in.n_samples == SCALING_SAMPLES_MAX)
            continue;
        struct scale_input *in = &g->plan.role[role].in;
        if (r->prometheus != (in->source == SCALE_FROM_PROMETHEUS))
            continue;
        g->samples[role] =
            room_for(g->samples[role], in->n_samples, &g->samples_cap[role], sizeof **g->samples);
        g->samples[role][in->n_samples] = r->samples[i];
        g->samples[role][in->n_samples++].age_ns += age;
    }
}

/* Requests that wait are known from routers and from Prometheus: the larger of the two. */
static void gather_reports(struct gather *g)
{
    struct report *r, *tmp;
    struct owner *owners = owners_of(g), *o, *ot;
    uint32_t prom_held = 0;
    uint64_t prom_tokens = 0;
    CLEANUP(free_charp) char *key = xasprintf(" %s/%s", g->d->meta.namespace, g->d->meta.name);
    HASH_ITER (hh, g->load->reports, r, tmp) {
        uint64_t age = g->now - r->heard_ns;
        if (!str_ends(str_c(r->key), str_c(key)) || !r->heard_ns ||
            age > (r->prometheus ? SCALING_PROM_FRESH : SCALE_FRESH_NS))
            continue;
        for (int i = 0; i < SCALE_ROLES; i++) {
            struct scale_input *in = &g->plan.role[i].in;
            if (r->prometheus != (in->source == SCALE_FROM_PROMETHEUS) ||
                in->source == SCALE_FROM_QUERY)
                continue;
            in->heard = true;
            in->arrival_tokens_per_s += r->arrival;
        }
        if (r->prometheus) {
            prom_held += r->held_requests;
            prom_tokens += r->held_tokens;
        } else {
            g->held_requests += r->held_requests;
            g->held_tokens += r->held_tokens;
            g->goodput += r->goodput;
        }
        deal(g, owners, r, age);
    }
    g->held_requests = g->held_requests > prom_held ? g->held_requests : prom_held;
    g->held_tokens = g->held_tokens > prom_tokens ? g->held_tokens : prom_tokens;
    HASH_ITER (hh, owners, o, ot) {
        HASH_DEL(owners, o);
        free(o);
    }
}

static double seconds(const char *duration)
{
    uint64_t ns;
    return kube_duration_ns(duration, 0, &ns) ? 0 : (double)ns / 1e9;
}

double infd_decimal(const char *text, double dflt)
{
    double v = dflt;
    return text && !str_to_f64(str_c(text), 0, 1e12, &v) ? v : dflt;
}

static const struct infd_query *query_of(const struct kube_infd *d, enum rec_role role)
{
    for (size_t i = 0; d->prometheus_url && i < d->prometheus_queries.n; i++) {
        const struct infd_query *q = VIEW_AT(struct infd_query, d->prometheus_queries, i);
        if (q->role && rec_role_parse(q->role) == role && q->query)
            return q;
    }
    return NULL;
}

static bool is_baton(const struct kube_infd *d)
{
    return !d->scaling_mode || strcmp(d->scaling_mode, "Baton") == 0;
}

static void set_source(struct gather *g, struct scale_input *in, const struct pool *p)
{
    const struct infd_query *q = query_of(g->d, in->role);
    in->source = q                      ? SCALE_FROM_QUERY
                 : g->d->prometheus_url ? SCALE_FROM_PROMETHEUS
                                        : SCALE_FROM_ROUTERS;
    in->fresh_ns = in->source == SCALE_FROM_PROMETHEUS ? SCALING_PROM_FRESH : SCALE_FRESH_NS;
    if (!q)
        return;
    in->heard = p->query_ns && g->now - p->query_ns < SCALING_PROM_FRESH;
    in->value = in->heard ? p->query_value : 0;
    in->target = infd_decimal(q->target, 0);
}

/* A role whose number is not Baton's to set is looked at all the same: for the metrics, and for the
 * other role's ratio; its bounds are then where it is. */
static void gather_role(struct gather *g, enum rec_role role)
{
    const struct kube_infd *d = g->d;
    const struct infd_role *r = infd_role_of(d, role);
    CLEANUP(free_charp) char *name = xasprintf("%s-%s", d->meta.name, rec_role_name(role));
    const struct kube_wp *w = kube_cache_get(g->load->ctl->wps, d->meta.namespace, name);
    if (!infd_has_role(d, role) || !w || w->meta.deleted_ns ||
        !VIEW_HAS(&kube_wp_view, w, struct kube_wp, replicas))
        return;
    struct scale_role *s = &g->plan.role[role];
    struct pool *p = g->pool[role] = pool_of(g->load, d->meta.namespace, name);
    p->seen = true;
    p->role = role;
    if (!p->infd)
        p->infd = xstrdup(d->meta.name);
    g->wp[role] = w;
    g->ours[role] = is_baton(d) && r->bounds.has && !g->load->ctl->opts.plain_scaling;
    s->on = true;
    s->memory = p->m;
    s->in = (struct scale_input){
        .role = role,
        .current = (int32_t)w->replicas,
        .min = (int32_t)(g->ours[role] ? r->bounds.min : w->replicas),
        .max = (int32_t)(g->ours[role] ? r->bounds.max : w->replicas),
        .ttft_s = seconds(d->slo_ttft),
        .tpot_s = seconds(d->slo_tpot),
        .group_pods = (int32_t)role_pods(r),
    };
    set_source(g, &s->in, p);
    if (kube_duration_ns(d->scale_down_window, DOWN_WINDOW_NS, &s->in.down_window_ns))
        s->in.down_window_ns = DOWN_WINDOW_NS;
}

/* The highest rung that has something, and its measured seconds. */
static void set_lead(struct gather *g)
{
    const struct kube_infd *d = g->d;
    const double measured[SCALE_RUNGS] = {d->lead_hot_s, d->lead_warm_s, d->lead_cached_s,
                                          d->lead_cold_s};
    bool cached = d->standby_cached_nodes > 0 || g->plan.role[REC_PREFILL].in.n_pods ||
                  g->plan.role[REC_DECODE].in.n_pods || g->plan.role[REC_UNIFIED].in.n_pods;
    enum scale_rung rung = g->hot    ? SCALE_HOT
                           : g->warm ? SCALE_WARM
                           : cached  ? SCALE_CACHED
                                     : SCALE_COLD;
    for (int i = 0; i < SCALE_ROLES; i++) {
        struct scale_input *in = &g->plan.role[i].in;
        in->rung = rung;
        in->lead_s = measured[rung] > 0 ? measured[rung] : lead_guess_s[rung];
        in->hot = g->hot + g->warm;
    }
}

static void set_limits(struct gather *g)
{
    struct scale_limits *l = &g->plan.limits;
    const struct scale_role *r = g->plan.role;
    char p[17], d[17];
    *l = (struct scale_limits){
        .ratio_min = infd_decimal(g->d->ratio_min, 0),
        .ratio_max = infd_decimal(g->d->ratio_max, 0),
        .budget = (int32_t)g->d->budget_groups,
        .min = {r[REC_PREFILL].in.min, r[REC_DECODE].in.min},
        .max = {r[REC_PREFILL].in.max, r[REC_DECODE].in.max},
    };
    if (!r[REC_PREFILL].on || !r[REC_DECODE].on)
        return;
    pod_revision(g->d, infd_role_of(g->d, REC_PREFILL), p);
    pod_revision(g->d, infd_role_of(g->d, REC_DECODE), d);
    g->plan.flips = strcmp(p, d) == 0;
}

/* The nodes are only counted when something may go up: a thousand of them take milliseconds. */
static void set_space(struct gather *g)
{
    bool up = false;
    for (int i = 0; i < SCALE_ROLES; i++)
        up |= g->plan.role[i].on && (g->plan.role[i].memory.above_since_ns ||
                                     (g->plan.role[i].in.current == 0 && g->held_requests));
    if (up)
        room_fill(g->load->room, g->d, &g->plan.space);
}

static void gather(struct gather *g)
{
    struct waker *w;
    CLEANUP(free_charp) char *key = xasprintf("%s/%s", g->d->meta.namespace, g->d->meta.name);
    HASH_FIND_STR(g->load->wakers, key, w);
    for (int i = 0; i < SCALE_ROLES; i++)
        gather_role(g, (enum rec_role)i);
    kube_cache_each_labelled(g->load->ctl->pods, g->d->meta.namespace, g->d->meta.name, gather_pod,
                             g);
    gather_reports(g);
    g->woken = w && w->woken_ns && g->now - w->woken_ns < SCALING_WOKEN_NS;
    if (g->woken && !g->held_requests)
        g->held_requests = 1;
    for (int i = 0; i < SCALE_ROLES; i++) {
        struct scale_input *in = &g->plan.role[i].in;
        in->pods = g->pods[i];
        in->samples = g->samples[i];
        in->held_requests = g->held_requests;
        in->held_tokens = g->held_tokens;
        in->heard |= g->woken && in->current == 0;
    }
    set_lead(g);
    set_limits(g);
    set_space(g);
}

/* ---- a look ---- */

static void keep(struct gather *g, int i)
{
    struct pool *p = g->pool[i];
    const struct scale_role *r = &g->plan.role[i];
    p->m = r->memory;
    p->last = r->out;
    p->looked_ns = g->now;
    p->arrival = r->in.arrival_tokens_per_s;
    p->held_requests = g->held_requests;
    p->held_tokens = g->held_tokens;
    p->goodput = g->goodput;
}

static void count_drops(const struct gather *g, int i)
{
    static struct metric_family *dropped;
    if (!dropped)
        dropped =
            metric_family(METRIC_COUNTER, "baton_controller_samples_dropped_total",
                          "Samples of load that were not counted, by reason.", "reason", NULL, 0);
    for (int k = 0; k < SCALE_DROPS; k++)
        if (g->plan.role[i].out.dropped[k])
            metric_add(metric_series(dropped, scale_drop_name((enum scale_drop)k)),
                       g->plan.role[i].out.dropped[k]);
}

static bool may_write(const struct ctl *c)
{
    return c->leading && (!c->lease || kube_lease_valid(c->lease));
}

/* A record is kept when a number changes or the reason does. */
static void carry_out(struct gather *g)
{
    bool news = false, busy = false;
    struct ctl *c = g->load->ctl;
    for (int i = 0; i < SCALE_ROLES; i++) {
        struct pool *p = g->pool[i];
        if (!p || !g->ours[i])
            continue;
        busy |= p->scaling;
        news |= p->logged != p->last.code + 1u || p->last.to != p->last.from;
    }
    if (busy)
        return;
    if (news)
        decisions_add(g->load->decisions, &g->plan, g->d, c->opts.identity);
    for (int i = 0; i < SCALE_ROLES; i++) {
        struct pool *p = g->pool[i];
        if (!p || !g->ours[i])
            continue;
        p->logged = p->last.code + 1u;
        if (p->last.to != p->last.from)
            scaler_act(g->load, g->d, g->wp[i], p);
        else
            scaler_tell(g->load, g->wp[i], p, g->now);
    }
}

void scaler_look_at(struct load *l, const struct kube_infd *d)
{
    if (d->meta.deleted_ns || !d->meta.namespace)
        return;
    struct gather *g = xcalloc(1, sizeof *g);
    g->load = l;
    g->d = d;
    g->now = g->plan.now_ns = clock_mono_ns();
    gather(g);
    scale_plan(&g->plan);
    for (int i = 0; i < SCALE_ROLES; i++) {
        if (!g->pool[i])
            continue;
        keep(g, i);
        count_drops(g, i);
    }
    if (may_write(l->ctl))
        carry_out(g);
    for (int i = 0; i < SCALE_ROLES; i++) {
        free(g->pods[i]);
        free(g->samples[i]);
    }
    free(g);
}

/* Nobody scales by it and no router tells of it: only its numbers are shown. */
static bool calm(const struct load *l, const struct kube_infd *d)
{
    CLEANUP(free_charp) char *key = xasprintf(" %s/%s", d->meta.namespace, d->meta.name);
    const char *name = key + 1;
    bool bounds = d->prefill.bounds.has || d->decode.bounds.has || d->unified.bounds.has;
    struct waker *w;
    struct report *r, *tmp;
    HASH_FIND_STR(l->wakers, name, w);
    if (w || d->prometheus_url || (bounds && is_baton(d) && !l->ctl->opts.plain_scaling))
        return false;
    HASH_ITER (hh, l->reports, r, tmp)
        if (str_ends(str_c(r->key), str_c(key)))
            return false;
    return true;
}

/* Its pools, looked at not long ago, stay as they are. */
static bool looked_lately(const struct load *l, const struct kube_infd *d, uint64_t now)
{
    struct pool *pools[SCALE_ROLES] = {0};
    bool lately = true;
    for (int i = 0; i < SCALE_ROLES; i++) {
        CLEANUP(free_charp)
        char *key =
            xasprintf("%s/%s-%s", d->meta.namespace, d->meta.name, rec_role_name((enum rec_role)i));
        if (!infd_has_role(d, (enum rec_role)i))
            continue;
        HASH_FIND_STR(l->pools, key, pools[i]);
        lately &= pools[i] && now - pools[i]->looked_ns < CALM_NS;
    }
    for (int i = 0; i < SCALE_ROLES; i++)
        if (lately && pools[i])
            pools[i]->seen = true;
    return lately;
}

static bool look_at(const void *object, void *ctx)
{
    const struct kube_infd *d = object;
    struct load *l = ctx;
    if (d->meta.namespace && calm(l, d) && looked_lately(l, d, clock_mono_ns()))
        return true;
    scaler_look_at(l, d);
    return true;
}

void scaler_look(struct load *l)
{
    struct pool *p, *tmp;
    HASH_ITER (hh, l->pools, p, tmp)
        p->seen = p->scaling; /* a request on its way keeps its pool */
    kube_cache_each(l->ctl->infds, look_at, l);
    HASH_ITER (hh, l->pools, p, tmp)
        if (!p->seen)
            pool_free(l, p);
}

bool scaler_wake(struct load *l, const char *namespace, const char *infd)
{
    struct waker *w;
    CLEANUP(free_charp) char *key = xasprintf("%s/%s", namespace, infd);
    const struct kube_infd *d = kube_cache_get(l->ctl->infds, namespace, infd);
    if (!may_write(l->ctl) || !d)
        return false;
    HASH_FIND_STR(l->wakers, key, w);
    if (!w) {
        w = xcalloc(1, sizeof *w + strlen(key) + 1);
        memcpy(w->key, key, strlen(key) + 1);
        HASH_ADD_STR(l->wakers, key, w);
    }
    w->woken_ns = clock_mono_ns();
    log_info("woken by a router", LS("infd", key));
    scaler_look_at(l, d);
    return true;
}
