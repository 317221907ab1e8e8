#include "lib/xfer/hand_link.h"

#include <uthash.h>

enum d_state {
    D_ORDERED,  /* order sent, not heard of yet */
    D_QUEUED,   /* P has it */
    D_ASKED,    /* P wants n blocks; the engine decides */
    D_GRANTED,  /* P may write */
    D_CHECKING, /* P says done; frames are still missing */
    D_ENDING,   /* over for the engine; P has not confirmed */
};

struct d_xfer {
    uint64_t id, p_id;
    struct hand_link *link;
    enum d_state state;
    enum xfer_reason why;
    uint64_t repeat_ns, deadline_ns, granted_ns;
    uint32_t n, n_here; /* blocks asked for; pieces that came as frames */
    uint32_t *blocks;   /* not NULL: granted, P may be writing them */
    uint64_t *here;     /* bit dst_index * n_layers + layer */
    void *payload;      /* the order until accepted, then the done that waits in D_CHECKING */
    uint32_t payload_bytes;
    uint64_t bytes;
    char text[XFER_REASON_MAX];
    UT_hash_handle hh;
};

struct hand_d {
    struct hand_cfg cfg;
    struct hand_link *links;
    struct d_xfer *xfers;
    uint32_t quarantined;
};

void *hand_link_user(const struct hand_link *l)
{
    return l->user;
}

struct hand_d *hand_d_new(const struct hand_cfg *cfg)
{
    struct hand_d *d = xcalloc(1, sizeof *d);
    d->cfg = *cfg;
    return d;
}

static void forget(struct hand_d *d, struct d_xfer *x)
{
    HASH_DEL(d->xfers, x);
    free(x->blocks);
    free(x->here);
    free(x->payload);
    free(x);
}

void hand_d_free(struct hand_d *d)
{
    struct d_xfer *x, *t;
    struct hand_link *l, *lt;
    HASH_ITER (hh, d->xfers, x, t)
        forget(d, x);
    DL_FOREACH_SAFE(d->links, l, lt)
    {
        DL_DELETE(d->links, l);
        free(l);
    }
    free(d);
}

static struct d_xfer *find(const struct hand_d *d, uint64_t id)
{
    struct d_xfer *x;
    HASH_FIND(hh, d->xfers, &id, sizeof id, x);
    return x;
}

static void emit(struct hand_d *d, const struct d_xfer *x, enum xfer_event_kind kind,
                 uint64_t now_ns)
{
    struct xfer_event e = {
        .kind = kind, .id = x->id, .peer = x->link->peer, .n_blocks = x->n, .reason = x->why};
    if (kind == XFER_DONE) {
        e.payload = x->payload;
        e.payload_len = x->payload_bytes;
        e.bytes = x->bytes;
        e.path = x->n_here ? XFER_PATH_TCP : x->bytes ? XFER_PATH_SHM : XFER_PATH_NONE;
        e.seconds = x->granted_ns ? (double)(now_ns - x->granted_ns) / 1e9 : 0;
    }
    memcpy(e.text, x->text, sizeof e.text);
    d->cfg.ops->event(d->cfg.ctx, &e);
}

struct hand_link *hand_d_link(struct hand_d *d, uint64_t peer, uint64_t session, void *user,
                              uint64_t now_ns)
{
    struct hand_link *l = hand_link_make(peer, session, user, now_ns);
    DL_APPEND(d->links, l);
    return l;
}

/* Over for the engine. The blocks, if any, wait for P's word or for proof. */
static void end(struct hand_d *d, struct d_xfer *x, enum xfer_reason why, const char *text,
                uint64_t now_ns)
{
    if (x->state == D_ENDING)
        return;
    x->state = D_ENDING;
    x->why = why;
    hand_text(x->text, text);
    emit(d, x, XFER_FAILED, now_ns);
    if (x->blocks)
        d->quarantined += x->n;
    else
        emit(d, x, XFER_QUIESCED, now_ns);
    free(x->payload);
    x->payload = NULL;
    x->payload_bytes = 0;
    if (!x->link->lost)
        hand_send_text(&d->cfg, x->link, CONTROL_ABORT, x->id, x->p_id, why, x->text);
    x->repeat_ns = now_ns + hand_beat_ns(&d->cfg);
}

/* P's writer is known stopped. */
static void quiesce(struct hand_d *d, struct d_xfer *x, uint64_t now_ns)
{
    ASSERT(x->state == D_ENDING);
    if (x->blocks) {
        d->quarantined -= x->n;
        emit(d, x, XFER_QUIESCED, now_ns);
    }
    forget(d, x);
}

