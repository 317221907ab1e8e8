/* object.h: creating, changing and deleting stored objects by the rules that all kinds share:
 * decoding and unknown fields, names, namespaces, defaults, validation, metadata that only the
 * server writes, generation, managed fields, finalizers, deletion.
 *
 * `doc` arguments are in the served form of c->r and stolen. On success *out is a new reference to
 * the resulting document in served form (with dry-run it was not stored). On failure -1 with *st.
 */
#pragma once
#include "local/server_int.h"

/* How a changed document came to be. */
enum write_kind { WRITE_PUT, WRITE_PATCH, WRITE_APPLY };

/* Checks kind, JSON types and unknown fields of a document from outside (dropped, reported as
 * fieldValidation asks). */
int object_check(struct call *c, json_t *doc, json_t **st) MUST_CHECK;
int object_create(struct call *c, json_t *doc, enum write_kind how, json_t **out,
                  json_t **st) MUST_CHECK;
int object_update(struct call *c, struct obj *old, json_t *doc, enum write_kind how, json_t **out,
                  json_t **st) MUST_CHECK;

struct delete_options {
    int64_t grace; /* seconds, -1: the kind's default */
    enum {
        PROPAGATE_DEFAULT,
        PROPAGATE_BACKGROUND,
        PROPAGATE_FOREGROUND,
        PROPAGATE_ORPHAN
    } propagation;
    const char *uid, *rv; /* preconditions or NULL */
    bool dry_run;
};
/* Deletes now, or marks (grace, finalizers). *gone tells whether it was removed. *out as above (the
 * last state). */
int object_delete(struct server *s, const struct resource *r, struct obj *o,
                  const struct delete_options *opt, bool *gone, json_t **out,
                  json_t **st) MUST_CHECK;
/* Removes an object that is being deleted once nothing holds it; otherwise does nothing. */
int object_finish_delete(struct server *s, const struct resource *r, struct obj *o, bool *gone,
                         json_t **st) MUST_CHECK;
/* The namespace must exist and not be terminating. */
int object_check_namespace(struct server *s, const struct resource *r, const char *ns,
                           const char *name, json_t **st) MUST_CHECK;
