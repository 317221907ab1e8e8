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

// A row's logits, wherever its parts lie.
struct Row {
    const float *logits;
    const uint32_t *cut;
    unsigned rows, row, part, from, to; // the part that holds tokens [from, to)
    DEVICE_MEMBER Row(const sample_args &a)
        : logits(a.logits), cut(a.cut), rows(gridDim.x), row(blockIdx.x), part(0), from(0),
          to(a.cut[1])
    {
    }
    DEVICE_MEMBER float at(unsigned token)
    {
        while (token >= to) {
            from = to;
            to = cut[++part + 1];
        }
        return logits[(size_t)rows * from + (size_t)row * (to - from) + (token - from)];
    }
};

DEVICE float relative(float v, float most, const struct sample_row &row)
{
    float p = expf((v - most) * (1 / row.temperature));
    return p >= row.min_p ? p : 0.0f;
}

// Thread 0 alone: who of `n` has the mass at *left, which becomes what is left of it there; the
// last one that has any where rounding leaves a rest.
DEVICE unsigned holder(const double *mass, unsigned n, double *left)
{
    unsigned last = 0;
    for (unsigned i = 0; i < n; i++) {
        if (mass[i] <= 0)
            continue;
        if (mass[i] > *left)
            return i;
        last = i;
        *left -= mass[i];
    }
    *left = mass[last];
    return last;
}

// Each thread adds up a stretch of the vocabulary; the first looks for the token in the right one.
DEVICE unsigned draw(const sample_args &a, const struct sample_row &row, float most, double *mass)
{
    double *warps = mass + blockDim.x;
    unsigned vocab = a.cut[a.parts], each = (vocab + blockDim.x - 1) / blockDim.x;
    unsigned begin = threadIdx.x * each, end = begin + each < vocab ? begin + each : vocab;
    Row mine(a);
    double sum = 0;
    for (unsigned i = begin; i < end; i++)
        sum += (double)relative(mine.at(i), most, row);
    mass[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x < blockDim.x / 32) {
        sum = 0;
        for (unsigned i = 0; i < 32; i++)
            sum += mass[threadIdx.x * 32 + i];
        warps[threadIdx.x] = sum;
    }
    __syncthreads();
    if (threadIdx.x)
        return 0;
    double left = 0;
    for (unsigned i = 0; i < blockDim.x / 32; i++)
        left += warps[i];
    left *= row.u;
    unsigned thread = holder(warps, blockDim.x / 32, &left) * 32;
    thread += holder(mass + thread, 32, &left);
    unsigned token = UINT32_MAX;
    Row found(a);
    for (unsigned i = thread * each; i < thread * each + each && i < vocab && left >= 0; i++) {
        float p = relative(found.at(i), most, row);
        token = p > 0 ? i : token;
        left -= (double)p;
    }
    return token;
}

KERNEL(sample_k, struct sample_args, 1024)
{
    SHARED(double, mass); // of each thread and each warp
    Best *part = reinterpret_cast<Best *>(mass + blockDim.x + 32);
    struct sample_row row = a.rows[blockIdx.x];
    unsigned vocab = a.cut[a.parts];
    Best top = {-INFINITY, UINT32_MAX};
    Row mine(a);
    for (unsigned i = threadIdx.x; i < vocab; i += blockDim.x) {
        float v = mine.at(i);
        if (v > top.value)
            top = {v, i};
    }
    top = block_best(top, part);
    bool finite = top.value > -INFINITY && top.value < INFINITY;
    unsigned token = finite ? top.index : UINT32_MAX;
    if (finite && row.temperature > 0)
        token = draw(a, row, top.value, mass);
    if (threadIdx.x == 0)
        a.token[blockIdx.x] = token;
    if (!a.logprob || !finite)
        return;
    Row again(a), chosen(a);
    float sum = 0;
    for (unsigned i = threadIdx.x; i < vocab; i += blockDim.x)
        sum += expf(again.at(i) - top.value);
    sum = block_sum(sum, reinterpret_cast<float *>(part));
    if (threadIdx.x == 0)
        a.logprob[blockIdx.x] = chosen.at(token) - top.value - logf(sum);
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
