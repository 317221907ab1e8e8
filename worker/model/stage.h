/* stage.h: what one run of the threads does, and the stage's ends (internal to worker/model). */
#pragma once
#include "worker/model/layer.h"

enum stage_job {
    JOB_EMBED = 1, /* else rows come from w->out, where the stage before has sent them */
    JOB_LAYERS = 2,
    JOB_HEAD = 4,
};
void forward_thread(void *work, uint32_t thread);

/* forward.c: a layer as a list of stages, NULL at its end; attention is the first. Before the first
 * layer forward_open, after the last forward_close. */
typedef void (*forward_stage)(struct step *s, uint32_t layer);
struct step forward_step(struct model_work *w, uint32_t thread);
const forward_stage *forward_stages(const struct step *s, uint32_t layer);
void forward_open(struct step *s);
void forward_close(struct step *s);

/* halves.c: a batch as two halves (model.h: model_work_halve). */
int halves_new(struct model_work *w, struct err *e) MUST_CHECK;
void halves_free(struct model_work *w);
int halves_run(struct model_work *w, const struct model_batch *b) MUST_CHECK; /* as w->rc */

/* ends.c */
void stage_embed(struct step *s);
void stage_take_in(struct step *s);
/* Logits of w->out_rows of h, or `compact`: of w->n_out rows that lie in w->out. */
void stage_head(struct step *s, bool compact);
