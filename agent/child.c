#include "agent/child.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef CLOSE_RANGE_CLOEXEC
#define CLOSE_RANGE_CLOEXEC (1U << 2)
#endif

struct child {
    struct child_config cfg;
    pid_t pid;
    uv_poll_t end, out, err;
    uv_timer_t limit;
    int fds[3]; /* pidfd, stdout, stderr */
    int handles, status;
    struct buf text;
    char last_line[1024];
    bool has_out, timed_out, abandoned;
};

extern char **environ;

static char **merged_env(const char *const *extra)
{
    size_t n = 0, m = 0;
    while (environ[n])
        n++;
    while (extra && extra[m])
        m++;
    char **v = xcalloc(n + m + 1, sizeof *v);
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        size_t key = strcspn(environ[i], "=") + 1;
        bool replaced = false;
        for (size_t j = 0; j < m; j++)
            replaced |= strncmp(environ[i], extra[j], key) == 0;
        if (!replaced)
            v[at++] = environ[i];
    }
    for (size_t j = 0; j < m; j++)
        v[at++] = (char *)(uintptr_t)extra[j];
    return v;
}

_Noreturn static void run(const struct child_config *cfg, int out, int err, pid_t parent,
                          char **env)
{
    sigset_t none;
    sigemptyset(&none);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(127);
    int null = open("/dev/null", O_RDONLY);
    if (null < 0 || dup2(null, 0) < 0 || (out >= 0 && dup2(out, 1) < 0) || dup2(err, 2) < 0)
        _exit(127);
    int above = (cfg->as_fd > cfg->also_as ? cfg->as_fd : cfg->also_as) + 1;
    int pass = cfg->pass_fd >= 0 ? fcntl(cfg->pass_fd, F_DUPFD, above) : -1;
    int also = cfg->also_as ? fcntl(cfg->also_fd, F_DUPFD, above) : -1;
    close_range(3, ~0U, CLOSE_RANGE_CLOEXEC);
    if ((pass >= 0 && dup2(pass, cfg->as_fd) < 0) || (also >= 0 && dup2(also, cfg->also_as) < 0))
        _exit(127);
    signal(SIGPIPE, SIG_DFL);
    sigprocmask(SIG_SETMASK, &none, NULL);
    execve(cfg->file, (char *const *)(uintptr_t)cfg->argv, env);
    dprintf(2, "can't run %s: %s\n", cfg->file, strerror(errno));
    _exit(127);
}

static void handle_closed(uv_handle_t *h)
{
    struct child *c = h->data;
    if (--c->handles > 0)
        return;
    for (int i = 0; i < 3; i++)
        close_fdp(&c->fds[i]);
    buf_fini(&c->text);
    free(c);
}

static void keep_last_line(struct child *c, struct str text)
{
    text = str_trim(text);
    const char *nl = text.n ? memrchr(text.p, '\n', text.n) : NULL;
    struct str line = nl ? (struct str){nl + 1, (size_t)(text.p + text.n - nl - 1)} : text;
    if (!line.n)
        return;
    size_t n = line.n < sizeof c->last_line - 1 ? line.n : sizeof c->last_line - 1;
    memcpy(c->last_line, line.p, n);
    c->last_line[n] = 0;
}

/* Reads what is there; false at the end of the pipe. */
static bool drain(struct child *c, int which)
{
    char piece[16384];
    ssize_t n;
    while ((n = read(c->fds[which], piece, sizeof piece)) > 0) {
        struct str text = {piece, (size_t)n};
        if (which == 1) {
            if (buf_str(&c->text, text))
                child_signal(c, SIGKILL); /* more than any answer needs */
        } else {
            keep_last_line(c, text);
            if (write(STDERR_FILENO, piece, (size_t)n) < 0)
                continue; /* our own log is gone: nothing to do about it here */
        }
    }
    return n < 0 && (errno == EAGAIN || errno == EINTR);
}

static void output(uv_poll_t *p, int status, int events)
{
    (void)status, (void)events;
    struct child *c = p->data;
    if (!drain(c, p == &c->out ? 1 : 2))
        uv_poll_stop(p);
}

