/* One step of the engine: look, schedule, make room, run the model, sample (engine_int.h). */
#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/decide/place.h"
#include "worker/engine_int.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define LOOK_AHEAD        8u  /* waiting sequences that are offered to the scheduler */
#define STEP_S_ALONE      .25 /* a step lasts about this long at most, */
#define STEP_S_DECODING   .1  /* and this when answers are running */
#define BUBBLE_S          1.0 /* of a pipeline's work, that its bubble is measured over */
#define FAILURES_MAX      3u  /* steps in a row, then the worker is not ready any more */
#define STEP_TOKENS_MIN   8u
#define STEP_TOKENS_FIRST 32u /* before anything was measured */

static void grow_scratch(struct engine *g, uint32_t want)
{
    struct step_scratch *t = &g->scratch;
    if (want <= t->cap)
        return;
    uint32_t old = t->cap;
    t->cap = 2 * want;
    t->running = xrealloc(t->running, t->cap * sizeof *t->running);
    t->waiting = xrealloc(t->waiting, t->cap * sizeof *t->waiting);
    t->ready = xrealloc(t->ready, t->cap * sizeof *t->ready);
    t->picks = xrealloc(t->picks, t->cap * sizeof *t->picks);
    t->expired = xrealloc(t->expired, t->cap * sizeof *t->expired);
    t->preempted = xrealloc(t->preempted, t->cap * sizeof *t->preempted);
    t->seqs = xrealloc(t->seqs, t->cap * sizeof *t->seqs);
    t->segments = xrealloc(t->segments, t->cap * sizeof *t->segments);
    t->pushes = xrealloc(t->pushes, t->cap * sizeof *t->pushes);
    memset(t->pushes + old, 0, (t->cap - old) * sizeof *t->pushes);
    if (!t->hit) {
        t->cap_hit = g->c.n_blocks;
        t->hit = xmalloc(t->cap_hit * sizeof *t->hit);
    }
}

void step_free(struct engine *g)
{
    struct step_scratch *t = &g->scratch;
    for (uint32_t i = 0; i < t->cap; i++)
        free(t->pushes[i].pieces);
    free(t->running);
    free(t->waiting);
    free(t->ready);
    free(t->picks);
    free(t->expired);
    free(t->preempted);
    free(t->seqs);
    free(t->segments);
    free(t->pushes);
    free(t->hit);
    free(t->draws);
}

/* ---- what the scheduler sees ---- */

static uint32_t own_blocks(const struct engine *g, const struct seq *s)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_blocks; i++)
        n += kv_refs(g->kv, s->blocks[i]) == 1;
    return n;
}

static struct schedule_seq view(const struct engine *g, const struct seq *s)
{
    (void)g;
    return (struct schedule_seq){.tokens = s->n_tokens,
                                 .computed = s->computed,
                                 .blocks = s->n_blocks,
                                 .deadline_ns = s->req->deadline_ns,
                                 .rank = s->rank,
                                 .held = s->flying,
                                 .pinned = s->req->order_id != 0,
                                 .logits_everywhere = request_reports_prompt(s->req)};
}

static void look(struct engine *g, struct schedule_queue *q)
{
    struct step_scratch *t = &g->scratch;
    struct place_rank ranks[SCHEDULE_RANKS_MAX];
    for (uint32_t i = 0; i < g->n_running; i++) {
        const struct seq *s = g->running[i];
        bool scarce = kv_counts_of(g->kv, s->rank).free <= g->n_running;
        t->running[i] = view(g, s);
        t->running[i].idle_blocks = scarce ? own_blocks(g, s) : 0;
    }
    deal_begin(g, ranks);
    uint32_t n = 0;
    for (struct seq *s = g->waiting; s && n < LOOK_AHEAD; s = s->next) {
        if (s->req->order_id && !s->req->granted)
            continue;
        deal_seq(g, ranks, s);
        uint32_t idle, hit = seq_find(s, g->kv, t->hit, t->cap_hit, &idle);
        t->waiting[n] = view(g, s);
        t->waiting[n].blocks = hit;
        t->waiting[n].idle_blocks = idle;
        t->waiting[n].computed = s->expected = hit * g->c.kv.block_tokens;
        t->ready[n++] = s;
    }
    *q = (struct schedule_queue){t->running, g->n_running, t->waiting, n};
}

