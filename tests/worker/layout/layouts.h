/* layouts.h: one model as a group of rank processes, step by step beside the same model whole, in
 * rank 0's process. Sequences are decoded together; every step's tokens are those that the whole
 * model chose. */
#pragma once
#include "lib/base/rng.h"
#include "tests/worker/comm/ranks.h"
#include "worker/layout/group.h"
#include "worker/model/image.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#define LAYOUT_SEQS 8u
#define NEAR_TIE    2e-3f /* the whole model's best two closer than this may change places */

struct layouts {
    const char *path;
    struct model_layout layout;
    uint32_t per_host; /* 0: all ranks on one */
    uint32_t n_seqs, prompt, steps, chunk;
    enum model_kv_dtype kv;
    uint64_t seed;
    uint32_t damaged; /* 1 + the rank whose weights are changed */
    enum model_dispatch dispatch;
    bool fp8;
    uint32_t redundant, balance_steps;
    uint64_t move_bytes;
    enum group_halves halves;
    uint32_t threads; /* of a rank; 0: 1 */
    uint32_t limit_s; /* 0: 300 */
};

struct layouts_result {
    float max_delta, max_logit;
    uint32_t tokens, differ, near_ties;
    struct group_report reports[RANKS_MAX];
    char why[256];
};

struct side { /* one of the two models */
    struct model *m;
    uint32_t *blocks; /* as the group numbers them; sequences take turns at data ranks */
    void *pool;
    float *logits;
};

/* Turns bits of one matrix of the part's first layer, or of its experts in the last. */
static inline void side_damage(struct model *m)
{
    const struct image_entry *en = image_layer(m, m->part.layer1 - 1, SLOT_EXPERT_GATE);
    if (!en->bytes)
        en = image_layer(m, m->part.layer0, SLOT_GATE);
    uint8_t *w = (uint8_t *)m->owned + en->offset;
    for (uint64_t i = 3; i < en->bytes; i += 4)
        w[i] ^= 0x80;
}

static inline uint32_t layouts_blocks(const struct layouts *l)
{
    return (l->prompt + l->steps) / MODEL_BLOCK_TOKENS + 1;
}

static inline struct model_work_options layouts_work(const struct layouts *l)
{
    return (struct model_work_options){.threads = l->threads ? l->threads : 1,
                                       .max_rows = l->n_seqs * l->prompt,
                                       .kv_dtype = l->kv,
                                       .pool_blocks = l->n_seqs * layouts_blocks(l),
                                       .group = {.dispatch = l->dispatch,
                                                 .dispatch_fp8 = l->fp8,
                                                 .redundant = l->redundant,
                                                 .balance_steps = l->balance_steps,
                                                 .move_bytes = l->move_bytes}};
}

static inline void side_init(struct side *s, const struct layouts *l, const struct model_kv *kv,
                             uint32_t data)
{
    uint32_t per = layouts_blocks(l), n = l->n_seqs * per;
    size_t bytes = (n * kv->block_bytes + 63) & ~(size_t)63;
    s->pool = aligned_alloc(64, bytes + 64);
    memset(s->pool, 0xff, bytes); /* NaN: what was not written must not be read */
    s->blocks = malloc(n * sizeof *s->blocks);
    for (uint32_t i = 0; i < n; i++)
        s->blocks[i] = i / per % data * n + n - 1 - i;
}

/* Segment of a sequence's tokens [from, from + n). */
static inline struct model_segment layouts_segment(const struct layouts *l, const struct side *s,
                                                   uint32_t seq, const uint32_t *tokens,
                                                   uint32_t from, uint32_t n, bool logits)
{
    uint32_t per = layouts_blocks(l);
    return (struct model_segment){.tokens = tokens + (size_t)seq * per * MODEL_BLOCK_TOKENS + from,
                                  .n_tokens = n,
                                  .start = from,
                                  .blocks = s->blocks + (size_t)seq * per,
                                  .n_blocks = per,
                                  .logits_from = logits ? n - 1 : n};
}

static inline uint32_t layouts_best(const float *row, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (row[i] > row[best])
            best = i;
    return best;
}

static inline void layouts_compare(struct layouts_result *out, const float *whole,
                                   const float *parts, uint32_t vocab)
{
    uint32_t a = layouts_best(whole, vocab), b = layouts_best(parts, vocab);
    for (uint32_t i = 0; i < vocab; i++) {
        float d = fabsf(whole[i] - parts[i]), x = fabsf(whole[i]);
        if (!(d <= out->max_delta)) /* NaN too */
            out->max_delta = d;
        out->max_logit = x > out->max_logit ? x : out->max_logit;
    }
    out->tokens++;
    out->differ += a != b && whole[a] - whole[b] > NEAR_TIE;
    out->near_ties += a != b && whole[a] - whole[b] <= NEAR_TIE;
}

