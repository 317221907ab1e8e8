#include "local/kubelet_int.h"

#include "local/kubelet_shim.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* In units of the first delay. Upstream: 10 s, doubling to 5 minutes, forgiven after 10 minutes of
 * life. */
#define BACKOFF_MAX_TIMES        30
#define BACKOFF_MAX_TIMES_SYSTEM 5 /* what the node itself needs is not left down for long */
#define BACKOFF_RESET_TIMES      60
#define CONFIG_RETRY_MS          3000

bool kctr_live(const struct kctr *c)
{
    return c->state == CTR_STARTING || c->state == CTR_RUNNING;
}

char *kctr_dir(const struct kctr *c, int attempt)
{
    return xasprintf("%s/c/%s/%d", c->pod->dir, c->name, attempt);
}

void kctr_wait(struct kctr *c, const char *reason, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    bool same = c->wait_reason && strcmp(c->wait_reason, reason) == 0 && c->wait_message &&
                strcmp(c->wait_message, text) == 0;
    if (same)
        return;
    c->wait_reason = reason;
    free(c->wait_message);
    c->wait_message = xstrdup(text);
}

struct kctr *kctr_new(struct kpod *p, json_t *spec, bool init)
{
    struct kctr *c = xcalloc(1, sizeof *c);
    c->pod = p;
    c->spec = json_incref(spec);
    c->name = xstrdup(json_str_at(spec, "name", "container"));
    c->init = init;
    c->sidecar = init && strcmp(json_str_at(spec, "restartPolicy", ""), "Always") == 0;
    c->attempt = -1;
    kctr_wait(c, init ? "PodInitializing" : "ContainerCreating", "%s", "");
    return c;
}

static void poll_closed(uv_handle_t *h)
{
    int fd = (int)(intptr_t)h->data;
    close(fd);
    free(h);
}

static void stop_watching(struct kctr *c)
{
    if (c->exit_poll) {
        uv_os_fd_t fd = -1;
        uv_fileno((uv_handle_t *)c->exit_poll, &fd);
        c->exit_poll->data = (void *)(intptr_t)fd;
        uv_close((uv_handle_t *)c->exit_poll, poll_closed);
        c->exit_poll = NULL;
    }
    if (c->start_timer)
        kubelet_timer_free(c->start_timer);
    c->start_timer = NULL;
}

void kctr_free(struct kctr *c)
{
    kprobe_stop_all(c);
    stop_watching(c);
    json_decref(c->spec);
    json_decref(c->exit);
    json_decref(c->last_exit);
    free(c->wait_message);
    free(c->name);
    free(c);
}

void kctr_save(struct kctr *c)
{
    CLEANUP(free_charp) char *path = xasprintf("%s/c/%s/state.json", c->pod->dir, c->name);
    uint64_t now = clock_mono_ns(), wait = c->next_start_ns > now ? c->next_start_ns - now : 0;
    CLEANUP(json_decrefp)
    json_t *o =
        json_pack("{s:i, s:I, s:I}", "attempt", c->attempt, "backoff_ms", (json_int_t)c->backoff_ms,
                  "next_start", (json_int_t)(clock_wall_ns() + wait));
    int r = file_replace_json(path, o);
    if (r)
        log_error("can't record a container", LS("path", path), LS("error", strerror(-r)));
}

static json_t *read_record(struct kctr *c, int attempt, const char *file)
{
    CLEANUP(free_charp) char *dir = kctr_dir(c, attempt);
    CLEANUP(free_charp) char *path = xasprintf("%s/%s", dir, file);
    return json_parse_file(path, 65536, NULL);
}

static struct proc_id record_id(const json_t *run, const char *member)
{
    CLEANUP(free_charp)
    char *pid = xasprintf("%s.pid", member), *start = xasprintf("%s.start", member);
    return (struct proc_id){(pid_t)json_int_at(run, pid, 0), (uint64_t)json_int_at(run, start, 0)};
}

static uint64_t backoff_max_ms(const struct kctr *c)
{
    const char *class = json_str_at(c->pod->obj, "spec.priorityClassName", "");
    bool system = strncmp(class, "system-", 7) == 0;
    return (system ? BACKOFF_MAX_TIMES_SYSTEM : BACKOFF_MAX_TIMES) *
           (uint64_t)c->pod->k->cfg.backoff_ms;
}

