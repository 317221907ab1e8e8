/* file.h: whole small files, bounded, and pieces of large ones. Writing is atomic (temporary file,
 * fsync, rename). Blocking. */
#pragma once
#include "lib/base/buf.h"

#include <sys/types.h>

/* Appends the file's bytes to out; -EMSGSIZE when they don't fit into out->max. */
int file_append(const char *path, struct buf *out, struct err *e) MUST_CHECK;
/* Heap, NUL-terminated; NULL with *e. */
char *file_read(const char *path, size_t max_bytes, struct err *e);
/* n bytes from offset `at` of an open file; -ENODATA when it ends before. */
int file_read_at(int fd, void *out, size_t n, uint64_t at) MUST_CHECK;
int file_write(const char *path, struct str text, mode_t mode, struct err *e) MUST_CHECK;
