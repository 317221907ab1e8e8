/* What must hold at every committed write, whatever fails. The controller acts on what it knows,
 * which may be WINDOW old, and a request may be that long on its way: numbers are therefore
 * compared with the loosest that held within the window, and what was lost by accident in it is
 * forgiven. */
#include "sim/check_int.h"

#include "lib/kube/types.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define IS(a, b)    (strcmp(a, b) == 0)
#define WINDOW      (75 * NS_PER_S)
#define CALM_WINDOW (3 * NS_PER_S)
#define LATE_MAX    64 /* objects that were on their way when their deployment went */

char check_failure[512];
uint64_t check_count;

static struct deploy *deploys;
static struct vpod *vpods;

void check_fail(const char *fmt, ...)
{
    va_list ap;
    if (*check_failure)
        return;
    va_start(ap, fmt);
    int n = snprintf(check_failure, sizeof check_failure, "at %.3f s: ", (double)sim_now() / 1e9);
    vsnprintf(check_failure + n, sizeof check_failure - (size_t)n, fmt, ap);
    va_end(ap);
    trace("check: %s", check_failure);
    sim_stop();
}

/* ---- histories ---- */

void hist_set(struct hist *h, int64_t v)
{
    if (h->n && h->v[(h->n - 1) % HIST_MAX].v == v)
        return;
    h->v[h->n++ % HIST_MAX] = (struct moment){sim_now(), v};
}

/* The network is hostile, or was within the window. */
static uint64_t since(void)
{
    const struct net_faults none = {0};
    uint64_t now = sim_now();
    bool bad = memcmp(&net_faults, &none, sizeof none) != 0 ||
               (net_trouble_ns && now < net_trouble_ns + WINDOW);
    uint64_t window = bad ? WINDOW : CALM_WINDOW;
    return now > window ? now - window : 0;
}

/* Calls for each value that held at some time in the window; the oldest may have begun before. */
static bool held(const struct hist *h, unsigned back, int64_t *v)
{
    if (back >= h->n || back >= HIST_MAX)
        return false;
    if (back && h->v[(h->n - back) % HIST_MAX].at < since())
        return false; /* the one after it began before the window did */
    *v = h->v[(h->n - 1 - back) % HIST_MAX].v;
    return true;
}

static int64_t hist_max(const struct hist *h)
{
    int64_t best = 0, v;
    for (unsigned i = 0; held(h, i, &v); i++)
        best = i == 0 || v > best ? v : best;
    return best;
}

static int64_t hist_min(const struct hist *h)
{
    int64_t best = 0, v;
    for (unsigned i = 0; held(h, i, &v); i++)
        best = i == 0 || v < best ? v : best;
    return best;
}

static bool hist_had(const struct hist *h, int64_t wanted)
{
    int64_t v;
    for (unsigned i = 0; held(h, i, &v); i++)
        if (v == wanted)
            return true;
    return false;
}

/* How often it changed within the window. */
static int64_t hist_changes(const struct hist *h)
{
    int64_t n = 0, v;
    for (unsigned i = 0; held(h, i, &v); i++)
        n++;
    return n ? n - 1 : 0;
}

/* ---- deployments and pods as events tell of them ---- */

struct deploy *check_deploy(const char *uid)
{
    for (struct deploy *d = deploys; d; d = d->next)
        if (IS(d->uid, uid))
            return d;
    return NULL;
}

struct vpod *check_pods(void)
{
    return vpods;
}

static int64_t number(const json_t *doc, const char *path, int64_t absent)
{
    return json_int_at(doc, path, absent);
}

