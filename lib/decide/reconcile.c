#include "lib/decide/guard.h"
#include "lib/decide/reconcile_int.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

#define GROUPS_MAX 1000
#define NO_ROOM_NS (60ull * 1000000000)

const char *rec_role_name(enum rec_role r)
{
    static const char *const names[] = {"prefill", "decode", "unified", "standby", ""};
    return names[r];
}

enum rec_role rec_role_parse(const char *name)
{
    for (int r = 0; name && r < REC_ROLES; r++)
        if (strcmp(name, rec_role_name((enum rec_role)r)) == 0)
            return (enum rec_role)r;
    return REC_NO_ROLE;
}

const char *rec_rung_name(enum rec_rung r)
{
    static const char *const names[] = {"", "warm", "hot"};
    return names[r];
}

enum rec_rung rec_rung_parse(const char *name)
{
    return name && strcmp(name, "hot") == 0    ? REC_RUNG_HOT
           : name && strcmp(name, "warm") == 0 ? REC_RUNG_WARM
                                               : REC_RUNG_NONE;
}

const char *rec_kind_name(enum rec_kind k)
{
    static const char *const names[] = {
        [REC_CREATE_SECRET] = "create-secret",
        [REC_CREATE_POOL] = "create-pool",
        [REC_APPLY_POOL] = "apply-pool",
        [REC_SCALE_POOL] = "scale-pool",
        [REC_RECORD_POOL] = "record-pool",
        [REC_DELETE_POOL] = "delete-pool",
        [REC_APPLY_PDB] = "apply-pdb",
        [REC_CREATE_REVISION] = "create-revision",
        [REC_NUMBER_REVISION] = "number-revision",
        [REC_DELETE_REVISION] = "delete-revision",
        [REC_CREATE_POD] = "create-pod",
        [REC_CREATE_GANG] = "create-gang",
        [REC_LIFT_GATE] = "lift-gate",
        [REC_GROUP_POD] = "group-pod",
        [REC_DELETE_POD] = "delete-pod",
        [REC_LABEL_POD] = "label-pod",
        [REC_RUNG_POD] = "rung-pod",
        [REC_POOL_STATUS] = "pool-status",
        [REC_STATUS] = "status",
    };
    return names[k];
}

const char *rec_selector(struct arena *a, const char *infd, enum rec_role role)
{
    return arena_printf(
        a, "serving.baton.dev/infd=%s,serving.baton.dev/role=%s,serving.baton.dev/rank=0", infd,
        rec_role_name(role));
}

struct rec_action *rec_add(struct rec *r, enum rec_kind kind, enum rec_role role, const char *why)
{
    static _Thread_local struct rec_action scratch;
    struct rec_plan *p = r->plan;
    if (p->n == p->cap) {
        size_t cap = p->cap ? p->cap * 2 : 16;
        struct rec_action *more = arena_calloc(r->arena, cap * sizeof *more);
        if (!more) {
            r->oom = true;
            scratch = (struct rec_action){.kind = kind};
            return &scratch;
        }
        if (p->n)
            memcpy(more, p->actions, p->n * sizeof *more);
        p->actions = more;
        p->cap = cap;
    }
    struct rec_action *a = &p->actions[p->n++];
    *a = (struct rec_action){
        .kind = kind, .role = role, .from_role = REC_NO_ROLE, .recorded = -1, .why = why};
    return a;
}

const char *rec_text(struct rec *r, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    const char *s = arena_dup(r->arena, str_c(text));
    if (!s)
        r->oom = true;
    return s ? s : "";
}

void rec_requeue(struct rec *r, uint64_t at_ns)
{
    if (!r->plan->requeue_at_ns || at_ns < r->plan->requeue_at_ns)
        r->plan->requeue_at_ns = at_ns;
}

bool rec_live(const struct rec_pod *p)
{
    return !p->deleting && !p->failed && !(p->lost && GUARD(lost_node));
}

