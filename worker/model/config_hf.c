/* A model's config from config.json, as transformers writes it (4.x: rope_theta and rope_scaling;
 * 5.x: rope_parameters, for Gemma by layer type). What would change the arithmetic and isn't
 * implemented is refused, never ignored. */
#include "kernels/ops.h"
#include "worker/model/config.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define CONFIG_BYTES_MAX (4u << 20)

/* A reader of members that stops at the first error. */
struct hf {
    const json_t *o; /* the text model's object */
    struct err *e;
    int rc;
};

enum { REQUIRED, OPTIONAL };

/* NULL for absent and null. */
static const json_t *member(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    return json_is_null(v) ? NULL : v;
}

static void get_u32(struct hf *h, const char *key, int need, uint32_t *out)
{
    const json_t *v = member(h->o, key);
    if (h->rc < 0 || (!v && need == OPTIONAL))
        return;
    if (!v)
        h->rc = err_set(h->e, EINVAL, "config.json lacks %s", key);
    else if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > UINT32_MAX)
        h->rc = err_set(h->e, EINVAL, "%s in config.json is not a number of a usable size", key);
    else
        *out = (uint32_t)json_integer_value(v);
}

static void get_num_of(struct hf *h, const json_t *o, const char *key, int need, double *out)
{
    const json_t *v = member(o, key);
    if (h->rc < 0 || (!v && need == OPTIONAL))
        return;
    if (!v)
        h->rc = err_set(h->e, EINVAL, "config.json lacks %s", key);
    else if (!json_is_number(v) || !isfinite(json_number_value(v)) ||
             fabs(json_number_value(v)) > 1e30)
        h->rc = err_set(h->e, EINVAL, "%s in config.json is not a usable number", key);
    else
        *out = json_number_value(v);
}

static void get_f32(struct hf *h, const char *key, int need, float *out)
{
    double v = (double)*out;
    get_num_of(h, h->o, key, need, &v);
    *out = (float)v;
}

static bool is_true(const json_t *o, const char *key, bool dflt)
{
    const json_t *v = member(o, key);
    return v ? json_is_true(v) : dflt;
}

static const char *text(const json_t *o, const char *key)
{
    return json_string_value(member(o, key));
}

static const struct {
    const char *type;
    enum model_arch arch;
    bool v3;
} types[] = {
    {"llama", MODEL_LLAMA, false},          {"mistral", MODEL_LLAMA, false},
    {"qwen2", MODEL_QWEN2, false},          {"qwen3", MODEL_QWEN3, false},
    {"gemma3_text", MODEL_GEMMA3, false},   {"gemma3", MODEL_GEMMA3, false},
    {"mixtral", MODEL_MIXTRAL, false},      {"qwen3_moe", MODEL_QWEN3_MOE, false},
    {"deepseek_v2", MODEL_DEEPSEEK, false}, {"deepseek_v3", MODEL_DEEPSEEK, true},
};

static int read_type(struct hf *h, struct model_config *c, bool *v3)
{
    const char *type = text(h->o, "model_type");
    for (size_t i = 0; type && i < sizeof types / sizeof *types; i++)
        if (strcmp(type, types[i].type) == 0) {
            c->arch = types[i].arch;
            *v3 = types[i].v3;
            config_arch_defaults(c);
            const json_t *inner = member(h->o, "text_config"); /* Gemma 3 with its image tower */
            if (inner)
                h->o = inner;
            return 0;
        }
    return err_set(h->e, EINVAL,
                   "model_type \"%.64s\" is not supported: llama, mistral, qwen2, qwen3, gemma3, "
                   "mixtral, qwen3_moe, deepseek_v2 and deepseek_v3 are",
                   type ? type : "");
}

