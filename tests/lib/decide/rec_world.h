/* rec_world.h: an API server and kubelet in miniature for tests of reconcile(): applies actions,
 * makes pods ready, ends those that are deleted. Everything is in one struct; strings are in an
 * arena that lives as long as it. */
#pragma once
#include "lib/base/rng.h"
#include "lib/decide/reconcile.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <cmocka.h>

#define WORLD_PODS 256
#define S_NS       1000000000ull

struct world_pod {
    struct rec_pod p;
    bool there;
};

struct world {
    struct arena arena;
    struct rec_snapshot s; /* pods are filled in by world_snapshot */
    struct world_pod pods[WORLD_PODS];
    struct rec_pod list[WORLD_PODS];
    struct gang_group gangs[WORLD_PODS];
    struct rec_revision revisions[32];
    const char *pod_groups[WORLD_PODS];
    uint64_t now;
    bool no_nodes; /* what is made finds no node */
    int addresses; /* given to pods */
    unsigned uid, rv, created, deleted, flipped, scaled, recorded, restarts;
    struct rec_plan plan;
};

static inline const char *world_text(struct world *w, const char *fmt, unsigned n)
{
    char text[128];
    (void)fmt;
    snprintf(text, sizeof text, "%s%u", fmt, n);
    return arena_dup(&w->arena, str_c(text));
}

static inline void world_init(struct world *w, int32_t prefill, int32_t decode)
{
    memset(w, 0, sizeof *w);
    arena_init(&w->arena, 64u << 20);
    w->now = 1700000000ull * S_NS;
    w->s = (struct rec_snapshot){.name = "chat",
                                 .namespace = "default",
                                 .uid = "infd-uid",
                                 .model_name = "m",
                                 .url = "http://r",
                                 .generation = 1,
                                 .created_ns = w->now,
                                 .max_unavailable = 0,
                                 .max_surge = 1};
    for (int i = 0; i < REC_ROLES; i++) {
        struct rec_role_spec *r = &w->s.roles[i];
        *r = (struct rec_role_spec){
            .replicas = -1, .bounds_min = -1, .bounds_max = -1, .revision = "r1"};
        r->pool = (struct rec_pool){.replicas = -1,
                                    .last_replicas = -1,
                                    .bounds_min = -1,
                                    .bounds_max = -1,
                                    .pdb_min_available = -1};
    }
    w->s.roles[REC_PREFILL].wanted = w->s.roles[REC_DECODE].wanted = true;
    w->s.roles[REC_PREFILL].replicas = prefill;
    w->s.roles[REC_DECODE].replicas = decode;
}

static inline void world_fini(struct world *w)
{
    arena_fini(&w->arena);
}

/* Gated groups of several pods, as the shell sums them up. */
static inline void world_gangs(struct world *w)
{
    w->s.gangs = w->gangs;
    w->s.n_gangs = 0;
    for (size_t i = 0; i < WORLD_PODS; i++) {
        const struct rec_pod *p = &w->pods[i].p;
        struct gang_group *g = NULL;
        if (!w->pods[i].there || p->deleting || p->size <= 1)
            continue;
        for (size_t k = 0; k < w->s.n_gangs; k++)
            if (strcmp(w->gangs[k].name, p->group) == 0)
                g = &w->gangs[k];
        if (!g) {
            g = &w->gangs[w->s.n_gangs++];
            *g =
                (struct gang_group){.name = p->group, .size = p->size, .created_ns = p->created_ns};
        }
        g->there++;
        g->gated += p->gated;
        g->placed += p->placed;
        if (p->lifted_ns && (!g->lifted_ns || p->lifted_ns < g->lifted_ns))
            g->lifted_ns = p->lifted_ns;
        if (p->backoff_until_ns > g->not_before_ns)
            g->not_before_ns = p->backoff_until_ns;
    }
}

static inline const struct rec_snapshot *world_snapshot(struct world *w)
{
    world_gangs(w);
    w->s.revisions = w->revisions;
    w->s.pod_groups = w->pod_groups;
    size_t n = 0;
    for (size_t i = 0; i < WORLD_PODS; i++)
        if (w->pods[i].there)
            w->list[n++] = w->pods[i].p;
    w->s.pods = w->list;
    w->s.n_pods = n;
    return &w->s;
}

static inline struct rec_pod *world_add_pod(struct world *w, enum rec_role role, const char *name,
                                            const char *revision, bool ready)
{
    for (size_t i = 0; i < WORLD_PODS; i++) {
        if (w->pods[i].there)
            continue;
        w->pods[i].there = true;
        w->pods[i].p = (struct rec_pod){.name = arena_dup(&w->arena, str_c(name)),
                                        .uid = world_text(w, "uid-", ++w->uid),
                                        .resource_version = world_text(w, "", ++w->rv),
                                        .role = role,
                                        .placed = true,
                                        .revision = arena_dup(&w->arena, str_c(revision)),
                                        .ready = ready,
                                        .created_ns = w->now};
        return &w->pods[i].p;
    }
    fail_msg("too many pods");
    return NULL;
}

