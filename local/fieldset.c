#include "local/fieldset.h"
#include "local/types.h"

#include <stdlib.h>

static void include_self(json_t *node)
{
    if (json_object_size(node) && !json_object_get(node, FIELD_SELF))
        json_object_set_new(node, FIELD_SELF, json_object());
}

/* Child node, made when absent. A new child is empty, which would mean "member": only call it when
 * something follows. */
static json_t *child(json_t *node, const char *element)
{
    json_t *c = json_object_get(node, element);
    if (!c) {
        c = json_object();
        json_object_set_new(node, element, c);
    }
    return c;
}

static bool is_self(const json_t *node)
{
    return node && (!json_object_size(node) || json_object_get(node, FIELD_SELF));
}

/* Marks a child as a member. */
static void add_member(json_t *node, const char *element)
{
    json_t *c = json_object_get(node, element);
    if (c)
        include_self(c);
    else
        json_object_set_new(node, element, json_object());
}

/* Attaches a subtree that may be empty of members (NULL or a fresh object with `any` false is
 * dropped). */
static void attach(json_t *node, const char *element, json_t *sub)
{
    if (json_object_size(sub))
        fieldset_union(child(node, element), sub);
    json_decref(sub);
}

char *fieldset_key(const json_t *items_schema, const json_t *keys, const json_t *item)
{
    json_t *k = json_object(), *name;
    size_t i;
    json_array_foreach ((json_t *)keys, i, name) {
        const char *key = json_string_value(name);
        json_t *v = json_object_get(item, key);
        if (!v)
            v = json_object_get(types_field(items_schema, key), "default");
        if (v)
            json_object_set(k, key, v);
    }
    bool any = json_object_size(k) > 0;
    char *text = json_dumps(k, JSON_COMPACT | JSON_SORT_KEYS);
    json_decref(k);
    char *out = any ? xasprintf("k:%s", text) : NULL;
    free(text);
    return out;
}

char *fieldset_value_key(const json_t *item)
{
    char *text = json_dumps(item, JSON_COMPACT | JSON_ENCODE_ANY | JSON_SORT_KEYS);
    if (!text)
        return NULL;
    char *out = xasprintf("v:%s", text);
    free(text);
    return out;
}

static char *item_element(enum types_list kind, const json_t *items, const json_t *keys,
                          const json_t *item)
{
    return kind == TYPES_SET ? fieldset_value_key(item) : fieldset_key(items, keys, item);
}

/* ---- all leaves ---- */

static void leaves(const json_t *schema, const json_t *value, json_t *node);

static void list_leaves(const json_t *schema, const json_t *value, json_t *node)
{
    const json_t *keys = NULL;
    enum types_list kind = types_list_kind(schema, &keys);
    size_t i;
    json_t *item;
    json_array_foreach ((json_t *)value, i, item) {
        CLEANUP(free_charp) char *el = item_element(kind, types_items(schema), keys, item);
        if (!el)
            continue;
        json_t *c = child(node, el);
        if (kind == TYPES_MAP)
            leaves(types_items(schema), item, c);
        include_self(c);
    }
}

static bool is_leaf(const json_t *schema, const json_t *value)
{
    const json_t *keys;
    if (json_is_object(value))
        return !json_object_size(value) || types_is_atomic_map(schema);
    if (json_is_array(value))
        return !json_array_size(value) || types_list_kind(schema, &keys) == TYPES_ATOMIC;
    return true;
}

static void leaves(const json_t *schema, const json_t *value, json_t *node)
{
    const char *key;
    json_t *v;
    if (json_is_array(value)) {
        list_leaves(schema, value, node);
        return;
    }
    json_object_foreach ((json_t *)value, key, v) {
        const json_t *f = schema ? types_field(schema, key) : NULL;
        CLEANUP(free_charp) char *el = xasprintf("f:%s", key);
        if (is_leaf(f, v)) {
            add_member(node, el);
        } else {
            json_t *sub = json_object();
            leaves(f, v, sub);
            attach(node, el, sub);
        }
    }
}

json_t *fieldset_of(const json_t *schema, const json_t *value)
{
    json_t *s = json_object();
    leaves(schema, value, s);
    return s;
}

