/* simd_rows.h: operations on rows over sixteen lanes; bits are those of scalar_rows.c and
 * scalar_quantize. Compiled once a backend, after its v16_*.h. */
#include "kernels/cpu/simd_exp.h"

#include <math.h>

void ISA(rms_norm)(const float *x, const float *w, float eps, uint32_t n, float *y)
{
    v16 sum = v_set1(0);
    for (uint32_t i = 0; i < n; i += 16) {
        v16 v = v_load_n(x + i, n - i);
        sum = v_fma(v, v, sum);
    }
    v16 inv = v_set1(1.0f / sqrtf(v_sum(sum) / (float)n + eps));
    for (uint32_t i = 0; i < n; i += 16)
        v_store_n(y + i, v_mul(v_mul(v_load_n(x + i, n - i), inv), v_load_n(w + i, n - i)), n - i);
}

void ISA(add)(float *x, const float *y, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 16)
        v_store_n(x + i, v_add(v_load_n(x + i, n - i), v_load_n(y + i, n - i)), n - i);
}

void ISA(scale)(float *x, float s, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 16)
        v_store_n(x + i, v_mul(v_load_n(x + i, n - i), v_set1(s)), n - i);
}

void ISA(swiglu)(const float *gate, const float *up, uint32_t n, float *out)
{
    for (uint32_t i = 0; i < n; i += 16) {
        v16 g = v_load_n(gate + i, n - i);
        v16 y = v_div(g, v_add(v_set1(1.0f), v_exp(v_neg(g))));
        v_store_n(out + i, v_mul(y, v_load_n(up + i, n - i)), n - i);
    }
}

void ISA(geglu)(const float *gate, const float *up, uint32_t n, float *out)
{
    const v16 one = v_set1(1.0f);
    for (uint32_t i = 0; i < n; i += 16) {
        v16 x = v_load_n(gate + i, n - i);
        v16 u = v_mul(x, v_fma(v_mul(v_set1(0.044715f), x), x, one));
        v16 y = v_div(x, v_add(one, v_exp(v_mul(u, v_set1(-1.59576912f)))));
        v_store_n(out + i, v_mul(y, v_load_n(up + i, n - i)), n - i);
    }
}

void ISA(to_f16)(const float *x, uint16_t *out, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 16)
        v_store_f16_n(out + i, v_load_n(x + i, n - i), n - i);
}

float ISA(max)(const float *x, uint32_t n)
{
    v16 best = v_set1(-INFINITY);
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16)
        best = v_max(v_load(x + i), best);
    if (i < n)
        best = v_max(v_choose((1u << (n - i)) - 1, v_load_n(x + i, n - i), best), best);
    return v_max_of(best);
}

double ISA(sum_exp)(const float *x, float max, uint32_t n)
{
    double v[16] = {0};
    for (uint32_t i = 0; i < n; i += 16) {
        v16 e = v_exp(v_sub(v_load_n(x + i, n - i), v_set1(max)));
        v_add_f64(v, n - i >= 16 ? e : v_choose((1u << (n - i)) - 1, e, v_set1(0)));
    }
    for (int i = 0; i < 8; i++)
        v[i] += v[i + 8];
    for (int i = 0; i < 4; i++)
        v[i] += v[i + 4];
    return (v[0] + v[2]) + (v[1] + v[3]);
}

/* ---- quantisation of activations ---- */

/* 16 columns, scaled, to h and l; returns their codes. */
INLINE v16i quantize_16(v16 x, v16 inv, int8_t *codes)
{
    v16 v = v_max(v_min(v_round(v_mul(x, inv)), v_set1(ACT_STEPS)), v_set1(-ACT_STEPS));
    v16i q = vi_from(v), up = vi_add(q, vi_set1(64)), h = vi_sar(up, 7), back = vi_shl(h, 7);
    vi_store_bytes(codes, h);
    vi_store_bytes(codes + BLOCK_COLS, vi_sub(q, back));
    return q;
}

void ISA(quantize)(const float *x, uint32_t n, int8_t *codes, struct act_block *blocks)
{
    for (uint32_t i = 0; i < n; i += BLOCK_COLS, codes += ACT_BLOCK_BYTES) {
        uint32_t left = n - i;
        v16 a = v_load_n(x + i, left), b = left > 16 ? v_load_n(x + i + 16, left - 16) : v_set1(0);
        float max = v_max_of(v_max(v_abs(b), v_max(v_abs(a), v_set1(0))));
        float inv = max > 1e-30f ? ACT_STEPS / max : 0.0f,
              scale = inv > 0.0f ? max / ACT_STEPS : 0.0f;
        v16i qa = quantize_16(a, v_set1(inv), codes), qb = quantize_16(b, v_set1(inv), codes + 16);
        int32_t low = vi_sum(qa), sum = low + vi_sum(qb);
        blocks[i / BLOCK_COLS] = (struct act_block){
            .scale = scale, .scaled_sum = scale * (float)sum, .neg_sum = -sum, .neg_low = -low};
    }
}
