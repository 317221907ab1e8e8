/* The pod row: ready count, the status word, restarts, as kubectl has always shown them. */
#include "local/table_int.h"

#include <stdio.h>
#include <stdlib.h>

struct pod_view {
    char *reason;
    int64_t ready, total, restarts;
    const char *last_restart; /* RFC 3339 or NULL */
};

static void set_reason(struct pod_view *v, char *reason)
{
    free(v->reason);
    v->reason = reason;
}

static void note_restart(struct pod_view *v, const json_t *status)
{
    const char *t = json_str_at(status, "lastState.terminated.finishedAt", NULL);
    if (t && (!v->last_restart || strcmp(t, v->last_restart) > 0))
        v->last_restart = t;
}

static char *terminated_word(const json_t *t)
{
    const char *reason = json_str_at(t, "reason", "");
    int64_t sig = json_int_at(t, "signal", 0), code = json_int_at(t, "exitCode", 0);
    if (*reason)
        return xstrdup(reason);
    return sig ? xasprintf("Signal:%lld", (long long)sig)
               : xasprintf("ExitCode:%lld", (long long)code);
}

/* True while initialisation isn't over. */
static bool init_state(const json_t *pod, struct pod_view *v)
{
    const json_t *list = json_at(pod, "status.initContainerStatuses");
    size_t i, n = json_array_size(json_at(pod, "spec.initContainers"));
    json_t *s;
    json_array_foreach ((json_t *)list, i, s) {
        const json_t *t = json_at(s, "state.terminated");
        const char *waiting = json_str_at(s, "state.waiting.reason", "");
        v->restarts += json_int_at(s, "restartCount", 0);
        note_restart(v, s);
        if (t && !json_int_at(t, "exitCode", 0))
            continue;
        if (t) {
            CLEANUP(free_charp) char *w = terminated_word(t);
            set_reason(v, xasprintf("Init:%s", w));
        } else if (*waiting && strcmp(waiting, "PodInitializing")) {
            set_reason(v, xasprintf("Init:%s", waiting));
        } else {
            set_reason(v, xasprintf("Init:%zu/%zu", i, n));
        }
        return true;
    }
    return false;
}

static void container_states(const json_t *pod, struct pod_view *v)
{
    const json_t *list = json_at(pod, "status.containerStatuses");
    bool running = false;
    v->restarts = 0;
    for (size_t i = json_array_size(list); i-- > 0;) {
        const json_t *s = json_array_get(list, i), *t = json_at(s, "state.terminated");
        const char *waiting = json_str_at(s, "state.waiting.reason", "");
        v->restarts += json_int_at(s, "restartCount", 0);
        note_restart(v, s);
        if (*waiting)
            set_reason(v, xstrdup(waiting));
        else if (t)
            set_reason(v, terminated_word(t));
        else if (json_bool_at(s, "ready", false) && json_at(s, "state.running"))
            v->ready++, running = true;
    }
    if (running && !strcmp(v->reason, "Completed")) {
        size_t i;
        json_t *c;
        const char *word = "NotReady";
        json_array_foreach (json_at(pod, "status.conditions"), i, c)
            if (!strcmp(json_str_at(c, "type", ""), "Ready") &&
                !strcmp(json_str_at(c, "status", ""), "True"))
                word = "Running";
        set_reason(v, xstrdup(word));
    }
}

static struct pod_view view(const json_t *pod)
{
    struct pod_view v = {0};
    const char *reason = json_str_at(pod, "status.reason", "");
    set_reason(&v, xstrdup(*reason ? reason : json_str_at(pod, "status.phase", "Unknown")));
    v.total = (int64_t)json_array_size(json_at(pod, "spec.containers"));
    if (!init_state(pod, &v))
        container_states(pod, &v);
    if (json_at(pod, "metadata.deletionTimestamp")) {
        const char *phase = json_str_at(pod, "status.phase", "");
        if (!strcmp(reason, "NodeLost"))
            set_reason(&v, xstrdup("Unknown"));
        else if (strcmp(phase, "Succeeded") && strcmp(phase, "Failed"))
            set_reason(&v, xstrdup("Terminating"));
    }
    return v;
}

char *table_pod_status(const json_t *pod)
{
    return view(pod).reason;
}

static json_t *gates(const json_t *pod)
{
    const json_t *list = json_at(pod, "spec.readinessGates");
    size_t i, k, on = 0, n = json_array_size(list);
    json_t *g, *c;
    if (!n)
        return json_string("<none>");
    json_array_foreach ((json_t *)list, i, g)
        json_array_foreach (json_at(pod, "status.conditions"), k, c)
            if (!strcmp(json_str_at(c, "type", ""), json_str_at(g, "conditionType", "-")) &&
                !strcmp(json_str_at(c, "status", ""), "True"))
                on++;
    return json_sprintf("%zu/%zu", on, n);
}

void table_pod(const json_t *d, json_t *cells)
{
    struct pod_view v = view(d);
    json_array_append_new(cells, json_sprintf("%lld/%lld", (long long)v.ready, (long long)v.total));
    json_array_append_new(cells, json_string(v.reason));
    if (v.restarts && v.last_restart) {
        CLEANUP(free_charp) char *age = table_age(v.last_restart);
        json_array_append_new(cells, json_sprintf("%lld (%s ago)", (long long)v.restarts, age));
    } else {
        json_array_append_new(cells, json_sprintf("%lld", (long long)v.restarts));
    }
    cell_age(d, cells);
    cell_or(cells, json_str_at(d, "status.podIP", ""), "<none>");
    cell_or(cells, json_str_at(d, "spec.nodeName", ""), "<none>");
    cell_or(cells, json_str_at(d, "status.nominatedNodeName", ""), "<none>");
    json_array_append_new(cells, gates(d));
    free(v.reason);
}
