/* The hand-over rules of DESIGN.md §4.5 under every fault, in virtual time: each message and piece
 * of a scenario is lost, late, very late, doubled, swapped, corrupted, followed by a cut, and each
 * side is killed there, with and without a successor; then thousands of random storms. A failure
 * prints the scenario, which replays it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "lib/base/clock.h"
#include "lib/base/rng.h"
#include "lib/xfer/fake.h"

#include <stdlib.h>

#define LEASE   (100 * NS_PER_MS)
#define BLOCKS  24u
#define LAYERS  3u
#define ORDERS  512u
#define WORKERS 64u
#define P_SLOT  100u
#ifdef SANITIZED /* every second step with each seed, all of them with two */
#define STEPS 2u
#else
#define STEPS 1u
#endif
#define ENGINE  (40 * NS_PER_MS)          /* the longest that an engine thinks */
#define BOUND   (12 * ENGINE + 6 * LEASE) /* within which every order ends */
#define HORIZON (BOUND + 40 * LEASE)

enum plot {
    PLAIN,
    P_FAILS,
    D_ABORTS,
    D_REJECTS,
    NOTHING_TO_MOVE,
    P_STINGY,
    P_SLOW,
    P_SLEEPS,
    PLOTS
};
enum doom { NO_DOOM, KILL_P, KILL_D, REPLACE_P, REPLACE_D, REPLACE_BOTH, DOOMS };

enum holder { FREE, HELD, OWNED };
struct cell {
    enum holder state;
    uint64_t owner; /* id at D, p_id at P */
    uint64_t word[LAYERS];
};

struct job { /* an order at D, or at P */
    bool used, ended, quiesced, done, granted;
    uint64_t id, born_ns, key;
    uint32_t want, n; /* blocks asked for, held */
    uint32_t layer;   /* P: next; D: tries left */
    uint32_t block[BLOCKS];
    enum plot plot;
};

struct worker {
    struct storm *s;
    struct fake_node *node;
    uint64_t incarnation;
    uint32_t slot;
    bool is_p;
    struct cell cell[BLOCKS];
    struct job job[ORDERS];
    uint32_t n_jobs;
    uint64_t next_id;
};

struct storm {
    struct fake *f;
    struct worker *w[WORKERS];
    uint32_t n_w, n_d, n_p; /* n_d, n_p: workers of each kind at the start */
    enum plot plot;
    enum doom doom;
    uint64_t doom_at;
    uint32_t doomed; /* of which slot */
    bool doom_done;
    uint32_t done, failed;
    const char *broken;
};

static void breach(struct storm *s, const char *what)
{
    if (!s->broken)
        s->broken = what;
}

static struct worker *live(struct storm *s, uint32_t slot)
{
    for (uint32_t i = 0; i < s->n_w; i++)
        if (s->w[i]->slot == slot && fake_alive(s->w[i]->node))
            return s->w[i];
    return NULL;
}

static struct worker *worker_new(struct storm *s, uint32_t slot)
{
    assert_true(s->n_w < WORKERS);
    struct worker *w = s->w[s->n_w++] = calloc(1, sizeof *w);
    w->s = s;
    w->slot = slot;
    w->is_p = slot >= P_SLOT;
    w->incarnation = 1000 + s->n_w;
    w->next_id = 2;
    w->node = fake_start(s->f, slot, w->incarnation, BLOCKS, LAYERS, w);
    return w;
}

static struct job *job_of(struct worker *w, uint64_t id)
{
    for (uint32_t i = 0; i < w->n_jobs; i++)
        if (w->job[i].id == id)
            return &w->job[i];
    return NULL;
}

static bool take(struct worker *w, struct job *j, uint32_t n)
{
    uint32_t got = 0;
    for (uint32_t i = 0; i < BLOCKS && got < n; i++)
        if (w->cell[i].state == FREE)
            j->block[got++] = i;
    if (got < n)
        return false;
    j->n = n;
    for (uint32_t i = 0; i < n; i++)
        w->cell[j->block[i]] = (struct cell){.state = HELD, .owner = j->id};
    return true;
}

static void give(struct worker *w, struct job *j)
{
    for (uint32_t i = 0; i < j->n; i++)
        w->cell[j->block[i]] = (struct cell){.state = FREE};
    j->n = 0;
}

static uint64_t think(struct storm *s)
{
    return rng_below(fake_rng(s->f), ENGINE);
}

/* ---- decode engine ---- */

