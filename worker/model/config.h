/* config.h: what a GGUF file says of its model (internal to worker/model). Every number is bounded
 * here; what is returned can be multiplied without overflow in 64 bits. */
#pragma once
#include "lib/llm/gguf.h"
#include "worker/model/model.h"

int config_from_gguf(struct gguf *g, struct model_config *out, struct err *e) MUST_CHECK;
/* The same bounds, for a config that was read from an image. */
int config_check(const struct model_config *c, struct err *e) MUST_CHECK;
