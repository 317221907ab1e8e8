/* From the caches (kube's views) to lib/decide's own structs. Everything is copied into the arena:
 * the requests that follow outlive what the caches hold now. */
#include "controller/controller.h"
#include "controller/standby.h"
#include "lib/base/clock.h"

#include <errno.h>
#include <stdio.h>

struct build {
    struct ctl *ctl;
    const struct kube_infd *d;
    struct arena *a;
    struct rec_pod *pods;
    size_t n, cap;
    struct rec_rival *rivals;
    size_t n_rivals, rivals_cap;
    struct rec_revision *revisions;
    size_t n_revisions, revisions_cap;
    struct gang_group *gangs;
    size_t n_gangs, gangs_cap;
    const char **pod_groups;
    size_t n_pod_groups, pod_groups_cap;
    uint64_t look_again_ns;
    bool oom;
};

static const char *keep(struct build *b, const char *s)
{
    if (!s)
        return NULL;
    const char *copy = arena_dup(b->a, str_c(s));
    b->oom |= !copy;
    return copy ? copy : "";
}

/* Room for one more element of `size` in an arena array; false when out of memory. */
static bool grow(struct build *b, void **items, size_t n, size_t *cap, size_t size)
{
    if (n < *cap)
        return true;
    size_t more = *cap ? *cap * 2 : 16;
    void *p = arena_calloc(b->a, more * size);
    if (!p) {
        b->oom = true;
        return false;
    }
    if (n)
        memcpy(p, *items, n * size);
    *items = p;
    *cap = more;
    return true;
}

const struct kube_infd *snapshot_infd(const struct ctl *c, const char *key)
{
    const char *slash = strchr(key, '/');
    if (!slash)
        return NULL;
    CLEANUP(free_charp) char *ns = str_dup((struct str){key, (size_t)(slash - key)});
    return kube_cache_get(c->infds, ns, slash + 1);
}

static bool owned(const struct kube_meta *m, const char *uid)
{
    const struct kube_owner *o = kube_controller_of(m);
    return o && o->uid && strcmp(o->uid, uid) == 0;
}

static int32_t small(int64_t v)
{
    return v < 0 ? -1 : v > 1000000 ? 1000000 : (int32_t)v;
}

static int32_t annotation_number(const struct kube_meta *m, const char *key)
{
    int64_t v;
    const char *text = kube_annotation(m, key);
    return text && !str_to_i64(str_c(text), 0, 1000000, &v) ? (int32_t)v : -1;
}

static uint64_t annotation_time(const struct kube_meta *m, const char *key)
{
    uint64_t ns;
    const char *text = kube_annotation(m, key);
    return text && !clock_parse_rfc3339(text, &ns) ? ns : 0;
}

static const char *crash_record(struct build *b, const struct kube_pod *p,
                                const struct kube_container_status *c,
                                const struct kube_terminated *t)
{
    struct buf out;
    buf_init(&out, 16384);
    CLEANUP(json_decrefp)
    json_t *o = json_pack("{s:s*, s:I, s:s*, s:s*, s:s}", "container", c->name, "exitCode",
                          (json_int_t)t->exit_code, "reason", t->reason, "message", t->message,
                          "pod", p->meta.name);
    const char *text = o && !json_write(o, true, &out) ? keep(b, out.data) : NULL;
    buf_fini(&out);
    return text;
}

/* The record of the last end of a container in *crash, its time in *at. */
static void last_end(struct build *b, const struct kube_pod *p, const char **crash, uint64_t *at)
{
    for (size_t i = 0; i < p->containers.n; i++) {
        const struct kube_container_status *c =
            VIEW_AT(struct kube_container_status, p->containers, i);
        const struct kube_terminated *t = c->now.has ? &c->now : &c->last;
        if (!t->has)
            continue;
        *at = t->finished_ns > *at ? t->finished_ns : *at;
        *crash = crash_record(b, p, c, t);
    }
}

/* When the ranks of a failed epoch ended: the time in the agent's record. */
static uint64_t crash_time(const char *record)
{
    CLEANUP(json_decrefp) json_t *o = record ? json_parse(str_c(record), 65536, 0, NULL) : NULL;
    const char *time = json_str_at(o, "time", NULL);
    uint64_t ns;
    return time && !clock_parse_rfc3339(time, &ns) ? ns : 0;
}

