/* bpe.h: byte-pair encoding of one word: the pair of lowest rank merges first, the leftmost of
 * equal ones. Short words by scanning, long ones by a heap, O(n log n). Internal to lib/llm; a
 * struct bpe_scratch serves one thread at a time. Source: tokenizers' models/bpe/word.rs
 * (behaviour). */
#pragma once
#include "lib/llm/tokenizer.h"
#include "lib/llm/vocab.h"
#include "lib/llm/word_cache.h"

#define BPE_MARK 0x2581 /* SentencePiece's space */

struct bpe {
    const struct vocab *v;
    bool byte_level;                 /* symbols are bytes; else characters with byte fallback */
    bool ignore_merges;              /* a word that is a token as it stands is that token */
    uint32_t byte_id[256];           /* UINT32_MAX: no such token */
    uint32_t ascii_id[128], mark_id; /* of characters, where symbols are characters */
    bool byte_fallback, fuse_unk;
    uint32_t unk; /* UINT32_MAX: what is unknown is dropped */
};

struct bpe_scratch {
    uint32_t *sym, *prev, *next;
    size_t cap;
    uint64_t *heap;
    size_t n_heap, cap_heap;
    struct word_cache cache;
};

int bpe_scratch_init(struct bpe_scratch *s) MUST_CHECK;
void bpe_scratch_fini(struct bpe_scratch *s);
/* Appends the ids of a word; `readable` bytes may be read from its beginning (>= n). */
int bpe_encode_any(const struct bpe *b, struct bpe_scratch *s, struct str word, size_t readable,
                   struct ids *out) MUST_CHECK;

MUST_CHECK static inline int bpe_encode(const struct bpe *b, struct bpe_scratch *s, struct str word,
                                        size_t readable, struct ids *out)
{
    if (word.n - 1 < WORD_SHORT && out->n < out->cap && out->n < out->max) {
        uint64_t key[2];
        word_key(word, readable, key);
        const struct word_short *known = word_short_find(&s->cache, word, key);
        if (known && known->n_ids == 1) {
            out->id[out->n++] = known->id[0];
            return 0;
        }
    }
    return bpe_encode_any(b, s, word, readable, out);
}
