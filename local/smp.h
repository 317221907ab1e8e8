/* smp.h: strategic merge patch of the built-in kinds, with the merge keys of the Kubernetes API
 * (patchStrategy and patchMergeKey of k8s.io/api). Lists without a merge key are replaced.
 * Directives: $patch (replace, delete, merge), $deleteFromPrimitiveList, $setElementOrder,
 * $retainKeys. */
#pragma once
#include "lib/json/json.h"

/* Changes target in place; -EINVAL with a reason in *e for a malformed patch. group_kind is "Pod",
 * "apps/Deployment", … */
int smp_apply(json_t *target, const json_t *patch, const char *group_kind,
              struct err *e) MUST_CHECK;
/* Server-side apply's view of a list at a field path of a built-in kind ("spec.containers"): the
 * merge keys ("containerPort,protocol" as several), "" for a set, NULL for atomic. Items of lists
 * don't appear in the path. */
const char *smp_list_keys(const char *group_kind, const char *path);
/* The same for strategic merge (one key; differs for ports). */
const char *smp_merge_key(const char *group_kind, const char *path);
