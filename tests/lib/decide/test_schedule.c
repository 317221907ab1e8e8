/* The scheduler's rules, one by one, and its guarantees over random queues and whole simulated
 * lives. */
#include "lib/base/rng.h"
#include "lib/decide/schedule.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define MAX   24
#define RANKS 3
static struct schedule_pick picks[2 * MAX], expired[2 * MAX];
static uint32_t preempted[MAX];
static struct schedule_step step = {.picks = picks, .preempted = preempted, .expired = expired};
static const struct schedule_limits lim = {64, 8, 8, 16, 1};

static void run(const struct schedule_limits *l, const struct schedule_seq *r, uint32_t nr,
                const struct schedule_seq *w, uint32_t nw, uint32_t free_blocks)
{
    struct schedule_queue q = {r, nr, w, nw};
    struct schedule_kv kv = {{free_blocks}};
    schedule(l, &q, &kv, 1000, &step);
}

static void decodes_come_before_prompts(void **state)
{
    (void)state;
    struct schedule_seq r[] = {{.tokens = 200, .computed = 10, .blocks = 1},
                               {.tokens = 33, .computed = 32, .blocks = 2},
                               {.tokens = 40, .computed = 39, .blocks = 3}};
    run(&lim, r, 3, NULL, 0, 100);
    assert_int_equal(step.n_picks, 3);
    assert_int_equal(picks[0].index, 1);
    assert_int_equal(picks[1].index, 2);
    assert_int_equal(picks[2].index, 0);
    assert_int_equal(picks[2].tokens, 62);
    assert_int_equal(step.rows, 64);
    assert_int_equal(step.logits, 2);
}

static void the_youngest_is_preempted_and_nobody_is_admitted_then(void **state)
{
    (void)state;
    struct schedule_seq r[] = {{.tokens = 33, .computed = 32, .blocks = 2, .idle_blocks = 2},
                               {.tokens = 21, .computed = 20, .blocks = 2, .idle_blocks = 2},
                               {.tokens = 21, .computed = 20, .blocks = 2, .idle_blocks = 2}};
    struct schedule_seq w[] = {{.tokens = 5}};
    run(&lim, r, 3, w, 1, 0);
    assert_int_equal(step.n_preempted, 1);
    assert_int_equal(preempted[0], 2);
    assert_int_equal(step.n_picks, 2);
}

static void a_pinned_sequence_is_never_preempted(void **state)
{
    (void)state;
    struct schedule_seq r[] = {
        {.tokens = 33, .computed = 32, .blocks = 2, .idle_blocks = 2},
        {.tokens = 90, .computed = 20, .blocks = 6, .idle_blocks = 6, .pinned = true}};
    run(&lim, r, 2, NULL, 0, 0);
    assert_int_equal(step.n_preempted, 0);
    assert_int_equal(step.n_picks, 1);
    assert_int_equal(picks[0].index, 1);
}

static void a_new_prompt_waits_for_room_unless_it_is_alone(void **state)
{
    (void)state;
    struct schedule_seq r[] = {{.tokens = 33, .computed = 32, .blocks = 3, .idle_blocks = 3}};
    struct schedule_seq w[] = {{.tokens = 160}};
    run(&lim, r, 1, w, 1, 10);
    assert_int_equal(step.n_picks, 1);
    run(&lim, NULL, 0, w, 1, 2);
    assert_int_equal(step.n_picks, 1);
    assert_true(picks[0].admitted);
    assert_int_equal(picks[0].tokens, 32);
    w[0].pinned = true;
    run(&lim, NULL, 0, w, 1, 2);
    assert_int_equal(step.n_picks, 0);
}

static void prompt_logprobs_are_bounded_by_the_rows_of_logits(void **state)
{
    (void)state;
    struct schedule_seq w[] = {{.tokens = 100, .logits_everywhere = true}, {.tokens = 3}};
    run(&lim, NULL, 0, w, 2, 100);
    assert_int_equal(picks[0].tokens, 8);
    assert_int_equal(step.logits, 8);
    assert_int_equal(step.n_picks, 2);
    assert_int_equal(picks[1].tokens, 2); /* its last row would need logits */
}

static void what_is_past_its_deadline_is_reported_and_not_run(void **state)
{
    (void)state;
    struct schedule_seq r[] = {{.tokens = 33, .computed = 32, .blocks = 3, .deadline_ns = 1000}};
    struct schedule_seq w[] = {{.tokens = 3, .deadline_ns = 999},
                               {.tokens = 3, .deadline_ns = 1001}};
    run(&lim, r, 1, w, 2, 10);
    assert_int_equal(step.n_expired, 2);
    assert_false(expired[0].admitted);
    assert_true(expired[1].admitted);
    assert_int_equal(step.n_picks, 1);
    assert_int_equal(picks[0].index, 1);
}

