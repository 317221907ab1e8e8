#include "lib/kube/queue.h"

#include "lib/base/clock.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <uthash.h>
#include <utlist.h>

/* Retries wait at least so much of their back-off, whatever happens to the key meanwhile: what a
 * turn wrote before it failed may itself be what happens. */
#define WAKE_MAX_NS (1 * NS_PER_S)

struct item {
    UT_hash_handle hh;
    struct item *prev, *next; /* in the ready list */
    uint64_t due_ns;          /* 0: none */
    uint64_t not_before_ns;   /* of an add after a failure */
    uint64_t ready_ns;        /* since when it waits to be worked on */
    unsigned failures;
    bool ready, active, dirty;
    char key[];
};

struct queue {
    struct queue_config cfg;
    struct item *items, *ready;
    size_t n_ready, n_active;
    uint64_t waited_ns;
    double tokens;
    uint64_t tokens_ns;
    uv_timer_t timer;
    bool pumping, freed;
};

static struct item *item_of(struct queue *q, const char *key)
{
    struct item *i;
    HASH_FIND_STR(q->items, key, i);
    if (i)
        return i;
    i = xcalloc(1, sizeof *i + strlen(key) + 1);
    memcpy(i->key, key, strlen(key) + 1);
    HASH_ADD_STR(q->items, key, i);
    return i;
}

static void forget_idle(struct queue *q, struct item *i)
{
    if (i->ready || i->active || i->due_ns || i->failures)
        return;
    HASH_DEL(q->items, i);
    free(i);
}

static void make_ready(struct queue *q, struct item *i)
{
    if (i->active) {
        i->dirty = true;
        return;
    }
    if (i->ready)
        return;
    i->ready = true;
    i->ready_ns = clock_mono_ns();
    DL_APPEND(q->ready, i);
    q->n_ready++;
}

static void on_timer(uv_timer_t *t);

/* One timer for the earliest of all due times, and for what is ready: in `pause` ms. */
static void arm(struct queue *q, uint64_t pause)
{
    uint64_t now = clock_mono_ns(), due = q->n_ready ? now + pause * NS_PER_MS : 0;
    struct item *i, *tmp;
    HASH_ITER (hh, q->items, i, tmp) {
        if (i->due_ns && (!due || i->due_ns < due))
            due = i->due_ns;
    }
    if (!due || q->freed)
        uv_timer_stop(&q->timer);
    else
        uv_timer_start(&q->timer, on_timer, due > now ? (due - now + NS_PER_MS - 1) / NS_PER_MS : 0,
                       0);
}

static bool full(const struct queue *q)
{
    return q->n_active >= (q->cfg.max_active ? q->cfg.max_active : 8);
}

/* Begins with what is ready. The ms until it may begin with more, 0 when time is not what is waited
 * for. */
static uint64_t pump(struct queue *q)
{
    while (q->ready && !full(q) && !q->freed) {
        uint64_t ms = q->cfg.pause_ms ? q->cfg.pause_ms(q->cfg.ctx) : 0;
        if (ms)
            return ms;
        struct item *i = q->ready;
        DL_DELETE(q->ready, i);
        q->n_ready--;
        q->n_active++;
        i->ready = i->dirty = false;
        i->active = true;
        q->waited_ns = clock_mono_ns() - i->ready_ns;
        q->cfg.work(q, i->key, q->cfg.ctx);
    }
    return 0;
}

static void on_timer(uv_timer_t *t)
{
    struct queue *q = t->data;
    uint64_t now = clock_mono_ns();
    struct item *i, *tmp;
    HASH_ITER (hh, q->items, i, tmp) {
        if (!i->due_ns || i->due_ns > now)
            continue;
        i->due_ns = 0;
        make_ready(q, i);
    }
    uint64_t pause = pump(q);
    if (!full(q) || !q->n_ready)
        arm(q, pause);
}

