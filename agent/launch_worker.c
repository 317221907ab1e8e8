#include "agent/launch_int.h"

#include "lib/base/host.h"
#include "lib/base/rng.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define PLAN_TIMEOUT_MS 30000
#define FILL_TIMEOUT_MS 1800000
#define BACKOFF_MAX_MS  60000
#define HEALTHY_NS      (10 * NS_PER_S) /* ready for so long: the back-off starts anew */
#define TERM_MS         2000            /* from SIGTERM of a worker to SIGKILL */
#define LAUNCHER_FD     3

static void again(uv_timer_t *t)
{
    struct launch *l = t->data;
    worker_plan(l);
}

static void wait_and_retry(struct launch *l)
{
    l->step = STEP_BACKOFF;
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
    bool same_image = l->weights_bytes == (uint64_t)weights;
    l->weights_bytes = (uint64_t)weights;
    l->kv_bytes = (uint64_t)json_int_at(o, "kv_bytes", 0);
    l->other_bytes = (uint64_t)json_int_at(o, "other_bytes", 0);
    free(l->isa);
    free(l->layout);
    l->isa = xstrdup(json_str_at(o, "isa", ""));
    l->layout = xstrdup(json_str_at(o, "layout", ""));
    if (!fits(l))
        return;
    if (l->weights_fd >= 0 && same_image) { /* a restart: they are still mapped here */
        l->step = STEP_ROLE;
        worker_role(l);
        return;
    }
    close_fdp(&l->weights_fd);
    l->asked_weights = false;
    l->step = STEP_WEIGHTS;
    launch_say(l, "waiting for the weights");
    launch_ask_weights(l);
}

static int start_helper(struct launch *l, const char *flag, int fd, unsigned timeout_ms,
                        void (*on_exit)(struct child *, void *))
{
    struct err e;
    const char *argv[] = {l->worker_path, flag, NULL};
    const char *env[] = {"BATON_WEIGHTS_FD=3", NULL};
    struct child_config c = {.loop = &l->loop,
                             .file = l->worker_path,
                             .argv = argv,
                             .extra_env = fd >= 0 ? env : NULL,
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
    if (l->opt.tp * l->opt.pp != 1) {
        worker_failed(
            l, "UnsupportedLayout", 0, 0,
            "a CPU node has one device: parallelism.tensor and parallelism.pipeline must be 1");
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
    struct launch *l = t->data;
    if (l->worker)
        child_signal(l->worker, SIGKILL);
}

static void end_worker(uv_timer_t *t)
{
    struct launch *l = t->data;
    if (!l->worker)
        return;
    child_signal(l->worker, SIGTERM);
    uv_timer_start(&l->limit, kill_worker, TERM_MS, 0);
}

static void on_worker_message(struct lines *lines, const json_t *msg, void *ctx)
{
    (void)lines;
    struct launch *l = ctx;
    const char *type = json_str_at(msg, "type", "");
    if (strcmp(type, "status") == 0) {
        bool was = json_bool_at(l->worker_status, "ready", false),
             is = json_bool_at(msg, "ready", false);
        json_decref(l->worker_status);
        l->worker_status = json_deep_copy(msg);
        if (is && !l->ready_ns)
            l->ready_ns = clock_mono_ns();
        if (is && !was)
            log_info("worker ready", LS("role", json_str_at(msg, "role", "")),
                     LI("after_ms", (clock_mono_ns() - l->started_ns) / NS_PER_MS));
        launch_report(l);
    } else if (strcmp(type, "drained") == 0) {
        l->drained = true;
        log_info("worker drained");
        if (l->step == STEP_END)
            end_worker(&l->limit);
    } else {
        log_warn("unknown message from the worker", LS("type", type));
    }
}

static void on_worker_closed(struct lines *lines, const char *why, void *ctx)
{
    (void)lines;
    struct launch *l = ctx;
    l->worker_lines = NULL;
    log_debug("the worker closed its socket", LS("why", why));
    if (l->worker && !uv_is_active((uv_handle_t *)&l->limit))
        uv_timer_start(&l->limit, kill_worker, TERM_MS,
                       0); /* without it nothing can be told to it */
}

static const char *crash_reason(int sig, int code)
{
    static char text[32];
    if (sig == SIGKILL)
        return "Killed"; /* by a person, or by the kernel for want of memory */
    if (sig)
        snprintf(text, sizeof text, "Signal%d", sig);
    else
        snprintf(text, sizeof text, code == 0 ? "Ended" : "Error");
    return text;
}

static void worker_ended(struct child *c, void *ctx)
{
    struct launch *l = ctx;
    char why[1200];
    int code = child_exit_code(c), sig = child_exit_signal(c);
    const char *line = child_last_line(c);
    l->worker = NULL;
    uv_timer_stop(&l->limit);
    if (l->worker_lines)
        lines_close(l->worker_lines);
    l->worker_lines = NULL;
    json_decref(l->worker_status);
    l->worker_status = NULL;
    if (l->step == STEP_END) {
        launch_exit(l, 0);
        return;
    }
    if (l->ready_ns && clock_mono_ns() - l->ready_ns > HEALTHY_NS)
        l->backoff_ms = l->opt.backoff_ms;
    if (sig)
        snprintf(why, sizeof why, "the worker was ended by signal %d (%s)%s%s", sig, strsignal(sig),
                 *line ? ": " : "", line);
    else
        snprintf(why, sizeof why, "the worker ended with code %d%s%s", code, *line ? ": " : "",
                 line);
    if (l->restart_why)
        snprintf(why, sizeof why, "restarted in place: %s", l->restart_why);
    worker_failed(l, l->restart_why ? "DeviceFault" : crash_reason(sig, code), code, sig, why);
    free(l->restart_why);
    l->restart_why = NULL;
    l->epoch++;
}

static void send_worker(struct launch *l, json_t *msg, int fd)
{
    if (l->worker_lines && lines_send(l->worker_lines, msg, fd))
        log_warn("the worker does not listen");
    json_decref(msg);
}

static int spawn_worker(struct launch *l, struct err *e)
{
    int pair[2];
    char number[40];
    snprintf(number, sizeof number, "BATON_LAUNCHER_FD=%d", LAUNCHER_FD);
    const char *argv[] = {l->worker_path, NULL}, *env[] = {number, NULL};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair))
        return err_set(e, errno, "no socket for the worker: %s", strerror(errno));
    fcntl(pair[1], F_SETFL, 0); /* the worker's end blocks unless it says otherwise */
    struct child_config c = {.loop = &l->loop,
                             .file = l->worker_path,
                             .argv = argv,
                             .extra_env = env,
                             .pass_fd = pair[1],
                             .as_fd = LAUNCHER_FD,
                             .on_exit = worker_ended,
                             .ctx = l};
    struct lines_handlers h = {
        .on_message = on_worker_message, .on_closed = on_worker_closed, .ctx = l};
    int r = child_start(&c, &l->worker, e);
    close(pair[1]);
    if (r || (r = lines_new(&l->loop, pair[0], &h, &l->worker_lines, e)))
        close(pair[0]);
    if (r && l->worker) {
        child_abandon(l->worker);
        l->worker = NULL;
    }
    return r;
}

