/* sub.h: subresources and the kinds that are only asked, not stored. Each answers its call. */
#pragma once
#include "local/verbs.h"

void sub_scale(struct call *c); /* scale.c */
void sub_log(struct call *c);   /* pods.c: log, binding, eviction */
void sub_binding(struct call *c);
void sub_eviction(struct call *c);
void sub_token(struct call *c);  /* review.c */
bool sub_review(struct call *c); /* reviews of tokens and access; false: not one of them */

/* Disruption budgets (evict.c): 0 when the pod may go; else 429. */
int pdb_check(struct server *s, const struct obj *pod, json_t **st) MUST_CHECK;
void pdb_tick(struct server *s); /* keeps their status */
