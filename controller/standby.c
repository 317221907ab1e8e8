#include "controller/standby.h"

#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/decide/fault.h"
#include "lib/decide/guard.h"
#include "lib/decide/standby.h"

#include <stdio.h>
#include <stdlib.h>

#define MANAGER     "baton-controller-standby"
#define PERIOD_MS   2000
#define NODES_MAX   2048
#define PREFER_MAX  32
#define SAMPLES_MAX 256
#define LEAD_MOVES  0.1 /* a lead time is written anew when it moved by a tenth */

struct standby {
    struct ctl *c;
    struct kube_cache *ninvs;
    void (*wake)(struct ctl *c, const char *namespace, const char *infd);
    uv_timer_t *timer;
    bool leads_stale; /* lead times may differ from what the states of deployments say */
};

/* ---- what inventories say ---- */

static const struct kube_ninv *inventory(const struct ctl *c, const char *node)
{
    return c->standby && node ? kube_cache_get(c->standby->ninvs, NULL, node) : NULL;
}

const char *standby_quarantine(const struct ctl *c, const char *node)
{
    const struct kube_ninv *v = inventory(c, node);
    return v && v->quarantined && *v->quarantined && GUARD(quarantined_nodes) ? v->quarantined
                                                                              : NULL;
}

char *standby_must_leave(const struct kube_pod *p)
{
    const char *text = kube_annotation(&p->meta, ANN_DEVICE_FAULT);
    CLEANUP(json_decrefp) json_t *o = text ? json_parse(str_c(text), 4096, 4, NULL) : NULL;
    if (fault_action_parse(json_str_at(o, "action", "")) < FAULT_DRAIN || !GUARD(faulty_pods_leave))
        return NULL;
    return xasprintf("device %.96s: %.160s", json_str_at(o, "device", ""),
                     json_str_at(o, "reason", ""));
}

static bool has_model(const struct kube_ninv *v, const struct kube_infd *d)
{
    for (size_t i = 0; v && i < v->models.n; i++) {
        const struct ninv_model *m = VIEW_AT(struct ninv_model, v->models, i);
        if (d->model_sha256
                ? m->sha256 && strcmp(m->sha256, d->model_sha256) == 0
                : m->source && d->model_source && strcmp(m->source, d->model_source) == 0)
            return true;
    }
    return false;
}

/* ---- nodes of a deployment ---- */

struct look {
    const struct ctl *c;
    const struct kube_infd *d;
    const struct infd_role *role;
    struct standby_node *nodes;
    size_t n;
    const json_t *wanted; /* the annotation now */
};

static bool ready(const struct kube_node *n)
{
    return !n->unschedulable && kube_condition_true(&n->conditions, "Ready");
}

static bool selected(const struct kube_node *n, const struct infd_role *role)
{
    for (size_t i = 0; i < role->node_selector.n; i++) {
        const char *is = kube_label(&n->meta, role->node_selector.items[i].key);
        if (!is || strcmp(is, role->node_selector.items[i].value) != 0)
            return false;
    }
    return true;
}

static bool is_wanted(const json_t *list, const char *name)
{
    size_t i;
    json_t *x;
    json_array_foreach (list, i, x)
        if (json_is_string(x) && strcmp(json_string_value(x), name) == 0)
            return true;
    return false;
}

static bool add_node(const void *object, void *ctx)
{
    const struct kube_node *n = object;
    struct look *x = ctx;
    const struct kube_ninv *v = inventory(x->c, n->meta.name);
    if (x->n == NODES_MAX)
        return false;
    x->nodes[x->n++] = (struct standby_node){.name = n->meta.name,
                                             /* without an agent nobody would fetch */
                                             .usable = v && ready(n) && selected(n, x->role) &&
                                                       !standby_quarantine(x->c, n->meta.name),
                                             .has = has_model(v, x->d),
                                             .wanted = is_wanted(x->wanted, n->meta.name),
                                             .room_bytes = UINT64_MAX};
    return true;
}

static bool mark_serving(const void *object, void *ctx)
{
    const struct kube_pod *p = object;
    struct look *x = ctx;
    for (size_t i = 0; p->node && i < x->n; i++)
        if (strcmp(x->nodes[i].name, p->node) == 0)
            x->nodes[i].serves = true;
    return true;
}

