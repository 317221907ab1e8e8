#include "lib/decide/guard.h"
#include "lib/decide/reconcile_int.h"
#include "lib/decide/rollout.h"
#include "lib/decide/standby.h"

#include <stdlib.h>

#define CREATES_MAX                                                                                \
    64 /* groups a pass and role: a mistake in a number is seen before it is carried out in full   \
        */

static struct rec_slot *slot_end(struct rec *r)
{
    return r->slots + r->n_slots;
}

static bool counts_in(const struct rec_slot *t, enum rec_role role)
{
    return t->role == role && !t->gone && rec_live(t->pod);
}

/* May stay as it is: of the wanted revision (of any, while the rollout is paused), on a node that
 * stays. */
static bool stays(const struct rec *r, const struct rec_slot *t)
{
    if (t->pod->leaving && GUARD(drain_elsewhere))
        return false;
    return r->s->paused || rec_current(r, t->pod, t->role);
}

struct tally {
    int32_t live, ready, fresh, fresh_ready, old, old_ready, paired_ready;
};

static bool pairs(const struct rec *r, const struct rec_slot *t)
{
    const char *want = r->s->roles[t->role].pair, *have = t->pod->pair;
    return !want || !have || strcmp(want, have) == 0;
}

static struct tally tally(struct rec *r, enum rec_role role)
{
    struct tally n = {0};
    for (struct rec_slot *t = r->slots; t < slot_end(r); t++) {
        if (!counts_in(t, role))
            continue;
        bool fresh = stays(r, t), ready = t->pod->ready && !t->flipped;
        n.live++;
        n.ready += ready;
        n.fresh += fresh;
        n.fresh_ready += fresh && ready;
        n.old += !fresh;
        n.old_ready += !fresh && ready;
        n.paired_ready += ready && pairs(r, t);
    }
    return n;
}

/* Less useful first: old before new, unready before ready, then what has the fewest requests, then
 * the least useful cache, then the youngest. */
static int usefulness(const struct rec *r, const struct rec_slot *t)
{
    return (stays(r, t) ? 2 : 0) + (t->pod->ready ? 1 : 0);
}

static bool less_useful(const struct rec *r, const struct rec_slot *a, const struct rec_slot *b)
{
    int ua = usefulness(r, a), ub = usefulness(r, b);
    if (ua != ub)
        return ua < ub;
    if (a->pod->unschedulable != b->pod->unschedulable)
        return a->pod->unschedulable;
    if (a->role == REC_STANDBY && a->pod->rung != b->pod->rung)
        return a->pod->rung < b->pod->rung;
    if (a->pod->load != b->pod->load && GUARD(victim_load))
        return a->pod->load < b->pod->load;
    if (a->pod->cached_tokens != b->pod->cached_tokens && GUARD(victim_cache))
        return a->pod->cached_tokens < b->pod->cached_tokens;
    if (a->pod->created_ns != b->pod->created_ns)
        return a->pod->created_ns > b->pod->created_ns;
    return strcmp(a->pod->name, b->pod->name) < 0;
}

enum kind_of_victim { OLD_UNREADY, OLD_READY, NEW };

static bool is_kind(const struct rec *r, const struct rec_slot *t, enum kind_of_victim kind)
{
    bool fresh = stays(r, t);
    return kind == NEW ? fresh : !fresh && t->pod->ready == (kind == OLD_READY);
}

/* The least useful group of a role. */
static struct rec_slot *victim(struct rec *r, enum rec_role role, enum kind_of_victim kind)
{
    struct rec_slot *best = NULL;
    for (struct rec_slot *t = r->slots; t < slot_end(r); t++) {
        if (!counts_in(t, role) || t->flipped || !is_kind(r, t, kind))
            continue;
        if (!best || less_useful(r, t, best))
            best = t;
    }
    return best;
}

static void flip(struct rec *r, struct rec_slot *t, enum rec_role to)
{
    struct rec_action a = {.kind = REC_LABEL_POD,
                           .role = to,
                           .from_role = t->role,
                           .why = rec_text(r, "%s becomes %s: %s has one too many", t->pod->name,
                                           rec_role_name(to), rec_role_name(t->role))};
    rec_each_pod(r, t, &a);
    t->role = to;
    t->flipped = true;
}

/* A group of `from` that can serve as `to`: of its revision; a ready one only where `from` has more
 * ready than it needs. */
