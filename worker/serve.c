#include "worker/serve.h"

#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/base/rng.h"
#include "worker/api.h"
#include "worker/backend.h"
#include "worker/digest.h"
#include "worker/engine.h"
#include "worker/launcher.h"
#include "worker/team.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define FLUSH_MS 1000 /* what is left of answers after the engine has drained */

struct worker {
    struct options opt; /* what was given, with this rank's place in its group */
    const struct options *o;
    struct team team;
    uv_loop_t loop;
    uv_signal_t term, intr;
    uv_timer_t flush;
    struct launcher *launcher;
    struct launcher_start start;
    char *secret;
    char *model_path;
    void *image;
    size_t image_bytes;
    struct model *model;
    struct budget budget;
    struct xfer_pool pool;
    struct backend *backend; /* NULL: the CPU */
    struct engine *engine;
    struct api *api;
    bool closing;
    bool whole_again; /* it ends so that the group restarts, with all ranks */
};

/* ---- ends ---- */

static void close_all(struct worker *w)
{
    if (w->closing)
        return;
    w->closing = true;
    api_stop(w->api);
    uv_close((uv_handle_t *)&w->term, NULL);
    uv_close((uv_handle_t *)&w->intr, NULL);
    uv_close((uv_handle_t *)&w->flush, NULL);
    launcher_free(w->launcher);
    w->launcher = NULL;
}

static void on_flush(uv_timer_t *t)
{
    close_all(t->data);
}

static void on_drained(void *ctx)
{
    struct worker *w = ctx;
    log_info("drained");
    if (w->launcher && !w->whole_again)
        launcher_drained(w->launcher);
    int rc = uv_timer_start(&w->flush, on_flush, w->launcher ? FLUSH_MS / 10 : FLUSH_MS / 5, 0);
    ASSERT(rc == 0);
}

static void drain(void *ctx)
{
    struct worker *w = ctx;
    api_drain(w->api, clock_mono_ns() + w->o->drain_s * NS_PER_S);
}

/* With a masked rank: the launcher starts all of them again. */
static void on_restart(void *ctx)
{
    struct worker *w = ctx;
    log_info("restarting with all ranks");
    w->whole_again = true;
    drain(w);
}

static void on_signal(uv_signal_t *s, int signum)
{
    (void)signum;
    drain(s->data);
}

static void on_role(enum wire_role role, void *ctx)
{
    struct worker *w = ctx;
    api_set_role(w->api, role);
}

static void on_rung(bool warm, void *ctx)
{
    struct worker *w = ctx;
    api_set_sleep(w->api, warm);
}

static void on_lost(void *ctx)
{
    log_warn("the launcher is gone: stopping");
    close_all(ctx);
}

/* ---- start ---- */

static int load_shared(struct worker *w, struct err *e)
{
    w->image_bytes = w->start.weights_bytes;
    void *p = mmap(NULL, w->image_bytes, PROT_READ, MAP_SHARED, w->start.weights_fd, 0);
    close_fdp(&w->start.weights_fd);
    if (p == MAP_FAILED)
        return err_set(e, errno, "can't map the weights (%zu bytes): %s", w->image_bytes,
                       strerror(errno));
    w->image = p;
    return model_attach(w->image, w->image_bytes, w->o->isa, &w->model, e);
}

static int load_alone(struct worker *w, struct err *e)
{
    CLEANUP(free_charp) char *path = NULL;
    const char *hex = w->o->incarnation;
    w->start.ranks = w->start.ranks_per_pod = 1;
    w->start.role = wire_role_parse(w->o->role);
    if (w->o->tp * w->o->pp * w->o->dp > 1)
        return err_set(e, EINVAL, "a group of several ranks is started by \"baton-agent launch\"");
    if (w->start.role == WIRE_ROLE_NONE)
        return err_set(e, EINVAL, "--role must be prefill, decode, unified or standby");
    w->start.incarnation = *hex ? strtoull(hex, NULL, 16) : rng_secret_u64();
    if (!w->start.incarnation)
        return err_set(e, EINVAL, "--incarnation must be 16 hex digits, not 0");
    int rc = options_model_path(w->o, &path, e);
    rc = rc ? rc : digest_check(path, w->o->sha256, e);
    return rc ? rc : model_load(path, w->o->isa, &w->model, e);
}

