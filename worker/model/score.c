#include "worker/model/score.h"

#include <errno.h>
#include <stdlib.h>

uint32_t score_blocks(uint32_t n)
{
    return (n + MODEL_BLOCK_TOKENS - 1) / MODEL_BLOCK_TOKENS;
}

struct scorer {
    const struct score_engine *by;
    uint32_t *blocks, n_blocks;
    float *logits;
};

static int scorer_init(struct scorer *s, uint32_t n, struct err *e)
{
    s->n_blocks = score_blocks(n);
    s->blocks = malloc(s->n_blocks * sizeof *s->blocks);
    s->logits = malloc((size_t)SCORE_ROWS * model_config(s->by->m)->vocab * sizeof(float));
    if (!s->blocks || !s->logits)
        return err_set(e, ENOMEM, "no memory to score %u tokens", n);
    for (uint32_t i = 0; i < s->n_blocks; i++)
        s->blocks[i] = i;
    return 0;
}

/* Rows of ids[from, from + n) predict the entries from+1 .. from+n. */
static int score_chunk(struct scorer *s, const uint32_t *ids, uint32_t from, uint32_t n,
                       uint32_t total, struct score_entry *out, struct err *e)
{
    const struct model *m = s->by->m;
    uint32_t vocab = model_config(m)->vocab;
    struct model_segment seg = {.tokens = ids + from,
                                .n_tokens = n,
                                .start = from,
                                .blocks = s->blocks,
                                .n_blocks = s->n_blocks};
    struct model_batch b = {
        .segments = &seg, .n_segments = 1, .logits = s->logits, .logits_rows = n};
    int rc = s->by->forward(s->by->ctx, &b, e);
    for (uint32_t i = 0; rc == 0 && i < n && from + i + 1 < total; i++) {
        const float *row = s->logits + (size_t)i * vocab;
        struct score_entry *en = &out[from + i + 1];
        struct logprob_norm norm;
        logprob_norm(m, row, vocab, &norm);
        en->id = ids[from + i + 1];
        en->logprob = logprob_of(&norm, row[en->id]);
        en->n_top = logprob_best(&norm, row, vocab, SCORE_BEST, en->top);
    }
    return rc;
}

int score_through(const struct score_engine *by, const uint32_t *ids, uint32_t n,
                  struct score_entry *out, struct err *e)
{
    const struct model_config *c = model_config(by->m);
    if (n < 1 || n > c->context_tokens)
        return err_set(e, EINVAL, "%u tokens to score: 1 to %u", n, c->context_tokens);
    for (uint32_t i = 0; i < n; i++)
        if (ids[i] >= c->vocab)
            return err_set(e, EINVAL, "token %u is not in the vocabulary of %u", ids[i], c->vocab);
    struct scorer s = {.by = by};
    int rc = scorer_init(&s, n, e);
    if (rc == 0)
        out[0] = (struct score_entry){.id = ids[0]};
    for (uint32_t from = 0; rc == 0 && from < n; from += SCORE_ROWS)
        rc = score_chunk(&s, ids, from, n - from < SCORE_ROWS ? n - from : SCORE_ROWS, n, out, e);
    free(s.blocks);
    free(s.logits);
    return rc;
}

/* ---- by this process alone ---- */

struct alone {
    const struct model *m;
    struct model_work *work;
    void *pool;
};

static int forward_alone(void *ctx, const struct model_batch *b, struct err *e)
{
    struct alone *a = ctx;
    return model_forward(a->m, a->work, a->pool, b, e);
}

int score_ids(const struct model *m, uint32_t threads, const uint32_t *ids, uint32_t n,
              struct score_entry *out, struct err *e)
{
    struct alone a = {.m = m};
    struct score_engine by = {m, forward_alone, &a};
    if (n < 1 || n > model_config(m)->context_tokens)
        return err_set(e, EINVAL, "%u tokens to score: 1 to %u", n,
                       model_config(m)->context_tokens);
    struct model_work_options o = {
        .threads = threads, .max_rows = SCORE_ROWS, .pool_blocks = score_blocks(n)};
    int rc = model_work_new(m, &o, &a.work, e);
    if (rc < 0)
        return rc;
    a.pool = aligned_alloc(64, score_blocks(n) * model_work_kv(a.work)->block_bytes);
    rc = a.pool ? score_through(&by, ids, n, out, e)
                : err_set(e, ENOMEM, "no memory to score %u tokens", n);
    model_work_free(a.work);
    free(a.pool);
    return rc;
}