static struct rec_slot *donor(struct rec *r, enum rec_role from, enum rec_role to)
{
    struct tally n = tally(r, from);
    struct rec_slot *best = NULL;
    bool want_ready = n.ready > r->want[from];
    for (struct rec_slot *t = r->slots; t < slot_end(r); t++) {
        bool fits = counts_in(t, from) && !t->flipped && rec_current(r, t->pod, to) &&
                    !(t->pod->leaving && GUARD(drain_elsewhere));
        if (!fits || (from == REC_STANDBY && !t->pod->standby_ready) ||
            (to == REC_STANDBY && !t->pod->ready))
            continue;
        if (best && from == REC_STANDBY) {
            best = standby_sooner(t->pod, best->pod) ? t : best;
            continue;
        }
        if (!best || (t->pod->ready == want_ready) > (best->pod->ready == want_ready) ||
            (t->pod->ready == best->pod->ready && less_useful(r, t, best)))
            best = t;
    }
    return best;
}

static void flips(struct rec *r)
{
    static const enum rec_role from_order[] = {REC_PREFILL, REC_DECODE, REC_UNIFIED, REC_STANDBY};
    for (int to = 0; to <= REC_STANDBY; to++) { /* what a role has too many may stand by */
        for (size_t k = 0; k < sizeof from_order / sizeof *from_order; k++) {
            enum rec_role from = from_order[k];
            if (from == (enum rec_role)to)
                continue;
            while (tally(r, (enum rec_role)to).live < r->want[to] &&
                   (from == REC_STANDBY || tally(r, from).live > r->want[from])) {
                struct rec_slot *t = donor(r, from, (enum rec_role)to);
                if (!t)
                    break;
                flip(r, t, (enum rec_role)to);
            }
        }
    }
}

/* No group is left to tell what the role had: what most of the deployment has. */
static void revise_from_history(struct rec *r, struct rec_action *like)
{
    const struct rec_snapshot *s = r->s;
    const char *current = r->plan->current ? r->plan->current : s->status_current;
    for (size_t i = 0; current && i < s->n_revisions; i++) {
        const struct rec_revision *v = &s->revisions[i];
        if (strcmp(v->hash, current) != 0 || !v->roles[like->role])
            continue;
        like->revision = v->roles[like->role];
        like->number = v->sizes[like->role] > 1 ? v->sizes[like->role] : 1;
    }
}

/* The revision that a group made now should have: the wanted one; while the rollout is paused the
 * one that most groups of the role have, if it is known how to make it. */
static void revise(struct rec *r, struct rec_action *like)
{
    int32_t most = 0;
    if (!r->s->paused)
        return;
    for (struct rec_slot *t = r->slots; t < slot_end(r); t++) {
        int32_t n = 0;
        for (struct rec_slot *u = r->slots; u < slot_end(r); u++)
            n += u->role == t->role && u->pod->revision && t->pod->revision &&
                 strcmp(u->pod->revision, t->pod->revision) == 0;
        bool known = rec_current(r, t->pod, like->role) || rec_stored(r, t->pod->revision);
        if (t->role != like->role || !known || n <= most)
            continue;
        most = n;
        like->revision = t->pod->revision;
        like->number = t->size;
    }
    if (!most)
        revise_from_history(r, like);
    like->epoch = like->number > 1 ? 1 : 0;
    like->gated = like->number > 1 && r->s->gang == REC_GANG_GATE;
}

static void make(struct rec *r, enum rec_role role, const char *why)
{
    struct rec_action like = rec_new_group(r, role, why);
    revise(r, &like);
    rec_make_group(r, &like);
}

/* Crashed again and again: the replacement's own failure must wait. What was only in the way of an
 * eviction or a lost node is made anew at once. */
static void replace(struct rec *r, struct rec_slot *t)
{
    const struct rec_pod *p = t->pod;
    bool wait = rec_current(r, p, t->role) && !p->disrupted;
    struct rec_action like =
        rec_new_group(r, t->role,
                      rec_text(r, "replaces the %s%s %s", p->disrupted ? "" : "failed ",
                               t->size > 1 ? "group" : "pod", p->name));
    revise(r, &like);
    uint64_t backoff = wait ? rec_next_backoff(r, p) : 0;
    like.epoch = p->epoch + 1;
    like.crash = p->crash;
    like.replaces = p->name;
    like.backoff_until_ns = wait ? r->now + backoff : 0;
    like.backoff_s = (uint32_t)(backoff / 1000000000);
    rec_make_group(r, &like);
    rec_remove(r, t,
               p->trouble     ? rec_text(r, "failed: %s", p->trouble)
               : p->disrupted ? "a pod of it is gone: all go together"
                              : "failed: it ended");
}

/* Failed groups: replaced when their back-off is over and they are missed, removed when they are
 * not. Returns how many of the role's missing groups wait; *made counts replacements. */
