/* scale.h: scale(samples, now) -> targets + reasons, for the roles of one InferenceDeployment.
 * Pure: what it must remember between calls is in a struct that the caller keeps; the same inputs
 * give the same bytes, so that a recorded decision can be made again (scale_record.h). Durations
 * are ns or seconds as named; strings are borrowed from the caller.
 *
 * Prefill follows tokens: what waits (Q, uncached prompt tokens) must be gone within the TTFT's
 * slack S, and what arrives (A, tokens/s) must be kept up with, by workers of r measured tokens/s:
 * load = (A + Q/S) / (u r) groups. Decode follows resident KV (Little's law: requests in flight =
 * rate x time, each holding blocks): load = (blocks used + blocks of those who wait) / (u B), and
 * the step time s + b*batch + k*KV, fitted to what workers report, against the TPOT target. u is
 * 0.8 (prefill) or 0.7 (KV) for going up, 0.6 or 0.5 for going down: the consolidation test, that
 * those who remain would not soon be too few. Unified takes the larger. With a PromQL query of the
 * user's the load is value / target instead.
 *
 * Arrivals and KV in use are looked at as they will be one lead time (of the standby rung at hand)
 * ahead, along their trend; never less than now, never more than twice.
 *
 * Up: after the load has held for a moment, straight to it; what is pending counts, since it is
 * compared with the number asked for; never more than the nodes have room for. Down: to the highest
 * need within the window. Groups that find no node are given up as soon as the load can do without.
 * A live worker without a usable sample counts as idle for going up and as fully used for going
 * down. Samples are taken for live workers only, and only with the incarnation and role that the
 * worker has now; first seconds of a worker count as load, not as speed.
 *
 * Sources: Little (1961); the rule of two different utilisations and the pending rule answer the
 * cases L1-L5, D7-D9, A1-A6, A13 in tests/cases.tsv. */
#pragma once
#include "lib/decide/reconcile.h"

#define SCALE_ROLES      3 /* prefill, decode, unified: as enum rec_role */
#define SCALE_FRESH_NS   (5ull * 1000000000)
#define SCALE_UP_HOLD_NS (2ull * 1000000000)
/* Groups without a node are kept asked for so long after the load can do without them. */
#define SCALE_STUCK_NS (30ull * 1000000000)
/* Slack when the spec has no slo.ttft; half of it may be spent waiting. */
#define SCALE_TTFT_S      2.0
#define SCALE_CLASSES_MAX 64
#define SCALE_GROUPS_MAX  100000

enum scale_drop {                         /* why a sample was not counted */
                  SCALE_DROP_NO_ID,       /* carries no pod uid */
                  SCALE_DROP_UNKNOWN_POD, /* a dead pod's, or another deployment's */
                  SCALE_DROP_INCARNATION, /* of the worker's process before this one */
                  SCALE_DROP_ROLE,        /* the worker still plays another role */
                  SCALE_DROP_STALE,
                  SCALE_DROPS
};
const char *scale_drop_name(enum scale_drop d); /* "no_id"… */

struct scale_sample { /* what a worker said, through one router or Prometheus */
    const char *pod_uid;
    uint64_t incarnation; /* 0: not told */
    enum rec_role role;   /* actual */
    bool ready, draining, warmup;
    uint64_t age_ns;
    uint32_t running, waiting;
    uint64_t waiting_tokens, resident_tokens;
    uint32_t kv_blocks, kv_blocks_used;
    double prefill_tokens_per_s, decode_step_s; /* 0: not measured */
};

struct scale_pod { /* a pod of the role that is not being deleted; any rank */
    const char *uid, *revision;
    uint64_t incarnation; /* 0: not known */
    uint32_t rank;
    bool ready, placed, unschedulable;
};

enum scale_source { SCALE_FROM_ROUTERS, SCALE_FROM_PROMETHEUS, SCALE_FROM_QUERY };
enum scale_rung { SCALE_HOT, SCALE_WARM, SCALE_CACHED, SCALE_COLD, SCALE_RUNGS };
const char *scale_rung_name(enum scale_rung r);