/* The delay before the next start: none after the first exit, then doubling; 60 first delays of
 * life forgive. */
static void set_backoff(struct kctr *c)
{
    struct kubelet *k = c->pod->k;
    uint64_t started = (uint64_t)json_int_at(c->exit, "started", 0);
    uint64_t finished = (uint64_t)json_int_at(c->exit, "finished", 0);
    if (finished > started + BACKOFF_RESET_TIMES * k->cfg.backoff_ms * NS_PER_MS)
        c->backoff_ms = 0;
    c->next_start_ns = clock_mono_ns() + c->backoff_ms * NS_PER_MS;
    uint64_t next = c->backoff_ms ? c->backoff_ms * 2 : k->cfg.backoff_ms, most = backoff_max_ms(c);
    c->backoff_ms = next < most ? next : most;
}

static void kill_one(struct proc_id id, void *ctx)
{
    (void)ctx;
    if (proc_signal(id, SIGKILL) == 0)
        log_warn("process of a container without a shim ended", LI("pid", id.pid));
}

/* The shim was killed before it could clean up: the main process has died with it, what that had
 * started may not have. */
static void kill_marked(const struct kctr *c)
{
    CLEANUP(free_charp) char *mark = kenv_mark(c);
    proc_each_with_env(mark, kill_one, NULL);
}

static void ended(struct kctr *c)
{
    stop_watching(c);
    kprobe_stop_all(c);
    json_decref(c->exit);
    c->exit = read_record(c, c->attempt, "exit.json");
    if (!c->exit) {
        kill_marked(c);
        c->exit =
            json_pack("{s:i, s:i, s:s, s:s, s:I, s:I}", "code", 137, "signal", SIGKILL, "reason",
                      "Error", "message", "the container's shim was killed", "started",
                      (json_int_t)c->started_wall_ns, "finished", (json_int_t)clock_wall_ns());
        CLEANUP(free_charp) char *dir = kctr_dir(c, c->attempt);
        CLEANUP(free_charp) char *path = xasprintf("%s/exit.json", dir);
        if (file_replace_json(path, c->exit))
            log_error("can't record the end of a container", LS("path", path));
    }
    c->state = CTR_EXITED;
    c->wait_reason = NULL;
    c->ready = c->started = c->stopping = false;
    set_backoff(c);
    kctr_save(c);
    int64_t code = json_int_at(c->exit, "code", 0);
    log_info("container ended", LS("pod", c->pod->name), LS("container", c->name), LI("code", code),
             LI("signal", json_int_at(c->exit, "signal", 0)), LI("restarts", c->restarts),
             LS("message", json_str_at(c->exit, "message", "")));
    kpod_poke(c->pod);
}

static void shim_exited(uv_poll_t *h, int status, int events)
{
    (void)status, (void)events;
    ended(h->data);
}

static int watch_shim(struct kctr *c, int pidfd)
{
    c->exit_poll = xcalloc(1, sizeof *c->exit_poll);
    c->exit_poll->data = c;
    int r = uv_poll_init(c->pod->k->cfg.loop, c->exit_poll, pidfd);
    if (r) {
        free(c->exit_poll);
        c->exit_poll = NULL;
        close(pidfd);
        return r;
    }
    return uv_poll_start(c->exit_poll, UV_READABLE, shim_exited);
}

static void running(struct kctr *c, const json_t *run)
{
    kubelet_timer_free(c->start_timer);
    c->start_timer = NULL;
    c->shim = record_id(run, "shim");
    c->main = record_id(run, "main");
    c->started_wall_ns = (uint64_t)json_int_at(run, "started", 0);
    c->state = CTR_RUNNING;
    c->wait_reason = NULL;
    c->started = !kctr_has_probe(c, PROBE_STARTUP);
    c->ready = c->started && !kctr_has_probe(c, PROBE_READINESS);
    if (c->stopping && proc_signal(c->main, SIGTERM))
        log_debug("container ended before it was told to", LS("container", c->name));
    if (!c->stopping) {
        kubelet_event(c->pod, false, "Started", "Started container %s", c->name);
        kprobe_start_all(c);
    }
    kpod_poke(c->pod);
}

static bool lock_held(struct kctr *c)
{
    CLEANUP(free_charp) char *dir = kctr_dir(c, c->attempt);
    CLEANUP(free_charp) char *path = xasprintf("%s/lock", dir);
    CLEANUP(close_fdp) int fd = open(path, O_RDWR | O_CLOEXEC);
    return fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK;
}

