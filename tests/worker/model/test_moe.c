/* Experts: the choice against a plain second one; SmolLM2 upcycled to experts that are copies of
 * its feed-forward part equals the dense model. */
#include "kernels/cpu/gating.h"
#include "tests/worker/model/runner.h"
#include "tests/worker/model/tiny.h"
#include "worker/model/blocks.h"
#include "worker/model/config.h"

#include <math.h>

/* ---- gating ---- */

struct plain {
    double score[64], choice[64];
    bool taken[64];
};

static void plain_scores(const struct gating *g, const float *x, struct plain *p)
{
    double sum = 0;
    for (uint32_t i = 0; i < g->experts; i++) {
        p->score[i] = g->sigmoid ? 1 / (1 + exp(-(double)x[i])) : exp((double)x[i]);
        sum += p->score[i];
        p->taken[i] = false;
    }
    for (uint32_t i = 0; i < g->experts; i++) {
        p->score[i] /= g->sigmoid ? 1 : sum;
        p->choice[i] = p->score[i] + (g->bias ? (double)g->bias[i] : 0);
    }
}

static double plain_group(const struct gating *g, const struct plain *p, uint32_t group)
{
    uint32_t n = g->experts / g->groups;
    double a = -INFINITY, b = -INFINITY;
    for (uint32_t i = group * n; i < (group + 1) * n; i++) {
        if (p->choice[i] > a) {
            b = a;
            a = p->choice[i];
        } else {
            b = fmax(b, p->choice[i]);
        }
    }
    return g->top2 ? a + b : a;
}

/* A group is kept when fewer than groups_used have a greater score. */
static void plain_choose(const struct gating *g, struct plain *p)
{
    uint32_t n = g->experts / g->groups;
    bool kept[64];
    for (uint32_t k = 0; k < g->groups; k++) {
        uint32_t better = 0;
        for (uint32_t o = 0; o < g->groups; o++)
            better += plain_group(g, p, o) > plain_group(g, p, k);
        kept[k] = better < g->groups_used;
    }
    for (uint32_t i = 0; i < g->experts; i++) {
        uint32_t better = 0;
        for (uint32_t o = 0; o < g->experts; o++)
            better += kept[o / n] && p->choice[o] > p->choice[i];
        p->taken[i] = kept[i / n] && better < g->used;
    }
}

static void check_gating(const struct gating *g, struct rng *rng)
{
    float x[64], scores[64], scratch[128];
    struct gating_pick picks[64];
    struct plain p;
    double sum = 0;
    for (uint32_t i = 0; i < g->experts; i++)
        scores[i] = x[i] = (float)rng_unit(rng) * 6 - 3;
    plain_scores(g, x, &p);
    plain_choose(g, &p);
    gating_choose(g, scores, scratch, picks);
    for (uint32_t k = 0; k < g->used; k++) {
        assert_true(picks[k].expert < g->experts && p.taken[picks[k].expert]);
        assert_true(k == 0 || picks[k].expert > picks[k - 1].expert);
        sum += p.score[picks[k].expert];
    }
    for (uint32_t k = 0; k < g->used; k++) {
        double want = p.score[picks[k].expert] * (double)g->scale / (g->normalise ? sum : 1);
        assert_true(fabs((double)picks[k].weight - want) < 1e-5);
    }
}

static void the_best_experts_of_the_best_groups_are_chosen(void **state)
{
    (void)state;
    struct rng rng = {runner_seed()};
    float bias[64];
    for (int i = 0; i < 2000; i++) {
        uint32_t groups = 1 + (uint32_t)rng_below(&rng, 8), each = 2 + (uint32_t)rng_below(&rng, 7);
        struct gating g = {.experts = groups * each, .groups = groups, .scale = 2.5f};
        g.groups_used = 1 + (uint32_t)rng_below(&rng, groups);
        g.used = 1 + (uint32_t)rng_below(&rng, g.groups_used * each);
        g.sigmoid = rng_below(&rng, 2);
        g.top2 = rng_below(&rng, 2);
        g.normalise = rng_below(&rng, 2);
        for (uint32_t k = 0; k < g.experts; k++)
            bias[k] = (float)rng_unit(&rng) * 0.4f - 0.2f;
        g.bias = rng_below(&rng, 2) ? bias : NULL;
        check_gating(&g, &rng);
    }
}

