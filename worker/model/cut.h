/* cut.h: a batch as the micro-batches of a pipeline (GPipe, arXiv 1811.06965): by rows, in order,
 * so that a later one finds the KV of an earlier one. Few rows are not cut, for every micro-batch
 * reads all weights of a stage again. Pure; any thread. */
#pragma once
#include "worker/model/model.h"

struct batch_cut { /* what was taken */
    uint32_t segment, token;
};

uint32_t batch_rows(const struct model_batch *b);
/* Rows of a micro-batch. */
uint32_t batch_part_rows(uint32_t rows, uint32_t stages);
/* The next `rows` rows of b, in `segments` (room for all of b's) and *out, which has neither logits
 * nor, unless it is the last, layer_done; false at the end. */
bool batch_next(const struct model_batch *b, uint32_t rows, struct batch_cut *c,
                struct model_segment *segments, struct model_batch *out);
