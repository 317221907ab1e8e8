// Rotary embedding, head norms, and the store of keys, values and latents into the paged cache.
#include "kernels/cuda/kv.h"

// One warp a head. Lane l computes the pairs l, l + 32, ...: the rotated ones first, then what is
// not rotated. The row passes through shared memory: codes need groups of neighbours.
KERNEL(rope_store_k, struct rope_args, 256)
{
    SHARED(float, rows); // [8 warps][dim]
    unsigned row = blockIdx.x, lane = threadIdx.x % 32, all = a.heads + 2 * a.kv_heads;
    float *to = rows + threadIdx.x / 32 * a.dim;
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
            to[i] = (u * c - v * s) * scale;
            to[j] = (u * s + v * c) * scale;
        }
        __syncwarp();
        if (is_q) {
            uint32_t *q =
                reinterpret_cast<uint32_t *>(a.q + ((size_t)row * a.heads + head) * a.dim);
            for (unsigned i = lane; i < a.dim / 2; i += 32)
                q[i] = pack_half(to[2 * i], to[2 * i + 1], a.kv.form == KV_FORM_BF16);
        } else {
            kv_store_row(a.kv,
                         a.kv.pool + block * a.kv.block_bytes + a.kv.layer_at +
                             (is_v ? a.kv.half_bytes : 0) +
                             (head - a.heads) % a.kv_heads * a.kv.head_bytes,
                         token, to, a.dim);
        }
        __syncwarp();
    }
}

// A pair of x rotated by its cosine and sine.
DEVICE float2 turned(const float *x, const float *cs, unsigned p, unsigned rope, bool neox,
                     unsigned *i, unsigned *j)
{
    *i = neox ? p : 2 * p;
    *j = neox ? p + rope / 2 : *i + 1;
    float u = x[*i], v = x[*j], c = cs[2 * p], s = cs[2 * p + 1];
    return {u * c - v * s, u * s + v * c};
}

// A head's query: its first part in place for the product that takes it into the latent space, the
// second rotated behind the latent's place.
DEVICE void prepare_head(const struct mla_prepare_args &a, unsigned head, const float *cs)
{
    unsigned lane = threadIdx.x % 32, width = a.latent + a.rope, i, j;
    size_t at = (size_t)blockIdx.x * a.heads + head;
    bool bf16 = a.kv.form == KV_FORM_BF16;
    const float *x = a.q + at * (a.nope + a.rope);
    uint16_t *to = a.expanded ? a.q_out + at * (a.nope + a.rope) : a.q_out + at * width;
    for (unsigned k = lane; k < a.nope; k += 32) {
        if (a.expanded)
            to[k] = half_bits(x[k] * a.scale, bf16);
        else
            a.q_nope[at * a.nope + k] = bf16_bits(x[k]);
    }
    to += a.expanded ? a.nope : a.latent;
    for (unsigned p = lane; p < a.rope / 2; p += 32) {
        float2 v = turned(x + a.nope, cs, p, a.rope, a.neox, &i, &j);
        to[i] = half_bits(v.x * a.scale, bf16);
        to[j] = half_bits(v.y * a.scale, bf16);
    }
}

// One warp a head, one the latent.
KERNEL(mla_prepare_k, struct mla_prepare_args, 256)
{
    SHARED(float, to); // [latent + rope]
    unsigned row = blockIdx.x, lane = threadIdx.x % 32, width = a.latent + a.rope, i, j;
    unsigned position = a.positions[row];
    const float *cs = a.cs + (size_t)position * a.rope, *c = a.kv_a + (size_t)row * width;
    for (unsigned head = threadIdx.x / 32; head < a.heads; head += blockDim.x / 32)
        prepare_head(a, head, cs);
    if (threadIdx.x / 32 != a.heads % (blockDim.x / 32))
        return;
    float s = 0;
    for (unsigned k = lane; k < a.latent; k += 32)
        s += c[k] * c[k];
    float inv = rsqrtf(warp_sum(s) / (float)a.latent + a.eps);
    for (unsigned k = lane; k < a.latent; k += 32)
        to[k] = c[k] * inv * a.norm[k];
    for (unsigned p = lane; p < a.rope / 2; p += 32) {
        float2 v = turned(c + a.latent, cs, p, a.rope, a.neox, &i, &j);
        to[a.latent + i] = v.x;
        to[a.latent + j] = v.y;
    }
    __syncwarp();
    uint32_t block =
        a.kv.tables[(size_t)a.sequences[row] * a.kv.table_ld + position / a.kv.block_tokens];
    kv_store_row(a.kv, a.kv.pool + block * a.kv.block_bytes + a.kv.layer_at,
                 position % a.kv.block_tokens, to, width);
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
