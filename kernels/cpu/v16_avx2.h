/* v16_avx2.h: sixteen floats or integers in pairs of AVX2 registers (with FMA and F16C); see
 * v16_avx512.h. */
#pragma once
#include "kernels/cpu/simd.h"

#include <immintrin.h>
#include <string.h>

#define ISA(name)     avx2_##name
#define SCORE_QUERIES 4u

typedef struct {
    __m256 a, b;
} v16;
typedef struct {
    __m256i a, b;
} v16i;

INLINE v16 v_set1(float f)
{
    return (v16){_mm256_set1_ps(f), _mm256_set1_ps(f)};
}
INLINE v16 v_load(const float *p)
{
    return (v16){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
INLINE void v_store(float *p, v16 v)
{
    _mm256_storeu_ps(p, v.a);
    _mm256_storeu_ps(p + 8, v.b);
}

INLINE v16 v_load_n(const float *p, uint32_t n)
{
    float t[16] = {0};
    if (n >= 16)
        return v_load(p);
    memcpy(t, p, n * sizeof *t);
    return v_load(t);
}

INLINE void v_store_n(float *p, v16 v, uint32_t n)
{
    float t[16];
    if (n >= 16) {
        v_store(p, v);
        return;
    }
    v_store(t, v);
    memcpy(p, t, n * sizeof *t);
}

INLINE v16 v_add(v16 x, v16 y)
{
    return (v16){_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)};
}
INLINE v16 v_sub(v16 x, v16 y)
{
    return (v16){_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)};
}
INLINE v16 v_mul(v16 x, v16 y)
{
    return (v16){_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)};
}
INLINE v16 v_div(v16 x, v16 y)
{
    return (v16){_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)};
}
INLINE v16 v_fma(v16 x, v16 y, v16 z)
{
    return (v16){_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
INLINE v16 v_min(v16 x, v16 y)
{
    return (v16){_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)};
}
INLINE v16 v_max(v16 x, v16 y)
{
    return (v16){_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)};
}

INLINE v16 v_abs(v16 x)
{
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return (v16){_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b)};
}

INLINE v16 v_neg(v16 x)
{
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return (v16){_mm256_xor_ps(sign, x.a), _mm256_xor_ps(sign, x.b)};
}

INLINE v16 v_round(v16 x)
{
    return (v16){_mm256_round_ps(x.a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
                 _mm256_round_ps(x.b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}

INLINE float v_first(v16 x)
{
    return _mm256_cvtss_f32(x.a);
}
INLINE float v_max_of(v16 x)
{
    __m256 m = _mm256_max_ps(x.a, x.b);
    __m128 h = _mm_max_ps(_mm256_castps256_ps128(m), _mm256_extractf128_ps(m, 1));
    h = _mm_max_ps(h, _mm_movehl_ps(h, h));
    return _mm_cvtss_f32(_mm_max_ss(h, _mm_movehdup_ps(h)));
}

INLINE v16 v_where_above(v16 x, float limit, v16 v)
{
    __m256 l = _mm256_set1_ps(limit);
    return (v16){_mm256_and_ps(_mm256_cmp_ps(x.a, l, _CMP_GT_OQ), v.a),
                 _mm256_and_ps(_mm256_cmp_ps(x.b, l, _CMP_GT_OQ), v.b)};
}

INLINE __m256 lanes_of_bits(uint32_t bits)
{
    const __m256i each = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    __m256i b = _mm256_and_si256(_mm256_set1_epi32((int32_t)bits), each);
    return _mm256_castsi256_ps(_mm256_cmpeq_epi32(b, each));
}

INLINE v16 v_choose(uint32_t bits, v16 v, v16 other)
{
    return (v16){_mm256_blendv_ps(other.a, v.a, lanes_of_bits(bits)),
                 _mm256_blendv_ps(other.b, v.b, lanes_of_bits(bits >> 8))};
}

INLINE v16 v_load_f16(const uint16_t *p)
{
    const __m128i *q = (const __m128i *)(const void *)p;
    return (v16){_mm256_cvtph_ps(_mm_loadu_si128(q)), _mm256_cvtph_ps(_mm_loadu_si128(q + 1))};
}

INLINE v16 v_load_bf16(const uint16_t *p)
{
    const __m128i *q = (const __m128i *)(const void *)p;
    return (v16){
        _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(q)), 16)),
        _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(q + 1)), 16))};
}

