/* Groups: pods that are made, placed, restarted and removed together. */
#include "lib/decide/guard.h"
#include "lib/decide/hash.h"
#include "lib/decide/reconcile_int.h"

#include <stdio.h>
#include <stdlib.h>

#define S_NS           1000000000ull
#define GROUP_PODS_MAX 64 /* as the CRD has it */

/* ---- from pods to groups ---- */

static const char *group_of(const struct rec_pod *p)
{
    return p->group ? p->group : p->name;
}

static int by_group(const void *x, const void *y)
{
    const struct rec_pod *a = *(const struct rec_pod *const *)x,
                         *b = *(const struct rec_pod *const *)y;
    int c = strcmp(group_of(a), group_of(b));
    return c ? c : a->index != b->index ? (a->index < b->index ? -1 : 1) : strcmp(a->name, b->name);
}

static uint64_t later(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static void add_member(struct rec_pod *sum, const struct rec_pod *p)
{
    sum->ready &= p->ready || !GUARD(ready_whole);
    sum->deleting &= p->deleting;
    sum->disrupted &= p->disrupted || !p->failed;
    sum->placed &= p->placed;
    sum->standby_ready &= p->standby_ready;
    sum->gated |= p->gated;
    sum->leaving |= p->leaving;
    sum->lost |= p->lost;
    sum->unschedulable |= p->unschedulable;
    if (p->trouble && !sum->trouble) {
        sum->trouble = p->trouble;
        sum->reason = p->reason;
    }
    if (p->crash && (!sum->crash || p->failed_epoch > sum->failed_epoch))
        sum->crash = p->crash;
    sum->created_ns = p->created_ns < sum->created_ns ? p->created_ns : sum->created_ns;
    sum->failed_ns = later(sum->failed_ns, p->failed_ns);
    sum->backoff_until_ns = later(sum->backoff_until_ns, p->backoff_until_ns);
    sum->lifted_ns = later(sum->lifted_ns, p->lifted_ns);
    sum->backoff_s = p->backoff_s > sum->backoff_s ? p->backoff_s : sum->backoff_s;
    sum->epoch = p->epoch > sum->epoch ? p->epoch : sum->epoch;
    sum->failed_epoch = p->failed_epoch > sum->failed_epoch ? p->failed_epoch : sum->failed_epoch;
    sum->load = p->load > sum->load ? p->load : sum->load;
    sum->cached_tokens += p->cached_tokens;
}

/* A pod that is gone, going or ended for good breaks its group: ranks can't go on without it. */
static bool broken(const struct rec *r, const struct rec_slot *t)
{
    bool failed = false, going = false, missing = t->there < t->size;
    for (int32_t i = 0; i < t->size; i++) {
        const struct rec_pod *p = t->members[i];
        failed |= p && p->failed;
        going |= p && p->deleting;
    }
    if (t->size == 1)
        return failed;
    if (failed || t->sum.lost)
        return true;
    if (going && !t->sum.deleting)
        return GUARD(group_whole);
    if (!missing || t->sum.deleting)
        return false;
    /* What was begun by a controller that died is completed, unless nobody knows how. */
    bool known = rec_current(r, &t->sum, t->sum.role) || rec_stored(r, t->sum.revision);
    return (t->started || !known) && GUARD(group_whole);
}

/* n pods of one group, in order of index. */
static void fill_slot(struct rec *r, struct rec_slot *t, const struct rec_pod **pods, size_t n)
{
    const struct rec_pod *lead = pods[0];
    int32_t size = lead->size > 1 && lead->group ? lead->size : 1;
    *t = (struct rec_slot){.size = size, .role = lead->role};
    t->members = arena_calloc(r->arena, (size_t)size * sizeof *t->members);
    if (!t->members) {
        r->oom = true;
        t->size = 0;
    }
    t->sum = *lead;
    t->sum.name = group_of(lead);
    t->sum.disrupted = lead->disrupted || !lead->failed;
    t->pod = &t->sum;
    for (size_t i = 0; i < n; i++) {
        const struct rec_pod *p = pods[i];
        if (p->index < 0 || p->index >= t->size || t->members[p->index])
            continue; /* not one that we made */
        t->members[p->index] = p;
        t->there++;
        t->started |= p->peers || p->ready;
        if (i)
            add_member(&t->sum, p);
    }
    t->sum.ready &= t->there == t->size;
    t->sum.failed = broken(r, t);
}

void rec_slots(struct rec *r)
{
    const struct rec_snapshot *s = r->s;
    const struct rec_pod **list = arena_calloc(r->arena, (s->n_pods + 1) * sizeof *list);
    r->slots = arena_calloc(r->arena, (s->n_pods + 1) * sizeof *r->slots);
    if (!r->slots || !list) {
        r->oom = true;
        r->n_slots = 0;
        return;
    }
    r->name_seed = hash_mix(0, s->uid);
    for (size_t i = 0; i < s->n_pods; i++) {
        list[i] = &s->pods[i];
        r->name_seed += hash_mix(0, s->pods[i].uid); /* in any order */
    }
    qsort(list, s->n_pods, sizeof *list, by_group);
    for (size_t i = 0, end; i < s->n_pods; i = end) {
        for (end = i + 1; end < s->n_pods && strcmp(group_of(list[i]), group_of(list[end])) == 0;)
            end++;
        fill_slot(r, &r->slots[r->n_slots++], &list[i], end - i);
    }
}

/* ---- making and removing ---- */

int32_t rec_size(const struct rec *r, enum rec_role role)
{
    int32_t n = r->s->roles[role].pods;
    return n > 1 ? n : 1;
}

void rec_each_pod(struct rec *r, const struct rec_slot *t, const struct rec_action *like)
{
    for (int32_t i = 0; i < t->size; i++) {
        const struct rec_pod *p = t->members[i];
        if (!p || p->deleting)
            continue;
        struct rec_action *a = rec_add(r, like->kind, like->role, like->why);
        *a = *like;
        a->name = p->name;
        a->uid = p->uid;
        a->resource_version = p->resource_version;
        a->group = t->sum.name;
        a->index = i;
    }
}

void rec_remove(struct rec *r, struct rec_slot *t, const char *why)
{
    struct rec_action a = {
        .kind = REC_DELETE_POD, .role = t->role, .from_role = REC_NO_ROLE, .why = why};
    rec_each_pod(r, t, &a);
    t->gone = true;
}

struct rec_action rec_new_group(struct rec *r, enum rec_role role, const char *why)
{
    char suffix[HASH_SUFFIX_MAX];
    hash_suffix(r->name_seed, r->names++, suffix);
    int32_t size = rec_size(r, role);
    return (struct rec_action){.kind = REC_CREATE_POD,
                               .role = role,
                               .from_role = REC_NO_ROLE,
                               .recorded = -1,
                               .name = rec_text(r, "%s-%s", r->s->name, suffix),
                               .revision = r->s->roles[role].revision,
                               .number = size,
                               .epoch = size > 1 ? 1 : 0,
                               .gated = size > 1 && r->s->gang == REC_GANG_GATE,
                               .why = why};
}

static void make_pod(struct rec *r, const struct rec_action *like, int32_t index)
{
    struct rec_action *a = rec_add(r, like->kind, like->role, like->why);
    *a = *like;
    a->group = like->name;
    a->index = index;
    if (index)
        a->name = rec_text(r, "%s-%d", like->name, index);
}

void rec_make_group(struct rec *r, const struct rec_action *like)
{
    for (int32_t i = 0; i < like->number; i++)
        make_pod(r, like, i);
}

uint64_t rec_next_backoff(const struct rec *r, const struct rec_pod *p)
{
    uint64_t last = p->backoff_s * S_NS, begun = p->created_ns;
    uint64_t failed = p->failed_ns ? p->failed_ns : p->failed ? p->created_ns : r->now;
    if (last && p->backoff_until_ns > last)
        begun = p->backoff_until_ns - last;
    else if (!last && p->backoff_until_ns > p->created_ns)
        last = p->backoff_until_ns - p->created_ns;
    if (!last || (failed > begun + REC_HEALTHY_NS && GUARD(backoff_reset)))
        return REC_BACKOFF_MIN_NS;
    return last * 2 < REC_BACKOFF_MAX_NS ? last * 2 : REC_BACKOFF_MAX_NS;
}

/* ---- a pass over the groups of several pods ---- */

/* What a controller that died left half made. */
static void complete(struct rec *r, const struct rec_slot *t)
{
    struct rec_action like = {.kind = REC_CREATE_POD,
                              .role = t->role,
                              .from_role = REC_NO_ROLE,
                              .recorded = -1,
                              .name = t->sum.name,
                              .revision = t->sum.revision,
                              .number = t->size,
                              .epoch = t->sum.epoch,
                              .gated = t->sum.gated,
                              .backoff_until_ns = t->sum.backoff_until_ns,
                              .backoff_s = t->sum.backoff_s,
                              .crash = t->sum.crash,
                              .why = rec_text(r, "%s: a pod of the group is missing", t->sum.name)};
    for (int32_t i = 0; i < t->size; i++)
        if (!t->members[i])
            make_pod(r, &like, i);
}

static bool has_pod_group(const struct rec *r, const char *name)
{
    for (size_t i = 0; i < r->s->n_pod_groups; i++)
        if (strcmp(r->s->pod_groups[i], name) == 0)
            return true;
    return false;
}

static void name_gang(struct rec *r, const struct rec_slot *t)
{
    if (r->s->gang != REC_GANG_NATIVE || t->sum.gated || !t->members[0] ||
        has_pod_group(r, t->sum.name))
        return;
    struct rec_action *a =
        rec_add(r, REC_CREATE_GANG, t->role,
                rec_text(r, "%s: its %d pods are placed all or none", t->sum.name, t->size));
    a->group = a->name = t->sum.name;
    a->uid = t->members[0]->uid;
    a->number = t->size;
}

/* "[\"10.0.0.1\",…]" when all pods have an address, else NULL. */
static const char *peers_of(struct rec *r, const struct rec_slot *t)
{
    char text[GROUP_PODS_MAX * 48] = "[";
    size_t n = 1;
    for (int32_t i = 0; i < t->size; i++) {
        const struct rec_pod *p = t->members[i];
        if (!p || !p->ip || i >= GROUP_PODS_MAX)
            return NULL;
        n += (size_t)snprintf(text + n, 48, "%s\"%.40s\"", i ? "," : "", p->ip);
    }
    snprintf(text + n, 2, "]");
    const char *s = arena_dup(r->arena, str_c(text));
    r->oom |= !s;
    return s;
}

/* The epoch that the group should run at. A failure of the newest epoch is answered once, however
 * many pods report it, and not before its back-off is over. */
static uint32_t epoch_of(struct rec *r, const struct rec_slot *t, bool *restart)
{
    const struct rec_pod *p = &t->sum;
    uint32_t epoch = p->epoch ? p->epoch : 1;
    *restart = false;
    if (!p->failed_epoch || (p->failed_epoch < epoch && GUARD(restart_once)))
        return epoch;
    if (p->backoff_until_ns > r->now && GUARD(restart_backoff)) {
        rec_requeue(r, p->backoff_until_ns);
        return epoch;
    }
    *restart = true;
    return (GUARD(restart_once) ? p->failed_epoch : epoch) + 1;
}

/* The start barrier, and the epoch on every pod. */
static void lead_group(struct rec *r, const struct rec_slot *t)
{
    bool restart;
    uint32_t epoch = epoch_of(r, t, &restart);
    const char *peers = peers_of(r, t);
    uint64_t backoff = restart ? rec_next_backoff(r, &t->sum) : 0;
    if (!peers)
        return; /* the barrier: nobody starts before all have an address */
    for (int32_t i = 0; i < t->size; i++) {
        const struct rec_pod *p = t->members[i];
        bool told = p->peers && strcmp(p->peers, peers) == 0;
        if (p->deleting || (told && p->epoch == epoch))
            continue;
        struct rec_action *a =
            rec_add(r, REC_GROUP_POD, t->role,
                    restart ? rec_text(r, "%s: epoch %u failed, all ranks start again", t->sum.name,
                                       t->sum.failed_epoch)
                            : rec_text(r, "%s: its pods know each other", t->sum.name));
        a->name = p->name;
        a->uid = p->uid;
        a->resource_version = p->resource_version;
        a->group = t->sum.name;
        a->index = i;
        a->peers = peers;
        a->epoch = epoch;
        a->backoff_until_ns = restart ? r->now + backoff : t->sum.backoff_until_ns;
        a->backoff_s = restart ? (uint32_t)(backoff / S_NS) : t->sum.backoff_s;
        a->crash = i == 0 && t->sum.crash ? t->sum.crash : NULL; /* kept before the restart */
    }
}

/* A change of role that reached only some of its pods. */
static void same_role(struct rec *r, const struct rec_slot *t)
{
    for (int32_t i = 0; i < t->size; i++) {
        const struct rec_pod *p = t->members[i];
        if (!p || p->deleting || p->role == t->sum.role)
            continue;
        struct rec_action *a =
            rec_add(r, REC_LABEL_POD, t->sum.role, rec_text(r, "%s: as its group", p->name));
        a->from_role = p->role;
        a->name = p->name;
        a->uid = p->uid;
        a->resource_version = p->resource_version;
    }
}

static void take_back(struct rec *r, struct rec_slot *t)
{
    uint64_t wait = rec_next_backoff(r, &t->sum);
    struct rec_action like = rec_new_group(
        r, t->role,
        rec_text(r, "%s could not be placed as a whole within %llu s; the next try is in %llu s",
                 t->sum.name, (unsigned long long)(GANG_PATIENCE_NS / S_NS),
                 (unsigned long long)(wait / S_NS)));
    if (!rec_current(r, &t->sum, t->role) && rec_stored(r, t->sum.revision)) {
        like.revision = t->sum.revision;
        like.number = t->size;
    }
    like.epoch = t->sum.epoch;
    like.crash = t->sum.crash;
    like.replaces = t->sum.name;
    like.backoff_until_ns = r->now + wait;
    like.backoff_s = (uint32_t)(wait / S_NS);
    rec_make_group(r, &like);
    rec_remove(r, t, rec_text(r, "%s holds nodes that another group may need", t->sum.name));
}

static void let_go(struct rec *r, const struct rec_slot *t)
{
    for (int32_t i = 0; i < t->size; i++) {
        const struct rec_pod *p = t->members[i];
        if (!p || p->deleting || !p->gated)
            continue;
        struct rec_action *a = rec_add(r, REC_LIFT_GATE, t->role,
                                       rec_text(r, "%s: it is this group's turn", t->sum.name));
        a->name = p->name;
        a->uid = p->uid;
        a->resource_version = p->resource_version;
    }
}

void rec_groups(struct rec *r)
{
    struct gang_turn turn = gang_next(r->s->gangs, r->s->n_gangs, r->now);
    if (turn.look_again_ns)
        rec_requeue(r, turn.look_again_ns);
    for (size_t i = 0; i < r->n_slots; i++) {
        struct rec_slot *t = &r->slots[i];
        if (t->size <= 1 || t->gone || !rec_live(&t->sum))
            continue;
        if (t->there < t->size) {
            if (GUARD(half_made))
                complete(r, t);
            continue;
        }
        if (!t->flipped)
            same_role(r, t);
        if (turn.take_back && strcmp(turn.take_back, t->sum.name) == 0) {
            take_back(r, t);
            continue;
        }
        name_gang(r, t);
        if (turn.group && strcmp(turn.group, t->sum.name) == 0)
            let_go(r, t);
        lead_group(r, t);
    }
}
