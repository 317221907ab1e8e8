/* rollout.h: one step of a rollout, for all roles of a deployment at once. Pure and stateless: it
 * is asked again after every change and goes on from whatever is there, so that a killed
 * controller, a revert, a third revision or a changed number need no memory of what came before.
 *
 * "New" groups have the wanted revision and may stay where they are; every other is "old" (an older
 * revision, or on a node that is being emptied). Rules:
 *   - there are never more than want + maxSurge groups, and no ready group is given up unless
 *     want - maxUnavailable stay ready (when both are 0 one group of surge is used, or nothing
 *     could ever move);
 *   - old groups that are not ready go first and cost no budget, so that a revision that never
 *     became ready can always be replaced;
 *   - where new groups can't work with old ones (another pairing key) roles move in step: with T
 *     the number of steps of the largest role, a role has at most ceil((i + 1) want / T) new groups
 *     and gives up no more than floor(i want / T) old ones while i steps are complete in every
 *     role. So each side of the fleet keeps prefill and decode in proportion, and a side's weight,
 *     min over roles of its share (rollout_weight), adds up to the whole.
 * Source: the rolling update of Deployments; LeaderWorkerSet KEP-766 for several roles. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct rollout_role {
    int32_t want;
    int32_t new_live, new_ready; /* live: there and not on its way out; ready: of those */
    int32_t old_live, old_ready;
    int32_t paired_ready; /* ready groups, old or new, that have the wanted pairing key */
};

struct rollout_budget {
    int32_t max_unavailable, max_surge; /* groups a role */
    bool in_step;                       /* old groups can't pair with new ones */
};

struct rollout_move {
    int32_t create;           /* of the wanted revision */
    int32_t drop_old_unready; /* all of them, or none when want is kept by nothing else */
    int32_t drop_old_ready;
    int32_t drop_new; /* beyond what is wanted: the least useful */
};

void rollout_plan(const struct rollout_role *roles, size_t n, const struct rollout_budget *b,
                  struct rollout_move *out);

/* The share of the work that groups of one pairing key can take: min over roles of ready / all
 * ready. ready[i] of all[i]; roles with none at all are left out. */
double rollout_weight(const int32_t *ready, const int32_t *all, size_t n);
