#include "worker/gpu/gpu_model_int.h"
#include "worker/model/rope.h"

#include <errno.h>
#include <stdlib.h>

int gpu_alloc(struct gpu_model *gm, uint64_t bytes, bool kept, gpu_ptr *out, struct err *e)
{
    return gm->g->ops->alloc(gm->g, bytes ? bytes : 16, kept, out, e);
}

/* Rows of one of the image's matrices (matrix `index` of a stack) to `to`. */
static int upload_rows(struct gpu_model *gm, const struct model *m, const struct image_entry *en,
                       uint32_t rows, uint32_t index, gpu_ptr to, struct err *e)
{
    struct mat mat = image_mat(m, en);
    mat.rows = rows;
    mat.data += (size_t)index * mat_bytes(mat.form, rows, mat.cols);
    uint32_t cols = mat.cols, at_once = 1u + (1u << 20) / cols;
    float *f = xmalloc(cols * sizeof *f);
    uint16_t *b = xmalloc((size_t)at_once * cols * sizeof *b);
    int rc = 0;
    for (uint32_t r0 = 0; r0 < rows && rc == 0; r0 += at_once) {
        uint32_t n = rows - r0 < at_once ? rows - r0 : at_once;
        for (uint32_t r = 0; r < n; r++) {
            mat_row(&mat, r0 + r, f);
            for (uint32_t i = 0; i < cols; i++)
                b[(size_t)r * cols + i] = f32_to_bf16(f[i]);
        }
        rc = gm->g->ops->to_device(gm->g, GPU_COPY, to + (uint64_t)r0 * cols * 2, b,
                                   (uint64_t)n * cols * 2, e);
        if (rc == 0) /* b is used again */
            rc = gm->g->ops->sync(gm->g, GPU_COPY, e);
    }
    free(f);
    free(b);
    return rc;
}

/* Matrices of equal width, one below the other. */
static int upload(struct gpu_model *gm, const struct model *m, const struct image_entry *const *en,
                  uint32_t n, struct gpu_matrix *out, struct err *e)
{
    out->cols = en[0]->cols;
    for (uint32_t i = 0; i < n; i++)
        out->rows += en[i]->rows;
    uint64_t bytes = (uint64_t)out->rows * out->cols * 2, at = 0;
    int rc = gpu_alloc(gm, bytes, true, &out->at, e);
    for (uint32_t i = 0; i < n && rc == 0; i++) {
        rc = upload_rows(gm, m, en[i], en[i]->rows, 0, out->at + at, e);
        at += (uint64_t)en[i]->rows * out->cols * 2;
    }
    gm->stats.weight_bytes += bytes;
    return rc;
}

static int upload_one(struct gpu_model *gm, const struct model *m, const struct image_entry *en,
                      struct gpu_matrix *out, struct err *e)
{
    return upload(gm, m, &en, 1, out, e);
}

/* Stacks of `parts` matrices (of experts, of heads), of each a `rows` x cols piece of each. */
static int upload_stacks(struct gpu_model *gm, const struct model *m,
                         const struct image_entry *const *en, uint32_t n, uint32_t parts,
                         uint32_t rows, struct gpu_matrix *out, struct err *e)
{
    *out = (struct gpu_matrix){.rows = rows * n, .cols = en[0]->cols};
    uint64_t piece = (uint64_t)rows * out->cols * 2;
    int rc = gpu_alloc(gm, piece * n * parts, true, &out->at, e);
    for (uint32_t x = 0; x < parts; x++)
        for (uint32_t i = 0; i < n && rc == 0; i++)
            rc = upload_rows(gm, m, en[i], rows, x, out->at + ((uint64_t)x * n + i) * piece, e);
    gm->stats.weight_bytes += piece * n * parts;
    return rc;
}

static int upload_floats(struct gpu_model *gm, const float *v, uint64_t n, gpu_ptr *out,
                         struct err *e)
{
    if (!v)
        return 0;
    int rc = gpu_alloc(gm, n * 4, true, out, e);
    if (rc == 0)
        rc = gm->g->ops->to_device(gm->g, GPU_COPY, *out, v, n * 4, e);
    gm->stats.weight_bytes += n * 4;
    return rc == 0 ? gm->g->ops->sync(gm->g, GPU_COPY, e) : rc;
}

