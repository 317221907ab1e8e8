/* gguf.h: a reader of GGUF files (v2, v3, little-endian; specification: ggml docs/gguf.md).
 * Metadata is read into memory with pread and checked completely at open, so that a truncated or
 * hostile file is one clear error: every count is bounded by the bytes that are left, every product
 * is overflow-checked, every tensor must lie inside the file. Tensor data is never mapped (a file
 * that shrinks can't raise SIGBUS): gguf_read() copies it.
 *
 * Ownership: the reader owns everything it returns (strings, arrays, tensors) until gguf_free().
 * Not thread-safe: one thread at a time. Lookups return -ENOENT when the key is absent and -EINVAL
 * when its type doesn't fit; the output is written only on success.
 */
#pragma once
#include "lib/base/str.h"

struct gguf;

/* Block types of tensors (the numbers are the format's). */
enum gguf_type {
    GGUF_F32 = 0,
    GGUF_F16 = 1,
    GGUF_Q4_0 = 2,
    GGUF_Q4_1 = 3,
    GGUF_Q5_0 = 6,
    GGUF_Q5_1 = 7,
    GGUF_Q8_0 = 8,
    GGUF_Q4_K = 12,
    GGUF_Q5_K = 13,
    GGUF_Q6_K = 14,
    GGUF_BF16 = 30,
};

struct gguf_tensor {
    struct str name;
    uint32_t
        type; /* an enum gguf_type, or another number of the format that we have no kernels for */
    uint32_t n_dims;
    uint64_t ne[4];  /* ne[0] is the fastest dimension (a row's length); unused ones are 1 */
    uint64_t offset; /* of the data, from the start of the file */
    uint64_t bytes;  /* 0 for a type without a known block size */
};

int gguf_open(const char *path, struct gguf **out, struct err *e) MUST_CHECK;
/* Takes over fd (closed by gguf_free, also when it fails); `name` is for messages. */
int gguf_open_fd(int fd, const char *name, struct gguf **out, struct err *e) MUST_CHECK;
void gguf_free(struct gguf *g);
uint64_t gguf_file_bytes(const struct gguf *g);

int gguf_u64(const struct gguf *g, const char *key,
             uint64_t *out) MUST_CHECK; /* any integer type, not negative */
int gguf_f64(const struct gguf *g, const char *key, double *out) MUST_CHECK; /* any number */
int gguf_bool(const struct gguf *g, const char *key, bool *out) MUST_CHECK;
int gguf_str(const struct gguf *g, const char *key, struct str *out) MUST_CHECK;

/* Arrays, decoded at the first lookup and kept. Integers of any width as int64_t, floats as float.
 */
int gguf_strs(struct gguf *g, const char *key, const struct str **out, size_t *n) MUST_CHECK;
int gguf_i64s(struct gguf *g, const char *key, const int64_t **out, size_t *n) MUST_CHECK;
int gguf_f32s(struct gguf *g, const char *key, const float **out, size_t *n) MUST_CHECK;

size_t gguf_n_tensors(const struct gguf *g);
const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, size_t i);
const struct gguf_tensor *gguf_tensor(const struct gguf *g,
                                      const char *name); /* NULL when absent */
/* Copies n bytes of the tensor's data, starting `from` bytes into it. */
int gguf_read(const struct gguf *g, const struct gguf_tensor *t, uint64_t from, void *out, size_t n,
              struct err *e) MUST_CHECK;

/* Elements and bytes of one block of a type; false when we don't know the type. */
bool gguf_type_block(uint32_t type, uint32_t *elements, uint32_t *bytes);
const char *
gguf_type_name(uint32_t type); /* "Q4_K"; "type 99" style names are static too: "unknown" */
