#include "worker/layout/local.h"

#include "lib/base/rng.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

struct local {
    uint32_t ranks;
    int segment, listener; /* rank 0's: the others find it there */
    uint16_t ports[COMM_RANKS_MAX];
    uint64_t session;
    uint8_t secret[32];
    pid_t pids[COMM_RANKS_MAX];
    struct err *errs; /* [ranks], shared with the children */
};

static int listen_here(struct local *l, struct err *e)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    l->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (l->listener < 0 || bind(l->listener, (struct sockaddr *)&a, n) ||
        listen(l->listener, COMM_RANKS_MAX) || getsockname(l->listener, (struct sockaddr *)&a, &n))
        return err_set(e, errno, "ranks can't meet on loopback: %s", strerror(errno));
    for (uint32_t r = 0; r < l->ranks; r++)
        l->ports[r] = ntohs(a.sin_port);
    return 0;
}

static _Noreturn void be_rank(struct local *l, uint32_t rank, pid_t parent, local_rank_fn fn,
                              void *ctx)
{
    struct err e = {0};
    struct comm *world = NULL;
    struct comm_config c = {.rank = rank,
                            .ranks = l->ranks,
                            .ranks_per_host = l->ranks,
                            .ports = l->ports,
                            .listen_fd = rank ? -1 : l->listener,
                            .segment_fd = l->segment,
                            .session = l->session,
                            .secret = l->secret,
                            .secret_len = sizeof l->secret};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
    int rc = comm_join(&c, &world, &e);
    rc = rc ? rc : fn(world, ctx, &e);
    if (rc)
        l->errs[rank] = e;
    if (rc && world)
        comm_fail(world, e.msg);
    comm_leave(world);
    fflush(stdout);
    _exit(rc ? 1 : 0);
}

static void end_others(const struct local *l)
{
    for (uint32_t r = 0; r < l->ranks; r++)
        if (l->pids[r] > 0)
            kill(l->pids[r], SIGKILL);
}

static int fate(const struct local *l, uint32_t rank, int status, struct err *e)
{
    const struct err *why = &l->errs[rank];
    if (why->code)
        return err_set(e, why->code, "%s", why->msg);
    if (WIFSIGNALED(status))
        return err_set(e, EPIPE, "rank %u was ended by signal %d", rank, WTERMSIG(status));
    return err_set(e, EPIPE, "rank %u ended with code %d", rank, WEXITSTATUS(status));
}

/* The first that fails says why; those that only saw the group fail don't. */
static int wait_all(struct local *l, struct err *e)
{
    int rc = 0, status;
    for (uint32_t left = l->ranks; left;) {
        pid_t pid = waitpid(-1, &status, 0);
        uint32_t r = 0;
        while (r < l->ranks && l->pids[r] != pid)
            r++;
        if (pid < 0 && errno == EINTR)
            continue;
        if (pid < 0)
            return rc ? rc : err_set(e, errno, "ranks are lost: %s", strerror(errno));
        if (r == l->ranks)
            continue;
        l->pids[r] = 0;
        left--;
        if (!WIFEXITED(status) || WEXITSTATUS(status)) {
            rc = rc ? rc : fate(l, r, status, e);
            end_others(l);
        }
    }
    return rc;
}

int local_run(uint32_t ranks, local_rank_fn fn, void *ctx, struct err *e)
{
    struct local l = {.ranks = ranks, .segment = -1, .listener = -1, .session = rng_secret_u64()};
    int rc = comm_segment_new(ranks, &l.segment, e);
    rng_secret(l.secret, sizeof l.secret);
    rc = rc ? rc : listen_here(&l, e);
    l.errs = mmap(NULL, ranks * sizeof *l.errs, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                  -1, 0);
    if (!rc && l.errs == MAP_FAILED)
        rc = err_set(e, ENOMEM, "no memory for %u ranks", ranks);
    pid_t parent = getpid();
    fflush(stdout);
    for (uint32_t r = 0; r < ranks && !rc; r++) {
        l.pids[r] = fork();
        if (l.pids[r] == 0)
            be_rank(&l, r, parent, fn, ctx);
        if (l.pids[r] < 0) {
            rc = err_set(e, errno, "can't start rank %u: %s", r, strerror(errno));
            l.pids[r] = 0;
            l.ranks = r;
            end_others(&l);
        }
    }
    close_fdp(&l.listener);
    int waited = l.ranks && l.pids[0] > 0 ? wait_all(&l, e) : 0;
    close_fdp(&l.segment);
    if (l.errs != MAP_FAILED)
        munmap(l.errs, ranks * sizeof *l.errs);
    return rc ? rc : waited;
}
