#include "lib/llm/blocks.h"

#include <openssl/evp.h>
#include <pthread.h>
#include <stdlib.h>

static EVP_MD *sha256;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void fetch_sha256(void)
{
    sha256 = EVP_MD_fetch(NULL, "SHA256", NULL);
    ASSERT(sha256);
}

static void put_u32(uint32_t v, unsigned char out[4])
{
    for (int i = 0; i < 4; i++)
        out[i] = (unsigned char)(v >> 8 * i);
}

static EVP_MD_CTX *begin(EVP_MD_CTX *c)
{
    ASSERT(EVP_DigestInit_ex2(c, sha256, NULL) == 1);
    return c;
}

static void add(EVP_MD_CTX *c, const void *p, size_t n)
{
    ASSERT(EVP_DigestUpdate(c, p, n) == 1);
}

static void end(EVP_MD_CTX *c, struct block_name *out)
{
    unsigned char digest[EVP_MAX_MD_SIZE];
    ASSERT(EVP_DigestFinal_ex(c, digest, NULL) == 1);
    memcpy(out->b, digest, BLOCK_NAME_BYTES);
}

static EVP_MD_CTX *context(void)
{
    pthread_once(&once, fetch_sha256);
    EVP_MD_CTX *c = EVP_MD_CTX_new();
    ASSERT(c);
    return c;
}

void block_seed(const struct block_space *s, struct block_name *out)
{
    const struct str part[] = {s->model_revision, s->kv_dtype, s->adapter, s->tenant_salt};
    unsigned char n[4];
    EVP_MD_CTX *c = begin(context());
    add(c, "baton-kv-block/1", 16);
    put_u32(s->block_tokens, n);
    add(c, n, 4);
    for (size_t i = 0; i < 4; i++) {
        put_u32((uint32_t)part[i].n, n);
        add(c, n, 4);
        add(c, part[i].p, part[i].n);
    }
    end(c, out);
    EVP_MD_CTX_free(c);
}

static void add_tokens(EVP_MD_CTX *c, const uint32_t *tokens, uint32_t n)
{
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    add(c, tokens, (size_t)n * 4);
#else
    unsigned char b[4];
    for (uint32_t i = 0; i < n; i++) {
        put_u32(tokens[i], b);
        add(c, b, 4);
    }
#endif
}

size_t block_names(const struct block_name *prev, const uint32_t *tokens, size_t n_tokens,
                   uint32_t block_tokens, struct block_name *out)
{
    ASSERT(block_tokens > 0);
    size_t n = n_tokens / block_tokens;
    EVP_MD_CTX *c = n ? context() : NULL;
    for (size_t i = 0; i < n; i++) {
        begin(c);
        add(c, prev->b, BLOCK_NAME_BYTES);
        add_tokens(c, tokens + i * block_tokens, block_tokens);
        end(c, &out[i]);
        prev = &out[i];
    }
    EVP_MD_CTX_free(c);
    return n;
}

/* ---- with a memory ---- */

#define MEMO_TOKENS 32
#define MEMO_SLOTS  16384
#define MEMO_SEEN   4096

struct memo_slot {
    struct block_name prev; /* then the tokens, as they are hashed */
    uint32_t token[MEMO_TOKENS];
    struct block_name name;
    uint32_t n_tokens; /* 0: empty */
};
struct block_memo {
    pthread_mutex_t lock;
    uint64_t seen[MEMO_SEEN]; /* hashes of blocks that were missed once */
    struct memo_slot slot[MEMO_SLOTS];
};

struct block_memo *block_memo_new(void)
{
    struct block_memo *m = calloc(1, sizeof *m);
    if (m && pthread_mutex_init(&m->lock, NULL)) {
        free(m);
        return NULL;
    }
    return m;
}

void block_memo_free(struct block_memo *m)
{
    if (!m)
        return;
    pthread_mutex_destroy(&m->lock);
    free(m);
}

/* A name is as random as a hash; the tokens tell those apart that follow the same block. */
static uint64_t memo_hash(const struct block_name *prev, const uint32_t *tokens, uint32_t n)
{
    uint64_t h = block_name_hash(prev);
    for (uint32_t i = 0; i < n; i++)
        h += tokens[i] * (0x9fb21c651e98df25u + 2ull * i * 0xc4ceb9fe1a85ec53u);
    h *= 0xff51afd7ed558ccdu;
    return h ^ h >> 32;
}

/* How many of the first n blocks are known; their names. */
static size_t memo_find(const struct block_memo *m, const struct block_name *prev,
                        const uint32_t *tokens, size_t n, uint32_t per, struct block_name *out)
{
    size_t i = 0;
    for (; i < n; i++, tokens += per, prev = &out[i - 1]) {
        const struct memo_slot *s = &m->slot[memo_hash(prev, tokens, per) % MEMO_SLOTS];
        if (s->n_tokens != per || memcmp(s->token, tokens, per * sizeof *tokens) != 0 ||
            !block_name_eq(&s->prev, prev))
            break;
        out[i] = s->name;
    }
    return i;
}

static void memo_put(struct block_memo *m, const struct block_name *prev, const uint32_t *tokens,
                     size_t n, uint32_t per, const struct block_name *name)
{
    for (size_t i = 0; i < n; i++, tokens += per, prev = &name[i - 1]) {
        struct memo_slot *s = &m->slot[memo_hash(prev, tokens, per) % MEMO_SLOTS];
        s->prev = *prev;
        s->name = name[i];
        s->n_tokens = per;
        memcpy(s->token, tokens, per * sizeof *tokens);
    }
}

/* What comes up once costs one look: a chain that leaves what is known has left it for good, and is
 * kept when it leaves there the second time. */
size_t block_names_memo(struct block_memo *m, const struct block_name *prev, const uint32_t *tokens,
                        size_t n_tokens, uint32_t block_tokens, struct block_name *out)
{
    if (!m || block_tokens > MEMO_TOKENS || pthread_mutex_trylock(&m->lock))
        return block_names(prev, tokens, n_tokens, block_tokens, out);
    size_t n = n_tokens / block_tokens, known = memo_find(m, prev, tokens, n, block_tokens, out);
    if (known < n) {
        prev = known ? &out[known - 1] : prev;
        tokens += known * block_tokens;
        size_t left =
            block_names(prev, tokens, n_tokens - known * block_tokens, block_tokens, out + known);
        uint64_t hash = memo_hash(prev, tokens, block_tokens), *seen = &m->seen[hash % MEMO_SEEN];
        if (*seen == hash)
            memo_put(m, prev, tokens, left, block_tokens, out + known);
        *seen = hash;
    }
    pthread_mutex_unlock(&m->lock);
    return n;
}

bool block_name_eq(const struct block_name *a, const struct block_name *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

uint64_t block_name_hash(const struct block_name *n)
{
    uint64_t h;
    memcpy(&h, n->b, sizeof h);
    return h;
}
