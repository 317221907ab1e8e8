#include "worker/layout/group.h"
#include "lib/base/clock.h"
#include "lib/decide/overlap.h"
#include "worker/layout/data.h"
#include "worker/model/cut.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

/* A plan is broadcast as one block of FIRST_BYTES, that begins with the size of all, and what does
 * not fit into it. Words are the machine's. */
#define FIRST_BYTES 2048u
#define PLAN_MAX    (64u << 20)

enum command {
    COMMAND_FORWARD = 1, /* n_segments, whether in two halves, then of each: n_tokens, start,
                            n_blocks, logits_from, tokens, blocks */
    COMMAND_COPY,        /* from, to */
    COMMAND_FETCH,       /* n, blocks: ranks apart send them */
    COMMAND_STORE,       /* n, blocks: ranks apart receive them */
    COMMAND_SLEEP,       /* whether */
    COMMAND_REPORT,
    COMMAND_STOP,
};

struct words {
    uint32_t *data; /* data[0]: bytes of all */
    size_t n, cap;
};

struct group {
    struct group_config c;
    struct data *data; /* NULL: one data rank */
    struct overlap overlap;
    struct model_work *work;
    struct words plan, stores; /* stores: blocks that go out with the plan, from data[1] on */
    struct words here;         /* blocks of this rank, while a device is told of them */
    size_t block_bytes[MODEL_RANKS_MAX];
    struct model_segment *segments; /* of a follower's step */
    uint32_t cap_segments;
    bool stopped;
    /* Of a pipeline: plans are streams, so that rank 0 needn't wait for ranks that compute. */
    bool streams;
    uint32_t in_air, rows_in_air; /* batches begun */
    int late;                     /* what failed in a call that can't say so: the next step does */
    struct err late_err;
};

static uint32_t *grow(struct words *w, size_t n)
{
    if (w->n + n > w->cap) {
        w->cap = 2 * (w->n + n) + FIRST_BYTES / 4;
        w->data = xrealloc(w->data, w->cap * sizeof *w->data);
    }
    w->n += n;
    return w->data + w->n - n;
}

static void put(struct words *w, uint32_t v)
{
    *grow(w, 1) = v;
}

static void put_all(struct words *w, const uint32_t *v, uint32_t n)
{
    uint32_t *to = grow(w, n);
    if (n)
        memcpy(to, v, n * sizeof *v);
}

static void clear(struct words *w)
{
    w->n = 0;
    put(w, 0);
}

int group_split(const struct model_layout *l, uint32_t rank, struct comm *world,
                struct model_group *mine, struct err *e)
{
    struct model_shard shard = model_layout_shard(l, rank);
    uint32_t stages = l->pipeline ? l->pipeline : 1, data = rank / (shard.tensor * stages);
    uint32_t place = data * shard.tensor + shard.tensor_rank, x = shard.expert;
    int rc = comm_split(world, rank / shard.tensor, &mine->tensor, e);
    rc = rc ? rc : comm_split(world, shard.tensor_rank + data * shard.tensor, &mine->pipeline, e);
    if (!rc && l->data > 1)
        rc = comm_split(world, shard.stage + place / x * stages, &mine->expert, e);
    mine->expert_first = place / x * x;
    mine->data = l->data;
    return rc;
}

static int block_bytes_of(struct group *g, uint32_t rank, struct err *e)
{
    const struct model_config *mc = model_config(g->c.model);
    struct model_shard s = model_layout_shard(&g->c.layout, rank);
    const struct model_work_options *o = &g->c.work;
    struct model_part p;
    struct model_kv kv;
    model_part_of(mc, &s, &p);
    int rc = model_kv_part(&kv, mc, &p, o->kv_dtype,
                           o->block_tokens ? o->block_tokens : MODEL_BLOCK_TOKENS, e);
    g->block_bytes[rank] = rc ? 0 : kv.block_bytes;
    return rc;
}