static void look_at_nodes(struct look *x)
{
    x->nodes = xcalloc(NODES_MAX, sizeof *x->nodes);
    if (!x->c->nodes || !x->c->standby)
        return;
    kube_cache_each(x->c->nodes, add_node, x);
    kube_cache_each_labelled(x->c->pods, x->d->meta.namespace, x->d->meta.name, mark_serving, x);
}

/* ---- placement ---- */

static json_t *objects_at(json_t *o, const char *key, bool array)
{
    json_t *x = json_object_get(o, key);
    if (!x) {
        x = array ? json_array() : json_object();
        json_object_set_new(o, key, x);
    }
    return x;
}

static json_t *by_node_name(const char *op, json_t *names)
{
    return json_pack("{s:s, s:s, s:o}", "key", "metadata.name", "operator", op, "values", names);
}

/* A preference a node: a field selector takes only one value. */
static void prefer(json_t *node_affinity, const struct look *x)
{
    struct arena a;
    uint32_t *picked;
    arena_init(&a, 1u << 20);
    int n = standby_prefer_nodes(x->nodes, x->n, PREFER_MAX, &a, &picked);
    for (int i = 0; i < n; i++)
        json_array_append_new(
            objects_at(node_affinity, "preferredDuringSchedulingIgnoredDuringExecution", true),
            json_pack("{s:i, s:{s:[o]}}", "weight", 50, "preference", "matchFields",
                      by_node_name("In", json_pack("[s]", x->nodes[picked[i]].name))));
    arena_fini(&a);
}

/* Each of the user's alternatives is narrowed; without any there is one. One name a requirement: a
 * field selector takes only one value. */
static void avoid(json_t *node_affinity, const char *node)
{
    json_t *terms = objects_at(
        objects_at(node_affinity, "requiredDuringSchedulingIgnoredDuringExecution", false),
        "nodeSelectorTerms", true);
    size_t i;
    json_t *term;
    if (!json_array_size(terms))
        json_array_append_new(terms, json_object());
    json_array_foreach (terms, i, term)
        json_array_append_new(objects_at(term, "matchFields", true),
                              by_node_name("NotIn", json_pack("[s]", node)));
}

/* A device in quarantine: its node is taken last. */
static void shun(json_t *node_affinity, const char *node)
{
    json_array_append_new(
        objects_at(node_affinity, "preferredDuringSchedulingIgnoredDuringExecution", true),
        json_pack("{s:i, s:{s:[o]}}", "weight", 100, "preference", "matchFields",
                  by_node_name("NotIn", json_pack("[s]", node))));
}

static bool has_bad_device(const struct kube_ninv *v)
{
    for (size_t i = 0; i < v->devices.n; i++)
        if (!VIEW_AT(struct ninv_device, v->devices, i)->healthy)
            return true;
    return false;
}

struct placing {
    const struct ctl *c;
    json_t *affinity; /* spec.affinity.nodeAffinity, made when it is needed */
    json_t *spec;
};

static json_t *node_affinity(struct placing *p)
{
    if (!p->affinity)
        p->affinity = objects_at(objects_at(p->spec, "affinity", false), "nodeAffinity", false);
    return p->affinity;
}

static bool keep_off(const void *object, void *ctx)
{
    const struct kube_ninv *v = object;
    struct placing *p = ctx;
    if (standby_quarantine(p->c, v->meta.name))
        avoid(node_affinity(p), v->meta.name);
    else if (has_bad_device(v))
        shun(node_affinity(p), v->meta.name);
    return true;
}

void standby_place(const struct ctl *c, const struct kube_infd *d, const struct infd_role *role,
                   json_t *spec)
{
    struct look x = {.c = c, .d = d, .role = role};
    struct placing p = {.c = c, .spec = spec};
    if (!c->standby || !kube_cache_count(c->standby->ninvs))
        return;
    kube_cache_each(c->standby->ninvs, keep_off, &p);
    look_at_nodes(&x);
    size_t with = 0;
    for (size_t i = 0; i < x.n; i++)
        with += x.nodes[i].usable && x.nodes[i].has;
    if (with && with < x.n)
        prefer(node_affinity(&p), &x);
    free(x.nodes);
}

