#include "cli/common.h"
#include "cli/embed.h"
#include "cli/verbs.h"
#include "lib/base/clock.h"
#include "lib/base/conf.h"
#include "lib/kube/yaml.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const struct conf_opt options[] = {
    {"--data", "BATON_DATA", CONF_STR, CONF(struct up_options, data), "", 0, 0,
     "data folder (default: $XDG_STATE_HOME/baton or ~/.local/state/baton)", "DIR"},
    {"--model", NULL, CONF_STR, CONF(struct up_options, model), "", 0, 0,
     "GGUF file to serve, one prefill and one decode worker; more files may follow", "FILE"},
    {"--detach", NULL, CONF_BOOL, CONF(struct up_options, detach), NULL, 0, 0,
     "return when everything is ready (end it with `baton down`)", NULL},
    {"--port", "BATON_ROUTER_PORT", CONF_U64, CONF(struct up_options, router_port), "0", 0, 65535,
     "port of the OpenAI API on 127.0.0.1 (default: the last one used, else 8080)", "PORT"},
    {"--api-port", NULL, CONF_U64, CONF(struct up_options, api_port), "0", 0, 65535,
     "port of the Kubernetes API (default: the last one used, else any)", "PORT"},
    {"--models-dir", NULL, CONF_STR, CONF(struct up_options, models_dir), "", 0, 0,
     "folder behind /var/lib/baton/models (default: ~/.cache/baton/models)", "DIR"},
    {"--wait", NULL, CONF_U64, CONF(struct up_options, wait_seconds), "60", 1, 86400,
     "longest to wait until it is ready", "SECONDS"},
    {0}};
static const struct conf_prog prog = {"baton up",
                                      "Starts a Baton cluster on this machine: a small Kubernetes "
                                      "API, controller, router and agent. Data stays in the\n"
                                      "data folder; running it again continues where it was.",
                                      "[options] [FILE…]", options};

static const struct kube_kind kind_crds = {"apiextensions.k8s.io/v1", "CustomResourceDefinition",
                                           "customresourcedefinitions", false, NULL};

static bool port_free(uint64_t port)
{
    CLEANUP(close_fdp) int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int on = 1;
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons((uint16_t)port),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    return fd >= 0 && bind(fd, (struct sockaddr *)&a, sizeof a) == 0;
}

/* Does a router of this very cluster run on (its supervisor was killed)? It will be adopted, port
 * and all. */
static bool own_router_lives(const struct cluster *c)
{
    glob_t g;
    bool lives = false;
    CLEANUP(free_charp) char *pattern = xasprintf("%s/pods/*/c/router/*/run.json", c->dir);
    if (glob(pattern, GLOB_NOSORT, NULL, &g))
        return false;
    for (size_t i = 0; i < g.gl_pathc; i++) {
        char exe[4096];
        CLEANUP(json_decrefp) json_t *run = json_parse_file(g.gl_pathv[i], 65536, NULL);
        CLEANUP(free_charp)
        char *link = xasprintf("/proc/%d/exe", (int)json_int_at(run, "main.pid", 0));
        ssize_t n = readlink(link, exe, sizeof exe - 1);
        exe[n > 0 ? n : 0] = 0;
        lives |= strstr(exe, "/baton-router") != NULL;
    }
    globfree(&g);
    return lives;
}

/* A folder with other people's files in it is not taken over. */
static int check_folder(const struct cluster *c, struct err *e)
{
    DIR *d = opendir(c->dir);
    struct dirent *ent;
    bool foreign = false;
    while (d && !c->known && (ent = readdir(d)))
        foreign |= ent->d_name[0] != '.';
    if (d)
        closedir(d);
    if (foreign)
        return err_set(
            e, EEXIST,
            "%s is not empty and holds no cluster of Baton: choose another folder with --data",
            c->dir);
    return cli_mkdirs(c->dir, e);
}

static int write_static_pods(const struct cluster *c, struct err *e)
{
    static const char *const names[] = {"agent", "controller", "router"};
    CLEANUP(free_charp) char *dir = xasprintf("%s/static", c->dir);
    int r = cli_mkdirs(dir, e);
    for (size_t i = 0; !r && i < sizeof names / sizeof *names; i++) {
        CLEANUP(free_charp) char *path = xasprintf("%s/baton-%s.json", dir, names[i]);
        CLEANUP(free_charp) char *fresh = xasprintf("%s/.%s", dir, names[i]);
        CLEANUP(json_decrefp) json_t *pod = static_pod(c, names[i]);
        CLEANUP(json_decrefp) json_t *old = json_parse_file(path, 1 << 20, NULL);
        if (old && json_equal(old, pod))
            continue;
        if (json_dump_file(pod, fresh, JSON_INDENT(1)) || rename(fresh, path))
            r = err_set(e, EIO, "can't write %s", path);
    }
    return r;
}

