#include "cli/plan_load.h"

#include "lib/json/json.h"
#include "lib/llm/gguf.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#define MAX_FILE ((size_t)4 << 20)

/* Names from files go into tables and into the comments of YAML: one line, whatever the file says.
 */
static void one_line(char *name)
{
    for (; *name; name++)
        if ((unsigned char)*name < ' ' || *name == 127)
            *name = ' ';
}

static uint32_t gguf_field(struct gguf *g, const char *arch, const char *key, uint32_t dflt)
{
    uint64_t v;
    CLEANUP(free_charp) char *full = xasprintf("%s.%s", arch, key);
    return gguf_u64(g, full, &v) || v > UINT32_MAX ? dflt : (uint32_t)v;
}

/* Parameters and bytes exactly as the tensors say. */
static void count_tensors(struct gguf *g, struct model_profile *m)
{
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        m->params += (double)t->ne[0] * (double)t->ne[1] * (double)t->ne[2] * (double)t->ne[3];
        m->file_bytes += (double)t->bytes;
    }
    m->active_params = m->params;
    m->weight_bytes = m->params > 0 ? m->file_bytes / m->params : 2;
}

static int load_gguf(const char *path, struct model_profile *m, struct err *e)
{
    struct gguf *g;
    struct str arch_s = STR("llama"), name = str_c(path);
    int rc = gguf_open(path, &g, e);
    if (rc)
        return rc;
    rc = gguf_str(g, "general.architecture", &arch_s);
    CLEANUP(free_charp) char *arch = str_dup(arch_s);
    rc = rc ? rc : gguf_str(g, "general.name", &name);
    snprintf(m->name, sizeof m->name, STR_FMT, STR_ARG(name));
    m->layers = gguf_field(g, arch, "block_count", 0);
    m->d_model = gguf_field(g, arch, "embedding_length", 0);
    m->heads = gguf_field(g, arch, "attention.head_count", 0);
    m->kv_heads = gguf_field(g, arch, "attention.head_count_kv", m->heads);
    m->head_dim = gguf_field(g, arch, "attention.key_length", m->heads ? m->d_model / m->heads : 0);
    m->max_context_tokens = gguf_field(g, arch, "context_length", 0);
    m->experts = gguf_field(g, arch, "expert_count", 0);
    m->experts_per_token = gguf_field(g, arch, "expert_used_count", 0);
    const struct gguf_tensor *embedding = gguf_tensor(g, "token_embd.weight");
    m->vocab = embedding ? (uint32_t)embedding->ne[1] : 0;
    count_tensors(g, m);
    gguf_free(g);
    return 0;
}

static uint32_t u32(const json_t *j, const char *key, uint32_t dflt)
{
    int64_t v = json_int_at(j, key, dflt);
    return v < 0 || v > UINT32_MAX ? dflt : (uint32_t)v;
}

/* Attention, feed-forward (dense or experts), embedding: what the architecture of config.json
 * implies. */
static void count_config(const json_t *j, struct model_profile *m)
{
    double d = m->d_model, ff = u32(j, "intermediate_size", 4 * m->d_model),
           kv = (double)m->kv_heads * m->head_dim;
    double attention = d * m->heads * m->head_dim * 2 + d * kv * 2;
    if (m->mla_rank) {
        double q_rank = u32(j, "q_lora_rank", 0), nope = u32(j, "qk_nope_head_dim", m->head_dim),
               v = u32(j, "v_head_dim", m->head_dim);
        double q_out = m->heads * (nope + m->mla_rope_dim);
        attention = (q_rank > 0 ? d * q_rank + q_rank * q_out : d * q_out) +
                    d * (m->mla_rank + m->mla_rope_dim) + m->mla_rank * m->heads * (nope + v) +
                    m->heads * v * d;
    }
    double expert = 3 * d * m->d_expert, dense = 3 * d * ff;
    double moe = m->moe_layers, plain = m->layers - moe;
    double shared = (double)m->shared_experts * expert, router = d * m->experts;
    double embedding =
        (double)m->vocab * d * (json_bool_at(j, "tie_word_embeddings", false) ? 1 : 2);
    double common =
        m->layers * (attention + 2 * d) + plain * dense + moe * (shared + router) + embedding + d;
    m->params = common + moe * m->experts * expert;
    m->active_params = common + moe * m->experts_per_token * expert;
}