static uint32_t count_at(const struct kube_meta *m, const char *key)
{
    int32_t n = annotation_number(m, key);
    return n > 0 ? (uint32_t)n : 0;
}

static bool gated(const struct kube_pod *p)
{
    for (size_t i = 0; i < p->gates.n; i++)
        if (strcmp(VIEW_AT(struct kube_gate, p->gates, i)->name, GATE_GANG) == 0)
            return true;
    return false;
}

static int32_t label_number(const struct kube_meta *m, const char *key)
{
    int64_t v;
    const char *text = kube_label(m, key);
    return text && !str_to_i64(str_c(text), 0, 4096, &v) ? (int32_t)v : 0;
}

static void fill_group(struct build *b, const struct kube_pod *p, struct rec_pod *out)
{
    const char *record = kube_annotation(&p->meta, ANN_LAST_CRASH);
    out->size = label_number(&p->meta, LABEL_GROUP_SIZE);
    if (out->size <= 1)
        return;
    out->group = keep(b, kube_label(&p->meta, LABEL_GROUP));
    out->index = label_number(&p->meta, LABEL_INDEX);
    out->peers = keep(b, kube_annotation(&p->meta, ANN_PEERS));
    out->failed_epoch = count_at(&p->meta, ANN_FAILED_EPOCH);
    out->gated = gated(p);
    out->lifted_ns = annotation_time(&p->meta, ANN_GANG_LIFTED);
    if (out->failed_epoch && !out->failed_ns)
        out->failed_ns = crash_time(record);
}

static void fill_trouble(struct build *b, const struct kube_pod *p, struct rec_pod *out)
{
    struct trouble t;
    uint64_t again = 0;
    enum node_state node = nodes_state(b->ctl, p, &again);
    if (again && (!b->look_again_ns || again < b->look_again_ns))
        b->look_again_ns = again;
    out->leaving = node == NODE_LEAVING;
    out->lost = node == NODE_LOST && !out->ready;
    CLEANUP(free_charp) char *fault = standby_must_leave(p);
    if (fault) {
        out->leaving = true;
        out->reason = "DeviceFault";
        out->trouble = keep(b, fault);
    }
    if (fault || !trouble_of(p, node, &t))
        return;
    out->reason = t.reason;
    out->trouble = keep(b, t.text);
    out->disrupted = t.disrupted;
    out->unschedulable = t.unschedulable;
}

static void fill_pod(struct build *b, const struct kube_pod *p, struct rec_pod *out)
{
    const char *actual = kube_annotation(&p->meta, ANN_ACTUAL_ROLE);
    const char *crash = NULL, *record = kube_annotation(&p->meta, ANN_LAST_CRASH);
    uint64_t ended = 0;
    bool failed =
        p->phase && (strcmp(p->phase, "Failed") == 0 || strcmp(p->phase, "Succeeded") == 0);
    last_end(b, p, &crash, &ended);
    *out = (struct rec_pod){
        .name = keep(b, p->meta.name),
        .uid = keep(b, p->meta.uid),
        .resource_version = keep(b, p->meta.resource_version),
        .role = rec_role_parse(kube_label(&p->meta, LABEL_ROLE)),
        .revision = keep(b, kube_label(&p->meta, LABEL_REVISION)),
        .pair = keep(b, kube_label(&p->meta, LABEL_PAIR)),
        .ip = p->ip && *p->ip ? keep(b, p->ip) : NULL,
        .ready = kube_condition_true(&p->conditions, "Ready"),
        .deleting = p->meta.deleted_ns || expected_deleted(b->ctl, p->meta.uid),
        .failed = failed,
        .placed = p->node != NULL,
        .rung = rec_rung_parse(kube_annotation(&p->meta, ANN_RUNG)),
        .standby_ready = actual && strcmp(actual, "standby") == 0,
        .created_ns = p->meta.created_ns,
        .failed_ns = failed ? ended : 0,
        .backoff_until_ns = annotation_time(&p->meta, ANN_BACKOFF_UNTIL),
        .backoff_s = count_at(&p->meta, ANN_BACKOFF_S),
        .epoch = count_at(&p->meta, ANN_EPOCH),
        .load = load_of_pod(b->ctl, p->meta.uid),
        .cached_tokens = cached_of_pod(b->ctl, p->meta.uid),
        .crash = record ? keep(b, record) : crash,
    };
    fill_group(b, p, out);
    fill_trouble(b, p, out);
}

