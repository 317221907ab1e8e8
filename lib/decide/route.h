/* route.h: which workers serve a request: route(request, fleet, now) -> (P, D). A pure function:
 * time, random numbers and all state are arguments. Everything is priced in seconds (lib/cost):
 *
 *   price(P, D)    = wait for P's queue + prefill of what P has not cached
 *                    + transfer of what D has not cached + decode on D
 *   price(D alone) = wait for D's queue + prefill of what D has not cached
 *                    + what that prefill costs the requests that D is decoding + decode on D
 *   decode on D    = wait for KV room + expected tokens x (step with it + what it adds to the steps
 * of the others)
 *
 * Other people's seconds count as much as the request's own, so a split pays exactly when it saves
 * more waiting than the transfer costs. Prices of P and of D are independent given the split, so
 * the search is linear in the workers. Prices within ROUTE_TIE of the best are ties, broken at
 * random. A worker that holds more than its share of what is in flight (ROUTE_CAP_FACTOR x the mean
 * + ROUTE_CAP_SPARE requests) is left out while another remains, however hot its cache.
 *
 * While revisions that can't work together serve side by side (a rollout), one is drawn for each
 * request, with the share that pairs of it can do as its weight: min over prefill and decode of its
 * ready workers / all ready workers, so that a revision with much prefill and little decode gets
 * little. Both workers then come from it.
 *
 * The fleet's figures are what workers reported last plus the ledger: what was sent to an
 * incarnation and is not yet in its reports. The caller keeps that up to date (one thread), so a
 * burst between two heartbeats does not run to one worker. Source: DESIGN §4.1; bounded loads:
 * Mirrokni et al. 2016. */
#pragma once
#include "lib/base/err.h"
#include "lib/base/rng.h"
#include "lib/cost/predict.h"

#include <stddef.h>

#define ROUTE_TIE             0.02   /* relative */
#define ROUTE_TIE_S           100e-6 /* and absolute */
#define ROUTE_CAP_FACTOR      1.5
#define ROUTE_CAP_SPARE       4
#define ROUTE_FRESH_NS        1000000000ull /* a worker not heard of for so long is dead */
#define ROUTE_EXPECTED_TOKENS 256           /* generated, when the client sets no lower maximum */

enum route_role { ROUTE_NONE, ROUTE_PREFILL, ROUTE_DECODE, ROUTE_UNIFIED, ROUTE_STANDBY };
enum route_policy { ROUTE_AUTO, ROUTE_ALWAYS, ROUTE_NEVER };

struct route_worker {
    uint64_t incarnation; /* 0: not connected */
    uint64_t heard_ns;    /* last heartbeat */
    enum route_role role; /* actual */
    bool ready, draining;
    bool avoid; /* this request already failed there */
    uint64_t
        pair; /* P and D must have the same: model and KV layout of their revision; 0: unknown */
    uint32_t running, waiting;
    uint64_t waiting_tokens, resident_tokens;
    uint32_t kv_blocks, kv_blocks_used, block_tokens;
    /* ledger */
    uint32_t sent_prefills, sent_decodes;
    uint64_t sent_prefill_tokens, sent_kv_tokens;
    struct cost_worker cost;
};

struct route_request {
    uint32_t prompt_tokens;
    uint32_t max_tokens; /* a choice; 0: only the prompt is scored */
    uint32_t n;
    bool continued; /* tokens have been sent: ROUTE_ALWAYS, a rule for prompts, does not hold */
    enum route_policy policy;
};

enum route_reason {
    ROUTE_SPLIT,      /* P and D are two workers */
    ROUTE_ALONE,      /* D alone was cheaper, or asked for */
    ROUTE_NO_WORKER,  /* nothing alive and ready */
    ROUTE_NO_DECODE,  /* nothing takes decode */
    ROUTE_NO_PREFILL, /* a split is demanded and nothing takes prefill */
    ROUTE_REASONS,
};
const char *route_reason_name(enum route_reason r); /* "split", "alone", "no_worker", ... */

struct route_pick {
    int prefill, decode; /* indices; prefill -1: D alone */
    enum route_reason reason;
    double price_s, alone_s,
        split_s;   /* the chosen and the best of both kinds; infinity: not feasible */
    double ttft_s; /* predicted time to the first token */
    uint32_t prefill_cached, decode_cached; /* tokens */
};

/* cached[i]: leading prompt tokens that worker i holds (whole blocks). 0, or -ENOENT with reason
 * set. */
int route(const struct route_request *req, const struct route_worker *workers, size_t n,
          const uint32_t *cached, uint64_t now_ns, struct rng *rng,
          struct route_pick *out) MUST_CHECK;
