/* What this process wrote and its caches do not show yet: without it a turn that follows its own
 * writes too fast would make pods twice, or choose another victim. */
#include "controller/controller.h"
#include "lib/base/clock.h"

#include <stdlib.h>

static void add(struct ctl *c, const char *uid, struct kube_pod *created)
{
    struct expected *x = xcalloc(1, sizeof *x);
    *x = (struct expected){.next = c->expected,
                           .uid = xstrdup(uid),
                           .created = created,
                           .until_ns = clock_mono_ns() + EXPECTED_NS};
    c->expected = x;
}

static void drop(struct expected **at)
{
    struct expected *x = *at;
    *at = x->next;
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

/* A created pod is known once the cache has had it; a deleted one once the cache shows it
 * terminating or gone. */
void expected_seen(struct ctl *c, const struct kube_pod *old, const struct kube_pod *now)
{
    const struct kube_pod *p = now ? now : old;
    uint64_t t = clock_mono_ns();
    for (struct expected **at = &c->expected; *at;) {
        bool same = p->meta.uid && strcmp((*at)->uid, p->meta.uid) == 0;
        if ((same && ((*at)->created || !now || now->meta.deleted_ns)) || t > (*at)->until_ns)
            drop(at);
        else
            at = &(*at)->next;
    }
}

/* What was never seen (made and gone between two lists) must not count for ever. */
void expected_prune(struct ctl *c)
{
    uint64_t now = clock_mono_ns();
    for (struct expected **at = &c->expected; *at;) {
        if (now > (*at)->until_ns)
            drop(at);
        else
            at = &(*at)->next;
    }
}

void expected_free(struct ctl *c)
{
    while (c->expected)
        drop(&c->expected);
}

void expected_add_created(struct ctl *c, const json_t *object)
{
    const char *ns = json_str_at(object, "metadata.namespace", ""),
               *name = json_str_at(object, "metadata.name", "");
    const struct kube_pod *seen = kube_cache_get(c->pods, ns, name);
    struct kube_pod *p = view_decode(&kube_pod_view, object, NULL);
    if (p && p->meta.uid && !(seen && seen->meta.uid && strcmp(seen->meta.uid, p->meta.uid) == 0))
        add(c, p->meta.uid, p);
    else
        free(p);
}

void expected_add_deleted(struct ctl *c, const char *uid)
{
    add(c, uid, NULL);
}
