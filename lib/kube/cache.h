/* cache.h: the decoded objects of one kind, kept by a watch (watch.h). Objects are immutable: an
 * update replaces the pointer. `old` in a callback is valid until it returns; what cache_get
 * returns is valid until the loop turns. An object that doesn't decode is logged, counted and
 * treated as absent.
 *
 * A packed cache keeps records (lib/json/pack.h) of a fifth of the size: an object that it hands
 * out is made for that moment. What cache_get returns is valid until the next cache_get, what fn
 * gets until it returns; their strings stay until the loop turns. One owner thread. */
#pragma once
#include "lib/kube/watch.h"

struct kube_cache;
struct kube_cache_config {
    const struct kube_kind *kind; /* with a view */
    const char *namespace, *label_selector, *field_selector;
    const char *index_label; /* a label that kube_cache_each_labelled finds objects by; static */
    bool packed;
    /* add: old NULL; delete: now NULL. Both are the kind's view struct (struct kube_pod *, …). */
    void (*on_change)(const void *old, const void *now, void *ctx);
    void (*on_synced)(void *ctx);
    void *ctx;
    unsigned backoff_min_ms, backoff_max_ms, silence_ms; /* as in watch.h */
    bool unhurried;
};
int kube_cache_start(struct kube_client *c, const struct kube_cache_config *cfg,
                     struct kube_cache **out, struct err *e) MUST_CHECK;
void kube_cache_stop(struct kube_cache *c);
void kube_cache_relist(struct kube_cache *c); /* as kube_watch_relist */
bool kube_cache_synced(const struct kube_cache *c);
bool kube_cache_connected(const struct kube_cache *c);
size_t kube_cache_count(const struct kube_cache *c);
/* namespace NULL or "" for cluster-scoped kinds. NULL when absent. */
const void *kube_cache_get(const struct kube_cache *c, const char *namespace, const char *name);
/* Calls fn for every object in order of namespace/name; fn returns false to stop. */
void kube_cache_each(const struct kube_cache *c, bool (*fn)(const void *object, void *ctx),
                     void *ctx);
/* The same for the objects of a namespace whose index label has this value: their number is what it
 * costs, not the cache's. */
void kube_cache_each_labelled(const struct kube_cache *c, const char *namespace, const char *value,
                              bool (*fn)(const void *object, void *ctx), void *ctx);
