/* crc32c.h: CRC-32C (Castagnoli, reflected, as in RFC 3720 §B.4) of pieces and frames: three lanes
 * of the SSE 4.2 instruction at a time, about 8 bytes a cycle; a table where there is none. Any
 * thread. */
#pragma once
#include <stddef.h>
#include <stdint.h>

/* crc: 0 to start, or the value so far. */
uint32_t crc32c(uint32_t crc, const void *data, size_t n);
uint32_t crc32c_portable(uint32_t crc, const void *data, size_t n);
