/* kv.h: elements of the paged cache by its form (kernels.h): the same bytes and values as
 * kernels/ops.c has. f16 and bf16, and the two kinds of codes, differ by a branch that all threads
 * take alike; halves and codes are kernels of their own. */
#pragma once
#include "kernels/cuda/device.h"

template <unsigned DIM> struct KvGroups {
    static constexpr unsigned N = (DIM + KV_GROUP - 1) / KV_GROUP;
};

DEVICE float half_value(uint16_t v, bool bf16)
{
    return bf16 ? bf16_value(v) : f16_value(v);
}
DEVICE uint16_t half_bits(float f, bool bf16)
{
    return bf16 ? bf16_bits(f) : f16_bits(f);
}
DEVICE uint32_t pack_half(float lo, float hi, bool bf16)
{
    return bf16 ? pack_bf16(lo, hi) : pack_f16(lo, hi);
}
DEVICE void unpack_half(uint4 u, bool bf16, float f[8])
{
    if (bf16)
        unpack_bf16(u, f);
    else
        unpack_f16(u, f);
}

/* Eight codes; of FP8 a 256th of each: its bits are those of an f16, moved. */
DEVICE void unpack_codes(uint2 u, bool f8, float f[8])
{
    const uint32_t w[2] = {u.x, u.y};
#pragma unroll
    for (int i = 0; i < 8; i++) {
        uint32_t c = w[i / 4] >> (8 * (i % 4)) & 0xff;
        f[i] = f8 ? f16_value((uint16_t)((c & 0x80) << 8 | (c & 0x7f) << 7)) : (float)(int8_t)c;
    }
}
DEVICE float code_unit(bool f8)
{
    return f8 ? 256.0f : 1.0f;
}

/* Eight channels from c on of a token of a head of `dim`; they are f times the result. */
template <bool CODED>
DEVICE float load8(const struct kv_view &kv, const uint8_t *head, unsigned token, unsigned dim,
                   unsigned c, float f[8])
{
    size_t at = (size_t)token * dim + c;
    if constexpr (CODED) {
        const float *scales = reinterpret_cast<const float *>(head + (size_t)kv.block_tokens * dim);
        unsigned groups = (dim + KV_GROUP - 1) / KV_GROUP;
        bool f8 = kv.form == KV_FORM_F8;
        unpack_codes(*reinterpret_cast<const uint2 *>(head + at), f8, f);
        return scales[token * groups + c / KV_GROUP] * code_unit(f8);
    }
    unpack_half(*reinterpret_cast<const uint4 *>(head + at * 2), kv.form == KV_FORM_BF16, f);
    return 1.0f;
}

/* One warp stores a token's row x [dim] (of shared memory, dim even) in a head's part of a block.
 */
DEVICE void kv_store_row(const struct kv_view &kv, uint8_t *head, unsigned token, const float *x,
                         unsigned dim)
{
    unsigned lane = threadIdx.x % 32, groups = (dim + KV_GROUP - 1) / KV_GROUP;
    bool bf16 = kv.form == KV_FORM_BF16, f8 = kv.form == KV_FORM_F8;
    if (bf16 || kv.form == KV_FORM_F16) {
        uint32_t *to = reinterpret_cast<uint32_t *>(head + (size_t)token * dim * 2);
        for (unsigned i = lane; i < dim / 2; i += 32)
            to[i] = pack_half(x[2 * i], x[2 * i + 1], bf16);
        return;
    }
    uint16_t *to = reinterpret_cast<uint16_t *>(head + (size_t)token * dim);
    float *scales =
        reinterpret_cast<float *>(head + (size_t)kv.block_tokens * dim) + (size_t)token * groups;
    float top = f8 ? 448.0f : 127.0f;
    for (unsigned g = 0; g < groups; g++) {
        unsigned i = g * KV_GROUP / 2 + lane;
        bool has = 2 * i < dim;
        float u = has ? x[2 * i] : 0.0f, v = has ? x[2 * i + 1] : 0.0f;
        float most = warp_max(fmaxf(fabsf(u), fabsf(v)));
        float inv = most > 1e-30f ? top / most : 0.0f;
        uint32_t a = f8 ? fp8_bits(u * inv) : (uint8_t)(int8_t)rintf(u * inv);
        uint32_t b = f8 ? fp8_bits(v * inv) : (uint8_t)(int8_t)rintf(v * inv);
        if (has)
            to[i] = (uint16_t)(a | b << 8);
        if (lane == 0)
            scales[g] = inv > 0 ? most / top : 0.0f;
    }
}

/* ---- 32 tokens of one head (or latent) in shared memory, for tensor cores ---- */

/* Codes and scales as they come, before they are made f16. */
template <unsigned D> struct KvCodes {
    static constexpr unsigned BYTES = ATTN_TOKENS * (D + KvGroups<D>::N * 4);
};

/* Asks for the 32 tokens from t0 on, of which those below `end` were ever written. `head`: of t0's
 * block, whose part `t0 % block_tokens` begins. To: rows of LD halves, or codes and scales. */
template <unsigned D, unsigned LD, bool CODED>
DEVICE void kv_load(const struct kv_view &kv, const uint8_t *head, unsigned t0, unsigned end,
                    void *to)
{
    unsigned first = t0 % kv.block_tokens;
    if constexpr (CODED) {
        uint8_t *codes = static_cast<uint8_t *>(to);
        const uint8_t *scales =
            head + (size_t)kv.block_tokens * D + (size_t)first * KvGroups<D>::N * 4;
        for (unsigned i = threadIdx.x; i < ATTN_TOKENS * D / 16; i += blockDim.x)
            copy_async16(codes + i * 16, head + (size_t)first * D + i * 16, t0 + i * 16 / D < end);
        for (unsigned i = threadIdx.x; i < ATTN_TOKENS * KvGroups<D>::N / 4; i += blockDim.x)
            copy_async16(codes + ATTN_TOKENS * D + i * 16, scales + i * 16, true);
    } else {
        uint16_t *halves = static_cast<uint16_t *>(to);
        for (unsigned i = threadIdx.x; i < ATTN_TOKENS * D / 8; i += blockDim.x) {
            unsigned t = i / (D / 8), c = i % (D / 8) * 8;
            copy_async16(halves + t * LD + c, head + ((size_t)(first + t) * D + c) * 2,
                         t0 + t < end); /* 0 x NaN would spoil the sum */
        }
    }
}

/* Codes, when they are there, to rows of LD f16. */
template <unsigned D, unsigned LD>
DEVICE void kv_decode(const uint8_t *codes, bool f8, unsigned t0, unsigned end, uint16_t *to)
{
    const float *scales = reinterpret_cast<const float *>(codes + ATTN_TOKENS * D);
#pragma unroll 1 /* beside the sums of heads of 256 channels there are no registers for more */
    for (unsigned i = threadIdx.x; i < ATTN_TOKENS * D / 8; i += blockDim.x) {
        unsigned t = i / (D / 8), c = i % (D / 8) * 8;
        float f[8];
        unpack_codes(*reinterpret_cast<const uint2 *>(codes + t * D + c), f8, f);
        float scale = scales[t * KvGroups<D>::N + c / KV_GROUP] * code_unit(f8);
        scale = t0 + t < end ? scale : 0.0f; /* what lies beyond was never written */
        uint4 w = {pack_f16(f[0] * scale, f[1] * scale), pack_f16(f[2] * scale, f[3] * scale),
                   pack_f16(f[4] * scale, f[5] * scale), pack_f16(f[6] * scale, f[7] * scale)};
        *reinterpret_cast<uint4 *>(to + t * LD + c) = w;
    }
}
