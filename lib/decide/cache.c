#include "lib/decide/cache.h"

#include "lib/decide/guard.h"

#include <errno.h>

static bool droppable(const struct cache_entry *e)
{
    return !(e->in_use && GUARD(cache_spares_what_is_used)) &&
           !(e->wanted && GUARD(cache_spares_what_is_wanted));
}

int cache_evict(const struct cache_entry *e, size_t n, uint64_t budget, uint64_t need,
                uint32_t *victims, uint64_t *free_bytes)
{
    uint64_t used = 0, kept = 0;
    int count = 0;
    if (!GUARD(cache_budget))
        budget = UINT64_MAX;
    for (size_t i = 0; i < n; i++) {
        used += e[i].bytes;
        kept += droppable(&e[i]) ? 0 : e[i].bytes;
    }
    *free_bytes = budget > kept ? budget - kept : 0;
    if (need > *free_bytes)
        return -ENOSPC;
    while (used > budget || budget - used < need) {
        size_t oldest = n;
        for (size_t i = 0; i < n; i++) {
            bool taken = false;
            for (int k = 0; k < count; k++)
                taken |= victims[k] == i;
            if (!taken && droppable(&e[i]) && (oldest == n || e[i].used_ns < e[oldest].used_ns))
                oldest = i;
        }
        if (oldest == n)
            return -ENOSPC;
        victims[count++] = (uint32_t)oldest;
        used -= e[oldest].bytes;
    }
    return count;
}
