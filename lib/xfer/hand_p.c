#include "lib/xfer/hand_link.h"

#include <uthash.h>

enum p_state {
    P_QUEUED,  /* the engine has the order */
    P_ASKED,   /* ask repeated until answered */
    P_GRANTED, /* pushes allowed */
    P_CLOSING, /* the last word is known, pushes are outstanding */
    P_ENDED,   /* the last word is said and repeated until closed; released */
};

/* How long an unanswered last word is repeated, in leases. Forgetting earlier is safe, only less
 * polite. */
#define P_ENDED_LEASES 8u

struct p_xfer {
    uint64_t id, p_id;
    struct hand_link *link;
    enum p_state state;
    enum control_type word; /* DONE or FAILED, from P_CLOSING on */
    enum xfer_reason why;
    uint64_t repeat_ns, forget_ns;
    uint32_t n, outstanding, n_pushed; /* blocks; pieces */
    uint32_t *blocks;
    uint64_t *pushed; /* bit dst_index * n_layers + layer */
    void *payload;
    uint32_t payload_bytes;
    char text[XFER_REASON_MAX];
    UT_hash_handle hh;
    struct p_xfer *prev, *next; /* of the link: few at a time */
};

struct hand_p {
    struct hand_cfg cfg;
    struct hand_link *links;
    struct p_xfer *xfers; /* by p_id */
    struct p_xfer *all;   /* the same, in order of arrival */
    uint64_t next_p_id;   /* odd: never one of D's ids of the same worker */
};

struct hand_p *hand_p_new(const struct hand_cfg *cfg)
{
    struct hand_p *p = xcalloc(1, sizeof *p);
    p->cfg = *cfg;
    p->next_p_id = 1;
    return p;
}

static void forget(struct hand_p *p, struct p_xfer *x)
{
    HASH_DEL(p->xfers, x);
    DL_DELETE(p->all, x);
    free(x->blocks);
    free(x->pushed);
    free(x->payload);
    free(x);
}

void hand_p_free(struct hand_p *p)
{
    struct p_xfer *x, *t;
    struct hand_link *l, *lt;
    HASH_ITER (hh, p->xfers, x, t)
        forget(p, x);
    DL_FOREACH_SAFE(p->links, l, lt)
    {
        DL_DELETE(p->links, l);
        free(l);
    }
    free(p);
}

struct hand_link *hand_p_link(struct hand_p *p, uint64_t peer, uint64_t session,
                              uint32_t peer_blocks, void *user, uint64_t now_ns)
{
    struct hand_link *l = hand_link_make(peer, session, user, now_ns);
    l->peer_blocks = peer_blocks;
    DL_APPEND(p->links, l);
    return l;
}

void hand_p_path(struct hand_link *l, enum xfer_path path)
{
    l->path = path;
}

static struct p_xfer *find(const struct hand_p *p, uint64_t p_id)
{
    struct p_xfer *x;
    HASH_FIND(hh, p->xfers, &p_id, sizeof p_id, x);
    return x;
}

static struct p_xfer *find_wire(const struct hand_p *p, const struct hand_link *l, uint64_t id)
{
    struct p_xfer *x;
    DL_FOREACH (p->all, x) {
        if (x->id == id && x->link == l)
            return x;
    }
    return NULL;
}

static void emit(struct hand_p *p, const struct p_xfer *x, struct xfer_event *e)
{
    e->id = x->p_id;
    e->peer = x->link->peer;
    e->n_blocks = x->n;
    p->cfg.ops->event(p->cfg.ctx, e);
}

static void send_word(struct hand_p *p, struct p_xfer *x, uint64_t now_ns)
{
    struct control_msg m = hand_msg(&p->cfg, x->link, x->word, x->id, x->p_id);
    m.reason = (uint32_t)x->why;
    if (x->word == CONTROL_DONE) {
        m.bytes = (uint64_t)x->n_pushed * p->cfg.piece_bytes;
        m.n = x->link->path == XFER_PATH_TCP ? x->n_pushed : 0;
        m.payload = x->payload;
        m.payload_bytes = x->payload_bytes;
    } else {
        m.payload = x->text;
        m.payload_bytes = (uint32_t)strlen(x->text);
    }
    p->cfg.ops->send(p->cfg.ctx, x->link, &m);
    x->repeat_ns = now_ns + hand_beat_ns(&p->cfg);
}