bool rec_current(const struct rec *r, const struct rec_pod *p, enum rec_role role)
{
    const char *want = GUARD(role_revision) ? r->s->roles[role].revision : r->s->revision;
    return want && p->revision && strcmp(want, p->revision) == 0;
}

/* The older of two with one model name serves; equal ages are decided by uid. */
static const struct rec_rival *elder(const struct rec_snapshot *s)
{
    for (size_t i = 0; i < s->n_rivals; i++) {
        const struct rec_rival *o = &s->rivals[i];
        if (strcmp(o->uid, s->uid) == 0 || !o->model_name ||
            strcmp(o->model_name, s->model_name) != 0)
            continue;
        if (o->created_ns < s->created_ns ||
            (o->created_ns == s->created_ns && strcmp(o->uid, s->uid) < 0))
            return o;
    }
    return NULL;
}

static void reject(struct rec *r, const char *reason, const char *message)
{
    r->reject_reason = reason;
    r->reject_message = message;
}

static void judge(struct rec *r)
{
    const struct rec_snapshot *s = r->s;
    const struct rec_rival *o = elder(s);
    if (s->invalid)
        reject(r, "Invalid", s->invalid);
    else if (o)
        reject(r, "ModelNameTaken",
               rec_text(r, "model name %s is served by the older InferenceDeployment %s",
                        s->model_name, o->name));
    else if (s->secret == REC_SECRET_FOREIGN)
        reject(r, "NameTaken",
               rec_text(r, "the Secret %s-peer exists and is not this InferenceDeployment's",
                        s->name));
    for (int i = 0; i < REC_STANDBY && !r->reject_reason; i++)
        if (s->roles[i].wanted && s->roles[i].pool.exists && !s->roles[i].pool.ours)
            reject(r, "NameTaken",
                   rec_text(r, "the WorkerPool %s-%s exists and is not this InferenceDeployment's",
                            s->name, rec_role_name((enum rec_role)i)));
    if (r->reject_reason)
        rec_requeue(r, r->now + 10ull * 1000000000);
}

int32_t rec_bounded(int32_t n)
{
    return n < 0 ? 0 : n > GROUPS_MAX ? GROUPS_MAX : n;
}

static int32_t first_number(const struct rec_role_spec *role)
{
    return role->replicas >= 0 ? role->replicas : role->bounds_min >= 0 ? role->bounds_min : 1;
}

/* DESIGN §3, writers: on a change of the infd's number scale first, then record; a pool already
 * there: only record. */
static int32_t number_of(struct rec *r, enum rec_role i)
{
    const struct rec_role_spec *role = &r->s->roles[i];
    const struct rec_pool *pool = &role->pool;
    const char *name = rec_role_name(i);
    int32_t want = pool->replicas;
    int32_t before = GUARD(one_owner_of_replicas) ? pool->last_replicas : pool->replicas;
    bool changed = role->replicas >= 0 && role->replicas != before;
    if (changed)
        want = role->replicas;
    else if (want < 0)
        want = first_number(role);
    if (want != pool->replicas) {
        struct rec_action *a =
            rec_add(r, REC_SCALE_POOL, i,
                    rec_text(r, "%s: %d to %d, as the InferenceDeployment says", name,
                             pool->replicas < 0 ? 0 : pool->replicas, want));
        a->number = want;
        a->resource_version = pool->resource_version;
    }
    if (changed || (role->replicas < 0 && pool->last_replicas >= 0))
        rec_add(r, REC_RECORD_POOL, i, rec_text(r, "%s: record the number acted upon", name))
            ->recorded = role->replicas;
    return want;
}

/* A group that found no room for a minute: a drain must not wait for it. */
static bool no_room(const struct rec *r, enum rec_role role)
{
    for (size_t i = 0; i < r->n_slots; i++) {
        const struct rec_pod *p = r->slots[i].pod;
        if (p->role == role && rec_live(p) && p->unschedulable &&
            r->now > p->created_ns + NO_ROOM_NS)
            return true;
    }
    return false;
}

