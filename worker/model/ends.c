/* Into the first layer and out of the last: embedding and head, of this rank's vocabulary. */
#include "worker/model/stage.h"

static void embed_row(struct step *s, const struct mat *m, uint32_t token, float *out)
{
    uint32_t v0 = s->p->vocab0;
    if (token >= v0 && token < s->p->vocab1)
        mat_row(m, token - v0, out);
    else
        memset(out, 0, s->c->d_model * sizeof *out);
}

/* Each rank has the rows of its tokens, the others add zero. */
static void embed_parts(struct step *s, const struct mat *m)
{
    uint32_t d = s->c->d_model, from, to;
    layer_split(s->w->n_rows, s->threads, s->thread, &from, &to);
    for (uint32_t r = from; r < to; r++)
        embed_row(s, m, s->w->rows[r].token, s->w->out + (size_t)r * d);
    pool_barrier(s->w->pool);
    layer_sum(s, s->w->out, (size_t)s->w->n_rows * d);
    for (uint32_t r = s->r0; r < s->r1; r++)
        memcpy(layer_row_h(s, r), s->w->out + (size_t)r * d, d * sizeof(float));
}

void stage_embed(struct step *s)
{
    struct mat m = image_mat(s->m, image_global(s->m, SLOT_EMBED));
    if (layer_shared(s))
        embed_parts(s, &m);
    else
        for (uint32_t r = s->r0; r < s->r1; r++)
            mat_row(&m, s->w->rows[r].token, layer_row_h(s, r));
    for (uint32_t r = s->r0; r < s->r1 && s->c->embed_scale != 1.0f; r++)
        s->ops->scale(layer_row_h(s, r), s->c->embed_scale, s->c->d_model);
}

/* What the stage before has sent lies in w->out. */
void stage_take_in(struct step *s)
{
    uint32_t d = s->c->d_model;
    for (uint32_t r = s->r0; r < s->r1; r++)
        memcpy(layer_row_h(s, r), s->w->out + (size_t)r * d, d * sizeof(float));
}

/* ---- out of the last layer ---- */

/* Rows of logits [at, at + n) of this rank's vocabulary, to the first rank. */
static void send_logits(struct step *s, uint32_t n)
{
    struct model_work *w = s->w;
    uint32_t vocab = s->p->vocab1 - s->p->vocab0;
    if (s->thread == 0 && w->rc == 0)
        w->rc = comm_send(w->o.group.tensor, 0, w->part_logits, (size_t)n * vocab * sizeof(float),
                          &w->err);
}

static void take_logits(struct step *s, float *y, uint32_t n)
{
    struct model_work *w = s->w;
    struct comm *tensor = w->o.group.tensor;
    struct model_shard other = s->m->shard;
    struct model_part p;
    for (uint32_t r = 1; s->thread == 0 && r < comm_ranks(tensor); r++) {
        other.tensor_rank = r;
        model_part_of(s->c, &other, &p);
        for (uint32_t i = 0; i < n && w->rc == 0; i++)
            w->rc = comm_recv(tensor, r, y + (size_t)i * s->c->vocab + p.vocab0,
                              (p.vocab1 - p.vocab0) * sizeof(float), &w->err);
    }
}

/* Inputs of rows from `at` on. */
static struct acts acts_from(struct acts x, uint32_t at)
{
    x.x += at * x.ldx;
    x.codes += (size_t)at * x.n_blocks * ACT_BLOCK_BYTES;
    x.blocks += (size_t)at * x.n_blocks;
    return x;
}

static void head_parts(struct step *s, const struct image_entry *weights, const struct acts *x)
{
    struct model_work *w = s->w;
    bool first = comm_rank(w->o.group.tensor) == 0;
    uint32_t vocab = s->p->vocab1 - s->p->vocab0;
    for (uint32_t at = 0; at < w->n_out; at += LOGIT_ROWS) {
        uint32_t n = w->n_out - at < LOGIT_ROWS ? w->n_out - at : LOGIT_ROWS;
        float *y = first ? w->batch->logits + (size_t)at * s->c->vocab : w->part_logits;
        struct layer_product p = {weights, first ? y + s->p->vocab0 : y,
                                  first ? s->c->vocab : vocab};
        struct acts rows = acts_from(*x, at);
        layer_products(s, &p, 1, &rows, n);
        if (first)
            take_logits(s, y, n);
        else
            send_logits(s, n);
        pool_barrier(w->pool);
    }
}

/* The final norm of rows that give logits, then the head. The rows lie in h, or (of a pipeline) one
 * after the other in w->out; they are compacted into `norm`. */
void stage_head(struct step *s, bool compact)
{
    const struct model_config *c = s->c;
    struct model_work *w = s->w;
    const float *norm = image_vec(s->m, image_global(s->m, SLOT_OUT_NORM));
    const struct image_entry *weights = image_global(s->m, c->tied ? SLOT_EMBED : SLOT_OUTPUT);
    uint32_t from = 0, to = w->n_out;
    if (!s->replicate)
        layer_split(w->n_out, s->threads, s->thread, &from, &to);
    for (uint32_t i = from; i < to; i++) {
        const float *h = compact ? w->out + (size_t)i * c->d_model : layer_row_h(s, w->out_rows[i]);
        s->ops->rms_norm(h, norm, c->norm_eps, c->d_model, layer_row_norm(s, i));
        layer_row_quantize(s, i, layer_row_norm(s, i), c->d_model);
    }
    layer_rows_done(s);
    struct acts x = layer_acts_of(s, c->d_model);
    struct layer_product p = {weights, w->batch->logits, c->vocab};
    if (w->n_out && layer_shared(s))
        head_parts(s, weights, &x);
    else if (w->n_out)
        layer_products(s, &p, 1, &x, w->n_out);
}
