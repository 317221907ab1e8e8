/* ep.h: rows to the ranks that hold their experts, and back (internal to worker/model). With
 * data-parallel attention each data rank has rows of its own; at a layer with experts a row is sent
 * once to every rank that is to compute some of its experts (dispatch), which answers with what
 * each of them gave (combine); the row adds the answers in the order of its experts. So its bits
 * are those of a rank that has all experts, wherever they are computed. Ranks without rows take
 * part with none, so that the others don't wait (a dummy batch).
 *
 * Two ways with the same bits. latency: one exchange of messages whose size follows from the step
 * plan, for few rows. throughput: counts first, then exactly what there is. The way follows from
 * the number of all rows of the step, which every rank knows. Rows travel as f32, or as FP8 (E4M3)
 * with an f32 scale for 128 channels (arXiv 2412.19437), also to the sender itself: where a row is
 * computed changes no bit.
 *
 * Tensor ranks of one data rank have the same rows: each sends its share of them, and the layer's
 * all-reduce makes the answers known to all.
 *
 * Threads: as layer.h; thread 0 calls the communicator. */
#pragma once
#include "worker/model/layer.h"

static inline bool ep_active(const struct model_work *w)
{
    return w->ep.ranks > 1;
}
/* Whether what other ranks' experts gave is kept behind w->out's rows until the layer's all-reduce:
 * tensor ranks share the rows out, and which one adds a row's experts to its part of the shared
 * ones must not show in the row's bits. */
static inline bool ep_behind(const struct model_work *w)
{
    return ep_active(w) && w->ep.tensor > 1 && w->m->config.moe.d_shared;
}
int ep_init(struct model_work *w, struct err *e) MUST_CHECK;
void ep_carve(struct carve *c, struct model_work *w);
/* After the choice (w->moe.picks of own rows): begin sends, and after end w->moe.picks, n_rows are
 * those of rows received. Both end with a barrier; in between another batch may be computed. */
void ep_dispatch_begin(struct step *s, uint32_t layer);
void ep_dispatch_end(struct step *s);
/* The activations of received row i. */
void ep_row(const struct step *s, uint32_t i, float *to);
/* What the slots gave (w->moe.x) goes back, and is added to w->out, or behind it, at the end. Begin
 * comes after a barrier; both end with one. */
void ep_combine_begin(struct step *s);
void ep_combine_end(struct step *s);
