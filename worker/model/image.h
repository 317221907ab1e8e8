/* image.h: the weight image (internal to worker/model; see model.h). One header, one directory
 * entry a tensor, then the tensors, each 4,096-byte aligned from the start of the image. Offsets
 * are relative to the image, which is therefore position-independent. All numbers are
 * little-endian, as the machine's. */
#pragma once
#include "kernels/ops.h"
#include "worker/model/shard.h"

enum image_slot { /* tensors outside layers */
                  SLOT_EMBED,
                  SLOT_OUTPUT, /* absent when tied */
                  SLOT_OUT_NORM,
                  SLOT_ROPE_FACTORS,
                  IMAGE_GLOBAL_SLOTS,
};

enum image_layer_slot {
    SLOT_ATTN_NORM,
    SLOT_Q,
    SLOT_K,
    SLOT_V,
    SLOT_Q_NORM,
    SLOT_K_NORM,
    SLOT_O,
    SLOT_POST_ATTN_NORM,
    SLOT_FFN_NORM,
    SLOT_GATE,
    SLOT_UP,
    SLOT_DOWN,
    SLOT_POST_FFN_NORM,
    SLOT_Q_BIAS,
    SLOT_K_BIAS,
    SLOT_V_BIAS,
    SLOT_Q_A, /* latent attention: queries compressed (SLOT_Q takes them on), their norm, KV */
    SLOT_Q_A_NORM,
    SLOT_KV_A,
    SLOT_KV_A_NORM,
    SLOT_K_UP, /* of each head: its part without rotation into the latent space */
    SLOT_V_UP, /* of each head: the latent to its value */
    SLOT_ROUTER,
    SLOT_ROUTER_BIAS,
    SLOT_EXPERT_GATE, /* of each expert; shared ones are SLOT_GATE, SLOT_UP, SLOT_DOWN */
    SLOT_EXPERT_UP,
    SLOT_EXPERT_DOWN,
    IMAGE_LAYER_SLOTS,
};

struct image_entry {
    uint32_t form; /* enum mat_form; 0: a vector of f32 */
    uint32_t rows, cols;
    uint32_t reserved;
    uint64_t offset, bytes; /* bytes 0: the model has no such tensor */
};

#define IMAGE_MAGIC   "BATONIMG"
#define IMAGE_VERSION 3u
#define IMAGE_FORM    "x86-r16" /* how matrices lie; the same for scalar, AVX2 and AVX-512 */

struct image_header {
    char magic[8];
    uint32_t version, n_entries;
    char form[16];
    uint64_t bytes;       /* of the whole image */
    uint64_t checksum;    /* of everything after the header page, set last */
    uint8_t head_sha[32]; /* SHA-256 of shard, config and directory */
    struct model_shard shard;
    struct model_config config;
};

#define IMAGE_ENTRIES_AT 1024u
_Static_assert(sizeof(struct image_header) <= IMAGE_ENTRIES_AT,
               "the header fits before the directory");

struct model {
    struct model_config config; /* of the whole model */
    struct model_shard shard;
    struct model_part part; /* what this image has of it */
    const struct kernel_ops *ops;
    const uint8_t *image;
    const struct image_entry *entries;
    void *owned; /* the mapping, when model_load made it */
    uint64_t owned_bytes;
};

/* Entry of a tensor; `layer` is ignored for global slots. */
const struct image_entry *image_global(const struct model *m, enum image_slot slot);
const struct image_entry *image_layer(const struct model *m, uint32_t layer,
                                      enum image_layer_slot slot);
struct mat image_mat(const struct model *m, const struct image_entry *en);
const float *image_vec(const struct model *m, const struct image_entry *en); /* NULL when absent */