static int upload_bias(struct gpu_model *gm, const struct model *m, uint32_t layer,
                       struct gpu_layer *l, struct err *e)
{
    const struct model_config *c = &gm->c;
    static const enum image_layer_slot slots[] = {SLOT_Q_BIAS, SLOT_K_BIAS, SLOT_V_BIAS};
    uint32_t q = gm->heads * c->head_dim, kv = gm->kv_heads * c->head_dim, at = 0;
    float *all = xmalloc((q + 2 * kv) * sizeof *all);
    for (int i = 0; i < 3; i++) {
        uint32_t n = i ? kv : q;
        memcpy(all + at, image_vec(m, image_layer(m, layer, slots[i])), n * sizeof *all);
        at += n;
    }
    int rc = upload_floats(gm, all, at, &l->bias, e);
    free(all);
    return rc;
}

static int load_vectors(struct gpu_model *gm, const struct model *m, uint32_t layer,
                        struct gpu_layer *l, struct err *e)
{
    const struct model_config *c = &gm->c;
    const struct {
        enum image_layer_slot slot;
        uint32_t n;
        gpu_ptr *to;
    } vectors[] = {
        {SLOT_ATTN_NORM, c->d_model, &l->attn_norm},
        {SLOT_FFN_NORM, c->d_model, &l->ffn_norm},
        {SLOT_POST_ATTN_NORM, c->d_model, &l->post_attn},
        {SLOT_POST_FFN_NORM, c->d_model, &l->post_ffn},
        {SLOT_Q_NORM, c->head_dim, &l->q_norm},
        {SLOT_K_NORM, c->head_dim, &l->k_norm},
        {SLOT_ROUTER_BIAS, c->moe.experts, &l->router_bias},
        {SLOT_Q_A_NORM, c->mla.q_rank, &l->q_a_norm},
        {SLOT_KV_A_NORM, c->mla.rank, &l->kv_a_norm},
    };
    int rc = c->qkv_bias && gm->heads ? upload_bias(gm, m, layer, l, e) : 0;
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors && rc == 0; i++)
        rc = upload_floats(gm, image_vec(m, image_layer(m, layer, vectors[i].slot)), vectors[i].n,
                           vectors[i].to, e);
    return rc;
}

static int load_ffn(struct gpu_model *gm, const struct model *m, uint32_t layer,
                    struct gpu_layer *l, struct err *e)
{
    const struct image_entry *gate_up[] = {image_layer(m, layer, SLOT_GATE),
                                           image_layer(m, layer, SLOT_UP)};
    int rc = 0;
    if (gate_up[0]->bytes) {
        rc = upload(gm, m, gate_up, 2, &l->gate_up, e);
        if (rc == 0)
            rc = upload_one(gm, m, image_layer(m, layer, SLOT_DOWN), &l->down, e);
    }
    if (rc < 0 || !model_layer_has_experts(&gm->c, layer))
        return rc;
    const struct image_entry *experts[] = {image_layer(m, layer, SLOT_EXPERT_GATE),
                                           image_layer(m, layer, SLOT_EXPERT_UP)},
                             *down = image_layer(m, layer, SLOT_EXPERT_DOWN);
    rc = upload_one(gm, m, image_layer(m, layer, SLOT_ROUTER), &l->router, e);
    if (rc < 0 || !gm->experts || !gm->d_expert)
        return rc;
    rc = upload_stacks(gm, m, experts, 2, gm->experts, gm->d_expert, &l->expert_gate_up, e);
    return rc == 0 ? upload_stacks(gm, m, &down, 1, gm->experts, gm->c.d_model, &l->expert_down, e)
                   : rc;
}

