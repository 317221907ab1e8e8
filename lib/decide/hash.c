#include "lib/decide/hash.h"

#include "lib/base/rng.h"

#include <openssl/evp.h>
#include <stdio.h>

void hash_revision(const struct hash_part *parts, size_t n, char out[HASH_REVISION_MAX])
{
    uint8_t digest[EVP_MAX_MD_SIZE];
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    ASSERT(ctx && EVP_DigestInit_ex(ctx, EVP_sha256(), NULL) == 1);
    for (size_t i = 0; i < n; i++) {
        char head[64];
        const char *v = parts[i].value;
        int len = snprintf(head, sizeof head, "%s=%c%zu:", parts[i].name, v ? 's' : 'n',
                           v ? strlen(v) : 0);
        ASSERT(len > 0 && (size_t)len < sizeof head);
        EVP_DigestUpdate(ctx, head, (size_t)len);
        if (v)
            EVP_DigestUpdate(ctx, v, strlen(v));
    }
    EVP_DigestFinal_ex(ctx, digest, NULL);
    EVP_MD_CTX_free(ctx);
    str_to_hex(digest, (HASH_REVISION_MAX - 1) / 2, out);
}

void hash_suffix(uint64_t seed, uint64_t index, char out[HASH_SUFFIX_MAX])
{
    static const char digits[] = "bcdfghjklmnpqrstvwxz2456789";
    uint64_t bits = rng_at(seed, 0x706f64, index);
    for (int i = 0; i < HASH_SUFFIX_MAX - 1; i++)
        out[i] = digits[(bits >> (i * 8)) % (sizeof digits - 1)];
    out[HASH_SUFFIX_MAX - 1] = 0;
}

uint64_t hash_mix(uint64_t h, const char *s)
{
    if (!h)
        h = 0xcbf29ce484222325ull;
    for (; s && *s; s++)
        h = (h ^ (uint8_t)*s) * 0x100000001b3ull;
    return (h ^ 0xff) * 0x100000001b3ull;
}