/* Rows of a step: as many as keep it short, so that answers flow and a client that leaves is
 * noticed. */
static uint32_t step_tokens(const struct engine *g)
{
    bool decoding = false;
    for (uint32_t i = 0; i < g->n_running && !decoding; i++)
        decoding = g->running[i]->n_tokens - g->running[i]->computed == 1;
    double n = (double)g->prefill_tokens_per_s * (decoding ? STEP_S_DECODING : STEP_S_ALONE);
    uint32_t rows = n > 0 ? (uint32_t)n : STEP_TOKENS_FIRST;
    rows = rows < STEP_TOKENS_MIN ? STEP_TOKENS_MIN : rows >= 32 ? rows / 16 * 16 : rows;
    rows += decoding ? g->n_running + g->drafts.planned : 0;
    return rows < g->c.max_rows ? rows : g->c.max_rows;
}

/* ---- carrying the step out ---- */

static void back_to_queue(struct engine *g, struct seq *s)
{
    queue_push_head(g, s);
    s->req->preemptions++;
    g->status.load.preemptions_total++;
    metric_add(g->m.preemptions, 1);
}

void step_preempt(struct engine *g, struct seq *s)
{
    running_remove(g, s);
    seq_release(s, g->kv);
    back_to_queue(g, s);
}

/* Holds the cached prefix before anything is allocated, so that it can't be evicted in between. */
static void start(struct engine *g, struct seq *s)
{
    struct step_scratch *t = &g->scratch;
    uint32_t idle, bt = g->c.kv.block_tokens, n = seq_find(s, g->kv, t->hit, t->cap_hit, &idle);
    queue_remove(g, s);
    for (uint32_t i = 0; i < n; i++) {
        kv_hold(g->kv, t->hit[i]);
        seq_add_block(s, t->hit[i]);
    }
    s->computed = n * bt;
    s->n_named = n;
    running_add(g, s);
    if (s->req->started_ns)
        return;
    s->req->started_ns = g->now_ns;
    s->req->cached_tokens = n * bt;
    g->status.load.cached_tokens_total += n * bt;
    g->status.load.prompt_tokens_total += s->n_tokens;
    metric_add(g->m.cached_tokens, n * bt);
    metric_add(g->m.prompt_tokens, s->n_tokens);
    metric_observe(g->m.queue, (double)(g->now_ns - s->req->arrived_ns) / 1e9);
}

static void carry_out(struct engine *g, const struct schedule_step *step)
{
    struct step_scratch *t = &g->scratch;
    struct seq *expired[LOOK_AHEAD + 1];
    uint32_t n_expired = 0;
    for (uint32_t i = 0; i < step->n_picks; i++)
        t->seqs[i] = step->picks[i].admitted ? t->ready[step->picks[i].index]
                                             : g->running[step->picks[i].index];
    for (uint32_t i = 0; i < step->n_expired && n_expired <= LOOK_AHEAD; i++)
        expired[n_expired++] = step->expired[i].admitted ? t->ready[step->expired[i].index]
                                                         : g->running[step->expired[i].index];
    for (uint32_t i = 0; i < step->n_preempted; i++)
        step_preempt(g, g->running[step->preempted[i]]); /* youngest first: indexes stay valid */
    for (uint32_t i = 0; i < step->n_picks; i++)
        if (step->picks[i].admitted)
            start(g, t->seqs[i]);
    for (uint32_t i = 0; i < step->n_picks; i++) {
        struct seq *s = t->seqs[i];
        bool whole = step->picks[i].admitted && s->req->order_id;
        bool ok = seq_grow(s, g->kv, whole ? s->n_tokens : s->computed + step->picks[i].tokens);
        ASSERT(ok); /* the scheduler counted the blocks */
        if (whole)
            handover_prefix(g, s);
    }
    for (uint32_t i = 0; i < n_expired; i++)
        emit_error(g, expired[i]->req, 504, "deadline_exceeded", "the request's deadline passed",
                   false);
}

static void on_layer(void *ctx, uint32_t layer)
{
    struct engine *g = ctx;
    for (uint32_t i = 0; i < g->scratch.n_pushes; i++)
        handover_layer(g, &g->scratch.pushes[i], layer);
}

