#include "lib/kube/event.h"

#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/base/metrics.h"
#include "lib/base/rng.h"

#include <stdio.h>
#include <stdlib.h>
#include <uthash.h>

#define SERIES_NS (360 * NS_PER_S)
#define BUDGET    25
#define REFILL_NS (300 * NS_PER_S)
#define NOTE_MAX  1000
#define KEYS_MAX  4096

/* One event that was written, or (budget entries) one object's allowance. */
struct known {
    UT_hash_handle hh;
    uint64_t last_ns;
    unsigned count;
    double budget;
    char *namespace, *name; /* of the event object */
    char key[];
};

struct kube_events_recorder {
    struct kube_client *client;
    char *controller, *instance;
    struct known *known, *budgets;
    struct metric *failed;
};

int kube_events_new(struct kube_client *c, const char *controller, const char *instance,
                    struct kube_events_recorder **out, struct err *e)
{
    (void)e;
    struct kube_events_recorder *r = xcalloc(1, sizeof *r);
    r->client = c;
    r->controller = xstrdup(controller);
    r->instance = xasprintf("%.100s", instance);
    r->failed = metric_new(METRIC_COUNTER, "baton_kube_events_failed_total",
                           "Events that could not be written.");
    *out = r;
    return 0;
}

static void clear(struct known **table)
{
    struct known *k, *tmp;
    HASH_ITER (hh, *table, k, tmp) {
        HASH_DEL(*table, k);
        free(k->namespace);
        free(k->name);
        free(k);
    }
}

void kube_events_free(struct kube_events_recorder *r)
{
    if (!r)
        return;
    clear(&r->known);
    clear(&r->budgets);
    free(r->controller);
    free(r->instance);
    free(r);
}

static struct known *entry(struct known **table, const char *key)
{
    struct known *k;
    HASH_FIND_STR(*table, key, k);
    if (k)
        return k;
    if (HASH_COUNT(*table) >= KEYS_MAX)
        clear(table); /* only the counting of repeats is forgotten */
    k = xcalloc(1, sizeof *k + strlen(key) + 1);
    memcpy(k->key, key, strlen(key) + 1);
    k->budget = BUDGET;
    HASH_ADD_STR(*table, key, k);
    return k;
}

static bool within_budget(struct kube_events_recorder *r, const struct kube_regarding *about,
                          uint64_t now)
{
    CLEANUP(free_charp)
    char *key = xasprintf("%s/%s/%s", about->kind->kind, about->namespace ? about->namespace : "",
                          about->name);
    struct known *k = entry(&r->budgets, key);
    if (k->last_ns)
        k->budget += (double)(now - k->last_ns) / (double)REFILL_NS;
    k->budget = k->budget > BUDGET ? BUDGET : k->budget;
    k->last_ns = now;
    if (k->budget < 1)
        return false;
    k->budget -= 1;
    return true;
}

static void on_done(const struct kube_result *res, void *ctx)
{
    struct metric *failed = ctx;
    if (!res->err.code)
        return;
    metric_add(failed, 1);
    log_debug("event not written", LERR(&res->err));
}

static void write_event(struct kube_events_recorder *r, enum kube_verb verb, const char *ns,
                        const char *name, json_t *body)
{
    struct err e = {0};
    struct kube_call call = {
        .verb = verb,
        .kind = &kube_events,
        .namespace = ns,
        .name = name,
        .body = body,
        .done = on_done,
        .ctx = r->failed,
    };
    if (kube_start(r->client, &call, &e))
        metric_add(r->failed, 1);
    json_decref(body);
}

static json_t *event_body(const struct kube_events_recorder *r, const struct kube_regarding *about,
                          const struct known *k, const char *type, const char *reason,
                          const char *action, const char *note)
{
    char now[CLOCK_RFC3339_MAX];
    clock_rfc3339(clock_wall_ns(), 6, now);
    json_t *regarding =
        json_pack("{s:s, s:s, s:s, s:s*, s:s*, s:s*}", "apiVersion", about->kind->api, "kind",
                  about->kind->kind, "name", about->name, "namespace", about->namespace, "uid",
                  about->uid, "resourceVersion", about->resource_version);
    json_t *note_text = json_stringn(note, strnlen(note, NOTE_MAX));
    return json_pack("{s:{s:s, s:s}, s:s, s:s, s:s, s:s, s:s, s:s, s:o, s:o}", "metadata", "name",
                     k->name, "namespace", k->namespace, "eventTime", now, "type", type, "reason",
                     reason, "action", action, "reportingController", r->controller,
                     "reportingInstance", r->instance, "regarding", regarding, "note",
                     note_text ? note_text : json_string("(not UTF-8)"));
}

void kube_event(struct kube_events_recorder *r, const struct kube_regarding *about,
                const char *type, const char *reason, const char *action, const char *note)
{
    uint64_t now = clock_mono_ns();
    char time[CLOCK_RFC3339_MAX];
    CLEANUP(free_charp)
    char *key =
        xasprintf("%s/%s/%s/%s/%s/%s", about->kind->kind, about->namespace ? about->namespace : "",
                  about->name, type, reason, note);
    struct known *k = entry(&r->known, key);
    if (!within_budget(r, about, now))
        return;
    if (k->name && now - k->last_ns < SERIES_NS) {
        k->last_ns = now;
        k->count++;
        clock_rfc3339(clock_wall_ns(), 6, time);
        write_event(r, KUBE_PATCH, k->namespace, k->name,
                    json_pack("{s:{s:i, s:s}}", "series", "count", (int)k->count,
                              "lastObservedTime", time));
        return;
    }
    free(k->name);
    free(k->namespace);
    k->namespace = xstrdup(about->namespace ? about->namespace : "default");
    k->name = xasprintf("%.200s.%016llx", about->name, (unsigned long long)rng_secret_u64());
    k->count = 1;
    k->last_ns = now;
    write_event(r, KUBE_CREATE, k->namespace, NULL,
                event_body(r, about, k, type, reason, action, note));
}
