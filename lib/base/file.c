#include "lib/base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

int file_append(const char *path, struct buf *out, struct err *e)
{
    CLEANUP(close_fdp) int fd = open(path, O_RDONLY | O_CLOEXEC);
    char chunk[16384];
    ssize_t n;
    if (fd < 0)
        return err_set(e, errno, "%s: %s", path, strerror(errno));
    while ((n = read(fd, chunk, sizeof chunk)) != 0) {
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_set(e, errno, "%s: %s", path, strerror(errno));
        if (buf_append(out, chunk, (size_t)n))
            return err_set(e, EMSGSIZE, "%s: larger than the limit of %zu bytes", path, out->max);
    }
    return 0;
}

char *file_read(const char *path, size_t max_bytes, struct err *e)
{
    struct buf b;
    buf_init(&b, max_bytes);
    if (file_append(path, &b, e) == 0)
        return buf_take(&b);
    buf_fini(&b);
    return NULL;
}

static int write_all(int fd, struct str t)
{
    while (t.n) {
        ssize_t n = write(fd, t.p, t.n);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        t.p += n;
        t.n -= (size_t)n;
    }
    return fsync(fd) ? -errno : 0;
}

int file_write(const char *path, struct str text, mode_t mode, struct err *e)
{
    CLEANUP(free_charp) char *tmp = xasprintf("%s.%d.tmp", path, (int)getpid());
    CLEANUP(close_fdp)
    int fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, mode);
    if (fd < 0)
        return err_set(e, errno, "%s: %s", tmp, strerror(errno));
    int rc = fchmod(fd, mode) ? -errno : write_all(fd, text);
    if (!rc && rename(tmp, path))
        rc = -errno;
    if (rc)
        (void)unlink(tmp);
    return rc ? err_set(e, -rc, "%s: %s", path, strerror(-rc)) : 0;
}

int file_read_at(int fd, void *out, size_t n, uint64_t at)
{
    uint8_t *p = out;
    while (n > 0) {
        ssize_t r = pread(fd, p, n, (off_t)at);
        if (r < 0 && errno == EINTR)
            continue;
        if (r <= 0)
            return r < 0 ? -errno : -ENODATA;
        p += r;
        n -= (size_t)r;
        at += (uint64_t)r;
    }
    return 0;
}
