/* fields.h: built-in objects against their schemas (types.h): unknown fields, JSON types, static
 * defaults, required fields. Custom resources have schema.h for the same. */
#pragma once
#include "lib/json/json.h"

/* Removes fields that the schema doesn't have and nulls; their paths are appended to unknown (array
 * of strings) when not NULL. */
void fields_prune(const json_t *schema, json_t *doc, json_t *unknown);
/* A value whose JSON type can't be decoded: -EINVAL with "spec.x: expected string". Numbers given
 * as quantity become strings. */
int fields_check_types(const json_t *schema, json_t *doc, struct err *e) MUST_CHECK;
void fields_default(const json_t *schema, json_t *doc);
/* Required fields that are absent or empty, as causes; status, which programs write, is left alone.
 */
void fields_required(const json_t *schema, const json_t *doc, json_t *causes);
