/* KV push from one worker process to another, beside memcpy of the same bytes: GB/s for each path
 * and size, in pieces of 64 KiB, from the grant of blocks to the event that says done. `first` pays
 * the page faults of a fresh mapping; `best` is the best of the later ones. Quick: a second or two.
 */
#include "lib/base/clock.h"
#include "lib/base/rng.h"
#include "lib/xfer/xfer.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define PIECE  (64u << 10)
#define LAYERS 16u
#define BLOCK  ((size_t)LAYERS * PIECE) /* 1 MiB */
#define BLOCKS 256u
#define ROUNDS 7
#define SECRET "bench"

struct side {
    struct xfer *x;
    struct xfer_pool pool;
    uint64_t incarnation;
};

static void die(const char *what, const struct err *e)
{
    fprintf(stderr, "%s: %s\n", what, e->msg);
    exit(1);
}

static void start(struct side *s, enum xfer_policy policy, const char *dir)
{
    struct err e = {0};
    if (xfer_pool_new(&s->pool, BLOCKS * BLOCK, &e))
        die("pool", &e);
    memset(s->pool.base, 1, s->pool.len);
    s->incarnation = rng_secret_u64();
    struct xfer_cfg c = {.host = "127.0.0.1",
                         .incarnation = s->incarnation,
                         .secret = SECRET,
                         .secret_len = sizeof SECRET - 1,
                         .shm_dir = dir,
                         .policy = policy,
                         .pool = s->pool,
                         .n_blocks = BLOCKS,
                         .n_layers = LAYERS,
                         .block_bytes = BLOCK,
                         .piece_bytes = PIECE,
                         .layout = 1};
    if (xfer_new(&c, &s->x, &e))
        die("xfer", &e);
}

static void stop(struct side *s)
{
    xfer_free(s->x);
    xfer_pool_free(&s->pool);
}

static struct xfer_event next_event(struct side *s)
{
    struct xfer_event e;
    while (!xfer_poll(s->x, &e)) {
        struct pollfd f = {xfer_fd(s->x), POLLIN, 0};
        poll(&f, 1, 1000);
    }
    return e;
}

static void serve(struct side *s, int to)
{
    struct xfer_piece pc[BLOCKS];
    uint16_t port = xfer_port(s->x);
    if (write(to, &port, sizeof port) < 0 || write(to, &s->incarnation, 8) < 0)
        _exit(1);
    for (uint32_t i = 0; i < BLOCKS; i++)
        pc[i] = (struct xfer_piece){i, i};
    for (;;) {
        struct xfer_event e = next_event(s);
        if (e.kind == XFER_ORDER)
            xfer_ask(s->x, e.id, *(const uint32_t *)e.payload);
        if (e.kind != XFER_GRANTED)
            continue;
        for (uint32_t l = 0; l < LAYERS; l++)
            xfer_push(s->x, e.id, l, pc, e.n_blocks);
        xfer_done(s->x, e.id, NULL, 0);
    }
}

static double push_once(struct side *d, const char *peer, uint32_t n)
{
    uint32_t blocks[BLOCKS];
    uint64_t id;
    struct err e = {0};
    for (uint32_t i = 0; i < BLOCKS; i++)
        blocks[i] = i;
    if (xfer_order(d->x, str_c(peer), &n, sizeof n, &id, &e))
        die("order", &e);
    for (;;) {
        struct xfer_event ev = next_event(d);
        if (ev.kind == XFER_ASK)
            xfer_grant(d->x, id, blocks, n);
        if (ev.kind == XFER_DONE)
            return ev.seconds;
        if (ev.kind == XFER_FAILED) {
            fprintf(stderr, "failed: %s\n", ev.text);
            exit(1);
        }
    }
}

static double copy_once(struct side *d, const uint8_t *from, uint32_t n)
{
    uint64_t t = clock_mono_ns();
    for (uint32_t l = 0; l < LAYERS; l++)
        for (uint32_t b = 0; b < n; b++)
            memcpy(d->pool.base + b * BLOCK + l * PIECE, from + b * BLOCK + l * PIECE, PIECE);
    return (double)(clock_mono_ns() - t) / 1e9;
}

static void row(struct side *d, const char *peer, const char *path, const uint8_t *from,
                uint32_t mib)
{
    double first = push_once(d, peer, mib), best = 1e9, copy = 1e9;
    for (int i = 0; i < ROUNDS; i++) {
        double t = push_once(d, peer, mib);
        best = t < best ? t : best;
        t = copy_once(d, from, mib);
        copy = t < copy ? t : copy;
    }
    double gb = (double)mib * BLOCK / 1e9;
    printf("%-4s %8u %12.2f %12.2f %12.2f %8.2f\n", path, mib, gb / first, gb / best, gb / copy,
           copy / best);
}

static void path(enum xfer_policy policy, const char *name, const char *dir)
{
    struct side d, p;
    int fd[2];
    if (pipe(fd))
        exit(1);
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        start(&p, policy, dir);
        serve(&p, fd[1]);
    }
    uint16_t port;
    uint64_t inc;
    char peer[64];
    if (read(fd[0], &port, sizeof port) < 0 || read(fd[0], &inc, sizeof inc) < 0)
        exit(1);
    snprintf(peer, sizeof peer, "127.0.0.1:%u:%016llx", port, (unsigned long long)inc);
    start(&d, policy, dir);
    uint8_t *from = xmalloc(BLOCKS * BLOCK);
    memset(from, 2, BLOCKS * BLOCK);
    for (uint32_t mib = 1; mib <= BLOCKS; mib *= 4)
        row(&d, peer, name, from, mib);
    free(from);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    stop(&d);
}

int main(void)
{
    char dir[] = "/tmp/bench-xfer-XXXXXX";
    if (!mkdtemp(dir))
        return 1;
    printf("%-4s %8s %12s %12s %12s %8s\n", "path", "MiB", "first GB/s", "best GB/s", "memcpy GB/s",
           "ratio");
    path(XFER_ONLY_SHM, "shm", dir);
    path(XFER_ONLY_TCP, "tcp", dir);
    struct side last; /* sweeps the socket of the worker that was killed */
    start(&last, XFER_AUTO, dir);
    stop(&last);
    return rmdir(dir) != 0;
}
