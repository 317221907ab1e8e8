/* Operations on rows, AVX-512. Bits are those of scalar_rows.c and scalar_quantize. */
#include "kernels/cpu/avx512.h"

#include <math.h>

void avx512_rms_norm(const float *x, const float *w, float eps, uint32_t n, float *y)
{
    __m512 sum = _mm512_setzero_ps();
    for (uint32_t i = 0; i < n; i += 16) {
        __m512 v = _mm512_maskz_loadu_ps(tail_mask(n - i), x + i);
        sum = _mm512_fmadd_ps(v, v, sum);
    }
    __m512 inv = _mm512_set1_ps(1.0f / sqrtf(lanes512(sum) / (float)n + eps));
    for (uint32_t i = 0; i < n; i += 16) {
        __mmask16 m = tail_mask(n - i);
        __m512 v = _mm512_mul_ps(_mm512_maskz_loadu_ps(m, x + i), inv);
        _mm512_mask_storeu_ps(y + i, m, _mm512_mul_ps(v, _mm512_maskz_loadu_ps(m, w + i)));
    }
}

void avx512_add(float *x, const float *y, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 16) {
        __mmask16 m = tail_mask(n - i);
        __m512 v = _mm512_add_ps(_mm512_maskz_loadu_ps(m, x + i), _mm512_maskz_loadu_ps(m, y + i));
        _mm512_mask_storeu_ps(x + i, m, v);
    }
}

void avx512_scale(float *x, float s, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 16) {
        __mmask16 m = tail_mask(n - i);
        _mm512_mask_storeu_ps(x + i, m, _mm512_mul_ps(_mm512_maskz_loadu_ps(m, x + i), _mm512_set1_ps(s)));
    }
}

void avx512_swiglu(const float *gate, const float *up, uint32_t n, float *out)
{
    const __m512 one = _mm512_set1_ps(1.0f), sign = _mm512_set1_ps(-0.0f);
    for (uint32_t i = 0; i < n; i += 16) {
        __mmask16 m = tail_mask(n - i);
        __m512 g = _mm512_maskz_loadu_ps(m, gate + i), u = _mm512_maskz_loadu_ps(m, up + i);
        __m512 d = _mm512_add_ps(one, exp512(_mm512_xor_ps(g, sign)));
        _mm512_mask_storeu_ps(out + i, m, _mm512_mul_ps(_mm512_div_ps(g, d), u));
    }
}

void avx512_geglu(const float *gate, const float *up, uint32_t n, float *out)
{
    const __m512 one = _mm512_set1_ps(1.0f);
    for (uint32_t i = 0; i < n; i += 16) {
        __mmask16 m = tail_mask(n - i);
        __m512 x = _mm512_maskz_loadu_ps(m, gate + i);
        __m512 u = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_set1_ps(0.044715f), x), x, one);
        u = _mm512_mul_ps(_mm512_mul_ps(x, u), _mm512_set1_ps(-1.59576912f));
        __m512 y = _mm512_div_ps(x, _mm512_add_ps(one, exp512(u)));
        _mm512_mask_storeu_ps(out + i, m, _mm512_mul_ps(y, _mm512_maskz_loadu_ps(m, up + i)));
    }
}

void avx512_to_f16(const float *x, uint16_t *out, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 16) {
        __mmask16 m = tail_mask(n - i);
        __m256i h = _mm512_cvtps_ph(_mm512_maskz_loadu_ps(m, x + i), _MM_FROUND_TO_NEAREST_INT);
        _mm256_mask_storeu_epi16(out + i, m, h);
    }
}

float avx512_max(const float *x, uint32_t n)
{
    const __m512 none = _mm512_set1_ps(-INFINITY);
    __m512 best = none;
    for (uint32_t i = 0; i < n; i += 16)
        best = _mm512_max_ps(_mm512_mask_loadu_ps(none, tail_mask(n - i), x + i), best);
    return _mm512_reduce_max_ps(best);
}

double avx512_sum_exp(const float *x, float max, uint32_t n)
{
    __m512d lo = _mm512_setzero_pd(), hi = lo;
    for (uint32_t i = 0; i < n; i += 16) {
        __mmask16 m = tail_mask(n - i);
        __m512 v = exp512(_mm512_sub_ps(_mm512_maskz_loadu_ps(m, x + i), _mm512_set1_ps(max)));
        v = _mm512_maskz_mov_ps(m, v);
        lo = _mm512_add_pd(lo, _mm512_cvtps_pd(_mm512_castps512_ps256(v)));
        hi = _mm512_add_pd(hi, _mm512_cvtps_pd(_mm512_extractf32x8_ps(v, 1)));
    }
    double v[8];
    _mm512_storeu_pd(v, _mm512_add_pd(lo, hi));
    for (int i = 0; i < 4; i++)
        v[i] += v[i + 4];
    return (v[0] + v[2]) + (v[1] + v[3]);
}

/* ---- quantisation of activations ---- */

/* 16 columns, scaled, to h and l; returns their codes. */
INLINE __m512i quantize_16(__m512 x, __m512 inv, int8_t *codes)
{
    const __m512 top = _mm512_set1_ps(ACT_STEPS), low = _mm512_set1_ps(-ACT_STEPS);
    __m512 v = _mm512_roundscale_ps(_mm512_mul_ps(x, inv), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512i q = _mm512_cvtps_epi32(_mm512_max_ps(_mm512_min_ps(v, top), low));
    __m512i h = _mm512_srai_epi32(_mm512_add_epi32(q, _mm512_set1_epi32(64)), 7);
    __m512i l = _mm512_sub_epi32(q, _mm512_slli_epi32(h, 7));
    _mm_storeu_si128((__m128i *)(void *)codes, _mm512_cvtepi32_epi8(h));
    _mm_storeu_si128((__m128i *)(void *)(codes + BLOCK_COLS), _mm512_cvtepi32_epi8(l));
    return q;
}

void avx512_quantize(const float *x, uint32_t n, int8_t *codes, struct act_block *blocks)
{
    for (uint32_t i = 0; i < n; i += BLOCK_COLS, codes += ACT_BLOCK_BYTES) {
        uint32_t left = n - i;
        __m512 a = _mm512_maskz_loadu_ps(tail_mask(left), x + i);
        __m512 b = _mm512_maskz_loadu_ps(left > 16 ? tail_mask(left - 16) : 0, x + i + 16);
        __m512 most = _mm512_max_ps(_mm512_abs_ps(a), _mm512_setzero_ps());
        float max = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(b), most));
        float inv = max > 1e-30f ? ACT_STEPS / max : 0.0f, scale = inv > 0.0f ? max / ACT_STEPS : 0.0f;
        __m512i qa = quantize_16(a, _mm512_set1_ps(inv), codes);
        __m512i qb = quantize_16(b, _mm512_set1_ps(inv), codes + 16);
        int32_t low = _mm512_reduce_add_epi32(qa), sum = low + _mm512_reduce_add_epi32(qb);
        blocks[i / BLOCK_COLS] = (struct act_block){
            .scale = scale, .scaled_sum = scale * (float)sum, .neg_sum = -sum, .neg_low = -low};
    }
}
