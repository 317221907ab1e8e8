/* crd.h: CustomResourceDefinitions: validation of the definition, names and conditions, and the
 * resources they serve. */
#pragma once
#include "local/resource.h"

struct schema;

struct crd_version {
    struct crd *crd;
    uint64_t serial; /* another one after each change of the definition */
    char *name;
    json_t *schema_doc; /* openAPIV3Schema with the metadata fields filled in, owned; NULL: none */
    struct schema *schema; /* compiled (schema.h) */
    json_t *columns;       /* additionalPrinterColumns, owned, may be NULL */
    char *scale_spec, *scale_status,
        *scale_selector;  /* ".spec.replicas" without the first dot; NULL: no scale */
    json_t *selectable;   /* selectableFields, owned, may be NULL */
    char *field_list[17]; /* the same as field selector names, NULL-terminated */
    struct kind_ops ops;
};

struct crd {
    char *name, *group, *plural, *singular, *kind, *list_kind, *short_names, *categories;
    bool namespaced;
    struct crd_version *versions;
    size_t n_versions;
    struct crd *next;
};

/* Checks a definition (old NULL at creation) and fills what the server fills: names' defaults,
 * conversion. */
void crd_defaults(struct server *s, json_t *doc, const json_t *old);
void crd_validate(const json_t *doc, const json_t *old, json_t *causes);
/* Status of a new or changed definition: conditions NamesAccepted and Established, acceptedNames,
 * storedVersions. */
void crd_set_status(struct server *s, json_t *doc);
/* Makes the resources follow a stored definition; doc NULL removes them. */
void crd_serve(struct server *s, const char *name, const json_t *doc);
/* Serves exactly the stored definitions (at start, after a failed commit). */
void crd_reload(struct server *s);
void crd_free_all(struct server *s);
const char *crd_list_kind(const struct resource *r, char out[256]);
