/* Carries a plan out: each action becomes one request, prepared before the first is sent. They go
 * out in order; pods of one kind of action side by side, and the states of pools and deployment at
 * the end, because none of these needs another. The first failure ends the turn once what is out
 * has been answered; the next one starts from what is then true. */
#include "controller/controller.h"
#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/base/metrics.h"
#include "lib/decide/guard.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define ARENA_MAX (64u << 20)

/* Bodies of requests that wait cost memory (a pod's about 30 KB), and other deployments wait
 * meanwhile: a long plan is carried out in parts, each decided anew. Any part of a plan that begins
 * where it begins is sound. */
#define STEPS_MAX (TURN_REQUESTS - 1)

/* Requests of one turn that are out at once. */
#define ABREAST_MAX 4

struct turn {
    struct ctl *ctl;
    char *key, *namespace, *infd, *infd_uid, *infd_rv;
    struct step *steps;
    int64_t generation; /* of the deployment's spec, as decided upon */
    size_t n, at, out;  /* steps; the next to be sent; without an answer */
    uint64_t requeue_ms;
    uint64_t started_ns;
    bool settling; /* its steps are writes of an earlier turn whose outcome is not known */
    bool failed;
};

static struct metric *counter(const char *name, const char *help, const char *label,
                              const char *value)
{
    return metric_series(metric_family(METRIC_COUNTER, name, help, label, NULL, 0), value);
}

/* ---- from actions to requests ---- */

static struct step *add_step(struct turn *t, const struct rec_action *a, enum kube_verb verb,
                             const struct kube_kind *kind, char *name, json_t *body)
{
    struct step *s = &t->steps[t->n++];
    *s = (struct step){
        .kind = a->kind,
        .role = a->role,
        .name = name,
        .index = a->kind == REC_APPLY_PDB ? 0 : a->index,
        .why = xstrdup(a->why ? a->why : ""),
        .uid = a->uid ? xstrdup(a->uid) : NULL,
        .resource_version = a->resource_version ? xstrdup(a->resource_version) : NULL,
        .body = body,
        .replaces = a->replaces && a->number > 1,
    };
    s->call = (struct kube_call){
        .verb = verb,
        .kind = kind,
        .namespace = t->namespace,
        .name = name,
        .body = body,
        .field_manager = FIELD_MANAGER,
        .force = true,
    };
    return s;
}

static char *pool_name(const struct kube_infd *d, enum rec_role role)
{
    return xasprintf("%s-%s", d->meta.name, rec_role_name(role));
}

static void prepare_scale(struct turn *t, const struct kube_infd *d, const struct rec_action *a)
{
    char *name = pool_name(d, a->role);
    json_t *meta = json_pack("{s:s, s:s, s:s*}", "name", name, "namespace", t->namespace,
                             "resourceVersion", a->resource_version);
    json_t *body = json_pack("{s:s, s:s, s:o, s:{s:i}}", "apiVersion", "autoscaling/v1", "kind",
                             "Scale", "metadata", meta, "spec", "replicas", a->number);
    add_step(t, a, KUBE_UPDATE, &kube_wps, name, body)->call.subresource = "scale";
}

static void prepare_record(struct turn *t, const struct kube_infd *d, const struct rec_action *a)
{
    char text[16];
    snprintf(text, sizeof text, "%d", a->recorded);
    json_t *value = a->recorded >= 0 ? json_string(text) : json_null();
    add_step(t, a, KUBE_PATCH, &kube_wps, pool_name(d, a->role),
             json_pack("{s:{s:{s:o}}}", "metadata", "annotations", ANN_LAST_REPLICAS, value));
}

static void prepare_label(struct turn *t, const struct rec_action *a)
{
    add_step(t, a, KUBE_PATCH, &kube_pods, xstrdup(a->name),
             json_pack("{s:{s:s, s:s, s:{s:s}}}", "metadata", "uid", a->uid, "resourceVersion",
                       a->resource_version, "labels", LABEL_ROLE, rec_role_name(a->role)));
}

static void prepare_rung(struct turn *t, const struct rec_action *a)
{
    add_step(t, a, KUBE_PATCH, &kube_pods, xstrdup(a->name),
             json_pack("{s:{s:s, s:s, s:{s:s}}}", "metadata", "uid", a->uid, "resourceVersion",
                       a->resource_version, "annotations", ANN_RUNG, rec_rung_name(a->rung)));
}

