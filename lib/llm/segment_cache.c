#include "lib/llm/segment_cache.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/random.h>

#define BUCKETS 1024
#define SEEN    4096 /* hashes of texts that came up once */

struct entry {
    struct entry *in_bucket, *newer, *older;
    uint64_t hash;
    unsigned how;
    size_t n_text, n_ids;
    uint32_t id[]; /* then the text */
};

struct segment_cache {
    pthread_mutex_t lock;
    struct entry *bucket[BUCKETS];
    struct entry *newest, *oldest;
    size_t bytes, max_bytes;
    uint64_t seen[SEEN];
    uint64_t salt; /* which texts share a bucket is not for clients to know */
};

struct segment_cache *segment_cache_new(size_t max_bytes)
{
    struct segment_cache *c = calloc(1, sizeof *c);
    if (!c || pthread_mutex_init(&c->lock, NULL)) {
        free(c);
        return NULL;
    }
    c->max_bytes = max_bytes;
    if (getrandom(&c->salt, sizeof c->salt, 0) != sizeof c->salt)
        c->salt = (uintptr_t)c;
    return c;
}

void segment_cache_free(struct segment_cache *c)
{
    if (!c)
        return;
    for (struct entry *x = c->newest, *next; x; x = next) {
        next = x->older;
        free(x);
    }
    pthread_mutex_destroy(&c->lock);
    free(c);
}

/* Four chains at once: 8 KB take less than a microsecond. */
static uint64_t hash_text(struct str s, uint64_t salt)
{
    uint64_t h[4] = {0x9e3779b97f4a7c15u ^ s.n, 0xff51afd7ed558ccdu, 0xc4ceb9fe1a85ec53u, salt},
             w[4];
    h[0] ^= salt >> 1;
    for (; s.n >= sizeof w; s.p += sizeof w, s.n -= sizeof w) {
        memcpy(w, s.p, sizeof w);
        for (int i = 0; i < 4; i++) {
            h[i] = (h[i] ^ w[i]) * 0x9fb21c651e98df25u;
            h[i] ^= h[i] >> 32;
        }
    }
    memset(w, 0, sizeof w);
    memcpy(w, s.p, s.n);
    uint64_t all = 0;
    for (int i = 0; i < 4; i++) {
        all = (all ^ h[i] ^ w[i] * 0x9fb21c651e98df25u) * 0xc4ceb9fe1a85ec53u;
        all ^= all >> 29;
    }
    return all;
}

struct segment segment_of(const struct segment_cache *c, struct str text, unsigned how)
{
    return (struct segment){text, how, hash_text(text, c->salt + how)};
}

static char *text_of(struct entry *x)
{
    return (char *)(x->id + x->n_ids);
}

static size_t bytes_of(size_t n_text, size_t n_ids)
{
    return sizeof(struct entry) + n_ids * sizeof(uint32_t) + n_text;
}

/* ---- the list, newest first; under the lock ---- */

static void take_out(struct segment_cache *c, struct entry *x)
{
    *(x->newer ? &x->newer->older : &c->newest) = x->older;
    *(x->older ? &x->older->newer : &c->oldest) = x->newer;
}

static void put_first(struct segment_cache *c, struct entry *x)
{
    x->newer = NULL;
    x->older = c->newest;
    *(x->older ? &x->older->newer : &c->oldest) = x;
    c->newest = x;
}

static void drop(struct segment_cache *c, struct entry *x)
{
    struct entry **at = &c->bucket[x->hash % BUCKETS];
    while (*at != x)
        at = &(*at)->in_bucket;
    *at = x->in_bucket;
    take_out(c, x);
    c->bytes -= bytes_of(x->n_text, x->n_ids);
    free(x);
}

static struct entry *lookup(struct segment_cache *c, const struct segment *s)
{
    struct entry *x = c->bucket[s->hash % BUCKETS];
    while (x && !(x->hash == s->hash && x->how == s->how &&
                  str_eq((struct str){text_of(x), x->n_text}, s->text)))
        x = x->in_bucket;
    return x;
}

int segment_cache_find(struct segment_cache *c, const struct segment *s, struct ids *out)
{
    int rc = 0;
    pthread_mutex_lock(&c->lock);
    struct entry *x = lookup(c, s);
    if (x) {
        take_out(c, x);
        put_first(c, x);
        rc = ids_append(out, x->id, x->n_ids);
    }
    pthread_mutex_unlock(&c->lock);
    return rc ? rc : x != NULL;
}

static bool seen_before(struct segment_cache *c, uint64_t hash)
{
    uint64_t *slot = &c->seen[hash % SEEN];
    bool seen = *slot == hash;
    *slot = hash;
    return seen;
}

void segment_cache_put(struct segment_cache *c, const struct segment *s, const uint32_t *id,
                       size_t n)
{
    size_t bytes = bytes_of(s->text.n, n);
    if (bytes > c->max_bytes / 4)
        return;
    pthread_mutex_lock(&c->lock);
    struct entry *x = seen_before(c, s->hash) && !lookup(c, s) ? malloc(bytes) : NULL;
    if (x) {
        *x = (struct entry){.hash = s->hash, .how = s->how, .n_text = s->text.n, .n_ids = n};
        if (n)
            memcpy(x->id, id, n * sizeof *id);
        memcpy(text_of(x), s->text.p, s->text.n);
        x->in_bucket = c->bucket[s->hash % BUCKETS];
        c->bucket[s->hash % BUCKETS] = x;
        put_first(c, x);
        c->bytes += bytes;
    }
    while (c->bytes > c->max_bytes)
        drop(c, c->oldest);
    pthread_mutex_unlock(&c->lock);
}
