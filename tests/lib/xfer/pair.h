/* pair.h: small engines for the tests of lib/xfer: a decode side that orders, grants and checks
 * every byte, a prefill side that fills its blocks by a rule and pushes them layer by layer.
 * Content is a function of (order payload, block index, layer), so that a byte from another request
 * or another block is seen. */
#pragma once
#include "lib/base/clock.h"
#include "lib/base/rng.h"
#include "lib/xfer/xfer.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

#define PAIR_LAYERS 4u
#define PAIR_PIECE  4096u
#define PAIR_BLOCKS 64u
#define PAIR_SLOTS  64u

struct pair_order { /* payload of an order */
    uint64_t key;
    uint32_t n_blocks;
    uint32_t fail_at; /* P fails before this layer; UINT32_MAX: never */
};

struct pair_slot {
    uint64_t id, key;
    uint32_t n;
    uint32_t blocks[PAIR_BLOCKS];
    bool used, ended, done;
    enum xfer_reason reason;
    enum xfer_path path;
    uint64_t bytes, started_ns, ended_ns;
    struct pair_order order;
};

struct pair_side {
    struct xfer *x;
    struct xfer_pool pool;
    uint64_t incarnation;
    bool busy[PAIR_BLOCKS];
    struct pair_slot slot[PAIR_SLOTS];
    uint32_t ends, done, failed, quiesced, released, wrong_bytes;
    uint32_t delay_us; /* P: between layers */
    bool refuse;       /* D: reject every ask */
    bool mute;         /* P: never acts on orders */
    void (*tamper)(struct pair_side *p);
};

static inline uint64_t pair_word(uint64_t key, uint32_t index, uint32_t layer)
{
    return rng_at(key, index, layer);
}

static inline uint8_t *pair_at(const struct pair_side *s, uint32_t block, uint32_t layer)
{
    return s->pool.base + ((size_t)block * PAIR_LAYERS + layer) * PAIR_PIECE;
}

static inline int pair_start(struct pair_side *s, const char *host, enum xfer_policy policy,
                             const char *shm_dir, const char *secret, uint32_t lease_ms,
                             struct err *e)
{
    memset(s, 0, sizeof *s);
    int rc = xfer_pool_new(&s->pool, (size_t)PAIR_BLOCKS * PAIR_LAYERS * PAIR_PIECE, e);
    if (rc)
        return rc;
    s->incarnation = rng_secret_u64();
    struct xfer_cfg c = {.host = host,
                         .incarnation = s->incarnation,
                         .secret = secret,
                         .secret_len = strlen(secret),
                         .shm_dir = shm_dir,
                         .policy = policy,
                         .pool = s->pool,
                         .n_blocks = PAIR_BLOCKS,
                         .n_layers = PAIR_LAYERS,
                         .block_bytes = PAIR_LAYERS * PAIR_PIECE,
                         .piece_bytes = PAIR_PIECE,
                         .layout = 7,
                         .lease_ms = lease_ms};
    return xfer_new(&c, &s->x, e);
}

static inline void pair_stop(struct pair_side *s)
{
    xfer_free(s->x);
    xfer_pool_free(&s->pool);
    s->x = NULL;
}

static inline uint32_t pair_busy(const struct pair_side *s)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < PAIR_BLOCKS; i++)
        n += s->busy[i];
    return n;
}

static inline bool pair_take(struct pair_side *s, uint32_t *out, uint32_t n)
{
    uint32_t got = 0;
    for (uint32_t i = 0; i < PAIR_BLOCKS && got < n; i++)
        if (!s->busy[i])
            out[got++] = i;
    for (uint32_t i = 0; got == n && i < n; i++)
        s->busy[out[i]] = true;
    return got == n;
}

static inline void pair_give(struct pair_side *s, const uint32_t *blocks, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        s->busy[blocks[i]] = false;
}

static inline struct pair_slot *pair_find(struct pair_side *s, uint64_t id)
{
    for (uint32_t i = 0; i < PAIR_SLOTS; i++)
        if (s->slot[i].used && s->slot[i].id == id)
            return &s->slot[i];
    return NULL;
}

static inline struct pair_slot *pair_slot_new(struct pair_side *s, uint64_t id)
{
    for (uint32_t i = 0; i < PAIR_SLOTS; i++)
        if (!s->slot[i].used) {
            s->slot[i] = (struct pair_slot){.used = true, .id = id, .started_ns = clock_mono_ns()};
            return &s->slot[i];
        }
    abort();
}

/* Orders; false when the peer can't be named. */
static inline struct pair_slot *pair_order(struct pair_side *d, const char *peer,
                                           struct pair_order o)
{
    uint64_t id;
    struct err e;
    if (xfer_order(d->x, str_c(peer), &o, sizeof o, &id, &e))
        return NULL;
    struct pair_slot *s = pair_slot_new(d, id);
    s->key = o.key;
    s->order = o;
    return s;
}

