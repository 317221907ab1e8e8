#include "worker/model/balance.h"
#include "lib/decide/replicas.h"
#include "worker/comm/comm.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#define PARTS      3u
#define MOVE_BYTES (1u << 20)

struct move {
    uint32_t layer, expert, to, slot;
    bool done;
};

struct queue { /* of one receiver */
    uint32_t at, part;
    size_t byte;
};

struct balance {
    const struct model *m;
    uint32_t experts, ranks, rank, room, every;
    uint32_t fixed; /* places of each rank that stay as they are */
    size_t move_bytes;
    const uint8_t *owner;
    uint64_t *place;             /* [layers, experts] ranks at which it may be computed */
    uint32_t *slots;             /* [layers, ranks, room] experts that are there or on the way */
    uint32_t *wanted;            /* [ranks, room] of one layer */
    float *counts;               /* [layers, experts] */
    uint32_t *order;             /* [layers]: of layers with experts */
    size_t (*part_bytes)[PARTS]; /* [layers]: files may have other types in other layers */
    size_t bytes;                /* of the biggest layer's expert */
    uint8_t *store;              /* [layers with experts, room] copies here */
    size_t store_bytes;
    struct move *moves;
    uint32_t n_moves, n_left;
    struct queue queues[EP_RANKS_MAX];
};

static const enum image_layer_slot parts[PARTS] = {SLOT_EXPERT_GATE, SLOT_EXPERT_UP,
                                                   SLOT_EXPERT_DOWN};

static uint32_t *slots_of(const struct balance *b, uint32_t layer, uint32_t rank)
{
    return b->slots + ((size_t)layer * b->ranks + rank) * b->room;
}

static uint64_t *place_of(const struct balance *b, uint32_t layer, uint32_t expert)
{
    return b->place + (size_t)layer * b->experts + expert;
}

/* ---- memory ---- */

static size_t bytes_of(const struct model *m, uint32_t layer, uint32_t part)
{
    const struct image_entry *en = image_layer(m, layer, parts[part]);
    return mat_bytes(en->form, part == 2 ? m->config.d_model : m->config.moe.d_expert, en->cols);
}

uint64_t model_expert_bytes(const struct model *m)
{
    uint64_t sum = 0;
    for (uint32_t l = m->part.layer0; l < m->part.layer1; l++)
        for (uint32_t p = 0; p < PARTS && model_layer_has_experts(&m->config, l); p++)
            sum += bytes_of(m, l, p);
    return sum;
}

