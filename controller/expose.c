/* Series of what the controller looks after: each deployment's conditions and each role's groups,
 * as its status says. They come and go with the deployment. Labels avoid `namespace`, which a
 * scrape adds for the controller itself. */
#include "controller/controller.h"
#include "lib/base/metrics.h"

#define CONDITION_NAME "baton_controller_deployment_condition"
#define GROUPS_NAME    "baton_controller_groups"

struct writing {
    struct buf *out;
    int rc;
};

static bool conditions(const void *object, void *ctx)
{
    const struct kube_infd *d = object;
    struct writing *w = ctx;
    for (size_t i = 0; i < d->conditions.n && !w->rc; i++) {
        const struct kube_condition *c = &((const struct kube_condition *)d->conditions.items)[i];
        if (c->type && c->status)
            w->rc = buf_printf(
                w->out, CONDITION_NAME "{infd_namespace=\"%s\",infd=\"%s\",condition=\"%s\"} %d\n",
                d->meta.namespace, d->meta.name, c->type, strcmp(c->status, "True") == 0);
    }
    return !w->rc;
}

static void role(struct writing *w, const struct kube_infd *d, enum rec_role r,
                 const struct infd_role_status *s)
{
    const struct {
        const char *state;
        int64_t n;
    } all[] = {{"desired", s->desired},
               {"current", s->current},
               {"ready", s->ready},
               {"updated", s->updated}};
    for (size_t i = 0; i < sizeof all / sizeof *all && infd_has_role(d, r) && !w->rc; i++)
        w->rc = buf_printf(
            w->out,
            GROUPS_NAME "{infd_namespace=\"%s\",infd=\"%s\",role=\"%s\",state=\"%s\"} %lld\n",
            d->meta.namespace, d->meta.name, rec_role_name(r), all[i].state, (long long)all[i].n);
}

static bool groups(const void *object, void *ctx)
{
    const struct kube_infd *d = object;
    struct writing *w = ctx;
    role(w, d, REC_PREFILL, &d->prefill_status);
    role(w, d, REC_DECODE, &d->decode_status);
    role(w, d, REC_UNIFIED, &d->unified_status);
    return !w->rc;
}

/* Of the leader alone: the others' caches say the same. */
static int expose(struct buf *out, void *ctx)
{
    struct ctl *c = ctx;
    struct writing w = {out, 0};
    if (!c->leading || !c->infds)
        return 0;
    w.rc = buf_printf(out, "# HELP %s %s\n# TYPE %s gauge\n", CONDITION_NAME,
                      "1 while a condition of an InferenceDeployment is True.", CONDITION_NAME);
    if (!w.rc)
        kube_cache_each(c->infds, conditions, &w);
    if (!w.rc)
        w.rc =
            buf_printf(out, "# HELP %s %s\n# TYPE %s gauge\n", GROUPS_NAME,
                       "Groups of a role by state: desired, current, ready, updated.", GROUPS_NAME);
    if (!w.rc)
        kube_cache_each(c->infds, groups, &w);
    return w.rc;
}

void expose_start(struct ctl *c)
{
    metrics_collect(expose, c);
}

void expose_stop(struct ctl *c)
{
    metrics_uncollect(expose, c);
}
