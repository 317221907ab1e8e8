/* Virtual time: one queue of events for all processes, libuv's timers and checks on it, the clocks
 * and the random numbers. Definitions here take precedence over libuv's own; the clocks and
 * rng_secret are wrapped by the linker. */
#include "sim/sim.h"

#include "lib/base/buf.h"

#include <stdlib.h>
#include <string.h>

struct entry {
    uint64_t due, seq;
    void (*fn)(void *arg);
    void *arg;
};

static struct {
    struct entry *v;
    size_t n, cap;
    uint64_t now, seq;
    bool stop;
    struct rng rng;
    uv_check_t *checks[8];
    unsigned n_checks;
} L;

static bool before(const struct entry *a, const struct entry *b)
{
    return a->due != b->due ? a->due < b->due : a->seq < b->seq;
}

void sim_at(uint64_t delay_ns, void (*fn)(void *arg), void *arg)
{
    if (L.n == L.cap) {
        L.cap = L.cap ? L.cap * 2 : 1024;
        L.v = xrealloc(L.v, L.cap * sizeof *L.v);
    }
    struct entry e = {L.now + delay_ns, L.seq++, fn, arg};
    size_t i = L.n++;
    for (; i && before(&e, &L.v[(i - 1) / 2]); i = (i - 1) / 2)
        L.v[i] = L.v[(i - 1) / 2];
    L.v[i] = e;
}

static struct entry pop(void)
{
    struct entry top = L.v[0], last = L.v[--L.n];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < L.n; i = child) {
        if (child + 1 < L.n && before(&L.v[child + 1], &L.v[child]))
            child++;
        if (!before(&L.v[child], &last))
            break;
        L.v[i] = L.v[child];
    }
    L.v[i] = last;
    return top;
}

uint64_t sim_now(void)
{
    return L.now;
}

void sim_stop(void)
{
    L.stop = true;
}

void sim_checks(void)
{
    for (unsigned i = 0; i < L.n_checks; i++) {
        uv_check_t *c = L.checks[i];
        ((uv_check_cb)c->u.reserved[1])(c);
    }
}

bool sim_run(uint64_t until_ns)
{
    L.stop = false;
    while (L.n && L.v[0].due <= until_ns && !L.stop) {
        struct entry e = pop();
        L.now = e.due;
        e.fn(e.arg);
        sim_checks();
    }
    if (L.now < until_ns && !L.stop)
        L.now = until_ns;
    return !L.stop;
}

void sim_seed(uint64_t seed)
{
    L.rng = (struct rng){rng_at(seed, 1, 0)};
}

/* ---- processes ---- */

void proc_init(struct proc *p, const char *name)
{
    memset(p, 0, sizeof *p);
    p->name = name;
    p->alive = true;
    p->loop.data = p;
}

void proc_kill(struct proc *p)
{
    p->alive = false;
    net_drop(p, false);
}

/* ---- libuv ---- */

/* A timer's turn in the queue; the timer forgets it when it is stopped. */
struct turn {
    uv_timer_t *timer;
};

static bool dead(const uv_handle_t *h)
{
    const struct proc *p = h->loop->data;
    return p && !p->alive;
}

static void fire(void *arg)
{
    struct turn *turn = arg;
    uv_timer_t *t = turn->timer;
    free(turn);
    if (!t || dead((uv_handle_t *)t))
        return;
    t->u.reserved[0] = NULL;
    if (t->repeat)
        uv_timer_start(t, t->timer_cb, t->repeat, t->repeat);
    t->timer_cb(t);
}

static void init(uv_loop_t *loop, void *handle, uv_handle_type type)
{
    uv_handle_t *h = handle;
    void *data = h->data;
    memset(h, 0, sizeof *h);
    h->data = data;
    h->loop = loop;
    h->type = type;
}

int uv_timer_init(uv_loop_t *loop, uv_timer_t *t)
{
    init(loop, t, UV_TIMER);
    return 0;
}

int uv_timer_stop(uv_timer_t *t)
{
    struct turn *turn = t->u.reserved[0];
    if (turn)
        turn->timer = NULL;
    t->u.reserved[0] = NULL;
    return 0;
}

int uv_timer_start(uv_timer_t *t, uv_timer_cb cb, uint64_t timeout, uint64_t repeat)
{
    uv_timer_stop(t);
    struct turn *turn = xcalloc(1, sizeof *turn);
    turn->timer = t;
    t->u.reserved[0] = turn;
    t->timer_cb = cb;
    t->repeat = repeat;
    sim_at(timeout * NS_PER_MS, fire, turn);
    return 0;
}

int uv_idle_init(uv_loop_t *loop, uv_idle_t *h)
{
    init(loop, h, UV_IDLE);
    return 0;
}

int uv_idle_start(uv_idle_t *h, uv_idle_cb cb)
{
    (void)cb;
    h->u.reserved[0] = h;
    return 0;
}

int uv_idle_stop(uv_idle_t *h)
{
    h->u.reserved[0] = NULL;
    return 0;
}

int uv_check_init(uv_loop_t *loop, uv_check_t *h)
{
    init(loop, h, UV_CHECK);
    return 0;
}

int uv_check_start(uv_check_t *h, uv_check_cb cb)
{
    ASSERT(L.n_checks < sizeof L.checks / sizeof *L.checks);
    h->u.reserved[0] = h;
    h->u.reserved[1] = (void *)cb;
    L.checks[L.n_checks++] = h;
    return 0;
}

int uv_is_active(const uv_handle_t *h)
{
    return h->u.reserved[0] != NULL;
}

void uv_unref(uv_handle_t *h)
{
    (void)h;
}

struct closing {
    uv_handle_t *h;
    uv_close_cb cb;
};

static void closed(void *arg)
{
    struct closing *c = arg;
    c->cb(c->h);
    free(c);
}

void uv_close(uv_handle_t *h, uv_close_cb cb)
{
    if (h->type == UV_TIMER)
        uv_timer_stop((uv_timer_t *)h);
    if (!cb)
        return;
    struct closing *c = xcalloc(1, sizeof *c);
    *c = (struct closing){h, cb};
    sim_at(0, closed, c);
}

void uv_stop(uv_loop_t *loop)
{
    struct proc *p = loop->data;
    if (p)
        p->stopped = true;
}

int uv_loop_alive(const uv_loop_t *loop)
{
    (void)loop;
    return 0;
}

int uv_run(uv_loop_t *loop, uv_run_mode mode)
{
    (void)loop;
    (void)mode;
    return 0;
}

/* ---- clocks and random numbers ---- */

uint64_t __wrap_clock_mono_ns(void);
uint64_t __wrap_clock_wall_ns(void);
void __wrap_rng_secret(void *out, size_t n);
uint64_t __wrap_rng_secret_u64(void);

uint64_t __wrap_clock_mono_ns(void)
{
    return L.now + 1000 * NS_PER_S; /* a machine that has been up for a while */
}

uint64_t __wrap_clock_wall_ns(void)
{
    return SIM_EPOCH_NS + L.now;
}

void __wrap_rng_secret(void *out, size_t n)
{
    uint8_t *p = out;
    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t)(rng_next(&L.rng) >> 32);
}

uint64_t __wrap_rng_secret_u64(void)
{
    return rng_next(&L.rng) | 1;
}
