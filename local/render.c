#include "local/render.h"
#include "local/crd.h"
#include "local/table.h"

#include <stdio.h>
#include <stdlib.h>

void render_init(struct render *d, const struct call *c)
{
    const char *inc = httpd_arg(c->req, "includeObject");
    *d = (struct render){.r = c->r, .accept = c->accept};
    if (inc && !strcmp(inc, "None"))
        d->include = INCLUDE_NONE;
    else if (inc && !strcmp(inc, "Object"))
        d->include = INCLUDE_OBJECT;
}

const char *render_content_type(const struct render *d, bool stream)
{
    switch (d->accept) {
    case ACCEPT_TABLE:
        return stream ? "application/json;as=Table;v=v1;g=meta.k8s.io;stream=watch"
                      : "application/json;as=Table;v=v1;g=meta.k8s.io";
    case ACCEPT_PARTIAL:
        return stream ? "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io;stream=watch"
                      : "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";
    case ACCEPT_OBJECT: break;
    }
    return stream ? "application/json;stream=watch" : "application/json";
}

static json_t *partial(const json_t *doc)
{
    return json_pack("{s:s,s:s,s:O}", "kind", "PartialObjectMetadata", "apiVersion",
                     "meta.k8s.io/v1", "metadata", json_object_get(doc, "metadata"));
}

static json_t *row(const struct render *d, const json_t *doc)
{
    json_t *r = json_pack("{s:o}", "cells", table_cells(d->r, doc));
    if (d->include == INCLUDE_OBJECT)
        json_object_set(r, "object", (json_t *)doc);
    else if (d->include == INCLUDE_METADATA)
        json_object_set_new(r, "object", partial(doc));
    return r;
}

static json_t *table_of(const struct render *d, json_t *rows, json_t *meta, bool columns)
{
    return json_pack("{s:s,s:s,s:o,s:o,s:o}", "kind", "Table", "apiVersion", "meta.k8s.io/v1",
                     "metadata", meta, "columnDefinitions",
                     columns ? table_columns(d->r) : json_null(), "rows", rows);
}

static json_t *object_meta_of_table(const json_t *doc)
{
    return json_pack("{s:s}", "resourceVersion", json_str_at(doc, "metadata.resourceVersion", ""));
}

static json_t *render_one(const struct render *d, const json_t *doc, bool columns)
{
    if (d->accept == ACCEPT_TABLE)
        return table_of(d, json_pack("[o]", row(d, doc)), object_meta_of_table(doc), columns);
    return d->accept == ACCEPT_PARTIAL ? partial(doc) : json_incref((json_t *)doc);
}

json_t *render_doc(const struct render *d, const json_t *doc)
{
    return render_one(d, doc, true);
}

int render_object(const struct render *d, struct obj *o, bool columns, struct buf *out)
{
    if (d->accept == ACCEPT_OBJECT && object_is_view(d->r, o))
        return buf_str(out, obj_text(o));
    json_t *doc = object_is_view(d->r, o) ? json_incref(o->doc) : object_view(d->r, o);
    json_t *v = render_one(d, doc, columns);
    int rc = json_write(v, false, out);
    json_decref(v);
    json_decref(doc);
    return rc;
}

static int render_table(const struct render *d, struct obj *const *objs, size_t n,
                        const json_t *meta, struct buf *out)
{
    json_t *rows = json_array();
    for (size_t i = 0; i < n; i++) {
        json_t *doc =
            object_is_view(d->r, objs[i]) ? json_incref(objs[i]->doc) : object_view(d->r, objs[i]);
        json_array_append_new(rows, row(d, doc));
        json_decref(doc);
    }
    json_t *t = table_of(d, rows, json_incref((json_t *)meta), true);
    int rc = json_write(t, false, out);
    json_decref(t);
    return rc;
}

/* Items of lists of built-in kinds have no kind of their own. */
static int render_item(const struct render *d, struct obj *o, struct buf *out)
{
    if (d->accept != ACCEPT_OBJECT || resource_has(d->r, R_CUSTOM))
        return render_object(d, o, false, out);
    if (object_is_view(d->r, o)) {
        int rc = buf_cstr(out, "{");
        return rc ? rc : buf_str(out, obj_item_tail(o));
    }
    json_t *doc = object_view(d->r, o);
    json_object_del(doc, "kind");
    json_object_del(doc, "apiVersion");
    int rc = json_write(doc, false, out);
    json_decref(doc);
    return rc;
}

int render_list(const struct render *d, struct obj *const *objs, size_t n, const json_t *meta,
                struct buf *out)
{
    char api[128], kind[256];
    if (d->accept == ACCEPT_TABLE)
        return render_table(d, objs, n, meta, out);
    bool part = d->accept == ACCEPT_PARTIAL;
    int rc = buf_printf(out, "{\"kind\":\"%s\",\"apiVersion\":\"%s\",\"metadata\":",
                        part ? "PartialObjectMetadataList" : crd_list_kind(d->r, kind),
                        part ? "meta.k8s.io/v1" : resource_api_version(d->r, api));
    if (!rc)
        rc = json_write(meta, false, out);
    if (!rc)
        rc = buf_cstr(out, ",\"items\":[");
    for (size_t i = 0; i < n && !rc; i++) {
        rc = i ? buf_cstr(out, ",") : 0;
        if (!rc)
            rc = render_item(d, objs[i], out);
    }
    return rc ? rc : buf_cstr(out, "]}");
}
