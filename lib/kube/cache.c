#include "lib/kube/cache.h"

#include "lib/base/log.h"
#include "lib/base/metrics.h"
#include "lib/json/pack.h"

#include <stdio.h>
#include <stdlib.h>
#include <uthash.h>

struct bucket;
struct entry {
    UT_hash_handle hh;
    void *object;      /* the view's struct; of a packed cache its record */
    struct bucket *in; /* of the index; NULL when it has not the label */
    uint32_t round;    /* the list in which it was last seen */
    char key[];
};

/* The objects of one namespace with one value of the index label. */
struct bucket {
    UT_hash_handle hh;
    struct entry **items;
    size_t n, cap;
    bool sorted;
    char key[];
};

struct kube_cache {
    struct kube_cache_config cfg;
    struct kube_watch *watch;
    struct entry *entries;
    struct bucket *buckets;
    struct dict *words;      /* of a packed cache; NULL: not packed */
    struct pack_room gotten; /* what kube_cache_get last returned */
    uint32_t round;
    bool sorted;
};

/* The object of an entry: for a packed cache it is made in the room. */
static const void *opened(const struct kube_cache *c, const void *object, struct pack_room *room)
{
    return c->words && object ? pack_open(object, c->cfg.kind->view, c->words, room) : object;
}

static void release(struct kube_cache *c, void *object)
{
    if (c->words)
        pack_drop(object, c->cfg.kind->view, c->words);
    else
        free(object);
}

/* `old` as the cache holds it, `now` as it came. */
static void change(struct kube_cache *c, const void *old, const void *now)
{
    struct pack_room room = {0};
    if (c->cfg.on_change)
        c->cfg.on_change(opened(c, old, &room), now, c->cfg.ctx);
    pack_room_fini(&room);
}

static struct entry *find(const struct kube_cache *c, const char *key)
{
    struct entry *e;
    HASH_FIND_STR(c->entries, key, e);
    return e;
}

/* ---- the index ---- */

static struct bucket *bucket_find(const struct kube_cache *c, const char *namespace,
                                  const char *value, char *key, size_t size)
{
    struct bucket *b = NULL;
    int n = snprintf(key, size, "%s/%s", namespace ? namespace : "", value);
    if (n > 0 && (size_t)n < size)
        HASH_FIND_STR(c->buckets, key, b);
    return b;
}

static struct bucket *bucket_of(struct kube_cache *c, const void *object)
{
    const struct kube_meta *m = &((const struct kube_object *)object)->meta;
    const char *value = c->cfg.index_label ? kube_label(m, c->cfg.index_label) : NULL;
    char key[600];
    if (!value)
        return NULL;
    struct bucket *b = bucket_find(c, m->namespace, value, key, sizeof key);
    if (!b) {
        b = xcalloc(1, sizeof *b + strlen(key) + 1);
        memcpy(b->key, key, strlen(key) + 1);
        HASH_ADD_STR(c->buckets, key, b);
    }
    return b;
}

static void leave(struct kube_cache *c, struct entry *e)
{
    struct bucket *b = e->in;
    size_t i = 0;
    e->in = NULL;
    if (!b)
        return;
    while (b->items[i] != e)
        i++;
    memmove(b->items + i, b->items + i + 1, (--b->n - i) * sizeof *b->items);
    if (b->n)
        return;
    HASH_DEL(c->buckets, b);
    free(b->items);
    free(b);
}

static void enter(struct kube_cache *c, struct entry *e, const void *object)
{
    struct bucket *b = bucket_of(c, object);
    if (b == e->in)
        return;
    leave(c, e);
    if (!b)
        return;
    if (b->n == b->cap) {
        b->cap = b->cap ? b->cap * 2 : 8;
        b->items = xrealloc(b->items, b->cap * sizeof *b->items);
    }
    b->items[b->n++] = e;
    b->sorted = b->n == 1;
    e->in = b;
}

/* ---- objects ---- */

static void drop(struct kube_cache *c, const char *key)
{
    struct entry *e = find(c, key);
    if (!e)
        return;
    leave(c, e);
    HASH_DEL(c->entries, e);
    change(c, e->object, NULL);
    release(c, e->object);
    free(e);
}

/* `object` is borrowed. */
static void put(struct kube_cache *c, const char *key, const void *object)
{
    const struct view *view = c->cfg.kind->view;
    struct entry *e = find(c, key);
    void *old = NULL;
    if (!e) {
        e = xcalloc(1, sizeof *e + strlen(key) + 1);
        memcpy(e->key, key, strlen(key) + 1);
        HASH_ADD_STR(c->entries, key, e);
        c->sorted = false;
    } else {
        old = e->object;
    }
    e->object = c->words ? (void *)pack_new(view, object, c->words) : view_copy(view, object);
    e->round = c->round;
    enter(c, e, object);
    change(c, old, c->words ? object : e->object);
    if (old)
        release(c, old);
}

static void unreadable(const struct kube_cache *c, const char *key, const struct err *why)
{
    log_warn("an object from the API server can't be read", LS("kind", c->cfg.kind->kind),
             LS("key", key), LERR(why));
    metric_add(metric_series(metric_family(METRIC_COUNTER, "baton_kube_undecodable_total",
                                           "Objects from the API server that could not be read.",
                                           "kind", NULL, 0),
                             c->cfg.kind->kind),
               1);
}

