/* Nodes, scheduler, kubelets and agents: pods are bound, start, load, become ready, change roles,
 * fail, drain and go, each step an API write after a drawn time. Written after what local/'s
 * kubelet and agent/ do. */
#include "sim/sim.h"

#include "lib/kube/types.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NODES_MAX 8
#define IS(a, b)  (strcmp(a, b) == 0)

/* A pod as its kubelet knows it. Kept to the end of the run. */
struct spod {
    struct spod *next;
    char *name, *uid, ip[32];
    int node; /* -1: not bound */
    bool running, loaded, failed, gone, ending, waiting;
    char role[16]; /* that the worker plays; "" while it does none */
    unsigned restarts;
    int epoch;         /* that its ranks run at, or ran at last */
    int broken_epoch;  /* in which a peer of it failed */
    bool awaits_epoch; /* they failed: in a group of several pods the controller says when again */
    uint64_t incarnation;
    const char *reason; /* of the failure */
};

static struct {
    struct cluster_faults f;
    struct rng rng;
    struct spod *pods;
    bool dead[NODES_MAX];
    unsigned ips;
} C;

static uint64_t ms(uint64_t lo, uint64_t hi)
{
    return (lo + rng_below(&C.rng, hi - lo + 1)) * NS_PER_MS;
}

static bool happens(double per_minute)
{
    return per_minute > 0 && rng_unit(&C.rng) < per_minute / 60;
}

static json_t *doc_of(const struct spod *p)
{
    json_t *doc = p->gone ? NULL : server_get("pods", p->name);
    return doc && IS(json_str_at(doc, "metadata.uid", ""), p->uid) ? doc : NULL;
}

static const char *label(const json_t *doc, const char *key)
{
    const char *v = json_string_value(json_object_get(json_at(doc, "metadata.labels"), key));
    return v ? v : "";
}

static const char *annotation(const json_t *doc, const char *key)
{
    const char *v = json_string_value(json_object_get(json_at(doc, "metadata.annotations"), key));
    return v ? v : "";
}

static char *path_of(const struct spod *p, const char *sub)
{
    return xasprintf("/api/v1/namespaces/" SIM_SPACE "/pods/%s%s%s", p->name, *sub ? "/" : "", sub);
}

static void merge(const char *user, const struct spod *p, const char *sub, json_t *body)
{
    CLEANUP(free_charp) char *path = path_of(p, sub);
    net_call(user, "PATCH", path, "application/merge-patch+json", body, NULL);
}

static bool silent(const struct spod *p)
{
    return p->node >= 0 && C.dead[p->node];
}

/* ---- status ---- */

static bool serves(const struct spod *p)
{
    return p->running && p->loaded && !p->failed && *p->role && !IS(p->role, "standby");
}

static json_t *condition(const char *type, bool holds, const char *reason, const char *message)
{
    char time[CLOCK_RFC3339_MAX];
    return json_pack("{s:s, s:s, s:s, s:s, s:s}", "type", type, "status", holds ? "True" : "False",
                     "reason", reason, "message", message, "lastTransitionTime",
                     clock_rfc3339(clock_wall_ns(), 0, time));
}

static json_t *container(const struct spod *p)
{
    char time[CLOCK_RFC3339_MAX];
    clock_rfc3339(clock_wall_ns(), 0, time);
    json_t *state = p->failed ? json_pack("{s:{s:i, s:s, s:s}}", "terminated", "exitCode", 137,
                                          "reason", p->reason, "finishedAt", time)
                              : json_pack("{s:{s:s}}", "running", "startedAt", time);
    return json_pack("{s:s, s:b, s:i, s:s, s:s, s:o}", "name", "worker", "ready",
                     p->running && !p->failed, "restartCount", (int)p->restarts, "image", "baton",
                     "imageID", "", "state", state);
}

static void publish(const struct spod *p)
{
    const char *phase = p->failed ? "Failed" : p->running ? "Running" : "Pending";
    json_t *conditions = json_array();
    json_array_append_new(conditions, condition("PodScheduled", p->node >= 0, "Scheduled", ""));
    json_array_append_new(conditions, condition(GATE_ROLE, serves(p), "Role", ""));
    json_array_append_new(conditions, condition("Ready", serves(p), "Ready", ""));
    json_t *status = json_pack("{s:s, s:o, s:[o]}", "phase", phase, "conditions", conditions,
                               "containerStatuses", container(p));
    if (p->failed)
        json_object_set_new(status, "reason", json_string(p->reason));
    if (p->running)
        json_object_set_new(status, "podIP", json_string(p->ip));
    merge("baton-kubelet", p, "status", json_pack("{s:o}", "status", status));
}

