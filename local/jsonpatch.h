/* jsonpatch.h: JSON Patch (RFC 6902). */
#pragma once
#include "lib/json/json.h"

/* Changes *doc (it may be replaced). -EINVAL for a malformed patch, -ENOENT when a path or a test
 * doesn't hold; *doc is then as it was. At most 10,000 operations. */
int jsonpatch_apply(json_t **doc, const json_t *patch, struct err *e) MUST_CHECK;
