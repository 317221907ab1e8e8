/* word_cache.h: the token ids of words that came up before: two tables of a fixed size in which a
 * new word takes the place of an older one. A hit compares the whole word. Internal to lib/llm; one
 * thread at a time. */
#pragma once
#include "lib/base/str.h"

#define WORD_SHORT       16
#define WORD_SHORT_IDS   3
#define WORD_SHORT_SLOTS 16384 /* half a MiB each */
#define WORD_MANY        255
#define WORD_LONG        68
#define WORD_LONG_IDS    12
#define WORD_LONG_SLOTS  4096

struct word_short { /* two to a cache line: the older one leaves it; of the long ones likewise */
    uint64_t key[2];
    uint8_t n_key, n_ids; /* WORD_MANY: in the other table */
    uint32_t id[WORD_SHORT_IDS];
};
struct word_long {
    uint64_t hash;
    uint8_t n_key, n_ids;
    uint32_t id[WORD_LONG_IDS];
    char key[WORD_LONG];
};
struct word_cache {
    struct word_short *few; /* up to WORD_SHORT bytes */
    struct word_long *many; /* longer words, and short ones of many ids */
};

int word_cache_init(struct word_cache *c) MUST_CHECK;
void word_cache_fini(struct word_cache *c);
/* The ids of a word (n >= 1) and their number, or NULL. `readable` bytes may be read from its
 * beginning (>= n; from 16 on it is faster). Valid until the next put. */
const uint32_t *word_cache_find(const struct word_cache *c, struct str word, size_t readable,
                                size_t *n_ids);
void word_cache_put(struct word_cache *c, struct str word, const uint32_t *id, size_t n_ids);

/* Its bytes in two numbers, zeros behind them. */
static inline void word_key(struct str w, size_t readable, uint64_t key[2])
{
    static const uint8_t ones[32] = {255, 255, 255, 255, 255, 255, 255, 255,
                                     255, 255, 255, 255, 255, 255, 255, 255};
    uint64_t mask[2];
    if (readable < WORD_SHORT) {
        key[0] = key[1] = 0;
        memcpy(key, w.p, w.n);
        return;
    }
    memcpy(key, w.p, WORD_SHORT);
    memcpy(mask, ones + WORD_SHORT - w.n, WORD_SHORT);
    key[0] &= mask[0];
    key[1] &= mask[1];
}

/* The first of the two slots of a word of up to WORD_SHORT bytes. */
static inline size_t word_short_slot(struct str w, const uint64_t key[2])
{
    uint64_t h = (key[0] ^ w.n) * 0x9fb21c651e98df25u;
    h = (h ^ h >> 32 ^ key[1]) * 0xc4ceb9fe1a85ec53u;
    _Static_assert(WORD_SHORT_SLOTS == 2 << (64 - 51), "the upper bits choose two slots");
    return h >> 51 << 1;
}

/* Such a word, or NULL. */
static inline const struct word_short *word_short_find(const struct word_cache *c, struct str w,
                                                       const uint64_t key[2])
{
    const struct word_short *s = &c->few[word_short_slot(w, key)];
    if (s->n_key == w.n && s->key[0] == key[0] && s->key[1] == key[1])
        return s;
    s++;
    return s->n_key == w.n && s->key[0] == key[0] && s->key[1] == key[1] ? s : NULL;
}