/* Says the last word once no push is outstanding, and gives the source blocks back. */
static void settle(struct hand_p *p, struct p_xfer *x, uint64_t now_ns)
{
    if (x->state != P_CLOSING || x->outstanding)
        return;
    if (x->word == CONTROL_DONE && x->n_pushed != (uint64_t)x->n * p->cfg.n_layers) {
        x->word = CONTROL_FAILED;
        x->why = XFER_INCOMPLETE;
        hand_text(x->text, "the prefill worker pushed less than it asked for");
    }
    x->state = P_ENDED;
    x->forget_ns = now_ns + P_ENDED_LEASES * p->cfg.lease_ns;
    send_word(p, x, now_ns);
    struct xfer_event e = {.kind = XFER_RELEASED,
                           .reason = x->why,
                           .path = x->n_pushed ? x->link->path : XFER_PATH_NONE,
                           .bytes = (uint64_t)x->n_pushed * p->cfg.piece_bytes};
    emit(p, x, &e);
}

static void fail(struct hand_p *p, struct p_xfer *x, enum xfer_reason why, const char *text,
                 uint64_t now_ns)
{
    if (x->state == P_ENDED)
        return;
    x->word = CONTROL_FAILED;
    x->why = why;
    hand_text(x->text, text);
    if (x->outstanding)
        x->outstanding -= p->cfg.ops->cancel(p->cfg.ctx, x->link, x->p_id);
    x->state = P_CLOSING;
    settle(p, x, now_ns);
}

/* Ended by something other than P's engine, which is told. */
static void aborted(struct hand_p *p, struct p_xfer *x, enum xfer_reason why, const char *text,
                    uint64_t now_ns)
{
    if (x->state == P_ENDED)
        return;
    struct xfer_event e = {.kind = XFER_ABORTED, .reason = why};
    hand_text(e.text, text);
    if (x->state != P_CLOSING || x->word == CONTROL_DONE)
        emit(p, x, &e);
    fail(p, x, why, e.text, now_ns);
}

void hand_p_gone(struct hand_p *p, struct hand_link *l, uint64_t now_ns)
{
    struct p_xfer *x, *t;
    DL_FOREACH_SAFE(p->all, x, t)
    {
        if (x->link != l)
            continue;
        x->outstanding = 0;
        l->lost = true;
        aborted(p, x, XFER_PEER_LOST, "the decode worker's connection ended", now_ns);
        forget(p, x);
    }
    DL_DELETE(p->links, l);
    free(l);
}

static void send_ask(struct hand_p *p, struct p_xfer *x, uint64_t now_ns)
{
    struct control_msg m = hand_msg(&p->cfg, x->link, CONTROL_ASK, x->id, x->p_id);
    m.n = x->n;
    p->cfg.ops->send(p->cfg.ctx, x->link, &m);
    x->repeat_ns = now_ns + hand_beat_ns(&p->cfg);
}

void hand_p_ask(struct hand_p *p, uint64_t p_id, uint32_t n_blocks, uint64_t now_ns)
{
    struct p_xfer *x = find(p, p_id);
    if (!x || x->state != P_QUEUED)
        return;
    ASSERT(n_blocks <= XFER_BLOCKS_MAX);
    x->n = n_blocks;
    x->state = P_ASKED;
    send_ask(p, x, now_ns);
}

void hand_p_push(struct hand_p *p, uint64_t p_id, uint32_t layer, const struct xfer_piece *pieces,
                 uint32_t n, uint64_t now_ns)
{
    struct p_xfer *x = find(p, p_id);
    if (!x || x->state != P_GRANTED)
        return; /* aborted while the engine computed */
    (void)now_ns;
    ASSERT(layer < p->cfg.n_layers);
    for (uint32_t i = 0; i < n; i++) {
        ASSERT(pieces[i].dst_index < x->n && pieces[i].src_block < p->cfg.n_blocks);
        size_t bit = (size_t)pieces[i].dst_index * p->cfg.n_layers + layer;
        ASSERT(!(x->pushed[bit / 64] >> (bit % 64) & 1)); /* a piece is pushed once */
        x->pushed[bit / 64] |= 1ull << (bit % 64);
        x->outstanding++;
        x->n_pushed++;
        struct hand_push push = {.id = x->id,
                                 .p_id = p_id,
                                 .src_block = pieces[i].src_block,
                                 .dst_block = x->blocks[pieces[i].dst_index],
                                 .dst_index = pieces[i].dst_index,
                                 .layer = layer,
                                 .n_blocks = x->n};
        p->cfg.ops->push(p->cfg.ctx, x->link, &push);
    }
}