int group_new(const struct group_config *c, struct group **out, struct err *e)
{
    struct group *g = xcalloc(1, sizeof *g);
    uint32_t ranks = model_layout_ranks(&c->layout);
    int rc = 0;
    g->c = *c;
    clear(&g->plan);
    clear(&g->stores);
    if (c->world && comm_ranks(c->world) != ranks)
        rc = err_set(e, EINVAL, "a layout of %u ranks for a group of %u", ranks,
                     comm_ranks(c->world));
    else if (ranks > 1 && !c->world)
        rc = err_set(e, EINVAL, "a layout of %u ranks needs a group", ranks);
    if (!rc && ranks > 1)
        rc = group_split(&c->layout, c->rank, c->world, &g->c.work.group, e);
    g->c.work.group.halves = c->halves != GROUP_WHOLE && !c->device;
    for (uint32_t r = 0; !rc && r < ranks; r++)
        rc = block_bytes_of(g, r, e);
    g->streams = c->layout.pipeline > 1 && c->layout.data < 2 && !c->device;
    if (c->device)
        g->c.work.threads = 1; /* nothing is computed with it */
    rc = rc ? rc : model_work_new(c->model, &g->c.work, &g->work, e);
    if (!rc && c->layout.data > 1)
        rc = data_new(&g->c, g->work, &g->data, e);
    if (!rc && c->world &&
        c->work.group
            .cover) /* all have what they need of each other: one may be masked from now on */
        rc = comm_barrier(c->world, e);
    if (rc) {
        group_free(g);
        return rc;
    }
    *out = g;
    return 0;
}

void group_free(struct group *g)
{
    if (!g)
        return;
    data_free(g->data);
    model_work_free(g->work);
    free(g->plan.data);
    free(g->stores.data);
    free(g->here.data);
    free(g->segments);
    free(g);
}

uint32_t group_ranks(const struct group *g)
{
    return g->c.world ? comm_ranks(g->c.world) : 1;
}

const struct model_work *group_work(const struct group *g)
{
    return g->work;
}

/* ---- rank 0 ---- */

/* Blocks of all data ranks. */
static uint32_t all_blocks(const struct group *g)
{
    return g->c.work.pool_blocks * (g->c.layout.data > 1 ? g->c.layout.data : 1);
}

/* The number that a block has in a rank's pool; false: it lies at another data rank. */
static bool block_of(const struct group *g, uint32_t rank, uint32_t *block)
{
    const struct model_layout *l = &g->c.layout;
    uint32_t data = l->data > 1 ? rank / (l->tensor * l->pipeline) : 0, n = g->c.work.pool_blocks;
    bool here = *block / n == data;
    *block -= here ? data * n : 0;
    return here;
}

/* Blocks between rank 0's copies and the ranks that they are copies of. */
static int move_copies(struct group *g, const uint32_t *blocks, size_t n, bool out, struct err *e)
{
    int rc = 0;
    for (uint32_t r = 1; r < group_ranks(g); r++)
        for (size_t i = 0; g->c.apart[r] && i < n && !rc; i++) {
            uint32_t b = blocks[i];
            if (!block_of(g, r, &b))
                continue;
            uint8_t *p = g->c.copies[r] + b * g->block_bytes[r];
            rc = out ? comm_send(g->c.world, r, p, g->block_bytes[r], e)
                     : comm_recv(g->c.world, r, p, g->block_bytes[r], e);
        }
    return rc;
}

static int send_stores(struct group *g, struct err *e)
{
    int rc = move_copies(g, g->stores.data + 1, g->stores.n - 1, true, e);
    clear(&g->stores);
    return rc;
}

static int tell(struct group *g, void *data, size_t bytes, struct err *e)
{
    struct comm_flow f[MODEL_RANKS_MAX];
    uint32_t n = group_ranks(g) - 1;
    if (!g->streams)
        return comm_broadcast(g->c.world, 0, data, bytes, e);
    for (uint32_t r = 0; r < n; r++)
        f[r] = (struct comm_flow){r + 1, true, data, bytes};
    return comm_exchange(g->c.world, f, n, e);
}

static int hear(struct group *g, void *data, size_t bytes, struct err *e)
{
    return g->streams ? comm_recv(g->c.world, 0, data, bytes, e)
                      : comm_broadcast(g->c.world, 0, data, bytes, e);
}

/* Ranks that live come together again after one was masked. */
static int regroup(struct group *g, struct err *e)
{
    int rc = comm_regroup(g->c.world, e);
    if (!rc)
        model_work_regroup(g->work);
    return rc;
}

/* `again`: words of the plan that wait for the next one when a rank was masked meanwhile. Some
 * ranks may have obeyed them by then, which does no harm: a copied block is written from where its
 * sequence has got to before it is read. */
