// Latent attention of prompt chunks: the context's latents are made keys and values of every head
// again (gathered from the paged cache, then two products of each head), and the tiles of tile.h
// attend over them. A context is taken in pieces; between two of them a row's sums wait in memory.
#include "kernels/cuda/tile.h"

// Eight channels a thread.
KERNEL(mla_gather_k, struct mla_gather_args, 256)
{
    unsigned width = a.latent + a.rope, i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned row = i / (width / 8), c = i % (width / 8) * 8, t = a.first + row;
    if (row >= a.tokens)
        return;
    const uint8_t *head =
        a.kv.pool +
        a.kv.tables[(size_t)a.sequence * a.kv.table_ld + t / a.kv.block_tokens] * a.kv.block_bytes +
        a.kv.layer_at;
    bool halves = a.kv.form == KV_FORM_F16 || a.kv.form == KV_FORM_BF16;
    unsigned token = t % a.kv.block_tokens;
    float f[8];
    float unit = halves ? load8<false>(a.kv, head, token, width, c, f)
                        : load8<true>(a.kv, head, token, width, c, f);
    bool out_bf16 = c < a.latent || a.kv.form == KV_FORM_BF16;
    uint4 w = {pack_half(f[0] * unit, f[1] * unit, out_bf16),
               pack_half(f[2] * unit, f[3] * unit, out_bf16),
               pack_half(f[4] * unit, f[5] * unit, out_bf16),
               pack_half(f[6] * unit, f[7] * unit, out_bf16)};
    uint16_t *to = c < a.latent ? a.to_latent + (size_t)row * a.latent + c
                                : a.to_rope + (size_t)row * a.rope + (c - a.latent);
    *reinterpret_cast<uint4 *>(to) = w;
}

template <int NOPE, int ROPE, int V> struct ExpandTile {
    static constexpr int QK = NOPE + ROPE, DK = (QK + 15) / 16 * 16, K_LD = DK + 8, V_LD = V + 8;
    static_assert(NOPE % 8 == 0 && ROPE % 8 == 0 && V % 16 == 0, "whole copies and tiles");
    uint16_t *q, *k, *v; // [64][K_LD], [2][32][K_LD], [2][32][V_LD]

    DEVICE_MEMBER ExpandTile(uint16_t *shared)
        : q(shared), k(q + ATTN_ROWS * K_LD), v(k + 2 * ATTN_TOKENS * K_LD)
    {
    }
    // Rows of the pieces that belong to `head`; what lies beyond is 0.
    DEVICE_MEMBER void load(const struct mla_prefill_args &a, unsigned stage, unsigned head,
                            unsigned t0) const
    {
        for (unsigned i = threadIdx.x; i < ATTN_TOKENS * DK / 8; i += blockDim.x) {
            unsigned t = i / (DK / 8), c = i % (DK / 8) * 8, row = t0 + t - a.first;
            bool ok = row < a.tokens && c < QK;
            const uint16_t *from = c < NOPE ? a.k + ((size_t)row * a.heads + head) * NOPE + c
                                            : a.rope + (size_t)row * ROPE + (c - NOPE);
            copy_async16(k + (stage * ATTN_TOKENS + t) * K_LD + c, ok ? from : a.k, ok);
        }
        for (unsigned i = threadIdx.x; i < ATTN_TOKENS * V / 8; i += blockDim.x) {
            unsigned t = i / (V / 8), c = i % (V / 8) * 8, row = t0 + t - a.first;
            bool ok = row < a.tokens;
            copy_async16(v + (stage * ATTN_TOKENS + t) * V_LD + c,
                         ok ? a.v + ((size_t)row * a.heads + head) * V + c : a.v, ok);
        }
        copy_commit();
    }
};

// A row's maximum, sum and weighted values, from or to [v + 2] f32.
template <int V>
DEVICE void expand_state(float *state, bool save, float o[][4], float m[2], float l[2],
                         unsigned half)
{
    unsigned t = threadIdx.x % 4;
#pragma unroll
    for (int d = 0; d < V / 8; d++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float *at = state + d * 8 + t * 2 + i;
            if (save)
                *at = o[d][half * 2 + i];
            else
                o[d][half * 2 + i] = *at;
        }
    if (!save) {
        m[half] = state[V];
        l[half] = state[V + 1];
    } else if (t == 0) {
        state[V] = m[half];
        state[V + 1] = l[half];
    }
}

