/* Free capacity: the nodes' allocatable minus what the pods on them ask for, extended resources
 * included, on nodes that taints, selector and required node affinity allow. Nodes are read
 * cluster-wide, pods in the controller's own scope only; what it can't see the scheduler still can,
 * and its "Unschedulable" has the last word. */
#include "controller/affinity.h"
#include "controller/scaling.h"
#include "lib/base/log.h"

#include <stdio.h>
#include <stdlib.h>

#define RESOURCES_MAX 24

/* Where containers are processes of one machine, only memory is counted by whoever binds pods. */
#define PROCESS_RUNTIME "baton://"

static const struct view slim_meta_view = {
    .name = "metadata",
    .size = sizeof(struct kube_meta),
    .fields = (const struct view_field[]){
        {"name", VIEW_STR, offsetof(struct kube_meta, name), true, NULL},
        {"namespace", VIEW_STR, offsetof(struct kube_meta, namespace), false, NULL},
        {"uid", VIEW_STR, offsetof(struct kube_meta, uid), false, NULL},
        {"resourceVersion", VIEW_STR, offsetof(struct kube_meta, resource_version), false, NULL},
        {0}}};
static const struct view slim_spec_view = {
    .name = "container",
    .size = sizeof(struct kube_container_spec),
    .fields =
        (const struct view_field[]){{"resources.requests", VIEW_MAP,
                                     offsetof(struct kube_container_spec, requests), false, NULL},
                                    {0}}};
/* The pods of others: only where they are and what they ask for. */
static const struct view slim_pod_view = {
    .name = "Pod",
    .size = sizeof(struct kube_pod),
    .fields = (const struct view_field[]){
        {"metadata", VIEW_OBJ, offsetof(struct kube_pod, meta), true, &slim_meta_view},
        {"spec.nodeName", VIEW_STR, offsetof(struct kube_pod, node), false, NULL},
        {"status.phase", VIEW_STR, offsetof(struct kube_pod, phase), false, NULL},
        {"spec.containers", VIEW_LIST, offsetof(struct kube_pod, specs), false, &slim_spec_view},
        {0}}};
static const struct kube_kind other_pods = {"v1", "Pod", "pods", true, &slim_pod_view};

struct room {
    struct ctl *ctl;
    struct kube_cache *others; /* pods that are not workers */
};

struct room *room_start(struct ctl *c)
{
    struct room *r = xcalloc(1, sizeof *r);
    struct err e = {0};
    struct kube_cache_config others = {.kind = &other_pods,
                                       .namespace = c->namespace,
                                       .label_selector = "!" LABEL_INFD,
                                       .packed = true};
    r->ctl = c;
    if (kube_cache_start(c->client, &others, &r->others, &e))
        log_warn("free capacity will not be known", LERR(&e));
    return r;
}

void room_stop(struct room *r)
{
    if (!r)
        return;
    if (r->others)
        kube_cache_stop(r->others);
    free(r);
}

/* ---- one role's needs ---- */

struct asks {
    struct scale_quantity q[RESOURCES_MAX];
    size_t n;
    json_t *selector, *tolerations, *affinity;
    json_t *template; /* NULL: the pods are Baton's own; names in q point into it */
};

static struct scale_quantity *quantity_of(struct scale_quantity *q, size_t *n, const char *name)
{
    for (size_t i = 0; i < *n; i++)
        if (strcmp(q[i].name, name) == 0)
            return &q[i];
    if (*n == RESOURCES_MAX)
        return NULL;
    q[*n] = (struct scale_quantity){name, 0};
    return &q[(*n)++];
}

static int64_t milli_of(const char *text)
{
    int64_t v;
    return text && !str_to_quantity_milli(str_c(text), &v) && v > 0 ? v : 0;
}

static json_t *parse(const char *text)
{
    return text ? json_parse(str_c(text), 1u << 20, 0, NULL) : NULL;
}

static void ask(struct asks *a, const char *resource, const char *quantity)
{
    struct scale_quantity *q = quantity_of(a->q, &a->n, resource);
    if (q)
        q->milli += milli_of(quantity);
}