static void equal_and_odd_scores_choose_too(void **state)
{
    (void)state;
    struct gating g = {.experts = 8, .used = 3, .groups = 1, .groups_used = 1, .scale = 1};
    float same[8] = {0}, scratch[16], odd[8] = {NAN, NAN, 1, NAN, NAN, NAN, NAN, NAN};
    struct gating_pick picks[8];
    gating_choose(&g, same, scratch, picks);
    assert_true(picks[0].expert == 0 && picks[1].expert == 1 && picks[2].expert == 2);
    gating_choose(&g, odd, scratch, picks);
    for (int k = 0; k < 3; k++)
        assert_true(picks[k].expert < 8);
}

/* ---- upcycling ---- */

struct upcycle {
    const char *path;
    uint32_t layers, experts; /* the first layers; experts 0: dense */
    bool floats;              /* BF16 instead of the file's types */
    struct gguf *from;
    FILE *to;
    struct buf head;
    uint64_t at; /* of the next tensor's data */
};

/* Of a layer that is left out. */
static bool is_cut(const struct upcycle *u, struct str name)
{
    unsigned layer = 0;
    return sscanf(name.p, "blk.%u.", &layer) == 1 && layer >= u->layers;
}

static bool is_ffn(struct str name)
{
    return str_ends(name, STR("ffn_gate.weight")) || str_ends(name, STR("ffn_up.weight")) ||
           str_ends(name, STR("ffn_down.weight"));
}

static void info(struct upcycle *u, const char *name, uint32_t type, const uint64_t *ne, uint32_t n,
                 uint64_t bytes)
{
    tiny_str(&u->head, name);
    tiny_u32(&u->head, n);
    for (uint32_t i = 0; i < n; i++)
        tiny_u64(&u->head, ne[i]);
    tiny_u32(&u->head, type);
    tiny_u64(&u->head, u->at);
    u->at += (bytes + 31) / 32 * 32;
}

static uint64_t elements(const struct gguf_tensor *t)
{
    return t->ne[0] * t->ne[1];
}

static void tensor_info(struct upcycle *u, const struct gguf_tensor *t)
{
    char name[96];
    bool moe = u->experts && is_ffn(t->name), floats = u->floats && t->type != GGUF_F32;
    uint64_t bytes = floats ? elements(t) * 2 : t->bytes;
    uint32_t type = floats ? GGUF_BF16 : t->type;
    if (!moe) {
        snprintf(name, sizeof name, STR_FMT, STR_ARG(t->name));
        info(u, name, type, t->ne, t->n_dims, bytes);
        return;
    }
    snprintf(name, sizeof name, "%.*s_exps.weight", (int)(t->name.n - 7), t->name.p);
    info(u, name, type, (uint64_t[]){t->ne[0], t->ne[1], u->experts}, 3, bytes * u->experts);
}

static void put_padded(struct upcycle *u, const void *p, size_t n, uint32_t times)
{
    static const char zero[32];
    size_t pad = (32 - n * times % 32) % 32;
    for (uint32_t i = 0; i < times; i++)
        assert_int_equal(fwrite(p, 1, n, u->to), n);
    assert_int_equal(fwrite(zero, 1, pad, u->to), pad);
}

static void tensor_data(struct upcycle *u, const struct gguf_tensor *t)
{
    struct err e = {0};
    uint8_t *raw = malloc(t->bytes);
    uint32_t times = u->experts && is_ffn(t->name) ? u->experts : 1;
    assert_int_equal(gguf_read(u->from, t, 0, raw, t->bytes, &e), 0);
    if (!u->floats || t->type == GGUF_F32) {
        put_padded(u, raw, t->bytes, times);
        free(raw);
        return;
    }
    uint64_t n = elements(t), row = t->bytes / t->ne[1];
    float *x = malloc(n * sizeof *x);
    uint16_t *h = malloc(n * sizeof *h);
    for (uint64_t r = 0; r < t->ne[1]; r++)
        block_floats(t->type, raw + r * row, (uint32_t)t->ne[0], x + r * t->ne[0]);
    for (uint64_t i = 0; i < n; i++)
        memcpy(&h[i], (const char *)&x[i] + 2, 2);
    put_padded(u, h, n * sizeof *h, times);
    free(raw);
    free(x);
    free(h);
}

