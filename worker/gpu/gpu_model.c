#include "worker/gpu/ep.h"
#include "worker/gpu/gpu_model_int.h"
#include "worker/model/cut.h"

#include <errno.h>
#include <stdlib.h>

/* ---- making one ---- */

static int check_shapes(const struct model_config *c, struct err *e)
{
    if (c->mla.rank && !gpu_mla_has(c->mla.rank, c->rope_dims))
        return err_set(e, ENOTSUP,
                       "the GPU backend has no kernel for latents of %u and %u channels: use the "
                       "CPU backend",
                       c->mla.rank, c->rope_dims);
    if (!c->mla.rank && !gpu_attention_has(c->head_dim))
        return err_set(e, ENOTSUP,
                       "the GPU backend has no attention kernel for heads of %u channels: use the "
                       "CPU backend",
                       c->head_dim);
    if (c->moe.experts > EXPERTS_MAX || c->moe.used > TOP_K_MAX)
        return err_set(e, ENOTSUP, "the GPU backend has no kernel for %u of %u experts",
                       c->moe.used, c->moe.experts);
    if (c->d_model % 8 || c->d_ff % 8 || c->moe.d_expert % 8 || c->moe.d_shared % 8 ||
        c->mla.nope % 8 || c->mla.v % 8 || c->mla.q_rank % 8)
        return err_set(e, ENOTSUP, "the GPU backend needs widths that are multiples of 8");
    return 0;
}

static int check_ranks(const char *what, uint32_t n, const struct comm *c, struct err *e)
{
    uint32_t have = c ? comm_ranks(c) : 1, want = n ? n : 1;
    return have == want
               ? 0
               : err_set(e, EINVAL, "a part of %u ranks (%s) in a group of %u", want, what, have);
}

static int check(const struct model *m, const struct gpu_model_options *o, struct err *e)
{
    const struct model_config *c = model_config(m);
    const struct model_shard *s = model_shard_of(m);
    int rc = check_shapes(c, e);
    rc = rc ? rc : check_ranks("tensor", s->tensor, o->group.tensor, e);
    rc = rc ? rc : check_ranks("stages", s->pipeline, o->group.pipeline, e);
    if (rc < 0)
        return rc;
    if (!gpu_kv_has(o->kv_dtype))
        return err_set(e, ENOTSUP,
                       "the GPU backend keeps KV as f16, bf16, int8 or fp8 (--kv-dtype)");
    if (o->group.redundant)
        return err_set(e, ENOTSUP,
                       "the GPU backend keeps no copies of experts (--redundant-experts 0)");
    if (o->group.halves)
        return err_set(e, ENOTSUP,
                       "the GPU backend does not compute steps in two halves (--two-batch off)");
    if (o->max_rows < 1 || o->max_rows > 65535 || o->max_sequences < 1 || o->max_sequences > 1024 ||
        o->max_sequences > o->max_rows || o->pool_blocks > (1u << 24) ||
        o->max_outputs > o->max_rows)
        return err_set(e, EINVAL, "GPU model: %u rows, %u sequences, %u blocks are out of range",
                       o->max_rows, o->max_sequences, o->pool_blocks);
    return 0;
}

static uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

