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

void avx512_scale_f16(float *x, float s, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 16) {
        __mmask16 m = tail_mask(n - i);
        __m512 v = round_f16(_mm512_maskz_loadu_ps(m, x + i));
        _mm512_mask_storeu_ps(x + i, m, _mm512_mul_ps(v, _mm512_set1_ps(s)));
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
    const __m512 one = _mm512_set1_ps(1.0f), ten = _mm512_set1_ps(10.0f), low = _mm512_set1_ps(-10.0f);
    for (uint32_t i = 0; i < n; i += 16) {
        __mmask16 m = tail_mask(n - i);
        __m512 g = _mm512_maskz_loadu_ps(m, gate + i), x = round_f16(g);
        __m512 u = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_set1_ps(0.044715f), x), x, one);
        u = _mm512_mul_ps(_mm512_mul_ps(x, u), _mm512_set1_ps(-1.59576912f));
        __m512 y = round_f16(_mm512_div_ps(x, _mm512_add_ps(one, exp512(u))));
        y = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(g, low, _CMP_GT_OQ), y);
        y = _mm512_mask_mov_ps(g, _mm512_cmp_ps_mask(g, ten, _CMP_LT_OQ), y);
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

INLINE float abs_max(const float *x, uint32_t n)
{
    __m512 best = _mm512_setzero_ps();
    for (uint32_t i = 0; i < n; i += 16)
        best = _mm512_max_ps(_mm512_abs_ps(_mm512_maskz_loadu_ps(tail_mask(n - i), x + i)), best);
    return _mm512_reduce_max_ps(best);
}

/* 16 columns; returns the sum of their codes. */
INLINE int32_t quantize_16(const float *x, uint32_t n, float inv, int8_t *codes)
{
    const __m512 top = _mm512_set1_ps(ACT_STEPS), low = _mm512_set1_ps(-ACT_STEPS);
    __m512 v = _mm512_mul_ps(_mm512_maskz_loadu_ps(tail_mask(n), x), _mm512_set1_ps(inv));
    v = _mm512_roundscale_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    v = _mm512_max_ps(_mm512_min_ps(v, top), low);
    __m512i q = _mm512_cvtps_epi32(v);
    _mm_storeu_si128((__m128i *)(void *)codes, _mm512_cvtepi32_epi8(q));
    return _mm512_reduce_add_epi32(q);
}

INLINE float f16_of(float f)
{
    return _cvtsh_ss(_cvtss_sh(f, _MM_FROUND_TO_NEAREST_INT));
}

void avx512_quantize(enum act_kind kind, const float *x, uint32_t n, int8_t *codes, struct act_block *blocks)
{
    uint32_t step = kind == ACT_K ? ACT_COLS_K : BLOCK_COLS;
    for (uint32_t i = 0; i < n; i += step) {
        uint32_t end = n - i < step ? n : i + step;
        float max = abs_max(x + i, end - i), inv = max > 1e-30f ? ACT_STEPS / max : 0.0f;
        float scale = inv == 0.0f ? 0.0f : kind == ACT_K ? 1.0f / inv : max / ACT_STEPS;
        for (uint32_t c = i; c < end; c += BLOCK_COLS) {
            uint32_t left = end - c;
            int32_t low = quantize_16(x + c, left, inv, codes + c);
            int32_t high = quantize_16(x + c + 16, left > 16 ? left - 16 : 0, inv, codes + c + 16);
            float sum = scale * (float)(low + high);
            blocks[c / BLOCK_COLS] = (struct act_block){.scale = kind == ACT_K ? scale : f16_of(scale),
                                                        .scaled_sum = kind == ACT_K ? sum : f16_of(sum),
                                                        .neg_sum = -(low + high),
                                                        .neg_low = -low};
        }
    }
}
