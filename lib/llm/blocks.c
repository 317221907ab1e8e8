#include "lib/llm/blocks.h"

#include <openssl/evp.h>
#include <pthread.h>

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
