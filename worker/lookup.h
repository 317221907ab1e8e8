/* lookup.h: where the last tokens of a sequence occurred in it before (prompt lookup decoding:
 * drafts are what followed then). Two rolling indexes, of LOOKUP_LONG and of LOOKUP_SHORT tokens:
 * the last position after each such run, linked to the one before (as LZ77 compressors do), so that
 * a step costs the tokens it added and a bounded number of comparisons, however long the context.
 *
 * Plain data of one sequence, one thread. The tokens are the caller's and only grow; the indexes
 * take 24 to 48 bytes a token. All zero at first. */
#pragma once
#include <stdint.h>

#define LOOKUP_LONG  4u
#define LOOKUP_SHORT 2u

struct lookup_runs {
    uint32_t *last, *before; /* [1 << bits] by hash; [cap] by position. 0: none */
    uint32_t bits, cap, n;   /* n: positions entered */
};
struct lookup {
    struct lookup_runs longer, shorter;
};

struct lookup_match {
    uint32_t at;     /* tokens[at] followed; 0: no match */
    uint32_t length; /* equal tokens before `at` and at the end, counted up to LOOKUP_COUNTED */
};
#define LOOKUP_COUNTED 32u

void lookup_free(struct lookup *x);
/* The best earlier occurrence of the end of tokens[0..n), `first` (0: none) looked at before all
 * others. Enters what is new. */
struct lookup_match lookup_find(struct lookup *x, const uint32_t *tokens, uint32_t n,
                                uint32_t first);
