#include "lib/base/metrics.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#define MAX_LABELS 6
#define MAX_BOUNDS 32
#define MAX_SERIES 1000

struct metric {
    struct metric_family *family;
    struct metric *next;
    char *values[MAX_LABELS];
    _Atomic double value; /* counter, gauge, or a histogram's sum */
    _Atomic uint64_t bucket[MAX_BOUNDS + 1];
    atomic_bool dropped;
};

struct metric_family {
    enum metric_kind kind;
    char *name, *help, *labels[MAX_LABELS];
    size_t n_labels, n_bounds, n_series;
    double bounds[MAX_BOUNDS];
    struct metric *series;
    struct metric_family *next;
};

static struct metric_family *families;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static const double default_bounds[] = {.0005, .001, .0025, .005, .01, .025, .05, .1,
                                        .25,   .5,   1,     2.5,  5,   10,   30,  60};

struct metric_family *metric_family(enum metric_kind kind, const char *name, const char *help,
                                    const char *labels, const double *bounds, size_t n_bounds)
{
    pthread_mutex_lock(&lock);
    struct metric_family **at = &families, *f;
    for (; (f = *at); at = &f->next)
        if (strcmp(f->name, name) == 0)
            break;
    if (!f) {
        f = *at = xcalloc(1, sizeof *f);
        f->kind = kind;
        f->name = xstrdup(name);
        f->help = xstrdup(help);
        if (!bounds) {
            bounds = default_bounds;
            n_bounds = sizeof default_bounds / sizeof *default_bounds;
        }
        ASSERT(n_bounds <= MAX_BOUNDS);
        memcpy(f->bounds, bounds, n_bounds * sizeof *bounds);
        f->n_bounds = n_bounds;
        struct str rest = str_c(labels), head;
        while (rest.n) {
            ASSERT(f->n_labels < MAX_LABELS);
            rest = str_cut(rest, ',', &head);
            f->labels[f->n_labels++] = str_dup(head);
        }
    }
    ASSERT(f->kind == kind);
    pthread_mutex_unlock(&lock);
    return f;
}

static bool same_values(const struct metric *m, const char *const *values, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(m->values[i], values[i]) != 0)
            return false;
    return true;
}

static struct metric *series_of(struct metric_family *f, const char **values)
{
    pthread_mutex_lock(&lock);
    struct metric *m;
    for (;;) {
        struct metric **at = &f->series;
        for (; (m = *at); at = &m->next)
            if (same_values(m, values, f->n_labels))
                break;
        if (m || f->n_series < MAX_SERIES) {
            if (!m) {
                m = *at = xcalloc(1, sizeof *m);
                m->family = f;
                f->n_series++;
                for (size_t i = 0; i < f->n_labels; i++)
                    m->values[i] = xstrdup(values[i]);
            }
            break;
        }
        f->n_series--; /* room for "other" */
        for (size_t i = 0; i < f->n_labels; i++)
            values[i] = "other";
    }
    atomic_store(&m->dropped, false);
    pthread_mutex_unlock(&lock);
    return m;
}

struct metric *metric_series(struct metric_family *f, ...)
{
    const char *values[MAX_LABELS];
    va_list ap;
    va_start(ap, f);
    for (size_t i = 0; i < f->n_labels; i++)
        values[i] = va_arg(ap, const char *);
    va_end(ap);
    return series_of(f, values);
}

struct metric *metric_new(enum metric_kind kind, const char *name, const char *help)
{
    const char *none[MAX_LABELS] = {0};
    return series_of(metric_family(kind, name, help, "", NULL, 0), none);
}

static void add(_Atomic double *to, double v)
{
    double old = atomic_load_explicit(to, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(to, &old, old + v, memory_order_relaxed,
                                                  memory_order_relaxed))
        ;
}

void metric_add(struct metric *m, double v)
{
    add(&m->value, v);
}

