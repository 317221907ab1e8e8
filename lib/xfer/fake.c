#include "lib/xfer/fake.h"

#include "lib/base/clock.h"
#include "lib/base/rng.h"

#include <stdlib.h>
#include <utlist.h>

#define PIECE_BYTES 8u /* a piece is one word here */

enum act_kind {
    ACT_MSG,
    ACT_PIECE,
    ACT_WRITE,
    ACT_CONNECT,
    ACT_REFUSED,
    ACT_P_GONE,
    ACT_D_EOF,
    ACT_D_STOPPED,
    ACT_TIMER,
    ACT_TICK
};

struct fake_link {
    struct fake_node *d, *p; /* p: NULL until connected */
    uint32_t slot;
    uint64_t peer, session;
    struct hand_link *dl, *pl;
    bool d_dropped, eof_sent, writing;
    struct hand_push *queue; /* writes of P that have not begun, the first may have */
    size_t n_queue;
    struct fake_link *prev, *next;
};

struct act {
    uint64_t at_ns, seq;
    enum act_kind kind;
    struct fake_node *node;
    struct fake_link *link;
    char *bytes; /* MSG */
    size_t n_bytes;
    struct hand_push push; /* PIECE */
    uint64_t word;
    bool corrupt;
    void (*fn)(void *user, uint64_t a);
    uint64_t a;
};

struct fake_node {
    struct fake *f;
    uint32_t slot;
    uint64_t incarnation;
    bool dead;
    struct hand_d *d;
    struct hand_p *p;
    void *user;
    uint64_t tick_ns;
    struct fake_node *prev, *next;
};

struct fake {
    struct fake_cfg cfg;
    struct fake_hooks hooks;
    struct rng rng;
    uint64_t now_ns, seq, sends, n_sessions;
    uint64_t cut_until_ns[2]; /* towards P, towards D */
    struct act **heap;
    size_t n_heap, cap;
    struct fake_node *nodes;
    struct fake_link *links;
};

/* ---- virtual time ---- */

static bool before(const struct act *a, const struct act *b)
{
    return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->seq < b->seq;
}

static struct act *plan(struct fake *f, enum act_kind kind, uint64_t delay_ns, struct fake_node *n,
                        struct fake_link *l)
{
    struct act *a = xcalloc(1, sizeof *a);
    a->kind = kind;
    a->at_ns = f->now_ns + delay_ns;
    a->seq = f->seq++;
    a->node = n;
    a->link = l;
    if (f->n_heap == f->cap)
        f->heap = xrealloc(f->heap, (f->cap = f->cap ? 2 * f->cap : 256) * sizeof *f->heap);
    size_t i = f->n_heap++;
    for (; i && before(a, f->heap[(i - 1) / 2]); i = (i - 1) / 2)
        f->heap[i] = f->heap[(i - 1) / 2];
    f->heap[i] = a;
    return a;
}

static struct act *next_act(struct fake *f)
{
    struct act *top = f->heap[0], *last = f->heap[--f->n_heap];
    size_t i = 0;
    for (size_t k; (k = 2 * i + 1) < f->n_heap; i = k) {
        if (k + 1 < f->n_heap && before(f->heap[k + 1], f->heap[k]))
            k++;
        if (!before(f->heap[k], last))
            break;
        f->heap[i] = f->heap[k];
    }
    if (f->n_heap)
        f->heap[i] = last;
    return top;
}

static uint64_t hop(struct fake *f)
{
    return 10 * NS_PER_US + rng_below(&f->rng, 200 * NS_PER_US);
}

static void tick(struct fake_node *n)
{
    if (n->dead)
        return;
    uint64_t a = hand_d_tick(n->d, n->f->now_ns), b = hand_p_tick(n->p, n->f->now_ns);
    a = a < b ? a : b;
    if (a == UINT64_MAX || (n->tick_ns > n->f->now_ns && n->tick_ns <= a))
        return;
    n->tick_ns = a > n->f->now_ns ? a : n->f->now_ns + 1;
    plan(n->f, ACT_TICK, n->tick_ns - n->f->now_ns, n, NULL);
}

/* ---- faults ---- */

static enum fake_fault draw(struct fake *f)
{
    f->sends++;
    if (f->hooks.sent)
        f->hooks.sent(f->hooks.arg, f->sends);
    if (f->sends == f->cfg.at)
        return f->cfg.fault;
    double u = rng_unit(&f->rng);
    for (int k = FAKE_LOSE; k < FAKE_FAULTS; k++) {
        if (u < f->cfg.rate[k])
            return (enum fake_fault)k;
        u -= f->cfg.rate[k];
    }
    return FAKE_NONE;
}

