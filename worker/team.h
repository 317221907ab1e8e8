/* team.h: how a worker process joins the other ranks of its group (serving mode): the start message
 * says who they are; they agree on the size of the KV pools; rank 0 maps the pools of its host, and
 * keeps copies, for transfers only, of those it can't map.
 *
 * One thread, before the engine's is made. When the group fails this process ends at once, with the
 * group's reason as its last line: launchers restart groups, not ranks. */
#pragma once
#include "lib/xfer/xfer.h"
#include "worker/launcher.h"
#include "worker/layout/group.h"
#include "worker/options.h"

struct team {
    struct comm *world; /* NULL: one rank */
    struct model_layout layout;
    uint32_t rank, ranks, per_pod;
    struct xfer_slice slices[MODEL_RANKS_MAX];
    uint32_t n_slices; /* at rank 0 of several */
    bool apart[MODEL_RANKS_MAX];
    uint8_t *copies[MODEL_RANKS_MAX];
    struct xfer_pool pools[MODEL_RANKS_MAX]; /* what rank 0 has mapped or made */
};

int team_join(struct team *t, const struct launcher_start *start, const struct options *o,
              const char *secret, struct err *e) MUST_CHECK;
/* The fewest blocks that any rank has room for. */
int team_agree(struct team *t, uint32_t *n_blocks, struct err *e) MUST_CHECK;
int team_share(struct team *t, const struct xfer_pool *mine, const struct model_config *c,
               const struct budget *b, uint32_t n_blocks, struct err *e) MUST_CHECK;
void team_leave(struct team *t);
uint32_t team_threads(const struct team *t, const struct options *o); /* this rank's of its pod's */

/* A rank other than 0: obeys until rank 0 stops the group. */
int team_follow(struct team *t, const struct model *m, struct xfer_pool *pool,
                const struct group_device *device, const struct options *o, const struct budget *b,
                void *weights, size_t weights_bytes, struct err *e) MUST_CHECK;