static void d_abort(void *user, uint64_t id)
{
    struct worker *w = user;
    hand_d_abort(fake_d(w->node), id, "the client left", fake_now_ns(w->s->f));
}

static void d_order(void *user, uint64_t try_left)
{
    struct worker *w = user;
    struct storm *s = w->s;
    struct worker *p = live(s, P_SLOT + (uint32_t)rng_below(fake_rng(s->f), s->n_p));
    if (!p || w->n_jobs == ORDERS)
        return;
    struct job *j = &w->job[w->n_jobs++];
    *j =
        (struct job){.used = true, .id = w->next_id, .born_ns = fake_now_ns(s->f), .plot = s->plot};
    w->next_id += 2;
    j->key = j->id * 1000003 + w->incarnation;
    j->layer = (uint32_t)try_left;
    uint64_t payload[3] = {
        j->key, j->plot == NOTHING_TO_MOVE ? 0 : 1 + rng_below(fake_rng(s->f), 4), j->plot};
    struct hand_link *l = fake_link(s->f, w->node, p->slot, p->incarnation);
    hand_d_order(fake_d(w->node), l, j->id, payload, sizeof payload, fake_now_ns(s->f));
    if (j->plot == P_SLEEPS)
        fake_after(s->f, w->node, 2 * think(s), d_abort, j->id);
}

static void d_answer(void *user, uint64_t id)
{
    struct worker *w = user;
    struct job *j = job_of(w, id);
    uint64_t now = fake_now_ns(w->s->f);
    if (j->ended)
        return;
    if (j->plot == D_REJECTS || !take(w, j, j->want)) {
        hand_d_reject(fake_d(w->node), id, "full", now);
        return;
    }
    j->granted = true;
    hand_d_grant(fake_d(w->node), id, j->block, j->want, now);
    if (j->plot == D_ABORTS)
        fake_after(w->s->f, w->node, think(w->s) / 4, d_abort, id);
}

static void check_bytes(struct worker *w, const struct job *j)
{
    for (uint32_t i = 0; i < j->n; i++)
        for (uint32_t l = 0; l < LAYERS; l++)
            if (w->cell[j->block[i]].word[l] != rng_at(j->key, i, l))
                breach(w->s, "done with wrong bytes");
}

static void d_free_later(void *user, uint64_t id)
{
    struct worker *w = user;
    give(w, job_of(w, id));
}

static void d_ended(struct worker *w, struct job *j, bool done)
{
    if (j->ended)
        breach(w->s, "ended twice");
    j->ended = true;
    j->done = done;
    if (done) {
        w->s->done++;
        check_bytes(w, j);
        for (uint32_t i = 0; i < j->n; i++)
            w->cell[j->block[i]].state = OWNED;
        fake_after(w->s->f, w->node, think(w->s), d_free_later, j->id);
        return;
    }
    w->s->failed++;
    if (j->layer) /* try again, as a router would, perhaps on the successor */
        fake_after(w->s->f, w->node, NS_PER_MS, d_order, j->layer - 1);
}

static void on_d(struct worker *w, const struct xfer_event *e)
{
    struct job *j = job_of(w, e->id);
    if (!j || j->quiesced || (j->ended && e->kind != XFER_QUIESCED)) {
        breach(w->s, "an event for what is over");
        return;
    }
    switch (e->kind) {
    case XFER_ASK:
        j->want = e->n_blocks;
        fake_after(w->s->f, w->node, think(w->s), d_answer, j->id);
        break;
    case XFER_DONE: d_ended(w, j, true); break;
    case XFER_FAILED: d_ended(w, j, false); break;
    case XFER_QUIESCED:
        j->quiesced = true;
        give(w, j);
        break;
    default: breach(w->s, "P's event at D");
    }
}

/* ---- prefill engine ---- */

static void p_ask(void *user, uint64_t id)
{
    struct worker *w = user;
    struct job *j = job_of(w, id);
    uint64_t now = fake_now_ns(w->s->f);
    if (j->want)
        hand_p_ask(fake_p(w->node), id, j->want, now);
    else /* a full prefix hit need not ask */
        hand_p_done(fake_p(w->node), id, "tok", 3, now);
}

