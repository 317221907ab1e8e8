#include "worker/model/moe.h"
#include "worker/model/balance.h"
#include "worker/model/ep.h"

void moe_carve(struct carve *c, struct model_work *w)
{
    const struct model_moe *m = &w->m->config.moe;
    const struct model_part *p = &w->m->part;
    struct moe_rows *r = &w->moe, none;
    if (!m->experts)
        return;
    if (!c->base)
        r = &none;
    uint64_t n = w->o.max_rows, slots = n * m->used, d = w->m->config.d_model;
    uint64_t ff = p->expert_ff1 - p->expert_ff0;
    r->ff = (uint32_t)ff;
    r->d_blocks = (uint32_t)((d + BLOCK_COLS - 1) / BLOCK_COLS);
    r->ff_blocks = (uint32_t)((ff + BLOCK_COLS - 1) / BLOCK_COLS);
    uint64_t most = r->d_blocks > r->ff_blocks ? r->d_blocks : r->ff_blocks;
    r->scores = work_carve(c, n * m->experts, sizeof *r->scores);
    r->scratch = work_carve(c, (uint64_t)w->o.threads * (m->experts + m->groups), sizeof(float));
    r->picks = work_carve(c, slots, sizeof *r->picks);
    r->slot_of = work_carve(c, slots, sizeof *r->slot_of);
    r->row_of = work_carve(c, slots, sizeof *r->row_of);
    r->first = work_carve(c, m->experts + 1u, sizeof *r->first);
    r->x = work_carve(c, slots * d, sizeof *r->x);
    r->gate = work_carve(c, slots * ff, sizeof *r->gate);
    r->up = work_carve(c, slots * ff, sizeof *r->up);
    r->codes = work_carve(c, slots * most, ACT_BLOCK_BYTES);
    r->blocks = work_carve(c, slots * most, sizeof *r->blocks);
}

/* ---- the choice ---- */

static void route(struct step *s, uint32_t layer)
{
    const struct model_moe *m = &s->c->moe;
    struct moe_rows *r = &s->w->moe;
    struct layer_product router = {image_layer(s->m, layer, SLOT_ROUTER), r->scores, m->experts};
    struct acts x = layer_acts_of(s, s->c->d_model);
    struct gating g = {.experts = m->experts,
                       .used = m->used,
                       .groups = m->groups,
                       .groups_used = m->groups_used,
                       .scale = m->scale,
                       .sigmoid = m->sigmoid,
                       .normalise = m->normalise,
                       .top2 = m->top2,
                       .bias = layer_vec(s, layer, SLOT_ROUTER_BIAS)};
    float *scratch = r->scratch + (size_t)s->thread * (m->experts + m->groups);
    uint32_t from, to;
    layer_products(s, &router, 1, &x, s->w->n_rows);
    layer_split(s->w->n_rows, s->threads, s->thread, &from, &to);
    for (uint32_t i = from; i < to; i++)
        gating_choose(&g, r->scores + (size_t)i * m->experts, scratch,
                      r->picks + (size_t)i * m->used);
    pool_barrier(s->w->pool);
}

static bool is_here(const struct step *s, uint32_t layer, uint32_t expert)
{
    const struct balance *copies = s->w->ep.balance;
    return s->w->moe.ff && ((expert >= s->p->expert0 && expert < s->p->expert1) ||
                            (copies && balance_weights(copies, layer, 0, expert)));
}

/* Slots of each expert here, in the order of rows. */
static void sort_slots(struct step *s, uint32_t layer)
{
    const struct model_moe *m = &s->c->moe;
    struct moe_rows *r = &s->w->moe;
    uint32_t n = r->n_rows * m->used;
    memset(r->first, 0, (m->experts + 1u) * sizeof *r->first);
    for (uint32_t i = 0; i < n; i++)
        if (is_here(s, layer, r->picks[i].expert))
            r->first[r->picks[i].expert + 1]++;
    for (uint32_t e = 0; e < m->experts; e++)
        r->first[e + 1] += r->first[e];
    uint32_t total = r->first[m->experts];
    for (uint32_t i = n; i-- > 0;) { /* backwards: first[] of the next becomes this one's */
        uint32_t e = r->picks[i].expert;
        bool here = is_here(s, layer, e);
        r->slot_of[i] = here ? --r->first[e + 1] : UINT32_MAX;
        if (here)
            r->row_of[r->slot_of[i]] = i / m->used;
    }
    memmove(r->first, r->first + 1, m->experts * sizeof *r->first);
    r->first[m->experts] = total;
    r->n_slots = total;
}