static int32_t failures(struct rec *r, enum rec_role role, int32_t missing, int32_t *made)
{
    int32_t waiting = 0;
    for (struct rec_slot *t = r->slots; t < slot_end(r); t++) {
        const struct rec_pod *p = t->pod;
        if (t->role != role || !p->failed || p->deleting || t->gone)
            continue;
        if (missing <= 0) {
            rec_remove(r, t, "failed, and no longer missed");
            continue;
        }
        missing--;
        if (rec_current(r, p, role) && !p->disrupted && p->backoff_until_ns > r->now) {
            waiting++;
            rec_requeue(r, p->backoff_until_ns);
        } else {
            replace(r, t);
            (*made)++;
        }
    }
    return waiting;
}

/* A role that is no longer wanted keeps its groups until the wanted roles can serve, unless they
 * lack the room for it. */
static bool hold_unwanted(struct rec *r, enum rec_role role)
{
    bool unmet = false;
    if (role == REC_STANDBY || r->s->roles[role].wanted)
        return false;
    for (int i = 0; i < REC_STANDBY; i++)
        unmet |= r->s->roles[i].wanted && tally(r, (enum rec_role)i).ready < r->want[i];
    for (struct rec_slot *t = r->slots; t < slot_end(r); t++)
        if (t->pod->unschedulable && rec_live(t->pod))
            return false;
    return unmet;
}

static void drop(struct rec *r, enum rec_role role, enum kind_of_victim kind, int32_t n,
                 const char *why)
{
    for (; n > 0; n--) {
        struct rec_slot *t = victim(r, role, kind);
        if (!t)
            return;
        rec_remove(r, t,
                   t->pod->leaving
                       ? rec_text(r, "%s: its node is being emptied", rec_role_name(role))
                       : why);
    }
}

static void pods_of_role(struct rec *r, enum rec_role role, const struct rollout_move *m)
{
    int32_t want = r->want[role], made = 0;
    const char *wanted = r->s->roles[role].revision;
    struct tally n = tally(r, role);
    if (!n.live && !want && !r->n_slots)
        return;
    if (hold_unwanted(r, role))
        return;
    const char *surplus = rec_text(r, "%s: %d wanted, %d there", rec_role_name(role), want, n.live);
    const char *older = want ? rec_text(r, "%s: revision %s replaces it", rec_role_name(role),
                                        wanted ? wanted : "none")
                             : surplus;
    drop(r, role, OLD_UNREADY, m->drop_old_unready, older);
    drop(r, role, OLD_READY, m->drop_old_ready, older);
    drop(r, role, NEW, m->drop_new, surplus);
    n = tally(r, role);
    int32_t waiting = failures(r, role, want - n.live, &made);
    int32_t more = m->create - made - waiting;
    for (int32_t i = 0; i < more && i < CREATES_MAX; i++)
        make(r, role,
             rec_text(r, "%s: %d wanted, %d there", rec_role_name(role), want, n.live + made + i));
    if (more > CREATES_MAX)
        rec_requeue(r, r->now + 1000000000ull);
}

/* Old and new groups can't work together: some have another pairing key than their role's. */
static bool in_step(struct rec *r)
{
    if (!r->s->roles[REC_PREFILL].wanted || !r->s->roles[REC_DECODE].wanted || r->s->paused)
        return false;
    for (struct rec_slot *t = r->slots; t < slot_end(r); t++)
        if (t->role <= REC_DECODE && counts_in(t, t->role) && !pairs(r, t))
            return true;
    return false;
}

static void moves(struct rec *r, struct rollout_move *out)
{
    struct rollout_role roles[REC_ROLES];
    struct rollout_budget b = {r->s->max_unavailable, r->s->max_surge, false};
    for (int i = 0; i < REC_ROLES; i++) {
        struct tally n = tally(r, (enum rec_role)i);
        roles[i] = (struct rollout_role){r->want[i], n.fresh,     n.fresh_ready,
                                         n.old,      n.old_ready, n.paired_ready};
    }
    rollout_plan(&roles[REC_UNIFIED], REC_ROLES - REC_UNIFIED, &b, &out[REC_UNIFIED]);
    b.in_step = in_step(r);
    rollout_plan(&roles[REC_PREFILL], 2, &b, &out[REC_PREFILL]);
}

void rec_pods(struct rec *r)
{
    struct rollout_move m[REC_ROLES];
    flips(r);
    standby_rungs(r);
    moves(r, m);
    for (int i = 0; i < REC_ROLES; i++)
        pods_of_role(r, (enum rec_role)i, &m[i]);
    rec_groups(r);
}
