/* The score mode: log-probabilities of given tokens by the serving kernels, by one process or by a
 * group of them in any layout. */
#include "worker/backend.h"
#include "worker/digest.h"
#include "worker/layout/group.h"
#include "worker/layout/local.h"
#include "worker/model/score.h"
#include "worker/modes.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

struct scoring {
    const struct options *o;
    char *path;
    struct model_layout layout;
    uint32_t *ids, n;
};

static int parse_ids(const char *text, uint32_t **out, uint32_t *n_out, struct err *e)
{
    struct str head, rest = str_trim(str_c(text));
    uint32_t *ids = xmalloc((rest.n + 1) * sizeof *ids), n = 0;
    while (rest.n) {
        uint64_t v;
        rest = str_cut(rest, ',', &head);
        if (str_to_u64(str_trim(head), 0, UINT32_MAX, &v)) {
            free(ids);
            return err_set(e, EINVAL, "--ids takes token ids such as 1,2,3, not \"" STR_FMT "\"",
                           STR_ARG(head));
        }
        ids[n++] = (uint32_t)v;
    }
    if (!n) {
        free(ids);
        return err_set(e, EINVAL, "--score needs --ids 1,2,3");
    }
    *out = ids;
    *n_out = n;
    return 0;
}

/* ---- what is printed ---- */

static void print_scores(const struct score_entry *s, uint32_t n)
{
    printf("[");
    for (uint32_t i = 0; i < n; i++) {
        printf("%s\n{\"id\":%u,\"logprob\":", i ? "," : "", s[i].id);
        printf(i ? "%.9g" : "null", (double)s[i].logprob);
        printf(",\"top\":[");
        for (uint32_t k = 0; k < s[i].n_top; k++)
            printf("%s[%u,%.9g]", k ? "," : "", s[i].top[k].id, (double)s[i].top[k].logprob);
        printf("]}");
    }
    printf("\n]\n");
}

static void print_calls(const char *name, const struct comm_stats *s)
{
    printf(",\"%s\":{\"all_reduces\":%llu,\"all_gathers\":%llu,\"broadcasts\":%llu,"
           "\"all_to_alls\":%llu,\"sends\":%llu,\"recvs\":%llu,\"bytes\":%llu,\"wait_ms\":%.3f}",
           name, (unsigned long long)s->all_reduces, (unsigned long long)s->all_gathers,
           (unsigned long long)s->broadcasts, (unsigned long long)s->all_to_alls,
           (unsigned long long)s->sends, (unsigned long long)s->recvs, (unsigned long long)s->bytes,
           (double)s->wait_ns / 1e6);
}

/* Rows x experts of all ranks in all layers, and at the rank that had most: max over mean is 1 when
 * all have the same. */
static void print_experts(const struct model_work_stats *w)
{
    double mean = (double)w->expert_slots / (double)w->expert_ranks;
    printf(",\"experts\":{\"dispatches\":%llu,\"latency\":%llu,\"slots\":%llu,"
           "\"load_max\":%llu,\"load_mean\":%.1f,\"max_over_mean\":%.3f,\"halved_steps\":%llu}",
           (unsigned long long)w->dispatches, (unsigned long long)w->dispatches_latency,
           (unsigned long long)w->expert_slots, (unsigned long long)w->expert_max, mean,
           mean > 0 ? (double)w->expert_max / mean : 1, (unsigned long long)w->halved);
}

static void print_ranks(const struct scoring *s, const struct group_report *r, uint32_t n)
{
    const struct model_work_stats *w = &r[0].work;
    double all = (double)w->step_ns * (s->layout.pipeline ? s->layout.pipeline : 1);
    double bubble = all > 0 && s->layout.pipeline > 1 ? 1 - (double)w->busy_ns / all : 0;
    printf(",\"bubble\":%.4f,\"ranks\":[", bubble);
    for (uint32_t i = 0; i < n; i++) {
        printf("%s\n{\"rank\":%u,\"tensor_rank\":%u,\"stage\":%u,\"pid\":%lld,"
               "\"weight_bytes\":%llu,\"kv_block_bytes\":%llu,\"steps\":%llu,"
               "\"micro_batches\":%llu",
               i ? "," : "", r[i].rank, r[i].tensor_rank, r[i].stage, (long long)r[i].pid,
               (unsigned long long)r[i].weight_bytes, (unsigned long long)r[i].kv_block_bytes,
               (unsigned long long)r[i].work.steps, (unsigned long long)r[i].work.micro_batches);
        if (r[i].work.dispatches)
            print_experts(&r[i].work);
        print_calls("tensor", &r[i].tensor);
        print_calls("pipeline", &r[i].pipeline);
        print_calls("expert", &r[i].expert);
        print_calls("world", &r[i].world);
        printf("}");
    }
    printf("\n]");
}

static void print_all(const struct scoring *s, const struct score_entry *scores,
                      const struct group_report *reports, uint32_t ranks)
{
    if (!s->o->stats) {
        print_scores(scores, s->n);
        return;
    }
    printf("{\"scores\":");
    print_scores(scores, s->n);
    print_ranks(s, reports, ranks);
    printf("}\n");
}

