// Rotary embedding, head norms, and the store of keys and values into the paged cache.
#include "kernels/cuda/device.h"

// One warp a head. Lane l holds the pairs l, l + 32, ...: the rotated ones first, then what is not
// rotated.
KERNEL(rope_store_k, struct rope_args, 256)
{
    unsigned row = blockIdx.x, lane = threadIdx.x % 32, all = a.heads + 2 * a.kv_heads;
    unsigned position = a.positions[row], token = position % a.kv.block_tokens;
    uint32_t block =
        a.kv.tables[(size_t)a.sequences[row] * a.kv.table_ld + position / a.kv.block_tokens];
    const float *cs = a.cs + (size_t)position * a.dims;
    for (unsigned head = threadIdx.x / 32; head < all; head += blockDim.x / 32) {
        bool is_q = head < a.heads, is_v = head >= a.heads + a.kv_heads;
        const float *x = a.qkv + ((size_t)row * all + head) * a.dim;
        const float *bias = a.bias ? a.bias + (size_t)head * a.dim : nullptr;
        const float *norm = is_v ? nullptr : is_q ? a.q_norm : a.k_norm;
        float inv = 1;
        if (norm) {
            float s = 0;
            for (unsigned i = lane; i < a.dim; i += 32) {
                float v = x[i] + (bias ? bias[i] : 0.0f);
                s += v * v;
            }
            inv = rsqrtf(warp_sum(s) / (float)a.dim + a.eps);
        }
        uint16_t *to =
            is_q ? a.q + ((size_t)row * a.heads + head) * a.dim
                 : reinterpret_cast<uint16_t *>(a.kv.pool + block * a.kv.block_bytes +
                                                a.kv.layer_at + (is_v ? a.kv.half_bytes : 0) +
                                                (head - a.heads) % a.kv_heads * a.kv.head_bytes) +
                       (size_t)token * a.dim;
        for (unsigned p = lane; p < a.dim / 2; p += 32) {
            bool turns = p < a.dims / 2;
            unsigned i = !turns   ? 2 * p
                         : a.neox ? p
                                  : 2 * p,
                     j = turns && a.neox ? p + a.dims / 2 : i + 1;
            float u = x[i] + (bias ? bias[i] : 0.0f), v = x[j] + (bias ? bias[j] : 0.0f);
            if (norm) {
                u *= inv * norm[i];
                v *= inv * norm[j];
            }
            float c = turns && !is_v ? cs[2 * p] : 1.0f, s = turns && !is_v ? cs[2 * p + 1] : 0.0f;
            float scale = is_q ? a.scale : 1.0f;
            to[i] = f16_bits((u * c - v * s) * scale);
            to[j] = f16_bits((u * s + v * c) * scale);
        }
    }
}

// Runs of bytes between layouts.
KERNEL(relayout_k, struct relayout_args, 128)
{
    struct run r = a.runs[blockIdx.x];
    const uint4 *from = reinterpret_cast<const uint4 *>(a.from + r.from);
    uint4 *to = reinterpret_cast<uint4 *>(a.to + r.to);
    for (uint64_t i = threadIdx.x; i < r.bytes / 16; i += blockDim.x)
        to[i] = from[i];
}
