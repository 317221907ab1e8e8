/* Products with F32, F16 and BF16 matrices, AVX-512: fma over the columns in order. */
#include "kernels/cpu/avx512.h"

#define TOKENS 8u

INLINE __m512 weights(enum mat_form form, const uint8_t *rec, uint32_t k)
{
    if (form == MAT_F32)
        return _mm512_loadu_ps((const float *)(const void *)rec + (size_t)k * 16);
    __m256i h = _mm256_loadu_si256((const __m256i *)(const void *)rec + k);
    if (form == MAT_F16)
        return _mm512_cvtph_ps(h);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

/* One group of rows by up to 8 tokens (nt is a constant where it is 8). */
INLINE void tile(enum mat_form form, const uint8_t *rec, uint32_t cols, const float *x, size_t ldx, uint32_t nt,
                 float *y, size_t ldy, __mmask16 rows)
{
    __m512 acc[TOKENS];
    UNROLL
    for (uint32_t t = 0; t < TOKENS; t++)
        acc[t] = _mm512_setzero_ps();
    for (uint32_t k = 0; k < cols; k++) {
        __m512 w = weights(form, rec, k);
        UNROLL
        for (uint32_t t = 0; t < nt; t++)
            acc[t] = _mm512_fmadd_ps(w, _mm512_set1_ps(x[t * ldx + k]), acc[t]);
    }
    UNROLL
    for (uint32_t t = 0; t < nt; t++)
        _mm512_mask_storeu_ps(y + t * ldy, rows, acc[t]);
}

INLINE void groups(enum mat_form form, const struct mat *m, uint32_t g0, uint32_t g1, const struct acts *x, uint32_t n,
                   float *y, size_t ldy)
{
    struct mat_shape s;
    mat_shape(form, m->rows, m->cols, &s);
    for (uint32_t g = g0; g < g1; g++) {
        const uint8_t *rec = m->data + g * s.group_bytes;
        __mmask16 rows = tail_mask(m->rows - g * GROUP_ROWS);
        uint32_t t = 0;
        for (; t + TOKENS <= n; t += TOKENS)
            tile(form, rec, m->cols, x->x + t * x->ldx, x->ldx, TOKENS, y + t * ldy + g * GROUP_ROWS, ldy, rows);
        for (; t < n; t++)
            tile(form, rec, m->cols, x->x + t * x->ldx, x->ldx, 1, y + t * ldy + g * GROUP_ROWS, ldy, rows);
    }
}

void avx512_matmul_float(const struct mat *m, uint32_t g0, uint32_t g1, const struct acts *x, uint32_t n,
                         float *y, size_t ldy)
{
    if (m->form == MAT_F32)
        groups(MAT_F32, m, g0, g1, x, n, y, ldy);
    else if (m->form == MAT_F16)
        groups(MAT_F16, m, g0, g1, x, n, y, ldy);
    else
        groups(MAT_BF16, m, g0, g1, x, n, y, ldy);
}