static int map_store(struct balance *b, uint32_t layers, struct err *e)
{
    b->store_bytes = layers * b->room * b->bytes;
    void *p =
        mmap(NULL, b->store_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return err_set(e, ENOMEM, "no memory for copies of experts (%zu MiB)",
                       b->store_bytes >> 20);
    b->store = p;
    return 0;
}

/* Where each expert of a layer may be computed when only fixed copies count. */
static void place_fixed(struct balance *b, uint32_t layer, uint64_t lost)
{
    for (uint32_t x = 0; x < b->experts; x++)
        *place_of(b, layer, x) = (1ull << b->owner[x]) & ~lost;
    for (uint32_t rank = 0; rank < b->ranks; rank++)
        for (uint32_t i = 0; i < b->fixed; i++) {
            uint32_t x = slots_of(b, layer, rank)[i];
            if (x != REPLICAS_NONE)
                *place_of(b, layer, x) |= (1ull << rank) & ~lost;
        }
}

int balance_new(struct model_work *w, struct balance **out, struct err *e)
{
    const struct model_config *c = &w->m->config;
    const struct model_group *g = &w->o.group;
    struct balance *b = xcalloc(1, sizeof *b);
    uint32_t moe = 0;
    *b = (struct balance){.m = w->m,
                          .experts = c->moe.experts,
                          .ranks = w->ep.ranks,
                          .rank = w->ep.rank,
                          .room = g->redundant,
                          .every = g->balance_steps,
                          .move_bytes = g->move_bytes ? g->move_bytes : MOVE_BYTES,
                          .owner = w->ep.owner};
    size_t n = (size_t)c->n_layers * c->moe.experts, places = (size_t)b->ranks * b->room;
    b->place = xcalloc(n, sizeof *b->place);
    b->counts = xcalloc(n, sizeof *b->counts);
    b->slots = xcalloc(c->n_layers * places, sizeof *b->slots);
    b->wanted = xcalloc(places, sizeof *b->wanted);
    b->moves = xcalloc(c->n_layers * places, sizeof *b->moves);
    b->order = xcalloc(c->n_layers, sizeof *b->order);
    b->part_bytes = xcalloc(c->n_layers, sizeof *b->part_bytes);
    memset(b->slots, 0xff, c->n_layers * places * sizeof *b->slots); /* REPLICAS_NONE */
    for (uint32_t l = 0; l < c->n_layers; l++)
        place_fixed(b, l, 0);
    for (uint32_t l = 0; l < c->n_layers; l++) {
        b->order[l] = moe;
        if (!model_layer_has_experts(c, l))
            continue;
        size_t all = 0;
        for (uint32_t p = 0; p < PARTS; p++)
            all += b->part_bytes[l][p] = bytes_of(w->m, l, p);
        b->bytes = all > b->bytes ? all : b->bytes;
        moe++;
    }
    int rc = map_store(b, moe, e);
    if (rc) {
        balance_free(b);
        return rc;
    }
    *out = b;
    return 0;
}

void balance_free(struct balance *b)
{
    if (!b)
        return;
    if (b->store)
        munmap(b->store, b->store_bytes);
    free(b->place);
    free(b->counts);
    free(b->slots);
    free(b->wanted);
    free(b->moves);
    free(b->order);
    free(b->part_bytes);
    free(b);
}

/* ---- use ---- */

uint8_t balance_target(const struct balance *b, uint32_t layer, uint32_t expert, uint32_t token,
                       uint32_t pos)
{
    uint64_t at = *place_of(b, layer, expert);
    uint32_t n = (uint32_t)__builtin_popcountll(at);
    if (n == 1)
        return (uint8_t)__builtin_ctzll(at);
    uint32_t h = (token * 0x9e3779b1u) ^ (pos * 0x85ebca6bu);
    for (uint32_t skip = (h ^ h >> 15) % n; skip; skip--)
        at &= at - 1;
    return (uint8_t)__builtin_ctzll(at);
}

static uint8_t *copy_at(const struct balance *b, uint32_t layer, uint32_t slot, uint32_t part)
{
    uint8_t *p = b->store + ((size_t)b->order[layer] * b->room + slot) * b->bytes;
    for (uint32_t i = 0; i < part; i++)
        p += b->part_bytes[layer][i];
    return p;
}

const uint8_t *balance_weights(const struct balance *b, uint32_t layer, uint32_t part,
                               uint32_t expert)
{
    const uint32_t *mine = slots_of(b, layer, b->rank);
    if (expert >= b->experts || !(*place_of(b, layer, expert) >> b->rank & 1))
        return NULL;
    for (uint32_t i = 0; i < b->room; i++)
        if (mine[i] == expert)
            return copy_at(b, layer, i, part);
    return NULL;
}

void balance_count(struct step *s, uint32_t layer)
{
    const struct ep_rows *r = &s->w->ep;
    float *counts = r->balance->counts + (size_t)layer * r->balance->experts;
    uint32_t used = s->c->moe.used;
    for (uint32_t i = 0; i < r->n_sent; i++)
        for (size_t k = (size_t)r->sent[i].row * used; k < (size_t)(r->sent[i].row + 1) * used; k++)
            counts[r->own[k].expert] += r->target[k] == r->sent[i].rank;
}

/* ---- choosing ---- */

static void add_moves(struct balance *b, uint32_t layer)
{
    for (uint32_t rank = 0; rank < b->ranks; rank++) {
        uint32_t *now = slots_of(b, layer, rank);
        const uint32_t *want = b->wanted + (size_t)rank * b->room;
        for (uint32_t i = 0; i < b->room; i++) {
            if (now[i] == want[i])
                continue;
            if (now[i] != REPLICAS_NONE)
                *place_of(b, layer, now[i]) &= ~(1ull << rank);
            now[i] = want[i];
            if (want[i] != REPLICAS_NONE)
                b->moves[b->n_moves++] = (struct move){layer, want[i], rank, i, false};
        }
    }
}

static int choose(struct balance *b, struct comm *c, struct err *e)
{
    const struct model_config *mc = &b->m->config;
    int rc = comm_all_reduce(c, b->counts, (size_t)mc->n_layers * b->experts, e);
    b->n_moves = 0;
    for (uint32_t l = 0; !rc && l < mc->n_layers; l++) {
        if (!model_layer_has_experts(mc, l))
            continue;
        rc = replicas_choose(b->counts + (size_t)l * b->experts, b->owner, b->experts, b->ranks,
                             b->room, b->fixed, slots_of(b, l, 0), b->wanted, e);
        if (!rc)
            add_moves(b, l);
    }
    memset(b->counts, 0, (size_t)mc->n_layers * b->experts * sizeof *b->counts);
    memset(b->queues, 0, sizeof b->queues);
    b->n_left = b->n_moves;
    return rc;
}

/* ---- moving ---- */

/* The next piece for one receiver; false when it has all. */
static bool next_piece(struct balance *b, uint32_t to, struct move **move, struct queue *piece,
                       size_t *n)
{
    struct queue *q = &b->queues[to];
    while (q->at < b->n_moves && (b->moves[q->at].to != to || b->moves[q->at].done))
        q->at++;
    if (q->at == b->n_moves)
        return false;
    size_t all = b->part_bytes[b->moves[q->at].layer][q->part], left = all - q->byte;
    *move = &b->moves[q->at];
    *piece = *q;
    *n = left < b->move_bytes ? left : b->move_bytes;
    q->byte += *n;
    if (q->byte == all) {
        q->byte = 0;
        q->part++;
    }
    if (q->part == PARTS) {
        q->part = 0;
        (*move)->done = true;
        b->n_left--;
    }
    return true;
}

static const uint8_t *original(const struct balance *b, uint32_t layer, uint32_t part,
                               uint32_t expert)
{
    const struct image_entry *en = image_layer(b->m, layer, parts[part]);
    return b->m->image + en->offset + (expert - b->m->part.expert0) * b->part_bytes[layer][part];
}

/* One piece to every receiver that misses some. */
static int move_some(struct balance *b, struct model_work *w, struct err *e)
{
    struct comm_flow flows[2 * EP_RANKS_MAX];
    uint32_t n_flows = 0;
    for (uint32_t to = 0; to < b->ranks; to++) {
        struct move *m;
        struct queue p;
        size_t n;
        if (!next_piece(b, to, &m, &p, &n))
            continue;
        uint32_t from = b->owner[m->expert];
        if (from == b->rank)
            flows[n_flows++] = (struct comm_flow){
                to, true, (void *)(uintptr_t)(original(b, m->layer, p.part, m->expert) + p.byte),
                n};
        if (to != b->rank)
            continue;
        flows[n_flows++] =
            (struct comm_flow){from, false, copy_at(b, m->layer, m->slot, p.part) + p.byte, n};
        w->stats.moved_bytes += n;
    }
    return n_flows ? comm_exchange(w->o.group.expert, flows, n_flows, e) : 0;
}

/* ---- copies that stay ---- */

/* The part of one fixed place of every rank. */
static int fill_place(struct balance *b, struct model_work *w, uint32_t layer, uint32_t i,
                      uint32_t part, struct err *e)
{
    struct comm_flow flows[EP_RANKS_MAX];
    uint32_t n = 0;
    size_t bytes = b->part_bytes[layer][part];
    for (uint32_t to = 0; to < b->ranks; to++) {
        uint32_t x = slots_of(b, layer, to)[i];
        if (x == REPLICAS_NONE)
            continue;
        if (b->owner[x] == b->rank)
            flows[n++] =
                (struct comm_flow){to, true, (void *)(uintptr_t)original(b, layer, part, x), bytes};
        else if (to == b->rank)
            flows[n++] = (struct comm_flow){b->owner[x], false, copy_at(b, layer, i, part), bytes};
    }
    return n ? comm_exchange(w->o.group.expert, flows, n, e) : 0;
}

int balance_cover(struct model_work *w, struct err *e)
{
    struct balance *b = w->ep.balance;
    const struct model_config *c = &b->m->config;
    uint32_t *places = xcalloc((size_t)b->ranks * b->room, sizeof *places);
    int rc = 0;
    b->fixed = replicas_cover(b->owner, b->experts, b->ranks, b->room, places);
    for (uint32_t l = 0; b->fixed && !rc && l < c->n_layers; l++) {
        if (!model_layer_has_experts(c, l))
            continue;
        memcpy(slots_of(b, l, 0), places, (size_t)b->ranks * b->room * sizeof *places);
        for (uint32_t i = 0; i < b->fixed * PARTS && !rc; i++)
            rc = fill_place(b, w, l, i / PARTS, i % PARTS, e);
        place_fixed(b, l, 0);
    }
    free(places);
    return rc;
}

uint64_t balance_holders(const struct balance *b, uint32_t expert)
{
    uint64_t at = 1ull << b->owner[expert];
    for (uint32_t l = 0; l < b->m->config.n_layers; l++) {
        if (!model_layer_has_experts(&b->m->config, l))
            continue;
        for (uint32_t rank = 0; rank < b->ranks; rank++)
            for (uint32_t i = 0; i < b->fixed; i++)
                if (slots_of(b, l, rank)[i] == expert)
                    at |= 1ull << rank;
        break; /* all layers are alike */
    }
    return at;
}

void balance_mask(struct balance *b, uint64_t lost)
{
    uint32_t loose = b->room - b->fixed;
    for (uint32_t l = 0; l < b->m->config.n_layers; l++) {
        for (uint32_t rank = 0; rank < b->ranks; rank++)
            if (loose)
                memset(slots_of(b, l, rank) + b->fixed, 0xff, loose * sizeof *b->slots);
        place_fixed(b, l, lost);
    }
    b->n_moves = b->n_left = b->every = 0;
}

/* ---- steps ---- */

static void take_into_use(struct balance *b, struct model_work *w)
{
    for (uint32_t i = 0; i < b->n_moves; i++)
        *place_of(b, b->moves[i].layer, b->moves[i].expert) |= 1ull << b->moves[i].to;
    w->stats.rebalances += b->n_moves > 0;
    b->n_moves = 0;
}

int balance_step(struct model_work *w, struct err *e)
{
    struct balance *b = w->ep.balance;
    if (b->n_left)
        return move_some(b, w, e);
    if (b->n_moves)
        take_into_use(b, w);
    else if (b->every && w->stats.steps % b->every == 0)
        return choose(b, w->o.group.expert, e);
    return 0;
}
