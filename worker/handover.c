/* Both sides of a KV transfer in the engine (engine_int.h; the protocol and its promises are
 * lib/xfer/xfer.h).
 *
 * At home (decode): a request is ordered from its prefill worker; cached blocks are held meanwhile
 * and left out of the push; blocks are granted when asked for; done hands over blocks and first
 * tokens. A failure before done quarantines the granted blocks and has the prompt computed here
 * instead, exactly: no client has seen a byte of it. Prefill: an order queues like a request; it
 * asks for blocks near the head of the queue and runs once they are granted. Its blocks are held
 * until the transfer is released, whatever becomes of it. */
#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/decide/place.h"
#include "lib/wire/le.h"
#include "worker/engine_int.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define ORDER_MAGIC                                                                                \
    0x444f5442u /* "BTOD": u32 magic, u32 have_blocks, u64 0, then the encoded request */
#define DONE_MAGIC                                                                                 \
    0x4e445442u /* "BTDN": u32 magic, u32 cached_tokens, u64 prefill_us, then records */
#define HEADER_BYTES  16u
#define ASK_AHEAD     4u /* orders that may hold a grant before they run */
#define GRANT_WAIT_NS (10 * NS_PER_S)
#define ECHO_BYTES_MAX                                                                             \
    (4u << 20) /* of prompt logprobs in a done message; larger ones are computed at home */

static struct inbound *inbound_of(struct engine *g, uint64_t id)
{
    struct inbound *in = g->inbounds;
    while (in && in->id != id)
        in = in->next;
    return in;
}

static struct request *order_of(struct engine *g, uint64_t id)
{
    struct request *r = g->requests;
    while (r && r->order_id != id)
        r = r->next;
    return r;
}

static uint32_t blocks_for(const struct engine *g, uint32_t tokens)
{
    return (tokens + g->c.kv.block_tokens - 1) / g->c.kv.block_tokens;
}

/* ---- at home ---- */

static void inbound_free(struct engine *g, struct inbound *in)
{
    *(in->prev ? &in->prev->next : &g->inbounds) = in->next;
    if (in->next)
        in->next->prev = in->prev;
    if (in->req)
        in->req->inbound = NULL;
    free(in->have);
    free(in->granted);
    free(in);
}

static void drop_have(struct engine *g, struct inbound *in)
{
    kv_release(g->kv, in->have, in->n_have);
    in->n_have = 0;
}

static bool wants_remote(const struct engine *g, const struct request *r)
{
    const struct wire_request *w = &r->wire;
    size_t echo = w->flags & WIRE_PROMPT_LOGPROBS
                      ? (size_t)w->n_prompt * (WIRE_RECORD_BYTES + 8u * w->n_top)
                      : 0;
    return g->xfer && w->prefill.port && w->prefill.incarnation != g->c.incarnation &&
           w->max_tokens > w->n_generated && echo <= ECHO_BYTES_MAX &&
           r->body_bytes + HEADER_BYTES <= XFER_PAYLOAD_MAX;
}

static void compute_here(struct engine *g, struct request *r, const char *why)
{
    snprintf(r->fallback, sizeof r->fallback, "%.90s", why);
    for (char *p = r->fallback; *p; p++)
        if (*p == '"' || *p == '\\' || (unsigned char)*p < ' ')
            *p = ' ';
    g->status.fallbacks++;
    metric_add(g->m.fallbacks, 1);
    log_warn("a prompt is computed here: its prefill worker could not", LS("reason", r->fallback));
    queue_push_head(g, &r->seqs[0]);
}

/* At the data rank where the answer is to be decoded: holds the cached prefix, unless the pool is
 * too small to keep idle blocks waiting for a remote prefill. */
static void hold_prefix(struct engine *g, struct seq *s, struct inbound *in)
{
    struct place_rank ranks[SCHEDULE_RANKS_MAX];
    uint32_t idle, max = (s->n_tokens - 1) / g->c.kv.block_tokens;
    deal_begin(g, ranks);
    deal_seq(g, ranks, s);
    struct kv_counts c = kv_counts_of(g->kv, s->rank);
    in->have = xmalloc((max + 1) * sizeof *in->have);
    in->n_have = seq_find(s, g->kv, in->have, max, &idle);
    if (idle + c.total / 4 > c.free)
        in->n_have = 0;
    for (uint32_t i = 0; i < in->n_have; i++)
        kv_hold(g->kv, in->have[i]);
}

