/* source.h: where a model's weights come from: a GGUF file, or a folder of a Hugging Face model
 * (internal to worker/model). Both answer alike: tensors by name, rows of bytes, a type.
 *
 * Ownership: the source owns the files; one thread at a time. */
#pragma once
#include "worker/model/config.h"

/* Types: those of GGUF, and what only safetensors have. */
#define SOURCE_F8       1000u /* E4M3 with a scale for 128 x 128 weights (DeepSeek-V3) */
#define SOURCE_F8_BLOCK 128u

struct source_tensor {
    uint32_t type;
    uint64_t rows, cols; /* cols: the fastest dimension; all others together are rows */
    uint64_t row_bytes;
    const struct gguf_tensor *g; /* one of them */
    const struct safetensors_tensor *s;
    const struct safetensors_tensor *scales; /* of SOURCE_F8 */
};

struct source;
int source_open(const char *path, struct source **out, struct err *e) MUST_CHECK;
void source_free(struct source *s); /* NULL is fine */
const struct model_config *source_config(const struct source *s);
bool source_is_hf(const struct source *s); /* which names its tensors have */

/* False when there is no such tensor. Names of safetensors are those of a text model ("model.…");
 * what a model with an image tower puts before them is added here. */
bool source_find(const struct source *s, const char *name, struct source_tensor *out);
const char *source_type_name(const struct source_tensor *t);
/* Copies `n` rows from `row` on. */
int source_rows(const struct source *s, const struct source_tensor *t, uint64_t row, uint64_t n,
                void *out, struct err *e) MUST_CHECK;
/* The scales of one row of a SOURCE_F8: one for 128 columns. */
int source_scales(const struct source *s, const struct source_tensor *t, uint64_t row, float *out,
                  struct err *e) MUST_CHECK;
