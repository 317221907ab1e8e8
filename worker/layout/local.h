/* local.h: the ranks of a group as children of this process, on this machine (score, benches). They
 * can't outlive it. Call before any thread is made. */
#pragma once
#include "worker/comm/comm.h"

/* What a rank does; `e` says why it failed. The world is left after it. */
typedef int (*local_rank_fn)(struct comm *world, void *ctx, struct err *e);

/* Forks `ranks` ranks and waits for all. When one fails the others are ended, and its reason is
 * returned. */
int local_run(uint32_t ranks, local_rank_fn fn, void *ctx, struct err *e) MUST_CHECK;