static int load(struct worker *w, struct err *e)
{
    if (!w->o->launcher_fd)
        return load_alone(w, e);
    w->launcher = launcher_new((int)w->o->launcher_fd);
    int rc = launcher_wait(w->launcher, &w->start, e);
    if (rc)
        return rc;
    const struct launcher_start *s = &w->start;
    w->opt.rank = s->rank;
    if (s->ranks > 1) {
        w->opt.tp = s->tensor;
        w->opt.pp = s->pipeline;
        w->opt.ep = s->expert;
        w->opt.dp = s->data;
        w->opt.pods = s->ranks / s->ranks_per_pod;
    }
    return load_shared(w, e);
}

/* What names of blocks begin with here, when a request brings none; and what transfer peers must
 * agree on. */
static void make_names(const struct worker *w, struct block_name *seed, uint64_t *layout)
{
    const struct model_config *c = model_config(w->model);
    char *rev = *w->o->sha256 ? xstrdup(w->o->sha256)
                              : xasprintf("%s/%llu/%u/%u", c->name, (unsigned long long)c->n_params,
                                          c->n_layers, c->vocab);
    struct block_space space = {.model_revision = str_c(rev),
                                .kv_dtype = str_c(w->o->kv_dtype),
                                .block_tokens = w->budget.kv.block_tokens};
    block_seed(&space, seed);
    *layout = block_name_hash(seed) ^ w->budget.kv.block_bytes;
    free(rev);
}

static int xfer_policy_of(const char *name, enum xfer_policy *out, struct err *e)
{
    if (strcmp(name, "auto") == 0 || strcmp(name, "none") == 0)
        *out = XFER_AUTO;
    else if (strcmp(name, "shm") == 0)
        *out = XFER_ONLY_SHM;
    else if (strcmp(name, "tcp") == 0)
        *out = XFER_ONLY_TCP;
    else
        return err_set(e, EINVAL, "--xfer must be auto, shm, tcp or none");
    return 0;
}

static int start_engine(struct worker *w, struct err *e)
{
    const struct options *o = w->o;
    struct engine_config c = {
        .model = w->model,
        .kv = w->budget.kv,
        .kv_dtype = w->budget.dtype,
        .n_blocks = w->budget.n_blocks,
        .pool = w->pool,
        .device = backend_device(w->backend),
        .model_layout = w->team.layout,
        .world = w->team.world,
        .slices = w->team.slices,
        .n_slices = w->team.n_slices,
        .apart = w->team.apart,
        .copies = w->team.copies,
        .threads = team_threads(&w->team, o),
        .max_rows = (uint32_t)o->max_rows,
        .logit_rows = w->budget.logit_rows,
        .max_running = (uint32_t)o->max_running,
        .draft_tokens = strcmp(o->speculation, "off") == 0 ? 0 : (uint32_t)o->draft_tokens,
        .max_context = w->budget.context,
        .incarnation = w->start.incarnation,
        .role = w->start.role,
        .xfer_host = strcmp(o->xfer, "none") == 0 ? NULL : o->host,
        .shm_dir = o->shm_dir,
        .xfer_port = (uint16_t)o->xfer_port,
        .secret = w->secret,
        .secret_len = strlen(w->secret),
        .weights = w->image,
        .weights_bytes = w->image_bytes,
        .masked_s = o->masked_s,
        .notify = api_notify,
        .notify_ctx = w->api};
    make_names(w, &c.seed, &c.layout);
    int rc = options_dispatch(o, &c.dispatch, e);
    rc = rc ? rc : options_halves(o, &c.halves, e);
    rc = rc ? rc : xfer_policy_of(o->xfer, &c.xfer_policy, e);
    return rc ? rc : engine_start(&c, &w->engine, e);
}

