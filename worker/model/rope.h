/* rope.h: frequencies of rotary embeddings, scaled as a model's config says (internal to
 * worker/model). Sources: Su et al., arXiv 2104.09864; Llama 3.1's scaling by wavelength; YaRN,
 * arXiv 2309.00071. In f64, as the tables that are made of them. */
#pragma once
#include "worker/model/model.h"

/* freqs [rope_dims / 2] of global layers; `factors` of a GGUF file (NULL: none) divide them. */
void rope_global_freqs(const struct model_config *c, const float *factors, double *freqs);
