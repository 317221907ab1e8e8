/* reconcile.h: reconcile(snapshot, now) -> actions, for one InferenceDeployment. A pure function:
 * no I/O, no clock, no memory between calls. The shell (controller/) fills the snapshot from its
 * caches, carries the actions out in order, stops at the first that fails, and calls again:
 * whatever prefix of the actions was carried out, the next call goes on from there.
 *
 * Rules (DESIGN §3): a WorkerPool's replicas is set at its creation and afterwards only through
 * `scale`, when the infd's own number differs from what was recorded last; pods are counted in a
 * role by label, owned by the infd, named without their role; the revision covers neither role nor
 * replicas, so a shrinking role gives its pods to a growing one of the same revision; a failed pod
 * is replaced with a back-off that its replacement inherits; a new revision rolls within
 * maxUnavailable and maxSurge; of two infds with one model name the older serves. Times are ns
 * since the epoch. Strings are borrowed from the snapshot or live in the arena. */
#pragma once
#include "lib/base/arena.h"
#include "lib/decide/gang.h"

enum rec_role {
    REC_PREFILL,
    REC_DECODE,
    REC_UNIFIED,
    REC_STANDBY,
    REC_ROLES,
    REC_NO_ROLE = REC_ROLES
};
const char *rec_role_name(enum rec_role r); /* "prefill"…; "" for none */
enum rec_role rec_role_parse(const char *name);

#define REC_BACKOFF_MIN_NS (30ull * 1000000000)
#define REC_BACKOFF_MAX_NS (600ull * 1000000000)
#define REC_HEALTHY_NS                                                                             \
    (600ull * 1000000000) /* so long alive: the next failure counts as the first */

/* Rungs of standby pods (DESIGN §8), in the annotation serving.baton.dev/rung. */
enum rec_rung { REC_RUNG_NONE, REC_RUNG_WARM, REC_RUNG_HOT };
const char *rec_rung_name(enum rec_rung r); /* "warm", "hot"; "" for none */
enum rec_rung rec_rung_parse(const char *name);

/* One pod. A group (DESIGN §3) is `size` pods of one name in `group`, numbered by `index`. */
struct rec_pod {
    const char *name, *uid, *resource_version;
    const char *group;   /* name of its rank-0 pod; NULL: it is a group by itself */
    int32_t index, size; /* place in the group, pods that the group should have; 0 reads as 1 */
    enum rec_role role;  /* desired, its label */
    const char *revision;
    const char *pair;  /* pods pair for a request only within one such key; NULL: unknown */
    const char *ip;    /* NULL until it has one */
    const char *peers; /* the start barrier's annotation; NULL: not written */
    bool ready, deleting;
    bool failed;    /* will never run again: phase Failed or Succeeded */
    bool disrupted; /* it failed because it was evicted, preempted or its node went: no back-off */
    bool placed;    /* has a node */
    bool gated;     /* waits for its group's turn to be scheduled */
    bool leaving;   /* its node is being emptied (cordoned, tainted): to be replaced elsewhere */
    bool lost;      /* its node has fallen silent */
    bool unschedulable;
    const char *reason, *trouble; /* "CrashLoop", "the worker ended with exit code 137 (OOMKilled):
                                     raise …"; NULL when nothing is wrong */
    bool standby_ready;           /* a standby worker that has its model loaded */
    enum rec_rung rung;           /* desired, of a standby pod */
    uint64_t created_ns, failed_ns, backoff_until_ns, lifted_ns; /* lifted: its gang gate */
    uint32_t backoff_s; /* length of the back-off that ends at backoff_until_ns; 0: not written */
    uint32_t epoch;     /* count of the group's restarts */
    uint32_t failed_epoch;  /* of a group of several pods: the last epoch whose ranks ended here */
    uint32_t load;          /* requests running there (0 when unknown) */
    uint64_t cached_tokens; /* served from its prefix cache lately: what its loss would cost */
    const char *crash;      /* JSON record of the failure, for the replacement; NULL when none */
};

struct rec_condition {
    const char *type;   /* Accepted, Ready, Progressing, CapacityLimited */
    const char *status; /* True, False, Unknown */
    const char *reason, *message;
    uint64_t since_ns;
    int64_t observed_generation;
};
enum { REC_ACCEPTED, REC_READY, REC_PROGRESSING, REC_CAPACITY_LIMITED, REC_CONDITIONS };

struct rec_pool {
    bool exists, ours, deleting;
    const char *resource_version, *uid;
    int64_t generation;
    int32_t replicas;               /* -1: the field is absent */
    int32_t last_replicas;          /* the annotation; -1: absent */
    int32_t bounds_min, bounds_max; /* as in its spec; -1: absent */
    int32_t pdb_min_available;      /* of its PodDisruptionBudget; -1: there is none */
    bool pdb_all_ranks;             /* it counts all pods of a group, not only rank 0's */
    /* status as it is */
    int32_t status_replicas, ready_replicas, updated_replicas;
    int64_t observed_generation;
    const char *selector;
    struct rec_condition ready; /* type NULL: absent */
    const char *limited;        /* its scaler wants more than there is room for: why; NULL: no */
};

struct rec_counts {
    int32_t desired, current, ready, updated;
};

struct rec_role_spec {
    bool wanted;                    /* the infd has this role */
    int32_t replicas;               /* -1: absent */
    int32_t bounds_min, bounds_max; /* -1: absent */
    int32_t pods;                   /* of a group; 0 reads as 1 */
    const char *revision;           /* what its pods should have */
    const char *pair;               /* pairing key of that revision; NULL: not known */
    struct rec_pool pool;
};

