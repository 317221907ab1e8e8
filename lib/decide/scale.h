/* scale.h: scale(samples, now) -> target + reason, for one role that has bounds. Pure: what it must
 * remember between calls is in a struct that the caller keeps; the same inputs give the same bytes.
 *
 * Prefill follows tokens: what waits (Q, uncached prompt tokens) must be gone within the TTFT's
 * slack S, and what arrives (A, tokens/s) must be kept up with, by workers of r measured tokens/s:
 * need = (A + Q/S) / (u r). Decode follows resident KV (Little's law: requests in flight = rate x
 * time, each holding blocks): need = (blocks used + blocks of those who wait) / (u B), and the step
 * time against the TPOT target. u is 0.8 (prefill) or 0.7 (KV) for going up, 0.6 or 0.5 for going
 * down: the consolidation test, that those who remain would not soon be too few. Unified takes the
 * larger.
 *
 * Up: after the need has held for a moment, straight to it; what is pending counts, since the need
 * is compared with the number asked for. No further up while a pod finds no node. Down: to the
 * highest need within the window. A live pod without a fresh sample never lets its role shrink;
 * samples of pods that are not alive, drain, warm up or play another role don't count. */
#pragma once
#include "lib/decide/reconcile.h"

#define SCALE_FRESH_NS   (5ull * 1000000000)
#define SCALE_UP_HOLD_NS (2ull * 1000000000)
/* Slack when the spec has no slo.ttft; half of it may be spent waiting. */
#define SCALE_TTFT_S 2.0

struct scale_sample {
    const char *pod_uid;
    enum rec_role role; /* actual */
    bool ready, draining, warmup;
    uint64_t age_ns;
    uint32_t running, waiting;
    uint64_t waiting_tokens;
    uint32_t kv_blocks, kv_blocks_used;
    double prefill_tokens_per_s, decode_step_s; /* 0: not measured */
};

struct scale_input {
    enum rec_role role;
    int32_t current;  /* the pool's replicas, pending ones included */
    int32_t min, max; /* bounds */
    bool heard;       /* some router answered lately */
    double arrival_tokens_per_s;
    uint32_t held_requests; /* wait in routers for a worker */
    uint64_t held_tokens;
    double ttft_s, tpot_s; /* targets; 0: none */
    uint64_t down_window_ns;
    bool unschedulable;      /* a pod of the role finds no node */
    const char *const *live; /* uids of the role's pods that are alive and ready */
    size_t n_live;
    const struct scale_sample
        *samples; /* of any pods, several a pod (one a router): the freshest counts */
    size_t n_samples;
};

struct scale_memory { /* zeroed at first */
    int32_t current;
    uint64_t above_since_ns, below_since_ns; /* 0: not */
    int32_t trough, peak;                    /* least need while above, highest while below */
};

struct scale_decision {
    int32_t from, to, need_up, need_down;
    char reason[256]; /* a sentence */
    char inputs[768]; /* JSON */
};

void scale_decide(const struct scale_input *in, struct scale_memory *m, uint64_t now_ns,
                  struct scale_decision *out);

/* Both roles together: prefill groups per decode group within [ratio_min, ratio_max] (0: none), and
 * at most `budget` groups (0: none). The deficient side is raised first, then the other lowered;
 * bounds are kept. Appends to the reasons. */
struct scale_limits {
    double ratio_min, ratio_max;
    int32_t budget;
    int32_t min[2], max[2]; /* prefill, decode */
};
void scale_limit(const struct scale_limits *l, struct scale_decision *prefill,
                 struct scale_decision *decode);