/* While starting: the shim writes run.json, or ends. */
static void look_for_run(uv_timer_t *t)
{
    struct kctr *c = t->data;
    CLEANUP(json_decrefp) json_t *run = read_record(c, c->attempt, "run.json");
    if (!run) {
        if (!c->exit_poll && !lock_held(c)) /* adopted before it had a pid on record, and gone */
            ended(c);
        return;
    }
    if (!c->exit_poll) {
        int fd = proc_open(record_id(run, "shim"));
        if (fd < 0 || watch_shim(c, fd)) {
            ended(c);
            return;
        }
    }
    running(c, run);
}

static void begin_starting(struct kctr *c)
{
    c->state = CTR_STARTING;
    kctr_wait(c, "ContainerCreating", "%s", "");
    c->start_timer = kubelet_timer(c->pod->k, c);
    uv_timer_start(c->start_timer, look_for_run, 1, 4);
}

static void process_closed(uv_handle_t *h)
{
    free(h);
}

static void shim_reaped(uv_process_t *p, int64_t status, int sig)
{
    (void)status, (void)sig;
    uv_close((uv_handle_t *)p, process_closed);
}

static int spec_fd(const json_t *spec)
{
    struct buf b;
    buf_init(&b, 4 << 20);
    int fd = memfd_create("spec", MFD_CLOEXEC);
    if (fd < 0 || json_write(spec, false, &b) || write(fd, b.data, b.n) != (ssize_t)b.n ||
        lseek(fd, 0, SEEK_SET)) {
        if (fd >= 0)
            close(fd);
        fd = -EMSGSIZE;
    }
    buf_fini(&b);
    return fd;
}

