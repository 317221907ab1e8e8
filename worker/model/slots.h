/* slots.h: which tensors a model has, under which names, of which shapes (internal to
 * worker/model). */
#pragma once
#include "worker/model/image.h"

struct slot_spec {
    char name[64]; /* in GGUF */
    bool vector;   /* f32 [cols] */
    bool wanted;   /* of this architecture */
    bool optional;
    uint32_t rows, cols;
};

/* Entry i of the directory: the global slots, then those of each layer. */
uint32_t slots_count(const struct model_config *c);
void slots_spec(const struct model_config *c, uint32_t i, struct slot_spec *out);