/* What the kernels don't do. */
static void refuse_variants(struct hf *h, const struct model_config *c)
{
    static const char *const off[] = {"attn_logit_softcapping", "final_logit_softcapping",
                                      "use_bidirectional_attention", "mlp_bias"};
    const char *act = text(h->o, "hidden_act");
    if (!act)
        act = text(h->o, "hidden_activation");
    const char *want = c->gelu ? "gelu_pytorch_tanh" : "silu";
    for (size_t i = 0; i < sizeof off / sizeof *off && h->rc == 0; i++) {
        const json_t *v = member(h->o, off[i]);
        if (v && !json_is_false(v))
            h->rc =
                err_set(h->e, EINVAL, "config.json asks for %s, which is not supported", off[i]);
    }
    if (h->rc == 0 && act && strcmp(act, want) != 0)
        h->rc = err_set(h->e, EINVAL, "activation \"%.64s\" is not supported: %s is", act, want);
    if (h->rc == 0 && is_true(h->o, "attention_bias", false))
        h->rc = err_set(h->e, EINVAL, "biases of all of attention's products are not supported");
}

static void read_shape(struct hf *h, struct model_config *c)
{
    double scalar = 0;
    get_u32(h, "num_hidden_layers", REQUIRED, &c->n_layers);
    get_u32(h, "hidden_size", REQUIRED, &c->d_model);
    get_u32(h, "intermediate_size", REQUIRED, &c->d_ff);
    get_u32(h, "num_attention_heads", REQUIRED, &c->n_heads);
    get_u32(h, "vocab_size", REQUIRED, &c->vocab);
    get_f32(h, "rms_norm_eps", REQUIRED, &c->norm_eps);
    c->context_tokens = 2048;
    get_u32(h, "max_position_embeddings", OPTIONAL, &c->context_tokens);
    if (c->arch == MODEL_DEEPSEEK)
        return;
    c->n_kv_heads = c->n_heads;
    get_u32(h, "num_key_value_heads", OPTIONAL, &c->n_kv_heads);
    c->head_dim = c->n_heads ? c->d_model / c->n_heads : 0;
    if (c->arch == MODEL_GEMMA3)
        c->head_dim = 256;
    get_u32(h, "head_dim", OPTIONAL, &c->head_dim);
    c->rope_dims = c->head_dim;
    scalar = c->arch == MODEL_GEMMA3 ? 256 : c->head_dim;
    get_num_of(h, h->o, "query_pre_attn_scalar", OPTIONAL, &scalar);
    c->attn_scale = (float)(1 / sqrt(scalar));
    if (c->arch == MODEL_GEMMA3)
        c->embed_scale = sqrtf((float)c->d_model);
}

static void read_mla(struct hf *h, struct model_config *c)
{
    get_u32(h, "kv_lora_rank", REQUIRED, &c->mla.rank);
    get_u32(h, "q_lora_rank", OPTIONAL, &c->mla.q_rank);
    get_u32(h, "qk_nope_head_dim", REQUIRED, &c->mla.nope);
    get_u32(h, "qk_rope_head_dim", REQUIRED, &c->rope_dims);
    get_u32(h, "v_head_dim", REQUIRED, &c->mla.v);
    if (h->rc == 0 && (c->mla.rank > 4096 || c->rope_dims > 4096 || c->mla.nope > 4096))
        h->rc = err_set(h->e, EINVAL, "the model's latent attention has unusable sizes");
    c->n_kv_heads = 1;
    c->head_dim = c->mla.rank + c->rope_dims;
    c->attn_scale = (float)(1 / sqrt((double)c->mla.nope + c->rope_dims));
    c->rope_neox = !is_true(h->o, "rope_interleave", true);
}

/* ---- experts ---- */

static void dense_layers(struct hf *h, struct model_config *c)
{
    uint32_t first = 0, step = 1;
    size_t i;
    const json_t *v, *only = member(h->o, "mlp_only_layers");
    get_u32(h, "first_k_dense_replace", OPTIONAL, &first);
    get_u32(h, "decoder_sparse_step", OPTIONAL, &step);
    get_u32(h, "moe_layer_freq", OPTIONAL, &step);
    for (uint32_t l = 0; l < MODEL_LAYERS_MAX; l++)
        if (l < first || !step || (c->arch == MODEL_QWEN3_MOE ? l + 1 : l) % step)
            config_set_bit(c->dense, l);
    json_array_foreach ((json_t *)(uintptr_t)only, i, v) {
        json_int_t l = json_is_integer(v) ? json_integer_value(v) : -1;
        if (l >= 0 && l < MODEL_LAYERS_MAX)
            config_set_bit(c->dense, (uint32_t)l);
        else if (h->rc == 0)
            h->rc = err_set(h->e, EINVAL, "mlp_only_layers in config.json names no layer");
    }
}

