#include "lib/json/dict.h"

#include <stdlib.h>

#define RECENT 4096 /* strings seen once, by hash: the newest of each slot */

struct word {
    char *text; /* NULL: free */
    uint32_t hash, refs, n;
    uint32_t next; /* in its chain, or of the free ones; index + 1 */
};

struct dict {
    struct word *words;
    uint32_t *chains; /* index + 1 */
    uint32_t n, cap, used, free, mask;
    uint32_t recent[RECENT];
};

static uint32_t hash_of(struct str s)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < s.n; i++)
        h = (h ^ (unsigned char)s.p[i]) * 0x100000001b3u;
    uint32_t out = (uint32_t)(h ^ h >> 32);
    return out ? out : 1;
}

struct dict *dict_new(void)
{
    struct dict *d = xcalloc(1, sizeof *d);
    d->mask = 255;
    d->chains = xcalloc(d->mask + 1, sizeof *d->chains);
    return d;
}

void dict_free(struct dict *d)
{
    if (!d)
        return;
    for (uint32_t i = 0; i < d->n; i++)
        free(d->words[i].text);
    free(d->words);
    free(d->chains);
    free(d);
}

static void link_word(struct dict *d, uint32_t i)
{
    uint32_t *chain = &d->chains[d->words[i].hash & d->mask];
    d->words[i].next = *chain;
    *chain = i + 1;
}

static void more_chains(struct dict *d)
{
    free(d->chains);
    d->mask = d->mask * 2 + 1;
    d->chains = xcalloc(d->mask + 1, sizeof *d->chains);
    for (uint32_t i = 0; i < d->n; i++)
        if (d->words[i].text)
            link_word(d, i);
}

static uint32_t add(struct dict *d, struct str s, uint32_t hash)
{
    uint32_t i = d->free;
    if (i) {
        d->free = d->words[--i].next;
    } else {
        if (d->n == d->cap) {
            d->cap = d->cap ? d->cap + d->cap / 2 : 128;
            d->words = xrealloc(d->words, d->cap * sizeof *d->words);
        }
        i = d->n++;
    }
    d->words[i] = (struct word){.text = str_dup(s), .hash = hash, .n = (uint32_t)s.n};
    link_word(d, i);
    if (++d->used > d->mask)
        more_chains(d);
    return i;
}

bool dict_take(struct dict *d, struct str s, uint32_t *id)
{
    if (s.n > DICT_WORD_MAX)
        return false;
    uint32_t hash = hash_of(s), i = d->chains[hash & d->mask];
    for (; i; i = d->words[i - 1].next) {
        const struct word *w = &d->words[i - 1];
        if (w->hash == hash && w->n == s.n && memcmp(w->text, s.p, s.n) == 0)
            break;
    }
    if (!i && d->recent[hash % RECENT] != hash) {
        d->recent[hash % RECENT] = hash;
        return false;
    }
    *id = i ? i - 1 : add(d, s, hash);
    d->words[*id].refs++;
    return true;
}

const char *dict_text(const struct dict *d, uint32_t id)
{
    ASSERT(id < d->n && d->words[id].text);
    return d->words[id].text;
}

void dict_drop(struct dict *d, uint32_t id)
{
    ASSERT(id < d->n && d->words[id].refs);
    struct word *w = &d->words[id];
    if (--w->refs)
        return;
    uint32_t *at = &d->chains[w->hash & d->mask];
    while (*at != id + 1)
        at = &d->words[*at - 1].next;
    *at = w->next;
    free(w->text);
    *w = (struct word){.next = d->free};
    d->free = id + 1;
    d->used--;
}

size_t dict_count(const struct dict *d)
{
    return d->used;
}
