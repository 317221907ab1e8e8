#include "controller/affinity.h"

#include <string.h>

static bool among(const json_t *values, const char *have)
{
    size_t i;
    const json_t *v;
    json_array_foreach (values, i, v)
        if (json_is_string(v) && strcmp(json_string_value(v), have) == 0)
            return true;
    return false;
}

/* Gt and Lt compare whole numbers; what is none matches nothing. */
static bool compares(const char *have, const json_t *values, bool greater)
{
    int64_t a, b;
    const char *bound = json_string_value(json_array_get(values, 0));
    if (json_array_size(values) != 1 || !bound ||
        str_to_i64(str_c(have), INT64_MIN, INT64_MAX, &a) ||
        str_to_i64(str_c(bound), INT64_MIN, INT64_MAX, &b))
        return false;
    return greater ? a > b : a < b;
}

/* have NULL: the node has no such label. */
static bool holds(const json_t *requirement, const char *have)
{
    const char *op = json_str_at(requirement, "operator", "");
    const json_t *values = json_object_get(requirement, "values");
    if (strcmp(op, "In") == 0)
        return have && among(values, have);
    if (strcmp(op, "NotIn") == 0)
        return !have || !among(values, have);
    if (strcmp(op, "Exists") == 0)
        return have != NULL;
    if (strcmp(op, "DoesNotExist") == 0)
        return !have;
    if (strcmp(op, "Gt") == 0 || strcmp(op, "Lt") == 0)
        return have && compares(have, values, *op == 'G');
    return false;
}

/* All requirements of a term; one without any matches no node. */
static bool term_holds(const json_t *term, const struct kube_node *n)
{
    const json_t *labels = json_object_get(term, "matchExpressions"),
                 *fields = json_object_get(term, "matchFields"), *r;
    size_t i;
    json_array_foreach (labels, i, r)
        if (!holds(r, kube_label(&n->meta, json_str_at(r, "key", ""))))
            return false;
    json_array_foreach (fields, i, r)
        if (strcmp(json_str_at(r, "key", ""), "metadata.name") != 0 || !holds(r, n->meta.name))
            return false;
    return json_array_size(labels) + json_array_size(fields) > 0;
}

bool affinity_allows(const json_t *affinity, const struct kube_node *n)
{
    const json_t *terms = json_at(affinity, "nodeAffinity."
                                            "requiredDuringSchedulingIgnoredDuringExecution."
                                            "nodeSelectorTerms"),
                 *t;
    size_t i;
    if (!json_is_array(terms))
        return true;
    json_array_foreach (terms, i, t)
        if (term_holds(t, n))
            return true;
    return false;
}
