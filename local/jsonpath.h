/* jsonpath.h: the JSONPath subset of additionalPrinterColumns and selectable fields: .a.b, ['a.b'],
 * [0], [*], [-1], filters [?(@.type=="Ready")] with == and !=, and nested paths after them.
 * Grammar: kubernetes.io/docs/reference/kubectl/jsonpath. */
#pragma once
#include "lib/json/json.h"

/* Checks the syntax: 0 or -EINVAL with *e. */
int jsonpath_check(const char *path, struct err *e) MUST_CHECK;
/* Appends every value found to `found` (borrowed values are referenced). A path that doesn't parse
 * finds nothing. */
void jsonpath_find(const json_t *root, const char *path, json_t *found);