static void prepare_pdb(struct turn *t, const struct kube_infd *d, const struct rec_action *a)
{
    CLEANUP(free_charp) char *name = pool_name(d, a->role);
    const struct kube_wp *w = kube_cache_get(t->ctl->wps, t->namespace, name);
    if (!w) /* the pool is being made in this turn: the next one has its uid */
        return;
    add_step(t, a, KUBE_APPLY, &kube_pdbs, xstrdup(name),
             object_pdb(d, a->role, a->number, a->index == 1, w->meta.uid));
}

/* A pod of an older revision is made from what that revision stored. */
static void prepare_pod(struct turn *t, const struct kube_infd *d, const struct rec_action *a)
{
    struct err e = {0};
    char wanted[17];
    struct kube_infd *old = NULL;
    pod_revision(d, infd_role_of(d, a->role), wanted);
    if (a->revision && strcmp(a->revision, wanted) != 0)
        old = revision_infd(t->ctl, d, a->role, a->revision, &e);
    json_t *body = e.code ? NULL : pod_body(t->ctl, old ? old : d, a, &e);
    if (body)
        add_step(t, a, KUBE_CREATE, &kube_pods, xstrdup(a->name), body)->call.text_only = true;
    else
        log_error("no pod can be made of this spec", LS("infd", t->key), LERR(&e));
    free(old);
}

static void prepare_group(struct turn *t, const struct kube_infd *d, const struct rec_action *a)
{
    struct step *s;
    switch (a->kind) {
    case REC_CREATE_GANG:
        add_step(t, a, KUBE_CREATE, &kube_pod_groups, xstrdup(a->group), group_gang(d, a));
        break;
    case REC_LIFT_GATE:
        s = add_step(t, a, KUBE_PATCH, &kube_pods, xstrdup(a->name),
                     group_lift(a, clock_wall_ns()));
        s->call.patch_type = "application/strategic-merge-patch+json";
        break;
    default: add_step(t, a, KUBE_PATCH, &kube_pods, xstrdup(a->name), group_patch(a)); break;
    }
}

static void prepare_revision(struct turn *t, const struct kube_infd *d, const struct rec_action *a)
{
    if (a->kind == REC_CREATE_REVISION)
        add_step(t, a, KUBE_CREATE, &kube_revisions, xstrdup(a->name), revision_object(d, a));
    else if (a->kind == REC_NUMBER_REVISION)
        add_step(t, a, KUBE_PATCH, &kube_revisions, xstrdup(a->name),
                 json_pack("{s:{s:s}, s:I}", "metadata", "uid", a->uid, "revision",
                           (json_int_t)a->number64));
    else
        add_step(t, a, KUBE_DELETE, &kube_revisions, xstrdup(a->name), NULL);
}

/* The status, and an event when Ready begins to tell of a trouble. */
static void prepare_status(struct turn *t, const struct kube_infd *d, const struct rec_plan *p,
                           const struct rec_action *a)
{
    static const char *const calm[] = {"AllReady", "ScaledToZero", "Updating", "PodsNotReady",
                                       "Paused"};
    const struct rec_condition *now = &p->conditions[REC_READY];
    const struct kube_condition *old = kube_condition_find(&d->conditions, "Ready");
    struct step *s = add_step(t, a, KUBE_APPLY, &kube_infds, xstrdup(d->meta.name),
                              object_status(d, p, t->ctl->opts.router_url));
    s->call.subresource = "status";
    if (old && old->reason && strcmp(old->reason, now->reason) == 0)
        return;
    for (size_t i = 0; i < sizeof calm / sizeof *calm; i++)
        if (strcmp(now->reason, calm[i]) == 0)
            return;
    s->trouble = xstrdup(now->reason);
    free(s->why);
    s->why = xstrdup(now->message);
}

