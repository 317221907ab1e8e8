/* What the scaler writes: a pool's number through the scale subresource, and of its status the
 * decisions and the conditions ScalingActive and CapacityLimited, under a field manager of its own,
 * so that the controller's own status apply leaves them alone. */
#include "controller/scaling.h"
#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/base/metrics.h"

#include <stdio.h>
#include <stdlib.h>

#define DECISIONS_MAX 10
#define TELL_NS       (30 * NS_PER_S) /* between two writes for a reason alone */

struct scaling {
    struct load *load;
    char *namespace, *pool, *key, *infd, *infd_uid;
    struct scale_decision d;
    json_t *status;
};

static void scaling_end(struct scaling *s)
{
    struct pool *p = NULL;
    HASH_FIND_STR(s->load->pools, s->key, p);
    if (p)
        p->scaling = false;
    free(s->namespace);
    free(s->pool);
    free(s->key);
    free(s->infd);
    free(s->infd_uid);
    json_decref(s->status);
    free(s);
}

static void on_recorded(const struct kube_result *r, void *ctx)
{
    struct scaling *s = ctx;
    if (r->err.code)
        log_warn("a scaling decision was not recorded", LS("pool", s->key), LERR(&r->err));
    scaling_end(s);
}

static void record(struct scaling *s)
{
    struct err e = {0};
    CLEANUP(json_decrefp)
    json_t *body = json_pack("{s:{s:s, s:s}, s:O}", "metadata", "name", s->pool, "namespace",
                             s->namespace, "status", s->status);
    struct kube_call call = {
        .verb = KUBE_APPLY,
        .kind = &kube_wps,
        .namespace = s->namespace,
        .name = s->pool,
        .subresource = "status",
        .body = body,
        .field_manager = SCALING_MANAGER,
        .force = true,
        .done = on_recorded,
        .ctx = s,
    };
    if (kube_start(s->load->ctl->client, &call, &e))
        scaling_end(s);
}

static void on_scaled(const struct kube_result *r, void *ctx)
{
    struct scaling *s = ctx;
    struct kube_regarding about = {&kube_infds, s->namespace, s->infd, s->infd_uid, NULL};
    if (r->err.code) {
        log_debug("not scaled", LS("pool", s->key),
                  LERR(&r->err)); /* 409: someone scaled; look again in a second */
        scaling_end(s);
        return;
    }
    char note[480];
    snprintf(note, sizeof note, "%s from %d to %d: %s", s->pool, s->d.from, s->d.to, s->d.reason);
    kube_event(s->load->ctl->events, &about, "Normal", "Scaled", "Scale", note);
    log_info("scaled", LS("pool", s->key), LI("from", s->d.from), LI("to", s->d.to),
             LS("why", s->d.reason), LS("inputs", s->d.inputs));
    metric_add(metric_series(metric_family(METRIC_COUNTER, "baton_controller_scalings_total",
                                           "Scaling decisions carried out.", "direction", NULL, 0),
                             s->d.to > s->d.from ? "up" : "down"),
               1);
    record(s);
}

/* ---- the status ---- */

static json_t *decisions(const struct kube_wp *w, const struct scale_decision *d)
{
    char time[CLOCK_RFC3339_MAX];
    json_t *list = json_array();
    if (d->to != d->from)
        json_array_append_new(list,
                              json_pack("{s:s, s:i, s:i, s:s, s:s}", "at",
                                        clock_rfc3339(clock_wall_ns(), 0, time), "from", d->from,
                                        "to", d->to, "reason", d->reason, "inputs", d->inputs));
    CLEANUP(json_decrefp) json_t *old = view_encode(&kube_wp_view, w);
    const json_t *past = json_at(old, "status.decisions");
    for (size_t i = 0; i < json_array_size(past) && json_array_size(list) < DECISIONS_MAX; i++)
        json_array_append(list, json_array_get(past, i));
    return list;
}

