/* metrics.h: a small registry with the Prometheus text exposition (format 0.0.4). Families and
 * series are made once (process lifetime) and updated with relaxed atomics from any thread. Names
 * carry units (_seconds, _bytes, _total). */
#pragma once
#include "lib/base/buf.h"

#include <stdatomic.h>

struct metric; /* one series */
struct metric_family;

enum metric_kind { METRIC_COUNTER, METRIC_GAUGE, METRIC_HISTOGRAM };

/* Families are registered once by name; registering again returns the same one. `labels` is
 * "model,role" or "". For histograms, `bounds` are the upper bounds in ascending order (n_bounds <=
 * 32); NULL takes a default for seconds. */
struct metric_family *metric_family(enum metric_kind kind, const char *name, const char *help,
                                    const char *labels, const double *bounds, size_t n_bounds);
/* The series with these label values ("" when there are no labels; else one string each, in order,
 * as varargs). A family holds at most 1,000 series; past that all share one with the values
 * "other". */
struct metric *metric_series(struct metric_family *f, ...);
/* Short form for a series without labels. */
struct metric *metric_new(enum metric_kind kind, const char *name, const char *help);

void metric_add(struct metric *m, double v); /* counter (v >= 0) or gauge */
void metric_set(struct metric *m, double v); /* gauge */
void metric_observe(struct metric *m, double v);
double metric_value(const struct metric *m); /* counter or gauge; a histogram's sum */
void metric_drop(struct metric *m);          /* a series whose subject is gone: no longer exposed */

/* For series that come and go with objects: fn appends its own exposition (HELP, TYPE and samples
 * of families that are not in the registry) whenever the metrics are written, on that thread. At
 * most 8 at a time. All three on one thread. */
void metrics_collect(int (*fn)(struct buf *out, void *ctx), void *ctx);
void metrics_uncollect(int (*fn)(struct buf *out, void *ctx), void *ctx);

int metrics_write(struct buf *out) MUST_CHECK;
#define METRICS_CONTENT_TYPE "text/plain; version=0.0.4; charset=utf-8"
