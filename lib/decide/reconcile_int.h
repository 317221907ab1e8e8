/* reconcile_int.h: what the files of reconcile share. One pass's working state; lives for one call
 * of reconcile(). */
#pragma once
#include "lib/decide/reconcile.h"

/* A group and what this pass has decided about it. */
struct rec_slot {
    const struct rec_pod *pod; /* the group as one pod: &sum. Its name is the group's */
    struct rec_pod sum;
    const struct rec_pod **members; /* by index; NULL where one is missing */
    int32_t size, there;
    bool started;       /* its ranks may have met: a missing pod breaks it */
    enum rec_role role; /* after flips */
    bool gone;          /* this pass deletes it */
    bool flipped;
};

struct rec {
    const struct rec_snapshot *s;
    uint64_t now;
    struct arena *arena;
    struct rec_plan *plan;
    bool oom;
    int32_t want[REC_ROLES];
    struct rec_slot *slots;
    size_t n_slots;
    uint64_t name_seed, names;
    const char *reject_reason, *reject_message; /* not accepted */
};

/* A zeroed action appended to the plan. Never NULL: past the arena's maximum it is a scratch one
 * and r->oom is set. */
struct rec_action *rec_add(struct rec *r, enum rec_kind kind, enum rec_role role, const char *why);
const char *rec_text(struct rec *r, const char *fmt, ...) PRINTF_LIKE(2, 3);
void rec_requeue(struct rec *r, uint64_t at_ns);

void rec_pools(struct rec *r);     /* fills r->want */
void rec_slots(struct rec *r);     /* fills r->slots from the pods */
void rec_revisions(struct rec *r); /* the history of revisions; plan->revision and current */
void rec_pods(struct rec *r);
void rec_groups(struct rec *r); /* groups of several pods: whole, placed, started, restarted */
void rec_status(struct rec *r);

/* standby.c. The first is called at the end of rec_pools: sets want[REC_STANDBY], the number of
 * standby groups of all rungs. The second is called by rec_pods after roles have taken what they
 * lack from other roles and from standby (flips), before groups are made and removed: rungs. */
void standby_want(struct rec *r);
void standby_rungs(struct rec *r);
int32_t rec_bounded(int32_t n); /* 0 to the most groups that a role may have */

bool rec_live(const struct rec_pod *p); /* counts in its role */
bool rec_current(const struct rec *r, const struct rec_pod *p,
                 enum rec_role role); /* has the role's revision */
/* The stored revision in which pods of some role had this one; NULL when there is none. */
const struct rec_revision *rec_stored(const struct rec *r, const char *role_revision);

/* reconcile_group.c */
int32_t rec_size(const struct rec *r, enum rec_role role); /* pods of a new group */
/* One action for each pod of the group that is there and not on its way out, as `like` with the
 * pod's own name, uid and resourceVersion. */
void rec_each_pod(struct rec *r, const struct rec_slot *t, const struct rec_action *like);
/* All pods of a new group. Returns the template they share, to be filled in before rec_make_pods:
 * role, name, revision, number. */
struct rec_action rec_new_group(struct rec *r, enum rec_role role, const char *why);
void rec_make_group(struct rec *r, const struct rec_action *like);
void rec_remove(struct rec *r, struct rec_slot *t, const char *why);
/* How long the next replacement or restart must wait, should this one fail too: doubles while
 * failures follow each other. */
uint64_t rec_next_backoff(const struct rec *r, const struct rec_pod *p);