/* Rows of a running (or, `admitted`, a waiting) one in the step. */
static uint32_t rows_of(uint32_t index, bool admitted)
{
    for (uint32_t i = 0; i < step.n_picks; i++)
        if (picks[i].index == index && picks[i].admitted == admitted)
            return picks[i].tokens;
    return 0;
}

static void short_prompts_do_not_wait_for_a_long_one(void **state)
{
    (void)state;
    struct schedule_seq r[] = {{.tokens = 1000, .computed = 100, .blocks = 7},
                               {.tokens = 200, .computed = 150, .blocks = 10},
                               {.tokens = 300, .computed = 290, .blocks = 19}};
    struct schedule_seq w[] = {{.tokens = 40}, {.tokens = 8}};
    run(&lim, r, 1, w, 2, 200); /* half of the rows are theirs, in their order */
    assert_int_equal(rows_of(0, false), 32);
    assert_int_equal(rows_of(0, true), 32);
    assert_int_equal(rows_of(1, true), 0);
    run(&lim, r, 1, w + 1, 1, 200); /* what they don't need is the long one's */
    assert_int_equal(rows_of(0, false), 56);
    assert_int_equal(rows_of(0, true), 8);
    run(&lim, r, 3, w + 1, 1, 200); /* begun ones first, of these the shortest */
    assert_int_equal(rows_of(2, false), 10);
    assert_int_equal(rows_of(1, false), 22);
    assert_int_equal(rows_of(0, false), 32);
    assert_int_equal(rows_of(0, true), 0);
    r[0].computed = 950; /* it ends in this step: they need not pass it */
    r[0].blocks = 60;
    run(&lim, r, 1, w, 2, 200);
    assert_int_equal(rows_of(0, false), 50);
    assert_int_equal(rows_of(0, true), 14);
}

/* What they share is computed once, and the first is not slowed down. */
static void of_prompts_of_about_one_length_the_oldest_goes_first(void **state)
{
    (void)state;
    struct schedule_seq r[] = {{.tokens = 1000, .computed = 100, .blocks = 7},
                               {.tokens = 1000, .computed = 499, .blocks = 32}};
    struct schedule_seq w[] = {{.tokens = 451}};
    run(&lim, r, 2, w, 1, 400);
    assert_int_equal(step.n_picks, 1);
    assert_int_equal(rows_of(0, false), 64);
    w[0].tokens = 450;
    run(&lim, r, 2, w, 1, 400);
    assert_int_equal(rows_of(0, true), 32);
}

static void a_short_prompt_takes_no_blocks_and_no_place_of_those_ahead(void **state)
{
    (void)state;
    struct schedule_limits l = lim;
    struct schedule_seq r[] = {{.tokens = 1000, .computed = 100, .blocks = 7}};
    struct schedule_seq w[] = {{.tokens = 800}, {.tokens = 30}};
    uint32_t all = 56 + 50 + 2 + 1; /* of each, and one that is left for the running one */
    run(&l, r, 1, w, 2, all);
    assert_int_equal(rows_of(1, true), 30);
    assert_int_equal(rows_of(0, true), 0);
    run(&l, r, 1, w, 2, all - 1);
    assert_int_equal(rows_of(1, true), 0);
    assert_int_equal(rows_of(0, false), 64); /* nothing is kept for who can't come */
    l.max_running = 2;
    run(&l, r, 1, w, 2, all);
    assert_int_equal(rows_of(1, true), 0);
}

static void a_long_prompt_gets_half_of_the_rows_whoever_comes(void **state)
{
    (void)state;
    struct schedule_seq r[] = {{.tokens = 1000, .computed = 10, .blocks = 1}};
    struct schedule_seq w[8];
    int steps = 0;
    for (int i = 0; i < 8; i++)
        w[i] = (struct schedule_seq){.tokens = 20};
    for (; r[0].computed < 936; steps++) { /* new ones in every step */
        run(&lim, r, 1, w, 8, 1000);
        uint32_t n = rows_of(0, false);
        assert_true(n >= 32);
        assert_int_equal(step.rows, 64);
        r[0].computed += n;
        r[0].blocks = (r[0].computed + 15) / 16;
    }
    assert_true(steps <= 30);
}

