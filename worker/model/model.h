/* model.h: a decoder-only transformer on the CPU kernels: what the engine, the agent and the tools
 * see of it.
 *
 * Weights are one position-independent, self-describing IMAGE in the form that the kernels read (16
 * rows interleaved, see kernels/ops.h). The agent fills it once a node in shared memory; every
 * worker maps it read-only and attaches. The form is the same for every x86 ISA, so one image
 * serves all of them.
 *
 * KV cache: one pool of blocks, laid out (block, layer, K/V, head, token, dim), 32 tokens a block
 * by default, a block contiguous across its layers, a head contiguous inside. The caller owns the
 * pool and the block tables.
 *
 * Bits: a row's logits and KV depend only on the tokens up to it and on the weights: not on the
 * other rows of the batch, not on how a prompt is cut into chunks, not on prefill against decode,
 * not on the number of threads, not on the ISA chosen (scalar, AVX2 and AVX-512 do the same
 * operations in the same order).
 *
 * Threads: a model is read-only and may be shared. A model_work belongs to one thread (the
 * engine's), which takes part in the computation; its helpers wait by spinning at most 2 us, then
 * on a futex.
 *
 * Errors: -EINVAL for a bad file or batch, -ENOMEM, -EIO; `e` says what is wrong. Sizes are bytes
 * and tokens as named.
 */
#pragma once
#include "lib/base/str.h"

enum model_arch {
    MODEL_LLAMA = 1, /* Llama 1 to 3, Mistral, SmolLM */
    MODEL_GEMMA3,
    MODEL_QWEN2, /* 2 and 2.5 */
    MODEL_QWEN3,
    MODEL_MIXTRAL,
    MODEL_QWEN3_MOE,
    MODEL_DEEPSEEK, /* V2, V3: latent attention, shared and routed experts */
};

enum model_rope_scaling { MODEL_ROPE_PLAIN, MODEL_ROPE_LINEAR, MODEL_ROPE_LLAMA3, MODEL_ROPE_YARN };

#define MODEL_LAYERS_MAX  256
#define MODEL_EXPERTS_MAX 1024 /* of a layer, replicas included */
#define MODEL_TOP_MAX     32   /* experts of one token */
#define MODEL_NO_TOKEN    UINT32_MAX

/* Rotary embedding. Frequencies of global layers: base^(-2i/dims), changed by `scaling` (Llama 3.1:
 * by wavelength between original / low and original / high; YaRN, arXiv 2309.00071: a ramp between
 * the dimensions that turn `high` (beta_fast) and `low` (beta_slow) times in `original` tokens). */
struct model_rope {
    uint32_t scaling;  /* enum model_rope_scaling */
    uint32_t original; /* tokens that the model was first trained on */
    float factor;      /* positions are divided by it: 1 when plain */
    float low, high;
    float magnitude; /* sine and cosine are multiplied by it */
    uint32_t exact;  /* YaRN: the ramp's ends are not rounded */
    uint32_t reserved;
};

/* Experts of a layer. Scores of a token: softmax or sigmoid of the router's products; the best
 * `used` are taken, with groups > 1 out of the best `groups_used` groups (a group's score: its best
 * expert's, or with `top2` the sum of its best two). A bias, where there is one, counts in the
 * choice only. Weights: the scores, `normalise`d to a sum of 1, times `scale`. */
struct model_moe {
    uint32_t experts; /* 0: every layer is dense */
    uint32_t used, groups, groups_used;
    uint32_t d_expert, d_shared; /* d_shared: of all shared experts together; 0: none */
    float scale;
    uint8_t sigmoid, normalise, top2, reserved;
};

/* Latent attention (DeepSeek-V2, arXiv 2405.04434). Absorbed: queries are taken into the latent
 * space, KV is one latent of rank + rope values a token that all heads share, its first `rank`
 * values are V. */