/* ---- comparison ---- */

static void compare(const json_t *schema, const json_t *a, const json_t *b, const char *el,
                    json_t *changed, json_t *removed);

static void compare_fields(const json_t *schema, const json_t *a, const json_t *b, json_t *changed,
                           json_t *removed)
{
    const char *key;
    json_t *v;
    json_object_foreach ((json_t *)b, key, v) {
        CLEANUP(free_charp) char *el = xasprintf("f:%s", key);
        compare(schema ? types_field(schema, key) : NULL, json_object_get(a, key), v, el, changed,
                removed);
    }
    json_object_foreach ((json_t *)a, key, v) {
        CLEANUP(free_charp) char *el = xasprintf("f:%s", key);
        if (!json_object_get(b, key))
            compare(schema ? types_field(schema, key) : NULL, v, NULL, el, changed, removed);
    }
}

static json_t *find_item(const json_t *list, enum types_list kind, const json_t *items,
                         const json_t *keys, const char *el)
{
    size_t i;
    json_t *item;
    json_array_foreach ((json_t *)list, i, item) {
        CLEANUP(free_charp) char *e = item_element(kind, items, keys, item);
        if (e && !strcmp(e, el))
            return item;
    }
    return NULL;
}

static void compare_items(const json_t *schema, const json_t *a, const json_t *b, json_t *changed,
                          json_t *removed)
{
    const json_t *keys = NULL, *items = types_items(schema);
    enum types_list kind = types_list_kind(schema, &keys);
    size_t i;
    json_t *item;
    json_array_foreach ((json_t *)b, i, item) {
        CLEANUP(free_charp) char *el = item_element(kind, items, keys, item);
        if (el)
            compare(items, find_item(a, kind, items, keys, el), item, el, changed, removed);
    }
    json_array_foreach ((json_t *)a, i, item) {
        CLEANUP(free_charp) char *el = item_element(kind, items, keys, item);
        if (el && !find_item(b, kind, items, keys, el))
            compare(items, item, NULL, el, changed, removed);
    }
}

static bool descends(const json_t *schema, const json_t *a, const json_t *b)
{
    const json_t *keys;
    if ((a && b && json_typeof(a) != json_typeof(b)))
        return false;
    const json_t *v = b ? b : a;
    if (json_is_object(v))
        return !types_is_atomic_map(schema);
    return json_is_array(v) && types_list_kind(schema, &keys) != TYPES_ATOMIC;
}

/* One element: leaves are members when they differ, containers when they came or went. */
static void compare(const json_t *schema, const json_t *a, const json_t *b, const char *el,
                    json_t *changed, json_t *removed)
{
    if (a && b && json_equal((json_t *)a, (json_t *)b))
        return;
    if (!descends(schema, a, b)) {
        add_member(b ? changed : removed, el);
        return;
    }
    json_t *c = json_object(), *r = json_object();
    if (json_is_object(b ? b : a))
        compare_fields(schema, a, b, c, r);
    else
        compare_items(schema, a, b, c, r);
    attach(changed, el, c);
    attach(removed, el, r);
    if (!a)
        add_member(changed, el);
    else if (!b)
        add_member(removed, el);
}

void fieldset_compare(const json_t *schema, const json_t *before, const json_t *after,
                      json_t *changed, json_t *removed)
{
    compare_fields(schema, before, after, changed, removed);
}

/* ---- set operations ---- */

bool fieldset_empty(const json_t *s)
{
    return !json_object_size(s);
}

void fieldset_union(json_t *into, const json_t *from)
{
    const char *key;
    json_t *v;
    json_object_foreach ((json_t *)from, key, v) {
        json_t *mine = json_object_get(into, key);
        if (!mine) {
            json_object_set_new(into, key, json_deep_copy(v));
        } else if (strcmp(key, FIELD_SELF) != 0) {
            bool self = is_self(mine) || is_self(v);
            fieldset_union(mine, v);
            if (self)
                include_self(mine);
        }
    }
}

/* Rewrites a node as (member?, children); returns false when nothing is left. */
static bool tidy(json_t *node, bool self)
{
    json_object_del(node, FIELD_SELF);
    if (!json_object_size(node))
        return self;
    if (self)
        json_object_set_new(node, FIELD_SELF, json_object());
    return true;
}

