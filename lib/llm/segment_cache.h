/* segment_cache.h: the token ids of texts between special tokens that came up before: the messages
 * of a conversation that goes on, a system prompt that many share. A hit compares the whole text,
 * so it is exact: what is between two special tokens is tokenised by itself. A text is kept when it
 * comes up the second time; past the bytes that were given, the one unused for longest goes.
 * Internal to lib/llm; any number of threads. */
#pragma once
#include "lib/llm/tokenizer.h"

#define SEGMENT_MIN_BYTES 256 /* a shorter text is tokenised as fast as it is looked up */

struct segment_cache;
struct segment_cache *segment_cache_new(size_t max_bytes); /* NULL: no memory */
void segment_cache_free(struct segment_cache *c);          /* NULL is fine */

/* A text and what else its ids depend on. */
struct segment {
    struct str text;
    unsigned how;
    uint64_t hash; /* set by segment_of */
};
struct segment segment_of(const struct segment_cache *c, struct str text, unsigned how);
/* 1: its ids were appended; 0: it is not there. */
int segment_cache_find(struct segment_cache *c, const struct segment *s,
                       struct ids *out) MUST_CHECK;
void segment_cache_put(struct segment_cache *c, const struct segment *s, const uint32_t *id,
                       size_t n);
