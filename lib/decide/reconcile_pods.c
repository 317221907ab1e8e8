#include "lib/decide/hash.h"
#include "lib/decide/reconcile_int.h"
#include "lib/decide/standby.h"

#include <stdlib.h>

#define CREATES_MAX                                                                                \
    64 /* a pass and role: a mistake in a number is seen before it is carried out in full */

static struct rec_slot *slot_end(struct rec *r)
{
    return r->slots + r->s->n_pods;
}

static bool counts_in(const struct rec_slot *t, enum rec_role role)
{
    return t->role == role && !t->gone && rec_live(t->pod);
}

struct tally {
    int32_t live, ready, fresh, old; /* fresh: of the current revision */
};

static struct tally tally(struct rec *r, enum rec_role role)
{
    struct tally n = {0};
    for (struct rec_slot *t = r->slots; t < slot_end(r); t++) {
        if (!counts_in(t, role))
            continue;
        bool fresh = rec_current(r, t->pod, role);
        n.live++;
        n.ready += t->pod->ready && !t->flipped;
        n.fresh += fresh;
        n.old += !fresh;
    }
    return n;
}

static void remove_pod(struct rec *r, struct rec_slot *t, const char *why)
{
    struct rec_action *a = rec_add(r, REC_DELETE_POD, t->role, why);
    a->name = t->pod->name;
    a->uid = t->pod->uid;
    t->gone = true;
}

static struct rec_action *add_pod(struct rec *r, enum rec_role role, const char *why)
{
    char suffix[HASH_SUFFIX_MAX];
    hash_suffix(r->name_seed, r->names++, suffix);
    struct rec_action *a = rec_add(r, REC_CREATE_POD, role, why);
    a->name = rec_text(r, "%s-%s", r->s->name, suffix);
    a->revision = r->s->roles[role].revision;
    return a;
}

/* Less useful first: old before new, unready before ready, then the least loaded, then the
 * youngest. */
static int usefulness(const struct rec *r, const struct rec_slot *t)
{
    bool fresh = rec_current(r, t->pod, t->role);
    return (fresh ? 2 : 0) + (t->pod->ready ? 1 : 0);
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
    if (a->pod->load != b->pod->load)
        return a->pod->load < b->pod->load;
    if (a->pod->created_ns != b->pod->created_ns)
        return a->pod->created_ns > b->pod->created_ns;
    return strcmp(a->pod->name, b->pod->name) < 0;
}

/* The least useful pod of a role; ready pods of an old revision are passed over while the role
 * can't spare one. */
static struct rec_slot *victim(struct rec *r, enum rec_role role, bool spare_old_ready)
{
    struct rec_slot *best = NULL;
    for (struct rec_slot *t = r->slots; t < slot_end(r); t++) {
        if (!counts_in(t, role) || t->flipped)
            continue;
        if (t->pod->ready && !rec_current(r, t->pod, role) && !spare_old_ready)
            continue;
        if (!best || less_useful(r, t, best))
            best = t;
    }
    return best;
}

static void flip(struct rec *r, struct rec_slot *t, enum rec_role to)
{
    struct rec_action *a = rec_add(r, REC_LABEL_POD, to,
                                   rec_text(r, "%s becomes %s: %s has one too many", t->pod->name,
                                            rec_role_name(to), rec_role_name(t->role)));
    a->from_role = t->role;
    a->name = t->pod->name;
    a->uid = t->pod->uid;
    a->resource_version = t->pod->resource_version;
    t->role = to;
    t->flipped = true;
}

/* A pod of `from` that can serve as `to`: of its revision; a ready one only where `from` has more
 * ready than it needs. */
