/* Decodes of sequences that begin with the same blocks (users of one system prompt, one document):
 * their attention over what they share is one unit, which turns every window of K and V into what
 * the kernel multiplies once for all of them instead of once for each. Blocks are compared by
 * number: the prefix cache gives equal beginnings the same ones. */
#include "worker/model/work.h"

/* Blocks that both have in common from the start, before the position that each computes. */
static uint32_t in_common(const struct model_segment *a, const struct model_segment *b,
                          uint32_t block_tokens)
{
    uint32_t n = (a->start < b->start ? a->start : b->start) / block_tokens, i = 0;
    while (i < n && a->blocks[i] == b->blocks[i])
        i++;
    return i;
}

/* By position, as attention wants its rows. */
static void insert(struct attn_row *rows, uint32_t n, struct attn_row r)
{
    for (; n > 0 && rows[n - 1].pos > r.pos; n--)
        rows[n] = rows[n - 1];
    rows[n] = r;
}

uint32_t together_of(struct model_work *w, const struct model_batch *b, uint32_t leader,
                     uint32_t row, uint32_t most, struct attn_row *out, uint32_t *shared)
{
    const struct model_segment *first = &b->segments[leader];
    uint32_t n = 1, blocks = UINT32_MAX;
    out[0] = (struct attn_row){row, first->start, first->blocks};
    for (uint32_t i = leader; i < b->n_segments && n < most; i++) {
        const struct model_segment *s = &b->segments[i];
        if (i > leader && s->n_tokens == 1 && !w->grouped[i]) {
            uint32_t same = in_common(first, s, w->kv.block_tokens);
            /* One that shares little would take from the others what they share. */
            if (same > 0 && (n == 1 || same >= blocks / 2)) {
                blocks = same < blocks ? same : blocks;
                w->grouped[i] = 1;
                insert(out, n++, (struct attn_row){row, s->start, s->blocks});
            }
        }
        row += s->n_tokens;
    }
    *shared = n > 1 ? blocks * w->kv.block_tokens : 0;
    return n;
}
