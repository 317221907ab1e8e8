/* stage.h: what one run of the threads does, and the stage's ends (internal to worker/model). */
#pragma once
#include "worker/model/layer.h"

enum stage_job {
    JOB_EMBED = 1, /* else rows come from w->out, where the stage before has sent them */
    JOB_LAYERS = 2,
    JOB_HEAD = 4,
};
void forward_thread(void *work, uint32_t thread);

/* ends.c */
void stage_embed(struct step *s);
void stage_take_in(struct step *s);
/* Logits of w->out_rows of h, or `compact`: of w->n_out rows that lie in w->out. */
void stage_head(struct step *s, bool compact);
