#include "cli/common.h"
#include "cli/verbs.h"
#include "lib/base/clock.h"
#include "lib/base/conf.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

struct down_options {
    const char *data;
    uint64_t grace_s;
    bool purge;
};

static const struct conf_opt options[] = {
    {"--data", "BATON_DATA", CONF_STR, CONF(struct down_options, data), "", 0, 0,
     "data folder (default: $XDG_STATE_HOME/baton or ~/.local/state/baton)", "DIR"},
    {"--grace", NULL, CONF_U64, CONF(struct down_options, grace_s), "15", 0, 86400,
     "longest that programs may take to end before they are killed", "SECONDS"},
    {"--purge", NULL, CONF_BOOL, CONF(struct down_options, purge), NULL, 0, 0,
     "delete the data folder too", NULL},
    {0}};
static const struct conf_prog prog = {
    "baton down", "Ends the cluster that `baton up` started; no process is left. Its data stays.",
    "[options]", options};

/* `baton-local cleanup` knows the records; it needs the supervisor to be gone. */
static int cleanup(const struct cluster *c, struct err *e)
{
    CLEANUP(free_charp) char *program = cli_program("baton-local");
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        int null = open("/dev/null", O_WRONLY);
        if (null >= 0)
            dup2(null, 1);
        execl(program, "baton-local", "cleanup", "--data", c->dir, "--grace", "2", NULL);
        _exit(127);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status) ||
        WEXITSTATUS(status) != 0)
        return err_set(e, ECHILD, "%s cleanup failed", program);
    return 0;
}

int down_cluster(const struct cluster *c, uint64_t grace_s, struct err *e)
{
    uint64_t kill_at = clock_mono_ns() + (grace_s + 3) * NS_PER_S, give_up = kill_at + 5 * NS_PER_S;
    if (c->supervisor > 0 && kill(c->supervisor, SIGTERM) && errno != ESRCH)
        return err_set(e, errno, "can't end process %d: %s", c->supervisor, strerror(errno));
    struct cluster now = *c; /* borrowed; only its supervisor is looked at again */
    for (cluster_refresh(&now); now.supervisor > 0; cluster_refresh(&now)) {
        progress("ending the cluster in %s", c->dir);
        if (clock_mono_ns() > kill_at)
            kill(c->supervisor, SIGKILL);
        if (clock_mono_ns() > give_up)
            return err_set(e, ETIMEDOUT, "process %d does not end", c->supervisor);
        poll(NULL, 0, 50);
    }
    return cleanup(c, e);
}

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st, (void)flag, (void)ftw;
    return remove(path);
}

int down_main(int argc, char **argv)
{
    struct down_options o = {0};
    struct cluster c;
    struct err e = {0};
    int first, r = conf_parse(&prog, argc, argv, &o, &first, &e);
    if (r > 0)
        return 0;
    if (r || first < argc) {
        if (!r)
            err_set(&e, EINVAL, "unknown argument %s; see baton down --help", argv[first]);
        cli_fail("down", &e);
        return 2;
    }
    if (cluster_find(o.data, &c, &e))
        return cli_fail("down", &e);
    bool was = c.supervisor > 0;
    if (!c.known) {
        progress_done("there is no cluster in %s", c.dir);
        cluster_fini(&c);
        return 0;
    }
    r = down_cluster(&c, o.grace_s, &e);
    if (!r && o.purge && nftw(c.dir, remove_one, 16, FTW_DEPTH | FTW_PHYS))
        r = err_set(&e, errno, "can't delete all of %s", c.dir);
    if (r)
        cli_fail("down", &e);
    else
        progress_done(was ? "ended; %s %s" : "nothing was running; %s %s", c.dir,
                      o.purge ? "is deleted" : "keeps its data");
    cluster_fini(&c);
    return r ? 1 : 0;
}
