/* scale_int.h: what the files of scale.h share. Not for others. */
#pragma once
#include "lib/decide/scale.h"

/* What the samples say together. */
struct scale_sums {
    uint32_t live, heard_of, silent, pending, running, waiting, unplaced;
    bool unschedulable;
    uint64_t waiting_tokens, used_blocks, resident_tokens;
    double rate, blocks, step_s; /* per worker: mean of those measured; the slowest step */
    uint32_t dropped[SCALE_DROPS];
};
/* Also fits the step time (memory). */
void scale_sum(const struct scale_input *in, struct scale_memory *m, struct scale_sums *out);
/* Advances the trends of arrivals and KV to now. */
void scale_trend(const struct scale_input *in, const struct scale_sums *s, struct scale_memory *m,
                 uint64_t now_ns);
/* Seconds of a step with `batch` requests holding `tokens` of KV; < 0: not enough was seen. */
double scale_step_s(const struct scale_memory *m, double batch, double tokens);

/* Trims rises to the room on the nodes (scale_room.c). */
void scale_trim(struct scale_plan *p);

void scale_note(struct scale_decision *d, const char *fmt, ...) PRINTF_LIKE(2, 3); /* "; …" */
int32_t scale_up_to(double v); /* ceil within [0, SCALE_GROUPS_MAX] */