/* The log of everything that has no pod of its own; one older file is kept. */
static int open_log(const struct cluster *c, struct err *e)
{
    struct stat st;
    CLEANUP(free_charp) char *path = xasprintf("%s/baton-local.log", c->dir);
    CLEANUP(free_charp) char *old = xasprintf("%s.1", path);
    if (stat(path, &st) == 0 && st.st_size > 4 << 20)
        rename(path, old);
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    return fd >= 0 ? fd : err_set(e, errno, "can't write %s: %s", path, strerror(errno));
}

_Noreturn static void run_supervisor(const struct cluster *c, const struct up_options *o, int log)
{
    CLEANUP(free_charp) char *program = cli_program("baton-local");
    CLEANUP(free_charp) char *port = xasprintf("%llu", (unsigned long long)o->api_port);
    CLEANUP(free_charp)
    char *models = o->models_dir && *o->models_dir ? xstrdup(o->models_dir) : cli_models_dir();
    char *args[] = {"baton-local", "supervise", "--data", c->dir,         "--",   "serve", "--data",
                    c->dir,        "--port",    port,     "--models-dir", models, NULL};
    setsid();
    int null = open("/dev/null", O_RDONLY);
    if (null < 0 || dup2(null, 0) < 0 || dup2(log, 1) < 0 || dup2(log, 2) < 0)
        _exit(126);
    if (chdir("/"))
        _exit(126);
    execv(program, args);
    _exit(127);
}

static int spawn_supervisor(struct cluster *c, const struct up_options *o, struct err *e)
{
    CLEANUP(free_charp) char *program = cli_program("baton-local");
    if (access(program, X_OK))
        return err_set(e, errno,
                       "%s is missing: Baton's programs must lie in one folder (make build)",
                       program);
    CLEANUP(close_fdp) int log = open_log(c, e);
    if (log < 0)
        return log;
    CLEANUP(free_charp) char *stale = xasprintf("%s/supervisor.json", c->dir);
    unlink(stale);
    pid_t pid = fork();
    if (pid < 0)
        return err_set(e, errno, "can't start a process: %s", strerror(errno));
    if (pid == 0) { /* twice, so that nobody has to wait for the supervisor */
        if (fork() == 0)
            run_supervisor(c, o, log);
        _exit(0);
    }
    waitpid(pid, NULL, 0);
    return 0;
}

/* The last line of the log that says why. */
static void add_log_hint(const struct cluster *c, struct err *e)
{
    char line[2048], last[2048] = "";
    CLEANUP(free_charp) char *path = xasprintf("%s/baton-local.log", c->dir);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f)) {
        if (strncmp(line, "baton-local: ", 13) == 0)
            snprintf(last, sizeof last, "%s", line + 13);
    }
    if (f)
        fclose(f);
    last[strcspn(last, "\n")] = 0;
    struct err was = *e;
    err_set(e, was.code, "%.200s%s%.200s (log: %.90s)", was.msg, *last ? ": " : "", last, path);
}

static int wait_api(struct cluster *c, uint64_t deadline_ns, struct kube_client **out,
                    struct err *e)
{
    static const struct kube_kind namespaces = {"v1", "Namespace", "namespaces", false, NULL};
    struct err why = {0};
    while (clock_mono_ns() < deadline_ns) {
        struct kube_client *k;
        progress("waiting for the Kubernetes API");
        if (access(c->kubeconfig, R_OK) == 0 && cluster_client(c, &k, &why) == 0) {
            struct kube_call call = {.verb = KUBE_LIST, .kind = &namespaces, .timeout_ms = 2000};
            struct kube_result r;
            int bad = kube_run(k, &call, &r);
            why = r.err;
            kube_result_fini(&r);
            if (!bad) {
                *out = k;
                return 0;
            }
            kube_client_free(k);
        }
        poll(NULL, 0, 50);
    }
    err_set(e, ETIMEDOUT, "the Kubernetes API did not come up%s%.200s", why.code ? ": " : "",
            why.msg);
    add_log_hint(c, e);
    return -e->code;
}