static bool is_gone(uint32_t index, bool admitted)
{
    for (uint32_t i = 0; i < step.n_expired; i++)
        if (expired[i].index == index && expired[i].admitted == admitted)
            return true;
    for (uint32_t i = 0; !admitted && i < step.n_preempted; i++)
        if (preempted[i] == index)
            return true;
    return false;
}

static void check_step(const struct schedule_limits *l, const struct schedule_queue *q,
                       const struct schedule_kv *kv)
{
    uint32_t rows = 0, logits = 0, all = 0, taken[RANKS] = {0}, freed[RANKS] = {0};
    bool seen[2][MAX] = {{0}};
    for (uint32_t i = 0; i < step.n_preempted; i++) {
        assert_false(q->running[preempted[i]].pinned);
        assert_true(i == 0 || preempted[i] < preempted[i - 1]);
        freed[q->running[preempted[i]].rank] += q->running[preempted[i]].idle_blocks;
    }
    for (uint32_t i = 0; i < step.n_picks; i++) {
        struct schedule_pick p = picks[i];
        const struct schedule_seq *s = p.admitted ? &q->waiting[p.index] : &q->running[p.index];
        assert_false(seen[p.admitted][p.index]);
        seen[p.admitted][p.index] = true;
        assert_false(is_gone(p.index, p.admitted));
        assert_false(s->held);
        uint32_t left = s->tokens - s->computed;
        bool drafts = p.tokens > left;
        assert_true(p.tokens > 0 && p.tokens <= left + (left == 1 ? s->drafts : 0));
        assert_false(drafts && p.admitted);
        assert_false(p.admitted && step.n_preempted);
        rows += p.tokens;
        logits += s->logits_everywhere || drafts ? p.tokens : p.tokens == left;
        uint32_t upto = p.admitted && s->pinned ? s->tokens : s->computed + p.tokens;
        uint32_t need = (upto + l->block_tokens - 1) / l->block_tokens;
        taken[s->rank] +=
            (need > s->blocks ? need - s->blocks : 0) + (p.admitted ? s->idle_blocks : 0);
    }
    assert_int_equal(rows, step.rows);
    assert_int_equal(logits, step.logits);
    assert_true(rows <= l->step_tokens && logits <= l->logit_rows);
    for (uint32_t r = 0; r < RANKS; r++) {
        assert_true(taken[r] <= kv->free_blocks[r] + freed[r]);
        all += taken[r];
    }
    assert_int_equal(all, step.blocks_taken);
}

static void random_queues_keep_the_guarantees(void **state)
{
    (void)state;
    struct rng g = {20261130};
    printf("seed %llu\n", (unsigned long long)g.state);
    for (int round = 0; round < 20000; round++) {
        struct schedule_limits l = {
            1 + (uint32_t)rng_below(&g, 100), 1 + (uint32_t)rng_below(&g, 12),
            1 + (uint32_t)rng_below(&g, 12), 16, (uint32_t)rng_below(&g, 3)};
        struct schedule_seq r[MAX] = {{0}}, w[MAX] = {{0}};
        uint32_t nr = (uint32_t)rng_below(&g, 12), nw = (uint32_t)rng_below(&g, 12);
        for (uint32_t i = 0; i < nr + nw; i++) {
            struct schedule_seq *s = i < nr ? &r[i] : &w[i - nr];
            s->tokens = 1 + (uint32_t)rng_below(&g, 200);
            s->computed = (uint32_t)rng_below(&g, s->tokens);
            if (i < nr && rng_below(&g, 2))
                s->computed = s->tokens - 1;
            if (i >= nr)
                s->computed -= s->computed % 16;
            s->blocks = (s->computed + 15) / 16;
            s->idle_blocks = s->blocks ? (uint32_t)rng_below(&g, s->blocks + 1) : 0;
            s->rank = (uint32_t)rng_below(&g, RANKS);
            s->pinned = rng_below(&g, 5) == 0;
            if (s->pinned && i < nr)
                s->blocks = (s->tokens + 15) / 16;
            s->held = rng_below(&g, 8) == 0;
            s->drafts = i < nr && rng_below(&g, 2) ? (uint32_t)rng_below(&g, 20) : 0;
            s->logits_everywhere = rng_below(&g, 8) == 0;
            s->deadline_ns = rng_below(&g, 10) ? 0 : 500 + rng_below(&g, 1000);
        }
        struct schedule_queue q = {r, nr, w, nw};
        struct schedule_kv kv = {{(uint32_t)rng_below(&g, 40), (uint32_t)rng_below(&g, 40),
                                  (uint32_t)rng_below(&g, 40)}};
        schedule(&l, &q, &kv, 1000, &step);
        check_step(&l, &q, &kv);
    }
}