static inline struct rec_pod *world_pod(struct world *w, const char *name)
{
    for (size_t i = 0; i < WORLD_PODS; i++)
        if (w->pods[i].there && strcmp(w->pods[i].p.name, name) == 0)
            return &w->pods[i].p;
    return NULL;
}

static inline void world_remove(struct world *w, const char *name)
{
    for (size_t i = 0; i < WORLD_PODS; i++)
        if (w->pods[i].there && strcmp(w->pods[i].p.name, name) == 0)
            w->pods[i].there = false;
}

static inline int world_count(struct world *w, enum rec_role role, bool only_ready)
{
    int n = 0;
    for (size_t i = 0; i < WORLD_PODS; i++) {
        const struct rec_pod *p = &w->pods[i].p;
        n += w->pods[i].there && p->role == role && !p->deleting && !p->failed &&
             (p->ready || !only_ready);
    }
    return n;
}

static inline struct rec_pool *world_pool(struct world *w, enum rec_role role)
{
    return &w->s.roles[role].pool;
}

static inline void world_make_pool(struct world *w, const struct rec_action *a)
{
    struct rec_role_spec *r = &w->s.roles[a->role];
    int32_t pdb = r->pool.pdb_min_available;
    assert_false(r->pool.exists);
    r->pool = (struct rec_pool){.exists = true,
                                .ours = true,
                                .uid = world_text(w, "wp-", ++w->uid),
                                .resource_version = world_text(w, "", ++w->rv),
                                .generation = 1,
                                .replicas = a->number,
                                .last_replicas = a->recorded,
                                .bounds_min = r->bounds_min,
                                .bounds_max = r->bounds_max,
                                .pdb_min_available = pdb};
}

static inline void world_pod_action(struct world *w, const struct rec_action *a)
{
    struct rec_pod *p;
    switch (a->kind) {
    case REC_CREATE_POD:
        assert_null(world_pod(w, a->name)); /* the API server would say AlreadyExists */
        p = world_add_pod(w, a->role, a->name, a->revision, false);
        p->group = arena_dup(&w->arena, str_c(a->group));
        p->index = a->index;
        p->size = a->number;
        p->epoch = a->epoch;
        p->gated = a->gated;
        p->placed = !a->gated && !w->no_nodes;
        p->pair = w->s.roles[a->role].pair;
        p->crash = a->crash ? arena_dup(&w->arena, str_c(a->crash)) : NULL;
        p->backoff_until_ns = a->backoff_until_ns;
        p->backoff_s = a->backoff_s;
        w->created++;
        break;
    case REC_LIFT_GATE:
        p = world_pod(w, a->name);
        assert_non_null(p);
        p->gated = false;
        p->lifted_ns = w->now;
        break;
    case REC_GROUP_POD:
        p = world_pod(w, a->name);
        assert_non_null(p);
        p->peers = a->peers ? arena_dup(&w->arena, str_c(a->peers)) : p->peers;
        if (a->epoch > p->epoch) {
            p->ready = false; /* its ranks start again */
            w->restarts++;
        }
        p->epoch = a->epoch;
        p->backoff_until_ns = a->backoff_until_ns;
        p->backoff_s = a->backoff_s;
        p->crash = a->crash ? arena_dup(&w->arena, str_c(a->crash)) : p->crash;
        break;
    case REC_DELETE_POD:
        p = world_pod(w, a->name);
        assert_non_null(p);
        assert_string_equal(p->uid, a->uid);
        p->deleting = true;
        p->ready = false;
        w->deleted++;
        break;
    case REC_RUNG_POD:
        p = world_pod(w, a->name);
        assert_non_null(p);
        p->rung = a->rung;
        break;
    default:
        p = world_pod(w, a->name);
        assert_non_null(p);
        assert_string_equal(p->resource_version, a->resource_version);
        p->role = a->role;
        p->ready = false; /* until the worker says that it has changed */
        p->resource_version = world_text(w, "", ++w->rv);
        w->flipped++;
    }
}

static inline void world_status(struct world *w)
{
    memcpy(w->s.conditions, w->plan.conditions, sizeof w->s.conditions);
    for (int i = 0; i < REC_CONDITIONS; i++) {
        struct rec_condition *c = &w->s.conditions[i];
        c->reason = arena_dup(&w->arena, str_c(c->reason));
        c->message = arena_dup(&w->arena, str_c(c->message));
    }
    memcpy(w->s.counts, w->plan.counts, sizeof w->s.counts);
    w->s.observed_generation = w->s.generation;
    w->s.status_url = w->s.url;
    w->s.status_revision = w->plan.revision;
    w->s.status_current = w->plan.current;
}

static inline void world_pool_status(struct world *w, enum rec_role role)
{
    struct rec_pool *p = world_pool(w, role);
    p->status_replicas = w->plan.counts[role].current;
    p->ready_replicas = w->plan.counts[role].ready;
    p->updated_replicas = w->plan.counts[role].updated;
    p->observed_generation = p->generation;
    p->selector = rec_selector(&w->arena, w->s.name, role);
    p->ready = w->plan.pool_ready[role];
    p->ready.message = arena_dup(&w->arena, str_c(p->ready.message));
}

