/* remote.h: a file behind a URL, over HTTP with ranges. Blocking: for the threads of a fetch.
 *
 * Redirects are followed by hand, at most 5: the token goes to the URL's own origin only, and an
 * https source never falls to http. Answers come from outside: sizes, headers and texts are
 * bounded. Errors say what to do and classify themselves: -EACCES (401, 403), -ENOENT (404),
 * -EINVAL, -ESTALE (the file has changed) won't go away by asking again; others may. */
#pragma once
#include "lib/base/buf.h"

#include <stdatomic.h>

struct remote {
    const char *url;
    const char *token;       /* bearer; NULL or "": none */
    const char *ca_file;     /* NULL: the system's */
    bool peer;               /* within the cluster: no proxy, no redirects, short patience */
    const atomic_bool *stop; /* ends what runs; NULL: nothing does */
};

#define REMOTE_URL_MAX 4096

struct remote_info {
    uint64_t bytes;
    char sha256[65];              /* the Hub's X-Linked-ETag, when it is one; else "" */
    char etag[256];               /* of the answer that has the bytes; "" when weak or absent */
    char located[REMOTE_URL_MAX]; /* where redirects ended */
    bool ranges;                  /* the server knows ranges */
};

/* Size and identity, by asking for the first byte. */
int remote_probe(const struct remote *r, struct remote_info *out, struct err *e) MUST_CHECK;
/* Bytes [from, from + len) in pieces. `info` as probed; its located is tried first and asked for
 * anew when it has expired. piece returns non-zero to stop (-ECANCELED). *retry_after_ms: what a
 * 429 or 503 asked for. */
int remote_read(const struct remote *r, const struct remote_info *info, uint64_t from, uint64_t len,
                int (*piece)(struct str data, void *ctx), void *ctx, unsigned *retry_after_ms,
                struct err *e) MUST_CHECK;
/* A text (a listing, a manifest) of at most out->max bytes. */
int remote_text(const struct remote *r, struct buf *out, unsigned *retry_after_ms,
                struct err *e) MUST_CHECK;
bool remote_permanent(int code); /* a code above that asking again doesn't change */

/* "bytes 0-9/100" into first, last, total; "bytes * / 0" style of a 416 gives total only. */
int remote_content_range(struct str value, uint64_t *first, uint64_t *last,
                         uint64_t *total) MUST_CHECK;
