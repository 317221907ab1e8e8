#include "kernels/cpu/avx512.h"

const struct kernel_ops avx512_ops = {
    .name = "avx512",
    .rms_norm = avx512_rms_norm,
    .quantize = avx512_quantize,
    .matmul = avx512_matmul,
    .swiglu = avx512_swiglu,
    .geglu = avx512_geglu,
    .add = avx512_add,
    .scale = avx512_scale,
    .attention = avx512_attention,
    .to_f16 = avx512_to_f16,
    .max = avx512_max,
    .sum_exp = avx512_sum_exp,
};