template <int NOPE, int ROPE, int V, bool BF> DEVICE void mla_prefill(const mla_prefill_args &a)
{
    using Tile = ExpandTile<NOPE, ROPE, V>;
    SHARED(uint16_t, shared);
    Tile tile(shared);
    struct attn_tile at = a.tiles[blockIdx.x];
    unsigned head = blockIdx.y, row0 = at.row - a.first_row;
    unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    unsigned end = min(at.position + at.rows, a.first + a.tokens);
    const unsigned row_pos[2] = {at.position + warp * 16 + g, at.position + warp * 16 + g + 8};
    float o[V / 8][4], m[2] = {-INFINITY, -INFINITY}, l[2] = {0, 0};
#pragma unroll
    for (int d = 0; d < V / 8; d++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            o[d][i] = 0;
    for (unsigned half = 0; half < 2 && a.resume; half++) {
        unsigned r = warp * 16 + g + half * 8;
        if (r < at.rows)
            expand_state<V>(a.state + ((size_t)(row0 + r) * a.heads + head) * (V + 2), false, o, m,
                            l, half);
    }
    if (a.first < end) {
        for (unsigned i = threadIdx.x; i < ATTN_ROWS * Tile::DK / 8; i += blockDim.x) {
            unsigned r = i / (Tile::DK / 8), c = i % (Tile::DK / 8) * 8;
            bool ok = r < at.rows && c < Tile::QK;
            size_t from =
                ((size_t)(row0 + (ok ? r : 0)) * a.heads + head) * Tile::QK + (ok ? c : 0);
            copy_async16(tile.q + r * Tile::K_LD + c, a.q + from, ok);
        }
        tile.load(a, 0, head, a.first);
    }
    for (unsigned t0 = a.first, stage = 0; t0 < end; t0 += ATTN_TOKENS, stage ^= 1) {
        if (t0 + ATTN_TOKENS < end) {
            tile.load(a, stage ^ 1, head, t0 + ATTN_TOKENS);
            copy_wait<1>();
        } else {
            copy_wait<0>();
        }
        __syncthreads();
        float s[4][4];
        uint32_t p[2][4];
        scores<Tile::DK, BF>(s, tile.q + warp * 16 * Tile::K_LD,
                             tile.k + stage * ATTN_TOKENS * Tile::K_LD);
        soften<V, BF>(s, o, m, l, p, row_pos, t0, 0);
        weigh<V, BF>(o, p, tile.v + stage * ATTN_TOKENS * Tile::V_LD);
        __syncthreads();
    }
#pragma unroll
    for (unsigned half = 0; half < 2; half++) {
        unsigned r = warp * 16 + g + half * 8;
        if (r >= at.rows)
            continue;
        if (!a.last) {
            expand_state<V>(a.state + ((size_t)(row0 + r) * a.heads + head) * (V + 2), true, o, m,
                            l, half);
            continue;
        }
        float inv = l[half] > 0 ? 1.0f / l[half] : 0.0f;
        uint16_t *out = a.out + ((size_t)(at.row + r) * a.heads + head) * V + t * 2;
#pragma unroll
        for (int d = 0; d < V / 8; d++)
            *reinterpret_cast<uint32_t *>(out + d * 8) =
                pack_bf16(o[d][half * 2] * inv, o[d][half * 2 + 1] * inv);
    }
}

#define MLA_PREFILL(NOPE, ROPE, V)                                                                 \
    KERNEL(mla_prefill_##NOPE##_##ROPE##_##V##_k, struct mla_prefill_args, 128)                    \
    {                                                                                              \
        mla_prefill<NOPE, ROPE, V, false>(a);                                                      \
    }                                                                                              \
    KERNEL(mla_prefill_##NOPE##_##ROPE##_##V##_bf16_k, struct mla_prefill_args, 128)               \
    {                                                                                              \
        mla_prefill<NOPE, ROPE, V, true>(a);                                                       \
    }
MLA_PREFILL(128, 64, 128)
MLA_PREFILL(24, 16, 32) // of small models, in tests
