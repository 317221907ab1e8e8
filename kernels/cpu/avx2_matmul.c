/* Matrix products, AVX2. Byte products go through vpmaddubsw, whose 16-bit sums must not saturate:
 * codes below 128 are used as they are, codes around the zero 128 as below. Bits are those of
 * scalar_matmul.c. */
#include "kernels/cpu/v16_avx2.h"

struct sums {
    v16i h, l;
};

/* acc += 16 rows x 4 columns of codes times 4 activations. `zero128`: codes are w + 128; w x is |w|
 * times x with w's sign, at most 2 x 128 x 127 = 32,512. */
INLINE __m256i dot_half(__m256i acc, __m256i w, __m256i x, bool zero128)
{
    if (zero128) {
        w = _mm256_xor_si256(w, _mm256_set1_epi8(-128));
        x = _mm256_sign_epi8(x, w);
        w = _mm256_abs_epi8(w);
    }
    __m256i pairs = _mm256_maddubs_epi16(w, x);
    return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

INLINE __m256i four_codes(const int8_t *p)
{
    int32_t v;
    memcpy(&v, p, 4);
    return _mm256_set1_epi32(v);
}

INLINE void dot(struct sums *s, v16i w, const int8_t *codes, bool zero128)
{
    __m256i h = four_codes(codes), l = four_codes(codes + BLOCK_COLS);
    s->h.a = dot_half(s->h.a, w.a, h, zero128);
    s->h.b = dot_half(s->h.b, w.b, h, zero128);
    s->l.a = dot_half(s->l.a, w.a, l, zero128);
    s->l.b = dot_half(s->l.b, w.b, l, zero128);
}

INLINE v16i load_codes(const uint8_t *p)
{
    const __m256i *q = (const __m256i *)(const void *)p;
    return (v16i){_mm256_load_si256(q), _mm256_load_si256(q + 1)};
}

INLINE v16i and_15(v16i x)
{
    const __m256i low = _mm256_set1_epi8(15);
    return (v16i){_mm256_and_si256(x.a, low), _mm256_and_si256(x.b, low)};
}

INLINE v16i high_nibbles(v16i x)
{
    return and_15((v16i){_mm256_srli_epi16(x.a, 4), _mm256_srli_epi16(x.b, 4)});
}

/* Products of quads [v0, v1) of one block. */
INLINE struct sums block_dot(const uint8_t *rec, bool nibbles, bool zero128, const int8_t *codes,
                             int v0, int v1)
{
    struct sums s = {vi_set1(0), vi_set1(0)};
    for (int v = v0; v < v1; v++) {
        v16i w = load_codes(rec + (nibbles ? v % 4 : v) * 64);
        if (nibbles)
            w = v < 4 ? and_15(w) : high_nibbles(w);
        dot(&s, w, codes + v * 4, zero128);
    }
    return s;
}

INLINE v16 scales_at(const uint8_t *p, bool f32, uint32_t i)
{
    return f32 ? v_load((const float *)(const void *)p + (size_t)i * 16)
               : v_load_f16((const uint16_t *)(const void *)p + (size_t)i * 16);
}

INLINE v16 to_float(v16i x)
{
    return (v16){_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)};
}

INLINE v16 finish(struct sums s, int32_t correction, v16 scale, float act, v16 out)
{
    v16i i = vi_add(vi_add(vi_shl(s.h, 7), s.l), vi_set1(correction));
    return v_fma(to_float(i), v_mul(scale, v_set1(act)), out);
}

/* One group of rows, one token. */
INLINE v16 group_token(enum mat_form form, const uint8_t *rec, const struct mat_shape *s,
                       const int8_t *codes, const struct act_block *xb)
{
    const bool f32 = form == MAT_N4MF || form == MAT_I8MF || form == MAT_I8B16;
    const bool nibbles = form == MAT_N4 || form == MAT_N4M || form == MAT_N4MF;
    const bool zero128 = form == MAT_I8 || form == MAT_I8B16;
    const bool minima = form == MAT_N4M || form == MAT_N4MF || form == MAT_I8M || form == MAT_I8MF;
    v16 out = v_set1(0);
    for (uint32_t b = 0; b < s->blocks; b++, codes += ACT_BLOCK_BYTES, xb++) {
        const uint8_t *block = rec + (size_t)b * s->code_bytes;
        if (form == MAT_I8B16) {
            for (int half = 0; half < 2; half++)
                out = finish(block_dot(block, false, true, codes, half * 4, half * 4 + 4), 0,
                             scales_at(rec + s->scales_at, true, b * 2 + (uint32_t)half), xb->scale,
                             out);
            continue;
        }
        out = finish(block_dot(block, nibbles, zero128, codes, 0, 8),
                     form == MAT_N4 ? 8 * xb->neg_sum : 0, scales_at(rec + s->scales_at, f32, b),
                     xb->scale, out);
        if (minima)
            out = v_fma(scales_at(rec + s->mins_at, f32, b), v_set1(xb->scaled_sum), out);
    }
    return out;
}

INLINE void groups(enum mat_form form, const struct mat *m, uint32_t g0, uint32_t g1,
                   const struct acts *x, uint32_t n, float *y, size_t ldy)
{
    struct mat_shape s;
    mat_shape(form, m->rows, m->cols, &s);
    for (uint32_t g = g0; g < g1; g++) {
        const uint8_t *rec = m->data + g * s.group_bytes;
        for (uint32_t t = 0; t < n; t++) {
            size_t at = (size_t)t * s.blocks;
            v16 v = group_token(form, rec, &s, x->codes + at * ACT_BLOCK_BYTES, x->blocks + at);
            v_store_n(y + t * ldy + (size_t)g * GROUP_ROWS, v, m->rows - g * GROUP_ROWS);
        }
    }
}

void avx2_matmul(const struct mat *m, uint32_t g0, uint32_t g1, const struct acts *x, uint32_t n,
                 float *y, size_t ldy)
{
    switch (m->form) {
    case MAT_N4: groups(MAT_N4, m, g0, g1, x, n, y, ldy); break;
    case MAT_N4M: groups(MAT_N4M, m, g0, g1, x, n, y, ldy); break;
    case MAT_N4MF: groups(MAT_N4MF, m, g0, g1, x, n, y, ldy); break;
    case MAT_I8: groups(MAT_I8, m, g0, g1, x, n, y, ldy); break;
    case MAT_I8M: groups(MAT_I8M, m, g0, g1, x, n, y, ldy); break;
    case MAT_I8MF: groups(MAT_I8MF, m, g0, g1, x, n, y, ldy); break;
    case MAT_I8B16: groups(MAT_I8B16, m, g0, g1, x, n, y, ldy); break;
    default: avx2_matmul_float(m, g0, g1, x, n, y, ldy);
    }
}