static void close_all(struct child *c)
{
    uv_close((uv_handle_t *)&c->end, handle_closed);
    uv_close((uv_handle_t *)&c->err, handle_closed);
    uv_close((uv_handle_t *)&c->limit, handle_closed);
    if (c->has_out)
        uv_close((uv_handle_t *)&c->out, handle_closed);
}

static void ended(uv_poll_t *p, int status, int events)
{
    (void)status, (void)events;
    struct child *c = p->data;
    if (waitpid(c->pid, &c->status, WNOHANG) != c->pid)
        return;
    if (c->has_out)
        drain(c, 1);
    drain(c, 2);
    uv_poll_stop(&c->end);
    if (!c->abandoned)
        c->cfg.on_exit(c, c->cfg.ctx);
    close_all(c);
}

static void limit_hit(uv_timer_t *t)
{
    struct child *c = t->data;
    c->timed_out = true;
    child_signal(c, SIGKILL);
}

static void watch(struct child *c, uv_poll_t *p, int fd, uv_poll_cb fn)
{
    uv_poll_init(c->cfg.loop, p, fd);
    p->data = c;
    c->handles++;
    uv_poll_start(p, UV_READABLE, fn);
}

int child_start(const struct child_config *cfg, struct child **out, struct err *e)
{
    int a[2] = {-1, -1}, b[2] = {-1, -1};
    bool wants = cfg->max_stdout_bytes > 0;
    if ((wants && pipe2(a, O_CLOEXEC)) || pipe2(b, O_CLOEXEC)) {
        close_fdp(&a[0]);
        close_fdp(&a[1]);
        return err_set(e, errno, "no file descriptors are left: %s", strerror(errno));
    }
    char **env = merged_env(cfg->extra_env);
    pid_t parent = getpid(), pid = fork();
    if (pid == 0)
        run(cfg, a[1], b[1], parent, env);
    free(env);
    close_fdp(&a[1]);
    close_fdp(&b[1]);
    int pidfd = pid > 0 ? (int)syscall(SYS_pidfd_open, pid, 0) : -1;
    if (pidfd < 0) {
        int code = errno;
        if (pid > 0) {
            kill(pid, SIGKILL);
            waitpid(pid, NULL, 0);
        }
        close_fdp(&a[0]);
        close_fdp(&b[0]);
        return err_set(e, code, "can't start %s: %s", cfg->file, strerror(code));
    }
    struct child *c = xcalloc(1, sizeof *c);
    *c = (struct child){.cfg = *cfg, .pid = pid, .fds = {pidfd, a[0], b[0]}, .has_out = wants};
    buf_init(&c->text, wants ? cfg->max_stdout_bytes : 1);
    watch(c, &c->end, pidfd, ended);
    watch(c, &c->err, b[0], output);
    fcntl(b[0], F_SETFL, O_NONBLOCK);
    if (wants) {
        watch(c, &c->out, a[0], output);
        fcntl(a[0], F_SETFL, O_NONBLOCK);
    }
    uv_timer_init(cfg->loop, &c->limit);
    c->limit.data = c;
    c->handles++;
    if (cfg->timeout_ms)
        uv_timer_start(&c->limit, limit_hit, cfg->timeout_ms, 0);
    *out = c;
    return 0;
}

void child_signal(struct child *c, int sig)
{
    syscall(SYS_pidfd_send_signal, c->fds[0], sig, NULL, 0);
}

void child_abandon(struct child *c)
{
    c->abandoned = true;
    child_signal(c, SIGKILL);
}

pid_t child_pid(const struct child *c)
{
    return c->pid;
}

int child_exit_signal(const struct child *c)
{
    return WIFSIGNALED(c->status) ? WTERMSIG(c->status) : 0;
}

int child_exit_code(const struct child *c)
{
    return WIFSIGNALED(c->status) ? 128 + WTERMSIG(c->status) : WEXITSTATUS(c->status);
}

bool child_timed_out(const struct child *c)
{
    return c->timed_out;
}

struct str child_stdout(const struct child *c)
{
    return buf_view(&c->text);
}

const char *child_last_line(const struct child *c)
{
    return c->last_line;
}
