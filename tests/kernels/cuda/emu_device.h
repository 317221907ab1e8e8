/* emu_device.h: a gpu (kernels/cuda/gpu.h) whose device is this CPU: memory is the heap's, kernels
 * run by the emulation, in the order in which a real device could run them. Work put on a stream is
 * kept and carried out as late as possible (at a sync, or when an event that it records is waited
 * for), so that host code that forgets to wait reads what was there before. */
#pragma once
#ifdef __cplusplus
extern "C" {
#endif
#include "kernels/cuda/gpu.h"

struct gpu *emu_device_new(uint32_t sm_count);
/* Work that ran so far. */
struct emu_counts {
    uint64_t launches, copies, graphs, captured;
};
struct emu_counts emu_device_counts(const struct gpu *g);
#ifdef __cplusplus
}
#endif
