/* pool.h: the helper threads of a model_work (internal to worker/model). The caller is thread 0.
 * Between jobs and at barriers a thread spins, then sleeps on a futex. It spins for about 1 us
 * where waits are long (many ranks share few cores), and up to 50 us where they are short: then a
 * sleep, whose end takes as long, costs more than the work between two barriers. */
#pragma once
#include "lib/base/err.h"

#include <stdint.h>

struct pool;
typedef void (*pool_fn)(void *arg, uint32_t thread);

int pool_new(uint32_t threads, struct pool **out, struct err *e) MUST_CHECK;
void pool_free(struct pool *p);
uint32_t pool_threads(const struct pool *p);
/* Runs fn(arg, t) on every thread t and returns when all are done. */
void pool_run(struct pool *p, pool_fn fn, void *arg);
/* Inside fn: returns when every thread has called it; what was written before is seen after. */
void pool_barrier(struct pool *p);
