/* amx.h: AVX-512 with the tile registers of AMX (internal to kernels/cpu). */
#pragma once
#include "kernels/cpu/simd.h"

extern const struct kernel_ops amx_ops;

/* Whether processor and system have them; asks the system for them, once, for all threads. */
bool amx_there(void);
void amx_matmul(const struct mat *m, uint32_t g0, uint32_t g1, const struct acts *x, uint32_t n,
                float *y, size_t ldy);
