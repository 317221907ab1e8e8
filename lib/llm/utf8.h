/* utf8.h: decoding, checking and repairing UTF-8. Repair follows Python's errors="replace" (and
 * WHATWG): each maximal part of an ill-formed sequence becomes one U+FFFD. Pure functions. Source:
 * Unicode 15 §3.9, table 3-7. */
#pragma once
#include "lib/base/buf.h"

#define UTF8_BAD         UINT32_MAX
#define UTF8_REPLACEMENT "\xef\xbf\xbd"

/* Bytes of the character at p (n >= 1), its code point in *cp; UTF8_BAD and the bytes to skip when
 * it is ill-formed. */
size_t utf8_next(const char *p, size_t n, uint32_t *cp);
/* True when p[0..n) could become a character with more bytes (1 <= n <= 3, and no character is
 * complete). */
bool utf8_is_partial(const char *p, size_t n);
bool utf8_valid(struct str s);
bool utf8_is_ascii(struct str s);
int utf8_repair(struct str s, struct buf *out) MUST_CHECK;
size_t utf8_encode(uint32_t cp,
                   char out[4]);   /* bytes written; surrogates and > 10FFFF give U+FFFD */
size_t utf8_count(struct str s);   /* characters, ill-formed parts count one */
bool utf8_is_space(uint32_t cp);   /* White_Space */
bool utf8_is_numeric(uint32_t cp); /* Nd, Nl, No */
bool utf8_is_word(uint32_t cp);    /* letters, marks, numbers, connectors: regex \w */