static void upcycle_head(struct upcycle *u, const struct model_config *c, uint32_t n_tensors)
{
    const float floats[] = {c->norm_eps, c->rope_base};
    const char *const names[] = {"llama.attention.layer_norm_rms_epsilon", "llama.rope.freq_base"};
    tiny_put(&u->head, "GGUF", 4);
    tiny_u32(&u->head, 3);
    tiny_u64(&u->head, n_tensors);
    tiny_u64(&u->head, 11);
    tiny_str(&u->head, "general.architecture");
    tiny_u32(&u->head, 8);
    tiny_str(&u->head, "llama");
    tiny_kv_u32(&u->head, "llama", "block_count", u->layers);
    tiny_kv_u32(&u->head, "llama", "embedding_length", c->d_model);
    tiny_kv_u32(&u->head, "llama", "feed_forward_length", c->d_ff);
    tiny_kv_u32(&u->head, "llama", "context_length", 512);
    tiny_kv_u32(&u->head, "llama", "attention.head_count", c->n_heads);
    tiny_kv_u32(&u->head, "llama", "attention.head_count_kv", c->n_kv_heads);
    tiny_kv_u32(&u->head, "llama", "expert_count", u->experts);
    tiny_kv_u32(&u->head, "llama", "expert_used_count", 2);
    for (int i = 0; i < 2; i++) {
        tiny_str(&u->head, names[i]);
        tiny_u32(&u->head, 6);
        tiny_put(&u->head, &floats[i], 4);
    }
}

static uint32_t upcycle_infos(struct upcycle *u, const struct model_config *c)
{
    char name[64];
    uint32_t n = 0;
    for (size_t i = 0; i < gguf_n_tensors(u->from); i++)
        if (!is_cut(u, gguf_tensor_at(u->from, i)->name)) {
            tensor_info(u, gguf_tensor_at(u->from, i));
            n++;
        }
    for (uint32_t l = 0; u->experts && l < u->layers; l++, n++) {
        snprintf(name, sizeof name, "blk.%u.ffn_gate_inp.weight", l);
        info(u, name, GGUF_F32, (uint64_t[]){c->d_model, u->experts}, 2,
             4ull * u->experts * c->d_model);
    }
    return n;
}

/* The file's tensors, feed-forward ones once an expert, and a random router for each layer. */
static struct model *upcycle(struct upcycle *u, const struct model_config *c)
{
    struct err e = {0};
    struct rng rng = {5};
    struct model *m = NULL;
    char *out = xstrdup("/tmp/baton-upcycled-XXXXXX");
    assert_int_equal(gguf_open(u->path, &u->from, &e), 0);
    buf_init(&u->head, 1u << 20);
    upcycle_head(u, c, 0);
    uint64_t n = upcycle_infos(u, c);
    memcpy(u->head.data + 8, &n, 8);
    tiny_pad(&u->head);
    u->to = fdopen(mkstemp(out), "we");
    put_padded(u, u->head.data, u->head.n, 1);
    for (size_t i = 0; i < gguf_n_tensors(u->from); i++)
        if (!is_cut(u, gguf_tensor_at(u->from, i)->name))
            tensor_data(u, gguf_tensor_at(u->from, i));
    float *router = calloc((size_t)(u->experts + 1) * c->d_model, sizeof *router);
    for (uint32_t l = 0; u->experts && l < u->layers; l++) {
        for (uint32_t i = 0; i < u->experts * c->d_model; i++)
            router[i] = (float)rng_unit(&rng) * 0.2f - 0.1f;
        put_padded(u, router, (size_t)u->experts * c->d_model * sizeof *router, 1);
    }
    free(router);
    fclose(u->to);
    buf_fini(&u->head);
    gguf_free(u->from);
    if (model_load(out, NULL, &m, &e) < 0)
        fail_msg("%s", e.msg);
    unlink(out);
    free(out);
    return m;
}