static int send_words(struct group *g, size_t again, struct err *e)
{
    struct words *w = &g->plan;
    size_t bytes = w->n * sizeof *w->data;
    if (bytes > PLAN_MAX)
        return err_set(e, EINVAL, "a step plan of %zu bytes", bytes);
    if (bytes < FIRST_BYTES)
        memset(grow(w, FIRST_BYTES / 4 - w->n), 0, FIRST_BYTES - bytes);
    w->data[0] = (uint32_t)bytes;
    int rc = tell(g, w->data, FIRST_BYTES, e);
    if (!rc && bytes > FIRST_BYTES)
        rc = tell(g, (uint8_t *)w->data + FIRST_BYTES, bytes - FIRST_BYTES, e);
    if (rc == -ECANCELED)
        w->n = again;
    else
        clear(w);
    return rc ? rc : send_stores(g, e);
}

/* A plan that is to come through whoever is masked meanwhile. */
static int send_plan(struct group *g, struct err *e)
{
    for (;;) {
        int rc = send_words(g, g->plan.n, e);
        if (rc != -ECANCELED)
            return rc;
        if ((rc = regroup(g, e)))
            return rc;
    }
}

static void plan_forward(struct words *w, const struct model_batch *b, bool halve)
{
    put(w, COMMAND_FORWARD);
    put(w, b->n_segments);
    put(w, halve);
    for (uint32_t i = 0; i < b->n_segments; i++) {
        const struct model_segment *s = &b->segments[i];
        put_all(w, (const uint32_t[]){s->n_tokens, s->start, s->n_blocks, s->logits_from}, 4);
        put_all(w, s->tokens, s->n_tokens);
        put_all(w, s->blocks, s->n_blocks);
    }
}

static int forward(struct group *g, const struct model_batch *b, struct err *e)
{
    if (g->c.device && g->late) {
        *e = g->late_err;
        return g->late;
    }
    if (g->data)
        return data_forward(g->data, b, e);
    return g->c.device ? g->c.device->forward(g->c.device->self, b, e)
                       : model_forward(g->c.model, g->work, g->c.pool, b, e);
}

static bool choose_halves(struct group *g, const struct model_batch *b)
{
    bool wanted = g->data && g->c.halves != GROUP_WHOLE && data_has_halves(g->data, b) &&
                  (g->c.halves == GROUP_HALVES || overlap_next(&g->overlap, batch_rows(b)));
    return model_work_halve(g->work, wanted);
}

int group_forward(struct group *g, const struct model_batch *b, struct err *e)
{
    if (group_ranks(g) == 1)
        return forward(g, b, e);
    int rc = g->data ? data_check(g->data, b, e) : model_batch_check(g->work, b, e);
    if (rc)
        return rc; /* the others would refuse it too */
    bool halve = choose_halves(g, b);
    uint64_t from = clock_mono_ns();
    size_t before = g->plan.n;
    plan_forward(&g->plan, b, halve);
    rc = send_words(g, before, e);
    rc = rc ? rc : forward(g, b, e);
    if (rc == -ECANCELED) { /* said by comm_regroup, if by anything, is why that failed */
        int failed = regroup(g, e);
        return failed ? failed : rc;
    }
    if (rc && g->c.device)
        comm_fail(g->c.world, e->msg); /* the others wait for this rank on their devices */
    if (!rc && g->data && data_has_halves(g->data, b))
        overlap_learn(&g->overlap, batch_rows(b), halve, (double)(clock_mono_ns() - from) / 1e9);
    return rc;
}

uint32_t group_batches(const struct group *g)
{
    return g->streams ? g->c.layout.pipeline : 1;
}

bool group_may_begin(const struct group *g, uint32_t rows)
{
    return g->streams && g->in_air < 2 * g->c.layout.pipeline &&
           g->rows_in_air + rows <= model_room_in_air(g->work);
}

int group_begin(struct group *g, const struct model_batch *b, struct err *e)
{
    uint32_t rows = batch_rows(b);
    ASSERT(group_may_begin(g, rows));
    int rc = model_batch_check(g->work, b, e);
    if (rc)
        return rc;
    plan_forward(&g->plan, b, false);
    rc = send_plan(g, e);
    rc = rc ? rc : model_begin(g->c.model, g->work, g->c.pool, b, e);
    if (rc)
        return rc;
    g->in_air++;
    g->rows_in_air += rows;
    return 0;
}

int group_end(struct group *g, const struct model_batch *b, struct err *e)
{
    g->in_air--;
    g->rows_in_air -= batch_rows(b);
    return model_end(g->work, b, e);
}

static void remember(struct group *g, int rc)
{
    if (rc && !g->late)
        g->late = rc;
}

