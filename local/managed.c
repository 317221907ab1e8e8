#include "local/managed.h"
#include "local/fieldset.h"
#include "local/status.h"
#include "local/types.h"

#include <stdlib.h>

/* ---- entries of metadata.managedFields ---- */

static bool is_writer(const json_t *entry, const struct managed_writer *w, const char *operation,
                      const char *api)
{
    return !strcmp(json_str_at(entry, "manager", ""), w->manager) &&
           !strcmp(json_str_at(entry, "operation", ""), operation) &&
           !strcmp(json_str_at(entry, "subresource", ""), w->sub) &&
           (!api || !strcmp(json_str_at(entry, "apiVersion", ""), api));
}

static json_t *find_entry(json_t *entries, const struct managed_writer *w, const char *operation,
                          const char *api)
{
    size_t i;
    json_t *e;
    json_array_foreach (entries, i, e)
        if (is_writer(e, w, operation, api))
            return e;
    return NULL;
}

/* Writes through scale carry no time. */
static void touch_entry(json_t *entry, const struct managed_writer *w)
{
    if (strcmp(w->sub, "scale"))
        json_object_set_new(entry, "time", json_string(w->now));
}

static json_t *new_entry(json_t *entries, const struct managed_writer *w, const char *operation,
                         const char *api)
{
    json_t *e = json_pack("{s:s,s:s,s:s,s:s,s:{}}", "manager", w->manager, "operation", operation,
                          "apiVersion", api, "fieldsType", "FieldsV1", "fieldsV1");
    touch_entry(e, w);
    if (*w->sub)
        json_object_set_new(e, "subresource", json_string(w->sub));
    json_array_append_new(entries, e);
    return e;
}

static json_t *fields_of(const json_t *entry)
{
    return json_object_get(entry, "fieldsV1");
}

/* Apply before Update, then by time, manager, version, subresource: the order of kube-apiserver. */
static int entry_order(const void *a, const void *b)
{
    static const char *const keys[] = {"operation", "time", "manager", "apiVersion", "subresource"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        int d = strcmp(json_str_at(*(json_t *const *)a, keys[i], ""),
                       json_str_at(*(json_t *const *)b, keys[i], ""));
        if (d)
            return d;
    }
    return 0;
}

static void store_entries(json_t *doc, json_t *entries)
{
    size_t n = json_array_size(entries), kept = 0;
    json_t **v = xcalloc(n + 1, sizeof(json_t *));
    for (size_t i = 0; i < n; i++) {
        json_t *e = json_array_get(entries, i);
        if (!fieldset_empty(fields_of(e)))
            v[kept++] = json_incref(e);
    }
    qsort(v, kept, sizeof(json_t *), entry_order);
    json_t *out = json_array(), *meta = json_object_get(doc, "metadata");
    for (size_t i = 0; i < kept; i++)
        json_array_append_new(out, v[i]);
    free(v);
    json_decref(entries);
    if (kept)
        json_object_set_new(meta, "managedFields", out);
    else
        json_object_del(meta, "managedFields");
    if (!kept)
        json_decref(out);
}

/* Entries to start from: the client's when it sent any, a reset for [{}], else what is stored. New.
 */
static json_t *starting_entries(const json_t *old, const json_t *doc)
{
    const json_t *mine = json_at(doc, "metadata.managedFields");
    const json_t *theirs = json_at(old, "metadata.managedFields");
    if (json_array_size(mine) == 1 && !json_object_size(json_array_get(mine, 0)))
        return json_array();
    const json_t *from = json_array_size(mine) ? mine : theirs;
    return from ? json_deep_copy(from) : json_array();
}

/* ---- update ---- */

/* Structs that every object of a built-in kind has, present or not, don't count as added (Go
 * structs without pointers). */
static void forget_structs(json_t *set)
{
    static const char *const names[] = {
        "f:spec",   "f:status",  "f:metadata", "f:template",     "f:containers",     "f:strategy",
        "f:source", "f:roleRef", "f:names",    "f:loadBalancer", "f:involvedObject", NULL};
    const char *key;
    json_t *v;
    json_object_foreach (set, key, v) {
        for (size_t i = 0; names[i]; i++)
            if (!strcmp(key, names[i]) && json_object_size(v) > 1)
                json_object_del(v, FIELD_SELF);
        forget_structs(v);
    }
}

