/* link.h: how the GPUs of several ranks reach each other (internal to worker/gpu): over NCCL, in
 * the order of the compute stream; or, where a rank lacks the library, through host memory and the
 * ranks' own connections (comm.h), which waits for the device at every call and can't be captured.
 *
 * Threads: the engine's. Errors: as nccl.h and gpu.h. */
#pragma once
#include "kernels/cuda/gpu.h"
#include "worker/comm/nccl.h"

struct gpu_link;

/* Of the ranks of `c`, all of which call it; `host`: not over NCCL, the same at every rank. *out is
 * NULL for a rank that is alone. Ends before the communicator does. */
int gpu_link_new(struct gpu *g, struct comm *c, bool host, struct gpu_link **out,
                 struct err *e) MUST_CHECK;
void gpu_link_free(struct gpu_link *l);
uint32_t gpu_link_ranks(const struct gpu_link *l);    /* of NULL: 1 */
uint32_t gpu_link_rank(const struct gpu_link *l);     /* of NULL: 0 */
struct nccl *gpu_link_nccl(const struct gpu_link *l); /* NULL: through the host */

/* x[i] becomes the sum of every rank's x[i]. */
int gpu_link_sum(struct gpu_link *l, gpu_ptr x, uint64_t floats, struct err *e) MUST_CHECK;
/* all [ranks, bytes] */
int gpu_link_gather(struct gpu_link *l, gpu_ptr mine, uint64_t bytes, gpu_ptr all,
                    struct err *e) MUST_CHECK;
/* Flows to and from others. All sends or all receipts; or with `all` an all-to-all, in which each
 * rank takes part, perhaps with none. */
int gpu_link_exchange(struct gpu_link *l, const struct nccl_flow *flows, uint32_t n, bool all,
                      struct err *e) MUST_CHECK;