struct model_mla {
    uint32_t rank;    /* of the KV latent; 0: the model has ordinary attention */
    uint32_t q_rank;  /* 0: queries are not compressed */
    uint32_t nope, v; /* of a head: dimensions without rotation; of its value */
};

struct model_config {
    enum model_arch arch;
    char name[64]; /* general.name */
    /* With latent attention: n_kv_heads is 1, head_dim is rank + rope_dims. */
    uint32_t n_layers, d_model, n_heads, n_kv_heads, head_dim, d_ff, vocab;
    uint32_t context_tokens;
    uint32_t sliding_window; /* tokens that a local layer sees (0: every layer is global) */
    uint32_t rope_dims;
    float rope_base, rope_base_local; /* of global and of local layers */
    struct model_rope rope;           /* of global layers */
    struct model_moe moe;
    struct model_mla mla;
    float norm_eps, embed_scale, attn_scale;
    uint8_t rope_neox, qk_norm, post_norm, gelu, tied, add_bos, qkv_bias, reserved;
    uint32_t bos, eos,
        eot;           /* MODEL_NO_TOKEN when the file names none; eot: end of a turn in chat */
    uint64_t n_params; /* weights in the file, embeddings included */
    uint8_t local[MODEL_LAYERS_MAX / 8]; /* bit l % 8 of byte l / 8: layer l is local */
    uint8_t dense[MODEL_LAYERS_MAX / 8]; /* likewise: it has no experts, though the model has */
};

/* A model's `path` is a GGUF file, or a folder of a Hugging Face model (config.json and
 * safetensors) or its model.safetensors.index.json.
 *
 * Reads and checks what it says of the model; no weights are loaded. */
int model_config_read(const char *path, struct model_config *out, struct err *e) MUST_CHECK;
bool model_layer_is_local(const struct model_config *c, uint32_t layer);
bool model_layer_has_experts(const struct model_config *c, uint32_t layer);

/* ---- weights ---- */

/* `isa`: "scalar", "avx2", "avx512", "amx"; NULL or "" is the best that this machine has, or
 * $BATON_ISA.
 */
int model_image_bytes(const char *path, const char *isa, uint64_t *bytes, struct err *e) MUST_CHECK;
/* Fills `image` (64-byte aligned, of model_image_bytes() bytes). On failure its content is not a
 * valid image. */
int model_image_fill(const char *path, const char *isa, void *image, uint64_t bytes,
                     struct err *e) MUST_CHECK;
/* The checksum that fill stored, and the one that the bytes have now (reads all of them). Compare
 * to detect damage. */
uint64_t model_image_checksum(const void *image);
uint64_t model_image_checksum_now(const void *image);
/* Bytes that the image says it has, after its header was checked against `bytes` available. */
int model_image_check(const void *image, uint64_t bytes, struct err *e) MUST_CHECK;

struct model;
/* The image must outlive the model. Every offset is checked: a damaged image is an error, not a
 * crash. */
int model_attach(const void *image, uint64_t bytes, const char *isa, struct model **out,
                 struct err *e) MUST_CHECK;
/* All of it in private memory (huge pages where they can be had), for tools and tests. */
int model_load(const char *path, const char *isa, struct model **out, struct err *e) MUST_CHECK;
void model_free(struct model *m);
const struct model_config *model_config(const struct model *m);
const char *model_isa(const struct model *m); /* "avx512" */

/* ---- KV layout ---- */

/* I8 and F8 (E4M3): with an f32 scale for 64 values of a token and head (kernels/ops.h). */
enum model_kv_dtype { MODEL_KV_F16, MODEL_KV_F32, MODEL_KV_BF16, MODEL_KV_I8, MODEL_KV_F8 };
#define MODEL_BLOCK_TOKENS 32u