static void add_pod(struct build *b, const struct kube_pod *p)
{
    if (!grow(b, (void **)&b->pods, b->n, &b->cap, sizeof *b->pods))
        return;
    fill_pod(b, p, &b->pods[b->n]);
    if (b->pods[b->n].role != REC_NO_ROLE)
        b->n++;
}

/* Ours: by label and by controlling owner; a pod that only carries the label is someone else's. */
static bool is_ours(const struct build *b, const struct kube_pod *p)
{
    const char *infd = kube_label(&p->meta, LABEL_INFD);
    return infd && p->meta.namespace && strcmp(infd, b->d->meta.name) == 0 &&
           strcmp(p->meta.namespace, b->d->meta.namespace) == 0 && owned(&p->meta, b->d->meta.uid);
}

static bool each_pod(const void *object, void *ctx)
{
    struct build *b = ctx;
    if (is_ours(b, object))
        add_pod(b, object);
    return !b->oom;
}

static bool each_revision(const void *object, void *ctx)
{
    struct build *b = ctx;
    const struct kube_revision *v = object;
    if (!owned(&v->meta, b->d->meta.uid) || v->meta.deleted_ns)
        return true;
    if (!grow(b, (void **)&b->revisions, b->n_revisions, &b->revisions_cap, sizeof *b->revisions))
        return false;
    struct rec_revision *out = &b->revisions[b->n_revisions++];
    *out = (struct rec_revision){.name = keep(b, v->meta.name),
                                 .uid = keep(b, v->meta.uid),
                                 .hash = keep(b, kube_label(&v->meta, LABEL_REVISION)),
                                 .number = v->number};
    for (int i = 0; i < REC_ROLES; i++) {
        out->roles[i] = keep(b, revision_of_role(v, (enum rec_role)i));
        out->sizes[i] = revision_pods(v, (enum rec_role)i);
    }
    return true;
}

/* Sums up the gated groups of the namespace, whoever owns them: they compete for one turn. */
static void add_gang(struct build *b, const struct kube_pod *p)
{
    const char *name = kube_label(&p->meta, LABEL_GROUP);
    int32_t size = label_number(&p->meta, LABEL_GROUP_SIZE);
    struct gang_group *g = NULL;
    if (size <= 1 || !name || p->meta.deleted_ns || expected_deleted(b->ctl, p->meta.uid))
        return;
    for (size_t i = 0; i < b->n_gangs && !g; i++)
        g = strcmp(b->gangs[i].name, name) == 0 ? &b->gangs[i] : NULL;
    if (!g) {
        if (!grow(b, (void **)&b->gangs, b->n_gangs, &b->gangs_cap, sizeof *b->gangs))
            return;
        g = &b->gangs[b->n_gangs++];
        *g = (struct gang_group){
            .name = keep(b, name), .size = size, .created_ns = p->meta.created_ns};
    }
    uint64_t lifted = annotation_time(&p->meta, ANN_GANG_LIFTED);
    uint64_t until = annotation_time(&p->meta, ANN_BACKOFF_UNTIL);
    g->there++;
    g->gated += gated(p);
    g->placed += p->node != NULL;
    if (p->meta.created_ns < g->created_ns)
        g->created_ns = p->meta.created_ns;
    if (lifted && (!g->lifted_ns || lifted < g->lifted_ns))
        g->lifted_ns = lifted;
    if (until > g->not_before_ns)
        g->not_before_ns = until;
}

static bool each_gang_pod(const void *object, void *ctx)
{
    struct build *b = ctx;
    const struct kube_pod *p = object;
    if (p->meta.namespace && strcmp(p->meta.namespace, b->d->meta.namespace) == 0)
        add_gang(b, p);
    return !b->oom;
}

static bool each_pod_group(const void *object, void *ctx)
{
    struct build *b = ctx;
    const struct kube_pod_group *g = object;
    if (grow(b, (void **)&b->pod_groups, b->n_pod_groups, &b->pod_groups_cap,
             sizeof *b->pod_groups))
        b->pod_groups[b->n_pod_groups++] = keep(b, g->meta.name);
    return !b->oom;
}

