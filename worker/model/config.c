#include "worker/model/config.h"
#include "kernels/ops.h"

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

static int read_arch(struct gguf *g, struct model_config *c, const char **name, struct err *e)
{
    struct str arch;
    if (gguf_str(g, "general.architecture", &arch) < 0)
        return err_set(e, EINVAL, "the model file does not say its architecture");
    if (str_eq_c(arch, "llama")) {
        c->arch = MODEL_LLAMA;
        *name = "llama";
    } else if (str_eq_c(arch, "gemma3")) {
        c->arch = MODEL_GEMMA3;
        *name = "gemma3";
    } else {
        return err_set(e, EINVAL,
                       "architecture \"" STR_FMT "\" is not supported: llama and gemma3 are",
                       (int)(arch.n < 64 ? arch.n : 64), arch.p);
    }
    return 0;
}

static void read_rope(struct keys *k, struct model_config *c)
{
    char key[128];
    struct str type = {0};
    bool scaled = gguf_str(k->g, key_name(k, "rope.scaling.type", key), &type) == 0 &&
                  !str_eq_c(type, "none");
    c->rope_dims = c->head_dim;
    c->rope_base = c->arch == MODEL_GEMMA3 ? 1e6f : 1e4f;
    c->rope_base_local = 1e4f;
    c->rope_scale = 1;
    get_u32(k, "rope.dimension_count", OPTIONAL, &c->rope_dims);
    get_f32(k, "rope.freq_base", OPTIONAL, &c->rope_base);
    get_f32(k, "rope.freq_base_swa", OPTIONAL, &c->rope_base_local);
    if (scaled && k->rc == 0 && !str_eq_c(type, "linear"))
        k->rc = err_set(k->e, EINVAL, "rope scaling \"" STR_FMT "\" is not supported",
                        (int)(type.n < 32 ? type.n : 32), type.p);
    if (scaled)
        get_f32(k, "rope.scaling.factor", REQUIRED, &c->rope_scale);
    if (c->arch == MODEL_LLAMA)
        c->rope_base_local = c->rope_base;
}

static void read_shape(struct keys *k, struct model_config *c)
{
    get_u32(k, "block_count", REQUIRED, &c->n_layers);
    get_u32(k, "embedding_length", REQUIRED, &c->d_model);
    get_u32(k, "feed_forward_length", REQUIRED, &c->d_ff);
    get_u32(k, "context_length", REQUIRED, &c->context_tokens);
    get_u32(k, "attention.head_count", REQUIRED, &c->n_heads);
    c->n_kv_heads = c->n_heads;
    get_u32(k, "attention.head_count_kv", OPTIONAL, &c->n_kv_heads);
    c->head_dim = c->n_heads ? c->d_model / c->n_heads : 0;
    get_u32(k, "attention.key_length", OPTIONAL, &c->head_dim);
    uint32_t value_dim = c->head_dim;
    get_u32(k, "attention.value_length", OPTIONAL, &value_dim);
    get_f32(k, "attention.layer_norm_rms_epsilon", REQUIRED, &c->norm_eps);
    if (k->rc == 0 && value_dim != c->head_dim)
        k->rc = err_set(k->e, EINVAL, "keys of %u and values of %u dimensions are not supported",
                        c->head_dim, value_dim);
}

static void arch_rules(struct keys *k, struct model_config *c)
{
    c->embed_scale = 1;
    c->global_every = 1;
    if (c->head_dim)
        c->attn_scale = (float)(1.0 / sqrt((double)c->head_dim));
    if (c->arch != MODEL_GEMMA3)
        return;
    c->embed_scale = sqrtf((float)c->d_model);
    c->rope_neox = c->qk_norm = c->post_norm = c->gelu = 1;
    get_u32(k, "attention.sliding_window", OPTIONAL, &c->sliding_window);
    c->global_every = c->sliding_window ? 6 : 1;
    if (c->n_layers == 62 && c->n_heads) /* the 27B model alone scales by d_model / heads */
        c->attn_scale = (float)(1.0 / sqrt((double)c->d_model / c->n_heads));
}

int config_check(const struct model_config *c, struct err *e)
{
    static const char bad[] = "the model file's %s is not usable: %u";
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
        return err_set(e, EINVAL, bad, "head size (a multiple of 16 up to 512)", c->head_dim);
    if (c->rope_dims < 2 || c->rope_dims > c->head_dim || c->rope_dims % 2)
        return err_set(e, EINVAL, bad, "number of rotary dimensions", c->rope_dims);
    if (c->vocab < 2 || c->vocab > 1u << 22)
        return err_set(e, EINVAL, bad, "vocabulary size", c->vocab);
    if (c->context_tokens < 1 || c->context_tokens > 1u << 24)
        return err_set(e, EINVAL, bad, "context length", c->context_tokens);
    if (c->global_every < 1)
        return err_set(e, EINVAL, bad, "pattern of global layers", c->global_every);
    if (!(c->norm_eps > 0 && c->norm_eps < 1) || !(c->rope_base >= 1) ||
        !(c->rope_base_local >= 1) || !(c->rope_scale > 0) ||
        !isfinite(c->rope_base + c->rope_base_local + c->rope_scale) || !isfinite(c->embed_scale) ||
        !isfinite(c->attn_scale))
        return err_set(e, EINVAL,
                       "a constant (epsilon, rope base or scale) of the model is not usable");
    return 0;
}

int config_from_gguf(struct gguf *g, struct model_config *out, struct err *e)
{
    struct model_config c;
    memset(&c, 0, sizeof c); /* padding too: the image's checksum covers it */
    struct keys k = {.g = g, .e = e};
    int rc = read_arch(g, &c, &k.arch, e);
    if (rc < 0)
        return rc;
    read_shape(&k, &c);
    read_rope(&k, &c);
    arch_rules(&k, &c);
    if (k.rc < 0)
        return k.rc;
    const struct gguf_tensor *embd = gguf_tensor(g, "token_embd.weight");
    if (!embd)
        return err_set(e, EINVAL, "the model file lacks the tensor token_embd.weight");
    c.vocab = embd->ne[1] <= UINT32_MAX ? (uint32_t)embd->ne[1] : 0;
    c.tied = gguf_tensor(g, "output.weight") == NULL;
    rc = config_check(&c, e);
    if (rc < 0)
        return rc;
    c.bos = token_id(g, "tokenizer.ggml.bos_token_id", c.vocab);
    c.eos = token_id(g, "tokenizer.ggml.eos_token_id", c.vocab);
    c.eot = find_eot(g, c.vocab);
    bool add_bos = c.arch == MODEL_GEMMA3;
    rc = gguf_bool(g, "tokenizer.ggml.add_bos_token", &add_bos);
    if (rc == -EINVAL)
        return err_set(e, EINVAL,
                       "tokenizer.ggml.add_bos_token in the model file is not a boolean");
    c.add_bos = add_bos;
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

int model_config_read(const char *gguf_path, struct model_config *out, struct err *e)
{
    struct gguf *g;
    int rc = gguf_open(gguf_path, &g, e);
    if (rc < 0)
        return rc;
    rc = config_from_gguf(g, out, e);
    if (rc < 0)
        rc = err_wrap(e, "%s", gguf_path);
    gguf_free(g);
    return rc;
}

bool model_layer_is_local(const struct model_config *c, uint32_t layer)
{
    return c->sliding_window > 0 && (layer + 1) % c->global_every != 0;
}
