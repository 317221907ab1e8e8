/* blocks.h: GGUF's block formats decoded to codes, scales and minima (internal to worker/model; the
 * formats' own description: ggml docs, ggml-common.h). Thread-safe. */
#pragma once
#include "kernels/ops.h"

/* The form that a tensor's type is kept in; false when we have none. */
bool block_form(uint32_t gguf_type, enum mat_form *out);

/* One row of a quantised tensor, as its form wants it: `codes` [cols], `scales` and `mins` one for
 * 32 columns (scales: one for 16 in MAT_I8B16). mins are untouched in forms without. */
void block_decode(uint32_t gguf_type, const uint8_t *row, uint32_t cols, uint8_t *codes,
                  float *scales, float *mins);
/* One row of any type that has a form, as floats. */
void block_floats(uint32_t gguf_type, const uint8_t *row, uint32_t cols, float *out);
