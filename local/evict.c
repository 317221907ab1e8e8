/* Disruption budgets: how many pods may go, as the disruption controller counts. */
#include "local/selector.h"
#include "local/sub.h"

#include <stdio.h>
#include <stdlib.h>

struct budget {
    int64_t expected, healthy, desired, allowed;
};

static bool is_ready(const json_t *pod)
{
    size_t i;
    json_t *c;
    json_array_foreach (json_at(pod, "status.conditions"), i, c)
        if (!strcmp(json_str_at(c, "type", ""), "Ready"))
            return !strcmp(json_str_at(c, "status", ""), "True");
    return false;
}

static bool is_live(const json_t *pod)
{
    const char *phase = json_str_at(pod, "status.phase", "");
    return strcmp(phase, "Succeeded") && strcmp(phase, "Failed");
}

/* An integer, or a percentage of `of` rounded up. */
static int64_t amount(const json_t *v, int64_t of)
{
    if (json_is_integer(v))
        return json_integer_value(v);
    const char *s = json_is_string(v) ? json_string_value(v) : "0%";
    return (strtoll(s, NULL, 10) * of + 99) / 100;
}

static struct budget count(struct server *s, const struct obj *pdb, const struct selector *sel)
{
    struct budget b = {0};
    const struct bucket *pods = store_bucket(s->store, "pods");
    for (size_t i = 0; i < bucket_count(pods); i++) {
        const struct obj *p = bucket_at(pods, i);
        if (strcmp(p->ns, pdb->ns) || !is_live(p->doc) || !selector_matches(sel, p->doc))
            continue;
        b.expected++;
        b.healthy += is_ready(p->doc) && !json_at(p->doc, "metadata.deletionTimestamp");
    }
    const json_t *min = json_at(pdb->doc, "spec.minAvailable");
    const json_t *max = json_at(pdb->doc, "spec.maxUnavailable");
    b.desired = max ? b.expected - amount(max, b.expected) : amount(min, b.expected);
    if (b.desired < 0)
        b.desired = 0;
    b.allowed = b.healthy > b.desired && b.expected ? b.healthy - b.desired : 0;
    return b;
}

static bool selector_of(const struct obj *pdb, struct selector *out)
{
    json_t *st = NULL;
    const json_t *sel = json_at(pdb->doc, "spec.selector");
    if (!sel)
        return false;
    if (!selector_from_object(sel, out, &st))
        return true;
    json_decref(st);
    return false;
}

static int refuse(const struct obj *pdb, const struct budget *b, json_t **st)
{
    (void)status_set(st, 429, "TooManyRequests", NULL, NULL,
                     "Cannot evict pod as it would violate the pod's disruption budget.");
    CLEANUP(free_charp)
    char *msg = xasprintf("The disruption budget %s needs %lld healthy pods and has %lld currently",
                          pdb->name, (long long)b->desired, (long long)b->healthy);
    status_add_cause(*st, "DisruptionBudget", msg, NULL);
    return -1;
}

int pdb_check(struct server *s, const struct obj *pod, json_t **st)
{
    const struct bucket *pdbs = store_bucket(s->store, "policy/poddisruptionbudgets");
    bool ready = is_ready(pod->doc);
    int rc = 0;
    if (!is_live(pod->doc) || !strcmp(json_str_at(pod->doc, "status.phase", ""), "Pending"))
        return 0;
    for (size_t i = 0; i < bucket_count(pdbs) && !rc; i++) {
        const struct obj *pdb = bucket_at(pdbs, i);
        struct selector sel;
        if (strcmp(pdb->ns, pod->ns) || !selector_of(pdb, &sel))
            continue;
        struct budget b = count(s, pdb, &sel);
        const char *policy =
            json_str_at(pdb->doc, "spec.unhealthyPodEvictionPolicy", "IfHealthyBudget");
        bool spare = !ready && (!strcmp(policy, "AlwaysAllow") || b.healthy >= b.desired);
        if (selector_matches(&sel, pod->doc) && !spare && b.allowed < 1)
            rc = refuse(pdb, &b, st);
        selector_fini(&sel);
    }
    return rc;
}

static void update_status(struct server *s, const struct resource *r, struct obj *pdb)
{
    struct selector sel;
    json_t *st = NULL;
    if (!selector_of(pdb, &sel))
        return;
    struct budget b = count(s, pdb, &sel);
    selector_fini(&sel);
    json_t *status = json_pack("{s:I,s:I,s:I,s:I,s:I}", "currentHealthy", (json_int_t)b.healthy,
                               "desiredHealthy", (json_int_t)b.desired, "disruptionsAllowed",
                               (json_int_t)b.allowed, "expectedPods", (json_int_t)b.expected,
                               "observedGeneration",
                               (json_int_t)json_int_at(pdb->doc, "metadata.generation", 1));
    if (!json_equal(status, json_object_get(pdb->doc, "status"))) {
        json_t *doc = json_deep_copy(pdb->doc);
        json_object_set(doc, "status", status);
        if (!object_store(s, r, doc, &st))
            json_decref(st);
    }
    json_decref(status);
}

void pdb_tick(struct server *s)
{
    const struct resource *r = resource_find(s->reg, "policy", "v1", "poddisruptionbudgets");
    for (size_t i = 0; i < bucket_count(r->bucket); i++)
        update_status(s, r, bucket_at(r->bucket, i));
}
