/* gpu_model.h: the forward pass of worker/model on a GPU. Weights are taken from the same image and
 * kept as bf16 on the device; activations between products are bf16, the residual and all sums f32,
 * the KV cache of the types of model.h but for F32, with its layout and scales, so that blocks move
 * between a GPU and a CPU worker as they are.
 *
 * A model may be a rank's part (worker/model/shard.h). What goes between the ranks' GPUs goes over
 * NCCL on the compute stream (link.h); every rank makes the same calls. Tensor ranks: sums, two a
 * layer and one for the embedding, and the parts of the logits. Stages: rows on, micro-batch by
 * micro-batch (worker/model/cut.h), and those that give logits back. Data ranks: rows to their
 * experts and back (ep.h).
 *
 * Results are near the CPU's, not equal to them (DESIGN.md §4.4: GPUs are bounded, not equal); on
 * one device a row's result does not depend on the other rows, except for the split of long decode
 * contexts, which depends on how many sequences decode together, and for cuBLASLt, which may choose
 * another algorithm for another number of rows.
 *
 * One thread owns a gpu_model, that of its gpu. Errors as in gpu.h; -EINVAL for a batch that is out
 * of range (then nothing was computed), -ENOTSUP for a model that these kernels do not have (heads
 * of other sizes, KV of f32), -EPIPE when the ranks' group has failed. Only batches of single
 * tokens are captured as graphs, one for each of a few sizes, from the second time on; none where
 * rows travel to experts, whose messages change size. */
#pragma once
#include "kernels/cuda/gpu.h"
#include "worker/model/model.h"

#define GPU_EXPAND_TOKENS 4096u
struct gpu_model_options {
    uint32_t max_rows;      /* tokens of a batch, 1..65536 */
    uint32_t max_sequences; /* segments of a batch, 1..1024 */
    uint32_t pool_blocks;   /* KV blocks on the device; 0: gpu_model_pool follows */
    uint32_t max_context;   /* tokens of a sequence; 0: the model's */
    uint32_t block_tokens;  /* 0: MODEL_BLOCK_TOKENS */
    enum model_kv_dtype kv_dtype;
    /* Latent attention: tokens of a context whose keys and values are made at a time, for a long
     * chunk of a prompt; a multiple of 32; 0: GPU_EXPAND_TOKENS. */
    uint32_t expand_tokens;
    uint32_t max_outputs;     /* rows that give logits, 0: max_rows */
    struct model_group group; /* the ranks of a part; no copies of experts, no halves */
    bool host_links;          /* not over NCCL; the same at every rank */
    bool no_graphs;
};

struct gpu_model;
/* `m` is read here and needed no longer than the call; the gpu must outlive the result. */
int gpu_model_new(struct gpu *g, const struct model *m, const struct gpu_model_options *o,
                  struct gpu_model **out, struct err *e) MUST_CHECK;
void gpu_model_free(struct gpu_model *gm);
/* The pool, once it is known how much memory is left (gpu_info, free_bytes). */
int gpu_model_pool(struct gpu_model *gm, uint32_t blocks, struct err *e) MUST_CHECK;
const struct model_kv *gpu_model_kv(const struct gpu_model *gm);

/* As model_work_data_rows, likewise before each batch. */
void gpu_model_data_rows(struct gpu_model *gm, const uint32_t *rows);
/* As model_forward: `b->logits` is host memory. layer_done is called when the device has written
 * the layer's KV, while it computes on; of other stages' layers at the end. */
int gpu_model_forward(struct gpu_model *gm, const struct model_batch *b, struct err *e) MUST_CHECK;

/* A (block, layer) piece of the cache, piece_bytes of it. Reading may be done in layer_done: it
 * waits for that layer only, on the copy stream, beside the computation. */
int gpu_model_read_piece(struct gpu_model *gm, uint32_t block, uint32_t layer, void *out,
                         struct err *e) MUST_CHECK;
/* A block's content, before the next forward. */
int gpu_model_copy_block(struct gpu_model *gm, uint32_t from, uint32_t to,
                         struct err *e) MUST_CHECK;
/* On the copy stream; the next forward waits for it. */
int gpu_model_write_piece(struct gpu_model *gm, uint32_t block, uint32_t layer, const void *from,
                          struct err *e) MUST_CHECK;

/* Layers [from, to) of blocks into `pool`, host memory of the cache's layout; returns when they are
 * there. In layer_done of `from`, with one layer: as above. */
int gpu_model_fetch(struct gpu_model *gm, const uint32_t *blocks, uint32_t n, uint32_t from,
                    uint32_t to, uint8_t *pool, struct err *e) MUST_CHECK;
/* Whole blocks out of `pool`; returns when it may be written again. */
int gpu_model_store(struct gpu_model *gm, const uint32_t *blocks, uint32_t n, const uint8_t *pool,
                    struct err *e) MUST_CHECK;

struct gpu_model_stats {
    uint64_t weight_bytes, kv_bytes, work_bytes; /* on the device */
    uint64_t graph_runs, graphs;
    uint64_t steps, micro_batches;
    uint64_t draws; /* tokens that the device chose */
    /* As in model_work_stats; slots and load of the throughput way only, where they are known. */
    uint64_t dispatches, dispatches_latency, expert_slots, expert_max, expert_ranks;
};
struct gpu_model_stats gpu_model_stats(const struct gpu_model *gm);
