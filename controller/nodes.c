/* What a node's state means for our pods on it. Nodes are read cluster-wide; where that right is
 * missing every node counts as one that stays. */
#include "controller/controller.h"
#include "controller/standby.h"
#include "lib/base/clock.h"
#include "lib/base/log.h"

#define LOST_NS (30 * NS_PER_S) /* silence after which a node's pods are replaced */

/* Taints of those who take a node away for good. A taint that only keeps new pods off says nothing
 * about those that run. */
static bool takes_away(const struct kube_taint *t)
{
    static const char *const keys[] = {"node.kubernetes.io/unschedulable",
                                       "node.kubernetes.io/out-of-service",
                                       "node.cloudprovider.kubernetes.io/shutdown",
                                       "ToBeDeletedByClusterAutoscaler",
                                       "karpenter.sh/disrupted",
                                       BATON_PREFIX "quarantine"};
    for (size_t i = 0; t->key && i < sizeof keys / sizeof *keys; i++)
        if (strcmp(t->key, keys[i]) == 0)
            return true;
    return false;
}

static bool emptied(const struct kube_node *n)
{
    bool taken = n->unschedulable;
    for (size_t i = 0; i < n->taints.n; i++)
        taken |= takes_away(VIEW_AT(struct kube_taint, n->taints, i));
    return taken;
}

/* Since when the node has not been Ready; 0 while it is. */
static uint64_t silent_since(const struct kube_node *n)
{
    const struct kube_condition *ready = kube_condition_find(&n->conditions, "Ready");
    if (!ready || strcmp(ready->status, "True") == 0)
        return 0;
    return ready->since_ns ? ready->since_ns : 1;
}

static bool count_usable(const void *object, void *ctx)
{
    *(size_t *)ctx += !emptied(object) && !silent_since(object);
    return true;
}

/* Is there a node that could take a pod? Where there is none (a single machine, or an API server
 * that all nodes have lost) nothing is gained by moving pods. */
static bool elsewhere(struct ctl *c)
{
    if (c->usable_nodes_stale) {
        c->usable_nodes = 0;
        kube_cache_each(c->nodes, count_usable, &c->usable_nodes);
        c->usable_nodes_stale = false;
    }
    return c->usable_nodes > 0;
}

enum node_state nodes_state(struct ctl *c, const struct kube_pod *p, uint64_t *look_again_ns)
{
    if (!p->node || !c->nodes || !kube_cache_synced(c->nodes) || !kube_cache_count(c->nodes))
        return NODE_STAYS;
    const struct kube_node *n = kube_cache_get(c->nodes, NULL, p->node);
    if (!n)
        return NODE_LOST;
    uint64_t since = silent_since(n), now = clock_wall_ns();
    if (!elsewhere(c))
        return NODE_STAYS;
    if (since && now < since + LOST_NS)
        *look_again_ns = since + LOST_NS;
    else if (since)
        return NODE_LOST;
    return emptied(n) || standby_quarantine(c, p->node) ? NODE_LEAVING : NODE_STAYS;
}

struct touched {
    struct ctl *ctl;
    const char *node;
    void (*wake)(struct ctl *c, const char *namespace, const char *infd);
};

static bool wake_pod(const void *object, void *ctx)
{
    struct touched *t = ctx;
    const struct kube_pod *p = object;
    if (p->node && strcmp(p->node, t->node) == 0)
        t->wake(t->ctl, p->meta.namespace, kube_label(&p->meta, LABEL_INFD));
    return true;
}

void nodes_changed(struct ctl *c, const struct kube_node *old, const struct kube_node *now,
                   void (*wake)(struct ctl *c, const char *namespace, const char *infd))
{
    bool same =
        old && now && emptied(old) == emptied(now) && silent_since(old) == silent_since(now);
    c->usable_nodes_stale |= !same;
    if (same || !c->pods || !kube_cache_synced(c->nodes)) /* a list that ends wakes all */
        return;
    struct touched t = {c, now ? now->meta.name : old->meta.name, wake};
    kube_cache_each(c->pods, wake_pod, &t);
}
