#include "lib/llm/bpe.h"

#include "lib/llm/utf8.h"

#include <errno.h>
#include <stdlib.h>

#define SHORT_WORD   48
#define SCRATCH_KEEP (1u << 20) /* symbols; what a longer word needed is given back */

int bpe_scratch_init(struct bpe_scratch *s)
{
    *s = (struct bpe_scratch){0};
    return word_cache_init(&s->cache);
}

static void drop_arrays(struct bpe_scratch *s)
{
    free(s->sym);
    free(s->prev);
    free(s->next);
    free(s->heap);
    s->sym = s->prev = s->next = NULL;
    s->heap = NULL;
    s->cap = s->cap_heap = 0;
}

void bpe_scratch_fini(struct bpe_scratch *s)
{
    drop_arrays(s);
    word_cache_fini(&s->cache);
    *s = (struct bpe_scratch){0};
}

static int grow(struct bpe_scratch *s, size_t n)
{
    if (n <= s->cap)
        return 0;
    size_t cap = s->cap ? s->cap : 256;
    while (cap < n)
        cap *= 2;
    uint32_t *a = realloc(s->sym, cap * sizeof *a);
    if (a)
        s->sym = a;
    uint32_t *b = a ? realloc(s->prev, cap * sizeof *b) : NULL;
    if (b)
        s->prev = b;
    uint32_t *c = b ? realloc(s->next, cap * sizeof *c) : NULL;
    if (!c)
        return -ENOMEM;
    s->next = c;
    s->cap = cap;
    return 0;
}

/* ---- symbols ---- */

static size_t byte_symbols(const struct bpe *b, struct bpe_scratch *s, struct str w)
{
    size_t n = 0;
    for (size_t i = 0; i < w.n; i++) {
        uint32_t id = b->byte_id[(unsigned char)w.p[i]];
        if (id != UINT32_MAX)
            s->sym[n++] = id;
    }
    return n;
}

static bool bytes_known(const struct bpe *b, const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (b->byte_id[(unsigned char)p[i]] == UINT32_MAX)
            return false;
    return b->byte_fallback;
}

static size_t char_symbols(const struct bpe *b, struct bpe_scratch *s, struct str w)
{
    size_t n = 0;
    bool after_unk = false;
    uint32_t cp;
    for (size_t i = 0; i < w.n;) {
        size_t k = utf8_next(w.p + i, w.n - i, &cp);
        uint32_t id = cp < 0x80        ? b->ascii_id[cp]
                      : cp == BPE_MARK ? b->mark_id
                                       : vocab_find(b->v, (struct str){w.p + i, k});
        bool unknown = false;
        if (id != UINT32_MAX) {
            s->sym[n++] = id;
        } else if (bytes_known(b, w.p + i, k)) {
            for (size_t j = 0; j < k; j++)
                s->sym[n++] = b->byte_id[(unsigned char)w.p[i + j]];
        } else if (b->unk != UINT32_MAX) {
            unknown = true;
            if (!(b->fuse_unk && after_unk))
                s->sym[n++] = b->unk;
        }
        after_unk = unknown;
        i += k;
    }
    return n;
}

/* ---- merging ---- */

/* Scans for the lowest rank again and again: quadratic, and the fastest for what words are. */
static size_t merge_short(const struct vocab *v, uint32_t *sym, size_t n)
{
    uint32_t rank[SHORT_WORD], id[SHORT_WORD];
    for (size_t i = 0; i + 1 < n; i++) {
        const struct vocab_pair *p = vocab_pair_find(v, sym[i], sym[i + 1]);
        rank[i] = p ? p->rank : UINT32_MAX;
        id[i] = p ? p->id : 0;
    }
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (rank[i] < rank[best])
                best = i;
        if (rank[best] == UINT32_MAX)
            break;
        sym[best] = id[best];
        for (size_t i = best + 1; i + 1 < n; i++) {
            sym[i] = sym[i + 1];
            rank[i] = rank[i + 1];
            id[i] = id[i + 1];
        }
        n--;
        for (size_t i = best ? best - 1 : 0; i <= best && i + 1 < n; i++) {
            const struct vocab_pair *p = vocab_pair_find(v, sym[i], sym[i + 1]);
            rank[i] = p ? p->rank : UINT32_MAX;
            id[i] = p ? p->id : 0;
        }
    }
    return n;
}

