#include "agent/launch.h"

#include "agent/launch_int.h"
#include "lib/base/conf.h"
#include "lib/base/host.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

#define RECONNECT_MIN_MS 50
#define RECONNECT_MAX_MS 1000

static const struct conf_opt options[] = {
    {"--pod", "BATON_POD_NAME", CONF_STR, CONF(struct launch_options, pod), "", 0, 0,
     "this pod's name", "NAME"},
    {"--namespace", "BATON_POD_NAMESPACE", CONF_STR, CONF(struct launch_options, ns), "default", 0,
     0, "this pod's namespace", "NAME"},
    {"--uid", "BATON_POD_UID", CONF_STR, CONF(struct launch_options, uid), "", 0, 0,
     "this pod's uid", "UID"},
    {"--agent-dir", "BATON_AGENT_DIR", CONF_STR, CONF(struct launch_options, agent_dir),
     "/run/baton", 0, 0, "folder of the node agent's socket", "DIR"},
    {"--infd", "BATON_INFD", CONF_STR, CONF(struct launch_options, infd), "", 0, 0,
     "the InferenceDeployment that this pod belongs to", "NAME"},
    {"--devices", "NVIDIA_VISIBLE_DEVICES", CONF_STR, CONF(struct launch_options, devices), "", 0,
     0, "devices that this container was given, for the agent's watch of their health", "LIST"},
    {"--source", "BATON_MODEL_SOURCE", CONF_STR, CONF(struct launch_options, source), "", 0, 0,
     "the model (hf://, https://, file://, pvc://, image://)", "URL"},
    {"--sha256", "BATON_MODEL_SHA256", CONF_STR, CONF(struct launch_options, sha256), "", 0, 0,
     "the model file's digest", "HEX"},
    {"--worker", "BATON_WORKER", CONF_STR, CONF(struct launch_options, worker), "", 0, 0,
     "the worker program (default: baton-worker beside this one)", "FILE"},
    {"--memory-limit", "BATON_MEMORY_LIMIT_BYTES", CONF_BYTES,
     CONF(struct launch_options, memory_limit), "0", 0, 0, "memory of this pod (0: the machine's)",
     "BYTES"},
    {"--drain-seconds", "BATON_DRAIN_SECONDS", CONF_U64, CONF(struct launch_options, drain_seconds),
     "30", 0, 86400, "longest that running requests may take after SIGTERM", "SECONDS"},
    {"--tp", "BATON_TP", CONF_U64, CONF(struct launch_options, tp), "1", 1, 1024,
     "tensor-parallel ranks", "N"},
    {"--pp", "BATON_PP", CONF_U64, CONF(struct launch_options, pp), "1", 1, 1024, "pipeline stages",
     "N"},
    {"--ep", "BATON_EP", CONF_U64, CONF(struct launch_options, ep), "1", 1, 1024,
     "ranks that experts are dealt over", "N"},
    {"--dp", "BATON_DP", CONF_U64, CONF(struct launch_options, dp), "1", 1, 1024,
     "data-parallel ranks of attention", "N"},
    {"--pods", "BATON_PODS", CONF_U64, CONF(struct launch_options, pods), "1", 1, 1024,
     "pods of the group", "N"},
    {"--pod-ip", "BATON_POD_IP", CONF_STR, CONF(struct launch_options, pod_ip), "127.0.0.1", 0, 0,
     "this pod's address", "IP"},
    {"--backoff-ms", "BATON_BACKOFF_MS", CONF_U64, CONF(struct launch_options, backoff_ms), "500",
     1, 60000, "first delay before a crashed worker starts again; doubles up to a minute", "MS"},
    {"--log-format", "BATON_LOG_FORMAT", CONF_STR, CONF(struct launch_options, log_format), "json",
     0, 0, "json or text", "FORMAT"},
    {"--log-level", "BATON_LOG_LEVEL", CONF_STR, CONF(struct launch_options, log_level), "info", 0,
     0, "error, warn, info or debug", "LEVEL"},
    {0}};

static const struct conf_prog prog = {
    "baton-agent launch",
    "Entry point of a worker pod: starts the worker process, restarts it when it crashes, changes "
    "its role and drains\n"
    "it at SIGTERM. Weights and roles come from the node's agent.",
    "[options]", options};

void launch_exit(struct launch *l, int code)
{
    l->exit_code = code;
    uv_stop(&l->loop);
}

static json_t *status_message(struct launch *l)
{
    char text[24], until[CLOCK_RFC3339_MAX];
    json_t *o = json_pack("{s:s, s:O?}", "type", "status", "crash", l->crash);
    bool ready = ranks_status(l, o);
    if (l->incarnation) {
        snprintf(text, sizeof text, "%016llx", (unsigned long long)l->incarnation);
        json_object_set_new(o, "incarnation", json_string(text));
        json_object_set_new(o, "epoch", json_integer(l->epoch));
    }
    if (l->message && !ready)
        json_object_set_new(o, "message", json_string(l->message));
    if (l->step == STEP_BACKOFF)
        json_object_set_new(o, "backoff_until",
                            json_string(clock_rfc3339(l->backoff_until_wall_ns, 0, until)));
    return o;
}

