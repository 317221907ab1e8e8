#include "kernels/cpu/simd.h"

const struct kernel_ops avx2_ops = SIMD_TABLE(avx2);
