/* score.h: teacher-forced log-probabilities by the serving kernels (worker score mode, echo with
 * logprobs). */
#pragma once
#include "worker/model/logprob.h"

#define SCORE_BEST 5u

struct score_entry {
    uint32_t id;
    uint32_t n_top; /* 0 at position 0 */
    float logprob;  /* log P(id | everything before); meaningless at position 0 */
    struct logprob_top top[SCORE_BEST]; /* the best at this position */
};

/* out[i] for each of n ids. Uses private KV memory (n tokens) and `threads` threads; chunks of at
 * most 64 tokens. */
int score_ids(const struct model *m, uint32_t threads, const uint32_t *ids, uint32_t n,
              struct score_entry *out, struct err *e) MUST_CHECK;

/* The same through any way to run a batch (worker/layout: ranks that compute together), whose KV
 * has score_blocks(n) blocks of MODEL_BLOCK_TOKENS and takes SCORE_ROWS rows. */
#define SCORE_ROWS 64u
struct score_engine {
    const struct model *m; /* for its config and its kernels */
    int (*forward)(void *ctx, const struct model_batch *b, struct err *e);
    void *ctx;
};
uint32_t score_blocks(uint32_t n);
int score_through(const struct score_engine *s, const uint32_t *ids, uint32_t n,
                  struct score_entry *out, struct err *e) MUST_CHECK;
