/* API keys of clients: kept as SHA-256 digests, compared without leaking where they differ. */
#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

#include "router/router.h"

#define KEY_BYTES_MAX 512
#define KEYS_MAX      4096

struct keys {
    size_t n;
    uint8_t digest[][SHA256_DIGEST_LENGTH];
};

static int add_key(struct keys **k, struct str key)
{
    key = str_trim(key);
    if (!key.n || key.p[0] == '#')
        return 0;
    size_t n = *k ? (*k)->n : 0;
    if (key.n > KEY_BYTES_MAX || n == KEYS_MAX)
        return -E2BIG;
    *k = xrealloc(*k, sizeof **k + (n + 1) * SHA256_DIGEST_LENGTH);
    (*k)->n = n + 1;
    SHA256((const unsigned char *)key.p, key.n, (*k)->digest[n]);
    return 0;
}

static int add_list(struct keys **k, struct str list, char sep)
{
    while (list.n) {
        struct str one;
        list = str_cut(list, sep, &one);
        int rc = add_key(k, one);
        if (rc)
            return rc;
    }
    return 0;
}

static int add_file(struct keys **k, const char *path, struct err *e)
{
    FILE *f = fopen(path, "re");
    if (!f)
        return err_set(e, errno, "API keys: %s: %s", path, strerror(errno));
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    int rc = 0;
    while (!rc && (n = getline(&line, &cap, f)) >= 0)
        rc = add_key(k, (struct str){line, (size_t)n});
    free(line);
    fclose(f);
    return rc ? err_set(e, -rc, "API keys: %s: at most %d keys of %d bytes", path, KEYS_MAX,
                        KEY_BYTES_MAX)
              : 0;
}

int keys_load(const struct options *o, struct keys **out, struct err *e)
{
    struct keys *k = NULL;
    int rc = 0;
    if (o->api_keys_file && *o->api_keys_file)
        rc = add_file(&k, o->api_keys_file, e);
    if (!rc && o->api_keys && add_list(&k, str_c(o->api_keys), ','))
        rc = err_set(e, E2BIG, "BATON_API_KEYS: at most %d keys of %d bytes", KEYS_MAX,
                     KEY_BYTES_MAX);
    if (!rc && !k && o->api_keys_file && *o->api_keys_file)
        rc = err_set(e, EINVAL, "API keys: %s holds none; without --api-keys-file the API is open",
                     o->api_keys_file);
    if (rc)
        free(k);
    else
        *out = k;
    return rc;
}

static const char *bearer(const char *authorization)
{
    if (!authorization || strncasecmp(authorization, "Bearer ", 7) != 0)
        return NULL;
    authorization += 7;
    while (*authorization == ' ')
        authorization++;
    return authorization;
}

bool keys_match(const struct keys *k, const char *authorization)
{
    const char *key = bearer(authorization);
    uint8_t digest[SHA256_DIGEST_LENGTH];
    int found = 0;
    if (!key)
        return false;
    SHA256((const unsigned char *)key, strlen(key), digest);
    for (size_t i = 0; i < k->n; i++)
        found |= !CRYPTO_memcmp(digest, k->digest[i], sizeof digest);
    return found;
}

bool secret_equal(const char *a, const char *b)
{
    size_t n = strlen(a);
    return n == strlen(b) && !CRYPTO_memcmp(a, b, n);
}

bool bearer_is(const char *authorization, const char *secret)
{
    const char *given = bearer(authorization);
    return given && secret_equal(given, secret);
}

void keys_free(struct keys *k)
{
    free(k);
}