bool handover_order(struct engine *g, struct request *r)
{
    char peer[WIRE_HOST_MAX + 32];
    const struct wire_peer *p = &r->wire.prefill;
    struct err e = {0};
    if (!wants_remote(g, r))
        return false;
    struct inbound *in = xcalloc(1, sizeof *in);
    hold_prefix(g, &r->seqs[0], in);
    unsigned char *payload = xcalloc(1, HEADER_BYTES + r->body_bytes);
    le_put32(payload, ORDER_MAGIC);
    le_put32(payload + 4, in->n_have);
    memcpy(payload + HEADER_BYTES, r->body, r->body_bytes);
    int n = snprintf(peer, sizeof peer, strchr(p->host, ':') ? "[%s]:%u:%016llx" : "%s:%u:%016llx",
                     p->host, p->port, (unsigned long long)p->incarnation);
    int rc = xfer_order(g->xfer, (struct str){peer, (size_t)n}, payload,
                        HEADER_BYTES + r->body_bytes, &in->id, &e);
    free(payload);
    in->next = g->inbounds;
    if (in->next)
        in->next->prev = in;
    g->inbounds = in;
    if (rc) {
        drop_have(g, in);
        inbound_free(g, in);
        compute_here(g, r, e.msg);
        return true;
    }
    in->req = r;
    r->inbound = in;
    r->seqs[0].state = SEQ_REMOTE;
    return true;
}

void handover_abandon(struct engine *g, struct request *r, const char *why)
{
    struct inbound *in = r->inbound;
    if (!in)
        return;
    in->req = NULL;
    in->asking = false;
    r->inbound = NULL;
    drop_have(g, in);
    xfer_abort(g->xfer, in->id, why);
}

void handover_again(struct engine *g, struct request *r, const char *why)
{
    handover_abandon(g, r, why);
    compute_here(g, r, why);
}

static void on_ask(struct engine *g, const struct xfer_event *ev)
{
    struct inbound *in = inbound_of(g, ev->id);
    if (!in || !in->req)
        return; /* aborted already */
    uint32_t want = blocks_for(g, in->req->seqs[0].n_tokens) - in->n_have;
    if (ev->n_blocks != want || in->asking || in->n_granted) {
        xfer_reject(g->xfer, ev->id, "asked for another number of blocks than the prompt needs");
        return;
    }
    in->asked = want;
    in->asking = true;
    in->asked_ns = g->now_ns;
}

static bool grant(struct engine *g, struct inbound *in)
{
    uint32_t granted = 0, rank = in->req->seqs[0].rank;
    struct kv_counts c = kv_counts_of(g->kv, rank);
    for (struct inbound *x = g->inbounds; x; x = x->next)
        granted += x->n_granted && kv_rank_of(g->kv, x->granted[0]) == rank ? x->n_granted : 0;
    if (in->asked + deal_running(g, rank) > c.free ||
        (granted && granted + in->asked > c.total / 2))
        return false;
    in->granted = xmalloc((in->asked + 1) * sizeof *in->granted);
    for (; in->n_granted < in->asked; in->n_granted++)
        in->granted[in->n_granted] = kv_alloc(g->kv, rank);
    in->asking = false;
    xfer_grant(g->xfer, in->id, in->granted, in->n_granted);
    return true;
}

/* First come, first served, at each data rank. */
void handover_grant(struct engine *g)
{
    for (uint64_t full = 0;;) {
        struct inbound *first = NULL;
        for (struct inbound *in = g->inbounds; in; in = in->next)
            if (in->asking && !(full >> in->req->seqs[0].rank & 1) &&
                (!first || in->asked_ns <= first->asked_ns))
                first = in;
        if (!first)
            return;
        if (grant(g, first))
            continue;
        if (g->now_ns - first->asked_ns < GRANT_WAIT_NS) {
            full |= 1ull << first->req->seqs[0].rank;
            continue;
        }
        first->asking = false;
        xfer_reject(g->xfer, first->id, "no room in the KV pool");
    }
}

