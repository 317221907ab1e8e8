#include "worker/model/config.h"
#include "kernels/ops.h"
#include "worker/model/source.h"

#include <errno.h>
#include <math.h>

static const char bad[] = "the model's %s is not usable: %u";

static int check_moe(const struct model_config *c, struct err *e)
{
    const struct model_moe *m = &c->moe;
    if (!m->experts)
        return 0;
    if (m->experts > MODEL_EXPERTS_MAX)
        return err_set(e, EINVAL, bad, "number of experts", m->experts);
    if (m->used < 1 || m->used > m->experts || m->used > MODEL_TOP_MAX)
        return err_set(e, EINVAL, bad, "number of experts of a token", m->used);
    if (m->d_expert < 16 || m->d_expert > 1u << 20 || m->d_expert % 16)
        return err_set(e, EINVAL, bad, "size of an expert (a multiple of 16)", m->d_expert);
    if (c->d_model % 16)
        return err_set(e, EINVAL, bad, "embedding length (of 16 with experts)", c->d_model);
    if (m->d_shared && (m->d_shared < 16 || m->d_shared > 1u << 20))
        return err_set(e, EINVAL, bad, "size of the shared experts", m->d_shared);
    if (m->groups < 1 || m->groups > 64 || m->experts % m->groups || m->groups_used < 1 ||
        m->groups_used > m->groups || m->used > m->experts / m->groups * m->groups_used)
        return err_set(e, EINVAL, bad, "grouping of experts", m->groups);
    if (m->top2 && m->experts / m->groups < 2)
        return err_set(e, EINVAL, bad, "grouping of experts", m->groups);
    if (!isfinite(m->scale) || !(m->scale > 0))
        return err_set(e, EINVAL, "the model's scale of experts is not usable");
    return 0;
}

static int check_mla(const struct model_config *c, struct err *e)
{
    const struct model_mla *m = &c->mla;
    if (!m->rank)
        return 0;
    if (m->rank < 16 || m->rank > HEAD_DIM_MAX || m->rank % 16 || c->rope_dims % 16)
        return err_set(e, EINVAL, bad, "KV latent (multiples of 16 up to 1024)", m->rank);
    if (m->q_rank && (m->q_rank < 16 || m->q_rank > 65536))
        return err_set(e, EINVAL, bad, "query latent", m->q_rank);
    if (m->nope < 1 || m->nope > HEAD_DIM_MAX || m->v < 1 || m->v > HEAD_DIM_MAX || m->v % 16)
        return err_set(e, EINVAL, bad, "head size", m->nope);
    if (c->n_kv_heads != 1 || c->head_dim != m->rank + c->rope_dims)
        return err_set(e, EINVAL, bad, "latent layout", c->head_dim);
    return 0;
}

static int check_constants(const struct model_config *c, struct err *e)
{
    const struct model_rope *r = &c->rope;
    bool shaped = r->scaling == MODEL_ROPE_LLAMA3 || r->scaling == MODEL_ROPE_YARN;
    if (!(c->norm_eps > 0 && c->norm_eps < 1) || !(c->rope_base >= 1) ||
        !(c->rope_base_local >= 1) || !isfinite(c->rope_base + c->rope_base_local) ||
        !isfinite(c->embed_scale) || !isfinite(c->attn_scale))
        return err_set(e, EINVAL,
                       "a constant (epsilon, rope base or scale) of the model is not usable");
    if (r->scaling > MODEL_ROPE_YARN || !(r->factor > 0) || !isfinite(r->factor) ||
        !isfinite(r->magnitude) ||
        (shaped && (r->original < 1 || !(r->low > 0) || !(r->high > r->low) || !isfinite(r->high))))
        return err_set(e, EINVAL, "the model's rope scaling is not usable");
    if (shaped && !(c->rope_base > 1))
        return err_set(e, EINVAL, "the model's rope base is not usable with its scaling");
    return 0;
}

