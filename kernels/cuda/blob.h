/* blob.h: device code that the build embedded, one fat binary a kernel source (module.mk makes the
 * assembly file that holds them; none without a CUDA toolchain). */
#pragma once
#include <stdint.h>

#define BLOBS_MAX 32u

struct blob {
    const void *from;
};
extern const struct blob blobs[];
extern const uint32_t blob_count;
