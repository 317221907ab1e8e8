/* options.h: what baton-worker is told, by flags and by the environment of a worker pod
 * (docs/contracts.md), and what follows from it: the model's file, threads, and how memory is
 * shared out. */
#pragma once
#include "lib/xfer/xfer.h"
#include "worker/layout/group.h"

struct options {
    bool plan, fill, score, stats;
    const char *model, *source, *sha256, *isa, *ids;
    const char *role, *host, *pod_name, *secret_file, *peer_dir, *shm_dir, *kv_dtype, *xfer,
        *incarnation;
    const char *backend;
    const char *log_level, *log_format, *model_name, *dispatch, *dispatch_type, *two_batch,
        *speculation, *mask;
    uint64_t http_port, xfer_port, threads, cpu_limit_milli, memory_limit_bytes;
    uint64_t kv_bytes, block_tokens, max_context, max_rows, max_running, max_queue, drain_s;
    uint64_t tp, pp, ep, dp, pods, rank, redundant, balance_steps, draft_tokens, masked_s;
    uint64_t launcher_fd, weights_fd, comm_fd, comm_port, stuck_ms;
    uint64_t copies_bytes; /* no option: of experts, at this pod's ranks, once that is known */
};

/* Returns as conf_parse does: 1 when help was answered. */
int options_parse(int argc, char **argv, struct options *o, struct err *e) MUST_CHECK;
/* Path of the model, a GGUF file or a folder: --model, or the first entry of BATON_MODEL_SOURCE
 * when it is a file:// URL. Heap. */
int options_model_path(const struct options *o, char **path, struct err *e) MUST_CHECK;
/* The deployment's peer secret: --secret-file, else $BATON_PEER_DIR/secret. Heap, white space
 * trimmed. */
int options_secret(const struct options *o, char **secret, struct err *e) MUST_CHECK;
uint32_t
options_threads(const struct options *o); /* min(limit, cgroup quota, allowed CPUs), at least 1 */
int options_kv_dtype(const struct options *o, enum model_kv_dtype *out, struct err *e) MUST_CHECK;

struct model_layout options_layout(const struct options *o);
/* Whether batches are computed as two halves: the group's option. */
int options_halves(const struct options *o, enum group_halves *out, struct err *e) MUST_CHECK;
/* How rows go to experts at other ranks: dispatch, dispatch_fp8, redundant, balance_steps, cover
 * of *out. */
int options_dispatch(const struct options *o, struct model_group *out, struct err *e) MUST_CHECK;

/* Whether ranks keep copies of other ranks' experts. */
bool options_has_copies(const struct options *o, const struct model_config *m);

struct budget {
    struct model_kv kv, part; /* of the whole model; of this rank's part */
    enum model_kv_dtype dtype;
    uint32_t context, logit_rows, n_blocks; /* blocks of each data rank */
    /* Of this pod's ranks together: a block, the pools, everything but weights and pools. */
    uint64_t pod_block_bytes, kv_bytes, other_bytes;
};
/* `least`: the smallest pool that is useful (for --plan), else what is configured or what the limit
 * leaves. -ENOMEM with "Needs … has …" when the limit leaves less than one block a sequence needs.
 */
int options_budget(const struct options *o, const struct model_config *m, bool least,
                   struct budget *b, struct err *e) MUST_CHECK;
