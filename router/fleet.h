/* fleet.h: what the router knows of its models and workers, on the loop's thread: deployments, one
 * connection to the event stream of every rank 0 (heartbeats: incarnation, actual role, load, block
 * names), the block index and the ledger. Who tells it what exists: discover.c (Kubernetes) or
 * static.c (a file). Desired roles and labels are never used to route: only what a worker reports
 * itself. A stream that ends is opened again with back-off (20 ms x2 up to 1 s). */
#pragma once
#include "lib/decide/index.h"
#include "lib/decide/route.h"
#include "lib/io/conn.h"
#include "lib/wire/heartbeat.h"
#include "router/model.h"

#define FLEET_WORKERS_MAX INDEX_WORKERS /* a model */
/* What was sent is in a worker's reports after so long. */
#define LEDGER_LAG_NS (150 * NS_PER_MS)
/* Silence of the event stream after which running requests on a worker are given up. */
#define FLEET_DEAD_MS 5000

struct fleet;
struct worker;
struct stats;

struct deployment_spec { /* strings are copied */
    const char *infd, *namespace, *model_name, *source, *sha256, *kv_dtype;
    const char *endpoint; /* of the Hub; NULL: the usual one */
    enum route_policy policy;
    uint32_t block_tokens, max_context; /* 0: 32, the model's */
    uint64_t created_ns;                /* two with one model name: the oldest serves it */
    double slo_ttft_s, slo_tpot_s;      /* 0: none */
    uint32_t slo_percentile;            /* 0: 90 */
    bool wakes;                         /* at zero: somebody makes workers when requests wait */
};

struct deployment {
    struct fleet *fleet;
    struct deployment *next;
    unsigned refs; /* the fleet's and one a request */
    bool removed;
    char *infd, *namespace, *model_name, *source, *sha256, *endpoint, *kv_dtype, *secret;
    enum route_policy policy;
    uint32_t block_tokens, max_context;
    uint64_t created_ns;
    double slo_ttft_s, slo_tpot_s;
    uint32_t slo_percentile;
    bool wakes, waking; /* waking: a push to the controller is on its way */
    uint64_t wake_again_ns;
    struct model *model;      /* NULL while loading or when that failed (model_error) */
    bool loading, load_again; /* load_again: the source changed meanwhile */
    unsigned load_failures;
    uint64_t load_again_ns;
    char model_error[512];
    struct block_name seed;
    struct index *index;
    size_t n_workers; /* slots in use or used before */
    struct worker *worker[FLEET_WORKERS_MAX];
    struct route_worker state[FLEET_WORKERS_MAX]; /* by slot */
    /* arrivals of uncached prompt tokens: average of the last seconds */
    double arrival_tokens_per_s, arrival_requests_per_s;
    uint64_t arrived_tokens, arrived_requests; /* since arrival_at_ns */
    uint64_t arrival_at_ns;
    struct stats *stats; /* stats.c: this model's series */
};

/* One entry of the ledger: something sent to a worker and not yet in its reports. In the request's
 * memory. */
struct ledger_entry {
    struct worker *worker; /* NULL: not in a ledger */
    struct ledger_entry *prev, *next;
    uint64_t at_ns;
    uint64_t prefill_tokens, kv_tokens;
    bool prefill, decode;
};

struct worker {
    struct deployment *d;
    unsigned slot;
    char *name, *uid, *host;
    uint16_t port;
    bool leaving; /* the pod is being deleted */
    /* event stream */
    struct conn_call *events;
    struct buf in;
    uint64_t seq, next_try_ns;
    unsigned failures;
    bool complete;              /* all names of the first dump are in */
    struct wire_heartbeat last; /* its pointers are not valid */
    uint64_t last_prompt_tokens, last_generated_tokens;
    char label[160];           /* "name:incarnation", for answers' headers */
    char address[80];          /* "host:port" */
    char incarnation_line[48]; /* request header that names it */
    struct ledger_entry *ledger_oldest, *ledger_newest;
    char last_error[128];
};

struct fleet_config {
    uv_loop_t *loop;
    struct conn_pool *pool;
    size_t index_names; /* a deployment */
    /* An incarnation is gone: its requests will not be answered. */
    void (*on_down)(struct deployment *d, uint64_t incarnation, void *ctx);
    void *ctx;
};

struct fleet *fleet_new(const struct fleet_config *c);
void fleet_free(struct fleet *f);
/* Reconnects, expires, averages; once every 50 ms. */
void fleet_tick(struct fleet *f, uint64_t now_ns);

/* Adds or updates, by (namespace, infd). */
struct deployment *fleet_deployment(struct fleet *f, const struct deployment_spec *s);
void deployment_set_secret(struct deployment *d, const char *secret); /* NULL: none */
void fleet_remove_deployment(struct fleet *f, struct deployment *d);
struct deployment *fleet_find(const struct fleet *f, const char *namespace, const char *infd);
struct deployment *fleet_by_model(const struct fleet *f, struct str model_name);
struct deployment *fleet_first(const struct fleet *f); /* then ->next */
struct deployment *deployment_ref(struct deployment *d);
void deployment_unref(struct deployment *d);

/* Adds or updates, by name; a new address or uid starts its stream again. NULL when the deployment
 * is full. */
struct worker *fleet_worker(struct fleet *f, struct deployment *d, const char *name,
                            const char *uid, const char *host, uint16_t port, bool leaving);
void fleet_remove_worker(struct fleet *f, struct worker *w);
struct worker *deployment_worker(const struct deployment *d, const char *name);
bool deployment_has_workers(const struct deployment *d);
void deployment_arrival(struct deployment *d, uint64_t uncached_tokens);

void stats_forget(struct deployment *d); /* stats.c */

/* fleet_events.c: the event streams */
void worker_connect(struct worker *w, struct conn_pool *pool, uint64_t now_ns);
void worker_disconnect(struct worker *w, const char *why);

/* ledger.c */
void ledger_reserve(struct worker *w, struct ledger_entry *e, uint64_t now_ns);
void ledger_release(struct ledger_entry *e); /* harmless when it is in no ledger */
void ledger_reported(struct worker *w,
                     uint64_t now_ns); /* a heartbeat came: drops what it must include */
void ledger_clear(struct worker *w);