/* ---- ranks ---- */

static int group_run(void *ctx, const struct model_batch *b, struct err *e)
{
    return group_forward(ctx, b, e);
}

static int lead(const struct scoring *s, const struct model *m, struct group *g, struct err *e)
{
    struct score_engine by = {m, group_run, g};
    struct score_entry *scores = xcalloc(s->n, sizeof *scores);
    struct group_report *reports = xcalloc(group_ranks(g), sizeof *reports);
    int rc = score_through(&by, s->ids, s->n, scores, e);
    rc = rc ? rc : group_reports(g, reports, e);
    rc = rc ? rc : group_stop(g, e);
    if (!rc)
        print_all(s, scores, reports, group_ranks(g));
    free(scores);
    free(reports);
    return rc;
}

static int make_group(const struct scoring *s, struct comm *world, const struct model *m,
                      const struct backend *backend, void **pool, struct group **out, struct err *e)
{
    uint32_t ranks = world ? comm_ranks(world) : 1, threads = options_threads(s->o) / ranks;
    enum model_kv_dtype dtype;
    struct model_kv kv;
    struct model_group by;
    enum group_halves halves;
    int rc = options_kv_dtype(s->o, &dtype, e);
    rc = rc ? rc : options_halves(s->o, &halves, e);
    rc = rc ? rc : options_dispatch(s->o, &by, e);
    rc = rc ? rc : model_kv_part(&kv, model_config(m), model_part(m), dtype, MODEL_BLOCK_TOKENS, e);
    if (rc)
        return rc;
    struct group_config c = {.model = m,
                             .layout = s->layout,
                             .rank = world ? comm_rank(world) : 0,
                             .world = world,
                             .device = backend_device(backend),
                             .halves = halves,
                             .work = {.threads = threads ? threads : 1,
                                      .max_rows = SCORE_ROWS,
                                      .kv_dtype = dtype,
                                      .group = by,
                                      .pool_blocks = score_blocks(s->n)}};
    *pool = aligned_alloc(64, (c.work.pool_blocks * kv.block_bytes + 127) & ~(size_t)63);
    if (!*pool)
        return err_set(e, ENOMEM, "no memory to score %u tokens", s->n);
    c.pool = *pool;
    return group_new(&c, out, e);
}

static int open_backend(const struct scoring *s, struct comm *world, const struct model *m,
                        struct backend **out, struct err *e)
{
    enum model_kv_dtype dtype;
    struct model_group by;
    enum group_halves halves;
    int rc = options_kv_dtype(s->o, &dtype, e);
    rc = rc ? rc : options_halves(s->o, &halves, e);
    rc = rc ? rc : options_dispatch(s->o, &by, e);
    if (rc)
        return rc;
    struct backend_config c = {.name = s->o->backend,
                               .model = m,
                               .world = world,
                               .index = world ? comm_rank(world) : 0,
                               .layout = s->layout,
                               .rank = world ? comm_rank(world) : 0,
                               .group = by,
                               .halves = halves,
                               .max_rows = SCORE_ROWS,
                               .max_sequences = 1,
                               .max_outputs = SCORE_ROWS,
                               .max_context = score_blocks(s->n) * MODEL_BLOCK_TOKENS,
                               .block_tokens = MODEL_BLOCK_TOKENS,
                               .kv_dtype = dtype};
    rc = backend_open(&c, out, e);
    return rc || !*out ? rc : backend_pool(*out, score_blocks(s->n), NULL, 0, e);
}

static int be_rank(struct comm *world, void *ctx, struct err *e)
{
    const struct scoring *s = ctx;
    struct backend *backend = NULL;
    uint32_t rank = world ? comm_rank(world) : 0;
    struct model_shard shard = model_layout_shard(&s->layout, rank);
    struct model *m = NULL;
    struct group *g = NULL;
    void *pool = NULL;
    int rc = model_shard_load(s->path, s->o->isa, &shard, &m, e);
    rc = rc ? rc : open_backend(s, world, m, &backend, e);
    rc = rc ? rc : make_group(s, world, m, backend, &pool, &g, e);
    if (!rc)
        rc = rank ? group_follow(g, e) : lead(s, m, g, e);
    group_free(g);
    backend_free(backend);
    free(pool);
    model_free(m);
    return rc;
}

int mode_score(const struct options *o, struct err *e)
{
    struct scoring s = {.o = o, .layout = options_layout(o)};
    uint32_t ranks = model_layout_ranks(&s.layout);
    int rc = options_model_path(o, &s.path, e);
    rc = rc ? rc : digest_check(s.path, o->sha256, e);
    rc = rc ? rc : parse_ids(o->ids, &s.ids, &s.n, e);
    if (!rc)
        rc = ranks > 1 ? local_run(ranks, be_rank, &s, e) : be_rank(NULL, &s, e);
    free(s.ids);
    free(s.path);
    return rc;
}