static void prepare(struct turn *t, const struct kube_infd *d, const struct rec_plan *p,
                    const struct rec_action *a)
{
    switch (a->kind) {
    case REC_CREATE_SECRET:
        add_step(t, a, KUBE_CREATE, &kube_secrets, xasprintf("%s-peer", d->meta.name),
                 object_secret(d));
        break;
    case REC_CREATE_POOL:
        add_step(t, a, KUBE_CREATE, &kube_wps, pool_name(d, a->role), object_pool(d, a));
        break;
    case REC_APPLY_POOL:
        add_step(t, a, KUBE_APPLY, &kube_wps, pool_name(d, a->role), object_pool_apply(d, a->role));
        break;
    case REC_SCALE_POOL: prepare_scale(t, d, a); break;
    case REC_RECORD_POOL: prepare_record(t, d, a); break;
    case REC_DELETE_POOL:
        add_step(t, a, KUBE_DELETE, &kube_wps, pool_name(d, a->role), NULL);
        break;
    case REC_APPLY_PDB: prepare_pdb(t, d, a); break;
    case REC_CREATE_POD: prepare_pod(t, d, a); break;
    case REC_CREATE_GANG:
    case REC_LIFT_GATE:
    case REC_GROUP_POD: prepare_group(t, d, a); break;
    case REC_CREATE_REVISION:
    case REC_NUMBER_REVISION:
    case REC_DELETE_REVISION: prepare_revision(t, d, a); break;
    case REC_DELETE_POD: add_step(t, a, KUBE_DELETE, &kube_pods, xstrdup(a->name), NULL); break;
    case REC_LABEL_POD: prepare_label(t, a); break;
    case REC_RUNG_POD: prepare_rung(t, a); break;
    case REC_POOL_STATUS:
        add_step(t, a, KUBE_APPLY, &kube_wps, pool_name(d, a->role),
                 object_pool_status(d, p, a->role))
            ->call.subresource = "status";
        break;
    case REC_STATUS: prepare_status(t, d, p, a); break;
    }
}

/* ---- one turn ---- */

static void turn_free(struct turn *t)
{
    for (size_t i = 0; i < t->n; i++)
        step_fini(&t->steps[i]);
    free(t->steps);
    free(t->key);
    free(t->namespace);
    free(t->infd);
    free(t->infd_uid);
    free(t->infd_rv);
    free(t);
}

static void observe_ns(const char *name, const char *help, uint64_t ns)
{
    metric_observe(metric_series(metric_family(METRIC_HISTOGRAM, name, help, "", NULL, 0)),
                   (double)ns / 1e9);
}

static void observe(const char *name, const char *help, uint64_t since_ns)
{
    observe_ns(name, help, clock_mono_ns() - since_ns);
}

/* Writes whose outcome is not known are made again; of a turn that settles such ones, also those
 * that were not reached. */
static void keep_doubts(struct turn *t)
{
    for (size_t i = 0; i < t->n; i++)
        if (t->steps[i].state == STEP_DOUBTFUL || (t->settling && t->steps[i].state == STEP_WAITS))
            doubt_keep(t->ctl, t->key, &t->steps[i]);
}

static void turn_end(struct turn *t, bool ok)
{
    struct ctl *c = t->ctl;
    observe("baton_controller_reconcile_seconds", "Time of one reconciliation, requests included.",
            t->started_ns);
    if (ok) {
        if (t->settling)
            queue_add(c->queue, t->key);
        if (t->requeue_ms)
            queue_add_after(c->queue, t->key, t->requeue_ms);
        if (expected_any(c, t->key))
            queue_add_after(c->queue, t->key, EXPECTED_NS / NS_PER_MS + 1000);
        queue_done(c->queue, t->key);
    } else {
        keep_doubts(t);
        queue_retry(c->queue, t->key);
    }
    turn_free(t);
}

/* Is step i followed by another of its kind and role? Many pods in a row are one event, told at the
 * last: events must not double the writes of a large deployment. */
static bool same_next(const struct turn *t, size_t i)
{
    const struct step *s = &t->steps[i], *next = s + 1;
    return i + 1 < t->n && s->kind == next->kind && s->role == next->role && !next->trouble &&
           (s->kind == REC_CREATE_POD || s->kind == REC_DELETE_POD);
}

static size_t in_a_row(const struct turn *t, size_t last)
{
    size_t n = 1;
    while (last >= n && same_next(t, last - n))
        n++;
    return n;
}

