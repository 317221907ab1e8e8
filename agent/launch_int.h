/* launch_int.h: what the launcher's files share. One loop, the main thread (children die with the
 * thread that made them).
 *
 * The life of a worker: plan (what will it need? refuse if that is more than there is) → weights
 * (from the agent; the first of a node fills them in a child) → role (desired, from the agent) →
 * run → on its end: a crash record, back-off, again. The agent may come and go at any time: the
 * launcher connects again and repeats what it has said.
 *
 * A worker is a group of ranks, one process each; this pod has `n_ranks` of them from `first_rank`
 * on. They start together and end together: when one ends, the others are ended, once, with one
 * crash record; but where rank 0 may go on without it, it is asked: what it does not call masked
 * soon ends the group. A group with masked ranks ends when rank 0 does.
 * A group of several pods also waits for the agent's "group" message, which brings
 * the pods' addresses and the epoch: the controller answers a failed epoch with the next. */
#pragma once
#include "agent/child.h"
#include "agent/lines.h"
#include "lib/base/clock.h"
#include "lib/base/log.h"

struct launch_options {
    const char *pod, *ns, *uid, *agent_dir, *infd, *devices, *source, *sha256, *worker, *log_format,
        *log_level;
    const char *pod_ip;
    uint64_t memory_limit, drain_seconds, tp, pp, ep, dp, pods, backoff_ms, comm_port;
};

enum launch_step {
    STEP_MODEL,   /* waiting for the agent to have the model's files */
    STEP_PLAN,    /* asking baton-worker --plan */
    STEP_WEIGHTS, /* waiting for the agent, or filling */
    STEP_ROLE,    /* weights are here, the desired role is not */
    STEP_RUN,     /* the worker lives */
    STEP_BACKOFF, /* it does not, and is started again later */
    STEP_END,     /* told to end */
};

#define LAUNCH_RANKS_MAX 64u

struct launch;
struct rank { /* one of this pod's */
    struct launch *l;
    uint32_t number; /* in the group */
    uint64_t weights_bytes;
    char *layout; /* of its weights */
    int weights_fd;
    struct child *child;
    struct lines *lines;
    bool ready, ending; /* ending: by us */
    bool masked;        /* it has ended and rank 0 goes on without it */
};

struct launch {
    uv_loop_t loop;
    struct launch_options opt;
    char *worker_path;
    enum launch_step step;
    /* the agent */
    struct lines *agent;
    uv_timer_t reconnect;
    unsigned reconnect_ms;
    bool asked_weights;
    char *role; /* desired; NULL: not known yet */
    char *rung; /* desired: "hot", "warm"; NULL: not known, which is hot */
    /* the model's files */
    char *model_path;   /* what children load; NULL: not known yet */
    bool model_asked;   /* of the agent, and not answered */
    bool model_held;    /* in the agent's cache, which keeps it for us */
    bool model_suspect; /* a worker could not use it */
    /* the plan */
    uint64_t weights_bytes, kv_bytes, other_bytes;
    char *isa;
    /* the worker */
    struct child *helper; /* --plan or --fill */
    struct rank ranks[LAUNCH_RANKS_MAX];
    uint32_t n_ranks, first_rank, alive;
    uint32_t loading; /* of ranks: whose weights are asked for */
    int segment_fd;   /* memory that the ranks share */
    int fill_fd;
    char *end_why, *end_reason; /* of the rank that ended first; NULL: none has */
    int end_code, end_signal;
    /* a group of several pods */
    json_t *peers;
    uint32_t index;      /* of this pod */
    int64_t group_epoch; /* that ranks should run at, -1: not known */
    bool awaits_epoch;   /* the last one has failed */
    uint64_t incarnation, started_ns, ready_ns;
    int64_t epoch;
    bool epoch_known, draining, drained;
    json_t *worker_status;   /* its last status message */
    uv_timer_t masking;      /* a rank has ended: until rank 0 must have masked it */
    json_t *crash;           /* the last crash record */
    char *restart_why;       /* told to restart: goes into the crash record; NULL: not */
    char *message;           /* what a person should know while it is not ready */
    uv_timer_t retry, limit; /* back-off; drain, then kill */
    uint64_t backoff_ms, backoff_until_wall_ns;
    char *said; /* the last status line to the agent */
    int exit_code;
};

/* launch.c */
void launch_report(struct launch *l); /* status to the agent, if it changed */
void launch_say(struct launch *l, const char *fmt, ...)
    PRINTF_LIKE(2, 3); /* sets message and reports */
void launch_ask_weights(struct launch *l);
void launch_filled(struct launch *l, const char *checksum);
void launch_exit(struct launch *l, int code);

/* launch_model.c */
bool launch_model_ready(struct launch *l); /* false: asked for; worker_plan is called again */
void launch_ask_model(struct launch *l);
void launch_on_model(struct launch *l, const json_t *msg);

/* launch_ranks.c */
bool ranks_plan(struct launch *l, const json_t *plan); /* false: not this pod's ranks */
bool ranks_loaded(const struct launch *l);             /* all weights are here */
void ranks_drop_weights(struct launch *l);
int ranks_start(struct launch *l, struct err *e) MUST_CHECK;
void ranks_tell(struct launch *l, json_t *msg); /* rank 0, when it is here; takes msg */
void ranks_kill(struct launch *l, int sig);
bool ranks_status(const struct launch *l, json_t *status); /* role, rung, ready, draining */

/* launch_worker.c */
void worker_ended(struct launch *l); /* all ranks have */
void worker_drained(struct launch *l);
void worker_group(struct launch *l); /* peers or epoch have changed */
void worker_plan(struct launch *l);
void worker_fill(struct launch *l, int fd);    /* takes fd */
void worker_weights(struct launch *l, int fd); /* read-only weights are here; takes fd */
void worker_stop_fill(struct launch *l);       /* the agent is gone: what was filled is lost */
void worker_role(struct launch *l);            /* the desired role is known or has changed */
void worker_restart(struct launch *l, const char *why); /* in place, with a crash record */
void worker_rung(struct launch *l);                     /* so has the desired rung */
void worker_failed(struct launch *l, const char *reason, int code, int sig, const char *message);
void worker_drain(struct launch *l, bool exit_after);