static inline void world_revision(struct world *w, const struct rec_action *a)
{
    struct rec_revision *v = w->revisions;
    size_t i = 0;
    if (a->kind == REC_CREATE_REVISION) {
        v[w->s.n_revisions++] = (struct rec_revision){
            .name = arena_dup(&w->arena, str_c(a->name)),
            .uid = world_text(w, "rev-", ++w->uid),
            .hash = arena_dup(&w->arena, str_c(a->revision)),
            .number = a->number64,
            .roles = {w->s.roles[0].revision, w->s.roles[1].revision, w->s.roles[2].revision,
                      w->s.roles[3].revision},
        };
        return;
    }
    while (i < w->s.n_revisions && strcmp(v[i].name, a->name) != 0)
        i++;
    assert_true(i < w->s.n_revisions);
    assert_string_equal(v[i].uid, a->uid);
    if (a->kind == REC_NUMBER_REVISION)
        v[i].number = a->number64;
    else
        v[i] = v[--w->s.n_revisions];
}

static inline void world_apply(struct world *w, const struct rec_action *a)
{
    struct rec_pool *p = a->role < REC_ROLES ? world_pool(w, a->role) : NULL;
    switch (a->kind) {
    case REC_CREATE_SECRET: w->s.secret = REC_SECRET_OURS; break;
    case REC_CREATE_POOL: world_make_pool(w, a); break;
    case REC_APPLY_POOL:
        p->bounds_min = w->s.roles[a->role].bounds_min;
        p->bounds_max = w->s.roles[a->role].bounds_max;
        p->generation++;
        break;
    case REC_SCALE_POOL:
        assert_string_equal(p->resource_version, a->resource_version);
        p->replicas = a->number;
        p->resource_version = world_text(w, "", ++w->rv);
        p->generation++;
        w->scaled++;
        break;
    case REC_RECORD_POOL:
        p->last_replicas = a->recorded;
        p->resource_version = world_text(w, "", ++w->rv);
        w->recorded++;
        break;
    case REC_DELETE_POOL:
        *p = (struct rec_pool){.replicas = -1,
                               .last_replicas = -1,
                               .bounds_min = -1,
                               .bounds_max = -1,
                               .pdb_min_available = -1};
        break;
    case REC_APPLY_PDB:
        p->pdb_min_available = a->number;
        p->pdb_all_ranks = a->index == 1;
        break;
    case REC_CREATE_GANG:
        w->pod_groups[w->s.n_pod_groups++] = arena_dup(&w->arena, str_c(a->group));
        break;
    case REC_CREATE_REVISION:
    case REC_NUMBER_REVISION:
    case REC_DELETE_REVISION: world_revision(w, a); break;
    case REC_POOL_STATUS: world_pool_status(w, a->role); break;
    case REC_STATUS: world_status(w); break;
    default: world_pod_action(w, a);
    }
}

/* One call; at most `limit` of its actions are carried out. Returns how many it had. */
static inline size_t world_turn(struct world *w, size_t limit)
{
    assert_int_equal(reconcile(world_snapshot(w), w->now, &w->arena, &w->plan), 0);
    for (size_t i = 0; i < w->plan.n && i < limit; i++)
        world_apply(w, &w->plan.actions[i]);
    return w->plan.n;
}

/* The scheduler and the kubelet: what was made gets a node and an address and becomes ready (a pod
 * of a group once it knows the others), what was deleted goes. */
static inline void world_kubelet(struct world *w)
{
    for (size_t i = 0; i < WORLD_PODS; i++) {
        struct rec_pod *p = &w->pods[i].p;
        if (!w->pods[i].there)
            continue;
        if (p->deleting) {
            w->pods[i].there = false;
            continue;
        }
        p->placed |= !p->gated && !w->no_nodes;
        if (p->placed && !p->ip)
            p->ip = world_text(w, "10.0.0.", (unsigned)++w->addresses);
        if (!p->failed && !p->trouble && !p->unschedulable && !p->lost && p->role != REC_STANDBY &&
            p->placed && (p->size <= 1 || (p->peers && p->failed_epoch < p->epoch)))
            p->ready = true;
    }
}

/* Until nothing is left to do. */
static inline void world_settle(struct world *w)
{
    for (int i = 0; i < 200; i++) {
        size_t n = world_turn(w, SIZE_MAX);
        world_kubelet(w);
        w->now += 1 * S_NS;
        if (n == 0 && world_turn(w, 0) == 0)
            return;
    }
    fail_msg("no end: the last plan still had %zu actions, the first being %s", w->plan.n,
             w->plan.n ? rec_kind_name(w->plan.actions[0].kind) : "none");
}

static inline const struct rec_action *world_action(const struct world *w, enum rec_kind kind,
                                                    size_t nth)
{
    for (size_t i = 0; i < w->plan.n; i++)
        if (w->plan.actions[i].kind == kind && nth-- == 0)
            return &w->plan.actions[i];
    return NULL;
}
