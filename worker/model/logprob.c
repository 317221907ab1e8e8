#include "worker/model/logprob.h"
#include "worker/model/image.h"

#include <math.h>

void logprob_norm(const struct model *m, const float *logits, uint32_t n, struct logprob_norm *out)
{
    out->max = m->ops->max(logits, n);
    out->log_sum = log(m->ops->sum_exp(logits, out->max, n));
}

float logprob_of(const struct logprob_norm *norm, float logit)
{
    return (float)((double)logit - (double)norm->max - norm->log_sum);
}

uint32_t logprob_best(const struct logprob_norm *norm, const float *logits, uint32_t n, uint32_t k,
                      struct logprob_top *out)
{
    float best[64];
    uint32_t have = 0;
    k = k < 64 ? k : 64;
    for (uint32_t i = 0; i < n && k > 0; i++) {
        if (have == k && !(logits[i] > best[k - 1]))
            continue;
        uint32_t at = have < k ? have++ : k - 1;
        for (; at > 0 && logits[i] > best[at - 1]; at--) {
            best[at] = best[at - 1];
            out[at] = out[at - 1];
        }
        best[at] = logits[i];
        out[at].id = i;
    }
    for (uint32_t i = 0; i < have; i++)
        out[i].logprob = logprob_of(norm, best[i]);
    return have;
}
