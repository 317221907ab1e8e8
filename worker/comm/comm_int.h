/* comm_int.h: what the files of worker/comm share. segment.c: shared memory, gates and pipes;
 * mesh.c: TCP between hosts and how ranks meet; watch.c: who lives; mask.c: going on without one;
 * collect.c: collectives over both; comm.c: communicators. */
#pragma once
#include "worker/comm/comm.h"

#include <pthread.h>
#include <stdatomic.h>

#define WINDOW_BYTES  (512u << 10) /* a rank's part of a collective, at most, at a time */
#define ONE_SHOT_MAX  (32u << 10)  /* all-reduces up to here: every rank adds everything */
#define REASON_MAX    240u
#define MESH_NONCE    16u
#define MESH_MAC      32u
#define SECRET_MAX    256u
#define WAIT_CHECK_MS 100 /* a sleeper looks for failure at least so often */
#define GENERATIONS   4u  /* of the shared memory: one more than ranks that may be masked */

/* A number that threads of several processes wait on until it moves. */
struct gate {
    _Alignas(64) _Atomic uint32_t value;
    _Atomic uint32_t sleepers;
    _Atomic uint32_t arrived; /* of a barrier */
};

/* One writer, one reader. Counts run on; data at count % size. */
struct pipe_head {
    _Alignas(64) _Atomic uint32_t written;
    _Alignas(64) _Atomic uint32_t taken;
};

struct segment_head {
    _Atomic uint32_t claimed; /* somebody writes `reason` */
    _Atomic uint32_t failed;  /* 1 + the rank; reason is complete */
    char reason[REASON_MAX];
    _Atomic int32_t pids[COMM_RANKS_MAX]; /* by place on this host */
    _Atomic uint32_t generation;          /* the latest; lost[] of it is complete */
    uint64_t lost[GENERATIONS];           /* ranks masked, a bit each */
    struct generation {
        struct gate gates[COMM_SPLITS_MAX][COMM_RANKS_MAX]; /* [split][a member's place] */
        struct gate bells[COMM_RANKS_MAX]; /* of a rank: one of its pipes has moved */
    } generations[GENERATIONS];
};

struct segment {
    struct segment_head *head;
    uint8_t *base; /* NULL: one rank a host */
    size_t bytes;
    uint32_t n;   /* ranks here */
    uint32_t now; /* the generation that this rank is in */
};

enum comm_op {
    OP_NONE, /* the rank computes */
    OP_ALL_REDUCE,
    OP_ALL_GATHER,
    OP_BROADCAST,
    OP_BARRIER,
    OP_EXCHANGE,
    OP_SEND,
    OP_RECV,
};
const char *comm_op_name(uint32_t op);

struct peer { /* what the watch knows of a rank, and the data link to it */
    int fd;   /* data, -1: on this host */
    int life; /* -1: none */
    bool left;
    uint64_t heard_ns, since_ns;
    uint32_t op, seq;
    uint8_t in[512];
    size_t in_n;
};

struct world {
    struct comm_config cfg;
    char **hosts;
    uint8_t secret[SECRET_MAX];
    struct segment seg;
    struct peer peers[COMM_RANKS_MAX];
    uint32_t host, host0; /* this host, its first rank */
    struct comm *comms[COMM_SPLITS_MAX];
    uint32_t n_comms;
    uint8_t parts[COMM_SPLITS_MAX][COMM_RANKS_MAX]; /* of a split: a rank's first companion */
    /* what the engine's thread does, for heartbeats */
    _Atomic uint32_t op, seq;
    _Atomic uint64_t since_ns;
    /* the watch */
    pthread_t watch;
    bool watching;
    int wake_fd, fail_fd; /* eventfds: something to say; failed */
    _Atomic bool leaving, told;
    struct comm_flow flight[2 * COMM_RANKS_MAX]; /* of an all-to-all that was begun */
    uint32_t n_flight;
    uint64_t lost;                        /* ranks that are masked, of seg.now */
    _Atomic(struct mask_rules *) mask_to; /* at rank 0; NULL: none is masked */
};

struct comm {
    struct world *w;
    uint32_t index; /* of the split */
    uint32_t rank, n;
    uint32_t ranks[COMM_RANKS_MAX]; /* the world's numbers */
    uint32_t local, gate;           /* members on this host; whose place names the gate */
    uint32_t live;                  /* of them, not masked */
    uint32_t turn;                  /* windows are double: the other half may still be read */
    float *stage;                   /* parts of other hosts' ranks */
    struct comm_stats stats;
};

/* segment.c */
int segment_map(struct segment *s, int fd, uint32_t n, struct err *e) MUST_CHECK;
void segment_unmap(struct segment *s);
void segment_forget(struct segment *s); /* gives back the memory of earlier generations */
void *segment_window(const struct comm *c, uint32_t member, uint32_t turn);
int gate_pass(struct comm *c, struct err *e) MUST_CHECK; /* barrier of the members on this host */
/* Flows between ranks of this host. `peer` is the world's number. pipes_try, mesh_try: as far as
 * they go without waiting. */
int pipes_run(struct world *w, struct comm_flow *f, uint32_t n, struct err *e) MUST_CHECK;
void pipes_try(struct world *w, struct comm_flow *f, uint32_t n);
void segment_wake_all(struct world *w);
/* -EPIPE: the group has failed. -ECANCELED: a rank was masked, and this one has not regrouped. */
int segment_stopped(const struct world *w, struct err *e);

/* mesh.c */
int mesh_join(struct world *w, struct err *e) MUST_CHECK;
int mesh_run(struct world *w, struct comm_flow *f, uint32_t n, struct err *e) MUST_CHECK;
int mesh_try(struct world *w, struct comm_flow *f, uint32_t n, struct err *e) MUST_CHECK;
uint16_t mesh_port(const struct world *w, uint32_t rank);
const char *mesh_host(const struct world *w, uint32_t rank);

/* watch.c */
int watch_start(struct world *w, struct err *e) MUST_CHECK;
void watch_stop(struct world *w);
/* The first to say so decides; wakes everybody. Any thread. */
void watch_fail(struct world *w, uint32_t rank, const char *why);
bool watch_failed(const struct world *w);
int watch_error(const struct world *w, struct err *e); /* -EPIPE with the reason */

/* mask.c */
/* Of a rank whose connection has ended, or that was silent too long: true when the others go on
 * without it; false, and why not is added to `why`. The watch's thread. */
bool mask_rank(struct world *w, uint32_t rank, char why[REASON_MAX]);
void mask_free(struct world *w);

static inline bool world_is_lost(const struct world *w, uint32_t rank)
{
    return w->lost >> rank & 1;
}

static inline bool world_is_here(const struct world *w, uint32_t rank)
{
    return rank / w->cfg.ranks_per_host == w->host;
}
