#include "worker/model/rope.h"
#include "kernels/ops.h"

#include <math.h>

/* Long waves are stretched by the factor, short ones stay, those between are blended. */
static double llama3(const struct model_rope *r, double freq)
{
    double wave = 2 * M_PI / freq, original = r->original, factor = (double)r->factor;
    double low = (double)r->low, high = (double)r->high;
    if (wave < original / high)
        return freq;
    if (wave > original / low)
        return freq / factor;
    double smooth = (original / wave - low) / (high - low);
    return (1 - smooth) * freq / factor + smooth * freq;
}

/* The dimension that turns `turns` times in the original context. */
static double yarn_dimension(const struct model_config *c, double turns)
{
    return c->rope_dims * log(c->rope.original / (turns * 2 * M_PI)) /
           (2 * log((double)c->rope_base));
}

static double yarn(const struct model_config *c, uint32_t i, double freq)
{
    double low = yarn_dimension(c, (double)c->rope.high);
    double high = yarn_dimension(c, (double)c->rope.low);
    if (!c->rope.exact) {
        low = floor(low);
        high = ceil(high);
    }
    low = low > 0 ? low : 0;
    high = high < c->rope_dims - 1 ? high : c->rope_dims - 1;
    if (low == high)
        high += 0.001;
    double ramp = (i - low) / (high - low);
    ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
    return freq / (double)c->rope.factor * ramp + freq * (1 - ramp);
}

void rope_global_freqs(const struct model_config *c, const float *factors, double *freqs)
{
    float linear = c->rope.scaling == MODEL_ROPE_LINEAR ? c->rope.factor : 1.0f;
    rope_freqs(freqs, c->rope_dims, c->rope_base, linear, factors);
    for (uint32_t i = 0; i < c->rope_dims / 2; i++) {
        if (c->rope.scaling == MODEL_ROPE_LLAMA3)
            freqs[i] = llama3(&c->rope, freqs[i]);
        else if (c->rope.scaling == MODEL_ROPE_YARN)
            freqs[i] = yarn(c, i, freqs[i]);
    }
}