/* ---- writes ---- */

static void written(const struct kube_result *r, void *ctx)
{
    struct ctl *c = ctx;
    if (r->err.code && r->status != 404) {
        if (c->standby)
            c->standby->leads_stale = true;
        log_warn("standby could not be written; it is tried again", LI("status", r->status),
                 LERR(&r->err));
    }
}

static void submit(struct ctl *c, const struct kube_infd *d, enum kube_verb verb,
                   const char *subresource, json_t *body)
{
    struct err e;
    struct kube_call call = {.verb = verb,
                             .kind = &kube_infds,
                             .namespace = d->meta.namespace,
                             .name = d->meta.name,
                             .subresource = subresource,
                             .body = body,
                             .field_manager = MANAGER,
                             .force = verb == KUBE_APPLY,
                             .done = written,
                             .ctx = c};
    if (kube_start(c->client, &call, &e))
        log_warn("standby can't be written", LERR(&e));
    json_decref(body);
}

static void choose_nodes(struct ctl *c, const struct kube_infd *d)
{
    struct arena a;
    uint32_t *picked;
    const char *is = kube_annotation(&d->meta, ANN_CACHED_NODES);
    enum rec_role role = infd_has_role(d, REC_UNIFIED) ? REC_UNIFIED : REC_DECODE;
    int32_t want =
        d->standby_cached_nodes > NODES_MAX ? NODES_MAX : (int32_t)d->standby_cached_nodes;
    if (want <= 0 && !is)
        return;
    CLEANUP(json_decrefp) json_t *now = is ? json_parse(str_c(is), 1u << 18, 4, NULL) : NULL;
    CLEANUP(json_decrefp) json_t *names = json_array();
    struct look x = {.c = c, .d = d, .role = infd_role_of(d, role), .wanted = now};
    look_at_nodes(&x);
    arena_init(&a, 1u << 20);
    int n = standby_cache_nodes(x.nodes, x.n, want, 0, &a, &picked);
    for (int i = 0; i < n; i++)
        json_array_append_new(names, json_string(x.nodes[picked[i]].name));
    arena_fini(&a);
    free(x.nodes);
    if (n < 0 || (now && json_equal(now, names)))
        return;
    char *text = json_dumps(names, JSON_COMPACT);
    log_info("nodes that keep a model", LS("infd", d->meta.name), LS("nodes", text));
    submit(c, d, KUBE_PATCH, NULL,
           json_pack("{s:{s:{s:s?}}}", "metadata", "annotations", ANN_CACHED_NODES,
                     want > 0 ? text : NULL));
    free(text);
}

struct gather {
    struct standby_lead samples[SAMPLES_MAX];
    size_t n;
};

static bool add_sample(const void *object, void *ctx)
{
    const struct kube_pod *p = object;
    struct gather *g = ctx;
    const char *text = kube_annotation(&p->meta, ANN_LEAD);
    if (text && g->n < SAMPLES_MAX && standby_lead_parse(text, &g->samples[g->n]) == 0)
        g->n++;
    return true;
}

static bool moved(double was, double now)
{
    double diff = now > was ? now - was : was - now;
    return now >= 0 && (was < 0 || diff > LEAD_MOVES * was);
}

static void tell_leads(struct ctl *c, const struct kube_infd *d)
{
    static const enum standby_rung rungs[] = {STANDBY_HOT, STANDBY_WARM, STANDBY_CACHED,
                                              STANDBY_COLD};
    const double is[] = {d->lead_hot_s, d->lead_warm_s, d->lead_cached_s, d->lead_cold_s};
    double prev[STANDBY_RUNGS], now[STANDBY_RUNGS];
    struct gather g = {.n = 0};
    bool news = false;
    for (int i = 0; i < 4; i++)
        prev[rungs[i]] = is[i] > 0 ? is[i] : -1;
    kube_cache_each_labelled(c->pods, d->meta.namespace, d->meta.name, add_sample, &g);
    standby_leads(g.samples, g.n, prev, now);
    CLEANUP(json_decrefp) json_t *seconds = json_object();
    for (int i = 0; i < 4; i++) {
        enum standby_rung r = rungs[i];
        bool changed = moved(prev[r], now[r]);
        double s = changed ? now[r] : prev[r];
        news |= changed;
        if (s >= 0)
            json_object_set_new(seconds, standby_rung_name(r), json_real(s > 0.001 ? s : 0.001));
    }
    if (news)
        submit(c, d, KUBE_APPLY, "status",
               json_pack("{s:{s:s}, s:{s:{s:O}}}", "metadata", "name", d->meta.name, "status",
                         "standby", "leadSeconds", seconds));
}

