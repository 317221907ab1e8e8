#include "agent/launch_int.h"

#include "lib/base/host.h"
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#define PLAN_TIMEOUT_MS 30000
#define FILL_TIMEOUT_MS 1800000
#define BACKOFF_MAX_MS  60000
#define HEALTHY_NS      (10 * NS_PER_S) /* ready for so long: the back-off starts anew */
#define TERM_MS         2000            /* from SIGTERM of a worker to SIGKILL */

static void again(uv_timer_t *t)
{
    struct launch *l = t->data;
    worker_plan(l);
}

static void wait_and_retry(struct launch *l)
{
    l->step = STEP_BACKOFF;
    if (l->awaits_epoch && l->group_epoch <= l->epoch)
        return; /* the controller says when */
    l->backoff_until_wall_ns = clock_wall_ns() + l->backoff_ms * NS_PER_MS;
    uv_timer_start(&l->retry, again, l->backoff_ms, 0);
    l->backoff_ms = l->backoff_ms * 2 < BACKOFF_MAX_MS ? l->backoff_ms * 2 : BACKOFF_MAX_MS;
}

/* Records why, reports it, and tries again later. */
void worker_failed(struct launch *l, const char *reason, int code, int sig, const char *message)
{
    char now[CLOCK_RFC3339_MAX], incarnation[24];
    snprintf(incarnation, sizeof incarnation, "%016llx", (unsigned long long)l->incarnation);
    json_decref(l->crash);
    json_t *text = json_string(message);
    l->crash = json_pack("{s:s, s:s, s:i, s:i, s:o, s:I, s:s}", "time",
                         clock_rfc3339(clock_wall_ns(), 0, now), "reason", reason, "exitCode", code,
                         "signal", sig, "message", text ? text : json_string(reason), "epoch",
                         (json_int_t)l->epoch, "incarnation", incarnation);
    log_warn("the worker is not running", LS("reason", reason), LI("code", code), LI("signal", sig),
             LS("message", message), LI("retry_ms", l->backoff_ms));
    wait_and_retry(l);
    launch_say(l, "%s", message);
}

static void size_text(uint64_t bytes, char out[24])
{
    if (bytes >= 1ull << 30)
        snprintf(out, 24, "%.1f GiB", (double)bytes / (1 << 30));
    else
        snprintf(out, 24, "%.0f MiB", (double)bytes / (1 << 20));
}

/* Better a sentence now than the OOM killer later. */
static bool fits(struct launch *l)
{
    char need[24], weights[24], kv[24], other[24], have[24], why[256];
    uint64_t sum = l->weights_bytes + l->kv_bytes + l->other_bytes;
    bool node = l->opt.memory_limit >= host_memory_bytes();
    if (sum <= l->opt.memory_limit)
        return true;
    size_text(sum, need);
    size_text(l->weights_bytes, weights);
    size_text(l->kv_bytes, kv);
    size_text(l->other_bytes, other);
    size_text(l->opt.memory_limit, have);
    snprintf(why, sizeof why, "needs %s, %s has %s (weights %s, KV %s, the rest %s)", need,
             node ? "node" : "the pod's memory limit", have, weights, kv, other);
    worker_failed(l, "InsufficientMemory", 0, 0, why);
    return false;
}

static void helper_failed(struct launch *l, struct child *c, const char *what)
{
    char why[1200];
    const char *line = child_last_line(c);
    snprintf(why, sizeof why, "%s: %s", what,
             child_timed_out(c) ? "no answer in time"
             : *line            ? line
                                : "it ended without saying why");
    l->model_suspect = l->model_held; /* the agent looks at its files again */
    worker_failed(l, "ModelUnusable", child_exit_code(c), child_exit_signal(c), why);
}

