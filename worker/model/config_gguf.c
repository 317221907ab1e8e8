/* A model's config from the metadata of a GGUF file (keys: ggml docs/gguf.md, llama.cpp's
 * converters). */
#include "kernels/ops.h"
#include "worker/model/config.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>

/* A reader of "<arch>.<suffix>" keys that stops at the first error. */
struct keys {
    struct gguf *g;
    const char *arch;
    struct err *e;
    int rc;
};

enum { REQUIRED, OPTIONAL };

static const char *key_name(const struct keys *k, const char *suffix, char out[128])
{
    snprintf(out, 128, "%s.%s", k->arch, suffix);
    return out;
}

static void get_u32(struct keys *k, const char *suffix, int need, uint32_t *out)
{
    char key[128];
    uint64_t v = 0;
    if (k->rc < 0)
        return;
    int rc = gguf_u64(k->g, key_name(k, suffix, key), &v);
    if (rc == -ENOENT && need == OPTIONAL)
        return;
    if (rc == -ENOENT)
        k->rc = err_set(k->e, EINVAL, "the model file lacks %s", key);
    else if (rc < 0 || v > UINT32_MAX)
        k->rc =
            err_set(k->e, EINVAL, "%s in the model file is not one number of a usable size", key);
    else
        *out = (uint32_t)v;
}

static void get_f32(struct keys *k, const char *suffix, int need, float *out)
{
    char key[128];
    double v = 0;
    if (k->rc < 0)
        return;
    int rc = gguf_f64(k->g, key_name(k, suffix, key), &v);
    if (rc == -ENOENT && need == OPTIONAL)
        return;
    if (rc == -ENOENT)
        k->rc = err_set(k->e, EINVAL, "the model file lacks %s", key);
    else if (rc < 0 || !isfinite(v) || fabs(v) > 1e30)
        k->rc = err_set(k->e, EINVAL, "%s in the model file is not a usable number", key);
    else
        *out = (float)v;
}

static uint32_t token_id(const struct gguf *g, const char *key, uint32_t vocab)
{
    uint64_t v;
    return gguf_u64(g, key, &v) == 0 && v < vocab ? (uint32_t)v : MODEL_NO_TOKEN;
}

/* Files of before eot_token_id name the end of a turn only in the vocabulary. */
static uint32_t find_eot(struct gguf *g, uint32_t vocab)
{
    static const char *const names[] = {"<|im_end|>", "<end_of_turn>", "<|eot_id|>", "<|end|>"};
    uint32_t id = token_id(g, "tokenizer.ggml.eot_token_id", vocab);
    const struct str *tokens;
    size_t n;
    if (id != MODEL_NO_TOKEN || gguf_strs(g, "tokenizer.ggml.tokens", &tokens, &n) < 0)
        return id;
    for (size_t i = 0; i < n && i < vocab; i++)
        for (size_t j = 0; j < sizeof names / sizeof *names; j++)
            if (str_eq_c(tokens[i], names[j]))
                return (uint32_t)i;
    return MODEL_NO_TOKEN;
}

static const struct {
    const char *name;
    enum model_arch arch;
} archs[] = {
    {"llama", MODEL_LLAMA}, {"gemma3", MODEL_GEMMA3},      {"qwen2", MODEL_QWEN2},
    {"qwen3", MODEL_QWEN3}, {"qwen3moe", MODEL_QWEN3_MOE}, {"deepseek2", MODEL_DEEPSEEK},
};

static int read_arch(struct keys *k, struct model_config *c)
{
    struct str arch;
    uint64_t experts = 0;
    if (gguf_str(k->g, "general.architecture", &arch) < 0)
        return err_set(k->e, EINVAL, "the model file does not say its architecture");
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++)
        if (str_eq_c(arch, archs[i].name)) {
            k->arch = archs[i].name;
            c->arch = archs[i].arch;
        }
    if (!k->arch)
        return err_set(k->e, EINVAL,
                       "architecture \"" STR_FMT "\" is not supported: llama, gemma3, qwen2, "
                       "qwen3, qwen3moe and deepseek2 are",
                       (int)(arch.n < 64 ? arch.n : 64), arch.p);
    if (c->arch == MODEL_LLAMA && gguf_u64(k->g, "llama.expert_count", &experts) == 0 && experts)
        c->arch = MODEL_MIXTRAL;
    config_arch_defaults(c);
    c->rope_neox = c->rope_neox && strcmp(k->arch, "llama") != 0; /* converters permute its rows */
    return 0;
}

