// Latent attention (MLA) with absorbed projections: all heads share one latent a token, which is
// both key and value.
#include "kernels/cuda/tile.h"

#define P_LD    (ATTN_TOKENS + 8u)
#define THREADS 128u

// 16 heads are the rows of one tensor-core tile. Of a step's 32 tokens each of the four warps
// scores 8, then adds the weighted latents of its own quarter of the channels.
template <unsigned WIDTH, Kind KIND> struct MlaShared {
    static constexpr unsigned LD = WIDTH + 8;
    static constexpr unsigned STAGE = KIND == CODED ? KvCodes<WIDTH>::BYTES : ATTN_TOKENS * LD * 2;
    uint16_t *q, *p, *kv;
    float *most, *sum; // [4 warps][16 heads]
    uint8_t *stages;   // [2] of latents as they come

    DEVICE_MEMBER MlaShared(uint16_t *shared)
        : q(shared), p(q + MLA_HEADS * LD), kv(p + MLA_HEADS * P_LD + 16 * MLA_HEADS),
          most(reinterpret_cast<float *>(p + MLA_HEADS * P_LD)), sum(most + 4 * MLA_HEADS),
          stages(reinterpret_cast<uint8_t *>(KIND == CODED ? kv + ATTN_TOKENS * LD : kv))
    {
    }
    DEVICE_MEMBER uint8_t *stage(unsigned i) const
    {
        return stages + i * STAGE;
    }
};

template <unsigned WIDTH, Kind KIND>
DEVICE void mla_load(const struct mla_decode_args &a, uint8_t *stage, const uint32_t *table,
                     unsigned t0, unsigned end)
{
    const uint8_t *from =
        a.kv.pool + table[t0 / a.kv.block_tokens] * a.kv.block_bytes + a.kv.layer_at;
    kv_load<WIDTH, WIDTH + 8, KIND == CODED>(a.kv, from, t0, end, stage);
    copy_commit();
}

// This warp's 8 tokens: s rows g and g + 8, tokens 2 t and the next.
template <unsigned WIDTH, bool BF>
DEVICE void mla_scores(float s[4], const uint16_t *q, const uint16_t *kv, unsigned warp)
{
    constexpr unsigned LD = WIDTH + 8;
    unsigned lane = threadIdx.x % 32;
    s[0] = s[1] = s[2] = s[3] = 0;
#pragma unroll 2
    for (unsigned d = 0; d + 32 <= WIDTH; d += 32) {
        uint32_t x[4], y[4], b[4];
        ldmatrix(b, kv + (warp * 8 + lane % 8) * LD + d + lane / 8 * 8);
        ldmatrix(x, q + (lane % 16) * LD + d + lane / 16 * 8);
        ldmatrix(y, q + (lane % 16) * LD + d + 16 + lane / 16 * 8);
        mma_half<BF>(s, x, b);
        mma_half<BF>(s, y, b + 2);
    }
    if (WIDTH % 32) {
        constexpr unsigned d = WIDTH / 32 * 32;
        uint32_t x[4], b[4];
        ldmatrix(b, kv + (warp * 8 + lane % 8) * LD + d + lane / 8 % 2 * 8);
        ldmatrix(x, q + (lane % 16) * LD + d + lane / 16 * 8);
        mma_half<BF>(s, x, b);
    }
}

