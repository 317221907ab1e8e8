#include "kernels/cpu/scalar.h"

const struct kernel_ops scalar_ops = {
    .name = "scalar",
    .rms_norm = scalar_rms_norm,
    .quantize = scalar_quantize,
    .matmul = scalar_matmul,
    .swiglu = scalar_swiglu,
    .geglu = scalar_geglu,
    .add = scalar_add,
    .scale = scalar_scale,
    .attention = scalar_attention,
    .to_f16 = scalar_to_f16,
    .max = scalar_max,
    .sum_exp = scalar_sum_exp,
};
