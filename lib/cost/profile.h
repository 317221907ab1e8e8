/* profile.h: what a model and a device are, to the planner: the figures from which seconds and
 * bytes follow. Built-in profiles carry nominal parameter counts (Llama-3-70B: 70e9), as the
 * field's own arithmetic does; a model read from a file has its exact count. Devices: vendors' data
 * sheets, dense (not sparse) peaks, one direction of each link. */
#pragma once
#include "lib/base/str.h"

struct model_profile {
    char name[128];
    double params, active_params; /* all; used for one token (equal for a dense model) */
    uint32_t layers, d_model, heads, kv_heads, head_dim, vocab;
    uint32_t experts, experts_per_token, shared_experts, moe_layers,
        d_expert;               /* experts 0: dense */
    uint32_t redundant_experts; /* replicas kept besides, for balance */
    uint32_t mla_rank,
        mla_rope_dim;    /* latent attention: KV is (rank + rope) a token and layer; 0: none */
    double weight_bytes; /* a parameter, as stored; 2 = BF16 */
    double file_bytes;   /* of the weights when read from a file; 0: params × weight_bytes */
    double max_context_tokens;
    char source[512]; /* where the weights are, as spec.model.source */
};

struct device_profile {
    char name[64];
    double memory_bytes, usable_fraction; /* the rest: activations, graphs, communicators */
    double memory_bytes_per_s;
    double flops_bf16, flops_fp8; /* dense peak */
    double efficiency;            /* share of the peak that prefill reaches */
    double link_bytes_per_s;      /* to the other devices of the server, one direction */
    double nic_bytes_per_s;       /* of one NIC, one direction */
    uint32_t devices_per_server, nics_per_server;
};

/* NULL when there is no such built-in. Names: see profile_names. */
const struct model_profile *model_profile_find(const char *name);
const struct device_profile *device_profile_find(const char *name);
/* Space-separated, for messages. */
const char *model_profile_names(void);
const char *device_profile_names(void);

/* Bytes of KV that one token keeps in all layers, elements of `element_bytes`. */
double model_kv_bytes_per_token(const struct model_profile *m, double element_bytes);
double model_weight_bytes(const struct model_profile *m);