static void read_routing(struct hf *h, struct model_config *c, bool v3)
{
    struct model_moe *m = &c->moe;
    const char *method = text(h->o, "topk_method"), *score = text(h->o, "scoring_func");
    bool grouped = v3 || (method && strcmp(method, "group_limited_greedy") == 0);
    uint32_t shared = 0;
    get_u32(h, "n_shared_experts", OPTIONAL, &shared);
    m->sigmoid = m->top2 = v3;
    m->normalise = is_true(h->o, "norm_topk_prob", v3) && v3; /* V2's are never normalised */
    m->scale = v3 ? 2.5f : 1.0f;
    get_f32(h, "routed_scaling_factor", OPTIONAL, &m->scale);
    if (grouped) {
        get_u32(h, "n_group", OPTIONAL, &m->groups);
        get_u32(h, "topk_group", OPTIONAL, &m->groups_used);
    }
    if (h->rc == 0 && shared > 64)
        h->rc = err_set(h->e, EINVAL, "%u shared experts are not supported", shared);
    if (h->rc == 0 && score && strcmp(score, v3 ? "sigmoid" : "softmax") != 0)
        h->rc = err_set(h->e, EINVAL, "scoring_func \"%.64s\" is not supported there", score);
    m->d_shared = shared * m->d_expert;
}

static void read_experts(struct hf *h, struct model_config *c, bool v3)
{
    struct model_moe *m = &c->moe;
    if (c->arch != MODEL_MIXTRAL && c->arch != MODEL_QWEN3_MOE && c->arch != MODEL_DEEPSEEK)
        return;
    get_u32(h, "num_local_experts", OPTIONAL, &m->experts);
    get_u32(h, "num_experts", OPTIONAL, &m->experts);
    get_u32(h, "n_routed_experts", OPTIONAL, &m->experts);
    if (h->rc < 0 || !m->experts)
        return;
    m->d_expert = c->d_ff;
    m->used = c->arch == MODEL_MIXTRAL ? 2 : 8;
    get_u32(h, "num_experts_per_tok", OPTIONAL, &m->used);
    get_u32(h, "moe_intermediate_size", OPTIONAL, &m->d_expert);
    if (m->d_expert > 1u << 20 && h->rc == 0)
        h->rc = err_set(h->e, EINVAL, "experts of %u are not supported", m->d_expert);
    if (c->arch == MODEL_QWEN3_MOE)
        m->normalise = is_true(h->o, "norm_topk_prob", false);
    if (c->arch == MODEL_DEEPSEEK)
        read_routing(h, c, v3);
    dense_layers(h, c);
}

/* ---- positions ---- */

static void read_yarn(struct hf *h, const json_t *rope, struct model_config *c)
{
    double fast = 32, slow = 1, attention = 0, mscale = 0, all_dim = 0;
    get_num_of(h, rope, "beta_fast", OPTIONAL, &fast);
    get_num_of(h, rope, "beta_slow", OPTIONAL, &slow);
    get_num_of(h, rope, "attention_factor", OPTIONAL, &attention);
    get_num_of(h, rope, "mscale", OPTIONAL, &mscale);
    get_num_of(h, rope, "mscale_all_dim", OPTIONAL, &all_dim);
    c->rope.scaling = MODEL_ROPE_YARN;
    c->rope.low = (float)slow;
    c->rope.high = (float)fast;
    c->rope.exact = !is_true(rope, "truncate", true);
    config_yarn(c, attention, mscale, all_dim);
    double reach = (double)c->rope.factor * c->rope.original;
    if (reach > c->context_tokens && reach < (double)(1u << 24))
        c->context_tokens = (uint32_t)reach;
}

static void read_llama3(struct hf *h, const json_t *rope, struct model_config *c)
{
    double low = 1, high = 4;
    get_num_of(h, rope, "low_freq_factor", REQUIRED, &low);
    get_num_of(h, rope, "high_freq_factor", REQUIRED, &high);
    c->rope.scaling = MODEL_ROPE_LLAMA3;
    c->rope.low = (float)low;
    c->rope.high = (float)high;
}

