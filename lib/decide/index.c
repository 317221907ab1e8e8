#include "lib/decide/index.h"

#include <stdlib.h>

#define WORDS     (INDEX_WORKERS / 64)
#define MIN_SLOTS 1024

struct entry {
    struct block_name name;
    uint64_t workers[WORDS]; /* empty set: the slot is free */
};

/* Open addressing with linear probing; deletion moves later entries back, so there are no
 * tombstones. */
struct index {
    struct entry *slot;
    size_t n_slots, n, max;
    uint64_t left_out;
};

struct index *index_new(size_t max_names)
{
    struct index *x = xcalloc(1, sizeof *x);
    x->max = max_names;
    x->n_slots = MIN_SLOTS;
    x->slot = xcalloc(x->n_slots, sizeof *x->slot);
    return x;
}

void index_free(struct index *x)
{
    if (!x)
        return;
    free(x->slot);
    free(x);
}

static bool is_empty(const struct entry *e)
{
    uint64_t any = 0;
    for (int i = 0; i < WORDS; i++)
        any |= e->workers[i];
    return !any;
}

static size_t home(const struct index *x, const struct block_name *name)
{
    return block_name_hash(name) & (x->n_slots - 1);
}

/* The name's entry, or the free slot where it would go. */
static struct entry *find(const struct index *x, const struct block_name *name)
{
    size_t i = home(x, name);
    while (!is_empty(&x->slot[i]) && !block_name_eq(&x->slot[i].name, name))
        i = (i + 1) & (x->n_slots - 1);
    return &x->slot[i];
}

static void grow(struct index *x)
{
    struct entry *old = x->slot;
    size_t n_old = x->n_slots;
    struct entry *bigger = calloc(n_old * 2, sizeof *bigger);
    if (!bigger)
        return;
    x->slot = bigger;
    x->n_slots = n_old * 2;
    for (size_t i = 0; i < n_old; i++)
        if (!is_empty(&old[i]))
            *find(x, &old[i].name) = old[i];
    free(old);
}

void index_add(struct index *x, unsigned worker, const struct block_name *names, size_t n)
{
    ASSERT(worker < INDEX_WORKERS);
    for (size_t i = 0; i < n; i++) {
        struct entry *e = find(x, &names[i]);
        if (is_empty(e)) {
            if (x->n >= x->max || x->n + 1 >= x->n_slots) {
                x->left_out++;
                continue;
            }
            e->name = names[i];
            x->n++;
        }
        e->workers[worker / 64] |= 1ull << (worker % 64);
        if (x->n * 10 > x->n_slots * 7)
            grow(x);
    }
}

/* Closes the gap at slot i (Knuth 6.4, algorithm R). */
static void close_gap(struct index *x, size_t i)
{
    size_t mask = x->n_slots - 1;
    for (size_t j = (i + 1) & mask; !is_empty(&x->slot[j]); j = (j + 1) & mask) {
        size_t h = home(x, &x->slot[j].name);
        if (((j - h) & mask) < ((j - i) & mask))
            continue;
        x->slot[i] = x->slot[j];
        i = j;
    }
    x->slot[i] = (struct entry){0};
}

void index_remove(struct index *x, unsigned worker, const struct block_name *names, size_t n)
{
    ASSERT(worker < INDEX_WORKERS);
    for (size_t i = 0; i < n; i++) {
        struct entry *e = find(x, &names[i]);
        if (is_empty(e))
            continue;
        e->workers[worker / 64] &= ~(1ull << (worker % 64));
        if (is_empty(e)) {
            x->n--;
            close_gap(x, (size_t)(e - x->slot));
        }
    }
}

void index_clear(struct index *x, unsigned worker)
{
    ASSERT(worker < INDEX_WORKERS);
    uint64_t bit = 1ull << (worker % 64);
    for (size_t i = 0; i < x->n_slots;) {
        struct entry *e = &x->slot[i];
        if (!(e->workers[worker / 64] & bit)) {
            i++;
            continue;
        }
        e->workers[worker / 64] &= ~bit;
        if (!is_empty(e)) {
            i++;
            continue;
        }
        x->n--;
        close_gap(x, i); /* another entry may have moved here: look at i again */
    }
}

void index_match(const struct index *x, const struct block_name *names, size_t n, uint32_t *depth,
                 unsigned n_workers)
{
    uint64_t alive[WORDS];
    memset(alive, 0xff, sizeof alive);
    memset(depth, 0, n_workers * sizeof *depth);
    for (size_t i = 0; i < n; i++) {
        const struct entry *e = find(x, &names[i]);
        uint64_t any = 0;
        for (unsigned w = 0; w < WORDS; w++) {
            alive[w] &= e->workers[w];
            any |= alive[w];
            for (uint64_t rest = alive[w]; rest; rest &= rest - 1) {
                unsigned at = w * 64 + (unsigned)__builtin_ctzll(rest);
                if (at < n_workers)
                    depth[at] = (uint32_t)i + 1;
            }
        }
        if (!any)
            return;
    }
}

size_t index_names(const struct index *x)
{
    return x->n;
}

uint64_t index_left_out(const struct index *x)
{
    return x->left_out;
}