static void copy_block(struct group *g, uint32_t from, uint32_t to)
{
    size_t n = model_work_kv(g->work)->block_bytes;
    if (!block_of(g, g->c.rank, &from) || !block_of(g, g->c.rank, &to))
        return;
    if (g->c.device)
        remember(g, g->c.device->copy(g->c.device->self, from, to, &g->late_err));
    else
        memcpy((uint8_t *)g->c.pool + to * n, (uint8_t *)g->c.pool + from * n, n);
}

void group_copy(struct group *g, uint32_t from, uint32_t to)
{
    copy_block(g, from, to);
    if (group_ranks(g) > 1)
        put_all(&g->plan, (const uint32_t[]){COMMAND_COPY, from, to}, 3);
}

bool group_has_apart(const struct group *g)
{
    for (uint32_t r = 0; r < group_ranks(g); r++)
        if (g->c.apart[r])
            return true;
    return g->c.device && group_ranks(g) > 1;
}

/* Those of the blocks that this rank has, as it numbers them; one of none is out of range. */
static uint32_t blocks_here(struct group *g, const uint32_t *blocks, uint32_t n)
{
    struct words *w = &g->here;
    w->n = 0;
    grow(w, n);
    w->n = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t b = blocks[i];
        if (block_of(g, g->c.rank, &b))
            put(w, b);
    }
    return (uint32_t)w->n;
}

static int fetch_here(struct group *g, const uint32_t *blocks, uint32_t n, struct err *e)
{
    const struct model_part *p = model_part(g->c.model);
    const struct group_device *d = g->c.device;
    uint32_t here = d ? blocks_here(g, blocks, n) : 0;
    return here ? d->fetch(d->self, g->here.data, here, 0, p->layer1 - p->layer0, e) : 0;
}

static int store_here(struct group *g, const uint32_t *blocks, uint32_t n, struct err *e)
{
    const struct group_device *d = g->c.device;
    uint32_t here = d ? blocks_here(g, blocks, n) : 0;
    return here ? d->store(d->self, g->here.data, here, e) : 0;
}

int group_fetch_layer(struct group *g, const uint32_t *blocks, uint32_t n, uint32_t layer,
                      struct err *e)
{
    return g->c.device && n ? g->c.device->fetch(g->c.device->self, blocks, n, layer, layer + 1, e)
                            : 0;
}

int group_fetch(struct group *g, const uint32_t *blocks, uint32_t n, struct err *e)
{
    int rc = n ? fetch_here(g, blocks, n, e) : 0;
    if (rc || !n || !group_has_apart(g))
        return rc;
    put(&g->plan, COMMAND_FETCH);
    put(&g->plan, n);
    put_all(&g->plan, blocks, n);
    rc = send_plan(g, e);
    rc = rc ? rc : move_copies(g, blocks, n, false, e);
    return rc || !g->c.device ? rc : comm_barrier(g->c.world, e); /* theirs are there too */
}

void group_store(struct group *g, const uint32_t *blocks, uint32_t n)
{
    if (n)
        remember(g, store_here(g, blocks, n, &g->late_err));
    if (!n || !group_has_apart(g))
        return;
    put(&g->plan, COMMAND_STORE);
    put(&g->plan, n);
    put_all(&g->plan, blocks, n);
    put_all(&g->stores, blocks, n);
}

int group_sleep(struct group *g, bool asleep, struct err *e)
{
    int rc = g->c.device ? g->c.device->sleep(g->c.device->self, asleep, e) : 0;
    if (rc || group_ranks(g) == 1)
        return rc;
    put(&g->plan, COMMAND_SLEEP);
    put(&g->plan, asleep);
    return send_plan(g, e);
}

int group_stop(struct group *g, struct err *e)
{
    if (group_ranks(g) == 1 || g->stopped)
        return 0;
    g->stopped = true;
    put(&g->plan, COMMAND_STOP);
    return send_plan(g, e);
}

/* ---- reports ---- */

void group_report(const struct group *g, struct group_report *r)
{
    const struct model_shard *s = model_shard_of(g->c.model);
    *r = (struct group_report){.rank = g->c.rank,
                               .tensor_rank = s->tensor_rank,
                               .stage = s->stage,
                               .pid = getpid(),
                               .weight_bytes = model_shard_weight_bytes(g->c.model),
                               .kv_block_bytes = model_work_kv(g->work)->block_bytes};
    const struct model_group *by = &g->c.work.group;
    if (by->tensor)
        comm_stats(by->tensor, &r->tensor);
    if (by->pipeline)
        comm_stats(by->pipeline, &r->pipeline);
    if (by->expert)
        comm_stats(by->expert, &r->expert);
    if (g->c.world)
        comm_stats(g->c.world, &r->world);
    model_work_stats(g->work, &r->work);
    if (g->c.device)
        g->c.device->stats(g->c.device->self, &r->work);
}

