// Rows to the ranks that have their experts, and what those gave back into the rows
// (worker/gpu/ep.h).
#include "kernels/cuda/device.h"

// Whether one of a row's experts is the rank's.
DEVICE bool row_is_for(const struct ep_list_args &a, unsigned row, unsigned rank)
{
    const uint32_t *ids = a.ids + (size_t)row * a.top_k;
    bool any = false;
    for (unsigned k = 0; k < a.top_k; k++)
        any = any || (ids[k] >= a.bounds[rank] && ids[k] < a.bounds[rank + 1]);
    return any;
}

// One warp a rank: its rows, and the choices that are its.
KERNEL(ep_count_k, struct ep_list_args, 32)
{
    unsigned rank = blockIdx.x, lane = threadIdx.x;
    uint32_t rows = 0, slots = 0;
    for (unsigned row = lane; row < a.rows; row += 32)
        rows += row_is_for(a, row, rank) ? 1u : 0u;
    for (unsigned i = lane; i < a.rows * a.top_k; i += 32)
        slots += a.ids[i] >= a.bounds[rank] && a.ids[i] < a.bounds[rank + 1] ? 1u : 0u;
    rows = warp_sum(rows);
    slots = warp_sum(slots);
    if (lane == 0) {
        a.counts[rank] = rows;
        a.counts[a.ranks + rank] = slots;
    }
}

// One warp a rank: its rows in order, behind those of the ranks before.
KERNEL(ep_list_k, struct ep_list_args, 32)
{
    unsigned rank = blockIdx.x, lane = threadIdx.x;
    uint32_t at = 0;
    for (unsigned r = lane; r < rank; r += 32)
        at += a.counts[r];
    at = warp_sum(at);
    for (unsigned row0 = 0; row0 < a.rows; row0 += 32) {
        unsigned row = row0 + lane;
        bool mine = row < a.rows && row_is_for(a, row, rank);
        unsigned all = __ballot_sync(ALL_LANES, mine);
        uint32_t item = at + (uint32_t)__popc(all & ((1u << lane) - 1));
        if (mine)
            a.take[item] = row;
        if (row < a.rows)
            a.place[(size_t)row * a.ranks + rank] = mine ? item : UINT32_MAX;
        at += (uint32_t)__popc(all);
    }
}

KERNEL(ep_pack_k, struct ep_pack_args, 128)
{
    size_t item = blockIdx.x, row = a.take[item];
    if (a.x) {
        const uint4 *from = reinterpret_cast<const uint4 *>(a.x + row * a.d);
        uint4 *to = reinterpret_cast<uint4 *>(a.to_x + item * a.d);
        for (unsigned i = threadIdx.x; i < a.d / 8; i += blockDim.x)
            to[i] = from[i];
    }
    for (unsigned k = threadIdx.x; k < a.top_k; k += blockDim.x) {
        a.to_ids[item * a.top_k + k] = a.ids[row * a.top_k + k];
        a.to_weights[item * a.top_k + k] = a.weights[row * a.top_k + k];
    }
}

KERNEL(ep_join_k, struct ep_join_args, 256)
{
    size_t row = blockIdx.x;
    for (unsigned i = threadIdx.x; i < a.d; i += blockDim.x) {
        float sum = a.y[row * a.d + i];
        for (unsigned r = 0; r < a.ranks; r++) {
            uint32_t item = a.place[row * a.ranks + r];
            if (item != UINT32_MAX)
                sum += a.back[(size_t)item * a.d + i];
        }
        a.y[row * a.d + i] = sum;
    }
}
