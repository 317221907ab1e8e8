/* launch_int.h: what the launcher's files share. One loop, the main thread (children die with the
 * thread that made them).
 *
 * The life of a worker: plan (what will it need? refuse if that is more than there is) → weights
 * (from the agent; the first of a node fills them in a child) → role (desired, from the agent) →
 * run → on its end: a crash record, back-off, again. The agent may come and go at any time: the
 * launcher connects again and repeats what it has said. */
#pragma once
#include "agent/child.h"
#include "agent/lines.h"
#include "lib/base/clock.h"
#include "lib/base/log.h"

struct launch_options {
    const char *pod, *ns, *uid, *agent_dir, *infd, *devices, *source, *sha256, *worker, *log_format,
        *log_level;
    uint64_t memory_limit, drain_seconds, tp, pp, backoff_ms;
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
    char *isa, *layout;
    /* the worker */
    struct child *helper; /* --plan or --fill */
    struct child *worker;
    struct lines *worker_lines;
    int weights_fd, fill_fd;
    uint64_t incarnation, started_ns, ready_ns;
    int64_t epoch;
    bool epoch_known, draining, drained;
    json_t *worker_status;   /* its last status message */
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

/* launch_worker.c */
void worker_plan(struct launch *l);
void worker_fill(struct launch *l, int fd);    /* takes fd */
void worker_weights(struct launch *l, int fd); /* read-only weights are here; takes fd */
void worker_stop_fill(struct launch *l);       /* the agent is gone: what was filled is lost */
void worker_role(struct launch *l);            /* the desired role is known or has changed */
void worker_restart(struct launch *l, const char *why); /* in place, with a crash record */
void worker_rung(struct launch *l);                     /* so has the desired rung */
void worker_failed(struct launch *l, const char *reason, int code, int sig, const char *message);
void worker_drain(struct launch *l, bool exit_after);
