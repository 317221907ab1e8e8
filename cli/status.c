/* baton status: deployments with the reasons for what is not right, roles, workers, queues, KV and
 * tokens/s; live until Ctrl-C. Kubernetes says what should be and why not, the router's
 * /debug/state what is going on. status_print.c draws it. */
#include "cli/status.h"
#include "cli/target.h"
#include "cli/verbs.h"
#include "lib/base/clock.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct status_options {
    struct target_options target;
    const char *router;
    double every_s;
    bool once, json;
};

static const struct conf_opt options[] = {
    TARGET_OPTIONS(struct status_options, target),
    TARGET_ALL(struct status_options, target),
    {"--router", NULL, CONF_STR, CONF(struct status_options, router), "", 0, 0,
     "the router's URL (default: found by itself, through the API server)", "URL"},
    {"--once", NULL, CONF_BOOL, CONF(struct status_options, once), NULL, 0, 0, "print once and end",
     NULL},
    {"--json", NULL, CONF_BOOL, CONF(struct status_options, json), NULL, 0, 0,
     "one JSON object a look", NULL},
    {"--every", NULL, CONF_F64, CONF(struct status_options, every_s), "1", 0.1, 3600,
     "time between looks", "SECONDS"},
    {0}};
static const struct conf_prog prog = {
    "baton status",
    "Shows deployments and why they are not ready, workers by role, queues, KV use and tokens/s; "
    "live until Ctrl-C.",
    "[NAME] [options]", options};

struct status {
    struct target *t;
    const struct status_options *o;
    const char *only; /* the deployment's name; NULL: all */
    json_t *before;   /* worker's incarnation → [prompt, generated] of the last look */
    uint64_t before_ns;
    struct err e; /* of the last look */
};

/* ---- one look ---- */

/* The router's entry for a pod, by uid. */
static const json_t *heard_of(const json_t *router, const char *uid)
{
    size_t i, j;
    json_t *d, *w;
    json_array_foreach (json_object_get(router, "deployments"), i, d) {
        json_array_foreach (json_object_get(d, "workers"), j, w) {
            if (strcmp(json_str_at(w, "uid", ""), uid) == 0)
                return w;
        }
    }
    return NULL;
}

/* Why a pod is not ready, in the words of whoever knows best: gate, containers, scheduler. */
static const char *why_not(const json_t *pod, const char **reason)
{
    static const char *const types[] = {"PodScheduled", GATE_ROLE, "Ready"};
    size_t i;
    json_t *c;
    json_array_foreach (json_at(pod, "status.containerStatuses"), i, c) {
        *reason = json_str_at(c, "state.waiting.reason", "");
        if (**reason && strcmp(*reason, "ContainerCreating") != 0)
            return json_str_at(c, "state.waiting.message", "");
    }
    for (i = 0; i < sizeof types / sizeof *types; i++) {
        const json_t *is = condition_of(pod, types[i]);
        *reason = json_str_at(is, "reason", "");
        if (is && !condition_holds(is) && **reason)
            return json_str_at(is, "message", "");
    }
    *reason = "Starting";
    return "";
}

/* A worker as one flat object: the pod's word and what the router heard from it. */
static json_t *worker(const json_t *pod, const json_t *heard)
{
    const char *reason = "ready", *message = "", *epoch = note_of(pod, ANN_EPOCH);
    double used = json_num_at(heard, "kv_blocks_used", 0), all = json_num_at(heard, "kv_blocks", 0);
    bool draining = json_at(pod, "metadata.deletionTimestamp") != NULL;
    if (!condition_holds(condition_of(pod, "Ready")) && !draining)
        message = why_not(pod, &reason);
    return json_pack(
        "{s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:I, s:I, s:f, s:I, s:f, s:f}", "pod",
        json_str_at(pod, "metadata.name", ""), "node", json_str_at(pod, "spec.nodeName", ""),
        "role", label_of(pod, LABEL_ROLE), "actual_role", note_of(pod, ANN_ACTUAL_ROLE), "revision",
        label_of(pod, LABEL_REVISION), "incarnation", note_of(pod, ANN_INCARNATION), "state",
        draining ? "draining" : reason, "message", message, "crash", note_of(pod, ANN_LAST_CRASH),
        "running", json_int_at(heard, "running", 0), "waiting", json_int_at(heard, "waiting", 0),
        "kv_used", all > 0 ? used / all : 0.0, "restarts", (json_int_t)strtoll(epoch, NULL, 10),
        "prompt_tokens_total", json_num_at(heard, "prompt_tokens_total", 0),
        "generated_tokens_total", json_num_at(heard, "generated_tokens_total", 0));
}