static struct rec_slot *donor(struct rec *r, enum rec_role from, enum rec_role to)
{
    struct tally n = tally(r, from);
    struct rec_slot *best = NULL;
    bool want_ready = n.ready > r->want[from];
    for (struct rec_slot *t = r->slots; t < slot_end(r); t++) {
        bool fits = counts_in(t, from) && !t->flipped && rec_current(r, t->pod, to);
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

static uint64_t failed_at(const struct rec_pod *p)
{
    return p->failed_ns ? p->failed_ns : p->created_ns;
}

/* How long the next replacement must wait, should this one fail too: doubles while failures follow
 * each other. */
static uint64_t next_backoff(const struct rec_pod *p)
{
    uint64_t last = p->backoff_until_ns > p->created_ns ? p->backoff_until_ns - p->created_ns : 0;
    if (!last || failed_at(p) > p->created_ns + REC_HEALTHY_NS)
        return REC_BACKOFF_MIN_NS;
    return last * 2 < REC_BACKOFF_MAX_NS ? last * 2 : REC_BACKOFF_MAX_NS;
}

static void replace(struct rec *r, struct rec_slot *t)
{
    const struct rec_pod *p = t->pod;
    bool same = rec_current(r, p, t->role);
    struct rec_action *a = add_pod(r, t->role, rec_text(r, "replaces the failed pod %s", p->name));
    a->epoch = p->epoch + 1;
    a->crash = p->crash;
    a->replaces = p->name;
    a->backoff_until_ns = same ? r->now + next_backoff(p) : 0;
    remove_pod(r, t, rec_text(r, "failed: %s", p->trouble ? p->trouble : "it ended"));
}

/* Failed pods: replaced when their back-off is over and they are missed, removed when they are not.
 * Returns how many of the role's missing pods wait; *made counts replacements. */
static int32_t failures(struct rec *r, enum rec_role role, int32_t missing, int32_t *made)
{
    int32_t waiting = 0;
    for (struct rec_slot *t = r->slots; t < slot_end(r); t++) {
        const struct rec_pod *p = t->pod;
        if (t->role != role || !p->failed || p->deleting || t->gone)
            continue;
        if (missing <= 0) {
            remove_pod(r, t, "failed, and no longer missed");
            continue;
        }
        missing--;
        if (rec_current(r, p, role) && p->backoff_until_ns > r->now) {
            waiting++;
            rec_requeue(r, p->backoff_until_ns);
        } else {
            replace(r, t);
            (*made)++;
        }
    }
    return waiting;
}

/* A role that is no longer wanted keeps its pods until the wanted roles can serve, unless they lack
 * the room for it. */
static bool hold_unwanted(struct rec *r, enum rec_role role)
{
    bool unmet = false;
    if (role == REC_STANDBY || r->s->roles[role].wanted)
        return false;
    for (int i = 0; i < REC_STANDBY; i++)
        unmet |= r->s->roles[i].wanted && tally(r, (enum rec_role)i).ready < r->want[i];
    for (size_t i = 0; i < r->s->n_pods; i++)
        if (r->s->pods[i].unschedulable && rec_live(&r->s->pods[i]))
            return false;
    return unmet;
}

/* Down to the cap, then old pods as far as enough stay ready. */
static void trim(struct rec *r, enum rec_role role, int32_t cap)
{
    int32_t want = r->want[role], min_ready = want - r->s->max_unavailable;
    for (struct tally n = tally(r, role); n.live > cap; n = tally(r, role)) {
        struct rec_slot *t = victim(r, role, n.ready > min_ready || n.old == n.live);
        if (!t)
            break;
        remove_pod(r, t, rec_text(r, "%s: %d wanted, %d there", rec_role_name(role), want, n.live));
    }
    for (struct rec_slot *t = r->slots; t < slot_end(r); t++) {
        if (!counts_in(t, role) || rec_current(r, t->pod, role))
            continue;
        if (!t->pod->ready || tally(r, role).ready > min_ready)
            remove_pod(r, t,
                       rec_text(r, "%s: revision %s replaces %s", rec_role_name(role),
                                r->s->roles[role].revision ? r->s->roles[role].revision : "none",
                                t->pod->revision ? t->pod->revision : "none"));
    }
}

static void pods_of_role(struct rec *r, enum rec_role role)
{
    int32_t want = r->want[role], surge = r->s->max_surge, made = 0;
    if (surge <= 0 && r->s->max_unavailable <= 0)
        surge = 1; /* a roll-out must be able to go on */
    struct tally n = tally(r, role);
    if (!n.live && !want && !r->s->n_pods)
        return;
    if (hold_unwanted(r, role))
        return;
    int32_t cap = n.old && want ? want + surge : want;
    trim(r, role, cap);
    n = tally(r, role);
    int32_t waiting = failures(r, role, want - n.live, &made);
    int32_t room = cap - n.live - made - waiting, missing = want - n.fresh - made - waiting;
    int32_t more = room < missing ? room : missing;
    for (int32_t i = 0; i < more && i < CREATES_MAX; i++)
        add_pod(
            r, role,
            rec_text(r, "%s: %d wanted, %d there", rec_role_name(role), want, n.live + made + i));
    if (more > CREATES_MAX)
        rec_requeue(r, r->now + 1000000000ull);
}

void rec_pods(struct rec *r)
{
    const struct rec_snapshot *s = r->s;
    r->slots = arena_calloc(r->arena, (s->n_pods + 1) * sizeof *r->slots);
    if (!r->slots) {
        r->oom = true;
        return;
    }
    r->name_seed = hash_mix(0, s->uid);
    for (size_t i = 0; i < s->n_pods; i++) {
        r->slots[i] = (struct rec_slot){.pod = &s->pods[i], .role = s->pods[i].role};
        r->name_seed += hash_mix(0, s->pods[i].uid); /* in any order */
    }
    flips(r);
    standby_rungs(r);
    for (int i = 0; i < REC_ROLES; i++)
        pods_of_role(r, (enum rec_role)i);
}
