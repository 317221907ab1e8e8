#include "lib/decide/guard.h"
#include "lib/decide/reconcile_int.h"

static bool same(const char *a, const char *b)
{
    return strcmp(a ? a : "", b ? b : "") == 0;
}

/* Groups as they are, by the role that they have now. */
static struct rec_counts count(const struct rec *r, enum rec_role role)
{
    struct rec_counts c = {.desired = r->want[role]};
    for (size_t i = 0; i < r->n_slots; i++) {
        const struct rec_pod *p = r->slots[i].pod;
        if (p->role != role || !rec_live(p))
            continue;
        c.current++;
        c.ready += p->ready;
        c.updated += rec_current(r, p, role);
    }
    return c;
}

/* lastTransitionTime moves only with the status. */
static void set(const struct rec *r, struct rec_condition *out, const struct rec_condition *old,
                const char *type, bool holds, const char *reason, const char *message,
                int64_t generation)
{
    const char *status = holds ? "True" : "False";
    bool kept = old->type && same(old->status, status) && old->since_ns;
    *out = (struct rec_condition){type,      status, reason, message, kept ? old->since_ns : r->now,
                                  generation};
}

static bool condition_changed(const struct rec_condition *a, const struct rec_condition *b)
{
    return !a->type || !same(a->status, b->status) || !same(a->reason, b->reason) ||
           !same(a->message, b->message) || a->observed_generation != b->observed_generation;
}

struct view {
    int32_t desired, ready, old, missing, draining, leaving;
    const struct rec_pod *unschedulable, *troubled;
    enum rec_role lacking; /* the first role with too few ready pods */
};

static struct view look(const struct rec *r)
{
    struct view v = {.lacking = REC_NO_ROLE};
    for (int i = 0; i < REC_ROLES; i++) {
        const struct rec_counts *c = &r->plan->counts[i];
        v.desired += i == REC_STANDBY ? 0 : c->desired;
        v.ready += i == REC_STANDBY ? 0 : c->ready;
        v.old += c->current - c->updated;
        v.missing += c->desired != c->current;
        if (i != REC_STANDBY && c->ready < c->desired && v.lacking == REC_NO_ROLE)
            v.lacking = (enum rec_role)i;
    }
    for (size_t i = 0; i < r->n_slots; i++) {
        const struct rec_pod *p = r->slots[i].pod;
        v.draining += p->deleting;
        v.leaving += p->leaving && rec_live(p);
        if (p->deleting)
            continue;
        bool waits = p->gated && p->backoff_until_ns > r->now;
        if ((p->unschedulable || waits) && !v.unschedulable)
            v.unschedulable = p;
        if ((p->failed || p->trouble || p->lost) && !p->ready && !p->unschedulable && !waits &&
            !v.troubled)
            v.troubled = p;
    }
    return v;
}

static void set_ready(struct rec *r, const struct view *v)
{
    const struct rec_condition *old = &r->s->conditions[REC_READY];
    struct rec_condition *c = &r->plan->conditions[REC_READY];
    const char *reason, *message;
    bool ready = false;
    const struct rec_counts *n = v->lacking == REC_NO_ROLE ? NULL : &r->plan->counts[v->lacking];
    const char *lack =
        n ? rec_text(r, "%s: %d of %d ready", rec_role_name(v->lacking), n->ready, n->desired) : "";
    if (r->reject_reason) {
        reason = r->reject_reason;
        message = r->reject_message;
    } else if (v->desired == 0) {
        reason = "ScaledToZero";
        message = "no role has any groups";
    } else if (n && v->troubled) {
        reason = v->troubled->reason   ? v->troubled->reason
                 : v->troubled->failed ? "PodFailed"
                                       : "PodCrashing";
        message = rec_text(r, "%s; pod %s: %s", lack, v->troubled->name,
                           v->troubled->trouble ? v->troubled->trouble : "it ended");
    } else if (n && v->unschedulable) {
        reason = "NoCapacity";
        message = rec_text(r, "%s; %s fits on no node%s%s", lack, v->unschedulable->name,
                           v->unschedulable->trouble ? ": " : "",
                           v->unschedulable->trouble ? v->unschedulable->trouble : "");
    } else if (v->old && r->s->paused) {
        reason = "Paused";
        message = rec_text(r,
                           "%d groups are of an older revision; the rollout goes on when "
                           "spec.rollout.paused is false",
                           v->old);
    } else if (v->old && GUARD(ready_current)) {
        reason = "Updating";
        message = rec_text(r, "%d groups are still of an older revision", v->old);
    } else if (n) {
        reason = "PodsNotReady";
        message = lack;
    } else {
        ready = true;
        reason = "AllReady";
        message = "every role has its groups ready";
    }
    set(r, c, old, "Ready", ready, reason, message, r->s->generation);
}

