/* files.h: whole small files. Writing is atomic (temporary file, fsync, rename). Blocking. */
#pragma once
#include "lib/base/str.h"

#include <sys/types.h>

char *file_read(const char *path, size_t max_bytes,
                struct err *e); /* heap, NUL-terminated; NULL with *e */
int file_write(const char *path, struct str text, mode_t mode, struct err *e) MUST_CHECK;
