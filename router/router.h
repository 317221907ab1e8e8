/* router.h: the program's state and one request's. Everything is owned by the loop's thread, except
 * what admit.c does on a thread of libuv's pool for large bodies (it then touches only the
 * exchange's own arena, body copy and results).
 *
 * A request is an *exchange*: one HTTP request of a client. It has one *job* for each prompt
 * (completions may carry several), each job one upstream request to D at a time, and n *choices* a
 * job. Memory of a request is its arena's. */
#pragma once
#include "lib/base/arena.h"
#include "lib/base/metrics.h"
#include "lib/base/rng.h"
#include "lib/io/httpd.h"
#include "lib/llm/openai.h"
#include "lib/wire/record.h"
#include "router/fleet.h"

#define EXCHANGE_MAX_BYTES (512u << 20) /* arena */
#define REQUEST_ID_MAX     128
#define JOB_RETRIES        3
#define JOB_PROGRESS       256 /* tokens since its last failure that make a job a new one */
#define JOB_AVOID          4
#define GOODPUT_WINDOW_S   60
#define STREAM_QUEUE_BYTES                                                                         \
    (16u << 20) /* for a client that reads slowly; past it the request is ended */

struct exchange;

struct options {
    const char *host, *kubeconfig, *static_file, *namespace, *api_keys_file, *api_keys,
        *cors_origin, *models_dir;
    const char *tls_cert, *tls_key, *log_level, *log_format;
    uint64_t port, max_connections, index_blocks, drain_seconds, linger_seconds, inline_bytes,
        max_body_bytes;
    const char *controller_url;
    uint64_t max_held;
    double hold_seconds, wake_seconds;
};

struct keys; /* keys.c: the API keys, as SHA-256 */

struct router {
    struct options o;
    uv_loop_t loop;
    uv_timer_t tick;
    uv_signal_t sigterm, sigint;
    uv_timer_t drain;
    struct httpd *http[2];
    struct conn_pool *pool;
    struct fleet *fleet;
    struct discover *discover; /* NULL with --static */
    struct keys *keys;         /* NULL: open */
    struct http_client *wake;  /* wake.c; NULL without --controller-url */
    struct rng rng;
    struct buf scratch;         /* the upstream request being written; reused */
    struct exchange *exchanges; /* all that run */
    unsigned n_exchanges;
    bool leaving, draining; /* not ready, but serving; then: no new connections */
};

struct choice {
    struct job *job;
    uint32_t index;
    struct detok detok;
    struct stop_match stop;
    struct buf text; /* not yet sent (stream) or the whole (else) */
    struct openai_logprob *tok;
    size_t n_tok, cap_tok;
    uint64_t chars; /* of the text before the next token: text_offset */
    enum openai_finish finish;
    const char *stop_text;
    uint32_t n_tokens;         /* generated */
    bool done, opened, closed; /* opened, closed: its first and last chunk are written */
};

enum job_state { JOB_WAITING /* for a worker or a back-off */, JOB_SENT, JOB_DONE };

struct job {
    struct exchange *x;
    enum job_state state;
    uint32_t first_choice, n_choices, n_done;
    struct str prompt_text; /* for echo; empty: decode the ids */
    uint32_t n_prompt;
    struct block_name *names;
    size_t n_names;
    uint64_t seed;
    struct ids tokens; /* the prompt, then (n = 1) what was generated: a replay sends both */
    uint32_t prompt_seen, prompt_skip; /* prompt records taken; to skip in a replay */
    /* the attempt */
    struct conn_call *call;
    struct buf in; /* a record cut by the end of a read */
    int upstream_status;
    bool ended; /* the stream's last record came */
    unsigned retries;
    size_t tokens_at_failure;
    unsigned stale_repeats, picks_failed;
    bool arrived, error_seen, error_repeatable, unwanted;
    bool at_zero;        /* it found no worker at all: it waits for one to be made */
    uint64_t sent_at_ns; /* first time; 0: not yet */
    uint64_t retry_at_ns, wait_since_ns, first_token_ns, last_token_ns, decode_lost_ns;
    uint64_t avoid[JOB_AVOID]; /* incarnations that failed this job */
    unsigned n_avoid;
    uint64_t prefill_incarnation, decode_incarnation;
    struct route_pick pick;
    double predicted_prefill_s;
    struct ledger_entry ledger[2];
    struct openai_error fault; /* the last failure, for the answer */
    /* reported by D */
    uint64_t cached_tokens, kv_bytes;
    double prefill_ms;
};

enum exchange_state { X_PREPARING, X_RUNNING, X_ANSWERED };

