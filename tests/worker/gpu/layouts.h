/* layouts.h: a model over the GPUs of several rank processes beside the same model on one GPU, on
 * the stand-ins for driver and NCCL. Sequences are prefilled in chunks and decoded together; every
 * step's tokens are those that the one GPU chose, which computes first. */
#pragma once
#include "tests/kernels/cuda/drawn.h"
#include "tests/kernels/cuda/emu_device.h"
#include "tests/worker/layout/layouts.h"
#include "tests/worker/model/family.h"
#include "worker/backend.h"
#include "worker/gpu/gpu_model.h"

#define GPU_TIE 0.1f /* bf16: the best two closer than this may change places */

struct gpu_layouts {
    struct layouts l;
    uint32_t vocab, *tokens; /* [n_seqs, layouts_blocks x block_tokens] */
    float *want;             /* [1 + steps, n_seqs, vocab] of the one GPU */
    bool no_nccl;
    bool draws;             /* the last step once more, for tokens */
    uint32_t dies, at_step; /* 1 + the rank that is killed when it begins that step; 0: none */
};

struct gpu_deaths { /* behind the result: when a rank died, and when the others had ended */
    uint64_t died_ns, over_ns[RANKS_MAX];
};

struct gpu_layouts_result {
    double apart; /* rms of the difference, in units of the logits' spread */
    uint32_t rows, far, differ, near_ties;
    float greatest;
    struct group_report reports[RANKS_MAX];
};

static inline uint32_t gpu_rows(const struct layouts *l)
{
    return l->n_seqs * l->chunk;
}

static inline void gpu_compare(struct gpu_layouts_result *out, const float *one, const float *many,
                               uint32_t vocab)
{
    uint32_t a = layouts_best(one, vocab), b = layouts_best(many, vocab);
    double diff = 0, mean = 0, square = 0;
    for (uint32_t i = 0; i < vocab; i++) {
        float d = fabsf(one[i] - many[i]);
        if (!(d <= out->greatest)) /* NaN too */
            out->greatest = d;
        diff += (double)d * d;
        mean += one[i];
        square += (double)one[i] * one[i];
    }
    double spread = square / vocab - mean * mean / vocab / vocab, far = sqrt(diff / vocab / spread);
    out->apart += diff / vocab / spread;
    out->rows++;
    out->far += !(far <= 0.03);
    out->differ += a != b && one[a] - one[b] > GPU_TIE;
    out->near_ties += a != b && one[a] - one[b] <= GPU_TIE;
}

typedef int (*gpu_forward)(void *by, const struct model_batch *b, struct err *e);
/* What a step of logits gave: row 0 is the prompts', then one a token. */
typedef void (*gpu_logits)(struct gpu_layouts *t, uint32_t row, float *logits, void *arg);

/* The same step once more, for tokens instead of logits: with data ranks there are none. */
static inline int gpu_draws(struct gpu_layouts *t, const struct model_batch *b, gpu_forward forward,
                            void *by, struct err *e)
{
    bool done = false, data = t->l.layout.data > 1;
    float *again = calloc((size_t)b->n_segments * t->vocab, sizeof *again);
    struct model_draw draws[LAYOUT_SEQS];
    struct model_batch c = *b;
    for (uint32_t i = 0; i < b->n_segments; i++)
        draws[i] = (struct model_draw){.u = .3 * i, .temperature = i % 2 ? .8f : 0};
    c.draws = draws;
    c.drawn = &done;
    c.logits = again;
    int rc = forward(by, &c, e);
    if (!rc && done == data)
        rc = err_set(e, EIO, "the device chose %s", done ? "among data ranks" : "nothing");
    for (uint32_t i = 0; i < b->n_segments && !rc && done; i++) {
        uint32_t want =
            drawn(b->logits + (size_t)i * t->vocab, t->vocab, draws[i].u, draws[i].temperature, 0);
        if (draws[i].token != want)
            rc = err_set(e, EIO, "sequence %u: the device chose %u, not %u", i, draws[i].token,
                         want);
    }
    free(again);
    return rc;
}