static bool each_infd(const void *object, void *ctx)
{
    const struct kube_infd *d = object;
    struct ctl *c = ctx;
    if (d->meta.deleted_ns)
        return true;
    choose_nodes(c, d);
    if (c->standby->leads_stale)
        tell_leads(c, d);
    return true;
}

static void on_timer(uv_timer_t *t)
{
    struct standby *s = t->data;
    struct ctl *c = s->c;
    bool known = kube_cache_synced(c->infds) && kube_cache_synced(c->pods) &&
                 kube_cache_synced(s->ninvs) && c->nodes && kube_cache_synced(c->nodes);
    if (!c->leading || !known)
        return;
    kube_cache_each(c->infds, each_infd, c);
    s->leads_stale = false;
}

/* ---- what the caches tell ---- */

void standby_pod_changed(struct ctl *c, const struct kube_pod *old, const struct kube_pod *now)
{
    const char *was = old ? kube_annotation(&old->meta, ANN_LEAD) : NULL;
    const char *is = now ? kube_annotation(&now->meta, ANN_LEAD) : NULL;
    if (c->standby && strcmp(was ? was : "", is ? is : "") != 0)
        c->standby->leads_stale = true;
}

void standby_infd_changed(struct ctl *c, const struct kube_infd *old, const struct kube_infd *now)
{
    bool same = old && now && old->lead_hot_s == now->lead_hot_s &&
                old->lead_warm_s == now->lead_warm_s && old->lead_cached_s == now->lead_cached_s &&
                old->lead_cold_s == now->lead_cold_s;
    if (c->standby && !same)
        c->standby->leads_stale = true;
}

/* ---- life ---- */

static bool wake_infd(const void *object, void *ctx)
{
    const struct kube_infd *d = object;
    struct standby *s = ctx;
    s->wake(s->c, d->meta.namespace, d->meta.name);
    return true;
}

/* A quarantine that begins or ends concerns every deployment: their pods may have to move. */
static void on_ninv(const void *old, const void *now, void *ctx)
{
    struct standby *s = ctx;
    const struct kube_ninv *a = old, *b = now;
    const char *was = a && a->quarantined ? a->quarantined : "";
    const char *is = b && b->quarantined ? b->quarantined : "";
    if (strcmp(was, is) == 0)
        return;
    if (*is)
        log_warn("a node is in quarantine", LS("node", b->meta.name), LS("why", is));
    kube_cache_each(s->c->infds, wake_infd, s);
}

int standby_start(struct ctl *c,
                  void (*wake)(struct ctl *c, const char *namespace, const char *infd),
                  struct err *e)
{
    struct standby *s = c->standby = xcalloc(1, sizeof *s);
    s->c = c;
    s->wake = wake;
    s->leads_stale = true;
    s->timer = xcalloc(1, sizeof *s->timer);
    uv_timer_init(c->loop, s->timer);
    s->timer->data = s;
    uv_timer_start(s->timer, on_timer, PERIOD_MS, PERIOD_MS);
    struct kube_cache_config cfg = {.kind = &kube_ninvs, .on_change = on_ninv, .ctx = s};
    return kube_cache_start(c->client, &cfg, &s->ninvs, e);
}

static void timer_closed(uv_handle_t *h)
{
    free(h);
}

void standby_stop(struct ctl *c)
{
    struct standby *s = c->standby;
    if (!s)
        return;
    if (s->ninvs)
        kube_cache_stop(s->ninvs);
    uv_close((uv_handle_t *)s->timer, timer_closed);
    c->standby = NULL;
    free(s);
}
