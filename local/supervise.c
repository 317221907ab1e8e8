#include "local/supervise.h"

#include "lib/base/clock.h"
#include "lib/base/conf.h"
#include "lib/base/log.h"
#include "local/kubelet_records.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#define BACKOFF_MIN_MS 100
#define BACKOFF_MAX_MS 5000
#define HEALTHY_NS     (10 * NS_PER_S)

struct supervise_options {
    const char *data;
    uint64_t grace_s;
};

static const struct conf_opt options[] = {
    {"--data", NULL, CONF_STR, CONF(struct supervise_options, data), "", 0, 0, "data folder",
     "DIR"},
    {"--grace", NULL, CONF_U64, CONF(struct supervise_options, grace_s), "15", 0, 86400,
     "longest that ending may take before processes are killed", "SECONDS"},
    {0}};
static const struct conf_prog prog = {
    "baton-local supervise",
    "Runs baton-local and runs it again when it dies; `baton up` starts this.",
    "--data DIR [--grace SECONDS] -- ARGS…", options};
static const struct conf_prog cleanup_prog = {
    "baton-local cleanup", "Ends what is left of a data folder's processes; `baton down` uses it.",
    "--data DIR", options};

struct supervisor {
    struct supervise_options opt;
    char **args;
    pid_t child;
    int signals;
    uint64_t started_ns, backoff_ms, kill_at_ns;
    bool ending;
};

/* Waits ms for it: somebody may only be looking whether it is held, or be about to end. */
static int hold_lock(const char *data, unsigned ms, struct err *e)
{
    int r = dir_make(data, 0700, e);
    if (r)
        return r;
    CLEANUP(free_charp) char *path = xasprintf("%s/supervisor.lock", data);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0)
        return err_set(e, errno, "can't open %s: %s", path, strerror(errno));
    for (unsigned waited = 0; flock(fd, LOCK_EX | LOCK_NB); waited += 25) {
        if (waited < ms) {
            poll(NULL, 0, 25);
            continue;
        }
        close(fd);
        return err_set(e, EALREADY, "a supervisor runs already for %s", data);
    }
    return fd; /* kept until the process ends */
}

static int write_record(const char *data)
{
    struct proc_id self = {.pid = getpid()};
    CLEANUP(free_charp) char *path = xasprintf("%s/supervisor.json", data);
    if (proc_start_time(self.pid, &self.start))
        return -ESRCH;
    CLEANUP(json_decrefp)
    json_t *o = json_pack("{s:i, s:I}", "pid", (int)self.pid, "start", (json_int_t)self.start);
    return file_replace_json(path, o);
}

static void start_child(struct supervisor *s)
{
    pid_t parent = getpid();
    s->started_ns = clock_mono_ns();
    s->child = fork();
    if (s->child == 0) {
        sigset_t none;
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(1);
        execv("/proc/self/exe", s->args);
        _exit(127);
    }
    if (s->child < 0)
        log_error("can't start baton-local", LS("error", strerror(errno)));
    else
        log_info("baton-local started", LI("pid", s->child));
}

static void child_ended(struct supervisor *s, int status)
{
    bool sig = WIFSIGNALED(status);
    s->child = -1;
    if (s->ending)
        return;
    if (clock_mono_ns() - s->started_ns > HEALTHY_NS)
        s->backoff_ms = BACKOFF_MIN_MS;
    log_warn("baton-local ended; starting it again", LI("code", sig ? 0 : WEXITSTATUS(status)),
             LI("signal", sig ? WTERMSIG(status) : 0), LI("after_ms", s->backoff_ms));
}

static void told_to_end(struct supervisor *s)
{
    bool second = s->ending;
    s->ending = true;
    s->kill_at_ns = clock_mono_ns() + (second ? 0 : s->opt.grace_s * NS_PER_S);
    if (s->child > 0)
        kill(s->child, second ? SIGKILL : SIGTERM);
}