static void see_infd(json_t *old, json_t *now)
{
    const json_t *doc = now ? now : old;
    const char *uid = json_str_at(doc, "metadata.uid", "");
    struct deploy *d = check_deploy(uid);
    if (!d) {
        d = xcalloc(1, sizeof *d);
        d->uid = xstrdup(uid);
        d->name = xstrdup(json_str_at(doc, "metadata.name", ""));
        d->next = deploys;
        deploys = d;
    }
    d->gone = !now || json_at(now, "metadata.deletionTimestamp");
    int64_t unavailable = number(doc, "spec.rollout.maxUnavailable", 0);
    int64_t surge = number(doc, "spec.rollout.maxSurge", 1);
    hist_set(&d->unavailable, unavailable);
    hist_set(&d->surge, surge || unavailable ? surge : 1);
    hist_set(&d->generation, number(doc, "metadata.generation", 0));
    for (int r = 0; r < ROLES; r++) {
        char path[64];
        snprintf(path, sizeof path, "spec.%s", role_names[r]);
        const json_t *role = json_at(doc, path);
        hist_set(&d->said[r], number(role, "replicas", -1));
        if (!role && r != STANDBY)
            hist_set(&d->want[r], 0);
    }
    hist_set(&d->want[STANDBY],
             number(doc, "spec.standby.hot", 0) + number(doc, "spec.standby.warm", 0));
}

static const json_t *controller_of(const json_t *doc, unsigned *n)
{
    size_t i;
    json_t *ref;
    const json_t *found = NULL;
    *n = 0;
    json_array_foreach (json_at(doc, "metadata.ownerReferences"), i, ref)
        if (json_bool_at(ref, "controller", false)) {
            found = ref;
            ++*n;
        }
    return found;
}

static const char *map_at(const json_t *doc, const char *map, const char *key)
{
    const char *v = json_string_value(json_object_get(json_at(doc, map), key));
    return v ? v : "";
}

static int role_of(const json_t *doc)
{
    const char *name = map_at(doc, "metadata.labels", LABEL_ROLE);
    for (int r = 0; r < ROLES; r++)
        if (IS(name, role_names[r]))
            return r;
    return -1;
}

static bool by_controller(void)
{
    return strncmp(net_writer(), "controller-", 11) == 0;
}

static bool condition_true(const json_t *doc, const char *type)
{
    size_t i;
    json_t *c;
    json_array_foreach (json_at(doc, "status.conditions"), i, c)
        if (IS(json_str_at(c, "type", ""), type))
            return IS(json_str_at(c, "status", ""), "True");
    return false;
}

static void view(const json_t *doc, struct vpod *p)
{
    unsigned owners;
    const json_t *owner = controller_of(doc, &owners);
    const char *phase = json_str_at(doc, "status.phase", "");
    struct vpod v = {.next = p->next, .ready_ns = p->ready_ns, .whole = p->whole};
    snprintf(v.name, sizeof v.name, "%s", json_str_at(doc, "metadata.name", ""));
    snprintf(v.uid, sizeof v.uid, "%s", json_str_at(doc, "metadata.uid", ""));
    snprintf(v.owner, sizeof v.owner, "%s", owner ? json_str_at(owner, "uid", "") : "");
    snprintf(v.group, sizeof v.group, "%s", map_at(doc, "metadata.labels", LABEL_GROUP));
    snprintf(v.revision, sizeof v.revision, "%s", map_at(doc, "metadata.labels", LABEL_REVISION));
    v.role = role_of(doc);
    const char *size = map_at(doc, "metadata.labels", LABEL_GROUP_SIZE);
    v.size = *size ? strtoll(size, NULL, 10) : 1;
    const char *epoch = map_at(doc, "metadata.annotations", ANN_EPOCH);
    v.epoch = *epoch ? strtoll(epoch, NULL, 10) : 1;
    v.started = *map_at(doc, "metadata.annotations", ANN_PEERS) != 0;
    snprintf(v.replaces, sizeof v.replaces, "%s",
             map_at(doc, "metadata.annotations", ANN_REPLACES));
    v.gated = json_array_size(json_at(doc, "spec.schedulingGates")) > 0;
    v.failed_epoch = strtoll(map_at(doc, "metadata.annotations", ANN_FAILED_EPOCH), NULL, 10);
    v.first = IS(map_at(doc, "metadata.labels", LABEL_RANK), "0");
    v.deleting = json_at(doc, "metadata.deletionTimestamp") != NULL;
    v.failed = IS(phase, "Failed") || IS(phase, "Succeeded");
    v.at_role = IS(map_at(doc, "metadata.annotations", ANN_ACTUAL_ROLE),
                   map_at(doc, "metadata.labels", LABEL_ROLE));
    v.ready = v.at_role && condition_true(doc, "Ready");
    if (v.ready && !p->ready)
        v.ready_ns = sim_now();
    *p = v;
}