static void lay_out(struct engine *g, const struct schedule_step *step)
{
    struct step_scratch *t = &g->scratch;
    t->n_pushes = t->prompt_rows = 0;
    for (uint32_t i = 0; i < step->n_picks; i++) {
        struct seq *s = t->seqs[i];
        uint32_t n = step->picks[i].tokens;
        uint32_t known = s->n_tokens - s->computed; /* n above it: drafts */
        t->segments[i] = (struct model_segment){.tokens = s->tokens + s->computed,
                                                .n_tokens = n,
                                                .start = s->computed,
                                                .blocks = s->blocks,
                                                .n_blocks = s->n_blocks,
                                                .logits_from = request_reports_prompt(s->req) ? 0
                                                               : n < known                    ? n
                                                                           : known - 1};
        if (known > 1)
            t->prompt_rows += n;
        if (s->req->order_id)
            handover_chunk(g, s, n, &t->pushes[t->n_pushes++]);
    }
}

static int forward(struct engine *g, const struct schedule_step *step, struct err *e)
{
    struct step_scratch *t = &g->scratch;
    bool apart = group_has_apart(g->group); /* their KV comes here after the step */
    lay_out(g, step);
    struct model_batch b = {.segments = t->segments,
                            .n_segments = step->n_picks,
                            .logits = g->logits,
                            .logits_rows = g->c.logit_rows,
                            .layer_done = t->n_pushes && !apart ? on_layer : NULL,
                            .draws = draws_wanted(g, step->n_picks),
                            .drawn = &t->drawn,
                            .ctx = g};
    int rc = group_forward(g->group, &b, e);
    for (uint32_t i = 0; !rc && apart && i < t->n_pushes; i++)
        rc = handover_fetched(g, &t->pushes[i], e);
    return rc;
}

/* The stages' work since the last step; the bubble is that of about a second. */
static void measure_stages(struct engine *g, const struct model_work_stats *w)
{
    uint32_t stages = g->c.model_layout.pipeline;
    struct engine_metrics *m = &g->m;
    double step_s = (double)(w->step_ns - m->seen_step_ns) / 1e9;
    char name[12];
    m->seen_step_ns = w->step_ns;
    m->part_step_s += step_s;
    metric_add(m->pipeline_s, step_s);
    for (uint32_t s = 0; s < stages && s < MODEL_STAGES_MAX; s++) {
        double busy_s = (double)(w->stage_busy_ns[s] - m->seen_stage_ns[s]) / 1e9;
        m->seen_stage_ns[s] = w->stage_busy_ns[s];
        m->part_busy_s += busy_s;
        snprintf(name, sizeof name, "%u", s);
        metric_add(metric_series(m->stage_busy, name), busy_s);
    }
    if (m->part_step_s < BUBBLE_S)
        return;
    double bubble = 1 - m->part_busy_s / (m->part_step_s * stages);
    metric_set(m->bubble, bubble > 0 ? bubble : 0);
    m->part_step_s = m->part_busy_s = 0;
}

static void measure_group(struct engine *g)
{
    struct group_report r;
    if (group_ranks(g->group) == 1)
        return;
    group_report(g->group, &r);
    if (g->c.model_layout.pipeline > 1)
        measure_stages(g, &r.work);
    metric_add(g->m.collectives, (double)(r.tensor.all_reduces - g->m.seen_collectives));
    metric_add(g->m.collective_s, (double)(r.tensor.wait_ns - g->m.seen_wait_ns) / 1e9);
    deal_measure_experts(g, &r.work);
    g->m.seen_collectives = r.tensor.all_reduces;
    g->m.seen_wait_ns = r.tensor.wait_ns;
}

/* A sequence's next token takes less than a step where drafts were right: they are tokens too. */
void step_measure_decode(struct engine *g, uint32_t n, uint32_t rows, double seconds, double each)
{
    float token_s = (float)(seconds * n / (n + g->drafts.right));
    metric_observe(g->m.step, seconds);
    measure_group(g);
    metric_add(g->m.step_rows, rows);
    g->decode_step_s += (g->decode_step_s > 0 ? .1f : 1) * (token_s - g->decode_step_s);
    drafts_cost(g, rows, each);
}

static void measure(struct engine *g, const struct schedule_step *step, double seconds)
{
    metric_observe(g->m.step, seconds);
    measure_group(g);
    metric_add(g->m.step_rows, step->rows);
    if (g->scratch.prompt_rows < STEP_TOKENS_MIN)
        return;
    float rate = (float)(step->rows / seconds);
    g->prefill_tokens_per_s +=
        (g->prefill_tokens_per_s > 0 ? .2f : 1) * (rate - g->prefill_tokens_per_s);
}