/* Every prompt entry, then the first token of every choice, once each. */
static int check_records(const struct engine *g, const struct request *r, struct str data)
{
    uint32_t prompt = 0, tokens = 0, seen = 0;
    struct wire_record rec;
    while (data.n) {
        int k = wire_record_decode(data, &rec);
        if (k <= 0 || rec.kind != WIRE_TOKEN || rec.id >= g->vocab || rec.choice >= r->wire.n)
            return -EINVAL;
        bool echo = rec.finish == WIRE_FINISH_PROMPT;
        if (!echo && (seen & 1u << rec.choice))
            return -EINVAL;
        prompt += echo;
        tokens += !echo;
        seen |= echo ? 0 : 1u << rec.choice;
        data.p += k;
        data.n -= (size_t)k;
    }
    uint32_t want = request_reports_prompt(r) ? r->wire.n_prompt : 0;
    return prompt == want && tokens == r->wire.n ? 0 : -EINVAL;
}

/* The records of the other choices first: they fork before choice 0 can end. */
static void take_records(struct engine *g, struct request *r, struct str all)
{
    struct wire_record rec;
    for (int pass = 0; pass < 3; pass++)
        for (struct str data = all; data.n;) {
            int k = wire_record_decode(data, &rec);
            int when = rec.finish == WIRE_FINISH_PROMPT ? 0 : rec.choice ? 1 : 2;
            if (when == pass) {
                struct seq *s = &r->seqs[rec.choice];
                emit_given(g, s, &rec);
                if (when == 1)
                    step_fork(g, s);
            }
            data.p += k;
            data.n -= (size_t)k;
        }
}

static void adopt(struct engine *g, struct inbound *in, const struct xfer_event *ev,
                  struct str records)
{
    struct request *r = in->req;
    struct seq *s = &r->seqs[0];
    const unsigned char *head = ev->payload;
    for (uint32_t i = 0; i < in->n_have; i++)
        seq_add_block(s, in->have[i]);
    for (uint32_t i = 0; i < in->n_granted; i++)
        seq_add_block(s, in->granted[i]);
    s->computed = s->n_tokens;
    s->n_named = in->n_have;
    r->remote = true;
    r->kv_bytes = ev->bytes;
    r->cached_tokens = le_get32(head + 4);
    r->prefill_us = le_get64(head + 8);
    g->status.load.kv_bytes_in_total += ev->bytes;
    metric_add(g->m.kv_in, (double)ev->bytes);
    group_store(g->group, in->granted, in->n_granted);
    in->n_have = in->n_granted = 0;
    inbound_free(g, in);
    seq_name_blocks(s, g->kv);
    running_add(g, s);
    take_records(g, r, records);
}

static void on_done(struct engine *g, const struct xfer_event *ev)
{
    struct inbound *in = inbound_of(g, ev->id);
    if (!in)
        return;
    struct request *r = in->req;
    struct str records = {(const char *)ev->payload + HEADER_BYTES, ev->payload_len - HEADER_BYTES};
    if (r && ev->payload_len >= HEADER_BYTES && le_get32(ev->payload) == DONE_MAGIC &&
        in->n_have + in->n_granted == blocks_for(g, r->seqs[0].n_tokens) &&
        check_records(g, r, records) == 0) {
        adopt(g, in, ev, records);
        return;
    }
    drop_have(g, in);
    kv_release(g->kv, in->granted, in->n_granted);
    inbound_free(g, in);
    if (r)
        compute_here(g, r, "the prefill worker's answer made no sense");
}

static void on_failed(struct engine *g, const struct xfer_event *ev)
{
    struct inbound *in = inbound_of(g, ev->id);
    if (!in || in->failed)
        return;
    struct request *r = in->req;
    in->failed = true;
    in->asking = false;
    in->req = NULL;
    drop_have(g, in);
    kv_quarantine(g->kv, in->granted, in->n_granted);
    if (!r)
        return;
    r->inbound = NULL;
    compute_here(g, r, ev->text[0] ? ev->text : xfer_reason_name(ev->reason));
}

