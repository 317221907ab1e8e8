/* safetensors.h: a reader of safetensors files, one or sharded (specification: huggingface
 * safetensors, "Format"; model.safetensors.index.json as transformers writes it). Headers are read
 * with pread and checked completely at open: every number is bounded, shapes are overflow-checked,
 * a file's tensors cover its data without holes or overlaps, names are unique over all shards, the
 * index names plain file names inside its own folder. Tensor data is never mapped (a file that
 * shrinks can't raise SIGBUS): safetensors_read() copies it.
 *
 * Ownership: the reader owns everything it returns until safetensors_free(). One thread at a time;
 * safetensors_read() of an open reader may be called from several. -EINVAL for a bad file, -ENOENT,
 * -EIO, -ENOMEM.
 */
#pragma once
#include "lib/base/str.h"

#define SAFETENSORS_DIMS_MAX   8u
#define SAFETENSORS_SHARDS_MAX 1024u

struct safetensors;

enum safetensors_type {
    ST_BOOL,
    ST_U8,
    ST_I8,
    ST_F8_E4M3,
    ST_F8_E5M2,
    ST_F8_E8M0,
    ST_I16,
    ST_U16,
    ST_F16,
    ST_BF16,
    ST_I32,
    ST_U32,
    ST_F32,
    ST_I64,
    ST_U64,
    ST_F64,
    ST_C64,
    ST_F4, /* two elements a byte */
    ST_TYPES,
};
const char *safetensors_type_name(enum safetensors_type t); /* "BF16" */
uint32_t safetensors_type_bits(enum safetensors_type t);    /* of one element */

struct safetensors_tensor {
    struct str name;
    enum safetensors_type type;
    uint32_t n_dims; /* 0: a scalar */
    uint32_t shard;
    uint64_t shape[SAFETENSORS_DIMS_MAX]; /* the last is the fastest; unused ones are 1 */
    uint64_t offset, bytes;               /* of the data, from the start of its file */
};

/* `path`: a .safetensors file, an .index.json, or a folder that holds model.safetensors.index.json,
 * model.safetensors or a single *.safetensors. */
int safetensors_open(const char *path, struct safetensors **out, struct err *e) MUST_CHECK;
void safetensors_free(struct safetensors *s); /* NULL is fine */

size_t safetensors_n_tensors(const struct safetensors *s);
const struct safetensors_tensor *safetensors_at(const struct safetensors *s,
                                                size_t i); /* by name */
const struct safetensors_tensor *safetensors_find(const struct safetensors *s,
                                                  const char *name); /* NULL when absent */
uint64_t safetensors_file_bytes(const struct safetensors *s);        /* of all shards */
/* Copies n bytes of the tensor's data, starting `from` bytes into it. */
int safetensors_read(const struct safetensors *s, const struct safetensors_tensor *t, uint64_t from,
                     void *out, size_t n, struct err *e) MUST_CHECK;
