/* scaling.h: the part of the controller that scales, on the controller's loop. Every second it asks
 * each router for the load of each deployment (samples.c) and, where a spec says so, Prometheus
 * (promql.c); puts pods, samples and the nodes' room (room.c) into a scale_plan; lets
 * lib/decide/scale.h decide; carries out what Baton may decide (scaler.c) and keeps the record
 * (decisions.c). What it knows is also served: external metrics for HPA (metrics_api.c over TLS,
 * metrics_tls.c), JSON for KEDA and people (scaling_http.c). Nothing here is truth: what a new
 * process doesn't know it learns within seconds.
 *
 * Every replica of the controller asks and serves; only the leader writes. */
#pragma once
#include "controller/controller.h"
#include "lib/decide/scale.h"
#include "lib/io/http.h"

#include <uthash.h>

#define SCALING_MANAGER      "baton-scaler"
#define SCALING_SAMPLES_MAX  8192u
#define SCALING_BODY_MAX     (8u << 20)
#define SCALING_PROM_MS      2000u           /* between two looks at Prometheus */
#define SCALING_PROM_FRESH   (60 * NS_PER_S) /* its samples are as old as its scrapes */
#define SCALING_WOKEN_NS     (10 * NS_PER_S) /* a push counts so long as a held request */
#define SCALING_DECISIONS    4096u           /* lines kept in memory */
#define SCALING_DECISION_MAX (16u << 20)     /* bytes kept in memory */

/* What one source (a router, or Prometheus) said last about one deployment. */
struct report {
    UT_hash_handle hh;
    uint64_t heard_ns; /* 0: never */
    bool prometheus;
    double arrival, goodput, requests_per_s;
    uint32_t held_requests;
    uint64_t held_tokens;
    struct scale_sample *samples; /* uids are owned */
    size_t n;
    char key[]; /* source, then deployment: "127.0.0.1:8080 default/chat" */
};

/* The requests in a worker, as the router that was heard last tells. */
struct busy {
    UT_hash_handle hh;
    uint64_t heard_ns;
    uint32_t requests;
    uint64_t incarnation, cached_total; /* as the worker last counted */
    double cached_lately; /* tokens served from its prefix cache, each halved every 5 minutes */
    char uid[];
};

/* What is kept for one WorkerPool. */
struct pool {
    UT_hash_handle hh;
    struct scale_memory m;
    struct scale_decision last; /* of the last look */
    uint64_t looked_ns, told_ns;
    double arrival, goodput;
    uint32_t held_requests;
    uint64_t held_tokens;
    bool scaling;           /* a request is on its way */
    bool seen;              /* in this look */
    enum scale_code logged; /* last recorded code + 1; 0: none */
    char told[600];         /* the conditions as last written */
    double query_value;     /* PromQL of the spec */
    uint64_t query_ns;      /* when it came; 0: never */
    char query_error[200];
    char *namespace, *infd, *name;
    enum rec_role role;
    char key[]; /* "default/chat-decode" */
};

/* One deployment: what wakes it. */
struct waker {
    UT_hash_handle hh;
    uint64_t woken_ns;
    char key[]; /* "default/chat" */
};

struct decisions; /* decisions.c */
struct room;      /* room.c */
struct metrics_tls;

struct load {
    struct ctl *ctl;
    struct http_client *http;
    uv_timer_t timer;
    struct report *reports;
    struct busy *busy;
    struct pool *pools;
    struct waker *wakers;
    struct decisions *decisions;
    struct room *room;
    struct metrics_tls *tls;
    unsigned asking, prom_asking;
    uint64_t prom_asked_ns;
};

/* samples.c */
void samples_ask(struct load *l); /* every router for every deployment */
void samples_forget(struct load *l, uint64_t now_ns);
void samples_free(struct load *l);
struct report *report_of(struct load *l, const char *key);
void report_clear(struct report *r);

/* promql.c: asks for every deployment with a spec.scaling.prometheus. */
void promql_ask(struct load *l, uint64_t now_ns);

/* room.c */
struct room *room_start(struct ctl *c);
void room_stop(struct room *r);
/* What nodes could take of each role's pods; known = false when nodes can't be read. */
void room_fill(struct room *r, const struct kube_infd *d, struct scale_space *out);

/* scaler.c */
void scaler_look(struct load *l); /* decide for every deployment */
void scaler_look_at(struct load *l, const struct kube_infd *d);
struct pool *pool_of(struct load *l, const char *namespace, const char *name); /* makes it */
struct pool *pool_find(struct load *l, const char *namespace, const char *infd, const char *role);
void pools_free(struct load *l);
bool scaler_wake(struct load *l, const char *namespace, const char *infd); /* false: not leading */
double infd_decimal(const char *text, double dflt);

/* scaler_write.c: the scale subresource and the pool's status */
void scaler_act(struct load *l, const struct kube_infd *d, const struct kube_wp *w, struct pool *p);
void scaler_tell(struct load *l, const struct kube_wp *w, struct pool *p, uint64_t now_ns);

/* decisions.c: the last decisions with everything they were made from, as lines of JSON. */
struct decisions *decisions_new(const char *file); /* "": memory only */
void decisions_free(struct decisions *d);
void decisions_add(struct decisions *d, const struct scale_plan *p, const struct kube_infd *infd,
                   const char *instance);
/* Lines of one deployment (NULL: all), the newest `most` of them, oldest first. */
int decisions_write(const struct decisions *d, const char *namespace, const char *infd, size_t most,
                    struct buf *out) MUST_CHECK;

/* scaling_http.c: a pool's figures by name; NAN: not known. */
struct scaling_metric {
    const char *name, *help;
    double (*value)(const struct pool *p, uint64_t now_ns);
};
extern const struct scaling_metric scaling_metrics[];
extern const size_t n_scaling_metrics;
int scaling_expose(struct buf *out, void *ctx); /* for /metrics */

/* metrics_api.c: answers a request of external.metrics.k8s.io; `l` says what is known. */
void metrics_api_handle(struct load *l, struct httpd_req *r);
/* metrics_tls.c: the TLS server of the external metrics API, its certificate and its front proxy.
 */
int metrics_tls_start(struct load *l, struct metrics_tls **out, struct err *e) MUST_CHECK;
void metrics_tls_stop(struct metrics_tls *t);