/* `rope`: rope_scaling or rope_parameters; says the type and its numbers. */
static void read_scaling(struct hf *h, const json_t *rope, struct model_config *c)
{
    const char *type = text(rope, "rope_type");
    double factor = 1, original = c->context_tokens, partial = 1;
    type = type ? type : text(rope, "type");
    get_num_of(h, rope, "partial_rotary_factor", OPTIONAL, &partial);
    if (partial != 1 && h->rc == 0)
        h->rc = err_set(h->e, EINVAL, "partial rotary embeddings are not supported");
    if (!type || strcmp(type, "default") == 0)
        return;
    get_num_of(h, h->o, "original_max_position_embeddings", OPTIONAL, &original);
    get_num_of(h, rope, "original_max_position_embeddings", OPTIONAL, &original);
    if (h->rc == 0 && !(original >= 1 && original < (double)(1u << 24)))
        h->rc = err_set(h->e, EINVAL, "original_max_position_embeddings is not usable");
    if (h->rc < 0)
        return;
    c->rope.original = (uint32_t)original;
    factor = c->context_tokens / original;
    get_num_of(h, rope, "factor", strcmp(type, "yarn") ? REQUIRED : OPTIONAL, &factor);
    c->rope.factor = (float)factor;
    if (strcmp(type, "linear") == 0)
        c->rope.scaling = MODEL_ROPE_LINEAR;
    else if (strcmp(type, "llama3") == 0)
        read_llama3(h, rope, c);
    else if (strcmp(type, "yarn") == 0)
        read_yarn(h, rope, c);
    else if (h->rc == 0)
        h->rc = err_set(h->e, EINVAL, "rope scaling \"%.64s\" is not supported", type);
}

static void read_rope(struct hf *h, struct model_config *c)
{
    const json_t *rope = member(h->o, "rope_parameters"), *local = NULL;
    const json_t *scaling = member(h->o, "rope_scaling");
    double base = (double)c->rope_base, base_local = (double)c->rope_base_local;
    get_num_of(h, h->o, "rope_theta", OPTIONAL, &base);
    get_num_of(h, h->o, "rope_local_base_freq", OPTIONAL, &base_local);
    if (member(rope, "full_attention")) {
        local = member(rope, "sliding_attention");
        rope = member(rope, "full_attention");
    }
    get_num_of(h, rope, "rope_theta", OPTIONAL, &base);
    get_num_of(h, local, "rope_theta", OPTIONAL, &base_local);
    c->rope_base = (float)base;
    c->rope_base_local = c->arch == MODEL_GEMMA3 ? (float)base_local : (float)base;
    if (h->rc == 0)
        read_scaling(h, scaling ? scaling : rope, c);
}

/* Which layers see a window only. */
static void read_windows(struct hf *h, struct model_config *c)
{
    const json_t *list = member(h->o, "layer_types"), *v;
    uint32_t pattern = 6, from = c->n_layers;
    size_t i;
    bool off =
        c->arch != MODEL_GEMMA3 &&
        !is_true(h->o, "use_sliding_window", c->arch == MODEL_LLAMA || c->arch == MODEL_MIXTRAL);
    if (off || c->arch == MODEL_DEEPSEEK)
        return;
    get_u32(h, "sliding_window", OPTIONAL, &c->sliding_window);
    get_u32(h, "sliding_window_pattern", OPTIONAL, &pattern);
    get_u32(h, "max_window_layers", OPTIONAL, &from);
    if (!member(h->o, "max_window_layers"))
        from = 0;
    for (uint32_t l = 0; !list && l < MODEL_LAYERS_MAX; l++)
        if (c->arch == MODEL_GEMMA3 ? pattern && (l + 1) % pattern : l >= from)
            config_set_bit(c->local, l);
    json_array_foreach ((json_t *)(uintptr_t)list, i, v) {
        const char *type = json_string_value(v);
        if (type && strcmp(type, "sliding_attention") == 0 && i < MODEL_LAYERS_MAX)
            config_set_bit(c->local, (uint32_t)i);
        else if (h->rc == 0 && (!type || strcmp(type, "full_attention") != 0))
            h->rc = err_set(h->e, EINVAL, "layer_types in config.json names an unknown type");
    }
    if (h->rc == 0 && c->sliding_window && c->arch != MODEL_GEMMA3 && c->rope.scaling)
        h->rc = err_set(h->e, EINVAL, "a sliding window with rope scaling is not supported");
}

