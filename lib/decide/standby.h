/* standby.h: the standby ladder hot > warm > cached > cold of one InferenceDeployment (DESIGN §8).
 * Pure: no I/O, no clock.
 *
 * A standby group is a group whose desired role is `standby`; its rung is an annotation of its
 * rank-0 pod. A promotion is one write, the role label: a role other than standby implies hot, so
 * there is no state "awake but bound to nothing" that a killed controller could leave behind.
 * Promotions are flips of reconcile() from the highest rung (standby_sooner); standby_rungs() in
 * reconcile_int.h backfills behind them. Strings are borrowed. Results live in the arena. */
#pragma once
#include "lib/decide/reconcile.h"

enum standby_rung { STANDBY_COLD, STANDBY_CACHED, STANDBY_WARM, STANDBY_HOT, STANDBY_RUNGS };
const char *standby_rung_name(enum standby_rung r); /* "cold", "cached", "warm", "hot" */

/* Which of two standby pods serves sooner: there before on its way, hot before warm, then the
 * older.
 */
bool standby_sooner(const struct rec_pod *a, const struct rec_pod *b);
/* What a worker should be, given its desired role and its annotation (NULL: none): "hot" for any
 * role but standby. */
const char *standby_told(const char *role, const char *rung);

struct standby_node {
    const char *name;
    bool usable; /* schedulable, Ready, not quarantined, and the model's pods may run there */
    bool has;    /* its NodeInventory lists the model at nvme or dram */
    bool wanted; /* it is in the annotation cached-nodes now */
    bool serves; /* a pod of this infd runs there: it has the model anyway */
    uint64_t room_bytes; /* free in its model cache; UINT64_MAX: unknown */
};
/* Which nodes should keep the model on disk, at most `want` of them: those that do already stay,
 * nodes that don't serve it come before those that do. *picked are indices in order of name;
 * model_bytes 0: unknown. Returns their number or -ENOMEM. */
int standby_cache_nodes(const struct standby_node *nodes, size_t n, int32_t want,
                        uint64_t model_bytes, struct arena *a, uint32_t **picked) MUST_CHECK;
/* Nodes that a new pod should prefer, at most max: those that have the model. As above. */
int standby_prefer_nodes(const struct standby_node *nodes, size_t n, size_t max, struct arena *a,
                         uint32_t **picked) MUST_CHECK;

struct standby_lead {       /* a pod's measured way to its first serving role */
    enum standby_rung rung; /* where it came from */
    double seconds;
};
/* The annotation that agents write on rank-0 pods: {"rung":"hot","seconds":0.031}. -EINVAL when it
 * is not that (text may be hostile). */
int standby_lead_parse(const char *text, struct standby_lead *out) MUST_CHECK;
/* A rung's lead time: the median of its samples, else what was known before; < 0: not known. */
void standby_leads(const struct standby_lead *samples, size_t n, const double prev[STANDBY_RUNGS],
                   double out[STANDBY_RUNGS]);
/* Seconds until `groups` more can serve: the worst rung that so many need (`have` ready ones on
 * each rung; cold has no end). Unknown rungs count as the next lower known one; < 0: none known. */
double standby_lead_of(const double leads[STANDBY_RUNGS], const int32_t have[STANDBY_RUNGS],
                       int32_t groups);
