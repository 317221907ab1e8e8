/* slots.h: which tensors a model has, under which names, of which shapes (internal to
 * worker/model). */
#pragma once
#include "worker/model/image.h"

/* How tensor parallelism cuts a tensor: into heads, feed-forward width or vocabulary, by rows or by
 * columns. */
enum slot_cut {
    CUT_NONE, /* every rank has all of it */
    CUT_Q_ROWS,
    CUT_KV_ROWS,
    CUT_Q_COLS,
    CUT_FF_ROWS,
    CUT_FF_COLS,
    CUT_VOCAB_ROWS,
};

struct slot_spec {
    char name[64]; /* in GGUF */
    bool vector;   /* f32 [cols] */
    bool wanted;   /* of this architecture */
    bool optional;
    bool ends; /* global: of the first stage only */
    enum slot_cut cut;
    uint32_t rows, cols;                     /* of the whole model, or of the part (shard_spec) */
    uint32_t row0, col0, rows_all, cols_all; /* set by shard_spec: where the part lies in what */
};

/* Entry i of the directory: the global slots, then those of each layer. */
uint32_t slots_count(const struct model_config *c);
void slots_spec(const struct model_config *c, uint32_t i, struct slot_spec *out);
/* Of one part of the model: what is not there is not wanted. */
void shard_spec(const struct model_config *c, const struct model_part *p, uint32_t i,
                struct slot_spec *out);