/* Requests; where there is none a limit stands for it (the API server's own default). */
static void ask_for_role(struct asks *a, const struct infd_role *role)
{
    for (size_t i = 0; i < role->limits.n; i++)
        if (!view_map_get(&role->requests, role->limits.items[i].key))
            ask(a, role->limits.items[i].key, role->limits.items[i].value);
    for (size_t i = 0; i < role->requests.n; i++)
        ask(a, role->requests.items[i].key, role->requests.items[i].value);
}

static void ask_for_container(struct asks *a, const json_t *resources)
{
    json_t *requests = json_object_get(resources, "requests"),
           *limits = json_object_get(resources, "limits"), *v;
    const char *key;
    char number[32];
    json_object_foreach (limits, key, v) {
        snprintf(number, sizeof number, "%lld", (long long)json_integer_value(v));
        if (!json_object_get(requests, key))
            ask(a, key, json_is_integer(v) ? number : json_string_value(v));
    }
    json_object_foreach (requests, key, v) {
        snprintf(number, sizeof number, "%lld", (long long)json_integer_value(v));
        ask(a, key, json_is_integer(v) ? number : json_string_value(v));
    }
}

static json_t *selector_of(const struct infd_role *role)
{
    json_t *o = json_object();
    for (size_t i = 0; i < role->node_selector.n; i++)
        json_object_set_new(o, role->node_selector.items[i].key,
                            json_string(role->node_selector.items[i].value));
    return o;
}

/* What the pods of a role will have: a user's template comes before the role's own fields, as in
 * pod.c. */
static void read_asks(const struct kube_infd *d, const struct infd_role *role, struct asks *a)
{
    json_t *o;
    size_t i;
    *a = (struct asks){.template = parse(d->engine_template)};
    json_t *spec = json_object_get(a->template, "spec");
    json_array_foreach (json_object_get(spec, "containers"), i, o)
        ask_for_container(a, json_object_get(o, "resources"));
    if (!spec)
        ask_for_role(a, role);
    ask(a, "pods", "1");
    a->selector = json_incref(json_object_get(spec, "nodeSelector"));
    a->tolerations = json_incref(json_object_get(spec, "tolerations"));
    a->affinity = json_incref(json_object_get(spec, "affinity"));
    a->selector = a->selector ? a->selector : selector_of(role);
    a->tolerations = a->tolerations ? a->tolerations : parse(role->tolerations);
    a->affinity = a->affinity ? a->affinity : parse(role->affinity);
}

static void asks_fini(struct asks *a)
{
    json_decref(a->selector);
    json_decref(a->tolerations);
    json_decref(a->affinity);
    json_decref(a->template);
}

static bool tolerates(const json_t *list, const struct kube_taint *t)
{
    size_t i;
    json_t *o;
    json_array_foreach (list, i, o) {
        const char *key = json_str_at(o, "key", NULL), *effect = json_str_at(o, "effect", NULL);
        bool exists = strcmp(json_str_at(o, "operator", "Equal"), "Exists") == 0;
        const char *value = json_str_at(o, "value", "");
        if (effect && *effect && t->effect && strcmp(effect, t->effect) != 0)
            continue;
        if (!key || !*key) {
            if (exists)
                return true;
            continue;
        }
        if (t->key && strcmp(key, t->key) == 0 &&
            (exists || strcmp(value, t->value ? t->value : "") == 0))
            return true;
    }
    return false;
}

static bool may_run_on(const struct asks *a, const struct kube_node *n)
{
    const char *key;
    json_t *value;
    if (n->unschedulable || !kube_condition_true(&n->conditions, "Ready"))
        return false;
    for (size_t i = 0; i < n->taints.n; i++) {
        const struct kube_taint *t = VIEW_AT(struct kube_taint, n->taints, i);
        if (t->effect && strcmp(t->effect, "PreferNoSchedule") != 0 &&
            !tolerates(a->tolerations, t))
            return false;
    }
    json_object_foreach (a->selector, key, value) {
        const char *have = kube_label(&n->meta, key), *want = json_string_value(value);
        if (!have || !want || strcmp(have, want) != 0)
            return false;
    }
    return affinity_allows(a->affinity, n);
}

