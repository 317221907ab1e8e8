#include "local/kubelet_shim.h"

#include "lib/base/clock.h"
#include "local/kubelet_log.h"
#include "local/kubelet_proc.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef CLOSE_RANGE_CLOEXEC
#define CLOSE_RANGE_CLOEXEC (1U << 2)
#endif
#define SPEC_MAX    (4 << 20)
#define MESSAGE_MAX 1024

struct shim {
    json_t *spec;
    struct klog log;
    int signals, out[2]; /* read ends of stdout and stderr; -1 once at their end */
    struct proc_id self, main;
    uint64_t started_ns;
    int status; /* wait status of the main process */
    bool ended;
    char last_line[MESSAGE_MAX]; /* of stderr: the crash record's words */
};

static json_t *read_spec(void)
{
    struct buf b;
    buf_init(&b, SPEC_MAX);
    char piece[16384];
    ssize_t n;
    while ((n = read(STDIN_FILENO, piece, sizeof piece)) > 0) {
        if (buf_append(&b, piece, (size_t)n))
            break;
    }
    json_t *o = json_parse(buf_view(&b), SPEC_MAX, 0, NULL);
    buf_fini(&b);
    return o;
}

static void write_exit(struct shim *s, int code, int sig, const char *reason, const char *message)
{
    CLEANUP(json_decrefp)
    json_t *o = json_pack("{s:i, s:i, s:s, s:s%, s:I, s:I}", "code", code, "signal", sig, "reason",
                          reason, "message", message, strlen(message), "started",
                          (json_int_t)s->started_ns, "finished", (json_int_t)clock_wall_ns());
    if (!o) /* the message was not UTF-8 */
        o = json_pack("{s:i, s:i, s:s, s:s, s:I, s:I}", "code", code, "signal", sig, "reason",
                      reason, "message", "", "started", (json_int_t)s->started_ns, "finished",
                      (json_int_t)clock_wall_ns());
    if (file_replace_json("exit.json", o))
        _exit(1);
}

static char **string_array(const json_t *list)
{
    size_t n = json_array_size(list);
    char **v = xcalloc(n + 1, sizeof *v);
    for (size_t i = 0; i < n; i++)
        v[i] = xstrdup(json_string_value(json_array_get(list, i)));
    return v;
}

/* In the child. What goes wrong is told through `failure` (closed by a successful exec). */
_Noreturn static void run_command(struct shim *s, const int out[2], int failure)
{
    char **argv = string_array(json_at(s->spec, "argv"));
    char **envp = string_array(json_at(s->spec, "env"));
    const char *file = json_str_at(s->spec, "file", argv[0]);
    const char *cwd = json_str_at(s->spec, "cwd", "/");
    sigset_t none;
    sigemptyset(&none);
    setsid();
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int null = open("/dev/null", O_RDWR);
    if (getppid() == 1 || null < 0 || dup2(null, 0) < 0 || dup2(out[0], 1) < 0 ||
        dup2(out[1], 2) < 0)
        _exit(127);
    close_range(SHIM_LOCK_FD, ~0U, CLOSE_RANGE_CLOEXEC);
    signal(SIGPIPE, SIG_DFL);
    signal(SIGHUP, SIG_DFL);
    signal(SIGINT, SIG_DFL);
    sigprocmask(SIG_SETMASK, &none, NULL);
    int bad = chdir(cwd) ? -errno : 0;
    if (!bad)
        execve(file, argv, envp);
    char text[512];
    int n = snprintf(text, sizeof text, "%s %s: %s", bad ? "can't enter the folder" : "can't run",
                     bad ? cwd : file, strerror(errno));
    if (write(failure, text, (size_t)n) < 0)
        _exit(127);
    _exit(127);
}

/* Starts the command; false when it could not be started (exit.json is then written). */
static bool start_command(struct shim *s)
{
    int a[2], b[2], failure[2];
    if (pipe2(a, O_CLOEXEC) || pipe2(b, O_CLOEXEC) || pipe2(failure, O_CLOEXEC)) {
        write_exit(s, 128, 0, "StartError", "no file descriptors are left");
        return false;
    }
    s->started_ns = clock_wall_ns();
    pid_t pid = fork();
    if (pid == 0)
        run_command(s, (int[]){a[1], b[1]}, failure[1]);
    close(a[1]);
    close(b[1]);
    close(failure[1]);
    s->out[0] = a[0];
    s->out[1] = b[0];
    char why[512] = "can't start another process";
    ssize_t n = pid < 0 ? (ssize_t)strlen(why) : read(failure[0], why, sizeof why - 1);
    close(failure[0]);
    if (n > 0) {
        why[n] = 0;
        waitpid(pid, NULL, 0);
        write_exit(s, 128, 0, "StartError", why);
        return false;
    }
    s->main.pid = pid;
    if (proc_start_time(pid, &s->main.start))
        s->main.start = 0; /* ended already: its exit is collected like any other */
    return true;
}

