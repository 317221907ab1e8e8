/* What the nodes have room for, and rises trimmed to it. */
#include "lib/decide/guard.h"
#include "lib/decide/scale_int.h"

#include <stdio.h>
#include <stdlib.h>

#define FITS_MAX 10000u

uint32_t scale_fits(const struct scale_quantity *have, size_t n_have,
                    const struct scale_quantity *pod, size_t n_pod)
{
    int64_t least = FITS_MAX;
    for (size_t i = 0; i < n_pod; i++) {
        int64_t milli = 0;
        if (pod[i].milli <= 0)
            continue;
        for (size_t k = 0; k < n_have; k++)
            if (strcmp(have[k].name, pod[i].name) == 0)
                milli = have[k].milli;
        int64_t n = milli > 0 ? milli / pod[i].milli : 0;
        least = n < least ? n : least;
    }
    return (uint32_t)least;
}

static uint64_t distance(const struct scale_class *c, const uint32_t fits[SCALE_ROLES])
{
    uint64_t sum = 0;
    for (int i = 0; i < SCALE_ROLES; i++)
        sum += c->fits[i] > fits[i] ? c->fits[i] - fits[i] : fits[i] - c->fits[i];
    return sum;
}

void scale_space_add(struct scale_space *s, const uint32_t fits[SCALE_ROLES])
{
    struct scale_class *near = NULL;
    uint64_t best = UINT64_MAX;
    if (!fits[0] && !fits[1] && !fits[2])
        return;
    for (size_t i = 0; i < s->n; i++) {
        uint64_t d = distance(&s->c[i], fits);
        if (d < best)
            best = d, near = &s->c[i];
    }
    if (near && (best == 0 || s->n == SCALE_CLASSES_MAX)) {
        near->nodes++;
        for (int i = 0; i < SCALE_ROLES; i++)
            near->fits[i] = near->fits[i] < fits[i] ? near->fits[i] : fits[i];
        return;
    }
    struct scale_class *c = &s->c[s->n++];
    c->nodes = 1;
    memcpy(c->fits, fits, SCALE_ROLES * sizeof *fits);
}

/* The nodes one by one, each with the share that is left. */
struct node {
    const uint32_t *fits;
    double left;
};
struct nodes {
    struct node *n;
    size_t count;
};

static struct nodes spread(const struct scale_space *s)
{
    struct nodes out = {0};
    for (size_t i = 0; i < s->n; i++)
        out.count += s->c[i].nodes;
    out.n = calloc(out.count + 1, sizeof *out.n);
    ASSERT(out.n);
    size_t at = 0;
    for (size_t i = 0; i < s->n; i++)
        for (uint32_t k = 0; k < s->c[i].nodes; k++)
            out.n[at++] = (struct node){s->c[i].fits, 1};
    return out;
}

/* Best fit: of the nodes that can take a pod, the fullest. */
static struct node *node_for(struct nodes *all, int role)
{
    struct node *best = NULL;
    for (size_t i = 0; i < all->count; i++) {
        struct node *n = &all->n[i];
        if (n->fits[role] && n->left + 1e-9 >= 1.0 / n->fits[role] &&
            (!best || n->left < best->left))
            best = n;
    }
    return best;
}

static bool place_group(struct nodes *all, int role, int32_t pods)
{
    struct node *used[64];
    int32_t n = 0;
    for (; n < pods && n < 64; n++) {
        used[n] = node_for(all, role);
        if (!used[n])
            break;
        used[n]->left -= 1.0 / used[n]->fits[role];
    }
    if (n == pods || n == 64)
        return true;
    while (n-- > 0)
        used[n]->left += 1.0 / used[n]->fits[role];
    return false;
}

/* Groups of this role that need pods which have no node yet. */
static int32_t unplaced_groups(const struct scale_role *r)
{
    int32_t pods = 0, each = r->in.group_pods > 0 ? r->in.group_pods : 1;
    for (size_t i = 0; i < r->in.n_pods; i++)
        pods += !r->in.pods[i].placed;
    return (pods + each - 1) / each;
}

static void limited(struct scale_decision *d, int32_t to)
{
    scale_note(d, "nodes have room for %d more, not for %d", to - d->from > 0 ? to - d->from : 0,
               d->to - d->from);
    d->to = to;
    d->code = SCALE_NO_ROOM;
    d->capacity_limited = true;
}

/* The lowest number that is asked for whatever the nodes say: the bounds and the first group are
 * the user's word, and the scheduler has the last one. */
static int32_t floor_of(const struct scale_role *r)
{
    int32_t n = r->out.from > r->in.min ? r->out.from : r->in.min;
    return n > 1 ? n : 1;
}

void scale_trim(struct scale_plan *p)
{
    struct scale_role *r = p->role;
    int32_t given[SCALE_ROLES] = {0}, want[SCALE_ROLES] = {0}, least[SCALE_ROLES] = {0};
    bool any = false, more = true;
    for (int i = 0; i < SCALE_ROLES; i++) {
        if (!r[i].on || r[i].out.to <= floor_of(&r[i]))
            continue;
        any = true;
        want[i] = r[i].out.to;
        given[i] = least[i] = floor_of(&r[i]);
    }
    if (!any || !p->space.known || !GUARD(scale_room))
        return;
    /* What needs no new pods comes first: standby workers, and those that the other role gives. */
    int32_t spare = 0, hot = r[REC_PREFILL].in.hot > r[REC_DECODE].in.hot ? r[REC_PREFILL].in.hot
                                                                          : r[REC_DECODE].in.hot;
    hot = r[REC_UNIFIED].on ? r[REC_UNIFIED].in.hot : hot;
    if (p->flips && r[REC_PREFILL].on && r[REC_DECODE].on) {
        int32_t a = r[REC_PREFILL].out.from - r[REC_PREFILL].out.to;
        int32_t b = r[REC_DECODE].out.from - r[REC_DECODE].out.to;
        spare = a > 0 ? a : b > 0 ? b : 0;
    }
    spare += hot;
    struct nodes all = spread(&p->space);
    for (int i = 0; i < SCALE_ROLES; i++) /* pods that wait for a node take theirs first */
        for (int32_t k = r[i].on ? unplaced_groups(&r[i]) : 0; k > 0; k--)
            if (!place_group(&all, i, r[i].in.group_pods > 0 ? r[i].in.group_pods : 1))
                break;
    while (more) { /* in turns, so that one role doesn't take it all */
        more = false;
        for (int i = 0; i < SCALE_ROLES; i++) {
            int32_t pods = r[i].in.group_pods > 0 ? r[i].in.group_pods : 1;
            if (given[i] >= want[i])
                continue;
            if (spare > 0)
                spare--;
            else if (!place_group(&all, i, pods))
                continue;
            given[i]++;
            more = true;
        }
    }
    free(all.n);
    for (int i = 0; i < SCALE_ROLES; i++)
        if (given[i] < want[i])
            limited(&r[i].out, given[i]);
}
