/* work.h: the memory of a step and its plan (internal to worker/model). One model_work, one engine
 * thread. */
#pragma once
#include "kernels/cpu/gating.h"
#include "worker/model/image.h"
#include "worker/model/pool.h"
#include "worker/comm/comm.h"

#include <stdatomic.h>

/* Batches of so few rows are not split: each thread does the work between matrix products for all
 * rows, on its own copy, which saves a barrier each time. */
#define REPLICATE_ROWS 4u
#define ATTN_TILE      16u /* rows of one attention unit */
#define LOGIT_ROWS     16u /* rows of logits that travel at a time, when the vocabulary is split */

/* State of rows between matrix products. The shared one has max_rows rows, each thread's own
 * REPLICATE_ROWS. */
struct rows {
    float *h;    /* [rows, d_model] the residual stream */
    float *norm; /* [rows, max of d_model, d_ff, heads x head_dim] input of the next product */
    int8_t *codes;
    struct act_block *blocks;
};

struct row {
    uint32_t token, pos, segment;
};

/* Rows [row, row + n) of the batch, one segment; query heads [head, head + heads) of this rank's,
 * which share a KV head. With `shared`, the n rows from `row` of model_work.together. */
struct attn_unit {
    uint32_t row, n, segment, head, heads;
    uint32_t shared; /* positions */
};

/* Experts of a step (moe.c). A slot is one row at one of its experts. */
struct moe_rows {
    uint32_t ff, d_blocks, ff_blocks; /* an expert's width here; blocks of activations */
    uint32_t n_slots, n_rows;         /* n_rows: that experts here see, own or received */
    float *scores;                    /* [rows, experts] */
    float *scratch;                   /* one a thread */
    struct gating_pick *picks;        /* [rows, used] */
    uint32_t *slot_of;                /* [rows, used]; UINT32_MAX: the expert is elsewhere */
    uint32_t *row_of;                 /* [slots] */
    uint32_t *first;                  /* [experts + 1] slots of an expert */
    float *x, *gate, *up;             /* [slots, d_model], in and out; [slots, ff] */
    int8_t *codes;                    /* of x, later of the gated */
    struct act_block *blocks;
};

/* What an expert rank tells the others (ep.c): rows that it sends to each, the slots they take. */
#define EP_RANKS_MAX 64u
struct ep_head {
    uint32_t rows[EP_RANKS_MAX], slots[EP_RANKS_MAX];
};

struct ep_sent {
    uint32_t row, rank; /* own row, receiver */
};

/* Experts at other ranks (ep.c). */
struct ep_rows {
    uint32_t ranks, rank,
        first; /* of the expert communicator; the first one's place in the stage */
    uint32_t data, tensor, tensor_rank;
    uint32_t data_rows[EP_RANKS_MAX]; /* of this step, of each data rank */
    uint8_t owner[MODEL_EXPERTS_MAX]; /* of an expert: the rank that always has it */
    size_t item_bytes;
    uint8_t *out, *in; /* messages */
    struct ep_head mine, *heads;
    struct ep_sent *sent;
    size_t *at; /* of a sent item in `out` */
    size_t out_bytes[EP_RANKS_MAX];
    uint32_t n_sent, load[EP_RANKS_MAX]; /* slots of each rank in this layer */
    const uint8_t **from;                /* received items */
    struct gating_pick *own;             /* [rows, used] picks of own rows */
    uint8_t *target;                     /* [rows, used] the rank of each */
    uint32_t *answer;                    /* [rows, used] where its answer lies in `back` */
    float *slots_out, *back;             /* [slots, d_model] what experts here and elsewhere gave */
    struct balance *balance;             /* copies of experts (balance.c); NULL: none */
};

/* Latent attention of a step (mla.c). */
struct mla_rows {
    float *q, *kv, *q_a, *values; /* [rows, heads x (nope + rope)], latent, q_rank, heads x v */
    int8_t *codes;                /* of one head's rows, one a thread */
    struct act_block *blocks;
};

/* The memory of a model_work is one mapping, carved twice: first to count, then to hand out. */
struct carve {
    uint8_t *base; /* NULL while counting */
    uint64_t used;
};
void *work_carve(struct carve *c, uint64_t n, uint64_t size);

struct model_work {
    const struct model *m;
    struct model_work_options o;
    struct model_kv kv;
    struct pool *pool;
    struct rows shared, *own; /* own: [threads] */
    uint32_t norm_cols, qkv_cols;
    float *qkv, *att, *gate, *up,
        *out; /* [rows, qkv_cols], [rows, heads x head_dim], d_ff, d_ff, d_model */
    float *cs_global, *cs_local;        /* rotary tables [rows, rope_dims] */
    double *freqs_global, *freqs_local; /* [rope_dims / 2] */
    float **scratch;                    /* of attention, one a thread */
    struct moe_rows moe;
    struct mla_rows mla;
    struct ep_rows ep;
    struct row *rows;
    uint32_t *out_rows; /* rows that give logits */
    struct attn_unit *units;
    struct attn_row *together; /* decodes whose sequences begin alike, group by group */
    uint8_t *grouped;          /* [segments] */
    _Atomic uint32_t next_unit[MODEL_LAYERS_MAX];
    void *memory;
    uint64_t memory_bytes;
    float *part_logits; /* [LOGIT_ROWS, this rank's vocabulary], when rank 0 is another */
    float *finals;      /* last stage: [rows, d_model] of rows that give logits */
    struct model_segment *segments; /* of a micro-batch */
    struct model_work_stats stats;
    struct model_work *half; /* of the second half of a batch (halves.c); NULL: never halved */
    bool halve;              /* the next batch */
    uint32_t in_air;         /* batches begun, of a pipeline's first stage */
    uint64_t counted_ns;
    /* The step */
    const struct model_batch *batch; /* all of it, or `part` */
    struct model_batch part;
    uint8_t *kv_pool;
    uint32_t n_rows, n_out, n_units, jobs;
    int rc; /* of the first collective that failed: nothing is waited for after it */
    struct err err;
};

int work_memory(struct model_work *w, struct err *e) MUST_CHECK; /* for w->o.max_rows rows */
/* together.c: the decode of segment `leader`, whose row is `row`, and up to `most` - 1 later ones
 * that begin with the same blocks, into out. Returns how many; `shared`: positions that they have
 * in common. Those taken are marked in w->grouped. */
uint32_t together_of(struct model_work *w, const struct model_batch *b, uint32_t leader,
                     uint32_t row, uint32_t most, struct attn_row *out, uint32_t *shared);
/* The layout of rows, outputs and attention units of a batch that was checked. */
void work_lay_out(struct model_work *w, const struct model_batch *b);

/* stage.c: a batch through the stages of the pipeline, or through the only one */
int stage_run(struct model_work *w, const struct model_batch *b, struct err *e) MUST_CHECK;
/* The first stage of several: its layers, then the others'; batches end in the order they began. */
bool stage_first_of_many(const struct model_work *w);
int stage_begin(struct model_work *w, const struct model_batch *b, struct err *e) MUST_CHECK;
int stage_end(struct model_work *w, const struct model_batch *b, struct err *e) MUST_CHECK;