void hand_d_lost(struct hand_d *d, struct hand_link *l, enum xfer_reason why, const char *text,
                 uint64_t now_ns)
{
    struct d_xfer *x, *t;
    if (l->lost)
        return;
    l->lost = true;
    HASH_ITER (hh, d->xfers, x, t)
        if (x->link == l)
            end(d, x, why, text, now_ns);
}

void hand_d_stopped(struct hand_d *d, struct hand_link *l, uint64_t now_ns)
{
    struct d_xfer *x, *t;
    hand_d_lost(d, l, XFER_PEER_LOST, "the prefill worker's connection ended", now_ns);
    HASH_ITER (hh, d->xfers, x, t)
        if (x->link == l)
            quiesce(d, x, now_ns);
    DL_DELETE(d->links, l);
    free(l);
}

static void send_order(struct hand_d *d, struct d_xfer *x, uint64_t now_ns)
{
    struct control_msg m = hand_msg(&d->cfg, x->link, CONTROL_ORDER, x->id, 0);
    m.payload = x->payload;
    m.payload_bytes = x->payload_bytes;
    d->cfg.ops->send(d->cfg.ctx, x->link, &m);
    x->repeat_ns = now_ns + hand_beat_ns(&d->cfg);
}

static void send_grant(struct hand_d *d, struct d_xfer *x)
{
    struct control_msg m = hand_msg(&d->cfg, x->link, CONTROL_GRANT, x->id, x->p_id);
    m.n_list = x->n;
    m.list = x->blocks;
    d->cfg.ops->send(d->cfg.ctx, x->link, &m);
}

void hand_d_order(struct hand_d *d, struct hand_link *l, uint64_t id, const void *payload, size_t n,
                  uint64_t now_ns)
{
    ASSERT(n <= XFER_PAYLOAD_MAX && !find(d, id));
    struct d_xfer *x = xcalloc(1, sizeof *x);
    x->id = id;
    x->link = l;
    x->repeat_ns = now_ns;
    x->payload = xmalloc(n);
    x->payload_bytes = (uint32_t)n;
    if (n)
        memcpy(x->payload, payload, n);
    HASH_ADD(hh, d->xfers, id, sizeof x->id, x);
    if (l->lost) {
        end(d, x, XFER_PEER_LOST, "the connection to the prefill worker is over", now_ns);
        return;
    }
    send_order(d, x, now_ns);
}

void hand_d_grant(struct hand_d *d, uint64_t id, const uint32_t *blocks, uint32_t n,
                  uint64_t now_ns)
{
    struct d_xfer *x = find(d, id);
    if (!x || x->state != D_ASKED)
        return; /* it ended while the engine was deciding */
    ASSERT(n == x->n);
    for (uint32_t i = 0; i < n; i++)
        ASSERT(blocks[i] < d->cfg.n_blocks);
    x->blocks = xmalloc(n * sizeof *blocks);
    if (n)
        memcpy(x->blocks, blocks, n * sizeof *blocks);
    x->here = xcalloc(((size_t)n * d->cfg.n_layers + 63) / 64, 8);
    x->state = D_GRANTED;
    x->granted_ns = now_ns;
    send_grant(d, x);
}

void hand_d_reject(struct hand_d *d, uint64_t id, const char *text, uint64_t now_ns)
{
    struct d_xfer *x = find(d, id);
    if (x)
        end(d, x, XFER_BY_REJECT, text, now_ns);
}

void hand_d_abort(struct hand_d *d, uint64_t id, const char *text, uint64_t now_ns)
{
    struct d_xfer *x = find(d, id);
    if (x)
        end(d, x, XFER_BY_ABORT, text, now_ns);
}

static void finish(struct hand_d *d, struct d_xfer *x, uint64_t now_ns)
{
    emit(d, x, XFER_DONE, now_ns);
    hand_send_text(&d->cfg, x->link, CONTROL_CLOSE, x->id, x->p_id, XFER_OK, "");
    forget(d, x);
}

static void on_asked(struct hand_d *d, struct d_xfer *x, const struct control_msg *m,
                     uint64_t now_ns)
{
    switch (x->state) {
    case D_ORDERED:
    case D_QUEUED:
        x->n = m->n;
        x->state = D_ASKED;
        emit(d, x, XFER_ASK, now_ns);
        break;
    case D_GRANTED: send_grant(d, x); break; /* the grant was lost */
    case D_ASKED:
    case D_CHECKING: break;
    case D_ENDING:
        hand_send_text(&d->cfg, x->link, CONTROL_ABORT, x->id, x->p_id, x->why, x->text);
        break;
    }
}