template <unsigned LATENT, unsigned ROPE, Kind KIND>
DEVICE void mla_decode(const struct mla_decode_args &a)
{
    constexpr unsigned WIDTH = LATENT + ROPE, LD = WIDTH + 8, MINE = LATENT / 4;
    constexpr bool BF = KIND == BF16;
    static_assert(MINE % 16 == 0 && WIDTH % 16 == 0, "whole tiles");
    SHARED(uint16_t, shared);
    MlaShared<WIDTH, KIND> sh(shared);
    unsigned row = blockIdx.z, first = blockIdx.y * MLA_HEADS;
    unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    unsigned end = a.positions[row] + 1, steps = (end + ATTN_TOKENS - 1) / ATTN_TOKENS;
    unsigned per = (steps + gridDim.x - 1) / gridDim.x * ATTN_TOKENS;
    unsigned t0 = blockIdx.x * per, t1 = min(end, t0 + per);
    const uint32_t *table = a.kv.tables + (size_t)a.sequences[row] * a.kv.table_ld;
    for (unsigned i = threadIdx.x; i < MLA_HEADS * WIDTH / 8; i += THREADS) {
        unsigned r = i / (WIDTH / 8), c = i % (WIDTH / 8) * 8;
        bool ok = first + r < a.heads;
        copy_async16(sh.q + r * LD + c,
                     a.q + ((size_t)row * a.heads + (ok ? first + r : 0)) * WIDTH + c, ok);
    }
    copy_commit();
    if (t0 < t1)
        mla_load<WIDTH, KIND>(a, sh.stage(0), table, t0, t1);
    float o[MINE / 8][4], m[2] = {-INFINITY, -INFINITY}, l[2] = {0, 0};
#pragma unroll
    for (unsigned d = 0; d < MINE / 8; d++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            o[d][i] = 0;
    for (unsigned at = t0, stage = 0; at < t1; at += ATTN_TOKENS, stage ^= 1) {
        if (at + ATTN_TOKENS < t1) {
            mla_load<WIDTH, KIND>(a, sh.stage(stage ^ 1), table, at + ATTN_TOKENS, t1);
            copy_wait<1>();
        } else {
            copy_wait<0>();
        }
        __syncthreads();
        const uint16_t *kv = reinterpret_cast<const uint16_t *>(sh.stage(stage));
        if constexpr (KIND == CODED) {
            kv_decode<WIDTH, LD>(sh.stage(stage), a.kv.form == KV_FORM_F8, at, t1, sh.kv);
            kv = sh.kv;
            __syncthreads();
        }
        float s[4];
        mla_scores<WIDTH, BF>(s, sh.q, kv, warp);
#pragma unroll
        for (int half = 0; half < 2; half++) {
#pragma unroll
            for (int i = 0; i < 2; i++)
                if (at + warp * 8 + t * 2 + i >= t1)
                    s[half * 2 + i] = -INFINITY;
            float most = fmaxf(s[half * 2], s[half * 2 + 1]);
            most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, 1));
            most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, 2));
            if (t == 0)
                sh.most[warp * MLA_HEADS + g + half * 8] = most;
        }
        __syncthreads();
        float keep[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            unsigned h = g + half * 8;
            float most = m[half];
#pragma unroll
            for (int w = 0; w < 4; w++)
                most = fmaxf(most, sh.most[w * MLA_HEADS + h]);
            keep[half] = m[half] == most ? 1.0f : fast_exp(m[half] - most);
            m[half] = most;
            float p0 = fast_exp(s[half * 2] - most), p1 = fast_exp(s[half * 2 + 1] - most),
                  sum = p0 + p1;
            sum += __shfl_xor_sync(ALL_LANES, sum, 1);
            sum += __shfl_xor_sync(ALL_LANES, sum, 2);
            if (t == 0)
                sh.sum[warp * MLA_HEADS + h] = sum;
            *reinterpret_cast<uint32_t *>(sh.p + h * P_LD + warp * 8 + t * 2) =
                pack_half(p0, p1, BF);
        }
        __syncthreads();
#pragma unroll
        for (int half = 0; half < 2; half++) {
            unsigned h = g + half * 8;
            l[half] = l[half] * keep[half] + sh.sum[h] + sh.sum[MLA_HEADS + h] +
                      sh.sum[2 * MLA_HEADS + h] + sh.sum[3 * MLA_HEADS + h];
        }
#pragma unroll
        for (unsigned d = 0; d < MINE / 8; d++) {
            o[d][0] *= keep[0];
            o[d][1] *= keep[0];
            o[d][2] *= keep[1];
            o[d][3] *= keep[1];
        }
#pragma unroll
        for (unsigned h = 0; h < 2; h++) { // tokens 16 h .. 16 h + 15
            uint32_t p[4];
            ldmatrix(p, sh.p + (lane % 16) * P_LD + h * 16 + lane / 16 * 8);
#pragma unroll
            for (unsigned d = 0; d < MINE / 8; d += 2) {
                uint32_t b[4];
                ldmatrix_transposed(b, kv + (h * 16 + lane % 16) * LD + warp * MINE + d * 8 +
                                           lane / 16 * 8);
                mma_half<BF>(o[d], p, b);
                mma_half<BF>(o[d + 1], p, b + 2);
            }
        }
        __syncthreads();
    }
    if (t0 >= t1)
        copy_wait<0>();
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if (first + g + half * 8 >= a.heads)
            continue;
        size_t at = (size_t)row * a.heads + first + g + half * 8;
        size_t part = at * gridDim.x + blockIdx.x;
        float inv = l[half] > 0 ? 1.0f / l[half] : 0.0f;
        if (gridDim.x > 1 && warp == 0 && t == 0) {
            a.part_ml[part * 2] = m[half];
            a.part_ml[part * 2 + 1] = l[half];
        }
#pragma unroll
        for (unsigned d = 0; d < MINE / 8; d++) {
            unsigned c = warp * MINE + d * 8 + t * 2;
            float u = o[d][half * 2], v = o[d][half * 2 + 1];
            if (gridDim.x > 1) {
                float2 w = {u, v};
                *reinterpret_cast<float2 *>(a.part + part * LATENT + c) = w;
            } else {
                *reinterpret_cast<uint32_t *>(a.out + at * LATENT + c) =
                    pack_bf16(u * inv, v * inv);
            }
        }
    }
}

#define MLA_DECODE(LATENT, ROPE)                                                                   \
    KERNEL(mla_decode_##LATENT##_##ROPE##_k, struct mla_decode_args, 128)                          \
    {                                                                                              \
        mla_decode<LATENT, ROPE, F16>(a);                                                          \
    }                                                                                              \
    KERNEL(mla_decode_##LATENT##_##ROPE##_bf16_k, struct mla_decode_args, 128)                     \
    {                                                                                              \
        mla_decode<LATENT, ROPE, BF16>(a);                                                         \
    }                                                                                              \
    KERNEL(mla_decode_##LATENT##_##ROPE##_coded_k, struct mla_decode_args, 128)                    \
    {                                                                                              \
        mla_decode<LATENT, ROPE, CODED>(a);                                                        \
    }
MLA_DECODE(512, 64)
MLA_DECODE(64, 16) // of small models, in tests
