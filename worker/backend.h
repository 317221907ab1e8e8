/* backend.h: what computes this rank's part of the model: the CPU, or a GPU (worker/gpu) behind the
 * group's device interface.
 *
 * --backend cpu   the CPU
 *           cuda  a GPU, or an error with the reason
 *           auto  a GPU where there is one that can run the model, else the CPU; the ranks of a
 *                 group agree
 *
 * The rank's GPU is the one with its number within its pod. Its KV is not f32. Data goes between
 * GPUs over NCCL; where a rank has none, through host memory (with a warning). Threads: the
 * engine's (made before it starts, freed after it ended). */
#pragma once
#include "kernels/cuda/gpu.h"
#include "worker/comm/comm.h"
#include "worker/layout/group.h"
#include "worker/model/shard.h"

struct backend;

struct backend_config {
    const char *name;          /* of --backend */
    const struct model *model; /* this rank's part; outlives the backend */
    struct comm *world;        /* NULL: one rank */
    uint32_t index;            /* of the GPU */
    struct model_layout layout;
    uint32_t rank;            /* of the group */
    struct model_group group; /* how rows travel (its communicators are made here) */
    enum group_halves halves;
    uint32_t max_rows, max_sequences, max_outputs, max_context, block_tokens;
    enum model_kv_dtype kv_dtype;
};

/* *out NULL: the CPU. Weights are on the device then. Every rank of the group calls it. */
int backend_open(const struct backend_config *c, struct backend **out, struct err *e) MUST_CHECK;
/* Blocks that the device has room for. */
uint32_t backend_room(const struct backend *b);
/* The device's pool, and the host's that KV passes through (NULL: none does). */
int backend_pool(struct backend *b, uint32_t blocks, void *host, uint64_t host_bytes,
                 struct err *e) MUST_CHECK;
const struct group_device *backend_device(const struct backend *b); /* of NULL: NULL */
const char *backend_name(const struct backend *b);                  /* "cpu", or the GPU's name */
void backend_free(struct backend *b);
