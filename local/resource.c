#include "local/resource.h"
#include "local/crd.h"
#include "local/types.h"

#include <stdio.h>
#include <stdlib.h>

struct registry {
    struct store *st;
    struct resource **items;
    size_t n, cap;
    struct resource *builtin; /* copies of the table with buckets and schemas */
};

static void add(struct registry *g, struct resource *r)
{
    if (g->n == g->cap) {
        g->cap = g->cap ? g->cap * 2 : 64;
        g->items = xrealloc(g->items, g->cap * sizeof(struct resource *));
    }
    g->items[g->n++] = r;
}

static void set_bucket(struct registry *g, struct resource *r)
{
    char id[512];
    snprintf(id, sizeof id, "%s%s%s", r->group, r->group[0] ? "/" : "", r->plural);
    r->bucket = store_bucket(g->st, r->storage ? r->storage : id);
}

struct registry *registry_new(struct store *st)
{
    struct registry *g = xcalloc(1, sizeof *g);
    size_t n = 0;
    while (builtin_resources[n].plural)
        n++;
    g->st = st;
    g->builtin = xcalloc(n, sizeof *g->builtin);
    for (size_t i = 0; i < n; i++) {
        struct resource *r = &g->builtin[i];
        *r = builtin_resources[i];
        r->schema = types_kind(r->group, r->version, r->kind);
        set_bucket(g, r);
        add(g, r);
    }
    return g;
}

void registry_free(struct registry *g)
{
    if (!g)
        return;
    free(g->builtin);
    free(g->items);
    free(g);
}

const struct resource *resource_find(const struct registry *g, const char *group,
                                     const char *version, const char *plural)
{
    for (size_t i = 0; i < g->n; i++) {
        const struct resource *r = g->items[i];
        if (!strcmp(r->plural, plural) && !strcmp(r->group, group) && !strcmp(r->version, version))
            return r;
    }
    return NULL;
}

const struct resource *resource_by_kind(const struct registry *g, const char *group,
                                        const char *version, const char *kind)
{
    for (size_t i = 0; i < g->n; i++) {
        const struct resource *r = g->items[i];
        if (!strcmp(r->kind, kind) && !strcmp(r->group, group) &&
            (!version || !strcmp(r->version, version)))
            return r;
    }
    return NULL;
}

const struct resource *resource_by_api(const struct registry *g, const char *api_version,
                                       const char *kind)
{
    char group[256];
    const char *slash = strchr(api_version, '/');
    snprintf(group, sizeof group, "%.*s", slash ? (int)(slash - api_version) : 0, api_version);
    const struct resource *r = resource_by_kind(g, group, slash ? slash + 1 : api_version, kind);
    return r ? r : resource_by_kind(g, group, NULL, kind);
}

const struct resource *resource_of_bucket(const struct registry *g, const struct bucket *b)
{
    for (size_t i = 0; i < g->n; i++)
        if (g->items[i]->bucket == b && !resource_has(g->items[i], R_VIRTUAL))
            return g->items[i];
    return NULL;
}

size_t registry_count(const struct registry *g)
{
    return g->n;
}

const struct resource *registry_at(const struct registry *g, size_t i)
{
    return i < g->n ? g->items[i] : NULL;
}

void registry_add_custom(struct registry *g, struct resource *r)
{
    set_bucket(g, r);
    add(g, r);
}

struct crd *resource_crd(const struct resource *r)
{
    return r->crdv ? r->crdv->crd : NULL;
}

void registry_remove_custom(struct registry *g, const struct crd *crd,
                            void (*free_one)(struct resource *r))
{
    size_t kept = 0;
    for (size_t i = 0; i < g->n; i++) {
        struct resource *r = g->items[i];
        if (r->crdv && r->crdv->crd == crd)
            free_one(r);
        else
            g->items[kept++] = r;
    }
    g->n = kept;
}

const char *resource_api_version(const struct resource *r, char out[128])
{
    snprintf(out, 128, "%s%s%s", r->group, r->group[0] ? "/" : "", r->version);
    return out;
}