static void write_run(struct shim *s)
{
    CLEANUP(json_decrefp)
    json_t *o = json_pack("{s:{s:i, s:I}, s:{s:i, s:I}, s:I}", "shim", "pid", (int)s->self.pid,
                          "start", (json_int_t)s->self.start, "main", "pid", (int)s->main.pid,
                          "start", (json_int_t)s->main.start, "started", (json_int_t)s->started_ns);
    if (file_replace_json("run.json", o))
        _exit(1);
}

static void reap(struct shim *s)
{
    int status;
    pid_t pid;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        if (pid != s->main.pid)
            continue;
        s->status = status;
        s->ended = true;
        kill(-pid, SIGKILL); /* its session's foreground group; the rest falls to kill_rest() */
    }
}

/* Everything the command left: children reparent to this subreaper, one generation at a time. */
static void kill_rest(struct shim *s)
{
    for (int round = 0; round < 200; round++) {
        proc_kill_tree(s->self.pid);
        reap(s);
        if (waitpid(-1, NULL, WNOHANG) < 0 && errno == ECHILD)
            return;
        poll(NULL, 0, 5);
    }
}

static void keep_last_line(struct shim *s, struct str line)
{
    line = str_trim(line);
    if (!line.n)
        return;
    size_t n = line.n < sizeof s->last_line - 1 ? line.n : sizeof s->last_line - 1;
    memcpy(s->last_line, line.p, n);
    s->last_line[n] = 0;
}

/* One read of a pipe; false at its end. */
static bool copy_output(struct shim *s, int which)
{
    char piece[16384];
    ssize_t n = read(s->out[which], piece, sizeof piece);
    if (n < 0 && (errno == EINTR || errno == EAGAIN))
        return true;
    if (n <= 0) {
        klog_end(&s->log, which);
        close(s->out[which]);
        s->out[which] = -1;
        return false;
    }
    struct str text = {piece, (size_t)n};
    klog_write(&s->log, which, text);
    if (which == 1) {
        struct str t = str_trim(text);
        const char *nl = t.n ? memrchr(t.p, '\n', t.n) : NULL;
        keep_last_line(s, nl ? (struct str){nl + 1, (size_t)(t.p + t.n - nl - 1)} : t);
    }
    return true;
}

static void watch(struct shim *s)
{
    while (!s->ended) {
        struct pollfd p[3] = {{.fd = s->signals, .events = POLLIN},
                              {.fd = s->out[0], .events = POLLIN},
                              {.fd = s->out[1], .events = POLLIN}};
        if (poll(p, 3, -1) < 0 && errno != EINTR)
            return;
        for (int i = 0; i < 2; i++) {
            if (p[i + 1].revents)
                copy_output(s, i);
        }
        struct signalfd_siginfo info;
        if (p[0].revents && read(s->signals, &info, sizeof info) < 0)
            return;
        reap(s);
    }
}

/* What was in the pipes when the last writer died. A second bounds it: a writer outside our tree
 * can't exist for long. */
static void drain_output(struct shim *s)
{
    uint64_t deadline = clock_mono_ns() + NS_PER_S;
    for (int i = 0; i < 2; i++) {
        while (s->out[i] >= 0 && clock_mono_ns() < deadline) {
            struct pollfd p = {.fd = s->out[i], .events = POLLIN};
            if (poll(&p, 1, 100) > 0)
                copy_output(s, i);
        }
    }
}

static void shim_setup(struct shim *s)
{
    sigset_t set;
    sigfillset(&set);
    sigdelset(&set, SIGSEGV);
    sigdelset(&set, SIGABRT);
    sigprocmask(SIG_SETMASK, &set, NULL);
    s->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    close_range(SHIM_LOCK_FD + 1, (unsigned)s->signals - 1, 0);
    close_range((unsigned)s->signals + 1, ~0U, 0);
    fcntl(SHIM_LOCK_FD, F_SETFD, FD_CLOEXEC);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    prctl(PR_SET_NAME, "baton-shim");
    s->self.pid = getpid();
    if (proc_start_time(s->self.pid, &s->self.start))
        _exit(1);
}

int shim_main(void)
{
    struct shim s = {.out = {-1, -1}};
    shim_setup(&s);
    s.spec = read_spec();
    struct err e;
    if (!s.spec || json_array_size(json_at(s.spec, "argv")) == 0) {
        write_exit(&s, 128, 0, "StartError", "the container's description is not readable");
        return 1;
    }
    if (klog_open(&s.log, json_str_at(s.spec, "log", "log"),
                  (uint64_t)json_int_at(s.spec, "log_bytes", 10 << 20), &e)) {
        write_exit(&s, 128, 0, "StartError", e.msg);
        return 1;
    }
    if (!start_command(&s))
        return 1;
    write_run(&s);
    watch(&s);
    kill_rest(&s);
    drain_output(&s);
    klog_close(&s.log);
    bool by_signal = WIFSIGNALED(s.status);
    int sig = by_signal ? WTERMSIG(s.status) : 0;
    int code = by_signal ? 128 + sig : WEXITSTATUS(s.status);
    write_exit(&s, code, sig, code == 0 ? "Completed" : "Error", code == 0 ? "" : s.last_line);
    json_decref(s.spec);
    return 0;
}
