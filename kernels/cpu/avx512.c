#include "kernels/cpu/simd.h"

const struct kernel_ops avx512_ops = SIMD_TABLE(avx512);