int queue_new(const struct queue_config *c, struct queue **out, struct err *e)
{
    struct queue *q = xcalloc(1, sizeof *q);
    int rc = uv_timer_init(c->loop, &q->timer);
    if (rc) {
        free(q);
        return err_set(e, -rc, "can't make a timer: %s", uv_strerror(rc));
    }
    q->cfg = *c;
    q->cfg.retry_min_ms = c->retry_min_ms ? c->retry_min_ms : 5;
    q->cfg.retry_max_ms = c->retry_max_ms ? c->retry_max_ms : 1000000;
    q->cfg.retry_per_second = c->retry_per_second > 0 ? c->retry_per_second : 10;
    q->cfg.retry_burst = c->retry_burst > 0 ? c->retry_burst : 100;
    q->tokens = q->cfg.retry_burst;
    q->tokens_ns = clock_mono_ns();
    q->timer.data = q;
    *out = q;
    return 0;
}

static void on_closed(uv_handle_t *h)
{
    struct queue *q = h->data;
    struct item *i, *tmp;
    HASH_ITER (hh, q->items, i, tmp) {
        HASH_DEL(q->items, i);
        free(i);
    }
    free(q);
}

void queue_free(struct queue *q)
{
    if (!q || q->freed)
        return;
    q->freed = true;
    uv_timer_stop(&q->timer);
    uv_close((uv_handle_t *)&q->timer, on_closed);
}

/* Work is never started inside the caller: the timer turns it over in the next loop iteration. */
static void wake(struct queue *q)
{
    if (!q->freed)
        uv_timer_start(&q->timer, on_timer, 0, 0);
}

static void add_at(struct queue *q, struct item *i, uint64_t due_ns)
{
    if (!i->due_ns || due_ns < i->due_ns)
        i->due_ns = due_ns;
    if (!q->n_ready)
        arm(q, 0);
}

void queue_add(struct queue *q, const char *key)
{
    struct item *i = item_of(q, key);
    if (!i->active && i->failures && clock_mono_ns() < i->not_before_ns) {
        add_at(q, i, i->not_before_ns);
        return;
    }
    make_ready(q, i);
    wake(q);
}

void queue_add_after(struct queue *q, const char *key, uint64_t delay_ms)
{
    add_at(q, item_of(q, key), clock_mono_ns() + delay_ms * NS_PER_MS);
}

static struct item *finish(struct queue *q, const char *key)
{
    struct item *i;
    HASH_FIND_STR(q->items, key, i);
    ASSERT(i && i->active);
    i->active = false;
    q->n_active--;
    return i;
}

void queue_done(struct queue *q, const char *key)
{
    struct item *i = finish(q, key);
    i->failures = 0;
    if (i->dirty)
        make_ready(q, i);
    forget_idle(q, i);
    wake(q);
}

/* Seconds until the bucket has a token for this retry; the token is taken now. */
static double take_token(struct queue *q)
{
    uint64_t now = clock_mono_ns();
    q->tokens += (double)(now - q->tokens_ns) / 1e9 * q->cfg.retry_per_second;
    if (q->tokens > q->cfg.retry_burst)
        q->tokens = q->cfg.retry_burst;
    q->tokens_ns = now;
    q->tokens -= 1;
    return q->tokens >= 0 ? 0 : -q->tokens / q->cfg.retry_per_second;
}

void queue_retry(struct queue *q, const char *key)
{
    struct item *i = finish(q, key);
    unsigned shift = i->failures < 24 ? i->failures : 24;
    uint64_t ms = (uint64_t)q->cfg.retry_min_ms << shift;
    if (ms > q->cfg.retry_max_ms)
        ms = q->cfg.retry_max_ms;
    uint64_t bucket = (uint64_t)(take_token(q) * 1000);
    i->failures++;
    i->dirty = false;
    ms = ms > bucket ? ms : bucket;
    i->not_before_ns =
        clock_mono_ns() + (ms * NS_PER_MS < WAKE_MAX_NS ? ms * NS_PER_MS : WAKE_MAX_NS);
    queue_add_after(q, i->key, ms);
    wake(q);
}

size_t queue_depth(const struct queue *q)
{
    return q->n_ready;
}

size_t queue_active(const struct queue *q)
{
    return q->n_active;
}

size_t queue_retrying(const struct queue *q)
{
    size_t n = 0;
    struct item *i, *tmp;
    HASH_ITER (hh, q->items, i, tmp)
        n += i->failures != 0;
    return n;
}

uint64_t queue_waited_ns(const struct queue *q)
{
    return q->waited_ns;
}