static void read_scaling(struct keys *k, struct model_config *c, struct str type)
{
    float attention = 0, log_mul = 0;
    c->rope.low = 1; /* YaRN's slow and fast turns */
    c->rope.high = 32;
    get_f32(k, "rope.scaling.factor", REQUIRED, &c->rope.factor);
    if (str_eq_c(type, "linear")) {
        c->rope.scaling = MODEL_ROPE_LINEAR;
        return;
    }
    if (k->rc == 0 && !str_eq_c(type, "yarn"))
        k->rc = err_set(k->e, EINVAL, "rope scaling \"" STR_FMT "\" is not supported",
                        (int)(type.n < 32 ? type.n : 32), type.p);
    c->rope.scaling = MODEL_ROPE_YARN;
    get_u32(k, "rope.scaling.original_context_length", REQUIRED, &c->rope.original);
    get_f32(k, "rope.scaling.attn_factor", OPTIONAL, &attention);
    get_f32(k, "rope.scaling.yarn_beta_fast", OPTIONAL, &c->rope.high);
    get_f32(k, "rope.scaling.yarn_beta_slow", OPTIONAL, &c->rope.low);
    get_f32(k, "rope.scaling.yarn_log_multiplier", OPTIONAL, &log_mul);
    double all_dim = (double)log_mul * 10; /* written as 0.1 x mscale_all_dim */
    if (k->rc == 0)
        config_yarn(c, (double)attention, all_dim, all_dim);
}

static void read_rope(struct keys *k, struct model_config *c)
{
    char key[128];
    struct str type = {0};
    bool scaled = gguf_str(k->g, key_name(k, "rope.scaling.type", key), &type) == 0 &&
                  !str_eq_c(type, "none");
    c->rope_base = c->arch == MODEL_GEMMA3 ? 1e6f : 1e4f;
    if (!c->mla.rank)
        c->rope_dims = c->head_dim;
    get_u32(k, "rope.dimension_count", OPTIONAL, &c->rope_dims);
    get_f32(k, "rope.freq_base", OPTIONAL, &c->rope_base);
    get_f32(k, "rope.freq_base_swa", OPTIONAL, &c->rope_base_local);
    if (scaled)
        read_scaling(k, c, type);
    if (c->arch != MODEL_GEMMA3)
        c->rope_base_local = c->rope_base;
}

/* Keys and values of a latent-attention model: older files give the sizes of plain heads, newer
 * ones those of the latent and, as ..._mla, those of heads. */
static void read_mla(struct keys *k, struct model_config *c)
{
    uint32_t key = 0, value = 0;
    get_u32(k, "attention.kv_lora_rank", REQUIRED, &c->mla.rank);
    get_u32(k, "attention.q_lora_rank", OPTIONAL, &c->mla.q_rank);
    get_u32(k, "attention.key_length", REQUIRED, &key);
    get_u32(k, "attention.value_length", REQUIRED, &value);
    get_u32(k, "attention.key_length_mla", OPTIONAL, &key);
    get_u32(k, "attention.value_length_mla", OPTIONAL, &value);
    get_u32(k, "rope.dimension_count", REQUIRED, &c->rope_dims);
    if (k->rc < 0)
        return;
    if (key <= c->rope_dims || key > 4096 || c->mla.rank > 4096 || c->rope_dims > 4096) {
        k->rc = err_set(k->e, EINVAL, "heads of %u with %u rotary dimensions are not usable", key,
                        c->rope_dims);
        return;
    }
    c->mla.nope = key - c->rope_dims;
    c->mla.v = value;
    c->n_kv_heads = 1;
    c->head_dim = c->mla.rank + c->rope_dims;
    c->attn_scale = (float)(1.0 / sqrt((double)key));
}

static void read_experts(struct keys *k, struct model_config *c)
{
    struct model_moe *m = &c->moe;
    uint32_t shared = 0, dense = 0, gating = 0;
    char key[128];
    bool normalise = m->normalise;
    get_u32(k, "expert_count", OPTIONAL, &m->experts);
    if (k->rc < 0 || !m->experts)
        return;
    m->d_expert = c->d_ff;
    get_u32(k, "expert_used_count", REQUIRED, &m->used);
    get_u32(k, "expert_feed_forward_length", OPTIONAL, &m->d_expert);
    get_u32(k, "expert_shared_count", OPTIONAL, &shared);
    get_u32(k, "leading_dense_block_count", OPTIONAL, &dense);
    get_u32(k, "expert_group_count", OPTIONAL, &m->groups);
    get_u32(k, "expert_group_used_count", OPTIONAL, &m->groups_used);
    get_u32(k, "expert_gating_func", OPTIONAL, &gating);
    get_f32(k, "expert_weights_scale", OPTIONAL, &m->scale);
    if (gguf_bool(k->g, key_name(k, "expert_weights_norm", key), &normalise) == -EINVAL)
        k->rc = err_set(k->e, EINVAL, "%s in the model file is not a boolean", key);
    if (k->rc == 0 && (gating > 2 || shared > 64 || m->d_expert > 1u << 20))
        k->rc = err_set(k->e, EINVAL, "the model's experts (gating %u, %u shared) aren't supported",
                        gating, shared);
    m->groups = m->groups ? m->groups : 1;
    m->groups_used = m->groups_used ? m->groups_used : 1;
    m->normalise = normalise;
    m->sigmoid = m->top2 = gating == 2;
    m->d_shared = shared * m->d_expert;
    for (uint32_t l = 0; l < dense && l < MODEL_LAYERS_MAX; l++)
        config_set_bit(c->dense, l);
}