static int alloc_work(struct gpu_model *gm, struct err *e)
{
    const struct model_config *c = &gm->c;
    struct gpu_work *w = &gm->w;
    uint64_t n = gm->o.max_rows, s = gm->o.max_sequences + 1u, choices = n * c->moe.used;
    uint64_t outputs = gm->o.max_outputs, heads = gm->heads, q = heads * c->head_dim;
    uint64_t all = q + 2ull * gm->kv_heads * c->head_dim, ff = larger(gm->d_ff, gm->d_shared);
    uint64_t piece = gpu_expand_piece(gm);
    uint64_t parts = s * heads * 32, q_dim = c->mla.nope + c->rope_dims;
    bool mla = c->mla.rank != 0, lead = gm->tensor && gpu_leads(gm);
    uint64_t finals = gm->pipeline && (gm->part.first || gpu_is_last(gm)) ? outputs : 0;
    if (mla)
        all = heads * q_dim;
    if (c->moe.experts)
        gm->places = gpu_moe_places((uint32_t)choices, gm->experts);
    uint64_t places = gm->places;
    const struct {
        gpu_ptr *at;
        uint64_t bytes;
    } all_of_it[] = {
        {&w->tokens, n * 4},
        {&w->positions, n * 4},
        {&w->sequences, n * 4},
        {&w->tables, s * gm->table_ld * 4},
        {&w->tiles, (n + s) * sizeof(struct attn_tile)},
        {&w->take, n * 4},
        {&w->h, n * c->d_model * 4},
        {&w->x, n * larger(c->d_model, c->mla.q_rank) * 2},
        {&w->qkv, n * all * 4},
        {&w->q, n * q * 2},
        {&w->att, n * q * 2},
        {&w->out, n * c->d_model * 4},
        {&w->wide, n * 2 * ff * 4},
        {&w->act, n * ff * 2},
        {&w->part, parts * c->head_dim * 4},
        {&w->part_ml, parts * 8},
        {&w->q_a, n * c->mla.q_rank * 4},
        {&w->kv_a, mla ? n * c->head_dim * 4 : 0},
        {&w->q_nope, n * heads * c->mla.nope * 2},
        {&w->values, n * heads * c->mla.v * 2},
        {&w->ex_latent, piece * c->mla.rank * 2},
        {&w->ex_rope, piece * c->rope_dims * 2},
        {&w->ex_k, piece * heads * c->mla.nope * 2},
        {&w->ex_v, piece * heads * c->mla.v * 2},
        {&w->ex_state, piece && piece < gm->context_tokens ? n * heads * (c->mla.v + 2ull) * 4 : 0},
        {&w->logits, outputs * gm->vocab * 4},
        {&w->gathered, lead ? outputs * c->vocab * 4 : 0},
        {&w->draws, gpu_leads(gm) ? outputs * sizeof(struct sample_row) : 0},
        {&w->drawn, gpu_leads(gm) ? outputs * 4 : 0},
        {&w->finals, finals * c->d_model * 4},
        {&w->runs, finals * sizeof(struct run)},
        {&w->scores, n * c->moe.experts * 4},
        {&w->ids, choices * 4},
        {&w->weights, choices * 4},
        {&w->counts, gm->experts * 4ull},
        {&w->place, choices * 4},
        {&w->row_of, places * 4},
        {&w->expert_of, places / GEMM_TILE * 4},
        {&w->places_wide, places * 2 * gm->d_expert * 4},
        {&w->places_act, places * gm->d_expert * 2},
        {&w->places_out, places * c->d_model * 4},
    };
    int rc = 0;
    for (size_t i = 0; i < sizeof all_of_it / sizeof *all_of_it && rc == 0; i++) {
        rc = gpu_alloc(gm, all_of_it[i].bytes, false, all_of_it[i].at, e);
        gm->stats.work_bytes += all_of_it[i].bytes;
    }
    return rc;
}

int gpu_model_pool(struct gpu_model *gm, uint32_t blocks, struct err *e)
{
    gm->o.pool_blocks = blocks;
    /* one block more than the caller has: where a graph's padding writes */
    gm->stats.kv_bytes = (blocks + 1ull) * gm->kv.block_bytes;
    return gpu_alloc(gm, gm->stats.kv_bytes, false, &gm->pool, e);
}

static void alloc_host(struct gpu_model *gm)
{
    uint32_t n = gm->o.max_rows, s = gm->o.max_sequences + 1;
    gm->tokens = xcalloc(n, 4);
    gm->positions = xcalloc(n, 4);
    gm->sequences = xcalloc(n, 4);
    gm->take = xcalloc(n, 4);
    gm->out_of = xcalloc(n, 4);
    gm->tables = xcalloc((size_t)s * gm->table_ld, 4);
    gm->tiles = xcalloc(n + s, sizeof *gm->tiles);
    gm->expands = xcalloc(s, sizeof *gm->expands);
    gm->logits = xcalloc((size_t)(gm->tensor ? larger(gm->o.max_outputs, s) : s) * gm->c.vocab, 4);
    gm->draws = xcalloc(gm->o.max_outputs, sizeof *gm->draws);
    gm->drawn = xcalloc(gm->o.max_outputs, sizeof *gm->drawn);
    gm->written = xcalloc(gm->c.n_layers, sizeof(struct gpu_event *));
    gm->runs = xcalloc(gm->o.max_outputs, sizeof *gm->runs);
    gm->segments = xcalloc(s, sizeof *gm->segments);
}

