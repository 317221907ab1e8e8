/* schema.h: structural OpenAPI v3 schemas of custom resources, as apiextensions.k8s.io/v1 defines
 * them: compiled once a CRD version, then pruning, defaulting and validation (CEL rules included)
 * of objects. A compiled schema is immutable.
 *
 * apiVersion, kind and metadata of the root (and of x-kubernetes-embedded-resource) are never
 * pruned. Errors carry the field path ("spec.decode.replicas"), the cause's reason as in
 * metav1.StatusCause and a message that kubectl prints. */
#pragma once
#include "lib/json/json.h"

struct schema;

enum list_kind { LIST_ATOMIC, LIST_SET, LIST_MAP };

struct field_error {
    char *path;         /* "spec.replicas" */
    const char *reason; /* FieldValueRequired, FieldValueInvalid, FieldValueTypeInvalid,
                           FieldValueNotSupported, FieldValueTooLong, FieldValueTooMany,
                           FieldValueDuplicate, FieldValueForbidden */
    char *message;      /* "Invalid value: 5: must be less than 3", as upstream words it */
};
struct field_errors {
    struct field_error *v;
    size_t n; /* at most 64 are kept */
};
void field_errors_add(struct field_errors *f, const char *path, const char *reason, const char *fmt,
                      ...) PRINTF_LIKE(4, 5);
void field_errors_fini(struct field_errors *f);

/* Compiles the openAPIV3Schema of a CRD version. Not structural, an unknown type, a regular
 * expression that doesn't compile or a CEL rule that can't be evaluated here: -EINVAL with every
 * problem in *errs (paths from "spec.validation.openAPIV3Schema"). */
int schema_compile(const json_t *openapi_v3_schema, struct schema **out,
                   struct field_errors *errs) MUST_CHECK;
void schema_free(struct schema *s);

/* Drops unknown fields; their paths are appended to *dropped (for fieldValidation Warn and Strict),
 * which may be NULL. */
void schema_prune(const struct schema *s, json_t *object, struct field_errors *dropped);
/* Fills defaults (nulls of non-nullable fields with a default count as absent). */
void schema_default(const struct schema *s, json_t *object);
/* Types, required, bounds, enums, formats, lists and CEL rules. old is NULL on create. 0 or -EINVAL
 * with *errs filled. */
int schema_validate(const struct schema *s, const json_t *object, const json_t *old,
                    struct field_errors *errs) MUST_CHECK;

/* Navigation, for server-side apply: NULL when the schema says nothing (then objects are granular,
 * lists atomic). */
const struct schema *schema_field(const struct schema *s, const char *key);
const struct schema *schema_items(const struct schema *s);
enum list_kind schema_list_kind(const struct schema *s, const char *const **map_keys,
                                size_t *n_keys);
bool schema_map_atomic(const struct schema *s); /* x-kubernetes-map-type: atomic */
/* The default of a map key that is absent in an item, or NULL (borrowed). */
const json_t *schema_default_of(const struct schema *s);
