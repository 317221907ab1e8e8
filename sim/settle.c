/* When faults have ended: is everything as it should be, and does it stay so? */
#include "sim/check_int.h"

#include "lib/kube/types.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define IS(a, b) (strcmp(a, b) == 0)

const char *const role_names[ROLES] = {"prefill", "decode", "unified", "standby"};

struct look {
    char *why;
    size_t n;
    bool settled;
};

static void not_yet(struct look *l, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void not_yet(struct look *l, const char *fmt, ...)
{
    va_list ap;
    if (!l->settled)
        return;
    l->settled = false;
    va_start(ap, fmt);
    vsnprintf(l->why, l->n, fmt, ap);
    va_end(ap);
}

static const json_t *condition(const json_t *doc, const char *type)
{
    size_t i;
    json_t *c;
    json_array_foreach (json_at(doc, "status.conditions"), i, c)
        if (IS(json_str_at(c, "type", ""), type))
            return c;
    return NULL;
}

static bool accepted(const json_t *infd)
{
    return IS(json_str_at(condition(infd, "Accepted"), "status", ""), "True");
}

static bool older_of_model(json_t *infd, void *ctx)
{
    const json_t **mine = ctx;
    int age = strcmp(json_str_at(infd, "metadata.creationTimestamp", ""),
                     json_str_at(*mine, "metadata.creationTimestamp", ""));
    int uid = strcmp(json_str_at(infd, "metadata.uid", ""), json_str_at(*mine, "metadata.uid", ""));
    if ((age < 0 || (age == 0 && uid < 0)) &&
        IS(json_str_at(*mine, "spec.model.name", ""), json_str_at(infd, "spec.model.name", "")))
        *mine = NULL;
    return *mine != NULL;
}

/* Refused for good: an older one has its model's name. */
static bool has_rival(const json_t *infd)
{
    const json_t *mine = infd;
    server_each("inferencedeployments", older_of_model, &mine);
    return !mine;
}

static void look_role(struct look *l, const json_t *infd, const struct deploy *d, int role)
{
    char pool_name[80], path[64];
    snprintf(path, sizeof path, "spec.%s", role_names[role]);
    const json_t *spec = json_at(infd, path);
    int64_t want = d->want[STANDBY].n ? d->want[role].v[(d->want[role].n - 1) % HIST_MAX].v : 0;
    snprintf(pool_name, sizeof pool_name, "%s-%s", d->name, role_names[role]);
    const json_t *pool = role == STANDBY ? NULL : server_get("workerpools", pool_name);
    if (role != STANDBY && !pool != !spec)
        not_yet(l, "WorkerPool %s %s", pool_name, pool ? "is still there" : "is missing");
    if (pool) {
        want = json_int_at(pool, "spec.replicas", -1);
        int64_t said = json_int_at(spec, "replicas", -1);
        const char *last = json_string_value(
            json_object_get(json_at(pool, "metadata.annotations"), ANN_LAST_REPLICAS));
        if ((said < 0) != !last || (last && strtoll(last, NULL, 10) != said))
            not_yet(l, "WorkerPool %s records %s, the InferenceDeployment says %lld", pool_name,
                    last ? last : "nothing", (long long)said);
        if (json_int_at(pool, "status.readyReplicas", -1) != want ||
            json_int_at(pool, "status.replicas", -1) != want ||
            json_int_at(pool, "status.observedGeneration", -1) !=
                json_int_at(pool, "metadata.generation", 0))
            not_yet(l, "the status of WorkerPool %s is out of date", pool_name);
        if (!server_get("poddisruptionbudgets", pool_name))
            not_yet(l, "PodDisruptionBudget %s is missing", pool_name);
    }
    int64_t live = check_groups(d, role, false), ready = check_groups(d, role, true);
    if (live != want || (role != STANDBY && ready != want))
        not_yet(l, "%s has %lld %s groups, %lld ready, wanted %lld", d->name, (long long)live,
                role_names[role], (long long)ready, (long long)want);
}

static bool look_infd(json_t *infd, void *ctx)
{
    struct look *l = ctx;
    const char *name = json_str_at(infd, "metadata.name", "");
    const struct deploy *d = check_deploy(json_str_at(infd, "metadata.uid", ""));
    if (json_at(infd, "metadata.deletionTimestamp")) {
        not_yet(l, "%s is being deleted", name);
        return true;
    }
    if (json_int_at(infd, "status.observedGeneration", -1) !=
        json_int_at(infd, "metadata.generation", 0))
        not_yet(l, "the status of %s is out of date", name);
    if (!accepted(infd)) {
        if (!IS(json_str_at(condition(infd, "Accepted"), "status", ""), "False") ||
            !has_rival(infd))
            not_yet(l, "%s is not accepted: %s", name,
                    json_str_at(condition(infd, "Accepted"), "message", "no condition"));
        return true;
    }
    for (int r = 0; d && r < ROLES; r++)
        look_role(l, infd, d, r);
    char secret[80];
    snprintf(secret, sizeof secret, "%s-peer", name);
    if (!server_get("secrets", secret))
        not_yet(l, "Secret %s is missing", secret);
    const json_t *ready = condition(infd, "Ready");
    const char *reason = json_str_at(ready, "reason", "");
    if (!IS(json_str_at(ready, "status", ""), "True") && !IS(reason, "ScaledToZero"))
        not_yet(l, "%s is not Ready: %s", name, json_str_at(ready, "message", "no condition"));
    return true;
}

static void look_pods(struct look *l)
{
    for (const struct vpod *p = check_pods(); p; p = p->next) {
        const struct deploy *d = check_deploy(p->owner);
        if (*p->owner && (!d || d->gone))
            not_yet(l, "pod %s is an orphan", p->name);
        if (*p->owner && (p->deleting || p->failed))
            not_yet(l, "pod %s is %s", p->name, p->deleting ? "ending" : "failed");
        if (d && p->role == STANDBY && !p->at_role)
            not_yet(l, "standby pod %s is starting", p->name);
        for (const struct vpod *q = p->next; q; q = q->next)
            if (*p->owner && p->role == q->role && p->role != STANDBY && IS(p->owner, q->owner) &&
                !IS(p->revision, q->revision))
                not_yet(l, "pods %s and %s differ in revision", p->name, q->name);
    }
}

static bool look_owned(json_t *doc, void *ctx)
{
    struct look *l = ctx;
    const json_t *ref = json_at(doc, "metadata.ownerReferences.0");
    const char *uid = json_str_at(ref, "uid", "");
    const struct deploy *d = check_deploy(uid);
    if (IS(json_str_at(ref, "kind", ""), "InferenceDeployment") && (!d || d->gone))
        not_yet(l, "%s %s is an orphan", json_str_at(doc, "kind", ""),
                json_str_at(doc, "metadata.name", ""));
    return true;
}

bool check_settled(char *why, size_t n)
{
    struct look l = {why, n, true};
    *why = 0;
    if (user_busy())
        not_yet(&l, "the user has not finished");
    if (control_leader() < 0)
        not_yet(&l, "nobody leads");
    server_each("inferencedeployments", look_infd, &l);
    look_pods(&l);
    server_each("workerpools", look_owned, &l);
    server_each("secrets", look_owned, &l);
    server_each("poddisruptionbudgets", look_owned, &l);
    return l.settled;
}

/* ---- one writer a field ---- */

struct owned {
    char path[400];
    const char *manager;
};
struct owners {
    struct owned *v;
    size_t n, cap;
    const char *object;
};

static bool ours(const char *manager)
{
    return strncmp(manager, "baton-controller", 16) == 0 || IS(manager, "baton-scaler");
}

static void own(struct owners *o, const char *path, const char *manager)
{
    for (size_t i = 0; i < o->n; i++)
        if (IS(o->v[i].path, path) && !IS(o->v[i].manager, manager) &&
            (ours(manager) || ours(o->v[i].manager)))
            check_fail("%s: %s is written by %s and by %s", o->object, path, o->v[i].manager,
                       manager);
    if (o->n == o->cap) {
        o->cap = o->cap ? o->cap * 2 : 64;
        o->v = xrealloc(o->v, o->cap * sizeof *o->v);
    }
    snprintf(o->v[o->n].path, sizeof o->v->path, "%s", path);
    o->v[o->n++].manager = manager;
}

static void walk(struct owners *o, const json_t *fields, const char *path, const char *manager)
{
    const char *key;
    json_t *v;
    json_object_foreach ((json_t *)(uintptr_t)fields, key, v) {
        char deeper[400];
        if (IS(key, "."))
            continue;
        snprintf(deeper, sizeof deeper, "%s/%s", path, key);
        if (json_object_size(v))
            walk(o, v, deeper, manager);
        else
            own(o, deeper, manager);
    }
}

static bool one_writer(json_t *doc, void *ctx)
{
    (void)ctx;
    struct owners o = {.object = json_str_at(doc, "metadata.name", "")};
    size_t i;
    json_t *m;
    json_array_foreach (json_at(doc, "metadata.managedFields"), i, m)
        walk(&o, json_object_get(m, "fieldsV1"), "", json_str_at(m, "manager", ""));
    free(o.v);
    check_count++;
    return true;
}

void check_end(void)
{
    server_each("inferencedeployments", one_writer, NULL);
    server_each("workerpools", one_writer, NULL);
    server_each("pods", one_writer, NULL);
    server_each("poddisruptionbudgets", one_writer, NULL);
}
