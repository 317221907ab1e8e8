#include "cli/common.h"
#include "cli/verbs.h"
#include "lib/base/clock.h"
#include "lib/base/conf.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

struct status_options {
    const char *data, *router;
    double every_s;
    bool once, json;
};

static const struct conf_opt options[] = {
    {"--data", "BATON_DATA", CONF_STR, CONF(struct status_options, data), "", 0, 0,
     "data folder (default: $XDG_STATE_HOME/baton or ~/.local/state/baton)", "DIR"},
    {"--router", NULL, CONF_STR, CONF(struct status_options, router), "", 0, 0,
     "the router's URL (default: this cluster's)", "URL"},
    {"--once", NULL, CONF_BOOL, CONF(struct status_options, once), NULL, 0, 0, "print once and end",
     NULL},
    {"--json", NULL, CONF_BOOL, CONF(struct status_options, json), NULL, 0, 0,
     "one JSON object a look", NULL},
    {"--every", NULL, CONF_F64, CONF(struct status_options, every_s), "1", 0.1, 3600,
     "time between looks", "SECONDS"},
    {0}};
static const struct conf_prog prog = {
    "baton status",
    "Shows deployments, workers by role, queues, KV use and tokens/s; live until Ctrl-C. Works "
    "with any cluster: set\n"
    "BATON_KUBECONFIG or KUBECONFIG and --router when it is not the one that `baton up` started.",
    "[options]", options};

static json_t *list(struct kube_client *k, const struct kube_kind *kind, struct err *e)
{
    struct kube_call call = {.verb = KUBE_LIST, .kind = kind, .timeout_ms = 5000};
    struct kube_result r;
    json_t *items = NULL;
    if (kube_run(k, &call, &r) == 0)
        items = json_incref(json_at(r.object, "items"));
    else if (!e->code)
        *e = r.err;
    kube_result_fini(&r);
    return items ? items : json_array();
}

static int get(const char *router, const char *path, const char *secret, struct buf *out)
{
    struct err e;
    struct http_client_config hc = {.user_agent = "baton-cli"};
    CLEANUP(free_charp) char *url = xasprintf("%s%s", router, path);
    CLEANUP(free_charp) char *auth = secret ? xasprintf("Authorization: Bearer %s", secret) : NULL;
    const char *headers[] = {auth, NULL};
    struct http_request r = {.url = url, .timeout_ms = 3000, .headers = headers};
    return http_run(&hc, &r, out, &e);
}

/* The deployment's peer secret: the router shows load to those who may read it. */
static char *peer_secret(struct kube_client *k, const char *ns, const char *infd)
{
    CLEANUP(free_charp) char *name = xasprintf("%s-peer", infd);
    struct kube_call call = {
        .verb = KUBE_GET, .kind = &kube_secrets, .namespace = ns, .name = name, .timeout_ms = 5000};
    struct kube_result r;
    struct kube_secret *s = NULL;
    if (kube_run(k, &call, &r) == 0)
        s = view_decode(&kube_secret_view, r.object, NULL);
    char *secret = s && s->secret ? xstrdup(s->secret) : NULL;
    free(s);
    kube_result_fini(&r);
    return secret;
}

/* New reference or NULL: what the router knows of a deployment's load. */
static json_t *load_of(struct kube_client *k, const char *router, const json_t *infd)
{
    struct buf text;
    const char *name = json_str_at(infd, "metadata.name", ""),
               *ns = json_str_at(infd, "metadata.namespace", "");
    CLEANUP(free_charp) char *secret = peer_secret(k, ns, name);
    CLEANUP(free_charp) char *path = xasprintf("/v1/internal/load?infd=%s&namespace=%s", name, ns);
    buf_init(&text, 8 << 20);
    json_t *o = get(router, path, secret, &text) == 200
                    ? json_parse(buf_view(&text), 8 << 20, 0, NULL)
                    : NULL;
    buf_fini(&text);
    return o;
}

