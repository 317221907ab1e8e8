/* agent.h: the node's agent: what its files share. One loop, one thread.
 *
 * It watches this node's pods once for all launchers, gives each its desired role and the node's
 * weight images over agent.sock, and writes what workers report: the readiness gate
 * serving.baton.dev/role, the annotations actual-role, incarnation, epoch and last-crash of the
 * pod, and this node's NodeInventory. Everything is rebuilt after a kill -9: launchers connect
 * again and repeat their status, images are adopted by their manifests. */
#pragma once
#include "agent/lines.h"
#include "agent/store.h"
#include "agent/weights.h"
#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/kube/access.h"
#include "lib/kube/watch.h"

#define AGENT_MANAGER "baton-agent"

struct agent_options {
    const char *agent_dir, *segment_dir, *models_dir, *node_name, *pod_ip, *kubeconfig, *log_format,
        *log_level, *hf_endpoint, *source_ca, *nvml;
    uint64_t port, weights_budget, tier_budget, cache_budget, fetch_chunk, fetch_connections,
        device_look_ms;
};

#define LAUNCHER_RANKS 64 /* of a pod: weights' users are a launcher's address and more */
struct launcher {         /* one connection on agent.sock */
    struct agent *a;
    struct lines *lines;
    char *ns, *pod, *uid;
    int64_t pid;
    char *devices;           /* that its container was given: "GPU-…,GPU-…"; NULL: none known */
    struct weights_key want; /* its weights request, strings owned; source NULL: none */
    uint64_t want_bytes;
    bool waits;                               /* for another to fill its image */
    struct store_entry *model;                /* whose files its workers read */
    char *model_key;                          /* of the fetch that it waits for; NULL: none */
    bool fetched;                             /* it had to wait for a fetch */
    json_t *status;                           /* the last status message; NULL: none yet */
    char *sent_role, *sent_rung, *sent_group; /* last told */
    bool sent_drain;
    struct launcher *prev, *next;
};

struct apod { /* a pod of this node that has a role label */
    struct agent *a;
    char *ns, *name, *uid;
    json_t *obj;
    uint64_t seen_ns;
    json_t *reported;       /* status last heard from its launcher (kept over a reconnect) */
    uint64_t asked_wall_ns; /* when it was asked to serve and does not yet; 0: not */
    const char *asked_rung; /* where it was then; NULL: it is new */
    char *fault;            /* of a device that it uses: the annotation device-fault; NULL: none */
    bool fault_known;       /* its launcher is connected and the devices can be asked */
    char *lead;             /* the annotation with how long that took */
    bool patching_meta, patching_status;
    uint64_t retry_ns;
    uv_timer_t *wake;
    struct apod *prev, *next;
};

struct agent {
    uv_loop_t loop;
    struct agent_options opt;
    struct kube_client *api;
    struct kube_watch *watch;
    struct access *access;
    struct weights *weights;
    struct models *models;
    struct devices *devices; /* NULL: no GPUs */
    struct launcher *launchers;
    struct apod *pods;
    uv_poll_t *listener;
    uv_timer_t *inventory_timer;
    char *node_uid;
    bool inventory_asked, inventory_made, node_asked;
    json_t *inventory_sent;
    uint64_t started_ns;
};

/* sock.c */
int sock_start(struct agent *a, struct err *e) MUST_CHECK;
struct launcher *sock_launcher(struct agent *a,
                               const char *uid); /* the newest of this pod, NULL: none */
void sock_tell(struct launcher *l,
               const struct apod *p); /* its role, and drain when it is being deleted */

/* pods.c */
int pods_start(struct agent *a, struct err *e) MUST_CHECK;
struct apod *pods_find(struct agent *a, const char *uid);
void pods_poke(
    struct apod *p); /* compares what is with what the API says, and writes the difference */
const char *pods_role(const struct apod *p); /* desired; NULL: no label */
bool pods_grouped(const struct apod *p);     /* one pod of several of a group */

/* inventory.c */
void inventory_start(struct agent *a);
void inventory_poke(struct agent *a); /* something changed: write soon */