static inline int gpu_run(struct gpu_layouts *t, const struct side *s, gpu_forward forward,
                          void *by, gpu_logits take, void *arg, struct err *e)
{
    const struct layouts *l = &t->l;
    float *logits = malloc((size_t)l->n_seqs * t->vocab * sizeof *logits);
    uint32_t stride = layouts_blocks(l) * MODEL_BLOCK_TOKENS, row = 0;
    int rc = 0;
    for (uint32_t at = 0; !rc && at < l->prompt + l->steps;) {
        uint32_t n = at >= l->prompt ? 1 : at + l->chunk < l->prompt ? l->chunk : l->prompt - at;
        bool ends = at + n >= l->prompt;
        struct model_segment x[LAYOUT_SEQS];
        for (uint32_t i = 0; i < l->n_seqs; i++)
            x[i] = layouts_segment(l, s, i, t->tokens, at, n, ends);
        struct model_batch b = {
            .segments = x, .n_segments = l->n_seqs, .logits = logits, .logits_rows = l->n_seqs};
        rc = forward(by, &b, e);
        at += n;
        if (!rc && t->draws && at == l->prompt + l->steps)
            rc = gpu_draws(t, &b, forward, by, e);
        if (ends && !rc && at < stride)
            take(t, row++, logits, arg);
    }
    free(logits);
    return rc;
}

static inline void gpu_keep(struct gpu_layouts *t, uint32_t row, float *logits, void *arg)
{
    uint32_t n = t->l.n_seqs, stride = layouts_blocks(&t->l) * MODEL_BLOCK_TOKENS;
    (void)arg;
    memcpy(t->want + (size_t)row * n * t->vocab, logits, (size_t)n * t->vocab * sizeof *logits);
    for (uint32_t i = 0; i < n; i++)
        t->tokens[i * stride + t->l.prompt + row] =
            layouts_best(logits + (size_t)i * t->vocab, t->vocab);
}

static inline int gpu_one(void *by, const struct model_batch *b, struct err *e)
{
    return gpu_model_forward(by, b, e);
}

/* The one GPU's logits and tokens. */
static inline void gpu_layouts_want(struct gpu_layouts *t)
{
    const struct layouts *l = &t->l;
    uint32_t per = layouts_blocks(l), stride = per * MODEL_BLOCK_TOKENS;
    struct gpu_model_options by = {.max_rows = gpu_rows(l),
                                   .max_sequences = l->n_seqs,
                                   .pool_blocks = l->n_seqs * per,
                                   .max_context = stride};
    struct gpu *g = emu_device_new(2);
    struct gpu_model *gm = NULL;
    struct err e = {0};
    struct side s = {0};
    int rc = model_load(l->path, NULL, &s.m, &e);
    rc = rc ? rc : gpu_model_new(g, s.m, &by, &gm, &e);
    if (!rc) {
        t->vocab = model_config(s.m)->vocab;
        t->tokens = calloc((size_t)l->n_seqs * stride, sizeof *t->tokens);
        t->want = malloc((size_t)(l->steps + 1) * l->n_seqs * t->vocab * sizeof *t->want);
        for (uint32_t i = 0; i < l->n_seqs * stride; i++)
            t->tokens[i] = (uint32_t)(rng_at(l->seed, i / stride, i % stride) % t->vocab);
        side_init(&s, l, gpu_model_kv(gm), 1);
        rc = gpu_run(t, &s, gpu_one, gm, gpu_keep, NULL, &e);
    }
    if (rc)
        fail_msg("%s", e.msg);
    gpu_model_free(gm);
    gpu_close(g);
    model_free(s.m);
    free(s.pool);
    free(s.blocks);
}

static inline void gpu_layouts_fini(struct gpu_layouts *t)
{
    free(t->tokens);
    free(t->want);
}

static inline void gpu_see(struct gpu_layouts *t, uint32_t row, float *logits, void *arg)
{
    for (uint32_t i = 0; i < t->l.n_seqs; i++)
        gpu_compare(arg, t->want + ((size_t)row * t->l.n_seqs + i) * t->vocab,
                    logits + (size_t)i * t->vocab, t->vocab);
}

