/* Stop strings over streamed text. Held text is at most one byte shorter than the longest stop
 * string, so plain comparison at each position is as fast as an automaton for what stop strings
 * are. */
#include "lib/llm/openai.h"

#include <errno.h>

int stop_match_init(struct stop_match *m, const struct str *stop, size_t n, bool include,
                    struct arena *a)
{
    size_t longest = 0;
    for (size_t i = 0; i < n; i++)
        longest = stop[i].n > longest ? stop[i].n : longest;
    *m = (struct stop_match){
        .stop = stop, .n = n, .include = include, .matched = -1, .cap = longest};
    m->held = n ? arena_alloc(a, longest + 1) : NULL;
    return n && !m->held ? -ENOMEM : 0;
}

/* The text is what is held followed by `s`; this is its byte at i. */
static char at(const struct stop_match *m, struct str s, size_t i)
{
    return i < m->n_held ? m->held[i] : s.p[i - m->n_held];
}

/* How much of stop string k stands at i: its whole length, or less when the text ends in the
 * middle; 0 when it differs. */
static size_t common(const struct stop_match *m, struct str s, size_t i, size_t k)
{
    size_t total = m->n_held + s.n, n = 0;
    while (n < m->stop[k].n && i + n < total) {
        if (at(m, s, i + n) != m->stop[k].p[n])
            return 0;
        n++;
    }
    return n;
}

static int emit(struct stop_match *m, struct str s, size_t n, struct buf *out)
{
    size_t from_held = n < m->n_held ? n : m->n_held;
    int rc = buf_reserve(out, n);
    if (!rc)
        rc = buf_append(out, m->held, from_held);
    if (!rc && n > from_held)
        rc = buf_append(out, s.p, n - from_held);
    return rc;
}

/* Keeps the text from i on: less than the longest stop string. */
static void hold(struct stop_match *m, struct str s, size_t i)
{
    size_t total = m->n_held + s.n, n = 0;
    for (size_t j = i; j < total; j++)
        m->held[n++] = at(m, s, j); /* n <= j: reading stays ahead of writing */
    m->n_held = n;
}

/* The shortest stop string that stands whole at i (0: none), and whether one may still be completed
 * there. */
static size_t whole_at(struct stop_match *m, struct str text, size_t i, bool *partial)
{
    size_t best = 0;
    *partial = false;
    for (size_t k = 0; k < m->n; k++) {
        size_t n = common(m, text, i, k);
        *partial |= n > 0 && n < m->stop[k].n;
        if (n == m->stop[k].n && (best == 0 || n < best)) {
            best = n;
            m->matched = (int)k;
        }
    }
    return best;
}

static int run(struct stop_match *m, struct str text, bool final, struct buf *out)
{
    size_t total = m->n_held + text.n;
    for (size_t i = 0; i < total; i++) {
        bool partial;
        size_t whole = whole_at(m, text, i, &partial);
        if (whole) {
            int rc = emit(m, text, i + (m->include ? whole : 0), out);
            m->n_held = 0;
            return rc ? rc : 1;
        }
        if (partial && !final) {
            int rc = emit(m, text, i, out);
            if (!rc)
                hold(m, text, i);
            return rc;
        }
    }
    int rc = emit(m, text, total, out);
    m->n_held = 0;
    return rc;
}

int stop_match_push(struct stop_match *m, struct str text, struct buf *out)
{
    if (m->matched >= 0)
        return 1;
    return m->n ? run(m, text, false, out) : buf_str(out, text);
}

int stop_match_flush(struct stop_match *m, struct buf *out)
{
    return m->matched < 0 && m->n_held ? run(m, STR(""), true, out) : 0;
}