/* Only where there are such groups: it looks at every pod of the namespace. */
static void fill_gangs(struct build *b, struct rec_snapshot *s)
{
    bool any = false;
    for (size_t i = 0; i < b->n; i++)
        any |= b->pods[i].size > 1;
    s->gang = b->ctl->gang;
    if (!any)
        return;
    kube_cache_each(b->ctl->pods, each_gang_pod, b);
    for (const struct expected *x = b->ctl->expected; x && !b->oom; x = x->next)
        if (x->created && x->created->meta.namespace &&
            strcmp(x->created->meta.namespace, b->d->meta.namespace) == 0)
            add_gang(b, x->created);
    if (b->ctl->pod_groups)
        kube_cache_each_labelled(b->ctl->pod_groups, b->d->meta.namespace, b->d->meta.name,
                                 each_pod_group, b);
    s->gangs = b->gangs;
    s->n_gangs = b->n_gangs;
    s->pod_groups = b->pod_groups;
    s->n_pod_groups = b->n_pod_groups;
}

static bool each_infd(const void *object, void *ctx)
{
    struct build *b = ctx;
    const struct kube_infd *o = object;
    if (!o->meta.namespace || strcmp(o->meta.namespace, b->d->meta.namespace) != 0 ||
        o->meta.deleted_ns)
        return true;
    if (!grow(b, (void **)&b->rivals, b->n_rivals, &b->rivals_cap, sizeof *b->rivals))
        return false;
    b->rivals[b->n_rivals++] = (struct rec_rival){keep(b, o->meta.name), keep(b, o->meta.uid),
                                                  keep(b, o->model_name), o->meta.created_ns};
    return true;
}

static struct rec_condition condition(struct build *b, const struct view_list *list,
                                      const char *type)
{
    const struct kube_condition *c = kube_condition_find(list, type);
    if (!c)
        return (struct rec_condition){0};
    return (struct rec_condition){keep(b, c->type),    keep(b, c->status), keep(b, c->reason),
                                  keep(b, c->message), c->since_ns,        c->observed_generation};
}

static void fill_pool(struct build *b, const char *name, struct rec_pool *out)
{
    const struct kube_wp *w = kube_cache_get(b->ctl->wps, b->d->meta.namespace, name);
    const struct kube_pdb *pdb = kube_cache_get(b->ctl->pdbs, b->d->meta.namespace, name);
    *out = (struct rec_pool){.replicas = -1,
                             .last_replicas = -1,
                             .bounds_min = -1,
                             .bounds_max = -1,
                             .pdb_min_available = pdb ? small(pdb->min_available) : -1,
                             .pdb_all_ranks = pdb && !view_map_get(&pdb->selects, LABEL_RANK)};
    if (!w)
        return;
    out->exists = true;
    out->ours = owned(&w->meta, b->d->meta.uid);
    out->deleting = w->meta.deleted_ns != 0;
    out->resource_version = keep(b, w->meta.resource_version);
    out->uid = keep(b, w->meta.uid);
    out->generation = w->meta.generation;
    out->last_replicas = annotation_number(&w->meta, ANN_LAST_REPLICAS);
    if (VIEW_HAS(&kube_wp_view, w, struct kube_wp, replicas))
        out->replicas = small(w->replicas);
    if (VIEW_HAS(&kube_wp_view, w, struct kube_wp, bounds)) {
        out->bounds_min = small(w->bounds.min);
        out->bounds_max = small(w->bounds.max);
    }
    out->status_replicas = small(w->status_replicas);
    out->ready_replicas = small(w->ready_replicas);
    out->updated_replicas = small(w->updated_replicas);
    out->observed_generation = w->observed_generation;
    out->selector = keep(b, w->selector);
    out->ready = condition(b, &w->conditions, "Ready");
    if (out->bounds_max >= 0 && kube_condition_true(&w->conditions, "CapacityLimited"))
        out->limited = condition(b, &w->conditions, "CapacityLimited").message;
}

