#include "lib/fetch/sha.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define PIECE (1u << 20)

struct sha {
    EVP_MD_CTX *ctx;
};

struct sha *sha_new(void)
{
    struct sha *h = xmalloc(sizeof *h);
    h->ctx = EVP_MD_CTX_new();
    ASSERT(h->ctx && EVP_DigestInit_ex(h->ctx, EVP_sha256(), NULL) == 1);
    return h;
}

void sha_add(struct sha *h, const void *p, size_t n)
{
    ASSERT(EVP_DigestUpdate(h->ctx, p, n) == 1);
}

void sha_free(struct sha *h)
{
    if (!h)
        return;
    EVP_MD_CTX_free(h->ctx);
    free(h);
}

void sha_end(struct sha *h, char hex[SHA_HEX])
{
    uint8_t sum[EVP_MAX_MD_SIZE];
    ASSERT(EVP_DigestFinal_ex(h->ctx, sum, NULL) == 1);
    str_to_hex(sum, 32, hex);
    sha_free(h);
}

int sha_add_file(struct sha *h, int fd, uint64_t from, uint64_t to, struct err *e)
{
    uint8_t *piece = xmalloc(PIECE);
    int code = 0;
    while (from < to && !code) {
        size_t want = to - from < PIECE ? (size_t)(to - from) : PIECE;
        ssize_t n = pread(fd, piece, want, (off_t)from);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            code = n < 0 ? errno : EPIPE;
            break;
        }
        sha_add(h, piece, (size_t)n);
        from += (uint64_t)n;
    }
    free(piece);
    return code ? err_set(e, code, "can't read what was fetched: %s", strerror(code)) : 0;
}

int sha_file(const char *path, char hex[SHA_HEX], struct err *e)
{
    struct stat st;
    CLEANUP(close_fdp) int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st))
        return err_set(e, errno, "can't open %s: %s", path, strerror(errno));
    struct sha *h = sha_new();
    int r = sha_add_file(h, fd, 0, (uint64_t)st.st_size, e);
    if (r)
        sha_free(h);
    else
        sha_end(h, hex);
    return r;
}

bool sha_is_hex(const char *s)
{
    size_t n = 0;
    for (; s && s[n]; n++)
        if (!((s[n] >= '0' && s[n] <= '9') || (s[n] >= 'a' && s[n] <= 'f')))
            return false;
    return n == 64;
}