/* A group counts in its role while none of its pods is ending; it is ready when all are there and
 * are. */
static bool group_is(const struct vpod *first, bool ready)
{
    int64_t there = 0;
    bool started = false; /* it was whole once: what is missing now is gone */
    for (const struct vpod *p = vpods; p; p = p->next) {
        if (!IS(p->group, first->group) || !IS(p->owner, first->owner))
            continue;
        if (p->deleting || p->failed || (ready && !p->ready))
            return false;
        started |= p->started || p->whole;
        there++;
    }
    return there >= first->size || !(ready || started);
}

static bool group_gated(const struct vpod *first)
{
    for (const struct vpod *p = vpods; p; p = p->next)
        if (IS(p->group, first->group) && IS(p->owner, first->owner) && !p->gated)
            return false;
    return true;
}

int64_t check_groups(const struct deploy *d, int role, bool ready)
{
    int64_t n = 0;
    for (const struct vpod *p = vpods; p; p = p->next)
        n += p->first && p->role == role && IS(p->owner, d->uid) && group_is(p, ready);
    return n;
}

static bool one_revision(const struct deploy *d, int role)
{
    const char *seen = NULL;
    for (const struct vpod *p = vpods; p; p = p->next) {
        if (!p->first || p->role != role || !IS(p->owner, d->uid) || !group_is(p, false))
            continue;
        if (seen && !IS(seen, p->revision))
            return false;
        seen = p->revision;
    }
    return true;
}

/* ---- rules about pods ---- */

/* Groups that wait at their gate for the place, and carry the record, of one that is about to go: a
 * pair takes the room of one. */
static int64_t stand_ins(const struct deploy *d, int role)
{
    int64_t n = 0;
    for (const struct vpod *p = vpods; p; p = p->next) {
        bool here = p->first && p->role == role && IS(p->owner, d->uid) && group_is(p, false);
        if (!here || !*p->replaces || !group_gated(p))
            continue;
        for (const struct vpod *q = vpods; q; q = q->next)
            n += q->first && q->role == role && IS(q->group, p->replaces) && IS(q->owner, d->uid) &&
                 group_is(q, false);
    }
    return n;
}

static void rule_number(const struct deploy *d, int role, const char *what)
{
    int64_t live = check_groups(d, role, false) - stand_ins(d, role);
    int64_t most = hist_max(&d->want[role]);
    bool rolling = !one_revision(d, role) || hist_changes(&d->generation);
    check_count++;
    if (rolling)
        most += hist_max(&d->surge);
    if (live > most)
        check_fail("%s makes %lld %s groups of %s; at most %lld may be (wanted %lld%s)", what,
                   (long long)live, role_names[role], d->name, (long long)most,
                   (long long)hist_max(&d->want[role]), rolling ? ", rolling" : "");
}

/* A ready group was taken away on purpose. */
static void rule_budget(const struct deploy *d, int role, const char *what)
{
    int64_t ready = check_groups(d, role, true), lost = hist_changes(&d->lost[role]);
    int64_t least = hist_min(&d->want[role]) - hist_max(&d->unavailable);
    check_count++;
    if (ready + lost < least)
        check_fail("%s leaves %lld ready %s groups of %s; %lld must stay (%lld lost by accident)",
                   what, (long long)ready, role_names[role], d->name, (long long)least,
                   (long long)lost);
}

