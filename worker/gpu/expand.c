/* Latent attention of long chunks of prompts, as DeepSeek and FlashMLA have it: keys and values of
 * every head are made of the context's latents again, a piece of the context at a time, and the
 * chunk's rows attend over those. Short chunks stay in the latent space like single tokens. */
#include "worker/gpu/gpu_model_int.h"

/* Products of a token of the context, head and row: in the latent space rank + rope for the score
 * and rank for the sum, with keys and values nope + rope and v, but rank x (nope + v) first to make
 * them, whatever the rows are. */
bool gpu_expands(const struct gpu_model *gm, uint32_t rows)
{
    const struct model_mla *m = &gm->c.mla;
    uint64_t there = 2ull * m->rank, here = (uint64_t)m->nope + m->v;
    return m->rank && gpu_mla_expands(m->nope, gm->c.rope_dims, m->v) && there > here &&
           rows * (there - here) > m->rank * here;
}

uint32_t gpu_expand_piece(const struct gpu_model *gm)
{
    uint32_t most = gm->o.expand_tokens ? gm->o.expand_tokens : GPU_EXPAND_TOKENS;
    uint32_t context = (gm->context_tokens + ATTN_TOKENS - 1) / ATTN_TOKENS * ATTN_TOKENS;
    if (!gpu_expands(gm, gm->o.max_rows))
        return 0;
    return most < context ? most : context;
}

int gpu_expand_prepare(struct gpu_model *gm, const struct gpu_plan *p,
                       const struct mla_prepare_args *all, struct err *e)
{
    struct mla_prepare_args a = *all;
    size_t from = p->flat_rows, heads = gm->heads, width = gm->c.head_dim;
    a.q += from * heads * (a.nope + a.rope);
    a.kv_a += from * width;
    a.positions += from;
    a.sequences += from;
    a.q_out += from * heads * width;
    a.q_nope = NULL;
    a.expanded = true;
    return gpu_mla_prepare(gm->g, &a, p->rows - p->flat_rows, e);
}

/* One head's keys or values of `n` latents. */
static int heads_of(struct gpu_model *gm, const struct gpu_matrix *up, bool values, uint32_t n,
                    struct err *e)
{
    const struct model_mla *m = &gm->c.mla;
    uint32_t width = values ? m->v : m->nope;
    struct head_gemm_args a = {.a = GPU_AS(const uint16_t, gm->w.ex_latent),
                               .b = GPU_AS(const uint16_t, up->at),
                               .out = GPU_AS(uint16_t, values ? gm->w.ex_v : gm->w.ex_k),
                               .m = n,
                               .n = width,
                               .k = m->rank,
                               .lda = m->rank,
                               .ldo = gm->heads * width,
                               .o_head = width,
                               .f16 = gm->kv.dtype != MODEL_KV_BF16,
                               .turned = !values,
                               .scale = 1};
    return gpu_head_gemm(gm->g, &a, gm->heads, e);
}

static int piece(struct gpu_model *gm, const struct gpu_plan *p, const struct gpu_layer *l,
                 const struct kv_view *kv, const struct gpu_expand *x, uint32_t first,
                 struct err *e)
{
    const struct model_config *c = &gm->c;
    uint32_t most = gpu_expand_piece(gm), n = x->end - first < most ? x->end - first : most;
    size_t q_at = (size_t)p->flat_rows * gm->heads * c->head_dim;
    struct mla_gather_args g = {.kv = *kv,
                                .to_latent = GPU_AS(uint16_t, gm->w.ex_latent),
                                .to_rope = GPU_AS(uint16_t, gm->w.ex_rope),
                                .sequence = x->sequence,
                                .first = first,
                                .tokens = n,
                                .latent = c->mla.rank,
                                .rope = c->rope_dims};
    struct mla_prefill_args a = {.q = GPU_AS(const uint16_t, gm->w.q) + q_at,
                                 .k = GPU_AS(const uint16_t, gm->w.ex_k),
                                 .rope = GPU_AS(const uint16_t, gm->w.ex_rope),
                                 .v = GPU_AS(const uint16_t, gm->w.ex_v),
                                 .out = GPU_AS(uint16_t, gm->w.values),
                                 .state = GPU_AS(float, gm->w.ex_state),
                                 .tiles = GPU_AS(const struct attn_tile, gm->w.tiles) + x->tile,
                                 .heads = gm->heads,
                                 .first_row = p->flat_rows,
                                 .first = first,
                                 .tokens = n,
                                 .resume = first > 0,
                                 .last = first + n == x->end};
    int rc = gpu_mla_gather(gm->g, &g, e);
    if (rc == 0)
        rc = heads_of(gm, &l->k_up, false, n, e);
    if (rc == 0)
        rc = heads_of(gm, &l->v_up, true, n, e);
    return rc == 0 ? gpu_mla_prefill(gm->g, &a, x->tiles, c->mla.nope, c->rope_dims, c->mla.v,
                                     gm->kv.dtype == MODEL_KV_BF16, e)
                   : rc;
}

int gpu_expand_attend(struct gpu_model *gm, const struct gpu_plan *p, const struct gpu_layer *l,
                      const struct kv_view *kv, struct err *e)
{
    int rc = 0;
    for (uint32_t i = 0; i < p->expands; i++)
        for (uint32_t at = 0; at < gm->expands[i].end && rc == 0; at += gpu_expand_piece(gm))
            rc = piece(gm, p, l, kv, &gm->expands[i], at, e);
    return rc;
}