void managed_update(const struct resource *r, const json_t *old, json_t *doc,
                    const struct managed_writer *w)
{
    char api[128];
    json_t *changed = json_object(), *removed = json_object();
    fieldset_compare(r->schema, old, doc, changed, removed);
    fieldset_strip_system(changed);
    fieldset_strip_system(removed);
    if (resource_has(r, R_STATUS) && !*w->sub)
        json_object_del(changed, "f:status");
    if (!resource_has(r, R_CUSTOM))
        forget_structs(changed);
    json_t *entries = starting_entries(old, doc), *e;
    size_t i;
    resource_api_version(r, api);
    json_t *own = find_entry(entries, w, "Update", api);
    json_array_foreach (entries, i, e) {
        if (e != own && fields_of(e))
            fieldset_subtract(fields_of(e), changed);
        if (fields_of(e))
            fieldset_subtract(fields_of(e), removed);
    }
    if (!fieldset_empty(changed)) {
        if (!own)
            own = new_entry(entries, w, "Update", api);
        fieldset_union(fields_of(own), changed);
        touch_entry(own, w);
    }
    json_decref(changed);
    json_decref(removed);
    store_entries(doc, entries);
}

/* ---- apply ---- */

static json_t *merge(const json_t *schema, const json_t *live, const json_t *config);

/* Two lists whose items have keys, walked together: the configuration's order wins among its items,
 * what only the live list has keeps its place before what it stood before. */
struct list_merge {
    const json_t *items, *keys;
    enum types_list kind;
    json_t *out, *done; /* done: keys already written */
};

static char *key_of(const struct list_merge *m, const json_t *item)
{
    char *k =
        m->kind == TYPES_SET ? fieldset_value_key(item) : fieldset_key(m->items, m->keys, item);
    return k ? k : xstrdup("");
}

static json_t *index_list(const struct list_merge *m, const json_t *list)
{
    json_t *index = json_object(), *item;
    size_t i;
    json_array_foreach ((json_t *)list, i, item) {
        CLEANUP(free_charp) char *k = key_of(m, item);
        json_object_set(index, k, item);
    }
    return index;
}

static void put_item(struct list_merge *m, const char *key, const json_t *mine,
                     const json_t *theirs)
{
    if (json_object_get(m->done, key))
        return;
    json_object_set_new(m->done, key, json_true());
    json_array_append_new(m->out, mine && theirs && m->kind == TYPES_MAP
                                      ? merge(m->items, mine, theirs)
                                      : json_deep_copy(theirs ? theirs : mine));
}

static json_t *merge_list(const json_t *schema, const json_t *live, const json_t *config)
{
    struct list_merge m = {.items = types_items(schema)};
    m.kind = types_list_kind(schema, &m.keys);
    if (m.kind == TYPES_ATOMIC)
        return json_deep_copy(config);
    m.out = json_array();
    m.done = json_object();
    json_t *in_live = index_list(&m, live), *in_config = index_list(&m, config);
    size_t l = 0, c = 0;
    while (l < json_array_size(live) || c < json_array_size(config)) {
        const json_t *a = json_array_get(live, l), *b = json_array_get(config, c);
        CLEANUP(free_charp) char *ka = a ? key_of(&m, a) : NULL;
        CLEANUP(free_charp) char *kb = b ? key_of(&m, b) : NULL;
        if (a && (!b || !json_object_get(in_config, ka) || json_object_get(m.done, ka))) {
            put_item(&m, ka, a, json_object_get(in_config, ka));
            l++;
        } else {
            put_item(&m, kb, json_object_get(in_live, kb), b);
            c++;
        }
    }
    json_decref(in_live);
    json_decref(in_config);
    json_decref(m.done);
    return m.out;
}

