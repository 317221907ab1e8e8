/* tile.h: attention of 64 query rows on tensor cores with online softmax, 32 tokens a step: what
 * the kernels of prompts share. Four warps of 16 rows. Rows of shared memory are 8 elements longer
 * than a head: ldmatrix then meets no bank twice. Queries, keys and values are f16 or bf16. */
#pragma once
#include "kernels/cuda/kv.h"

enum Kind { F16, BF16, CODED }; // of the cache

template <bool BF> DEVICE void mma_half(float c[4], const uint32_t a[4], const uint32_t b[2])
{
    if constexpr (BF)
        mma_bf16(c, a, b);
    else
        mma_f16(c, a, b);
}

// s [16 rows x 32 tokens] = q k^T of one warp.
template <int D, bool BF> DEVICE void scores(float s[4][4], const uint16_t *q, const uint16_t *k)
{
    constexpr int LD = D + 8;
    unsigned lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            s[j][i] = 0;
#pragma unroll 4 /* all sixteen of 256 channels would take more registers than there are */
    for (int d = 0; d < D; d += 16) {
        uint32_t x[4], b[2][4];
        ldmatrix(x, q + (lane % 16) * LD + d + lane / 16 * 8);
#pragma unroll
        for (int h = 0; h < 2; h++) // tokens 16 h .. 16 h + 15
            ldmatrix(b[h], k + (h * 16 + lane % 8 + lane / 16 * 8) * LD + d + lane / 8 % 2 * 8);
#pragma unroll
        for (int j = 0; j < 4; j++)
            mma_half<BF>(s[j], x, b[j / 2] + j % 2 * 2);
    }
}

// o [16 rows x D] += p v.
template <int D, bool BF> DEVICE void weigh(float o[][4], const uint32_t p[2][4], const uint16_t *v)
{
    constexpr int LD = D + 8;
    unsigned lane = threadIdx.x % 32;
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
        for (int d = 0; d < D; d += 16) {
            uint32_t b[4];
            ldmatrix_transposed(b, v + (h * 16 + lane % 16) * LD + d + lane / 16 * 8);
            mma_half<BF>(o[d / 8], p[h], b);
            mma_half<BF>(o[d / 8 + 1], p[h], b + 2);
        }
}

// Masks what a row may not see, rescales o and l, and leaves exp(s - m) as f16 fragments.
template <int D, bool BF>
DEVICE void soften(float s[4][4], float o[][4], float m[2], float l[2], uint32_t p[2][4],
                   const unsigned row_pos[2], unsigned t0, unsigned window)
{
    unsigned t = threadIdx.x % 4;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float most = m[half];
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                unsigned at = t0 + j * 8 + t * 2 + i, pos = row_pos[half];
                bool sees = at <= pos && (!window || at + window > pos);
                float &x = s[j][half * 2 + i];
                x = sees ? x : -INFINITY;
                most = fmaxf(most, x);
            }
        most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, 1));
        most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, 2));
        float base = most == -INFINITY ? 0.0f : most, keep = fast_exp(m[half] - base), sum = 0;
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float &x = s[j][half * 2 + i];
                x = fast_exp(x - base);
                sum += x;
            }
        sum += __shfl_xor_sync(ALL_LANES, sum, 1);
        sum += __shfl_xor_sync(ALL_LANES, sum, 2);
        l[half] = l[half] * keep + sum;
        m[half] = most;
#pragma unroll
        for (int d = 0; d < D / 8; d++) {
            o[d][half * 2] *= keep;
            o[d][half * 2 + 1] *= keep;
        }
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        p[h][0] = pack_half(s[2 * h][0], s[2 * h][1], BF);
        p[h][1] = pack_half(s[2 * h][2], s[2 * h][3], BF);
        p[h][2] = pack_half(s[2 * h + 1][0], s[2 * h + 1][1], BF);
        p[h][3] = pack_half(s[2 * h + 1][2], s[2 * h + 1][3], BF);
    }
}