struct model_kv {
    uint32_t n_layers, n_kv_heads, head_dim, block_tokens, elt_bytes;
    enum model_kv_dtype dtype;
    uint32_t halves;      /* 2: K and V; 1: a latent that is both */
    uint64_t head_bytes;  /* one head's K or V in a block: elements, then scales where there are */
    uint64_t half_bytes;  /* K or V of a layer: n_kv_heads x head_bytes */
    uint64_t piece_bytes; /* a (block, layer) piece: K then V, what a push moves per layer */
    uint64_t block_bytes; /* n_layers pieces */
};

/* block_tokens: a multiple of 32, at most 256. */
int model_kv_init(struct model_kv *kv, const struct model_config *c, enum model_kv_dtype dtype,
                  uint32_t block_tokens, struct err *e) MUST_CHECK;
static inline uint64_t model_kv_piece_offset(const struct model_kv *kv, uint32_t block,
                                             uint32_t layer)
{
    return (uint64_t)block * kv->block_bytes + (uint64_t)layer * kv->piece_bytes;
}

/* ---- forward ---- */

/* One sequence's rows of this step: a prefill chunk, or one decode token. KV of positions below
 * `start` is in the pool already; KV of these rows is written to it. */
struct model_segment {
    const uint32_t *tokens;
    uint32_t n_tokens;
    uint32_t start;         /* absolute position of tokens[0] */
    const uint32_t *blocks; /* entry i holds positions [i * block_tokens, (i + 1) * block_tokens) */
    uint32_t n_blocks;
    uint32_t logits_from; /* rows logits_from .. n_tokens-1 give logits; n_tokens: none, n_tokens-1:
                             the last, 0: all */
};

/* One token of a row of logits: at temperature 0 the greatest, else the first in the order of the
 * vocabulary whose cumulated probability is above u (worker/sample.h). */
struct model_draw {
    double u; /* in [0, 1) */
    float temperature, min_p;
    uint32_t token; /* out; MODEL_NO_TOKEN: the row has no finite maximum */
};

struct model_batch {
    const struct model_segment *segments;
    uint32_t n_segments;
    float *logits;        /* [n_out, vocab], in the order of segments and rows */
    uint32_t logits_rows; /* rows that `logits` has room for */
    /* [n_out], or NULL. A device may choose the tokens itself, which spares the copy of the logits:
     * then it says so in *drawn, and `logits` stays as it is. */
    struct model_draw *draws;
    bool *drawn;
    /* Called on the engine's thread when every row's KV of `layer` has been written, before the
     * layer's attention: a push of (block, layer) pieces may begin. Layers come in order. May be
     * NULL. Must not block. */
    void (*layer_done)(void *ctx, uint32_t layer);
    void *ctx;
};

/* The ranks that compute with this one, each its part (worker/model/shard.h). All of them call
 * model_forward with the same batch; logits come out at the first rank of the first stage, the
 * others may pass NULL. NULL: no others. */
struct comm;
enum model_dispatch { MODEL_DISPATCH_AUTO, MODEL_DISPATCH_THROUGHPUT, MODEL_DISPATCH_LATENCY };
struct model_group {
    struct comm *tensor;   /* this stage's, by tensor rank */
    struct comm *pipeline; /* of this tensor rank, by stage */
    /* Ranks over which the experts are dealt, with data-parallel attention: then every data rank
     * passes a batch of its own, perhaps of no segment (model_work_data_rows). */
    struct comm *expert;
    uint32_t expert_first; /* its rank 0 as data rank x tensor ranks + tensor rank */
    uint32_t data;         /* data ranks (0: 1) */
    enum model_dispatch dispatch;
    bool dispatch_fp8;
    /* Copies of experts that a rank keeps of each layer, besides its own; chosen anew every so many
     * steps from the load since, and moved at most so many bytes a step to one rank (0: 1 MiB). */
    uint32_t redundant, balance_steps;
    uint64_t move_bytes;
    bool cover;  /* the first of them: one of every expert at another rank, if there is room */
    bool halves; /* memory for batches in two halves (model_work_halve) */
};