/* ---- a simulated worker: every sequence ends, whatever the pool's size ---- */

struct life {
    struct schedule_seq s;
    uint32_t final;
    bool done;
};

struct world {
    struct life *running[MAX], *waiting[MAX];
    uint32_t nr, nw, free[RANKS], preemptions, drafts;
};

static void drop(struct life **a, uint32_t *n, uint32_t i)
{
    memmove(&a[i], &a[i + 1], (*n - i - 1) * sizeof *a);
    (*n)--;
}

static void live_through(struct world *v, const struct schedule_limits *l)
{
    struct schedule_seq r[MAX], w[MAX];
    struct life *ran[MAX], *was[MAX];
    for (uint32_t i = 0; i < v->nr; i++)
        r[i] = (ran[i] = v->running[i])->s;
    for (uint32_t i = 0; i < v->nw; i++)
        w[i] = (was[i] = v->waiting[i])->s;
    struct schedule_queue q = {r, v->nr, w, v->nw};
    struct schedule_kv kv = {{v->free[0], v->free[1], v->free[2]}};
    uint32_t old = v->nr;
    schedule(l, &q, &kv, 0, &step);
    check_step(l, &q, &kv);
    assert_true(step.n_picks > 0);
    for (uint32_t i = 0; i < step.n_picks; i++) {
        struct life *x = picks[i].admitted ? was[picks[i].index] : ran[picks[i].index];
        uint32_t upto = x->s.computed + picks[i].tokens;
        uint32_t need = (upto + l->block_tokens - 1) / l->block_tokens;
        x->s.computed = upto < x->s.tokens ? upto : x->s.tokens; /* no draft was right */
        v->drafts += upto - x->s.computed;
        v->free[x->s.rank] -= need > x->s.blocks ? need - x->s.blocks : 0;
        x->s.blocks = x->s.idle_blocks = need > x->s.blocks ? need : x->s.blocks;
        if (x->s.computed == x->s.tokens && x->s.tokens < x->final)
            x->s.tokens++;
        else
            x->done = x->s.computed == x->final;
        if (picks[i].admitted) {
            v->running[v->nr++] = x;
            for (uint32_t k = 0; k < v->nw; k++)
                if (v->waiting[k] == x)
                    drop(v->waiting, &v->nw, k--);
        }
    }
    for (uint32_t i = 0; i < step.n_preempted; i++) {
        assert_true(preempted[i] < old);
        struct life *x = ran[preempted[i]];
        v->free[x->s.rank] += x->s.blocks;
        x->s.blocks = x->s.idle_blocks = x->s.computed = 0;
        drop(v->running, &v->nr, preempted[i]);
        memmove(v->waiting + 1, v->waiting, v->nw * sizeof *v->waiting);
        v->waiting[0] = x;
        v->nw++;
        v->preemptions++;
    }
    for (uint32_t i = 0; i < v->nr; i++)
        if (v->running[i]->done) {
            v->free[v->running[i]->s.rank] += v->running[i]->s.blocks;
            drop(v->running, &v->nr, i--);
        }
}

static void every_sequence_that_fits_alone_ends(void **state)
{
    (void)state;
    struct rng g = {7};
    uint32_t preemptions = 0, drafts = 0;
    for (int round = 0; round < 300; round++) {
        struct life lives[12] = {{{0}, 0, false}};
        uint32_t pool = 4 + (uint32_t)rng_below(&g, 12);
        struct schedule_limits l = {1 + (uint32_t)rng_below(&g, 40), 1 + (uint32_t)rng_below(&g, 6),
                                    1 + (uint32_t)rng_below(&g, 6), 16, 1};
        struct world v = {.free = {pool, pool, pool}};
        uint32_t ranks = 1 + (uint32_t)rng_below(&g, RANKS);
        for (uint32_t i = 0; i < 12; i++) {
            lives[i].final = 1 + (uint32_t)rng_below(&g, 16 * pool);
            lives[i].s.tokens = 1 + (uint32_t)rng_below(&g, lives[i].final);
            lives[i].s.rank = (uint32_t)rng_below(&g, ranks);
            lives[i].s.drafts = (uint32_t)rng_below(&g, 5);
            v.waiting[v.nw++] = &lives[i];
        }
        for (int t = 0; v.nr + v.nw; t++) {
            assert_true(t < 20000);
            live_through(&v, &l);
        }
        for (uint32_t i = 0; i < RANKS; i++)
            assert_int_equal(v.free[i], pool);
        preemptions += v.preemptions;
        drafts += v.drafts;
    }
    assert_true(preemptions > 100 && drafts > 1000);
}