static void planned(struct child *c, void *ctx)
{
    struct launch *l = ctx;
    l->helper = NULL;
    if (l->step != STEP_PLAN)
        return;
    CLEANUP(json_decrefp) json_t *o = json_parse(child_stdout(c), 65536, 0, NULL);
    int64_t weights = json_int_at(o, "weights_bytes", 0);
    if (child_exit_code(c) != 0 || weights <= 0) {
        helper_failed(l, c, "the model can't be used");
        return;
    }
    l->weights_bytes = (uint64_t)weights;
    l->kv_bytes = (uint64_t)json_int_at(o, "kv_bytes", 0);
    l->other_bytes = (uint64_t)json_int_at(o, "other_bytes", 0);
    free(l->isa);
    l->isa = xstrdup(json_str_at(o, "isa", ""));
    if (json_object_get(o, "warning"))
        log_warn("the layout wastes", LS("how", json_str_at(o, "warning", "")));
    if (!ranks_plan(l, o)) {
        worker_failed(l, "UnsupportedLayout", 0, 0, "the plan is not that of this pod's ranks");
        return;
    }
    if (!fits(l))
        return;
    if (ranks_loaded(l)) { /* a restart: they are still mapped here */
        l->step = STEP_ROLE;
        worker_role(l);
        return;
    }
    ranks_drop_weights(l);
    l->loading = 0;
    l->asked_weights = false;
    l->step = STEP_WEIGHTS;
    launch_say(l, "waiting for the weights");
    launch_ask_weights(l);
}

/* Of this pod, by its index. */
static uint32_t first_rank(const struct launch *l)
{
    return l->index * (uint32_t)(l->opt.tp * l->opt.pp * l->opt.dp / l->opt.pods);
}

static int start_helper(struct launch *l, const char *flag, int fd, unsigned timeout_ms,
                        void (*on_exit)(struct child *, void *))
{
    struct err e;
    char rank[32];
    const char *argv[] = {l->worker_path, flag, NULL};
    const char *env[] = {rank, fd >= 0 ? "BATON_WEIGHTS_FD=3" : NULL, NULL};
    snprintf(rank, sizeof rank, "BATON_RANK=%u",
             fd >= 0 ? l->ranks[l->loading].number : first_rank(l));
    struct child_config c = {.loop = &l->loop,
                             .file = l->worker_path,
                             .argv = argv,
                             .extra_env = env,
                             .pass_fd = fd,
                             .as_fd = 3,
                             .max_stdout_bytes = 65536,
                             .timeout_ms = timeout_ms,
                             .on_exit = on_exit,
                             .ctx = l};
    if (child_start(&c, &l->helper, &e) == 0)
        return 0;
    worker_failed(l, "StartError", 0, 0, e.msg);
    return -EIO;
}

void worker_plan(struct launch *l)
{
    if (l->step == STEP_END || l->draining || !launch_model_ready(l))
        return;
    l->step = STEP_PLAN;
    uint64_t ranks = l->opt.tp * l->opt.pp * l->opt.dp;
    if (ranks % l->opt.pods || ranks / l->opt.pods > LAUNCH_RANKS_MAX) {
        worker_failed(l, "UnsupportedLayout", 0, 0,
                      "the group's ranks can't be spread over its pods");
        return;
    }
    if (l->opt.pods > 1 && !l->peers) {
        launch_say(l, "waiting for the group's other pods");
        return;
    }
    launch_say(l, "reading the model's header");
    if (start_helper(l, "--plan", -1, PLAN_TIMEOUT_MS, planned))
        log_debug("no plan");
}

static void fill_ended(struct child *c, void *ctx)
{
    struct launch *l = ctx;
    l->helper = NULL;
    close_fdp(&l->fill_fd);
    if (l->step != STEP_WEIGHTS)
        return;
    CLEANUP(json_decrefp) json_t *o = json_parse(child_stdout(c), 65536, 0, NULL);
    const char *sum = json_str_at(o, "checksum", "");
    if (child_exit_code(c) != 0 || !*sum) {
        l->asked_weights = false;
        helper_failed(l, c, "the weights can't be loaded");
        return;
    }
    launch_filled(l, sum); /* the agent answers "ready" with a read-only file */
}

void worker_fill(struct launch *l, int fd)
{
    if (l->helper)
        child_abandon(l->helper);
    close_fdp(&l->fill_fd);
    l->helper = NULL;
    l->fill_fd = fd;
    launch_say(l, "loading the weights");
    if (start_helper(l, "--fill", fd, FILL_TIMEOUT_MS, fill_ended))
        close_fdp(&l->fill_fd);
}

void worker_stop_fill(struct launch *l)
{
    if (l->step != STEP_WEIGHTS)
        return;
    if (l->helper)
        child_abandon(l->helper);
    l->helper = NULL;
    close_fdp(&l->fill_fd);
}

static void kill_worker(uv_timer_t *t)
{
    ranks_kill(t->data, SIGKILL);
}