static void p_layer(void *user, uint64_t id)
{
    struct worker *w = user;
    struct job *j = job_of(w, id);
    struct hand_p *p = fake_p(w->node);
    uint64_t now = fake_now_ns(w->s->f);
    if (j->ended)
        return;
    if (j->layer == LAYERS) {
        hand_p_done(p, id, "tok", 3, now);
        return;
    }
    if (j->plot == P_FAILS && j->layer == LAYERS / 2) {
        hand_p_fail(p, id, XFER_PEER_FAILED, "bad luck", now);
        return;
    }
    struct xfer_piece pc[BLOCKS];
    for (uint32_t i = 0; i < j->n; i++) {
        w->cell[j->block[i]].word[j->layer] = rng_at(j->key, i, j->layer);
        pc[i] = (struct xfer_piece){j->block[i], i};
    }
    hand_p_push(p, id, j->layer++, pc, j->plot == P_STINGY ? j->n - 1 : j->n, now);
    fake_after(w->s->f, w->node, j->plot == P_SLOW ? 2 * think(w->s) : think(w->s) / 8, p_layer,
               id);
}

static void on_p_order(struct worker *w, const struct xfer_event *e)
{
    uint64_t payload[3];
    assert_int_equal(e->payload_len, sizeof payload);
    memcpy(payload, e->payload, sizeof payload);
    if (w->n_jobs == ORDERS) {
        breach(w->s, "too many orders");
        return;
    }
    struct job *j = &w->job[w->n_jobs++];
    *j = (struct job){.used = true,
                      .id = e->id,
                      .key = payload[0],
                      .want = (uint32_t)payload[1],
                      .plot = (enum plot)payload[2]};
    if (j->plot != P_SLEEPS)
        fake_after(w->s->f, w->node, think(w->s), p_ask, j->id);
}

static void on_p(struct worker *w, const struct xfer_event *e)
{
    struct job *j = job_of(w, e->id);
    if (e->kind == XFER_ORDER ? j != NULL : !j || j->quiesced) {
        breach(w->s, "an event for what was released");
        return;
    }
    switch (e->kind) {
    case XFER_ORDER: on_p_order(w, e); break;
    case XFER_GRANTED:
        if (take(w, j, e->n_blocks))
            fake_after(w->s->f, w->node, think(w->s) / 8, p_layer, j->id);
        else
            hand_p_fail(fake_p(w->node), j->id, XFER_PEER_FAILED, "no source",
                        fake_now_ns(w->s->f));
        break;
    case XFER_ABORTED: j->ended = true; break;
    case XFER_RELEASED:
        j->ended = j->quiesced = true;
        give(w, j);
        break;
    default: breach(w->s, "D's event at P");
    }
}

/* ---- memory ---- */

static void hook_event(void *user, const struct xfer_event *e)
{
    struct worker *w = user;
    if (w->is_p)
        on_p(w, e);
    else
        on_d(w, e);
}

static uint64_t hook_read(void *user, const struct hand_push *p)
{
    struct worker *w = user;
    const struct cell *c = &w->cell[p->src_block];
    if (c->state != HELD || c->owner != p->p_id)
        breach(w->s, "a source block was freed under its push");
    return c->word[p->layer];
}

static void hook_write(void *user, uint64_t id, uint32_t block, uint32_t layer, uint64_t word)
{
    struct worker *w = user;
    struct cell *c = &w->cell[block];
    if (c->state != HELD || c->owner != id)
        breach(w->s, "a write landed in a block of somebody else");
    c->word[layer] = word;
}

static void replace(struct storm *s, uint32_t slot, bool again)
{
    struct worker *w = live(s, slot);
    if (w)
        fake_kill(s->f, w->node);
    if (!w || !again)
        return;
    w = worker_new(s, slot);
    if (!w->is_p)
        fake_after(s->f, w->node, NS_PER_MS, d_order, 0);
}

static void hook_sent(void *arg, uint64_t n)
{
    struct storm *s = arg;
    if (n != s->doom_at || s->doom_done)
        return;
    s->doom_done = true;
    enum doom k = s->doom;
    uint32_t d = s->doomed % s->n_d, p = P_SLOT + s->doomed % s->n_p;
    if (k == KILL_P || k == REPLACE_P || k == REPLACE_BOTH)
        replace(s, p, k != KILL_P);
    if (k == KILL_D || k == REPLACE_D || k == REPLACE_BOTH)
        replace(s, d, k != KILL_D);
}

/* ---- one storm ---- */

static void check_order(struct storm *s, const struct job *j)
{
    if (!j->ended)
        breach(s, "an order never ended");
    else if (!j->done && !j->quiesced)
        breach(s, "a quarantine never ended");
}

