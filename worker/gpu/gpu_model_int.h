/* gpu_model_int.h: what the files of worker/gpu share: where the device holds what. */
#pragma once
#include "kernels/cuda/launch.h"
#include "worker/gpu/gpu_model.h"
#include "worker/model/image.h"

#define GRAPH_SIZES 6u /* 1, 2, 4, 8, 16, 32 sequences */

struct gpu_matrix { /* bf16 [rows, cols] */
    gpu_ptr at;
    uint32_t rows, cols;
};

struct gpu_layer {
    struct gpu_matrix qkv, o, gate_up, down;               /* gate_up: gate's rows, then up's */
    struct gpu_matrix router, expert_gate_up, expert_down; /* of all experts, one after another */
    gpu_ptr attn_norm, ffn_norm, post_attn, post_ffn;      /* 0: there is none */
    gpu_ptr q_norm, k_norm, bias, router_bias;
    struct gpu_matrix q_a, q_b, kv_a, k_up, v_up; /* latent attention; k_up, v_up: of all heads */
    gpu_ptr q_a_norm, kv_a_norm;
};

/* Memory of a step, by what it holds; sized for max_rows. */
struct gpu_work {
    gpu_ptr tokens, positions, sequences, tables, tiles, take; /* what a step is told */
    gpu_ptr h, x, qkv, q, att, out, wide, act;                 /* rows */
    gpu_ptr q_a, kv_a, q_nope, values;                         /* latent attention */
    gpu_ptr part, part_ml, logits;
    gpu_ptr gathered; /* the ranks' parts of the logits, at rank 0 */
    gpu_ptr scores, ids, weights, counts, place, row_of, expert_of; /* experts */
    gpu_ptr places_wide, places_act, places_out;
};

struct gpu_plan {               /* a batch in the order the device computes it */
    uint32_t rows, decode_rows; /* single tokens first */
    uint32_t tiles, outputs, sequences, max_tokens;
    bool record; /* an event a layer, when its KV is written */
};

struct gpu_model {
    struct gpu *g;
    struct model_config c;
    struct model_shard shard;
    struct model_part part;
    uint32_t heads, kv_heads, d_ff, d_shared, d_expert, experts, vocab; /* of the part */
    struct nccl *nccl;                                                  /* NULL: one rank */
    struct model_kv kv;
    struct gpu_model_options o;
    struct gpu_matrix embed, head;
    gpu_ptr out_norm, cs_global, cs_local, pool;
    struct gpu_layer *layers;
    struct gpu_work w;
    struct gpu_event **written; /* [n_layers] */
    struct gpu_event *received; /* pieces written by the host */
    struct gpu_graph *graphs[GRAPH_SIZES];
    bool warm[GRAPH_SIZES], received_any;
    uint32_t table_ld, places, context_tokens;
    /* the host's side of what a step is told */
    uint32_t *tokens, *positions, *sequences, *tables, *take,
        *out_of; /* out_of: row of an output */
    struct attn_tile *tiles;
    float *logits; /* of a graph, which are padded; of the ranks, one after another */
    struct gpu_model_stats stats;
};

/* weights.c: everything that is on the device for the model's life. */
int gpu_weights_load(struct gpu_model *gm, const struct model *m, struct err *e) MUST_CHECK;
int gpu_alloc(struct gpu_model *gm, uint64_t bytes, bool kept, gpu_ptr *out,
              struct err *e) MUST_CHECK;

/* gpu_step.c: puts a step's kernels on the compute stream. */
int gpu_step(struct gpu_model *gm, const struct gpu_plan *p, struct err *e) MUST_CHECK;
