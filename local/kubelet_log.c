#include "local/kubelet_log.h"

#include "lib/base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define LINE_MAX_BYTES 16384 /* as the CRI: longer lines are cut into P pieces */
#define READ_BYTES     65536

int klog_open(struct klog *l, const char *path, uint64_t max_bytes, struct err *e)
{
    *l = (struct klog){.max = max_bytes ? max_bytes : 10 << 20};
    l->fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0640);
    if (l->fd < 0)
        return err_set(e, errno, "can't write the log %s: %s", path, strerror(errno));
    l->path = xstrdup(path);
    l->size = (uint64_t)lseek(l->fd, 0, SEEK_END);
    for (int i = 0; i < 2; i++)
        buf_init(&l->line[i], LINE_MAX_BYTES * 2);
    return 0;
}

static void rotate(struct klog *l)
{
    CLEANUP(free_charp) char *old = xasprintf("%s.1", l->path);
    if (rename(l->path, old))
        return;
    int fd = open(l->path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0640);
    if (fd < 0)
        return; /* goes on in the old file */
    close(l->fd);
    l->fd = fd;
    l->size = 0;
}

/* A full disk loses log lines, never the container. */
static void emit(struct klog *l, int stream, char tag, struct str text)
{
    struct timespec t;
    struct tm tm;
    clock_gettime(CLOCK_REALTIME, &t);
    gmtime_r(&t.tv_sec, &tm);
    char head[80];
    size_t n = strftime(head, sizeof head, "%Y-%m-%dT%H:%M:%S", &tm);
    n += (size_t)snprintf(head + n, sizeof head - n, ".%09ldZ %s %c ", t.tv_nsec,
                          stream ? "stderr" : "stdout", tag);
    struct buf b;
    buf_init(&b, LINE_MAX_BYTES * 3);
    if (buf_append(&b, head, n) == 0 && buf_str(&b, text) == 0 && buf_cstr(&b, "\n") == 0) {
        if (l->size + b.n > l->max && l->size > 0)
            rotate(l);
        ssize_t w = write(l->fd, b.data, b.n);
        l->size += w > 0 ? (uint64_t)w : 0;
    }
    buf_fini(&b);
}

void klog_write(struct klog *l, int stream, struct str text)
{
    struct buf *line = &l->line[stream];
    while (text.n) {
        const char *nl = memchr(text.p, '\n', text.n);
        size_t n = nl ? (size_t)(nl - text.p) : text.n;
        size_t room = LINE_MAX_BYTES - line->n;
        bool cut = n > room;
        if (cut)
            n = room;
        if (buf_append(line, text.p, n))
            buf_reset(line);
        text.p += n;
        text.n -= n;
        if (cut) {
            emit(l, stream, 'P', buf_view(line));
            buf_reset(line);
        } else if (nl) {
            emit(l, stream, 'F', buf_view(line));
            buf_reset(line);
            text.p++;
            text.n--;
        }
    }
}

void klog_end(struct klog *l, int stream)
{
    if (l->line[stream].n)
        emit(l, stream, 'P', buf_view(&l->line[stream]));
    buf_reset(&l->line[stream]);
}

void klog_close(struct klog *l)
{
    for (int i = 0; i < 2; i++) {
        klog_end(l, i);
        buf_fini(&l->line[i]);
    }
    close(l->fd);
    free(l->path);
    *l = (struct klog){.fd = -1};
}

struct klog_reader {
    char *path;
    int fd;
    ino_t ino;
    bool rotated_part; /* reading "<path>.1" before path */
    struct buf raw;
    struct klog_options o;
    int64_t left; /* of limit_bytes; -1: no limit */
};

static bool parse_line(struct str line, uint64_t *at_ns, bool *partial, struct str *stamp,
                       struct str *text)
{
    struct str stream, tag;
    struct str rest = str_cut(line, ' ', stamp);
    rest = str_cut(rest, ' ', &stream);
    *text = str_cut(rest, ' ', &tag);
    char z[64];
    if (!stamp->n || stamp->n >= sizeof z || tag.n != 1)
        return false;
    memcpy(z, stamp->p, stamp->n);
    z[stamp->n] = 0;
    *partial = tag.p[0] == 'P';
    return clock_parse_rfc3339(z, at_ns) == 0;
}