static json_t *roles_of(const json_t *infd)
{
    static const char *const names[] = {"prefill", "decode", "unified"};
    json_t *out = json_object();
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const json_t *is = json_object_get(json_object_get(infd, "status"), names[i]);
        if (json_object_get(json_object_get(infd, "spec"), names[i]))
            json_object_set_new(
                out, names[i],
                json_pack("{s:I, s:I, s:I, s:I}", "desired", json_int_at(is, "desired", 0),
                          "current", json_int_at(is, "current", 0), "ready",
                          json_int_at(is, "ready", 0), "updated", json_int_at(is, "updated", 0)));
    }
    return out;
}

/* Conditions that a person should read: what does not hold and ought to, what goes on. */
static json_t *reasons_of(const json_t *infd)
{
    json_t *out = json_array(), *c;
    size_t i;
    json_array_foreach (json_at(infd, "status.conditions"), i, c) {
        const char *type = json_str_at(c, "type", "");
        bool good = strcmp(type, "Progressing") != 0 && strcmp(type, "CapacityLimited") != 0;
        bool paused = strcmp(json_str_at(c, "reason", ""), "Paused") == 0;
        if (condition_holds(c) != good || paused)
            json_array_append(out, c);
    }
    return out;
}

/* tokens/s of a worker since the last look; its counters start anew with its incarnation. */
static void add_rates(struct status *s, json_t *w, json_t *counts, double dt, double rate[2])
{
    const char *key = json_str_at(w, "incarnation", "");
    double now[2] = {json_num_at(w, "prompt_tokens_total", 0),
                     json_num_at(w, "generated_tokens_total", 0)};
    const json_t *old = json_object_get(s->before, key);
    for (size_t i = 0; i < 2 && old && dt > 0; i++) {
        double d = now[i] - json_number_value(json_array_get(old, i));
        rate[i] += d > 0 ? d / dt : 0;
    }
    if (*key)
        json_object_set_new(counts, key, json_pack("[f, f]", now[0], now[1]));
}

static json_t *deployment(struct status *s, const json_t *infd, const json_t *pods,
                          const json_t *router, json_t *counts, double dt)
{
    const char *name = json_str_at(infd, "metadata.name", ""),
               *ns = json_str_at(infd, "metadata.namespace", "");
    const json_t *ready = condition_of(infd, "Ready");
    json_t *workers = json_array(), *o;
    double rate[2] = {0}, generated = 0;
    long long held = 0;
    size_t i;
    json_array_foreach (pods, i, o) {
        if (strcmp(label_of(o, LABEL_INFD), name) != 0 ||
            strcmp(json_str_at(o, "metadata.namespace", ""), ns) != 0)
            continue;
        json_t *w = worker(o, heard_of(router, json_str_at(o, "metadata.uid", "")));
        add_rates(s, w, counts, dt, rate);
        generated += json_num_at(w, "generated_tokens_total", 0);
        json_array_append_new(workers, w);
    }
    json_array_foreach (json_object_get(router, "deployments"), i, o) {
        if (strcmp(json_str_at(o, "infd", ""), name) == 0 &&
            strcmp(json_str_at(o, "namespace", ""), ns) == 0)
            held += json_int_at(o, "held_requests", 0);
    }
    return json_pack(
        "{s:s, s:s, s:s, s:b, s:s, s:s, s:s, s:o, s:o, s:I, s:f, s:f, s:f, s:o}", "name", name,
        "namespace", ns, "model", json_str_at(infd, "spec.model.name", ""), "ready",
        (int)condition_holds(ready), "reason", json_str_at(ready, "reason", ""), "message",
        json_str_at(ready, "message", ""), "revision", json_str_at(infd, "status.revision", ""),
        "roles", roles_of(infd), "reasons", reasons_of(infd), "held", (json_int_t)held,
        "prompt_tokens_per_s", rate[0], "generated_tokens_per_s", rate[1], "generated_tokens",
        generated, "workers", workers);
}