/* A pod without a node, else what a scaler would place if there were room. */
static void set_capacity(struct rec *r, const struct view *v)
{
    const struct rec_snapshot *s = r->s;
    const char *reason = "CapacityFound", *message = "every pod has a node";
    if (v->unschedulable) {
        reason = "Unschedulable";
        message =
            rec_text(r, "%s fits on no node%s%.300s; free devices, add a node, or lower the number",
                     v->unschedulable->name, v->unschedulable->trouble ? ": " : "",
                     v->unschedulable->trouble ? v->unschedulable->trouble : "");
    }
    for (int i = 0; i < REC_ROLES && !v->unschedulable; i++) {
        if (!s->roles[i].wanted || !s->roles[i].pool.limited)
            continue;
        reason = "NoRoomToScale";
        message =
            rec_text(r, "%s: %.300s", rec_role_name((enum rec_role)i), s->roles[i].pool.limited);
        break;
    }
    set(r, &r->plan->conditions[REC_CAPACITY_LIMITED], &s->conditions[REC_CAPACITY_LIMITED],
        "CapacityLimited", strcmp(reason, "CapacityFound") != 0, reason, message, s->generation);
}

static void set_others(struct rec *r, const struct view *v)
{
    const struct rec_snapshot *s = r->s;
    struct rec_condition *c = r->plan->conditions;
    bool rolling = v->old && !s->paused;
    bool moving = !r->reject_reason && (rolling || v->missing || v->draining || v->leaving);
    set(r, &c[REC_ACCEPTED], &s->conditions[REC_ACCEPTED], "Accepted", !r->reject_reason,
        r->reject_reason ? r->reject_reason : "Accepted",
        r->reject_reason ? r->reject_message : "the spec can be carried out", s->generation);
    set(r, &c[REC_PROGRESSING], &s->conditions[REC_PROGRESSING], "Progressing", moving,
        !moving && v->old && s->paused && !r->reject_reason ? "Paused"
        : !moving                                           ? "Settled"
        : rolling                                           ? "RollingOut"
        : v->leaving && !v->missing                         ? "NodeDraining"
        : v->draining && !v->missing                        ? "Draining"
                                                            : "Scaling",
        moving ? "pods are being added, replaced or drained" : "there is nothing to change",
        s->generation);
    set_capacity(r, v);
}

static void pool_status(struct rec *r, enum rec_role role)
{
    const struct rec_pool *p = &r->s->roles[role].pool;
    const struct rec_counts *c = &r->plan->counts[role];
    struct rec_condition *ready = &r->plan->pool_ready[role];
    if (!r->s->roles[role].wanted || !p->exists || !p->ours || p->deleting)
        return;
    bool ok = c->ready >= c->desired && c->current == c->updated;
    set(r, ready, &p->ready, "Ready", ok,
        ok                         ? "AllReady"
        : c->current == c->updated ? "PodsNotReady"
                                   : "Updating",
        rec_text(r, "%d of %d ready", c->ready, c->desired), p->generation);
    bool changed = p->status_replicas != c->current || p->ready_replicas != c->ready ||
                   p->updated_replicas != c->updated || p->observed_generation != p->generation ||
                   !same(p->selector, rec_selector(r->arena, r->s->name, role)) ||
                   condition_changed(&p->ready, ready);
    if (changed)
        rec_add(r, REC_POOL_STATUS, role, "counts changed");
}

void rec_status(struct rec *r)
{
    const struct rec_snapshot *s = r->s;
    struct rec_plan *plan = r->plan;
    bool changed = s->observed_generation != s->generation || !same(s->status_url, s->url);
    for (int i = 0; i < REC_ROLES; i++) {
        plan->counts[i] = count(r, (enum rec_role)i);
        changed |=
            i != REC_STANDBY && memcmp(&plan->counts[i], &s->counts[i], sizeof *plan->counts) != 0;
    }
    if (!plan->revision)
        plan->revision = s->roles[s->roles[REC_UNIFIED].wanted ? REC_UNIFIED : REC_DECODE].revision;
    changed |= !same(s->status_revision, plan->revision) || !same(s->status_current, plan->current);
    struct view v = look(r);
    set_ready(r, &v);
    set_others(r, &v);
    for (int i = 0; i < REC_CONDITIONS; i++)
        changed |= condition_changed(&s->conditions[i], &plan->conditions[i]);
    for (int i = 0; i < REC_STANDBY; i++)
        pool_status(r, (enum rec_role)i);
    if (changed)
        rec_add(r, REC_STATUS, REC_NO_ROLE, "status changed");
}
