#include "local/smp.h"

#include <errno.h>
#include <stdlib.h>

/* Where a kind keeps its PodSpec. */
static const struct {
    const char *kind, *prefix;
} pod_specs[] = {
    {"Pod", "spec."},
    {"apps/Deployment", "spec.template.spec."},
    {"apps/ReplicaSet", "spec.template.spec."},
    {"apps/DaemonSet", "spec.template.spec."},
    {"apps/StatefulSet", "spec.template.spec."},
    {"batch/Job", "spec.template.spec."},
};

/* One list: its path, the key of strategic merge ("" merges primitives), the keys of server-side
 * apply. */
struct list_rule {
    const char *kind, *path, *merge, *apply;
};

/* Paths within a PodSpec; of container lists once, for all three kinds of containers ("*"). */
static const struct list_rule pod_lists[] = {
    {NULL, "containers", "name", "name"},
    {NULL, "initContainers", "name", "name"},
    {NULL, "ephemeralContainers", "name", "name"},
    {NULL, "*.env", "name", "name"},
    {NULL, "*.ports", "containerPort", "containerPort,protocol"},
    {NULL, "*.volumeMounts", "mountPath", "mountPath"},
    {NULL, "*.volumeDevices", "devicePath", "devicePath"},
    {NULL, "*.resources.claims", NULL, "name"},
    {NULL, "volumes", "name", "name"},
    {NULL, "imagePullSecrets", "name", "name"},
    {NULL, "hostAliases", "ip", "ip"},
    {NULL, "topologySpreadConstraints", "topologyKey", "topologyKey,whenUnsatisfiable"},
    {NULL, "resourceClaims", "name", "name"},
    {NULL, "schedulingGates", "name", "name"},
};

static const struct list_rule lists[] = {
    {NULL, "metadata.finalizers", "", ""},
    {NULL, "metadata.ownerReferences", "uid", "uid"},
    {NULL, "status.conditions", "type", "type"},
    {"Pod", "status.podIPs", "ip", "ip"},
    {"Pod", "status.hostIPs", NULL, NULL},
    {"Pod", "status.resourceClaimStatuses", "name", "name"},
    {"Service", "spec.ports", "port", "port,protocol"},
    {"Node", "status.addresses", "type", "type"},
    {"Node", "spec.podCIDRs", "", ""},
    {"ServiceAccount", "secrets", "name", "name"},
    {"apps/Deployment", "spec.template.metadata.finalizers", "", ""},
};

static struct str strip_prefix(const char *group_kind, const char *path)
{
    struct str p = str_c(path);
    for (size_t i = 0; i < sizeof pod_specs / sizeof *pod_specs; i++)
        if (strcmp(group_kind, pod_specs[i].kind) == 0 &&
            str_starts(p, str_c(pod_specs[i].prefix))) {
            size_t n = strlen(pod_specs[i].prefix);
            return (struct str){p.p + n, p.n - n};
        }
    return (struct str){NULL, 0};
}

static bool pod_path_fits(struct str path, const char *rule)
{
    struct str head, tail = str_cut(path, '.', &head);
    if (rule[0] != '*')
        return str_eq_c(path, rule);
    return (str_eq_c(head, "containers") || str_eq_c(head, "initContainers") ||
            str_eq_c(head, "ephemeralContainers")) &&
           str_eq_c(tail, rule + 2);
}

static const struct list_rule *rule_of(const char *group_kind, const char *path)
{
    struct str in_pod = strip_prefix(group_kind, path);
    for (size_t i = 0; in_pod.p && i < sizeof pod_lists / sizeof *pod_lists; i++)
        if (pod_path_fits(in_pod, pod_lists[i].path))
            return &pod_lists[i];
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        if ((!lists[i].kind || strcmp(lists[i].kind, group_kind) == 0) &&
            strcmp(lists[i].path, path) == 0)
            return &lists[i];
    return NULL;
}