static void rule_owner(const json_t *doc, const char *plural)
{
    unsigned n;
    const json_t *owner = controller_of(doc, &n);
    const char *name = json_str_at(doc, "metadata.name", "");
    check_count++;
    if (n != 1)
        check_fail("%s %s was made with %u controlling owners", plural, name, n);
    if (n != 1 || !IS(json_str_at(owner, "kind", ""), "InferenceDeployment"))
        return;
    struct deploy *d = check_deploy(json_str_at(owner, "uid", ""));
    if (!d)
        check_fail("%s %s was made for an InferenceDeployment that never was", plural, name);
    else if (d->gone && ++d->late > LATE_MAX)
        check_fail("%s: %s %s was made for %s, which is gone; so were %d before", net_writer(),
                   plural, name, d->name, LATE_MAX);
}

/* What others own in a pod, the controller leaves alone. */
static void rule_writers(const json_t *old, const json_t *now, const char *name)
{
    static const char *const keys[] = {ANN_ACTUAL_ROLE, ANN_INCARNATION, ANN_FAILED_EPOCH};
    check_count++;
    if (!json_equal(json_object_get(old, "status"), json_object_get(now, "status")))
        check_fail("the controller writes the status of pod %s", name);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (!IS(map_at(old, "metadata.annotations", keys[i]),
                map_at(now, "metadata.annotations", keys[i])))
            check_fail("the controller writes %s of pod %s", keys[i], name);
}

/* One failure, one restart: the epoch goes from the one that failed to the next, on every pod. */
static void rule_epoch(const struct vpod *was, const struct vpod *is)
{
    int64_t failed = 0;
    if (is->size < 2 || is->epoch == was->epoch)
        return;
    for (const struct vpod *p = vpods; p; p = p->next)
        if (IS(p->group, is->group) && IS(p->owner, is->owner) && p->failed_epoch > failed)
            failed = p->failed_epoch;
    check_count++;
    if (is->epoch != failed + 1)
        check_fail("group %s goes from epoch %lld to %lld; epoch %lld is the last that failed",
                   is->group, (long long)was->epoch, (long long)is->epoch, (long long)failed);
}

static struct vpod *vpod_find(const char *uid)
{
    for (struct vpod *p = vpods; p; p = p->next)
        if (IS(p->uid, uid))
            return p;
    return NULL;
}

static void vpod_remove(struct vpod *p)
{
    for (struct vpod **at = &vpods; *at; at = &(*at)->next)
        if (*at == p) {
            *at = p->next;
            free(p);
            return;
        }
}

/* What became ready within the window may not have been seen to be. */
static bool long_ready(const struct vpod *first)
{
    for (const struct vpod *p = vpods; p; p = p->next)
        if (IS(p->group, first->group) && IS(p->owner, first->owner) && p->ready_ns > since())
            return false;
    return true;
}

static void judge_pod(const struct deploy *d, const struct vpod *was, const struct vpod *is,
                      bool was_ready)
{
    char what[256];
    snprintf(what, sizeof what, "%s: %s of pod %s", net_writer(),
             !is   ? "end"
             : was ? "change"
                   : "creation",
             is ? is->name : was->name);
    if (d->gone)
        return;
    if (is && is->first && (!was || was->role != is->role) && is->role >= 0)
        rule_number(d, is->role, what);
    if (was_ready && (!is || is->deleting || was->role != is->role) && was->role >= 0)
        rule_budget(d, was->role, what);
}

static void note_whole(const struct vpod *is)
{
    int64_t there = 0;
    for (const struct vpod *p = vpods; p; p = p->next)
        there += IS(p->group, is->group) && IS(p->owner, is->owner);
    for (struct vpod *p = vpods; p && there >= is->size; p = p->next)
        p->whole |= IS(p->group, is->group) && IS(p->owner, is->owner);
}

