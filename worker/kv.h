/* kv.h: who holds which block of the paged KV pool, and under which names cached blocks can be
 * found again. With data-parallel attention the pool is that of all data ranks: of n blocks and r
 * ranks, rank i has the i-th n / r, and a sequence's blocks are all of one rank.
 *
 * A block is in exactly one state: free (nobody holds it; when it has a name its KV can be found by
 * it until it is allocated anew), used (ref >= 1 tables hold it), or quarantined (granted to a
 * transfer that failed, whose writers may still be at work). Free blocks form one list, least
 * recently used first; unnamed ones go to its head. kv_release gives back a table from its tail, so
 * that the tail of a prefix is evicted before its head.
 *
 * The prefix cache: 128-bit names (lib/llm/blocks.h) of full blocks; the tokens are compared on
 * every hit. Of two blocks of a rank with the same name the first keeps it. A named block's KV
 * never changes.
 *
 * A data rank may be lost (kv_lose): its blocks are never given out or found again, but are still
 * accounted for while tables hold them.
 *
 * The memory itself is the caller's (block numbers only, here). One thread. kv_check() states the
 * invariants.
 */
#pragma once
#include "lib/llm/blocks.h"

#define KV_NONE UINT32_MAX

struct kv;

struct kv_counts {
    uint32_t total, free, cached, used,
        quarantined; /* cached: free and named; total = free + used + quarantined + lost */
    uint32_t lost;   /* of lost ranks: blocks that nobody holds */
};

/* n_blocks: a multiple of the data ranks, 1 at least. */
struct kv *kv_new(uint32_t n_blocks, uint32_t ranks, uint32_t block_tokens);
void kv_free(struct kv *kv);
struct kv_counts kv_counts(const struct kv *kv);                   /* of all ranks together */
struct kv_counts kv_counts_of(const struct kv *kv, uint32_t rank); /* of one */
uint32_t kv_ranks(const struct kv *kv);
void kv_lose(struct kv *kv, uint32_t rank);
bool kv_is_lost(const struct kv *kv, uint32_t rank);
uint32_t kv_rank_of(const struct kv *kv, uint32_t block);
uint32_t kv_block_tokens(const struct kv *kv);

/* A free block of a rank, now held once and without a name; KV_NONE when there is none. */
uint32_t kv_alloc(struct kv *kv, uint32_t rank);
void kv_hold(struct kv *kv, uint32_t block); /* one more holder; takes a free block off the list */
void kv_drop(struct kv *kv, uint32_t block); /* one holder less; the last one frees it */
void kv_release(struct kv *kv, const uint32_t *blocks,
                uint32_t n); /* kv_drop of each, last first */
uint32_t kv_refs(const struct kv *kv, uint32_t block);

/* The longest run of names[0..n) that are cached at a rank with exactly these tokens (n *
 * block_tokens of them) into blocks, not held yet. *idle is how many of them nobody holds. */
uint32_t kv_find(const struct kv *kv, uint32_t rank, const struct block_name *names,
                 const uint32_t *tokens, uint32_t n, uint32_t *blocks, uint32_t *idle);
/* Names a held, full block; does nothing when it or another block of its rank has the name. */
void kv_name(struct kv *kv, uint32_t block, const struct block_name *name, const uint32_t *tokens);

/* From held once to quarantined, and from quarantined to free. */
void kv_quarantine(struct kv *kv, const uint32_t *blocks, uint32_t n);
void kv_unquarantine(struct kv *kv, const uint32_t *blocks, uint32_t n);

/* Names that came and went since the last kv_events_clear, in order: came to the first rank that
 * has it, went from the last. */
struct kv_event {
    struct block_name name;
    bool added;
};
const struct kv_event *kv_events(const struct kv *kv, size_t *n);
void kv_events_clear(struct kv *kv);

/* NULL, or what is wrong. refs[b] (may be NULL) is how many tables the caller knows to hold block
 * b. */
const char *kv_check(const struct kv *kv, const uint32_t *refs);