struct model_work_options {
    uint32_t threads;      /* 1..64, from the cgroup quota */
    uint32_t max_rows;     /* most tokens in one batch, 1..65536 */
    uint32_t block_tokens; /* 0: MODEL_BLOCK_TOKENS */
    enum model_kv_dtype kv_dtype;
    uint32_t pool_blocks; /* size of the KV pool; block numbers are checked against it */
    struct model_group group;
};

struct model_work;
int model_work_new(const struct model *m, const struct model_work_options *o,
                   struct model_work **out, struct err *e) MUST_CHECK;
void model_work_free(struct model_work *w);
const struct model_kv *model_work_kv(const struct model_work *w);
uint64_t model_work_bytes(const struct model_work *w); /* memory that it holds */

/* Runs the batch: rows are computed, KV written, logits filled. `kv_pool` is 64-byte aligned. On
 * failure (a token or block out of range, a position past the context, too many rows) nothing was
 * computed; -EPIPE when the group has failed. */
int model_forward(const struct model *m, struct model_work *w, void *kv_pool,
                  const struct model_batch *b, struct err *e) MUST_CHECK;
uint32_t model_batch_outputs(const struct model_batch *b); /* rows of logits that it will write */
/* Whether model_forward would take the batch. */
int model_batch_check(const struct model_work *w, const struct model_batch *b,
                      struct err *e) MUST_CHECK;

/* Before each model_forward with data-parallel attention: rows of every data rank's batch,
 * [group.data]. Together they are at most max_rows. */
void model_work_data_rows(struct model_work *w, const uint32_t *rows);
/* With experts at other ranks, for the next model_forward: as two halves that take turns, so that
 * one computes while the other's rows are on their way (worker/model/halves.c). The same at every
 * rank; the same results. Returns whether it will be: never without group.halves. */
bool model_work_halve(struct model_work *w, bool halve);

/* Experts over ranks, when ranks may be masked (worker/comm/comm.h). Ranks of group.expert at which
 * an expert always is, a bit each. */
uint64_t model_expert_bytes(const struct model *m); /* of an expert in all layers here */
uint64_t model_work_holders(const struct model_work *w, uint32_t expert);
/* After comm_regroup: masked ranks compute nothing more. A batch that was under way then has ended
 * with -ECANCELED, and may be run again. */
void model_work_regroup(struct model_work *w);

/* The first stage of a pipeline may begin further batches before the first comes back: it does its
 * layers and leaves the rest to the others; model_end waits for the oldest batch begun and fills
 * its logits. The rows of all batches begun at a time fit comm_send's buffer half
 * (model_room_in_air), so that no stage waits for one that waits for it. Of `b`, model_end reads
 * logits, layer_done and the segments' numbers; tokens and blocks are no longer needed then. */
int model_begin(const struct model *m, struct model_work *w, void *kv_pool,
                const struct model_batch *b, struct err *e) MUST_CHECK;
int model_end(struct model_work *w, const struct model_batch *b, struct err *e) MUST_CHECK;
uint32_t model_room_in_air(const struct model_work *w); /* rows */

#define MODEL_STAGES_MAX 64u
/* What a pipeline's stages have waited: busy_ns of all stages (known to the first), against
 * step_ns x stages, step_ns the time in which there was any batch. The bubble is what is left. */
struct model_work_stats {
    uint64_t steps, micro_batches, step_ns, busy_ns;
    uint64_t stage_busy_ns[MODEL_STAGES_MAX];
    /* Expert parallelism: layers dispatched (and in the latency way), rows x experts of them at all
     * ranks, and at the rank that had most; max over mean is expert_max x expert_ranks /
     * expert_slots. */
    uint64_t dispatches, dispatches_latency, expert_slots, expert_max, expert_ranks;
    uint64_t halved;                  /* steps in two halves */
    uint64_t rebalances, moved_bytes; /* sets of copies taken into use; what this rank received */
};
void model_work_stats(const struct model_work *w, struct model_work_stats *out);
