/* nvml.h: the little of NVIDIA's management library that device health needs, by dlopen, so that
 * one binary serves nodes with and without GPUs. Symbols and constants: NVML API reference
 * (docs.nvidia.com/deploy/nvml-api). Calls block for milliseconds; nvml_wait blocks for its timeout
 * and belongs on a thread of its own. Otherwise one thread. */
#pragma once
#include "lib/base/str.h"

struct nvml;
#define NVML_DEVICES_MAX 64

/* path NULL: libnvidia-ml.so.1. -ENOENT: no such library (no GPU here). */
int nvml_open(const char *path, struct nvml **out, struct err *e) MUST_CHECK;
void nvml_close(struct nvml *n);
unsigned nvml_count(const struct nvml *n);

struct nvml_device {
    char uuid[96], name[96];
    uint64_t memory_bytes;
};
int nvml_device(struct nvml *n, unsigned i, struct nvml_device *out, struct err *e) MUST_CHECK;

struct nvml_health {
    bool lost;                /* the device does not answer any more */
    uint64_t ecc_uncorrected; /* since the driver was loaded */
    bool remap_pending, remap_failed;
    bool throttled; /* slowed down by its hardware: heat, power */
};
void nvml_health(struct nvml *n, unsigned i, struct nvml_health *out);

/* The next Xid of any device. 1 with *device and *xid; 0 when the time is over; negative: events
 * don't work here. */
int nvml_wait(struct nvml *n, unsigned timeout_ms, unsigned *device, uint64_t *xid,
              struct err *e) MUST_CHECK;