static void drafts_take_what_nobody_else_needs(void **state)
{
    (void)state;
    struct schedule_seq r[] = {{.tokens = 21, .computed = 20, .blocks = 2, .drafts = 10},
                               {.tokens = 31, .computed = 30, .blocks = 2, .drafts = 3},
                               {.tokens = 60, .computed = 16, .blocks = 1}};
    run(&lim, r, 3, NULL, 0, 100);
    assert_int_equal(picks[0].tokens, 1 + 3); /* half of the logits that decodes leave */
    assert_int_equal(picks[1].tokens, 1);
    assert_int_equal(picks[2].tokens, 44);
    assert_int_equal(step.logits, 2 + 3 + 1);
    r[0].drafts = 1;
    run(&lim, r, 3, NULL, 0, 5); /* three are the prompt's, one is left free for each that runs */
    assert_int_equal(picks[0].tokens, 2);
    assert_int_equal(picks[1].tokens, 2); /* the third row would begin a block */
    run(&lim, r, 2, NULL, 0, 3);
    assert_int_equal(picks[1].tokens, 3);
    assert_int_equal(step.blocks_taken, 1);
}

static void a_rank_without_blocks_preempts_its_own_youngest(void **state)
{
    (void)state;
    struct schedule_seq r[] = {
        {.tokens = 33, .computed = 32, .blocks = 2, .idle_blocks = 2, .rank = 1},
        {.tokens = 21, .computed = 20, .blocks = 2, .idle_blocks = 2, .rank = 1},
        {.tokens = 33, .computed = 32, .blocks = 2, .idle_blocks = 2, .rank = 2},
        {.tokens = 90, .computed = 32, .blocks = 2, .idle_blocks = 2, .rank = 2},
        {.tokens = 33, .computed = 32, .blocks = 3, .idle_blocks = 3}};
    run(&lim, r, 5, NULL, 0, 0);
    assert_int_equal(step.n_preempted, 2);
    assert_int_equal(preempted[0], 3); /* youngest first */
    assert_int_equal(preempted[1], 1);
    assert_int_equal(step.n_picks, 3);
}

static void a_prompt_stuck_at_one_rank_does_not_wait_for_the_others_to_rest(void **state)
{
    (void)state;
    struct schedule_seq r[] = {
        {.tokens = 90, .computed = 32, .blocks = 2, .idle_blocks = 2, .rank = 1},
        {.tokens = 90, .computed = 32, .blocks = 2, .idle_blocks = 2, .rank = 1},
        {.tokens = 33, .computed = 32, .blocks = 3, .idle_blocks = 3}};
    run(&lim, r, 3, NULL, 0, 0);
    assert_int_equal(step.n_preempted, 1);
    assert_int_equal(preempted[0], 1);
    assert_int_equal(step.n_picks, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decodes_come_before_prompts),
        cmocka_unit_test(the_youngest_is_preempted_and_nobody_is_admitted_then),
        cmocka_unit_test(a_pinned_sequence_is_never_preempted),
        cmocka_unit_test(a_new_prompt_waits_for_room_unless_it_is_alone),
        cmocka_unit_test(prompt_logprobs_are_bounded_by_the_rows_of_logits),
        cmocka_unit_test(what_is_past_its_deadline_is_reported_and_not_run),
        cmocka_unit_test(short_prompts_do_not_wait_for_a_long_one),
        cmocka_unit_test(of_prompts_of_about_one_length_the_oldest_goes_first),
        cmocka_unit_test(a_short_prompt_takes_no_blocks_and_no_place_of_those_ahead),
        cmocka_unit_test(a_long_prompt_gets_half_of_the_rows_whoever_comes),
        cmocka_unit_test(random_queues_keep_the_guarantees),
        cmocka_unit_test(every_sequence_that_fits_alone_ends),
        cmocka_unit_test(drafts_take_what_nobody_else_needs),
        cmocka_unit_test(a_rank_without_blocks_preempts_its_own_youngest),
        cmocka_unit_test(a_prompt_stuck_at_one_rank_does_not_wait_for_the_others_to_rest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