static void logits_of(struct model *m, const uint32_t *ids, uint32_t n, struct runner *r)
{
    struct err e = {0};
    runner_init(r, m, 1, 64, 2, 64, 1);
    model_work_free(r->w);
    free(r->pool);
    struct model_work_options o = {
        .threads = 2, .max_rows = 64, .pool_blocks = r->per_seq, .kv_dtype = MODEL_KV_F32};
    assert_int_equal(model_work_new(m, &o, &r->w, &e), 0);
    r->pool = aligned_alloc(64, r->per_seq * model_work_kv(r->w)->block_bytes);
    struct model_segment s = runner_segment(r, 0, ids, n, 0, 0);
    runner_forward(r, &s, 1);
}

struct likeness {
    double off, most;
    uint32_t other_best;
};

static struct likeness compare(struct model *dense, struct model *moe)
{
    static const uint32_t ids[] = {504, 3575, 282, 4649,  314, 7042, 28, 284,  260, 3575,
                                   282, 4521, 314, 11452, 30,  198,  1,  4093, 198, 1780};
    const uint32_t n = sizeof ids / sizeof *ids;
    struct likeness l = {0};
    struct runner a, b;
    assert_int_equal(model_config(moe)->arch, MODEL_MIXTRAL);
    logits_of(dense, ids, n, &a);
    logits_of(moe, ids, n, &b);
    for (size_t i = 0; i < (size_t)n * a.vocab; i++) {
        l.off = fmax(l.off, fabs((double)a.logits[i] - (double)b.logits[i]));
        l.most = fmax(l.most, fabs((double)a.logits[i]));
    }
    for (uint32_t i = 0; i < n; i++)
        l.other_best += runner_argmax(&a, i) != runner_argmax(&b, i);
    runner_fini(&a);
    runner_fini(&b);
    return l;
}

static struct model_config config_of(const char *path)
{
    struct gguf *g;
    struct model_config c;
    struct err e = {0};
    if (gguf_open(path, &g, &e) || config_from_gguf(g, &c, &e))
        fail_msg("%s (make sets the models up)", e.msg);
    gguf_free(g);
    return c;
}

#ifdef SANITIZED
#define LAYERS 4u
#else
#define LAYERS 30u /* all */
#endif

/* With float weights what is left is the rounding of w1 y + w2 y; quantised activations turn it
 * into steps of their own. */
static void smollm2_as_copies_of_its_experts_equals_itself(void **state)
{
    (void)state;
    const char *dir = getenv("BATON_MODELS"), *home = getenv("HOME");
    char path[512];
    snprintf(path, sizeof path, "%s%s/SmolLM2-135M-Instruct.Q4_1.gguf",
             dir    ? dir
             : home ? home
                    : "",
             dir ? "" : "/.cache/baton/models");
    struct model_config whole = config_of(path);
    const struct model_config *c = &whole;
    assert_true(LAYERS <= c->n_layers);
    struct upcycle dense = {.path = path, .layers = LAYERS};
    struct upcycle quantised = {.path = path, .layers = LAYERS, .experts = 3};
    struct upcycle floats = {.path = path, .layers = LAYERS / 4, .experts = 3, .floats = true};
    struct upcycle plain = {.path = path, .layers = LAYERS / 4, .floats = true};
    struct model *o = upcycle(&dense, c), *a = upcycle(&quantised, c);
    struct model *b = upcycle(&floats, c), *d = upcycle(&plain, c);
    struct likeness q = compare(o, a), f = compare(d, b);
    printf("SmolLM2, 3 experts, 2 of a token: max |delta logit| %.1e of %.1f as Q4_1; %.1e of %.1f "
           "as BF16 (%u and %u layers)\n",
           q.off, q.most, f.off, f.most, LAYERS, LAYERS / 4);
    assert_true(q.off < 0.03 && q.other_best == 0);
    assert_true(f.off < 1e-3 && f.other_best == 0);
    model_free(o);
    model_free(a);
    model_free(b);
    model_free(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_best_experts_of_the_best_groups_are_chosen),
        cmocka_unit_test(equal_and_odd_scores_choose_too),
        cmocka_unit_test(smollm2_as_copies_of_its_experts_equals_itself),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
