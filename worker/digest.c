#include "worker/digest.h"
#include "lib/base/str.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHUNK (1u << 20)

static int digest_fd(int fd, const char *path, EVP_MD_CTX *ctx, struct err *e)
{
    uint8_t *chunk = xmalloc(CHUNK);
    ssize_t n;
    while ((n = read(fd, chunk, CHUNK)) > 0 || (n < 0 && errno == EINTR))
        if (n > 0)
            ASSERT(EVP_DigestUpdate(ctx, chunk, (size_t)n) == 1);
    int code = n < 0 ? errno : 0;
    free(chunk);
    return code ? err_set(e, code, "can't read %s: %s", path, strerror(code)) : 0;
}

int digest_check(const char *path, const char *hex, struct err *e)
{
    uint8_t sum[EVP_MAX_MD_SIZE];
    char text[2 * EVP_MAX_MD_SIZE + 1];
    if (!*hex)
        return 0;
    CLEANUP(close_fdp) int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_set(e, errno, "can't open %s: %s", path, strerror(errno));
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    ASSERT(ctx && EVP_DigestInit_ex(ctx, EVP_sha256(), NULL) == 1);
    int rc = digest_fd(fd, path, ctx, e);
    ASSERT(EVP_DigestFinal_ex(ctx, sum, NULL) == 1);
    EVP_MD_CTX_free(ctx);
    if (rc)
        return rc;
    str_to_hex(sum, 32, text);
    if (strcmp(text, hex) != 0)
        return err_set(e, EINVAL, "%s: its sha256 is %s, not %s", path, text, hex);
    return 0;
}