const char *smp_list_keys(const char *group_kind, const char *path)
{
    const struct list_rule *r = rule_of(group_kind, path);
    return r ? r->apply : NULL;
}

const char *smp_merge_key(const char *group_kind, const char *path)
{
    const struct list_rule *r = rule_of(group_kind, path);
    return r ? r->merge : NULL;
}

static int merge(json_t *target, const json_t *patch, const char *kind, const char *path, int depth,
                 struct err *e);

static json_t *find_by_key(json_t *list, const char *key, const json_t *value, size_t *at)
{
    size_t i;
    json_t *item;
    json_array_foreach (list, i, item) {
        if (json_is_object(item) && json_equal(json_object_get(item, key), value)) {
            *at = i;
            return item;
        }
    }
    return NULL;
}

/* An item that comes in new: directives are not stored. */
static json_t *clean_copy(const json_t *v)
{
    json_t *c = json_deep_copy(v), *child;
    const char *key;
    void *next;
    json_object_foreach_safe(c, next, key, child)
    {
        if (key[0] == '$')
            json_object_del(c, key);
    }
    return c;
}

static int merge_item(json_t *list, const json_t *item, const char *key, const char *kind,
                      const char *path, int depth, struct err *e)
{
    const json_t *id = json_object_get(item, key);
    const char *directive = json_str_at(item, "$patch", "merge");
    size_t at = 0;
    if (!json_is_object(item) || !id)
        return err_set(e, EINVAL, "%s: each item of the patch needs its merge key \"%s\"", path,
                       key);
    json_t *old = find_by_key(list, key, id, &at);
    if (strcmp(directive, "delete") == 0)
        return old ? json_array_remove(list, at) : 0;
    if (strcmp(directive, "replace") == 0 && old)
        return json_array_set_new(list, at, clean_copy(item));
    if (old)
        return merge(old, item, kind, path, depth, e);
    json_t *fresh = json_object();
    int rc = merge(fresh, item, kind, path, depth, e);
    return rc ? (json_decref(fresh), rc) : json_array_append_new(list, fresh);
}

/* $setElementOrder: items named there come in that order, others keep their place at the end. */
static void reorder(json_t *list, const json_t *order, const char *key)
{
    CLEANUP(json_decrefp) json_t *rest = json_copy(list);
    size_t i, at, k;
    json_t *o, *item;
    json_array_clear(list);
    json_array_foreach ((json_t *)(uintptr_t)order, i, o) {
        if (*key) {
            item = find_by_key(rest, key, json_object_get(o, key), &at);
        } else {
            item = NULL;
            json_t *v;
            json_array_foreach (rest, k, v) {
                if (json_equal(v, o)) {
                    item = v;
                    at = k;
                    break;
                }
            }
        }
        if (item) {
            json_array_append(list, item);
            json_array_remove(rest, at);
        }
    }
    json_array_extend(list, rest);
}

static bool has_value(const json_t *list, const json_t *v)
{
    size_t i;
    json_t *item;
    json_array_foreach ((json_t *)(uintptr_t)list, i, item) {
        if (json_equal(item, v))
            return true;
    }
    return false;
}

static int merge_list(json_t *list, const json_t *patch, const char *key, const char *kind,
                      const char *path, int depth, struct err *e)
{
    size_t i;
    json_t *item;
    json_array_foreach ((json_t *)(uintptr_t)patch, i, item) {
        if (json_is_object(item) && strcmp(json_str_at(item, "$patch", ""), "replace") == 0 &&
            json_object_size(item) == 1) {
            json_array_clear(list);
            break;
        }
    }
    json_array_foreach ((json_t *)(uintptr_t)patch, i, item) {
        int rc = 0;
        if (json_is_object(item) && json_object_get(item, "$patch") && json_object_size(item) == 1)
            continue;
        if (*key)
            rc = merge_item(list, item, key, kind, path, depth, e);
        else if (!has_value(list, item))
            rc = json_array_append(list, item);
        if (rc)
            return rc;
    }
    return 0;
}

