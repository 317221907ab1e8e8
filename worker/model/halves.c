/* Two-batch overlap (DeepSeek-V3, arXiv 2412.19437 section 3.4; SGLang's and vLLM's two batches): a
 * batch is cut into two halves whose stages take turns, so that rows of one half travel while the
 * other is computed. In a layer with experts:
 *
 *   A attention, B's rows of the layer before come home, A sends;   B attention;
 *   A receives, B sends;    A experts;   B receives, A answers;   B experts;
 *   A's rows come home, B answers
 *
 * Every exchange is under way while a half computes, and one is under way at a time (comm.h). Every
 * rank cuts its own rows: (n + 1) / 2 and n / 2. Later rows of a sequence are never in an earlier
 * half, and a row's bits don't depend on what is computed beside it: results are the same.
 *
 * The second half has memory of its own, for half of the rows; it shares threads and counters. */
#include "worker/model/ep.h"
#include "worker/model/stage.h"

#include <stdlib.h>
#include <sys/mman.h>

int halves_new(struct model_work *w, struct err *e)
{
    struct model_work *h = xcalloc(1, sizeof *h);
    *h = *w;
    h->o.max_rows = w->o.max_rows / 2 + w->ep.data; /* every rank may have an odd row */
    h->stats = (struct model_work_stats){0};
    int rc = work_memory(h, e);
    if (rc) {
        free(h);
        return rc;
    }
    size_t n = w->m->config.rope_dims / 2 * sizeof *h->freqs_global;
    memcpy(h->freqs_global, w->freqs_global, n);
    memcpy(h->freqs_local, w->freqs_local, n);
    w->half = h;
    return 0;
}

void halves_free(struct model_work *w)
{
    if (w->half)
        munmap(w->half->memory, w->half->memory_bytes);
    free(w->half);
}

/* ---- the cut ---- */

/* Rows [from, to) of the batch as segments of their own. */
static void cut(struct model_work *w, const struct model_batch *b, uint32_t from, uint32_t to)
{
    uint32_t at = 0, n = 0;
    for (uint32_t i = 0; i < b->n_segments; i++) {
        struct model_segment s = b->segments[i];
        uint32_t a = from > at ? from - at : 0, z = to < at + s.n_tokens ? to - at : s.n_tokens;
        at += s.n_tokens;
        if (to <= at - s.n_tokens || a >= z)
            continue;
        s.tokens += a;
        s.start += a;
        s.n_tokens = z - a;
        s.logits_from = s.logits_from > a ? s.logits_from - a : 0;
        if (s.logits_from > s.n_tokens)
            s.logits_from = s.n_tokens;
        w->segments[n++] = s;
    }
    w->part = (struct model_batch){.segments = w->segments, .n_segments = n, .ctx = b->ctx};
}

static void share_rows(struct model_work *w)
{
    struct model_work *h = w->half;
    for (uint32_t r = 0; r < w->ep.data; r++) {
        h->ep.data_rows[r] = w->ep.data_rows[r] / 2;
        w->ep.data_rows[r] -= h->ep.data_rows[r];
    }
}

static void lay_out(struct model_work *w, const struct model_batch *b)
{
    struct model_work *h = w->half;
    uint32_t n = 0;
    for (uint32_t i = 0; i < b->n_segments; i++)
        n += b->segments[i].n_tokens;
    cut(w, b, 0, n - n / 2);
    cut(h, b, n - n / 2, n);
    share_rows(w);
    w->part.logits = b->logits;
    h->part.logits =
        b->logits ? b->logits + (size_t)model_batch_outputs(&w->part) * w->m->config.vocab : NULL;
    h->part.layer_done = b->layer_done; /* the other half has written its KV before */
    h->kv_pool = w->kv_pool;
    work_lay_out(w, &w->part);
    work_lay_out(h, &h->part);
    w->jobs = h->jobs = JOB_EMBED | JOB_LAYERS | JOB_HEAD;
    h->rc = 0;
}

/* ---- in turns ---- */

enum { ATTENTION, SEND, RECEIVE, EXPERTS, ANSWER, FINISH };

/* `late`: the layer whose FINISH the second half still has to do; UINT32_MAX: none. */
static void finish_late(struct step *b, uint32_t *late)
{
    if (*late != UINT32_MAX)
        forward_stages(b, *late)[FINISH](b, *late);
    *late = UINT32_MAX;
}

static void layer_with_experts(struct step *a, struct step *b, uint32_t l, uint32_t *late)
{
    const forward_stage *run = forward_stages(a, l);
    run[ATTENTION](a, l);
    finish_late(b, late);
    run[SEND](a, l);
    run[ATTENTION](b, l);
    run[RECEIVE](a, l);
    run[SEND](b, l);
    run[EXPERTS](a, l);
    run[RECEIVE](b, l);
    run[ANSWER](a, l);
    run[EXPERTS](b, l);
    run[FINISH](a, l);
    run[ANSWER](b, l);
    *late = l;
}

static void dense_layer(struct step *a, struct step *b, uint32_t l, uint32_t *late)
{
    const forward_stage *run = forward_stages(a, l);
    run[0](a, l);
    finish_late(b, late);
    for (uint32_t i = 1; run[i]; i++)
        run[i](a, l);
    for (uint32_t i = 0; run[i]; i++)
        run[i](b, l);
}

static void halves_thread(void *arg, uint32_t thread)
{
    struct model_work *w = arg;
    struct step a = forward_step(w, thread), b = forward_step(w->half, thread);
    uint32_t late = UINT32_MAX;
    stage_embed(&a);
    stage_embed(&b);
    forward_open(&a);
    forward_open(&b);
    for (uint32_t l = a.p->layer0; l < a.p->layer1 && !w->rc && !w->half->rc; l++) {
        if (model_layer_has_experts(a.c, l))
            layer_with_experts(&a, &b, l, &late);
        else
            dense_layer(&a, &b, l, &late);
    }
    finish_late(&b, &late);
    forward_close(&a);
    forward_close(&b);
    if (w->rc || w->half->rc)
        return;
    stage_head(&a, false);
    stage_head(&b, false);
}

static void add_counts(struct model_work_stats *to, struct model_work_stats *from)
{
    to->dispatches += from->dispatches;
    to->dispatches_latency += from->dispatches_latency;
    to->expert_slots += from->expert_slots;
    to->expert_max += from->expert_max;
    *from = (struct model_work_stats){0};
}

int halves_run(struct model_work *w, const struct model_batch *b)
{
    struct model_work *h = w->half;
    lay_out(w, b);
    pool_run(w->pool, halves_thread, w);
    add_counts(&w->stats, &h->stats);
    w->stats.micro_batches += 2;
    w->stats.halved++;
    h->batch = NULL;
    if (!w->rc && h->rc) {
        w->rc = h->rc;
        w->err = h->err;
    }
    return w->rc;
}
