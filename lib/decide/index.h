/* index.h: which workers hold which KV blocks: a table from block name to the set of workers, fed
 * by their heartbeats. It answers the longest cached prefix for every worker at once, in O(depth)
 * look-ups. Bounded: past max_names new names are counted and left out (the answer is then only
 * less favourable, never wrong). Workers are slots below INDEX_WORKERS. One owner thread; no I/O.
 */
#pragma once
#include "lib/llm/blocks.h"

#define INDEX_WORKERS 256

struct index;
struct index *index_new(size_t max_names);
void index_free(struct index *x);

void index_add(struct index *x, unsigned worker, const struct block_name *names, size_t n);
void index_remove(struct index *x, unsigned worker, const struct block_name *names, size_t n);
void index_clear(struct index *x, unsigned worker); /* the worker is gone or starts again */

/* depth[w] = how many leading blocks of names worker w holds, for every w < n_workers. */
void index_match(const struct index *x, const struct block_name *names, size_t n, uint32_t *depth,
                 unsigned n_workers);

size_t index_names(const struct index *x);
uint64_t index_left_out(const struct index *x); /* names that did not fit, in total */
