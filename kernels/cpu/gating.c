#include "kernels/cpu/gating.h"
#include "kernels/cpu/scalar.h"

static void scores_of(const struct gating *g, float *x)
{
    if (g->sigmoid) {
        for (uint32_t i = 0; i < g->experts; i++)
            x[i] = 1.0f / (1.0f + scalar_exp(-x[i]));
        return;
    }
    float max = -INFINITY, sum = 0;
    for (uint32_t i = 0; i < g->experts; i++)
        max = x[i] > max ? x[i] : max;
    for (uint32_t i = 0; i < g->experts; i++) {
        x[i] = scalar_exp(x[i] - max);
        sum += x[i];
    }
    for (uint32_t i = 0; i < g->experts; i++)
        x[i] = x[i] / sum;
}

static float group_score(const struct gating *g, const float *choice, uint32_t group)
{
    uint32_t n = g->experts / g->groups;
    float best = -INFINITY, second = -INFINITY;
    for (uint32_t i = group * n; i < (group + 1) * n; i++) {
        float v = choice[i];
        if (v > best) {
            second = best;
            best = v;
        } else if (v > second) {
            second = v;
        }
    }
    return g->top2 ? best + second : best;
}

/* The first of the greatest; NaN is never one, so the start is index 0. */
static uint32_t greatest(const float *v, uint32_t n)
{
    uint32_t at = 0;
    for (uint32_t i = 1; i < n; i++)
        if (v[i] > v[at] || (v[at] != v[at] && v[i] == v[i]))
            at = i;
    return at;
}

/* Experts of groups that are not among the best can't be chosen. */
static void mask_groups(const struct gating *g, float *choice, float *groups)
{
    uint32_t n = g->experts / g->groups;
    bool kept[64] = {false};
    for (uint32_t i = 0; i < g->groups; i++)
        groups[i] = group_score(g, choice, i);
    for (uint32_t k = 0; k < g->groups_used; k++) {
        uint32_t best = greatest(groups, g->groups);
        kept[best] = true;
        groups[best] = -INFINITY;
    }
    for (uint32_t i = 0; i < g->experts; i++)
        if (!kept[i / n])
            choice[i] = -INFINITY;
}

static void insert(struct gating_pick *out, uint32_t n, uint32_t expert, float weight)
{
    while (n > 0 && out[n - 1].expert > expert) {
        out[n] = out[n - 1];
        n--;
    }
    out[n] = (struct gating_pick){expert, weight};
}

void gating_choose(const struct gating *g, float *products, float *scratch, struct gating_pick *out)
{
    float *choice = scratch, sum = 0;
    scores_of(g, products);
    for (uint32_t i = 0; i < g->experts; i++)
        choice[i] = products[i] + (g->bias ? g->bias[i] : 0.0f);
    if (g->groups_used < g->groups)
        mask_groups(g, choice, scratch + g->experts);
    for (uint32_t k = 0; k < g->used; k++) {
        uint32_t best = greatest(choice, g->experts);
        insert(out, k, best, products[best]);
        choice[best] = NAN; /* never the greatest again while another is left */
    }
    for (uint32_t k = 0; k < g->used; k++)
        sum += out[k].weight;
    float factor = g->normalise ? g->scale / (g->sigmoid ? sum + 1e-20f : sum) : g->scale;
    for (uint32_t k = 0; k < g->used; k++)
        out[k].weight *= factor;
}
