/* comm.h: collectives between the ranks of one model instance (DESIGN.md §5). A rank is a process;
 * ranks of one host share a memory segment, ranks of different hosts use TCP. Every rank makes the
 * same calls in the same order.
 *
 * Order     An all-reduce adds the ranks' parts in the order of the communicator's ranks, whatever
 *           the size, the path or the placement: results are equal bit for bit on every rank and in
 *           every run.
 * Waiting   Spins 2 us at most, then sleeps (futex, poll): many ranks may share few cores.
 * Failure   The group fails together and once. A rank that dies is noticed by the end of its
 *           connection, one that is stopped by its silence, one that is stuck by the watchdog of
 *           rank 0: for longer than stuck_ms in a collective, it names who has not come. Then every
 *           call of every rank, also one that waits, returns -EPIPE with the same reason; nothing
 *           works again. Waiting for rank 0 to decide (comm_broadcast from rank 0 while rank 0
 *           computes or idles) is never "stuck".
 * Masks     Where the caller says what survives whom (comm_allow_masks), a rank other than 0 that
 *           dies is masked instead: rank 0 makes sure that its process has ended, and moves the
 *           others to a new generation of the shared memory, which a masked rank has never seen.
 *           Every call that can't end without the dead one, and every call after that, returns
 *           -ECANCELED; what was under way is void. Each rank then calls comm_regroup, and all go
 *           on without it: in every collective it counts as a rank that gives nothing.
 *
 * Threads: calls on one thread, the engine's; a second one, made by comm_join, keeps watch. Buffers
 * are the caller's, sizes bytes or floats as named. Peers prove that they know the secret (HMAC of
 * nonces) and name session and rank. Errors: -EPIPE when the group has failed, -ETIMEDOUT and
 * -ECONNREFUSED of comm_join, with a sentence.
 */
#pragma once
#include "lib/base/str.h"

#define COMM_RANKS_MAX  64u
#define COMM_SPLITS_MAX 8u /* communicators a rank may be in, the world's too */
#define COMM_PORT       8010u

struct comm;

struct comm_config {
    uint32_t rank, ranks;
    uint32_t ranks_per_host;  /* divides ranks; ranks of a host are consecutive */
    const char *const *hosts; /* numeric addresses, one a host; NULL: 127.0.0.1 */
    uint16_t port;            /* rank r listens at port + r % ranks_per_host of its host; 0: 8010 */
    const uint16_t *ports;    /* [ranks], instead of that; may be NULL */
    int listen_fd;            /* listens there already, taken over; -1: made here */
    int segment_fd;           /* of comm_segment_new, the same at every rank of the host; -1: none,
                                 for one rank a host. Stays the caller's. */
    uint64_t session;         /* of this life of the group: others are refused */
    const void *secret;
    size_t secret_len;
    uint32_t join_ms, silent_ms, stuck_ms; /* 0: 60,000, 5,000 and 30,000 */
    /* Called once, on the watching thread, when the group has failed; may be NULL. */
    void (*failed)(void *ctx, uint32_t rank, const char *why);
    void *ctx;
};

/* The memory that the ranks of one host share: an anonymous file, sparse. */
int comm_segment_new(uint32_t ranks_per_host, int *fd, struct err *e) MUST_CHECK;

/* The communicator of all ranks. Returns when all are connected. */
int comm_join(const struct comm_config *c, struct comm **world, struct err *e) MUST_CHECK;
/* Ends it and every communicator split from it, in peace: other ranks see no failure. */
void comm_leave(struct comm *world);
/* One communicator for each colour, its ranks in the order of the world's; ranks that were split
 * so before get the same one again. Every rank of the world calls it. Freed by comm_leave. */
int comm_split(struct comm *world, uint32_t colour, struct comm **out, struct err *e) MUST_CHECK;
uint32_t comm_rank(const struct comm *c);
uint32_t comm_ranks(const struct comm *c);
uint32_t comm_hosts(const struct comm *c); /* of the world */