void hand_p_pushed(struct hand_p *p, uint64_t p_id, uint32_t n, uint64_t now_ns)
{
    struct p_xfer *x = find(p, p_id);
    if (!x)
        return;
    ASSERT(n <= x->outstanding);
    x->outstanding -= n;
    settle(p, x, now_ns);
}

void hand_p_done(struct hand_p *p, uint64_t p_id, const void *payload, size_t n, uint64_t now_ns)
{
    struct p_xfer *x = find(p, p_id);
    if (!x || x->state >= P_CLOSING)
        return;
    ASSERT(n <= XFER_PAYLOAD_MAX);
    if (x->state == P_ASKED)
        x->n = 0; /* nothing was granted: fine only when nothing was needed */
    x->word = CONTROL_DONE;
    x->payload = xmalloc(n);
    x->payload_bytes = (uint32_t)n;
    if (n)
        memcpy(x->payload, payload, n);
    x->state = P_CLOSING;
    settle(p, x, now_ns);
}

void hand_p_fail(struct hand_p *p, uint64_t p_id, enum xfer_reason why, const char *text,
                 uint64_t now_ns)
{
    struct p_xfer *x = find(p, p_id);
    if (x && x->state < P_CLOSING)
        fail(p, x, why, text, now_ns);
}

static void send_accept(struct hand_p *p, const struct p_xfer *x)
{
    struct control_msg m = hand_msg(&p->cfg, x->link, CONTROL_ACCEPT, x->id, x->p_id);
    p->cfg.ops->send(p->cfg.ctx, x->link, &m);
}

static void on_order(struct hand_p *p, struct hand_link *l, const struct control_msg *m)
{
    struct p_xfer *x = xcalloc(1, sizeof *x);
    x->id = m->id;
    x->p_id = p->next_p_id;
    p->next_p_id += 2;
    x->link = l;
    HASH_ADD(hh, p->xfers, p_id, sizeof x->p_id, x);
    DL_APPEND(p->all, x);
    send_accept(p, x);
    struct xfer_event e = {
        .kind = XFER_ORDER, .payload = m->payload, .payload_len = m->payload_bytes};
    emit(p, x, &e);
}

static void on_grant(struct hand_p *p, struct p_xfer *x, const struct control_msg *m,
                     uint64_t now_ns)
{
    if (x->state != P_ASKED)
        return;
    bool sane = m->n_list == x->n;
    for (uint32_t i = 0; sane && i < m->n_list; i++)
        sane = control_msg_item(m, i) < x->link->peer_blocks;
    if (!sane) {
        aborted(p, x, XFER_PEER_FAILED, "the decode worker granted blocks that can't be", now_ns);
        return;
    }
    x->blocks = xmalloc(4 * (size_t)x->n);
    for (uint32_t i = 0; i < x->n; i++)
        x->blocks[i] = control_msg_item(m, i);
    x->pushed = xcalloc(((size_t)x->n * p->cfg.n_layers + 63) / 64, 8);
    x->state = P_GRANTED;
    struct xfer_event e = {.kind = XFER_GRANTED, .blocks = x->blocks};
    emit(p, x, &e);
}

static void on_known(struct hand_p *p, struct p_xfer *x, const struct control_msg *m,
                     uint64_t now_ns)
{
    char text[XFER_REASON_MAX];
    switch (m->type) {
    case CONTROL_ORDER:
        if (x->state == P_ENDED)
            send_word(p, x, now_ns);
        else
            send_accept(p, x);
        break;
    case CONTROL_GRANT: on_grant(p, x, m, now_ns); break;
    case CONTROL_REJECT:
    case CONTROL_ABORT:
        if (x->state == P_ENDED) {
            send_word(p, x, now_ns);
            break;
        }
        hand_text_of(text, m);
        aborted(p, x, hand_reason_of(m, XFER_BY_ABORT), text, now_ns);
        break;
    case CONTROL_CLOSE:
        if (x->state == P_ENDED)
            forget(p, x);
        break;
    default: break;
    }
}

