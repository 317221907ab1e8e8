/* Decode through a pipeline, one batch at a time and several: the same bits, and how much of the
 * time the stages wait. */
#include "tests/worker/layout/layouts.h"
#include "tests/worker/model/tiny.h"

#define SEQS   6u
#define PROMPT 24u
#define STEPS  40u
#define BLOCKS ((PROMPT + STEPS) / MODEL_BLOCK_TOKENS + 1)
#define VOCAB  1000u

static char path[] = "/tmp/baton-pipeline-XXXXXX";

struct job {
    struct model_layout layout;
    uint32_t batches, per_host;
    bool halt; /* the last stage stands still while batches are begun */
};

struct result {
    uint32_t tokens[SEQS][PROMPT + STEPS];
    float logits[SEQS][STEPS][VOCAB];
    struct model_work_stats prompts, all;
    uint32_t most; /* batches begun at a time */
};

struct flying { /* sequences first .. first + n */
    uint32_t first, n, at;
    struct model_segment segments[SEQS];
    struct model_batch batch;
    float logits[SEQS * VOCAB];
};

static void lay(struct flying *f, struct result *r, const uint32_t *blocks, uint32_t tokens)
{
    for (uint32_t i = 0; i < f->n; i++)
        f->segments[i] = (struct model_segment){.tokens = &r->tokens[f->first + i][f->at],
                                                .n_tokens = tokens,
                                                .start = f->at,
                                                .blocks = blocks + (f->first + i) * BLOCKS,
                                                .n_blocks = BLOCKS,
                                                .logits_from = tokens - 1};
    f->batch = (struct model_batch){
        .segments = f->segments, .n_segments = f->n, .logits = f->logits, .logits_rows = f->n};
}

/* What has come back is the next token of each; false at the end. */
static bool take(struct flying *f, struct result *r, uint32_t tokens)
{
    f->at += tokens;
    for (uint32_t i = 0; i < f->n && f->at < PROMPT + STEPS; i++) {
        const float *row = f->logits + (size_t)i * VOCAB;
        memcpy(r->logits[f->first + i][f->at - PROMPT], row, VOCAB * sizeof *row);
        r->tokens[f->first + i][f->at] = layouts_best(row, VOCAB);
    }
    return f->at < PROMPT + STEPS;
}

static int prompts(struct group *g, struct result *r, const uint32_t *blocks, struct flying *air,
                   uint32_t batches, struct err *e)
{
    int rc = 0;
    for (uint32_t i = 0; i < SEQS; i++)
        for (uint32_t t = 0; t < PROMPT; t++)
            r->tokens[i][t] = (uint32_t)(rng_at(5, i, t) % VOCAB);
    for (uint32_t k = 0; k < batches && !rc; k++) {
        air[k].first = SEQS / batches * k;
        air[k].n = SEQS / batches;
        air[k].at = 0;
        lay(&air[k], r, blocks, PROMPT);
        rc = group_forward(g, &air[k].batch, e);
        (void)take(&air[k], r, PROMPT);
    }
    return rc;
}

static int lead(const struct job *job, struct group *g, struct result *r, const uint32_t *blocks,
                struct err *e)
{
    static struct flying air[SEQS];
    uint32_t n = job->batches, begun = 0;
    struct group_report report, reports[RANKS_MAX];
    int rc = prompts(g, r, blocks, air, n, e);
    group_report(g, &report);
    r->prompts = report.work;
    rc = rc ? rc : group_reports(g, reports, e);
    pid_t last = (pid_t)reports[group_ranks(g) - 1].pid;
    if (!rc && job->halt && kill(last, SIGSTOP))
        rc = -errno;
    for (uint32_t k = 0; k < n && !rc; k++) { /* whatever the last stage does */
        lay(&air[k], r, blocks, 1);
        rc = group_begin(g, &air[k].batch, e);
        begun++;
    }
    if (job->halt)
        kill(last, SIGCONT);
    for (uint32_t k = 0; begun && !rc; k = (k + 1) % n) {
        r->most = begun > r->most ? begun : r->most;
        rc = group_end(g, &air[k].batch, e);
        begun--;
        if (rc || !take(&air[k], r, 1))
            continue;
        lay(&air[k], r, blocks, 1);
        rc = group_begin(g, &air[k].batch, e);
        begun++;
    }
    group_report(g, &report);
    r->all = report.work;
    return rc ? rc : group_stop(g, e);
}

