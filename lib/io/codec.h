/* codec.h: an incremental parser of HTTP/1.1 responses and a writer of request heads, for the
 * router's path to workers.
 *
 * codec_feed() is given what was received and answers with one event at a time; it never copies a
 * body: pieces point into the caller's data. Heads are copied (bounded by CODEC_MAX_HEAD) because
 * they may arrive in parts. Bodies are framed by Content-Length, by chunks or by the end of the
 * connection; a response with both Content-Length and Transfer-Encoding is malformed, and so is one
 * with two different lengths. Interim (1xx) responses are skipped. Pure; any thread. Source: RFC
 * 9112. */
#pragma once
#include "lib/base/buf.h"

#define CODEC_MAX_HEAD 16384

enum codec_event {
    CODEC_MORE = 0,    /* all of the data was used; feed more */
    CODEC_HEADERS = 1, /* status and headers are known */
    CODEC_DATA = 2,    /* *piece holds bytes of the body */
    CODEC_DONE = 3,    /* the response is complete; what is left of the data belongs to nothing */
};

enum codec_state {
    CODEC_IN_HEAD,
    CODEC_IN_LENGTH,
    CODEC_IN_SIZE_LINE,
    CODEC_IN_CHUNK,
    CODEC_IN_CHUNK_END,
    CODEC_IN_TRAILER,
    CODEC_UNTIL_CLOSE,
    CODEC_FINISHED,
    CODEC_FAILED,
};

struct codec {
    enum codec_state state;
    int status;
    bool keep_alive;
    uint64_t left;   /* bytes of this length or chunk still to come */
    unsigned line;   /* bytes of the size line or the trailer so far */
    bool digits;     /* the size line has had a digit */
    bool extension;  /* past the digits of the size line */
    uint8_t matched; /* of CR LF CR LF (trailer) or CR LF (chunk end) */
    struct buf head;
};

void codec_init(struct codec *c);
void codec_fini(struct codec *c);
void codec_reset(struct codec *c); /* for the next response on this connection; memory is kept */

/* Advances *data past what was used. An enum codec_event, or -EBADMSG (with *e) for what is not
 * HTTP/1.1. */
int codec_feed(struct codec *c, struct str *data, struct str *piece, struct err *e) MUST_CHECK;
/* The peer closed the connection: CODEC_DONE when that ends the body properly, else -EPIPE. */
int codec_eof(struct codec *c) MUST_CHECK;
/* Value of a header of the last head (case-insensitive, trimmed); p is NULL when absent. */
struct str codec_header(const struct codec *c, const char *name);

/* Appends "METHOD path HTTP/1.1", Host, Authorization (when bearer is not NULL), the caller's own
 * header lines (each ended by CR LF, or NULL), Content-Type and Content-Length (when content_type
 * is not NULL) and the empty line. */
int codec_write_head(struct buf *out, const char *method, const char *path, const char *host,
                     const char *bearer, const char *lines, const char *content_type,
                     size_t content_length) MUST_CHECK;
