#include "worker/model/score.h"

#include <errno.h>
#include <stdlib.h>

#define CHUNK 64u

struct scorer {
    const struct model *m;
    struct model_work *work;
    void *pool;
    uint32_t *blocks, n_blocks;
    float *logits;
};

static int scorer_init(struct scorer *s, uint32_t threads, uint32_t n, struct err *e)
{
    s->n_blocks = (n + MODEL_BLOCK_TOKENS - 1) / MODEL_BLOCK_TOKENS;
    struct model_work_options o = {
        .threads = threads, .max_rows = CHUNK, .pool_blocks = s->n_blocks};
    int rc = model_work_new(s->m, &o, &s->work, e);
    if (rc < 0)
        return rc;
    s->blocks = malloc(s->n_blocks * sizeof *s->blocks);
    s->logits = malloc((size_t)CHUNK * model_config(s->m)->vocab * sizeof(float));
    s->pool = aligned_alloc(64, s->n_blocks * model_work_kv(s->work)->block_bytes);
    if (!s->blocks || !s->logits || !s->pool)
        return err_set(e, ENOMEM, "no memory to score %u tokens", n);
    for (uint32_t i = 0; i < s->n_blocks; i++)
        s->blocks[i] = i;
    return 0;
}

static void scorer_fini(struct scorer *s)
{
    model_work_free(s->work);
    free(s->blocks);
    free(s->logits);
    free(s->pool);
}

/* Rows of ids[from, from + n) predict the entries from+1 .. from+n. */
static int score_chunk(struct scorer *s, const uint32_t *ids, uint32_t from, uint32_t n,
                       uint32_t total, struct score_entry *out, struct err *e)
{
    uint32_t vocab = model_config(s->m)->vocab;
    struct model_segment seg = {.tokens = ids + from,
                                .n_tokens = n,
                                .start = from,
                                .blocks = s->blocks,
                                .n_blocks = s->n_blocks};
    struct model_batch b = {
        .segments = &seg, .n_segments = 1, .logits = s->logits, .logits_rows = n};
    int rc = model_forward(s->m, s->work, s->pool, &b, e);
    for (uint32_t i = 0; rc == 0 && i < n && from + i + 1 < total; i++) {
        const float *row = s->logits + (size_t)i * vocab;
        struct score_entry *en = &out[from + i + 1];
        struct logprob_norm norm;
        logprob_norm(s->m, row, vocab, &norm);
        en->id = ids[from + i + 1];
        en->logprob = logprob_of(&norm, row[en->id]);
        en->n_top = logprob_best(&norm, row, vocab, SCORE_BEST, en->top);
    }
    return rc;
}

int score_ids(const struct model *m, uint32_t threads, const uint32_t *ids, uint32_t n,
              struct score_entry *out, struct err *e)
{
    const struct model_config *c = model_config(m);
    if (n < 1 || n > c->context_tokens)
        return err_set(e, EINVAL, "%u tokens to score: 1 to %u", n, c->context_tokens);
    for (uint32_t i = 0; i < n; i++)
        if (ids[i] >= c->vocab)
            return err_set(e, EINVAL, "token %u is not in the vocabulary of %u", ids[i], c->vocab);
    struct scorer s = {.m = m};
    int rc = scorer_init(&s, threads, n, e);
    if (rc == 0)
        out[0] = (struct score_entry){.id = ids[0]};
    for (uint32_t from = 0; rc == 0 && from < n; from += CHUNK)
        rc = score_chunk(&s, ids, from, n - from < CHUNK ? n - from : CHUNK, n, out, e);
    scorer_fini(&s);
    return rc;
}