void launch_report(struct launch *l)
{
    if (!l->agent)
        return;
    CLEANUP(json_decrefp) json_t *o = status_message(l);
    char *text = json_dumps(o, JSON_COMPACT);
    if (l->said && strcmp(l->said, text) == 0) {
        free(text);
        return;
    }
    free(l->said);
    l->said = text;
    int r = lines_send(l->agent, o, -1);
    if (r)
        log_warn("the agent does not listen", LI("code", r));
}

void launch_say(struct launch *l, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    free(l->message);
    l->message = xstrdup(text);
    launch_report(l);
}

static bool ask_weights(struct launch *l, const struct rank *r, bool hold)
{
    CLEANUP(json_decrefp)
    json_t *o =
        json_pack("{s:s, s:s, s:s, s:s, s:s, s:i, s:I, s:b}", "type", "weights", "source",
                  l->opt.source, "sha256", l->opt.sha256, "isa", l->isa, "layout", r->layout,
                  "rank", (int)r->number, "bytes", (json_int_t)r->weights_bytes, "hold", (int)hold);
    return lines_send(l->agent, o, -1) == 0;
}

void launch_ask_weights(struct launch *l)
{
    if (!l->agent || l->asked_weights || !l->n_ranks)
        return;
    for (uint32_t i = 0; i < l->n_ranks;
         i++) { /* mapped already: the agent only counts this user */
        if (l->ranks[i].weights_fd >= 0 && !ask_weights(l, &l->ranks[i], true))
            return;
    }
    if (l->step == STEP_WEIGHTS && l->loading < l->n_ranks)
        l->asked_weights = ask_weights(l, &l->ranks[l->loading], false);
    else
        l->asked_weights = ranks_loaded(l);
}

void launch_filled(struct launch *l, const char *checksum)
{
    CLEANUP(json_decrefp)
    json_t *o = json_pack("{s:s, s:s}", "type", "filled", "checksum", checksum);
    if (l->agent && lines_send(l->agent, o, -1))
        log_warn("the agent does not listen");
}

static void on_weights(struct launch *l, const json_t *msg)
{
    const char *state = json_str_at(msg, "state", "");
    bool fill = strcmp(state, "fill") == 0, ready = strcmp(state, "ready") == 0;
    int fd = fill || ready ? lines_take_fd(l->agent) : -1;
    if (l->step != STEP_WEIGHTS) {
        close_fdp(&fd);
        return;
    }
    if (strcmp(state, "wait") == 0) {
        launch_say(l, "another worker of this node loads the weights");
    } else if (strcmp(state, "error") == 0) {
        l->asked_weights = false;
        worker_failed(l, "InsufficientMemory", 0, 0,
                      json_str_at(msg, "message", "the agent has no weights"));
    } else if (fd < 0) {
        log_warn("the agent's answer about weights has no file", LS("state", state));
    } else if (fill) {
        worker_fill(l, fd);
    } else {
        worker_weights(l, fd);
    }
}

static void on_role(struct launch *l, const json_t *msg)
{
    free(l->role);
    l->role = xstrdup(json_str_at(msg, "role", "standby"));
    int64_t epoch = json_int_at(msg, "epoch", 0);
    if (!l->epoch_known && epoch > l->epoch)
        l->epoch = epoch;
    l->epoch_known = true;
    log_info("desired role", LS("role", l->role));
    worker_role(l);
}

static void on_group(struct launch *l, const json_t *msg)
{
    int64_t index = json_int_at(msg, "index", 0);
    json_t *peers = json_object_get(msg, "peers");
    if (index < 0 || index >= (int64_t)l->opt.pods || !json_is_array(peers))
        return;
    json_decref(l->peers);
    l->peers = json_deep_copy(peers);
    l->index = (uint32_t)index;
    l->group_epoch = json_int_at(msg, "epoch", 0);
    log_info("the group's pods", LI("index", index), LI("pods", json_array_size(peers)),
             LI("epoch", l->group_epoch));
    worker_group(l);
}

static void on_rung(struct launch *l, const json_t *msg)
{
    free(l->rung);
    l->rung = xstrdup(json_str_at(msg, "rung", "hot"));
    log_info("desired rung", LS("rung", l->rung));
    worker_rung(l);
}

static void on_message(struct lines *lines, const json_t *msg, void *ctx)
{
    (void)lines;
    struct launch *l = ctx;
    const char *type = json_str_at(msg, "type", "");
    if (strcmp(type, "weights") == 0)
        on_weights(l, msg);
    else if (strcmp(type, "role") == 0)
        on_role(l, msg);
    else if (strcmp(type, "rung") == 0)
        on_rung(l, msg);
    else if (strcmp(type, "restart") == 0)
        worker_restart(l, json_str_at(msg, "reason", "the agent asks for it"));
    else if (strcmp(type, "group") == 0)
        on_group(l, msg);
    else if (strcmp(type, "model") == 0)
        launch_on_model(l, msg);
    else if (strcmp(type, "drain") == 0)
        worker_drain(l, false);
    else
        log_warn("unknown message from the agent", LS("type", type));
}