/* A stored revision of the deployment (a ControllerRevision). */
struct rec_revision {
    const char *name, *uid, *hash;
    int64_t number;
    const char *roles[REC_ROLES]; /* the revision that pods of each role had in it; NULL: none */
    int32_t sizes[REC_ROLES];     /* pods of a group; 0 reads as 1 */
};
#define REC_HISTORY 10 /* revisions kept */

/* How groups of several pods are placed all or nothing. */
enum rec_gang {
    REC_GANG_GATE,  /* by a scheduling gate that is lifted for one group at a time */
    REC_GANG_NATIVE /* the API server has PodGroups */
};

/* Another InferenceDeployment of the namespace, for clashes. */
struct rec_rival {
    const char *name, *uid, *model_name;
    uint64_t created_ns;
};

enum rec_secret { REC_SECRET_ABSENT, REC_SECRET_OURS, REC_SECRET_FOREIGN };

struct rec_snapshot {
    const char *name, *namespace, *uid, *model_name, *url;
    int64_t generation;
    uint64_t created_ns;
    bool deleting;
    uint64_t look_again_ns; /* something that time alone changes (a silent node); 0: nothing */
    const char *invalid;    /* a sentence when the shell can't make pods of this spec; NULL else */
    int32_t max_unavailable, max_surge;
    bool paused; /* no group is moved to another revision */
    int32_t hot_standby, warm_standby;
    struct rec_role_spec roles[REC_ROLES]; /* REC_STANDBY: only revision is used */
    enum rec_secret secret;
    const struct rec_pod *pods; /* ours, of all roles */
    size_t n_pods;
    const struct rec_rival *rivals;
    size_t n_rivals;
    const char *revision; /* hash of the whole deployment's; NULL: none are stored */
    const struct rec_revision *revisions;
    size_t n_revisions;
    enum rec_gang gang;
    const struct gang_group *gangs; /* all gated groups of the namespace, of any deployment */
    size_t n_gangs;
    const char *const *pod_groups; /* names of the PodGroups that exist */
    size_t n_pod_groups;
    /* status as it is */
    struct rec_condition conditions[REC_CONDITIONS]; /* type NULL: absent */
    struct rec_counts counts[REC_ROLES];
    int64_t observed_generation;
    const char *status_url, *status_revision, *status_current;
};

enum rec_kind {
    REC_CREATE_SECRET,
    REC_CREATE_POOL,     /* role, number, recorded */
    REC_APPLY_POOL,      /* role: bounds as the infd has them */
    REC_SCALE_POOL,      /* role, number, resource_version */
    REC_RECORD_POOL,     /* role, recorded (-1: remove the annotation) */
    REC_DELETE_POOL,     /* role, uid */
    REC_APPLY_PDB,       /* role, number = minAvailable */
    REC_CREATE_REVISION, /* name, revision, number64 */
    REC_NUMBER_REVISION, /* name, uid, number64: an older one is wanted again */
    REC_DELETE_REVISION, /* name, uid */
    REC_CREATE_POD,      /* role, name, group, index, number = size, revision, epoch, gated,
                            backoff_until_ns, backoff_s, crash, replaces */
    REC_CREATE_GANG,     /* group, uid of its rank-0 pod, number = size: a PodGroup */
    REC_LIFT_GATE,       /* name, uid, resource_version */
    REC_GROUP_POD, /* name, uid, resource_version, peers, epoch, backoff_until_ns, backoff_s, crash:
                      the barrier or a restart; what is NULL or 0 stays */
    REC_DELETE_POD,  /* name, uid */
    REC_LABEL_POD,   /* name, uid, resource_version, role: a change of role */
    REC_RUNG_POD,    /* name, uid, resource_version, rung: of a standby pod */
    REC_POOL_STATUS, /* role, counts, selector */
    REC_STATUS,      /* conditions, all counts, url, revision */
};
const char *rec_kind_name(enum rec_kind k);

struct rec_action {
    enum rec_kind kind;
    enum rec_role role, from_role;
    int32_t number, recorded;
    const char *name, *uid, *resource_version, *revision, *crash, *replaces, *group, *peers;
    int32_t index;
    int64_t number64;
    bool gated;
    uint32_t epoch, backoff_s;
    enum rec_rung rung;
    uint64_t backoff_until_ns;
    const char *why; /* a sentence; for the log and the event */
};

struct rec_plan {
    struct rec_action *actions;
    size_t n, cap;
    /* of REC_STATUS and REC_POOL_STATUS */
    struct rec_condition conditions[REC_CONDITIONS];
    struct rec_counts counts[REC_ROLES];
    struct rec_condition pool_ready[REC_ROLES];
    const char *revision;   /* wanted */
    const char *current;    /* of most ready groups; NULL: none is ready or it isn't stored */
    uint64_t requeue_at_ns; /* call again then though nothing changes; 0: no need */
};

/* -ENOMEM only when the arena's maximum is reached. */
int reconcile(const struct rec_snapshot *s, uint64_t now_ns, struct arena *a,
              struct rec_plan *out) MUST_CHECK;

/* "serving.baton.dev/infd=<infd>,serving.baton.dev/role=<role>,serving.baton.dev/rank=0" */
const char *rec_selector(struct arena *a, const char *infd, enum rec_role role);
