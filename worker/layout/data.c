#include "worker/layout/data.h"

#include <errno.h>
#include <stdlib.h>

struct data {
    const struct group_config *c;
    struct model_work *w;
    uint32_t ranks, rank, tensor, tensor_rank;
    struct model_segment *all, *mine; /* of a step, with block numbers of their data rank */
    uint32_t *owners;                 /* [all] */
    uint32_t cap, *blocks;
    size_t cap_blocks;
    float *logits; /* of this data rank, at rank 0 of all in turn */
    size_t logits_cap;
    const struct model_batch *batch; /* at rank 0: whose layer_done is called */
    uint32_t told;                   /* layers */
};

int data_new(const struct group_config *c, struct model_work *w, struct data **out, struct err *e)
{
    const struct model_layout *l = &c->layout;
    int rc = model_layout_check(model_config(c->model), l, e);
    if (rc)
        return rc;
    struct data *d = xcalloc(1, sizeof *d);
    *d = (struct data){.c = c,
                       .w = w,
                       .ranks = l->data,
                       .rank = c->rank / l->tensor,
                       .tensor = l->tensor,
                       .tensor_rank = c->rank % l->tensor};
    *out = d;
    return 0;
}

void data_free(struct data *d)
{
    if (!d)
        return;
    free(d->all);
    free(d->mine);
    free(d->owners);
    free(d->blocks);
    free(d->logits);
    free(d);
}

/* ---- who has which sequence ---- */

static void grow(struct data *d, const struct model_batch *b)
{
    size_t blocks = 0;
    for (uint32_t i = 0; i < b->n_segments; i++)
        blocks += b->segments[i].n_blocks;
    if (b->n_segments > d->cap) {
        d->cap = 2 * b->n_segments;
        d->all = xrealloc(d->all, d->cap * sizeof *d->all);
        d->mine = xrealloc(d->mine, d->cap * sizeof *d->mine);
        d->owners = xrealloc(d->owners, d->cap * sizeof *d->owners);
    }
    if (blocks > d->cap_blocks) {
        d->cap_blocks = 2 * blocks;
        d->blocks = xrealloc(d->blocks, d->cap_blocks * sizeof *d->blocks);
    }
}

/* d->all and d->owners: the segments of b as their data ranks number blocks. */
static int sort_out(struct data *d, const struct model_batch *b, struct err *e)
{
    uint32_t n = d->c->work.pool_blocks;
    size_t at = 0;
    grow(d, b);
    for (uint32_t i = 0; i < b->n_segments; i++) {
        const struct model_segment *s = &b->segments[i];
        uint32_t owner = s->n_blocks ? s->blocks[0] / n : 0;
        d->all[i] = *s;
        d->all[i].blocks = d->blocks + at;
        d->owners[i] = owner;
        if (owner >= d->ranks)
            return err_set(e, EINVAL, "block %u: %u data ranks have %u each", s->blocks[0],
                           d->ranks, n);
        if (comm_is_masked(d->c->world, owner * d->tensor))
            return err_set(e, EINVAL, "block %u: data rank %u is masked", s->blocks[0], owner);
        for (uint32_t k = 0; k < s->n_blocks; k++) {
            if (s->blocks[k] / n != owner)
                return err_set(e, EINVAL, "a sequence with blocks at two data ranks, %u and %u",
                               s->blocks[0], s->blocks[k]);
            d->blocks[at++] = s->blocks[k] - owner * n;
        }
    }
    return 0;
}

int data_check(struct data *d, const struct model_batch *b, struct err *e)
{
    int rc = sort_out(d, b, e);
    struct model_batch all = *b;
    all.segments = d->all;
    return rc ? rc : model_batch_check(d->w, &all, e);
}

bool data_has_halves(const struct data *d, const struct model_batch *b)
{
    uint32_t rows[MODEL_RANKS_MAX] = {0};
    for (uint32_t i = 0; i < b->n_segments; i++)
        if ((rows[d->owners[i]] += b->segments[i].n_tokens) > 1)
            return true;
    return false;
}

static int room_for_logits(struct data *d, const struct model_batch *b, struct err *e)
{
    size_t n = (size_t)model_batch_outputs(b) * model_config(d->c->model)->vocab;
    if (n <= d->logits_cap)
        return 0;
    float *p = realloc(d->logits, n * sizeof *p);
    if (!p)
        return err_set(e, ENOMEM, "no memory for logits");
    d->logits = p;
    d->logits_cap = n;
    return 0;
}

