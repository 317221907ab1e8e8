/* clock.h: time in, as arguments, everywhere but here. Deciders take `now_ns`; only shells call
 * these. */
#pragma once
#include <stdint.h>

#define NS_PER_S  1000000000ull
#define NS_PER_MS 1000000ull
#define NS_PER_US 1000ull

uint64_t clock_mono_ns(void); /* CLOCK_MONOTONIC */
uint64_t clock_wall_ns(void); /* since the epoch */
uint64_t clock_thread_cpu_ns(void);

#define CLOCK_RFC3339_MAX 40
/* "2026-11-30T02:40:32Z" (fraction_digits 0) or with 3 or 6 digits of fraction. Returns out. */
char *clock_rfc3339(uint64_t wall_ns, int fraction_digits, char out[CLOCK_RFC3339_MAX]);
/* Parses RFC 3339 with 'Z' or an offset and any fraction. 0 or -EINVAL. */
int clock_parse_rfc3339(const char *s, uint64_t *wall_ns);
