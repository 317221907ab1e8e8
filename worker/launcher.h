/* launcher.h: the worker's end of the socket to "baton-agent launch" (docs/contracts.md): one JSON
 * object a line; the start message carries the read-only weights as a file descriptor. One thread,
 * that of the loop. */
#pragma once
#include "lib/base/buf.h"
#include "lib/wire/heartbeat.h"

#include <uv.h>

struct launcher;

#define LAUNCHER_PEERS_MAX 64u

struct launcher_start {
    enum wire_role role;
    uint64_t incarnation, weights_bytes, epoch;
    int weights_fd; /* the caller's */
    uint32_t rank, ranks, ranks_per_pod, tensor, pipeline, expert, data;
    char peers[LAUNCHER_PEERS_MAX][46]; /* addresses of the group's pods, in order */
    uint32_t n_peers;
};

struct launcher_callbacks {
    void (*role)(enum wire_role role, void *ctx);
    void (*rung)(bool warm, void *ctx); /* of a standby worker: hot, or asleep */
    void (*drain)(void *ctx);
    void (*lost)(void *ctx); /* the launcher is gone: the worker stops */
    void *ctx;
};

struct launcher *launcher_new(int fd);
void launcher_free(struct launcher *l); /* after launcher_watch the loop must run once more */
/* Waits for the start message. -EPIPE when the launcher left. */
int launcher_wait(struct launcher *l, struct launcher_start *out, struct err *e) MUST_CHECK;
int launcher_watch(struct launcher *l, uv_loop_t *loop, const struct launcher_callbacks *cb,
                   struct err *e) MUST_CHECK;
/* Sent when something in it changed (running only with another change, or once a second at most:
 * the caller decides). */
struct launcher_state {
    enum wire_role role;
    bool ready, draining, asleep;
    uint32_t running;
    bool maskable;   /* at rank 0: a rank that ends may be masked, `masked` says so soon after */
    uint64_t masked; /* a bit each */
};
void launcher_status(struct launcher *l, const struct launcher_state *s);
void launcher_drained(struct launcher *l);