/* Rank 0 ends the group; in another pod there is only waiting for that. */
static void end_worker(uv_timer_t *t)
{
    struct launch *l = t->data;
    if (!l->alive)
        return;
    ranks_kill(l, SIGTERM);
    uv_timer_start(&l->limit, kill_worker, TERM_MS, 0);
}

void worker_drained(struct launch *l)
{
    l->drained = true;
    log_info("worker drained");
    if (l->step == STEP_END)
        end_worker(&l->limit);
}

void worker_ended(struct launch *l)
{
    char why[1200];
    if (l->step == STEP_END) {
        launch_exit(l, 0);
        return;
    }
    if (l->ready_ns && clock_mono_ns() - l->ready_ns > HEALTHY_NS)
        l->backoff_ms = l->opt.backoff_ms;
    l->awaits_epoch = l->opt.pods > 1;
    snprintf(why, sizeof why, "%s%s", l->restart_why ? "restarted in place: " : "",
             l->restart_why ? l->restart_why
             : l->end_why   ? l->end_why
                            : "the worker ended");
    worker_failed(l,
                  l->restart_why  ? "DeviceFault"
                  : l->end_reason ? l->end_reason
                                  : "Ended",
                  l->end_code, l->end_signal, why);
    free(l->restart_why);
    l->restart_why = NULL;
    if (l->opt.pods == 1)
        l->epoch++;
}

static void start_worker(struct launch *l)
{
    struct err e;
    if (l->opt.pods > 1)
        l->epoch = l->group_epoch;
    if (ranks_start(l, &e)) {
        l->awaits_epoch = l->opt.pods > 1;
        worker_failed(l, "StartError", 0, 0, e.msg);
        return;
    }
    l->step = STEP_RUN;
    worker_rung(l);
    launch_say(l, "the worker is starting");
}

/* Another epoch: what runs ends and starts again with the other pods. */
void worker_group(struct launch *l)
{
    if (l->opt.pods < 2 || l->step == STEP_END)
        return;
    if (l->step == STEP_RUN && l->group_epoch > l->epoch)
        ranks_kill(l, SIGKILL);
    else if ((l->step == STEP_PLAN && !l->helper) ||
             (l->step == STEP_BACKOFF && l->awaits_epoch && l->group_epoch > l->epoch))
        worker_plan(l);
}

void worker_weights(struct launch *l, int fd)
{
    close_fdp(&l->ranks[l->loading].weights_fd);
    l->ranks[l->loading++].weights_fd = fd;
    if (!ranks_loaded(l)) {
        l->asked_weights = false;
        launch_ask_weights(l);
        return;
    }
    l->step = STEP_ROLE;
    launch_say(l, "the weights are here; waiting for a role");
    worker_role(l);
}

void worker_role(struct launch *l)
{
    if (!l->role)
        return;
    if (l->step == STEP_ROLE)
        start_worker(l);
    else if (l->step == STEP_RUN)
        ranks_tell(l, json_pack("{s:s, s:s}", "type", "role", "role", l->role));
}

void worker_restart(struct launch *l, const char *why)
{
    if (!l->alive || l->step != STEP_RUN)
        return;
    log_warn("the worker is restarted in place", LS("why", why));
    free(l->restart_why);
    l->restart_why = xstrdup(why);
    ranks_kill(l, SIGKILL);
}

void worker_rung(struct launch *l)
{
    if (l->rung && l->step == STEP_RUN)
        ranks_tell(l, json_pack("{s:s, s:s}", "type", "rung", "rung", l->rung));
}

/* exit_after: SIGTERM. Without: the pod is being deleted, SIGTERM will follow; nothing new is taken
 * from now on. */
void worker_drain(struct launch *l, bool exit_after)
{
    bool first = !l->draining;
    l->draining = true;
    uv_timer_stop(&l->retry);
    if (l->alive && first)
        ranks_tell(l, json_pack("{s:s}", "type", "drain"));
    launch_report(l);
    if (!exit_after)
        return;
    bool again_told = l->step == STEP_END;
    l->step = STEP_END;
    if (l->helper)
        child_abandon(l->helper);
    if (!l->alive) {
        launch_exit(l, 0);
        return;
    }
    if (l->drained || again_told) /* a second SIGTERM means now */
        end_worker(&l->limit);
    else
        uv_timer_start(&l->limit, end_worker, l->opt.drain_seconds * 1000, 0);
}
