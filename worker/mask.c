/* A rank of the group has died and the others go on without it (engine_int.h,
 * worker/layout/group.h). The step that was under way is void: nothing was sampled, and its rows
 * are computed again, to the same bits. Sequences whose KV lay at the dead rank are preempted, as
 * for want of memory, and so computed anew at another one: exactly. Transfers from or to its blocks
 * fail, which their other ends know how to live with.
 *
 * The group is whole again only after a restart (a rank can't join one that runs): when it has had
 * nothing to do for a while, else after c.masked_s at the latest, once it is drained. */
#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "worker/engine_int.h"

#include <stdio.h>

#define IDLE_NS (2 * NS_PER_S) /* with nothing to do; then a masked group restarts */

static void metrics(struct engine *g)
{
    struct mask_metrics *m = &g->mask.m;
    struct metric_family *f = metric_family(
        METRIC_GAUGE, "baton_worker_ranks",
        "Ranks of the group that live, and that are masked because they died", "state", NULL, 0);
    m->live = metric_series(f, "live");
    m->masked = metric_series(f, "masked");
    m->rank = metric_family(METRIC_GAUGE, "baton_worker_rank_masked",
                            "1: this rank of the group has died, the others go on without it",
                            "rank", NULL, 0);
    m->replayed = metric_new(METRIC_COUNTER, "baton_worker_masked_replays_total",
                             "Sequences computed anew at another rank because theirs died");
    metric_set(m->live, group_ranks(g->group));
    metric_set(m->masked, 0);
}

void mask_start(struct engine *g)
{
    struct err e = {0};
    metrics(g);
    g->status.ranks = group_ranks(g->group);
    int rc = g->status.ranks > 1 ? group_allow_masks(g->group, g->wake_fd, &e) : 0;
    if (rc < 0)
        log_warn("no rank of this group can be masked", LERR(&e));
    g->status.maskable = rc > 0;
}

/* ---- what was at the rank ---- */

static bool is_new(const struct seq *s, uint64_t lost)
{
    return lost >> s->rank & 1;
}

static void lose_sequences(struct engine *g, uint64_t lost)
{
    static const char why[] = "the rank that computed it has died";
    for (uint32_t i = g->n_running; i-- > 0;) { /* youngest first: the oldest comes to the head */
        struct seq *s = g->running[i];
        if (!is_new(s, lost))
            continue;
        if (s->req->order_id) {
            handover_fail(g, s->req, why);
        } else {
            step_preempt(g, s);
            metric_add(g->mask.m.replayed, 1);
        }
    }
    for (struct request *r = g->requests; r; r = r->next)
        if (r->inbound && is_new(&r->seqs[0], lost))
            handover_again(g, r, "the rank that was to take its KV has died");
}

static void lose(struct engine *g, uint64_t lost)
{
    char name[12];
    for (uint32_t r = 0; r < kv_ranks(g->kv); r++)
        if (lost >> r & 1) {
            kv_lose(g->kv, r);
            snprintf(name, sizeof name, "%u", r);
            metric_set(metric_series(g->mask.m.rank, name), 1);
        }
    lose_sequences(g, lost);
    if (!g->status.masked)
        g->mask.since_ns = g->now_ns;
    g->status.masked |= lost;
    uint32_t n = (uint32_t)__builtin_popcountll(g->status.masked);
    metric_set(g->mask.m.masked, n);
    metric_set(g->mask.m.live, g->status.ranks - n);
}

void mask_look(struct engine *g)
{
    uint64_t all = group_masked(g->group, true), lost = all & ~g->status.masked;
    if (lost)
        lose(g, lost);
    if (!all)
        return;
    if (g->requests || g->inbounds || !g->mask.idle_ns)
        g->mask.idle_ns = g->now_ns;
    g->status.restart_due = g->now_ns - g->mask.idle_ns > IDLE_NS ||
                            g->now_ns - g->mask.since_ns > g->c.masked_s * NS_PER_S;
}

/* Some layers of these orders' chunks may have been pushed, by ranks that had got so far. */
void mask_void(struct engine *g, struct seq *const *seqs, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (seqs[i]->req->order_id)
            handover_fail(g, seqs[i]->req, "a rank of its group died in the step");
    mask_look(g);
}