int config_check(const struct model_config *c, struct err *e)
{
    if (c->arch < MODEL_LLAMA || c->arch > MODEL_DEEPSEEK)
        return err_set(e, EINVAL, bad, "architecture", (uint32_t)c->arch);
    if (c->n_layers < 1 || c->n_layers > MODEL_LAYERS_MAX)
        return err_set(e, EINVAL, bad, "number of layers", c->n_layers);
    if (c->d_model < 16 || c->d_model > 65536)
        return err_set(e, EINVAL, bad, "embedding length", c->d_model);
    if (c->d_ff < 16 || c->d_ff > 1u << 20)
        return err_set(e, EINVAL, bad, "feed-forward length", c->d_ff);
    if (c->n_heads < 1 || c->n_heads > 1024)
        return err_set(e, EINVAL, bad, "number of heads", c->n_heads);
    if (c->n_kv_heads < 1 || c->n_kv_heads > c->n_heads || c->n_heads % c->n_kv_heads)
        return err_set(e, EINVAL, bad, "number of KV heads", c->n_kv_heads);
    if (c->head_dim < 16 || c->head_dim > HEAD_DIM_MAX || c->head_dim % 16)
        return err_set(e, EINVAL, bad, "head size (a multiple of 16 up to 1024)", c->head_dim);
    if (c->rope_dims < 2 || c->rope_dims > c->head_dim || c->rope_dims % 2)
        return err_set(e, EINVAL, bad, "number of rotary dimensions", c->rope_dims);
    if (c->vocab < 2 || c->vocab > 1u << 22)
        return err_set(e, EINVAL, bad, "vocabulary size", c->vocab);
    if (c->context_tokens < 1 || c->context_tokens > 1u << 24)
        return err_set(e, EINVAL, bad, "context length", c->context_tokens);
    int rc = check_constants(c, e);
    rc = rc ? rc : check_moe(c, e);
    return rc ? rc : check_mla(c, e);
}

void config_arch_defaults(struct model_config *c)
{
    bool gemma = c->arch == MODEL_GEMMA3;
    c->embed_scale = 1;
    c->rope_base = gemma || c->arch == MODEL_MIXTRAL ? 1e6f : 1e4f;
    c->rope_base_local = 1e4f;
    c->rope = (struct model_rope){.factor = 1, .magnitude = 1};
    c->rope_neox = c->arch != MODEL_DEEPSEEK;
    c->qk_norm = gemma || c->arch == MODEL_QWEN3 || c->arch == MODEL_QWEN3_MOE;
    c->post_norm = c->gelu = gemma;
    c->add_bos = gemma;
    c->qkv_bias = c->arch == MODEL_QWEN2;
    c->moe.groups = c->moe.groups_used = 1;
    c->moe.scale = 1;
    c->moe.normalise = c->arch == MODEL_MIXTRAL || c->arch == MODEL_QWEN3_MOE;
    c->bos = c->eos = c->eot = MODEL_NO_TOKEN;
}

static double yarn_magnitude(double factor, double mscale)
{
    return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}

void config_yarn(struct model_config *c, double attention_factor, double mscale, double all_dim)
{
    double factor = (double)c->rope.factor, m = yarn_magnitude(factor, 1);
    bool both = mscale != 0 && all_dim != 0;
    if (both)
        m = yarn_magnitude(factor, mscale) / yarn_magnitude(factor, all_dim);
    c->rope.magnitude = (float)(attention_factor > 0 ? attention_factor : m);
    if (c->mla.rank && all_dim != 0)
        c->attn_scale = (float)((double)c->attn_scale * pow(yarn_magnitude(factor, all_dim), 2));
}

int model_config_read(const char *path, struct model_config *out, struct err *e)
{
    struct source *s;
    int rc = source_open(path, &s, e);
    if (rc < 0)
        return rc;
    *out = *source_config(s);
    source_free(s);
    return 0;
}

static bool bit(const uint8_t *bits, uint32_t i)
{
    return bits[i / 8] >> i % 8 & 1;
}

bool model_layer_is_local(const struct model_config *c, uint32_t layer)
{
    return c->sliding_window > 0 && bit(c->local, layer);
}

bool model_layer_has_experts(const struct model_config *c, uint32_t layer)
{
    return c->moe.experts > 0 && !bit(c->dense, layer);
}
