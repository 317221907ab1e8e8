/* sha.h: SHA-256 in pieces (OpenSSL's), of files, and of sets of files. Any thread. */
#pragma once
#include "lib/base/str.h"

#define SHA_HEX 65

struct sha;
struct sha *sha_new(void);
void sha_add(struct sha *h, const void *p, size_t n);
void sha_end(struct sha *h, char hex[SHA_HEX]); /* and frees */
void sha_free(struct sha *h);                   /* without an end; NULL is fine */

/* Adds bytes [from, to) of a file. */
int sha_add_file(struct sha *h, int fd, uint64_t from, uint64_t to, struct err *e) MUST_CHECK;
int sha_file(const char *path, char hex[SHA_HEX], struct err *e) MUST_CHECK;
bool sha_is_hex(const char *s); /* 64 lower-case hex digits */