int group_reports(struct group *g, struct group_report *all, struct err *e)
{
    struct group_report mine;
    group_report(g, &mine);
    if (group_ranks(g) == 1) {
        all[0] = mine;
        return 0;
    }
    for (;;) {
        put(&g->plan, COMMAND_REPORT);
        int rc = send_plan(g, e);
        rc = rc ? rc : comm_all_gather(g->c.world, &mine, sizeof mine, all, e);
        if (rc != -ECANCELED || (rc = regroup(g, e)))
            return rc;
    }
}

/* ---- masks ---- */

/* For every expert, in each set of ranks that have them all, those that have it. */
static uint64_t *holders(const struct group *g, uint32_t *n) /* heap */
{
    const struct model_layout *l = &g->c.layout;
    uint32_t x = l->expert > 1 ? l->expert : 0, kinds = model_config(g->c.model)->moe.experts;
    uint64_t *sets = xcalloc((size_t)(x ? l->data / x : 0) * kinds + 1, sizeof *sets);
    *n = 0;
    for (uint32_t first = 0; x && first < l->data; first += x)
        for (uint32_t i = 0; i < kinds; i++)
            sets[(*n)++] = model_work_holders(g->work, i) << first;
    return sets;
}

int group_allow_masks(struct group *g, int wake_fd, struct err *e)
{
    const struct model_layout *l = &g->c.layout;
    uint32_t n, kinds = model_config(g->c.model)->moe.experts;
    for (uint32_t r = 0; r < group_ranks(g); r++)
        if (g->c.apart[r])
            return 0;
    if (l->data < 2 || l->tensor > 1 || l->pipeline > 1 || g->c.device || !g->c.work.group.cover ||
        comm_hosts(g->c.world) > 1)
        return 0;
    uint64_t *sets = holders(g, &n);
    bool some = true;
    for (uint32_t i = 0; i < n; i++)
        some = some && (sets[i] & (sets[i] - 1));
    int rc =
        some ? comm_allow_masks(g->c.world, sets, n, kinds ? kinds : 1, "expert", wake_fd, e) : 0;
    free(sets);
    return rc ? rc : some;
}

uint64_t group_masked(struct group *g, bool also_new)
{
    if (!g->c.world)
        return 0;
    if (also_new && comm_must_regroup(g->c.world))
        (void)regroup(g, NULL); /* the next call fails too */
    return comm_masked(g->c.world);
}

static int give_report(const struct group *g, struct err *e)
{
    struct group_report mine, *all = xcalloc(group_ranks(g), sizeof *all);
    group_report(g, &mine);
    int rc = comm_all_gather(g->c.world, &mine, sizeof mine, all, e);
    free(all);
    return rc;
}

/* ---- followers ---- */

static int recv_plan(struct group *g, struct err *e)
{
    struct words *w = &g->plan;
    w->n = 0;
    grow(w, FIRST_BYTES / 4);
    int rc = hear(g, w->data, FIRST_BYTES, e);
    if (rc)
        return rc;
    uint32_t bytes = w->data[0];
    if (bytes % 4 || bytes < 4 || bytes > PLAN_MAX)
        return err_set(e, EPROTO, "a step plan of %u bytes from rank 0", bytes);
    w->n = bytes / 4;
    if (bytes <= FIRST_BYTES)
        return 0;
    grow(w, 0);
    return hear(g, (uint8_t *)w->data + FIRST_BYTES, bytes - FIRST_BYTES, e);
}

/* The next n words of the plan; NULL when it has no more. */
static const uint32_t *take(const struct words *w, size_t *at, size_t n)
{
    const uint32_t *p = w->data + *at;
    if (n > w->n - *at)
        return NULL;
    *at += n;
    return p;
}

static bool take_segment(const struct words *w, size_t *at, struct model_segment *s)
{
    const uint32_t *head = take(w, at, 4);
    if (!head)
        return false;
    *s = (struct model_segment){
        .n_tokens = head[0], .start = head[1], .n_blocks = head[2], .logits_from = head[3]};
    s->tokens = take(w, at, s->n_tokens);
    s->blocks = take(w, at, s->n_blocks);
    return s->tokens && s->blocks;
}

