/* event.h: events.k8s.io/v1 about objects. The same (object, type, reason, note) within 6 minutes
 * is counted into the series of one event instead of making more; an object has a budget of 25
 * events, then one each 5 minutes. Failures to write are counted, never reported to the caller. One
 * owner thread. */
#pragma once
#include "lib/kube/client.h"

struct kube_events_recorder;
struct kube_regarding {
    const struct kube_kind *kind;
    const char *namespace, *name, *uid, *resource_version;
};
int kube_events_new(struct kube_client *c, const char *controller, const char *instance,
                    struct kube_events_recorder **out, struct err *e) MUST_CHECK;
void kube_events_free(struct kube_events_recorder *r);
/* type "Normal" or "Warning"; reason and action are short CamelCase words; note is one sentence (1
 * kB at most). */
void kube_event(struct kube_events_recorder *r, const struct kube_regarding *about,
                const char *type, const char *reason, const char *action, const char *note);
