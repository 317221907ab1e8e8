/* seq.h: a request and its sequences (one a choice) inside the engine. Plain data with
 * constructors; who holds which KV block is changed only through the seq_ functions here, so that a
 * table and the pool's counts never differ.
 *
 * A request is at home here (handle != 0: a client waits for records) or an order (order_id != 0: a
 * decode worker waits for its KV and first tokens). Its tokens, parameters and names point into its
 * body. One thread: the engine's. */
#pragma once
#include "lib/wire/request.h"
#include "worker/kv.h"

enum seq_state {
    SEQ_UNBORN,  /* a choice that will fork from choice 0 when the prompt is done */
    SEQ_WAITING, /* in the queue, holds no block */
    SEQ_RUNNING,
    SEQ_REMOTE,  /* a prefill worker has been ordered */
    SEQ_HOLDING, /* an order whose blocks are held until the transfer's end */
    SEQ_ENDED,
};

struct request;

struct seq {
    struct request *req;
    struct seq *prev, *next; /* the engine's queue */
    uint16_t choice;
    uint8_t state, finish;
    bool flying, release_due; /* on its way through a pipeline: blocks are given back afterwards */
    uint32_t *tokens;         /* prompt and generated */
    uint32_t n_tokens, cap_tokens;
    uint32_t computed; /* positions that have KV */
    uint32_t expected; /* while it waits: positions that were cached when last looked */
    uint32_t rank;     /* data rank of its blocks: chosen while it waits */
    uint32_t *blocks, n_blocks, cap_blocks;
    struct block_name *names; /* of the full blocks of tokens[], as far as computed */
    uint32_t n_names, cap_names;
    uint32_t n_named;    /* blocks given to the prefix cache, or found in it */
    struct draft *draft; /* its guesses (draft.h); NULL: none so far */
};

struct inbound; /* a transfer to here (handover.h) */

struct request {
    struct request *prev, *next;
    uint64_t handle, order_id;
    void *body;
    size_t body_bytes;
    struct wire_request wire;
    struct block_name seed;   /* names continue from here when the request brought none */
    struct seq *seqs;         /* [wire.n] */
    uint32_t n_open;          /* choices not ended */
    uint32_t n_flying;        /* choices on their way: it can't be freed */
    uint32_t prompt_reported; /* entries of prompt logprobs sent */
    uint64_t arrived_ns, started_ns, prefilled_ns, deadline_ns;
    struct inbound *inbound;
    struct buf out; /* records not sent yet (of an order: for its done message) */
    bool opened;    /* the first record was written */
    bool ended;     /* nothing more to compute: reaped at the end of the engine's round */
    /* an order's */
    bool asked, granted;
    bool closed;          /* done, failed or aborted: waits for the release of its blocks */
    uint32_t have_blocks; /* leading blocks that the decode worker has */
    /* for usage */
    uint32_t cached_tokens, generated_tokens, preemptions;
    uint64_t kv_bytes, prefill_us;
    bool remote;       /* a prefill worker did the prompt */
    char fallback[96]; /* why it did not, when it was asked to */
};

/* Takes the body over (malloc'ed; freed on failure too). -EINVAL for what can't be: names that
 * outnumber full blocks, a token past the vocabulary, more tokens than the context. */
int request_new(void *body, size_t n, const struct block_name *seed, uint32_t block_tokens,
                uint32_t vocab, uint32_t context, struct request **out, struct err *e) MUST_CHECK;
void request_free(struct request *r); /* its sequences must hold no block */
bool request_reports_prompt(
    const struct request *r); /* prompt logprobs asked for and not all reported */
uint32_t request_generated(const struct seq *s); /* tokens generated, those of a replay included */

void seq_push(struct seq *s, uint32_t token);
void seq_reserve(struct seq *s, uint32_t n); /* room in tokens[] */
/* Names of all full blocks of tokens[]: the request's own first, then the chain is continued. */
void seq_extend_names(struct seq *s, uint32_t block_tokens);
/* Leading full blocks that are cached at s->rank, at least one token left to compute. */
uint32_t seq_find(struct seq *s, const struct kv *kv, uint32_t *blocks, uint32_t max,
                  uint32_t *idle);
void seq_expect(struct seq *s, const struct kv *kv); /* sets `expected`, of the best rank */
void seq_add_block(struct seq *s, uint32_t block);   /* takes over one hold */
/* Blocks of s->rank so that `tokens` positions have room; false when there are none left (what was
 * got is kept). */
bool seq_grow(struct seq *s, struct kv *kv, uint32_t tokens) MUST_CHECK;
void seq_release(struct seq *s, struct kv *kv); /* gives all blocks back; computed = 0 */
/* Offers the full blocks up to `computed` to the prefix cache. */
void seq_name_blocks(struct seq *s, struct kv *kv);