static inline int gpu_many(void *by, const struct model_batch *b, struct err *e)
{
    return group_forward(by, b, e);
}

static inline int gpu_lead(struct gpu_layouts *t, struct group *g, const struct side *s,
                           struct gpu_layouts_result *out, struct err *e)
{
    int rc = gpu_run(t, s, gpu_many, g, gpu_see, out, e);
    out->apart = sqrt(out->apart / (out->rows ? out->rows : 1));
    rc = rc ? rc : group_reports(g, out->reports, e);
    return rc ? rc : group_stop(g, e);
}

static inline int gpu_backend(const struct layouts *l, struct comm *world, struct side *s,
                              struct backend **out, struct err *e)
{
    uint32_t per = layouts_blocks(l), blocks = l->n_seqs * per;
    struct model_kv kv;
    struct backend_config c = {.name = "cuda",
                               .model = s->m,
                               .world = world,
                               .index = comm_rank(world) % 8,
                               .layout = l->layout,
                               .rank = comm_rank(world),
                               .group = layouts_work(l).group,
                               .halves = GROUP_HALVES_MEASURED,
                               .max_rows = gpu_rows(l),
                               .max_sequences = l->n_seqs,
                               .max_outputs = l->n_seqs,
                               .max_context = per * MODEL_BLOCK_TOKENS,
                               .block_tokens = MODEL_BLOCK_TOKENS};
    int rc = model_kv_part(&kv, model_config(s->m), model_part(s->m), MODEL_KV_F16,
                           MODEL_BLOCK_TOKENS, e);
    rc = rc ? rc : backend_open(&c, out, e);
    if (rc)
        return rc;
    side_init(s, l, &kv, l->layout.data ? l->layout.data : 1);
    return backend_pool(*out, blocks, s->pool, blocks * kv.block_bytes, e);
}

/* The device of a rank that dies: `self` is what it stands for. */
struct gpu_mortal {
    struct group_device device;
    const struct group_device *real;
    uint32_t steps, at_step;
    struct gpu_deaths *deaths;
};

static inline int gpu_die(void *self, const struct model_batch *b, struct err *e)
{
    struct gpu_mortal *m = self;
    if (m->steps++ == m->at_step) {
        m->deaths->died_ns = clock_mono_ns();
        kill(getpid(), SIGKILL);
    }
    return m->real->forward(m->real->self, b, e);
}

static inline void gpu_die_data_rows(void *self, const uint32_t *rows)
{
    struct gpu_mortal *m = self;
    m->real->data_rows(m->real->self, rows);
}

static inline int gpu_rank(struct comm *world, struct ranks *r, void *arg)
{
    struct gpu_layouts *t = arg;
    uint32_t me = comm_rank(world);
    struct model_shard shard = model_layout_shard(&t->l.layout, me);
    struct backend *b = NULL;
    struct side s = {0};
    struct err e = {0};
    struct group *g = NULL;
    if (t->no_nccl)
        setenv("BATON_NCCL", "libnot-there.so.2", 1);
    int rc = model_shard_load(t->l.path, NULL, &shard, &s.m, &e);
    if (!rc && t->l.damaged == me + 1)
        side_damage(s.m);
    rc = rc ? rc : gpu_backend(&t->l, world, &s, &b, &e);
    struct group_config c = {.model = s.m,
                             .layout = t->l.layout,
                             .rank = me,
                             .world = world,
                             .device = backend_device(b),
                             .pool = s.pool,
                             .halves = GROUP_HALVES_MEASURED,
                             .work = layouts_work(&t->l)};
    struct gpu_deaths *deaths = (void *)(r->shared + sizeof(struct gpu_layouts_result));
    struct gpu_mortal mortal = {.real = c.device, .at_step = t->at_step, .deaths = deaths};
    mortal.device =
        (struct group_device){.self = &mortal, .data_rows = gpu_die_data_rows, .forward = gpu_die};
    if (t->dies == me + 1)
        c.device = &mortal.device;
    c.work.max_rows = gpu_rows(&t->l);
    c.work.kv_dtype = MODEL_KV_F16;
    rc = rc ? rc : group_new(&c, &g, &e);
    rc = rc ? rc : me ? group_follow(g, &e) : gpu_lead(t, g, &s, (void *)r->shared, &e);
    if (rc) {
        fprintf(stderr, "rank %u: %s\n", me, e.msg);
        comm_fail(world, e.msg);
    }
    group_free(g);
    backend_free(b);
    deaths->over_ns[me] = clock_mono_ns();
    return rc == -EPIPE ? 2 : rc ? 1 : 0;
}