/* Starts the shim in the attempt's folder with the spec as stdin and the locked file as fd 3. */
static int spawn_shim(struct kctr *c, const char *dir, const json_t *spec, struct err *e)
{
    CLEANUP(free_charp) char *lock_path = xasprintf("%s/lock", dir);
    CLEANUP(close_fdp) int lock = open(lock_path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (lock < 0 || flock(lock, LOCK_EX | LOCK_NB))
        return err_set(e, errno, "can't lock %s: %s", lock_path, strerror(errno));
    CLEANUP(close_fdp) int in = spec_fd(spec);
    if (in < 0)
        return err_set(e, -in, "the container's description can't be handed over");
    char *args[] = {"baton-local", "shim", NULL};
    uv_stdio_container_t io[4] = {{.flags = UV_INHERIT_FD, .data.fd = in},
                                  {.flags = UV_IGNORE},
                                  {.flags = UV_IGNORE},
                                  {.flags = UV_INHERIT_FD, .data.fd = lock}};
    uv_process_options_t o = {.file = "/proc/self/exe",
                              .args = args,
                              .cwd = dir,
                              .flags = UV_PROCESS_DETACHED,
                              .stdio = io,
                              .stdio_count = 4,
                              .exit_cb = shim_reaped};
    uv_process_t *process = xcalloc(1, sizeof *process);
    int r = uv_spawn(c->pod->k->cfg.loop, process, &o);
    if (r) {
        uv_close((uv_handle_t *)process, process_closed);
        return err_set(e, -r, "can't start a process: %s", uv_strerror(r));
    }
    int pidfd = (int)syscall(SYS_pidfd_open, process->pid, 0);
    c->shim.pid = process->pid;
    if (pidfd < 0 || watch_shim(c, pidfd))
        return err_set(e, EMFILE, "can't watch a process: no file descriptors are left");
    return 0;
}

static void remove_old(struct kctr *c)
{
    if (c->attempt < 2)
        return;
    CLEANUP(free_charp) char *old = kctr_dir(c, c->attempt - 2);
    dir_remove(old);
}

static void start_failed(struct kctr *c, const char *reason, const struct err *e)
{
    kctr_wait(c, reason, "%s", e->msg);
    kubelet_event(c->pod, true, "Failed", "Error: %s", e->msg);
    c->next_start_ns = clock_mono_ns() + CONFIG_RETRY_MS * NS_PER_MS;
    c->pod->refs_state = REFS_NONE;
    kpod_poke_in(c->pod, CONFIG_RETRY_MS);
}

void kctr_start(struct kctr *c)
{
    struct err e = {0};
    json_t *env, *argv;
    CLEANUP(free_charp) char *file = NULL, *cwd = NULL;
    if (kenv_build(c, &env, &argv, &file, &cwd, &e)) {
        start_failed(c, "CreateContainerConfigError", &e);
        return;
    }
    if (c->state == CTR_EXITED || c->attempt < 0)
        c->attempt++;
    CLEANUP(free_charp) char *dir = kctr_dir(c, c->attempt);
    CLEANUP(free_charp) char *log = xasprintf("%s/log", dir);
    CLEANUP(free_charp) char *mark = kenv_mark(c);
    json_array_append_new(env, json_string_nocheck(mark));
    CLEANUP(json_decrefp)
    json_t *spec =
        json_pack("{s:o, s:o, s:s, s:s, s:s, s:I}", "env", env, "argv", argv, "file", file, "cwd",
                  cwd, "log", log, "log_bytes", (json_int_t)c->pod->k->cfg.log_bytes);
    dir_remove(dir);
    json_decref(c->last_exit);
    c->last_exit = c->exit;
    c->exit = NULL;
    c->restarts = c->attempt;
    if (dir_make(dir, 0700, &e)) {
        c->state = CTR_WAITING;
        start_failed(c, "CreateContainerError", &e);
        return;
    }
    kctr_save(c);
    remove_old(c);
    if (spawn_shim(c, dir, spec, &e)) {
        stop_watching(c);
        c->state = CTR_WAITING;
        start_failed(c, "RunContainerError", &e);
        return;
    }
    c->stopping = false;
    c->started_wall_ns = clock_wall_ns();
    begin_starting(c);
}

void kctr_adopt(struct kctr *c)
{
    CLEANUP(free_charp) char *path = xasprintf("%s/c/%s/state.json", c->pod->dir, c->name);
    CLEANUP(json_decrefp) json_t *state = json_parse_file(path, 65536, NULL);
    c->attempt = (int)json_int_at(state, "attempt", -1);
    if (c->attempt < 0)
        return;
    c->restarts = c->attempt;
    c->backoff_ms = (uint64_t)json_int_at(state, "backoff_ms", 0);
    if (c->attempt > 0)
        c->last_exit = read_record(c, c->attempt - 1, "exit.json");
    c->exit = read_record(c, c->attempt, "exit.json");
    uint64_t next = (uint64_t)json_int_at(state, "next_start", 0), wall = clock_wall_ns();
    if (next > wall && next - wall < backoff_max_ms(c) * NS_PER_MS)
        c->next_start_ns = clock_mono_ns() + (next - wall);
    if (c->exit) {
        c->state = CTR_EXITED;
        c->wait_reason = NULL;
        return;
    }
    CLEANUP(json_decrefp) json_t *run = read_record(c, c->attempt, "run.json");
    if (lock_held(c)) {
        begin_starting(c);
    } else if (run) {
        c->started_wall_ns = (uint64_t)json_int_at(run, "started", 0);
        ended(c);
    } /* else: it was never started; the attempt is used anew */
}

void kctr_stop(struct kctr *c, int64_t grace_ms)
{
    uint64_t at = clock_mono_ns() + (uint64_t)(grace_ms > 0 ? grace_ms : 0) * NS_PER_MS;
    if (!kctr_live(c))
        return;
    if (c->stopping) {
        if (at < c->kill_at_ns)
            c->kill_at_ns = at;
    } else {
        c->stopping = true;
        c->kill_at_ns = at;
        kprobe_stop_all(c);
        c->ready = false;
        if (c->state == CTR_RUNNING && grace_ms > 0 && proc_signal(c->main, SIGTERM))
            log_debug("container ended before it was told to", LS("container", c->name));
    }
    if (grace_ms <= 0)
        kctr_kill(c);
    kpod_poke_in(c->pod, (uint64_t)(grace_ms > 0 ? grace_ms + 1 : 1));
}

/* The shim notices the end of its command and kills what that left. */
void kctr_kill(struct kctr *c)
{
    c->kill_at_ns = clock_mono_ns() + NS_PER_S; /* again, should a signal get lost in a start */
    if (c->state == CTR_RUNNING && proc_signal(c->main, SIGKILL))
        log_debug("container ended before it was killed", LS("container", c->name));
}
