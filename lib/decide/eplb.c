#include "lib/decide/eplb.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Scratch of one layer, of `physical` entries each. */
struct work {
    const struct eplb_shape *s;
    uint32_t *order, *tmp;   /* of a sort */
    uint32_t *pack, *rank;   /* where balanced_packing put things */
    uint32_t *counts;        /* of packs or experts */
    float *packed;           /* loads of packs, in f32 as published */
    uint32_t *mlog;          /* [experts] node-major place to logical */
    uint32_t *expert, *copy; /* replicate's answer */
    float *load, *each;      /* loads in node-major order; of a replica */
    struct heap_item {
        float key;
        uint32_t index;
    } * heap;
};

static bool hierarchical(const struct eplb_shape *s)
{
    return s->groups % s->nodes == 0;
}

int eplb_check(const struct eplb_shape *s, struct err *e)
{
    if (s->experts < 1 || s->experts > EPLB_EXPERTS_MAX || s->physical < s->experts ||
        s->physical > EPLB_PHYSICAL_MAX)
        return err_set(e, EINVAL, "%u experts on %u places: places must be as many, up to %u",
                       s->experts, s->physical, EPLB_PHYSICAL_MAX);
    if (s->devices < 1 || s->nodes < 1 || s->groups < 1 || s->physical % s->devices ||
        s->devices % s->nodes || (hierarchical(s) && s->experts % s->groups))
        return err_set(e, EINVAL,
                       "%u places on %u devices of %u nodes, %u experts in %u groups: not evenly",
                       s->physical, s->devices, s->nodes, s->experts, s->groups);
    return 0;
}

/* ---- parts of the policy ---- */

/* Indices of w[n] by descending load, equal ones in order: a merge sort, bottom up. */
static void sort_desc(struct work *k, const float *w, uint32_t n)
{
    uint32_t *from = k->order, *to = k->tmp;
    for (uint32_t i = 0; i < n; i++)
        from[i] = i;
    for (uint32_t run = 1; run < n; run *= 2) {
        for (uint32_t a = 0; a < n; a += 2 * run) {
            uint32_t i = a, mid = a + run < n ? a + run : n, j = mid;
            uint32_t end = a + 2 * run < n ? a + 2 * run : n;
            for (uint32_t o = a; o < end; o++)
                to[o] = i < mid && (j >= end || w[from[i]] >= w[from[j]]) ? from[i++] : from[j++];
        }
        uint32_t *t = from;
        from = to;
        to = t;
    }
    if (from != k->order)
        memcpy(k->order, from, n * sizeof *from);
}

/* n things into `packs` of equally many: the heaviest first, each into the lightest pack that has
 * room. */
static void balanced_packing(struct work *k, const float *w, uint32_t n, uint32_t packs)
{
    uint32_t each = n / packs;
    for (uint32_t i = 0; i < n && each == 1; i++) {
        k->pack[i] = i;
        k->rank[i] = 0;
    }
    if (each == 1)
        return;
    sort_desc(k, w, n);
    memset(k->counts, 0, packs * sizeof *k->counts);
    memset(k->packed, 0, packs * sizeof *k->packed);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t thing = k->order[i], best = packs;
        for (uint32_t p = 0; p < packs; p++)
            if (k->counts[p] < each && (best == packs || k->packed[p] < k->packed[best]))
                best = p;
        k->pack[thing] = best;
        k->rank[thing] = k->counts[best]++;
        k->packed[best] += w[thing];
    }
}

static bool before(const struct heap_item *a, const struct heap_item *b)
{
    return a->key > b->key || (a->key == b->key && a->index < b->index);
}

static void sift(struct heap_item *heap, uint32_t n, uint32_t i)
{
    struct heap_item x = heap[i];
    for (;;) {
        uint32_t c = 2 * i + 1;
        if (c >= n)
            break;
        if (c + 1 < n && before(&heap[c + 1], &heap[c]))
            c++;
        if (!before(&heap[c], &x))
            break;
        heap[i] = heap[c];
        i = c;
    }
    heap[i] = x;
}

/* n experts onto `places`: one each, then again and again one of that whose replicas carry most.
 * `expert` and `copy` [places], counts in k->counts. */
static void replicate(struct work *k, const float *w, uint32_t n, uint32_t places, uint32_t *expert,
                      uint32_t *copy)
{
    for (uint32_t i = 0; i < n; i++) {
        expert[i] = i;
        copy[i] = 0;
        k->counts[i] = 1;
        k->heap[i] = (struct heap_item){w[i], i};
    }
    for (uint32_t i = n / 2; i-- > 0;)
        sift(k->heap, n, i);
    for (uint32_t i = n; i < places; i++) {
        uint32_t e = k->heap[0].index;
        expert[i] = e;
        copy[i] = k->counts[e]++;
        k->heap[0].key = w[e] / (float)k->counts[e];
        sift(k->heap, n, 0);
    }
}

/* ---- a layer ---- */

/* Groups onto nodes: k->mlog[i] is the logical expert at node-major place i. */
static void pack_groups(struct work *k, const float *load, uint32_t groups, uint32_t nodes)
{
    uint32_t size = k->s->experts / groups, a_node = groups / nodes;
    for (uint32_t g = 0; g < groups; g++) {
        k->each[g] = 0;
        for (uint32_t i = 0; i < size; i++)
            k->each[g] += load[g * size + i];
    }
    balanced_packing(k, k->each, groups, nodes);
    for (uint32_t g = 0; g < groups; g++)
        for (uint32_t i = 0; i < size; i++)
            k->mlog[(k->pack[g] * a_node + k->rank[g]) * size + i] = g * size + i;
}

