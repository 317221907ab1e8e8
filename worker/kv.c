#include "worker/kv.h"

#include <stdlib.h>

enum block_state { BLOCK_FREE, BLOCK_USED, BLOCK_QUARANTINED };

struct kv_block {
    struct block_name name;
    uint32_t refs;
    uint32_t prev, next; /* free list */
    uint32_t chain;      /* next block of the hash bucket */
    uint8_t state;
    bool named;
};

struct kv_rank {
    uint32_t n_free, n_cached, n_used, n_quarantined;
    uint32_t head, tail; /* of the free list: allocation takes the head */
    bool lost;
};

struct kv {
    uint32_t n, n_ranks, per_rank, block_tokens;
    struct kv_rank *ranks;
    uint32_t *buckets, mask;
    struct kv_block *blocks;
    uint32_t *tokens; /* [n, block_tokens] of named blocks */
    struct kv_event *events;
    size_t n_events, cap_events;
};

struct kv *kv_new(uint32_t n_blocks, uint32_t ranks, uint32_t block_tokens)
{
    ASSERT(n_blocks > 0 && n_blocks < KV_NONE / 2 && block_tokens > 0);
    ASSERT(ranks > 0 && n_blocks % ranks == 0);
    struct kv *kv = xcalloc(1, sizeof *kv);
    uint32_t n_buckets = 2;
    while (n_buckets < 2 * n_blocks)
        n_buckets *= 2;
    kv->n = n_blocks;
    kv->n_ranks = ranks;
    kv->per_rank = n_blocks / ranks;
    kv->ranks = xcalloc(ranks, sizeof *kv->ranks);
    kv->block_tokens = block_tokens;
    kv->mask = n_buckets - 1;
    kv->buckets = xmalloc(n_buckets * sizeof *kv->buckets);
    memset(kv->buckets, 0xff, n_buckets * sizeof *kv->buckets);
    kv->blocks = xcalloc(n_blocks, sizeof *kv->blocks);
    kv->tokens = xcalloc((size_t)n_blocks * block_tokens, sizeof *kv->tokens);
    for (uint32_t b = 0; b < n_blocks; b++) {
        kv->blocks[b].prev = b % kv->per_rank ? b - 1 : KV_NONE;
        kv->blocks[b].next = (b + 1) % kv->per_rank ? b + 1 : KV_NONE;
    }
    for (uint32_t r = 0; r < ranks; r++)
        kv->ranks[r] = (struct kv_rank){
            .n_free = kv->per_rank, .head = r * kv->per_rank, .tail = (r + 1) * kv->per_rank - 1};
    return kv;
}

void kv_free(struct kv *kv)
{
    if (!kv)
        return;
    free(kv->ranks);
    free(kv->buckets);
    free(kv->blocks);
    free(kv->tokens);
    free(kv->events);
    free(kv);
}

struct kv_counts kv_counts_of(const struct kv *kv, uint32_t rank)
{
    const struct kv_rank *r = &kv->ranks[rank];
    return (struct kv_counts){.total = kv->per_rank,
                              .free = r->lost ? 0 : r->n_free,
                              .cached = r->n_cached,
                              .used = r->n_used,
                              .quarantined = r->n_quarantined,
                              .lost = r->lost ? r->n_free : 0};
}

struct kv_counts kv_counts(const struct kv *kv)
{
    struct kv_counts all = {0};
    for (uint32_t i = 0; i < kv->n_ranks; i++) {
        struct kv_counts c = kv_counts_of(kv, i);
        all.total += c.total;
        all.free += c.free;
        all.cached += c.cached;
        all.used += c.used;
        all.quarantined += c.quarantined;
        all.lost += c.lost;
    }
    return all;
}

uint32_t kv_ranks(const struct kv *kv)
{
    return kv->n_ranks;
}

uint32_t kv_rank_of(const struct kv *kv, uint32_t block)
{
    return block / kv->per_rank;
}

static struct kv_rank *home(struct kv *kv, uint32_t block)
{
    return &kv->ranks[kv_rank_of(kv, block)];
}

uint32_t kv_block_tokens(const struct kv *kv)
{
    return kv->block_tokens;
}

static uint32_t *bucket_of(const struct kv *kv, const struct block_name *name)
{
    return &kv->buckets[block_name_hash(name) & kv->mask];
}

#define ANY_RANK UINT32_MAX

static uint32_t find_name(const struct kv *kv, uint32_t rank, const struct block_name *name)
{
    uint32_t b = *bucket_of(kv, name);
    while (b != KV_NONE && (!block_name_eq(&kv->blocks[b].name, name) ||
                            (rank != ANY_RANK && kv_rank_of(kv, b) != rank)))
        b = kv->blocks[b].chain;
    return b;
}

