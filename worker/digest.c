#include "worker/digest.h"
#include "lib/base/buf.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <openssl/sha.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
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

/* The digest of one file as 64 hex digits. */
static int digest_file(const char *path, char text[2 * EVP_MAX_MD_SIZE + 1], struct err *e)
{
    uint8_t sum[EVP_MAX_MD_SIZE];
    CLEANUP(close_fdp) int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_set(e, errno, "can't open %s: %s", path, strerror(errno));
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    ASSERT(ctx && EVP_DigestInit_ex(ctx, EVP_sha256(), NULL) == 1);
    int rc = digest_fd(fd, path, ctx, e);
    ASSERT(EVP_DigestFinal_ex(ctx, sum, NULL) == 1);
    EVP_MD_CTX_free(ctx);
    str_to_hex(sum, 32, text);
    return rc;
}

static int by_bytes(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int visible(const struct dirent *d)
{
    return d->d_name[0] != '.';
}

static int digest_folder(const char *path, char text[2 * EVP_MAX_MD_SIZE + 1], struct err *e)
{
    struct dirent **names;
    uint8_t sum[SHA256_DIGEST_LENGTH];
    struct buf lines;
    int n = scandir(path, &names, visible, by_bytes), rc = 0;
    if (n < 0)
        return err_set(e, errno, "can't read %s: %s", path, strerror(errno));
    buf_init(&lines, 16u << 20);
    for (int i = 0; i < n; i++) {
        CLEANUP(free_charp) char *file = xasprintf("%s/%s", path, names[i]->d_name);
        struct stat st;
        if (rc == 0 && stat(file, &st) == 0 && S_ISREG(st.st_mode)) {
            rc = digest_file(file, text, e);
            if (rc == 0 && buf_printf(&lines, "%s  %s\n", text, names[i]->d_name) < 0)
                rc = err_set(e, E2BIG, "%s holds too many files", path);
        }
        free(names[i]);
    }
    free(names);
    SHA256((const uint8_t *)lines.data, lines.n, sum);
    buf_fini(&lines);
    str_to_hex(sum, sizeof sum, text);
    return rc;
}

int digest_check(const char *path, const char *hex, struct err *e)
{
    char text[2 * EVP_MAX_MD_SIZE + 1];
    struct stat st;
    if (!*hex)
        return 0;
    bool folder = stat(path, &st) == 0 && S_ISDIR(st.st_mode);
    int rc = folder ? digest_folder(path, text, e) : digest_file(path, text, e);
    if (rc)
        return rc;
    if (strcmp(text, hex) != 0)
        return err_set(e, EINVAL, "%s: its sha256 is %s, not %s", path, text, hex);
    return 0;
}
