/* kubelet.h: the kubelet in process mode: registers this machine as a Node, binds pods to it, runs
 * their containers as processes and reports their status, as an ordinary client of the API
 * (lib/kube).
 *
 * One kubelet belongs to one loop and its thread. A container is a process in a session of its own
 * under a shim (kubelet_shim.h); what runs is recorded in <data_dir>/pods/<uid>/, so that a kubelet
 * that was killed adopts it all again and restarts nothing. A pod's IP is from 127.0.0.0/8 and its
 * own for life; ports are not mapped.
 *
 * What differs from a cluster, on purpose: no images (a container needs a command; `baton-…`
 * programs are found beside baton-local), no cgroups (limits are told to programs, not enforced),
 * CPU requests may exceed the machine (the node has the capacity it has; memory requests are held
 * to it), environment values that begin with a mountPath are rewritten to the real folder behind
 * the mount. */
#pragma once
#include "lib/io/httpd.h"
#include "local/server.h"

struct kubelet;
struct kubelet_config {
    uv_loop_t *loop;
    const char *data_dir;   /* pods/, static/, run/ are made in it */
    const char *kubeconfig; /* of a user that may do all this: "baton-kubelet" */
    const char *node_name;  /* NULL: "local" */
    const char *bin_dir;    /* Baton's programs; NULL: the folder of /proc/self/exe */
    const char *models_dir; /* behind hostPath /var/lib/baton/models; NULL: ~/.cache/baton/models */
    const char *static_dir; /* manifests (JSON) of static pods; NULL: <data_dir>/static */
    unsigned backoff_ms;    /* first restart delay, doubled up to 30 times; 0: 1000 */
    uint64_t log_bytes;     /* size at which a container's log is rotated; 0: 10 MiB */
};

int kubelet_start(const struct kubelet_config *c, struct kubelet **out, struct err *e) MUST_CHECK;
/* Ends every container (SIGTERM, then SIGKILL after its grace, at most max_grace_ms), leaving the
 * pods' objects alone; the API must go on serving meanwhile. done is called once when nothing runs
 * any more. */
void kubelet_drain(struct kubelet *k, unsigned max_grace_ms, void (*done)(void *ctx), void *ctx);
/* Frees the kubelet; containers go on running and are adopted by the next one. The loop must run
 * once more. */
void kubelet_free(struct kubelet *k);

/* GET pods/<name>/log, for server_set_log_provider (ctx is the kubelet). */
int kubelet_log(const struct server_log_query *q, struct httpd_req *req, void *ctx, struct err *e);
/* Members for /debug/state. */
int kubelet_state(struct kubelet *k, struct buf *out) MUST_CHECK;
