/* mla.h: multi-head latent attention, absorbed (internal to worker/model; DeepSeek-V2, arXiv
 * 2405.04434). What is cached of a token is its latent: kv_rank normed values, then the rotated key
 * part that all heads share. A query's part without rotation is taken into the latent space by its
 * head's SLOT_K_UP, attention runs over latents with one KV head, and SLOT_V_UP takes what it gives
 * to the head's value.
 *
 * Threads: as layer.h. */
#pragma once
#include "worker/model/layer.h"

/* Memory of a model_work: nothing when the model has ordinary attention. */
void mla_carve(struct carve *c, struct model_work *w);
/* From the normed rows to queries in w->qkv and latents in the pool. Ends with a barrier. */
void mla_queries(struct step *s, uint32_t layer);
/* From what attention gave (w->att, [rows, heads, rank]) to the output product's activations in the
 * rows' norm, quantised: [rows, heads x v]. All rows are seen after. */
void mla_values(struct step *s, uint32_t layer);

/* One row's K or V of one head into its block (forward.c). */
void forward_store_kv(struct step *s, const float *x, uint32_t row, uint32_t layer, bool v,
                      uint32_t head);