/* Logits of one data rank's rows, in the order of its segments, to where the batch wants them. */
static void spread(const struct data *d, const struct model_batch *b, uint32_t rank,
                   const float *from)
{
    size_t vocab = model_config(d->c->model)->vocab, at = 0;
    for (uint32_t i = 0; i < b->n_segments; i++) {
        const struct model_segment *s = &b->segments[i];
        size_t n = (s->n_tokens - s->logits_from) * vocab;
        if (n && d->owners[i] == rank) {
            memcpy(b->logits + at, from, n * sizeof *from);
            from += n;
        }
        at += n;
    }
}

static uint32_t outputs_of(const struct data *d, const struct model_batch *b, uint32_t rank)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < b->n_segments; i++)
        if (d->owners[i] == rank)
            n += b->segments[i].n_tokens - b->segments[i].logits_from;
    return n;
}

/* What a data rank that had rows sends to rank 0: its logits, or a word that it is done. Its first
 * tensor rank has come that far only when the others have written their KV. */
static int report(struct data *d, uint32_t rank, uint32_t outputs, struct err *e)
{
    size_t row = model_config(d->c->model)->vocab * sizeof(float);
    uint32_t word = 0, from = rank * d->tensor;
    void *p = outputs ? (void *)d->logits : &word;
    size_t n = outputs ? outputs * row : sizeof word;
    return d->rank ? comm_send(d->c->world, 0, p, n, e) : comm_recv(d->c->world, from, p, n, e);
}

static int collect(struct data *d, const struct model_batch *b, const uint32_t *rows, struct err *e)
{
    int rc = 0;
    if (d->tensor_rank)
        return 0;
    if (d->rank)
        return rows[d->rank] ? report(d, d->rank, outputs_of(d, b, d->rank), e) : 0;
    spread(d, b, 0, d->logits);
    for (uint32_t rank = 1; !rc && rank < d->ranks; rank++) {
        if (rows[rank])
            rc = report(d, rank, outputs_of(d, b, rank), e);
        if (!rc)
            spread(d, b, rank, d->logits);
    }
    return rc;
}

/* ---- layers that all ranks have written ---- */

static void tell(struct data *d, uint32_t upto)
{
    for (; d->told < upto && d->batch->layer_done; d->told++)
        d->batch->layer_done(d->batch->ctx, d->told);
}

/* Rows come to experts at a layer when those who sent them have its KV: this rank, which is at
 * `layer`, has had those of the layers before. */
static void on_layer(void *ctx, uint32_t layer)
{
    struct data *d = ctx;
    const struct model_config *c = model_config(d->c->model);
    while (layer && !model_layer_has_experts(c, layer - 1))
        layer--;
    tell(d, layer);
}

static int compute(struct data *d, const struct model_batch *mine, const uint32_t *rows,
                   struct err *e)
{
    const struct group_device *dev = d->c->device;
    if (dev) {
        dev->data_rows(dev->self, rows);
        return dev->forward(dev->self, mine, e);
    }
    model_work_data_rows(d->w, rows);
    return model_forward(d->c->model, d->w, d->c->pool, mine, e);
}

int data_forward(struct data *d, const struct model_batch *b, struct err *e)
{
    uint32_t rows[MODEL_RANKS_MAX] = {0}, n = 0;
    int rc = room_for_logits(d, b, e);
    if (rc)
        return rc;
    rc = sort_out(d, b, e);
    for (uint32_t i = 0; !rc && i < b->n_segments; i++) {
        rows[d->owners[i]] += d->all[i].n_tokens;
        if (d->owners[i] == d->rank)
            d->mine[n++] = d->all[i];
    }
    struct model_batch mine = *b;
    mine.segments = d->mine;
    mine.n_segments = n;
    mine.logits = d->logits;
    mine.logits_rows = model_batch_outputs(b);
    mine.draws = NULL; /* the others' rows come as logits */
    mine.layer_done = b->layer_done && !d->c->device && d->c->layout.expert == d->ranks * d->tensor
                          ? on_layer
                          : NULL;
    mine.ctx = d;
    d->batch = b;
    d->told = 0;
    if (!rc && (n || d->c->layout.expert > 1)) /* else nobody waits for a rank without rows */
        rc = compute(d, &mine, rows, e);
    rc = rc ? rc : collect(d, b, rows, e);
    if (!rc)
        tell(d, model_config(d->c->model)->n_layers);
    return rc;
}