void fieldset_subtract(json_t *from, const json_t *what)
{
    const char *key;
    json_t *v;
    void *tmp;
    json_object_foreach_safe(from, tmp, key, v)
    {
        const json_t *w = json_object_get(what, key);
        if (!w || !strcmp(key, FIELD_SELF))
            continue;
        bool self = is_self(v) && !is_self(w);
        json_object_del(v, FIELD_SELF);
        fieldset_subtract(v, w);
        if (!tidy(v, self))
            json_object_del(from, key);
    }
}

json_t *fieldset_intersect(const json_t *a, const json_t *b)
{
    const char *key;
    json_t *v, *out = json_object();
    json_object_foreach ((json_t *)a, key, v) {
        const json_t *w = json_object_get(b, key);
        if (!w || !strcmp(key, FIELD_SELF))
            continue;
        json_t *sub = fieldset_intersect(v, w);
        if (tidy(sub, is_self(v) && is_self(w)))
            json_object_set_new(out, key, sub);
        else
            json_decref(sub);
    }
    return out;
}

json_t *fieldset_with_parents(const json_t *s)
{
    const char *key;
    json_t *v, *out = json_object();
    json_object_foreach ((json_t *)s, key, v) {
        if (!strcmp(key, FIELD_SELF))
            continue;
        json_t *sub = fieldset_with_parents(v);
        if (is_self(v) || !strncmp(key, "f:", 2))
            include_self(sub);
        json_object_set_new(out, key, sub);
    }
    return out;
}

void fieldset_strip_system(json_t *s)
{
    static const char *const fields[] = {
        "f:name",        "f:namespace",  "f:creationTimestamp", "f:selfLink",        "f:uid",
        "f:clusterName", "f:generation", "f:managedFields",     "f:resourceVersion", NULL};
    json_object_del(s, "f:apiVersion");
    json_object_del(s, "f:kind");
    json_t *meta = json_object_get(s, "f:metadata");
    if (!meta)
        return;
    for (size_t i = 0; fields[i]; i++)
        json_object_del(meta, fields[i]);
    if (!tidy(meta, false))
        json_object_del(s, "f:metadata");
}

/* ---- printing ---- */

static int print_element(struct buf *b, const char *el)
{
    if (!strncmp(el, "f:", 2))
        return buf_printf(b, ".%s", el + 2);
    if (!strncmp(el, "v:", 2))
        return buf_printf(b, "[=%s]", el + 2);
    if (strncmp(el, "k:", 2))
        return buf_printf(b, "[%s]", el + 2);
    json_t *k = json_loads(el + 2, JSON_DECODE_ANY, NULL), *v;
    const char *key, *sep = "";
    int rc = buf_cstr(b, "[");
    json_object_foreach (k, key, v) {
        CLEANUP(free_charp) char *text = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT);
        if (!rc)
            rc = buf_printf(b, "%s%s=%s", sep, key, text ? text : "");
        sep = ",";
    }
    json_decref(k);
    return rc ? rc : buf_cstr(b, "]");
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* In the order of names, as kube-apiserver prints. */
static void each(const json_t *s, struct buf *path, void (*fn)(const char *path, void *ctx),
                 void *ctx)
{
    size_t n = 0, len = path->n;
    const char *key, **keys = xcalloc(json_object_size(s) + 1, sizeof(const char *));
    json_t *v;
    json_object_foreach ((json_t *)s, key, v)
        keys[n++] = key;
    qsort(keys, n, sizeof(const char *), by_name);
    for (size_t i = 0; i < n; i++) {
        v = json_object_get(s, keys[i]);
        if (!strcmp(keys[i], FIELD_SELF) || print_element(path, keys[i]))
            continue;
        if (is_self(v))
            fn(path->data, ctx);
        each(v, path, fn, ctx);
        path->n = len;
        path->data[len] = 0;
    }
    free(keys);
}

void fieldset_each(const json_t *s, void (*fn)(const char *path, void *ctx), void *ctx)
{
    struct buf path;
    buf_init(&path, 1 << 16);
    each(s, &path, fn, ctx);
    buf_fini(&path);
}
