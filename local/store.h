/* store.h: every object in memory, every write in SQLite (WAL, synchronous=FULL), one global
 * resourceVersion, and a window of watch events.
 *
 * Writes between two store_commit() calls are one transaction. Callers must not let anybody outside
 * see their effect (a reply, a watch event) before store_commit() has returned 0; when it fails,
 * memory is put back to what the disk has. Objects are immutable once stored and counted by
 * reference: a write makes a new one. One thread. */
#pragma once
#include "lib/json/json.h"

struct store;
struct bucket; /* the objects of one group/plural, sorted by key */

struct obj {
    struct bucket *bucket;
    char *key;        /* "namespace/name" or "name" */
    const char *ns;   /* "" for cluster scope; borrowed from doc */
    const char *name; /* borrowed from doc */
    const char *uid;  /* borrowed from doc */
    json_t *doc;      /* never changed after store_put */
    char *text;       /* compact JSON, made on first use (obj_text) */
    size_t text_len, head_len;
    uint64_t rv;
    unsigned refs;
    bool has_owners;
    uint64_t
        schema_serial; /* of the crd_version whose pruning and defaults change nothing in doc */
};
struct obj *obj_ref(struct obj *o);
void obj_unref(struct obj *o);
struct str obj_text(struct obj *o);
/* The same without kind and apiVersion and without the first brace. */
struct str obj_item_tail(struct obj *o);

enum event_type { EVENT_ADDED, EVENT_MODIFIED, EVENT_DELETED };
struct event {
    uint64_t rv;
    enum event_type type;
    struct bucket *bucket;
    struct obj
        *obj; /* the new state; for DELETED the last state with the deletion's resourceVersion */
    struct obj *prev; /* the state before, NULL for ADDED */
};

struct store_config {
    const char *path;
    uint64_t event_window; /* events kept, at least 16 */
    /* Called by store_commit for each event, in order, once it is on disk. */
    void (*on_event)(const struct event *ev, void *ctx);
    void *ctx;
};
int store_open(const struct store_config *c, struct store **out, struct err *e) MUST_CHECK;
void store_close(struct store *s); /* uncommitted writes are dropped */

struct bucket *store_bucket(struct store *s,
                            const char *id); /* "pods", "apps/deployments"; made if absent */
const char *bucket_id(const struct bucket *b);
size_t bucket_count(const struct bucket *b);
struct obj *bucket_at(const struct bucket *b, size_t i);
/* Index of the first key >= `key`. */
size_t bucket_lower(const struct bucket *b, const char *key);
struct obj *bucket_get(const struct bucket *b, const char *ns,
                       const char *name);                            /* borrowed or NULL */
struct bucket *store_bucket_next(struct store *s, struct bucket *b); /* NULL starts; NULL ends */
struct obj *store_by_uid(struct store *s, const char *uid);

/* Creates or replaces by metadata.namespace and metadata.name; sets metadata.resourceVersion in doc
 * (stolen). Borrowed result, NULL (doc freed) with *e when the database refuses. */
struct obj *store_put(struct store *s, struct bucket *b, json_t *doc, struct err *e);
int store_remove(struct store *s, struct obj *o, struct err *e) MUST_CHECK;
bool store_dirty(const struct store *s);
int store_commit(struct store *s, struct err *e) MUST_CHECK;

uint64_t store_rv(const struct store *s);        /* of the last committed write */
uint64_t store_compacted(const struct store *s); /* events up to and including this one are gone */
void store_compact(struct store *s); /* forget all events now (after the first set-up) */
/* Events after rv (rv >= store_compacted): index into the window for store_event. */
size_t store_events_after(const struct store *s, uint64_t rv);
const struct event *store_event(const struct store *s, size_t i); /* NULL past the end */

/* Small values beside the objects (the port, the format version). */
char *store_meta_get(struct store *s, const char *key); /* heap or NULL */
int store_meta_set(struct store *s, const char *key, const char *value, struct err *e) MUST_CHECK;