/* Sum of a counter's series whose model label is `model` (all when NULL). */
static double counter(struct str text, const char *name, const char *model)
{
    double sum = 0;
    struct str line;
    CLEANUP(free_charp) char *label = model ? xasprintf("model=\"%s\"", model) : NULL;
    while (text.n) {
        text = str_cut(text, '\n', &line);
        size_t n = strlen(name);
        if (line.n <= n || strncmp(line.p, name, n) != 0 || (line.p[n] != '{' && line.p[n] != ' '))
            continue;
        const char *space = memrchr(line.p, ' ', line.n);
        if (label && !memmem(line.p, line.n, label, strlen(label)))
            continue;
        CLEANUP(free_charp)
        char *value = str_dup((struct str){space + 1, (size_t)(line.p + line.n - space - 1)});
        sum += strtod(value, NULL);
    }
    return sum;
}

/* The sample of one pod among those of all roles. */
static const json_t *sample_of(const json_t *load, const char *pod)
{
    const char *role;
    json_t *group, *sample;
    size_t i;
    json_object_foreach (json_object_get((json_t *)(uintptr_t)load, "roles"), role, group) {
        json_array_foreach (json_object_get(group, "samples"), i, sample) {
            if (strcmp(json_str_at(sample, "pod", ""), pod) == 0)
                return sample;
        }
    }
    return NULL;
}

static const char *label_of(const json_t *o, const char *key)
{
    const char *v = json_string_value(json_object_get(json_at(o, "metadata.labels"), key));
    return v ? v : "";
}

static const char *note_of(const json_t *o, const char *key)
{
    const char *v = json_string_value(json_object_get(json_at(o, "metadata.annotations"), key));
    return v ? v : "";
}

static const json_t *condition(const json_t *o, const char *type)
{
    size_t i;
    json_t *c;
    json_array_foreach (json_at(o, "status.conditions"), i, c) {
        if (strcmp(json_str_at(c, "type", ""), type) == 0)
            return c;
    }
    return NULL;
}

static bool is_true(const json_t *condition_object)
{
    return strcmp(json_str_at(condition_object, "status", ""), "True") == 0;
}

/* A worker as one flat object: the pod's word and the load that the router heard from it. */
static json_t *worker(const json_t *pod, const json_t *load)
{
    const json_t *gate = condition(pod, GATE_ROLE), *ready = condition(pod, "Ready");
    const char *epoch = note_of(pod, ANN_EPOCH);
    double used = json_num_at(load, "kv_blocks_used", 0), all = json_num_at(load, "kv_blocks", 0);
    const char *state = json_at(pod, "metadata.deletionTimestamp") ? "draining"
                        : is_true(ready)                           ? "ready"
                                         : json_str_at(gate, "reason", "starting");
    json_t *w = json_pack(
        "{s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:I, s:I, s:f, s:I}", "pod",
        json_str_at(pod, "metadata.name", ""), "role", label_of(pod, LABEL_ROLE), "actual_role",
        note_of(pod, ANN_ACTUAL_ROLE), "incarnation", note_of(pod, ANN_INCARNATION), "state", state,
        "message",
        is_true(ready) ? "" : json_str_at(gate, "message", json_str_at(ready, "message", "")),
        "crash", note_of(pod, ANN_LAST_CRASH), "running", json_int_at(load, "running", 0),
        "waiting", json_int_at(load, "waiting", 0), "kv_used", all > 0 ? used / all : 0.0,
        "restarts", (json_int_t)strtoll(epoch, NULL, 10));
    return w;
}

static json_t *deployment(const json_t *infd, const json_t *pods, const json_t *load)
{
    const char *name = json_str_at(infd, "metadata.name", ""),
               *ns = json_str_at(infd, "metadata.namespace", "");
    const json_t *ready = condition(infd, "Ready");
    json_t *workers = json_array();
    size_t i;
    json_t *pod;
    json_array_foreach (pods, i, pod) {
        if (strcmp(label_of(pod, LABEL_INFD), name) != 0 ||
            strcmp(json_str_at(pod, "metadata.namespace", ""), ns) != 0)
            continue;
        json_array_append_new(workers,
                              worker(pod, sample_of(load, json_str_at(pod, "metadata.name", ""))));
    }
    return json_pack("{s:s, s:s, s:s, s:b, s:s, s:s, s:I, s:f, s:o}", "name", name, "namespace", ns,
                     "model", json_str_at(infd, "spec.model.name", ""), "ready",
                     (int)is_true(ready), "reason", json_str_at(ready, "reason", ""), "message",
                     json_str_at(ready, "message", ""), "held",
                     json_int_at(load, "held_requests", 0), "arrival_tokens_per_s",
                     json_num_at(load, "arrival_tokens_per_s", 0), "workers", workers);
}

