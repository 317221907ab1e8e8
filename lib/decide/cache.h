/* cache.h: which models a node's cache gives up for another. Pure. */
#pragma once
#include "lib/base/err.h"

#include <stdbool.h>
#include <stdint.h>

struct cache_entry {
    uint64_t bytes, used_ns; /* when it was last wanted */
    bool in_use;             /* a pod runs on it, a peer reads it, it is being fetched */
    bool wanted;             /* this node was told to keep it */
};

/* Room for `need` bytes within `budget`: fills victims (room for n) with the entries to drop, the
 * least recently used first, and of those only as many as it takes; returns how many. What is in
 * use or wanted stays. -ENOSPC (nothing is dropped) when that is not enough; *free_bytes is what
 * could be had at most. */
int cache_evict(const struct cache_entry *e, size_t n, uint64_t budget, uint64_t need,
                uint32_t *victims, uint64_t *free_bytes) MUST_CHECK;
