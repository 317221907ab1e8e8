/* schedule.h: which tokens a worker computes next: continuous batching with chunked prefill, as a
 * pure function of the queue, the KV pool and the clock. No allocation, no state: the caller keeps
 * the sequences and carries the step out.
 *
 * Order (Sarathi-Serve, OSDI'24): every decode first, so that a long prompt never stalls a running
 * answer; then prompts that were begun; then new ones in order of arrival. A step has at most
 * step_tokens rows and logit_rows rows of logits.
 *
 * Short prompts do not wait for a long one: while the oldest begun prompt needs more than a step,
 * up to half of the rows that decodes leave go to prompts that need at most half of what it does:
 * begun ones, the shortest first, then new ones. It takes at most twice as long for that. Of
 * prompts of about one length the oldest still goes first, and those that share its beginning find
 * it in the cache. Nobody overtakes for memory: what prompts ahead in the queue need stays free.
 *
 * Memory (vLLM v1's rules): a decode that finds no free block preempts the youngest sequence that
 * may be preempted; without a younger one it waits, blocks in hand, for the older ones (the oldest
 * always runs). The caller frees the victim's blocks and puts it at the head of the queue; it will
 * be recomputed, to the same bits. A decode's drafts (lib/decide/speculate.h) take rows, at most
 * half of the logits and blocks that nobody else was promised; they never preempt. A begun prompt
 * shrinks its chunk, and preempts only when nothing else can run. New sequences are admitted only
 * in steps without preemption, and, while others run, only with room for their whole prompt. A
 * pinned sequence (a prompt being pushed to another worker) is never preempted and gets all its
 * blocks when admitted.
 *
 * With data-parallel attention a sequence lies at one of several ranks, whose blocks are its own:
 * what is said of memory and of others that run holds rank by rank. Rows, logits and sequences are
 * counted over all.
 *
 * Guarantees: rows <= step_tokens, logits <= logit_rows, a sequence is picked at most once and
 * never when preempted or expired, blocks taken <= blocks free + freed by the preemptions. When no
 * pinned sequence holds blocks and any ready sequence fits the pool alone, a step is never empty.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct schedule_limits {
    uint32_t step_tokens; /* rows in a step, >= 1 */
    uint32_t logit_rows;  /* rows of logits in a step, >= 1 */
    uint32_t max_running; /* sequences admitted at a time, >= 1 */
    uint32_t block_tokens;
    /* Left free at a rank by an admission while others run there, for each of them (its next
     * token). */
    uint32_t spare_blocks;
};

struct schedule_seq {
    uint32_t tokens;      /* known: prompt and generated so far */
    uint32_t computed;    /* of them have KV; for a waiting one: the prefix hit that it would start
                             from (< tokens) */
    uint32_t blocks;      /* in its table; for a waiting one: of the prefix hit */
    uint32_t idle_blocks; /* running: blocks that only it holds. Waiting: blocks of the hit that
                             nobody holds */
    uint64_t deadline_ns; /* 0: none */
    uint32_t rank;        /* of its blocks; < SCHEDULE_RANKS_MAX */
    uint32_t drafts;      /* of a decode: rows that it would like besides its one */
    bool pinned;          /* never preempted, all blocks at admission */
    bool held;            /* not to be run now: waits for a grant or for its blocks' release */
    bool logits_everywhere; /* each row gives logits (prompt logprobs), else only the last row of
                               the last chunk */
};

struct schedule_queue {
    const struct schedule_seq *running; /* oldest first */
    uint32_t n_running;
    const struct schedule_seq *waiting; /* head first */
    uint32_t n_waiting;
};

#define SCHEDULE_RANKS_MAX 64u
struct schedule_kv {
    uint32_t free_blocks[SCHEDULE_RANKS_MAX]; /* nobody holds them; cached ones included */
};

struct schedule_pick {
    uint32_t index; /* into waiting when `admitted`, else into running */
    uint32_t tokens;
    bool admitted;
};

/* The arrays are the caller's: picks and expired have room for n_running + n_waiting, preempted for
 * n_running. */
struct schedule_step {
    struct schedule_pick *picks;
    uint32_t n_picks;
    uint32_t *preempted; /* indexes of running, youngest first: pushed to the head of the queue in
                            this order */
    uint32_t n_preempted;
    struct schedule_pick
        *expired; /* past their deadline (`tokens` is 0): to be ended, not computed */
    uint32_t n_expired;
    uint32_t rows, logits; /* of the picks */
    uint32_t
        blocks_taken; /* from the free ones by the picks, idle blocks of prefix hits included */
};

void schedule(const struct schedule_limits *limits, const struct schedule_queue *queue,
              const struct schedule_kv *kv, uint64_t now_ns, struct schedule_step *step);
