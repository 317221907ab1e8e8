/* logprob.h: log-probabilities of one row of logits, the one function that score, echo and the
 * sampler share, so that every path reports the same bits. log P(i) = (double)logits[i] - max -
 * log(sum), rounded to f32; sum is over exp(logits - max) in the lane order of kernels/ops.h.
 * Thread-safe. */
#pragma once
#include "worker/model/model.h"

struct logprob_norm {
    float max;
    double log_sum; /* log of the sum of exp(logits - max) */
};

struct logprob_top {
    uint32_t id;
    float logprob;
};

void logprob_norm(const struct model *m, const float *logits, uint32_t n, struct logprob_norm *out);
float logprob_of(const struct logprob_norm *norm, float logit);
/* The best k (k <= 64) in order: greatest logit first, the smaller id first among equals. Returns
 * how many (k or n). */
uint32_t logprob_best(const struct logprob_norm *norm, const float *logits, uint32_t n, uint32_t k,
                      struct logprob_top *out);
