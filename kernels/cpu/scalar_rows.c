/* Operations on rows: norm, activation functions, sums. */
#include "kernels/cpu/scalar.h"

void scalar_rms_norm(const float *x, const float *w, float eps, uint32_t n, float *y)
{
    float lanes[16] = {0};
    for (uint32_t i = 0; i < n; i++)
        lanes[i % 16] = fmaf(x[i], x[i], lanes[i % 16]);
    float inv = 1.0f / sqrtf(scalar_lanes(lanes) / (float)n + eps);
    for (uint32_t i = 0; i < n; i++)
        y[i] = x[i] * inv * w[i];
}

void scalar_add(float *x, const float *y, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        x[i] += y[i];
}

void scalar_scale(float *x, float s, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        x[i] *= s;
}

void scalar_swiglu(const float *gate, const float *up, uint32_t n, float *out)
{
    for (uint32_t i = 0; i < n; i++)
        out[i] = gate[i] / (1.0f + scalar_exp(-gate[i])) * up[i];
}

/* 0.5 x (1 + tanh(u)) = x / (1 + exp(-2u)), u = sqrt(2/pi) (x + 0.044715 x^3). */
void scalar_geglu(const float *gate, const float *up, uint32_t n, float *out)
{
    for (uint32_t i = 0; i < n; i++) {
        float x = gate[i], u = x * fmaf(0.044715f * x, x, 1.0f);
        out[i] = x / (1.0f + scalar_exp(u * -1.59576912f)) * up[i];
    }
}

void scalar_to_f16(const float *x, uint16_t *out, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        out[i] = f32_to_f16(x[i]);
}

float scalar_max(const float *x, uint32_t n)
{
    float m = -INFINITY;
    for (uint32_t i = 0; i < n; i++)
        m = x[i] > m ? x[i] : m;
    return m;
}

double scalar_sum_exp(const float *x, float max, uint32_t n)
{
    double v[16] = {0};
    for (uint32_t i = 0; i < n; i++)
        v[i % 16] += (double)scalar_exp(x[i] - max);
    for (int i = 0; i < 8; i++)
        v[i] += v[i + 8];
    for (int i = 0; i < 4; i++)
        v[i] += v[i + 4];
    return (v[0] + v[2]) + (v[1] + v[3]);
}