static void on_quiesced(struct engine *g, const struct xfer_event *ev)
{
    struct inbound *in = inbound_of(g, ev->id);
    if (!in)
        return;
    kv_unquarantine(g->kv, in->granted, in->n_granted);
    inbound_free(g, in);
}

/* ---- prefill ---- */

static const char *refuse_order(const struct engine *g)
{
    if (g->draining)
        return "the prefill worker is draining";
    if (g->role != WIRE_ROLE_PREFILL && g->role != WIRE_ROLE_UNIFIED)
        return "this worker's role takes no prefill orders";
    return NULL;
}

/* A request that lives only until RELEASED is a kept order without sequences to run. */
static void on_order(struct engine *g, const struct xfer_event *ev)
{
    struct err e = {0};
    struct request *r = NULL;
    const unsigned char *p = ev->payload;
    const char *why = refuse_order(g);
    if (!why && (ev->payload_len < HEADER_BYTES || le_get32(p) != ORDER_MAGIC))
        why = "an order that is none";
    if (why) {
        xfer_fail(g->xfer, ev->id, why);
        return;
    }
    size_t n = ev->payload_len - HEADER_BYTES;
    void *body = xmalloc(n + 1);
    memcpy(body, p + HEADER_BYTES, n);
    if (request_new(body, n, &g->c.seed, g->c.kv.block_tokens, g->vocab, g->context, &r, &e)) {
        xfer_fail(g->xfer, ev->id, e.msg);
        return;
    }
    r->order_id = ev->id;
    r->arrived_ns = g->now_ns;
    r->have_blocks = le_get32(p + 4);
    request_link(g, r);
    if (r->have_blocks > (r->seqs[0].n_tokens - 1) / g->c.kv.block_tokens) {
        handover_fail(g, r, "more blocks at the decode worker than the prompt has");
        return;
    }
    queue_push(g, &r->seqs[0]);
    seq_expect(&r->seqs[0], g->kv);
}

void handover_ask(struct engine *g)
{
    uint32_t asked = 0;
    for (struct seq *s = g->waiting; s && asked < ASK_AHEAD; s = s->next) {
        struct request *r = s->req;
        if (!r->order_id)
            continue;
        asked++;
        if (r->asked)
            continue;
        r->asked = true;
        xfer_ask(g->xfer, r->order_id, blocks_for(g, s->n_tokens) - r->have_blocks);
    }
}

static void push_all_layers(struct engine *g, uint64_t id, const struct xfer_piece *p, uint32_t n)
{
    for (uint32_t l = 0; l < g->c.kv.n_layers; l++)
        xfer_push(g->xfer, id, l, p, n);
}

static void add_piece(struct push *p, uint32_t src, uint32_t dst)
{
    if (p->n == p->cap) {
        p->cap = p->cap ? 2 * p->cap : 32;
        p->pieces = xrealloc(p->pieces, p->cap * sizeof *p->pieces);
    }
    p->pieces[p->n++] = (struct xfer_piece){src, dst};
}

void handover_prefix(struct engine *g, struct seq *s)
{
    struct push p = {0};
    uint32_t cached = s->computed / g->c.kv.block_tokens;
    struct err e = {0};
    p.id = s->req->order_id;
    for (uint32_t i = s->req->have_blocks; i < cached; i++)
        add_piece(&p, s->blocks[i], i - s->req->have_blocks);
    if (handover_fetched(g, &p, &e))
        log_error("cached blocks of other ranks can't be had", LERR(&e)); /* the group has failed */
    free(p.pieces);
}

static uint32_t *source_blocks(const struct push *p) /* heap */
{
    uint32_t *blocks = xmalloc((p->n + 1) * sizeof *blocks);
    for (uint32_t i = 0; i < p->n; i++)
        blocks[i] = p->pieces[i].src_block;
    return blocks;
}

