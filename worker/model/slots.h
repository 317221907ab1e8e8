/* slots.h: which tensors a model has, under which names, of which shapes (internal to
 * worker/model). */
#pragma once
#include "worker/model/image.h"

/* How tensor parallelism cuts a tensor: into heads, feed-forward width or vocabulary, by rows or by
 * columns. */
enum slot_cut {
    CUT_NONE, /* every rank has all of it */
    CUT_Q_ROWS,
    CUT_KV_ROWS,
    CUT_Q_COLS,
    CUT_FF_ROWS,
    CUT_FF_COLS,
    CUT_VOCAB_ROWS,
    CUT_KV_COLS,
    CUT_SHARED_ROWS, /* shared experts' width */
    CUT_SHARED_COLS,
    CUT_HEAD_PARTS,  /* one matrix a head */
    CUT_EXPERT_ROWS, /* one matrix an expert: which ones, and feed-forward width */
    CUT_EXPERT_COLS,
};

struct slot_spec {
    char name[64]; /* of the slot, as messages and GGUF have it */
    bool vector;   /* f32 [cols] */
    bool wanted;   /* of this architecture */
    bool optional;
    bool ends; /* global: of the first stage only */
    enum slot_cut cut;
    uint32_t rows, cols;                     /* of the whole model, or of the part (shard_spec) */
    uint32_t row0, col0, rows_all, cols_all; /* set by shard_spec: where the part lies in what */
    uint32_t part0, parts, parts_all;        /* matrices of that shape (1, or experts, or heads) */
};
static inline uint32_t slot_rows(const struct slot_spec *s)
{
    return s->rows * s->parts;
}

/* Entry i of the directory: the global slots, then those of each layer. */
uint32_t slots_count(const struct model_config *c);
void slots_spec(const struct model_config *c, uint32_t i, struct slot_spec *out);
/* Of one part of the model: what is not there is not wanted. */
void shard_spec(const struct model_config *c, const struct model_part *p, uint32_t i,
                struct slot_spec *out);

/* Where one of a slot's matrices is read from. */
struct slot_part {
    char name[128];
    uint64_t row0;   /* its first row in that tensor */
    bool transposed; /* the tensor has columns where the slot has rows */
    bool plus_one;   /* a vector whose values are stored less 1 (Gemma's norms) */
};
/* Part `part` of entry i in a GGUF file, or in Hugging Face's safetensors. `way` counts up through
 * the ways in which files have it; false past the last. */
bool slots_part(const struct model_config *c, uint32_t i, uint32_t part, bool hf, uint32_t way,
                struct slot_part *out);

/* Dimensions of a query head as it is projected, and of what a head gives to the output. */
static inline uint32_t slots_q_dim(const struct model_config *c)
{
    return c->mla.rank ? c->mla.nope + c->rope_dims : c->head_dim;
}
static inline uint32_t slots_o_dim(const struct model_config *c)
{
    return c->mla.rank ? c->mla.v : c->head_dim;
}
