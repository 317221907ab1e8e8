/* controller.h: the controller's state. One loop, one thread: caches fill, keys ("namespace/infd")
 * queue up, each turn builds a snapshot (snapshot.c), asks lib/decide what to do, prepares the
 * requests (objects.c, pod.c) and carries them out (execute.c). Only the leader
 * writes. Nothing here is truth: killed at any instruction, a new process goes on from what the API
 * server holds. */
#pragma once
#include "lib/decide/reconcile.h"
#include "lib/io/httpd.h"
#include "lib/kube/access.h"
#include "lib/kube/cache.h"
#include "lib/kube/event.h"
#include "lib/kube/lease.h"
#include "lib/kube/queue.h"

#define FIELD_MANAGER "baton-controller"

struct options {
    const char *namespace; /* "": that of the kubeconfig; "*": all */
    const char *own_namespace, *identity, *pod_ip, *log_format, *log_level;
    const char *worker_image, *router_url, *router_selector, *router_address;
    const char *agent_dir, *models_dir;
    const char *decision_log, *metrics_service, *metrics_cert, *metrics_key;
    uint64_t port, metrics_port, lease_s, renew_s, retry_s;
    bool no_election, plain_scaling;
};

/* What this process wrote and its caches do not show yet. */
struct expected {
    struct expected *next;
    char *key, *name, *uid;   /* of the deployment's turn; of the pod */
    struct kube_pod *created; /* NULL: a delete */
    uint64_t until_ns;
};

struct turn;
struct load;  /* load.c */
struct doubt; /* doubt.c */

struct ctl {
    uv_loop_t *loop;
    struct options opts;
    const char *namespace; /* NULL: all */
    struct kube_client *client;
    struct kube_cache *infds, *wps, *pods, *secrets, *pdbs, *revisions, *routers;
    struct kube_cache *nodes;      /* the whole cluster's; stays empty without that right */
    struct kube_cache *pod_groups; /* NULL where the API server has none */
    enum rec_gang gang;
    bool gang_known;
    size_t usable_nodes;
    bool usable_nodes_stale;
    struct queue *queue;
    struct kube_lease *lease;
    struct kube_events_recorder *events;
    struct httpd *http;
    struct access *access; /* NULL until rights_start */
    struct load *load;
    struct standby *standby; /* standby.h */
    struct restart *restart; /* restart.h; NULL: not started */
    struct expected *expected;
    struct doubt *doubts; /* doubt.c */
    uv_timer_t resync, ask_gang;
    bool leading, stopping;
    int exit_code;
};

enum step_state { STEP_WAITS, STEP_OUT, STEP_DONE, STEP_DOUBTFUL };

/* A request that is ready to go: everything in it is owned. */
struct step {
    enum step_state state;
    struct turn *turn; /* that sent it; execute.c */
    uint64_t sent_ns;
    enum rec_kind kind;
    struct kube_call call;
    char *name, *path_name, *uid, *resource_version, *why;
    char *trouble; /* reason of a Warning event that goes with it; NULL: none */
    int32_t index; /* of the pod in its group */
    json_t *body;
    enum rec_role role;
    bool replaces; /* a pod of a group of several that takes another's place */
};

/* doubt.c: writes whose outcome is not known. doubt_keep takes the step over; doubt_take gives
 * those of a key back for another try (*steps and their members are the caller's); doubt_free drops
 * those of a key, NULL: all. */
bool doubt_is(const struct step *s, const struct kube_result *r);
void doubt_keep(struct ctl *c, const char *key, struct step *s);
size_t doubt_take(struct ctl *c, const char *key, const char *namespace, struct step **steps);
void doubt_free(struct ctl *c, const char *key);
void step_fini(struct step *s);

/* options.c */
struct conf_prog;
extern const struct conf_prog ctl_program;

/* run.c: opts and loop are set, everything else is zero. ctl_start returns once everything has been
 * started; ctl_end gives the Lease back and stops the loop; ctl_finish frees after the loop has
 * stopped. */
int ctl_start(struct ctl *c, const struct kube_config *config, struct err *e) MUST_CHECK;
void ctl_end(struct ctl *c);
void ctl_finish(struct ctl *c);

/* expose.c: metrics of deployments and roles, from the caches */
void expose_start(struct ctl *c);
void expose_stop(struct ctl *c);

/* rights.c: what the API server must allow. Started by main; the condition `Permitted` of every
 * deployment tells of what is missing. */
int rights_start(struct ctl *c, struct err *e) MUST_CHECK;
void rights_tell(struct ctl *c, const struct kube_infd *d);
void rights_tell_all(void *ctl);

/* snapshot.c */
int snapshot_build(struct ctl *c, const struct kube_infd *d, struct arena *a,
                   struct rec_snapshot *out) MUST_CHECK;
/* NULL when there is none; borrowed until the loop turns. */
const struct kube_infd *snapshot_infd(const struct ctl *c, const char *key);

/* nodes.c */
enum node_state {
    NODE_STAYS,
    NODE_LEAVING, /* cordoned, or tainted by who takes it away */
    NODE_LOST     /* gone, or silent for half a minute */
};
/* *look_again_ns is set when time alone will change the answer. */
enum node_state nodes_state(struct ctl *c, const struct kube_pod *p, uint64_t *look_again_ns);
/* Calls wake for the deployments of the pods there when the node's state changed. */
void nodes_changed(struct ctl *c, const struct kube_node *old, const struct kube_node *now,
                   void (*wake)(struct ctl *c, const char *namespace, const char *infd));

