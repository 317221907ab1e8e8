/* selector.h: label selectors (equality and set-based, and LabelSelector objects) and field
 * selectors, parsed once and matched against stored objects. Grammar: the Kubernetes documentation
 * on labels and selectors. */
#pragma once
#include "local/resource.h"

enum label_op { LABEL_IN, LABEL_NOT_IN, LABEL_EXISTS, LABEL_NOT_EXISTS, LABEL_GT, LABEL_LT };
struct label_req {
    char *key;
    enum label_op op;
    char **values;
    size_t n_values;
};
struct field_req {
    char *path; /* in the stored form */
    char *value;
    bool equal;
};
struct selector {
    struct label_req *labels;
    size_t n_labels;
    struct field_req *fields;
    size_t n_fields;
};

/* Both texts may be NULL. r says which fields can be selected. */
int selector_parse(const struct resource *r, const char *labels, const char *fields,
                   struct selector *out, json_t **st) MUST_CHECK;
/* A LabelSelector object (matchLabels, matchExpressions); an empty one matches everything, NULL
 * nothing. */
int selector_from_object(const json_t *label_selector, struct selector *out,
                         json_t **st) MUST_CHECK;
void selector_fini(struct selector *s);
bool selector_matches(const struct selector *s, const json_t *doc);
bool selector_empty(const struct selector *s);
/* Value of metadata.name = ... when that is required, else NULL: a list then looks at one object.
 */
const char *selector_name(const struct selector *s);