static json_t *merge(const json_t *schema, const json_t *live, const json_t *config)
{
    if (!live || json_typeof(live) != json_typeof(config))
        return json_deep_copy(config);
    if (json_is_array(config))
        return merge_list(schema, live, config);
    if (!json_is_object(config) || types_is_atomic_map(schema))
        return json_deep_copy(config);
    json_t *out = json_deep_copy(live), *v;
    const char *key;
    json_object_foreach ((json_t *)config, key, v)
        json_object_set_new(
            out, key,
            merge(schema ? types_field(schema, key) : NULL, json_object_get(live, key), v));
    return out;
}

static void remove_fields(const json_t *schema, json_t *value, const json_t *set);

static void remove_items(const json_t *schema, json_t *list, const json_t *set)
{
    const json_t *keys = NULL, *items = types_items(schema);
    enum types_list kind = types_list_kind(schema, &keys);
    if (kind == TYPES_ATOMIC)
        return;
    for (size_t i = json_array_size(list); i-- > 0;) {
        json_t *item = json_array_get(list, i);
        CLEANUP(free_charp)
        char *el = kind == TYPES_SET ? fieldset_value_key(item) : fieldset_key(items, keys, item);
        const json_t *node = el ? json_object_get(set, el) : NULL;
        if (!node)
            continue;
        if (!json_object_size(node) || json_object_get(node, FIELD_SELF))
            json_array_remove(list, i);
        else
            remove_fields(items, item, node);
    }
}

/* Takes the members of a set out of a value. */
static void remove_fields(const json_t *schema, json_t *value, const json_t *set)
{
    const char *key;
    json_t *node;
    if (json_is_array(value)) {
        remove_items(schema, value, set);
        return;
    }
    json_object_foreach ((json_t *)set, key, node) {
        if (strncmp(key, "f:", 2))
            continue;
        if (!json_object_size(node) || json_object_get(node, FIELD_SELF))
            json_object_del(value, key + 2);
        else
            remove_fields(schema ? types_field(schema, key + 2) : NULL,
                          json_object_get(value, key + 2), node);
    }
}

/* What this manager applied before, applies no more, and nobody else owns. New. */
static json_t *dropped_fields(json_t *entries, const json_t *last)
{
    json_t *drop = fieldset_with_parents(last), *e;
    size_t i;
    json_array_foreach (entries, i, e) {
        json_t *kept = fieldset_with_parents(fields_of(e));
        fieldset_subtract(drop, kept);
        json_decref(kept);
    }
    return drop;
}

struct conflicts {
    json_t *list; /* [{manager, path}] */
    char *manager;
};

static void add_conflict(const char *path, void *ctx)
{
    struct conflicts *c = ctx;
    json_array_append_new(c->list, json_pack("{s:s,s:s}", "manager", c->manager, "path", path));
}

static char *manager_text(const json_t *e)
{
    const char *sub = json_str_at(e, "subresource", "");
    bool update = !strcmp(json_str_at(e, "operation", ""), "Update");
    return xasprintf("\"%s\"%s%s%s%s%s", json_str_at(e, "manager", ""),
                     *sub ? " with subresource \"" : "", sub, *sub ? "\"" : "",
                     update ? " using " : "", update ? json_str_at(e, "apiVersion", "") : "");
}

static char *conflict_message(const json_t *list)
{
    size_t i, n = json_array_size(list);
    json_t *c;
    const char *last = "";
    if (n == 1)
        return xasprintf("Apply failed with 1 conflict: conflict with %s: %s",
                         json_str_at(json_array_get(list, 0), "manager", ""),
                         json_str_at(json_array_get(list, 0), "path", ""));
    struct buf b;
    buf_init(&b, 1 << 20);
    int rc = buf_printf(&b, "Apply failed with %zu conflicts:", n);
    json_array_foreach ((json_t *)list, i, c) {
        const char *m = json_str_at(c, "manager", "");
        if (!rc && strcmp(m, last))
            rc = buf_printf(&b, "%sconflicts with %s:", i ? "\n" : " ", m);
        if (!rc)
            rc = buf_printf(&b, "\n- %s", json_str_at(c, "path", ""));
        last = m;
    }
    char *out = xstrdup(b.data ? b.data : "");
    buf_fini(&b);
    return out;
}