/* trouble.c */
struct trouble {
    const char *reason; /* CamelCase, static */
    char text[900];     /* what is wrong and what to do */
    bool disrupted;     /* somebody else's doing, not a crash */
    bool unschedulable;
};
bool trouble_of(const struct kube_pod *p, enum node_state node, struct trouble *t);

/* group.c: what makes a pod one of a group */
json_t *group_metadata(const struct kube_infd *d, const struct rec_action *a);
void group_place(json_t *spec, const struct ctl *c, const struct infd_role *role,
                 const struct rec_action *a);
json_t *group_gang(const struct kube_infd *d, const struct rec_action *a); /* a PodGroup */
json_t *group_patch(const struct rec_action *a); /* of REC_GROUP_POD: a merge patch */
json_t *group_lift(const struct rec_action *a, uint64_t now_ns); /* a strategic merge patch */

/* revision.c: ControllerRevisions */
json_t *revision_data(const struct kube_infd *d);
json_t *revision_object(const struct kube_infd *d, const struct rec_action *a);
/* The hash that pods of the role had in it; NULL when it had none. */
const char *revision_of_role(const struct kube_revision *v, enum rec_role role);
int32_t revision_pods(const struct kube_revision *v, enum rec_role role); /* of a group in it */
/* The deployment as it was when pods of this role had this hash: its own metadata, the stored spec.
 * free(); NULL with *e when it is not stored. */
struct kube_infd *revision_infd(const struct ctl *c, const struct kube_infd *d, enum rec_role role,
                                const char *hash, struct err *e);

/* pod.c */
int64_t role_ranks(const struct infd_role *r); /* of a group */
int64_t role_pods(const struct infd_role *r);
/* What prefill and decode must share to work on one request: model and KV layout. */
void pod_pair(const struct kube_infd *d, char out[17]);
/* The whole deployment's revision: those of its roles. */
void infd_revision(const struct kube_infd *d, char out[17]);
/* The revision that pods of this role should have. */
void pod_revision(const struct kube_infd *d, const struct infd_role *role, char out[17]);
json_t *pod_body(const struct ctl *c, const struct kube_infd *d, const struct rec_action *a,
                 struct err *e);
uint64_t pod_drain_seconds(const struct kube_infd *d);
/* A sentence when no pod can be made of this spec, NULL when it can. */
const char *pod_invalid(const struct kube_infd *d);
const struct infd_role *infd_role_of(const struct kube_infd *d, enum rec_role role);
bool infd_has_role(const struct kube_infd *d, enum rec_role role);

/* objects.c: bodies of what the controller owns besides pods. */
json_t *object_owner(const char *api, const char *kind, const char *name, const char *uid);
json_t *object_pool(const struct kube_infd *d, const struct rec_action *a);
json_t *object_pool_apply(const struct kube_infd *d, enum rec_role role);
json_t *object_secret(const struct kube_infd *d);
/* all_ranks: it counts every pod of the role, else only rank 0's. */
json_t *object_pdb(const struct kube_infd *d, enum rec_role role, int32_t min_available,
                   bool all_ranks, const char *pool_uid);
json_t *object_status(const struct kube_infd *d, const struct rec_plan *p, const char *url);
json_t *object_pool_status(const struct kube_infd *d, const struct rec_plan *p, enum rec_role role);
json_t *object_conditions(const struct rec_condition *c, size_t n);

/* execute.c */
/* The most requests of one turn, but for what it reads again when something went wrong. */
#define TURN_REQUESTS 9u
void execute_work(struct queue *q, const char *key, void *ctx); /* the queue's work function */

/* expected.c: key is the deployment's. What is overdue must be settled with a fresh list of the
 * deployment's pods before anything is decided about it. */
#define EXPECTED_NS ((KUBE_STALE_MS + 15000) * 1000000ull)
void expected_add_created(struct ctl *c, const char *key, struct str pod); /* its JSON text */
void expected_add_deleted(struct ctl *c, const char *key, const char *name, const char *uid);
bool expected_deleted(const struct ctl *c, const char *uid);
void expected_seen(struct ctl *c, const struct kube_pod *old, const struct kube_pod *now);
bool expected_any(const struct ctl *c, const char *key);
bool expected_overdue(struct ctl *c, const char *key);
void expected_settle(struct ctl *c, const char *key, const char *namespace, const json_t *list);
/* The API server says that there is no such pod: what was made is gone before it was seen. */
void expected_gone(struct ctl *c, const char *key, const char *name);
void expected_forget(struct ctl *c, const char *key); /* NULL: all */

/* load.c */
int load_start(struct ctl *c, struct err *e) MUST_CHECK;
void load_stop(struct ctl *c);
bool scaling_http(struct ctl *c, struct httpd_req *r); /* true: the path was one of its own */
/* Prompt tokens that its prefix cache has saved lately; 0: not heard of. */
uint64_t cached_of_pod(const struct ctl *c, const char *uid);
uint32_t load_of_pod(const struct ctl *c,
                     const char *uid); /* running requests as the routers see them */