/* ---- what comes out of it ---- */

void step_fork(struct engine *g, struct seq *s)
{
    struct seq *first = &s->req->seqs[0];
    uint32_t bt = g->c.kv.block_tokens, full = first->computed / bt;
    if (s->state == SEQ_ENDED)
        return;
    uint32_t copy = first->computed % bt ? kv_alloc(g->kv, first->rank) : KV_NONE;
    if (first->computed % bt && copy == KV_NONE) { /* preempted before it began */
        back_to_queue(g, s);
        return;
    }
    s->rank = first->rank;
    for (uint32_t i = 0; i < full; i++) {
        kv_hold(g->kv, first->blocks[i]);
        seq_add_block(s, first->blocks[i]);
    }
    if (copy != KV_NONE) {
        group_copy(g->group, first->blocks[full], copy);
        seq_add_block(s, copy);
    }
    s->computed = first->computed;
    s->n_named = first->n_named;
    running_add(g, s);
}

static bool sample_one(struct engine *g, struct seq *s, const float *logits)
{
    struct sample_in in = {&s->req->wire, s->tokens, s->n_tokens, s->choice, g->eog, g->n_eog};
    uint32_t id = 0;
    if (g->scratch.drawn ? draws_token(g, logits, &id)
                         : sample_token(g->sampler, &in, logits, &id)) {
        emit_error(g, s->req, 500, "not_finite", "the model's output is not a number", true);
        return false;
    }
    emit_token(g, s, id, logits);
    return true;
}

/* The prompt is done: the first token of every choice, from one row. The others fork before choice
 * 0 can end. */
static void first_tokens(struct engine *g, struct seq *s, const float *logits)
{
    struct request *r = s->req;
    for (uint16_t i = 1; i < r->wire.n; i++) {
        if (!sample_one(g, &r->seqs[i], logits))
            return;
        if (!r->order_id)
            step_fork(g, &r->seqs[i]);
    }
    if (sample_one(g, s, logits) && r->order_id)
        handover_done(g, r);
}

/* Only the prompt was wanted (echo with max_tokens 0). */
static void finish_all(struct engine *g, struct request *r)
{
    for (uint16_t i = 0; i < r->wire.n; i++)
        emit_finish(g, &r->seqs[i], WIRE_FINISH_LENGTH);
}

/* Each row's token is sampled as if it were alone; the next row counts while its token was guessed.
 * KV of wrong guesses lies behind `computed` and is written over. */
static void take_drafts(struct engine *g, struct seq *s, uint32_t n, const float *rows)
{
    uint32_t right = 0;
    for (uint32_t i = 0;; i++) {
        uint32_t guess = i + 1 < n ? s->tokens[s->n_tokens] : MODEL_NO_TOKEN;
        s->computed++;
        seq_name_blocks(s, g->kv);
        if (!sample_one(g, s, rows + (size_t)i * g->vocab) || i + 1 == n)
            break;
        bool same = s->tokens[s->n_tokens - 1] == guess;
        right += same;
        if (!same || s->state != SEQ_RUNNING)
            break;
    }
    drafts_learn(g, s, n - 1, right);
}

static void take_result(struct engine *g, struct seq *s, uint32_t n, const float *rows)
{
    struct request *r = s->req;
    if (s->n_tokens - s->computed < n) {
        take_drafts(g, s, n, rows);
        return;
    }
    bool everywhere = request_reports_prompt(r);
    for (uint32_t i = 0; everywhere && i < n; i++)
        emit_prompt(g, s, s->computed + i, rows + (size_t)i * g->vocab);
    s->computed += n;
    seq_name_blocks(s, g->kv);
    if (s->computed < s->n_tokens)
        return;
    const float *last = everywhere ? rows + (size_t)(n - 1) * g->vocab : rows;
    if (request_generated(s) >= r->wire.max_tokens)
        finish_all(g, r);
    else if (r->wire.n > 1 && r->seqs[1].state == SEQ_UNBORN && s->choice == 0)
        first_tokens(g, s, last);
    else if (sample_one(g, s, last) && r->order_id)
        handover_done(g, r);
}