static int report_conflicts(const json_t *list, json_t **st)
{
    size_t i;
    json_t *c;
    CLEANUP(free_charp) char *msg = conflict_message(list);
    status_set(st, 409, "Conflict", NULL, NULL, "%s", msg);
    json_array_foreach ((json_t *)list, i, c) {
        CLEANUP(free_charp) char *m = xasprintf("conflict with %s", json_str_at(c, "manager", ""));
        status_add_cause(*st, "FieldManagerConflict", m, json_str_at(c, "path", ""));
    }
    return -1;
}

/* Others lose what the apply changed; without force that is a conflict. */
static int settle(json_t *entries, const json_t *own, const json_t *changed, const json_t *removed,
                  bool force, json_t **st)
{
    struct conflicts c = {.list = json_array()};
    size_t i;
    json_t *e;
    json_array_foreach (entries, i, e) {
        if (e == own || !fields_of(e))
            continue;
        json_t *both = fieldset_intersect(fields_of(e), changed);
        c.manager = manager_text(e);
        if (!force)
            fieldset_each(both, add_conflict, &c);
        free(c.manager);
        fieldset_subtract(fields_of(e), both);
        fieldset_subtract(fields_of(e), removed);
        json_decref(both);
    }
    int rc = json_array_size(c.list) ? report_conflicts(c.list, st) : 0;
    json_decref(c.list);
    return rc;
}

/* The manager's set becomes what it applies now; *last gets what it was. Returns its entry. */
static json_t *replace_own(const struct resource *r, json_t *entries, json_t *set,
                           const struct managed_writer *w, json_t **last)
{
    char api[128];
    json_t *own = find_entry(entries, w, "Apply", NULL);
    resource_api_version(r, api);
    *last = own ? json_incref(fields_of(own)) : json_object();
    bool same = own && json_equal(*last, set) && !strcmp(json_str_at(own, "apiVersion", ""), api);
    if (!own)
        own = new_entry(entries, w, "Apply", api);
    json_object_set(own, "fieldsV1", set);
    json_object_set_new(own, "apiVersion", json_string(api));
    if (!same)
        touch_entry(own, w);
    return own;
}

/* Fields that the endpoint ignores aren't owned through it. */
static void strip_other_half(const struct resource *r, json_t *set, const char *sub)
{
    if (!resource_has(r, R_STATUS))
        return;
    if (!*sub) {
        json_object_del(set, "f:status");
        return;
    }
    json_object_del(set, "f:spec");
    if (resource_has(r, R_CUSTOM))
        json_object_del(set, "f:metadata");
}

static json_t *new_from(const json_t *config)
{
    json_t *doc = json_deep_copy(config);
    if (!json_is_object(json_object_get(doc, "metadata")))
        json_object_set_new(doc, "metadata", json_object());
    return doc;
}

int managed_apply(const struct resource *r, const json_t *old, const json_t *config,
                  const struct managed_writer *w, json_t **out, json_t **st)
{
    json_t *last = NULL, *changed = json_object(), *removed = json_object();
    json_t *set = fieldset_of(r->schema, config);
    fieldset_strip_system(set);
    strip_other_half(r, set, w->sub);
    json_t *before = json_at(old, "metadata.managedFields");
    json_t *entries = before ? json_deep_copy(before) : json_array();
    json_t *own = replace_own(r, entries, set, w, &last);
    json_t *doc = old ? merge(r->schema, old, config) : new_from(config);
    json_t *drop = dropped_fields(entries, last);
    remove_fields(r->schema, doc, drop);
    fieldset_compare(r->schema, old, doc, changed, removed);
    fieldset_strip_system(changed);
    fieldset_strip_system(removed);
    int rc = settle(entries, own, changed, removed, w->force, st);
    json_decref(last);
    json_decref(set);
    json_decref(drop);
    json_decref(changed);
    json_decref(removed);
    if (rc) {
        json_decref(entries);
        json_decref(doc);
        return rc;
    }
    store_entries(doc, entries);
    *out = doc;
    return 0;
}
