/* Probes, by the rules of
 * https://kubernetes.io/docs/concepts/configuration/liveness-readiness-startup-probes/: one check
 * at a time, a period after the last began; liveness and readiness wait for the startup probe. */
#include "local/kubelet_int.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define OUTPUT_MAX 1024

struct kprobe {
    struct kctr *c;
    enum kprobe_kind kind;
    const json_t *spec;
    uint64_t period_ms, timeout_ms;
    int64_t success_threshold, failure_threshold, successes, failures;
    uv_timer_t *next, *limit;
    struct http_call *http;
    uv_tcp_t *tcp;
    uv_process_t *process;
};

static const char *const probe_member[] = {"startupProbe", "livenessProbe", "readinessProbe"};
static const char *const probe_name[] = {"Startup", "Liveness", "Readiness"};

bool kctr_has_probe(const struct kctr *c, enum kprobe_kind kind)
{
    return json_is_object(json_object_get(c->spec, probe_member[kind]));
}

static void probe_free(struct kprobe *p);

static void start_one(struct kctr *c, enum kprobe_kind kind);

static void passed(struct kprobe *p)
{
    struct kctr *c = p->c;
    p->failures = 0;
    if (++p->successes < p->success_threshold)
        return;
    if (p->kind == PROBE_READINESS && !c->ready) {
        c->ready = true;
        kpod_poke(c->pod);
    }
    if (p->kind == PROBE_STARTUP && !c->started) {
        c->started = true;
        c->ready = !kctr_has_probe(c, PROBE_READINESS);
        start_one(c, PROBE_LIVENESS);
        start_one(c, PROBE_READINESS);
        kpod_poke(c->pod);
        c->probes[PROBE_STARTUP] = NULL;
        probe_free(p);
    }
}

static void failed(struct kprobe *p, const char *why)
{
    struct kctr *c = p->c;
    p->successes = 0;
    p->failures++;
    bool over = p->failures >= p->failure_threshold;
    if (p->failures == 1 ||
        (over && p->kind != PROBE_READINESS)) /* not one event a second while a model loads */
        kubelet_event(c->pod, true, "Unhealthy", "%s probe failed: %s", probe_name[p->kind], why);
    if (!over)
        return;
    if (p->kind == PROBE_READINESS) {
        if (c->ready) {
            c->ready = false;
            kpod_poke(c->pod);
        }
        return;
    }
    int64_t grace = json_int_at(p->spec, "terminationGracePeriodSeconds", -1);
    kubelet_event(c->pod, false, "Killing", "Container %s failed %s probe, will be restarted",
                  c->name, p->kind == PROBE_STARTUP ? "startup" : "liveness");
    kctr_stop(c, grace >= 0 ? grace * 1000 : kpod_grace_ms(c->pod)); /* ends the probes too */
}

static void handle_closed(uv_handle_t *h)
{
    free(h);
}

/* The check is over, one way or the other: nothing of it remains. */
static void end_check(struct kprobe *p)
{
    uv_timer_stop(p->limit);
    if (p->http)
        http_cancel(p->http);
    p->http = NULL;
    if (p->tcp) {
        p->tcp->data = NULL;
        uv_close((uv_handle_t *)p->tcp, handle_closed);
    }
    p->tcp = NULL;
    if (p->process) {
        p->process->data = NULL; /* closed when it is reaped */
        kill(-p->process->pid, SIGKILL);
    }
    p->process = NULL;
}

static void timed_out(uv_timer_t *t)
{
    struct kprobe *p = t->data;
    char why[96];
    snprintf(why, sizeof why, "no answer within %llu ms", (unsigned long long)p->timeout_ms);
    end_check(p);
    failed(p, why);
}

static void http_answered(const struct http_response *r, void *ctx)
{
    struct kprobe *p = ctx;
    p->http = NULL;
    end_check(p);
    if (r->status >= 200 && r->status < 400) {
        passed(p);
        return;
    }
    char why[512];
    if (r->status)
        snprintf(why, sizeof why, "HTTP probe failed with statuscode: %d", r->status);
    else
        snprintf(why, sizeof why, "%s", r->error ? r->error : "no answer");
    failed(p, why);
}