static int open_part(struct klog_reader *r, bool old)
{
    CLEANUP(free_charp) char *path = xasprintf("%s%s", r->path, old ? ".1" : "");
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    if (r->fd >= 0)
        close(r->fd);
    struct stat st;
    r->fd = fd;
    r->ino = fstat(fd, &st) ? 0 : st.st_ino;
    r->rotated_part = old;
    return 0;
}

/* Offset in the open file behind which its last `*want` lines lie; *want is lowered by the lines
 * that are there. */
static off_t tail_offset(int fd, int64_t *want)
{
    char piece[READ_BYTES];
    off_t at = lseek(fd, 0, SEEK_END);
    bool at_end = true;
    while (at > 0) {
        size_t n = at < READ_BYTES ? (size_t)at : READ_BYTES;
        at -= (off_t)n;
        if (pread(fd, piece, n, at) != (ssize_t)n)
            return 0;
        for (size_t i = n; i-- > 0;) {
            if (piece[i] != '\n')
                continue;
            if (at_end) {
                at_end = false; /* the newline that ends the file */
                continue;
            }
            if (--*want == 0)
                return at + (off_t)i + 1;
        }
    }
    if (!at_end)
        --*want;
    return 0;
}

static void seek_tail(struct klog_reader *r)
{
    int64_t want = r->o.tail;
    if (want == 0) {
        if (open_part(r, false) == 0)
            lseek(r->fd, 0, SEEK_END);
        return;
    }
    if (open_part(r, false))
        return;
    off_t at = tail_offset(r->fd, &want);
    if (want > 0 && open_part(r, true) == 0)
        at = tail_offset(r->fd, &want);
    lseek(r->fd, at, SEEK_SET);
}

int klog_reader_new(const char *path, const struct klog_options *o, struct klog_reader **out,
                    struct err *e)
{
    struct klog_reader *r = xcalloc(1, sizeof *r);
    r->path = xstrdup(path);
    r->fd = -1;
    r->o = *o;
    r->left = o->limit_bytes > 0 ? o->limit_bytes : -1;
    buf_init(&r->raw, READ_BYTES * 4);
    if (o->tail >= 0)
        seek_tail(r);
    else if (open_part(r, true))
        (void)!open_part(r, false);
    if (r->fd < 0) {
        klog_reader_free(r);
        return err_set(e, ENOENT, "there is no log yet");
    }
    *out = r;
    return 0;
}

void klog_reader_free(struct klog_reader *r)
{
    if (r->fd >= 0)
        close(r->fd);
    buf_fini(&r->raw);
    free(r->path);
    free(r);
}

/* At the end of a file: has the writer gone on in a newer one? */
static bool next_part(struct klog_reader *r)
{
    struct stat st;
    if (!r->rotated_part && (stat(r->path, &st) || st.st_ino == r->ino))
        return false;
    return open_part(r, false) == 0;
}

static int give_line(struct klog_reader *r, struct str line, struct buf *out)
{
    uint64_t at;
    bool partial;
    struct str stamp, text;
    if (!parse_line(line, &at, &partial, &stamp, &text) || at < r->o.since_wall_ns)
        return 0;
    size_t before = out->n;
    if (r->o.timestamps && (buf_str(out, stamp) || buf_cstr(out, " ")))
        return -EMSGSIZE;
    if (buf_str(out, text) || (!partial && buf_cstr(out, "\n")))
        return -EMSGSIZE;
    if (r->left >= 0) {
        size_t n = out->n - before;
        if ((int64_t)n > r->left)
            out->n = before + (size_t)r->left;
        r->left -= (int64_t)(out->n - before);
    }
    return 0;
}

int64_t klog_reader_next(struct klog_reader *r, struct buf *out)
{
    size_t before = out->n;
    if (r->left == 0)
        return -ENODATA;
    while (out->n - before < READ_BYTES && r->left != 0) {
        char piece[READ_BYTES];
        ssize_t n = read(r->fd, piece, sizeof piece);
        if (n <= 0) {
            if (!next_part(r))
                break;
            continue;
        }
        if (buf_append(&r->raw, piece, (size_t)n))
            buf_reset(&r->raw);
        char *nl;
        size_t at = 0;
        while (r->left != 0 && at < r->raw.n &&
               (nl = memchr(r->raw.data + at, '\n', r->raw.n - at))) {
            size_t end = (size_t)(nl - r->raw.data);
            if (give_line(r, (struct str){r->raw.data + at, end - at}, out))
                return -EMSGSIZE;
            at = end + 1;
        }
        buf_consume(&r->raw, at);
    }
    return (int64_t)(out->n - before);
}
