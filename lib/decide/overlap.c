#include "lib/decide/overlap.h"

#include "lib/decide/guard.h"

#include <string.h>

static uint32_t class_of(uint32_t rows)
{
    uint32_t c = rows ? 31u - (uint32_t)__builtin_clz(rows) : 0;
    return c < OVERLAP_CLASSES ? c : OVERLAP_CLASSES - 1;
}

/* One slow step, of a neighbour's doing, decides nothing. */
static double median(const float *seconds)
{
    float s[OVERLAP_TRIES];
    memcpy(s, seconds, sizeof s);
    for (uint32_t i = 1; i < OVERLAP_TRIES; i++)
        for (uint32_t k = i; k && s[k] < s[k - 1]; k--) {
            float x = s[k];
            s[k] = s[k - 1];
            s[k - 1] = x;
        }
    return GUARD(overlap_median) ? (double)s[OVERLAP_TRIES / 2] : (double)s[OVERLAP_TRIES - 1];
}

bool overlap_next(const struct overlap *o, uint32_t rows)
{
    const struct overlap_class *c = &o->classes[class_of(rows)];
    if (c->n[0] < OVERLAP_TRIES || c->n[1] < OVERLAP_TRIES)
        return c->n[1] < c->n[0];
    double gain = GUARD(overlap_gain) ? 1 - OVERLAP_GAIN : 1;
    return median(c->seconds[1]) < gain * median(c->seconds[0]);
}

void overlap_learn(struct overlap *o, uint32_t rows, bool halved, double seconds)
{
    struct overlap_class *c = &o->classes[class_of(rows)];
    if (c->n[halved] < OVERLAP_TRIES)
        c->seconds[halved][c->n[halved]++] = (float)seconds;
    else if (++c->steps >= OVERLAP_STEPS)
        *c = (struct overlap_class){0};
}