static void fill_role(struct build *b, enum rec_role role, struct rec_role_spec *out)
{
    const struct infd_role *r = infd_role_of(b->d, role);
    char revision[17], pair[17];
    pod_revision(b->d, r, revision);
    pod_pair(b->d, pair);
    *out = (struct rec_role_spec){.wanted = infd_has_role(b->d, role),
                                  .replicas = -1,
                                  .bounds_min = -1,
                                  .bounds_max = -1,
                                  .pods = small(role_pods(r)),
                                  .pair = keep(b, pair),
                                  .revision = keep(b, revision)};
    if (role == REC_STANDBY)
        return;
    if (out->wanted && (r->has & 1)) /* replicas is the table's first field */
        out->replicas = small(r->replicas);
    if (out->wanted && r->bounds.has) {
        out->bounds_min = small(r->bounds.min);
        out->bounds_max = small(r->bounds.max);
    }
    CLEANUP(free_charp) char *name = xasprintf("%s-%s", b->d->meta.name, rec_role_name(role));
    fill_pool(b, name, &out->pool);
}

static struct rec_counts counts_of(const struct infd_role_status *s)
{
    return (struct rec_counts){small(s->desired), small(s->current), small(s->ready),
                               small(s->updated)};
}

static void fill_status(struct build *b, struct rec_snapshot *s)
{
    static const char *const types[REC_CONDITIONS] = {"Accepted", "Ready", "Progressing",
                                                      "CapacityLimited"};
    const struct kube_infd *d = b->d;
    for (int i = 0; i < REC_CONDITIONS; i++)
        s->conditions[i] = condition(b, &d->conditions, types[i]);
    s->counts[REC_PREFILL] = counts_of(&d->prefill_status);
    s->counts[REC_DECODE] = counts_of(&d->decode_status);
    s->counts[REC_UNIFIED] = counts_of(&d->unified_status);
    s->observed_generation = d->observed_generation;
    s->status_url = keep(b, d->url);
    s->status_revision = keep(b, d->revision);
    s->status_current = keep(b, d->current_revision);
}

static enum rec_secret secret_state(struct build *b)
{
    CLEANUP(free_charp) char *name = xasprintf("%s-peer", b->d->meta.name);
    const struct kube_secret *k = kube_cache_get(b->ctl->secrets, b->d->meta.namespace, name);
    return !k                                ? REC_SECRET_ABSENT
           : owned(&k->meta, b->d->meta.uid) ? REC_SECRET_OURS
                                             : REC_SECRET_FOREIGN;
}

/* Pods that this process made and the cache does not show yet. */
static void add_expected(struct build *b)
{
    for (const struct expected *x = b->ctl->expected; x && !b->oom; x = x->next)
        if (x->created && is_ours(b, x->created))
            add_pod(b, x->created);
}

int snapshot_build(struct ctl *c, const struct kube_infd *d, struct arena *a,
                   struct rec_snapshot *out)
{
    struct build b = {.ctl = c, .d = d, .a = a};
    char revision[17];
    infd_revision(d, revision);
    *out = (struct rec_snapshot){
        .name = keep(&b, d->meta.name),
        .namespace = keep(&b, d->meta.namespace),
        .uid = keep(&b, d->meta.uid),
        .model_name = keep(&b, d->model_name ? d->model_name : ""),
        .url = keep(&b, c->opts.router_url),
        .generation = d->meta.generation,
        .created_ns = d->meta.created_ns,
        .deleting = d->meta.deleted_ns != 0,
        .invalid = pod_invalid(d),
        .max_unavailable = small(d->max_unavailable),
        .max_surge = small(d->max_surge),
        .paused = d->paused,
        .revision = keep(&b, revision),
        .hot_standby = small(d->standby_hot),
        .warm_standby = small(d->standby_warm),
        .secret = secret_state(&b),
    };
    for (int i = 0; i < REC_ROLES; i++)
        fill_role(&b, (enum rec_role)i, &out->roles[i]);
    kube_cache_each_labelled(c->pods, d->meta.namespace, d->meta.name, each_pod, &b);
    add_expected(&b);
    kube_cache_each(c->infds, each_infd, &b);
    kube_cache_each_labelled(c->revisions, d->meta.namespace, d->meta.name, each_revision, &b);
    fill_gangs(&b, out);
    fill_status(&b, out);
    out->pods = b.pods;
    out->n_pods = b.n;
    out->rivals = b.rivals;
    out->n_rivals = b.n_rivals;
    out->revisions = b.revisions;
    out->n_revisions = b.n_revisions;
    out->look_again_ns = b.look_again_ns;
    return b.oom ? -ENOMEM : 0;
}
