/* gating.h: which experts a token goes to (internal to CPU code; the same bits on every ISA).
 * Sources: Mixtral, arXiv 2401.04088; DeepSeek-V2, arXiv 2405.04434 (best groups); DeepSeek-V3,
 * arXiv 2412.19437 (sigmoid scores, a bias that counts in the choice only).
 *
 * Pure: threads may call it at once. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct gating {
    uint32_t experts, used, groups, groups_used; /* groups 1: no groups */
    float scale;
    bool sigmoid, normalise, top2;
    const float *bias; /* [experts] or NULL */
};

struct gating_pick {
    uint32_t expert;
    float weight;
};

/* From the router's products of one token, which are overwritten by its scores: `used` picks in the
 * order of experts. Equal scores: the smaller expert. `scratch`: [experts + groups] floats. */
void gating_choose(const struct gating *g, float *products, float *scratch,
                   struct gating_pick *out);