void metric_set(struct metric *m, double v)
{
    atomic_store_explicit(&m->value, v, memory_order_relaxed);
}

void metric_observe(struct metric *m, double v)
{
    size_t i = 0;
    while (i < m->family->n_bounds && v > m->family->bounds[i])
        i++;
    atomic_fetch_add_explicit(&m->bucket[i], 1, memory_order_relaxed);
    add(&m->value, v);
}

double metric_value(const struct metric *m)
{
    return atomic_load_explicit(&m->value, memory_order_relaxed);
}

void metric_drop(struct metric *m)
{
    atomic_store(&m->dropped, true);
}

static int put_labels(struct buf *b, const struct metric *m, const char *le)
{
    const struct metric_family *f = m->family;
    if (f->n_labels == 0 && !le)
        return 0;
    int rc = buf_cstr(b, "{");
    for (size_t i = 0; i < f->n_labels && !rc; i++) {
        rc = buf_printf(b, "%s%s=", i ? "," : "", f->labels[i]);
        if (!rc)
            rc = buf_json_str(b, str_c(m->values[i]));
    }
    if (!rc && le)
        rc = buf_printf(b, "%sle=\"%s\"", f->n_labels ? "," : "", le);
    return rc ? rc : buf_cstr(b, "}");
}

static int put_sample(struct buf *b, const struct metric *m, const char *suffix, const char *le,
                      double v)
{
    int rc = buf_printf(b, "%s%s", m->family->name, suffix);
    if (!rc)
        rc = put_labels(b, m, le);
    return rc ? rc : buf_printf(b, " %.17g\n", v);
}

static int put_histogram(struct buf *b, const struct metric *m)
{
    const struct metric_family *f = m->family;
    uint64_t total = 0;
    int rc = 0;
    char le[32];
    for (size_t i = 0; i <= f->n_bounds && !rc; i++) {
        total += atomic_load_explicit(&m->bucket[i], memory_order_relaxed);
        if (i < f->n_bounds)
            snprintf(le, sizeof le, "%g", f->bounds[i]);
        else
            snprintf(le, sizeof le, "+Inf");
        rc = put_sample(b, m, "_bucket", le, (double)total);
    }
    if (!rc)
        rc = put_sample(b, m, "_sum", NULL, metric_value(m));
    return rc ? rc : put_sample(b, m, "_count", NULL, (double)total);
}

static struct {
    int (*fn)(struct buf *out, void *ctx);
    void *ctx;
} collectors[8];
static size_t n_collectors;

void metrics_collect(int (*fn)(struct buf *out, void *ctx), void *ctx)
{
    ASSERT(n_collectors < sizeof collectors / sizeof *collectors);
    collectors[n_collectors].fn = fn;
    collectors[n_collectors++].ctx = ctx;
}

void metrics_uncollect(int (*fn)(struct buf *out, void *ctx), void *ctx)
{
    for (size_t i = 0; i < n_collectors; i++)
        if (collectors[i].fn == fn && collectors[i].ctx == ctx) {
            collectors[i] = collectors[--n_collectors];
            return;
        }
}

int metrics_write(struct buf *out)
{
    static const char *const kind[] = {"counter", "gauge", "histogram"};
    int rc = 0;
    pthread_mutex_lock(&lock);
    for (struct metric_family *f = families; f && !rc; f = f->next) {
        rc = buf_printf(out, "# HELP %s %s\n# TYPE %s %s\n", f->name, f->help, f->name,
                        kind[f->kind]);
        for (struct metric *m = f->series; m && !rc; m = m->next)
            if (!atomic_load(&m->dropped))
                rc = f->kind == METRIC_HISTOGRAM ? put_histogram(out, m)
                                                 : put_sample(out, m, "", NULL, metric_value(m));
    }
    pthread_mutex_unlock(&lock);
    for (size_t i = 0; i < n_collectors && !rc; i++)
        rc = collectors[i].fn(out, collectors[i].ctx);
    return rc;
}