static int events(struct gpu_model *gm, struct err *e)
{
    int rc = gm->g->ops->event_new(gm->g, &gm->received, e);
    for (uint32_t i = 0; i < gpu_layers(gm) && rc == 0; i++)
        rc = gm->g->ops->event_new(gm->g, &gm->written[i], e);
    return rc;
}

static void take_part(struct gpu_model *gm, const struct model *m)
{
    const struct model_part *p = model_part(m);
    gm->c = *model_config(m);
    gm->shard = *model_shard_of(m);
    gm->part = *p;
    gm->heads = p->q1 - p->q0;
    gm->kv_heads = p->kv1 - p->kv0;
    gm->d_ff = p->ff1 - p->ff0;
    gm->d_shared = p->shared1 - p->shared0;
    gm->d_expert = p->expert_ff1 - p->expert_ff0;
    gm->experts = p->expert1 - p->expert0;
    gm->vocab = p->first ? p->vocab1 - p->vocab0 : 0;
}

static void take_options(struct gpu_model *gm, const struct gpu_model_options *o)
{
    uint64_t most = (uint64_t)o->pool_blocks * gm->kv.block_tokens;
    gm->o = *o;
    gm->o.max_outputs = o->max_outputs ? o->max_outputs : o->max_rows;
    gm->context_tokens = gm->c.context_tokens;
    if (o->max_context && o->max_context < gm->context_tokens)
        gm->context_tokens = o->max_context;
    if (o->pool_blocks && most < gm->context_tokens)
        gm->context_tokens = (uint32_t)most;
    gm->table_ld = (gm->context_tokens + gm->kv.block_tokens - 1) / gm->kv.block_tokens;
}

int gpu_model_new(struct gpu *g, const struct model *m, const struct gpu_model_options *o,
                  struct gpu_model **out, struct err *e)
{
    int rc = check(m, o, e);
    if (rc < 0)
        return rc;
    struct gpu_model *gm = xcalloc(1, sizeof *gm);
    gm->g = g;
    take_part(gm, m);
    rc = model_kv_part(&gm->kv, &gm->c, &gm->part, o->kv_dtype,
                       o->block_tokens ? o->block_tokens : MODEL_BLOCK_TOKENS, e);
    const struct model_group *by = &o->group;
    rc = rc ? rc : gpu_link_new(g, by->tensor, o->host_links, &gm->tensor, e);
    rc = rc ? rc : gpu_link_new(g, by->pipeline, o->host_links, &gm->pipeline, e);
    rc = rc ? rc : gpu_link_new(g, by->expert, o->host_links, &gm->expert, e);
    if (rc == 0) {
        take_options(gm, o);
        alloc_host(gm);
        rc = events(gm, e);
    }
    if (rc == 0)
        rc = gpu_weights_load(gm, m, e);
    if (rc == 0)
        rc = alloc_work(gm, e);
    if (rc == 0)
        rc = gpu_ep_new(gm, &gm->ep, e);
    if (rc == 0 && o->pool_blocks)
        rc = gpu_model_pool(gm, o->pool_blocks, e);
    if (rc < 0) {
        gpu_model_free(gm);
        return rc;
    }
    *out = gm;
    return 0;
}

static void release(struct gpu_model *gm, gpu_ptr p)
{
    if (p)
        gm->g->ops->release(gm->g, p);
}

