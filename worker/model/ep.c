#include "worker/model/ep.h"
#include "kernels/ops.h"
#include "worker/comm/comm.h"
#include "worker/model/balance.h"
#include "worker/model/moe.h"

#include <errno.h>
#include <math.h>

#define FP8_CHANNELS 128u
#define LATENCY_ROWS 64u /* of all ranks together: up to here messages have room for all */

/* One row on its way; its picks at the receiver follow, then its activations. */
struct item {
    uint32_t n_picks, reserved;
};

static uint32_t scales_of(uint32_t d)
{
    return (d + FP8_CHANNELS - 1) / FP8_CHANNELS;
}

int ep_init(struct model_work *w, struct err *e)
{
    const struct model_group *g = &w->o.group;
    const struct model_config *c = &w->m->config;
    struct ep_rows *r = &w->ep;
    r->ranks = g->expert ? comm_ranks(g->expert) : 1;
    r->data = g->data ? g->data : 1;
    if (r->ranks <= 1 || !c->moe.experts)
        return r->ranks = 1, 0;
    if (r->ranks > c->moe.experts)
        return err_set(e, EINVAL, "experts over %u ranks: the model has %u", r->ranks,
                       c->moe.experts);
    r->rank = comm_rank(g->expert);
    r->tensor = g->tensor ? comm_ranks(g->tensor) : 1;
    r->tensor_rank = g->tensor ? comm_rank(g->tensor) : 0;
    r->first = g->expert_first;
    uint32_t d = c->d_model;
    size_t payload = g->dispatch_fp8 ? d + scales_of(d) * sizeof(float) : d * sizeof(float);
    r->item_bytes = sizeof(struct item) + c->moe.used * sizeof(struct gating_pick) +
                    ((payload + 7) & ~(size_t)7);
    for (uint32_t i = 0; i < r->ranks; i++) {
        struct model_shard shard = {.expert = r->ranks, .expert_rank = i};
        struct model_part part;
        model_part_of(c, &shard, &part);
        for (uint32_t x = part.expert0; x < part.expert1; x++)
            r->owner[x] = (uint8_t)i;
    }
    int rc = g->redundant ? balance_new(w, &r->balance, e) : 0;
    return rc || !r->balance || !g->cover ? rc : balance_cover(w, e);
}

uint64_t model_work_holders(const struct model_work *w, uint32_t expert)
{
    const struct ep_rows *r = &w->ep;
    if (r->ranks <= 1)
        return 1;
    return r->balance ? balance_holders(r->balance, expert) : 1ull << r->owner[expert];
}

void model_work_regroup(struct model_work *w)
{
    uint64_t lost = 0;
    for (uint32_t i = 0; w->ep.ranks > 1 && i < w->ep.ranks; i++)
        lost |= (uint64_t)comm_is_masked(w->o.group.expert, i) << i;
    if (lost && w->ep.balance)
        balance_mask(w->ep.balance, lost);
}

void ep_carve(struct carve *c, struct model_work *w)
{
    struct ep_rows *r = &w->ep, none = *r;
    if (!ep_active(w))
        return;
    if (!c->base)
        r = &none;
    uint64_t n = w->o.max_rows, d = w->m->config.d_model, ranks = r->ranks;
    uint64_t most = ranks < w->m->config.moe.used ? ranks : w->m->config.moe.used;
    uint64_t heads = ranks * sizeof(struct ep_head);
    uint64_t out = n * most > ranks * LATENCY_ROWS ? n * most : ranks * LATENCY_ROWS;
    uint64_t in = n > LATENCY_ROWS ? n : LATENCY_ROWS;
    r->out = work_carve(c, out * r->item_bytes + heads, 1);
    r->in = work_carve(c, in * r->item_bytes + heads, 1);
    r->heads = work_carve(c, ranks, sizeof(struct ep_head));
    r->sent = work_carve(c, n * most, sizeof *r->sent);
    r->at = work_carve(c, n * most, sizeof *r->at);
    r->from = work_carve(c, in, sizeof *r->from);
    uint64_t used = w->m->config.moe.used;
    r->own = work_carve(c, n * used, sizeof *r->own);
    r->target = work_carve(c, n * used, sizeof *r->target);
    r->answer = work_carve(c, n * used, sizeof *r->answer);
    r->slots_out = work_carve(c, in * used * d, sizeof *r->slots_out);
    r->back = work_carve(c, n * used * d, sizeof *r->back);
}

/* ---- who sends what ---- */

