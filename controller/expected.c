/* What this process wrote and its caches do not show yet: without it a turn that follows its own
 * writes too fast would make pods twice, or choose another victim. An expectation ends when the
 * cache shows it. It outlives the longest silence of a watch; one that is older is compared with a
 * fresh list of the deployment's pods before anything is decided: the cache may be behind for
 * longer, while the watch can't be opened again, and that must not make a pod twice either. */
#include "controller/controller.h"
#include "lib/base/clock.h"
#include "lib/decide/guard.h"
#include "lib/json/view_scan.h"

#include <stdlib.h>

#define POD_MAX (64u << 20)

_Static_assert(EXPECTED_NS > KUBE_STALE_MS * NS_PER_MS,
               "a silent watch is found before an expectation of its events ends");

static void add(struct ctl *c, const char *key, const char *name, const char *uid,
                struct kube_pod *created)
{
    if (!GUARD(expectations)) {
        free(created);
        return;
    }
    struct expected *x = xcalloc(1, sizeof *x);
    *x = (struct expected){.next = c->expected,
                           .key = xstrdup(key),
                           .name = xstrdup(name),
                           .uid = xstrdup(uid),
                           .created = created,
                           .until_ns = clock_mono_ns() + EXPECTED_NS};
    c->expected = x;
}

static void drop(struct expected **at)
{
    struct expected *x = *at;
    *at = x->next;
    free(x->key);
    free(x->name);
    free(x->uid);
    free(x->created);
    free(x);
}

bool expected_deleted(const struct ctl *c, const char *uid)
{
    for (const struct expected *x = c->expected; x; x = x->next)
        if (!x->created && uid && strcmp(x->uid, uid) == 0)
            return true;
    return false;
}

bool expected_any(const struct ctl *c, const char *key)
{
    for (const struct expected *x = c->expected; x; x = x->next)
        if (strcmp(x->key, key) == 0)
            return true;
    return false;
}

/* A created pod is known once the cache has had it; a deleted one once the cache shows it
 * terminating or gone. */
void expected_seen(struct ctl *c, const struct kube_pod *old, const struct kube_pod *now)
{
    const struct kube_pod *p = now ? now : old;
    for (struct expected **at = &c->expected; *at;) {
        bool same = p->meta.uid && strcmp((*at)->uid, p->meta.uid) == 0;
        if (same && ((*at)->created || !now || now->meta.deleted_ns))
            drop(at);
        else
            at = &(*at)->next;
    }
}

static bool overdue(const struct expected *x, const char *key, uint64_t now_ns)
{
    return now_ns > x->until_ns && strcmp(x->key, key) == 0;
}

bool expected_overdue(struct ctl *c, const char *key)
{
    uint64_t now = clock_mono_ns();
    for (struct expected **at = &c->expected; *at;) {
        if (!overdue(*at, key, now))
            at = &(*at)->next;
        else if (GUARD(expected_reread))
            return true;
        else
            drop(at);
    }
    return false;
}

static const json_t *listed(const json_t *items, const char *uid)
{
    size_t i;
    const json_t *o;
    json_array_foreach (items, i, o)
        if (strcmp(json_str_at(o, "metadata.uid", ""), uid) == 0)
            return o;
    return NULL;
}

/* Is the cache still to show it? The list tells what is true. */
static bool still_to_come(const struct ctl *c, const char *namespace, const struct expected *x,
                          const json_t *items)
{
    const json_t *there = listed(items, x->uid);
    if (x->created) /* not there: made, and gone between two lists */
        return there != NULL;
    if (there && !json_str_at(there, "metadata.deletionTimestamp", NULL))
        return false;
    const struct kube_pod *p = kube_cache_get(c->pods, namespace, x->name);
    return p && p->meta.uid && strcmp(p->meta.uid, x->uid) == 0 && !p->meta.deleted_ns;
}

void expected_settle(struct ctl *c, const char *key, const char *namespace, const json_t *list)
{
    const json_t *items = json_object_get(list, "items");
    uint64_t now = clock_mono_ns();
    for (struct expected **at = &c->expected; *at;) {
        struct expected *x = *at;
        if (overdue(x, key, now) && !still_to_come(c, namespace, x, items)) {
            drop(at);
            continue;
        }
        if (overdue(x, key, now))
            x->until_ns = now + EXPECTED_NS;
        at = &x->next;
    }
}

void expected_gone(struct ctl *c, const char *key, const char *name)
{
    for (struct expected **at = &c->expected; *at;) {
        struct expected *x = *at;
        if (x->created && strcmp(x->key, key) == 0 && strcmp(x->name, name) == 0)
            drop(at);
        else
            at = &x->next;
    }
}

void expected_forget(struct ctl *c, const char *key)
{
    for (struct expected **at = &c->expected; *at;) {
        if (!key || strcmp((*at)->key, key) == 0)
            drop(at);
        else
            at = &(*at)->next;
    }
}

void expected_add_created(struct ctl *c, const char *key, struct str text)
{
    struct arena a;
    void *object = NULL;
    arena_init(&a, POD_MAX);
    if (view_scan(&kube_pod_view, text, &a, &object, NULL) == 0) {
        const struct kube_pod *p = object,
                              *seen = kube_cache_get(c->pods, p->meta.namespace, p->meta.name);
        bool shown =
            seen && seen->meta.uid && p->meta.uid && strcmp(seen->meta.uid, p->meta.uid) == 0;
        if (p->meta.uid && !shown)
            add(c, key, p->meta.name, p->meta.uid, view_copy(&kube_pod_view, p));
    }
    arena_fini(&a);
}

void expected_add_deleted(struct ctl *c, const char *key, const char *name, const char *uid)
{
    add(c, key, name, uid, NULL);
}
