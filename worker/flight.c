/* Decodes of a pipeline, several batches on their way at a time (engine_int.h): while the later
 * stages compute one, the first computes the next. A sequence is in one batch at a time, and
 * nothing else runs in the meantime: prompts, preemptions and hand-overs wait until all have
 * landed.
 *
 * Later stages may write a batch's KV until it lands. So a sequence that ends on its way gives its
 * blocks back only then, and its request is kept. */
#include "lib/base/clock.h"
#include "worker/engine_int.h"

#include <stdlib.h>

void flights_new(struct engine *g)
{
    g->air = xcalloc(group_batches(g->group), sizeof *g->air);
}

void flights_free(struct engine *g)
{
    uint32_t n = g->air ? group_batches(g->group) : 0;
    while (g->n_air)
        flight_land(g);
    for (uint32_t i = 0; i < n; i++) {
        free(g->air[i].seqs);
        free(g->air[i].segments);
    }
    free(g->air);
}

bool flight_may_begin(const struct engine *g, uint32_t rows)
{
    return g->n_air < group_batches(g->group) && group_may_begin(g->group, rows);
}

static void keep(struct flight *f, const struct step_scratch *t, uint32_t n)
{
    if (n > f->cap) {
        f->cap = 2 * n;
        f->seqs = xrealloc(f->seqs, f->cap * sizeof *f->seqs);
        f->segments = xrealloc(f->segments, f->cap * sizeof *f->segments);
    }
    f->n = n;
    f->rows = 0;
    memcpy(f->seqs, t->seqs, n * sizeof *f->seqs);
    memcpy(f->segments, t->segments, n * sizeof *f->segments);
    for (uint32_t i = 0; i < n; i++) {
        f->rows += f->segments[i].n_tokens;
        f->seqs[i]->flying = true;
        f->seqs[i]->req->n_flying++;
    }
}

static void let_go(struct engine *g, struct flight *f)
{
    for (uint32_t i = 0; i < f->n; i++) {
        struct seq *s = f->seqs[i];
        s->flying = false;
        s->req->n_flying--;
        if (s->release_due)
            seq_release(s, g->kv);
    }
}

void flight_begin(struct engine *g, uint32_t n)
{
    struct flight *f = &g->air[(g->first_in_air + g->n_air) % group_batches(g->group)];
    struct err e = {0};
    keep(f, &g->scratch, n);
    f->begun_ns = clock_mono_ns();
    f->batch = (struct model_batch){.segments = f->segments,
                                    .n_segments = n,
                                    .logits = g->logits,
                                    .logits_rows = g->c.logit_rows};
    if (group_begin(g->group, &f->batch, &e)) {
        let_go(g, f);
        step_failed(g, f->seqs, n, &e);
        return;
    }
    g->n_air++;
}

void flight_land(struct engine *g)
{
    struct flight *f = &g->air[g->first_in_air];
    struct err e = {0};
    int rc = group_end(g->group, &f->batch, &e);
    uint64_t now = clock_mono_ns(), since = g->landed_ns;
    since = since > f->begun_ns ? since : f->begun_ns;
    g->first_in_air = (g->first_in_air + 1) % group_batches(g->group);
    g->n_air--;
    g->landed_ns = now;
    let_go(g, f);
    if (rc) {
        step_failed(g, f->seqs, f->n, &e);
        return;
    }
    g->failures = 0;
    g->status.steps++;
    g->drafts.drafted = g->drafts.right = 0;
    step_take(g, f->seqs, f->segments, f->n);
    step_measure_decode(g, f->n, f->rows, (double)(now - f->begun_ns) / 1e9,
                        (double)(now - since) / 1e9);
}