struct rates {
    uint64_t at_ns;
    json_t *counts; /* model -> [prompt, generated] */
};

/* tokens/s between this look and the one before. */
static void add_rates(json_t *all, struct str metrics, struct rates *before)
{
    uint64_t now = clock_mono_ns();
    double dt = before->at_ns ? (double)(now - before->at_ns) / 1e9 : 0;
    json_t *counts = json_object(), *d;
    size_t i;
    json_array_foreach (all, i, d) {
        const char *model = json_str_at(d, "model", "");
        double p = counter(metrics, "baton_router_prompt_tokens_total", model);
        double g = counter(metrics, "baton_router_generated_tokens_total", model);
        json_t *old = json_object_get(before->counts, model);
        double dp = old ? p - json_number_value(json_array_get(old, 0)) : 0;
        double dg = old ? g - json_number_value(json_array_get(old, 1)) : 0;
        json_object_set_new(d, "prompt_tokens_per_s", json_real(dt > 0 && dp > 0 ? dp / dt : 0));
        json_object_set_new(d, "generated_tokens_per_s", json_real(dt > 0 && dg > 0 ? dg / dt : 0));
        json_object_set_new(d, "generated_tokens", json_real(g));
        json_object_set_new(counts, model, json_pack("[f, f]", p, g));
    }
    json_decref(before->counts);
    *before = (struct rates){now, counts};
}

static json_t *look(struct kube_client *k, const char *router, struct rates *before, struct err *e)
{
    struct buf metrics;
    buf_init(&metrics, 8 << 20);
    CLEANUP(json_decrefp) json_t *infds = list(k, &kube_infds, e);
    CLEANUP(json_decrefp) json_t *pods = list(k, &kube_pods, e);
    bool up = get(router, "/metrics", NULL, &metrics) == 200;
    json_t *all = json_array(), *d;
    size_t i;
    json_array_foreach (infds, i, d) {
        CLEANUP(json_decrefp) json_t *load = up ? load_of(k, router, d) : NULL;
        json_array_append_new(all, deployment(d, pods, load));
    }
    add_rates(all, up ? buf_view(&metrics) : (struct str){0}, before);
    buf_fini(&metrics);
    return json_pack("{s:s, s:b, s:o}", "router", router, "router_up", (int)up, "deployments", all);
}

static void print_worker(FILE *f, const json_t *w)
{
    double kv = json_num_at(w, "kv_used", 0) * 100;
    const char *role = json_str_at(w, "role", ""), *actual = json_str_at(w, "actual_role", "");
    char roles[64];
    snprintf(roles, sizeof roles, !*actual || strcmp(role, actual) == 0 ? "%s" : "%s→%s",
             *actual && strcmp(role, actual) != 0 ? actual : role, role);
    fprintf(f, "    %-24s %-18s %-16s %4lld %5lld %6.1f%% %5lld", json_str_at(w, "pod", ""), roles,
            json_str_at(w, "state", ""), (long long)json_int_at(w, "running", 0),
            (long long)json_int_at(w, "waiting", 0), kv, (long long)json_int_at(w, "restarts", 0));
    const char *message = json_str_at(w, "message", "");
    fprintf(f, *message ? "  %.100s\033[K\n" : "%s\033[K\n", message);
}

