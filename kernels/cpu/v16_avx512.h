/* v16_avx512.h: sixteen floats or integers in AVX-512, under the names that simd_rows.h and
 * simd_attention.h are written in (internal to kernels/cpu; v16_avx2.h has the same in pairs of
 * AVX2 registers). Loads and stores of n < 16 elements touch only those; what is not loaded is 0.
 */
#pragma once
#include "kernels/cpu/simd.h"

#include <immintrin.h>

#define ISA(name)     avx512_##name
#define SCORE_QUERIES 8u

typedef __m512 v16;
typedef __m512i v16i;

INLINE __mmask16 first_n(uint32_t n)
{
    return (__mmask16)(n >= 16 ? 0xffffu : (1u << n) - 1);
}

INLINE v16 v_set1(float f)
{
    return _mm512_set1_ps(f);
}
INLINE v16 v_load(const float *p)
{
    return _mm512_loadu_ps(p);
}
INLINE v16 v_load_n(const float *p, uint32_t n)
{
    return _mm512_maskz_loadu_ps(first_n(n), p);
}
INLINE void v_store(float *p, v16 v)
{
    _mm512_storeu_ps(p, v);
}
INLINE void v_store_n(float *p, v16 v, uint32_t n)
{
    _mm512_mask_storeu_ps(p, first_n(n), v);
}
INLINE v16 v_add(v16 a, v16 b)
{
    return _mm512_add_ps(a, b);
}
INLINE v16 v_sub(v16 a, v16 b)
{
    return _mm512_sub_ps(a, b);
}
INLINE v16 v_mul(v16 a, v16 b)
{
    return _mm512_mul_ps(a, b);
}
INLINE v16 v_div(v16 a, v16 b)
{
    return _mm512_div_ps(a, b);
}
INLINE v16 v_fma(v16 a, v16 b, v16 c)
{
    return _mm512_fmadd_ps(a, b, c);
}
INLINE v16 v_min(v16 a, v16 b)
{
    return _mm512_min_ps(a, b);
} /* b when either is NaN */
INLINE v16 v_max(v16 a, v16 b)
{
    return _mm512_max_ps(a, b);
}
INLINE v16 v_abs(v16 a)
{
    return _mm512_abs_ps(a);
}
INLINE v16 v_neg(v16 a)
{
    return _mm512_xor_ps(a, _mm512_set1_ps(-0.0f));
}
INLINE v16 v_round(v16 a)
{
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
INLINE float v_first(v16 a)
{
    return _mm512_cvtss_f32(a);
}
INLINE float v_max_of(v16 a)
{
    return _mm512_reduce_max_ps(a);
}

/* v where x > limit, else 0. */
INLINE v16 v_where_above(v16 x, float limit, v16 v)
{
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(limit), _CMP_GT_OQ), v);
}

/* Lanes whose bit is set from v, the others from other. */
INLINE v16 v_choose(uint32_t bits, v16 v, v16 other)
{
    return _mm512_mask_mov_ps(other, (__mmask16)bits, v);
}

INLINE v16 v_load_f16(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}

INLINE v16 v_load_bf16(const uint16_t *p)
{
    __m256i h = _mm256_loadu_si256((const __m256i *)(const void *)p);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

/* A 256th of what E4M3 codes stand for. */
INLINE v16 v_load_f8(const uint8_t *p)
{
    __m256i b = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(const void *)p));
    __m256i sign = _mm256_slli_epi16(_mm256_and_si256(b, _mm256_set1_epi16(0x80)), 8);
    __m256i rest = _mm256_slli_epi16(_mm256_and_si256(b, _mm256_set1_epi16(0x7f)), 7);
    return _mm512_cvtph_ps(_mm256_or_si256(sign, rest));
}

/* Signed bytes. */
INLINE v16 v_load_i8(const int8_t *p)
{
    return _mm512_cvtepi32_ps(
        _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)));
}

INLINE void v_store_f16_n(uint16_t *p, v16 v, uint32_t n)
{
    _mm256_mask_storeu_epi16(p, first_n(n), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}

/* The sum of 16 lanes, in the order that all backends use. */
INLINE float v_sum(v16 v)
{
    __m256 a = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}

/* sums[i] += v[i], in f64. */
INLINE void v_add_f64(double sums[16], v16 v)
{
    _mm512_storeu_pd(
        sums, _mm512_add_pd(_mm512_loadu_pd(sums), _mm512_cvtps_pd(_mm512_castps512_ps256(v))));
    _mm512_storeu_pd(sums + 8, _mm512_add_pd(_mm512_loadu_pd(sums + 8),
                                             _mm512_cvtps_pd(_mm512_extractf32x8_ps(v, 1))));
}

INLINE v16i vi_from(v16 v)
{
    return _mm512_cvtps_epi32(v);
}
INLINE v16i vi_set1(int32_t i)
{
    return _mm512_set1_epi32(i);
}
INLINE v16i vi_add(v16i a, v16i b)
{
    return _mm512_add_epi32(a, b);
}
INLINE v16i vi_sub(v16i a, v16i b)
{
    return _mm512_sub_epi32(a, b);
}
#define vi_shl(a, n) _mm512_slli_epi32(a, n)
#define vi_sar(a, n) _mm512_srai_epi32(a, n)
INLINE v16 vi_as_float(v16i a)
{
    return _mm512_castsi512_ps(a);
}
INLINE v16i vi_of_float(v16 a)
{
    return _mm512_castps_si512(a);
}
INLINE int32_t vi_sum(v16i a)
{
    return _mm512_reduce_add_epi32(a);
}

INLINE void vi_store_bytes(int8_t *p, v16i a)
{
    _mm_storeu_si128((__m128i *)(void *)p, _mm512_cvtepi32_epi8(a));
}

/* Rows r[0..15] of 16 floats become columns. */
INLINE void v_transpose(v16 r[16])
{
    __m512 t[16];
    UNROLL
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
    UNROLL
    for (int i = 0; i < 16; i += 4) {
        UNROLL
        for (int j = 0; j < 2; j++) {
            __m512d a = _mm512_castps_pd(t[i + j]), b = _mm512_castps_pd(t[i + j + 2]);
            r[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
            r[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
        }
    }
    UNROLL
    for (int i = 0; i < 4; i++) { /* r[4q + i]: column 4l + i of rows 4q..4q+3 in 128-bit lane l */
        t[i] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0xdd);
    }
    UNROLL
    for (int i = 0; i < 4; i++) {
        r[i] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88);
        r[i + 8] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0xdd);
        r[i + 4] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0x88);
        r[i + 12] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0xdd);
    }
}