/* P's claim: every piece was written in place (m->n == 0), or sent as a frame. */
static void on_done(struct hand_d *d, struct d_xfer *x, const struct control_msg *m,
                    uint64_t now_ns)
{
    if (x->state == D_ENDING) {
        hand_send_text(&d->cfg, x->link, CONTROL_CLOSE, x->id, x->p_id, XFER_OK, "");
        quiesce(d, x, now_ns);
        return;
    }
    if (x->state == D_CHECKING)
        return;
    uint64_t pieces = x->blocks ? (uint64_t)x->n * d->cfg.n_layers : 0;
    x->bytes = m->bytes;
    if ((m->n && m->n != pieces) || m->bytes != pieces * d->cfg.piece_bytes) {
        end(d, x, XFER_INCOMPLETE, "the prefill worker sent less than it asked for", now_ns);
        on_done(d, x, m, now_ns);
        return;
    }
    free(x->payload);
    x->payload = xmalloc(m->payload_bytes);
    x->payload_bytes = m->payload_bytes;
    if (m->payload_bytes)
        memcpy(x->payload, m->payload, m->payload_bytes);
    if (!x->blocks)
        x->n = 0;
    if (m->n == x->n_here) {
        finish(d, x, now_ns);
        return;
    }
    x->state = D_CHECKING;
    x->deadline_ns = now_ns + d->cfg.lease_ns;
}

static void on_failed(struct hand_d *d, struct d_xfer *x, const struct control_msg *m,
                      uint64_t now_ns)
{
    char text[XFER_REASON_MAX];
    hand_text_of(text, m);
    hand_send_text(&d->cfg, x->link, CONTROL_CLOSE, x->id, m->p_id, XFER_OK, "");
    end(d, x, hand_reason_of(m, XFER_PEER_FAILED), text, now_ns);
    quiesce(d, x, now_ns);
}

/* What D does not know (any more): a live one at P must stop, an ended one may be forgotten. */
static void on_unknown(struct hand_d *d, struct hand_link *l, const struct control_msg *m)
{
    if (m->type == CONTROL_ACCEPT || m->type == CONTROL_ASK)
        hand_send_text(&d->cfg, l, CONTROL_ABORT, m->id, m->p_id, XFER_BY_ABORT,
                       "the decode worker no longer wants it");
    else if (m->type == CONTROL_DONE || m->type == CONTROL_FAILED)
        hand_send_text(&d->cfg, l, CONTROL_CLOSE, m->id, m->p_id, XFER_OK, "");
}

static void on_beat(struct hand_d *d, struct hand_link *l, const struct control_msg *m)
{
    const uint8_t *p = m->payload;
    for (uint32_t i = 0; i < m->n; i++, p += 16) {
        struct control_msg one = {.type = CONTROL_ACCEPT};
        memcpy(&one.id, p, 8);
        memcpy(&one.p_id, p + 8, 8);
        const struct d_xfer *x = find(d, one.id);
        if (!x || x->link != l || (x->p_id && x->p_id != one.p_id))
            on_unknown(d, l, &one);
    }
}

static void on_named(struct hand_d *d, struct d_xfer *x, const struct control_msg *m,
                     uint64_t now_ns)
{
    switch (m->type) {
    case CONTROL_ACCEPT:
        if (x->state == D_ORDERED)
            x->state = D_QUEUED;
        break;
    case CONTROL_ASK:
        if (m->n > XFER_BLOCKS_MAX || m->n > d->cfg.n_blocks) {
            end(d, x, XFER_BY_REJECT, "more blocks than the decode worker has", now_ns);
            break;
        }
        on_asked(d, x, m, now_ns);
        break;
    case CONTROL_DONE: on_done(d, x, m, now_ns); break;
    case CONTROL_FAILED: on_failed(d, x, m, now_ns); break;
    default: break;
    }
}

void hand_d_recv(struct hand_d *d, struct hand_link *l, const struct control_msg *m,
                 uint64_t now_ns)
{
    if (!hand_addressed(&d->cfg, l, m) || l->lost)
        return;
    l->heard_ns = now_ns;
    if (m->type == CONTROL_HEARTBEAT) {
        on_beat(d, l, m);
        return;
    }
    struct d_xfer *x = find(d, m->id);
    if (x && x->link == l && !x->p_id)
        x->p_id = m->p_id;
    if (!x || x->link != l || x->p_id != m->p_id)
        on_unknown(d, l, m);
    else
        on_named(d, x, m, now_ns);
}

