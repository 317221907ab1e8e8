/* A batch through the pipeline (GPipe, arXiv 1811.06965): it is cut into micro-batches by rows,
 * which follow each other through the stages; a stage computes one while the next computes the one
 * before. Rows of one sequence keep their order, so a later micro-batch finds the KV of an earlier
 * one. What the last stage has of rows that give logits goes back to the first, which has the head.
 *
 * Few rows are not cut: every micro-batch reads all weights of a stage again. */
#include "worker/model/stage.h"
#include "worker/model/balance.h"

#include "lib/base/clock.h"

#define PART_ROWS_MIN 32u /* of a micro-batch: fewer cost as much */
#define PARTS_A_STAGE 4u

/* Goes before the rows: what the stages so far have computed in this step. */
struct hop {
    uint64_t busy_ns;
};

struct cursor {
    uint32_t segment, token;
};

struct flight { /* one batch */
    struct model_work *w;
    const struct model_batch *b;
    struct comm *pipeline;
    uint32_t stage, stages, rows_a_part;
    uint64_t from_ns, waited_ns;
    uint64_t before_ns, told_ns; /* busy: of the stages before; of this one, as told to the next */
    struct err *e;
};

static uint32_t rows_of(const struct model_batch *b)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < b->n_segments; i++)
        n += b->segments[i].n_tokens;
    return n;
}

/* The next rows_a_part rows as w->part; false at the end. Logits are counted on by the caller. */
static bool next_part(struct flight *f, struct cursor *c)
{
    const struct model_batch *b = f->b;
    struct model_work *w = f->w;
    uint32_t n = 0, room = f->rows_a_part;
    while (room && c->segment < b->n_segments) {
        const struct model_segment *s = &b->segments[c->segment];
        uint32_t left = s->n_tokens - c->token, k = left < room ? left : room;
        uint32_t from = s->logits_from > c->token ? s->logits_from - c->token : 0;
        w->segments[n] = *s;
        w->segments[n].tokens = s->tokens + c->token;
        w->segments[n].start = s->start + c->token;
        w->segments[n].n_tokens = k;
        w->segments[n++].logits_from = from < k ? from : k;
        room -= k;
        *c = k == left ? (struct cursor){c->segment + 1, 0}
                       : (struct cursor){c->segment, c->token + k};
    }
    bool last = c->segment == b->n_segments;
    w->part = (struct model_batch){.segments = w->segments,
                                   .n_segments = n,
                                   .layer_done = last ? b->layer_done : NULL,
                                   .ctx = b->ctx};
    return n > 0;
}

static int run(struct model_work *w, uint32_t jobs)
{
    w->jobs = jobs;
    pool_run(w->pool, forward_thread, w);
    return w->rc;
}

static const float *h_of(const struct model_work *w)
{
    return w->n_rows <= REPLICATE_ROWS ? w->own[0].h : w->shared.h;
}

/* ---- between stages ---- */

static int send_rows(struct flight *f, uint32_t to, const float *rows, uint32_t n)
{
    uint64_t now = clock_mono_ns();
    f->told_ns = now - f->from_ns - f->waited_ns;
    struct hop hop = {f->before_ns + f->told_ns};
    int rc = comm_send(f->pipeline, to, &hop, sizeof hop, f->e);
    rc = rc ? rc
            : comm_send(f->pipeline, to, rows, (size_t)n * f->w->m->config.d_model * sizeof *rows,
                        f->e);
    f->waited_ns += clock_mono_ns() - now;
    return rc;
}

static int recv_rows(struct flight *f, uint32_t from, float *rows, uint32_t n)
{
    uint64_t now = clock_mono_ns();
    struct hop hop;
    int rc = comm_recv(f->pipeline, from, &hop, sizeof hop, f->e);
    rc = rc ? rc
            : comm_recv(f->pipeline, from, rows, (size_t)n * f->w->m->config.d_model * sizeof *rows,
                        f->e);
    if (!rc)
        f->before_ns = hop.busy_ns;
    f->waited_ns += clock_mono_ns() - now;
    return rc;
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
    struct cursor c = {0};
    int rc = 0;
    while (!rc && next_part(f, &c)) {
        work_lay_out(w, &w->part);
        w->stats.micro_batches++;
        if (f->stage)
            rc = recv_rows(f, f->stage - 1, w->out, w->n_rows);
        rc = rc ? rc : run(w, f->stage ? JOB_LAYERS : JOB_EMBED | JOB_LAYERS);
        if (!rc && f->stage + 1 < f->stages)
            rc = send_rows(f, f->stage + 1, h_of(w), w->n_rows);
        else if (!rc)
            *finals = keep_finals(w, *finals);
    }
    return rc;
}

/* Logits of what has come back from the last stage; then all layers of all stages are written. */
static int finish_first(struct flight *f)
{
    struct model_work *w = f->w;
    uint32_t n = model_batch_outputs(f->b), most = w->o.max_rows;
    int rc = recv_rows(f, f->stages - 1, w->out, n < most ? n : most);
    if (rc)
        return rc;
    w->part = *f->b;
    w->batch = &w->part;
    w->n_out = n;
    rc = n ? run(w, JOB_HEAD) : 0;
    for (uint32_t l = w->m->part.layer1; !rc && f->b->layer_done && l < w->m->config.n_layers; l++)
        f->b->layer_done(f->b->ctx, l);
    return rc;
}

static int fly(struct flight *f)
{
    struct model_work *w = f->w;
    uint32_t rows = rows_of(f->b), finals = 0;
    f->stage = comm_rank(f->pipeline);
    f->stages = comm_ranks(f->pipeline);
    f->rows_a_part = (rows + f->stages * PARTS_A_STAGE - 1) / (f->stages * PARTS_A_STAGE);
    f->rows_a_part = (f->rows_a_part + PART_ROWS_MIN - 1) / PART_ROWS_MIN * PART_ROWS_MIN;
    int rc = through_layers(f, &finals);
    if (!rc && f->stage == 0)
        rc = finish_first(f);
    else if (!rc && f->stage + 1 == f->stages)
        rc = send_rows(f, 0, w->finals, finals);
    uint64_t took = clock_mono_ns() - f->from_ns;
    w->stats.step_ns += took;
    w->stats.busy_ns += took - f->waited_ns + (f->stage ? 0 : f->before_ns - f->told_ns);
    return rc;
}

int stage_run(struct model_work *w, const struct model_batch *b, struct err *e)
{
    struct flight f = {
        .w = w, .b = b, .pipeline = w->o.group.pipeline, .from_ns = clock_mono_ns(), .e = e};
    int rc;
    w->rc = 0;
    w->stats.steps++;
    bool pipeline = f.pipeline && comm_ranks(f.pipeline) > 1;
    if (pipeline) {
        rc = fly(&f);
    } else {
        rc = w->ep.balance ? balance_step(w, e) : 0;
    }
    if (!rc && w->halve) {
        rc = halves_run(w, b);
    } else if (!rc && !pipeline) {
        work_lay_out(w, b);
        w->stats.micro_batches++;
        rc = run(w, JOB_EMBED | JOB_LAYERS | JOB_HEAD);
    }
    if (w->rc && e)
        *e = w->err;
    return rc;
}
