/* Pruning and defaulting. */
#include "local/schema_int.h"

#include <stdlib.h>

static void prune(const struct schema *s, json_t *v, const struct path *at,
                  struct field_errors *dropped);

static void prune_object(const struct schema *s, json_t *v, const struct path *at,
                         struct field_errors *dropped)
{
    const char *key;
    json_t *child;
    void *next;
    json_object_foreach_safe(v, next, key, child)
    {
        struct path here = {at, key, 0};
        const struct schema *sub = schema_field(s, key);
        if ((s->root || s->embedded) && schema_is_meta_field(key))
            continue;
        if (sub) {
            prune(sub, child, &here, dropped);
        } else if (!s->preserve_unknown) {
            CLEANUP(free_charp) char *path = path_text(&here);
            field_errors_add(dropped, path, "FieldValueInvalid", "unknown field \"%s\"", path);
            json_object_del(v, key);
        }
    }
}

static void prune(const struct schema *s, json_t *v, const struct path *at,
                  struct field_errors *dropped)
{
    size_t i;
    json_t *item;
    if (json_is_object(v) && (s->type == T_OBJECT || s->props || s->additional)) {
        prune_object(s, v, at, dropped);
    } else if (json_is_array(v) && s->items) {
        json_array_foreach (v, i, item) {
            struct path here = {at, NULL, i};
            prune(s->items, item, &here, dropped);
        }
    }
}

void schema_prune(const struct schema *s, json_t *object, struct field_errors *dropped)
{
    prune(s, object, NULL, dropped);
}

void schema_default(const struct schema *s, json_t *v)
{
    struct schema_prop *p, *next;
    const char *key;
    json_t *child;
    size_t i;
    if (json_is_array(v)) {
        json_array_foreach (v, i, child) {
            if (s->items)
                schema_default(s->items, child);
        }
        return;
    }
    if (!json_is_object(v))
        return;
    HASH_ITER (hh, s->props, p, next) {
        json_t *now = json_object_get(v, p->name);
        if (p->schema->dflt && (!now || (json_is_null(now) && !p->schema->nullable)))
            json_object_set_new(v, p->name, json_deep_copy(p->schema->dflt));
        now = json_object_get(v, p->name);
        if (now)
            schema_default(p->schema, now);
    }
    json_object_foreach (v, key, child) {
        HASH_FIND_STR(s->props, key, p);
        if (!p && s->additional)
            schema_default(s->additional, child);
    }
}
