/* plan.h: where each tensor of a model's files goes in the image (internal to worker/model). */
#pragma once
#include "kernels/cpu/cpu.h"
#include "worker/model/slots.h"
#include "worker/model/source.h"

struct plan {
    struct source *source;
    struct model_config config;
    struct model_shard shard;
    struct model_part part;
    struct image_entry *entries;
    uint32_t n_entries;
    uint64_t head_bytes, bytes; /* header and directory; the whole image */
};

/* Opens the file and checks that it has every tensor that its model needs, in a type and shape that
 * we have kernels for. */
int plan_open(struct plan *p, const char *path, const struct model_shard *s,
              struct err *e) MUST_CHECK;
void plan_close(struct plan *p);
/* Where matrix `number` of entry i's slot (shard_spec) comes from, checked against its shape.
 * -ENOENT: an optional one isn't there. */
int plan_part(const struct plan *p, uint32_t i, const struct slot_spec *s, uint32_t number,
              struct slot_part *part, struct source_tensor *t, struct err *e) MUST_CHECK;

void image_head_sha(const struct image_header *h, const struct image_entry *entries,
                    uint8_t out[32]);
/* A fast 64-bit checksum against damage, not against malice, of image[from, to). */
uint64_t image_checksum(const uint8_t *image, uint64_t from, uint64_t to);
uint64_t image_head_bytes(uint32_t n_entries);