/* Heap entries are rank << 32 | position: the order of merging. Entries go stale when their symbols
 * change; they are then skipped, because a pair's rank is its own. */
static int heap_push(struct bpe_scratch *s, uint64_t key)
{
    if (s->n_heap == s->cap_heap) {
        size_t cap = s->cap_heap ? s->cap_heap * 2 : 1024;
        uint64_t *p = realloc(s->heap, cap * sizeof *p);
        if (!p)
            return -ENOMEM;
        s->heap = p;
        s->cap_heap = cap;
    }
    size_t i = s->n_heap++;
    while (i && s->heap[(i - 1) / 2] > key) {
        s->heap[i] = s->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    s->heap[i] = key;
    return 0;
}

static uint64_t heap_pop(struct bpe_scratch *s)
{
    uint64_t top = s->heap[0], last = s->heap[--s->n_heap];
    size_t i = 0;
    for (;;) {
        size_t c = 2 * i + 1;
        if (c >= s->n_heap)
            break;
        if (c + 1 < s->n_heap && s->heap[c + 1] < s->heap[c])
            c++;
        if (s->heap[c] >= last)
            break;
        s->heap[i] = s->heap[c];
        i = c;
    }
    s->heap[i] = last;
    return top;
}

static int offer(const struct vocab *v, struct bpe_scratch *s, uint32_t at, uint32_t end)
{
    if (s->next[at] == end)
        return 0;
    const struct vocab_pair *p = vocab_pair_find(v, s->sym[at], s->sym[s->next[at]]);
    return p ? heap_push(s, (uint64_t)p->rank << 32 | at) : 0;
}

static int merge_long(const struct vocab *v, struct bpe_scratch *s, size_t *n)
{
    uint32_t end = (uint32_t)*n;
    int rc = 0;
    s->n_heap = 0;
    for (uint32_t i = 0; i < end; i++) {
        s->prev[i] = i ? i - 1 : end;
        s->next[i] = i + 1;
    }
    for (uint32_t i = 0; i < end && !rc; i++)
        rc = offer(v, s, i, end);
    while (s->n_heap && !rc) {
        uint64_t top = heap_pop(s);
        uint32_t at = (uint32_t)top, right = s->next[at];
        if (s->sym[at] == UINT32_MAX || right == end)
            continue;
        const struct vocab_pair *p = vocab_pair_find(v, s->sym[at], s->sym[right]);
        if (!p || p->rank != top >> 32)
            continue;
        s->sym[at] = p->id;
        s->sym[right] = UINT32_MAX;
        s->next[at] = s->next[right];
        if (s->next[at] != end)
            s->prev[s->next[at]] = at;
        rc = offer(v, s, at, end);
        if (!rc && s->prev[at] != end)
            rc = offer(v, s, s->prev[at], end);
    }
    size_t k = 0;
    for (uint32_t i = 0; i < end; i++)
        if (s->sym[i] != UINT32_MAX)
            s->sym[k++] = s->sym[i];
    *n = k;
    return rc;
}

static int merge_word(const struct bpe *b, struct bpe_scratch *s, struct str w, struct ids *out)
{
    if (w.n > UINT32_MAX / 2)
        return -E2BIG;
    int rc = grow(s, w.n);
    if (rc)
        return rc;
    size_t n = b->byte_level ? byte_symbols(b, s, w) : char_symbols(b, s, w);
    if (n <= SHORT_WORD)
        n = merge_short(b->v, s->sym, n);
    else
        rc = merge_long(b->v, s, &n);
    if (!rc)
        rc = ids_append(out, s->sym, n);
    if (s->cap > SCRATCH_KEEP)
        drop_arrays(s);
    return rc;
}

int bpe_encode_any(const struct bpe *b, struct bpe_scratch *s, struct str word, size_t readable,
                   struct ids *out)
{
    size_t n, before = out->n;
    if (word.n == 0)
        return 0;
    const uint32_t *known = word_cache_find(&s->cache, word, readable, &n);
    if (known)
        return ids_append(out, known, n);
    uint32_t whole = b->ignore_merges ? vocab_find(b->v, word) : UINT32_MAX;
    int rc = whole != UINT32_MAX ? ids_push(out, whole) : merge_word(b, s, word, out);
    if (!rc && out->n > before)
        word_cache_put(&s->cache, word, out->id + before, out->n - before);
    return rc;
}