static int apply(struct kube_client *k, const struct kube_kind *kind, const json_t *o,
                 struct err *e)
{
    const char *name = json_str_at(o, "metadata.name", "");
    struct kube_call call = {
        .verb = KUBE_APPLY,
        .kind = kind,
        .name = name,
        .body = o,
        .field_manager = CLI_MANAGER,
        .force = true,
        .namespace = kind->namespaced ? json_str_at(o, "metadata.namespace", "default") : NULL};
    struct kube_result r;
    int bad = kube_run(k, &call, &r);
    if (bad) {
        *e = r.err;
        err_wrap(e, "can't apply %s %s", kind->kind, name);
    }
    kube_result_fini(&r);
    return bad;
}

static bool established(struct kube_client *k, const char *name)
{
    struct kube_call call = {.verb = KUBE_GET, .kind = &kind_crds, .name = name};
    struct kube_result r;
    bool yes = false;
    size_t i;
    json_t *c;
    if (kube_run(k, &call, &r) == 0) {
        json_array_foreach (json_at(r.object, "status.conditions"), i, c)
            yes |= strcmp(json_str_at(c, "type", ""), "Established") == 0 &&
                   strcmp(json_str_at(c, "status", ""), "True") == 0;
    }
    kube_result_fini(&r);
    return yes;
}

static int install_crds(struct kube_client *k, uint64_t deadline_ns, struct err *e)
{
    const char *const texts[] = {embed_crd_infd, embed_crd_wp, embed_crd_ninv};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        CLEANUP(json_decrefp) json_t *o = yaml_parse(str_c(texts[i]), 4 << 20, e);
        if (!o)
            return err_wrap(e, "an embedded manifest");
        const char *name = json_str_at(o, "metadata.name", "");
        progress("installing %s", name);
        int r = apply(k, &kind_crds, o, e);
        if (r)
            return r;
        while (!established(k, name)) {
            if (clock_mono_ns() > deadline_ns)
                return err_set(e, ETIMEDOUT, "%s was not established in time", name);
            poll(NULL, 0, 50);
        }
    }
    return 0;
}

/* "": every system pod is ready; else the name of one that isn't, and why. */
static void unready_part(struct kube_client *k, char *out, size_t n)
{
    static const char *const names[] = {"baton-agent-local", "baton-controller-local",
                                        "baton-router-local"};
    out[0] = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct kube_call call = {.verb = KUBE_GET,
                                 .kind = &kube_pods,
                                 .namespace = SYSTEM_NAMESPACE,
                                 .name = names[i],
                                 .timeout_ms = 2000};
        struct kube_result r;
        bool ready = false;
        size_t j;
        json_t *c;
        if (kube_run(k, &call, &r) == 0) {
            json_array_foreach (json_at(r.object, "status.conditions"), j, c)
                ready |= strcmp(json_str_at(c, "type", ""), "Ready") == 0 &&
                         strcmp(json_str_at(c, "status", ""), "True") == 0;
        }
        const char *why =
            json_str_at(r.object, "status.containerStatuses.0.state.waiting.reason", "");
        const char *last =
            json_str_at(r.object, "status.containerStatuses.0.lastState.terminated.message", "");
        if (!ready)
            snprintf(out, n, "%s%s%s%s%s", names[i], *why ? ": " : "", why, *last ? ": " : "",
                     last);
        kube_result_fini(&r);
        if (!ready)
            return;
    }
}

static int wait_parts(struct cluster *c, struct kube_client *k, uint64_t deadline_ns, struct err *e)
{
    char unready[700];
    for (;;) {
        unready_part(k, unready, sizeof unready);
        if (!*unready)
            return 0;
        progress("waiting for %.200s", unready);
        if (clock_mono_ns() > deadline_ns)
            return err_set(e, ETIMEDOUT,
                           "%.300s is not ready. `kubectl --kubeconfig %.90s -n %s logs` tells "
                           "more; `baton down` ends it",
                           unready, c->kubeconfig, SYSTEM_NAMESPACE);
        poll(NULL, 0, 100);
    }
}