static void see_pod(json_t *old, json_t *now)
{
    const json_t *doc = now ? now : old;
    struct vpod *p = vpod_find(json_str_at(doc, "metadata.uid", "")), was = {0};
    bool known = p != NULL, ready = false, was_ready = false;
    if (*map_at(doc, "metadata.labels", LABEL_INFD) == 0)
        return;
    if (known) {
        was = *p;
        was_ready = group_is(p, true);
        ready = was_ready && long_ready(p);
    }
    if (now && !known) {
        p = xcalloc(1, sizeof *p);
        p->next = vpods;
        vpods = p;
    }
    if (now) {
        view(now, p);
        note_whole(p);
    }
    struct deploy *d = check_deploy(now ? p->owner : was.owner);
    if (!now && known)
        vpod_remove(p);
    if (by_controller() && !old)
        rule_owner(now, "pod");
    if (by_controller() && old && now) {
        rule_writers(old, now, p->name);
        rule_epoch(&was, p);
    }
    if (!d)
        return;
    if (by_controller())
        judge_pod(d, known ? &was : NULL, now ? p : NULL, ready);
    else if (known && was_ready && was.role >= 0 && !(now && group_is(p, true)))
        hist_set(&d->lost[was.role], (int64_t)++d->losses);
}

/* ---- rules about the rest ---- */

static void see_pool(json_t *old, json_t *now)
{
    const json_t *doc = now ? now : old;
    unsigned n;
    const json_t *owner = controller_of(doc, &n);
    struct deploy *d = check_deploy(owner ? json_str_at(owner, "uid", "") : "");
    int role = role_of(doc);
    if (!d || role < 0 || !now)
        return;
    int64_t before = number(old, "spec.replicas", -1), after = number(now, "spec.replicas", -1);
    hist_set(&d->want[role], after < 0 ? 0 : after);
    check_count++;
    if (old && by_controller() && before != after && !d->gone && !hist_had(&d->said[role], after) &&
        !json_at(now, "spec.bounds"))
        check_fail("%s sets replicas of WorkerPool %s from %lld to %lld, which is not what the "
                   "InferenceDeployment says",
                   net_writer(), json_str_at(doc, "metadata.name", ""), (long long)before,
                   (long long)after);
}

/* One controller writes: the one that the Lease names. */
static char leader[80];

static void see_lease(const json_t *now)
{
    snprintf(leader, sizeof leader, "%s", json_str_at(now, "spec.holderIdentity", ""));
}

void check_leads(const char *who, const char *path)
{
    size_t n = strlen(who);
    check_count++;
    if (*leader && (strncmp(leader, who, n) != 0 || leader[n] != '_'))
        check_fail("%s writes %s while %s leads", who, path, leader);
}

static bool same(const json_t *a, const json_t *b)
{
    return (!a && !b) || json_equal(a, b);
}

static void rule_infd(const json_t *old, const json_t *now)
{
    check_count++;
    if (old && now && by_controller() &&
        (!same(json_object_get(old, "spec"), json_object_get(now, "spec")) ||
         !same(json_at(old, "metadata.labels"), json_at(now, "metadata.labels"))))
        check_fail("the controller changes the spec of an InferenceDeployment");
}

void check_event(const char *plural, json_t *old, json_t *now)
{
    if (IS(plural, "inferencedeployments")) {
        rule_infd(old, now);
        see_infd(old, now);
    } else if (IS(plural, "workerpools")) {
        if (!old && by_controller())
            rule_owner(now, "WorkerPool");
        see_pool(old, now);
    } else if (IS(plural, "pods")) {
        see_pod(old, now);
    } else if (IS(plural, "leases")) {
        see_lease(now);
    } else if (!old && by_controller() &&
               (IS(plural, "secrets") || IS(plural, "poddisruptionbudgets") ||
                IS(plural, "controllerrevisions"))) {
        rule_owner(now, plural);
    }
}