static void release_layer(struct gpu_model *gm, const struct gpu_layer *l)
{
    const gpu_ptr all[] = {l->qkv.at,
                           l->o.at,
                           l->gate_up.at,
                           l->down.at,
                           l->router.at,
                           l->router_bias,
                           l->expert_gate_up.at,
                           l->expert_down.at,
                           l->attn_norm,
                           l->ffn_norm,
                           l->post_attn,
                           l->post_ffn,
                           l->q_norm,
                           l->k_norm,
                           l->bias,
                           l->q_a.at,
                           l->q_b.at,
                           l->kv_a.at,
                           l->k_up.at,
                           l->v_up.at,
                           l->q_a_norm,
                           l->kv_a_norm};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        release(gm, all[i]);
}

void gpu_model_free(struct gpu_model *gm)
{
    if (!gm)
        return;
    for (uint32_t i = 0; i < GRAPH_SIZES; i++)
        if (gm->graphs[i])
            gm->g->ops->graph_free(gm->g, gm->graphs[i]);
    for (uint32_t i = 0; gm->layers && i < gm->c.n_layers; i++)
        release_layer(gm, &gm->layers[i]);
    if (gm->head.at != gm->embed.at)
        release(gm, gm->head.at);
    const gpu_ptr rest[] = {gm->embed.at, gm->out_norm, gm->cs_global, gm->cs_local, gm->pool};
    for (size_t i = 0; i < sizeof rest / sizeof *rest; i++)
        release(gm, rest[i]);
    const gpu_ptr *work = (const gpu_ptr *)&gm->w;
    for (size_t i = 0; i < sizeof gm->w / sizeof *work; i++)
        release(gm, work[i]);
    gpu_ep_release(gm);
    gpu_ep_free(gm->ep);
    gpu_link_free(gm->tensor);
    gpu_link_free(gm->pipeline);
    gpu_link_free(gm->expert);
    free(gm->runs);
    free(gm->segments);
    free(gm->layers);
    free(gm->written);
    free(gm->tokens);
    free(gm->positions);
    free(gm->sequences);
    free(gm->tables);
    free(gm->take);
    free(gm->out_of);
    free(gm->tiles);
    free(gm->expands);
    free(gm->logits);
    free(gm->draws);
    free(gm->drawn);
    free(gm);
}

const struct model_kv *gpu_model_kv(const struct gpu_model *gm)
{
    return &gm->kv;
}

struct gpu_model_stats gpu_model_stats(const struct gpu_model *gm)
{
    return gm->stats;
}

void gpu_model_data_rows(struct gpu_model *gm, const uint32_t *rows)
{
    if (gm->ep)
        gpu_ep_data_rows(gm->ep, rows);
}

/* ---- a batch ---- */

static int check_segment(const struct gpu_model *gm, const struct model_segment *s, struct err *e)
{
    uint64_t end = (uint64_t)s->start + s->n_tokens;
    if (!s->n_tokens || end > gm->context_tokens || s->logits_from > s->n_tokens)
        return err_set(e, EINVAL, "a segment of %u tokens from position %u (the context is %u)",
                       s->n_tokens, s->start, gm->context_tokens);
    if (end > (uint64_t)s->n_blocks * gm->kv.block_tokens)
        return err_set(e, EINVAL, "%u KV blocks do not hold %llu tokens", s->n_blocks,
                       (unsigned long long)end);
    for (uint32_t i = 0; i < s->n_tokens; i++)
        if (s->tokens[i] >= gm->c.vocab)
            return err_set(e, EINVAL, "token %u is outside the vocabulary of %u", s->tokens[i],
                           gm->c.vocab);
    for (uint64_t i = 0; i * gm->kv.block_tokens < end; i++)
        if (s->blocks[i] >= gm->o.pool_blocks)
            return err_set(e, EINVAL, "KV block %u is outside the pool of %u", s->blocks[i],
                           gm->o.pool_blocks);
    return 0;
}