static void say_unknown(struct hand_p *p, struct hand_link *l, uint64_t id, uint64_t p_id)
{
    hand_send_text(&p->cfg, l, CONTROL_FAILED, id, p_id, XFER_PEER_FAILED,
                   "the prefill worker does not know this transfer");
}

static void on_beat(struct hand_p *p, struct hand_link *l, const struct control_msg *m)
{
    const uint8_t *pair = m->payload;
    for (uint32_t i = 0; i < m->n; i++, pair += 16) {
        uint64_t id, p_id;
        memcpy(&id, pair, 8);
        memcpy(&p_id, pair + 8, 8);
        const struct p_xfer *x = find(p, p_id);
        if (!x || x->link != l || x->id != id)
            say_unknown(p, l, id, p_id);
    }
}

void hand_p_recv(struct hand_p *p, struct hand_link *l, const struct control_msg *m,
                 uint64_t now_ns)
{
    if (!hand_addressed(&p->cfg, l, m) || l->lost)
        return;
    l->heard_ns = now_ns;
    if (m->type == CONTROL_HEARTBEAT) {
        on_beat(p, l, m);
        return;
    }
    struct p_xfer *x = m->p_id ? find(p, m->p_id) : find_wire(p, l, m->id);
    if (x && x->link == l && x->id == m->id)
        on_known(p, x, m, now_ns);
    else if (m->type == CONTROL_ORDER)
        on_order(p, l, m);
    else if (m->type != CONTROL_CLOSE)
        say_unknown(p, l, m->id, m->p_id);
}

static void beat(struct hand_p *p, struct hand_link *l)
{
    uint64_t pairs[2 * HAND_BEAT_MAX];
    uint32_t n = 0;
    struct p_xfer *x;
    DL_FOREACH (p->all, x) {
        if (x->link != l || x->state == P_ENDED || n == HAND_BEAT_MAX)
            continue;
        pairs[2 * n] = x->id;
        pairs[2 * n++ + 1] = x->p_id;
    }
    struct control_msg m = hand_msg(&p->cfg, l, CONTROL_HEARTBEAT, 0, 0);
    m.n = n;
    m.payload = pairs;
    m.payload_bytes = 16 * n;
    p->cfg.ops->send(p->cfg.ctx, l, &m);
}

static void tick_link(struct hand_p *p, struct hand_link *l, uint64_t now_ns, uint64_t *next)
{
    if (now_ns - l->heard_ns >= p->cfg.lease_ns) {
        struct p_xfer *x, *t;
        DL_FOREACH_SAFE(p->all, x, t)
        {
            if (x->link == l)
                aborted(p, x, XFER_LEASE_LOST, "the decode worker fell silent", now_ns);
        }
        l->lost = true;
        p->cfg.ops->drop(p->cfg.ctx, l);
        return;
    }
    if (now_ns >= l->beat_ns) {
        beat(p, l);
        l->beat_ns = now_ns + hand_beat_ns(&p->cfg);
    }
    *next = min_u64(*next, min_u64(l->beat_ns, l->heard_ns + p->cfg.lease_ns));
}

static void tick_xfer(struct hand_p *p, struct p_xfer *x, uint64_t now_ns, uint64_t *next)
{
    if (x->state == P_ENDED && now_ns >= x->forget_ns) {
        forget(p, x);
        return;
    }
    if ((x->state != P_ASKED && x->state != P_ENDED) || x->link->lost)
        return;
    if (now_ns >= x->repeat_ns) {
        if (x->state == P_ASKED)
            send_ask(p, x, now_ns);
        else
            send_word(p, x, now_ns);
    }
    *next = min_u64(*next, x->repeat_ns);
}

uint64_t hand_p_tick(struct hand_p *p, uint64_t now_ns)
{
    uint64_t next = UINT64_MAX;
    struct hand_link *l, *lt;
    struct p_xfer *x, *t;
    DL_FOREACH_SAFE(p->links, l, lt)
    {
        if (!l->lost)
            tick_link(p, l, now_ns, &next);
    }
    DL_FOREACH_SAFE(p->all, x, t) tick_xfer(p, x, now_ns, &next);
    return next;
}

uint32_t hand_p_transfers(const struct hand_p *p)
{
    uint32_t n = 0;
    struct p_xfer *x;
    DL_FOREACH (p->all, x)
        n += x->state != P_ENDED;
    return n;
}
