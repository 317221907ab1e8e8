#include "worker/comm/comm_int.h"

#include "lib/base/clock.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

const char *comm_op_name(uint32_t op)
{
    static const char *const names[] = {"computing", "all_reduce", "all_gather", "broadcast",
                                        "barrier",   "exchange",   "send",       "recv"};
    return op < sizeof names / sizeof *names ? names[op] : "unknown";
}

static int check(const struct comm_config *c, struct err *e)
{
    if (c->ranks < 1 || c->ranks > COMM_RANKS_MAX || c->rank >= c->ranks)
        return err_set(e, EINVAL, "rank %u of %u: a group has 1 to %u", c->rank, c->ranks,
                       COMM_RANKS_MAX);
    if (c->ranks_per_host < 1 || c->ranks % c->ranks_per_host)
        return err_set(e, EINVAL, "%u ranks can't be spread %u a host", c->ranks,
                       c->ranks_per_host);
    if (c->secret_len > SECRET_MAX || (c->ranks > 1 && !c->secret_len))
        return err_set(e, EINVAL, "the group's secret must have 1 to %u bytes", SECRET_MAX);
    if (c->ranks > c->ranks_per_host && !c->hosts)
        return err_set(e, EINVAL, "a group on several hosts needs their addresses");
    return 0;
}

static struct comm *comm_new(struct world *w, uint32_t colour, const uint32_t *colours)
{
    struct comm *c = xcalloc(1, sizeof *c);
    c->w = w;
    c->index = w->n_comms;
    c->gate = COMM_RANKS_MAX;
    for (uint32_t r = 0; r < w->cfg.ranks; r++) {
        if (colours && colours[r] != colour)
            continue;
        if (r == w->cfg.rank)
            c->rank = c->n;
        if (world_is_here(w, r)) {
            c->gate = c->gate == COMM_RANKS_MAX ? r - w->host0 : c->gate;
            c->local++;
        }
        c->ranks[c->n++] = r;
    }
    c->live = c->local;
    if (c->n > c->local)
        c->stage = xmalloc((size_t)c->n * WINDOW_BYTES);
    w->comms[w->n_comms++] = c;
    return c;
}

static void world_free(struct world *w)
{
    watch_stop(w);
    mask_free(w);
    for (uint32_t r = 0; r < w->cfg.ranks; r++) {
        close_fdp(&w->peers[r].fd);
        close_fdp(&w->peers[r].life);
    }
    close_fdp(&w->cfg.listen_fd);
    close_fdp(&w->wake_fd);
    close_fdp(&w->fail_fd);
    for (uint32_t i = 0; i < w->n_comms; i++) {
        free(w->comms[i]->stage);
        free(w->comms[i]);
    }
    for (uint32_t h = 0; w->hosts && h < w->cfg.ranks / w->cfg.ranks_per_host; h++)
        free(w->hosts[h]);
    free((void *)w->hosts);
    segment_unmap(&w->seg);
    free(w);
}

static void world_init(struct world *w, const struct comm_config *c)
{
    w->cfg = *c;
    w->cfg.port = c->port ? c->port : COMM_PORT;
    w->cfg.join_ms = c->join_ms ? c->join_ms : 60000;
    w->cfg.silent_ms = c->silent_ms ? c->silent_ms : 5000;
    w->cfg.stuck_ms = c->stuck_ms ? c->stuck_ms : 30000;
    w->host = c->rank / c->ranks_per_host;
    w->host0 = w->host * c->ranks_per_host;
    w->wake_fd = w->fail_fd = -1;
    w->since_ns = clock_mono_ns();
    if (c->secret_len)
        memcpy(w->secret, c->secret, c->secret_len);
    uint32_t hosts = c->ranks / c->ranks_per_host;
    w->hosts = xcalloc(hosts, sizeof *w->hosts);
    for (uint32_t h = 0; h < hosts; h++)
        w->hosts[h] = xstrdup(c->hosts ? c->hosts[h] : "127.0.0.1");
    for (uint32_t r = 0; r < COMM_RANKS_MAX; r++)
        w->peers[r].fd = w->peers[r].life = -1;
}

int comm_join(const struct comm_config *c, struct comm **out, struct err *e)
{
    int rc = check(c, e);
    if (rc)
        return rc;
    struct world *w = xcalloc(1, sizeof *w);
    world_init(w, c);
    rc = segment_map(&w->seg, c->segment_fd, c->ranks_per_host, e);
    if (!rc)
        atomic_store(&w->seg.head->pids[c->rank - w->host0], (int32_t)getpid());
    rc = rc ? rc : c->ranks > 1 ? mesh_join(w, e) : 0;
    close_fdp(&w->cfg.listen_fd);
    rc = rc ? rc : c->ranks > 1 ? watch_start(w, e) : 0;
    struct comm *world = rc ? NULL : comm_new(w, 0, NULL);
    rc = rc ? rc : comm_barrier(world, e);
    if (rc) {
        world_free(w);
        return rc;
    }
    world->stats = (struct comm_stats){0};
    *out = world;
    return 0;
}

void comm_leave(struct comm *world)
{
    if (world)
        world_free(world->w);
}

/* Which ranks are together, whatever the colours are called. */
static void parts_of(const struct world *w, const uint32_t *colours, uint8_t *parts)
{
    for (uint32_t r = 0; r < w->cfg.ranks; r++) {
        uint8_t first = 0;
        while (colours[first] != colours[r])
            first++;
        parts[r] = first;
    }
}

int comm_split(struct comm *world, uint32_t colour, struct comm **out, struct err *e)
{
    struct world *w = world->w;
    uint32_t colours[COMM_RANKS_MAX];
    uint8_t parts[COMM_RANKS_MAX] = {0};
    int rc = comm_all_gather(world, &colour, sizeof colour, colours, e);
    if (rc)
        return rc;
    parts_of(w, colours, parts);
    for (uint32_t i = 1; i < w->n_comms; i++) /* the world is no split */
        if (memcmp(w->parts[i], parts, w->cfg.ranks) == 0) {
            *out = w->comms[i];
            return 0;
        }
    if (w->n_comms == COMM_SPLITS_MAX)
        return err_set(e, EINVAL, "a group has %u communicators at most", COMM_SPLITS_MAX);
    memcpy(w->parts[w->n_comms], parts, sizeof parts);
    *out = comm_new(w, colour, colours);
    return 0;
}

uint32_t comm_rank(const struct comm *c)
{
    return c->rank;
}

uint32_t comm_ranks(const struct comm *c)
{
    return c->n;
}

uint32_t comm_hosts(const struct comm *c)
{
    return c->w->cfg.ranks / c->w->cfg.ranks_per_host;
}

void comm_fail(struct comm *c, const char *why)
{
    watch_fail(c->w, c->w->cfg.rank, why);
}

bool comm_failed(const struct comm *c)
{
    return watch_failed(c->w);
}

void comm_stats(const struct comm *c, struct comm_stats *out)
{
    *out = c->stats;
}
