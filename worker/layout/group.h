/* group.h: the ranks of one model instance as one model (DESIGN.md §5). Rank 0 decides what is
 * computed and broadcasts it as a list of commands, the step plan; the others follow. Block numbers
 * are the same on every rank: each keeps its layers and heads of a block in its own pool. With data
 * ranks (data.h) block b lies at data rank b / pool_blocks, as its block b % pool_blocks.
 *
 *   rank 0: group_forward, group_copy, …, group_stop      others: group_follow until that
 *
 * With one rank this is model_forward and nothing more.
 *
 * KV of ranks whose pools rank 0 can't map (they are on other hosts) passes through copies that it
 * keeps of their pools, `apart`: group_fetch fills them, group_store empties them.
 *
 * A data rank other than 0 that dies may be masked (group_allow_masks): the step that was under way
 * is void, group_forward returns -ECANCELED, and the others go on. Its blocks are lost.
 *
 * Threads: one, the engine's. The communicator `world` and the model outlive the group. Errors:
 * those of model_forward; -EPIPE when the group has failed, which is final; -ECANCELED: above.
 */
#pragma once
#include "worker/comm/comm.h"
#include "worker/layout/device.h"
#include "worker/model/shard.h"

struct group;

/* Batches of data ranks with experts over ranks: whole, as two halves (model_work_halve), or as
 * steps of both ways were measured to take less (lib/decide/overlap.h). */
enum group_halves { GROUP_WHOLE, GROUP_HALVES, GROUP_HALVES_MEASURED };

struct group_config {
    const struct model *model; /* this rank's part */
    struct model_layout layout;
    uint32_t rank;
    struct comm *world;             /* NULL: one rank */
    struct model_work_options work; /* .group is set by group_new, but for how rows travel */
    enum group_halves halves;       /* the same at every rank */
    void *pool;                     /* this rank's KV, work.pool_blocks of its part's block_bytes */
    /* What computes in place of this CPU; every rank has one or none has. `pool` is the host's
     * then, which KV passes through: group_fetch brings it there, group_store takes it away. */
    const struct group_device *device;
    bool apart[MODEL_RANKS_MAX];      /* the same at every rank */
    uint8_t *copies[MODEL_RANKS_MAX]; /* at rank 0, of ranks apart: shaped as their pools */
    /* At the others, when rank 0 says so: give memory back, or take it again. May be NULL. */
    int (*sleep)(void *ctx, bool asleep, struct err *e);
    void *ctx;
};

/* Communicators of this rank in `mine`: of its tensor ranks, its stages and, with data-parallel
 * attention, of the ranks that its experts are dealt over. Every rank calls it; again, they are the
 * same. */
int group_split(const struct model_layout *l, uint32_t rank, struct comm *world,
                struct model_group *mine, struct err *e) MUST_CHECK;
int group_new(const struct group_config *c, struct group **out, struct err *e) MUST_CHECK;
void group_free(struct group *g);
uint32_t group_ranks(const struct group *g);
const struct model_work *group_work(const struct group *g);

/* ---- rank 0 ---- */
int group_forward(struct group *g, const struct model_batch *b, struct err *e) MUST_CHECK;
/* With a pipeline of CPU ranks several batches may be on their way: group_begin does the first
 * stage's part of one, group_end waits for the oldest and fills its logits. Between them everything
 * else but group_copy and group_store waits; a sequence is in one batch at a time; of `b`,
 * group_end reads logits, rows and layer_done. */
uint32_t group_batches(const struct group *g); /* that keep all stages busy: stages, or 1: no such
                                                  layout */
bool group_may_begin(const struct group *g, uint32_t rows); /* one of so many rows, now */
int group_begin(struct group *g, const struct model_batch *b, struct err *e) MUST_CHECK;
int group_end(struct group *g, const struct model_batch *b, struct err *e) MUST_CHECK;
/* A block's content on every rank; the others do it before their next step. */
void group_copy(struct group *g, uint32_t from, uint32_t to);
/* Whether blocks must be fetched before other workers can have them, all layers at once: ranks
 * apart, or several ranks with devices. */
bool group_has_apart(const struct group *g);
/* Blocks of ranks apart into their copies, now; out of them, before the next step. */
int group_fetch(struct group *g, const uint32_t *blocks, uint32_t n, struct err *e) MUST_CHECK;
void group_store(struct group *g, const uint32_t *blocks, uint32_t n);
/* One rank with a device: in layer_done of `layer`, its pieces of the blocks are fetched; else
 * nothing is to be done. */
int group_fetch_layer(struct group *g, const uint32_t *blocks, uint32_t n, uint32_t layer,
                      struct err *e) MUST_CHECK;
int group_sleep(struct group *g, bool asleep, struct err *e) MUST_CHECK;
int group_stop(struct group *g, struct err *e) MUST_CHECK;

/* From now on a data rank that dies is masked, as long as every expert has a rank that lives.
 * Returns 1; 0 when no death could be: ranks that hold what no other has (tensor ranks, stages,
 * experts without copies), ranks on several hosts, devices. `wake_fd` as in comm_allow_masks. */
int group_allow_masks(struct group *g, int wake_fd, struct err *e) MUST_CHECK;
/* Data ranks that are masked, a bit each. `also_new`: takes notice of those that died meanwhile; a
 * failure of that shows at the next call. */
uint64_t group_masked(struct group *g, bool also_new);

struct group_report { /* of one rank */
    uint32_t rank, tensor_rank, stage, reserved;
    int64_t pid;
    uint64_t weight_bytes, kv_block_bytes;
    struct comm_stats tensor, pipeline, expert, world;
    struct model_work_stats work;
};
void group_report(const struct group *g, struct group_report *mine); /* of this rank; any rank */
/* all: [group_ranks()] */
int group_reports(struct group *g, struct group_report *all, struct err *e) MUST_CHECK;

/* ---- the others ---- */
/* Obeys until rank 0 stops the group: 0. */
int group_follow(struct group *g, struct err *e) MUST_CHECK;
