/* buf.h: a growable byte buffer with a maximum given at init. Owns its memory; buf_fini frees.
 * Appends fail with -EMSGSIZE past the maximum and leave the buffer as it was. `data` is always
 * NUL-terminated after a successful append (the NUL is not counted in n). */
#pragma once
#include "lib/base/str.h"

struct buf {
    char *data;
    size_t n, cap, max;
};

void buf_init(struct buf *b, size_t max);
void buf_fini(struct buf *b);
void buf_reset(struct buf *b);                           /* n = 0, memory kept */
int buf_reserve(struct buf *b, size_t extra) MUST_CHECK; /* room for `extra` more bytes */
int buf_append(struct buf *b, const void *p, size_t n) MUST_CHECK;
int buf_str(struct buf *b, struct str s) MUST_CHECK;
int buf_cstr(struct buf *b, const char *z) MUST_CHECK;
int buf_printf(struct buf *b, const char *fmt, ...) PRINTF_LIKE(2, 3) MUST_CHECK;
int buf_json_str(struct buf *b,
                 struct str s) MUST_CHECK; /* quoted, escaped; invalid UTF-8 becomes U+FFFD */
void buf_consume(struct buf *b, size_t n); /* drops n bytes at the front */
struct str buf_view(const struct buf *b);
char *buf_take(struct buf *b); /* hands the memory over; the buffer is empty afterwards */