static int follow_forward(struct group *g, size_t *at, struct err *e)
{
    const uint32_t *n = take(&g->plan, at, 2);
    if (!n || *n > g->c.work.max_rows)
        return err_set(e, EPROTO, "a step of too many sequences from rank 0");
    (void)model_work_halve(g->work, n[1] != 0);
    if (*n > g->cap_segments) {
        g->cap_segments = *n;
        g->segments = xrealloc(g->segments, *n * sizeof *g->segments);
    }
    for (uint32_t i = 0; i < *n; i++)
        if (!take_segment(&g->plan, at, &g->segments[i]))
            return err_set(e, EPROTO, "a step plan from rank 0 that ends too early");
    struct model_batch b = {
        .segments = g->segments, .n_segments = *n, .logits_rows = g->c.work.max_rows};
    return forward(g, &b, e);
}

/* Of a rank apart: to or from rank 0's copy. */
static int pass_blocks(struct group *g, const uint32_t *blocks, uint32_t n, bool out, struct err *e)
{
    size_t bytes = g->block_bytes[g->c.rank];
    int rc = 0;
    for (uint32_t i = 0; !rc && g->c.apart[g->c.rank] && i < n; i++) {
        uint32_t b = blocks[i];
        bool here = block_of(g, g->c.rank, &b);
        uint8_t *p = (uint8_t *)g->c.pool + b * bytes;
        if (blocks[i] >= all_blocks(g))
            rc = err_set(e, EPROTO, "no block %u, which rank 0 names", blocks[i]);
        else if (here)
            rc =
                out ? comm_send(g->c.world, 0, p, bytes, e) : comm_recv(g->c.world, 0, p, bytes, e);
    }
    return rc;
}

static int follow_blocks(struct group *g, size_t *at, bool out, struct err *e)
{
    const uint32_t *n = take(&g->plan, at, 1), *blocks = n ? take(&g->plan, at, *n) : NULL;
    if (!blocks)
        return err_set(e, EPROTO, "a list of blocks from rank 0 that ends too early");
    int rc = out ? fetch_here(g, blocks, *n, e) : 0;
    rc = rc ? rc : pass_blocks(g, blocks, *n, out, e);
    if (rc || !g->c.device)
        return rc;
    return out ? comm_barrier(g->c.world, e) : store_here(g, blocks, *n, e);
}

static int follow_sleep(struct group *g, size_t *at, struct err *e)
{
    const uint32_t *asleep = take(&g->plan, at, 1);
    if (!asleep)
        return 0;
    int rc = *asleep && g->c.device ? g->c.device->sleep(g->c.device->self, true, e) : 0;
    if (!rc && g->c.sleep)
        rc = g->c.sleep(g->c.ctx, *asleep != 0, e);
    return rc || *asleep || !g->c.device ? rc : g->c.device->sleep(g->c.device->self, false, e);
}

static int obey(struct group *g, size_t *at, bool *stop, struct err *e)
{
    const uint32_t *p = take(&g->plan, at, 1);
    switch (p ? *p : 0) {
    case COMMAND_FORWARD: return follow_forward(g, at, e);
    case COMMAND_COPY:
        p = take(&g->plan, at, 2);
        if (!p || p[0] >= all_blocks(g) || p[1] >= all_blocks(g))
            return err_set(e, EPROTO, "a copy of no block from rank 0");
        copy_block(g, p[0], p[1]);
        return 0;
    case COMMAND_FETCH: return follow_blocks(g, at, true, e);
    case COMMAND_STORE: return follow_blocks(g, at, false, e);
    case COMMAND_SLEEP: return follow_sleep(g, at, e);
    case COMMAND_REPORT: return give_report(g, e);
    case COMMAND_STOP: *stop = true; return 0;
    }
    return err_set(e, EPROTO, "an unknown command from rank 0");
}

int group_follow(struct group *g, struct err *e)
{
    bool stop = false;
    int rc = 0;
    while (!rc && !stop) {
        rc = recv_plan(g, e);
        for (size_t at = 1; !rc && at < g->plan.n;)
            rc = obey(g, &at, &stop, e);
        if (rc == -ECANCELED)
            rc = regroup(g, e);
    }
    if (rc && rc != -EPIPE)
        comm_fail(g->c.world, e->msg);
    return rc;
}
