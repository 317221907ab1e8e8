/* restart.h: restarts of all containers of a pod in place (restart.c says when). One owner thread,
 * the loop's. */
#pragma once
#include "controller/controller.h"

struct restart;
int restart_start(struct ctl *c, struct err *e) MUST_CHECK; /* asks the API server */
void restart_stop(struct ctl *c);
/* Adds the rule to a pod's spec with several containers, unless its first one has a policy of its
 * own or the server does not offer it. */
void restart_together(const struct ctl *c, json_t *spec);
