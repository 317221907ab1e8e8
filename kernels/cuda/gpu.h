/* gpu.h: one NVIDIA GPU as the engine uses it: memory with addresses that outlive sleep, ordered
 * streams and events, launches by kernel name, captured graphs. The implementation is a table, so
 * that the same host code runs over the driver (driver.c, libcuda.so.1 by dlopen: one binary for
 * machines with and without a GPU) and, in tests, over the emulation.
 *
 * Threads: a gpu belongs to one thread, the engine's. Errors: a negative errno and a sentence;
 * -ENODEV from gpu_open means that this machine has no usable GPU (the CPU backend is then the one
 * to take); -EIO is a failure of the device itself, after which only gpu_close is of use.
 *
 * Memory comes from a pool of reserved addresses. gpu_sleep gives the physical memory back and
 * keeps the addresses; what was marked `kept` is copied to the host first. gpu_wake backs the same
 * addresses again, so captured graphs stay valid. Source: CUDA driver API, virtual memory
 * management. */
#pragma once
#include "kernels/cuda/kernels.h"
#include "lib/base/err.h"

typedef uint64_t gpu_ptr; /* an address on the device */

enum gpu_stream { GPU_COMPUTE, GPU_COPY, GPU_STREAMS };

struct gpu_info {
    char name[128];
    uint32_t sm_count, compute; /* compute capability, 90 for 9.0 */
    uint64_t memory_bytes, free_bytes, shared_block_bytes;
};

struct gpu_launch {
    const char *kernel;
    uint32_t grid[3], block[3], shared_bytes;
    const void *args;
    size_t args_bytes;
};

struct gpu_event; /* owned by its gpu */
struct gpu_graph;

struct gpu {
    const struct gpu_ops *ops;
    struct gpu_info info;
    void *gemm; /* cuBLASLt, when it was found (gemm.c) */
};

struct gpu_ops {
    void (*close)(struct gpu *g);
    /* The calling thread is the owner from now on. */
    int (*here)(struct gpu *g, struct err *e) MUST_CHECK;
    /* `kept`: survives sleep. Zeroed. */
    int (*alloc)(struct gpu *g, uint64_t bytes, bool kept, gpu_ptr *out, struct err *e) MUST_CHECK;
    void (*release)(struct gpu *g, gpu_ptr p);
    int (*to_device)(struct gpu *g, enum gpu_stream s, gpu_ptr to, const void *from, uint64_t bytes,
                     struct err *e) MUST_CHECK;
    int (*to_host)(struct gpu *g, enum gpu_stream s, void *to, gpu_ptr from, uint64_t bytes,
                   struct err *e) MUST_CHECK;
    int (*copy)(struct gpu *g, enum gpu_stream s, gpu_ptr to, gpu_ptr from, uint64_t bytes,
                struct err *e) MUST_CHECK;
    /* Host memory that copies go straight to and from: such a copy out of it reads it when it runs.
     * Unpinned before it is given back. */
    int (*pin)(struct gpu *g, void *p, uint64_t bytes, struct err *e) MUST_CHECK;
    void (*unpin)(struct gpu *g, void *p);
    int (*zero)(struct gpu *g, enum gpu_stream s, gpu_ptr p, uint64_t bytes,
                struct err *e) MUST_CHECK;
    int (*launch)(struct gpu *g, enum gpu_stream s, const struct gpu_launch *l,
                  struct err *e) MUST_CHECK;
    int (*sync)(struct gpu *g, enum gpu_stream s, struct err *e) MUST_CHECK;
    int (*event_new)(struct gpu *g, struct gpu_event **out, struct err *e) MUST_CHECK;
    int (*event_record)(struct gpu *g, struct gpu_event *ev, enum gpu_stream s,
                        struct err *e) MUST_CHECK;
    /* Work put on `s` from now on waits for what the event marked. */
    int (*event_wait)(struct gpu *g, struct gpu_event *ev, enum gpu_stream s,
                      struct err *e) MUST_CHECK;
    /* 1 when it has happened, 0 when not yet. */
    int (*event_done)(struct gpu *g, struct gpu_event *ev, struct err *e) MUST_CHECK;
    /* Between begin and end, work put on the compute stream is recorded, not run. Its arguments are
     * fixed then: what changes from step to step lies in device memory. */
    int (*capture_begin)(struct gpu *g, struct err *e) MUST_CHECK;
    int (*capture_end)(struct gpu *g, struct gpu_graph **out, struct err *e) MUST_CHECK;
    int (*graph_run)(struct gpu *g, struct gpu_graph *graph, struct err *e) MUST_CHECK;
    void (*graph_free)(struct gpu *g, struct gpu_graph *graph);
    uint64_t (*room)(struct gpu *g); /* bytes free now */
    int (*sleep)(struct gpu *g, uint64_t *freed_bytes, struct err *e) MUST_CHECK;
    int (*wake)(struct gpu *g, struct err *e) MUST_CHECK;
    /* The stream's native handle, for libraries. */
    void *(*stream)(struct gpu *g, enum gpu_stream s);
};

/* Device `index` of this machine, with the kernels of this build loaded. */
int gpu_open(uint32_t index, struct gpu **out, struct err *e) MUST_CHECK;
/* How many devices there are; 0 without a driver. */
uint32_t gpu_count(void);
void gpu_close(struct gpu *g);
