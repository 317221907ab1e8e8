// Attention of prompt chunks: tiles of 64 query rows against the paged cache, tensor cores, online
// softmax.
#include "kernels/cuda/device.h"

// Four warps of 16 rows. Tokens come 32 at a time (a step never crosses a cache block), two steps
// in flight. Rows of shared memory are 8 elements longer than a head: ldmatrix then meets no bank
// twice.
template <int D> struct PrefillTile {
    static constexpr int LD = D + 8;
    uint16_t *q, *k, *v; // [64][LD]; [2][32][LD] each

    DEVICE_MEMBER PrefillTile(uint16_t *shared)
        : q(shared), k(q + ATTN_ROWS * LD), v(k + 2 * ATTN_TOKENS * LD)
    {
    }
};

template <int D>
DEVICE void load_step(const struct prefill_attention_args &a, const PrefillTile<D> &tile,
                      unsigned stage, const uint32_t *table, unsigned kv_head, unsigned t0,
                      unsigned end)
{
    const uint8_t *k = a.kv.pool + table[t0 / a.kv.block_tokens] * a.kv.block_bytes +
                       a.kv.layer_at + kv_head * a.kv.head_bytes +
                       (size_t)(t0 % a.kv.block_tokens) * D * 2;
    for (unsigned i = threadIdx.x; i < ATTN_TOKENS * D / 8; i += blockDim.x) {
        unsigned t = i / (D / 8), c = i % (D / 8) * 8;
        unsigned to = (stage * ATTN_TOKENS + t) * PrefillTile<D>::LD + c;
        bool ok = t0 + t < end; // what lies beyond was never written: 0 x NaN would spoil the sum
        copy_async16(tile.k + to, k + ((size_t)t * D + c) * 2, ok);
        copy_async16(tile.v + to, k + a.kv.half_bytes + ((size_t)t * D + c) * 2, ok);
    }
    copy_commit();
}

// s [16 rows x 32 tokens] = q k^T of one warp.
template <int D> DEVICE void scores(float s[4][4], const uint16_t *q, const uint16_t *k)
{
    constexpr int LD = PrefillTile<D>::LD;
    unsigned lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            s[j][i] = 0;
#pragma unroll
    for (int d = 0; d < D; d += 16) {
        uint32_t x[4], b[2][4];
        ldmatrix(x, q + (lane % 16) * LD + d + lane / 16 * 8);
#pragma unroll
        for (int h = 0; h < 2; h++) // tokens 16 h .. 16 h + 15
            ldmatrix(b[h], k + (h * 16 + lane % 8 + lane / 16 * 8) * LD + d + lane / 8 % 2 * 8);
#pragma unroll
        for (int j = 0; j < 4; j++)
            mma_f16(s[j], x, b[j / 2] + j % 2 * 2);
    }
}

// o [16 rows x D] += p v.
template <int D> DEVICE void weigh(float o[][4], const uint32_t p[2][4], const uint16_t *v)
{
    constexpr int LD = PrefillTile<D>::LD;
    unsigned lane = threadIdx.x % 32;
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
        for (int d = 0; d < D; d += 16) {
            uint32_t b[4];
            ldmatrix_transposed(b, v + (h * 16 + lane % 16) * LD + d + lane / 16 * 8);
            mma_f16(o[d / 8], p[h], b);
            mma_f16(o[d / 8 + 1], p[h], b + 2);
        }
}

// Masks what a row may not see, rescales o and l, and leaves exp(s - m) as f16 fragments.
template <int D>
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
        p[h][0] = pack_f16(s[2 * h][0], s[2 * h][1]);
        p[h][1] = pack_f16(s[2 * h][2], s[2 * h][3]);
        p[h][2] = pack_f16(s[2 * h + 1][0], s[2 * h + 1][1]);
        p[h][3] = pack_f16(s[2 * h + 1][2], s[2 * h + 1][3]);
    }
}

template <int D> DEVICE void prefill_attention(const struct prefill_attention_args &a)
{
    SHARED(uint16_t, shared);
    constexpr int LD = PrefillTile<D>::LD;
    PrefillTile<D> tile(shared);
    struct attn_tile at = a.tiles[blockIdx.x];
    unsigned head = blockIdx.y, kv_head = (a.first + head) / a.group;
    unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const uint32_t *table = a.kv.tables + (size_t)at.sequence * a.kv.table_ld;
    unsigned end = at.position + at.rows; // tokens that the last row sees
    unsigned begin = a.window && at.position + 1 > a.window
                         ? (at.position + 1 - a.window) / ATTN_TOKENS * ATTN_TOKENS
                         : 0;
    for (unsigned i = threadIdx.x; i < ATTN_ROWS * D / 8; i += blockDim.x) {
        unsigned r = i / (D / 8), c = i % (D / 8) * 8;
        bool ok = r < at.rows;
        copy_async16(tile.q + r * LD + c,
                     a.q + ((size_t)(at.row + (ok ? r : 0)) * a.heads + head) * D + c, ok);
    }
    load_step<D>(a, tile, 0, table, kv_head, begin, end);
    float o[D / 8][4], m[2] = {-INFINITY, -INFINITY}, l[2] = {0, 0};
#pragma unroll
    for (int d = 0; d < D / 8; d++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            o[d][i] = 0;
    const unsigned row_pos[2] = {at.position + warp * 16 + g, at.position + warp * 16 + g + 8};
    for (unsigned t0 = begin, stage = 0; t0 < end; t0 += ATTN_TOKENS, stage ^= 1) {
        bool more = t0 + ATTN_TOKENS < end;
        if (more) {
            load_step<D>(a, tile, stage ^ 1, table, kv_head, t0 + ATTN_TOKENS, end);
            copy_wait<1>();
        } else {
            copy_wait<0>();
        }
        __syncthreads();
        float s[4][4];
        uint32_t p[2][4];
        scores<D>(s, tile.q + warp * 16 * LD, tile.k + stage * ATTN_TOKENS * LD);
        soften<D>(s, o, m, l, p, row_pos, t0, a.window);
        weigh<D>(o, p, tile.v + stage * ATTN_TOKENS * LD);
        __syncthreads();
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        unsigned r = warp * 16 + g + half * 8;
        if (r >= at.rows)
            continue;
        float inv = l[half] > 0 ? 1.0f / l[half] : 0.0f;
        uint16_t *out = a.out + ((size_t)(at.row + r) * a.heads + head) * D + t * 2;
#pragma unroll
        for (int d = 0; d < D / 8; d++)
            *reinterpret_cast<uint32_t *>(out + d * 8) =
                pack_bf16(o[d][half * 2] * inv, o[d][half * 2 + 1] * inv);
    }
}

#define PREFILL(D)                                                                                 \
    KERNEL(prefill_attention_##D##_k, struct prefill_attention_args, 128)                          \
    {                                                                                              \
        prefill_attention<D>(a);                                                                   \
    }
PREFILL(16)
PREFILL(32)
PREFILL(64)
PREFILL(128)
PREFILL(256)
