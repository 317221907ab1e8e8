/* predict.h: "how many seconds would this take?" for the router, the tiers, the scaler and the
 * simulator, and how the answers are corrected by what was measured. Pure functions of their
 * arguments; a struct belongs to its owner's thread.
 *
 *   prefill of n tokens after c tokens of context:  a + n * p + n * (c + n / 2) * q
 *   one decode step of B requests with K tokens of KV: s + B * b + K * k
 *   transfer of x bytes of KV:                      l + x / w
 *
 * Linear in what the hardware does: weights' flops (p), attention's flops (q), weights read (s), a
 * row's work (b), KV read (k), link (l, w). Each kind has a factor, an average of measured /
 * predicted that forgets with a half-life of COST_MEMORY observations and stays within
 * [1/COST_FIX_MAX, COST_FIX_MAX]. Source: the roofline of a transformer; DistServe (OSDI'24) §4 for
 * the form of the prefill term. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#define COST_MEMORY  16
#define COST_FIX_MAX 64.0
#define COST_FADE_S  3.0

struct cost_model {
    double prefill_start_s, prefill_token_s, prefill_pair_s; /* a, p, q */
    double step_start_s, step_row_s, step_kv_token_s;        /* s, b, k */
    double transfer_start_s, transfer_bytes_per_s;           /* l, w */
    double kv_bytes_per_token;
};

struct cost_fix {
    double log_ratio; /* mean of ln(measured / predicted) */
    double factor;    /* its exponential; meaningless while n is 0 */
    uint32_t n;
};
struct cost_worker { /* one worker: the model and its corrections */
    struct cost_model m;
    struct cost_fix prefill, step, transfer;
};

/* From a model's shape and rough hardware figures: `flops` (per second, sustained) and
 * `bytes_per_s` of memory. Good to a factor of a few; the corrections do the rest. */
struct cost_shape {
    double weight_bytes, params; /* active parameters */
    uint32_t layers, kv_heads, head_dim, heads, kv_element_bytes;
};
void cost_model_init(struct cost_model *m, const struct cost_shape *s, double flops,
                     double bytes_per_s, double link_bytes_per_s);

double cost_prefill_s(const struct cost_worker *w, uint64_t n_tokens, uint64_t context_tokens);
double cost_step_s(const struct cost_worker *w, double batch, double kv_tokens);
double cost_transfer_s(const struct cost_worker *w, double bytes);

void cost_observe(struct cost_fix *f, double predicted_s, double measured_s);
double cost_factor(const struct cost_fix *f);
/* A worker that does no such work teaches nothing, and what it taught last grows old: within
 * COST_FADE_S half of the distance to what its peers (same model, `peer_log_ratio`) teach is gone.
 * So a worker that was slow once, or is new, is tried again instead of being passed over for ever.
 */
void cost_fade(struct cost_fix *f, double peer_log_ratio, double seconds);
/* What a worker reports itself: prefill tokens a second (0: unknown) and the duration of a step at
 * (batch, kv_tokens). */
void cost_report_prefill(struct cost_worker *w, double tokens_per_s);
void cost_report_step(struct cost_worker *w, double batch, double kv_tokens, double step_s);