/* ---- the rest ---- */

static uint32_t token_id(const json_t *v, uint32_t vocab)
{
    json_int_t id = json_is_integer(v) ? json_integer_value(v) : -1;
    return id >= 0 && id < (json_int_t)vocab ? (uint32_t)id : MODEL_NO_TOKEN;
}

/* eos_token_id is a number or a list: the first ends a text, another one a turn.
 * generation_config.json knows better than config.json. */
static void read_tokens(struct hf *h, const json_t *generation, struct model_config *c)
{
    const json_t *eos = member(generation, "eos_token_id");
    eos = eos ? eos : member(h->o, "eos_token_id");
    c->bos = token_id(member(h->o, "bos_token_id"), c->vocab);
    c->eos = token_id(json_is_array(eos) ? json_array_get(eos, 0) : eos, c->vocab);
    if (json_is_array(eos) && json_array_size(eos) > 1)
        c->eot = token_id(json_array_get(eos, 1), c->vocab);
}

static int from_object(struct hf *h, struct model_config *c)
{
    bool v3 = false;
    int rc = read_type(h, c, &v3);
    if (rc < 0)
        return rc;
    refuse_variants(h, c);
    read_shape(h, c);
    if (c->arch == MODEL_DEEPSEEK)
        read_mla(h, c);
    read_experts(h, c, v3);
    read_rope(h, c);
    read_windows(h, c);
    return h->rc;
}

static uint64_t count_params(const struct safetensors *st)
{
    uint64_t n = 0;
    for (size_t i = 0; i < safetensors_n_tensors(st); i++) {
        const struct safetensors_tensor *t = safetensors_at(st, i);
        n += str_ends(t->name, STR("_scale_inv")) ? 0
                                                  : t->bytes * 8 / safetensors_type_bits(t->type);
    }
    return n;
}

static void model_name(const char *folder, const json_t *o, struct model_config *c)
{
    const char *name = text(o, "_name_or_path"), *end = folder + strlen(folder);
    if (name && *name) {
        snprintf(c->name, sizeof c->name, "%.63s", name);
        return;
    }
    while (end > folder && end[-1] == '/')
        end--;
    const char *from = end;
    while (from > folder && from[-1] != '/')
        from--;
    snprintf(c->name, sizeof c->name, "%.*s", (int)(end - from < 63 ? end - from : 63), from);
}

int config_from_hf(const char *folder, const struct safetensors *st, struct model_config *out,
                   struct err *e)
{
    struct model_config c;
    memset(&c, 0, sizeof c); /* padding too: the image's checksum covers it */
    CLEANUP(free_charp) char *path = xasprintf("%s/config.json", folder);
    CLEANUP(free_charp) char *more = xasprintf("%s/generation_config.json", folder);
    CLEANUP(json_decrefp) json_t *o = json_parse_file(path, CONFIG_BYTES_MAX, e);
    struct err ignored;
    CLEANUP(json_decrefp) json_t *generation = json_parse_file(more, CONFIG_BYTES_MAX, &ignored);
    if (!o)
        return e ? -e->code : -EINVAL;
    struct hf h = {.o = o, .e = e};
    int rc = json_is_object(o) ? from_object(&h, &c)
                               : err_set(e, EINVAL, "config.json is not an object");
    if (rc < 0 || (rc = config_check(&c, e)) < 0)
        return rc;
    bool head = safetensors_find(st, "lm_head.weight") ||
                safetensors_find(st, "language_model.lm_head.weight");
    c.tied = is_true(h.o, "tie_word_embeddings", !head || c.arch == MODEL_GEMMA3);
    read_tokens(&h, generation, &c);
    model_name(folder, o, &c);
    c.n_params = count_params(st);
    *out = c;
    return 0;
}
