/* watch.h: list and watch of one kind, for ever. Begins with a streaming list (sendInitialEvents,
 * end marked by a bookmark), falls back to list + watch where the server refuses it. Survives:
 * chunks split anywhere, ERROR events inside HTTP 200, 410 (relist), "Too large resource version"
 * (relist at once), 429 and 503 with Retry-After, silent connections, rotated credentials, restarts
 * of the server. After a relist what vanished is delivered as a delete. Back-off 800 ms ×2 up to
 * 30 s with jitter, reset after 2 minutes of health. One owner thread (the client's loop). Rules:
 * client-go's reflector.
 *
 * Silence. A connection may be half-open: the peer is gone, or a proxy between accepts packets and
 * forwards none. Probes of TCP find the first (client.h: 30 s) but not the second, which answers
 * them; bookmarks come about once a minute, and HTTP/1.1 has no ping. So each watch asks the server
 * to end it after 23 to 28 s: it then sends a bookmark and the end, and the next watch goes on at
 * that version over the same connection. A stream without a byte for 36 s is dead; what follows
 * takes a connection of its own. The price is a request of about a millisecond of the API server
 * per watch and 26 s. What else waits for events counts with these limits:
 *
 *     KUBE_WATCH_LIFE_S (28) + answer and clocks < KUBE_SILENCE_MS (36) < KUBE_STALE_MS (60): the
 *     longest time for which a cache may be behind without being known to be, with a relist.
 *
 * A watch whose news can wait is `unhurried` and costs a tenth of that: it lives for 8 to 10
 * minutes, and bookmarks, about one a minute, are its life. After 90 s without a byte it goes on
 * over a connection of its own; that is no error, because a server need not send bookmarks. It does
 * so at once when another watch or a request of the same client finds that the server does not
 * answer: a path that swallows everything is found in 36 s as long as the client has one watch that
 * is not unhurried, a single connection that does in 90 s.
 *
 * A stream that begins with a list may live for ten minutes, because a long list on a slow server
 * takes longer than such a watch; once it has been silent for so long, it is followed by one that
 * lives shortly.
 *
 * An expectation of one's own write must outlive KUBE_STALE_MS (controller/expected.c). */
#pragma once
#include "lib/kube/client.h"

#define KUBE_WATCH_LIFE_S 28
#define KUBE_SILENCE_MS   36000
#define KUBE_UNHURRIED_MS 90000
#define KUBE_STALE_MS     60000
_Static_assert(KUBE_WATCH_LIFE_S * 1000 + 5000 < KUBE_SILENCE_MS, "a live watch is never silent");
_Static_assert(KUBE_SILENCE_MS + 10000 < KUBE_STALE_MS, "the relist takes time, too");

enum kube_event_type { KUBE_ADDED, KUBE_MODIFIED, KUBE_DELETED };

struct kube_watch;
struct kube_watch_config {
    const struct kube_kind *kind;
    const char *namespace; /* NULL: all */
    const char *label_selector, *field_selector;
    /* `object` is borrowed. For a delete seen only by a relist it holds just metadata {namespace,
     * name, uid}. */
    void (*on_event)(enum kube_event_type type, json_t *object, void *ctx);
    /* Or, of a kind with a view, objects read straight from the text: `object` is the view's
     * struct, borrowed; NULL when it can't be read (*why says it, meta has its names). The receiver
     * remembers what exists: on_list tells that a list begins, on_synced that it is complete, and
     * what did not come in between is gone. ADDED and MODIFIED are as the server says. */
    void (*on_object)(enum kube_event_type type, const void *object, const struct kube_meta *meta,
                      const struct err *why, void *ctx);
    void (*on_list)(void *ctx);
    /* The state is complete: after the first list and after every relist. */
    void (*on_synced)(void *ctx);
    /* Optional: a failure that will be retried. */
    void (*on_error)(const struct err *e, void *ctx);
    void *ctx;
    unsigned backoff_min_ms, backoff_max_ms; /* 0: 800, 30,000 */
    unsigned silence_ms;      /* 0: KUBE_SILENCE_MS; no byte for so long: reconnect */
    unsigned watch_timeout_s; /* 0: random in [23, 28], unhurried: [480, 600] */
    bool unhurried;           /* what it tells may come 90 s late */
};
int kube_watch_start(struct kube_client *c, const struct kube_watch_config *cfg,
                     struct kube_watch **out, struct err *e) MUST_CHECK;
void kube_watch_stop(struct kube_watch *w); /* no callback afterwards; frees */
/* Lists again, over a new connection: for who must know what is true now, not what a stream that
 * may be silent has told so far. Not synced until then. */
void kube_watch_relist(struct kube_watch *w);
bool kube_watch_synced(
    const struct kube_watch *w); /* has been complete since the start or relist */
bool kube_watch_connected(const struct kube_watch *w); /* a watch stream is open now */