int up_start(struct cluster *c, const struct up_options *o, struct err *e)
{
    uint64_t deadline = clock_mono_ns() + o->wait_seconds * NS_PER_S;
    bool running = c->supervisor > 0;
    if (running && o->router_port && o->router_port != c->router_port)
        return err_set(
            e, EBUSY, "this cluster runs already, with the router on port %llu: `baton down` first",
            (unsigned long long)c->router_port);
    if (!running) {
        int r = check_folder(c, e);
        if (r)
            return r;
        c->router_port = o->router_port ? o->router_port : c->router_port;
        if (!port_free(c->router_port) && !own_router_lives(c))
            return err_set(e, EADDRINUSE,
                           "port %llu of 127.0.0.1 is taken by another program: choose one with "
                           "--port",
                           (unsigned long long)c->router_port);
        if (o->api_port && !port_free(o->api_port))
            return err_set(e, EADDRINUSE,
                           "port %llu of 127.0.0.1 is taken by another program: choose one with "
                           "--api-port",
                           (unsigned long long)o->api_port);
        if ((r = cluster_remember(c, e)) || (r = spawn_supervisor(c, o, e)))
            return r;
    }
    struct kube_client *k;
    int r = wait_api(c, deadline, &k, e);
    if (r)
        return r;
    if (!(r = install_crds(k, deadline, e)) && !(r = write_static_pods(c, e)))
        r = wait_parts(c, k, deadline, e);
    kube_client_free(k);
    if (!r)
        progress_done("%s  router http://127.0.0.1:%llu  kubeconfig %s",
                      running ? "already running:" : "ready:", (unsigned long long)c->router_port,
                      c->kubeconfig);
    return r;
}

/* "SmolLM2-135M-Instruct.Q4_1.gguf" -> "smollm2-135m-instruct". */
static void name_of(const char *file, char out[64])
{
    const char *slash = strrchr(file, '/'), *s = slash ? slash + 1 : file;
    size_t n = 0;
    for (; *s && *s != '.' && n < 40; s++) {
        bool ok = isalnum((unsigned char)*s);
        if (ok || (n && out[n - 1] != '-'))
            out[n++] = ok ? (char)tolower((unsigned char)*s) : '-';
    }
    while (n && out[n - 1] == '-')
        n--;
    out[n] = 0;
    if (!n || !isalpha((unsigned char)out[0]))
        snprintf(out, 64, "model");
}

int up_apply_model(struct kube_client *k, const char *file, const char *name, char out[64],
                   struct err *e)
{
    CLEANUP(json_decrefp) json_t *o = yaml_parse(str_c(embed_sample_chat), 1 << 20, e);
    if (!o)
        return err_wrap(e, "the embedded sample");
    if (file) {
        char *real = realpath(file, NULL);
        if (!real)
            return err_set(e, errno, "no model file %s: %s", file, strerror(errno));
        name_of(file, out);
        json_t *model = json_at(o, "spec.model");
        json_object_set_new(model, "name", json_string(out));
        json_object_set_new(model, "source", json_sprintf("file://%s", real));
        json_object_del(model, "sha256");
        free(real);
        json_object_set_new(json_at(o, "metadata"), "name", json_string(name ? name : out));
    }
    snprintf(out, 64, "%s", json_str_at(o, "metadata.name", ""));
    return apply(k, &kube_infds, o, e);
}

static int apply_models(const struct cluster *c, const struct up_options *o, char **more,
                        struct err *e)
{
    struct kube_client *k;
    int r = *o->model || *more ? cluster_client(c, &k, e) : 1;
    if (r)
        return r > 0 ? 0 : r;
    char name[64];
    if (*o->model && !(r = up_apply_model(k, o->model, NULL, name, e)))
        progress_done("serving %s as the deployment %s", o->model, name);
    for (; !r && *more; more++) {
        if (!(r = up_apply_model(k, *more, NULL, name, e)))
            progress_done("serving %s as the deployment %s", *more, name);
    }
    kube_client_free(k);
    return r;
}

/* In the foreground: until Ctrl-C, or until somebody else ends the cluster. */
static int stay(struct cluster *c, struct err *e)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigprocmask(SIG_BLOCK, &set, NULL);
    fprintf(stderr, "press Ctrl-C to end it\n");
    for (;;) {
        struct timespec second = {1, 0};
        int sig = sigtimedwait(&set, NULL, &second);
        if (sig > 0) {
            cluster_refresh(c);
            return down_cluster(c, 15, e);
        }
        cluster_refresh(c);
        if (!c->supervisor)
            return 0;
    }
}

int up_main(int argc, char **argv)
{
    static const char *const flags[] = {"--detach", "--help", "--version", NULL};
    struct up_options o = {0};
    struct cluster c;
    struct err e = {0};
    int first;
    cli_options_first(argc, argv, flags);
    int r = conf_parse(&prog, argc, argv, &o, &first, &e);
    if (r > 0)
        return 0;
    if (r) {
        cli_fail("up", &e);
        return 2;
    }
    if ((r = cluster_find(o.data, &c, &e)))
        return cli_fail("up", &e);
    if (!(r = up_start(&c, &o, &e)) && !(r = apply_models(&c, &o, argv + first, &e)) && !o.detach)
        r = stay(&c, &e);
    if (r)
        cli_fail("up", &e);
    cluster_fini(&c);
    return r ? 1 : 0;
}