static void check_end(struct storm *s)
{
    for (uint32_t i = 0; i < s->n_w; i++) {
        struct worker *w = s->w[i];
        if (!fake_alive(w->node))
            continue;
        for (uint32_t b = 0; b < BLOCKS; b++)
            if (w->cell[b].state != FREE)
                breach(s, w->is_p ? "a source block leaked" : "a block leaked");
        for (uint32_t k = 0; !w->is_p && k < w->n_jobs; k++)
            check_order(s, &w->job[k]);
        if (hand_d_transfers(fake_d(w->node)) || hand_p_transfers(fake_p(w->node)))
            breach(s, "a transfer is remembered for ever");
        if (hand_d_quarantined(fake_d(w->node)))
            breach(s, "quarantine counts blocks that are free");
    }
}

/* Every order that is older than the bound must have ended. */
static void check_bound(struct storm *s)
{
    for (uint32_t i = 0; i < s->n_w; i++)
        for (uint32_t k = 0; !s->w[i]->is_p && k < s->w[i]->n_jobs; k++) {
            const struct job *j = &s->w[i]->job[k];
            if (fake_alive(s->w[i]->node) && !j->ended && j->born_ns + BOUND <= fake_now_ns(s->f))
                breach(s, "an order took longer than the bound");
        }
}

struct setup {
    struct fake_cfg cfg;
    enum plot plot;
    enum doom doom;
    uint64_t doom_at;
    uint32_t doomed, n_d, n_p, orders, retries;
};

/* Runs it; returns what was broken, or NULL. */
static const char *storm(const struct setup *u, uint64_t *sends, uint32_t *done, uint32_t *failed)
{
    struct storm s = {.plot = u->plot,
                      .doom = u->doom,
                      .doom_at = u->doom_at,
                      .doomed = u->doomed,
                      .n_d = u->n_d,
                      .n_p = u->n_p};
    struct fake_hooks h = {hook_event, hook_read, hook_write, hook_sent, &s};
    s.f = fake_new(&u->cfg, &h);
    for (uint32_t i = 0; i < u->n_d; i++)
        worker_new(&s, i);
    for (uint32_t i = 0; i < u->n_p; i++)
        worker_new(&s, P_SLOT + i);
    uint64_t t0 = fake_now_ns(s.f);
    for (uint32_t i = 0; i < u->n_d; i++)
        for (uint32_t k = 0; k < u->orders; k++)
            fake_after(s.f, s.w[i]->node, k * NS_PER_MS, d_order, u->retries);
    fake_run(s.f, t0 + (1 + u->retries) * BOUND);
    *sends = fake_sends(s.f);
    check_bound(&s);
    fake_run(s.f, t0 + (1 + u->retries) * BOUND + HORIZON);
    check_end(&s);
    *done = s.done;
    *failed = s.failed;
    for (uint32_t i = 0; i < s.n_w; i++)
        free(s.w[i]);
    fake_free(s.f);
    return s.broken;
}

static void must_hold(const struct setup *u, const char *broken)
{
    if (!broken)
        return;
    print_error(
        "%s: seed=%llu path=%s plot=%d fault=%d at=%llu doom=%d at=%llu of %u, %u x %u workers\n",
        broken, (unsigned long long)u->cfg.seed, xfer_path_name(u->cfg.path), (int)u->plot,
        (int)u->cfg.fault, (unsigned long long)u->cfg.at, (int)u->doom,
        (unsigned long long)u->doom_at, u->doomed, u->n_d, u->n_p);
    fail();
}

static struct setup calm(enum xfer_path path, enum plot plot, uint64_t seed)
{
    return (struct setup){.cfg = {.seed = seed, .lease_ns = LEASE, .path = path},
                          .plot = plot,
                          .n_d = 1,
                          .n_p = 1,
                          .orders = 2};
}

static void without_faults_orders_end_as_the_plot_says(void **state)
{
    (void)state;
    for (enum xfer_path path = XFER_PATH_SHM; path <= XFER_PATH_TCP; path++)
        for (enum plot plot = PLAIN; plot < PLOTS; plot++) {
            struct setup u = calm(path, plot, 1);
            uint64_t sends;
            uint32_t done, failed;
            must_hold(&u, storm(&u, &sends, &done, &failed));
            bool good = plot == PLAIN || plot == NOTHING_TO_MOVE || plot == P_SLOW;
            assert_int_equal(done + failed, 2);
            if (plot != D_ABORTS) /* a race by nature */
                assert_int_equal(done, good ? 2 : 0);
        }
}

