// Attention of prompt chunks: tiles of 64 query rows against the paged cache (tile.h).
#include "kernels/cuda/tile.h"

// A step never crosses a cache block. Halves: two steps in flight. Codes: likewise, and one step of
// f16 that they become.
template <int D, Kind KIND> struct PrefillTile {
    static constexpr int LD = D + 8;
    static constexpr unsigned STAGE =
        KIND == CODED ? 2 * KvCodes<D>::BYTES : 2 * ATTN_TOKENS * LD * 2;
    uint16_t *q, *k, *v; // [64][LD], [32][LD] each
    uint8_t *stages;     // [2] of K and V as they come

    DEVICE_MEMBER PrefillTile(uint16_t *shared)
        : q(shared), k(q + ATTN_ROWS * LD), v(k + ATTN_TOKENS * LD),
          stages(reinterpret_cast<uint8_t *>(KIND == CODED ? v + ATTN_TOKENS * LD : k))
    {
    }
    DEVICE_MEMBER uint8_t *stage(unsigned i) const
    {
        return stages + i * STAGE;
    }
    // Of halves the stage itself.
    DEVICE_MEMBER void take(unsigned i)
    {
        if (KIND == CODED)
            return;
        k = reinterpret_cast<uint16_t *>(stage(i));
        v = k + ATTN_TOKENS * LD;
    }
};

template <int D, Kind KIND>
DEVICE void load_step(const struct prefill_attention_args &a, uint8_t *stage, const uint32_t *table,
                      unsigned kv_head, unsigned t0, unsigned end)
{
    const uint8_t *k = a.kv.pool + table[t0 / a.kv.block_tokens] * a.kv.block_bytes +
                       a.kv.layer_at + kv_head * a.kv.head_bytes;
    constexpr unsigned LD = D + 8, HALF = PrefillTile<D, KIND>::STAGE / 2;
    kv_load<D, LD, KIND == CODED>(a.kv, k, t0, end, stage);
    kv_load<D, LD, KIND == CODED>(a.kv, k + a.kv.half_bytes, t0, end, stage + HALF);
    copy_commit();
}

template <int D, Kind KIND> DEVICE void prefill_attention(const struct prefill_attention_args &a)
{
    SHARED(uint16_t, shared);
    constexpr int LD = D + 8;
    PrefillTile<D, KIND> tile(shared);
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
    load_step<D, KIND>(a, tile.stage(0), table, kv_head, begin, end);
    float o[D / 8][4], m[2] = {-INFINITY, -INFINITY}, l[2] = {0, 0};
#pragma unroll
    for (int d = 0; d < D / 8; d++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            o[d][i] = 0;
    const unsigned row_pos[2] = {at.position + warp * 16 + g, at.position + warp * 16 + g + 8};
    for (unsigned t0 = begin, stage = 0; t0 < end; t0 += ATTN_TOKENS, stage ^= 1) {
        if (t0 + ATTN_TOKENS < end) {
            load_step<D, KIND>(a, tile.stage(stage ^ 1), table, kv_head, t0 + ATTN_TOKENS, end);
            copy_wait<1>();
        } else {
            copy_wait<0>();
        }
        __syncthreads();
        tile.take(stage);
        if constexpr (KIND == CODED) {
            bool f8 = a.kv.form == KV_FORM_F8;
            kv_decode<D, LD>(tile.stage(stage), f8, t0, end, tile.k);
            kv_decode<D, LD>(tile.stage(stage) + KvCodes<D>::BYTES, f8, t0, end, tile.v);
            __syncthreads();
        }
        float s[4][4];
        uint32_t p[2][4];
        scores<D, KIND == BF16>(s, tile.q + warp * 16 * LD, tile.k);
        soften<D, KIND == BF16>(s, o, m, l, p, row_pos, t0, a.window);
        weigh<D, KIND == BF16>(o, p, tile.v);
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
        prefill_attention<D, F16>(a);                                                              \
    }                                                                                              \
    KERNEL(prefill_attention_##D##_bf16_k, struct prefill_attention_args, 128)                     \
    {                                                                                              \
        prefill_attention<D, BF16>(a);                                                             \
    }                                                                                              \
    KERNEL(prefill_attention_##D##_coded_k, struct prefill_attention_args, 128)                    \
    {                                                                                              \
        prefill_attention<D, CODED>(a);                                                            \
    }
PREFILL(16)
PREFILL(32)
PREFILL(64)
PREFILL(128)
PREFILL(256)