static uint64_t late(struct fake *f, enum fake_fault k)
{
    switch (k) {
    case FAKE_LATE: return f->cfg.lease_ns * 3 / 2;
    case FAKE_VERY_LATE: return 5 * f->cfg.lease_ns;
    case FAKE_SWAP: return NS_PER_MS;
    default: return 0;
    }
}

/* How many copies go out (0: lost), and when. */
static int fate(struct fake *f, bool to_d, bool piece, uint64_t delay_ns[2], bool *corrupt)
{
    enum fake_fault k = draw(f);
    *corrupt = k == FAKE_CORRUPT;
    if (k == FAKE_CUT) { /* one way or both */
        uint64_t which = rng_below(&f->rng, 3);
        for (unsigned way = 0; way < 2; way++)
            if (which == 2 || which == way)
                f->cut_until_ns[way] = f->now_ns + f->cfg.lease_ns * 3 / 2;
    }
    if (k == FAKE_LOSE || f->now_ns < f->cut_until_ns[to_d] || (k == FAKE_CORRUPT && !piece))
        return 0;
    delay_ns[0] = hop(f) + late(f, k);
    delay_ns[1] = hop(f) + rng_below(&f->rng, 5 * f->cfg.lease_ns);
    return k == FAKE_DOUBLE ? 2 : 1;
}

/* ---- ops of the state machines ---- */

static void op_send(void *ctx, struct hand_link *hl, const struct control_msg *m)
{
    struct fake_node *n = ctx;
    struct fake *f = n->f;
    struct fake_link *l = hand_link_user(hl);
    uint64_t delay_ns[2];
    bool corrupt;
    struct buf b;
    if (n->dead) /* it was killed a moment ago, inside this very step */
        return;
    buf_init(&b, CONTROL_BODY_MAX + CONTROL_HEADER_BYTES);
    ASSERT(control_msg_encode(m, &b) == 0);
    int copies = fate(f, n == l->p, false, delay_ns, &corrupt);
    for (int i = 0; i < copies; i++) {
        struct act *a = plan(f, ACT_MSG, delay_ns[i], n, l);
        a->n_bytes = b.n;
        a->bytes = memcpy(xmalloc(b.n), b.data, b.n);
    }
    buf_fini(&b);
}

static void op_event(void *ctx, const struct xfer_event *e)
{
    struct fake_node *n = ctx;
    if (!n->dead)
        n->f->hooks.event(n->user, e);
}

static void begin_write(struct fake_link *l)
{
    if (l->writing || !l->n_queue)
        return;
    l->writing = true;
    plan(l->p->f, ACT_WRITE, 5 * NS_PER_US + rng_below(&l->p->f->rng, 50 * NS_PER_US), l->p, l);
}

static void op_push(void *ctx, struct hand_link *hl, const struct hand_push *p)
{
    struct fake_link *l = hand_link_user(hl);
    if (((struct fake_node *)ctx)->dead)
        return;
    l->queue = xrealloc(l->queue, (l->n_queue + 1) * sizeof *l->queue);
    l->queue[l->n_queue++] = *p;
    begin_write(l);
}

static uint32_t op_cancel(void *ctx, struct hand_link *hl, uint64_t p_id)
{
    (void)ctx;
    struct fake_link *l = hand_link_user(hl);
    size_t to = l->writing ? 1 : 0, from = to, n = l->n_queue;
    for (; from < n; from++)
        if (l->queue[from].p_id != p_id)
            l->queue[to++] = l->queue[from];
    l->n_queue = to;
    return (uint32_t)(n - to);
}

static void op_drop(void *ctx, struct hand_link *hl)
{
    struct fake_node *n = ctx;
    struct fake *f = n->f;
    struct fake_link *l = hand_link_user(hl);
    if (n != l->d || (l->d == l->p && hl == l->pl)) {
        plan(f, ACT_P_GONE, 0, n, l);
        return;
    }
    l->d_dropped = true;
    if (!(f->cfg.deaf_p && rng_below(&f->rng, 2)))
        plan(f, ACT_P_GONE, hop(f), l->p, l);
    /* Frames are placed by D itself, and D has closed. Writes in place need P's end. */
    if (f->cfg.path == XFER_PATH_TCP || !l->p)
        plan(f, ACT_D_STOPPED, 0, n, l);
}

static const struct hand_ops ops = {op_send, op_event, op_push, op_cancel, op_drop};

/* ---- workers and links ---- */

struct fake *fake_new(const struct fake_cfg *cfg, const struct fake_hooks *hooks)
{
    struct fake *f = xcalloc(1, sizeof *f);
    f->cfg = *cfg;
    f->hooks = *hooks;
    f->rng.state = cfg->seed;
    f->now_ns = NS_PER_S;
    return f;
}

static void act_free(struct act *a)
{
    free(a->bytes);
    free(a);
}