static void on_object(enum kube_event_type type, const void *object, const struct kube_meta *m,
                      const struct err *why, void *ctx)
{
    struct kube_cache *c = ctx;
    CLEANUP(free_charp)
    char *key = xasprintf("%s/%s", m->namespace ? m->namespace : "", m->name);
    if (object && type != KUBE_DELETED) {
        put(c, key, object);
        return;
    }
    if (type != KUBE_DELETED)
        unreadable(c, key, why);
    drop(c, key);
}

static void on_list(void *ctx)
{
    struct kube_cache *c = ctx;
    c->round++;
}

/* What the list did not hold is gone, though nobody said so. */
static void on_synced(void *ctx)
{
    struct kube_cache *c = ctx;
    struct entry *e, *tmp;
    HASH_ITER (hh, c->entries, e, tmp) {
        if (e->round != c->round)
            drop(c, e->key);
    }
    if (c->cfg.on_synced)
        c->cfg.on_synced(c->cfg.ctx);
}

static void on_error(const struct err *e, void *ctx)
{
    const struct kube_cache *c = ctx;
    log_warn("watch interrupted, will reconnect", LS("kind", c->cfg.kind->kind), LERR(e));
}

int kube_cache_start(struct kube_client *client, const struct kube_cache_config *cfg,
                     struct kube_cache **out, struct err *e)
{
    struct kube_cache *c = xcalloc(1, sizeof *c);
    c->cfg = *cfg;
    struct kube_watch_config w = {
        .kind = cfg->kind,
        .namespace = cfg->namespace,
        .label_selector = cfg->label_selector,
        .field_selector = cfg->field_selector,
        .on_object = on_object,
        .on_list = on_list,
        .on_synced = on_synced,
        .on_error = on_error,
        .ctx = c,
        .backoff_min_ms = cfg->backoff_min_ms,
        .backoff_max_ms = cfg->backoff_max_ms,
        .silence_ms = cfg->silence_ms,
        .unhurried = cfg->unhurried,
    };
    int rc = kube_watch_start(client, &w, &c->watch, e);
    if (rc) {
        free(c);
        return rc;
    }
    c->words = cfg->packed ? dict_new() : NULL;
    *out = c;
    return 0;
}

void kube_cache_stop(struct kube_cache *c)
{
    struct entry *e, *tmp;
    if (!c)
        return;
    kube_watch_stop(c->watch);
    HASH_ITER (hh, c->entries, e, tmp) {
        leave(c, e);
        HASH_DEL(c->entries, e);
        release(c, e->object);
        free(e);
    }
    dict_free(c->words);
    pack_room_fini(&c->gotten);
    free(c);
}

void kube_cache_relist(struct kube_cache *c)
{
    kube_watch_relist(c->watch);
}

bool kube_cache_synced(const struct kube_cache *c)
{
    return kube_watch_synced(c->watch);
}

bool kube_cache_connected(const struct kube_cache *c)
{
    return kube_watch_connected(c->watch);
}

/* Sorting, and the room of what is returned, don't change what it holds. */
static struct kube_cache *own(const struct kube_cache *c)
{
    return (struct kube_cache *)(uintptr_t)c;
}

size_t kube_cache_count(const struct kube_cache *c)
{
    return HASH_COUNT(c->entries);
}

const void *kube_cache_get(const struct kube_cache *c, const char *namespace, const char *name)
{
    char key[600];
    int n = snprintf(key, sizeof key, "%s/%s", namespace ? namespace : "", name);
    const struct entry *e = n > 0 && (size_t)n < sizeof key ? find(c, key) : NULL;
    return e ? opened(c, e->object, &own(c)->gotten) : NULL;
}

static int by_key(struct entry *a, struct entry *b)
{
    return strcmp(a->key, b->key);
}

void kube_cache_each(const struct kube_cache *c, bool (*fn)(const void *object, void *ctx),
                     void *ctx)
{
    struct kube_cache *m = own(c);
    struct pack_room room = {0};
    struct entry *e, *tmp;
    if (!m->sorted)
        HASH_SORT(m->entries, by_key);
    m->sorted = true;
    HASH_ITER (hh, m->entries, e, tmp) {
        if (!fn(opened(c, e->object, &room), ctx))
            break;
    }
    pack_room_fini(&room);
}

static int by_entry_key(const void *a, const void *b)
{
    return strcmp((*(struct entry *const *)a)->key, (*(struct entry *const *)b)->key);
}

void kube_cache_each_labelled(const struct kube_cache *c, const char *namespace, const char *value,
                              bool (*fn)(const void *object, void *ctx), void *ctx)
{
    char key[600];
    struct pack_room room = {0};
    struct bucket *b = bucket_find(c, namespace, value, key, sizeof key);
    if (!b)
        return;
    if (!b->sorted)
        qsort(b->items, b->n, sizeof *b->items, by_entry_key);
    b->sorted = true;
    for (size_t i = 0; i < b->n; i++) {
        if (!fn(opened(c, b->items[i]->object, &room), ctx))
            break;
    }
    pack_room_fini(&room);
}
