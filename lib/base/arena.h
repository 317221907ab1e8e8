/* arena.h: memory that lives as long as a request: one pool, one clear. Not thread-safe; the owner
 * is one thread. A maximum is given at init; arena_alloc returns NULL past it (sizes from outside
 * end there, not in the OOM killer). */
#pragma once
#include "lib/base/str.h"

struct arena_chunk;
struct arena {
    struct arena_chunk *head;
    size_t used, max;
};

void arena_init(struct arena *a, size_t max_bytes);
void arena_fini(struct arena *a);
void *arena_alloc(struct arena *a,
                  size_t n); /* 16-byte aligned, uninitialised; NULL past the maximum */
void *arena_calloc(struct arena *a, size_t n);  /* zeroed */
char *arena_dup(struct arena *a, struct str s); /* NUL-terminated copy */
char *arena_printf(struct arena *a, const char *fmt, ...) PRINTF_LIKE(2, 3);
