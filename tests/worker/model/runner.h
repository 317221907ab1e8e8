/* runner.h: sequences decoded together on a real model, for tests: each has its own blocks, in a
 * scattered order. */
#pragma once
#include "lib/base/rng.h"
#include "worker/model/logprob.h"

#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

struct runner {
    struct model *m;
    struct model_work *w;
    uint8_t *pool;
    uint32_t n_seqs, per_seq, vocab;
    uint32_t *blocks; /* [n_seqs][per_seq] */
    float *logits;    /* [rows][vocab] */
};

/* Models live where `make` set them up; a missing one fails the test. */
static inline struct model *runner_model(const char *file, const char *isa)
{
    char path[512];
    const char *dir = getenv("BATON_MODELS"), *home = getenv("HOME");
    if (dir)
        snprintf(path, sizeof path, "%s/%s", dir, file);
    else
        snprintf(path, sizeof path, "%s/.cache/baton/models/%s", home ? home : "", file);
    struct model *m = NULL;
    struct err e = {0};
    if (model_load(path, isa, &m, &e) < 0)
        fail_msg("%s (make sets the models up)", e.msg);
    return m;
}

static inline uint64_t runner_seed(void)
{
    const char *s = getenv("SEED");
    uint64_t seed = s ? strtoull(s, NULL, 10) : rng_secret_u64() % 1000000;
    printf("SEED=%llu\n", (unsigned long long)seed);
    return seed;
}

static inline void runner_init(struct runner *r, struct model *m, uint32_t n_seqs, uint32_t tokens,
                               uint32_t threads, uint32_t max_rows, uint64_t seed)
{
    struct err e = {0};
    *r = (struct runner){.m = m, .n_seqs = n_seqs, .vocab = model_config(m)->vocab};
    r->per_seq = (tokens + MODEL_BLOCK_TOKENS - 1) / MODEL_BLOCK_TOKENS;
    uint32_t n = n_seqs * r->per_seq;
    struct model_work_options o = {.threads = threads, .max_rows = max_rows, .pool_blocks = n};
    if (model_work_new(m, &o, &r->w, &e) < 0)
        fail_msg("%s", e.msg);
    r->blocks = calloc(n, sizeof *r->blocks);
    struct rng rng = {seed};
    for (uint32_t i = 0; i < n; i++) { /* a shuffle, built as it goes */
        uint32_t j = (uint32_t)rng_below(&rng, i + 1);
        r->blocks[i] = r->blocks[j];
        r->blocks[j] = i;
    }
    size_t bytes = n * model_work_kv(r->w)->block_bytes;
    r->pool = aligned_alloc(64, bytes);
    memset(r->pool, 0xff, bytes); /* NaN: what was not written must not be read */
    r->logits = malloc((size_t)max_rows * r->vocab * sizeof(float));
}

static inline void runner_fini(struct runner *r)
{
    model_work_free(r->w);
    free(r->pool);
    free(r->blocks);
    free(r->logits);
}

static inline struct model_segment runner_segment(const struct runner *r, uint32_t seq,
                                                  const uint32_t *tokens, uint32_t n,
                                                  uint32_t start, uint32_t logits_from)
{
    return (struct model_segment){
        tokens, n, start, r->blocks + (size_t)seq * r->per_seq, r->per_seq, logits_from};
}

static inline void runner_forward(struct runner *r, const struct model_segment *s, uint32_t n)
{
    struct err e = {0};
    struct model_batch b = {.segments = s, .n_segments = n, .logits = r->logits};
    b.logits_rows = model_batch_outputs(&b);
    if (model_forward(r->m, r->w, r->pool, &b, &e) < 0)
        fail_msg("%s", e.msg);
}

static inline uint32_t runner_argmax(const struct runner *r, uint32_t row)
{
    struct logprob_norm norm = {0};
    struct logprob_top top[1];
    logprob_best(&norm, r->logits + (size_t)row * r->vocab, r->vocab, 1, top);
    return top[0].id;
}
