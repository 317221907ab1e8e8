/* server.h: the embedded Kubernetes API server inside a libuv loop. One server belongs to one loop
 * and its thread; every call and callback happens there.
 *
 * The process kubelet is an ordinary client of this server, over TLS on loopback with lib/kube,
 * although it lives in the same process and loop: it lists and watches pods with fieldSelector
 * spec.nodeName=<node>, writes pods/status (PATCH or PUT), its Node, its Lease and Events, and ends
 * a pod with DELETE gracePeriodSeconds=0 and preconditions.uid. So every kubelet path is an API
 * path, and a kubelet of another process would work too. Only logs are a callback, because their
 * bytes lie with the kubelet.
 *
 * Pod life at the API: created pods have no nodeName unless the client set one (POST
 * pods/<name>/binding binds). DELETE of a bound pod sets deletionTimestamp and
 * deletionGracePeriodSeconds (a MODIFIED event); the kubelet stops the processes and deletes with
 * grace 0, which removes the object (DELETED event). Unbound and finished pods are removed at once.
 * A pod deleted with grace 0 by a client vanishes at once: the kubelet must stop its processes on
 * DELETED as well. Static pods are made by the kubelet as mirror pods (ordinary POST, annotation
 * kubernetes.io/config.mirror).
 *
 * Durability: a reply or a watch event leaves only after its write is on disk (SQLite, WAL,
 * synchronous=FULL); writes of one loop iteration share one commit. */
#pragma once
#include "lib/io/httpd.h"

struct server;

struct server_config {
    uv_loop_t *loop;
    const char *data_dir;   /* made if absent, 0700: store.db, pki/, tokens */
    const char *kubeconfig; /* file to write for the user "baton-admin", 0600; NULL: none */
    const char *host;       /* NULL: 127.0.0.1 */
    uint16_t port;          /* 0: the last one used with this data_dir if free, else any */
    uint64_t event_window;  /* watch events kept; 0: 10000 */
};

int server_start(const struct server_config *c, struct server **out, struct err *e) MUST_CHECK;
/* Ends watches and connections, commits, closes the store. The loop must run once more to close
 * handles. */
void server_stop(struct server *s);

uint16_t server_port(const struct server *s);
const char *server_url(const struct server *s); /* "https://127.0.0.1:6443" */
/* Writes a kubeconfig (0600) for a user of its own; the user's token is made on first use and kept
 * in data_dir/tokens. Users of Baton's parts: "baton-controller", "baton-router", "baton-agent",
 * "baton-kubelet". */
int server_write_kubeconfig(struct server *s, const char *user, const char *path,
                            struct err *e) MUST_CHECK;

/* GET pods/<name>/log. The server has checked that the pod and the container exist. Return 0 and
 * from then on own the exchange: httpd_stream_start(req, 200, "text/plain", ...), writes,
 * httpd_stream_end (or one httpd_reply); watch httpd_on_close when following. Or return a negative
 * errno with *e filled and without having touched req: -ENOENT (no such log, e.g. no previous
 * container) and -EAGAIN (container not started yet) become 400, others 500. */
struct server_log_query {
    const char *ns, *pod, *uid, *container;
    bool follow, previous, timestamps;
    int64_t tail_lines;    /* -1: all */
    int64_t limit_bytes;   /* -1: no limit */
    int64_t since_wall_ns; /* 0: from the beginning */
};
typedef int (*server_log_fn)(const struct server_log_query *q, struct httpd_req *req, void *ctx,
                             struct err *e);
void server_set_log_provider(struct server *s, server_log_fn fn, void *ctx);