int handover_fetched(struct engine *g, const struct push *p, struct err *e)
{
    uint32_t *blocks = source_blocks(p);
    int rc = group_fetch(g->group, blocks, p->n, e);
    free(blocks);
    if (!rc && p->n)
        push_all_layers(g, p->id, p->pieces, p->n);
    return rc;
}

/* Blocks that the chunk [computed, computed + tokens) fills, the last one of the prompt also when
 * partial. */
void handover_chunk(struct engine *g, struct seq *s, uint32_t tokens, struct push *p)
{
    uint32_t bt = g->c.kv.block_tokens, have = s->req->have_blocks, end = s->computed + tokens;
    uint32_t upto = end == s->n_tokens ? blocks_for(g, end) : end / bt;
    p->id = s->req->order_id;
    p->n = 0;
    for (uint32_t i = s->computed / bt; i < upto; i++)
        if (i >= have)
            add_piece(p, s->blocks[i], i - have);
}

/* Of a device the pieces come to the host first; a layer that can't is missed by xfer_done. */
void handover_layer(struct engine *g, const struct push *p, uint32_t layer)
{
    struct err e = {0};
    uint32_t *blocks = source_blocks(p);
    int rc = group_fetch_layer(g->group, blocks, p->n, layer, &e);
    free(blocks);
    if (rc)
        log_error("a layer's KV can't be had from the device", LERR(&e));
    else if (p->n)
        xfer_push(g->xfer, p->id, layer, p->pieces, p->n);
}

/* Out of queue and batch; the blocks stay until RELEASED. */
static void close_order(struct engine *g, struct request *r)
{
    struct seq *s = &r->seqs[0];
    if (s->state == SEQ_WAITING)
        queue_remove(g, s);
    else if (s->state == SEQ_RUNNING)
        running_remove(g, s);
    s->state = SEQ_HOLDING;
    r->closed = true;
}

void handover_done(struct engine *g, struct request *r)
{
    struct buf b;
    unsigned char head[HEADER_BYTES];
    le_put32(head, DONE_MAGIC);
    le_put32(head + 4, r->cached_tokens);
    le_put64(head + 8, (clock_mono_ns() - r->started_ns) / NS_PER_US);
    buf_init(&b, XFER_PAYLOAD_MAX);
    int rc = buf_append(&b, head, sizeof head);
    rc = rc ? rc : buf_str(&b, buf_view(&r->out));
    if (rc)
        xfer_fail(g->xfer, r->order_id, "the first tokens do not fit a message");
    else
        xfer_done(g->xfer, r->order_id, b.data, b.n);
    buf_fini(&b);
    buf_reset(&r->out);
    close_order(g, r);
}

void handover_fail(struct engine *g, struct request *r, const char *why)
{
    if (r->closed)
        return;
    xfer_fail(g->xfer, r->order_id, why);
    close_order(g, r);
}

static void on_released(struct engine *g, const struct xfer_event *ev)
{
    struct request *r = order_of(g, ev->id);
    g->status.load.kv_bytes_out_total += ev->bytes;
    metric_add(g->m.kv_out, (double)ev->bytes);
    if (!r)
        return; /* refused at once */
    if (!r->closed)
        close_order(g, r);
    request_stop(g, r);
}

static void on_event(struct engine *g, const struct xfer_event *ev)
{
    struct request *r;
    switch (ev->kind) {
    case XFER_ASK: on_ask(g, ev); break;
    case XFER_DONE: on_done(g, ev); break;
    case XFER_FAILED: on_failed(g, ev); break;
    case XFER_QUIESCED: on_quiesced(g, ev); break;
    case XFER_ORDER: on_order(g, ev); break;
    case XFER_GRANTED:
        if ((r = order_of(g, ev->id)))
            r->granted = true;
        break;
    case XFER_ABORTED:
        if ((r = order_of(g, ev->id)) && !r->closed)
            close_order(g, r);
        break;
    case XFER_RELEASED: on_released(g, ev); break;
    case XFER_NONE: break;
    }
}

void handover_events(struct engine *g)
{
    struct xfer_event ev;
    while (g->xfer && xfer_poll(g->xfer, &ev))
        on_event(g, &ev);
}
