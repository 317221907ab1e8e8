#include "lib/decide/rollout.h"
#include "lib/decide/guard.h"

static int32_t least(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

static int32_t most(int32_t a, int32_t b)
{
    return a > b ? a : b;
}

static int32_t ceil_div(int64_t a, int64_t b)
{
    return (int32_t)((a + b - 1) / b);
}

/* A rollout must be able to go on. */
static int32_t surge_of(const struct rollout_budget *b)
{
    bool stuck = b->max_surge <= 0 && b->max_unavailable <= 0;
    return stuck && GUARD(rollout_progress) ? 1 : most(b->max_surge, 0);
}

struct pace {
    int32_t steps; /* T */
    int32_t done;  /* i: complete in every role */
};

/* Steps are those of the role that needs most of them. */
static struct pace pace_of(const struct rollout_role *roles, size_t n,
                           const struct rollout_budget *b)
{
    int32_t surge = surge_of(b), batch = surge ? surge : most(b->max_unavailable, 1);
    struct pace p = {.steps = 1};
    for (size_t i = 0; i < n; i++)
        p.steps = most(p.steps, ceil_div(roles[i].want, batch));
    p.done = p.steps;
    for (size_t i = 0; i < n; i++)
        if (roles[i].want > 0)
            p.done =
                least(p.done, (int32_t)((int64_t)roles[i].paired_ready * p.steps / roles[i].want));
    return p;
}

static int32_t new_at(const struct pace *p, int32_t want)
{
    return least(want, ceil_div((int64_t)(p->done + 1) * want, p->steps));
}

static int32_t old_at(const struct pace *p, int32_t want)
{
    return ceil_div((int64_t)(p->steps - p->done) * want, p->steps);
}

/* What is beyond the cap goes: old ones as far as the budget allows, then new ones. */
static void over_cap(const struct rollout_role *r, int32_t cap, int32_t floor, int32_t *old,
                     struct rollout_move *m)
{
    int32_t over = *old + r->new_live - cap;
    if (over <= 0)
        return;
    int32_t spare = most(*old + r->new_ready - floor, 0);
    int32_t drop = least(over, least(*old, spare));
    m->drop_old_ready = drop;
    *old -= drop;
    over -= drop;
    int32_t useless = most(r->new_live - r->new_ready, 0); /* new and not ready: cost nothing */
    drop = least(over, useless);
    over -= drop;
    spare = most(*old + r->new_ready - floor, 0);
    m->drop_new = drop + least(over, least(r->new_ready, spare));
}

static void move_role(const struct rollout_role *r, const struct rollout_budget *b,
                      const struct pace *pace, struct rollout_move *m)
{
    *m = (struct rollout_move){0};
    if (r->want <= 0) {
        m->drop_old_unready = r->old_live - r->old_ready;
        m->drop_old_ready = r->old_ready;
        m->drop_new = r->new_live;
        return;
    }
    int32_t old = r->old_ready, surge = surge_of(b);
    int32_t floor = GUARD(rollout_unavailable) ? r->want - most(b->max_unavailable, 0) : 0;
    if (GUARD(rollout_unready_first))
        m->drop_old_unready = r->old_live - r->old_ready;
    else
        old = r->old_live;
    over_cap(r, r->want + (old ? surge : 0), floor, &old, m);
    int32_t fresh = r->new_live - m->drop_new;
    int32_t ready = old + least(r->new_ready, fresh);
    bool step = b->in_step && GUARD(rollout_in_step);
    int32_t keep = step ? old_at(pace, r->want) : 0;
    int32_t limit = step ? new_at(pace, r->want) : r->want;
    int32_t drop = most(least(old - keep, ready - floor), 0);
    int32_t cap = GUARD(rollout_surge) ? r->want + (old ? surge : 0) : r->want * 2 + surge;
    /* Short of new ones and no room for them: an old one makes room, as far as enough are ready. */
    int32_t short_of = limit - fresh, room = cap - (old - drop) - fresh;
    if (short_of > 0 && room < short_of)
        drop = most(drop, least(drop + short_of - room, least(old, ready - floor)));
    m->drop_old_ready += drop;
    old -= drop;
    if (!old && GUARD(rollout_surge))
        cap = r->want;
    m->create = most(least(limit - fresh, cap - old - fresh), 0);
}

void rollout_plan(const struct rollout_role *roles, size_t n, const struct rollout_budget *b,
                  struct rollout_move *out)
{
    struct pace pace = pace_of(roles, n, b);
    for (size_t i = 0; i < n; i++)
        move_role(&roles[i], b, &pace, &out[i]);
}

double rollout_weight(const int32_t *ready, const int32_t *all, size_t n)
{
    double w = 1;
    bool any = false;
    for (size_t i = 0; i < n; i++) {
        if (all[i] <= 0)
            continue;
        double share = (double)ready[i] / all[i];
        any = true;
        w = share < w ? share : w;
    }
    return any ? w : 0;
}