/* A port is a number, or the name of one of the container's ports. */
static int64_t probe_port(struct kctr *c, const json_t *port)
{
    if (json_is_integer(port))
        return json_integer_value(port);
    const char *name = json_string_value(port);
    int64_t n;
    size_t i;
    json_t *item;
    if (name && str_to_i64(str_c(name), 1, 65535, &n) == 0)
        return n;
    json_array_foreach (json_at(c->spec, "ports"), i, item) {
        if (name && strcmp(json_str_at(item, "name", ""), name) == 0)
            return json_int_at(item, "containerPort", 0);
    }
    return 0;
}

static void check_http(struct kprobe *p, const json_t *get)
{
    struct kctr *c = p->c;
    bool tls = strcmp(json_str_at(get, "scheme", "HTTP"), "HTTPS") == 0;
    const char *path = json_str_at(get, "path", "/");
    CLEANUP(free_charp)
    char *url = xasprintf(
        "%s://%s:%lld%s%s", tls ? "https" : "http", json_str_at(get, "host", c->pod->ip),
        (long long)probe_port(c, json_object_get(get, "port")), path[0] == '/' ? "" : "/", path);
    char *headers[17] = {0};
    size_t i;
    json_t *h;
    json_array_foreach (json_object_get(get, "httpHeaders"), i, h) {
        if (i < 16)
            headers[i] =
                xasprintf("%s: %s", json_str_at(h, "name", "X"), json_str_at(h, "value", ""));
    }
    struct http_request r = {.url = url,
                             .headers = (const char *const *)headers,
                             .max_body_bytes = 65536,
                             .connect_timeout_ms = (unsigned)p->timeout_ms,
                             .timeout_ms = (unsigned)p->timeout_ms,
                             .fresh_connection = true,
                             .on_done = http_answered,
                             .ctx = p};
    struct err e = {0};
    p->http = http_start(c->pod->k->http, &r, &e);
    for (i = 0; i < 16; i++)
        free(headers[i]);
    if (!p->http) {
        end_check(p);
        failed(p, e.msg);
    }
}

static void tcp_connected(uv_connect_t *req, int status)
{
    struct kprobe *p = req->handle->data;
    free(req);
    if (!p)
        return;
    end_check(p);
    if (status == 0)
        passed(p);
    else
        failed(p, uv_strerror(status));
}

static void check_tcp(struct kprobe *p, const json_t *socket)
{
    struct kctr *c = p->c;
    struct sockaddr_in to;
    const char *host = json_str_at(socket, "host", c->pod->ip);
    int r = uv_ip4_addr(host, (int)probe_port(c, json_object_get(socket, "port")), &to);
    uv_connect_t *req = xcalloc(1, sizeof *req);
    p->tcp = xcalloc(1, sizeof *p->tcp);
    uv_tcp_init(c->pod->k->cfg.loop, p->tcp);
    p->tcp->data = p;
    if (!r)
        r = uv_tcp_connect(req, p->tcp, (const struct sockaddr *)&to, tcp_connected);
    if (r) {
        free(req);
        end_check(p);
        failed(p, uv_strerror(r));
    }
}

static void exec_ended(uv_process_t *process, int64_t status, int sig)
{
    struct kprobe *p = process->data;
    uv_close((uv_handle_t *)process, handle_closed);
    if (!p)
        return;
    p->process = NULL;
    end_check(p);
    if (status == 0 && sig == 0) {
        passed(p);
        return;
    }
    char why[96];
    snprintf(why, sizeof why, "the command ended with %s %d", sig ? "signal" : "code",
             sig ? sig : (int)status);
    failed(p, why);
}