static void start_worker(struct launch *l)
{
    struct err e;
    char text[24];
    l->incarnation = rng_secret_u64();
    l->started_ns = clock_mono_ns();
    l->ready_ns = 0;
    snprintf(text, sizeof text, "%016llx", (unsigned long long)l->incarnation);
    if (spawn_worker(l, &e)) {
        worker_failed(l, "StartError", 0, 0, e.msg);
        return;
    }
    l->step = STEP_RUN;
    log_info("worker started", LI("pid", child_pid(l->worker)), LS("role", l->role),
             LS("incarnation", text), LI("epoch", l->epoch));
    send_worker(l,
                json_pack("{s:s, s:i, s:i, s:s, s:s, s:I}", "type", "start", "rank", 0, "ranks", 1,
                          "role", l->role, "incarnation", text, "weights_bytes",
                          (json_int_t)l->weights_bytes),
                l->weights_fd);
    worker_rung(l);
    launch_say(l, "the worker is starting");
}

void worker_weights(struct launch *l, int fd)
{
    close_fdp(&l->weights_fd);
    l->weights_fd = fd;
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
        send_worker(l, json_pack("{s:s, s:s}", "type", "role", "role", l->role), -1);
}

void worker_restart(struct launch *l, const char *why)
{
    if (!l->worker || l->step != STEP_RUN)
        return;
    log_warn("the worker is restarted in place", LS("why", why));
    free(l->restart_why);
    l->restart_why = xstrdup(why);
    child_signal(l->worker, SIGKILL);
}

void worker_rung(struct launch *l)
{
    if (l->rung && l->step == STEP_RUN)
        send_worker(l, json_pack("{s:s, s:s}", "type", "rung", "rung", l->rung), -1);
}

/* exit_after: SIGTERM. Without: the pod is being deleted, SIGTERM will follow; nothing new is taken
 * from now on. */
void worker_drain(struct launch *l, bool exit_after)
{
    bool first = !l->draining;
    l->draining = true;
    uv_timer_stop(&l->retry);
    if (l->worker && first)
        send_worker(l, json_pack("{s:s}", "type", "drain"), -1);
    launch_report(l);
    if (!exit_after)
        return;
    bool again_told = l->step == STEP_END;
    l->step = STEP_END;
    if (l->helper)
        child_abandon(l->helper);
    if (!l->worker) {
        launch_exit(l, 0);
        return;
    }
    if (l->drained || again_told) /* a second SIGTERM means now */
        end_worker(&l->limit);
    else
        uv_timer_start(&l->limit, end_worker, l->opt.drain_seconds * 1000, 0);
}
