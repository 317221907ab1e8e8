/* status.h: Kubernetes Status objects, shaped as kube-apiserver shapes them, so that clients print
 * and react the same.
 *
 * Functions that can refuse a request take `json_t **st` last: on refusal they store a new Status
 * there and return -1, so that `return status_…(st, …)` is the whole error path. Callers hand the
 * Status to the client (its "code" is the HTTP status). Field errors are collected as causes: a
 * JSON array of {reason, message, field}. */
#pragma once
#include "lib/json/json.h"

struct resource;

/* Any Status of failure. r and name may be NULL; kind_as: "kind" of the details (NULL: the plural
 * of r). */
int status_set(json_t **st, int code, const char *reason, const struct resource *r,
               const char *name, const char *fmt, ...) PRINTF_LIKE(6, 7);
int status_bad_request(json_t **st, const char *fmt, ...) PRINTF_LIKE(2, 3);
int status_internal(json_t **st, const char *fmt, ...) PRINTF_LIKE(2, 3);
int status_not_found(json_t **st, const struct resource *r, const char *name);
int status_no_path(json_t **st); /* "the server could not find the requested resource" */
int status_exists(json_t **st, const struct resource *r, const char *name);
int status_conflict(json_t **st, const struct resource *r, const char *name, const char *why);
int status_modified(json_t **st, const struct resource *r, const char *name); /* the usual 409 */
int status_forbidden(json_t **st, const struct resource *r, const char *name, const char *why);
int status_method(json_t **st);
int status_media(json_t **st, const char *supported); /* 415 */
int status_expired(json_t **st, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* 422 with causes (stolen); returns 0 when causes is empty, so it can be the last step of any
 * validation. */
int status_invalid(json_t **st, const char *group, const char *kind, const char *name,
                   json_t *causes);
/* Adds one cause to a Status made before. */
void status_add_cause(json_t *st, const char *reason, const char *message, const char *field);
int status_code(const json_t *st);

/* {"kind":"Status","status":"Success",...} of a completed delete. */
json_t *status_success(const struct resource *r, const char *name, const char *uid);

/* Causes, in the words of the API's field errors. value may be NULL. */
void cause_required(json_t *causes, const char *field, const char *detail);
void cause_invalid(json_t *causes, const char *field, const json_t *value, const char *fmt, ...)
    PRINTF_LIKE(4, 5);
void cause_forbidden(json_t *causes, const char *field, const char *fmt, ...) PRINTF_LIKE(3, 4);
void cause_unsupported(json_t *causes, const char *field, const json_t *value,
                       const char *const *allowed); /* NULL-terminated */
void cause_duplicate(json_t *causes, const char *field, const json_t *value);
