/* resource.h: what is served: one struct resource a (group, version, plural), from the table of
 * built-in kinds and from CustomResourceDefinitions. Kinds of one group/plural share a bucket of
 * the store whatever their version. One thread; a resource lives until its CRD changes or goes
 * (watches and calls look it up again, none is kept across loop iterations except through the
 * registry). */
#pragma once
#include "local/store.h"

struct server;
struct crd;
struct crd_version;

enum {
    R_NAMESPACED = 1,
    R_STATUS = 2,       /* status subresource */
    R_SCALE = 4,        /* scale subresource */
    R_GENERATION = 8,   /* metadata.generation counts changes of anything but metadata and status */
    R_VIRTUAL = 16,     /* create only, nothing is stored (reviews) */
    R_RETURNS_OBJ = 32, /* DELETE answers the object, not a Status */
    R_CUSTOM = 64,
    R_GRACEFUL = 128, /* DELETE waits for the kubelet (pods) */
};

/* What a built-in kind adds to the general rules. Any may be NULL. old is NULL at creation. */
struct kind_ops {
    /* Defaults that depend on other fields; the static ones are in types_*.c. */
    void (*defaults)(struct server *s, json_t *doc, const json_t *old);
    /* What the server itself sets; no field manager owns it. */
    void (*server_sets)(struct server *s, json_t *doc, const json_t *old);
    void (*validate)(const json_t *doc, const json_t *old, json_t *causes);
    /* Rules that answer something other than 422. */
    int (*admit)(struct server *s, json_t *doc, const json_t *old, json_t **st);
    json_t *(*to_storage)(json_t *doc);   /* steals, returns the stored form */
    json_t *(*from_storage)(json_t *doc); /* steals a copy, returns the served form */
    const char *const
        *fields; /* field selectors besides metadata.name and namespace; "a.b=c.d" renames */
};

struct resource {
    const char *group, *version, *plural, *singular, *kind;
    const char *short_names, *categories; /* comma separated, "" when none */
    unsigned flags;
    const struct kind_ops *ops;
    const char *storage; /* bucket id; NULL: group/plural */
    /* filled by the registry */
    struct bucket *bucket;
    const json_t *schema;     /* root schema node (types.h); NULL: anything goes */
    struct crd_version *crdv; /* custom resources: columns, scale paths, validation */
    bool deprecated;
    const char *deprecation; /* Warning header of a deprecated version */
};

struct registry;
struct registry *registry_new(struct store *st);
void registry_free(struct registry *g);

const struct resource *resource_find(const struct registry *g, const char *group,
                                     const char *version, const char *plural);
const struct resource *resource_by_kind(const struct registry *g, const char *group,
                                        const char *version, const char *kind);
/* Any version of the kind; for owner references. api_version is "v1" or "apps/v1". */
const struct resource *resource_by_api(const struct registry *g, const char *api_version,
                                       const char *kind);
/* The resource that serves a bucket (its first version). */
const struct resource *resource_of_bucket(const struct registry *g, const struct bucket *b);
size_t registry_count(const struct registry *g);
const struct resource *registry_at(const struct registry *g,
                                   size_t i); /* ordered: groups, versions, as registered */

/* The registry owns r afterwards (strings too, by crd); removes all that belong to a CRD. */
void registry_add_custom(struct registry *g, struct resource *r);
void registry_remove_custom(struct registry *g, const struct crd *crd,
                            void (*free_one)(struct resource *r));
struct crd *resource_crd(const struct resource *r);

/* "apps/v1" or "v1"; into a buffer of the caller. */
const char *resource_api_version(const struct resource *r, char out[128]);
static inline bool resource_has(const struct resource *r, unsigned flag)
{
    return (r->flags & flag) != 0;
}

/* The built-in kinds: builtin.c. NULL plural ends. */
extern const struct resource builtin_resources[];
