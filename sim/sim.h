/* sim.h: the control plane in one process, in virtual time. What runs is the real code: the
 * controller (controller/, lib/kube, lib/decide) and the embedded API server (local/, its store in
 * memory). Below them three seams are replaced at link time: libuv's timers and loop (loop.c), the
 * clocks and the source of random numbers (loop.c), and lib/io's HTTP client and server (net.c),
 * which become one network that loses, delays, cuts and refuses by a seed. Scheduler, kubelets,
 * agents and users are simulated (cluster.c, user.c); check.c watches every committed write.
 *
 * One run is one process (main.c forks each from a server that has its CRDs), so state is global,
 * memory is left to the end of the process, and a killed controller is simply never called again.
 * All of a run is a function of its options: the same seed writes the same trace, bit for bit.
 * Times are ns of virtual time; the run begins at SIM_EPOCH_NS. One thread. */
#pragma once
#include "lib/base/clock.h"
#include "lib/base/rng.h"
#include "lib/json/json.h"

#include <stdbool.h>
#include <uv.h>

#define SIM_EPOCH_NS 1767225600000000000ull /* 2026-01-01T00:00:00Z */
#define SIM_SPACE    "default"
#define SIM_SERVER   "http://api.sim"

/* ---- loop.c ---- */

/* A process of the simulation: what owns timers and connections, and can be killed. */
struct proc {
    uv_loop_t loop; /* loop.data is the proc */
    const char *name;
    bool alive;
    bool stopped;                         /* uv_stop was called: it wants to end */
    uint64_t cut_until_ns, deaf_until_ns; /* no bytes pass; watches hear nothing */
};
uint64_t sim_now(void);
void sim_at(uint64_t delay_ns, void (*fn)(void *arg), void *arg);
/* Runs events until `until_ns`, sim_stop() or the last one; false: stopped. */
bool sim_run(uint64_t until_ns);
void sim_stop(void);
void sim_checks(void);        /* what libuv does at the end of a turn: the server commits */
void sim_seed(uint64_t seed); /* of rng_secret */
void proc_init(struct proc *p, const char *name);
void proc_kill(struct proc *p);

/* ---- net.c ---- */

/* How hostile the network is; probabilities are per request or per frame. */
struct net_faults {
    double lose_request, lose_answer, refuse, slow, cut_stream, lose_frame, twice, reorder, gone,
        conflict;
    uint64_t slow_ns; /* longest delay of a slow message */
};
struct net_counts {
    uint64_t requests, writes, lost_requests, lost_answers, refused, conflicts, slow, cuts,
        lost_frames, twice, reordered, gone, partitions;
};
extern struct net_faults net_faults;
extern struct net_counts net_counts;
extern uint64_t net_trouble_ns; /* until when the network was or is hostile to a process */
void net_trouble_until(uint64_t ns);
void net_seed(uint64_t seed);
/* Faults stop here and now: damaged streams are cut so that their clients list again. */
void net_calm(void);
/* All connections of a process break; with `silent` the server is not told (half-open). */
void net_drop(struct proc *p, bool silent);
/* A request without network, by a user of the API server: returns the status, the answer (may be
 * NULL) in *out as a new reference unless out is NULL. body is stolen and may be NULL. */
int net_call(const char *user, const char *method, const char *path, const char *type, json_t *body,
             json_t **out);
/* A request of the process that waits for its answer, watches left out; NULL: none. */
const char *net_open(const struct proc *p);
/* Who wrote what is being committed now: a process's or a user's name. */
const char *net_writer(void);
/* Called after the server has carried out a write of a process, before its answer leaves. */
extern void (*net_on_write)(struct proc *p, const char *method, const char *path, int status);

/* ---- server.c ---- */
void server_make(const char *folder); /* the API server with its CRDs; before any fork */
const char *server_token(const char *user);
json_t *server_get(const char *plural, const char *name); /* borrowed; NULL when absent */
void server_each(const char *plural, bool (*fn)(json_t *doc, void *ctx), void *ctx);

/* ---- trace ---- */
/* Everything that happens goes into the run's hash; printed too with --trace. */
void trace(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
extern bool trace_on;
extern uint64_t trace_hash;

/* ---- cluster.c: nodes, scheduler, kubelets and agents ---- */
struct cluster_faults {
    double crash, restart, evict, node_death; /* expected a pod (a node) and minute */
    double slow_start;
    unsigned nodes, slots; /* slots: pods a node takes */
};
void cluster_start(uint64_t seed, const struct cluster_faults *f);
void cluster_calm(void); /* nodes return, nothing fails any more, there is room for all */
void cluster_pod_event(json_t *old, json_t *now);
bool cluster_fail(const char *pod, const char *reason); /* phase Failed */
bool cluster_restart(const char *pod);                  /* its ranks die, the pod stays */
bool cluster_kill_node(unsigned n);

/* ---- control.c: controllers ---- */
void control_start(unsigned n);
void control_kill(unsigned i, uint64_t back_after_ns); /* SIGKILL; a new one starts later */
struct proc *control_proc(unsigned i);
unsigned control_count(void);
int control_leader(void); /* index, or -1 */
/* What a controller that lives still waits for, or NULL: an answer that is lost is waited for until
 * its request times out, and what failed is tried again. */
const char *control_pending(void);
/* Dies right after the k-th write (1...) that its API server carries out; 0: never. */
void control_kill_after(uint64_t k);
extern uint64_t control_writes, control_kills, control_leaders;

/* ---- user.c: what people and autoscalers do ---- */
enum user_story {
    STORY_RANDOM,
    STORY_CREATE,
    STORY_SCALE,
    STORY_ROLLOUT,
    STORY_RESTART,
    STORY_REPLACE,
    STORY_DELETE
};
/* pods: of a group; 0: drawn (random) or 1. */
void user_start(uint64_t seed, enum user_story story, unsigned pods, uint64_t chaos_ns);
bool user_busy(void); /* something is to come yet */

/* ---- check.c ---- */
void check_event(const char *plural, json_t *old, json_t *now); /* each committed write */
void check_leads(const char *who, const char *path);            /* a controller's write succeeded */
bool check_settled(char *why, size_t n);                        /* nothing is left to do */
void check_end(void);                                           /* what must hold at the end */
void check_fail(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
extern char check_failure[512]; /* "" while all invariants hold */
extern uint64_t check_count;
