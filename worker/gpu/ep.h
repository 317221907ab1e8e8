/* ep.h: rows to the GPUs that hold their experts, and back (internal to worker/gpu): what
 * worker/model/ep.h is on CPUs, with its two ways, dummy batches and shares of tensor ranks.
 *
 * throughput: a kernel lists the rows for each rank, counts are exchanged (the host waits for them:
 * it names the sizes), then what there is travels. latency: each rank's rows go to all others, so
 * that sizes follow from the step plan and nothing waits for the host. Rows travel as bf16, or as
 * FP8 with a scale for 128 channels, also to the sender itself.
 *
 * A rank answers with one row: what its experts give, weighted, in the order of the choice. The row
 * adds the answers in the order of ranks. So both ways have the same bits; they are those of one
 * GPU up to the order of these sums. */
#pragma once
#include "worker/gpu/gpu_model_int.h"

struct gpu_ep;

/* Of a model whose experts lie at several ranks, gm->expert; else *out is NULL. Its memory is the
 * model's work. */
int gpu_ep_new(struct gpu_model *gm, struct gpu_ep **out, struct err *e) MUST_CHECK;
void gpu_ep_free(struct gpu_ep *ep); /* NULL is fine; device memory is given back before */
void gpu_ep_release(struct gpu_model *gm);
void gpu_ep_data_rows(struct gpu_ep *ep, const uint32_t *rows);
/* Before a step's first layer. */
int gpu_ep_begin(struct gpu_model *gm, struct err *e) MUST_CHECK;
/* From w.x to w.out: this rank's part of the shared experts, and of its share of the rows what the
 * chosen ones gave. */
int gpu_ep_layer(struct gpu_model *gm, const struct gpu_layer *l, uint32_t rows,
                 struct err *e) MUST_CHECK;
