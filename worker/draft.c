#include "worker/draft.h"

#include "worker/engine_int.h"

#include <stdlib.h>

void draft_free(struct draft *d)
{
    if (!d)
        return;
    lookup_free(&d->lookup);
    free(d);
}

void drafts_init(struct drafts *x)
{
    speculate_cost_init(&x->cost);
}

void drafts_fini(struct drafts *x)
{
    free(x->asked);
    free(x->index);
}

/* Tokens that a guess may have: it is of use only where another token is wanted after the next. The
 * last row of a prompt from which other choices fork is theirs too. */
static uint32_t most_of(const struct engine *g, const struct seq *s)
{
    const struct wire_request *w = &s->req->wire;
    if (w->n > 1 && s->choice == 0 && s->req->seqs[1].state == SEQ_UNBORN)
        return 0;
    uint32_t made = request_generated(s), most = g->c.draft_tokens;
    uint32_t wanted = w->max_tokens > made + 1 ? w->max_tokens - made - 1 : 0;
    uint32_t room = g->context > s->n_tokens ? g->context - s->n_tokens : 0;
    most = most < wanted ? most : wanted;
    return most < room ? most : room;
}

/* Where the sequence went on when it last stood as it does now; the place that the last match leads
 * to is looked at first. Copies what followed there, which may run into the copy itself. */
static uint32_t guess(struct seq *s, uint32_t most)
{
    if (!s->draft)
        s->draft = xcalloc(1, sizeof *s->draft);
    struct draft *d = s->draft;
    uint32_t n = s->n_tokens, first = d->match.at ? d->match.at + n - d->matched_at : 0;
    d->match = lookup_find(&d->lookup, s->tokens, n, first);
    d->matched_at = n;
    if (!d->match.at)
        return 0;
    seq_reserve(s, n + most);
    for (uint32_t i = 0; i < most; i++)
        s->tokens[n + i] = s->tokens[d->match.at + i];
    return most;
}

/* The k-th that could draft; false when it can't. */
static bool ask(struct engine *g, uint32_t index, uint32_t k)
{
    struct seq *s = g->running[index];
    uint32_t most = most_of(g, s);
    struct drafts *x = &g->drafts;
    if (!most || !(most = guess(s, most)))
        return false;
    uint32_t class = speculate_class(s->draft->match.length);
    x->index[k] = index;
    x->asked[k] =
        (struct speculate_seq){.history = &s->draft->history,
                               .accept = speculate_accept(&s->draft->history, &x->prior, class),
                               .most = most};
    return true;
}

void drafts_plan(struct engine *g, struct schedule_seq *running)
{
    struct drafts *x = &g->drafts;
    uint32_t decodes = 0, n = 0;
    x->planned = x->drafted = x->right = 0;
    if (!g->c.draft_tokens)
        return;
    if (g->n_running > x->cap) {
        x->cap = 2 * g->n_running;
        x->asked = xrealloc(x->asked, x->cap * sizeof *x->asked);
        x->index = xrealloc(x->index, x->cap * sizeof *x->index);
    }
    for (uint32_t i = 0; i < g->n_running; i++) {
        const struct schedule_seq *q = &running[i];
        bool decode = q->tokens - q->computed == 1 && !q->held;
        decodes += decode;
        n += decode && !q->pinned && !q->logits_everywhere && ask(g, i, n);
    }
    uint32_t room = decodes < g->c.logit_rows ? g->c.logit_rows - decodes : 0;
    speculate(&x->cost, x->asked, n, decodes, room / 2);
    for (uint32_t i = 0; i < n; i++)
        x->planned += running[x->index[i]].drafts = x->asked[i].drafts;
}

void drafts_learn(struct engine *g, struct seq *s, uint32_t drafted, uint32_t right)
{
    struct drafts *x = &g->drafts;
    x->drafted += drafted;
    x->right += right;
    metric_add(g->m.drafted, drafted);
    metric_add(g->m.accepted, right);
    speculate_learn(&s->draft->history, &x->prior, speculate_class(s->draft->match.length), drafted,
                    right);
}

void drafts_cost(struct engine *g, uint32_t rows, double seconds)
{
    speculate_cost_observe(&g->drafts.cost, rows, seconds);
}
