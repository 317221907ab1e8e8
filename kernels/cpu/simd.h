/* simd.h: what the vector backends share (internal to kernels/cpu). Each backend compiles
 * simd_rows.h and simd_attention.h over its own v16_*.h, and has its own matrix products. */
#pragma once
#include "kernels/ops.h"

#define INLINE static inline __attribute__((always_inline))
/* Before loops with constant bounds, so that arrays of vectors become registers. */
#if defined(KERNELS_ROLLED)
#define UNROLL
#elif defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

#define SIMD_DECLARE(isa)                                                                          \
    void isa##_rms_norm(const float *x, const float *w, float eps, uint32_t n, float *y);          \
    void isa##_quantize(const float *x, uint32_t n, int8_t *codes, struct act_block *blocks);      \
    void isa##_matmul(const struct mat *m, uint32_t g0, uint32_t g1, const struct acts *x,         \
                      uint32_t n, float *y, size_t ldy);                                           \
    void isa##_matmul_float(const struct mat *m, uint32_t g0, uint32_t g1, const struct acts *x,   \
                            uint32_t n, float *y, size_t ldy);                                     \
    void isa##_swiglu(const float *gate, const float *up, uint32_t n, float *out);                 \
    void isa##_geglu(const float *gate, const float *up, uint32_t n, float *out);                  \
    void isa##_add(float *x, const float *y, uint32_t n);                                          \
    void isa##_scale(float *x, float s, uint32_t n);                                               \
    void isa##_attention(const struct attn *a);                                                    \
    void isa##_to_f16(const float *x, uint16_t *out, uint32_t n);                                  \
    float isa##_max(const float *x, uint32_t n);                                                   \
    double isa##_sum_exp(const float *x, float max, uint32_t n);                                   \
    extern const struct kernel_ops isa##_ops;
#define SIMD_TABLE(isa)                                                                            \
    {                                                                                              \
        .name = #isa, .rms_norm = isa##_rms_norm, .quantize = isa##_quantize,                      \
        .matmul = isa##_matmul, .swiglu = isa##_swiglu, .geglu = isa##_geglu, .add = isa##_add,    \
        .scale = isa##_scale, .attention = isa##_attention, .to_f16 = isa##_to_f16,                \
        .max = isa##_max, .sum_exp = isa##_sum_exp                                                 \
    }

SIMD_DECLARE(avx512)
SIMD_DECLARE(avx2)