void fake_free(struct fake *f)
{
    struct fake_node *n, *nt;
    struct fake_link *l, *lt;
    for (size_t i = 0; i < f->n_heap; i++)
        act_free(f->heap[i]);
    DL_FOREACH_SAFE(f->nodes, n, nt)
    {
        hand_d_free(n->d);
        hand_p_free(n->p);
        free(n);
    }
    DL_FOREACH_SAFE(f->links, l, lt)
    {
        free(l->queue);
        free(l);
    }
    free(f->heap);
    free(f);
}

uint64_t fake_now_ns(const struct fake *f)
{
    return f->now_ns;
}

uint64_t fake_sends(const struct fake *f)
{
    return f->sends;
}

struct rng *fake_rng(struct fake *f)
{
    return &f->rng;
}

struct fake_node *fake_start(struct fake *f, uint32_t slot, uint64_t incarnation, uint32_t n_blocks,
                             uint32_t n_layers, void *user)
{
    struct fake_node *n = xcalloc(1, sizeof *n);
    *n = (struct fake_node){.f = f, .slot = slot, .incarnation = incarnation, .user = user};
    struct hand_cfg c = {.me = incarnation,
                         .lease_ns = f->cfg.lease_ns,
                         .n_blocks = n_blocks,
                         .n_layers = n_layers,
                         .piece_bytes = PIECE_BYTES,
                         .ops = &ops,
                         .ctx = n};
    n->d = hand_d_new(&c);
    n->p = hand_p_new(&c);
    DL_APPEND(f->nodes, n);
    return n;
}

/* D is told by the end of its connection(s) that P is gone from this link. */
static void tell_d(struct fake *f, struct fake_link *l)
{
    l->pl = NULL;
    l->n_queue = 0;
    l->writing = false;
    if (l->eof_sent)
        return;
    l->eof_sent = true;
    plan(f, ACT_D_EOF, hop(f), l->d, l);
}

void fake_kill(struct fake *f, struct fake_node *n)
{
    struct fake_link *l;
    n->dead = true;
    DL_FOREACH (f->links, l) {
        if (l->p == n)
            tell_d(f, l);
        if (l->d == n && l->p && l->p != n)
            plan(f, ACT_P_GONE, hop(f), l->p, l);
    }
}

bool fake_alive(const struct fake_node *n)
{
    return !n->dead;
}

struct hand_d *fake_d(struct fake_node *n)
{
    return n->d;
}

struct hand_p *fake_p(struct fake_node *n)
{
    return n->p;
}

struct hand_link *fake_link(struct fake *f, struct fake_node *d, uint32_t slot,
                            uint64_t incarnation)
{
    struct fake_link *l;
    DL_FOREACH (f->links, l) {
        if (l->d == d && l->slot == slot && l->peer == incarnation && l->dl && !l->d_dropped &&
            !l->eof_sent)
            return l->dl;
    }
    l = xcalloc(1, sizeof *l);
    l->d = d;
    l->slot = slot;
    l->peer = incarnation;
    l->session = ++f->n_sessions;
    l->dl = hand_d_link(d->d, incarnation, l->session, l, f->now_ns);
    DL_APPEND(f->links, l);
    plan(f, ACT_CONNECT, hop(f), d, l);
    tick(d);
    return l->dl;
}

void fake_after(struct fake *f, struct fake_node *n, uint64_t delay_ns,
                void (*fn)(void *user, uint64_t a), uint64_t a)
{
    struct act *t = plan(f, ACT_TIMER, delay_ns, n, NULL);
    t->fn = fn;
    t->a = a;
}

/* ---- what happens ---- */

static void do_connect(struct fake *f, struct fake_link *l)
{
    struct fake_node *n, *to = NULL;
    DL_FOREACH (f->nodes, n) {
        if (n->slot == l->slot && !n->dead)
            to = n;
    }
    if (!to || to->incarnation != l->peer) {
        plan(f, ACT_REFUSED, hop(f), l->d, l);
        return;
    }
    if (l->d_dropped || l->d->dead)
        return;
    l->p = to;
    l->pl = hand_p_link(to->p, l->d->incarnation, l->session, UINT32_MAX, l, f->now_ns);
    hand_p_path(l->pl, f->cfg.path);
    tick(to);
}

/* By the slot, not the incarnation: whoever lives there now gets the message, and must refuse
 * another's. */
