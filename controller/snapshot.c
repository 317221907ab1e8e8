/* From the caches (kube's views) to lib/decide's own structs. Everything is copied into the arena:
 * the requests that follow outlive what the caches hold now. */
#include "controller/controller.h"
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

/* What is wrong with its containers, in words; the record of the last end in *crash, its time in
 * *at. */
static const char *trouble(struct build *b, const struct kube_pod *p, const char **crash,
                           uint64_t *at)
{
    const char *text = p->reason ? keep(b, p->message ? p->message : p->reason) : NULL;
    for (size_t i = 0; i < p->containers.n; i++) {
        const struct kube_container_status *c =
            VIEW_AT(struct kube_container_status, p->containers, i);
        const struct kube_terminated *t = c->now.has ? &c->now : &c->last;
        if (t->has) {
            *at = t->finished_ns > *at ? t->finished_ns : *at;
            *crash = crash_record(b, p, c, t);
        }
        bool bad = c->now.has || (c->waiting_reason && c->restarts > 0) ||
                   (c->waiting_reason && strcmp(c->waiting_reason, "ContainerCreating") != 0 &&
                    strcmp(c->waiting_reason, "PodInitializing") != 0);
        if (bad && t->has)
            text = arena_printf(b->a, "%s: %s, exit code %lld",
                                c->waiting_reason ? c->waiting_reason : "ended",
                                t->reason ? t->reason : "no reason given", (long long)t->exit_code);
        else if (bad)
            text = keep(b, c->waiting_reason);
    }
    return text;
}

/* What the agent says of a worker that can't serve ("needs 9.1 GiB, node has 7.8"); NULL when it is
 * only starting, draining or changing its role. */
static const char *worker_trouble(struct build *b, const struct kube_pod *p)
{
    static const char *const words[] = {"WorkerCrashed", "InsufficientMemory"};
    const struct kube_condition *c = kube_condition_find(&p->conditions, GATE_ROLE);
    for (size_t i = 0; c && c->reason && i < sizeof words / sizeof *words; i++)
        if (strcmp(c->reason, words[i]) == 0)
            return arena_printf(b->a, "%s: %.300s", c->reason, c->message ? c->message : "");
    return NULL;
}

static void fill_pod(struct build *b, const struct kube_pod *p, struct rec_pod *out)
{
    const struct kube_condition *scheduled = kube_condition_find(&p->conditions, "PodScheduled");
    const char *actual = kube_annotation(&p->meta, ANN_ACTUAL_ROLE);
    const char *crash = NULL;
    uint64_t ended = 0;
    bool failed =
        p->phase && (strcmp(p->phase, "Failed") == 0 || strcmp(p->phase, "Succeeded") == 0);
    const char *text = trouble(b, p, &crash, &ended);
    bool unschedulable = !p->node && scheduled && strcmp(scheduled->status, "False") == 0 &&
                         scheduled->reason && strcmp(scheduled->reason, "Unschedulable") == 0;
    if (unschedulable && scheduled->message)
        text = arena_printf(b->a, "%.300s", scheduled->message);
    const char *worker = worker_trouble(b, p), *record = kube_annotation(&p->meta, ANN_LAST_CRASH);
    int32_t epoch = annotation_number(&p->meta, ANN_EPOCH);
    *out = (struct rec_pod){
        .name = keep(b, p->meta.name),
        .uid = keep(b, p->meta.uid),
        .resource_version = keep(b, p->meta.resource_version),
        .role = rec_role_parse(kube_label(&p->meta, LABEL_ROLE)),
        .revision = keep(b, kube_label(&p->meta, LABEL_REVISION)),
        .ready = kube_condition_true(&p->conditions, "Ready"),
        .deleting = p->meta.deleted_ns || expected_deleted(b->ctl, p->meta.uid),
        .failed = failed,
        .unschedulable = unschedulable,
        .trouble = worker ? worker : text,
        .rung = rec_rung_parse(kube_annotation(&p->meta, ANN_RUNG)),
        .standby_ready = actual && strcmp(actual, "standby") == 0,
        .created_ns = p->meta.created_ns,
        .failed_ns = failed ? ended : 0,
        .backoff_until_ns = annotation_time(&p->meta, ANN_BACKOFF_UNTIL),
        .epoch = epoch > 0 ? (uint32_t)epoch : 0,
        .load = load_of_pod(b->ctl, p->meta.uid),
        .crash = record ? keep(b, record) : crash,
    };
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
                             .pdb_min_available = pdb ? small(pdb->min_available) : -1};
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
}

static void fill_role(struct build *b, enum rec_role role, struct rec_role_spec *out)
{
    const struct infd_role *r = infd_role_of(b->d, role);
    char revision[17];
    pod_revision(b->d, r, revision);
    *out = (struct rec_role_spec){.wanted = infd_has_role(b->d, role),
                                  .replicas = -1,
                                  .bounds_min = -1,
                                  .bounds_max = -1,
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
        .hot_standby = small(d->standby_hot),
        .warm_standby = small(d->standby_warm),
        .secret = secret_state(&b),
    };
    for (int i = 0; i < REC_ROLES; i++)
        fill_role(&b, (enum rec_role)i, &out->roles[i]);
    kube_cache_each_labelled(c->pods, d->meta.namespace, d->meta.name, each_pod, &b);
    add_expected(&b);
    kube_cache_each(c->infds, each_infd, &b);
    fill_status(&b, out);
    out->pods = b.pods;
    out->n_pods = b.n;
    out->rivals = b.rivals;
    out->n_rivals = b.n_rivals;
    return b.oom ? -ENOMEM : 0;
}
