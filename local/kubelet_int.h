/* kubelet_int.h: what the kubelet's files share. Nothing outside local/kubelet*.c includes it. One
 * thread: the loop's.
 *
 * Everything is level-triggered: an event (watch, exit, probe, timer, answer) changes state and
 * calls kpod_poke(); then kpod_sync() looks at the pod as it is and does the next thing. */
#pragma once
#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/kube/event.h"
#include "lib/kube/watch.h"
#include "local/kubelet.h"
#include "local/kubelet_log.h"
#include "local/kubelet_proc.h"

#include <utlist.h>

#define KUBELET_MANAGER        "baton-local"
#define KUBELET_MAX_CONTAINERS 32
#define MIRROR_ANNOTATION      "kubernetes.io/config.mirror"

enum kctr_state { CTR_WAITING, CTR_STARTING, CTR_RUNNING, CTR_EXITED };
enum kprobe_kind { PROBE_STARTUP, PROBE_LIVENESS, PROBE_READINESS, PROBE_KINDS };

struct kpod;
struct kctr;
struct kprobe; /* kubelet_probe.c */

struct kctr {
    struct kpod *pod;
    char *name;
    json_t *spec;       /* owned reference */
    bool init, sidecar; /* sidecar: an init container with restartPolicy Always */
    enum kctr_state state;
    int attempt; /* number of its latest folder; -1: never started */
    int restarts;
    struct proc_id shim, main;
    uv_poll_t *exit_poll;
    uv_timer_t *start_timer; /* looks for run.json while CTR_STARTING */
    uint64_t started_wall_ns;
    json_t *exit, *last_exit; /* exit.json of the latest attempt, of the one before */
    const char *wait_reason;  /* constant; while CTR_WAITING or between restarts */
    char *wait_message;
    uint64_t backoff_ms, next_start_ns; /* monotonic */
    bool started, ready;                /* probes' word */
    bool stopping;                      /* SIGTERM was sent */
    uint64_t kill_at_ns;                /* monotonic; SIGKILL then */
    struct kprobe *probes[PROBE_KINDS];
};

enum kpod_refs { REFS_NONE, REFS_ASKING, REFS_READY };

struct kpod {
    struct kubelet *k;
    char *uid, *ns, *name;
    char *dir; /* <data_dir>/pods/<uid> */
    char *ip;
    json_t *obj;       /* the newest object; for static pods the manifest */
    json_t *mirror;    /* static pods: the mirror object in the API, NULL until seen */
    char *static_file; /* static pods: manifest path; NULL otherwise */
    bool mirror_asked;
    bool listed;       /* seen in the API since the last (re)list or watch start */
    bool ready_to_run; /* folder, IP and volumes made */
    enum kpod_refs refs_state;
    json_t *refs; /* "secret/<name>", "configmap/<name>" -> object or null */
    int refs_open;
    char *refs_error;
    uint64_t refs_retry_ns;
    bool terminating;       /* told to end: deletion, gone, drain, deadline, failure */
    const char *end_reason; /* status.reason of a pod ended by the kubelet ("DeadlineExceeded") */
    char *end_message;
    bool gone; /* its object is no longer in the API */
    bool delete_asked;
    uint64_t deadline_ns; /* monotonic; SIGKILL of what is left when terminating */
    uint64_t started_wall_ns;
    struct kctr *ctrs[KUBELET_MAX_CONTAINERS];
    size_t n_ctrs;
    uv_timer_t *wake;
    json_t *sent;    /* status as last accepted by the API */
    json_t *sending; /* in flight */
    uint64_t status_retry_ns;
    struct kpod *prev, *next;
};

struct kubelet {
    struct kubelet_config cfg;
    char *data_dir, *node, *bin_dir, *models_dir, *static_dir, *kubeconfig, *instance;
    unsigned subnet; /* second and third byte of this instance's pod IPs */
    struct kube_client *api;
    struct http_client *http; /* probes */
    struct kube_watch *pods_watch;
    struct kube_events_recorder *events;
    struct kpod *pods;
    json_t *unbound; /* uid -> pod that did not fit */
    uv_timer_t *node_timer, *static_timer, *retry_timer;
    uint64_t static_stamp, heartbeats;
    char *node_uid;
    bool node_registered, node_asked, lease_asked, lease_made, synced, draining, ns_asked;
    uint64_t drain_deadline_ns;
    void (*drain_done)(void *ctx);
    void *drain_ctx;
};