/* Prompts in chunks of l->chunk, then one token of every sequence a step. */
static inline int layouts_lead(const struct layouts *l, struct group *g, struct side *parts,
                               struct layouts_result *out, struct err *e)
{
    struct side whole = {0};
    struct model_work *w;
    struct model_work_options o = layouts_work(l);
    int rc = model_load(l->path, NULL, &whole.m, e);
    rc = rc ? rc : model_work_new(whole.m, &o, &w, e);
    if (rc)
        return rc;
    side_init(&whole, l, model_work_kv(w), 1);
    uint32_t vocab = model_config(whole.m)->vocab;
    uint32_t stride = layouts_blocks(l) * MODEL_BLOCK_TOKENS;
    uint32_t *tokens = calloc((size_t)l->n_seqs * stride, sizeof *tokens);
    whole.logits = malloc((size_t)l->n_seqs * vocab * sizeof(float));
    parts->logits = malloc((size_t)l->n_seqs * vocab * sizeof(float));
    for (uint32_t i = 0; i < l->n_seqs * stride; i++)
        tokens[i] = (uint32_t)(rng_at(l->seed, i / stride, i % stride) % vocab);
    for (uint32_t at = 0; !rc && at < l->prompt + l->steps;) {
        uint32_t n = at >= l->prompt ? 1 : at + l->chunk < l->prompt ? l->chunk : l->prompt - at;
        bool logits = at + n >= l->prompt;
        struct model_segment a[LAYOUT_SEQS], b[LAYOUT_SEQS];
        for (uint32_t i = 0; i < l->n_seqs; i++) {
            a[i] = layouts_segment(l, &whole, i, tokens, at, n, logits);
            b[i] = layouts_segment(l, parts, i, tokens, at, n, logits);
        }
        struct model_batch x = {.segments = a,
                                .n_segments = l->n_seqs,
                                .logits = whole.logits,
                                .logits_rows = l->n_seqs};
        struct model_batch y = {.segments = b,
                                .n_segments = l->n_seqs,
                                .logits = parts->logits,
                                .logits_rows = l->n_seqs};
        rc = model_forward(whole.m, w, whole.pool, &x, e);
        rc = rc ? rc : group_forward(g, &y, e);
        at += n;
        for (uint32_t i = 0; logits && !rc && i < l->n_seqs; i++) {
            const float *row = whole.logits + (size_t)i * vocab;
            layouts_compare(out, row, parts->logits + (size_t)i * vocab, vocab);
            if (at < stride)
                tokens[(size_t)i * stride + at] = layouts_best(row, vocab);
        }
    }
    rc = rc ? rc : group_reports(g, out->reports, e);
    return rc ? rc : group_stop(g, e);
}

static inline int layouts_rank(struct comm *world, struct ranks *r, void *arg)
{
    const struct layouts *l = arg;
    struct layouts_result *out = (struct layouts_result *)(void *)r->shared;
    uint32_t me = comm_rank(world);
    struct model_shard shard = model_layout_shard(&l->layout, me);
    struct side s = {0};
    struct err e = {0};
    struct group *g = NULL;
    int rc = model_shard_load(l->path, NULL, &shard, &s.m, &e);
    struct group_config c = {.model = s.m,
                             .layout = l->layout,
                             .rank = me,
                             .world = world,
                             .halves = l->halves,
                             .work = layouts_work(l)};
    struct model_kv kv;
    rc = rc ? rc
            : model_kv_part(&kv, model_config(s.m), model_part(s.m), l->kv, MODEL_BLOCK_TOKENS, &e);
    if (!rc) {
        if (l->damaged == me + 1)
            side_damage(s.m);
        side_init(&s, l, &kv, l->layout.data ? l->layout.data : 1);
        c.pool = s.pool;
        rc = group_new(&c, &g, &e);
    }
    rc = rc ? rc : me ? group_follow(g, &e) : layouts_lead(l, g, &s, out, &e);
    if (rc) {
        fprintf(stderr, "rank %u: %s\n", me, e.msg);
        comm_fail(world, e.msg);
    }
    group_free(g);
    return rc ? 1 : 0;
}

static inline void layouts_run(struct layouts *l, struct layouts_result *out)
{
    struct ranks r;
    uint32_t n = model_layout_ranks(&l->layout);
    ranks_init(&r, n, l->per_host ? l->per_host : n, sizeof *out);
    r.limit_s = l->limit_s ? l->limit_s : 300;
    ranks_start(&r, layouts_rank, l);
    int worst = ranks_wait(&r, NULL);
    memcpy(out, r.shared, sizeof *out);
    ranks_fini(&r);
    assert_int_equal(worst, 0);
    printf("tp%u pp%u ep%u dp%u: max |delta| %.2g of logits up to %.3g, %u tokens, %u differ, %u "
           "near ties\n",
           l->layout.tensor, l->layout.pipeline, l->layout.expert, l->layout.data,
           (double)out->max_delta, (double)out->max_logit, out->tokens, out->differ,
           out->near_ties);
}