/* How many messages and pieces go out while the orders are alive. */
static uint64_t busy_sends(enum xfer_path path, enum plot plot, uint64_t seed)
{
    struct setup u = calm(path, plot, seed);
    uint64_t sends;
    uint32_t done, failed;
    must_hold(&u, storm(&u, &sends, &done, &failed));
    return sends < 80 ? sends : 80;
}

static void every_message_lost_late_doubled_swapped_or_corrupt(void **state)
{
    (void)state;
    uint64_t sends, runs = 0;
    uint32_t done, failed;
    for (enum xfer_path path = XFER_PATH_SHM; path <= XFER_PATH_TCP; path++)
        for (enum plot plot = PLAIN; plot < PLOTS; plot++)
            for (uint64_t seed = 1; seed <= 2; seed++) {
                uint64_t n = busy_sends(path, plot, seed);
                for (uint64_t at = 1 + seed % STEPS; at <= n; at += STEPS)
                    for (enum fake_fault k = FAKE_LOSE; k < FAKE_FAULTS; k++, runs++) {
                        struct setup u = calm(path, plot, seed);
                        u.cfg.at = at;
                        u.cfg.fault = k;
                        u.cfg.deaf_p = seed == 2;
                        must_hold(&u, storm(&u, &sends, &done, &failed));
                        assert_int_equal(done + failed, 2);
                    }
            }
    print_message("%llu storms\n", (unsigned long long)runs);
}

static void either_side_killed_at_every_step(void **state)
{
    (void)state;
    uint64_t sends, runs = 0;
    uint32_t done, failed;
    for (enum xfer_path path = XFER_PATH_SHM; path <= XFER_PATH_TCP; path++)
        for (enum plot plot = PLAIN; plot < PLOTS; plot++)
            for (uint64_t seed = 1; seed <= 4; seed++) {
                uint64_t n = busy_sends(path, plot, seed);
                for (uint64_t at = 1 + seed % STEPS; at <= n; at += STEPS)
                    for (enum doom k = KILL_P; k < DOOMS; k++, runs++) {
                        struct setup u = calm(path, plot, seed);
                        u.doom = k;
                        u.doom_at = at;
                        u.retries = k == REPLACE_P;
                        u.cfg.deaf_p = seed > 2;
                        must_hold(&u, storm(&u, &sends, &done, &failed));
                    }
            }
    print_message("%llu storms\n", (unsigned long long)runs);
}

static struct setup wild(uint64_t seed)
{
    struct rng r = {seed};
    struct setup u = calm(XFER_PATH_SHM + (enum xfer_path)rng_below(&r, 2),
                          (enum plot)rng_below(&r, PLOTS), seed);
    for (int k = FAKE_LOSE; k < FAKE_FAULTS; k++)
        u.cfg.rate[k] = rng_below(&r, 3) ? 0 : rng_unit(&r) * (k == FAKE_CUT ? 0.05 : 0.15);
    u.cfg.deaf_p = rng_below(&r, 2);
    u.doom = (enum doom)rng_below(&r, DOOMS);
    u.doom_at = 1 + rng_below(&r, 150);
    u.doomed = (uint32_t)rng_below(&r, 2);
    u.n_d = 1 + (uint32_t)rng_below(&r, 2);
    u.n_p = 1 + (uint32_t)rng_below(&r, 2);
    u.orders = 1 + (uint32_t)rng_below(&r, 6);
    u.retries = (uint32_t)rng_below(&r, 3);
    return u;
}

static void random_storms_leave_nothing_behind(void **state)
{
    (void)state;
    const char *env = getenv("STORM_SEED"), *count = getenv("STORMS");
    uint64_t first = env ? strtoull(env, NULL, 10) : 1,
             n = count ? strtoull(count, NULL, 10) : 1500 / (STEPS * STEPS), sends;
    uint32_t done, failed, all_done = 0, all_failed = 0;
    for (uint64_t seed = first; seed < first + n; seed++) {
        struct setup u = wild(seed);
        must_hold(&u, storm(&u, &sends, &done, &failed));
        all_done += done;
        all_failed += failed;
    }
    print_message("seeds %llu..%llu: %u done, %u failed\n", (unsigned long long)first,
                  (unsigned long long)(first + n - 1), all_done, all_failed);
    assert_true(n < 100 ||
                (all_done > n / 10 && all_failed > n / 10)); /* both ends are really reached */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_faults_orders_end_as_the_plot_says),
        cmocka_unit_test(every_message_lost_late_doubled_swapped_or_corrupt),
        cmocka_unit_test(either_side_killed_at_every_step),
        cmocka_unit_test(random_storms_leave_nothing_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
