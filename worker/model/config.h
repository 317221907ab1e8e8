/* config.h: what a model's files say of it (internal to worker/model). Every number is bounded
 * here; what is returned can be multiplied without overflow in 64 bits. */
#pragma once
#include "lib/json/json.h"
#include "lib/llm/gguf.h"
#include "lib/llm/safetensors.h"
#include "worker/model/model.h"

#define MODEL_COLS_MAX (1u << 20) /* of any matrix: config_check's bounds */

int config_from_gguf(struct gguf *g, struct model_config *out, struct err *e) MUST_CHECK;
/* `folder`: config.json of it is read; `st`, its tensors, tell what config.json does not. */
int config_from_hf(const char *folder, const struct safetensors *st, struct model_config *out,
                   struct err *e) MUST_CHECK;
/* The same bounds, for a config that was read from an image. */
int config_check(const struct model_config *c, struct err *e) MUST_CHECK;

/* What an architecture implies, before its file is read: defaults of constants, flags. */
void config_arch_defaults(struct model_config *c);
/* YaRN's factors of sine and cosine: `attention_factor` if it is > 0, else by mscale and
 * mscale_all_dim (0: not given). Latent attention's scores are multiplied by all_dim's, squared. */
void config_yarn(struct model_config *c, double attention_factor, double mscale, double all_dim);
static inline void config_set_bit(uint8_t *bits, uint32_t i)
{
    bits[i / 8] = (uint8_t)(bits[i / 8] | 1u << i % 8);
}
