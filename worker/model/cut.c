#include "worker/model/cut.h"

#define PART_ROWS_MIN 32u /* of a micro-batch: fewer cost as much */
#define PARTS_A_STAGE 4u

uint32_t batch_rows(const struct model_batch *b)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < b->n_segments; i++)
        n += b->segments[i].n_tokens;
    return n;
}

uint32_t batch_part_rows(uint32_t rows, uint32_t stages)
{
    uint32_t parts = stages * PARTS_A_STAGE, n = (rows + parts - 1) / parts;
    return (n + PART_ROWS_MIN - 1) / PART_ROWS_MIN * PART_ROWS_MIN;
}

bool batch_next(const struct model_batch *b, uint32_t rows, struct batch_cut *c,
                struct model_segment *segments, struct model_batch *out)
{
    uint32_t n = 0, room = rows;
    while (room && c->segment < b->n_segments) {
        const struct model_segment *s = &b->segments[c->segment];
        uint32_t left = s->n_tokens - c->token, k = left < room ? left : room;
        uint32_t from = s->logits_from > c->token ? s->logits_from - c->token : 0;
        segments[n] = *s;
        segments[n].tokens = s->tokens + c->token;
        segments[n].start = s->start + c->token;
        segments[n].n_tokens = k;
        segments[n++].logits_from = from < k ? from : k;
        room -= k;
        *c = k == left ? (struct batch_cut){c->segment + 1, 0}
                       : (struct batch_cut){c->segment, c->token + k};
    }
    bool last = c->segment == b->n_segments;
    *out = (struct model_batch){.segments = segments,
                                .n_segments = n,
                                .layer_done = last ? b->layer_done : NULL,
                                .ctx = b->ctx};
    return n > 0;
}