/* ---- agent ---- */

static void report_role(const struct spod *p)
{
    char text[24];
    snprintf(text, sizeof text, "%016llx", (unsigned long long)p->incarnation);
    merge("baton-agent", p, "",
          json_pack("{s:{s:{s:s, s:s}}}", "metadata", "annotations", ANN_ACTUAL_ROLE, p->role,
                    ANN_INCARNATION, text));
}

static bool grouped(const json_t *doc)
{
    return *label(doc, LABEL_GROUP_SIZE) && !IS(label(doc, LABEL_GROUP_SIZE), "1");
}

static int epoch_wanted(const json_t *doc)
{
    const char *text = annotation(doc, ANN_EPOCH);
    return *text ? atoi(text) : 1;
}

/* The start barrier of a group: everyone's address, and an epoch that has not failed yet. */
static bool may_start(const struct spod *p, const json_t *doc)
{
    return !grouped(doc) ||
           (*annotation(doc, ANN_PEERS) && (!p->awaits_epoch || epoch_wanted(doc) > p->epoch));
}

/* The agent brings the worker to the desired role once it can. */
static void follow(void *arg)
{
    struct spod *p = arg;
    json_t *doc = doc_of(p);
    if (!doc || silent(p) || !p->running || !p->loaded || p->failed || p->ending ||
        !may_start(p, doc))
        return;
    const char *want = label(doc, LABEL_ROLE);
    p->awaits_epoch = false;
    p->epoch = epoch_wanted(doc);
    if (IS(p->role, want))
        return;
    snprintf(p->role, sizeof p->role, "%s", want);
    report_role(p);
    publish(p);
}

static void loaded(void *arg)
{
    struct spod *p = arg;
    if (!doc_of(p) || silent(p) || !p->running || p->failed)
        return;
    p->loaded = true;
    follow(p);
}

static void run(void *arg)
{
    struct spod *p = arg;
    if (!doc_of(p) || silent(p) || p->running || p->failed || p->ending)
        return;
    p->running = true;
    p->incarnation = rng_next(&C.rng) | 1;
    snprintf(p->ip, sizeof p->ip, "10.1.%u.%u", C.ips / 250, C.ips % 250 + 1);
    C.ips++;
    publish(p);
    sim_at(ms(200, 4000), loaded, p);
}

/* A pod of a group says which epoch failed, and waits; the others notice and say the same. */
static void report_failure(struct spod *p)
{
    char text[16];
    snprintf(text, sizeof text, "%d", p->epoch);
    p->awaits_epoch = true;
    merge("baton-agent", p, "",
          json_pack("{s:{s:{s:s, s:s}}}", "metadata", "annotations", ANN_FAILED_EPOCH, text,
                    ANN_LAST_CRASH, "{\"reason\":\"simulated\"}"));
}

static void stop_ranks(struct spod *p)
{
    p->loaded = false;
    p->role[0] = 0;
    p->restarts++;
    p->incarnation = rng_next(&C.rng) | 1;
    publish(p);
    sim_at(ms(1000, 10000), loaded, p);
}

static void peer_notices(void *arg)
{
    struct spod *p = arg;
    if (!doc_of(p) || silent(p) || !p->loaded || p->failed || p->ending || p->awaits_epoch ||
        p->epoch != p->broken_epoch)
        return;
    report_failure(p);
    stop_ranks(p);
}

/* The worker died inside its pod: the launcher starts another, or the controller the whole group.
 */
static void restart(struct spod *p)
{
    json_t *doc = doc_of(p);
    trace("cluster: the worker of %s dies", p->name);
    if (grouped(doc)) {
        report_failure(p);
        for (struct spod *q = C.pods; q; q = q->next) {
            json_t *other = q != p ? doc_of(q) : NULL;
            if (!other || !IS(label(other, LABEL_GROUP), label(doc, LABEL_GROUP)))
                continue;
            q->broken_epoch = q->epoch;
            sim_at(ms(10, 3000), peer_notices, q);
        }
    }
    stop_ranks(p);
}

/* Another epoch while ranks run: they end and start again with the others. */
static void new_epoch(void *arg)
{
    struct spod *p = arg;
    json_t *doc = doc_of(p);
    if (!doc || silent(p) || !p->running || p->failed || p->ending || !grouped(doc) ||
        epoch_wanted(doc) <= p->epoch)
        return;
    if (*p->role)
        stop_ranks(p);
    else
        follow(p);
}

