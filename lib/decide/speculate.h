/* speculate.h: how many draft tokens a decode step takes along, as pure functions of what was
 * measured. Drafts are guesses of a sequence's next tokens (here: what followed the same words
 * before, "prompt lookup"); one forward pass verifies them all, those before the first wrong one
 * are tokens gained, the rest was paid for nothing (Leviathan et al., arXiv 2211.17192).
 *
 * A draft is worth its row while its chance is above what the row's time would bring otherwise:
 *
 *   chance of the k-th draft = accept^k      worth it while     chance > row_s * tokens / step time
 *
 * with the tokens and the time of the step as it is so far. So a large batch, where rows are dear
 * against a step that many share, drafts nothing, and text that isn't repeated stops drafting by
 * itself. Chances are learnt, by the length of the match, for each sequence, with what all
 * sequences taught as its beginning; a sequence whose drafts don't pay is tried again at growing
 * intervals.
 *
 * Plain structs of the caller; no allocation, no clock. Seconds. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#define SPECULATE_MAX     16u /* draft tokens of a sequence in a step */
#define SPECULATE_CLASSES 5u  /* of matches, by their length */

/* ---- what rows cost ---- */

/* A decode step of n rows lasts one_s * (1 + share * (n - 1)). `share` is learnt from how steps
 * differ from the mean of those just before, so that a machine that gets slower, or a context that
 * grows, isn't taken for the price of a row. */
struct speculate_cost {
    double rows, seconds; /* faded means of the last steps */
    double spread,
        slope;           /* faded sums of squared rows, and of rows times seconds, both less mean */
    double one_s, share; /* one_s 0: nothing was seen */
};
void speculate_cost_init(struct speculate_cost *c);
void speculate_cost_observe(struct speculate_cost *c, uint32_t rows, double seconds);
double speculate_cost_s(const struct speculate_cost *c, double rows);

/* ---- what drafts bring ---- */

struct speculate_rate {
    float right, tried; /* draft tokens, faded */
};
/* Of one sequence; all zero at first. */
struct speculate_history {
    struct speculate_rate rates[SPECULATE_CLASSES];
    uint32_t skipped, interval; /* matches that were not worth a draft since the last one */
};
/* Of all sequences: where a new one begins. All zero at first. */
struct speculate_prior {
    struct speculate_rate rates[SPECULATE_CLASSES];
};
uint32_t speculate_class(uint32_t match_tokens); /* of a match of so many tokens, >= 1 */
/* Of `drafted` tokens the first `right` were. */
void speculate_learn(struct speculate_history *h, struct speculate_prior *p, uint32_t class,
                     uint32_t drafted, uint32_t right);
/* The chance of a draft token when those before it were right. */
double speculate_accept(const struct speculate_history *h, const struct speculate_prior *p,
                        uint32_t class);

/* ---- how many ---- */

struct speculate_seq {
    struct speculate_history *history;
    double accept;
    uint32_t most;   /* tokens that could be drafted; <= SPECULATE_MAX */
    uint32_t drafts; /* out */
    double chance;   /* of the draft after these */
};
/* `rows`: sequences that decode in this step, with drafts or without; `room`: drafts of all
 * together. Counts skipped matches; after enough of them one draft is tried whatever it costs. */
void speculate(const struct speculate_cost *c, struct speculate_seq *s, uint32_t n, uint32_t rows,
               uint32_t room);
