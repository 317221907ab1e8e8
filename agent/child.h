/* child.h: a child process of the launcher that can't outlive it (PR_SET_PDEATHSIG), with its
 * output watched.
 *
 * Belongs to one loop and its thread, which must be the main thread (the death signal follows the
 * forking thread). stderr passes through to ours and its last line is kept: it goes into the crash
 * record. */
#pragma once
#include "lib/json/json.h"

#include <uv.h>

struct child;
struct child_config {
    uv_loop_t *loop;
    const char *file;
    const char *const *argv;      /* NULL-terminated */
    const char *const *extra_env; /* "K=V" that replace or add to ours; NULL-terminated, or NULL */
    int pass_fd, as_fd;           /* as_fd >= 3 in the child; pass_fd -1: none */
    int also_fd, also_as;         /* likewise; also_as 0: none */
    size_t max_stdout_bytes;      /* kept; 0: stdout passes through */
    unsigned timeout_ms;          /* SIGKILL then; 0: none */
    /* Once, when the process has ended and its output is read. The object is freed after it
     * returns. */
    void (*on_exit)(struct child *c, void *ctx);
    void *ctx;
};

int child_start(const struct child_config *cfg, struct child **out, struct err *e) MUST_CHECK;
void child_signal(struct child *c, int sig);
void child_abandon(struct child *c); /* SIGKILL, and no on_exit */
pid_t child_pid(const struct child *c);

/* Valid in on_exit. */
int child_exit_code(const struct child *c); /* 128 + signal when killed */
int child_exit_signal(const struct child *c);
bool child_timed_out(const struct child *c);
struct str child_stdout(const struct child *c);
const char *child_last_line(const struct child *c);
