/* launch_int.h: how the files of launches check shapes and put kernels on a stream. */
#pragma once
#include "kernels/cuda/launch.h"

#include <errno.h>
#include <stdio.h>

#define CHECK(cond, ...)                                                                           \
    do {                                                                                           \
        if (!(cond))                                                                               \
            return err_set(e, EINVAL, "GPU operation: " __VA_ARGS__);                              \
    } while (0)

/* A grid of nothing is nothing to do. */
int launch_put(struct gpu *g, enum gpu_stream s, const char *kernel, const uint32_t grid[3],
               uint32_t block, uint32_t shared, const void *args, size_t bytes,
               struct err *e) MUST_CHECK;

#define PUT(kernel, x, y, z, block, shared)                                                        \
    launch_put(g, GPU_COMPUTE, kernel, (const uint32_t[]){x, y, z}, block, shared, a, sizeof *a, e)

static inline uint32_t ceil_div(uint32_t a, uint32_t b)
{
    return (a + b - 1) / b;
}