/* lastTransitionTime moves only with the status. */
static json_t *condition(const struct kube_wp *w, const char *type, bool status, const char *reason,
                         const char *message)
{
    char time[CLOCK_RFC3339_MAX];
    const struct kube_condition *was = kube_condition_find(&w->conditions, type);
    const char *word = status ? "True" : "False";
    bool same = was && was->status && strcmp(was->status, word) == 0;
    uint64_t since = same && was->since_ns ? was->since_ns : clock_wall_ns();
    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:I}", "type", type, "status", word, "reason",
                     reason, "message", message, "lastTransitionTime",
                     clock_rfc3339(since, 0, time), "observedGeneration",
                     (json_int_t)w->meta.generation);
}

static bool is_active(const struct scale_decision *d)
{
    return d->code != SCALE_UNHEARD && d->code != SCALE_UNMEASURED;
}

static json_t *status_of(const struct kube_wp *w, const struct scale_decision *d)
{
    json_t *conditions = json_array();
    json_array_append_new(conditions, condition(w, "ScalingActive", is_active(d),
                                                scale_code_name(d->code), d->reason));
    json_array_append_new(
        conditions,
        condition(w, "CapacityLimited", d->capacity_limited,
                  d->capacity_limited ? scale_code_name(d->code) : "CapacityFound",
                  d->capacity_limited ? d->reason : "the nodes have room for what is needed"));
    return json_pack("{s:o, s:o}", "decisions", decisions(w, d), "conditions", conditions);
}

static struct scaling *begin(struct load *l, const struct kube_wp *w, struct pool *p)
{
    struct scaling *s = xcalloc(1, sizeof *s);
    *s = (struct scaling){
        .load = l,
        .namespace = xstrdup(w->meta.namespace),
        .pool = xstrdup(w->meta.name),
        .key = xstrdup(p->key),
        .d = p->last,
        .status = status_of(w, &p->last),
    };
    p->scaling = true;
    p->told_ns = clock_mono_ns();
    return s;
}

static bool differs(const struct kube_wp *w, const char *type, bool status, const char *reason,
                    bool *flipped)
{
    const struct kube_condition *c = kube_condition_find(&w->conditions, type);
    *flipped |= !c || !c->status || (strcmp(c->status, "True") == 0) != status;
    return !c || !c->reason || strcmp(c->reason, reason) != 0;
}

/* Nothing is scaled: only why. */
void scaler_tell(struct load *l, const struct kube_wp *w, struct pool *p, uint64_t now)
{
    const struct scale_decision *d = &p->last;
    bool flipped = false;
    bool news = differs(w, "ScalingActive", is_active(d), scale_code_name(d->code), &flipped);
    news |= differs(w, "CapacityLimited", d->capacity_limited,
                    d->capacity_limited ? scale_code_name(d->code) : "CapacityFound", &flipped);
    /* A pool that was made a moment ago has not been measured yet: that is no news. */
    if (!flipped && (!news || now - p->told_ns < TELL_NS))
        return;
    record(begin(l, w, p));
}

void scaler_act(struct load *l, const struct kube_infd *d, const struct kube_wp *w, struct pool *p)
{
    struct scaling *s = begin(l, w, p);
    struct err e = {0};
    s->infd = xstrdup(d->meta.name);
    s->infd_uid = xstrdup(d->meta.uid);
    CLEANUP(json_decrefp)
    json_t *body =
        json_pack("{s:s, s:s, s:{s:s, s:s, s:s}, s:{s:i}}", "apiVersion", "autoscaling/v1", "kind",
                  "Scale", "metadata", "name", s->pool, "namespace", s->namespace,
                  "resourceVersion", w->meta.resource_version, "spec", "replicas", s->d.to);
    struct kube_call call = {
        .verb = KUBE_UPDATE,
        .kind = &kube_wps,
        .namespace = s->namespace,
        .name = s->pool,
        .subresource = "scale",
        .body = body,
        .field_manager = SCALING_MANAGER,
        .done = on_scaled,
        .ctx = s,
    };
    if (kube_start(l->ctl->client, &call, &e))
        scaling_end(s);
}