static int check_batch(const struct gpu_model *gm, const struct model_batch *b, struct err *e)
{
    uint64_t rows = 0;
    if (b->n_segments > gm->o.max_sequences)
        return err_set(e, EINVAL, "a batch of %u sequences (at most %u)", b->n_segments,
                       gm->o.max_sequences);
    for (uint32_t i = 0; i < b->n_segments; i++) {
        int rc = check_segment(gm, &b->segments[i], e);
        if (rc < 0)
            return rc;
        rows += b->segments[i].n_tokens;
    }
    uint32_t outputs = model_batch_outputs(b),
             most = b->logits_rows < gm->o.max_outputs ? b->logits_rows : gm->o.max_outputs;
    if (rows > gm->o.max_rows || outputs > most)
        return err_set(e, EINVAL, "a batch of %llu rows and %u outputs (at most %u and %u)",
                       (unsigned long long)rows, outputs, gm->o.max_rows, most);
    return 0;
}

static void add_tiles(struct gpu_model *gm, struct gpu_plan *p, const struct model_segment *s,
                      uint32_t sequence)
{
    uint32_t first = p->tiles;
    for (uint32_t i = 0; i < s->n_tokens; i += ATTN_ROWS) {
        uint32_t n = s->n_tokens - i < ATTN_ROWS ? s->n_tokens - i : ATTN_ROWS;
        gm->tiles[p->tiles++] = (struct attn_tile){p->rows + i, n, s->start + i, sequence};
    }
    if (gm->c.mla.rank)
        gm->expands[p->expands++] =
            (struct gpu_expand){sequence, first, p->tiles - first, s->start + s->n_tokens};
}

static void add_segment(struct gpu_model *gm, struct gpu_plan *p, const struct model_segment *s,
                        uint32_t sequence, uint32_t first_output)
{
    uint32_t *table = gm->tables + (size_t)sequence * gm->table_ld, end = s->start + s->n_tokens;
    for (uint32_t i = 0; (uint64_t)i * gm->kv.block_tokens < end; i++)
        table[i] = s->blocks[i];
    for (uint32_t i = 0; i < s->n_tokens; i++) {
        gm->tokens[p->rows + i] = s->tokens[i];
        gm->positions[p->rows + i] = s->start + i;
        gm->sequences[p->rows + i] = sequence;
        if (i >= s->logits_from)
            gm->take[first_output + i - s->logits_from] = p->rows + i;
    }
    p->max_tokens = larger(p->max_tokens, end);
    p->rows += s->n_tokens;
}

enum { SINGLE, FLAT, TILED }; /* how a segment's attention is computed */

static int way_of(const struct gpu_model *gm, const struct model_segment *s)
{
    if (s->n_tokens == 1)
        return SINGLE;
    return gm->c.mla.rank && !gpu_expands(gm, s->n_tokens) ? FLAT : TILED;
}

/* Single tokens first, then chunks; outputs stay in the caller's order. */
static struct gpu_plan plan(struct gpu_model *gm, const struct model_batch *b)
{
    struct gpu_plan p = {.sequences = b->n_segments, .outputs = model_batch_outputs(b)};
    for (int way = SINGLE; way <= TILED; way++) {
        uint32_t output = 0;
        for (uint32_t i = 0; i < b->n_segments; i++) {
            const struct model_segment *s = &b->segments[i];
            if (way_of(gm, s) == way) {
                if (way == TILED)
                    add_tiles(gm, &p, s, i);
                add_segment(gm, &p, s, i, output);
            }
            output += s->n_tokens - s->logits_from;
        }
        if (way == SINGLE)
            p.decode_rows = p.rows;
        if (way <= FLAT)
            p.flat_rows = p.rows;
    }
    return p;
}

/* From a micro-batch's rows to where the last stage keeps those that give logits. */
static void lay_runs(struct gpu_model *gm, const struct gpu_plan *p)
{
    uint64_t row = gm->c.d_model * 4ull;
    for (uint32_t i = 0; i < p->outputs; i++)
        gm->runs[i] = (struct run){gm->take[i] * row, (p->out_at + i) * row, row};
}

