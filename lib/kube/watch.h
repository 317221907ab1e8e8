/* watch.h: list and watch of one kind, for ever. Begins with a streaming list (sendInitialEvents,
 * end marked by a bookmark), falls back to list + watch where the server refuses it. Survives:
 * chunks split anywhere, ERROR events inside HTTP 200, 410 (relist), 429, silent connections
 * (timer), restarts of the server. After a relist what vanished is delivered as a delete. Back-off
 * 800 ms ×2 up to 30 s with jitter, reset after 2 minutes of health. One owner thread (the client's
 * loop). Rules: client-go's reflector. */
#pragma once
#include "lib/kube/client.h"

enum kube_event_type { KUBE_ADDED, KUBE_MODIFIED, KUBE_DELETED };

struct kube_watch;
struct kube_watch_config {
    const struct kube_kind *kind;
    const char *namespace; /* NULL: all */
    const char *label_selector, *field_selector;
    /* `object` is borrowed. For a delete seen only by a relist it holds just metadata {namespace,
     * name, uid}. */
    void (*on_event)(enum kube_event_type type, json_t *object, void *ctx);
    /* The state is complete: after the first list and after every relist. */
    void (*on_synced)(void *ctx);
    /* Optional: a failure that will be retried. */
    void (*on_error)(const struct err *e, void *ctx);
    void *ctx;
    unsigned backoff_min_ms, backoff_max_ms; /* 0: 800, 30,000 */
    unsigned silence_ms; /* 0: 90,000; no byte for so long: reconnect (bookmarks come about once a
                            minute) */
    unsigned watch_timeout_s; /* 0: random in [300, 600] */
};
int kube_watch_start(struct kube_client *c, const struct kube_watch_config *cfg,
                     struct kube_watch **out, struct err *e) MUST_CHECK;
void kube_watch_stop(struct kube_watch *w);            /* no callback afterwards; frees */
bool kube_watch_synced(const struct kube_watch *w);    /* has been complete once */
bool kube_watch_connected(const struct kube_watch *w); /* a watch stream is open now */
