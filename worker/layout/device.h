/* device.h: a device that computes a rank's part of a batch in place of this CPU, as the group sees
 * it (worker/backend.c makes one of a GPU). The device has the KV pool; the rank's pool in host
 * memory, of the same blocks, is where KV passes through on its way from and to other workers.
 *
 * Threads: the engine's. Errors: as model_forward's, -EIO when the device itself failed. */
#pragma once
#include "worker/model/model.h"

struct group_device {
    void *self;
    /* As model_work_data_rows, before each step with data ranks. */
    void (*data_rows)(void *self, const uint32_t *rows);
    /* As model_forward; layer_done is called while later layers compute. */
    int (*forward)(void *self, const struct model_batch *b, struct err *e);
    int (*copy)(void *self, uint32_t from, uint32_t to, struct err *e);
    /* Layers [from, to) of blocks into the host's pool; returns when they are there. May be called
     * in layer_done, for its layer. */
    int (*fetch)(void *self, const uint32_t *blocks, uint32_t n, uint32_t from, uint32_t to,
                 struct err *e);
    /* Blocks of the host's pool to the device, before its next step. */
    int (*store)(void *self, const uint32_t *blocks, uint32_t n, struct err *e);
    /* Asleep the device holds no memory, and nothing of the host's pool. */
    int (*sleep)(void *self, bool asleep, struct err *e);
    /* What it counts of model_work_stats; the rest stays as it is. */
    void (*stats)(void *self, struct model_work_stats *out);
};
