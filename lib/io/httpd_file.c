/* Replies that are files. */
#include "lib/io/httpd.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

/* "bytes=a-b" or "bytes=a-" within size. -EINVAL: to be ignored (several ranges, suffixes,
 * nonsense), -ERANGE: outside the file. */
static int parse_range(const char *text, uint64_t size, uint64_t *from, uint64_t *len)
{
    struct str unit, first, last = str_cut(str_c(text), '=', &unit);
    last = str_cut(last, '-', &first);
    uint64_t a, b = size ? size - 1 : 0;
    if (!str_eq_c(unit, "bytes") || str_to_u64(first, 0, INT64_MAX, &a))
        return -EINVAL;
    if (last.n && str_to_u64(last, 0, INT64_MAX, &b))
        return -EINVAL;
    if (a >= size || b < a)
        return -ERANGE;
    b = b < size ? b : size - 1;
    *from = a;
    *len = b - a + 1;
    return 0;
}

uint64_t httpd_reply_path(struct httpd_req *r, const char *path, const char *etag)
{
    struct stat st;
    char text[160];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) || !S_ISREG(st.st_mode)) {
        close_fdp(&fd);
        httpd_replyf(r, 404, "text/plain", "there is no such file\n");
        return 0;
    }
    const char *range = httpd_header(r, "Range");
    uint64_t size = (uint64_t)st.st_size, from = 0, len = size;
    int rc = range ? parse_range(range, size, &from, &len) : -EINVAL;
    if (etag) {
        snprintf(text, sizeof text, "\"%s\"", etag);
        httpd_set_header(r, "ETag", text);
    }
    httpd_set_header(r, "Accept-Ranges", "bytes");
    if (rc == -ERANGE) {
        close(fd);
        snprintf(text, sizeof text, "bytes */%llu", (unsigned long long)size);
        httpd_set_header(r, "Content-Range", text);
        httpd_replyf(r, 416, "text/plain", "the range is outside the file\n");
        return 0;
    }
    if (rc == 0) {
        snprintf(text, sizeof text, "bytes %llu-%llu/%llu", (unsigned long long)from,
                 (unsigned long long)(from + len - 1), (unsigned long long)size);
        httpd_set_header(r, "Content-Range", text);
    }
    httpd_reply_file(r, rc == 0 ? 206 : 200, "application/octet-stream", fd, from, len);
    return len;
}
