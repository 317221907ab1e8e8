#include "lib/decide/place.h"

#include "lib/decide/guard.h"

/* A sequence adds a row to every step of its answer, a prompt its rows once: one weighs as much as
 * so many tokens of prompt. So a short common prefix does not gather all answers at one rank. */
#define SEQUENCE_TOKENS 32u

uint32_t place_blocks(const struct place_rank *r, uint32_t tokens, uint32_t block_tokens)
{
    uint32_t all = (tokens + block_tokens - 1) / block_tokens;
    return (all > r->hit_blocks ? all - r->hit_blocks : 0) + r->idle_blocks;
}

uint32_t place_backlog(const struct place_rank *r, uint32_t tokens, uint32_t block_tokens)
{
    uint64_t hit = (uint64_t)r->hit_blocks * block_tokens;
    return hit < tokens ? tokens - (uint32_t)hit : 1;
}

static uint32_t lacking(const struct place_rank *r, uint32_t tokens, uint32_t block_tokens)
{
    uint32_t need = place_blocks(r, tokens, block_tokens);
    return need > r->free_blocks ? need - r->free_blocks : 0;
}

static uint64_t cost(const struct place_rank *r, uint32_t tokens, uint32_t block_tokens)
{
    uint64_t own = GUARD(place_hit) ? place_backlog(r, tokens, block_tokens) : tokens;
    return own + r->backlog_tokens + (uint64_t)SEQUENCE_TOKENS * r->sequences;
}

uint32_t place_choose(const struct place_rank *ranks, uint32_t n, uint32_t tokens,
                      uint32_t block_tokens)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++) {
        uint32_t a = lacking(&ranks[best], tokens, block_tokens);
        uint32_t b = lacking(&ranks[i], tokens, block_tokens);
        if (GUARD(place_room) && a != b) {
            best = b < a ? i : best;
            continue;
        }
        if (cost(&ranks[i], tokens, block_tokens) < cost(&ranks[best], tokens, block_tokens))
            best = i;
    }
    return best;
}