/* Runs in the container's environment (that of its main process) and working directory. */
static void check_exec(struct kprobe *p, const json_t *exec)
{
    struct kctr *c = p->c;
    json_t *env, *argv;
    CLEANUP(free_charp) char *file = NULL, *cwd = NULL;
    struct err e = {0};
    CLEANUP(json_decrefp) json_t *spec = json_copy(c->spec);
    json_object_set(spec, "command", json_object_get(exec, "command"));
    json_object_del(spec, "args");
    json_t *real = c->spec;
    c->spec = spec;
    int r = kenv_build(c, &env, &argv, &file, &cwd, &e);
    c->spec = real;
    if (r) {
        end_check(p);
        failed(p, e.msg);
        return;
    }
    size_t n_args = json_array_size(argv), n_env = json_array_size(env);
    char **args = xcalloc(n_args + 1, sizeof *args), **envp = xcalloc(n_env + 1, sizeof *envp);
    for (size_t i = 0; i < n_args; i++)
        args[i] = (char *)(uintptr_t)json_string_value(json_array_get(argv, i));
    for (size_t i = 0; i < n_env; i++)
        envp[i] = (char *)(uintptr_t)json_string_value(json_array_get(env, i));
    uv_process_options_t o = {.file = file,
                              .args = args,
                              .env = envp,
                              .cwd = cwd,
                              .flags = UV_PROCESS_DETACHED,
                              .exit_cb = exec_ended};
    p->process = xcalloc(1, sizeof *p->process);
    p->process->data = p;
    r = uv_spawn(c->pod->k->cfg.loop, p->process, &o);
    free(args);
    free(envp);
    json_decref(env);
    json_decref(argv);
    if (r) {
        uv_close((uv_handle_t *)p->process, handle_closed);
        p->process = NULL;
        end_check(p);
        failed(p, uv_strerror(r));
    }
}

static void check(uv_timer_t *t)
{
    struct kprobe *p = t->data;
    const json_t *how;
    if (p->http || p->tcp || p->process)
        return;
    uv_timer_start(p->limit, timed_out, p->timeout_ms, 0);
    if ((how = json_object_get(p->spec, "httpGet")))
        check_http(p, how);
    else if ((how = json_object_get(p->spec, "tcpSocket")) ||
             (how = json_object_get(p->spec, "grpc")))
        check_tcp(p, how);
    else if ((how = json_object_get(p->spec, "exec")))
        check_exec(p, how);
}

static uint64_t seconds_ms(const json_t *spec, const char *member, int64_t dflt)
{
    int64_t s = json_int_at(spec, member, dflt);
    return (uint64_t)(s < 0 ? 0 : s > 86400 ? 86400 : s) * 1000;
}

static void start_one(struct kctr *c, enum kprobe_kind kind)
{
    if (!kctr_has_probe(c, kind) || c->probes[kind])
        return;
    struct kprobe *p = xcalloc(1, sizeof *p);
    const json_t *spec = json_object_get(c->spec, probe_member[kind]);
    uint64_t period = seconds_ms(spec, "periodSeconds", 10),
             timeout = seconds_ms(spec, "timeoutSeconds", 1);
    *p = (struct kprobe){.c = c,
                         .kind = kind,
                         .spec = spec,
                         .period_ms = period ? period : 1000,
                         .timeout_ms = timeout ? timeout : 1000,
                         .success_threshold = json_int_at(spec, "successThreshold", 1),
                         .failure_threshold = json_int_at(spec, "failureThreshold", 3)};
    p->next = kubelet_timer(c->pod->k, p);
    p->limit = kubelet_timer(c->pod->k, p);
    uv_timer_start(p->next, check, seconds_ms(spec, "initialDelaySeconds", 0), p->period_ms);
    c->probes[kind] = p;
}

void kprobe_start_all(struct kctr *c)
{
    if (kctr_has_probe(c, PROBE_STARTUP) && !c->started) {
        start_one(c, PROBE_STARTUP);
        return;
    }
    start_one(c, PROBE_LIVENESS);
    start_one(c, PROBE_READINESS);
}

static void probe_free(struct kprobe *p)
{
    end_check(p);
    kubelet_timer_free(p->next);
    kubelet_timer_free(p->limit);
    free(p);
}

void kprobe_stop_all(struct kctr *c)
{
    for (int i = 0; i < PROBE_KINDS; i++) {
        if (c->probes[i])
            probe_free(c->probes[i]);
        c->probes[i] = NULL;
    }
}
