/* types.h: the built-in kinds as OpenAPI v3 schemas, made once at start from a compact table
 * (types_core.c, types_more.c).
 *
 * One representation serves everything: a schema node is a json_t in the shape of a CRD's
 * openAPIV3Schema (type, properties, additionalProperties, items, required, enum, default,
 * x-kubernetes-list-type, x-kubernetes-list-map-keys, x-kubernetes-map-type,
 * x-kubernetes-int-or-string, x-kubernetes-preserve-unknown-fields,
 * x-kubernetes-embedded-resource), plus
 * {"$ref": "#/components/schemas/<name>"} between built-in types. Code that walks a schema works
 * for built-in kinds and custom resources alike as long as it calls types_resolve() on each node it
 * reaches. All nodes are borrowed and live until exit. The first list-map key of a built-in list is
 * also its strategic-merge key.
 *
 * Table syntax, one string a type: "Name field:type …"; `*Name` is a kind (gets apiVersion, kind,
 * metadata), `~Name` an atomic struct. Types: s string, i int64, j int32, b bool, n number, q
 * quantity, x int-or-string, t time, y bytes, o any object, v any value, Name a struct, [T] atomic
 * list, [T|k1,k2] list map, [T=] set, {T} map, ! required, =json a default. Source of names and
 * defaults: the Kubernetes API reference, v1.37. */
#pragma once
#include "lib/json/json.h"

/* Schema of a kind ("" is the core group), NULL when it isn't built in. */
const json_t *types_kind(const char *group, const char *version, const char *kind);
/* Follows $ref (also inside allOf of one); never NULL for a non-NULL node. */
const json_t *types_resolve(const json_t *node);
/* Schema of a field: properties, else additionalProperties; NULL when unknown. */
const json_t *types_field(const json_t *node, const char *field);
const json_t *types_items(const json_t *node);
/* All named built-in schemas, for /openapi/v3: name → schema. */
const json_t *types_components(void);
/* The schema of metadata (ObjectMeta), shared by all kinds. */
const json_t *types_object_meta(void);

enum types_list { TYPES_ATOMIC, TYPES_SET, TYPES_MAP };
/* How a list merges. *keys is borrowed (array of strings), only for TYPES_MAP. Without a schema:
 * atomic. */
enum types_list types_list_kind(const json_t *node, const json_t **keys);
bool types_is_atomic_map(const json_t *node);
/* Object whose fields are anything (no properties known): unknown fields are kept. */
bool types_preserves_unknown(const json_t *node);

/* Tables, in types_core.c and types_more.c. A line "@package group/version" starts a section. NULL
 * ends. */
extern const char *const types_table_core[];
extern const char *const types_table_more[];
