/* queue.h: a work queue of keys ("namespace/name"). A key is worked on by one at a time; adds while
 * it is worked on are merged into one more turn. Retries wait 5 ms × 2ⁿ (at most 1,000 s) per key
 * and pass a token bucket (10 a second, burst 100); success resets the key. An add does not shorten
 * the first second of a retry's wait. One owner thread (the loop's). */
#pragma once
#include "lib/base/err.h"

#include <uv.h>

struct queue;
struct queue_config {
    uv_loop_t *loop;
    /* Start work on key; call queue_done (or queue_retry) for it, now or later. */
    void (*work)(struct queue *q, const char *key, void *ctx);
    /* Optional: ms until a key may be begun with, 0: now. Asked before each, and again then. */
    uint64_t (*pause_ms)(void *ctx);
    void *ctx;
    unsigned max_active;                  /* keys worked on at once; 0: 8 */
    unsigned retry_min_ms, retry_max_ms;  /* 0: 5, 1,000,000 */
    double retry_per_second, retry_burst; /* 0: 10, 100 */
};
int queue_new(const struct queue_config *c, struct queue **out, struct err *e) MUST_CHECK;
void queue_free(struct queue *q);
void queue_add(struct queue *q, const char *key);
/* The earlier of several wins; an add before its time does not cancel it. */
void queue_add_after(struct queue *q, const char *key, uint64_t delay_ms);
void queue_done(struct queue *q, const char *key);  /* success: resets the key's back-off */
void queue_retry(struct queue *q, const char *key); /* failure: again after its back-off */
size_t queue_depth(const struct queue *q);          /* waiting, not counting delayed */
size_t queue_active(const struct queue *q);
size_t queue_retrying(const struct queue *q); /* failed, and to be tried again */
/* Of the key that work was last called for: how long it had waited since it was due. */
uint64_t queue_waited_ns(const struct queue *q);
