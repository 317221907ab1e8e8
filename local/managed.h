/* managed.h: metadata.managedFields and server-side apply, after the structured-merge-diff rules
 * that kube-apiserver follows (KEP-555). Sets of fields are held in the FieldsV1 form itself
 * (fieldset.h). */
#pragma once
#include "local/resource.h"

struct managed_writer {
    const char *manager, *sub; /* sub: "" or the subresource */
    const char *now;           /* RFC 3339 */
    bool force;
};

/* After a create (old NULL) or update: gives the fields that changed to the writer, takes those
 * that went from everyone, in doc's metadata.managedFields. doc equal to old but for managed
 * fields: old's entries are kept as they are. */
void managed_update(const struct resource *r, const json_t *old, json_t *doc,
                    const struct managed_writer *w);
/* Merges an apply configuration into old (NULL: creates). *out is a new document whose
 * managedFields are complete except for what defaulting adds. 409 with causes in *st on conflicts.
 */
int managed_apply(const struct resource *r, const json_t *old, const json_t *config,
                  const struct managed_writer *w, json_t **out, json_t **st) MUST_CHECK;