static void reap(struct supervisor *s)
{
    int status;
    pid_t pid;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        if (pid == s->child)
            child_ended(s, status);
    }
}

/* Sleeps until a signal or the time given. */
static void wait_signal(struct supervisor *s, uint64_t ms)
{
    struct pollfd p = {.fd = s->signals, .events = POLLIN};
    struct signalfd_siginfo info;
    if (poll(&p, 1, (int)ms) <= 0 || read(s->signals, &info, sizeof info) != sizeof info)
        return;
    if (info.ssi_signo == SIGTERM || info.ssi_signo == SIGINT)
        told_to_end(s);
}

static void run(struct supervisor *s)
{
    while (!s->ending) {
        start_child(s);
        while (s->child > 0 && !s->ending) {
            wait_signal(s, 1000);
            reap(s);
        }
        uint64_t until = clock_mono_ns() + s->backoff_ms * NS_PER_MS;
        while (!s->ending && clock_mono_ns() < until)
            wait_signal(s, (until - clock_mono_ns()) / NS_PER_MS + 1);
        s->backoff_ms = s->backoff_ms * 2 < BACKOFF_MAX_MS ? s->backoff_ms * 2 : BACKOFF_MAX_MS;
    }
    while (s->child > 0) {
        if (clock_mono_ns() > s->kill_at_ns)
            kill(s->child, SIGKILL);
        wait_signal(s, 50);
        reap(s);
    }
}

static char **child_args(int argc, char **argv, int first)
{
    char **v = xcalloc((size_t)(argc - first) + 2, sizeof *v);
    size_t n = 0;
    v[n++] = xstrdup("baton-local");
    for (int i = first; i < argc; i++)
        v[n++] = argv[i];
    return v;
}

static int parse(const struct conf_prog *p, int argc, char **argv, struct supervise_options *opt,
                 int *first)
{
    struct err e = {0};
    int r = conf_parse(p, argc, argv, opt, first, &e);
    if (r == 0 && !*opt->data)
        r = err_set(&e, EINVAL, "--data must name the data folder");
    if (r < 0)
        fprintf(stderr, "%s: %s\n", p->name, e.msg);
    return r;
}

int supervise_main(int argc, char **argv)
{
    struct supervisor s = {.backoff_ms = BACKOFF_MIN_MS, .child = -1};
    struct err e = {0};
    int first, r = parse(&prog, argc, argv, &s.opt, &first);
    if (r)
        return r > 0 ? 0 : 2;
    log_init("baton-supervise", "json", LOG_INFO);
    if (hold_lock(s.opt.data, 500, &e) < 0 || write_record(s.opt.data)) {
        log_error("the supervisor can't start", LERR(&e));
        return 1;
    }
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGCHLD);
    sigprocmask(SIG_BLOCK, &set, NULL);
    signal(SIGHUP, SIG_IGN);
    s.signals = signalfd(-1, &set, SFD_CLOEXEC);
    s.args = child_args(argc, argv, first);
    run(&s);
    int left = records_end_all(s.opt.data, 1000);
    log_info("everything has ended", LI("killed", left));
    CLEANUP(free_charp) char *path = xasprintf("%s/supervisor.json", s.opt.data);
    unlink(path);
    return 0;
}

int cleanup_main(int argc, char **argv)
{
    struct supervise_options opt = {0};
    struct err e = {0};
    int first, r = parse(&cleanup_prog, argc, argv, &opt, &first);
    if (r)
        return r > 0 ? 0 : 2;
    int lock = hold_lock(opt.data, 5000, &e); /* `baton down` has just seen the supervisor end */
    if (lock < 0) {
        fprintf(stderr, "baton-local cleanup: %s; `baton down` ends it\n", e.msg);
        return 1;
    }
    printf("%d\n", records_end_all(opt.data, (unsigned)opt.grace_s * 1000));
    return 0;
}