/* kubelet.c */
struct kpod *kubelet_pod(struct kubelet *k, const char *uid);
struct kpod *kubelet_pod_named(struct kubelet *k, const char *ns, const char *name);
void kubelet_check_drained(struct kubelet *k);
void kubelet_event(struct kpod *p, bool warning, const char *reason, const char *fmt, ...)
    PRINTF_LIKE(4, 5);
uv_timer_t *kubelet_timer(struct kubelet *k, void *data);
void kubelet_timer_free(uv_timer_t *t);

/* kubelet_node.c: Node, Lease, binding */
void node_start(struct kubelet *k);
void node_bind(struct kubelet *k, json_t *pod);
void node_forget(struct kubelet *k, const json_t *pod); /* bound or gone: no longer waiting */
void node_retry(struct kubelet *k);                     /* room may have come free */

/* kubelet_static.c: manifests and their mirror pods */
void static_start(struct kubelet *k);
void static_ensure_mirror(struct kpod *p);

/* kubelet_pod.c: life of one pod */
struct kpod *kpod_new(struct kubelet *k, json_t *obj, const char *uid, const char *static_file);
void kpod_update(struct kpod *p, json_t *obj); /* a newer object */
void kpod_poke(struct kpod *p);                /* look again in this turn of the loop */
void kpod_poke_in(struct kpod *p, uint64_t ms);
void kpod_terminate(struct kpod *p, int64_t grace_ms, const char *reason, const char *message);
void kpod_free(struct kpod *p, bool remove_files);
bool kpod_finished(const struct kpod *p, bool *failed); /* every container has ended for good */
const char *kpod_restart_policy(const struct kpod *p);
int64_t kpod_grace_ms(const struct kpod *p);

/* kubelet_ctr.c: life of one container */
struct kctr *kctr_new(struct kpod *p, json_t *spec, bool init);
void kctr_free(struct kctr *c);
void kctr_start(struct kctr *c);
void kctr_adopt(struct kctr *c); /* from the records */
void kctr_stop(struct kctr *c, int64_t grace_ms);
void kctr_kill(struct kctr *c);
bool kctr_live(const struct kctr *c); /* starting or running */
char *kctr_dir(const struct kctr *c, int attempt);
void kctr_wait(struct kctr *c, const char *reason, const char *fmt, ...) PRINTF_LIKE(3, 4);
void kctr_save(struct kctr *c);

/* kubelet_env.c: argv and environment of a container */
char *kenv_mark(
    const struct kctr *c); /* "BATON_CONTAINER=<pod uid>/<name>/<attempt>", in all that it starts */
int kenv_build(struct kctr *c, json_t **env, json_t **argv, char **file, char **cwd,
               struct err *e) MUST_CHECK;
/* "$(NAME)" expanded; "$$(NAME)" is literal. env is a list of "K=V". */
char *kenv_expand(const char *text, const json_t *env);
char *kenv_field(struct kpod *p, const char *path); /* fieldRef; NULL: unknown */

/* kubelet_volume.c */
char *kref_base64(const char *text, size_t *n); /* NUL-terminated heap bytes; NULL: not base64 */
int kvol_setup(struct kpod *p,
               struct err *e) MUST_CHECK; /* makes and fills every volume's folder */
/* The real folder behind a path in the container (mount prefix replaced), or NULL when under no
 * mount. */
char *kvol_map(struct kctr *c, const char *path);
void kvol_teardown(struct kpod *p);
/* Calls fn for every Secret and ConfigMap that the pod names ("secret" or "configmap", name). */
void kvol_each_ref(struct kpod *p, void (*fn)(struct kpod *p, const char *kind, const char *name));

/* kubelet_probe.c */
void kprobe_start_all(struct kctr *c);
void kprobe_stop_all(struct kctr *c);
bool kctr_has_probe(const struct kctr *c, enum kprobe_kind kind);

/* kubelet_status.c */
void kstatus_sync(struct kpod *p); /* computes, and patches what differs */