static void add_event(struct kv *kv, const struct block_name *name, bool added)
{
    if (kv->n_events == kv->cap_events) {
        kv->cap_events = kv->cap_events ? 2 * kv->cap_events : 64;
        kv->events = xrealloc(kv->events, kv->cap_events * sizeof *kv->events);
    }
    kv->events[kv->n_events++] = (struct kv_event){*name, added};
}

static void unname(struct kv *kv, uint32_t b)
{
    struct kv_block *k = &kv->blocks[b];
    if (!k->named)
        return;
    uint32_t *at = bucket_of(kv, &k->name);
    while (*at != b)
        at = &kv->blocks[*at].chain;
    *at = k->chain;
    k->named = false;
    if (find_name(kv, ANY_RANK, &k->name) == KV_NONE)
        add_event(kv, &k->name, false);
}

static void list_remove(struct kv *kv, uint32_t b)
{
    struct kv_block *k = &kv->blocks[b];
    struct kv_rank *r = home(kv, b);
    *(k->prev == KV_NONE ? &r->head : &kv->blocks[k->prev].next) = k->next;
    *(k->next == KV_NONE ? &r->tail : &kv->blocks[k->next].prev) = k->prev;
    r->n_free--;
    r->n_cached -= k->named;
}

static void list_put(struct kv *kv, uint32_t b)
{
    struct kv_block *k = &kv->blocks[b];
    struct kv_rank *r = home(kv, b);
    bool last = k->named;
    k->prev = last ? r->tail : KV_NONE;
    k->next = last ? KV_NONE : r->head;
    *(k->prev == KV_NONE ? &r->head : &kv->blocks[k->prev].next) = b;
    *(k->next == KV_NONE ? &r->tail : &kv->blocks[k->next].prev) = b;
    k->state = BLOCK_FREE;
    r->n_free++;
    r->n_cached += k->named;
}

uint32_t kv_alloc(struct kv *kv, uint32_t rank)
{
    struct kv_rank *r = &kv->ranks[rank];
    uint32_t b = r->head;
    if (!r->n_free || r->lost)
        return KV_NONE;
    list_remove(kv, b);
    unname(kv, b);
    kv->blocks[b].refs = 1;
    kv->blocks[b].state = BLOCK_USED;
    r->n_used++;
    return b;
}

void kv_lose(struct kv *kv, uint32_t rank)
{
    struct kv_rank *r = &kv->ranks[rank];
    for (uint32_t b = rank * kv->per_rank; b < (rank + 1) * kv->per_rank; b++) {
        r->n_cached -= kv->blocks[b].named && kv->blocks[b].state == BLOCK_FREE;
        unname(kv, b);
    }
    r->lost = true;
}

bool kv_is_lost(const struct kv *kv, uint32_t rank)
{
    return kv->ranks[rank].lost;
}

void kv_hold(struct kv *kv, uint32_t b)
{
    struct kv_block *k = &kv->blocks[b];
    ASSERT(b < kv->n && k->state != BLOCK_QUARANTINED);
    if (k->state == BLOCK_FREE) {
        list_remove(kv, b);
        k->state = BLOCK_USED;
        home(kv, b)->n_used++;
    }
    k->refs++;
}

void kv_drop(struct kv *kv, uint32_t b)
{
    struct kv_block *k = &kv->blocks[b];
    ASSERT(b < kv->n && k->state == BLOCK_USED && k->refs > 0);
    if (--k->refs == 0) {
        home(kv, b)->n_used--;
        list_put(kv, b);
    }
}

void kv_release(struct kv *kv, const uint32_t *blocks, uint32_t n)
{
    while (n--)
        kv_drop(kv, blocks[n]);
}

uint32_t kv_refs(const struct kv *kv, uint32_t block)
{
    return kv->blocks[block].refs;
}

uint32_t kv_find(const struct kv *kv, uint32_t rank, const struct block_name *names,
                 const uint32_t *tokens, uint32_t n, uint32_t *blocks, uint32_t *idle)
{
    uint32_t i = 0;
    size_t bytes = kv->block_tokens * sizeof *tokens;
    *idle = 0;
    for (; i < n; i++) {
        uint32_t b = find_name(kv, rank, &names[i]);
        if (b == KV_NONE || memcmp(&kv->tokens[(size_t)b * kv->block_tokens],
                                   &tokens[(size_t)i * kv->block_tokens], bytes) != 0)
            break;
        blocks[i] = b;
        *idle += kv->blocks[b].state == BLOCK_FREE;
    }
    return i;
}

