/* launch.h: the operations of a GPU step: each checks its shapes, chooses grid, block and shared
 * memory, and puts the kernel on a stream. The tables of arguments (kernels.h) hold device
 * addresses. Errors: -EINVAL for a shape that the kernels do not have, else as gpu.h. */
#pragma once
#include "kernels/cuda/gpu.h"

/* An address of gpu.h as the pointer that kernels.h wants. */
#define GPU_AS(type, p) ((type *)(uintptr_t)(p))

int gpu_embed(struct gpu *g, const struct embed_args *a, uint32_t rows, struct err *e) MUST_CHECK;
int gpu_add_norm(struct gpu *g, const struct add_norm_args *a, uint32_t rows,
                 struct err *e) MUST_CHECK;
int gpu_rope_store(struct gpu *g, const struct rope_args *a, uint32_t rows,
                   struct err *e) MUST_CHECK;
int gpu_gated(struct gpu *g, const struct gated_args *a, uint32_t rows, struct err *e) MUST_CHECK;

/* Splits that fill the device for `rows` rows at contexts of up to `tokens`; 1..32. */
uint32_t gpu_decode_splits(const struct gpu *g, uint32_t rows, uint32_t blocks_a_row,
                           uint32_t tokens);
bool gpu_attention_has(uint32_t dim); /* heads of so many channels */
bool gpu_kv_has(uint32_t form);       /* KV of this type */
/* `part` and `part_ml` are needed when splits > 1. */
int gpu_decode_attention(struct gpu *g, const struct decode_attention_args *a, uint32_t rows,
                         uint32_t dim, uint32_t splits, struct err *e) MUST_CHECK;
int gpu_prefill_attention(struct gpu *g, const struct prefill_attention_args *a, uint32_t tiles,
                          uint32_t dim, struct err *e) MUST_CHECK;
bool gpu_mla_has(uint32_t latent, uint32_t rope); /* latent attention of these widths */
int gpu_mla_prepare(struct gpu *g, const struct mla_prepare_args *a, uint32_t rows,
                    struct err *e) MUST_CHECK;
int gpu_mla_decode(struct gpu *g, const struct mla_decode_args *a, uint32_t rows, uint32_t latent,
                   uint32_t rope, uint32_t splits, struct err *e) MUST_CHECK;
/* Latents made heads of these widths again. */
bool gpu_mla_expands(uint32_t nope, uint32_t rope, uint32_t v);
int gpu_mla_gather(struct gpu *g, const struct mla_gather_args *a, struct err *e) MUST_CHECK;
/* bf16: queries, keys and values are, else f16. */
int gpu_mla_prefill(struct gpu *g, const struct mla_prefill_args *a, uint32_t tiles, uint32_t nope,
                    uint32_t rope, uint32_t v, bool bf16, struct err *e) MUST_CHECK;
int gpu_head_gemm(struct gpu *g, const struct head_gemm_args *a, uint32_t heads,
                  struct err *e) MUST_CHECK;

/* c = a b^T by cuBLASLt where it was found, else by our own kernel. k a multiple of 8. */
int gpu_gemm(struct gpu *g, const struct gemm_args *a, struct err *e) MUST_CHECK;
bool gpu_gemm_is_library(const struct gpu *g);
void gpu_gemm_fini(struct gpu *g);

int gpu_moe_gate(struct gpu *g, const struct moe_gate_args *a, uint32_t rows,
                 struct err *e) MUST_CHECK;
/* Most places that n choices of `experts` can need: a multiple of 64. */
uint32_t gpu_moe_places(uint32_t n, uint32_t experts);
/* Counts (cleared first) and places. */
int gpu_moe_sort(struct gpu *g, const struct moe_place_args *a, uint32_t *counts,
                 struct err *e) MUST_CHECK;
int gpu_grouped_gemm(struct gpu *g, const struct grouped_gemm_args *a, uint32_t places,
                     struct err *e) MUST_CHECK;
int gpu_combine(struct gpu *g, const struct combine_args *a, uint32_t rows,
                struct err *e) MUST_CHECK;
int gpu_fp8_pack(struct gpu *g, const struct fp8_pack_args *a, uint32_t rows,
                 struct err *e) MUST_CHECK;
int gpu_fp8_unpack(struct gpu *g, const struct fp8_unpack_args *a, uint32_t rows,
                   struct err *e) MUST_CHECK;
/* counts, then take and place. */
int gpu_ep_list(struct gpu *g, const struct ep_list_args *a, struct err *e) MUST_CHECK;
int gpu_ep_pack(struct gpu *g, const struct ep_pack_args *a, uint32_t items,
                struct err *e) MUST_CHECK;
int gpu_ep_join(struct gpu *g, const struct ep_join_args *a, uint32_t rows,
                struct err *e) MUST_CHECK;
int gpu_relayout(struct gpu *g, enum gpu_stream s, const struct relayout_args *a, uint32_t runs,
                 struct err *e) MUST_CHECK;
int gpu_bias(struct gpu *g, const struct bias_args *a, struct err *e) MUST_CHECK;
int gpu_sample(struct gpu *g, const struct sample_args *a, uint32_t rows, struct err *e) MUST_CHECK;
int gpu_top_n(struct gpu *g, const struct top_n_args *a, uint32_t rows, struct err *e) MUST_CHECK;
