/* fieldset.h: sets of fields in the FieldsV1 form: a tree of "f:name", "k:{…}", "v:…" members; a
 * node is itself in the set when it is empty or has the member ".". Paths are arrays of such
 * elements. Source: KEP-555, structured-merge-diff. */
#pragma once
#include "lib/json/json.h"

#define FIELD_SELF "."

/* All leaves of a value by its schema: what an apply configuration says. New set. */
json_t *fieldset_of(const json_t *schema, const json_t *value);
/* Differences between two values (either may be NULL): *changed gets added and modified fields,
 * *removed those that went. Both are trees that the caller made. */
void fieldset_compare(const json_t *schema, const json_t *before, const json_t *after,
                      json_t *changed, json_t *removed);

bool fieldset_empty(const json_t *s);
void fieldset_union(json_t *into, const json_t *from);
void fieldset_subtract(json_t *from, const json_t *what);
json_t *fieldset_intersect(const json_t *a, const json_t *b); /* new */
/* The same set with every named field above a member as a member too. New. */
json_t *fieldset_with_parents(const json_t *s);

/* Fields that no manager can own: apiVersion, kind, metadata.name and what the server writes. */
void fieldset_strip_system(json_t *s);

/* Calls fn for each member, path printed as in conflict messages
 * (".spec.containers[name=\"a\"].image"). */
void fieldset_each(const json_t *s, void (*fn)(const char *path, void *ctx), void *ctx);

/* The element of a list item: "k:{…}" by keys (defaults of absent keys included), "v:…" for a set;
 * NULL when it has none. Heap. */
char *fieldset_key(const json_t *items_schema, const json_t *keys, const json_t *item);
char *fieldset_value_key(const json_t *item);
