/* replicas.h: which experts to keep a second time, when each has a home that it never leaves (the
 * run-time half of expert-parallel load balancing; eplb.h places everything anew).
 *
 * Greedy: the expert whose copies carry most gets one more, at the least loaded rank that has room
 * and lacks it. Ties go to the first: the same loads give the same answer at every rank, which is
 * how ranks agree without asking. Some places may be fixed: so that each expert has a copy at
 * another rank whatever the loads are, and a rank may die.
 *
 * Pure. */
#pragma once
#include "lib/base/err.h"

#include <stdint.h>

#define REPLICAS_RANKS_MAX 64u
#define REPLICAS_NONE      UINT32_MAX

/* places [ranks, room]: the experts to keep at each rank besides its own; REPLICAS_NONE: nothing.
 * Experts that are there already (`now`, the same shape; may be NULL when nothing is fixed) keep
 * their place, and the first `fixed` places of each rank are as they are now. `load` [experts] >=
 * 0, `home` [experts] the rank of each. Up to 64 ranks. */
int replicas_choose(const float *load, const uint8_t *home, uint32_t experts, uint32_t ranks,
                    uint32_t room, uint32_t fixed, const uint32_t *now, uint32_t *places,
                    struct err *e) MUST_CHECK;
/* One copy of every expert, those of a rank spread over all others in turn, so that their load is
 * spread when it dies. Returns the places a rank needs for that, those used come first in `places`
 * [ranks, room]; 0 when there is less room, or one rank: nothing is written. */
uint32_t replicas_cover(const uint8_t *home, uint32_t experts, uint32_t ranks, uint32_t room,
                        uint32_t *places);
/* The greatest rank's load over the mean, an expert's load split evenly over its copies. */
double replicas_imbalance(const float *load, const uint8_t *home, uint32_t experts, uint32_t ranks,
                          uint32_t room, const uint32_t *places);