/* Rows of the data rank that expert rank `rank` belongs to, which it sends: [from, to). */
static void share_of(const struct model_work *w, uint32_t rank, uint32_t *from, uint32_t *to)
{
    const struct ep_rows *r = &w->ep;
    uint32_t place = r->first + rank;
    layer_split(r->data_rows[place / r->tensor], r->tensor, place % r->tensor, from, to);
}

static bool is_latency(const struct model_work *w)
{
    uint32_t all = 0;
    for (uint32_t i = 0; i < w->ep.data; i++)
        all += w->ep.data_rows[i];
    return w->o.group.dispatch
               ? w->o.group.dispatch == MODEL_DISPATCH_LATENCY && all <= LATENCY_ROWS
               : all <= LATENCY_ROWS;
}

/* Where each pick of an own row is computed: at its owner, or at one of the copies, by the row
 * alone (its token and position), so that equal rows go equal ways. */
static void choose_targets(struct step *s, uint32_t layer, uint32_t from, uint32_t to)
{
    uint32_t used = s->c->moe.used;
    struct ep_rows *r = &s->w->ep;
    for (uint32_t row = from; row < to; row++) {
        const struct row *own = &s->w->rows[row];
        for (size_t i = (size_t)row * used; i < (size_t)(row + 1) * used; i++) {
            uint32_t expert = s->w->moe.picks[i].expert;
            r->own[i] = s->w->moe.picks[i];
            r->target[i] = r->balance
                               ? balance_target(r->balance, layer, expert, own->token, own->pos)
                               : r->owner[expert];
        }
    }
}

/* Rows in the order of receivers, then of rows: r->sent, and this rank's head. Answers come in the
 * same order, pick by pick. */
static void list_items(struct step *s, uint32_t layer, struct ep_head *mine)
{
    uint32_t used = s->c->moe.used, from, to, n = 0, answers = 0;
    struct ep_rows *r = &s->w->ep;
    memset(mine, 0, sizeof *mine);
    share_of(s->w, r->rank, &from, &to);
    choose_targets(s, layer, from, to);
    for (uint32_t rank = 0; rank < r->ranks; rank++)
        for (uint32_t row = from; row < to; row++) {
            uint32_t before = answers;
            for (size_t i = (size_t)row * used; i < (size_t)(row + 1) * used; i++)
                if (r->target[i] == rank)
                    r->answer[i] = answers++;
            if (answers == before)
                continue;
            r->sent[n++] = (struct ep_sent){row, rank};
            mine->rows[rank]++;
            mine->slots[rank] += answers - before;
        }
    r->n_sent = n;
}

/* ---- a row's message ---- */

static void encode_fp8(const float *x, uint32_t d, uint8_t *codes)
{
    uint8_t *scales = codes + d;
    for (uint32_t i = 0; i < d; i += FP8_CHANNELS, scales += sizeof(float)) {
        uint32_t n = d - i < FP8_CHANNELS ? d - i : FP8_CHANNELS;
        float max = 0;
        for (uint32_t k = i; k < i + n; k++)
            max = fabsf(x[k]) > max ? fabsf(x[k]) : max;
        float scale = max > 1e-30f ? max / 448.0f : 0.0f, inv = scale > 0 ? 448.0f / max : 0.0f;
        for (uint32_t k = i; k < i + n; k++)
            codes[k] = f32_to_f8(x[k] * inv);
        memcpy(scales, &scale, sizeof scale);
    }
}

static void pack_item(struct step *s, const struct ep_sent *sent, uint8_t *to)
{
    const struct model_moe *m = &s->c->moe;
    const struct ep_rows *r = &s->w->ep;
    size_t first = (size_t)sent->row * m->used;
    struct item item = {0};
    uint8_t *p = to + sizeof item, *payload = p + m->used * sizeof *r->own;
    for (size_t i = first; i < first + m->used; i++)
        if (r->target[i] == sent->rank)
            memcpy(p + item.n_picks++ * sizeof *r->own, &r->own[i], sizeof *r->own);
    memcpy(to, &item, sizeof item);
    if (s->w->o.group.dispatch_fp8)
        encode_fp8(layer_row_norm(s, sent->row), s->c->d_model, payload);
    else
        memcpy(payload, layer_row_norm(s, sent->row), s->c->d_model * sizeof(float));
}

