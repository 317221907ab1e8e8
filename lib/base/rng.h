/* rng.h: random numbers are a function of their arguments. rng_at() is counter-based (DESIGN §4.4:
 * seed, choice, position), so preemption, replay and migration draw the same numbers. struct rng is
 * a small sequential generator for jitter and tests (splitmix64). Neither is for secrets:
 * rng_secret() is. */
#pragma once
#include <stddef.h>
#include <stdint.h>

uint64_t rng_at(uint64_t seed, uint64_t stream, uint64_t position);
double rng_unit_at(uint64_t seed, uint64_t stream, uint64_t position); /* in [0, 1), 53 bits */

struct rng {
    uint64_t state;
};
uint64_t rng_next(struct rng *r);
uint64_t rng_below(struct rng *r, uint64_t n); /* uniform in [0, n), n > 0 */
double rng_unit(struct rng *r);

void rng_secret(void *out, size_t n); /* from the kernel */
uint64_t rng_secret_u64(void);        /* never 0: incarnations, request ids */