static int tell(struct gpu_model *gm, const struct gpu_plan *p, struct err *e)
{
    bool keeps = gm->pipeline && gpu_is_last(gm);
    if (keeps)
        lay_runs(gm, p);
    const struct {
        gpu_ptr to;
        const void *from;
        uint64_t bytes;
    } all[] = {
        {gm->w.tokens, gm->tokens, p->rows * 4ull},
        {gm->w.positions, gm->positions, p->rows * 4ull},
        {gm->w.sequences, gm->sequences, p->rows * 4ull},
        {gm->w.tables, gm->tables, (uint64_t)p->sequences * gm->table_ld * 4},
        {gm->w.tiles, gm->tiles, p->tiles * sizeof *gm->tiles},
        {gm->w.take, gm->take, p->outputs * 4ull},
        {gm->w.runs, gm->runs, keeps ? p->outputs * sizeof *gm->runs : 0},
    };
    int rc = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all && rc == 0; i++)
        if (all[i].bytes)
            rc = gm->g->ops->to_device(gm->g, GPU_COMPUTE, all[i].to, all[i].from, all[i].bytes, e);
    if (rc == 0 && gm->received_any) {
        rc = gm->g->ops->event_wait(gm->g, gm->received, GPU_COMPUTE, e);
        gm->received_any = false;
    }
    return rc;
}

/* ---- running ---- */

/* Calls layer_done as layers come, in order, while later ones compute. */
static int announce(struct gpu_model *gm, const struct model_batch *b, struct err *e)
{
    for (uint32_t l = 0; b->layer_done && l < gpu_layers(gm); l++) {
        int done = 0;
        while (done == 0)
            done = gm->g->ops->event_done(gm->g, gm->written[l], e);
        if (done < 0)
            return done;
        b->layer_done(b->ctx, gm->part.layer0 + l);
    }
    return 0;
}

/* Layers that were not announced: when logits are there, every stage has written its own. */
static void announce_rest(const struct gpu_model *gm, const struct model_batch *b, uint32_t from)
{
    for (uint32_t l = from; b->layer_done && l < gm->c.n_layers; l++)
        b->layer_done(b->ctx, l);
}

static struct nccl *any_nccl(const struct gpu_model *gm)
{
    const struct gpu_link *links[] = {gm->tensor, gm->pipeline, gm->expert};
    struct nccl *n = NULL;
    for (size_t i = 0; i < sizeof links / sizeof *links && !n; i++)
        n = gpu_link_nccl(links[i]);
    return n;
}

int gpu_await(struct gpu_model *gm, struct err *e)
{
    struct nccl *n = any_nccl(gm);
    if (n)
        nccl_waiting(n, true);
    int rc = gm->g->ops->sync(gm->g, GPU_COMPUTE, e);
    if (n) {
        nccl_waiting(n, false);
        int failed = nccl_failed(n, e);
        rc = failed ? failed : rc;
    }
    return rc;
}

static int put_part(struct gpu_model *gm, struct gpu_plan *p, struct err *e)
{
    p->record = true;
    gm->stats.micro_batches++;
    int rc = tell(gm, p, e);
    if (rc == 0 && gm->ep)
        rc = gpu_ep_begin(gm, e);
    return rc == 0 ? gpu_step(gm, p, e) : rc;
}

/* All of it, in a pipeline in micro-batches: they follow each other through the stages' streams. */
static int put_batch(struct gpu_model *gm, const struct model_batch *b, uint32_t *outputs,
                     struct err *e)
{
    uint32_t stages = gpu_link_ranks(gm->pipeline), rows = batch_part_rows(batch_rows(b), stages);
    struct batch_cut at = {0};
    struct model_batch part;
    struct gpu_plan p;
    int rc = 0;
    *outputs = 0;
    if (stages == 1) {
        p = plan(gm, b);
        *outputs = p.outputs;
        rc = put_part(gm, &p, e);
    }
    while (stages > 1 && rc == 0 && batch_next(b, rows, &at, gm->segments, &part)) {
        p = plan(gm, &part);
        p.out_at = *outputs;
        *outputs += p.outputs;
        rc = put_part(gm, &p, e);
    }
    return rc == 0 ? gpu_step_end(gm, *outputs, e) : rc;
}

static int run_eager(struct gpu_model *gm, const struct model_batch *b, struct err *e)
{
    uint32_t outputs;
    int rc = put_batch(gm, b, &outputs, e);
    if (rc == 0)
        rc = announce(gm, b, e);
    if (rc == 0)
        rc = gpu_take(gm, b, outputs, outputs, e);
    if (rc == 0)
        announce_rest(gm, b, gm->part.layer1);
    return rc;
}

