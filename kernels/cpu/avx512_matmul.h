/* avx512_matmul.h: what the matrix products of few and of many tokens share (internal to
 * kernels/cpu). Forms are constants wherever these are called, so that they cost nothing. */
#pragma once
#include "kernels/cpu/v16_avx512.h"

#include <string.h>

INLINE bool form_nibbles(enum mat_form form)
{
    return form == MAT_N4 || form == MAT_N4M || form == MAT_N4MF;
}

INLINE bool form_minima(enum mat_form form)
{
    return form == MAT_N4M || form == MAT_N4MF || form == MAT_I8M || form == MAT_I8MF;
}

INLINE bool form_f32(enum mat_form form) /* scales */
{
    return form == MAT_N4MF || form == MAT_I8MF || form == MAT_I8B16;
}

INLINE int form_zero(enum mat_form form)
{
    return form == MAT_N4 ? 8 : form == MAT_I8 || form == MAT_I8B16 ? 128 : 0;
}

INLINE __m512 scales_at(const uint8_t *p, bool f32, uint32_t i)
{
    return f32 ? _mm512_load_ps((const float *)(const void *)p + (size_t)i * 16)
               : _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)(const void *)p + i));
}

/* From MANY_TOKENS on it pays to take the codes apart first. */
#define MANY_TOKENS 64u
void avx512_matmul_many(const struct mat *m, uint32_t g0, uint32_t g1, const struct acts *x,
                        uint32_t n, float *y, size_t ldy);