struct exchange {
    struct router *r;
    struct httpd_req *req; /* NULL once closed */
    struct exchange *prev, *next;
    enum exchange_state state;
    bool pooled;    /* a thread of the pool works on it: free only afterwards */
    bool streaming; /* the response's head is sent */
    struct arena arena;
    struct buf body; /* a copy, when pooled */
    char request_id[REQUEST_ID_MAX + 1], id[40];
    uint64_t start_ns;
    struct openai_request rq;
    struct openai_head head;
    struct openai_error error; /* status != 0: what preparing found wrong */
    struct deployment *d;
    struct model *model;
    struct job *jobs;
    size_t n_jobs, n_jobs_done;
    struct choice *choices;
    size_t n_choices;
    uint64_t prompt_tokens;
    struct buf out;                           /* chunks being put together */
    char prefill_name[160], decode_name[160]; /* as worker.label */
    bool counted;
};

/* api.c */
void api_handle(struct httpd_req *req, void *ctx);
void api_refuse(struct httpd_req *req, int status, const char *message, void *ctx);
void api_error(struct httpd_req *req, const struct openai_error *e);
/* prefix and 2 x bytes hex digits (bytes <= 16) */
void draw_id(const char *prefix, struct router *r, size_t bytes, char *out);
bool router_ready(void *ctx, struct buf *why);
int router_state(void *ctx, struct buf *out);
/* admit.c: body -> prompts, jobs, choices; then proxy_start */
void admit(struct router *r, struct httpd_req *req, enum openai_api api, const char *request_id);
/* proxy.c */
void proxy_start(struct exchange *x);
void proxy_worker_down(struct deployment *d, uint64_t incarnation, void *ctx);
void proxy_tick(struct router *r, uint64_t now_ns);
void proxy_cancel(struct exchange *x); /* ends every upstream request at once */
void job_send(struct job *j);          /* send.c: pick and send, or wait, or fail */
/* answer.c: records -> text, logprobs, chunks, the response */
int answer_init(struct exchange *x) MUST_CHECK;
int answer_record(struct job *j, const struct wire_record *rec) MUST_CHECK;
int answer_ended(struct job *j) MUST_CHECK; /* the stream's last record came */
void answer_restart(struct job *j);         /* drops what was generated: the attempt begins again */
int answer_flush(struct exchange *x) MUST_CHECK; /* writes the chunks of a stream */
void answer_finish(struct exchange *x);
void answer_fail(struct exchange *x, const struct openai_error *e);
void answer_release(struct exchange *x);
void exchange_free(struct exchange *x);
/* load.c */
void load_handle(struct router *r, struct httpd_req *req);
/* keys.c */
int keys_load(const struct options *o, struct keys **out, struct err *e) MUST_CHECK;
bool keys_match(const struct keys *k, const char *authorization);
void keys_free(struct keys *k);
bool secret_equal(const char *a, const char *b); /* in constant time for equal lengths */
bool bearer_is(const char *authorization, const char *secret);
/* page.c */
extern const char page_html[];
size_t page_html_bytes(void);
/* stats.c */
void stats_init(void);
void stats_pick(struct deployment *d, enum route_reason reason);
void stats_retry(const struct deployment *d, const char *reason);
void stats_request(struct exchange *x, int status);
void stats_fleet(struct router *r);
/* What the last minute's requests met of the slo. */
struct goodput {
    double requests_per_s,
        met_per_s;         /* those that an answer was owed; of them within TTFT and TPOT */
    double ttft_s, tpot_s; /* at the slo's percentile; 0: none was seen */
    uint32_t percentile;
    bool slo_met;
};
struct goodput stats_goodput(const struct deployment *d, uint64_t now_ns);
/* expose.c: series of workers and deployments, written when asked for */
int expose_fleet(struct buf *out, void *router);
/* wake.c: tells the controller that requests wait for a model at zero, again and again until it has
 * heard; its own look at /v1/internal/load once a second is the fallback. */
int wake_start(struct router *r, struct err *e) MUST_CHECK;
void wake_push(struct router *r, struct deployment *d, uint64_t now_ns);
unsigned held_requests(const struct router *r, const struct deployment *d, uint64_t *tokens);
/* discover.c, static.c */
struct discover;
int discover_start(struct router *r, struct discover **out, struct err *e) MUST_CHECK;
void discover_stop(struct discover *s);
bool discover_synced(const struct discover *s);
bool discover_permitted(struct discover *s, struct buf *why);          /* as access_ready */
int policy_parse(const char *name, enum route_policy *out) MUST_CHECK; /* absent: auto */
int static_load(struct router *r, const char *path, struct err *e) MUST_CHECK;
