/* standby.h: the controller's part of the standby ladder that concerns nodes: which of them keep a
 * model on disk (annotation cached-nodes of the InferenceDeployment), which ones new pods prefer
 * and avoid, and the measured lead times in status.standby (own field manager). Reads the agents'
 * NodeInventories; where that right is missing, nodes are chosen without them. The controller's
 * thread; only the leader writes. */
#pragma once
#include "controller/controller.h"

struct standby;
/* What the caches tell: lead times are only gathered anew when some may have changed. */
void standby_pod_changed(struct ctl *c, const struct kube_pod *old, const struct kube_pod *now);
void standby_infd_changed(struct ctl *c, const struct kube_infd *old, const struct kube_infd *now);
int standby_start(struct ctl *c,
                  void (*wake)(struct ctl *c, const char *namespace, const char *infd),
                  struct err *e) MUST_CHECK;
void standby_stop(struct ctl *c);

/* Node affinity of a new pod: away from nodes in quarantine, towards those that have the model. */
void standby_place(const struct ctl *c, const struct kube_infd *d, const struct infd_role *role,
                   json_t *spec);
/* Why nothing should run on this node; NULL: nothing against it. */
const char *standby_quarantine(const struct ctl *c, const char *node);
/* What a device of this pod asks for (annotation device-fault), when that is to leave: a sentence
 * (free()); NULL: nothing. */
char *standby_must_leave(const struct kube_pod *p);