static inline void gpu_layouts_run(struct gpu_layouts *t, struct gpu_layouts_result *out)
{
    const struct model_layout *l = &t->l.layout;
    struct ranks r;
    uint32_t n = model_layout_ranks(l);
    ranks_init(&r, n, t->l.per_host ? t->l.per_host : n, sizeof *out + sizeof(struct gpu_deaths));
    r.limit_s = 600;
    r.join_ms = 120000;
    ranks_start(&r, gpu_rank, t);
    int worst = ranks_wait(&r, NULL);
    memcpy(out, r.shared, sizeof *out);
    ranks_fini(&r);
    assert_int_equal(worst, 0);
    printf(
        "tp%u pp%u ep%u dp%u: %.4f of the logits' spread from one GPU (most %.2g), %u of %u rows "
        "far, %u tokens differ, %u near ties\n",
        l->tensor, l->pipeline, l->expert, l->data, out->apart, (double)out->greatest, out->far,
        out->rows, out->differ, out->near_ties);
    fflush(stdout);
}

/* Every rank but the dead one ends with the group's failure: after how long. */
static inline double gpu_layouts_death_s(struct gpu_layouts *t)
{
    struct ranks r;
    int codes[RANKS_MAX];
    uint32_t n = model_layout_ranks(&t->l.layout);
    double last = 0;
    ranks_init(&r, n, n, sizeof(struct gpu_layouts_result) + sizeof(struct gpu_deaths));
    r.limit_s = 600;
    r.join_ms = 120000;
    ranks_start(&r, gpu_rank, t);
    (void)ranks_wait(&r, codes);
    const struct gpu_deaths *d = (void *)(r.shared + sizeof(struct gpu_layouts_result));
    for (uint32_t i = 0; i < n; i++) {
        double s = (double)(d->over_ns[i] - d->died_ns) / 1e9;
        assert_int_equal(codes[i], i + 1 == t->dies ? 128 + SIGKILL : 2);
        last = i + 1 != t->dies && s > last ? s : last;
    }
    ranks_fini(&r);
    return last;
}

/* Others wait for it on their devices; only an abort ends that. */
static inline void gpu_layouts_die(struct gpu_layouts *t, struct model_layout layout, uint32_t rank,
                                   uint32_t step)
{
    t->l.layout = layout;
    t->dies = rank + 1;
    t->at_step = step;
    double s = gpu_layouts_death_s(t);
    printf("tp%u pp%u ep%u dp%u without rank %u: over after %.3f s\n", layout.tensor,
           layout.pipeline, layout.expert, layout.data, rank, s);
    assert_true(s < 20); /* on a busy machine; silence alone would take 5 s, stuck ranks 30 */
}

/* The stand-in for NCCL lies beside the tests. */
static inline void gpu_layouts_init(void)
{
    char path[4096];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 64);
    assert_true(n > 0);
    path[n] = 0;
    *strrchr(path, '/') = 0;
    strcat(path, "/../../kernels/cuda/libnccl.so.2");
    setenv("BATON_NCCL", path, 1);
    setenv("BATON_CUBLASLT", "0", 1);
    setenv("EMU_SMS", "2", 1);
}

static inline struct gpu_layouts gpu_layouts_of(const struct family *f)
{
    return (struct gpu_layouts){.l = {.path = f->dir,
                                      .n_seqs = 3,
                                      .prompt = 30,
                                      .steps = 4,
                                      .chunk = 20,
                                      .kv = MODEL_KV_F16,
                                      .seed = 3}};
}