static void place_node(struct work *k, uint32_t node, uint32_t nodes, uint32_t *expert_of,
                       uint32_t *replica, uint32_t *count)
{
    const struct eplb_shape *s = k->s;
    uint32_t n = s->experts / nodes, places = s->physical / nodes, devices = s->devices / nodes;
    uint32_t a_device = s->physical / s->devices;
    const uint32_t *mlog = k->mlog + (size_t)node * n;
    const float *load = k->load + (size_t)node * n;
    replicate(k, load, n, places, k->expert, k->copy);
    for (uint32_t i = 0; i < places; i++)
        k->each[i] = load[k->expert[i]] / (float)k->counts[k->expert[i]];
    for (uint32_t i = 0; count && i < n; i++)
        count[mlog[i]] = k->counts[i];
    balanced_packing(k, k->each, places, devices);
    for (uint32_t i = 0; i < places; i++) {
        uint32_t at = node * places + k->pack[i] * a_device + k->rank[i];
        expert_of[at] = mlog[k->expert[i]];
        if (replica)
            replica[at] = k->copy[i];
    }
}

static void place_layer(struct work *k, const float *load, uint32_t *expert_of, uint32_t *replica,
                        uint32_t *count)
{
    const struct eplb_shape *s = k->s;
    uint32_t groups = hierarchical(s) ? s->groups : 1, nodes = hierarchical(s) ? s->nodes : 1;
    pack_groups(k, load, groups, nodes);
    for (uint32_t i = 0; i < s->experts; i++)
        k->load[i] = load[k->mlog[i]];
    for (uint32_t node = 0; node < nodes; node++)
        place_node(k, node, nodes, expert_of, replica, count);
}

static void work_free(struct work *k)
{
    free(k->order);
    free(k->packed);
    free(k->load);
    free(k->heap);
}

static int work_init(struct work *k, const struct eplb_shape *s, struct err *e)
{
    size_t n = s->physical;
    *k = (struct work){.s = s};
    k->order = calloc(8 * n, sizeof *k->order);
    k->packed = calloc(n, sizeof *k->packed);
    k->load = calloc(2 * n, sizeof *k->load);
    k->heap = calloc(n, sizeof *k->heap);
    if (!k->order || !k->packed || !k->load || !k->heap) {
        work_free(k);
        return err_set(e, ENOMEM, "no memory to place %u experts", s->physical);
    }
    uint32_t **lists[] = {&k->tmp, &k->pack, &k->rank, &k->counts, &k->mlog, &k->expert, &k->copy};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        *lists[i] = k->order + (i + 1) * n;
    k->each = k->load + n;
    return 0;
}

int eplb_place(const struct eplb_shape *s, const float *load, uint32_t layers, uint32_t *expert_of,
               uint32_t *replica, uint32_t *count, struct err *e)
{
    struct work k;
    int rc = eplb_check(s, e);
    for (size_t i = 0; rc == 0 && i < (size_t)layers * s->experts; i++)
        if (!(load[i] >= 0) || !isfinite(load[i]))
            rc = err_set(e, EINVAL, "an expert's load is no number from 0");
    rc = rc ? rc : work_init(&k, s, e);
    if (rc < 0)
        return rc;
    for (size_t l = 0; l < layers; l++)
        place_layer(&k, load + l * s->experts, expert_of + l * s->physical,
                    replica ? replica + l * s->physical : NULL,
                    count ? count + l * s->experts : NULL);
    work_free(&k);
    return 0;
}

/* ---- what a placement is worth ---- */

void eplb_places(const struct eplb_shape *s, const uint32_t *expert_of, uint32_t *places,
                 uint32_t width)
{
    for (size_t i = 0; i < (size_t)s->experts * width; i++)
        places[i] = EPLB_NONE;
    for (uint32_t p = 0; p < s->physical; p++) {
        uint32_t *row = places + (size_t)expert_of[p] * width, i = 0;
        while (i < width && row[i] != EPLB_NONE)
            i++;
        if (i < width)
            row[i] = p;
    }
}

double eplb_imbalance(const struct eplb_shape *s, const float *load, const uint32_t *expert_of)
{
    uint32_t *count = xcalloc(s->experts, sizeof *count);
    double most = 0, total = 0;
    uint32_t a_device = s->physical / s->devices;
    for (uint32_t p = 0; p < s->physical; p++)
        count[expert_of[p]]++;
    for (uint32_t d = 0; d < s->devices; d++) {
        double sum = 0;
        for (uint32_t p = d * a_device; p < (d + 1) * a_device; p++)
            sum += (double)load[expert_of[p]] / count[expert_of[p]];
        most = sum > most ? sum : most;
        total += sum;
    }
    free(count);
    return total > 0 ? most * s->devices / total : 1;
}

void eplb_initial(const struct eplb_shape *s, uint32_t *expert_of)
{
    for (uint32_t p = 0; p < s->physical; p++)
        expert_of[p] = p % s->experts;
}
