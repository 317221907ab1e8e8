/* bench.h: what the tests of kernels share: an emulated device, numbers, memory of the device, and
 * orders of threads. Every CUDA kernel, executed on the CPU, gives what a plain double-precision
 * computation of the same thing gives, in several orders of threads; what a kernel must not depend
 * on (other rows, the order of threads) is compared bit for bit. $EMU_ORDER is set here. */
#pragma once
#include "kernels/cuda/launch.h"
#include "lib/base/rng.h"
#include "tests/kernels/cuda/emu_device.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static struct rng rng;
static struct gpu *gpu;
static struct err err;

static const char *const orders[] = {"forward", "reverse", "random:1", "random:2"};
#define ORDERS (sizeof orders / sizeof *orders)

static inline float normal(void)
{
    float s = -6;
    for (int i = 0; i < 12; i++)
        s += (float)rng_unit(&rng);
    return s;
}

static inline float bf16(uint16_t v)
{
    uint32_t u = (uint32_t)v << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

static inline uint16_t to_bf16(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static inline float f16(uint16_t v)
{
    _Float16 h;
    memcpy(&h, &v, 2);
    return (float)h;
}

static inline uint16_t to_f16(float f)
{
    _Float16 h = (_Float16)f;
    uint16_t v;
    memcpy(&v, &h, 2);
    return v;
}

#define OK(call)                                                                                   \
    do {                                                                                           \
        if ((call) < 0)                                                                            \
            fail_msg("%s", err.msg);                                                               \
    } while (0)

/* The emulated device's memory is the program's: tests fill and read it directly, between syncs. */
static inline void *room(size_t bytes)
{
    gpu_ptr p;
    OK(gpu->ops->alloc(gpu, bytes, false, &p, &err));
    return (void *)(uintptr_t)p;
}

static inline void give(void *p)
{
    gpu->ops->release(gpu, (uintptr_t)p);
}

static inline void finish(void)
{
    OK(gpu->ops->sync(gpu, GPU_COMPUTE, &err));
}

static inline float *floats(size_t n, float scale)
{
    float *p = room(n * 4);
    for (size_t i = 0; i < n; i++)
        p[i] = normal() * scale;
    return p;
}

static inline uint16_t *halves(size_t n, float scale, uint16_t (*to)(float))
{
    uint16_t *p = room(n * 2);
    for (size_t i = 0; i < n; i++)
        p[i] = to(normal() * scale);
    return p;
}

static inline void near(double got, double want, double tolerance, const char *what, size_t i)
{
    if (!(fabs(got - want) <= tolerance * (fabs(want) + 1)))
        fail_msg("%s: element %zu is %.9g, not %.9g", what, i, got, want);
}

static inline int set_up(void **state)
{
    (void)state;
    rng = (struct rng){20261130};
    gpu = emu_device_new(4);
    return 0;
}

static inline int tear_down(void **state)
{
    (void)state;
    gpu_close(gpu);
    return 0;
}

static inline void each_order(void (*test)(void))
{
    size_t n = getenv("EMU_QUICK") ? 1 : ORDERS; /* race.cc needs no other order */
    for (size_t i = ORDERS - n; i < ORDERS; i++) {
        setenv("EMU_ORDER", orders[i], 1);
        test();
    }
    unsetenv("EMU_ORDER");
}
#define RUN(tests)                                                                                 \
    do {                                                                                           \
        if (getenv("TEST_FILTER"))                                                                 \
            cmocka_set_test_filter(getenv("TEST_FILTER"));                                         \
        return cmocka_run_group_tests(tests, set_up, tear_down);                                   \
    } while (0)
