/* meta.h: metadata of objects: what clients may set, what the server sets, and its validation.
 * Documents are in stored form. */
#pragma once
#include "local/object.h"

/* Name and namespace of the document against those of the URL; fills what the document lacks. */
int meta_place(struct call *c, json_t *doc, json_t **st) MUST_CHECK;
/* generateName, uid, creationTimestamp, generation of a new object. */
int meta_new(struct call *c, json_t *doc, json_t **st) MUST_CHECK;
void meta_validate(const struct resource *r, const json_t *doc, const json_t *old, json_t *causes);
/* uid and resourceVersion of a changed document against the stored one. */
int meta_check_update(struct call *c, const struct obj *old, const json_t *doc, enum write_kind how,
                      json_t **st) MUST_CHECK;
/* Server-owned metadata comes from the old object. */
void meta_keep(const json_t *old, json_t *doc);