void step_take(struct engine *g, struct seq *const *seqs, const struct model_segment *segments,
               uint32_t n)
{
    const float *row = g->logits;
    for (uint32_t i = 0; i < n; i++) {
        const struct model_segment *seg = &segments[i];
        struct seq *s = seqs[i];
        if (!s->req->ended && !s->req->closed && s->state == SEQ_RUNNING)
            take_result(g, s, seg->n_tokens, row);
        row += (size_t)(seg->n_tokens - seg->logits_from) * g->vocab;
    }
}

void step_failed(struct engine *g, struct seq *const *seqs, uint32_t n, const struct err *e)
{
    log_error("the model could not run a step", LERR(e));
    g->status.failed = ++g->failures >= FAILURES_MAX;
    for (uint32_t i = 0; i < n; i++)
        emit_error(g, seqs[i]->req, 500, "engine_failed", e->msg, true);
}

static void run_whole(struct engine *g, const struct schedule_step *step)
{
    struct step_scratch *t = &g->scratch;
    struct err e = {0};
    uint64_t t0 = clock_mono_ns();
    int rc = forward(g, step, &e);
    if (rc == -ECANCELED) {
        mask_void(g, t->seqs, step->n_picks);
        return;
    }
    if (rc) {
        step_failed(g, t->seqs, step->n_picks, &e);
        return;
    }
    double seconds = (double)(clock_mono_ns() - t0) / 1e9;
    g->failures = 0;
    g->status.steps++;
    step_take(g, t->seqs, t->segments, step->n_picks);
    t->drawn = false;
    if (t->prompt_rows)
        measure(g, step, seconds);
    else
        step_measure_decode(g, step->n_picks, step->rows, seconds,
                            (double)(clock_mono_ns() - t0) / 1e9);
}

static void plan(struct engine *g, struct schedule_step *step)
{
    struct step_scratch *t = &g->scratch;
    struct schedule_queue q;
    grow_scratch(g, g->n_running + LOOK_AHEAD + 1);
    look(g, &q);
    drafts_plan(g, t->running);
    struct schedule_limits limits = {.step_tokens = step_tokens(g),
                                     .logit_rows = g->c.logit_rows,
                                     .max_running = g->c.max_running,
                                     .block_tokens = g->c.kv.block_tokens,
                                     .spare_blocks = 1};
    struct schedule_kv kv = {{0}};
    *step =
        (struct schedule_step){.picks = t->picks, .preempted = t->preempted, .expired = t->expired};
    for (uint32_t r = 0; r < kv_ranks(g->kv); r++)
        kv.free_blocks[r] = kv_counts_of(g->kv, r).free;
    schedule(&limits, &q, &kv, g->now_ns, step);
}

/* Of a pipeline: the step's first decodes, so many that every stage has a batch; false when the
 * step is none of decodes alone. */
static bool take_share(struct engine *g, struct schedule_step *step)
{
    const struct schedule_seq *running = g->scratch.running;
    uint32_t decodes = 0, batches = group_batches(g->group), rows = 0, n = 0;
    if (batches < 2 || !step->n_picks || step->n_preempted || step->n_expired)
        return false;
    for (uint32_t i = 0; i < step->n_picks; i++) {
        const struct schedule_seq *q = &running[step->picks[i].index];
        if (step->picks[i].admitted || q->tokens - q->computed != 1 || q->pinned)
            return false;
    }
    for (uint32_t i = 0; i < g->n_running; i++)
        decodes += running[i].tokens - running[i].computed == 1;
    while (n < step->n_picks && n < (decodes + batches - 1) / batches)
        rows += step->picks[n++].tokens;
    step->n_picks = n;
    step->rows = rows;
    return true;
}

bool step_run(struct engine *g)
{
    struct schedule_step step;
    plan(g, &step);
    bool share = take_share(g, &step);
    if (g->n_air && !(share && flight_may_begin(g, step.rows))) {
        flight_land(g); /* what is to be done now waits until nothing is in the air */
        return true;
    }
    share = share && flight_may_begin(g, step.rows);
    carry_out(g, &step);
    if (!step.n_picks)
        return step.n_preempted || step.n_expired;
    if (share) {
        lay_out(g, &step);
        flight_begin(g, step.n_picks);
    } else {
        run_whole(g, &step);
    }
    return true;
}