static int be_rank(struct comm *world, struct ranks *ranks, void *arg)
{
    const struct job *job = arg;
    struct result *out = (struct result *)(void *)ranks->shared;
    uint32_t me = comm_rank(world), blocks[SEQS * BLOCKS];
    struct model_shard shard = model_layout_shard(&job->layout, me);
    struct model *m = NULL;
    struct group *g = NULL;
    struct model_kv kv;
    struct err e = {0};
    int rc = model_shard_load(path, NULL, &shard, &m, &e);
    rc = rc ? rc
            : model_kv_part(&kv, model_config(m), model_part(m), MODEL_KV_F32, MODEL_BLOCK_TOKENS,
                            &e);
    struct group_config c = {.model = m,
                             .layout = job->layout,
                             .rank = me,
                             .world = world,
                             .work = {.threads = 1,
                                      .max_rows = SEQS * PROMPT,
                                      .kv_dtype = MODEL_KV_F32,
                                      .pool_blocks = SEQS * BLOCKS}};
    for (uint32_t i = 0; i < SEQS * BLOCKS; i++)
        blocks[i] = i;
    if (!rc) {
        size_t bytes = SEQS * BLOCKS * kv.block_bytes;
        c.pool = aligned_alloc(64, bytes);
        memset(c.pool, 0xff, bytes); /* NaN */
        rc = group_new(&c, &g, &e);
    }
    rc = rc ? rc : me ? group_follow(g, &e) : lead(job, g, out, blocks, &e);
    if (rc) {
        fprintf(stderr, "rank %u: %s\n", me, e.msg);
        comm_fail(world, e.msg);
    }
    group_free(g);
    free(c.pool);
    model_free(m);
    return rc ? 1 : 0;
}

/* What each stage would wait with a core of its own: its mean time a batch, in the order of this
 * program. One core for all would hide it. */
static double timeline(const struct result *r, const struct job *job)
{
    double done[SEQS] = {0}, at[8] = {0}, cost[8], work = 0;
    uint32_t stages = job->layout.pipeline;
    for (uint32_t s = 0; s < stages; s++) {
        cost[s] = (double)(r->all.stage_busy_ns[s] - r->prompts.stage_busy_ns[s]) /
                  (STEPS * job->batches);
        work += cost[s] * STEPS * job->batches;
    }
    for (uint32_t step = 0; step < STEPS; step++)
        for (uint32_t k = 0; k < job->batches; k++)
            for (uint32_t s = 0; s < stages; s++) {
                double from = s ? done[k] : done[k] > at[0] ? done[k] : at[0];
                at[s] = (from > at[s] ? from : at[s]) + cost[s];
                done[k] = at[s];
            }
    double end = 0;
    for (uint32_t k = 0; k < job->batches; k++)
        end = done[k] > end ? done[k] : end;
    return 1 - work / (end * stages);
}

static double bubble(const struct result *r, const struct job *job)
{
    uint32_t stages = job->layout.pipeline;
    uint64_t busy = r->all.busy_ns - r->prompts.busy_ns, all = r->all.step_ns - r->prompts.step_ns;
    double b = 1 - (double)busy / ((double)all * stages);
    printf("  busy");
    for (uint32_t s = 0; s < stages; s++)
        printf(" %.2f",
               (double)(r->all.stage_busy_ns[s] - r->prompts.stage_busy_ns[s]) / (double)all);
    printf(", waiting %.2f; with a core each %.2f\n", b, timeline(r, job));
    return b;
}

static void run(struct job job, struct result *out)
{
    struct ranks r;
    uint32_t n = model_layout_ranks(&job.layout);
    ranks_init(&r, n, job.per_host ? job.per_host : n, sizeof *out);
    r.limit_s = 300;
    ranks_start(&r, be_rank, &job);
    int worst = ranks_wait(&r, NULL);
    memcpy(out, r.shared, sizeof *out);
    ranks_fini(&r);
    assert_int_equal(worst, 0);
    printf("tp%u pp%u, %u batch%s at a time:", job.layout.tensor, job.layout.pipeline, job.batches,
           job.batches > 1 ? "es" : "");
}

static void several_batches_in_the_air_give_the_bits_of_one(void **state)
{
    static struct result one, many;
    static const struct job jobs[] = {{{1, 2, 1, 1}, 2, 0, true},  {{1, 3, 1, 1}, 3, 0, true},
                                      {{2, 2, 1, 1}, 2, 0, false}, {{1, 2, 1, 1}, 2, 1, true},
                                      {{1, 3, 1, 1}, 3, 1, true},  {{1, 2, 1, 1}, 3, 0, true}};
    (void)state;
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++) {
        struct job job = jobs[i];
        run(job, &many);
        (void)bubble(&many, &job);
        assert_int_equal(many.most, job.batches);
        double after = timeline(&many, &job);
        job.batches = 1;
        run(job, &one);
        double before = bubble(&one, &job);
        assert_int_equal(one.most, 1);
        assert_memory_equal(many.tokens, one.tokens, sizeof one.tokens);
        assert_memory_equal(many.logits, one.logits, sizeof one.logits);
        assert_true(before > 1 - 1.0 / job.layout.pipeline - .05); /* stages take turns */
        assert_true(after < before - .1);
    }
}

int main(void)
{
    struct tiny m = {.layers = 12,
                     .d = 256,
                     .heads = 8,
                     .kv_heads = 4,
                     .ff = 1024,
                     .vocab = VOCAB,
                     .type = GGUF_F32,
                     .seed = 11};
    struct buf b;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(several_batches_in_the_air_give_the_bits_of_one),
    };
    int fd = mkstemp(path);
    buf_init(&b, 128u << 20);
    tiny_build(&m, &b);
    if (fd < 0 || write(fd, b.data, b.n) != (ssize_t)b.n)
        return 1;
    close(fd);
    buf_fini(&b);
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    return rc;
}
