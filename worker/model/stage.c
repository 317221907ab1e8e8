/* A batch through the pipeline: its micro-batches (cut.h) follow each other through the stages; a
 * stage computes one while the next computes the one before. What the last stage has of rows that
 * give logits goes back to the first, which has the head; it may have begun further batches before
 * (stage_begin, stage_end). */
#include "worker/model/stage.h"
#include "worker/model/balance.h"
#include "worker/model/cut.h"

#include "lib/base/clock.h"

/* Goes before the rows: what each stage so far has computed for them. */
struct hop {
    uint64_t busy_ns[MODEL_STAGES_MAX];
};

struct flight { /* one batch */
    struct model_work *w;
    const struct model_batch *b;
    struct comm *pipeline;
    uint32_t stage, stages, rows_a_part;
    struct hop part, all; /* of the micro-batch in hand; of those before it too */
    struct err *e;
};

static int run(struct model_work *w, uint32_t jobs)
{
    w->jobs = jobs;
    pool_run(w->pool, forward_thread, w);
    return w->rc;
}

/* The same, counted as this stage's work. */
static int work(struct flight *f, uint32_t jobs)
{
    uint64_t from = clock_mono_ns();
    int rc = run(f->w, jobs);
    uint64_t took = clock_mono_ns() - from;
    f->part.busy_ns[f->stage] += took;
    f->w->stats.stage_busy_ns[f->stage] += took;
    f->w->stats.busy_ns += took;
    return rc;
}

static float *h_of(const struct model_work *w)
{
    return w->n_rows <= REPLICATE_ROWS ? w->own[0].h : w->shared.h;
}

/* ---- between stages ---- */

static int move_rows(struct flight *f, uint32_t peer, bool out, struct hop *hop, float *rows,
                     uint32_t n)
{
    size_t bytes = (size_t)n * f->w->m->config.d_model * sizeof *rows;
    size_t head = f->stages * sizeof hop->busy_ns[0];
    int rc = out ? comm_send(f->pipeline, peer, hop, head, f->e)
                 : comm_recv(f->pipeline, peer, hop, head, f->e);
    if (rc)
        return rc;
    return out ? comm_send(f->pipeline, peer, rows, bytes, f->e)
               : comm_recv(f->pipeline, peer, rows, bytes, f->e);
}

/* ---- stages ---- */

/* Out rows of this micro-batch behind those of earlier ones. */
static uint32_t keep_finals(struct model_work *w, uint32_t at)
{
    uint32_t d = w->m->config.d_model;
    for (uint32_t i = 0; i < w->n_out; i++)
        memcpy(w->finals + (size_t)(at + i) * d, h_of(w) + (size_t)w->out_rows[i] * d,
               d * sizeof(float));
    return at + w->n_out;
}

static int through_layers(struct flight *f, uint32_t *finals)
{
    struct model_work *w = f->w;
    struct batch_cut c = {0};
    int rc = 0;
    while (!rc && batch_next(f->b, f->rows_a_part, &c, w->segments, &w->part)) {
        work_lay_out(w, &w->part);
        w->stats.micro_batches++;
        f->part = (struct hop){0};
        if (f->stage)
            rc = move_rows(f, f->stage - 1, false, &f->part, w->out, w->n_rows);
        rc = rc ? rc : work(f, f->stage ? JOB_LAYERS : JOB_EMBED | JOB_LAYERS);
        if (!rc && f->stage + 1 < f->stages)
            rc = move_rows(f, f->stage + 1, true, &f->part, h_of(w), w->n_rows);
        else if (!rc)
            *finals = keep_finals(w, *finals);
        for (uint32_t s = 0; s < f->stages; s++)
            f->all.busy_ns[s] += f->part.busy_ns[s];
    }
    return rc;
}

/* The time in which the pipeline had something to do, up to now; `in_air` batches from now on. */
static void count_time(struct model_work *w, int more)
{
    uint64_t now = clock_mono_ns();
    if (w->in_air)
        w->stats.step_ns += now - w->counted_ns;
    w->counted_ns = now;
    w->in_air += (uint32_t)more;
}

static struct flight flight_of(struct model_work *w, const struct model_batch *b, struct err *e)
{
    struct flight f = {.w = w, .b = b, .pipeline = w->o.group.pipeline, .e = e};
    f.stage = comm_rank(f.pipeline);
    f.stages = comm_ranks(f.pipeline);
    f.rows_a_part = batch_part_rows(batch_rows(b), f.stages);
    return f;
}

bool stage_first_of_many(const struct model_work *w)
{
    const struct comm *p = w->o.group.pipeline;
    return p && comm_ranks(p) > 1 && comm_rank(p) == 0;
}

int stage_begin(struct model_work *w, const struct model_batch *b, struct err *e)
{
    struct flight f = flight_of(w, b, e);
    uint32_t finals = 0;
    w->rc = 0;
    w->stats.steps++;
    count_time(w, 1);
    int rc = through_layers(&f, &finals);
    if (!rc && f.stage && f.stage + 1 == f.stages)
        rc = move_rows(&f, 0, true, &f.all, w->finals, finals);
    if (f.stage || rc)
        count_time(w, -1);
    if (w->rc && e)
        *e = w->err;
    return rc;
}

/* Logits of what has come back from the last stage; then all layers of all stages are written. */
int stage_end(struct model_work *w, const struct model_batch *b, struct err *e)
{
    struct flight f = flight_of(w, b, e);
    uint32_t n = model_batch_outputs(b), most = w->o.max_rows;
    w->rc = 0;
    int rc = move_rows(&f, f.stages - 1, false, &f.all, w->out, n < most ? n : most);
    for (uint32_t s = 1; !rc && s < f.stages; s++) {
        w->stats.stage_busy_ns[s] += f.all.busy_ns[s];
        w->stats.busy_ns += f.all.busy_ns[s];
    }
    w->part = *b;
    w->batch = &w->part;
    w->n_out = n;
    if (!rc && n)
        rc = work(&f, JOB_HEAD);
    for (uint32_t l = w->m->part.layer1; !rc && b->layer_done && l < w->m->config.n_layers; l++)
        b->layer_done(b->ctx, l);
    count_time(w, -1);
    if (w->rc && e)
        *e = w->err;
    return rc;
}

int stage_run(struct model_work *w, const struct model_batch *b, struct err *e)
{
    int rc;
    if (w->o.group.pipeline && comm_ranks(w->o.group.pipeline) > 1) {
        rc = stage_begin(w, b, e);
        return rc || !stage_first_of_many(w) ? rc : stage_end(w, b, e);
    }
    w->rc = 0;
    w->stats.steps++;
    rc = w->ep.balance ? balance_step(w, e) : 0;
    if (!rc && w->halve) {
        rc = halves_run(w, b);
    } else if (!rc) {
        work_lay_out(w, b);
        w->stats.micro_batches++;
        rc = run(w, JOB_EMBED | JOB_LAYERS | JOB_HEAD);
    }
    if (w->rc && e)
        *e = w->err;
    return rc;
}
