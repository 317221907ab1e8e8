#include "worker/lookup.h"

#include "lib/base/err.h"

#include <stdlib.h>
#include <string.h>

#define CANDIDATES 16u /* of one index that are compared */
#define BITS_MIN   8u

static uint32_t hash(const uint32_t *run, uint32_t n, uint32_t bits)
{
    uint64_t h = 0;
    for (uint32_t i = 0; i < n; i++)
        h = (h ^ run[i]) * 0x9e3779b97f4a7c15u;
    return (uint32_t)(h >> (64 - bits));
}

/* The run that ends before position i. */
static void enter_one(struct lookup_runs *r, const uint32_t *tokens, uint32_t run, uint32_t i)
{
    uint32_t *last = &r->last[hash(tokens + i - run, run, r->bits)];
    r->before[i] = *last;
    *last = i;
}

static void enter(struct lookup_runs *r, const uint32_t *tokens, uint32_t run, uint32_t n)
{
    if (n > r->cap) { /* larger tables: everything is entered again */
        r->bits = r->bits ? r->bits : BITS_MIN;
        while (1u << r->bits < n + n / 2)
            r->bits++;
        r->cap = 1u << r->bits;
        r->last = xrealloc(r->last, r->cap * sizeof *r->last);
        r->before = xrealloc(r->before, r->cap * sizeof *r->before);
        memset(r->last, 0, r->cap * sizeof *r->last);
        r->n = 0;
    }
    r->n = r->n < run ? run : r->n;
    for (; r->n < n; r->n++)
        enter_one(r, tokens, run, r->n);
}

static uint32_t equal(const uint32_t *tokens, uint32_t at, uint32_t n)
{
    uint32_t most = at < LOOKUP_COUNTED ? at : LOOKUP_COUNTED, k = 0;
    while (k < most && tokens[at - 1 - k] == tokens[n - 1 - k])
        k++;
    return k;
}

static void better(struct lookup_match *m, const uint32_t *tokens, uint32_t at, uint32_t n)
{
    uint32_t length = equal(tokens, at, n);
    if (length >= LOOKUP_SHORT && length > m->length)
        *m = (struct lookup_match){at, length};
}

static void search(const struct lookup_runs *r, const uint32_t *tokens, uint32_t run, uint32_t n,
                   struct lookup_match *m)
{
    if (n <= run)
        return;
    uint32_t at = r->last[hash(tokens + n - run, run, r->bits)];
    for (uint32_t k = 0; at && k < CANDIDATES && m->length < LOOKUP_COUNTED; k++) {
        better(m, tokens, at, n);
        at = r->before[at];
    }
}

struct lookup_match lookup_find(struct lookup *x, const uint32_t *tokens, uint32_t n,
                                uint32_t first)
{
    struct lookup_match m = {0};
    enter(&x->longer, tokens, LOOKUP_LONG, n);
    enter(&x->shorter, tokens, LOOKUP_SHORT, n);
    if (first && first < n)
        better(&m, tokens, first, n);
    search(&x->longer, tokens, LOOKUP_LONG, n, &m);
    if (m.length < LOOKUP_LONG)
        search(&x->shorter, tokens, LOOKUP_SHORT, n, &m);
    return m;
}

void lookup_free(struct lookup *x)
{
    free(x->longer.last);
    free(x->longer.before);
    free(x->shorter.last);
    free(x->shorter.before);
}