static void tell(struct turn *t, const struct step *s)
{
    static const struct {
        enum rec_kind kind;
        const char *reason, *action;
    } words[] = {{REC_CREATE_POD, "PodCreated", "Create"},
                 {REC_DELETE_POD, "PodDeleted", "Delete"},
                 {REC_LABEL_POD, "RoleChanged", "Relabel"},
                 {REC_SCALE_POOL, "Scaled", "Scale"},
                 {REC_CREATE_POOL, "WorkerPoolCreated", "Create"},
                 {REC_DELETE_POOL, "WorkerPoolDeleted", "Delete"},
                 {REC_CREATE_REVISION, "RevisionCreated", "Create"},
                 {REC_NUMBER_REVISION, "RevisionWanted", "Update"},
                 {REC_GROUP_POD, "GroupStarted", "Start"},
                 {REC_LIFT_GATE, "GroupReleased", "Schedule"}};
    struct kube_regarding about = {&kube_infds, t->namespace, t->infd, t->infd_uid, t->infd_rv};
    char note[1024];
    if (s->trouble)
        kube_event(t->ctl->events, &about, "Warning", s->trouble, "Reconcile", s->why);
    if (s->index) /* one event a group */
        return;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (words[i].kind != s->kind)
            continue;
        size_t at = (size_t)(s - t->steps), n = in_a_row(t, at);
        if (n == 1)
            snprintf(note, sizeof note, "%s (%s)", s->why, s->name);
        else
            snprintf(note, sizeof note, "%s (%s, the last of %zu)", s->why, s->name, n);
        if (!same_next(t, at))
            kube_event(t->ctl->events, &about, "Normal", words[i].reason, words[i].action, note);
        log_info("acted", LS("infd", t->key), LS("action", rec_kind_name(s->kind)),
                 LS("object", s->name), LS("why", s->why));
    }
}

static void advance(struct turn *t);
static void send_step(struct turn *t, struct step *s);

/* Someone got there first: not failures, and the rest of the plan holds. A delete that conflicts is
 * one: what was to go may still be there, and the plan goes on as if it were not. A replacement
 * that a quota has no room for beside the old group: that one goes first, the next turn fills its
 * place. */
static bool benign(const struct step *s, const struct kube_result *r)
{
    if (s->call.verb == KUBE_DELETE)
        return r->status == 404;
    if (s->replaces)
        return r->status == 403 && GUARD(quota_gives_way);
    return s->kind == REC_CREATE_GANG && r->status == 409;
}

/* The create of an earlier turn did succeed: what it made is asked for. */
static bool made_before(const struct turn *t, struct step *s, const struct kube_result *r)
{
    if (!t->settling || s->call.verb != KUBE_CREATE || r->status != 409)
        return false;
    s->call.verb = KUBE_GET;
    s->call.body = NULL;
    return true;
}

static void failed(struct turn *t, struct step *s, const struct kube_result *r)
{
    struct kube_regarding about = {&kube_infds, t->namespace, t->infd, t->infd_uid, t->infd_rv};
    char note[700];
    bool race = r->status == 409 || r->status == 404;
    metric_add(counter("baton_controller_request_failures_total",
                       "Requests of the controller that failed.", "reason",
                       r->reason[0] ? r->reason : "NoAnswer"),
               1);
    if (r->status == 404 && s->call.kind == &kube_pods)
        expected_gone(t->ctl, t->key, s->name);
    if (race) {
        log_debug("out of date, will look again", LS("infd", t->key),
                  LS("action", rec_kind_name(s->kind)), LERR(&r->err));
    } else {
        log_warn("action failed, will retry", LS("infd", t->key),
                 LS("action", rec_kind_name(s->kind)), LS("object", s->name), LERR(&r->err));
        if (r->status >= 400 && r->status < 500) {
            snprintf(note, sizeof note, "%s %s: %s", rec_kind_name(s->kind), s->name, r->err.msg);
            kube_event(t->ctl->events, &about, "Warning", "ActionFailed", "Reconcile", note);
        }
    }
    s->state = doubt_is(s, r) ? STEP_DOUBTFUL : STEP_DONE;
    t->failed = true;
}

/* What an answer that is no failure means to later turns. */
static void succeeded(struct turn *t, struct step *s, const struct kube_result *r)
{
    s->state = STEP_DONE;
    if (s->kind == REC_CREATE_POD)
        expected_add_created(t->ctl, t->key, r->text);
    if (s->kind == REC_DELETE_POD && s->uid && !r->err.code)
        expected_add_deleted(t->ctl, t->key, s->name, s->uid);
    tell(t, s);
}

