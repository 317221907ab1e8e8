// Decode attention over the paged cache, grouped queries, split over the context.
#include "kernels/cuda/kv.h"

// D / 8 lanes carry one token's D channels, 8 each; a warp reads 256 / D tokens at once and
// every byte of K and V is read once for the G query heads of the chunk. Four warps, each with its
// own running softmax, joined at the end.
template <int D, int G, bool CODED>
DEVICE void decode_attention(const struct decode_attention_args &a)
{
    constexpr int LANES = D / 8, TOKENS = 32 / LANES, SLOTS = 4 * TOKENS;
    SHARED(float, sums); // [SLOTS][G][D], then [SLOTS][G][2]
    float *state = sums + SLOTS * G * D;
    unsigned row = blockIdx.z, chunks = (a.group + G - 1) / G, kv_head = blockIdx.y / chunks;
    unsigned below = kv_head * a.group > a.first ? kv_head * a.group - a.first : 0;
    unsigned above = min(a.heads, (kv_head + 1) * a.group - a.first);
    unsigned first = below + blockIdx.y % chunks * G;
    if (first >= above)
        return;
    unsigned heads = min((unsigned)G, above - first);
    unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, sub = lane / LANES,
             c = lane % LANES * 8;
    unsigned end = a.positions[row] + 1, begin = a.window && end > a.window ? end - a.window : 0;
    unsigned per = (end - begin + gridDim.x - 1) / gridDim.x;
    unsigned t0 = begin + blockIdx.x * per, t1 = min(end, t0 + per);
    const uint32_t *table = a.kv.tables + (size_t)a.sequences[row] * a.kv.table_ld;
    const uint8_t *base = a.kv.pool + a.kv.layer_at + kv_head * a.kv.head_bytes;
    float q[G][8], acc[G][8], m[G], l[G];
#pragma unroll
    for (int g = 0; g < G; g++) {
        unsigned head = first + min((unsigned)g, heads - 1);
        unpack_half(*reinterpret_cast<const uint4 *>(a.q + ((size_t)row * a.heads + head) * D + c),
                    a.kv.form == KV_FORM_BF16, q[g]);
        m[g] = -INFINITY;
        l[g] = 0;
#pragma unroll
        for (int k = 0; k < 8; k++)
            acc[g][k] = 0;
    }
    for (unsigned t = t0 + warp * TOKENS; t < t1; t += SLOTS) {
        bool ok = t + sub < t1;
        unsigned at = ok ? t + sub : t;
        const uint8_t *head = base + table[at / a.kv.block_tokens] * a.kv.block_bytes;
        unsigned token = at % a.kv.block_tokens;
        float k[8], v[8];
        float k_unit = load8<CODED>(a.kv, head, token, D, c, k);
        float v_unit = load8<CODED>(a.kv, head + a.kv.half_bytes, token, D, c, v);
#pragma unroll
        for (int g = 0; g < G; g++) {
            float s = 0;
#pragma unroll
            for (int i = 0; i < 8; i++)
                s += q[g][i] * k[i];
            s *= k_unit;
#pragma unroll
            for (int o = LANES / 2; o > 0; o >>= 1)
                s += __shfl_xor_sync(ALL_LANES, s, o);
            s = ok ? s : -INFINITY;
            float next = fmaxf(m[g], s);
            float keep = m[g] == next ? 1.0f : fast_exp(m[g] - next),
                  p = ok ? fast_exp(s - next) : 0.0f;
            l[g] = l[g] * keep + p;
            m[g] = next;
            p *= v_unit;
#pragma unroll
            for (int i = 0; i < 8; i++)
                acc[g][i] = acc[g][i] * keep + p * v[i];
        }
    }
    unsigned slot = warp * TOKENS + sub;
#pragma unroll
    for (int g = 0; g < G; g++) {
#pragma unroll
        for (int i = 0; i < 8; i++)
            sums[(slot * G + g) * D + c + i] = acc[g][i];
        if (c == 0) {
            state[(slot * G + g) * 2] = m[g];
            state[(slot * G + g) * 2 + 1] = l[g];
        }
    }
    __syncthreads();
    for (unsigned i = threadIdx.x; i < heads * D; i += blockDim.x) {
        unsigned g = i / D, d = i % D;
        float most = -INFINITY, sum = 0, out = 0;
        for (int s = 0; s < SLOTS; s++)
            most = fmaxf(most, state[(s * G + g) * 2]);
        for (int s = 0; s < SLOTS; s++) {
            float ms = state[(s * G + g) * 2];
            if (ms == -INFINITY)
                continue;
            float e = fast_exp(ms - most);
            sum += e * state[(s * G + g) * 2 + 1];
            out += e * sums[(s * G + g) * D + d];
        }
        size_t at = (size_t)row * a.heads + first + g;
        if (gridDim.x == 1) {
            a.out[at * D + d] = bf16_bits(sum > 0 ? out / sum : 0.0f);
            continue;
        }
        a.part[(at * gridDim.x + blockIdx.x) * D + d] = out;
        if (d == 0) {
            a.part_ml[(at * gridDim.x + blockIdx.x) * 2] = most;
            a.part_ml[(at * gridDim.x + blockIdx.x) * 2 + 1] = sum;
        }
    }
}

#define DECODE(D, G)                                                                               \
    KERNEL(decode_attention_##D##_##G##_k, struct decode_attention_args, 128)                      \
    {                                                                                              \
        decode_attention<D, G, false>(a);                                                          \
    }                                                                                              \
    KERNEL(decode_attention_##D##_##G##_coded_k, struct decode_attention_args, 128)                \
    {                                                                                              \
        decode_attention<D, G, true>(a);                                                           \
    }
DECODE(16, 4)
DECODE(32, 4)
DECODE(64, 1)
DECODE(64, 2)
DECODE(64, 4)
DECODE(64, 8)
DECODE(128, 1)
DECODE(128, 2)
DECODE(128, 4)
DECODE(128, 8)
DECODE(256, 1)
DECODE(256, 2)
DECODE(256, 4)
DECODE(256, 8)

KERNEL(decode_merge_k, struct decode_merge_args, 512)
{
    unsigned at = blockIdx.x, d = threadIdx.x;
    float most = -INFINITY, sum = 0, out = 0;
    for (unsigned s = 0; s < a.splits; s++)
        most = fmaxf(most, a.part_ml[((size_t)at * a.splits + s) * 2]);
    for (unsigned s = 0; s < a.splits; s++) {
        const float *ml = a.part_ml + ((size_t)at * a.splits + s) * 2;
        if (ml[0] == -INFINITY)
            continue;
        float e = fast_exp(ml[0] - most);
        sum += e * ml[1];
        out += e * a.part[((size_t)at * a.splits + s) * a.dim + d];
    }
    a.out[(size_t)at * a.dim + d] = bf16_bits(sum > 0 ? out / sum : 0.0f);
}