static void do_msg(struct fake *f, const struct act *a)
{
    struct control_frame fr;
    struct control_msg m;
    size_t need;
    ASSERT(control_frame_decode(a->bytes, a->n_bytes, &fr, &need) > 0);
    ASSERT(control_msg_decode(&fr, &m) == 0);
    struct fake_link *l = a->link, *o;
    bool from_d = a->node == l->d && m.from == l->d->incarnation && m.to == l->peer;
    uint32_t slot = from_d ? l->slot : l->d->slot;
    DL_FOREACH (f->links, o) {
        if (from_d && o->pl && o->p->slot == slot && !o->p->dead) {
            hand_p_recv(o->p->p, o->pl, &m, f->now_ns);
            tick(o->p);
        }
        if (!from_d && o->dl && o->d->slot == slot && !o->d->dead) {
            hand_d_recv(o->d->d, o->dl, &m, f->now_ns);
            tick(o->d);
        }
    }
}

static void do_piece(struct fake *f, const struct act *a)
{
    struct fake_link *l = a->link;
    if (!l->dl || l->d->dead)
        return;
    struct control_piece p = {.id = a->push.id,
                              .p_id = a->push.p_id,
                              .dst_index = a->push.dst_index,
                              .layer = a->push.layer,
                              .bytes = PIECE_BYTES};
    uint32_t block;
    if (!hand_d_piece_open(l->d->d, l->dl, &p, &block))
        return;
    f->hooks.write(l->d->user, p.id, block, p.layer, a->corrupt ? ~a->word : a->word);
    hand_d_piece_close(l->d->d, l->dl, &p, !a->corrupt, f->now_ns);
    tick(l->d);
}

static void send_piece(struct fake *f, struct fake_link *l, const struct hand_push *p,
                       uint64_t word)
{
    uint64_t delay_ns[2];
    bool corrupt;
    int copies = fate(f, true, true, delay_ns, &corrupt);
    for (int i = 0; i < copies; i++) {
        struct act *a = plan(f, ACT_PIECE, delay_ns[i], l->d, l);
        a->push = *p;
        a->word = word;
        a->corrupt = corrupt;
    }
}

static void do_write(struct fake *f, struct fake_link *l)
{
    if (!l->writing || !l->pl || l->p->dead)
        return;
    struct hand_push p = l->queue[0];
    l->n_queue--;
    memmove(l->queue, l->queue + 1, l->n_queue * sizeof *l->queue);
    l->writing = false;
    uint64_t word = f->hooks.read(l->p->user, &p);
    if (f->cfg.path == XFER_PATH_TCP) {
        send_piece(f, l, &p, word);
    } else {
        f->sends++;
        if (f->hooks.sent)
            f->hooks.sent(f->hooks.arg, f->sends);
        if (!l->d->dead && !l->p->dead)
            f->hooks.write(l->d->user, p.id, p.dst_block, p.layer, word);
    }
    if (l->p->dead || !l->pl)
        return;
    begin_write(l);
    hand_p_pushed(l->p->p, p.p_id, 1, f->now_ns);
    tick(l->p);
}

static void do_p_gone(struct fake *f, struct fake_link *l)
{
    if (!l->pl || l->p->dead)
        return;
    struct hand_link *pl = l->pl;
    tell_d(f, l);
    hand_p_gone(l->p->p, pl, f->now_ns);
}

static void do_d_over(struct fake *f, struct fake_link *l, enum act_kind kind)
{
    if (!l->dl || l->d->dead)
        return;
    if (kind == ACT_D_EOF && f->cfg.path == XFER_PATH_SHM) {
        /* the control connection's end; the other, which proves it, comes later */
        hand_d_lost(l->d->d, l->dl, XFER_PEER_LOST, "end of file", f->now_ns);
        plan(f, ACT_D_STOPPED, hop(f), l->d, l);
        return;
    }
    if (kind == ACT_REFUSED)
        hand_d_lost(l->d->d, l->dl, XFER_WRONG_PEER, "refused", f->now_ns);
    struct hand_link *dl = l->dl;
    l->dl = NULL;
    hand_d_stopped(l->d->d, dl, f->now_ns);
}

static void happen(struct fake *f, struct act *a)
{
    switch (a->kind) {
    case ACT_MSG: do_msg(f, a); break;
    case ACT_PIECE: do_piece(f, a); break;
    case ACT_WRITE: do_write(f, a->link); break;
    case ACT_CONNECT: do_connect(f, a->link); break;
    case ACT_P_GONE: do_p_gone(f, a->link); break;
    case ACT_REFUSED:
    case ACT_D_EOF:
    case ACT_D_STOPPED: do_d_over(f, a->link, a->kind); break;
    case ACT_TIMER:
        if (!a->node->dead) {
            a->fn(a->node->user, a->a);
            tick(a->node);
        }
        break;
    case ACT_TICK:
        if (a->at_ns == a->node->tick_ns)
            tick(a->node);
        break;
    }
}

void fake_run(struct fake *f, uint64_t until_ns)
{
    while (f->n_heap && f->heap[0]->at_ns <= until_ns) {
        struct act *a = next_act(f);
        f->now_ns = a->at_ns;
        happen(f, a);
        act_free(a);
    }
}
