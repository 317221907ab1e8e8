/* affinity.h: may a pod with this affinity run on a node? What a scheduler requires of nodes, for
 * counting room; other pods (podAffinity) and preferences are not looked at. Pure. Source:
 * https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/ */
#pragma once
#include "lib/json/json.h"
#include "lib/kube/types.h"

/* `affinity` is a pod's spec.affinity; NULL: anywhere. What can't be read matches nothing. */
bool affinity_allows(const json_t *affinity, const struct kube_node *n);
