/* models.h: the model files of this node: fetched once for all its pods, offered to other nodes.
 *
 * Who wants a model: launchers (message "model") and InferenceDeployments whose annotation
 * cached-nodes names this node. A fetch asks peers first (agents whose NodeInventory lists the
 * digest, or the same source when it is not pinned), then the source; its progress goes to the
 * waiting launchers, the NodeInventory and the log. Failures are told and tried again, later and
 * later. file:// models are used in place; one that is not on this node is fetched from a node that
 * has it, by its pin. One owner thread, the agent's. */
#pragma once
#include "agent/agent.h"
#include "lib/io/httpd.h"

int models_start(struct agent *a, struct err *e) MUST_CHECK;
void models_ask(struct launcher *l, const json_t *msg); /* answers, now or later */
void models_release(struct launcher *l);                /* its connection is gone */

/* Entries of NodeInventory's status.models (rung nvme) and status.fetches. */
void models_inventory(struct agent *a, json_t *models, json_t *fetches);
json_t *models_state(struct agent *a); /* for /debug/state; new reference */
/* Answers GET /v1/internal/weights/…; false: not such a path. */
bool models_offer(struct agent *a, struct httpd_req *req);
