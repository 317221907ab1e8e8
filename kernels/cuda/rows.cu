// Row-wise kernels: embedding, residual and norm, gated activation, FP8 packing.
#include "kernels/cuda/device.h"

KERNEL(embed_k, struct embed_args, 128)
{
    unsigned row = blockIdx.x;
    unsigned token = a.tokens[row] - a.first;
    const uint16_t *from = a.table + (size_t)token * a.d;
    float *to = a.h + (size_t)row * a.d;
    for (unsigned i = threadIdx.x; i < a.d; i += blockDim.x)
        to[i] = token < a.n ? bf16_value(from[i]) * a.scale : 0.0f;
}

KERNEL(add_norm_k, struct add_norm_args, 256)
{
    SHARED(float, row);
    float *part = row + a.d;
    unsigned r = blockIdx.x;
    float *h = a.h + (size_t)(a.take ? a.take[r] : r) * a.d;
    const float *y = a.y ? a.y + (size_t)r * a.d : nullptr;
    float post = 1;
    if (y && a.post) {
        float s = 0;
        for (unsigned i = threadIdx.x; i < a.d; i += blockDim.x)
            s += y[i] * y[i];
        post = rsqrtf(block_sum(s, part) / (float)a.d + a.eps);
    }
    float s = 0;
    for (unsigned i = threadIdx.x; i < a.d; i += blockDim.x) {
        float v = h[i];
        if (y)
            v += a.post ? y[i] * post * a.post[i] : y[i];
        row[i] = v;
        s += v * v;
        if (y && !a.take)
            h[i] = v;
    }
    if (!a.x)
        return;
    float inv = rsqrtf(block_sum(s, part) / (float)a.d + a.eps);
    for (unsigned i = threadIdx.x; i < a.d; i += blockDim.x)
        a.x[(size_t)r * a.d + i] = bf16_bits(row[i] * inv * a.w[i]);
}

DEVICE float gelu_tanh(float x)
{
    return 0.5f * x * (1.0f + tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x)));
}

KERNEL(gated_k, struct gated_args, 256)
{
    const float *gate = a.gate_up + (size_t)blockIdx.y * 2 * a.n, *up = gate + a.n;
    uint16_t *x = a.x + (size_t)blockIdx.y * a.n;
    unsigned end = min(a.n, (blockIdx.x + 1) * 1024);
    for (unsigned i = blockIdx.x * 1024 + threadIdx.x; i < end; i += blockDim.x) {
        float g = gate[i];
        x[i] = bf16_bits((a.gelu ? gelu_tanh(g) : g / (1.0f + fast_exp(-g))) * up[i]);
    }
}

// One warp a group of 128 channels: 4 a lane. The last group may have fewer.
KERNEL(fp8_pack_k, struct fp8_pack_args, 128)
{
    unsigned row = blockIdx.x, lane = threadIdx.x % 32, groups = (a.d + FP8_GROUP - 1) / FP8_GROUP;
    const uint16_t *x = a.x + (size_t)(a.take ? a.take[row] : row) * a.d;
    for (unsigned g = threadIdx.x / 32; g < groups; g += blockDim.x / 32) {
        unsigned at = g * FP8_GROUP + lane * 4;
        bool here = at < a.d;
        uint2 w = here ? *reinterpret_cast<const uint2 *>(x + at) : uint2{0, 0};
        float v[4] = {bf16_value((uint16_t)w.x), bf16_value((uint16_t)(w.x >> 16)),
                      bf16_value((uint16_t)w.y), bf16_value((uint16_t)(w.y >> 16))};
        float most = fmaxf(fmaxf(fabsf(v[0]), fabsf(v[1])), fmaxf(fabsf(v[2]), fabsf(v[3])));
        most = warp_max(most);
        float scale = most > 0 ? most / 448.0f : 1.0f;
        uint32_t code = 0;
#pragma unroll
        for (int i = 0; i < 4; i++)
            code |= (uint32_t)fp8_bits(v[i] / scale) << (8 * i);
        if (here)
            *reinterpret_cast<uint32_t *>(a.codes + (size_t)row * a.d + at) = code;
        if (lane == 0)
            a.scales[(size_t)row * groups + g] = scale;
    }
}

KERNEL(fp8_unpack_k, struct fp8_unpack_args, 128)
{
    unsigned row = blockIdx.x, groups = (a.d + FP8_GROUP - 1) / FP8_GROUP;
    for (unsigned i = threadIdx.x * 4; i < a.d; i += blockDim.x * 4) {
        uint32_t code = *reinterpret_cast<const uint32_t *>(a.codes + (size_t)row * a.d + i);
        float scale = a.scales[(size_t)row * groups + i / FP8_GROUP];
        float v[4];
#pragma unroll
        for (int k = 0; k < 4; k++)
            v[k] = fp8_value((uint8_t)(code >> (8 * k))) * scale;
        uint2 w = {pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3])};
        *reinterpret_cast<uint2 *>(a.x + (size_t)row * a.d + i) = w;
    }
}