/* x[i] becomes the sum of every rank's x[i]. */
int comm_all_reduce(struct comm *c, float *x, size_t n, struct err *e) MUST_CHECK;
/* all[r * bytes ..] becomes rank r's `mine`. */
int comm_all_gather(struct comm *c, const void *mine, size_t bytes, void *all,
                    struct err *e) MUST_CHECK;
int comm_broadcast(struct comm *c, uint32_t root, void *data, size_t bytes,
                   struct err *e) MUST_CHECK;
int comm_barrier(struct comm *c, struct err *e) MUST_CHECK;
/* Byte streams between two ranks: pieces may be cut differently at both ends. A send returns when
 * the data may be written again; up to COMM_PIPE_BYTES wait for the receiver. */
#define COMM_PIPE_BYTES (1u << 20)
int comm_send(struct comm *c, uint32_t to, const void *data, size_t bytes,
              struct err *e) MUST_CHECK;
int comm_recv(struct comm *c, uint32_t from, void *data, size_t bytes, struct err *e) MUST_CHECK;

/* One piece of an exchange: `out` is sent to the peer, else received from it. */
struct comm_flow {
    uint32_t peer;
    bool out;
    void *data;
    size_t bytes;
};
/* All of them at once, in any order: no deadlock whatever the sizes. A flow to this rank itself is
 * not allowed. all-to-all: a flow out and one in for every other rank. Changes `flows`. */
int comm_exchange(struct comm *c, struct comm_flow *flows, uint32_t n, struct err *e) MUST_CHECK;
/* Piece r of `out` (of out_bytes[r], one after the other) goes to rank r; in likewise. */
int comm_all_to_all(struct comm *c, const void *out, const size_t *out_bytes, void *in,
                    const size_t *in_bytes, struct err *e) MUST_CHECK;
/* The same in two halves, to compute in between: what finds room on its way leaves at once, the
 * rest leaves and all arrives until the end. Buffers stay as they are until then. One at a time in
 * a world; any call that moves data between two ranks ends it first, so all ranks call both halves
 * at the same places. */
int comm_all_to_all_begin(struct comm *c, const void *out, const size_t *out_bytes, void *in,
                          const size_t *in_bytes, struct err *e) MUST_CHECK;
int comm_all_to_all_end(struct comm *c, struct err *e) MUST_CHECK;

/* Rank 0, whose ranks share one host: from now on a rank that dies is masked as long as each of
 * the n sets keeps a rank that lives. A set has a bit for each rank that holds the same thing, the
 * i-th is number i % kinds of `what` ("expert"): the reason names it when the group has to fail.
 * `wake_fd` is an eventfd that is written to then, -1: none. Copies all it is given; once in a
 * world. -ENOTSUP: this host can't tell for sure that a process has ended. */
int comm_allow_masks(struct comm *world, const uint64_t *sets, uint32_t n, uint32_t kinds,
                     const char *what, int wake_fd, struct err *e) MUST_CHECK;
bool comm_must_regroup(const struct comm *world);
/* After -ECANCELED, or when it must: every rank that lives calls it, with nothing else under way.
 * Returns when all of them have. */
int comm_regroup(struct comm *world, struct err *e) MUST_CHECK;
/* As this rank has taken notice of by comm_regroup. */
uint64_t comm_masked(const struct comm *world); /* ranks of the world, a bit each */
bool comm_is_masked(const struct comm *c, uint32_t rank);

/* The rank's own engine failed: the whole group does, with this reason. */
void comm_fail(struct comm *c, const char *why);
bool comm_failed(const struct comm *c);

struct comm_stats {
    uint64_t all_reduces, all_gathers, broadcasts, barriers, all_to_alls, sends, recvs;
    uint64_t bytes;   /* given to calls of this communicator */
    uint64_t wait_ns; /* inside calls, copying included */
};
void comm_stats(const struct comm *c, struct comm_stats *out);
