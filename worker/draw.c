/* Tokens that the device chooses itself (engine_int.h): where every row of a step allows it, tokens
 * come back instead of logits. */
#include "worker/engine_int.h"

#include <errno.h>
#include <stdlib.h>

/* The draws of one segment's rows; false when one of them needs its logits. */
static bool rows_of(const struct engine *g, const struct seq *s, const struct model_segment *seg,
                    struct model_draw *out)
{
    const struct request *r = s->req;
    if (r->wire.n > 1 && r->seqs[1].state == SEQ_UNBORN) /* one row, a token for each choice */
        return false;
    for (uint32_t i = seg->logits_from; i < seg->n_tokens; i++) {
        struct sample_in in = {&r->wire,  s->tokens, seg->start + i + 1,
                               s->choice, g->eog,    g->n_eog};
        if (!sample_as_draw(&in, out++))
            return false;
    }
    return true;
}

struct model_draw *draws_wanted(struct engine *g, uint32_t n)
{
    struct step_scratch *t = &g->scratch;
    uint32_t at = 0;
    t->drawn = false;
    if (!g->c.device)
        return NULL;
    if (!t->draws)
        t->draws = xcalloc(g->c.logit_rows, sizeof *t->draws);
    for (uint32_t i = 0; i < n; i++) {
        if (!rows_of(g, t->seqs[i], &t->segments[i], t->draws + at))
            return NULL;
        at += t->segments[i].n_tokens - t->segments[i].logits_from;
    }
    return t->draws;
}

int draws_token(const struct engine *g, const float *row, uint32_t *id)
{
    size_t at = (size_t)(row - g->logits) / g->vocab;
    *id = g->scratch.draws[at].token;
    metric_add(g->m.device_tokens, 1);
    return *id == MODEL_NO_TOKEN ? -EIO : 0;
}
