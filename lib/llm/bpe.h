/* bpe.h: byte-pair encoding of one word: the pair of lowest rank merges first, the leftmost of
 * equal ones. Short words by scanning, long ones by a heap, O(n log n). Internal to lib/llm; a
 * struct bpe_scratch serves one thread at a time. Source: tokenizers' models/bpe/word.rs
 * (behaviour). */
#pragma once
#include "lib/llm/tokenizer.h"
#include "lib/llm/vocab.h"

#define BPE_CACHE_SLOTS 16384 /* a MiB a scratch */

struct bpe {
    const struct vocab *v;
    bool byte_level;       /* symbols are bytes; else characters with byte fallback */
    bool ignore_merges;    /* a word that is a token as it stands is that token */
    uint32_t byte_id[256]; /* UINT32_MAX: no such token */
    bool byte_fallback, fuse_unk;
    uint32_t unk; /* UINT32_MAX: what is unknown is dropped */
};

struct bpe_cached;
struct bpe_scratch {
    uint32_t *sym, *prev, *next;
    size_t cap;
    uint64_t *heap;
    size_t n_heap, cap_heap;
    struct bpe_cached *cache;
};

int bpe_scratch_init(struct bpe_scratch *s) MUST_CHECK;
void bpe_scratch_fini(struct bpe_scratch *s);
int bpe_encode(const struct bpe *b, struct bpe_scratch *s, struct str word,
               struct ids *out) MUST_CHECK;
