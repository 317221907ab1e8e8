/* Small models of every tensor type and both architectures: they load, and their logits are what
 * the dequantised weights give in f64; bad batches are refused before anything is computed. */
#include "tests/worker/model/runner.h"
#include "tests/worker/model/tiny.h"

#include <math.h>

static struct model *tiny_model(struct tiny *t, char **path)
{
    struct buf b;
    struct err e = {0};
    struct model *m = NULL;
    buf_init(&b, 64u << 20);
    tiny_build(t, &b);
    *path = tiny_file(&b);
    buf_fini(&b);
    if (model_load(*path, NULL, &m, &e) < 0)
        fail_msg("%s: %s", gguf_type_name(t->type), e.msg);
    return m;
}

/* ---- decoding of blocks, written a second time from the format's description ---- */

static double half(const uint8_t *p)
{
    uint16_t h = (uint16_t)(p[0] | p[1] << 8);
    int e = h >> 10 & 31, f = h & 1023;
    double v = e == 0 ? ldexp(f, -24) : ldexp(1024 + f, e - 25);
    return h & 0x8000 ? -v : v;
}

static void k_scale(const uint8_t *q, int j, int *s, int *m)
{
    *s = j < 4 ? q[j] & 63 : (q[j + 4] & 15) | (q[j - 4] >> 6) << 4;
    *m = j < 4 ? q[j + 4] & 63 : (q[j + 4] >> 4) | (q[j] >> 6) << 4;
}

static double value(uint32_t type, const uint8_t *b, int i)
{
    uint32_t bits = 0;
    float f;
    int s, m, j = i / 32, h = i / 128, l = i % 32;
    switch (type) {
    case GGUF_F32: memcpy(&f, b, 4); return (double)f;
    case GGUF_F16: return half(b);
    case GGUF_BF16:
        bits = (uint32_t)(b[0] | b[1] << 8) << 16;
        memcpy(&f, &bits, 4);
        return (double)f;
    case GGUF_Q8_0: return half(b) * (int8_t)b[2 + i];
    case GGUF_Q4_0: return half(b) * ((i < 16 ? b[2 + i] & 15 : b[2 + i - 16] >> 4) - 8);
    case GGUF_Q4_1: return half(b) * (i < 16 ? b[4 + i] & 15 : b[4 + i - 16] >> 4) + half(b + 2);
    case GGUF_Q5_0:
        memcpy(&bits, b + 2, 4);
        return half(b) *
               (((i < 16 ? b[6 + i] & 15 : b[6 + i - 16] >> 4) | (int)(bits >> i & 1) << 4) - 16);
    case GGUF_Q5_1:
        memcpy(&bits, b + 4, 4);
        return half(b) *
                   ((i < 16 ? b[8 + i] & 15 : b[8 + i - 16] >> 4) | (int)(bits >> i & 1) << 4) +
               half(b + 2);
    case GGUF_Q4_K:
        k_scale(b + 4, j, &s, &m);
        return half(b) * s *
                   (j % 2 ? b[16 + 32 * (j / 2) + l] >> 4 : b[16 + 32 * (j / 2) + l] & 15) -
               half(b + 2) * m;
    case GGUF_Q5_K:
        k_scale(b + 4, j, &s, &m);
        s *= (j % 2 ? b[48 + 32 * (j / 2) + l] >> 4 : b[48 + 32 * (j / 2) + l] & 15) |
             (b[16 + l] >> j & 1) << 4;
        return half(b) * s - half(b + 2) * m;
    default: /* Q6_K */
        j = i % 128 / 32;
        s = j < 2 ? b[64 * h + 32 * j + l] & 15 : b[64 * h + 32 * (j - 2) + l] >> 4;
        s |= (b[128 + 32 * h + l] >> 2 * j & 3) << 4;
        return half(b + 208) * (int8_t)b[192 + i / 16] * (s - 32);
    }
}

static double *dequantised(const char *path, const char *name, uint64_t *rows, uint64_t *cols)
{
    struct gguf *g;
    struct err e = {0};
    uint32_t block = 1, bytes = 4;
    assert_int_equal(gguf_open(path, &g, &e), 0);
    const struct gguf_tensor *t = gguf_tensor(g, name);
    assert_true(t && gguf_type_block(t->type, &block, &bytes));
    uint8_t *raw = malloc(t->bytes);
    assert_int_equal(gguf_read(g, t, 0, raw, t->bytes, &e), 0);
    double *w = calloc(t->ne[0] * t->ne[1], sizeof *w);
    for (uint64_t i = 0; i < t->ne[0] * t->ne[1]; i++)
        w[i] = value(t->type, raw + i / block * bytes, (int)(i % block));
    *cols = t->ne[0];
    *rows = t->ne[1];
    free(raw);
    gguf_free(g);
    return w;
}

