/* Which data rank a sequence is dealt to while it waits (engine_int.h): the view that
 * lib/decide/place.h decides from. A sequence that was preempted is dealt anew. */
#include "lib/decide/place.h"
#include "worker/engine_int.h"

#include <stdlib.h>

static void add_seq(struct place_rank *r, const struct seq *s)
{
    r->sequences++;
    r->backlog_tokens += s->n_tokens - s->computed - 1;
}

void deal_begin(struct engine *g, struct place_rank *ranks)
{
    uint32_t bt = g->c.kv.block_tokens;
    for (uint32_t i = 0; i < kv_ranks(g->kv); i++)
        ranks[i] = (struct place_rank){.free_blocks = kv_counts_of(g->kv, i).free};
    for (uint32_t i = 0; i < g->n_running; i++)
        add_seq(&ranks[g->running[i]->rank], g->running[i]);
    for (const struct inbound *in = g->inbounds; in; in = in->next) {
        if (!in->req)
            continue;
        const struct seq *s = &in->req->seqs[0];
        struct place_rank *r = &ranks[s->rank];
        uint32_t held = in->n_have + in->n_granted, all = (s->n_tokens + bt - 1) / bt;
        uint32_t more = all > held ? all - held : 0;
        r->sequences++; /* its prompt is computed elsewhere */
        r->free_blocks -= more < r->free_blocks ? more : r->free_blocks;
    }
}

void deal_seq(struct engine *g, struct place_rank *ranks, struct seq *s)
{
    uint32_t n = kv_ranks(g->kv), bt = g->c.kv.block_tokens, max = (s->n_tokens - 1) / bt;
    struct place_rank live[SCHEDULE_RANKS_MAX];
    uint32_t n_live = 0, which[SCHEDULE_RANKS_MAX];
    if (n == 1)
        return;
    uint32_t *hit = xmalloc((max + 1) * sizeof *hit);
    for (s->rank = 0; s->rank < n; s->rank++) {
        ranks[s->rank].hit_blocks = seq_find(s, g->kv, hit, max, &ranks[s->rank].idle_blocks);
        if (kv_is_lost(g->kv, s->rank))
            continue;
        which[n_live] = s->rank;
        live[n_live++] = ranks[s->rank];
    }
    free(hit);
    s->rank = which[place_choose(live, n_live, s->n_tokens, bt)];
    struct place_rank *r = &ranks[s->rank];
    uint32_t need = place_blocks(r, s->n_tokens, bt);
    r->free_blocks -= need < r->free_blocks ? need : r->free_blocks;
    r->backlog_tokens += place_backlog(r, s->n_tokens, bt);
    r->sequences++;
}

uint32_t deal_running(const struct engine *g, uint32_t rank)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < g->n_running; i++)
        n += g->running[i]->rank == rank;
    return n;
}

/* ---- what is told of them ---- */

static void most_and_mean(struct metric_family *f, struct metric *out[2])
{
    out[0] = metric_series(f, "max");
    out[1] = metric_series(f, "mean");
}

void deal_metrics(struct engine_metrics *m)
{
    most_and_mean(metric_family(METRIC_GAUGE, "baton_worker_data_rank_sequences",
                                "Sequences that run at a data rank: at that with most, and on "
                                "average",
                                "of", NULL, 0),
                  m->rank_seqs);
    most_and_mean(metric_family(METRIC_GAUGE, "baton_worker_data_rank_kv_blocks_used",
                                "KV blocks in use at a data rank: at that with most, and on "
                                "average",
                                "of", NULL, 0),
                  m->rank_blocks);
    most_and_mean(metric_family(METRIC_COUNTER, "baton_worker_expert_rows_total",
                                "Rows that an expert rank computed, at each of their experts: at "
                                "that with most in each layer, and on average",
                                "of", NULL, 0),
                  m->expert_rows);
    m->rebalances =
        metric_new(METRIC_COUNTER, "baton_worker_expert_rebalances_total",
                   "Times that experts' copies at other ranks were chosen anew and taken into use");
    m->halved = metric_new(METRIC_COUNTER, "baton_worker_two_batch_steps_total",
                           "Steps computed as two halves that overlap, where that was shorter");
}

void deal_measure(struct engine *g)
{
    uint32_t n = 0, seqs = 0, blocks = 0;
    struct kv_counts all = kv_counts(g->kv);
    for (uint32_t r = 0; r < kv_ranks(g->kv); r++) {
        n += !kv_is_lost(g->kv, r);
        uint32_t s = deal_running(g, r), used = kv_counts_of(g->kv, r).used;
        seqs = s > seqs ? s : seqs;
        blocks = used > blocks ? used : blocks;
    }
    metric_set(g->m.rank_seqs[0], seqs);
    metric_set(g->m.rank_seqs[1], (double)g->n_running / n);
    metric_set(g->m.rank_blocks[0], blocks);
    metric_set(g->m.rank_blocks[1], (double)all.used / n);
}

void deal_measure_experts(struct engine *g, const struct model_work_stats *now)
{
    struct model_work_stats *seen = &g->m.seen;
    if (!now->expert_ranks)
        return;
    metric_add(g->m.expert_rows[0], (double)(now->expert_max - seen->expert_max));
    metric_add(g->m.expert_rows[1],
               (double)(now->expert_slots - seen->expert_slots) / (double)now->expert_ranks);
    metric_add(g->m.halved, (double)(now->halved - seen->halved));
    metric_add(g->m.rebalances, (double)(now->rebalances - seen->rebalances));
    *seen = *now;
}