static int load_config(const json_t *j, struct model_profile *m)
{
    m->layers = u32(j, "num_hidden_layers", 0);
    m->d_model = u32(j, "hidden_size", 0);
    m->heads = u32(j, "num_attention_heads", 0);
    m->kv_heads = u32(j, "num_key_value_heads", m->heads);
    m->head_dim = u32(j, "head_dim", m->heads ? m->d_model / m->heads : 0);
    m->vocab = u32(j, "vocab_size", 0);
    m->max_context_tokens = u32(j, "max_position_embeddings", 0);
    m->experts = u32(j, "n_routed_experts", u32(j, "num_local_experts", u32(j, "num_experts", 0)));
    m->experts_per_token = u32(j, "num_experts_per_tok", 0);
    m->shared_experts = u32(j, "n_shared_experts", 0);
    m->d_expert = u32(j, "moe_intermediate_size", m->experts ? u32(j, "intermediate_size", 0) : 0);
    m->moe_layers = m->experts ? m->layers - u32(j, "first_k_dense_replace", 0) : 0;
    m->mla_rank = u32(j, "kv_lora_rank", 0);
    m->mla_rope_dim = m->mla_rank ? u32(j, "qk_rope_head_dim", 0) : 0;
    const char *quant = json_str_at(j, "quantization_config.quant_method", ""),
               *dtype = json_str_at(j, "torch_dtype", "bfloat16");
    m->weight_bytes = strcmp(quant, "fp8") == 0 ? 1 : strcmp(dtype, "float32") == 0 ? 4 : 2;
    count_config(j, m);
    return 0;
}

/* A profile of one's own: the fields of struct model_profile by name. */
static int load_model_json(const json_t *j, struct model_profile *m)
{
    m->params = json_num_at(j, "params", 0);
    m->active_params = json_num_at(j, "active_params", m->params);
    m->layers = u32(j, "layers", 0);
    m->d_model = u32(j, "d_model", 0);
    m->heads = u32(j, "heads", 0);
    m->kv_heads = u32(j, "kv_heads", m->heads);
    m->head_dim = u32(j, "head_dim", m->heads ? m->d_model / m->heads : 0);
    m->vocab = u32(j, "vocab", 0);
    m->experts = u32(j, "experts", 0);
    m->experts_per_token = u32(j, "experts_per_token", 0);
    m->shared_experts = u32(j, "shared_experts", 0);
    m->moe_layers = u32(j, "moe_layers", m->experts ? m->layers : 0);
    m->d_expert = u32(j, "d_expert", 0);
    m->redundant_experts = u32(j, "redundant_experts", 0);
    m->mla_rank = u32(j, "mla_rank", 0);
    m->mla_rope_dim = u32(j, "mla_rope_dim", 0);
    m->weight_bytes = json_num_at(j, "weight_bytes", 2);
    m->file_bytes = json_num_at(j, "file_bytes", 0);
    m->max_context_tokens = json_num_at(j, "max_context_tokens", 0);
    return 0;
}

int plan_load_model(const char *what, struct model_profile *out, struct err *e)
{
    const struct model_profile *known = model_profile_find(what);
    struct model_profile m = {0};
    struct stat st;
    int rc;
    if (known) {
        *out = *known;
        return 0;
    }
    if (stat(what, &st))
        return err_set(e, ENOENT, "\"%s\" is neither a file nor a model that is built in (%s)",
                       what, model_profile_names());
    CLEANUP(free_charp)
    char *path = S_ISDIR(st.st_mode) ? xasprintf("%s/config.json", what) : xstrdup(what);
    if (str_ends(str_c(path), STR(".gguf"))) {
        rc = load_gguf(path, &m, e);
    } else {
        CLEANUP(json_decrefp) json_t *j = json_parse_file(path, MAX_FILE, e);
        if (!j)
            return -EINVAL;
        snprintf(m.name, sizeof m.name, "%s",
                 json_str_at(j, "name", json_str_at(j, "_name_or_path", what)));
        rc = json_object_get(j, "num_hidden_layers") ? load_config(j, &m) : load_model_json(j, &m);
    }
    if (rc)
        return rc;
    one_line(m.name);
    CLEANUP(free_charp) char *full = realpath(path, NULL);
    snprintf(m.source, sizeof m.source, "file://%s", full ? full : path);
    *out = m;
    return 0;
}

int plan_load_device(const char *what, struct device_profile *out, struct err *e)
{
    const struct device_profile *known = device_profile_find(what),
                                *base = device_profile_find("h100");
    struct stat st;
    if (known) {
        *out = *known;
        return 0;
    }
    if (stat(what, &st))
        return err_set(e, ENOENT, "\"%s\" is neither a file nor a device that is built in (%s)",
                       what, device_profile_names());
    CLEANUP(json_decrefp) json_t *j = json_parse_file(what, MAX_FILE, e);
    if (!j)
        return -EINVAL;
    struct device_profile d = {
        .memory_bytes = json_num_at(j, "memory_bytes", 0),
        .usable_fraction = json_num_at(j, "usable_fraction", base->usable_fraction),
        .memory_bytes_per_s = json_num_at(j, "memory_bytes_per_s", 0),
        .flops_bf16 = json_num_at(j, "flops_bf16", 0),
        .flops_fp8 = json_num_at(j, "flops_fp8", json_num_at(j, "flops_bf16", 0)),
        .efficiency = json_num_at(j, "efficiency", base->efficiency),
        .link_bytes_per_s = json_num_at(j, "link_bytes_per_s", 0),
        .nic_bytes_per_s = json_num_at(j, "nic_bytes_per_s", 0),
        .devices_per_server = u32(j, "devices_per_server", 1),
        .nics_per_server = u32(j, "nics_per_server", 1),
    };
    snprintf(d.name, sizeof d.name, "%s", json_str_at(j, "name", what));
    one_line(d.name);
    *out = d;
    return 0;
}