/* ---- a forward pass of one token at position 0: attention is V itself, rotation does nothing ----
 */

struct ref {
    const char *path;
    const struct model_config *c;
    double h[256], x[256], y[512], g[512];
};

static void ref_norm(struct ref *r, const double *in, double *out)
{
    double s = 0;
    for (uint32_t i = 0; i < r->c->d_model; i++)
        s += in[i] * in[i];
    s = 1 / sqrt(s / r->c->d_model + (double)r->c->norm_eps);
    for (uint32_t i = 0; i < r->c->d_model; i++)
        out[i] = in[i] * s; /* the tiny models' norms are all 1 */
}

static void ref_product(struct ref *r, uint32_t layer, const char *name, const double *x, double *y)
{
    char full[64];
    uint64_t rows, cols;
    if (name)
        snprintf(full, sizeof full, "blk.%u.%s.weight", layer, name);
    double *w = dequantised(r->path, name ? full : "token_embd.weight", &rows, &cols);
    for (uint64_t i = 0; i < rows; i++) {
        y[i] = 0;
        for (uint64_t k = 0; k < cols; k++)
            y[i] += w[i * cols + k] * x[k];
    }
    free(w);
}

static void ref_add(struct ref *r, double *y)
{
    if (r->c->post_norm)
        ref_norm(r, y, y);
    for (uint32_t i = 0; i < r->c->d_model; i++)
        r->h[i] += y[i];
}

static void ref_layer(struct ref *r, uint32_t layer)
{
    const struct model_config *c = r->c;
    double v[256], att[256];
    ref_norm(r, r->h, r->x);
    ref_product(r, layer, "attn_v", r->x, v);
    for (uint32_t i = 0; i < c->n_heads * c->head_dim; i++)
        att[i] = v[i / c->head_dim / (c->n_heads / c->n_kv_heads) * c->head_dim + i % c->head_dim];
    ref_product(r, layer, "attn_output", att, r->y);
    ref_add(r, r->y);
    ref_norm(r, r->h, r->x);
    ref_product(r, layer, "ffn_gate", r->x, r->g);
    ref_product(r, layer, "ffn_up", r->x, r->y);
    for (uint32_t i = 0; i < c->d_ff; i++) {
        double g = r->g[i],
               gelu = 0.5 * g * (1 + tanh(sqrt(2 / M_PI) * (g + 0.044715 * g * g * g)));
        r->g[i] = (c->gelu ? gelu : g / (1 + exp(-g))) * r->y[i];
    }
    ref_product(r, layer, "ffn_down", r->g, r->y);
    ref_add(r, r->y);
}

static void check(uint32_t type, bool gemma)
{
    struct tiny t = {.layers = 2,
                     .d = 256,
                     .heads = 4,
                     .kv_heads = 2,
                     .ff = 256,
                     .vocab = 70,
                     .type = type,
                     .gemma = gemma,
                     .seed = 3 + type};
    char *path;
    struct model *m = tiny_model(&t, &path);
    const struct model_config *c = model_config(m);
    struct runner r;
    struct ref ref = {.path = path, .c = c};
    double want[70], size = 0, off = 0;
    uint32_t token = 41;
    runner_init(&r, m, 1, 4, 1, 4, 1);
    struct model_segment s = runner_segment(&r, 0, &token, 1, 0, 0);
    runner_forward(&r, &s, 1);
    uint64_t rows, cols;
    double *embd = dequantised(path, "token_embd.weight", &rows, &cols);
    for (uint32_t i = 0; i < c->d_model; i++)
        ref.h[i] = embd[token * cols + i] * (double)c->embed_scale;
    for (uint32_t l = 0; l < c->n_layers; l++)
        ref_layer(&ref, l);
    ref_norm(&ref, ref.h, ref.x);
    ref_product(&ref, 0, NULL, ref.x, want);
    for (uint32_t i = 0; i < c->vocab; i++) {
        size = fmax(size, fabs(want[i]));
        off = fmax(off, fabs(want[i] - (double)r.logits[i]));
    }
    if (!(size > 0) || !(off < 2e-3 * size))
        fail_msg("%s, %s: logits up to %g are off by %g", gguf_type_name(type),
                 gemma ? "gemma3" : "llama", size, off);
    runner_fini(&r);
    model_free(m);
    unlink(path);
    free(path);
    free(embd);
}