static int start_api(struct worker *w, struct err *e)
{
    const struct options *o = w->o;
    struct api_config c = {.loop = &w->loop,
                           .host = o->host,
                           .port = (uint16_t)o->http_port,
                           .secret = w->secret,
                           .name = o->pod_name,
                           .model_name =
                               *o->model_name ? o->model_name : model_config(w->model)->name,
                           .model_path = w->model_path,
                           .incarnation = w->start.incarnation,
                           .max_queue = (uint32_t)o->max_queue,
                           .kv = w->budget.kv,
                           .model = model_config(w->model),
                           .launcher = w->launcher,
                           .drained = on_drained,
                           .restart = on_restart,
                           .ctx = w};
    return api_start(&c, &w->api, e);
}

static int watch(struct worker *w, struct err *e)
{
    struct launcher_callbacks cb = {on_role, on_rung, drain, on_lost, w};
    int rc = uv_signal_init(&w->loop, &w->term);
    rc = rc ? rc : uv_signal_init(&w->loop, &w->intr);
    rc = rc ? rc : uv_timer_init(&w->loop, &w->flush);
    w->term.data = w->intr.data = w->flush.data = w;
    rc = rc ? rc : uv_signal_start(&w->term, on_signal, SIGTERM);
    rc = rc ? rc : uv_signal_start(&w->intr, on_signal, SIGINT);
    if (rc)
        return err_set(e, -rc, "can't watch signals: %s", uv_strerror(rc));
    return w->launcher ? launcher_watch(w->launcher, &w->loop, &cb, e) : 0;
}

static int open_backend(struct worker *w, struct err *e)
{
    const struct options *o = w->o;
    uint32_t rows = (uint32_t)o->max_rows, sequences = (uint32_t)o->max_running,
             outputs = w->budget.logit_rows;
    struct model_group by;
    enum group_halves halves;
    int rc = options_dispatch(o, &by, e);
    rc = rc ? rc : options_halves(o, &halves, e);
    if (rc)
        return rc;
    struct backend_config c = {.name = o->backend,
                               .model = w->model,
                               .world = w->team.world,
                               .index = w->team.rank % (w->team.per_pod ? w->team.per_pod : 1),
                               .layout = w->team.layout,
                               .rank = w->team.rank,
                               .group = by,
                               .halves = halves,
                               .max_rows = rows,
                               .max_sequences = sequences < rows ? sequences : rows,
                               .max_outputs = outputs < rows ? outputs : rows,
                               .max_context = w->budget.context,
                               .block_tokens = w->budget.kv.block_tokens,
                               .kv_dtype = w->budget.dtype};
    return backend_open(&c, &w->backend, e);
}

/* A GPU's blocks are bounded by its memory, and by the host's, which has a place for each of them
 * where KV passes through, unless none does. */
static void fit_device(struct worker *w, bool passes)
{
    uint32_t room = w->backend ? backend_room(w->backend) : UINT32_MAX;
    if (w->budget.n_blocks > room || (w->backend && !passes && !w->o->kv_bytes))
        w->budget.n_blocks = room;
}

static int make_pool(struct worker *w, struct err *e)
{
    bool passes = !w->backend || strcmp(w->o->xfer, "none") != 0;
    fit_device(w, passes);
    int rc = team_agree(&w->team, &w->budget.n_blocks, e);
    if (rc)
        return rc;
    w->budget.kv_bytes = (uint64_t)w->budget.n_blocks * w->budget.pod_block_bytes;
    uint64_t bytes = passes ? (uint64_t)w->budget.n_blocks * w->budget.part.block_bytes : 0;
    rc = xfer_pool_new(&w->pool, bytes ? bytes : 4096, e);
    if (!rc && w->backend)
        rc = backend_pool(w->backend, w->budget.n_blocks, bytes ? w->pool.base : NULL, bytes, e);
    return rc ? rc
              : team_share(&w->team, &w->pool, model_config(w->model), &w->budget,
                           w->budget.n_blocks, e);
}

