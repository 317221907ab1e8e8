/* sample.h: one token from one row of logits. The order of operations is vLLM v1's: logit bias and
 * the mask of min_tokens, penalties (repetition over prompt and output; presence and frequency over
 * output), greedy when temperature < 1e-5, else temperature, min-p, top-k (ties of the last are
 * kept), top-p, draw. The random number is rng_unit_at(seed, choice, position of the new token):
 * the same token whoever samples it, whenever.
 *
 * A sampler is scratch for one vocabulary; it belongs to one thread. logits are not changed. */
#pragma once
#include "lib/wire/request.h"

struct sampler;

struct sample_in {
    const struct wire_request *params;
    const uint32_t
        *tokens; /* [n_tokens]: params->n_prompt of the prompt, then what was generated */
    uint32_t n_tokens;
    uint16_t choice;
    const uint32_t *eog; /* the model's end-of-generation ids */
    uint32_t n_eog;
};

struct sampler *sampler_new(uint32_t vocab);
void sampler_free(struct sampler *s);
/* -EIO when the row has no finite maximum (nothing is written). */
int sample_token(struct sampler *s, const struct sample_in *in, const float *logits,
                 uint32_t *id) MUST_CHECK;
/* Whether a device can do the same with the row alone: nothing changes the logits, nobody asks for
 * probabilities, neither top-k nor top-p cuts. Then *out says what it needs to know. Its token is
 * sample_token's but where u falls within a rounding of a boundary. */
struct model_draw;
bool sample_as_draw(const struct sample_in *in, struct model_draw *out);
/* Does this token end the choice? (a stop id, or the model's own unless WIRE_IGNORE_EOS) */
bool sample_is_stop(const struct sample_in *in, uint32_t id);