void ep_row(const struct step *s, uint32_t i, float *to)
{
    uint32_t d = s->c->d_model;
    const uint8_t *p =
        s->w->ep.from[i] + sizeof(struct item) + s->c->moe.used * sizeof(struct gating_pick);
    if (!s->w->o.group.dispatch_fp8) {
        memcpy(to, p, d * sizeof *to);
        return;
    }
    for (uint32_t k = 0; k < d; k++) {
        float scale;
        memcpy(&scale, p + d + k / FP8_CHANNELS * sizeof scale, sizeof scale);
        to[k] = f8_to_f32(p[k]) * scale;
    }
}

/* ---- exchanges ---- */

static void fail(struct step *s, int rc)
{
    if (rc && !s->w->rc)
        s->w->rc = rc;
}

/* Where each sent item lies in `out`: with room for all of the share, or as they are. */
static void place_items(struct step *s, bool latency, const struct ep_head *mine, size_t *bytes)
{
    struct ep_rows *r = &s->w->ep;
    uint32_t from, to, n = 0;
    size_t at = 0;
    share_of(s->w, r->rank, &from, &to);
    for (uint32_t rank = 0; rank < r->ranks; rank++) {
        if (latency)
            memcpy(r->out + at, mine, sizeof *mine);
        size_t begin = at + (latency ? sizeof *mine : 0);
        for (uint32_t i = 0; i < mine->rows[rank]; i++)
            r->at[n++] = begin + i * r->item_bytes;
        uint32_t room = latency ? to - from : mine->rows[rank];
        bytes[rank] = begin - at + room * r->item_bytes;
        at += bytes[rank];
    }
}

/* The rows received, by sender; their picks. A sender that claims more than it may have is a
 * failure. */
static int take_items(struct step *s, bool latency)
{
    const struct model_moe *m = &s->c->moe;
    struct ep_rows *r = &s->w->ep;
    uint32_t n = 0;
    uint8_t *p = r->in;
    memset(r->load, 0, sizeof r->load);
    for (uint32_t rank = 0; rank < r->ranks; rank++) {
        uint32_t from, to;
        struct ep_head *h = &r->heads[rank];
        share_of(s->w, rank, &from, &to);
        if (latency && comm_is_masked(s->w->o.group.expert, rank))
            memset(h, 0, sizeof *h);
        else if (latency)
            memcpy(h, p, sizeof *h);
        if (h->rows[r->rank] > to - from)
            return err_set(&s->w->err, EPROTO, "rank %u sent more rows than it has", rank);
        uint8_t *item = p + (latency ? sizeof *h : 0);
        uint32_t picked = 0;
        for (uint32_t i = 0; i < h->rows[r->rank]; i++, n++) {
            struct item got;
            r->from[n] = item + i * r->item_bytes;
            memcpy(&got, r->from[n], sizeof got);
            struct gating_pick *picks = s->w->moe.picks + (size_t)n * m->used;
            uint32_t k = got.n_picks < m->used ? got.n_picks : m->used;
            picked += k;
            memcpy(picks, r->from[n] + sizeof got, k * sizeof *picks);
            for (; k < m->used; k++)
                picks[k] = (struct gating_pick){UINT32_MAX, 0};
        }
        if (picked != h->slots[r->rank])
            return err_set(&s->w->err, EPROTO, "rank %u sent other picks than it said", rank);
        for (uint32_t to_rank = 0; to_rank < r->ranks; to_rank++)
            r->load[to_rank] += h->slots[to_rank];
        p = item + (size_t)(latency ? to - from : h->rows[r->rank]) * r->item_bytes;
    }
    s->w->moe.n_rows = n;
    return 0;
}

static int exchange(struct step *s, bool latency, const size_t *out_bytes)
{
    struct ep_rows *r = &s->w->ep;
    struct comm *c = s->w->o.group.expert;
    size_t in_bytes[COMM_RANKS_MAX];
    for (uint32_t rank = 0; rank < r->ranks; rank++) {
        uint32_t from, to;
        share_of(s->w, rank, &from, &to);
        in_bytes[rank] = latency ? sizeof(struct ep_head) + (to - from) * r->item_bytes
                                 : r->heads[rank].rows[r->rank] * r->item_bytes;
    }
    return comm_all_to_all_begin(c, r->out, out_bytes, r->in, in_bytes, &s->w->err);
}

static void count_load(struct step *s)
{
    struct ep_rows *r = &s->w->ep;
    struct model_work_stats *st = &s->w->stats;
    uint32_t most = 0, all = 0;
    for (uint32_t i = 0; i < r->ranks; i++) {
        most = r->load[i] > most ? r->load[i] : most;
        all += r->load[i];
    }
    st->expert_max += most;
    st->expert_slots += all;
    st->expert_ranks = r->ranks;
    st->dispatches++;
}

