/* Writes whose outcome is not known: no answer came, or one that doesn't tell (5xx). The pod may or
 * may not have been made, or begun to end. Until that is known nothing else is decided about its
 * deployment, else a second pod is made beside the first, or a second victim chosen: the next turns
 * carry out the same writes, by the same names and uids, until there is an answer. */
#include "controller/controller.h"
#include "lib/decide/guard.h"

#include <stdlib.h>
#include <string.h>

struct doubt {
    struct doubt *next;
    char *key;
    struct step step;
};

bool doubt_is(const struct step *s, const struct kube_result *r)
{
    bool pod = s->kind == REC_CREATE_POD || s->kind == REC_DELETE_POD;
    return pod && (r->status == 0 || r->status >= 500) && GUARD(unknown_outcome);
}

void step_fini(struct step *s)
{
    free(s->name);
    free(s->uid);
    free(s->resource_version);
    free(s->why);
    free(s->trouble);
    json_decref(s->body);
    *s = (struct step){0};
}

void doubt_keep(struct ctl *c, const char *key, struct step *s)
{
    struct doubt *d = xcalloc(1, sizeof *d);
    *d = (struct doubt){.next = c->doubts, .key = xstrdup(key), .step = *s};
    d->step.call.namespace = NULL; /* of the turn */
    *s = (struct step){0};
    c->doubts = d;
}

/* The cache may have shown meanwhile what became of it. */
static bool known(const struct ctl *c, const char *namespace, const struct step *s)
{
    const struct kube_pod *p = kube_cache_get(c->pods, namespace, s->call.name);
    if (s->kind == REC_CREATE_POD)
        return p != NULL;
    return p && p->meta.uid && strcmp(p->meta.uid, s->uid) == 0 && p->meta.deleted_ns;
}

size_t doubt_take(struct ctl *c, const char *key, const char *namespace, struct step **steps)
{
    size_t n = 0;
    struct step *out = NULL;
    for (struct doubt **at = &c->doubts; *at;) {
        struct doubt *d = *at;
        if (strcmp(d->key, key) != 0) {
            at = &d->next;
            continue;
        }
        *at = d->next;
        if (known(c, namespace, &d->step)) {
            step_fini(&d->step);
        } else {
            out = xrealloc(out, (n + 1) * sizeof *out);
            out[n] = d->step;
            out[n].state = STEP_WAITS;
            out[n++].call.namespace = namespace;
        }
        free(d->key);
        free(d);
    }
    if (n)
        *steps = out;
    return n;
}

void doubt_free(struct ctl *c, const char *key)
{
    for (struct doubt **at = &c->doubts; *at;) {
        struct doubt *d = *at;
        if (key && strcmp(d->key, key) != 0) {
            at = &d->next;
            continue;
        }
        *at = d->next;
        step_fini(&d->step);
        free(d->key);
        free(d);
    }
}