/* A 256th of what E4M3 codes stand for. */
INLINE v16 v_load_f8(const uint8_t *p)
{
    __m256i b = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(const void *)p));
    __m256i sign = _mm256_slli_epi16(_mm256_and_si256(b, _mm256_set1_epi16(0x80)), 8);
    __m256i rest = _mm256_slli_epi16(_mm256_and_si256(b, _mm256_set1_epi16(0x7f)), 7);
    __m256i h = _mm256_or_si256(sign, rest);
    return (v16){_mm256_cvtph_ps(_mm256_castsi256_si128(h)),
                 _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1))};
}

/* Signed bytes. */
INLINE v16 v_load_i8(const int8_t *p)
{
    __m128i b = _mm_loadu_si128((const __m128i *)(const void *)p);
    return (v16){_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(b)),
                 _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(b, 8)))};
}

INLINE void v_store_f16_n(uint16_t *p, v16 v, uint32_t n)
{
    __m128i h[2] = {_mm256_cvtps_ph(v.a, _MM_FROUND_TO_NEAREST_INT),
                    _mm256_cvtps_ph(v.b, _MM_FROUND_TO_NEAREST_INT)};
    memcpy(p, h, (n < 16 ? n : 16) * sizeof *p);
}

INLINE float v_sum(v16 v)
{
    __m256 a = _mm256_add_ps(v.a, v.b);
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}

INLINE void v_add_f64(double sums[16], v16 v)
{
    float f[16];
    v_store(f, v);
    for (int i = 0; i < 16; i++)
        sums[i] += (double)f[i];
}

INLINE v16i vi_from(v16 v)
{
    return (v16i){_mm256_cvtps_epi32(v.a), _mm256_cvtps_epi32(v.b)};
}
INLINE v16i vi_set1(int32_t i)
{
    return (v16i){_mm256_set1_epi32(i), _mm256_set1_epi32(i)};
}
INLINE v16i vi_add(v16i x, v16i y)
{
    return (v16i){_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)};
}
INLINE v16i vi_sub(v16i x, v16i y)
{
    return (v16i){_mm256_sub_epi32(x.a, y.a), _mm256_sub_epi32(x.b, y.b)};
}
#define vi_shl(x, n) ((v16i){_mm256_slli_epi32((x).a, n), _mm256_slli_epi32((x).b, n)})
#define vi_sar(x, n) ((v16i){_mm256_srai_epi32((x).a, n), _mm256_srai_epi32((x).b, n)})
INLINE v16 vi_as_float(v16i x)
{
    return (v16){_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)};
}
INLINE v16i vi_of_float(v16 x)
{
    return (v16i){_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)};
}

INLINE int32_t vi_sum(v16i x)
{
    __m256i s = _mm256_add_epi32(x.a, x.b);
    __m128i h = _mm_add_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
    h = _mm_add_epi32(h, _mm_shuffle_epi32(h, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(h, _mm_shuffle_epi32(h, 0xb1)));
}

INLINE void vi_store_bytes(int8_t *p, v16i x)
{
    __m128i lo = _mm_packs_epi32(_mm256_castsi256_si128(x.a), _mm256_extracti128_si256(x.a, 1));
    __m128i hi = _mm_packs_epi32(_mm256_castsi256_si128(x.b), _mm256_extracti128_si256(x.b, 1));
    _mm_storeu_si128((__m128i *)(void *)p, _mm_packs_epi16(lo, hi));
}

/* Eight rows of eight become columns. */
INLINE void transpose_8(__m256 r[8])
{
    __m256 t[8], u[8];
    UNROLL
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    UNROLL
    for (int i = 0; i < 8; i += 4) {
        u[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        u[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
        u[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        u[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    UNROLL
    for (int i = 0; i < 4; i++) {
        r[i] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
        r[i + 4] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
    }
}

INLINE void v_transpose(v16 r[16])
{
    __m256 q[4][8];
    for (int i = 0; i < 8; i++) {
        q[0][i] = r[i].a;
        q[1][i] = r[i].b;
        q[2][i] = r[i + 8].a;
        q[3][i] = r[i + 8].b;
    }
    for (int k = 0; k < 4; k++)
        transpose_8(q[k]);
    for (int i = 0; i < 8; i++) {
        r[i] = (v16){q[0][i], q[2][i]};
        r[i + 8] = (v16){q[1][i], q[3][i]};
    }
}