static inline void pair_check(struct pair_side *d, const struct pair_slot *s)
{
    for (uint32_t i = 0; i < s->n; i++)
        for (uint32_t l = 0; l < PAIR_LAYERS; l++) {
            uint64_t want = pair_word(s->key, i, l);
            const uint8_t *p = pair_at(d, s->blocks[i], l);
            for (size_t k = 0; k < PAIR_PIECE; k += 8)
                if (memcmp(p + k, &want, 8)) {
                    d->wrong_bytes++;
                    return;
                }
        }
}

/* Ended slots stay for the test to look at, and are cleared by it (used = false). */
static inline void pair_on_d(struct pair_side *d, const struct xfer_event *e)
{
    struct pair_slot *s = pair_find(d, e->id);
    if (!s)
        abort();
    switch (e->kind) {
    case XFER_ASK:
        if (d->refuse || !pair_take(d, s->blocks, e->n_blocks)) {
            xfer_reject(d->x, e->id, "no blocks");
            break;
        }
        s->n = e->n_blocks;
        xfer_grant(d->x, e->id, s->blocks, s->n);
        break;
    case XFER_DONE:
        s->done = true;
        d->done++;
        s->bytes = e->bytes;
        s->path = e->path;
        pair_check(d, s);
        pair_give(d, s->blocks, s->n);
        break;
    case XFER_FAILED:
        d->failed++;
        s->reason = e->reason;
        break;
    case XFER_QUIESCED:
        d->quiesced++;
        pair_give(d, s->blocks, s->n);
        break;
    default: abort();
    }
    if (e->kind == XFER_DONE || e->kind == XFER_FAILED) {
        s->ended = true;
        s->ended_ns = clock_mono_ns();
        d->ends++;
    }
}

static inline void pair_push_all(struct pair_side *p, struct pair_slot *s)
{
    struct xfer_piece pc[PAIR_BLOCKS];
    for (uint32_t l = 0; l < PAIR_LAYERS; l++) {
        if (l == s->order.fail_at) {
            xfer_fail(p->x, s->id, "out of luck");
            return;
        }
        for (uint32_t i = 0; i < s->n; i++) {
            uint64_t w = pair_word(s->order.key, i, l);
            uint8_t *at = pair_at(p, s->blocks[i], l);
            for (size_t k = 0; k < PAIR_PIECE; k += 8)
                memcpy(at + k, &w, 8);
            pc[i] = (struct xfer_piece){s->blocks[i], i};
        }
        xfer_push(p->x, s->id, l, pc, s->n);
        if (p->delay_us)
            poll(NULL, 0, (int)(p->delay_us / 1000));
        if (p->tamper)
            p->tamper(p);
    }
    xfer_done(p->x, s->id, "first", 5);
}

static inline void pair_on_p(struct pair_side *p, const struct xfer_event *e)
{
    struct pair_slot *s = e->kind == XFER_ORDER ? pair_slot_new(p, e->id) : pair_find(p, e->id);
    if (!s)
        abort();
    switch (e->kind) {
    case XFER_ORDER:
        memcpy(&s->order, e->payload, sizeof s->order);
        if (!p->mute)
            xfer_ask(p->x, e->id, s->order.n_blocks);
        break;
    case XFER_GRANTED:
        if (!pair_take(p, s->blocks, e->n_blocks)) {
            xfer_fail(p->x, e->id, "no source blocks");
            break;
        }
        s->n = e->n_blocks;
        pair_push_all(p, s);
        break;
    case XFER_ABORTED: s->reason = e->reason; break;
    case XFER_RELEASED:
        pair_give(p, s->blocks, s->n);
        s->used = false;
        p->released++;
        break;
    default: abort();
    }
}

/* Runs the engines (either may be NULL) until `until` events of D's ended, or the time is over. */
static inline bool pair_run(struct pair_side *d, struct pair_side *p, uint32_t ends, uint32_t ms)
{
    uint64_t over = clock_mono_ns() + ms * NS_PER_MS;
    struct xfer_event e;
    while (clock_mono_ns() < over) {
        bool any = false;
        while (d && xfer_poll(d->x, &e)) {
            pair_on_d(d, &e);
            any = true;
        }
        while (p && xfer_poll(p->x, &e)) {
            pair_on_p(p, &e);
            any = true;
        }
        if (d && d->ends >= ends && d->quiesced == d->failed && (!p || !pair_busy(p)))
            return true;
        if (any)
            continue;
        struct pollfd f[2] = {{d ? xfer_fd(d->x) : -1, POLLIN, 0},
                              {p ? xfer_fd(p->x) : -1, POLLIN, 0}};
        poll(f, 2, 20);
    }
    return false;
}

static inline void pair_name(const struct pair_side *s, const char *host, char out[128])
{
    snprintf(out, 128, "%s:%u:%016llx", host, xfer_port(s->x), (unsigned long long)s->incarnation);
}