static int load_latent(struct gpu_model *gm, const struct model *m, uint32_t layer,
                       struct gpu_layer *l, struct err *e)
{
    const struct image_entry *k_up = image_layer(m, layer, SLOT_K_UP),
                             *v_up = image_layer(m, layer, SLOT_V_UP);
    int rc = upload_one(gm, m, image_layer(m, layer, SLOT_Q), &l->q_b, e);
    if (rc == 0 && gm->c.mla.q_rank)
        rc = upload_one(gm, m, image_layer(m, layer, SLOT_Q_A), &l->q_a, e);
    if (rc == 0)
        rc = upload_one(gm, m, image_layer(m, layer, SLOT_KV_A), &l->kv_a, e);
    if (rc == 0)
        rc = upload_stacks(gm, m, &k_up, 1, gm->heads, gm->c.mla.rank, &l->k_up, e);
    return rc == 0 ? upload_stacks(gm, m, &v_up, 1, gm->heads, gm->c.mla.v, &l->v_up, e) : rc;
}

static int load_layer(struct gpu_model *gm, const struct model *m, uint32_t layer, struct err *e)
{
    struct gpu_layer *l = &gm->layers[layer];
    const struct image_entry *qkv[] = {image_layer(m, layer, SLOT_Q), image_layer(m, layer, SLOT_K),
                                       image_layer(m, layer, SLOT_V)};
    int rc = 0;
    if (gm->heads && gm->c.mla.rank)
        rc = load_latent(gm, m, layer, l, e);
    else if (gm->heads)
        rc = upload(gm, m, qkv, 3, &l->qkv, e);
    if (rc == 0 && gm->heads)
        rc = upload_one(gm, m, image_layer(m, layer, SLOT_O), &l->o, e);
    if (rc == 0)
        rc = load_vectors(gm, m, layer, l, e);
    return rc == 0 ? load_ffn(gm, m, layer, l, e) : rc;
}

/* Cosines and sines of every position that fits the device's pool. */
static int load_rope(struct gpu_model *gm, const double *freqs, float magnitude, gpu_ptr *out,
                     struct err *e)
{
    uint32_t dims = gm->c.rope_dims;
    uint64_t n = (uint64_t)gm->context_tokens * dims;
    float *cs = xmalloc(n * sizeof *cs);
    for (uint32_t p = 0; p < gm->context_tokens; p++)
        rope_table(cs + (uint64_t)p * dims, p, dims, freqs);
    for (uint64_t i = 0; magnitude != 1.0f && i < n; i++)
        cs[i] *= magnitude;
    int rc = upload_floats(gm, cs, n, out, e);
    free(cs);
    return rc;
}

static int load_ropes(struct gpu_model *gm, const struct model *m, struct err *e)
{
    const struct model_config *c = &gm->c;
    const float *factors = image_vec(m, image_global(m, SLOT_ROPE_FACTORS));
    double *freqs = xmalloc((c->rope_dims / 2 + 1) * sizeof *freqs);
    rope_global_freqs(c, factors, freqs);
    int rc = load_rope(gm, freqs, c->rope.magnitude, &gm->cs_global, e);
    if (rc == 0 && c->sliding_window) {
        rope_freqs(freqs, c->rope_dims, c->rope_base_local, 1.0f, factors);
        rc = load_rope(gm, freqs, 1.0f, &gm->cs_local, e);
    }
    free(freqs);
    return rc;
}

int gpu_weights_load(struct gpu_model *gm, const struct model *m, struct err *e)
{
    gm->layers = xcalloc(gm->c.n_layers, sizeof *gm->layers);
    int rc = gm->vocab ? upload_one(gm, m, image_global(m, SLOT_EMBED), &gm->embed, e) : 0;
    gm->head = gm->embed;
    if (rc == 0 && gm->vocab && !gm->c.tied) {
        gm->head = (struct gpu_matrix){0};
        rc = upload_one(gm, m, image_global(m, SLOT_OUTPUT), &gm->head, e);
    }
    if (rc == 0)
        rc = upload_floats(gm, image_vec(m, image_global(m, SLOT_OUT_NORM)), gm->c.d_model,
                           &gm->out_norm, e);
    if (rc == 0)
        rc = load_ropes(gm, m, e);
    for (uint32_t l = gm->part.layer0; l < gm->part.layer1 && rc == 0; l++)
        rc = load_layer(gm, m, l, e);
    return rc;
}