static void on_done(const struct kube_result *r, void *ctx)
{
    struct step *s = ctx;
    struct turn *t = s->turn;
    observe("baton_controller_request_seconds",
            "Time of one write: from when it could be sent until its answer.", s->sent_ns);
    metric_add(counter("baton_controller_actions_total", "Actions carried out, by kind.", "kind",
                       rec_kind_name(s->kind)),
               1);
    t->out--;
    if (made_before(t, s, r))
        send_step(t, s);
    else if (r->err.code && !benign(s, r))
        failed(t, s, r);
    else
        succeeded(t, s, r);
    advance(t);
}

/* Only who leads writes: asked before each request, and again when it had to wait. */
static bool may_send(const void *ctx)
{
    const struct ctl *c = ((const struct step *)ctx)->turn->ctl;
    return c->leading && (!c->lease || kube_lease_valid(c->lease) || !GUARD(fencing));
}

static void send_step(struct turn *t, struct step *s)
{
    struct err e = {0};
    s->turn = t;
    s->state = STEP_OUT;
    s->sent_ns = clock_mono_ns();
    if (s->call.verb == KUBE_DELETE)
        s->call.uid = s->uid;
    s->call.may_send = may_send;
    s->call.done = on_done;
    s->call.ctx = s;
    if (may_send(s) && kube_start(t->ctl->client, &s->call, &e) == 0) {
        t->out++;
        return;
    }
    if (e.code)
        log_error("a request can't be made", LS("infd", t->key), LERR(&e));
    s->state = STEP_WAITS;
    t->failed = true;
}

static bool is_status(const struct step *s)
{
    return s->kind == REC_POOL_STATUS || s->kind == REC_STATUS;
}

/* May step `at` be sent while the one before it has no answer? */
static bool beside(const struct turn *t)
{
    const struct step *s = &t->steps[t->at], *before = s - 1;
    bool pods = s->kind == REC_CREATE_POD || s->kind == REC_DELETE_POD;
    return (pods && s->kind == before->kind) || (is_status(s) && is_status(before));
}

/* Sends what may be sent now; the turn ends when all has been answered. */
static void advance(struct turn *t)
{
    while (!t->failed && t->at < t->n && t->out < ABREAST_MAX && (!t->out || beside(t)))
        send_step(t, &t->steps[t->at++]);
    if (!t->out)
        turn_end(t, !t->failed);
}

static uint64_t delay_ms(uint64_t at_ns, uint64_t now_ns)
{
    return at_ns == 0 ? 0 : at_ns > now_ns ? (at_ns - now_ns) / NS_PER_MS + 1 : 1;
}

static struct turn *turn_new(struct ctl *c, const char *key, const struct kube_infd *d)
{
    struct turn *t = xcalloc(1, sizeof *t);
    t->ctl = c;
    t->key = xstrdup(key);
    t->namespace = xstrdup(d->meta.namespace);
    t->infd = xstrdup(d->meta.name);
    t->infd_uid = xstrdup(d->meta.uid);
    t->infd_rv = xstrdup(d->meta.resource_version ? d->meta.resource_version : "");
    t->generation = d->meta.generation;
    t->started_ns = clock_mono_ns();
    return t;
}

/* Something is made, removed or moved to another role. */
static bool grave(const struct turn *t)
{
    for (size_t i = 0; i < t->n; i++) {
        const struct step *s = &t->steps[i];
        if (s->call.verb == KUBE_CREATE || s->call.verb == KUBE_DELETE ||
            s->kind == REC_SCALE_POOL || s->kind == REC_LABEL_POD)
            return GUARD(fresh_owner);
    }
    return false;
}

static void on_owner(const struct kube_result *r, void *ctx)
{
    struct turn *t = ctx;
    const json_t *o = r->object;
    bool same = strcmp(json_str_at(o, "metadata.uid", ""), t->infd_uid) == 0 &&
                json_int_at(o, "metadata.generation", 0) == t->generation &&
                !json_str_at(o, "metadata.deletionTimestamp", NULL);
    if (!r->err.code && same) {
        advance(t);
        return;
    }
    log_debug(r->err.code
                  ? "the deployment can't be read, will look again"
                  : "the watch is behind: the deployment is gone or another, will look again",
              LS("infd", t->key), LERR(&r->err));
    turn_end(t, false);
}

