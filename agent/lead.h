/* lead.h: how long a pod takes from being asked to serve until it serves, by the rung of the
 * standby ladder that it came from (DESIGN §8). The result is the annotation serving.baton.dev/lead
 * = {"rung":"hot","seconds":0.031} on the pod. One owner thread. */
#pragma once
#include "agent/agent.h"

/* The API's view of the pod has changed (before p->obj is replaced by now). */
void lead_asked(struct apod *p, const json_t *now);
/* The pod serves in the role that is wanted. */
void lead_serves(struct apod *p);
