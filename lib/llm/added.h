/* added.h: special and added tokens, matched in the text before anything else (leftmost, then
 * longest). Internal to lib/llm. Built once by a loader, then constant. Source: tokenizers'
 * tokenizer/added_vocabulary. */
#pragma once
#include "lib/base/str.h"

enum added_flags {
    ADDED_SPECIAL = 1,     /* control token: matched only when the caller parses specials */
    ADDED_NORMALIZED = 2,  /* matched in the normalised text */
    ADDED_LSTRIP = 4,      /* takes the white space before it */
    ADDED_RSTRIP = 8,      /* and after it */
    ADDED_SINGLE_WORD = 16 /* only between word boundaries */
};
struct added_token {
    char *text;
    uint32_t n, id, flags;
};
struct added_node;
struct added {
    struct added_token *tok;
    size_t n, cap;
    struct added_node *node; /* two tries: root 0 raw, root 1 normalised */
    size_t n_nodes, cap_nodes;
    bool first[2][256];  /* bytes that begin a token, by trie */
    unsigned n_first[2]; /* of them; where it is one, it is only[] */
    char only[2];
    bool any[2];
};
struct added_match {
    size_t start, end; /* stripped white space included */
    uint32_t id;
};

int added_init(struct added *a) MUST_CHECK;
void added_fini(struct added *a);
int added_add(struct added *a, struct str text, uint32_t id, unsigned flags,
              struct err *e) MUST_CHECK;
/* The next match at or after `from`; false when there is none. Control tokens are stepped over
 * without parse_special. */
bool added_next(const struct added *a, struct str text, size_t from, bool normalized,
                bool parse_special, struct added_match *out);
