/* nccl.h: collectives between GPUs, by NVIDIA's NCCL (libnccl.so.2 by dlopen: one binary for
 * machines with and without it; $BATON_NCCL names another file). The ranks are those of a
 * communicator of comm.h, over which they tell each other how to meet; data moves between device
 * memories, in the order of a CUDA stream, and never through the host.
 *
 * Order     What is put on a stream runs after what was put there before, as a kernel does; all
 *           ranks put the same calls in the same order. Sums of floats are NCCL's: the same at
 *           every rank, not the order of comm.h.
 * Failure   When the group fails (comm.h), the watching thread aborts the communicator: what waits
 *           on the device ends, and later calls return -EPIPE with the group's reason. The
 *           communicator is a non-blocking one: no call, joining included, waits inside the library
 *           for a rank that is dead.
 *
 * Threads: the engine's, but for the abort. Addresses are the device's, sizes bytes or floats as
 * named; `stream` is the driver's handle. Errors: -ENOTSUP with a sentence when the library is not
 * there, -EIO when it fails. */
#pragma once
#include "worker/comm/comm.h"

struct nccl;

/* Whether this machine has the library: -ENOTSUP with a sentence. */
int nccl_ready(struct err *e) MUST_CHECK;

/* Every rank of `c` calls it, with its device current. Ends before the communicator does. */
int nccl_new(struct comm *c, struct nccl **out, struct err *e) MUST_CHECK;
void nccl_free(struct nccl *n);

/* x[i] becomes the sum of every rank's x[i], in place. */
int nccl_all_reduce(struct nccl *n, uint64_t x, size_t floats, void *stream,
                    struct err *e) MUST_CHECK;
/* all [ranks, bytes] */
int nccl_all_gather(struct nccl *n, uint64_t mine, size_t bytes, uint64_t all, void *stream,
                    struct err *e) MUST_CHECK;

struct nccl_flow {
    uint32_t peer; /* not this rank */
    bool out;
    uint64_t data;
    size_t bytes;
};
/* Sends and receipts, all at once; several to one peer arrive in their order. `all`: it counts as
 * one all-to-all, else as what it consists of. */
int nccl_exchange(struct nccl *n, const struct nccl_flow *flows, uint32_t n_flows, bool all,
                  void *stream, struct err *e) MUST_CHECK;

/* Around a wait for the device: to the watchdog the rank is in a collective. */
void nccl_waiting(struct nccl *n, bool on);
/* -EPIPE and the group's reason when it has failed. */
int nccl_failed(struct nccl *n, struct err *e) MUST_CHECK;

struct world;
void nccl_abort_all(const struct world *w); /* of the watching thread */

/* What was put on streams is counted in the communicator's statistics (comm_stats), beside what
 * went through comm.h. */
