/* scalar.h: the reference backend, one operation a function in plain C (internal to kernels/cpu).
 * It defines the bits; the vector backends reproduce them. See kernels/ops.h for the arithmetic. */
#pragma once
#include "kernels/ops.h"

#include <math.h>
#include <string.h>

extern const struct kernel_ops scalar_ops;

void scalar_rms_norm(const float *x, const float *w, float eps, uint32_t n, float *y);
void scalar_quantize(const float *x, uint32_t n, int8_t *codes, struct act_block *blocks);
void scalar_matmul(const struct mat *m, uint32_t g0, uint32_t g1, const struct acts *x, uint32_t n,
                   float *y, size_t ldy);
void scalar_swiglu(const float *gate, const float *up, uint32_t n, float *out);
void scalar_geglu(const float *gate, const float *up, uint32_t n, float *out);
void scalar_add(float *x, const float *y, uint32_t n);
void scalar_scale(float *x, float s, uint32_t n);
void scalar_attention(const struct attn *a);
void scalar_to_f16(const float *x, uint16_t *out, uint32_t n);
float scalar_max(const float *x, uint32_t n);
double scalar_sum_exp(const float *x, float max, uint32_t n);

/* exp by Cody and Waite's reduction and a polynomial of degree 6 (Cephes' coefficients), within 2
 * units in the last place; 0 below -87.3365 and for NaN. */
static inline float scalar_exp(float x)
{
    if (!(x > -87.3365f))
        return 0.0f;
    x = x < 88.37f ? x : 88.37f;
    float n = rintf(x * 1.44269504f);
    float r = fmaf(n, 2.12194440e-4f, fmaf(n, -0.693359375f, x));
    float p = fmaf(1.9875691500e-4f, r, 1.3981999507e-3f);
    p = fmaf(p, r, 8.3334519073e-3f);
    p = fmaf(p, r, 4.1665795894e-2f);
    p = fmaf(p, r, 1.6666665459e-1f);
    p = fmaf(p, r, 5.0000001201e-1f);
    float y = fmaf(p, r * r, r) + 1.0f;
    int32_t bits;
    memcpy(&bits, &y, 4);
    bits += (int32_t)n * (1 << 23);
    memcpy(&y, &bits, 4);
    return y;
}

/* The sum of 16 lanes, in the order that all backends use. */
static inline float scalar_lanes(const float v[16])
{
    float a[8];
    for (int i = 0; i < 8; i++)
        a[i] = v[i] + v[i + 8];
    for (int i = 0; i < 4; i++)
        a[i] += a[i + 4];
    return (a[0] + a[2]) + (a[1] + a[3]);
}
