#include "lib/cost/profile.h"

#define GB     1e9
#define TFLOPS 1e12

static const struct model_profile models[] = {
    {.name = "llama-3-8b",
     .source = "hf://meta-llama/Meta-Llama-3-8B-Instruct",
     .params = 8e9,
     .active_params = 8e9,
     .layers = 32,
     .d_model = 4096,
     .heads = 32,
     .kv_heads = 8,
     .head_dim = 128,
     .vocab = 128256,
     .weight_bytes = 2,
     .max_context_tokens = 8192},
    {.name = "llama-3-70b",
     .source = "hf://meta-llama/Meta-Llama-3-70B-Instruct",
     .params = 70e9,
     .active_params = 70e9,
     .layers = 80,
     .d_model = 8192,
     .heads = 64,
     .kv_heads = 8,
     .head_dim = 128,
     .vocab = 128256,
     .weight_bytes = 2,
     .max_context_tokens = 8192},
    {.name = "llama-3.1-405b",
     .source = "hf://meta-llama/Llama-3.1-405B-Instruct",
     .params = 405e9,
     .active_params = 405e9,
     .layers = 126,
     .d_model = 16384,
     .heads = 128,
     .kv_heads = 8,
     .head_dim = 128,
     .vocab = 128256,
     .weight_bytes = 2,
     .max_context_tokens = 131072},
    {.name = "qwen3-8b",
     .source = "hf://Qwen/Qwen3-8B",
     .params = 8e9,
     .active_params = 8e9,
     .layers = 36,
     .d_model = 4096,
     .heads = 32,
     .kv_heads = 8,
     .head_dim = 128,
     .vocab = 151936,
     .weight_bytes = 2,
     .max_context_tokens = 40960},
    {.name = "qwen3-30b-a3b",
     .source = "hf://Qwen/Qwen3-30B-A3B",
     .params = 30.5e9,
     .active_params = 3.3e9,
     .layers = 48,
     .d_model = 2048,
     .heads = 32,
     .kv_heads = 4,
     .head_dim = 128,
     .vocab = 151936,
     .experts = 128,
     .experts_per_token = 8,
     .moe_layers = 48,
     .d_expert = 768,
     .weight_bytes = 2,
     .max_context_tokens = 40960},
    {.name = "mixtral-8x7b",
     .source = "hf://mistralai/Mixtral-8x7B-Instruct-v0.1",
     .params = 46.7e9,
     .active_params = 12.9e9,
     .layers = 32,
     .d_model = 4096,
     .heads = 32,
     .kv_heads = 8,
     .head_dim = 128,
     .vocab = 32000,
     .experts = 8,
     .experts_per_token = 2,
     .moe_layers = 32,
     .d_expert = 14336,
     .weight_bytes = 2,
     .max_context_tokens = 32768},
    {.name = "deepseek-v3",
     .source = "hf://deepseek-ai/DeepSeek-V3",
     .params = 671e9,
     .active_params = 37e9,
     .layers = 61,
     .d_model = 7168,
     .heads = 128,
     .kv_heads = 128,
     .head_dim = 128,
     .vocab = 129280,
     .experts = 256,
     .experts_per_token = 8,
     .shared_experts = 1,
     .moe_layers = 58,
     .d_expert = 2048,
     .redundant_experts = 32,
     .mla_rank = 512,
     .mla_rope_dim = 64,
     .weight_bytes = 1,
     .max_context_tokens = 163840},
    {.name = "smollm2-135m",
     .source = "hf://HuggingFaceTB/SmolLM2-135M-Instruct",
     .params = 134.5e6,
     .active_params = 134.5e6,
     .layers = 30,
     .d_model = 576,
     .heads = 9,
     .kv_heads = 3,
     .head_dim = 64,
     .vocab = 49152,
     .weight_bytes = 2,
     .max_context_tokens = 8192},
    {.name = "gemma-3-270m",
     .source = "hf://google/gemma-3-270m",
     .params = 268e6,
     .active_params = 268e6,
     .layers = 18,
     .d_model = 640,
     .heads = 4,
     .kv_heads = 1,
     .head_dim = 256,
     .vocab = 262144,
     .weight_bytes = 2,
     .max_context_tokens = 32768},
};

static const struct device_profile devices[] = {
    {"h100", 80 * GB, 0.9, 3.35e12, 989 * TFLOPS, 1979 * TFLOPS, 0.5, 450 * GB, 50 * GB, 8, 8},
    {"h200", 141 * GB, 0.9, 4.8e12, 989 * TFLOPS, 1979 * TFLOPS, 0.5, 450 * GB, 50 * GB, 8, 8},
    {"h800", 80 * GB, 0.9, 3.35e12, 989 * TFLOPS, 1979 * TFLOPS, 0.5, 200 * GB, 50 * GB, 8, 8},
    {"a100-80g", 80 * GB, 0.9, 2.04e12, 312 * TFLOPS, 312 * TFLOPS, 0.5, 300 * GB, 25 * GB, 8, 8},
    {"b200", 180 * GB, 0.9, 8e12, 2250 * TFLOPS, 4500 * TFLOPS, 0.5, 900 * GB, 50 * GB, 8, 8},
    {"l40s", 48 * GB, 0.9, 0.864e12, 362 * TFLOPS, 733 * TFLOPS, 0.5, 32 * GB, 25 * GB, 8, 2},
    /* Two cores with AVX-512 and 24 GiB: measured, see docs/performance.md. */
    {"cpu", 24 * GB, 0.8, 60 * GB, 0.4 * TFLOPS, 0.4 * TFLOPS, 0.5, 10 * GB, 1.25 * GB, 1, 1},
};

const struct model_profile *model_profile_find(const char *name)
{
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        if (str_ieq_c(str_c(name), models[i].name))
            return &models[i];
    return NULL;
}

const struct device_profile *device_profile_find(const char *name)
{
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++)
        if (str_ieq_c(str_c(name), devices[i].name))
            return &devices[i];
    return NULL;
}

const char *model_profile_names(void)
{
    return "llama-3-8b llama-3-70b llama-3.1-405b qwen3-8b qwen3-30b-a3b mixtral-8x7b deepseek-v3 "
           "smollm2-135m gemma-3-270m";
}

const char *device_profile_names(void)
{
    return "h100 h200 h800 a100-80g b200 l40s cpu";
}

double model_kv_bytes_per_token(const struct model_profile *m, double element_bytes)
{
    if (m->mla_rank)
        return (double)m->layers * (m->mla_rank + m->mla_rope_dim) * element_bytes;
    return 2.0 * m->layers * m->kv_heads * m->head_dim * element_bytes;
}

double model_weight_bytes(const struct model_profile *m)
{
    return m->file_bytes > 0 ? m->file_bytes : m->params * m->weight_bytes;
}