static void fail(struct spod *p, const char *reason)
{
    trace("cluster: %s fails: %s", p->name, reason);
    p->failed = true;
    p->reason = reason;
    p->role[0] = 0;
    publish(p);
}

/* ---- deletion ---- */

static void ended(void *arg)
{
    struct spod *p = arg;
    if (!doc_of(p) || silent(p))
        return;
    CLEANUP(free_charp) char *path = path_of(p, "");
    net_call("baton-kubelet", "DELETE", path, NULL,
             json_pack("{s:s, s:s, s:i, s:{s:s}}", "kind", "DeleteOptions", "apiVersion", "v1",
                       "gracePeriodSeconds", 0, "preconditions", "uid", p->uid),
             NULL);
}

static void drain(struct spod *p)
{
    if (p->ending || silent(p))
        return;
    p->ending = true;
    sim_at(rng_below(&C.rng, 4) ? ms(50, 3000) : ms(3000, 30000), ended, p);
}

/* ---- scheduler ---- */

static unsigned used(int node)
{
    unsigned n = 0;
    for (const struct spod *p = C.pods; p; p = p->next)
        n += !p->gone && p->node == node;
    return n;
}

static int room(void)
{
    unsigned first = (unsigned)rng_below(&C.rng, C.f.nodes);
    for (unsigned i = 0; i < C.f.nodes; i++) {
        int n = (int)((first + i) % C.f.nodes);
        if (!C.dead[n] && used(n) < C.f.slots)
            return n;
    }
    return -1;
}

static void schedule(void *arg);

static void no_room(struct spod *p)
{
    if (!p->waiting)
        merge("baton-kubelet", p, "status",
              json_pack("{s:{s:s, s:[o]}}", "status", "phase", "Pending", "conditions",
                        condition("PodScheduled", false, "Unschedulable",
                                  "0 nodes are available: Insufficient slots")));
    p->waiting = true;
    sim_at(5 * NS_PER_S, schedule, p);
}

static void schedule(void *arg)
{
    struct spod *p = arg;
    json_t *doc = doc_of(p);
    if (!doc || p->node >= 0 || json_at(doc, "metadata.deletionTimestamp") ||
        json_array_size(json_at(doc, "spec.schedulingGates")))
        return;
    int node = room();
    if (node < 0) {
        no_room(p);
        return;
    }
    char name[16];
    snprintf(name, sizeof name, "node-%d", node);
    CLEANUP(free_charp) char *path = path_of(p, "binding");
    p->node = node;
    int status = net_call("baton-kubelet", "POST", path, NULL,
                          json_pack("{s:s, s:s, s:{s:s}, s:{s:s, s:s}}", "apiVersion", "v1", "kind",
                                    "Binding", "metadata", "name", p->name, "target", "kind",
                                    "Node", "name", name),
                          NULL);
    if (status != 201)
        p->node = -1;
    else
        sim_at(C.f.slow_start > 0 && rng_unit(&C.rng) < C.f.slow_start ? ms(10000, 90000)
                                                                       : ms(100, 3000),
               run, p);
}

/* ---- events ---- */

static struct spod *find(const char *name, const char *uid)
{
    for (struct spod *p = C.pods; p; p = p->next)
        if (IS(p->name, name) && (!uid || IS(p->uid, uid)) && !p->gone)
            return p;
    return NULL;
}

static void follow_soon(struct spod *p)
{
    sim_at(ms(5, 400), follow, p);
}

void cluster_pod_event(json_t *old, json_t *now)
{
    const json_t *doc = now ? now : old;
    const char *name = json_str_at(doc, "metadata.name", ""),
               *uid = json_str_at(doc, "metadata.uid", "");
    struct spod *p = find(name, uid);
    if (!now) {
        if (p)
            p->gone = true;
        return;
    }
    if (!p) {
        p = xcalloc(1, sizeof *p);
        p->name = xstrdup(name);
        p->uid = xstrdup(uid);
        p->node = -1;
        p->next = C.pods;
        C.pods = p;
    }
    if (p->node < 0 && !json_at(now, "metadata.deletionTimestamp") &&
        (!old || json_array_size(json_at(old, "spec.schedulingGates"))))
        sim_at(ms(5, 300), schedule, p);
    if (json_at(now, "metadata.deletionTimestamp"))
        drain(p);
    else if (old && !json_equal(json_object_get(json_object_get(old, "metadata"), "labels"),
                                json_object_get(json_object_get(now, "metadata"), "labels")))
        follow_soon(p);
    else if (old && !IS(annotation(old, ANN_PEERS), annotation(now, ANN_PEERS)))
        follow_soon(p);
    else if (old && !IS(annotation(old, ANN_EPOCH), annotation(now, ANN_EPOCH)))
        sim_at(ms(5, 400), new_epoch, p);
}