static int prepare(struct worker *w, struct err *e)
{
    int rc = options_secret(w->o, &w->secret, e);
    rc = rc ? rc : load(w, e);
    rc = rc ? rc : team_join(&w->team, &w->start, w->o, w->secret, e);
    if (!rc && options_has_copies(w->o, model_config(w->model)))
        w->opt.copies_bytes = model_expert_bytes(w->model) * w->o->redundant * w->team.per_pod;
    rc = rc ? rc : options_budget(w->o, model_config(w->model), false, &w->budget, e);
    rc = rc ? rc : open_backend(w, e);
    rc = rc ? rc : make_pool(w, e);
    if (rc || w->team.rank)
        return rc;
    if (options_model_path(w->o, &w->model_path, NULL))
        w->model_path = NULL; /* only routers would want it */
    rc = start_api(w, e);
    rc = rc ? rc : start_engine(w, e);
    return rc ? rc : watch(w, e);
}

static void finish(struct worker *w)
{
    engine_stop(w->engine);
    if (w->api)
        api_free(w->api);
    launcher_free(w->launcher);
    backend_free(w->backend);
    team_leave(&w->team);
    model_free(w->model);
    if (w->image)
        munmap(w->image, w->image_bytes);
    if (w->pool.base)
        xfer_pool_free(&w->pool);
    free(w->secret);
    free(w->model_path);
}

static void announce(const struct worker *w)
{
    char incarnation[17];
    snprintf(incarnation, sizeof incarnation, "%016llx", (unsigned long long)w->start.incarnation);
    log_info("serving", LS("host", w->o->host), LI("http_port", api_port(w->api)),
             LI("xfer_port", engine_xfer_port(w->engine)),
             LS("role", wire_role_name(w->start.role)), LS("incarnation", incarnation),
             LS("isa", model_isa(w->model)), LS("backend", backend_name(w->backend)),
             LI("ranks", w->team.ranks), LI("threads", team_threads(&w->team, w->o)),
             LI("kv_blocks", w->budget.n_blocks), LI("kv_bytes", w->budget.kv_bytes));
}

/* Rank 0 decides when the group ends; the launcher may kill. */
static int follow(struct worker *w, struct err *e)
{
    signal(SIGTERM, SIG_IGN);
    signal(SIGINT, SIG_IGN);
    log_info("following", LI("rank", w->team.rank),
             LI("weight_bytes", model_shard_weight_bytes(w->model)),
             LI("kv_blocks", w->budget.n_blocks), LI("kv_bytes", w->pool.len));
    if (w->launcher)
        launcher_status(w->launcher,
                        &(struct launcher_state){.role = w->start.role, .ready = true});
    int rc = team_follow(&w->team, w->model, &w->pool, backend_device(w->backend), w->o, &w->budget,
                         w->image, w->image_bytes, e);
    finish(w);
    return rc;
}

int serve(const struct options *o, struct err *e)
{
    struct worker w = {.opt = *o, .pool = {.fd = -1}};
    w.o = &w.opt;
    signal(SIGPIPE, SIG_IGN);
    if (uv_loop_init(&w.loop))
        return err_set(e, ENOMEM, "no event loop");
    int rc = prepare(&w, e);
    if (!rc && w.team.rank)
        return follow(&w, e);
    if (rc)
        return rc; /* the process ends */
    announce(&w);
    api_serve(w.api, w.engine, w.start.role);
    uv_run(&w.loop, UV_RUN_DEFAULT);
    finish(&w);
    uv_loop_close(&w.loop);
    return w.whole_again ? err_set(e, EAGAIN, "a rank had died: the group restarts with all") : 0;
}
