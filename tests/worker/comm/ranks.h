/* ranks.h: forks the ranks of a group for tests. Hosts are loopback addresses; every rank's
 * listening socket is made before the fork, so that ports are free ones. A rank's result is its
 * exit code; what it writes to `shared` the parent sees. */
#pragma once
#include "lib/base/clock.h"
#include "worker/comm/comm.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define RANKS_MAX 16u

struct ranks {
    uint32_t n, per_host;
    uint16_t ports[RANKS_MAX];
    int listeners[RANKS_MAX], segments[RANKS_MAX];
    char host_text[RANKS_MAX][16];
    const char *hosts[RANKS_MAX];
    pid_t pids[RANKS_MAX];
    uint8_t *shared; /* of all: test-defined */
    size_t shared_bytes;
    uint32_t silent_ms, stuck_ms, join_ms, limit_s;
    uint64_t session;
};

typedef int (*rank_fn)(struct comm *world, struct ranks *r, void *arg);

static inline void ranks_init(struct ranks *r, uint32_t n, uint32_t per_host, size_t shared_bytes)
{
    struct err e = {0};
    *r = (struct ranks){.n = n, .per_host = per_host, .shared_bytes = shared_bytes + 4096};
    r->session = (uint64_t)getpid() << 20 | n;
    r->shared =
        mmap(NULL, r->shared_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (uint32_t h = 0; h < n / per_host; h++) {
        snprintf(r->host_text[h], sizeof r->host_text[h], "127.0.0.%u", h + 1);
        r->hosts[h] = r->host_text[h];
        r->segments[h] = -1;
        if (comm_segment_new(per_host, &r->segments[h], &e))
            abort();
    }
    for (uint32_t i = 0; i < n; i++) {
        struct sockaddr_in a = {.sin_family = AF_INET};
        socklen_t len = sizeof a;
        inet_pton(AF_INET, r->hosts[i / per_host], &a.sin_addr);
        r->listeners[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (bind(r->listeners[i], (struct sockaddr *)&a, sizeof a) || listen(r->listeners[i], 64) ||
            getsockname(r->listeners[i], (struct sockaddr *)&a, &len))
            abort();
        r->ports[i] = ntohs(a.sin_port);
    }
}

static inline struct comm_config ranks_config(const struct ranks *r, uint32_t i)
{
    return (struct comm_config){.rank = i,
                                .ranks = r->n,
                                .ranks_per_host = r->per_host,
                                .hosts = r->hosts,
                                .ports = r->ports,
                                .listen_fd = r->listeners[i],
                                .segment_fd = r->segments[i / r->per_host],
                                .session = r->session,
                                .secret = "a secret of the deployment",
                                .secret_len = 26,
                                .silent_ms = r->silent_ms,
                                .stuck_ms = r->stuck_ms,
                                .join_ms = r->join_ms ? r->join_ms : 20000};
}

static inline void ranks_start_one(struct ranks *r, uint32_t i, rank_fn fn, void *arg)
{
    fflush(stdout);
    r->pids[i] = fork();
    if (r->pids[i])
        return;
    struct err e = {0};
    struct comm *world = NULL;
    struct comm_config c = ranks_config(r, i);
    alarm(r->limit_s ? r->limit_s : 60);
    int rc = comm_join(&c, &world, &e);
    if (rc) {
        fprintf(stderr, "rank %u: %s\n", i, e.msg);
        _exit(100);
    }
    rc = fn(world, r, arg);
    comm_leave(world);
    _exit(rc);
}

static inline void ranks_start(struct ranks *r, rank_fn fn, void *arg)
{
    for (uint32_t i = 0; i < r->n; i++)
        ranks_start_one(r, i, fn, arg);
    for (uint32_t i = 0; i < r->n; i++)
        close(r->listeners[i]);
}

/* Waits for all; the highest exit code, 128 + signal of one that was killed. */
static inline int ranks_wait(struct ranks *r, int *codes)
{
    int worst = 0;
    for (uint32_t i = 0; i < r->n; i++) {
        int status = 0;
        if (waitpid(r->pids[i], &status, 0) < 0)
            status = 0x7f00;
        int code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
        if (codes)
            codes[i] = code;
        worst = code > worst ? code : worst;
    }
    for (uint32_t h = 0; h < r->n / r->per_host; h++)
        close(r->segments[h]);
    return worst;
}

static inline void ranks_fini(struct ranks *r)
{
    munmap(r->shared, r->shared_bytes);
}
