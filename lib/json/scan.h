/* scan.h: a pull scanner for JSON (RFC 8259): one token a call, straight from the bytes, no tree.
 * For request bodies and large files on hot paths; json.h (jansson) serves everything else. Strict:
 * one value, valid UTF-8, paired surrogates, no control characters, no duplicate keys, nesting
 * bounded. Numbers are checked as text; scan_u64 and friends bound them.
 *
 * Tokens point into the text, which the caller keeps. The scanner owns only the table that finds
 * duplicate keys (scan_fini frees it). One thread. After a failure scan_why says what is wrong and
 * where; every later call fails too. */
#pragma once
#include "lib/base/arena.h"

#define SCAN_MAX_DEPTH 128
#define SCAN_MAX_KEYS  (1u << 20) /* keys of objects that are open at once */

enum scan_kind {
    SCAN_END,
    SCAN_OBJECT,
    SCAN_OBJECT_END,
    SCAN_KEY,
    SCAN_ARRAY,
    SCAN_ARRAY_END,
    SCAN_STRING,
    SCAN_NUMBER,
    SCAN_TRUE,
    SCAN_FALSE,
    SCAN_NULL
};

struct scan_tok {
    enum scan_kind kind;
    bool escaped;    /* string or key: the text holds escapes */
    struct str text; /* string or key: between the quotes, as written; number: its digits */
    size_t at;       /* offset of its first byte */
};

struct scan_keys;
struct scan {
    struct str in;
    size_t at;
    int depth, max_depth;
    bool is_object[SCAN_MAX_DEPTH + 1];
    int state;
    const char *why; /* NULL: no failure so far */
    struct scan_keys *keys;
};

void scan_init(struct scan *s, struct str text, int max_depth); /* 0: SCAN_MAX_DEPTH */
void scan_fini(struct scan *s);

int scan_next(struct scan *s, struct scan_tok *t) MUST_CHECK; /* 0 or -EINVAL */
/* Inside an object (after its SCAN_OBJECT, or after a member's value): 1 with the next member's key
 * and the first token of its value, 0 at the end, negative on failure. */
int scan_member(struct scan *s, struct scan_tok *key, struct scan_tok *value) MUST_CHECK;
/* The same for an array's elements. */
int scan_element(struct scan *s, struct scan_tok *value) MUST_CHECK;
/* Reads on to the end of the value that t begins; *raw (may be NULL) becomes its whole text. */
int scan_skip(struct scan *s, const struct scan_tok *t, struct str *raw) MUST_CHECK;
/* "line 3 column 12: a string is not closed" */
int scan_why(const struct scan *s, struct err *e);

/* A string's or key's text with escapes resolved: t->text itself when there are none, else a copy
 * in the arena. */
int scan_text(const struct scan_tok *t, struct arena *a, struct str *out) MUST_CHECK;
bool scan_text_is(const struct scan_tok *t, const char *literal); /* compares what it means */
/* Resolves escapes of `raw` into out (room for raw.n bytes); returns bytes written. */
size_t scan_unescape(struct str raw, char *out);

/* Numbers: -EINVAL when t is no number (or not a whole one: 3, 3.0 and 3e2 are whole), -ERANGE
 * outside [min, max]. */
int scan_i64(const struct scan_tok *t, int64_t min, int64_t max, int64_t *out) MUST_CHECK;
int scan_f64(const struct scan_tok *t, double min, double max, double *out) MUST_CHECK;