static void read_shape(struct keys *k, struct model_config *c)
{
    get_u32(k, "block_count", REQUIRED, &c->n_layers);
    get_u32(k, "embedding_length", REQUIRED, &c->d_model);
    get_u32(k, "feed_forward_length", REQUIRED, &c->d_ff);
    get_u32(k, "context_length", REQUIRED, &c->context_tokens);
    get_u32(k, "attention.head_count", REQUIRED, &c->n_heads);
    get_f32(k, "attention.layer_norm_rms_epsilon", REQUIRED, &c->norm_eps);
    if (c->arch == MODEL_DEEPSEEK) {
        read_mla(k, c);
        return;
    }
    c->n_kv_heads = c->n_heads;
    get_u32(k, "attention.head_count_kv", OPTIONAL, &c->n_kv_heads);
    c->head_dim = c->n_heads ? c->d_model / c->n_heads : 0;
    get_u32(k, "attention.key_length", OPTIONAL, &c->head_dim);
    uint32_t value_dim = c->head_dim;
    get_u32(k, "attention.value_length", OPTIONAL, &value_dim);
    if (k->rc == 0 && value_dim != c->head_dim)
        k->rc = err_set(k->e, EINVAL, "keys of %u and values of %u dimensions are not supported",
                        c->head_dim, value_dim);
    if (c->head_dim)
        c->attn_scale = (float)(1.0 / sqrt((double)c->head_dim));
}

static void gemma_rules(struct keys *k, struct model_config *c)
{
    c->embed_scale = sqrtf((float)c->d_model);
    get_u32(k, "attention.sliding_window", OPTIONAL, &c->sliding_window);
    for (uint32_t l = 0; l < MODEL_LAYERS_MAX; l++)
        if ((l + 1) % 6)
            config_set_bit(c->local, l);
    if (c->n_layers == 62 && c->n_heads) /* the 27B model alone scales by d_model / heads */
        c->attn_scale = (float)(1.0 / sqrt((double)c->d_model / c->n_heads));
}

static int read_tokens(struct gguf *g, struct model_config *c, struct err *e)
{
    bool add_bos = c->add_bos;
    c->bos = token_id(g, "tokenizer.ggml.bos_token_id", c->vocab);
    c->eos = token_id(g, "tokenizer.ggml.eos_token_id", c->vocab);
    c->eot = find_eot(g, c->vocab);
    if (gguf_bool(g, "tokenizer.ggml.add_bos_token", &add_bos) == -EINVAL)
        return err_set(e, EINVAL,
                       "tokenizer.ggml.add_bos_token in the model file is not a boolean");
    c->add_bos = add_bos;
    return 0;
}

int config_from_gguf(struct gguf *g, struct model_config *out, struct err *e)
{
    struct model_config c;
    memset(&c, 0, sizeof c); /* padding too: the image's checksum covers it */
    struct keys k = {.g = g, .e = e};
    int rc = read_arch(&k, &c);
    if (rc < 0)
        return rc;
    read_shape(&k, &c);
    read_rope(&k, &c);
    read_experts(&k, &c);
    if (c.arch == MODEL_GEMMA3)
        gemma_rules(&k, &c);
    if (k.rc < 0)
        return k.rc;
    const struct gguf_tensor *embd = gguf_tensor(g, "token_embd.weight");
    if (!embd)
        return err_set(e, EINVAL, "the model file lacks the tensor token_embd.weight");
    c.vocab = embd->ne[1] <= UINT32_MAX ? (uint32_t)embd->ne[1] : 0;
    c.tied = gguf_tensor(g, "output.weight") == NULL;
    rc = config_check(&c, e);
    if (rc < 0 || (rc = read_tokens(g, &c, e)) < 0)
        return rc;
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        c.n_params += t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3];
    }
    struct str name;
    if (gguf_str(g, "general.name", &name) == 0)
        snprintf(c.name, sizeof c.name, STR_FMT, (int)(name.n < 63 ? name.n : 63), name.p);
    *out = c;
    return 0;
}
