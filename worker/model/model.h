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

enum model_arch { MODEL_LLAMA = 1, MODEL_GEMMA3 = 2 };

#define MODEL_LAYERS_MAX 256
#define MODEL_NO_TOKEN   UINT32_MAX

struct model_config {
    enum model_arch arch;
    char name[64]; /* general.name */
    uint32_t n_layers, d_model, n_heads, n_kv_heads, head_dim, d_ff, vocab;
    uint32_t context_tokens;
    uint32_t sliding_window; /* tokens that a local layer sees (0: every layer is global) */
    uint32_t global_every;   /* layer i is global when (i + 1) % global_every == 0 (1: all are) */
    uint32_t rope_dims;
    float rope_base, rope_base_local; /* of global and of local layers */
    float rope_scale;                 /* positions of global layers are divided by it */
    float norm_eps, embed_scale, attn_scale;
    uint8_t rope_neox, qk_norm, post_norm, gelu, tied, add_bos, reserved[2];
    uint32_t bos, eos,
        eot;           /* MODEL_NO_TOKEN when the file names none; eot: end of a turn in chat */
    uint64_t n_params; /* weights in the file, embeddings included */
};

/* Reads and checks what a GGUF file says of the model; no weights are loaded. */
int model_config_read(const char *gguf_path, struct model_config *out, struct err *e) MUST_CHECK;
bool model_layer_is_local(const struct model_config *c, uint32_t layer);

/* ---- weights ---- */

/* `isa`: "scalar", "avx2", "avx512"; NULL or "" is the best that this machine has, or $BATON_ISA.
 */
int model_image_bytes(const char *gguf_path, const char *isa, uint64_t *bytes,
                      struct err *e) MUST_CHECK;
/* Fills `image` (64-byte aligned, of model_image_bytes() bytes). On failure its content is not a
 * valid image. */
int model_image_fill(const char *gguf_path, const char *isa, void *image, uint64_t bytes,
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
int model_load(const char *gguf_path, const char *isa, struct model **out,
               struct err *e) MUST_CHECK;
void model_free(struct model *m);
const struct model_config *model_config(const struct model *m);
const char *model_isa(const struct model *m); /* "avx512" */

/* ---- KV layout ---- */

enum model_kv_dtype { MODEL_KV_F16, MODEL_KV_F32 };
#define MODEL_BLOCK_TOKENS 32u

struct model_kv {
    uint32_t n_layers, n_kv_heads, head_dim, block_tokens, elt_bytes;
    uint64_t head_bytes;  /* one head's K or V in a block: block_tokens x head_dim elements */
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

struct model_batch {
    const struct model_segment *segments;
    uint32_t n_segments;
    float *logits;        /* [n_out, vocab], in the order of segments and rows */
    uint32_t logits_rows; /* rows that `logits` has room for */
    /* Called on the engine's thread when every row's KV of `layer` has been written, before the
     * layer's attention: a push of (block, layer) pieces may begin. Layers come in order. May be
     * NULL. Must not block. */
    void (*layer_done)(void *ctx, uint32_t layer);
    void *ctx;
};

struct model_work_options {
    uint32_t threads;      /* 1..64, from the cgroup quota */
    uint32_t max_rows;     /* most tokens in one batch, 1..65536 */
    uint32_t block_tokens; /* 0: MODEL_BLOCK_TOKENS */
    enum model_kv_dtype kv_dtype;
    uint32_t pool_blocks; /* size of the KV pool; block numbers are checked against it */
};

struct model_work;
int model_work_new(const struct model *m, const struct model_work_options *o,
                   struct model_work **out, struct err *e) MUST_CHECK;
void model_work_free(struct model_work *w);
const struct model_kv *model_work_kv(const struct model_work *w);
uint64_t model_work_bytes(const struct model_work *w); /* memory that it holds */

/* Runs the batch: rows are computed, KV written, logits filled. `kv_pool` is 64-byte aligned. On
 * failure (a token or block out of range, a position past the context, too many rows) nothing was
 * computed. */
int model_forward(const struct model *m, struct model_work *w, void *kv_pool,
                  const struct model_batch *b, struct err *e) MUST_CHECK;
uint32_t model_batch_outputs(const struct model_batch *b); /* rows of logits that it will write */
