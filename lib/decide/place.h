/* place.h: at which data rank of a group a sequence is computed (data-parallel attention: each has
 * KV and sequences of its own, and what a rank computes every other waits for). The one where it
 * costs the group least: what is cached there need not be computed; prompts that are begun there
 * and sequences that run there make its steps longer. A rank without room is taken only when none
 * has any: then the one that lacks least.
 *
 * Pure; the same answer for the same numbers, ties to the first. (vLLM's data-parallel engines are
 * chosen by their queues alone, by a front end that doesn't know what is cached where.) */
#pragma once
#include <stdint.h>

struct place_rank {
    uint32_t free_blocks;    /* nobody holds them; cached ones included */
    uint32_t hit_blocks;     /* of the prompt, cached there */
    uint32_t idle_blocks;    /* of the hit: nobody holds them */
    uint32_t backlog_tokens; /* of prompts placed there: still to be computed */
    uint32_t sequences;      /* placed there */
};

/* `tokens` of the sequence so far. 0..n-1; n >= 1. */
uint32_t place_choose(const struct place_rank *ranks, uint32_t n, uint32_t tokens,
                      uint32_t block_tokens);
/* Free blocks that it takes at a rank, those of its hit that nobody holds included. */
uint32_t place_blocks(const struct place_rank *r, uint32_t tokens, uint32_t block_tokens);
/* Tokens that it adds to the rank's backlog. */
uint32_t place_backlog(const struct place_rank *r, uint32_t tokens, uint32_t block_tokens);
