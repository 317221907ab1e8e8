/* host.h: what this process may use of the machine: the least of the machine's own and every
 * enclosing cgroup's limit (v1 and v2), read anew at each call. Any thread. */
#pragma once
#include <stdint.h>

uint64_t host_milli_cpus(void);   /* 1000 a core; from affinity and cgroup quota; at least 1 */
uint64_t host_memory_bytes(void); /* RAM or cgroup limit */
uint64_t host_memory_available_bytes(void); /* MemAvailable, capped by what the cgroup leaves */