static void every_tensor_type_gives_the_logits_of_its_weights(void **state)
{
    (void)state;
    static const uint32_t types[] = {GGUF_F32,  GGUF_F16,  GGUF_BF16, GGUF_Q4_0,
                                     GGUF_Q4_1, GGUF_Q5_0, GGUF_Q5_1, GGUF_Q8_0,
                                     GGUF_Q4_K, GGUF_Q5_K, GGUF_Q6_K};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        for (int gemma = 0; gemma < 2; gemma++)
            check(types[i], gemma);
}

static void refused(struct runner *r, struct model_segment s, uint32_t logits_rows,
                    const char *says)
{
    struct err e = {0};
    struct model_batch b = {
        .segments = &s, .n_segments = 1, .logits = r->logits, .logits_rows = logits_rows};
    assert_true(model_forward(r->m, r->w, r->pool, &b, &e) < 0);
    if (!strstr(e.msg, says))
        fail_msg("\"%s\" does not say \"%s\"", e.msg, says);
}

static void bad_batches_are_refused(void **state)
{
    (void)state;
    struct tiny t = {
        .layers = 1, .d = 64, .heads = 2, .kv_heads = 1, .ff = 64, .vocab = 70, .type = GGUF_Q8_0};
    char *path;
    struct model *m = tiny_model(&t, &path);
    struct runner r;
    runner_init(&r, m, 1, 64, 2, 32, 1);
    uint32_t tokens[64] = {0}, bad = 70, far[2] = {0, 99};
    refused(&r, runner_segment(&r, 0, &bad, 1, 0, 0), 1, "vocabulary");
    refused(&r, runner_segment(&r, 0, tokens, 0, 0, 0), 1, "segment");
    refused(&r, runner_segment(&r, 0, tokens, 33, 0, 33), 1, "segment");
    refused(&r, runner_segment(&r, 0, tokens, 4, 62, 4), 1, "blocks hold");
    refused(&r, runner_segment(&r, 0, tokens, 1, 600, 1), 1, "context");
    refused(&r, runner_segment(&r, 0, tokens, 1, UINT32_MAX, 1), 1, "context");
    refused(&r, runner_segment(&r, 0, tokens, 4, 0, 0), 3, "logits");
    refused(&r, runner_segment(&r, 0, tokens, 4, 0, 5), 9, "logits");
    struct model_segment s = runner_segment(&r, 0, tokens, 1, 40, 1);
    s.blocks = far;
    refused(&r, s, 1, "pool");
    struct err e = {0};
    struct model_batch none = {.logits = r.logits};
    assert_true(model_forward(m, r.w, r.pool, &none, &e) < 0);
    runner_fini(&r);
    model_free(m);
    unlink(path);
    free(path);
}

struct seen {
    uint32_t layers;
    const struct runner *r;
};

static void on_layer(void *ctx, uint32_t layer)
{
    struct seen *s = ctx;
    const struct model_kv *kv = model_work_kv(s->r->w);
    assert_int_equal(layer, s->layers);
    s->layers++;
    const uint8_t *piece = s->r->pool + model_kv_piece_offset(kv, s->r->blocks[0], layer);
    assert_true(piece[0] != 0xff || piece[1] != 0xff); /* K of position 0 is there */
}

static void layers_are_announced_in_order_when_their_kv_is_written(void **state)
{
    (void)state;
    struct tiny t = {
        .layers = 5, .d = 64, .heads = 2, .kv_heads = 1, .ff = 64, .vocab = 70, .type = GGUF_Q4_1};
    char *path;
    struct model *m = tiny_model(&t, &path);
    struct runner r;
    struct err e = {0};
    runner_init(&r, m, 1, 64, 3, 32, 1);
    uint32_t tokens[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    struct seen seen = {0, &r};
    struct model_segment s = runner_segment(&r, 0, tokens, 8, 0, 8);
    struct model_batch b = {.segments = &s, .n_segments = 1, .layer_done = on_layer, .ctx = &seen};
    assert_int_equal(model_forward(m, r.w, r.pool, &b, &e), 0);
    assert_int_equal(seen.layers, 5);
    const struct model_kv *kv = model_work_kv(r.w);
    assert_int_equal(kv->block_bytes,
                     2ull * 5 * 1 * 32 * 2 * 32); /* K and V, layers, heads, dims, bytes, tokens */
    runner_fini(&r);
    model_free(m);
    unlink(path);
    free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_tensor_type_gives_the_logits_of_its_weights),
        cmocka_unit_test(bad_batches_are_refused),
        cmocka_unit_test(layers_are_announced_in_order_when_their_kv_is_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
