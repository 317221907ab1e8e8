/* json.h: jansson with bounds. Texts are refused past a size and a depth, duplicate keys are
 * refused. Dotted paths reach into objects ("spec.replicas"; array elements by number,
 * "items.0.name"). Getters return a default when the path is absent or of another type; the _need
 * forms fill *e with the path and what was expected. References are borrowed unless a function says
 * that it returns a new one. */
#pragma once
#include "lib/base/buf.h"

#include <jansson.h>

#define JSON_MAX_DEPTH 64

/* New reference, or NULL with *e filled ("line 3: ..."). max_depth 0 means JSON_MAX_DEPTH. */
json_t *json_parse(struct str text, size_t max_bytes, int max_depth, struct err *e);
json_t *json_parse_file(const char *path, size_t max_bytes, struct err *e);

json_t *json_at(const json_t *o, const char *path); /* borrowed or NULL */
const char *json_str_at(const json_t *o, const char *path, const char *dflt);
int64_t json_int_at(const json_t *o, const char *path,
                    int64_t dflt); /* accepts reals with no fraction */
double json_num_at(const json_t *o, const char *path, double dflt);
bool json_bool_at(const json_t *o, const char *path, bool dflt);
int json_need_str(const json_t *o, const char *path, const char **out, struct err *e) MUST_CHECK;
int json_need_int(const json_t *o, const char *path, int64_t min, int64_t max, int64_t *out,
                  struct err *e) MUST_CHECK;

/* Sets a value (stolen) at a dotted path, making objects on the way. */
int json_put(json_t *o, const char *path, json_t *value) MUST_CHECK;
/* New deep copy / RFC 7386 merge of patch into target (target changed in place). */
int json_merge_patch(json_t *target, const json_t *patch) MUST_CHECK;

/* Compact text appended to out; keys sorted when `sorted` (canonical: equal values give equal
 * bytes). */
int json_write(const json_t *o, bool sorted, struct buf *out) MUST_CHECK;
/* jansson's own json_decrefp serves CLEANUP: CLEANUP(json_decrefp) json_t *o = ...; */
