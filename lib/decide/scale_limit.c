/* Both roles together: ratio, coupled zero, budget. */
#include "lib/decide/guard.h"
#include "lib/decide/scale_int.h"

#include <math.h>

static int32_t within(const struct scale_limits *l, int i, int32_t n)
{
    return n < l->min[i] ? l->min[i] : n > l->max[i] ? l->max[i] : n;
}

static void move(struct scale_decision *d, int32_t to, const char *why)
{
    if (d->to == to)
        return;
    d->to = to;
    d->code = SCALE_JOINT;
    scale_note(d, "%s", why);
}

/* One at zero makes the other useless. */
static void repair_zero(const struct scale_limits *l, struct scale_decision *p,
                        struct scale_decision *d)
{
    if (!GUARD(scale_coupled_zero))
        return;
    if (p->to == 0 && d->to > 0)
        move(p, within(l, 0, 1), "kept above zero, since decode is");
    if (d->to == 0 && p->to > 0)
        move(d, within(l, 1, 1), "kept above zero, since prefill is");
}

static void keep_ratio(const struct scale_limits *l, struct scale_decision *p,
                       struct scale_decision *d)
{
    if (l->ratio_min > 0 && p->to < l->ratio_min * d->to) {
        move(p, within(l, 0, scale_up_to(l->ratio_min * d->to)),
             "raised to keep scaling.ratio.min");
        if (p->to < l->ratio_min * d->to)
            move(d, within(l, 1, (int32_t)floor(p->to / l->ratio_min)),
                 "lowered to keep scaling.ratio.min");
    }
    if (l->ratio_max > 0 && p->to > l->ratio_max * d->to) {
        move(d, within(l, 1, scale_up_to(p->to / l->ratio_max)),
             "raised to keep scaling.ratio.max");
        if (p->to > l->ratio_max * d->to)
            move(p, within(l, 0, (int32_t)floor(l->ratio_max * d->to)),
                 "lowered to keep scaling.ratio.max");
    }
}

static bool ratio_holds(const struct scale_limits *l, int32_t p, int32_t d)
{
    return (l->ratio_min <= 0 || p >= l->ratio_min * d) &&
           (l->ratio_max <= 0 || p <= l->ratio_max * d);
}

/* Of all pairs within the budget, the one that gives the worse-off role the largest share of what
 * it should have; among equals the larger sum. A pair that keeps the ratio comes first. */
static void keep_budget(const struct scale_limits *l, struct scale_decision *p,
                        struct scale_decision *d)
{
    int32_t best[2] = {l->min[0], l->min[1]};
    double best_score = -1;
    if (l->budget <= 0 || p->to + d->to <= l->budget)
        return;
    for (int32_t a = l->min[0]; a <= p->to && a <= l->budget; a++) {
        int32_t b = l->budget - a < d->to ? l->budget - a : d->to;
        for (; b >= l->min[1] && !ratio_holds(l, a, b); b--)
            ;
        bool fits = b >= l->min[1];
        if (!fits)
            b = l->budget - a < d->to ? l->budget - a : d->to;
        if (b < l->min[1])
            continue;
        double x = p->to ? (double)a / p->to : 1, y = d->to ? (double)b / d->to : 1;
        double score = (fits ? 10 : 0) + (x < y ? x : y) + 1e-6 * (a + b);
        if (score > best_score)
            best_score = score, best[0] = a, best[1] = b;
    }
    move(p, best[0], "lowered to keep scaling.budget");
    move(d, best[1], "lowered to keep scaling.budget");
}

void scale_limit(const struct scale_limits *l, struct scale_decision *p, struct scale_decision *d)
{
    repair_zero(l, p, d);
    if (GUARD(scale_ratio))
        keep_ratio(l, p, d);
    if (GUARD(scale_budget))
        keep_budget(l, p, d);
}
