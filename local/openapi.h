/* openapi.h: the documents behind /openapi/v3 (index, one a group-version) and a small /openapi/v2:
 * enough for kubectl explain, kubectl apply's server-side field validation and client-side merges.
 */
#pragma once
#include "lib/json/json.h"

struct openapi_resource {
    const char *group, *version, *kind, *plural;
    bool namespaced, status, scale;
    const json_t *schema; /* openAPIV3Schema of a CRD, or NULL for a built-in kind (then
                             descriptions come from openapi.c) */
};
/* New references. Paths in the index: "api/v1", "apis/apps/v1"; hash is in the URL's query as
 * upstream has it. */
json_t *openapi_v3_index(const struct openapi_resource *r, size_t n);
/* NULL when no resource has that group and version. */
json_t *openapi_v3_group(const char *group, const char *version, const struct openapi_resource *r,
                         size_t n);
json_t *openapi_v2(const struct openapi_resource *r, size_t n);
