/* slices.h: a KV pool that lies in slices, each at its own place (private to lib/xfer). A piece,
 * one layer of one block, is canonical outside: `halves` (K and V) x heads x head_bytes. A slice
 * has some layers and some heads of it, perhaps of some blocks only (a data rank's); heads may lie
 * in several slices, which then hold the same. Offsets in a piece are bytes, so the two ends of a
 * transfer need not agree on heads. One thread, the transfer's; nothing is owned but what
 * slices_map mapped. */
#pragma once
#include "lib/xfer/xfer.h"

struct slices {
    uint32_t n, halves, heads;
    size_t piece_bytes;
    struct xfer_slice s[XFER_SLICES_MAX];
};

/* Of a worker's own pool. -EINVAL when the slices don't cover every layer and head of every block,
 * or overlap their pools. */
int slices_of(const struct xfer_cfg *c, struct slices *out, struct err *e) MUST_CHECK;
bool slices_flat(const struct slices *v); /* one slice with everything in canonical order */
uint8_t *slices_piece(const struct slices *v, uint32_t block, uint32_t layer); /* of a flat one */

/* A piece from one pool to another, to every slice that has its bytes. */
void slices_copy(const struct slices *to, uint32_t to_block, const struct slices *from,
                 uint32_t from_block, uint32_t layer, bool stream);
void slices_gather(const struct slices *v, uint32_t block, uint32_t layer, uint8_t *piece);
void slices_scatter(const struct slices *v, uint32_t block, uint32_t layer, const uint8_t *piece);

/* What a peer on this host is told so that it can map the pool; with as many descriptors. */
#define SLICES_HEAD_BYTES 16u
#define SLICE_BYTES       48u
#define SLICES_BODY_MAX   (SLICES_HEAD_BYTES + XFER_SLICES_MAX * SLICE_BYTES)
size_t slices_encode(const struct slices *v, uint8_t body[SLICES_BODY_MAX]);
/* Maps what a peer has described, of `n_blocks` blocks of n_layers pieces; takes the descriptors
 * over. -EINVAL when it can't be. */
int slices_map(struct slices *out, const uint8_t *body, size_t n, int *fds, uint32_t n_fds,
               uint32_t n_blocks, uint32_t n_layers, size_t piece_bytes) MUST_CHECK;
void slices_unmap(struct slices *v);
