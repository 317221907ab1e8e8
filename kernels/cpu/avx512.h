/* avx512.h: vector forms of the arithmetic of kernels/ops.h (internal to kernels/cpu; included only by avx512_*.c). */
#pragma once
#include "kernels/ops.h"

#include <immintrin.h>

#define INLINE static inline __attribute__((always_inline))
#if defined(__clang__) /* loops with constant bounds, so that arrays of vectors become registers */
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

extern const struct kernel_ops avx512_ops;

void avx512_rms_norm(const float *x, const float *w, float eps, uint32_t n, float *y);
void avx512_quantize(const float *x, uint32_t n, int8_t *codes, struct act_block *blocks);
void avx512_matmul(const struct mat *m, uint32_t g0, uint32_t g1, const struct acts *x, uint32_t n, float *y,
                   size_t ldy);
void avx512_matmul_float(const struct mat *m, uint32_t g0, uint32_t g1, const struct acts *x, uint32_t n,
                         float *y, size_t ldy);
void avx512_swiglu(const float *gate, const float *up, uint32_t n, float *out);
void avx512_geglu(const float *gate, const float *up, uint32_t n, float *out);
void avx512_add(float *x, const float *y, uint32_t n);
void avx512_scale(float *x, float s, uint32_t n);
void avx512_attention(const struct attn *a);
void avx512_to_f16(const float *x, uint16_t *out, uint32_t n);
float avx512_max(const float *x, uint32_t n);
double avx512_sum_exp(const float *x, float max, uint32_t n);

/* The lanes of the last vector of a row of n. */
INLINE __mmask16 tail_mask(uint32_t left)
{
    return left >= 16 ? (__mmask16)0xffff : (__mmask16)((1u << left) - 1);
}

INLINE __m512 exp512(__m512 x)
{
    __mmask16 in = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-87.3365f), _CMP_GT_OQ);
    x = _mm512_min_ps(x, _mm512_set1_ps(88.37f));
    __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), _MM_FROUND_TO_NEAREST_INT |
                                                                                       _MM_FROUND_NO_EXC);
    __m512 r = _mm512_fmadd_ps(n, _mm512_set1_ps(-0.693359375f), x);
    r = _mm512_fmadd_ps(n, _mm512_set1_ps(2.12194440e-4f), r);
    __m512 p = _mm512_fmadd_ps(_mm512_set1_ps(1.9875691500e-4f), r, _mm512_set1_ps(1.3981999507e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(8.3334519073e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.1665795894e-2f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.6666665459e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.0000001201e-1f));
    __m512 y = _mm512_add_ps(_mm512_fmadd_ps(p, _mm512_mul_ps(r, r), r), _mm512_set1_ps(1.0f));
    __m512i bits = _mm512_add_epi32(_mm512_castps_si512(y), _mm512_slli_epi32(_mm512_cvtps_epi32(n), 23));
    return _mm512_maskz_mov_ps(in, _mm512_castsi512_ps(bits));
}

/* The sum of 16 lanes, in the order that all backends use. */
INLINE float lanes512(__m512 v)
{
    __m256 a = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}
