#include "lib/llm/added.h"

#include "lib/llm/utf8.h"

#include <errno.h>
#include <stdlib.h>

#define MAX_ADDED_BYTES 4096
#define MAX_NODES       (8u << 20)

/* A trie as first child / next sibling: added vocabularies are small, and most text bytes stop at
 * `first`. */
struct added_node {
    uint32_t child, next;
    uint32_t token; /* index + 1 */
    unsigned char byte;
};

static int new_node(struct added *a, unsigned char byte, uint32_t *out)
{
    if (a->n_nodes == a->cap_nodes) {
        size_t cap = a->cap_nodes ? a->cap_nodes * 2 : 256;
        struct added_node *p = cap > MAX_NODES ? NULL : realloc(a->node, cap * sizeof *p);
        if (!p)
            return -ENOMEM;
        a->node = p;
        a->cap_nodes = cap;
    }
    a->node[a->n_nodes] = (struct added_node){.byte = byte};
    *out = (uint32_t)a->n_nodes++;
    return 0;
}

int added_init(struct added *a)
{
    uint32_t root;
    *a = (struct added){0};
    return new_node(a, 0, &root) || new_node(a, 0, &root) ? -ENOMEM : 0;
}

void added_fini(struct added *a)
{
    for (size_t i = 0; i < a->n; i++)
        free(a->tok[i].text);
    free(a->tok);
    free(a->node);
    *a = (struct added){0};
}

static uint32_t child_of(const struct added *a, uint32_t node, unsigned char byte)
{
    uint32_t c = a->node[node].child;
    while (c && a->node[c].byte != byte)
        c = a->node[c].next;
    return c;
}

static int insert(struct added *a, struct str text, uint32_t root, uint32_t token)
{
    uint32_t at = root;
    for (size_t i = 0; i < text.n; i++) {
        unsigned char b = (unsigned char)text.p[i];
        uint32_t c = child_of(a, at, b);
        if (!c) {
            int rc = new_node(a, b, &c);
            if (rc)
                return rc;
            a->node[c].next = a->node[at].child;
            a->node[at].child = c;
        }
        at = c;
    }
    a->node[at].token = token + 1;
    bool *first = &a->first[root][(unsigned char)text.p[0]];
    a->n_first[root] += !*first;
    a->only[root] = text.p[0];
    *first = true;
    a->any[root] = true;
    return 0;
}

int added_add(struct added *a, struct str text, uint32_t id, unsigned flags, struct err *e)
{
    if (text.n == 0)
        return 0;
    if (text.n > MAX_ADDED_BYTES)
        return err_set(e, E2BIG, "added token %u has %zu bytes; at most %d are supported", id,
                       text.n, MAX_ADDED_BYTES);
    if (a->n == a->cap) {
        size_t cap = a->cap ? a->cap * 2 : 64;
        struct added_token *p = realloc(a->tok, cap * sizeof *p);
        if (!p)
            return err_set(e, ENOMEM, "not enough memory for the added tokens");
        a->tok = p;
        a->cap = cap;
    }
    a->tok[a->n] = (struct added_token){str_dup(text), (uint32_t)text.n, id, flags};
    a->n++;
    if (insert(a, text, flags & ADDED_NORMALIZED ? 1 : 0, (uint32_t)a->n - 1))
        return err_set(e, ENOMEM, "not enough memory for the added tokens");
    return 0;
}

/* The longest token that begins at p, or NULL. */
static const struct added_token *longest_at(const struct added *a, struct str text, size_t at,
                                            uint32_t root)
{
    const struct added_token *best = NULL;
    uint32_t node = root;
    for (size_t i = at; i < text.n; i++) {
        node = child_of(a, node, (unsigned char)text.p[i]);
        if (!node)
            break;
        if (a->node[node].token)
            best = &a->tok[a->node[node].token - 1];
    }
    return best;
}

static size_t char_before(struct str text, size_t at, uint32_t *cp)
{
    size_t start = at - 1;
    while (start > 0 && ((unsigned char)text.p[start] & 0xc0) == 0x80)
        start--;
    utf8_next(text.p + start, at - start, cp);
    return start;
}

static bool is_single_word(struct str text, size_t start, size_t end)
{
    uint32_t cp;
    if (start > 0) {
        char_before(text, start, &cp);
        if (utf8_is_word(cp))
            return false;
    }
    if (end < text.n) {
        utf8_next(text.p + end, text.n - end, &cp);
        if (utf8_is_word(cp))
            return false;
    }
    return true;
}

static void strip(struct str text, size_t floor, unsigned flags, struct added_match *m)
{
    uint32_t cp;
    while (flags & ADDED_LSTRIP && m->start > floor) {
        size_t before = char_before(text, m->start, &cp);
        if (!utf8_is_space(cp))
            break;
        m->start = before;
    }
    while (flags & ADDED_RSTRIP && m->end < text.n) {
        size_t k = utf8_next(text.p + m->end, text.n - m->end, &cp);
        if (!utf8_is_space(cp))
            break;
        m->end += k;
    }
}

/* The next byte that begins a token. */
static size_t next_first(const struct added *a, struct str text, size_t i, uint32_t root)
{
    const bool *first = a->first[root];
    if (a->n_first[root] == 1 && i < text.n) {
        const char *hit = memchr(text.p + i, a->only[root], text.n - i);
        return hit ? (size_t)(hit - text.p) : text.n;
    }
    while (i < text.n && !first[(unsigned char)text.p[i]])
        i++;
    return i;
}

bool added_next(const struct added *a, struct str text, size_t from, bool normalized,
                bool parse_special, struct added_match *out)
{
    uint32_t root = normalized ? 1 : 0;
    if (!a->any[root])
        return false;
    for (size_t i = from; (i = next_first(a, text, i, root)) < text.n;) {
        const struct added_token *t = longest_at(a, text, i, root);
        if (!t) {
            i++;
            continue;
        }
        size_t end = i + t->n;
        if ((t->flags & ADDED_SPECIAL && !parse_special) ||
            (t->flags & ADDED_SINGLE_WORD && !is_single_word(text, i, end))) {
            i = end;
            continue;
        }
        *out = (struct added_match){i, end, t->id};
        strip(text, from, t->flags, out);
        return true;
    }
    return false;
}
