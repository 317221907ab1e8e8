#include "worker/seq.h"
#include "worker/draft.h"

#include <errno.h>
#include <stdlib.h>

#define OUT_MAX (64u << 20)

static int check_tokens(const struct wire_request *w, uint32_t block_tokens, uint32_t vocab,
                        uint32_t context, struct err *e)
{
    uint32_t n = w->n_prompt + w->n_generated;
    if (n > context || (n == context && w->max_tokens > w->n_generated))
        return err_set(e, EINVAL, "%u tokens do not fit the context of %u tokens", n, context);
    if (w->n_blocks > w->n_prompt / block_tokens)
        return err_set(e, EINVAL, "%u block names for %u tokens in blocks of %u", w->n_blocks,
                       w->n_prompt, block_tokens);
    for (uint32_t i = 0; i < n; i++)
        if (w->tokens[i] >= vocab)
            return err_set(e, EINVAL, "token %u is past the vocabulary of %u", w->tokens[i], vocab);
    return 0;
}

int request_new(void *body, size_t n, const struct block_name *seed, uint32_t block_tokens,
                uint32_t vocab, uint32_t context, struct request **out, struct err *e)
{
    struct wire_request w;
    int rc = wire_request_decode((struct str){body, n}, &w, e);
    rc = rc ? rc : check_tokens(&w, block_tokens, vocab, context, e);
    if (rc) {
        free(body);
        return rc;
    }
    struct request *r = xcalloc(1, sizeof *r);
    r->body = body;
    r->body_bytes = n;
    r->wire = w;
    r->seed = *seed;
    r->n_open = w.n;
    buf_init(&r->out, OUT_MAX);
    r->seqs = xcalloc(w.n, sizeof *r->seqs);
    for (uint16_t i = 0; i < w.n; i++) {
        struct seq *s = &r->seqs[i];
        s->req = r;
        s->choice = i;
        s->cap_tokens = w.n_prompt + w.n_generated + 16;
        s->tokens = xmalloc(s->cap_tokens * sizeof *s->tokens);
        s->n_tokens = w.n_prompt + w.n_generated;
        memcpy(s->tokens, w.tokens, s->n_tokens * sizeof *s->tokens);
    }
    *out = r;
    return 0;
}

void request_free(struct request *r)
{
    if (!r)
        return;
    for (uint16_t i = 0; i < r->wire.n; i++) {
        ASSERT(r->seqs[i].n_blocks == 0);
        free(r->seqs[i].tokens);
        free(r->seqs[i].blocks);
        free(r->seqs[i].names);
        draft_free(r->seqs[i].draft);
    }
    free(r->seqs);
    buf_fini(&r->out);
    free(r->body);
    free(r);
}

bool request_reports_prompt(const struct request *r)
{
    return (r->wire.flags & WIRE_PROMPT_LOGPROBS) && r->wire.n_generated == 0 &&
           r->prompt_reported < r->wire.n_prompt;
}

uint32_t request_generated(const struct seq *s)
{
    return s->n_tokens - s->req->wire.n_prompt;
}

void seq_reserve(struct seq *s, uint32_t n)
{
    if (n <= s->cap_tokens)
        return;
    s->cap_tokens = 2 * n;
    s->tokens = xrealloc(s->tokens, s->cap_tokens * sizeof *s->tokens);
}

void seq_push(struct seq *s, uint32_t token)
{
    seq_reserve(s, s->n_tokens + 1);
    s->tokens[s->n_tokens++] = token;
}

void seq_extend_names(struct seq *s, uint32_t block_tokens)
{
    const struct wire_request *w = &s->req->wire;
    uint32_t want = s->n_tokens / block_tokens;
    if (s->n_names >= want)
        return;
    if (want > s->cap_names) {
        s->cap_names = 2 * want;
        s->names = xrealloc(s->names, s->cap_names * sizeof *s->names);
    }
    if (!s->n_names && w->n_blocks) {
        memcpy(s->names, w->blocks, w->n_blocks * sizeof *s->names);
        s->n_names = w->n_blocks;
    }
    const struct block_name *prev = s->n_names ? &s->names[s->n_names - 1] : &s->req->seed;
    size_t from = (size_t)s->n_names * block_tokens;
    s->n_names += (uint32_t)block_names(prev, s->tokens + from, s->n_tokens - from, block_tokens,
                                        s->names + s->n_names);
}

uint32_t seq_find(struct seq *s, const struct kv *kv, uint32_t *blocks, uint32_t max,
                  uint32_t *idle)
{
    uint32_t n = (s->n_tokens - 1) / kv_block_tokens(kv);
    *idle = 0;
    if ((s->req->wire.flags & WIRE_NO_CACHE) || request_reports_prompt(s->req))
        return 0;
    seq_extend_names(s, kv_block_tokens(kv));
    return kv_find(kv, s->rank, s->names, s->tokens, n < max ? n : max, blocks, idle);
}

void seq_expect(struct seq *s, const struct kv *kv)
{
    uint32_t n = (s->n_tokens - 1) / kv_block_tokens(kv), idle, best = 0;
    uint32_t *blocks = xmalloc((n + 1) * sizeof *blocks);
    for (s->rank = 0; s->rank < kv_ranks(kv); s->rank++) {
        uint32_t hit = seq_find(s, kv, blocks, n, &idle);
        best = hit > best ? hit : best;
    }
    s->rank = 0;
    s->expected = best * kv_block_tokens(kv);
    free(blocks);
}

void seq_add_block(struct seq *s, uint32_t block)
{
    if (s->n_blocks == s->cap_blocks) {
        s->cap_blocks = s->cap_blocks ? 2 * s->cap_blocks : 8;
        s->blocks = xrealloc(s->blocks, s->cap_blocks * sizeof *s->blocks);
    }
    s->blocks[s->n_blocks++] = block;
}

bool seq_grow(struct seq *s, struct kv *kv, uint32_t tokens)
{
    uint32_t want = (tokens + kv_block_tokens(kv) - 1) / kv_block_tokens(kv);
    while (s->n_blocks < want) {
        uint32_t b = kv_alloc(kv, s->rank);
        if (b == KV_NONE)
            return false;
        seq_add_block(s, b);
    }
    return true;
}

void seq_release(struct seq *s, struct kv *kv)
{
    s->release_due = s->flying;
    if (s->flying)
        return;
    kv_release(kv, s->blocks, s->n_blocks);
    s->n_blocks = s->computed = s->n_named = 0;
}

void seq_name_blocks(struct seq *s, struct kv *kv)
{
    uint32_t bt = kv_block_tokens(kv), full = s->computed / bt;
    if (full <= s->n_named || (s->req->wire.flags & WIRE_NO_CACHE))
        return;
    seq_extend_names(s, bt);
    for (; s->n_named < full; s->n_named++)
        kv_name(kv, s->blocks[s->n_named], &s->names[s->n_named],
                &s->tokens[(size_t)s->n_named * bt]);
}
