/* render.h: how stored objects leave: as objects, as rows of a Table, or as PartialObjectMetadata,
 * for gets, lists and watches. */
#pragma once
#include "local/server_int.h"

struct render {
    const struct resource *r;
    enum accept accept;
    enum { INCLUDE_METADATA, INCLUDE_NONE, INCLUDE_OBJECT } include; /* of table rows */
};
void render_init(struct render *d, const struct call *c);
const char *render_content_type(const struct render *d, bool stream);
/* One object as JSON text, appended; a Table gets its columnDefinitions when `columns`. */
int render_object(const struct render *d, struct obj *o, bool columns, struct buf *out) MUST_CHECK;
json_t *render_doc(const struct render *d,
                   const json_t *doc); /* one served document, new reference */
/* A list of n objects. meta is {resourceVersion, continue, …}, borrowed. */
int render_list(const struct render *d, struct obj *const *objs, size_t n, const json_t *meta,
                struct buf *out) MUST_CHECK;