/* One router a namespace serves; on one machine, one serves all. */
static json_t *router_of(struct status *s, json_t *known, const char *ns)
{
    const char *key = s->t->local || *s->o->router ? "" : ns;
    json_t *state = json_object_get(known, key);
    if (!state) {
        state = target_router_state(s->t, ns, s->o->router);
        json_object_set_new(known, key, state ? state : json_object());
        state = json_object_get(known, key);
    }
    return json_object_size(state) ? state : NULL;
}

static json_t *look(struct status *s)
{
    uint64_t now = clock_mono_ns();
    double dt = s->before_ns ? (double)(now - s->before_ns) / 1e9 : 0;
    s->e = (struct err){0};
    CLEANUP(json_decrefp)
    json_t *infds = target_list(s->t, &kube_infds, NULL, NULL, &s->e);
    CLEANUP(json_decrefp)
    json_t *pods = target_list(s->t, &kube_pods, LABEL_INFD, NULL, &s->e);
    CLEANUP(json_decrefp) json_t *routers = json_object();
    json_t *all = json_array(), *counts = json_object(), *d;
    bool up = router_of(s, routers, s->t->namespace ? s->t->namespace : "default") != NULL;
    size_t i;
    json_array_foreach (infds, i, d) {
        const json_t *router = router_of(s, routers, json_str_at(d, "metadata.namespace", ""));
        up |= router != NULL;
        if (!s->only || strcmp(json_str_at(d, "metadata.name", ""), s->only) == 0)
            json_array_append_new(all, deployment(s, d, pods, router, counts, dt));
    }
    json_decref(s->before);
    s->before = counts;
    s->before_ns = now;
    return json_pack("{s:b, s:s, s:o}", "router_up", (int)up, "error", s->e.code ? s->e.msg : "",
                     "deployments", all);
}

static int view(struct status *s)
{
    const struct status_options *o = s->o;
    bool live = isatty(STDOUT_FILENO) && !o->once && !o->json;
    if (live)
        fputs("\033[2J", stdout);
    if (o->once) { /* rates need two looks */
        json_decref(look(s));
        poll(NULL, 0, 500);
    }
    for (;;) {
        CLEANUP(json_decrefp) json_t *now = look(s);
        if (o->json) {
            json_dumpf(now, stdout, JSON_COMPACT | JSON_REAL_PRECISION(6));
            putchar('\n');
        } else {
            status_print(now, live);
        }
        fflush(stdout);
        if (o->once)
            break;
        poll(NULL, 0, (int)(o->every_s * 1000));
    }
    json_decref(s->before);
    return -s->e.code;
}

int status_main(int argc, char **argv)
{
    static const char *const flags[] = {"--once", "--json",    "--all-namespaces",
                                        "--help", "--version", NULL};
    struct status_options o = {0};
    struct target t;
    struct err e = {0};
    int first;
    target_args(argc, argv, flags);
    int r = conf_parse(&prog, argc, argv, &o, &first, &e);
    if (r > 0)
        return 0;
    if (!r && argc - first > 1)
        r = err_set(&e, EINVAL, "unknown argument %s; see baton status --help", argv[first + 1]);
    if (r) {
        cli_fail("status", &e);
        return 2;
    }
    r = target_open(&o.target, &t, &e);
    if (r)
        return cli_fail("status", &e);
    struct status s = {.t = &t, .o = &o, .only = first < argc ? argv[first] : NULL};
    r = view(&s);
    if (r)
        cli_fail("status", &s.e);
    target_close(&t);
    return r ? 1 : 0;
}
