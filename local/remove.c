/* Deletion of one object: grace, finalizers, propagation, preconditions. */
#include "local/gc.h"
#include "local/object.h"

#include "lib/base/clock.h"

#include <stdio.h>
#include <stdlib.h>

static int refuse(json_t **st, const struct resource *r, const struct obj *o, const char *what,
                  const char *want, const char *have)
{
    return status_set(
        st, 409, "Conflict", r, o->name,
        "Operation cannot be fulfilled on %s \"%s\": the %s in the precondition (%s) does not "
        "match the %s in record (%s). The object might have been deleted and then recreated",
        r->kind, o->name, what, want, what, have);
}

static int check_preconditions(const struct resource *r, const struct obj *o,
                               const struct delete_options *opt, json_t **st)
{
    char rv[24];
    snprintf(rv, sizeof rv, "%llu", (unsigned long long)o->rv);
    if (opt->uid && strcmp(opt->uid, o->uid) != 0)
        return refuse(st, r, o, "UID", opt->uid, o->uid);
    if (opt->rv && strcmp(opt->rv, rv) != 0)
        return refuse(st, r, o, "ResourceVersion", opt->rv, rv);
    return 0;
}

/* Seconds until the kubelet must have stopped a pod; 0 for everything else. */
static int64_t grace_of(const struct resource *r, const struct obj *o, int64_t asked)
{
    if (!resource_has(r, R_GRACEFUL))
        return 0;
    const char *phase = json_str_at(o->doc, "status.phase", "");
    if (!*json_str_at(o->doc, "spec.nodeName", "") || !strcmp(phase, "Succeeded") ||
        !strcmp(phase, "Failed"))
        return 0;
    return asked >= 0 ? asked : json_int_at(o->doc, "spec.terminationGracePeriodSeconds", 30);
}

static void add_finalizer(json_t *meta, const char *name)
{
    json_t *list = json_object_get(meta, "finalizers"), *v;
    size_t i;
    if (!list) {
        list = json_array();
        json_object_set_new(meta, "finalizers", list);
    }
    json_array_foreach (list, i, v)
        if (json_is_string(v) && !strcmp(json_string_value(v), name))
            return;
    json_array_append_new(list, json_string(name));
}

static bool is_namespace(const struct resource *r)
{
    return !r->group[0] && !strcmp(r->plural, "namespaces");
}

static bool is_crd(const struct resource *r)
{
    return !strcmp(r->group, "apiextensions.k8s.io") &&
           !strcmp(r->plural, "customresourcedefinitions");
}

/* The marked state: deletionTimestamp, grace, finalizers that this server itself works off. */
static json_t *mark(const struct resource *r, const struct obj *o, const struct delete_options *opt,
                    int64_t grace)
{
    json_t *doc = json_deep_copy(o->doc), *meta = json_object_get(doc, "metadata");
    char at[40];
    bool was = json_object_get(meta, "deletionTimestamp") != NULL;
    int64_t before = json_int_at(meta, "deletionGracePeriodSeconds", 0);
    if (!was || grace < before) {
        uint64_t wall = clock_wall_ns() + (uint64_t)grace * NS_PER_S;
        if (grace)
            wall +=
                NS_PER_S - 1; /* whole seconds are written; a grace is never cut short by that */
        json_object_set_new(meta, "deletionTimestamp", json_string(clock_rfc3339(wall, 0, at)));
        bool plain = !is_namespace(r) && !is_crd(r);
        if (plain)
            json_object_set_new(meta, "deletionGracePeriodSeconds", json_integer(grace));
        int64_t g = json_int_at(meta, "generation", 0);
        if (!was && g && plain)
            json_object_set_new(meta, "generation", json_integer(g + 1));
    }
    if (opt->propagation == PROPAGATE_FOREGROUND)
        add_finalizer(meta, "foregroundDeletion");
    if (is_namespace(r))
        json_object_set_new(json_object_get(doc, "status"), "phase", json_string("Terminating"));
    if (is_crd(r))
        add_finalizer(meta, "customresourcecleanup.apiextensions.k8s.io");
    return doc;
}

static bool held(const struct resource *r, const json_t *doc, int64_t grace)
{
    return grace > 0 || json_array_size(json_at(doc, "metadata.finalizers")) > 0 ||
           (is_namespace(r) && json_array_size(json_at(doc, "spec.finalizers")) > 0);
}

static int delete_held(struct server *s, const struct resource *r, struct obj *o, json_t *doc,
                       const struct delete_options *opt, json_t **out, json_t **st)
{
    if (opt->dry_run || json_equal(doc, o->doc)) {
        struct obj tmp = {.doc = doc};
        *out = object_view(r, &tmp);
        json_decref(doc);
        return 0;
    }
    struct obj *now = object_store(s, r, doc, st);
    if (!now)
        return -1;
    *out = object_view(r, now);
    gc_note_foreground(s, now);
    return 0;
}

int object_delete(struct server *s, const struct resource *r, struct obj *o,
                  const struct delete_options *opt, bool *gone, json_t **out, json_t **st)
{
    if (check_preconditions(r, o, opt, st))
        return -1;
    if (is_namespace(r) && (!strcmp(o->name, "default") || !strcmp(o->name, "kube-system") ||
                            !strcmp(o->name, "kube-public")))
        return status_forbidden(st, r, o->name, "this namespace may not be deleted");
    int64_t grace = grace_of(r, o, opt->grace);
    json_t *doc = mark(r, o, opt, grace);
    *gone = !held(r, doc, grace);
    if (opt->propagation == PROPAGATE_ORPHAN && !opt->dry_run)
        gc_orphan(s, o);
    if (!*gone)
        return delete_held(s, r, o, doc, opt, out, st);
    json_decref(doc);
    *out = object_view(r, o);
    if (opt->dry_run || !object_remove(s, r, o, st))
        return 0;
    json_decref(*out);
    *out = NULL;
    return -1;
}

int object_finish_delete(struct server *s, const struct resource *r, struct obj *o, bool *gone,
                         json_t **st)
{
    int64_t grace = json_int_at(o->doc, "metadata.deletionGracePeriodSeconds", 0);
    *gone = json_at(o->doc, "metadata.deletionTimestamp") && !held(r, o->doc, grace);
    return *gone ? object_remove(s, r, o, st) : 0;
}
