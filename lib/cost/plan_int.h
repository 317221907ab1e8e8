/* plan_int.h: shared by plan.c (the numbers) and plan_advice.c (the layout). */
#pragma once
#include "lib/cost/plan.h"

/* 2 × parameters FLOP a token, the field's rule of thumb. */
double plan_prefill_linear_s(const struct plan_input *in, uint32_t tensor, double tokens);
double plan_prefill_s(const struct plan_input *in, uint32_t tensor, double tokens);
double plan_step_s(const struct plan_input *in, uint32_t tensor, double batch,
                   double context_tokens);
double plan_room_bytes(const struct plan_input *in, uint32_t tensor,
                       double weight_bytes); /* KV, a device; may be < 0 */
double plan_all_reduce_bytes(const struct plan_input *in, uint32_t tensor,
                             double batch); /* a device and step */
void plan_advise(const struct plan_input *in, struct plan *p);
