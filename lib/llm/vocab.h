/* vocab.h: the tokens of a model and their merges, in tables made for look-up. Internal to lib/llm.
 * A token's key is the byte string that the BPE works on: real bytes for byte-level models, text
 * with U+2581 for SentencePiece models. Built once by a loader, then constant. Process lifetime;
 * the tokenizer owns it. */
#pragma once
#include "lib/base/str.h"

struct vocab_pair {
    uint32_t left, right; /* left UINT32_MAX: empty slot */
    uint32_t rank, id;
};
struct vocab {
    uint32_t n;    /* ids 0 .. n-1 */
    uint32_t *off; /* [n+1] into bytes */
    char *bytes;
    size_t bytes_cap;
    uint32_t *slot; /* id + 1 by hash of the key; 0 empty */
    uint32_t slot_mask;
    struct vocab_pair *pair;
    uint32_t pair_mask, n_pairs;
};

int vocab_init(struct vocab *v, uint32_t n, struct err *e) MUST_CHECK;
void vocab_fini(struct vocab *v);
/* Tokens are added in id order; index = false: it has bytes, but the BPE can't find it by its text.
 * Of two equal keys the later one is found. */
int vocab_add(struct vocab *v, uint32_t id, struct str key, bool index, struct err *e) MUST_CHECK;
struct str vocab_key(const struct vocab *v, uint32_t id);
uint32_t vocab_find(const struct vocab *v, struct str key); /* UINT32_MAX when absent */

int vocab_pairs_init(struct vocab *v, size_t n_pairs, struct err *e) MUST_CHECK;
/* A pair that is there already takes the later rank. */
void vocab_pair_add(struct vocab *v, uint32_t left, uint32_t right, uint32_t rank, uint32_t id);
/* NULL when these two don't merge. */
const struct vocab_pair *vocab_pair_find(const struct vocab *v, uint32_t left, uint32_t right);
uint64_t vocab_hash(const char *p, size_t n);