struct scale_input {
    enum rec_role role;
    enum scale_source source;
    int32_t current;   /* the pool's replicas, pending ones included */
    int32_t min, max;  /* bounds */
    bool heard;        /* some router (or Prometheus) answered lately */
    uint64_t fresh_ns; /* age past which a sample doesn't count; 0: SCALE_FRESH_NS */
    double arrival_tokens_per_s;
    uint32_t held_requests; /* wait in routers for a worker */
    uint64_t held_tokens;
    double value, target; /* SCALE_FROM_QUERY: groups = value / target; target 0: value is groups */
    double ttft_s, tpot_s; /* targets; 0: none */
    uint64_t down_window_ns;
    double lead_s; /* from asking for a group to serving, at the rung at hand */
    enum scale_rung rung;
    int32_t hot;        /* standby workers that would become groups without new pods */
    int32_t group_pods; /* pods of a group */
    const struct scale_pod *pods;
    size_t n_pods;
    const struct scale_sample
        *samples; /* of any pods, several a pod (one a router): the freshest counts */
    size_t n_samples;
};

struct scale_memory { /* zeroed at first */
    int32_t current;
    uint64_t above_since_ns, below_since_ns; /* 0: not */
    int32_t trough, peak;                    /* least need while above, highest while below */
    uint64_t trend_at_ns;                    /* of the trends below: level and change a second */
    double arrival, arrival_slope, kv, kv_slope;
    double rate, blocks; /* a worker's tokens/s and KV blocks when some was last heard of */
    double fit[9];       /* sums of 1, B, K, BB, BK, KK, s, Bs, Ks over reported steps, fading */
};

enum scale_code {
    SCALE_AS_NEEDED,
    SCALE_UP,
    SCALE_DOWN,
    SCALE_WAIT_UP,   /* more is needed, not for long enough yet */
    SCALE_WAIT_DOWN, /* less would do, not for long enough yet */
    SCALE_BOUNDS,
    SCALE_WAKE,
    SCALE_UNHEARD,
    SCALE_UNMEASURED,
    SCALE_UNSCHEDULABLE, /* more is needed, but pods already find no node */
    SCALE_NO_ROOM,       /* more is needed than nodes have room for */
    SCALE_GIVE_UP,       /* groups that find no node are no longer needed */
    SCALE_JOINT,         /* ratio, coupled zero or budget */
    SCALE_CODES
};
const char *scale_code_name(enum scale_code c); /* "AsNeeded": the condition's reason */

struct scale_decision {
    int32_t from, to, need_up, need_down; /* needs within bounds; -1: not known */
    double load; /* groups' worth of work by the rule for going up; < 0: not known */
    enum scale_code code;
    bool capacity_limited; /* more is needed than can be placed */
    uint32_t dropped[SCALE_DROPS];
    uint32_t live, heard_of, pending, running, waiting;
    uint64_t waiting_tokens, used_blocks;
    double blocks_each;
    char reason[320];  /* a sentence */
    char inputs[1024]; /* JSON: the numbers it was made from */
};

/* One role by itself. */
void scale_decide(const struct scale_input *in, struct scale_memory *m, uint64_t now_ns,
                  struct scale_decision *out);

/* Both roles together: prefill groups per decode group within [ratio_min, ratio_max] (0: none), at
 * most `budget` groups (0: none), neither at zero while the other is not. Clamp, repair a single
 * zero, raise the deficient side, only then lower the other. Bounds are kept. Appends to reasons.
 */
struct scale_limits {
    double ratio_min, ratio_max;
    int32_t budget;
    int32_t min[2], max[2]; /* prefill, decode */
};
void scale_limit(const struct scale_limits *l, struct scale_decision *prefill,
                 struct scale_decision *decode);

/* Room on the nodes: nodes alike in how many pods of each role they could still take. A node that
 * took a of its fits[x] pods of one role has that share less for the others. */
struct scale_space {
    bool known;
    size_t n;
    struct scale_class {
        uint32_t fits[SCALE_ROLES], nodes;
    } c[SCALE_CLASSES_MAX];
};
struct scale_quantity { /* a resource, in 1/1000 of its unit */
    const char *name;
    int64_t milli;
};
/* How many pods that ask for `pod` fit into `free`. A resource that the node lacks fits none. */
uint32_t scale_fits(const struct scale_quantity *free, size_t n_free,
                    const struct scale_quantity *pod, size_t n_pod);
/* Adds a node; nodes that fit nothing are left out; past the bound of classes alike ones merge, at
 * the lesser of their numbers. */
void scale_space_add(struct scale_space *s, const uint32_t fits[SCALE_ROLES]);

/* The whole deployment. */
struct scale_role {
    bool on;
    struct scale_input in;
    struct scale_memory before, memory; /* memory: in and out; before: as it was, for the record */
    struct scale_decision out;
};
struct scale_plan {
    uint64_t now_ns;
    struct scale_role role[SCALE_ROLES];
    bool flips; /* prefill and decode are of one revision: a shrinking one gives its pods */
    struct scale_limits limits;
    struct scale_space space;
};
void scale_plan(struct scale_plan *p);
