#include "lib/llm/vocab.h"

#include <errno.h>
#include <stdlib.h>

#define MAX_KEY_BYTES (1u << 30)

uint64_t vocab_hash(const char *p, size_t n)
{
    uint64_t h = 0x9e3779b97f4a7c15u ^ n * 0xff51afd7ed558ccdu;
    for (; n >= 8; p += 8, n -= 8) {
        uint64_t w;
        memcpy(&w, p, 8);
        h = (h ^ w) * 0x9fb21c651e98df25u;
        h ^= h >> 32;
    }
    uint64_t w = 0;
    if (n)
        memcpy(&w, p, n);
    h = (h ^ w) * 0x9fb21c651e98df25u;
    h ^= h >> 29;
    h *= 0xc4ceb9fe1a85ec53u;
    return h ^ h >> 32;
}

static uint32_t pow2_at_least(size_t n)
{
    uint32_t p = 16;
    while (p < n)
        p *= 2;
    return p;
}

int vocab_init(struct vocab *v, uint32_t n, struct err *e)
{
    *v = (struct vocab){.n = n};
    uint32_t slots = pow2_at_least((size_t)n * 2);
    v->off = calloc((size_t)n + 1, sizeof *v->off);
    v->slot = calloc(slots, sizeof *v->slot);
    v->slot_mask = slots - 1;
    if (!v->off || !v->slot)
        return err_set(e, ENOMEM, "not enough memory for a vocabulary of %u tokens", n);
    return 0;
}

void vocab_fini(struct vocab *v)
{
    free(v->off);
    free(v->bytes);
    free(v->slot);
    free(v->pair);
    *v = (struct vocab){0};
}

static int append_bytes(struct vocab *v, uint32_t at, struct str key)
{
    size_t need = (size_t)at + key.n;
    if (need > MAX_KEY_BYTES)
        return -E2BIG;
    if (need > v->bytes_cap) {
        size_t cap = v->bytes_cap ? v->bytes_cap * 2 : 65536;
        while (cap < need)
            cap *= 2;
        char *p = realloc(v->bytes, cap);
        if (!p)
            return -ENOMEM;
        v->bytes = p;
        v->bytes_cap = cap;
    }
    if (key.n)
        memcpy(v->bytes + at, key.p, key.n);
    return 0;
}

int vocab_add(struct vocab *v, uint32_t id, struct str key, bool index, struct err *e)
{
    uint32_t at = v->off[id];
    if (append_bytes(v, at, key))
        return err_set(e, E2BIG, "the vocabulary's texts are larger than %u MiB",
                       MAX_KEY_BYTES >> 20);
    v->off[id + 1] = at + (uint32_t)key.n;
    if (!index || key.n == 0)
        return 0;
    uint32_t i = (uint32_t)vocab_hash(key.p, key.n) & v->slot_mask;
    while (v->slot[i] && !str_eq(vocab_key(v, v->slot[i] - 1), key))
        i = (i + 1) & v->slot_mask;
    v->slot[i] = id + 1;
    return 0;
}

struct str vocab_key(const struct vocab *v, uint32_t id)
{
    if (id >= v->n || !v->bytes)
        return (struct str){"", 0};
    return (struct str){v->bytes + v->off[id], v->off[id + 1] - v->off[id]};
}

uint32_t vocab_find(const struct vocab *v, struct str key)
{
    if (key.n == 0)
        return UINT32_MAX;
    for (uint32_t i = (uint32_t)vocab_hash(key.p, key.n) & v->slot_mask; v->slot[i];
         i = (i + 1) & v->slot_mask)
        if (str_eq(vocab_key(v, v->slot[i] - 1), key))
            return v->slot[i] - 1;
    return UINT32_MAX;
}

static uint32_t pair_hash(uint32_t left, uint32_t right)
{
    uint64_t h = ((uint64_t)left << 32 | right) * 0x9fb21c651e98df25u;
    return (uint32_t)(h >> 32 ^ h >> 11);
}

int vocab_pairs_init(struct vocab *v, size_t n_pairs, struct err *e)
{
    uint32_t slots = pow2_at_least(n_pairs * 2);
    v->pair = malloc((size_t)slots * sizeof *v->pair);
    if (!v->pair)
        return err_set(e, ENOMEM, "not enough memory for %zu merges", n_pairs);
    for (uint32_t i = 0; i < slots; i++)
        v->pair[i].left = UINT32_MAX;
    v->pair_mask = slots - 1;
    return 0;
}

void vocab_pair_add(struct vocab *v, uint32_t left, uint32_t right, uint32_t rank, uint32_t id)
{
    uint32_t i = pair_hash(left, right) & v->pair_mask;
    for (; v->pair[i].left != UINT32_MAX; i = (i + 1) & v->pair_mask)
        if (v->pair[i].left == left && v->pair[i].right == right) {
            v->pair[i] = (struct vocab_pair){left, right, rank, id};
            return;
        }
    ASSERT(v->n_pairs < v->pair_mask); /* the table was sized for all of them */
    v->pair[i] = (struct vocab_pair){left, right, rank, id};
    v->n_pairs++;
}

const struct vocab_pair *vocab_pair_find(const struct vocab *v, uint32_t left, uint32_t right)
{
    if (!v->pair)
        return NULL;
    for (uint32_t i = pair_hash(left, right) & v->pair_mask; v->pair[i].left != UINT32_MAX;
         i = (i + 1) & v->pair_mask)
        if (v->pair[i].left == left && v->pair[i].right == right)
            return &v->pair[i];
    return NULL;
}
