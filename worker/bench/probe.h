/* What this machine could do at best, measured beside the engine: reading memory once in order, and
 * multiplying bytes in registers. Plain functions; they start and join their own threads. Rates are
 * per second of wall time (all threads together) and per second of a thread's CPU time. */
#pragma once
#include "lib/base/err.h"

#include <stdint.h>

struct probe_rate {
    double wall, cpu; /* units a second: bytes read; multiply-adds x 2 */
};

/* `bytes` in huge pages where there are, each thread its part, several times over. */
int probe_read(uint64_t bytes, uint32_t threads, struct probe_rate *out, struct err *e) MUST_CHECK;
/* The best of what the machine has: AVX-512 VNNI, or AVX2. 0 where neither is. */
int probe_int8(uint32_t threads, struct probe_rate *out, struct err *e) MUST_CHECK;
