/* draft.h: draft tokens of running sequences, by prompt lookup, in the engine: found before a step
 * is scheduled, verified in its rows, judged by what came out. Drafts lie behind a sequence's
 * tokens (tokens[n_tokens ..]); nothing else knows of them: a position counts as computed only when
 * its token is the sequence's own.
 *
 * Every row of a step has the same bits as alone, and every position is sampled with its own random
 * number and with the penalties of the tokens before it. So what comes out is what comes out
 * without drafts, to the bit, whatever is drafted; only the number of steps differs.
 *
 * A struct draft belongs to its sequence; the engine's thread. */
#pragma once
#include "lib/decide/schedule.h"
#include "lib/decide/speculate.h"
#include "worker/lookup.h"

struct engine;
struct seq;

struct draft {
    struct lookup lookup;
    struct speculate_history history;
    struct lookup_match match; /* of the last lookup, */
    uint32_t matched_at;       /* when the sequence had so many tokens */
};
void draft_free(struct draft *d); /* may be NULL */

/* What all sequences share. */
struct drafts {
    struct speculate_cost cost;
    struct speculate_prior prior;
    struct speculate_seq *asked; /* [cap] of a step */
    uint32_t *index, cap;        /* of running */
    uint32_t planned;            /* of the next step, */
    uint32_t drafted, right;     /* and what the last one had of them */
};
void drafts_init(struct drafts *x);
void drafts_fini(struct drafts *x);

/* Sets `drafts` of those running that decode; their guesses are in place. */
void drafts_plan(struct engine *g, struct schedule_seq *running);
/* Of `drafted` guesses of a sequence the first `right` were its tokens. */
void drafts_learn(struct engine *g, struct seq *s, uint32_t drafted, uint32_t right);
/* A step of decodes alone, drafts counted as rows. */
void drafts_cost(struct engine *g, uint32_t rows, double seconds);
