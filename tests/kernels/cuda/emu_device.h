/* emu_device.h: a gpu (kernels/cuda/gpu.h) whose driver is the stand-in of libcuda.cc, which the
 * tests are linked with: driver.c finds it by its name, libcuda.so.1. */
#pragma once
#include <stdint.h>
#include <stdlib.h>

/* Work that ran so far, of all devices; `captured`: put into graphs. */
struct emu_counts {
    uint64_t launches, copies, graphs, captured;
};
#ifdef __cplusplus
extern "C" struct emu_counts emu_device_counts(void);
#else
#include "kernels/cuda/gpu.h"

#include <stdio.h>

struct emu_counts emu_device_counts(void);

static inline struct gpu *emu_device_new(unsigned sms)
{
    char text[16];
    struct gpu *g = NULL;
    struct err e = {0};
    snprintf(text, sizeof text, "%u", sms);
    setenv("EMU_SMS", text, 1);
    setenv("BATON_CUBLASLT", "0", 1); /* it would want a real device */
    if (gpu_open(0, &g, &e)) {
        fprintf(stderr, "%s\n", e.msg);
        abort();
    }
    return g;
}
#endif
