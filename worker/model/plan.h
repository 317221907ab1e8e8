/* plan.h: where each tensor of a GGUF file goes in the image (internal to worker/model). */
#pragma once
#include "kernels/cpu/cpu.h"
#include "lib/llm/gguf.h"
#include "worker/model/image.h"

struct plan {
    struct gguf *file;
    struct model_config config;
    struct model_shard shard;
    struct model_part part;
    struct image_entry *entries;
    const struct gguf_tensor **tensors; /* of each entry; NULL when absent */
    uint32_t n_entries;
    uint64_t head_bytes, bytes; /* header and directory; the whole image */
};

/* Opens the file and checks that it has every tensor that its model needs, in a type and shape that
 * we have kernels for. */
int plan_open(struct plan *p, const char *gguf_path, const struct model_shard *s,
              struct err *e) MUST_CHECK;
void plan_close(struct plan *p);

void image_head_sha(const struct image_header *h, const struct image_entry *entries,
                    uint8_t out[32]);
/* A fast 64-bit checksum against damage, not against malice, of image[from, to). */
uint64_t image_checksum(const uint8_t *image, uint64_t from, uint64_t to);
uint64_t image_head_bytes(uint32_t n_entries);
