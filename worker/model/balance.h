/* balance.h: copies of hot experts at other ranks, while serving (internal to worker/model). Every
 * balance_steps steps the ranks add up what each expert was given, choose who keeps copies of which
 * (lib/decide/replicas.h: a pure function, so all choose the same), and move the weights from their
 * owners, a piece to each receiver a step. Copies that are no longer wanted are left at once, new
 * ones are used from the step on at which all of them have come: the same one at every rank,
 * because all count steps and pieces alike.
 *
 * With `cover` in the options and room for it, the first copies are fixed from the start: one of
 * every expert at another rank (replicas_cover). Then a rank may be masked (comm.h): its experts
 * are computed where their copies are, and nothing is chosen anew from then on.
 *
 * Where a row is computed changes no bit (ep.h).
 *
 * Threads: balance_step and balance_count on the engine's; the rest reads. */
#pragma once
#include "worker/model/layer.h"

struct balance;
int balance_new(struct model_work *w, struct balance **out, struct err *e) MUST_CHECK;
void balance_free(struct balance *b); /* NULL is fine */
/* After all ranks have made theirs: the fixed copies come from their owners. */
int balance_cover(struct model_work *w, struct err *e) MUST_CHECK;
/* Ranks at which an expert always is, a bit each. */
uint64_t balance_holders(const struct balance *b, uint32_t expert);
/* Ranks of the expert communicator that are masked, from now on. */
void balance_mask(struct balance *b, uint64_t lost);
/* Before each step. */
int balance_step(struct model_work *w, struct err *e) MUST_CHECK;
/* Own picks of a layer, as w->ep has them. */
void balance_count(struct step *s, uint32_t layer);
/* The rank that computes this expert for a row. */
uint8_t balance_target(const struct balance *b, uint32_t layer, uint32_t expert, uint32_t token,
                       uint32_t pos);
/* This rank's copy of an expert's matrix (0, 1, 2: gate, up, down), NULL: it has none in use. */
const uint8_t *balance_weights(const struct balance *b, uint32_t layer, uint32_t part,
                               uint32_t expert);
