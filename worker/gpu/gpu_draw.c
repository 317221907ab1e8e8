/* What a step gives: its rows of logits, or the tokens that the device chose from them. */
#include "worker/gpu/gpu_model_int.h"

#include <string.h>

/* The first `outputs` rows of `rows` computed ones: of the ranks' parts, one after another, each
 * row's are put together. */
static void join_parts(const struct gpu_model *gm, uint32_t rows, uint32_t outputs, float *out)
{
    const float *from = gm->logits;
    for (uint32_t r = 0; r < gm->shard.tensor; r++) {
        struct model_part p = gpu_part_of(gm, r);
        size_t n = p.vocab1 - p.vocab0;
        for (uint32_t i = 0; i < outputs; i++)
            memcpy(out + (size_t)i * gm->c.vocab + p.vocab0, from + i * n, n * sizeof *out);
        from += rows * n;
    }
}

/* Where each tensor rank's part of the vocabulary begins; false: there are too many. */
static bool cut_vocab(const struct gpu_model *gm, struct sample_args *a)
{
    a->parts = gm->tensor ? gm->shard.tensor : 1;
    if (a->parts > SAMPLE_PARTS_MAX)
        return false;
    a->cut[a->parts] = gm->c.vocab;
    for (uint32_t r = 1; r < a->parts; r++)
        a->cut[r] = gpu_part_of(gm, r).vocab0;
    return true;
}

static int take_logits(struct gpu_model *gm, uint32_t rows, uint32_t outputs, float *out,
                       struct err *e)
{
    bool direct = !gm->tensor && rows == outputs;
    gpu_ptr from = gm->tensor ? gm->w.gathered : gm->w.logits;
    uint64_t bytes = (uint64_t)(gm->tensor ? rows : outputs) * gm->c.vocab * 4;
    int rc = gm->g->ops->to_host(gm->g, GPU_COMPUTE, direct ? out : gm->logits, from, bytes, e);
    if (rc == 0)
        rc = gpu_await(gm, e);
    if (rc < 0 || direct)
        return rc;
    if (gm->tensor)
        join_parts(gm, rows, outputs, out);
    else
        memcpy(out, gm->logits, bytes);
    return 0;
}

/* Rows of a graph's padding are asked for their greatest. */
static int take_tokens(struct gpu_model *gm, struct sample_args *a, const struct model_batch *b,
                       uint32_t rows, uint32_t outputs, struct err *e)
{
    memset(gm->draws, 0, rows * sizeof *gm->draws);
    for (uint32_t i = 0; i < outputs; i++)
        gm->draws[i] =
            (struct sample_row){b->draws[i].u, b->draws[i].temperature, b->draws[i].min_p};
    a->logits = GPU_AS(const float, gm->tensor ? gm->w.gathered : gm->w.logits);
    a->rows = GPU_AS(const struct sample_row, gm->w.draws);
    a->token = GPU_AS(uint32_t, gm->w.drawn);
    int rc = gm->g->ops->to_device(gm->g, GPU_COMPUTE, gm->w.draws, gm->draws,
                                   rows * sizeof *gm->draws, e);
    rc = rc ? rc : gpu_sample(gm->g, a, rows, e);
    rc = rc ? rc
            : gm->g->ops->to_host(gm->g, GPU_COMPUTE, gm->drawn, gm->w.drawn, outputs * 4ull, e);
    rc = rc ? rc : gpu_await(gm, e);
    for (uint32_t i = 0; i < outputs && rc == 0; i++)
        b->draws[i].token = gm->drawn[i];
    gm->stats.draws += rc == 0 ? outputs : 0;
    *b->drawn = rc == 0;
    return rc;
}
_Static_assert(MODEL_NO_TOKEN == UINT32_MAX, "what sample_k says of a row without a maximum");

int gpu_take(struct gpu_model *gm, const struct model_batch *b, uint32_t rows, uint32_t outputs,
             struct err *e)
{
    struct sample_args a = {0};
    if (!outputs || !gpu_leads(gm))
        return gpu_await(gm, e);
    if (b->draws && cut_vocab(gm, &a))
        return take_tokens(gm, &a, b, rows, outputs, e);
    return take_logits(gm, rows, outputs, b->logits, e);
}
