#include "lib/llm/word_cache.h"

#include "lib/llm/vocab.h"

#include <errno.h>
#include <stdlib.h>

_Static_assert(sizeof(struct word_short) == 32 && sizeof(struct word_long) == 128, "cache lines");

int word_cache_init(struct word_cache *c)
{
    c->few = aligned_alloc(64, WORD_SHORT_SLOTS * sizeof *c->few);
    c->many = aligned_alloc(64, WORD_LONG_SLOTS * sizeof *c->many);
    if (!c->few || !c->many) {
        word_cache_fini(c);
        return -ENOMEM;
    }
    memset(c->few, 0, WORD_SHORT_SLOTS * sizeof *c->few);
    memset(c->many, 0, WORD_LONG_SLOTS * sizeof *c->many);
    return 0;
}

void word_cache_fini(struct word_cache *c)
{
    free(c->few);
    free(c->many);
    *c = (struct word_cache){0};
}

/* The first of two. */
static struct word_long *long_slots(const struct word_cache *c, uint64_t hash)
{
    return &c->many[hash % (WORD_LONG_SLOTS / 2) * 2];
}

static const struct word_long *long_find(const struct word_cache *c, struct str w)
{
    uint64_t hash = vocab_hash(w.p, w.n);
    const struct word_long *l = long_slots(c, hash);
    l += l->hash != hash;
    return l->hash == hash && l->n_key == w.n && memcmp(l->key, w.p, w.n) == 0 ? l : NULL;
}

const uint32_t *word_cache_find(const struct word_cache *c, struct str w, size_t readable,
                                size_t *n_ids)
{
    if (w.n <= WORD_SHORT) {
        uint64_t key[2];
        word_key(w, readable, key);
        const struct word_short *s = word_short_find(c, w, key);
        if (!s || s->n_ids != WORD_MANY) {
            *n_ids = s ? s->n_ids : 0;
            return s ? s->id : NULL;
        }
    } else if (w.n > WORD_LONG) {
        return NULL;
    }
    const struct word_long *l = long_find(c, w);
    *n_ids = l ? l->n_ids : 0;
    return l ? l->id : NULL;
}

static void long_put(struct word_cache *c, struct str w, const uint32_t *id, size_t n_ids)
{
    uint64_t hash = vocab_hash(w.p, w.n);
    struct word_long *l = long_slots(c, hash);
    l[1] = l[0];
    *l = (struct word_long){.hash = hash, .n_key = (uint8_t)w.n, .n_ids = (uint8_t)n_ids};
    memcpy(l->key, w.p, w.n);
    memcpy(l->id, id, n_ids * sizeof *id);
}

void word_cache_put(struct word_cache *c, struct str w, const uint32_t *id, size_t n_ids)
{
    if (w.n == 0 || w.n > WORD_LONG || n_ids > WORD_LONG_IDS)
        return;
    bool few = w.n <= WORD_SHORT && n_ids <= WORD_SHORT_IDS;
    if (!few)
        long_put(c, w, id, n_ids);
    if (w.n > WORD_SHORT)
        return;
    struct word_short fresh = {.n_key = (uint8_t)w.n, .n_ids = few ? (uint8_t)n_ids : WORD_MANY};
    word_key(w, w.n, fresh.key);
    if (word_short_find(c, w, fresh.key))
        return; /* it says that the long table has it, which again is so */
    struct word_short *s = &c->few[word_short_slot(w, fresh.key)];
    if (few)
        memcpy(fresh.id, id, n_ids * sizeof *id);
    s[1] = s[0];
    s[0] = fresh;
}
