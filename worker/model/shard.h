/* shard.h: which part of a model one rank holds (DESIGN.md §5; tensor: Megatron-LM,
 * arXiv 1909.08053; pipeline: stages of consecutive layers).
 *
 * tensor    query heads, the feed-forward width and the vocabulary are split over the ranks of a
 *           stage, in order: the projections into them by rows, those out of them by columns. A
 *           rank keeps every KV head that one of its query heads reads, so a KV head may lie at
 *           several ranks, and a rank may have no head at all.
 * expert    the routed experts are split over `expert` ranks, each whole; with one such rank their
 *           width is split over the tensor ranks instead.
 * pipeline  stage s has the layers [layer0, layer1). The first stage has both ends, embedding and
 *           head, so that a tied matrix lies once in the group.
 *
 * Cuts of columns lie at multiples of 32, where blocks of quantised weights and activations begin.
 * Pure functions of config and shard: every rank computes every other rank's part.
 */
#pragma once
#include "worker/model/model.h"

#define MODEL_RANKS_MAX 64u

struct model_shard { /* numbers of parts: 0 means 1 */
    uint32_t tensor, tensor_rank, pipeline, stage, expert, expert_rank;
};

/* Half-open ranges of the whole model's. */
struct model_part {
    uint32_t q0, q1, kv0, kv1; /* heads */
    uint32_t ff0, ff1, vocab0, vocab1;
    uint32_t shared0, shared1;                         /* width of the shared experts */
    uint32_t expert0, expert1, expert_ff0, expert_ff1; /* routed experts, and their width */
    uint32_t layer0, layer1;
    bool first; /* has embedding and head */
};

/* -EINVAL when the model can't be cut so: more stages than layers, a rank out of range. */
int model_shard_check(const struct model_config *c, const struct model_shard *s,
                      struct err *e) MUST_CHECK;
void model_part_of(const struct model_config *c, const struct model_shard *s,
                   struct model_part *out);
/* What the cut wastes, as one sentence ("3 of 8 ranks have no attention head"), or false. */
bool model_shard_wastes(const struct model_config *c, const struct model_shard *s, char *out,
                        size_t n);

/* Rank r of a group of data x pipeline x tensor ranks, tensor innermost. */
struct model_layout {
    uint32_t tensor, pipeline, expert, data;
};
uint32_t model_layout_ranks(const struct model_layout *l);
/* With data ranks: whether their experts can be dealt so. */
int model_layout_check(const struct model_config *c, const struct model_layout *l,
                       struct err *e) MUST_CHECK;
struct model_shard model_layout_shard(const struct model_layout *l, uint32_t rank);

/* As model_image_bytes, _fill and model_load (model.h), of one part; NULL: of the whole. */
int model_shard_bytes(const char *path, const char *isa, const struct model_shard *s,
                      uint64_t *bytes, struct err *e) MUST_CHECK;
int model_shard_fill(const char *path, const char *isa, const struct model_shard *s, void *image,
                     uint64_t bytes, struct err *e) MUST_CHECK;
int model_shard_load(const char *path, const char *isa, const struct model_shard *s,
                     struct model **out, struct err *e) MUST_CHECK;
const struct model_shard *model_shard_of(const struct model *m);
const struct model_part *model_part(const struct model *m);
uint64_t model_shard_weight_bytes(const struct model *m); /* of tensors, without header */

/* KV of a part: model_kv_init with its layers and KV heads. */
int model_kv_part(struct model_kv *kv, const struct model_config *c, const struct model_part *p,
                  enum model_kv_dtype dtype, uint32_t block_tokens, struct err *e) MUST_CHECK;