static void gather(struct step *s)
{
    struct moe_rows *r = &s->w->moe;
    uint32_t d = s->c->d_model, from, to;
    layer_split(r->n_slots, s->threads, s->thread, &from, &to);
    for (uint32_t i = from; i < to; i++) {
        size_t row = r->row_of[i], n = r->d_blocks;
        if (ep_active(s->w)) {
            float *x = r->x + (size_t)i * d;
            ep_row(s, (uint32_t)row, x);
            s->ops->quantize(x, d, r->codes + i * n * ACT_BLOCK_BYTES, r->blocks + i * n);
            continue;
        }
        memcpy(r->x + (size_t)i * d, layer_row_norm(s, (uint32_t)row), d * sizeof(float));
        memcpy(r->codes + i * n * ACT_BLOCK_BYTES, s->rows.codes + row * n * ACT_BLOCK_BYTES,
               n * ACT_BLOCK_BYTES);
        memcpy(r->blocks + i * n, s->rows.blocks + row * n, n * sizeof *r->blocks);
    }
    pool_barrier(s->w->pool);
}

/* ---- products grouped by expert ---- */

struct grouped {
    const struct image_entry *weights[2];
    float *y[2];
    uint32_t layer, part; /* `part` 0, 1, 2: gate, up, down; of the first */
    uint32_t n;           /* of them, of the same activations */
    uint32_t rows;
    size_t ldy;
    const float *x;
    size_t ldx;
    uint32_t n_blocks;
};

/* A group of rows costs its reading and a product a slot. */
static uint32_t group_cost(uint32_t slots)
{
    return slots ? slots + 4 : 0;
}

static void expert_groups(struct step *s, const struct grouped *g, uint32_t expert, uint32_t which,
                          uint32_t g0, uint32_t g1)
{
    const struct moe_rows *r = &s->w->moe;
    uint32_t first = r->first[expert], slots = r->first[expert + 1] - first;
    struct mat m = image_mat(s->m, g->weights[which]);
    m.rows = g->rows;
    if (expert >= s->p->expert0 && expert < s->p->expert1)
        m.data += (size_t)(expert - s->p->expert0) * mat_bytes(m.form, m.rows, m.cols);
    else
        m.data = balance_weights(s->w->ep.balance, g->layer, g->part + which, expert);
    struct acts x = {.x = g->x + first * g->ldx,
                     .ldx = g->ldx,
                     .codes = r->codes + (size_t)first * g->n_blocks * ACT_BLOCK_BYTES,
                     .blocks = r->blocks + (size_t)first * g->n_blocks,
                     .n_blocks = g->n_blocks};
    s->ops->matmul(&m, g0, g1, &x, slots, g->y[which] + first * g->ldy, g->ldy);
}

/* The groups of rows that lie in this thread's share of the whole cost. */
static void grouped_products(struct step *s, const struct grouped *g)
{
    const struct moe_rows *r = &s->w->moe;
    uint32_t groups = (g->rows + GROUP_ROWS - 1) / GROUP_ROWS;
    uint64_t total = 0, at = 0;
    for (uint32_t e = 0; e < s->c->moe.experts; e++)
        total += (uint64_t)group_cost(r->first[e + 1] - r->first[e]) * groups * g->n;
    uint64_t from = total * s->thread / s->threads, to = total * (s->thread + 1) / s->threads;
    for (uint32_t e = 0; e < s->c->moe.experts; e++) {
        uint64_t cost = group_cost(r->first[e + 1] - r->first[e]);
        for (uint32_t i = 0; cost && i < g->n; i++, at += cost * groups) {
            uint64_t g0 = from > at ? (from - at + cost - 1) / cost : 0;
            uint64_t g1 = to > at ? (to - at + cost - 1) / cost : 0;
            g1 = g1 < groups ? g1 : groups;
            if (g0 < g1)
                expert_groups(s, g, e, i, (uint32_t)g0, (uint32_t)g1);
        }
    }
    pool_barrier(s->w->pool);
}

static void gate_slots(struct step *s)
{
    struct moe_rows *r = &s->w->moe;
    uint32_t from, to;
    layer_split(r->n_slots, s->threads, s->thread, &from, &to);
    for (uint32_t i = from; i < to; i++) {
        float *x = r->gate + (size_t)i * r->ff;
        size_t at = (size_t)i * r->ff_blocks;
        s->ops->swiglu(x, r->up + (size_t)i * r->ff, r->ff, x);
        s->ops->quantize(x, r->ff, r->codes + at * ACT_BLOCK_BYTES, r->blocks + at);
    }
    pool_barrier(s->w->pool);
}

static void experts(struct step *s, uint32_t layer)
{
    struct moe_rows *r = &s->w->moe;
    uint32_t d = s->c->d_model;
    struct grouped gate_up = {.weights = {image_layer(s->m, layer, SLOT_EXPERT_GATE),
                                          image_layer(s->m, layer, SLOT_EXPERT_UP)},
                              .y = {r->gate, r->up},
                              .layer = layer,
                              .n = 2,
                              .rows = r->ff,
                              .ldy = r->ff,
                              .x = r->x,
                              .ldx = d,
                              .n_blocks = r->d_blocks};
    struct grouped down = {.weights = {image_layer(s->m, layer, SLOT_EXPERT_DOWN)},
                           .y = {r->x}, /* the inputs are used up */
                           .layer = layer,
                           .part = 2,
                           .n = 1,
                           .rows = d,
                           .ldy = d,
                           .x = r->gate,
                           .ldx = r->ff,
                           .n_blocks = r->ff_blocks};
    grouped_products(s, &gate_up);
    gate_slots(s);
    grouped_products(s, &down);
}