/* ---- the nodes ---- */

struct free_node {
    UT_hash_handle hh;
    struct scale_quantity q[RESOURCES_MAX];
    size_t n;
    const char *name;
    bool process, may_run[SCALE_ROLES];
};

struct free_nodes {
    struct free_node *all;
    struct asks asks[SCALE_ROLES];
};

static bool add_node(const void *object, void *ctx)
{
    struct free_nodes *x = ctx;
    struct free_node *f = xcalloc(1, sizeof *f);
    const struct kube_node *n = object;
    f->name = n->meta.name;
    f->process = n->runtime && strncmp(n->runtime, PROCESS_RUNTIME, strlen(PROCESS_RUNTIME)) == 0;
    for (int i = 0; i < SCALE_ROLES; i++)
        f->may_run[i] = may_run_on(&x->asks[i], n);
    for (size_t i = 0; i < n->allocatable.n; i++) {
        struct scale_quantity *q = quantity_of(f->q, &f->n, n->allocatable.items[i].key);
        if (q)
            q->milli = milli_of(n->allocatable.items[i].value);
    }
    HASH_ADD_KEYPTR(hh, x->all, f->name, strlen(f->name), f);
    return true;
}

static void take(struct free_node *f, const char *name, int64_t milli)
{
    for (size_t i = 0; i < f->n; i++)
        if (strcmp(f->q[i].name, name) == 0)
            f->q[i].milli -= milli;
}

/* Until it has ended, also while it is being deleted, a pod holds what it asked for. */
static bool take_pod(const void *object, void *ctx)
{
    struct free_nodes *x = ctx;
    struct free_node *f = NULL;
    const struct kube_pod *p = object;
    if (!p->node || (p->phase && (!strcmp(p->phase, "Succeeded") || !strcmp(p->phase, "Failed"))))
        return true;
    HASH_FIND_STR(x->all, p->node, f);
    if (!f)
        return true;
    take(f, "pods", 1000);
    for (size_t i = 0; i < p->specs.n; i++) {
        const struct view_map *m = &VIEW_AT(struct kube_container_spec, p->specs, i)->requests;
        for (size_t k = 0; k < m->n; k++)
            take(f, m->items[k].key, milli_of(m->items[k].value));
    }
    return true;
}

static uint32_t fits(const struct free_node *f, const struct asks *a)
{
    struct scale_quantity want[RESOURCES_MAX];
    size_t n = 0;
    for (size_t i = 0; i < a->n; i++)
        if (!f->process || strcmp(a->q[i].name, "memory") == 0)
            want[n++] = a->q[i];
    return scale_fits(f->q, f->n, want, n);
}

void room_fill(struct room *r, const struct kube_infd *d, struct scale_space *out)
{
    struct free_nodes x = {0};
    struct free_node *f, *tmp;
    *out = (struct scale_space){0};
    const struct kube_cache *nodes = r->ctl->nodes;
    if (!nodes || !r->others || !kube_cache_synced(nodes) || !kube_cache_synced(r->others) ||
        !kube_cache_count(nodes))
        return;
    if (d->scaling_capacity && strcmp(d->scaling_capacity, "Any") == 0)
        return;
    out->known = true;
    for (int i = 0; i < SCALE_ROLES; i++)
        read_asks(d, infd_role_of(d, (enum rec_role)i), &x.asks[i]);
    kube_cache_each(nodes, add_node, &x);
    kube_cache_each(r->others, take_pod, &x);
    kube_cache_each(r->ctl->pods, take_pod, &x);
    HASH_ITER (hh, x.all, f, tmp) {
        uint32_t each[SCALE_ROLES] = {0};
        for (int i = 0; i < SCALE_ROLES; i++)
            if (f->may_run[i] && infd_has_role(d, (enum rec_role)i))
                each[i] = fits(f, &x.asks[i]);
        scale_space_add(out, each);
        HASH_DEL(x.all, f);
        free(f);
    }
    for (int i = 0; i < SCALE_ROLES; i++)
        asks_fini(&x.asks[i]);
}
