/* moe.h: the feed-forward part of a layer with experts (internal to worker/model): router, choice,
 * products grouped by expert, their weighted sum; shared experts beside them. It is a list of
 * stages, between which another batch may be computed (halves.c); with experts at other ranks
 * (ep.h) rows are on their way from moe_send to moe_receive, and from moe_answer to moe_finish.
 *
 * Rows are sorted by expert into slots (one row may have several); products run expert by expert
 * over its slots. A row's sum goes over its experts in their order, so its bits don't depend on the
 * others of the batch.
 *
 * Threads: as layer.h. */
#pragma once
#include "worker/model/layer.h"

/* Memory of a model_work: nothing when the model has no experts. */
void moe_carve(struct carve *c, struct model_work *w);
/* From the normed rows to w->out (what the layer adds to h), in this order. When a collective fails
 * (w->rc) the threads still pass the same barriers. */
void moe_send(struct step *s, uint32_t layer);
void moe_receive(struct step *s, uint32_t layer);
void moe_experts(struct step *s, uint32_t layer);
void moe_answer(struct step *s, uint32_t layer);
void moe_finish(struct step *s, uint32_t layer);
/* to[i] += x[i] * weight, as every sum over experts does. */
void moe_add(float *to, const float *x, float weight, uint32_t n);