static void print_view(FILE *f, const json_t *o, const struct err *e)
{
    size_t i, j;
    json_t *d, *w;
    char now[CLOCK_RFC3339_MAX];
    const json_t *all = json_object_get(o, "deployments");
    fprintf(f, "router %s %s   %s\033[K\n", json_str_at(o, "router", ""),
            json_bool_at(o, "router_up", false) ? "up" : "not reachable",
            clock_rfc3339(clock_wall_ns(), 0, now));
    if (e->code)
        fprintf(f, "Kubernetes API: %.200s\033[K\n", e->msg);
    if (json_array_size(all) == 0)
        fprintf(f, "no InferenceDeployment yet: kubectl apply -f manifests/samples/chat.yaml, or "
                   "baton run \"…\"\033[K\n");
    json_array_foreach (all, i, d) {
        bool ready = json_bool_at(d, "ready", false);
        fprintf(
            f,
            "\033[K\n%s/%s  model %s  %s%s%.100s  in %.1f tok/s  out %.1f tok/s  held %lld\033[K\n",
            json_str_at(d, "namespace", ""), json_str_at(d, "name", ""),
            json_str_at(d, "model", ""), ready ? "Ready" : "not ready", ready ? "" : ": ",
            ready ? "" : json_str_at(d, "message", ""), json_num_at(d, "prompt_tokens_per_s", 0),
            json_num_at(d, "generated_tokens_per_s", 0), (long long)json_int_at(d, "held", 0));
        fprintf(f, "    %-24s %-18s %-16s %4s %5s %7s %5s\033[K\n", "WORKER", "ROLE", "STATE",
                "RUN", "QUEUE", "KV", "EPOCH");
        json_array_foreach (json_object_get(d, "workers"), j, w)
            print_worker(f, w);
    }
}

/* Escape codes only reach terminals. */
static void show(const json_t *o, const struct status_options *opt, const struct err *e)
{
    bool terminal = isatty(STDOUT_FILENO);
    if (opt->json) {
        json_dumpf(o, stdout, JSON_COMPACT | JSON_REAL_PRECISION(6));
        putchar('\n');
    } else if (terminal && !opt->once) {
        fputs("\033[H", stdout);
        print_view(stdout, o, e);
        fputs("\033[J", stdout);
    } else {
        char *text = NULL;
        size_t n = 0;
        FILE *f = open_memstream(&text, &n);
        if (!f)
            return;
        print_view(f, o, e);
        fclose(f);
        for (char *p = text; p && *p; p++) {
            if (strncmp(p, "\033[K", 3) == 0)
                p += 2;
            else
                putchar(*p);
        }
        free(text);
    }
    fflush(stdout);
}

static int open_client(const struct cluster *c, struct kube_client **k, struct err *e)
{
    struct kube_config kc;
    const char *other = getenv("BATON_KUBECONFIG");
    bool own = (!other || !*other) && access(c->kubeconfig, R_OK) == 0;
    if (own)
        return cluster_client(c, k, e);
    if (!other || !*other)
        other = getenv("KUBECONFIG"); /* as kubectl, whose plugin this may be */
    if (!other || !*other)
        return err_set(e, ENOENT, "there is no cluster in %s: start one with `baton up`", c->dir);
    int r = kube_config_load(other, &kc, e);
    if (r)
        return r;
    r = kube_client_new(NULL, &kc, "baton-cli", k, e);
    kube_config_fini(&kc);
    return r;
}

static int view(const struct cluster *c, const struct status_options *o, struct err *e)
{
    struct kube_client *k;
    struct rates rates = {0};
    CLEANUP(free_charp)
    char *router = *o->router
                       ? xstrdup(o->router)
                       : xasprintf("http://127.0.0.1:%llu", (unsigned long long)c->router_port);
    int r = open_client(c, &k, e);
    if (r)
        return r;
    if (!o->once && !o->json && isatty(STDOUT_FILENO))
        fputs("\033[2J", stdout);
    if (o->once) { /* rates need two looks */
        struct err ignored = {0};
        json_decref(look(k, router, &rates, &ignored));
        poll(NULL, 0, 500);
    }
    for (;;) {
        *e = (struct err){0};
        CLEANUP(json_decrefp) json_t *now = look(k, router, &rates, e);
        show(now, o, e);
        if (o->once)
            break;
        poll(NULL, 0, (int)(o->every_s * 1000));
    }
    json_decref(rates.counts);
    kube_client_free(k);
    return -e->code;
}

int status_main(int argc, char **argv)
{
    struct status_options o = {0};
    struct cluster c;
    struct err e = {0};
    int first, r = conf_parse(&prog, argc, argv, &o, &first, &e);
    if (r > 0)
        return 0;
    if (!r && first < argc)
        r = err_set(&e, EINVAL, "unknown argument %s; see baton status --help", argv[first]);
    if (r) {
        cli_fail("status", &e);
        return 2;
    }
    if (cluster_find(o.data, &c, &e))
        return cli_fail("status", &e);
    r = view(&c, &o, &e);
    if (r)
        cli_fail("status", &e);
    cluster_fini(&c);
    return r ? 1 : 0;
}
