#include "lib/base/rng.h"

#include "lib/base/err.h"

#include <sys/random.h>

static uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

uint64_t rng_at(uint64_t seed, uint64_t stream, uint64_t position)
{
    uint64_t z = mix(seed + 0x9e3779b97f4a7c15ull);
    z = mix(z ^ (stream * 0xd1342543de82ef95ull + 0x632be59bd9b4e019ull));
    return mix(z ^ (position * 0x9e3779b97f4a7c15ull + 0x2545f4914f6cdd1dull));
}

double rng_unit_at(uint64_t seed, uint64_t stream, uint64_t position)
{
    return (double)(rng_at(seed, stream, position) >> 11) * 0x1p-53;
}

uint64_t rng_next(struct rng *r)
{
    r->state += 0x9e3779b97f4a7c15ull;
    return mix(r->state);
}

uint64_t rng_below(struct rng *r, uint64_t n)
{
    ASSERT(n > 0);
    uint64_t limit = UINT64_MAX - UINT64_MAX % n, x;
    do
        x = rng_next(r);
    while (x >= limit);
    return x % n;
}

double rng_unit(struct rng *r)
{
    return (double)(rng_next(r) >> 11) * 0x1p-53;
}

void rng_secret(void *out, size_t n)
{
    for (size_t done = 0; done < n;) {
        ssize_t got = getrandom((char *)out + done, n - done, 0);
        ASSERT(got > 0);
        done += (size_t)got;
    }
}

uint64_t rng_secret_u64(void)
{
    uint64_t v = 0;
    while (v == 0)
        rng_secret(&v, sizeof v);
    return v;
}
