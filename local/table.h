/* table.h: the columns that `kubectl get` shows: those of kube-apiserver for built-in kinds,
 * additionalPrinterColumns for custom resources. Cells are strings, numbers or booleans. */
#pragma once
#include "local/resource.h"

json_t *table_columns(const struct resource *r);                  /* columnDefinitions, new */
json_t *table_cells(const struct resource *r, const json_t *doc); /* new array */
/* "3d4h" since an RFC 3339 time, as kubectl prints ages; "<unknown>" for NULL. */
char *table_age(const char *rfc3339);
/* "3/4" style helpers and the pod's status word. Heap. */
char *table_pod_status(const json_t *pod);
