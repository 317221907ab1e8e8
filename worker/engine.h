/* engine.h: the thread that owns device, scheduler and KV of a worker, as other threads see it.
 *
 * They post messages (engine_submit, _cancel, _set_role, _drain); it works in steps: take messages
 * and transfer events, schedule, run the model, sample, hand records out. What it has to say is
 * fetched with engine_take() after config.notify was called (on the engine's thread; it must only
 * wake the fetcher). The two queues' mutexes are the only locks. Every submitted handle ends with
 * exactly one piece of output that has `last` set, unless it was cancelled. */
#pragma once
#include "lib/wire/heartbeat.h"
#include "lib/xfer/xfer.h"
#include "worker/kv.h"
#include "worker/layout/group.h"

struct engine;

struct engine_config {
    const struct model *model;
    struct model_kv kv; /* of the whole model: what blocks are outside */
    enum model_kv_dtype kv_dtype;
    uint32_t n_blocks;                 /* of each data rank */
    struct xfer_pool pool;             /* of this rank's part; outlives the engine */
    const struct group_device *device; /* computes in place of the CPU; NULL: none */
    /* The ranks that compute with this one, which is rank 0 (worker/team.h); ranks 1: none. */
    struct model_layout model_layout;
    struct model_group dispatch; /* how rows go to experts at other ranks */
    enum group_halves halves;
    struct comm *world;
    const struct xfer_slice *slices; /* all pools of the group, with copies of those apart */
    uint32_t n_slices;
    const bool *apart;      /* [ranks] */
    uint8_t *const *copies; /* [ranks] */
    struct block_name seed; /* names of blocks of requests that bring none */
    uint32_t threads, max_rows, logit_rows, max_running, max_context;
    uint32_t draft_tokens; /* of a sequence in a step, at most; 0: no speculation */
    uint64_t incarnation;
    enum wire_role role;
    /* the transfer; xfer_host NULL: none (every prompt is computed here) */
    const char *xfer_host, *shm_dir;
    uint16_t xfer_port;
    enum xfer_policy xfer_policy;
    const void *secret;
    size_t secret_len;
    uint64_t layout;
    void *weights; /* the mapping that sleep gives back; NULL: none */
    size_t weights_bytes;
    uint64_t masked_s; /* a group with a masked rank restarts after so long, or sooner when idle */
    void (*notify)(void *ctx);
    void *notify_ctx;
};

struct engine_status {
    struct wire_load load;
    uint8_t role;
    bool draining, drained, failed, asleep;
    uint32_t requests, orders, inbound; /* alive: at home, prefills for others, transfers to here */
    uint32_t in_air;                    /* batches of decodes on their way through a pipeline */
    uint32_t kv_quarantined;
    uint64_t steps, fallbacks, errors;
    uint64_t masked; /* ranks that died and that the others go on without, a bit each */
    uint32_t ranks;
    bool maskable, restart_due; /* to be whole again */
    char check[80];             /* "ok", or the invariant of the KV pool that does not hold */
};

struct engine_records {
    struct engine_records *next;
    uint64_t handle;
    bool last;
    struct buf bytes; /* encoded records */
};

struct engine_output {
    struct engine_records *records; /* in order; free with engine_records_free */
    struct engine_status status;    /* the latest */
    struct kv_event *events;        /* block names since the last fetch; free() */
    size_t n_events;
    char *requests; /* JSON array of what is alive, when it changed since the last fetch; free() */
};

int engine_start(const struct engine_config *c, struct engine **out, struct err *e) MUST_CHECK;
void engine_stop(struct engine *g); /* ends the thread at the end of its step, frees everything */
uint16_t engine_xfer_port(const struct engine *g);

/* Any thread. The body (malloc'ed, an encoded wire_request) is taken over. */
void engine_submit(struct engine *g, uint64_t handle, void *body, size_t n);
void engine_cancel(struct engine *g, uint64_t handle);
void engine_cancel_id(struct engine *g, uint64_t id0,
                      uint64_t id1); /* answers with an error record */
void engine_set_role(struct engine *g, enum wire_role role);
/* The rung of a standby worker: asleep it is `warm`. A role other than standby wakes it, whatever
 * was wanted. */
void engine_set_sleep(struct engine *g, bool wanted);
void engine_drain(
    struct engine *g,
    uint64_t deadline_ns); /* refuse what is new; abort what is left at the deadline */

void engine_take(struct engine *g, struct engine_output *out);
void engine_records_free(struct engine_records *r);
