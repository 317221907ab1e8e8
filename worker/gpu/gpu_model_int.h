/* gpu_model_int.h: what the files of worker/gpu share: where the device holds what. */
#pragma once
#include "kernels/cuda/launch.h"
#include "worker/gpu/gpu_model.h"
#include "worker/gpu/link.h"
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
    gpu_ptr ex_latent, ex_rope, ex_k, ex_v, ex_state;          /* expand.c */
    gpu_ptr part, part_ml, logits;
    gpu_ptr gathered;     /* the ranks' parts of the logits, at rank 0 */
    gpu_ptr draws, drawn; /* what is asked of rows of logits, and their tokens */
    gpu_ptr finals, runs; /* of a pipeline: rows that give logits, and how they come together */
    gpu_ptr scores, ids, weights, counts, place, row_of, expert_of; /* experts */
    gpu_ptr places_wide, places_act, places_out;
};

struct gpu_expand { /* a sequence whose latents are made keys and values for its chunk */
    uint32_t sequence, tile, tiles, end; /* end: tokens that its last row sees */
};

struct gpu_plan {               /* a batch in the order the device computes it */
    uint32_t rows, decode_rows; /* single tokens first */
    /* With latent attention: then chunks whose rows are computed like single tokens, up to
     * flat_rows, then those of gpu_model.expands. Else flat_rows is decode_rows. */
    uint32_t flat_rows, expands;
    uint32_t tiles, outputs, sequences, max_tokens;
    uint32_t out_at; /* outputs of micro-batches before */
    bool record;     /* an event a layer, when its KV is written */
};

struct gpu_model {
    struct gpu *g;
    struct model_config c;
    struct model_shard shard;
    struct model_part part;
    uint32_t heads, kv_heads, d_ff, d_shared, d_expert, experts, vocab; /* of the part */
    struct gpu_link *tensor, *pipeline, *expert;                        /* NULL: one rank */
    struct gpu_ep *ep;                                                  /* NULL: all experts here */
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
    struct gpu_expand *expands;
    struct run *runs;
    struct model_segment *segments; /* of a micro-batch */
    struct sample_row *draws;       /* [max_outputs], and their tokens */
    uint32_t *drawn;
    float *logits; /* of a graph, which are padded; of the ranks, one after another */
    struct gpu_model_stats stats;
};

/* weights.c: everything that is on the device for the model's life. */
int gpu_weights_load(struct gpu_model *gm, const struct model *m, struct err *e) MUST_CHECK;
int gpu_alloc(struct gpu_model *gm, uint64_t bytes, bool kept, gpu_ptr *out,
              struct err *e) MUST_CHECK;

static inline uint32_t gpu_layers(const struct gpu_model *gm) /* here */
{
    return gm->part.layer1 - gm->part.layer0;
}
static inline bool gpu_is_last(const struct gpu_model *gm)
{
    return gpu_link_rank(gm->pipeline) + 1 == gpu_link_ranks(gm->pipeline);
}
static inline bool gpu_leads(const struct gpu_model *gm) /* has the logits of this rank's batch */
{
    return gm->part.first && !gm->shard.tensor_rank;
}
/* gpu_model.c: until the device is done; to the watchdog that is a collective. */
int gpu_await(struct gpu_model *gm, struct err *e) MUST_CHECK;

/* gpu_step.c: puts kernels on the compute stream. A micro-batch through this stage's layers; then,
 * once a batch, what gives its `outputs` rows of logits. */
int gpu_step(struct gpu_model *gm, const struct gpu_plan *p, struct err *e) MUST_CHECK;
int gpu_step_end(struct gpu_model *gm, uint32_t outputs, struct err *e) MUST_CHECK;
/* What of the model another tensor rank of this stage has: its heads, its part of the vocabulary.
 */
struct model_part gpu_part_of(const struct gpu_model *gm, uint32_t tensor_rank);
/* y [rows, w->rows] f32 = x w^T */
int gpu_product(struct gpu_model *gm, gpu_ptr x, const struct gpu_matrix *w, gpu_ptr y,
                uint32_t rows, struct err *e) MUST_CHECK;
/* act [rows, n] bf16 of `wide` [rows, 2 n] */
int gpu_gate(struct gpu_model *gm, gpu_ptr wide, gpu_ptr act, uint32_t rows, uint32_t n,
             struct err *e) MUST_CHECK;
/* The dense part, or the shared experts, up to their last product. */
int gpu_dense(struct gpu_model *gm, const struct gpu_layer *l, uint32_t rows,
              struct err *e) MUST_CHECK;
/* The tensor ranks' parts of y, n floats, are added up. */
int gpu_sum(struct gpu_model *gm, gpu_ptr y, uint64_t n, struct err *e) MUST_CHECK;

/* gpu_draw.c: waits, and has the tokens (true), or the logits, of a step that computed `rows` of
 * which `outputs` are wanted. At ranks that have no logits it only waits. */
int gpu_take(struct gpu_model *gm, const struct model_batch *b, uint32_t rows, uint32_t outputs,
             struct err *e) MUST_CHECK;

/* gpu_moe.c: a layer with experts, from w.x to w.out. */
int gpu_experts(struct gpu_model *gm, const struct gpu_layer *l, uint32_t rows,
                struct err *e) MUST_CHECK;
/* w.ids and w.weights of w.x. */
int gpu_choose(struct gpu_model *gm, const struct gpu_layer *l, uint32_t rows,
               struct err *e) MUST_CHECK;
/* The shared experts, or nothing, in w.out. */
int gpu_shared(struct gpu_model *gm, const struct gpu_layer *l, uint32_t rows,
               struct err *e) MUST_CHECK;
/* y = what the experts here give for rows x with those choices, + shared (0: none). */
int gpu_routed(struct gpu_model *gm, const struct gpu_layer *l, gpu_ptr x, gpu_ptr ids,
               gpu_ptr weights, gpu_ptr shared, gpu_ptr y, uint32_t rows, struct err *e) MUST_CHECK;

/* expand.c: whether a chunk of so many rows takes fewer products that way; tokens of a context at a
 * time (0: no chunk does); rows from p->flat_rows on: what `all` rows get otherwise; attention. */
bool gpu_expands(const struct gpu_model *gm, uint32_t rows);
uint32_t gpu_expand_piece(const struct gpu_model *gm);
int gpu_expand_prepare(struct gpu_model *gm, const struct gpu_plan *p,
                       const struct mla_prepare_args *all, struct err *e) MUST_CHECK;
int gpu_expand_attend(struct gpu_model *gm, const struct gpu_plan *p, const struct gpu_layer *l,
                      const struct kv_view *kv, struct err *e) MUST_CHECK;