static struct d_xfer *piece_of(struct hand_d *d, struct hand_link *l, const struct control_piece *p)
{
    struct d_xfer *x = find(d, p->id);
    if (!x || x->link != l || l->lost || x->p_id != p->p_id)
        return NULL;
    if ((x->state != D_GRANTED && x->state != D_CHECKING) || p->bytes != d->cfg.piece_bytes)
        return NULL;
    return p->dst_index < x->n && p->layer < d->cfg.n_layers ? x : NULL;
}

bool hand_d_piece_open(struct hand_d *d, struct hand_link *l, const struct control_piece *p,
                       uint32_t *block)
{
    const struct d_xfer *x = piece_of(d, l, p);
    if (!x)
        return false;
    size_t bit = (size_t)p->dst_index * d->cfg.n_layers + p->layer;
    if (x->here[bit / 64] >> (bit % 64) & 1)
        return false;
    *block = x->blocks[p->dst_index];
    return true;
}

void hand_d_piece_close(struct hand_d *d, struct hand_link *l, const struct control_piece *p,
                        bool sound, uint64_t now_ns)
{
    struct d_xfer *x = piece_of(d, l, p);
    l->heard_ns = now_ns;
    if (!x)
        return;
    if (!sound) {
        /* In D_CHECKING P has already said that it stopped, but will not say so again. */
        bool stopped = x->state == D_CHECKING;
        end(d, x, XFER_CORRUPT, "a piece arrived with a wrong checksum", now_ns);
        if (stopped)
            quiesce(d, x, now_ns);
        return;
    }
    size_t bit = (size_t)p->dst_index * d->cfg.n_layers + p->layer;
    if (x->here[bit / 64] >> (bit % 64) & 1)
        return;
    x->here[bit / 64] |= 1ull << (bit % 64);
    x->n_here++;
    if (x->state == D_CHECKING && x->n_here == x->n * d->cfg.n_layers)
        finish(d, x, now_ns);
}

static void tick_xfer(struct hand_d *d, struct d_xfer *x, uint64_t now_ns, uint64_t *next)
{
    if (x->state == D_CHECKING) {
        if (now_ns >= x->deadline_ns) {
            end(d, x, XFER_INCOMPLETE, "pieces were lost on the way", now_ns);
            quiesce(d, x, now_ns);
            return;
        }
        *next = min_u64(*next, x->deadline_ns);
    }
    if ((x->state != D_ORDERED && x->state != D_ENDING) || x->link->lost)
        return;
    if (now_ns >= x->repeat_ns) {
        if (x->state == D_ORDERED)
            send_order(d, x, now_ns);
        else
            hand_send_text(&d->cfg, x->link, CONTROL_ABORT, x->id, x->p_id, x->why, x->text);
        x->repeat_ns = now_ns + hand_beat_ns(&d->cfg);
    }
    *next = min_u64(*next, x->repeat_ns);
}

static void beat(struct hand_d *d, struct hand_link *l)
{
    uint64_t pairs[2 * HAND_BEAT_MAX];
    uint32_t n = 0;
    struct d_xfer *x, *t;
    HASH_ITER (hh, d->xfers, x, t) {
        if (x->link != l || !x->p_id || x->state == D_CHECKING || n == HAND_BEAT_MAX)
            continue;
        pairs[2 * n] = x->id;
        pairs[2 * n++ + 1] = x->p_id;
    }
    struct control_msg m = hand_msg(&d->cfg, l, CONTROL_HEARTBEAT, 0, 0);
    m.n = n;
    m.payload = pairs;
    m.payload_bytes = 16 * n;
    d->cfg.ops->send(d->cfg.ctx, l, &m);
}

uint64_t hand_d_tick(struct hand_d *d, uint64_t now_ns)
{
    uint64_t next = UINT64_MAX;
    struct hand_link *l, *lt;
    struct d_xfer *x, *t;
    DL_FOREACH_SAFE(d->links, l, lt)
    {
        if (l->lost)
            continue;
        if (now_ns - l->heard_ns >= d->cfg.lease_ns) {
            hand_d_lost(d, l, XFER_LEASE_LOST, "the prefill worker fell silent", now_ns);
            d->cfg.ops->drop(d->cfg.ctx, l);
            continue;
        }
        if (now_ns >= l->beat_ns) {
            beat(d, l);
            l->beat_ns = now_ns + hand_beat_ns(&d->cfg);
        }
        next = min_u64(next, min_u64(l->beat_ns, l->heard_ns + d->cfg.lease_ns));
    }
    HASH_ITER (hh, d->xfers, x, t)
        tick_xfer(d, x, now_ns, &next);
    return next;
}

uint32_t hand_d_transfers(const struct hand_d *d)
{
    return HASH_COUNT(d->xfers);
}

uint32_t hand_d_quarantined(const struct hand_d *d)
{
    return d->quarantined;
}