/* The graph size for a batch of single tokens that each give logits; GRAPH_SIZES: none. */
static uint32_t graph_of(const struct gpu_model *gm, const struct gpu_plan *p)
{
    if (gm->o.no_graphs || gm->o.host_links || gm->ep || p->decode_rows != p->rows ||
        p->outputs != p->rows || !p->rows)
        return GRAPH_SIZES;
    uint32_t i = 0;
    while (i < GRAPH_SIZES && (1u << i) < p->rows)
        i++;
    uint32_t rows = 1u << (i < GRAPH_SIZES ? i : 0);
    return rows <= gm->o.max_sequences && rows <= gm->o.max_outputs ? i : GRAPH_SIZES;
}

/* Rows up to the graph's size: a token that nobody asked for, in a block that nobody has. */
static void pad(struct gpu_model *gm, struct gpu_plan *p, uint32_t rows)
{
    if (rows > p->rows)
        gm->tables[(size_t)p->sequences * gm->table_ld] = gm->o.pool_blocks;
    for (uint32_t r = p->rows; r < rows; r++) {
        gm->tokens[r] = gm->positions[r] = 0;
        gm->sequences[r] = p->sequences;
        gm->take[r] = r;
    }
    p->sequences += rows > p->rows;
    p->rows = p->decode_rows = p->flat_rows = p->outputs = rows;
    p->max_tokens = gm->context_tokens; /* a graph serves every length */
}

static int put_whole(struct gpu_model *gm, const struct gpu_plan *p, struct err *e)
{
    int rc = gpu_step(gm, p, e);
    return rc == 0 ? gpu_step_end(gm, p->outputs, e) : rc;
}

static int capture(struct gpu_model *gm, const struct gpu_plan *p, uint32_t size, struct err *e)
{
    struct gpu_graph *graph = NULL;
    int rc = gm->g->ops->capture_begin(gm->g, e);
    if (rc < 0)
        return rc;
    rc = put_whole(gm, p, e);
    int end = gm->g->ops->capture_end(gm->g, &graph, rc < 0 ? NULL : e);
    if (rc < 0 || end < 0) {
        if (end == 0)
            gm->g->ops->graph_free(gm->g, graph);
        return rc < 0 ? rc : end;
    }
    gm->graphs[size] = graph;
    gm->stats.graphs++;
    return 0;
}

static int run_graph(struct gpu_model *gm, const struct model_batch *b, struct gpu_plan *p,
                     uint32_t size, struct err *e)
{
    uint32_t outputs = p->outputs;
    pad(gm, p, 1u << size);
    int rc = tell(gm, p, e);
    if (rc == 0 && !gm->warm[size]) { /* the first time also finds the products' algorithms */
        rc = put_whole(gm, p, e);
        gm->warm[size] = true;
    } else if (rc == 0) {
        if (!gm->graphs[size])
            rc = capture(gm, p, size, e);
        if (rc == 0)
            rc = gm->g->ops->graph_run(gm->g, gm->graphs[size], e);
        gm->stats.graph_runs++;
    }
    if (rc == 0)
        rc = gpu_take(gm, b, p->outputs, outputs, e);
    if (rc == 0)
        announce_rest(gm, b, 0);
    return rc;
}

int gpu_model_forward(struct gpu_model *gm, const struct model_batch *b, struct err *e)
{
    int rc = check_batch(gm, b, e);
    if (rc < 0 || (!b->n_segments && !gm->ep))
        return rc;
    struct gpu_plan p = plan(gm, b);
    uint32_t size = graph_of(gm, &p);
    gm->stats.steps++;
    if (size == GRAPH_SIZES)
        return run_eager(gm, b, e);
    gm->stats.micro_batches++;
    return run_graph(gm, b, &p, size, e);
}

/* ---- pieces of the cache ---- */

