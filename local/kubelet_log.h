/* kubelet_log.h: a container's log files as the CRI has them, written by its shim and read for
 * `kubectl logs`.
 *
 * One line of output is "<RFC 3339 with nanoseconds> stdout|stderr F|P <text>" (P: the line goes on
 * in the next one). A file is rotated to "<path>.1" when it reaches its size; two files are kept.
 * Reading is stateless on the file system, so it works for containers of any age and from any
 * thread; a reader belongs to one thread. */
#pragma once
#include "lib/base/buf.h"

struct klog {
    char *path;
    int fd;
    uint64_t size, max;
    struct buf line[2]; /* the unfinished line of stdout and stderr */
};

int klog_open(struct klog *l, const char *path, uint64_t max_bytes, struct err *e) MUST_CHECK;
void klog_write(struct klog *l, int stream, struct str text);
void klog_end(struct klog *l, int stream); /* the unfinished line is written */
void klog_close(struct klog *l);

struct klog_options {
    int64_t tail;           /* last lines; -1: all */
    int64_t limit_bytes;    /* of what is returned; 0: all */
    uint64_t since_wall_ns; /* 0: all */
    bool timestamps;
};

struct klog_reader;
/* Positions a reader before the first line wanted. -ENOENT when there is no log. */
int klog_reader_new(const char *path, const struct klog_options *o, struct klog_reader **out,
                    struct err *e) MUST_CHECK;
/* Appends whole lines that are there now, at most about 64 KiB a call. Returns the count of bytes
 * appended; 0: nothing more at present (a follower asks again later); -ENODATA: limit_bytes is used
 * up. Follows rotation. */
int64_t klog_reader_next(struct klog_reader *r, struct buf *out) MUST_CHECK;
void klog_reader_free(struct klog_reader *r);
