/* copy.h: writes in place into another worker's pool. Bytes that will not be read from this core's
 * cache again go past it (non-temporal stores: no read of the destination first), which
 * measures 1.3 to 1.6 times memcpy from about 8 MiB on (bench/xfer.c); smaller transfers stay in
 * the cache for D. Any thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

#define COPY_STREAM_BYTES (8u << 20) /* transfers at least this big are streamed */

void copy_bytes(void *restrict to, const void *restrict from, size_t n, bool stream);