static int piece_at(const struct gpu_model *gm, uint32_t block, uint32_t layer, gpu_ptr *out,
                    struct err *e)
{
    if (block >= gm->o.pool_blocks || layer >= gpu_layers(gm))
        return err_set(e, EINVAL, "KV block %u, layer %u: there is no such piece", block, layer);
    *out = gm->pool + model_kv_piece_offset(&gm->kv, block, layer);
    return 0;
}

int gpu_model_read_piece(struct gpu_model *gm, uint32_t block, uint32_t layer, void *out,
                         struct err *e)
{
    gpu_ptr at = 0;
    int rc = piece_at(gm, block, layer, &at, e);
    if (rc == 0)
        rc = gm->g->ops->event_wait(gm->g, gm->written[layer], GPU_COPY, e);
    if (rc == 0)
        rc = gm->g->ops->to_host(gm->g, GPU_COPY, out, at, gm->kv.piece_bytes, e);
    return rc == 0 ? gm->g->ops->sync(gm->g, GPU_COPY, e) : rc;
}

int gpu_model_copy_block(struct gpu_model *gm, uint32_t from, uint32_t to, struct err *e)
{
    gpu_ptr a = 0, b = 0;
    int rc = piece_at(gm, from, 0, &a, e);
    rc = rc ? rc : piece_at(gm, to, 0, &b, e);
    if (rc == 0 && gm->received_any) /* `from` may just have come */
        rc = gm->g->ops->event_wait(gm->g, gm->received, GPU_COMPUTE, e);
    return rc == 0 ? gm->g->ops->copy(gm->g, GPU_COMPUTE, b, a, gm->kv.block_bytes, e) : rc;
}

int gpu_model_write_piece(struct gpu_model *gm, uint32_t block, uint32_t layer, const void *from,
                          struct err *e)
{
    gpu_ptr at = 0;
    int rc = piece_at(gm, block, layer, &at, e);
    if (rc == 0)
        rc = gm->g->ops->to_device(gm->g, GPU_COPY, at, from, gm->kv.piece_bytes, e);
    if (rc == 0)
        rc = gm->g->ops->event_record(gm->g, gm->received, GPU_COPY, e);
    gm->received_any = true;
    return rc;
}

int gpu_model_fetch(struct gpu_model *gm, const uint32_t *blocks, uint32_t n, uint32_t from,
                    uint32_t to, uint8_t *pool, struct err *e)
{
    gpu_ptr at = 0;
    if (from >= to || to > gpu_layers(gm))
        return err_set(e, EINVAL, "KV layers %u to %u of %u", from, to, gpu_layers(gm));
    /* The last layer's event, and whatever graphs and copies of blocks have put there since. */
    int rc = gm->g->ops->event_wait(gm->g, gm->written[to - 1], GPU_COPY, e);
    if (rc == 0 && to - from > 1)
        rc = gpu_await(gm, e);
    for (uint32_t i = 0; i < n && rc == 0; i++) {
        rc = piece_at(gm, blocks[i], from, &at, e);
        if (rc == 0)
            rc = gm->g->ops->to_host(gm->g, GPU_COPY,
                                     pool + model_kv_piece_offset(&gm->kv, blocks[i], from), at,
                                     (to - from) * gm->kv.piece_bytes, e);
    }
    return rc == 0 ? gm->g->ops->sync(gm->g, GPU_COPY, e) : rc;
}

int gpu_model_store(struct gpu_model *gm, const uint32_t *blocks, uint32_t n, const uint8_t *pool,
                    struct err *e)
{
    gpu_ptr at = 0;
    int rc = 0;
    for (uint32_t i = 0; i < n && rc == 0; i++) {
        rc = piece_at(gm, blocks[i], 0, &at, e);
        if (rc == 0)
            rc = gm->g->ops->to_device(gm->g, GPU_COPY, at,
                                       pool + model_kv_piece_offset(&gm->kv, blocks[i], 0),
                                       gm->kv.block_bytes, e);
    }
    if (rc == 0)
        rc = gm->g->ops->event_record(gm->g, gm->received, GPU_COPY, e);
    gm->received_any = true;
    return rc == 0 ? gm->g->ops->sync(gm->g, GPU_COPY, e) : rc;
}