void kv_name(struct kv *kv, uint32_t b, const struct block_name *name, const uint32_t *tokens)
{
    struct kv_block *k = &kv->blocks[b];
    ASSERT(b < kv->n && k->state == BLOCK_USED);
    if (k->named || home(kv, b)->lost || find_name(kv, kv_rank_of(kv, b), name) != KV_NONE)
        return;
    bool first = find_name(kv, ANY_RANK, name) == KV_NONE;
    uint32_t *at = bucket_of(kv, name);
    k->name = *name;
    k->named = true;
    k->chain = *at;
    *at = b;
    memcpy(&kv->tokens[(size_t)b * kv->block_tokens], tokens, kv->block_tokens * sizeof *tokens);
    if (first)
        add_event(kv, name, true);
}

void kv_quarantine(struct kv *kv, const uint32_t *blocks, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        struct kv_block *k = &kv->blocks[blocks[i]];
        ASSERT(k->state == BLOCK_USED && k->refs == 1 && !k->named);
        k->state = BLOCK_QUARANTINED;
        k->refs = 0;
        home(kv, blocks[i])->n_used--;
        home(kv, blocks[i])->n_quarantined++;
    }
}

void kv_unquarantine(struct kv *kv, const uint32_t *blocks, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        ASSERT(kv->blocks[blocks[i]].state == BLOCK_QUARANTINED);
        home(kv, blocks[i])->n_quarantined--;
        list_put(kv, blocks[i]);
    }
}

const struct kv_event *kv_events(const struct kv *kv, size_t *n)
{
    *n = kv->n_events;
    return kv->events;
}

void kv_events_clear(struct kv *kv)
{
    kv->n_events = 0;
}

static const char *check_list(const struct kv *kv, uint32_t rank)
{
    const struct kv_rank *r = &kv->ranks[rank];
    uint32_t n = 0, cached = 0, prev = KV_NONE;
    for (uint32_t b = r->n_free ? r->head : KV_NONE; b != KV_NONE; b = kv->blocks[b].next) {
        const struct kv_block *k = &kv->blocks[b];
        if (n++ > kv->n || k->prev != prev || k->state != BLOCK_FREE || k->refs ||
            kv_rank_of(kv, b) != rank)
            return "the free list holds a block that is not free, or is broken";
        cached += k->named;
        prev = b;
    }
    if (n != r->n_free || cached != r->n_cached || (n && r->tail != prev))
        return "the free list's counts are wrong";
    return NULL;
}

static const char *check_names(const struct kv *kv)
{
    uint32_t named = 0, found = 0;
    for (uint32_t i = 0; i <= kv->mask; i++)
        for (uint32_t b = kv->buckets[i]; b != KV_NONE; b = kv->blocks[b].chain) {
            if (!kv->blocks[b].named || found > kv->n ||
                find_name(kv, kv_rank_of(kv, b), &kv->blocks[b].name) != b)
                return "the table of names holds an unnamed block or a name twice";
            found++;
        }
    for (uint32_t b = 0; b < kv->n; b++)
        named += kv->blocks[b].named;
    return named == found ? NULL : "a named block is not in the table of names";
}

/* The blocks of one rank. */
static const char *check_rank(const struct kv *kv, uint32_t rank, const uint32_t *refs)
{
    const struct kv_rank *r = &kv->ranks[rank];
    uint32_t used = 0, quarantined = 0;
    for (uint32_t b = rank * kv->per_rank; b < (rank + 1) * kv->per_rank; b++) {
        const struct kv_block *k = &kv->blocks[b];
        used += k->state == BLOCK_USED;
        quarantined += k->state == BLOCK_QUARANTINED;
        if ((k->state == BLOCK_USED) != (k->refs > 0))
            return "a used block has no holder, or a block that is not used has one";
        if (refs && k->state != BLOCK_QUARANTINED && refs[b] != k->refs)
            return "a block's count of holders differs from the tables";
    }
    if (used != r->n_used || quarantined != r->n_quarantined ||
        used + quarantined + r->n_free != kv->per_rank)
        return "blocks were lost or counted twice";
    return check_list(kv, rank);
}

const char *kv_check(const struct kv *kv, const uint32_t *refs)
{
    const char *wrong = NULL;
    for (uint32_t r = 0; r < kv->n_ranks && !wrong; r++)
        wrong = check_rank(kv, r, refs);
    return wrong ? wrong : check_names(kv);
}
