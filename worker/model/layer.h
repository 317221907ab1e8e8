/* layer.h: one thread's view of a step, and what the parts of a layer share (internal to
 * worker/model: forward.c, halves.c, moe.c, mla.c). Every thread runs the same functions on the
 * same step; products split the rows of the weights, everything between them splits the rows of the
 * batch, or (few rows) is done by each thread on its own copy.
 *
 * Of the model this rank has s->p: counts of heads and widths in a step are the part's, layers are
 * numbered as the model's, in the KV pool as the part's. A product whose columns are cut ends in
 * layer_sum, which adds up the ranks' results: exactly twice a layer. */
#pragma once
#include "worker/model/work.h"

struct step {
    struct model_work *w;
    const struct model *m;
    const struct model_config *c;
    const struct model_part *p;
    const struct kernel_ops *ops;
    uint32_t thread, threads;
    bool replicate;
    struct rows rows; /* shared, or this thread's own */
    uint32_t r0, r1;  /* rows that this thread prepares */
    /* What the part of a layer before has given, not added to h yet, and the norm that it passes
     * first; NULL: nothing, none. */
    const float *out, *post;
};

static inline void layer_split(uint32_t n, uint32_t parts, uint32_t i, uint32_t *from, uint32_t *to)
{
    *from = (uint32_t)((uint64_t)n * i / parts);
    *to = (uint32_t)((uint64_t)n * (i + 1) / parts);
}

/* After each thread prepared its rows: all of them are seen. */
static inline void layer_rows_done(struct step *s)
{
    if (!s->replicate)
        pool_barrier(s->w->pool);
}

static inline float *layer_row_h(struct step *s, uint32_t r)
{
    return s->rows.h + (size_t)r * s->c->d_model;
}

static inline float *layer_row_norm(struct step *s, uint32_t r)
{
    return s->rows.norm + (size_t)r * s->w->norm_cols;
}

static inline void layer_row_quantize(struct step *s, uint32_t r, const float *x, uint32_t n)
{
    size_t at = r * (size_t)((n + BLOCK_COLS - 1) / BLOCK_COLS);
    s->ops->quantize(x, n, s->rows.codes + at * ACT_BLOCK_BYTES, s->rows.blocks + at);
}

static inline struct acts layer_acts_of(const struct step *s, uint32_t n)
{
    return (struct acts){.x = s->rows.norm,
                         .ldx = s->w->norm_cols,
                         .codes = s->rows.codes,
                         .blocks = s->rows.blocks,
                         .n_blocks = (n + BLOCK_COLS - 1) / BLOCK_COLS};
}

static inline const float *layer_vec(const struct step *s, uint32_t layer,
                                     enum image_layer_slot slot)
{
    return image_vec(s->m, image_layer(s->m, layer, slot));
}

struct layer_product {
    const struct image_entry *weights;
    float *y;
    size_t ldy;
};

/* Products of the same activations, their groups of rows split evenly over the threads; a barrier
 * at the end. */
void layer_products(struct step *s, const struct layer_product *p, uint32_t n, const struct acts *x,
                    uint32_t rows);
/* A product whose columns are cut: of this rank's columns, then the sum over the ranks. */
void layer_product_sum(struct step *s, const struct layer_product *p, const struct acts *x,
                       uint32_t rows);
/* The ranks' parts of y, n floats, are added up; a barrier at the end when there are several. */
void layer_sum(struct step *s, float *y, size_t n);
static inline bool layer_shared(const struct step *s) /* with other ranks */
{
    return s->w->o.group.tensor && comm_ranks(s->w->o.group.tensor) > 1;
}