static void connect_agent(uv_timer_t *t);

static void reconnect_later(struct launch *l)
{
    uv_timer_start(&l->reconnect, connect_agent, l->reconnect_ms, 0);
    l->reconnect_ms =
        l->reconnect_ms * 2 < RECONNECT_MAX_MS ? l->reconnect_ms * 2 : RECONNECT_MAX_MS;
}

static void on_closed(struct lines *lines, const char *why, void *ctx)
{
    (void)lines;
    struct launch *l = ctx;
    log_info("the agent is gone; connecting again", LS("why", why));
    l->agent = NULL;
    l->asked_weights = l->model_asked = false;
    l->reconnect_ms = RECONNECT_MIN_MS;
    worker_stop_fill(l);
    reconnect_later(l);
}

static void connect_agent(uv_timer_t *t)
{
    struct launch *l = t->data;
    struct err e;
    struct lines_handlers h = {.on_message = on_message, .on_closed = on_closed, .ctx = l};
    int fd = lines_connect(l->opt.agent_dir, "agent.sock", &e);
    if (fd < 0) {
        log_warn("no agent yet", LERR(&e));
        reconnect_later(l);
        return;
    }
    if (lines_new(&l->loop, fd, &h, &l->agent, &e)) {
        close(fd);
        reconnect_later(l);
        return;
    }
    CLEANUP(json_decrefp)
    json_t *hello =
        json_pack("{s:s, s:s, s:s, s:s, s:i, s:s}", "type", "hello", "pod", l->opt.pod, "namespace",
                  l->opt.ns, "uid", l->opt.uid, "pid", (int)getpid(), "devices", l->opt.devices);
    if (lines_send(l->agent, hello, -1))
        return; /* on_closed follows */
    log_info("agent connected");
    l->reconnect_ms = RECONNECT_MIN_MS;
    free(l->said);
    l->said = NULL;
    launch_report(l);
    launch_ask_model(l);
    launch_ask_weights(l);
}

static void on_term(uv_signal_t *s, int sig)
{
    (void)sig;
    log_info("told to end");
    worker_drain(s->data, true);
}

static char *worker_beside(void)
{
    char path[4096];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    path[n > 0 ? n : 0] = 0;
    char *slash = strrchr(path, '/');
    return xasprintf("%.*s/baton-worker", slash ? (int)(slash - path) : 0, path);
}

static void begin(struct launch *l)
{
    l->segment_fd = l->fill_fd = -1;
    l->group_epoch = -1;
    for (uint32_t i = 0; i < LAUNCH_RANKS_MAX; i++)
        l->ranks[i].weights_fd = -1;
    l->backoff_ms = l->opt.backoff_ms;
    l->reconnect_ms = RECONNECT_MIN_MS;
    l->worker_path = *l->opt.worker ? xstrdup(l->opt.worker) : worker_beside();
    if (!l->opt.memory_limit)
        l->opt.memory_limit = host_memory_bytes();
    uv_timer_init(&l->loop, &l->reconnect);
    uv_timer_init(&l->loop, &l->retry);
    uv_timer_init(&l->loop, &l->limit);
    uv_timer_init(&l->loop, &l->masking);
    l->reconnect.data = l->retry.data = l->limit.data = l->masking.data = l;
    l->opt.source = xstrdup(l->opt.source); /* the environment's is changed for children */
    connect_agent(&l->reconnect);
    worker_plan(l);
}

int launch_main(int argc, char **argv)
{
    static struct launch l;
    struct err e = {0};
    enum log_level level;
    int first, r = conf_parse(&prog, argc, argv, &l.opt, &first, &e);
    if (r > 0)
        return 0;
    if (r || log_level_parse(l.opt.log_level, &level)) {
        fprintf(stderr, "baton-agent launch: %s\n",
                r ? e.msg : "--log-level is error, warn, info or debug");
        return 2;
    }
    log_init("baton-launch", l.opt.log_format, level);
    if (!*l.opt.uid || !*l.opt.source) {
        log_error("BATON_POD_UID and BATON_MODEL_SOURCE must be set; the controller's pod template "
                  "does it");
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    prctl(PR_SET_NAME, "baton-launch");
    uv_loop_init(&l.loop);
    uv_signal_t term, inter;
    uv_signal_init(&l.loop, &term);
    uv_signal_init(&l.loop, &inter);
    term.data = inter.data = &l;
    uv_signal_start(&term, on_term, SIGTERM);
    uv_signal_start(&inter, on_term, SIGINT);
    begin(&l);
    uv_run(&l.loop, UV_RUN_DEFAULT);
    log_info("launcher ends", LI("code", l.exit_code));
    return l.exit_code;
}