/* The turn goes on in `done`, with what is read afresh. */
static void read_first(struct turn *t, struct kube_call call, kube_done_fn done)
{
    struct err e = {0};
    call.namespace = t->namespace;
    call.done = done;
    call.ctx = t;
    if (kube_start(t->ctl->client, &call, &e)) {
        log_error("a request can't be made", LS("infd", t->key), LERR(&e));
        turn_end(t, false);
    }
}

/* The cache of deployments may be behind: one that is gone must not get its pods back, again and
 * again, nor one that was changed those of its old spec. A GET reads etcd; a LIST, even of one
 * name, waits until the API server's own cache has caught up. */
static void ask_owner(struct turn *t)
{
    read_first(t, (struct kube_call){.verb = KUBE_GET, .kind = &kube_infds, .name = t->infd},
               on_owner);
}

/* From the caches to requests; the turn goes on with the first. */
static void decide(struct turn *t, const struct kube_infd *d)
{
    struct ctl *c = t->ctl;
    struct rec_snapshot snapshot;
    struct rec_plan plan;
    struct arena a;
    uint64_t now = clock_wall_ns(), began = clock_mono_ns(), began_cpu = clock_thread_cpu_ns();
    arena_init(&a, ARENA_MAX);
    if (snapshot_build(c, d, &a, &snapshot) || reconcile(&snapshot, now, &a, &plan)) {
        log_error("the snapshot of a deployment is too large", LS("infd", t->key));
        arena_fini(&a);
        turn_end(t, false);
        return;
    }
    size_t n = plan.n < STEPS_MAX ? plan.n : STEPS_MAX;
    t->steps = xcalloc(n + 1, sizeof *t->steps);
    for (size_t i = 0; i < n; i++)
        prepare(t, d, &plan, &plan.actions[i]);
    observe("baton_controller_decide_seconds",
            "Time from the caches to requests that are ready: snapshot, plan, bodies.", began);
    observe_ns("baton_controller_decide_cpu_seconds", "CPU time of the same.",
               clock_thread_cpu_ns() - began_cpu);
    t->requeue_ms = n < plan.n ? 1 : delay_ms(plan.requeue_at_ns, now);
    arena_fini(&a);
    if (grave(t))
        ask_owner(t);
    else
        advance(t);
}

static void on_reread(const struct kube_result *r, void *ctx)
{
    struct turn *t = ctx;
    const struct kube_infd *d = snapshot_infd(t->ctl, t->key);
    if (r->err.code || !d) {
        log_debug("its pods can't be listed, will look again", LS("infd", t->key), LERR(&r->err));
        turn_end(t, false);
        return;
    }
    expected_settle(t->ctl, t->key, t->namespace, r->object);
    decide(t, d);
}

/* The cache has not shown for long what was written: it is not trusted alone. */
static void reread(struct turn *t)
{
    CLEANUP(free_charp) char *selector = xasprintf("%s=%s", LABEL_INFD, t->infd);
    log_info("the watch is behind: the pods are listed before anything is decided",
             LS("infd", t->key));
    read_first(
        t, (struct kube_call){.verb = KUBE_LIST, .kind = &kube_pods, .label_selector = selector},
        on_reread);
}

void execute_work(struct queue *q, const char *key, void *ctx)
{
    struct ctl *c = ctx;
    const struct kube_infd *d = snapshot_infd(c, key);
    if (!d) {
        doubt_free(c, key);
        expected_forget(c, key);
    }
    if (!d || !c->leading || c->stopping) {
        queue_done(q, key);
        return;
    }
    observe_ns("baton_controller_queue_seconds",
               "Time that a deployment waited for its turn since there was something to look at.",
               queue_waited_ns(q));
    struct turn *t = turn_new(c, key, d);
    t->n = doubt_take(c, key, t->namespace, &t->steps);
    t->settling = t->n > 0;
    if (t->settling)
        advance(t);
    else if (expected_overdue(c, key))
        reread(t);
    else
        decide(t, d);
}
