/* kinds.h: the rules of built-in kinds beyond their schemas, by file: pods (kinds_pod.c), the rest
 * of core (kinds_core.c), other groups (kinds_more.c). Contract of the members: struct kind_ops in
 * resource.h. */
#pragma once
#include "local/resource.h"

extern const struct kind_ops ops_pod, ops_namespace, ops_secret, ops_configmap, ops_service,
    ops_event, ops_event_v1, ops_node, ops_deployment, ops_replicaset, ops_daemonset, ops_pdb,
    ops_lease, ops_rbac, ops_role, ops_hpa, ops_crd, ops_networkpolicy, ops_revision;

/* Defaults and validation of a pod template's spec at `path` ("spec.template.spec"). */
void podspec_defaults(json_t *spec);
void podspec_validate(const json_t *spec, const char *path, json_t *causes);