/* Groups that evictions may take at once. None where a surge lets the replacement come first; one
 * when nothing else would let a drain go on. */
static int32_t evictable(const struct rec *r, enum rec_role role)
{
    const struct rec_snapshot *s = r->s;
    if (s->max_unavailable > 0)
        return s->max_unavailable;
    return s->max_surge > 0 && !no_room(r, role) && GUARD(replace_before_eviction) ? 0 : 1;
}

/* Evicting any pod of a group ends all of it, so a budget of several pods a group is counted in
 * pods, and allows one at a time: what then follows is ours. */
static void keep_pdb(struct rec *r, enum rec_role i, int32_t want)
{
    int32_t spare = evictable(r, i), size = rec_size(r, i);
    int32_t min = size > 1 ? want * size - (spare > 0) : want - spare;
    const struct rec_pool *pool = &r->s->roles[i].pool;
    min = min > 0 ? min : 0;
    if (pool->pdb_min_available == min && pool->pdb_all_ranks == (size > 1))
        return;
    struct rec_action *a =
        rec_add(r, REC_APPLY_PDB, i,
                rec_text(r, "%s: keep %d in voluntary disruptions", rec_role_name(i), min));
    a->number = min;
    a->index = size > 1;
}

static void wanted_pool(struct rec *r, enum rec_role i)
{
    const struct rec_role_spec *role = &r->s->roles[i];
    const struct rec_pool *pool = &role->pool;
    if (pool->exists && pool->deleting) {
        r->want[i] = rec_bounded(pool->replicas < 0 ? first_number(role) : pool->replicas);
        rec_requeue(r, r->now + 1000000000ull);
        return;
    }
    if (!pool->exists) {
        struct rec_action *a = rec_add(r, REC_CREATE_POOL, i,
                                       rec_text(r, "%s: make its WorkerPool", rec_role_name(i)));
        a->number = first_number(role);
        a->recorded = role->replicas;
        r->want[i] = rec_bounded(a->number);
    } else {
        r->want[i] = rec_bounded(number_of(r, i));
        if (pool->bounds_min != role->bounds_min || pool->bounds_max != role->bounds_max)
            rec_add(r, REC_APPLY_POOL, i, rec_text(r, "%s: bounds changed", rec_role_name(i)));
    }
    keep_pdb(r, i, r->want[i]);
}

void rec_pools(struct rec *r)
{
    for (int i = 0; i < REC_STANDBY; i++) {
        const struct rec_role_spec *role = &r->s->roles[i];
        if (role->wanted) {
            wanted_pool(r, (enum rec_role)i);
        } else if (role->pool.exists && role->pool.ours && !role->pool.deleting) {
            struct rec_action *a = rec_add(
                r, REC_DELETE_POOL, (enum rec_role)i,
                rec_text(r, "the role %s is no longer wanted", rec_role_name((enum rec_role)i)));
            a->uid = role->pool.uid;
        }
    }
    standby_want(r);
}

int reconcile(const struct rec_snapshot *s, uint64_t now_ns, struct arena *a, struct rec_plan *out)
{
    *out = (struct rec_plan){0};
    struct rec r = {.s = s, .now = now_ns, .arena = a, .plan = out};
    if (s->deleting)
        return 0; /* owner references do the rest */
    if (s->look_again_ns)
        rec_requeue(&r, s->look_again_ns);
    rec_slots(&r);
    judge(&r);
    if (!r.reject_reason) {
        if (s->secret == REC_SECRET_ABSENT)
            rec_add(&r, REC_CREATE_SECRET, REC_NO_ROLE, "the peer secret is missing");
        rec_pools(&r);
    }
    rec_revisions(&r);
    if (!r.reject_reason)
        rec_pods(&r);
    rec_status(&r);
    return r.oom ? -ENOMEM : 0;
}
