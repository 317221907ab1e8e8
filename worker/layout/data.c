#include "worker/layout/data.h"

#include <errno.h>
#include <stdlib.h>

struct data {
    const struct group_config *c;
    struct model_work *w;
    uint32_t ranks, rank, tensor, tensor_rank;
    struct model_segment *segments; /* of this data rank */
    uint32_t cap;
    float *logits; /* of this data rank, at rank 0 of all in turn */
    size_t logits_cap;
};

int data_new(const struct group_config *c, struct model_work *w, struct data **out, struct err *e)
{
    const struct model_layout *l = &c->layout;
    uint32_t x = l->expert ? l->expert : 1, places = l->tensor * l->data;
    if (l->pipeline > 1)
        return err_set(e, ENOTSUP, "data-parallel attention in a pipeline is not supported");
    if (x > 1 && places % x)
        return err_set(e, EINVAL, "experts over %u of %u ranks: not evenly", x, places);
    if (x > 1 && !model_config(c->model)->moe.experts)
        return err_set(e, EINVAL, "the model has no experts to deal over %u ranks", x);
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
    free(d->segments);
    free(d->logits);
    free(d);
}

static uint32_t owner(const struct data *d, const struct model_segment *s)
{
    return s->n_blocks ? s->blocks[0] % d->ranks : 0;
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
        if (n && owner(d, s) == rank) {
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
        if (owner(d, &b->segments[i]) == rank)
            n += b->segments[i].n_tokens - b->segments[i].logits_from;
    return n;
}

/* The first tensor rank of each data rank has its logits. */
static int collect(struct data *d, const struct model_batch *b, struct err *e)
{
    size_t row = model_config(d->c->model)->vocab * sizeof(float);
    int rc = 0;
    if (d->tensor_rank)
        return 0;
    if (d->rank) {
        uint32_t n = outputs_of(d, b, d->rank);
        return n ? comm_send(d->c->world, 0, d->logits, n * row, e) : 0;
    }
    spread(d, b, 0, d->logits);
    for (uint32_t rank = 1; !rc && rank < d->ranks; rank++) {
        uint32_t n = outputs_of(d, b, rank);
        if (n)
            rc = comm_recv(d->c->world, rank * d->tensor, d->logits, n * row, e);
        if (!rc)
            spread(d, b, rank, d->logits);
    }
    return rc;
}

int data_forward(struct data *d, const struct model_batch *b, struct err *e)
{
    uint32_t rows[MODEL_RANKS_MAX] = {0}, n = 0;
    int rc = room_for_logits(d, b, e);
    if (rc)
        return rc;
    if (b->n_segments > d->cap) {
        d->cap = b->n_segments;
        d->segments = xrealloc(d->segments, d->cap * sizeof *d->segments);
    }
    for (uint32_t i = 0; i < b->n_segments; i++) {
        uint32_t rank = owner(d, &b->segments[i]);
        rows[rank] += b->segments[i].n_tokens;
        if (rank == d->rank)
            d->segments[n++] = b->segments[i];
    }
    struct model_batch mine = *b;
    mine.segments = d->segments;
    mine.n_segments = n;
    mine.logits = d->logits;
    mine.logits_rows = model_batch_outputs(b);
    model_work_data_rows(d->w, rows);
    rc = model_forward(d->c->model, d->w, d->c->pool, &mine, e);
    return rc ? rc : collect(d, b, e);
}
