// Mixture of experts: the choice of experts, sorting rows by expert, and joining what they give.
#include "kernels/cuda/device.h"

// Of the values of all lanes the greatest, of equals the lowest index; the same in every lane.
DEVICE void warp_best(float *value, unsigned *index)
{
    for (int o = 16; o > 0; o >>= 1) {
        float v = __shfl_xor_sync(ALL_LANES, *value, o);
        unsigned i = __shfl_xor_sync(ALL_LANES, *index, o);
        if (v > *value || (v == *value && i < *index)) {
            *value = v;
            *index = i;
        }
    }
}

// score [experts] from logits: softmax or sigmoid.
DEVICE void gate_scores(const struct moe_gate_args &a, const float *logits, float *score)
{
    unsigned lane = threadIdx.x;
    float most = -INFINITY, sum = 0;
    for (unsigned e = lane; e < a.experts; e += 32)
        most = fmaxf(most, logits[e]);
    most = warp_max(most);
    for (unsigned e = lane; e < a.experts; e += 32) {
        float v = a.score ? 1.0f / (1.0f + expf(-logits[e])) : expf(logits[e] - most);
        score[e] = v;
        sum += v;
    }
    if (a.score)
        return;
    sum = warp_sum(sum);
    for (unsigned e = lane; e < a.experts; e += 32)
        score[e] /= sum;
}

// Takes the experts of all but the best groups out of the choice. One lane a group.
DEVICE void gate_groups(const struct moe_gate_args &a, float *choice)
{
    unsigned lane = threadIdx.x, size = a.experts / a.groups;
    float best = -INFINITY, second = -INFINITY;
    for (unsigned i = 0; lane < a.groups && i < size; i++) {
        float v = choice[lane * size + i];
        second = v > best ? best : fmaxf(second, v);
        best = fmaxf(best, v);
    }
    float mine = lane >= a.groups ? -INFINITY : a.group_top == 2 && size > 1 ? best + second : best;
    bool used = false;
    for (unsigned k = 0; k < a.groups_used; k++) {
        float v = used || lane >= a.groups ? -INFINITY : mine;
        unsigned i = used || lane >= a.groups ? 32 + lane : lane;
        warp_best(&v, &i);
        used = used || i == lane;
    }
    if (lane < a.groups && !used)
        for (unsigned i = 0; i < size; i++)
            choice[lane * size + i] = -INFINITY;
    __syncwarp();
}

KERNEL(moe_gate_k, struct moe_gate_args, 32)
{
    SHARED(float, score);
    float *choice = score + a.experts;
    unsigned row = blockIdx.x, lane = threadIdx.x;
    gate_scores(a, a.logits + (size_t)row * a.experts, score);
    for (unsigned e = lane; e < a.experts; e += 32)
        choice[e] = score[e] + (a.bias ? a.bias[e] : 0.0f);
    __syncwarp();
    if (a.groups > 1)
        gate_groups(a, choice);
    float sum = 0, mine = 0;
    for (unsigned k = 0; k < a.top_k; k++) {
        float v = -INFINITY;
        unsigned best = UINT32_MAX;
        for (unsigned e = lane; e < a.experts; e += 32)
            if (choice[e] > v) {
                v = choice[e];
                best = e;
            }
        warp_best(&v, &best);
        bool found = best < a.experts; // none of what is not a number is the greatest
        best = found ? best : k;
        float weight = found ? score[best] : NAN;
        sum += weight;
        if (lane == k) {
            a.ids[(size_t)row * a.top_k + k] = best;
            mine = weight;
        }
        __syncwarp();
        if (lane == 0)
            choice[best] = -INFINITY;
        __syncwarp();
    }
    if (lane < a.top_k)
        a.weights[(size_t)row * a.top_k + lane] = mine * a.scale / (a.normalize ? sum : 1.0f);
}

KERNEL(moe_count_k, struct moe_count_args, 256)
{
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < a.n; i += gridDim.x * blockDim.x)
        if (a.ids[i] - a.first < a.experts)
            atomicAdd(&a.counts[a.ids[i] - a.first], 1u);
}

// One warp an expert: where it starts is the sum of what comes before, then its choices in order.
KERNEL(moe_place_k, struct moe_place_args, 32)
{
    unsigned expert = blockIdx.x, lane = threadIdx.x;
    uint32_t at = 0;
    for (unsigned e = lane; e < expert; e += 32)
        at += (a.counts[e] + GEMM_TILE - 1) / GEMM_TILE * GEMM_TILE;
    at = warp_sum(at);
    uint32_t room = (a.counts[expert] + GEMM_TILE - 1) / GEMM_TILE * GEMM_TILE, end = at + room;
    for (uint32_t tile = at / GEMM_TILE + lane; tile < end / GEMM_TILE; tile += 32)
        a.expert_of[tile] = expert;
    for (unsigned i0 = 0; i0 < a.n; i0 += 32) {
        unsigned i = i0 + lane;
        uint32_t id = i < a.n ? a.ids[i] - a.first : UINT32_MAX;
        unsigned mine = __ballot_sync(ALL_LANES, id == expert);
        if (id == expert) {
            uint32_t place = at + (uint32_t)__popc(mine & ((1u << lane) - 1));
            a.place[i] = place;
            a.row_of[place] = i / a.top_k;
        } else if (expert == 0 && i < a.n && id >= a.experts) {
            a.place[i] = UINT32_MAX;
        }
        at += (uint32_t)__popc(mine);
    }
    for (uint32_t p = at + lane; p < end; p += 32)
        a.row_of[p] = UINT32_MAX;
    if (expert + 1 < a.experts)
        return;
    for (uint32_t tile = end / GEMM_TILE + lane; tile < a.places / GEMM_TILE; tile += 32)
        a.expert_of[tile] = UINT32_MAX;
}

KERNEL(combine_k, struct combine_args, 256)
{
    size_t row = blockIdx.x;
    for (unsigned i = threadIdx.x; i < a.d; i += blockDim.x) {
        float sum = a.shared ? a.shared[row * a.d + i] : 0.0f;
        for (unsigned k = 0; k < a.top_k; k++) {
            uint32_t place = a.place[row * a.top_k + k];
            if (place != UINT32_MAX)
                sum += a.weights[row * a.top_k + k] * a.c[(size_t)place * a.d + i];
        }
        a.y[row * a.d + i] = sum;
    }
}