/* ---- shared experts, and the sum ---- */

static void shared(struct step *s, uint32_t layer)
{
    struct model_work *w = s->w;
    uint32_t n = s->m->part.shared1 - s->m->part.shared0;
    struct layer_product gate_up[] = {
        {image_layer(s->m, layer, SLOT_GATE), w->gate, n},
        {image_layer(s->m, layer, SLOT_UP), w->up, n},
    };
    struct layer_product down = {image_layer(s->m, layer, SLOT_DOWN), w->out, s->c->d_model};
    struct acts x = layer_acts_of(s, s->c->d_model);
    layer_products(s, gate_up, 2, &x, w->n_rows);
    for (uint32_t r = s->r0; r < s->r1; r++) {
        float *norm = layer_row_norm(s, r);
        s->ops->swiglu(w->gate + (size_t)r * n, w->up + (size_t)r * n, n, norm);
        layer_row_quantize(s, r, norm, n);
    }
    layer_rows_done(s);
    x = layer_acts_of(s, n);
    layer_products(s, &down, 1, &x, w->n_rows);
}

void moe_add(float *to, const float *x, float weight, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        to[i] += x[i] * weight;
}

/* Of a row that experts here have seen: their weighted sum, in their order, added to `out`. */
static void add_experts(const struct step *s, uint32_t row, float *out)
{
    const struct moe_rows *r = &s->w->moe;
    uint32_t used = s->c->moe.used, d = s->c->d_model;
    for (size_t i = (size_t)row * used; i < (size_t)(row + 1) * used; i++)
        if (r->slot_of[i] != UINT32_MAX)
            moe_add(out, r->x + (size_t)r->slot_of[i] * d, r->picks[i].weight, d);
}

/* What every row has besides its chosen experts: the shared ones, or nothing. */
static void begin_sum(struct step *s, uint32_t layer)
{
    struct model_work *w = s->w;
    uint32_t d = s->c->d_model, from, to;
    if (s->m->part.shared1 > s->m->part.shared0) {
        shared(s, layer);
        return;
    }
    layer_split(w->n_rows, s->threads, s->thread, &from, &to);
    memset(w->out + (size_t)from * d, 0, (size_t)(to - from) * d * sizeof *w->out);
    pool_barrier(w->pool);
}

/* ---- stages ---- */

void moe_send(struct step *s, uint32_t layer)
{
    route(s, layer);
    if (s->thread == 0)
        s->w->moe.n_rows = s->w->n_rows;
    if (!ep_active(s->w))
        return;
    ep_dispatch_begin(s, layer);
    begin_sum(s, layer);
}

void moe_receive(struct step *s, uint32_t layer)
{
    if (ep_active(s->w))
        ep_dispatch_end(s);
    if (s->w->rc) /* seen by all threads alike: it changes between barriers only */
        return;
    if (s->thread == 0)
        sort_slots(s, layer);
    pool_barrier(s->w->pool);
    gather(s);
}

void moe_experts(struct step *s, uint32_t layer)
{
    if (s->w->rc) /* likewise: it changes after a barrier of this stage only */
        return;
    if (!ep_active(s->w))
        begin_sum(s, layer);
    experts(s, layer);
}

void moe_answer(struct step *s, uint32_t layer)
{
    (void)layer;
    if (ep_active(s->w) && !s->w->rc) /* likewise */
        ep_combine_begin(s);
}

/* The all-reduce of both, then their sum. */
static void finish_behind(struct step *s)
{
    struct model_work *w = s->w;
    size_t n = (size_t)w->n_rows * s->c->d_model;
    uint32_t d = s->c->d_model, from, to;
    layer_sum(s, w->out, 2 * n);
    layer_split(w->n_rows, s->threads, s->thread, &from, &to);
    if (from < to)
        s->ops->add(w->out + (size_t)from * d, w->out + n + (size_t)from * d, (to - from) * d);
    pool_barrier(w->pool);
}

void moe_finish(struct step *s, uint32_t layer)
{
    struct model_work *w = s->w;
    uint32_t d = s->c->d_model, from, to;
    (void)layer;
    if (ep_active(w)) {
        ep_combine_end(s);
        if (ep_behind(w)) {
            finish_behind(s);
            return;
        }
    } else {
        layer_split(w->n_rows, s->threads, s->thread, &from, &to);
        for (uint32_t row = from; row < to; row++)
            add_experts(s, row, w->out + (size_t)row * d);
        pool_barrier(w->pool);
    }
    layer_sum(s, w->out, (size_t)w->n_rows * d);
}
