/* kubeconfig.h: kubectl's rules for finding a cluster: --kubeconfig, else every file of $KUBECONFIG
 * (the first that names something wins), else ~/.kube/config; a context by name; a user whose
 * credentials a program makes (user.exec, as managed clusters have it). Source:
 * https://kubernetes.io/docs/concepts/configuration/organize-cluster-access-kubeconfig/ */
#pragma once
#include "lib/kube/client.h"

/* path or context NULL or "": by the rules above. */
int kubeconfig_load(const char *path, const char *context, struct kube_config *out,
                    struct err *e) MUST_CHECK;