void ep_dispatch_begin(struct step *s, uint32_t layer)
{
    struct ep_rows *r = &s->w->ep;
    bool latency = is_latency(s->w);
    struct ep_head *mine = &r->mine;
    if (s->thread == 0 && s->w->rc == 0) {
        list_items(s, layer, mine);
        if (r->balance)
            balance_count(s, layer);
        place_items(s, latency, mine, r->out_bytes);
        if (!latency)
            fail(s,
                 comm_all_gather(s->w->o.group.expert, mine, sizeof *mine, r->heads, &s->w->err));
    }
    pool_barrier(s->w->pool);
    uint32_t from, to;
    layer_split(r->n_sent, s->threads, s->thread, &from, &to);
    for (uint32_t i = from; i < to && s->w->rc == 0; i++)
        pack_item(s, &r->sent[i], r->out + r->at[i]);
    pool_barrier(s->w->pool);
    if (s->thread == 0 && s->w->rc == 0)
        fail(s, exchange(s, latency, r->out_bytes));
    pool_barrier(s->w->pool);
}

void ep_dispatch_end(struct step *s)
{
    bool latency = is_latency(s->w);
    if (s->thread == 0 && s->w->rc == 0) {
        fail(s, comm_all_to_all_end(s->w->o.group.expert, &s->w->err));
        if (s->w->rc == 0)
            fail(s, take_items(s, latency));
        if (s->w->rc == 0)
            count_load(s);
        s->w->stats.dispatches_latency += latency;
    }
    pool_barrier(s->w->pool);
}

static int send_answers(struct step *s)
{
    struct ep_rows *r = &s->w->ep;
    size_t out_bytes[COMM_RANKS_MAX], in_bytes[COMM_RANKS_MAX], row = s->c->d_model * sizeof(float);
    for (uint32_t rank = 0; rank < r->ranks; rank++) {
        out_bytes[rank] = r->heads[rank].slots[r->rank] * row;
        in_bytes[rank] = r->mine.slots[rank] * row;
    }
    return comm_all_to_all_begin(s->w->o.group.expert, r->slots_out, out_bytes, r->back, in_bytes,
                                 &s->w->err);
}

/* Slots in the order of received rows and their picks: the order in which they are asked for. */
static void line_up(struct step *s)
{
    const struct moe_rows *m = &s->w->moe;
    uint32_t d = s->c->d_model, used = s->c->moe.used, from, to, at = 0;
    layer_split(m->n_rows * used, s->threads, s->thread, &from, &to);
    for (uint32_t i = 0; i < to; i++) {
        if (m->slot_of[i] == UINT32_MAX)
            continue;
        if (i >= from)
            memcpy(s->w->ep.slots_out + (size_t)at * d, m->x + (size_t)m->slot_of[i] * d,
                   d * sizeof(float));
        at++;
    }
}

void ep_combine_begin(struct step *s)
{
    line_up(s);
    pool_barrier(s->w->pool);
    if (s->thread == 0 && s->w->rc == 0)
        fail(s, send_answers(s));
    pool_barrier(s->w->pool);
}

void ep_combine_end(struct step *s)
{
    struct ep_rows *r = &s->w->ep;
    uint32_t d = s->c->d_model, used = s->c->moe.used, from, to, first, last;
    if (s->thread == 0 && s->w->rc == 0)
        fail(s, comm_all_to_all_end(s->w->o.group.expert, &s->w->err));
    pool_barrier(s->w->pool);
    float *out = s->w->out;
    if (ep_behind(s->w)) {
        uint32_t n = s->w->n_rows;
        out += (size_t)n * d;
        layer_split(n, s->threads, s->thread, &from, &to);
        memset(out + (size_t)from * d, 0, (size_t)(to - from) * d * sizeof *out);
        pool_barrier(s->w->pool);
    }
    share_of(s->w, r->rank, &first, &last);
    layer_split(last - first, s->threads, s->thread, &from, &to);
    for (uint32_t row = first + from; row < first + to && s->w->rc == 0; row++)
        for (size_t i = (size_t)row * used; i < (size_t)(row + 1) * used; i++)
            moe_add(out + (size_t)row * d, r->back + (size_t)r->answer[i] * d, r->own[i].weight, d);
    pool_barrier(s->w->pool);
}
