/* data.h: data-parallel attention (internal to worker/layout). Every data rank has all KV heads and
 * the KV of its own sequences; experts are dealt over all of them (worker/model/ep.h). The step
 * plan is the same for all: a sequence belongs to the data rank that has its blocks, and nobody has
 * to keep a table. layer_done is called at rank 0 when every data rank has written a layer's KV: as
 * layers with experts over all ranks bring that to light, else at the end.
 *
 * Threads: the engine's. */
#pragma once
#include "worker/layout/group.h"

struct data;
/* Of a rank in a layout with more than one data rank; `c` and `w` outlive it. */
int data_new(const struct group_config *c, struct model_work *w, struct data **out,
             struct err *e) MUST_CHECK;
void data_free(struct data *d); /* NULL is fine */
/* Whether data_forward would take the batch. */
int data_check(struct data *d, const struct model_batch *b, struct err *e) MUST_CHECK;
/* Of a batch that was checked: whether a data rank has two rows, so that there are two halves. */
bool data_has_halves(const struct data *d, const struct model_batch *b);
/* The whole group's batch: this rank computes its own part; rank 0 gets everybody's logits. */
int data_forward(struct data *d, const struct model_batch *b, struct err *e) MUST_CHECK;