static void delete_primitives(json_t *list, const json_t *gone)
{
    for (size_t i = json_array_size(list); i-- > 0;)
        if (has_value(gone, json_array_get(list, i)))
            json_array_remove(list, i);
}

static int merge_field(json_t *target, const char *key, const json_t *v, const char *kind,
                       const char *path, int depth, struct err *e)
{
    json_t *old = json_object_get(target, key);
    if (json_is_null(v)) {
        json_object_del(target, key);
        return 0;
    }
    if (json_is_object(v)) {
        if (!json_is_object(old))
            json_object_set_new(target, key, old = json_object());
        return merge(old, v, kind, path, depth, e);
    }
    const char *merge_key = json_is_array(v) ? smp_merge_key(kind, path) : NULL;
    if (!merge_key)
        return json_object_set_new(target, key, json_deep_copy(v));
    if (!json_is_array(old))
        json_object_set_new(target, key, old = json_array());
    return merge_list(old, v, merge_key, kind, path, depth, e);
}

static void retain_keys(json_t *target, const json_t *keep)
{
    const char *key;
    json_t *v;
    void *next;
    json_object_foreach_safe(target, next, key, v)
    {
        CLEANUP(json_decrefp) json_t *name = json_string(key);
        if (!has_value(keep, name))
            json_object_del(target, key);
    }
}

static int directive(json_t *target, const char *key, const json_t *v, const char *kind,
                     const char *path)
{
    struct str name, field = str_cut(str_c(key), '/', &name);
    json_t *list = field.n ? json_object_get(target, field.p) : NULL;
    CLEANUP(free_charp)
    char *sub = xasprintf("%s%s%.*s", path, *path ? "." : "", (int)field.n, field.p);
    const char *merge_key = smp_merge_key(kind, sub);
    if (str_eq_c(name, "$setElementOrder") && json_is_array(list))
        reorder(list, v, merge_key ? merge_key : "");
    else if (str_eq_c(name, "$deleteFromPrimitiveList") && json_is_array(list))
        delete_primitives(list, v);
    else if (str_eq_c(name, "$retainKeys"))
        retain_keys(target, v);
    return 0;
}

static int merge(json_t *target, const json_t *patch, const char *kind, const char *path, int depth,
                 struct err *e)
{
    const char *key, *whole = json_str_at(patch, "$patch", "");
    json_t *v;
    int rc = 0;
    if (depth > JSON_MAX_DEPTH)
        return err_set(e, EINVAL, "the patch is nested deeper than %d levels", JSON_MAX_DEPTH);
    if (*whole && strcmp(whole, "replace") != 0 && strcmp(whole, "delete") != 0 &&
        strcmp(whole, "merge") != 0)
        return err_set(e, EINVAL, "%s: unknown $patch directive \"%s\"", path, whole);
    if (strcmp(whole, "delete") == 0 || strcmp(whole, "replace") == 0)
        json_object_clear(target);
    if (strcmp(whole, "delete") == 0)
        return 0;
    json_object_foreach ((json_t *)(uintptr_t)patch, key, v) {
        CLEANUP(free_charp) char *sub = xasprintf("%s%s%s", path, *path ? "." : "", key);
        if (key[0] != '$' && (rc = merge_field(target, key, v, kind, sub, depth + 1, e)))
            return rc < 0 ? rc : -EINVAL;
    }
    /* Order and deletions act on the merged lists. */
    json_object_foreach ((json_t *)(uintptr_t)patch, key, v) {
        if (key[0] == '$' && strcmp(key, "$patch") != 0)
            directive(target, key, v, kind, path);
    }
    return 0;
}

int smp_apply(json_t *target, const json_t *patch, const char *group_kind, struct err *e)
{
    if (!json_is_object(patch))
        return err_set(e, EINVAL, "a strategic merge patch must be an object");
    return merge(target, patch, group_kind, "", 0, e);
}