/* ---- faults ---- */

static void node_back(void *arg)
{
    unsigned n = (unsigned)(uintptr_t)arg;
    if (!C.dead[n])
        return;
    trace("cluster: node-%u is back", n);
    C.dead[n] = false;
    for (struct spod *p = C.pods; p; p = p->next) {
        json_t *doc = p->node == (int)n ? doc_of(p) : NULL;
        if (!doc || p->failed)
            continue;
        p->ending = false;
        if (json_at(doc, "metadata.deletionTimestamp"))
            drain(p);
        else if (p->running)
            restart(p);
        else
            sim_at(ms(100, 3000), run, p);
    }
}

/* What the node and the taint-eviction controllers do about a node that is not heard of. */
static void node_lost(void *arg)
{
    unsigned n = (unsigned)(uintptr_t)arg;
    for (struct spod *p = C.pods; p && C.dead[n]; p = p->next)
        if (p->node == (int)n && doc_of(p) && !p->failed) {
            p->role[0] = 0;
            publish(p);
        }
}

static void node_emptied(void *arg)
{
    unsigned n = (unsigned)(uintptr_t)arg;
    for (struct spod *p = C.pods; p && C.dead[n]; p = p->next)
        if (p->node == (int)n && doc_of(p)) {
            CLEANUP(free_charp) char *path = path_of(p, "");
            net_call("admin", "DELETE", path, NULL, NULL, NULL);
        }
}

bool cluster_kill_node(unsigned n)
{
    unsigned alive = 0;
    for (unsigned i = 0; i < C.f.nodes; i++)
        alive += !C.dead[i];
    if (n >= C.f.nodes || C.dead[n] || alive < 2)
        return false;
    trace("cluster: node-%u dies", n);
    C.dead[n] = true;
    uint64_t seen = ms(2000, 40000), emptied = ms(20000, 60000);
    sim_at(seen, node_lost, (void *)(uintptr_t)n);
    sim_at(seen + emptied, node_emptied, (void *)(uintptr_t)n);
    sim_at(ms(20000, 240000), node_back, (void *)(uintptr_t)n);
    return true;
}

static void evict(const struct spod *p)
{
    CLEANUP(free_charp) char *path = path_of(p, "eviction");
    net_call("admin", "POST", path, NULL,
             json_pack("{s:s, s:s, s:{s:s, s:s}}", "apiVersion", "policy/v1", "kind", "Eviction",
                       "metadata", "name", p->name, "namespace", SIM_SPACE),
             NULL);
}

static void tick(void *arg)
{
    (void)arg;
    for (struct spod *p = C.pods; p; p = p->next) {
        if (p->gone || !p->running || p->failed || p->ending || silent(p) || !doc_of(p))
            continue;
        if (happens(C.f.crash))
            fail(p, rng_below(&C.rng, 2) ? "Evicted" : "OOMKilled");
        else if (p->loaded && happens(C.f.restart))
            restart(p);
        else if (happens(C.f.evict))
            evict(p);
    }
    for (unsigned n = 0; n < C.f.nodes; n++)
        if (happens(C.f.node_death))
            cluster_kill_node(n);
    sim_at(NS_PER_S, tick, NULL);
}

bool cluster_restart(const char *pod)
{
    struct spod *p = find(pod, NULL);
    if (!p || p->failed || !doc_of(p))
        return false;
    restart(p);
    return true;
}

bool cluster_fail(const char *pod, const char *reason)
{
    struct spod *p = find(pod, NULL);
    if (!p || p->failed || !doc_of(p))
        return false;
    fail(p, reason);
    return true;
}

void cluster_start(uint64_t seed, const struct cluster_faults *f)
{
    C.f = *f;
    C.rng = (struct rng){rng_at(seed, 3, 0)};
    sim_at(NS_PER_S, tick, NULL);
}

void cluster_calm(void)
{
    C.f.crash = C.f.restart = C.f.evict = C.f.node_death = C.f.slow_start = 0;
    C.f.slots = 1000;
    for (unsigned n = 0; n < C.f.nodes; n++)
        node_back((void *)(uintptr_t)n);
}
