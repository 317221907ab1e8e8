// From logits to tokens: biases, greedy and random choice, the greatest n.
#include "kernels/cuda/device.h"

KERNEL(bias_k, struct bias_args, 256)
{
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < a.n) {
        struct logit_delta d = a.deltas[i];
        a.logits[(size_t)d.row * a.vocab + d.token] += d.delta;
    }
}

struct Best {
    float value;
    unsigned index;
};

// Of all threads' candidates the greatest, of equals the lowest index; `part`: 32 of them in shared
// memory.
DEVICE Best block_best(Best mine, Best *part)
{
    unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    for (int round = 0; round < 2; round++) {
        for (int o = 16; o > 0; o >>= 1) {
            float v = __shfl_xor_sync(ALL_LANES, mine.value, o);
            unsigned i = __shfl_xor_sync(ALL_LANES, mine.index, o);
            if (v > mine.value || (v == mine.value && i < mine.index))
                mine = {v, i};
        }
        if (round)
            break;
        __syncthreads();
        if (lane == 0)
            part[warp] = mine;
        __syncthreads();
        mine = lane < warps ? part[lane] : Best{-INFINITY, UINT32_MAX};
    }
    return mine;
}

DEVICE uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

// Gumbel noise of one token: a uniform number in (0, 1) from a counter, twice through -log.
DEVICE float gumbel(const struct sample_row &row, unsigned token)
{
    uint64_t x = mix(row.seed + 0x9e3779b97f4a7c15ull * (row.position + 1));
    x = mix(x ^ (uint64_t)row.choice << 32 ^ token);
    float u = ((float)(x >> 41) + 0.5f) * 0x1p-23f;
    return -logf(-logf(u));
}

KERNEL(sample_k, struct sample_args, 1024)
{
    SHARED(Best, part);
    const float *logits = a.logits + (size_t)blockIdx.x * a.vocab;
    struct sample_row row = a.rows[blockIdx.x];
    Best top = {-INFINITY, UINT32_MAX}, drawn = {-INFINITY, UINT32_MAX};
    for (unsigned i = threadIdx.x; i < a.vocab; i += blockDim.x) {
        float v = logits[i];
        if (v > top.value)
            top = {v, i};
        if (row.temperature > 0) {
            float noisy = v / row.temperature + gumbel(row, i);
            if (noisy > drawn.value)
                drawn = {noisy, i};
        }
    }
    top = block_best(top, part);
    if (row.temperature > 0)
        drawn = block_best(drawn, part);
    float sum = 0;
    for (unsigned i = threadIdx.x; i < a.vocab; i += blockDim.x)
        sum += expf(logits[i] - top.value);
    sum = block_sum(sum, reinterpret_cast<float *>(part));
    if (threadIdx.x == 0) {
        unsigned token = row.temperature > 0 ? drawn.index : top.index;
        float log_sum = logf(sum);
        a.token[blockIdx.x] = token;
        a.max[blockIdx.x] = top.value;
        a.log_sum[blockIdx.x] = log_sum;
        a.logprob[blockIdx.x] = logits[token] - top.value - log_sum;
    }
}

// Each thread keeps the best of its own slice that was not taken yet; a round takes the best of
// all, whose owner looks again.
KERNEL(top_n_k, struct top_n_args, 1024)
{
    SHARED(Best, part);
    const float *logits = a.logits + (size_t)blockIdx.x * a.vocab;
    Best mine = {-INFINITY, UINT32_MAX};
    for (unsigned i = threadIdx.x; i < a.vocab; i += blockDim.x)
        if (logits[i] > mine.value)
            mine = {logits[i], i};
    for (unsigned k = 0; k < a.n; k++) {
        Best best = block_best(mine, part);
        if (threadIdx.x == 0) {
            a.tokens[(size_t)blockIdx.x * a.n + k] = best.index;
            a.values[(size_t)blockIdx.x * a.n + k] = best.value;
        }
        if (best.index != mine.index)
            continue;
        mine = {-INFINITY, UINT32_MAX};
        for (unsigned i = threadIdx.x; i < a.vocab; i += blockDim.x) {
            float v = logits[i];
            bool left = v < best.value || (v == best.value && i > best.index);
            if (left && v > mine.value)
                mine = {v, i};
        }
    }
}
