/* drawn.h: the token that a device is to choose from a row of logits, by its definition (sample_k):
 * at temperature 0 the greatest, else the first whose cumulated probability is above u. UINT32_MAX:
 * the row has no finite maximum. */
#pragma once
#include <math.h>
#include <stdint.h>

static inline uint32_t drawn(const float *logits, uint32_t n, double u, float temperature,
                             float min_p)
{
    double total = 0, sum = 0;
    float most = -INFINITY;
    uint32_t best = UINT32_MAX, last;
    for (uint32_t i = 0; i < n; i++)
        if (logits[i] > most) {
            most = logits[i];
            best = i;
        }
    last = best = isfinite(most) ? best : UINT32_MAX;
    for (int pass = 0; temperature > 0 && best < n && pass < 2; pass++)
        for (uint32_t i = 0; i < n; i++) {
            float p = expf((logits[i] - most) * (1 / temperature));
            p = p >= min_p ? p : 0;
            total += pass ? 0 : (double)p;
            sum += pass ? (double)p : 0;
            last = pass && p > 0 ? i : last;
            if (pass && sum > u * total)
                return last;
        }
    return last;
}
